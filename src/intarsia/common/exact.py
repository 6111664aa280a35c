"""Values brought to another type without losing any: columns and tables, naive timestamps in UTC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.common.names import CAST_IT, make_mismatch_error, name_problems
from intarsia.common.types import (
    NUMBERS,
    as_decimal,
    classify_type,
    find_common_type,
    get_bit_width,
    is_encoded,
    list_like,
    normalize_type,
    unwrap_type,
)

__all__ = [
    "cast_exact",
    "check_categories",
    "conform_table",
    "make_cast_hint",
    "to_utc_schema",
    "to_utc_table",
    "widen_float16",
    "with_zones",
]

_NAIVE = (
    "the source has times without a zone for a column of instants: say which they are, such as with"
    ' pyarrow.compute.assume_timezone, or pass naive_timestamps="utc" if they are in UTC'
)
_WALL = (
    "the source has instants for a column of times without a zone: bring them to the wall time that the"
    " column holds, such as with pyarrow.compute.local_timestamp, or in Spark with cast(... as timestamp_ntz)"
)


class _Refused(Exception):
    """The cast is impossible by the types alone, whatever the values are."""


class _Unfit(Exception):
    def __init__(self, value: str, reason: str) -> None:
        super().__init__(value)
        self.value, self.reason = value, reason


def cast_exact(
    array: pa.ChunkedArray | pa.Array,
    data_type: pa.DataType,
    *,
    column: str,
    operation: str = "cast_exact",
    path: str | None = None,
) -> pa.ChunkedArray:
    """The values in another type, every one of them exactly as it was.

    Numbers meet by value, also across integers, floats and decimals; strings, binaries, dates, times,
    timestamps (both with a zone or both without) and durations meet their own kind; structs meet by
    field name. Memory: one copy of the column. A column that has the type already is not copied.

    Raises:
        SchemaMismatch: Naming the column and the first value that does not fit.
    """
    chunked = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    if chunked.type.equals(data_type):
        return chunked
    try:
        # An empty array first: incompatible types are an error without rows, too.
        _cast(pa.nulls(0, chunked.type), data_type)
        plain = data_type.value_type if pt.is_dictionary(data_type) else data_type
        pieces = [piece for chunk in chunked.chunks for piece in _cast_pieces(chunk, plain)]
        cast = pa.chunked_array(pieces, plain)
        return _encode(cast, data_type) if pt.is_dictionary(data_type) else cast
    except (_Refused, pa.ArrowNotImplementedError) as error:
        reason = f": {error}" if str(error) else ""
        problem = f"{column!r} cannot go from {chunked.type} to {data_type}{reason}"
        raise make_mismatch_error(
            [problem], operation, path, make_cast_hint(chunked.type, data_type)
        ) from error
    except _Unfit as error:
        problem = f"{column!r} is {data_type}, which cannot hold {error.value} exactly ({error.reason})"
        hint = 'correct the value, or widen the column with schema_evolution="widen"'
        raise make_mismatch_error([problem], operation, path, hint) from error


def conform_table(table: pa.Table, schema: pa.Schema, *, operation: str, path: str) -> pa.Table:
    """The table with exactly the schema's columns, order and types, and all of its values.

    A nullable column that the table lacks is filled with NULL. Idempotent.

    Raises:
        SchemaMismatch: A value does not fit (the message has it), a NOT NULL column would hold NULLs
            (the message has the count), a column is there twice, or the schema has no place for one.
    """
    problems = name_problems([table.schema])
    known = set(schema.names)
    problems += [
        f"{f.name!r} ({f.type}) has no place in the target" for f in table.schema if f.name not in known
    ]
    if problems:
        raise make_mismatch_error(
            problems, operation, path, 'drop the column, or add it with schema_evolution="add"'
        )
    columns = []
    given = set(table.column_names)
    for field in schema:
        name = field.name
        if name in given:
            column = cast_exact(table[name], field.type, column=name, operation=operation, path=path)
        else:
            column = pa.chunked_array([_make_nulls(table.num_rows, field.type)])
        if not field.nullable and column.null_count:
            problems.append(f"{name!r} is NOT NULL in the target and NULL in {column.null_count} rows")
        columns.append(column)
    if problems:
        raise make_mismatch_error(problems, operation, path, "give those rows a value")
    return pa.Table.from_arrays(columns, schema=schema)


def check_categories(table: pa.Table, schema: pa.Schema, *, operation: str, path: str) -> None:
    """Raise SchemaMismatch where a column that Polars wrote as an Enum would get a value outside of it.

    Polars reads such a value as NULL, without a word. Enums within lists and structs are not looked at.
    """
    given = set(table.column_names)
    problems = []
    for field in schema:
        known = _read_categories(field) if field.metadata and field.name in given else None
        if known is None:
            continue
        column = table[field.name].cast(pa.string())
        outside = column.filter(pc.invert(pc.is_in(column, known, skip_nulls=False)))
        outside = outside.drop_null()
        if len(outside):
            shown = ", ".join(map(repr, pc.unique(outside).sort()[:3].to_pylist()))
            problems.append(
                f"{field.name!r} is an Enum of Polars, of {len(known)} categories, which lack {shown}"
                f" of {len(outside):,} rows"
            )
    if problems:
        hint = "give those rows one of the categories, or write the dataset anew with the column as text"
        raise make_mismatch_error(problems, operation, path, hint)


def _read_categories(field: pa.Field) -> pa.Array | None:
    """The categories of an Enum, as Polars notes them: each after its length in bytes and a semicolon."""
    notes = field.metadata or {}
    note = notes.get(b"_PL_ENUM_VALUES2", notes.get(b"_PL_ENUM_VALUES"))
    found: list[bytes] = []
    while note:
        length, _, rest = note.partition(b";")
        if not length.isdigit() or len(rest) < int(length):
            return None
        found.append(rest[: int(length)])
        note = rest[int(length) :]
    return None if note is None else pa.array(found, pa.binary()).cast(pa.string())


def _cast_pieces(chunk: pa.Array, data_type: pa.DataType) -> list[pa.Array]:
    """The chunk cast, split in halves where it cannot be cast as a whole.

    Halving finds the first value that does not fit in n + n/2 + n/4 ... steps of vectorised work, and
    it is also what a chunk needs that is too large for 32-bit offsets.
    """
    try:
        return [_cast(chunk, data_type)]
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        if len(chunk) <= 1:
            raise _Unfit(_format_value(chunk), str(error)) from error
    half = len(chunk) // 2
    return _cast_pieces(chunk.slice(0, half), data_type) + _cast_pieces(chunk.slice(half), data_type)


def _format_value(array: pa.Array) -> str:
    """The only value of the array as text."""
    if pt.is_temporal(array.type):  # Python has no nanoseconds and no year 10000; Arrow prints them
        text = " ".join(str(array).split())[1:-1].strip()
    else:
        text = ", ".join(map(repr, array.to_pylist()))
    return text if len(text) <= 120 else text[:117] + "..."


# ---------------------------------------------------------------------------------------------------
# One array to one type.


def _cast(array: pa.Array, to: pa.DataType) -> pa.Array:
    source = array.type
    if source.equals(to):
        return array
    if pt.is_null(source):
        return _make_nulls(len(array), to)
    if isinstance(to, pa.BaseExtensionType):
        if isinstance(source, pa.BaseExtensionType):
            raise _Refused("two different extension types")
        return pa.ExtensionArray.from_storage(to, _cast(array, to.storage_type))
    if isinstance(source, pa.BaseExtensionType):
        return _cast(array.storage, to)
    if is_encoded(source):
        return _cast(_decode(array), to)
    if pt.is_dictionary(to):
        return _cast_indices(_cast(array, to.value_type).dictionary_encode(), to)
    if pt.is_run_end_encoded(to):
        return pc.run_end_encode(_cast(array, to.value_type), run_end_type=to.run_end_type)
    if pt.is_null(to):
        if array.null_count < len(array):
            raise pa.ArrowInvalid("the column has the type null")
        return pa.nulls(len(array))
    kind = classify_type(source)
    if kind == classify_type(to) and kind in _CAST_NESTED:
        return _CAST_NESTED[kind](array, to)
    return _cast_leaf(array, to)


def _decode(array: pa.Array) -> pa.Array:
    if pt.is_run_end_encoded(array.type):
        return pc.run_end_decode(array)
    # Arrow cannot take from views, so the dictionary goes through its normal type.
    dictionary = pc.cast(array.dictionary, normalize_type(array.type.value_type))
    return dictionary.take(array.indices)


def _encode(values: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    """One dictionary for all chunks: with one each, a file could hold more values than it can index."""
    return pa.chunked_array([_cast_indices(chunk, to) for chunk in values.dictionary_encode().chunks], to)


def _cast_indices(encoded: pa.Array, to: pa.DataType) -> pa.Array:
    count = len(encoded.dictionary)
    room = 1 << (get_bit_width(to.index_type) - int(pt.is_signed_integer(to.index_type)))
    if count > room:
        raise _Refused(f"{count} distinct values, but {to.index_type} has room for {room}")
    indices = pc.cast(encoded.indices, to.index_type)
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=to.ordered)


def _cast_leaf(array: pa.Array, to: pa.DataType) -> pa.Array:
    kinds = (classify_type(array.type), classify_type(to))
    if None in kinds or not (kinds[0] == kinds[1] or set(kinds) <= NUMBERS):
        raise _Refused
    cast = _cast_in_steps(array, to)
    if _may_round(array.type, to):
        before, back = widen_float16(array), widen_float16(_cast_in_steps(cast, array.type))
        same = pc.equal(before, back)
        if kinds[0] == "float":
            same = pc.or_(same, pc.and_(pc.is_nan(before), pc.is_nan(back)))
        if not pc.all(same, min_count=0).as_py():
            raise pa.ArrowInvalid("it would be another value")
    return cast


def widen_float16(array: pa.Array) -> pa.Array:
    """float16 as float32, since Arrow has no comparison of float16."""
    return pc.cast(array, pa.float32()) if pt.is_float16(array.type) else array


def _may_round(source: pa.DataType, to: pa.DataType) -> bool:
    """Whether Arrow's safe cast between two types may change values silently."""
    if pt.is_floating(source):
        return bool(pt.is_decimal(to) or (pt.is_floating(to) and get_bit_width(to) < get_bit_width(source)))
    if pt.is_decimal(to):
        # With fewer digits before the point, multiplying by the scale may overflow unnoticed.
        source = as_decimal(source)
        return bool(source.precision - source.scale > to.precision - to.scale)
    return bool(pt.is_float16(to) or (pt.is_decimal(source) and pt.is_floating(to)))


def _cast_in_steps(array: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast safely with Arrow, through a type in between where the direct cast is missing or wrong."""
    source = array.type
    if pt.is_integer(source) and pt.is_decimal(to):
        # Directly, Arrow wants a precision that fits any integer, whatever the values.
        array = pc.cast(array, pa.decimal128(20, 0))
    elif pt.is_decimal(source) and pt.is_integer(to) and get_bit_width(source) < 128:
        # Directly, Arrow finds every narrow decimal out of the bounds of a wide integer.
        array = pc.cast(array, pa.decimal128(38, source.scale))
    elif {classify_type(source), classify_type(to)} == {"decimal", "float"} and 16 in (
        get_bit_width(source),
        get_bit_width(to),
    ):
        array = pc.cast(array, pa.float32())
    return pc.cast(array, to)


# ---------------------------------------------------------------------------------------------------
# Nested arrays: their children cast, then put together again.


def _make_null_mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _make_nulls(length: int, data_type: pa.DataType) -> pa.Array:
    """NULLs that can be written: below a NULL struct, Parquet wants some value in NOT NULL fields."""
    if not pt.is_struct(data_type):
        return pa.nulls(length, data_type)
    return _cast_struct(
        pa.nulls(length, pa.struct([field.with_nullable(True) for field in data_type.fields])), data_type
    )


def _check_required(field: pa.Field, values: pa.Array, allowed: int = 0) -> None:
    if not field.nullable and values.null_count > allowed:
        raise pa.ArrowInvalid(f"the field {field.name!r} is NOT NULL")


def _cast_struct(array: pa.Array, to: pa.DataType) -> pa.Array:
    names = [field.name for field in array.type.fields]
    extra = [name for name in names if name not in {field.name for field in to.fields}]
    if extra:
        raise _Refused(f"no place for the struct fields {extra}")
    if len(set(names)) < len(names):
        raise _Refused("a struct field is there twice")
    # flatten() hides what lies under a NULL struct; the children themselves may hold anything there.
    children = dict(zip(names, array.flatten(), strict=True))
    values = []
    for field in to.fields:
        if field.name not in children and not field.nullable:
            raise _Refused(f"the struct field {field.name!r} is NOT NULL and missing")
        child = _cast(children.get(field.name, pa.nulls(len(array))), field.type)
        _check_required(field, child, array.null_count)
        if not field.nullable and child.null_count:
            child = pc.coalesce(child, pa.array([None], pa.struct([field])).field(0)[0])
        values.append(child)
    return pa.StructArray.from_arrays(values, fields=list(to.fields), mask=array.is_null())


def _cast_list(array: pa.Array, to: pa.DataType) -> pa.Array:
    values = _cast(array.flatten(), to.value_type)
    _check_required(to.value_field, values)
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets, mask = _make_offsets(lengths), _make_null_mask(array)
    if pt.is_list_view(to):
        offsets, sizes = pc.cast(offsets[:-1], pa.int32()), pc.cast(lengths, pa.int32())
        return pa.ListViewArray.from_arrays(offsets, sizes, values, type=to, mask=mask)
    if pt.is_large_list_view(to):
        sizes = pc.cast(lengths, pa.int64())
        return pa.LargeListViewArray.from_arrays(offsets[:-1], sizes, values, type=to, mask=mask)
    if pt.is_list(to):
        return pa.ListArray.from_arrays(pc.cast(offsets, pa.int32()), values, type=to, mask=mask)
    large = pa.LargeListArray.from_arrays(offsets, values, type=pa.large_list(to.value_field), mask=mask)
    return pc.cast(large, to)


def _make_offsets(lengths: pa.Array) -> pa.Array:
    total = pc.cumulative_sum(pc.cast(lengths, pa.int64()))
    return pa.concat_arrays([pa.array([0], pa.int64()), total])


def _cast_map(array: pa.Array, to: pa.DataType) -> pa.Array:
    # As a list of pairs, since the keys and items of a sliced map are those of the whole.
    pair = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
    pairs = pc.cast(array, pa.list_(pair))
    keys, items = pairs.flatten().flatten()
    keys, items = _cast(keys, to.key_type), _cast(items, to.item_type)
    _check_required(to.item_field, items)
    offsets = pc.cast(_make_offsets(pc.fill_null(pc.list_value_length(pairs), 0)), pa.int32())
    return pa.MapArray.from_arrays(offsets, keys, items, to, mask=_make_null_mask(array))


_CAST_NESTED: dict[str, Callable[[pa.Array, pa.DataType], pa.Array]] = {
    "struct": _cast_struct,
    "list": _cast_list,
    "map": _cast_map,
}


# Timestamps with and without a zone: what naive ones of a source are taken for.


def to_utc_schema(source: pa.Schema, target: pa.Schema) -> pa.Schema:
    """The source's schema with its naive timestamps in UTC, except where the target's column is naive, too.

    Structs meet by the names of their fields. A column that the target lacks is in UTC, too.
    """
    kinds = {field.name: field.type for field in target}
    return pa.schema(
        [field.with_type(_to_utc_type(field.type, kinds.get(field.name))) for field in source],
        source.metadata,
    )


def to_utc_table(table: pa.Table, target: pa.Schema) -> pa.Table:
    """The same for a table; the stored numbers stay."""
    return with_zones(table, to_utc_schema(table.schema, target))


def with_zones(rows: Any, schema: pa.Schema) -> Any:
    """A table or a batch in the schema that :func:`to_utc_schema` made for it."""
    pairs = zip(rows.columns, schema, strict=True)
    columns = [column if column.type.equals(f.type) else column.cast(f.type) for column, f in pairs]
    return type(rows).from_arrays(columns, schema=schema)


def _to_utc_type(dtype: pa.DataType, like: pa.DataType | None) -> pa.DataType:
    def to_utc_field(field: pa.Field, other: pa.DataType | None) -> pa.Field:
        return field.with_type(_to_utc_type(field.type, other))

    plain = None if like is None else unwrap_type(like)
    same = plain if plain is not None and classify_type(plain) == classify_type(dtype) else None
    match classify_type(dtype):
        case "timestamp":
            return dtype if same is not None else pa.timestamp(dtype.unit, "UTC")
        case "struct":
            others = {} if same is None else {field.name: field.type for field in same.fields}
            return pa.struct([to_utc_field(field, others.get(field.name)) for field in dtype.fields])
        case "map":
            key = to_utc_field(dtype.key_field, None if same is None else same.key_type)
            item = to_utc_field(dtype.item_field, None if same is None else same.item_type)
            return pa.map_(key, item, keys_sorted=dtype.keys_sorted)
        case "list":
            return list_like(
                dtype, to_utc_field(dtype.value_field, None if same is None else same.value_type)
            )
        case _:
            return dtype


def make_cast_hint(source: pa.DataType, target: pa.DataType) -> str:
    """The hint for a source column whose type cannot be cast to the target's."""
    if find_common_type(target, _to_utc_type(source, target)) is not None:
        return _NAIVE
    if find_common_type(_to_utc_type(target, source), source) is not None:
        return _WALL
    return CAST_IT
