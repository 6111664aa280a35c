"""The schema elements of a file that is written: those of an existing file, where PyArrow can store them.

PyArrow encodes the values; the footer that describes them is written here. Where PyArrow would use another
physical type, values are cast to a type that it stores as wanted, or written with another option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from intarsia.common.thrift import I32, LIST, STRUCT, Struct, get, read_struct, write_struct
from intarsia.common.types import classify_type, list_like, normalize_type
from intarsia.core import layout as schema_elements
from intarsia.core.layout import Elements, Leaf, list_leaves, with_repetition

__all__ = [
    "FileSchema",
    "TypeOptions",
    "is_same_type",
    "iterate_leaf_types",
    "match_schema",
    "read_schema_without_note",
]

_BYTES_OF_DECIMALS = (0, 2, 4, 6, 9, 11, 14, 16, 18, 21, 23, 26, 28, 31, 33, 35, 38)
"""By number of bytes: the largest precision of a decimal that PyArrow stores in them."""


class TypeOptions(NamedTuple):
    """Options of PyArrow's writer that decide on physical types."""

    int96: bool = False
    integer_decimals: bool = False


@dataclass(frozen=True, slots=True)
class FileSchema:
    """The types in which columns are given to PyArrow, and the elements that describe them in the footer."""

    schema: pa.Schema
    """The columns in the types that they are given to PyArrow in."""
    root: Struct
    columns: Mapping[str, tuple[Struct, ...]]
    options: Mapping[str, tuple[TypeOptions, ...]]
    """By column, for each leaf."""
    bounded: Mapping[str, tuple[bool, ...]]
    """By column, for each leaf: whether PyArrow's bounds have the order that the element stands for."""
    own: bool
    """Whether PyArrow writes all of it by itself."""
    kept: frozenset[str] = frozenset()
    """Columns that have the elements of the existing file."""
    lost: frozenset[str] = frozenset()
    """Columns of the same type as in the existing file that cannot be written with its elements."""

    def list_leaves(self, column: str) -> list[Leaf]:
        return list_leaves(self.columns[column])

    def list_paths(self) -> list[str]:
        """The paths of all leaves, in order."""
        return [".".join(leaf.path) for name in self.columns for leaf in self.list_leaves(name)]

    def as_stored(self, table: pa.Table) -> pa.Table:
        """The columns in the types that they are given to PyArrow in."""
        for number, field in enumerate(table.schema):
            wanted = self.schema.field(field.name)
            if field.type != wanted.type:
                table = table.set_column(number, wanted, _as_stored(table[field.name], wanted.type))
        return table

    def list_elements(self) -> list[Struct]:
        """All elements of the footer."""
        return [self.root, *(element for column in self.columns.values() for element in column)]


Template = Callable[[pa.Schema, TypeOptions], tuple[Struct, dict[str, tuple[Struct, ...]]]]
"""The root and the elements that PyArrow gives columns by itself."""


def match_schema(
    schema: pa.Schema,
    like: Elements | None,
    *,
    base: TypeOptions,
    template: Template,
    keeps_root: bool = True,
) -> FileSchema:
    """The columns with the elements of an existing file, where it has the same type and they can be stored.

    Without ``keeps_root``, a different root alone is no reason to write the footer here.
    """
    stored, options = list(schema), [_repeat_for_leaves(field.type, base) for field in schema]
    wanted: set[str] = set()
    for number, field in enumerate(schema):
        if like is None or field.name not in like.columns or not is_same_type(field.type, like, field.name):
            continue
        wanted.add(field.name)
        found = _make_storage_field(field, like.list_leaves(field.name), base)
        if found is not None:
            stored[number], options[number] = found
    made = {each: template(pa.schema(stored), each) for each in {base}.union(*options)}
    root, own = made[base]
    kept, bounded = {}, {field.name: (True,) * len(options[n]) for n, field in enumerate(schema)}
    for number, field in enumerate(schema):
        if like is not None and field.name in wanted:
            ours = _join_elements([made[each][1][field.name] for each in options[number]])
            agreed = _agree_on(ours, like.columns[field.name])
            if agreed is not None:
                kept[field.name] = agreed
                bounded[field.name] = tuple(map(_is_ordered_alike, list_leaves(ours), list_leaves(agreed)))
                continue
            stored[number], options[number] = field, _repeat_for_leaves(field.type, base)
    if len(kept) < len(wanted):  # some were cast, but their elements cannot be kept
        own = template(pa.schema(stored), base)[1]
    columns = {name: kept.get(name, own[name]) for name in schema.names}
    if like is not None:
        root = {**like.root, schema_elements.CHILDREN: (I32, len(columns))}
    same_root = not keeps_root or root == made[base][0]
    plain = same_root and columns == own and set().union(*options) <= {base}
    assert like is not None or plain
    return FileSchema(
        pa.schema(stored),
        root,
        columns,
        dict(zip(schema.names, options, strict=True)),
        bounded,
        plain and stored == list(schema),
        frozenset(kept),
        frozenset(wanted - kept.keys()),
    )


def read_schema_without_note(footer: Struct) -> pa.Schema:
    """The columns as Arrow reads them from a file with this footer, without an Arrow schema in it."""
    raw = write_struct({**footer, 4: (LIST, (STRUCT, []))})
    data = b"PAR1" + raw + len(raw).to_bytes(4, "little") + b"PAR1"
    return pq.read_metadata(pa.BufferReader(data)).schema.to_arrow_schema()


def _agree_on(ours: Sequence[Struct], theirs: Sequence[Struct]) -> tuple[Struct, ...] | None:
    """The existing elements, with NOT NULL as it is written; None where they do not fit what is written."""
    if schema_elements.has_same_leaves(ours, theirs):
        return tuple(theirs)
    return with_repetition(ours, theirs)


def _is_ordered_alike(ours: Leaf, theirs: Leaf) -> bool:
    return theirs.order is not None and ours.order == theirs.order


def _join_elements(variants: Sequence[tuple[Struct, ...]]) -> list[Struct]:
    """A column's elements, each leaf as PyArrow writes it with the options of that leaf."""
    if len(variants) == 1:
        return list(variants[0])
    leaves = [number for number, one in enumerate(variants[0]) if not get(one, schema_elements.CHILDREN, 0)]
    joined = list(variants[0])
    for number, variant in zip(leaves, variants, strict=True):
        joined[number] = variant[number]
    return joined


# ---------------------------------------------------------------------------------------------------
# The same type: what Arrow reads from the elements, in whichever of its variants a column is given.


def is_same_type(dtype: pa.DataType, like: Elements, name: str) -> bool:
    """Whether a type is that of the column of this name in existing files."""
    other = like.schema.field(name).type
    ours, theirs, leaves = (
        list(iterate_leaf_types(dtype)),
        list(iterate_leaf_types(other)),
        like.list_leaves(name),
    )
    if _outline_type(dtype) != _outline_type(other) or not len(ours) == len(theirs) == len(leaves):
        return False
    return all(map(_is_same_leaf, ours, theirs, leaves))


def _is_same_leaf(dtype: pa.DataType, other: pa.DataType, leaf: Leaf) -> bool:
    if leaf.physical[0] == schema_elements.INT96:  # instants, whatever their unit
        return bool(pa.types.is_timestamp(dtype) and dtype.tz is not None)
    return bool(_to_canonical(dtype) == _to_canonical(other))


def _to_canonical(dtype: pa.DataType) -> Any:
    if pa.types.is_decimal(dtype):
        return dtype.precision, dtype.scale
    if pa.types.is_timestamp(dtype):
        return dtype.unit, dtype.tz is not None
    return normalize_type(dtype)


def _unwrap_type(dtype: pa.DataType) -> pa.DataType:
    while True:
        if isinstance(dtype, pa.BaseExtensionType):
            dtype = dtype.storage_type
        elif pa.types.is_dictionary(dtype):
            dtype = dtype.value_type
        else:
            return dtype


def _outline_type(dtype: pa.DataType) -> Any:
    dtype = _unwrap_type(dtype)
    match classify_type(dtype):
        case "struct":
            return tuple((field.name, _outline_type(field.type)) for field in dtype)
        case "map":
            return "map", _outline_type(dtype.key_type), _outline_type(dtype.item_type)
        case "list":
            return "list", _outline_type(dtype.value_type)
    return None


def iterate_leaf_types(dtype: pa.DataType) -> Iterator[pa.DataType]:
    """The leaves of a type, depth first."""
    dtype = _unwrap_type(dtype)
    match classify_type(dtype):
        case "struct":
            for field in dtype:
                yield from iterate_leaf_types(field.type)
        case "map":
            yield from iterate_leaf_types(dtype.key_type)
            yield from iterate_leaf_types(dtype.item_type)
        case "list":
            yield from iterate_leaf_types(dtype.value_type)
        case _:
            yield dtype


def _repeat_for_leaves(dtype: pa.DataType, base: TypeOptions) -> tuple[TypeOptions, ...]:
    return (base,) * max(1, len(list(iterate_leaf_types(dtype))))


# ---------------------------------------------------------------------------------------------------
# Storage types: types that PyArrow stores in the physical type of a leaf.


def _make_storage_field(
    field: pa.Field, leaves: Sequence[Leaf], base: TypeOptions
) -> tuple[pa.Field, tuple[TypeOptions, ...]] | None:
    """The type in which a column is given to PyArrow, and the options of its leaves; None where none fits."""
    dtype = _unwrap_type(field.type)
    if (
        len(leaves) == 1
        and classify_type(dtype) == "decimal"
        and leaves[0].physical[0] == schema_elements.BYTE_ARRAY
    ):
        return field.with_type(pa.binary()), (base,)
    rest = iter(leaves)
    options: list[TypeOptions] = []
    storage = _make_storage_type(field.type, rest, base, options)
    if storage is None:
        return None
    try:
        pa.nulls(0, field.type).cast(storage)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return (field, tuple(options)) if storage == field.type else None
    return field.with_type(storage), tuple(options)


def _make_storage_type(
    dtype: pa.DataType, leaves: Iterator[Leaf], base: TypeOptions, options: list[TypeOptions]
) -> pa.DataType | None:
    bare = _unwrap_type(dtype)
    match classify_type(bare):
        case "struct":
            fields = [(field, _make_storage_type(field.type, leaves, base, options)) for field in bare]
            if any(found is None for _, found in fields):
                return None
            changed = pa.struct([field.with_type(found) for field, found in fields])
        case "map":
            key = _make_storage_type(bare.key_type, leaves, base, options)
            item = _make_storage_type(bare.item_type, leaves, base, options)
            if key is None or item is None:
                return None
            changed = pa.map_(
                bare.key_field.with_type(key), bare.item_field.with_type(item), keys_sorted=bare.keys_sorted
            )
        case "list":
            value = _make_storage_type(bare.value_type, leaves, base, options)
            if value is None:
                return None
            changed = list_like(bare, bare.value_field.with_type(value))
        case _:
            found = _choose_leaf_type(bare, next(leaves), base)
            if found is None:
                return None
            options.append(found[1])
            changed = found[0]
    return dtype if changed == bare else changed


def _choose_leaf_type(
    dtype: pa.DataType, leaf: Leaf, base: TypeOptions
) -> tuple[pa.DataType, TypeOptions] | None:
    physical, length = leaf.physical
    if pa.types.is_timestamp(dtype):
        return dtype, base._replace(int96=physical == schema_elements.INT96)
    if pa.types.is_decimal(dtype):
        return _choose_decimal_type(dtype, physical, length, base)
    if pa.types.is_integer(dtype) and physical == schema_elements.INT64:
        return (pa.uint64() if dtype == pa.uint64() else pa.int64()), base
    return dtype, base


def _choose_decimal_type(
    dtype: pa.DataType, physical: int, length: int | None, base: TypeOptions
) -> tuple[pa.DataType, TypeOptions] | None:
    if physical == schema_elements.INT32:
        return dtype, base._replace(integer_decimals=True)
    if physical == schema_elements.INT64:
        narrow = dtype.precision <= 9
        return (pa.decimal128(18, dtype.scale) if narrow else dtype), base._replace(integer_decimals=True)
    if physical != schema_elements.FIXED or length is None or not 0 < length < len(_BYTES_OF_DECIMALS):
        return (dtype, base._replace(integer_decimals=False)) if length else None
    most = _BYTES_OF_DECIMALS[length]
    if most < dtype.precision:
        return None
    # PyArrow derives the number of bytes from the precision: the largest one for these bytes.
    fits = _BYTES_OF_DECIMALS[length - 1] < dtype.precision
    return (dtype if fits else pa.decimal128(most, dtype.scale)), base._replace(integer_decimals=False)


def _as_stored(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_binary(dtype) and pa.types.is_decimal(_unwrap_type(column.type)):
        return _to_big_endian(column).cast(dtype)
    return column.cast(dtype)


def _to_big_endian(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals as big-endian bytes: written to Parquet, and read without their logical type."""
    wide = column.cast(pa.decimal128(38, _unwrap_type(column.type).scale))
    sink = pa.BufferOutputStream()
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table({"d": wide}), sink, store_schema=False, **options)
    data = bytes(memoryview(sink.getvalue()).cast("B"))
    size = int.from_bytes(data[-8:-4], "little")
    footer, _ = read_struct(data[-8 - size : -8])
    root, leaf = get(footer, schema_elements.SCHEMA)[1]
    bare = {number: value for number, value in leaf.items() if number <= schema_elements.CHILDREN}
    raw = write_struct({**footer, schema_elements.SCHEMA: (LIST, (STRUCT, [root, bare]))})
    whole = data[: -8 - size] + raw + len(raw).to_bytes(4, "little") + b"PAR1"
    return pq.read_table(pa.BufferReader(whole))["d"]
