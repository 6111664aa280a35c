"""How schemas and types meet: unify, conform and cast without ever losing a value; reads no files.

The rules, in one place for every engine:

- :func:`common_type` is the narrowest type that holds every value of two types exactly, or None.
- :func:`unify_schemas` applies it to whole schemas, by column name.
- :func:`conform_schema` decides what schema a dataset has after a merge.
- :func:`cast_exact` brings values to a type, or names the first value that does not fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.errors import ColumnNotFound, InputError, KeyColumnError, SchemaMismatch

__all__ = [
    "cast_exact",
    "cast_schema",
    "check_key_types",
    "common_type",
    "conform_schema",
    "conform_table",
    "convert_large_types_to_normal",
    "is_nested",
    "opt_dtype",
    "text_type",
    "unify_schemas",
]

# ---------------------------------------------------------------------------------------------------
# Kinds: types of one kind hold the same sort of value and differ only in how wide they are.

_NUMBERS = frozenset({"integer", "float", "decimal"})
_KINDS: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
    ("null", pt.is_null),
    ("boolean", pt.is_boolean),
    ("integer", pt.is_integer),
    ("float", pt.is_floating),
    ("decimal", pt.is_decimal),
    ("string", lambda t: pt.is_string(t) or pt.is_large_string(t) or pt.is_string_view(t)),
    (
        "binary",
        lambda t: (
            pt.is_binary(t) or pt.is_large_binary(t) or pt.is_binary_view(t) or pt.is_fixed_size_binary(t)
        ),
    ),
    ("date", pt.is_date),
    ("time", pt.is_time),
    ("zoned timestamp", lambda t: pt.is_timestamp(t) and t.tz is not None),
    ("timestamp", pt.is_timestamp),
    ("duration", pt.is_duration),
    ("struct", pt.is_struct),
    ("map", pt.is_map),
    (
        "list",
        lambda t: pt.is_list(t) or pt.is_large_list(t) or pt.is_fixed_size_list(t) or _is_list_view(t),
    ),
)
_UNITS = ("s", "ms", "us", "ns")
_CAST_IT = "cast the column of the source to the target's type"


def _is_list_view(data_type: pa.DataType) -> bool:
    return bool(pt.is_list_view(data_type) or pt.is_large_list_view(data_type))


def _is_encoded(data_type: pa.DataType) -> bool:
    return bool(pt.is_dictionary(data_type) or pt.is_run_end_encoded(data_type))


def _kind(data_type: pa.DataType) -> str | None:
    return next((name for name, test in _KINDS if test(data_type)), None)


def _plain(data_type: pa.DataType) -> pa.DataType:
    """The type of the values themselves: without dictionary, run-end encoding or extension."""
    while True:
        if _is_encoded(data_type):
            data_type = data_type.value_type
        elif isinstance(data_type, pa.BaseExtensionType):
            data_type = data_type.storage_type
        else:
            return data_type


def is_nested(data_type: pa.DataType) -> bool:
    """True for lists, structs, maps and unions, also inside a dictionary or an extension type."""
    return bool(pt.is_nested(_plain(data_type)))


# ---------------------------------------------------------------------------------------------------
# The common type of two types.


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds every value of both exactly; None when there is none.

    Between representations of the same values (string and large_string, list and large_list,
    dictionary and plain) the left one is kept. A finer time unit wins over a coarser one, although
    it covers fewer years: casting tells. Boolean, integer, string and binary never mix, nor do
    timestamps with and without a zone.

    >>> common_type(pa.int32(), pa.uint32())
    DataType(int64)
    >>> common_type(pa.string(), pa.int64()) is None
    True
    """
    if left.equals(right) or pt.is_null(right):
        return left
    if pt.is_null(left):
        return right
    if isinstance(left, pa.BaseExtensionType) or isinstance(right, pa.BaseExtensionType):
        return _common_extension(left, right)
    if _is_encoded(left) or _is_encoded(right):
        return _common_encoded(left, right)
    kinds = {_kind(left), _kind(right)}
    if kinds <= _NUMBERS:
        return _common_number(left, right)
    rule = _COMMON.get(_kind(left) or "")
    return rule(left, right) if rule is not None and len(kinds) == 1 else None


def _common_extension(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """An extension type and its own storage are the same values; two extensions never are."""
    if isinstance(left, pa.BaseExtensionType) and isinstance(right, pa.BaseExtensionType):
        return None
    return left if _plain(left).equals(_plain(right)) else None


def _common_encoded(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    values = common_type(_plain(left), _plain(right))
    if values is None or not pt.is_dictionary(left):
        return values
    if not pt.is_dictionary(right):
        return left if values.equals(left.value_type) else values
    index = _common_integer(left.index_type, right.index_type) or pa.int64()
    return pa.dictionary(index, values, ordered=left.ordered and right.ordered)


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pt.is_floating(left) and pt.is_floating(right):
        return max(left, right, key=_bits)
    if pt.is_integer(left) and pt.is_integer(right):
        return _common_integer(left, right)
    if pt.is_floating(left) or pt.is_floating(right):
        number, floating = (right, left) if pt.is_floating(left) else (left, right)
        return _float_of(number, _bits(floating)) if pt.is_integer(number) else None
    return _common_decimal(_as_decimal(left), _as_decimal(right))


def _bits(data_type: pa.DataType) -> int:
    return int(data_type.bit_width)


def _common_integer(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pt.is_signed_integer(left) == pt.is_signed_integer(right):
        return max(left, right, key=_bits)
    signed, unsigned = (left, right) if pt.is_signed_integer(left) else (right, left)
    width = max(_bits(signed), 2 * _bits(unsigned))
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(width)


def _float_of(integer: pa.DataType, least: int) -> pa.DataType | None:
    """The narrowest float of at least that many bits whose mantissa holds every value."""
    digits = _bits(integer) - int(pt.is_signed_integer(integer))
    for data_type, mantissa in ((pa.float16(), 11), (pa.float32(), 24), (pa.float64(), 53)):
        if _bits(data_type) >= least and mantissa >= digits:
            return data_type
    return None


def _as_decimal(data_type: pa.DataType) -> pa.DataType:
    if not pt.is_integer(data_type):
        return data_type
    greatest = 1 << (_bits(data_type) - int(pt.is_signed_integer(data_type)))
    return pa.decimal128(len(str(greatest)), 0)


def _common_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    scale = max(left.scale, right.scale)
    digits = max(left.precision - left.scale, right.precision - right.scale) + scale
    width = max(_bits(left), _bits(right))
    for bits, most, make in (
        (32, 9, pa.decimal32),
        (64, 18, pa.decimal64),
        (128, 38, pa.decimal128),
        (256, 76, pa.decimal256),
    ):
        if bits >= width and digits <= most:
            return make(digits, scale)
    return None


def _finer(left: pa.DataType, right: pa.DataType) -> str:
    return _UNITS[max(_UNITS.index(left.unit), _UNITS.index(right.unit))]


def _common_time(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    unit = _finer(left, right)
    return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)


def _common_binary(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if not pt.is_fixed_size_binary(left):
        return left
    return pa.binary() if pt.is_fixed_size_binary(right) else right


def _common_field(left: pa.Field, right: pa.Field) -> pa.Field | None:
    data_type = common_type(left.type, right.type)
    if data_type is None:
        return None
    return left.with_type(data_type).with_nullable(left.nullable or right.nullable)


def _common_list(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    item = _common_field(left.value_field, right.value_field)
    if item is None:
        return None
    if not pt.is_fixed_size_list(left):
        return _list_of(left, item)
    if not pt.is_fixed_size_list(right):
        return _list_of(right, item)
    return _list_of(left, item) if left.list_size == right.list_size else pa.list_(item)


def _list_of(like: pa.DataType, item: pa.Field) -> pa.DataType:
    if pt.is_fixed_size_list(like):
        return pa.list_(item, like.list_size)
    if pt.is_large_list(like):
        return pa.large_list(item)
    if pt.is_list_view(like):
        return pa.list_view(item)
    return pa.large_list_view(item) if pt.is_large_list_view(like) else pa.list_(item)


def _common_map(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    key = _common_field(left.key_field, right.key_field)
    item = _common_field(left.item_field, right.item_field)
    if key is None or item is None:
        return None
    return pa.map_(key, item, keys_sorted=left.keys_sorted and right.keys_sorted)


def _common_struct(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The children of both by name; one that only one side has becomes nullable."""
    ours, theirs = ({f.name: f for f in t.fields} for t in (left, right))
    if len(ours) < left.num_fields or len(theirs) < right.num_fields:
        return None
    fields = []
    for name in dict.fromkeys((*ours, *theirs)):
        if name in ours and name in theirs:
            field = _common_field(ours[name], theirs[name])
        else:
            field = (ours | theirs)[name].with_nullable(True)
        if field is None:
            return None
        fields.append(field)
    return pa.struct(fields)


_COMMON: dict[str, Callable[[pa.DataType, pa.DataType], pa.DataType | None]] = {
    "string": lambda left, right: left,
    "binary": _common_binary,
    "date": lambda left, right: pa.date64(),
    "time": _common_time,
    "timestamp": lambda left, right: pa.timestamp(_finer(left, right)),
    "zoned timestamp": lambda left, right: pa.timestamp(_finer(left, right), left.tz),
    "duration": lambda left, right: pa.duration(_finer(left, right)),
    "list": _common_list,
    "map": _common_map,
    "struct": _common_struct,
}


# ---------------------------------------------------------------------------------------------------
# Types rewritten throughout, nested ones too.


def _rewrite(data_type: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with ``leaf`` applied at every level; field names, nullability and metadata stay."""

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(_rewrite(field.type, leaf))

    kind = _kind(data_type)
    if pt.is_dictionary(data_type):
        return pa.dictionary(data_type.index_type, _rewrite(data_type.value_type, leaf), data_type.ordered)
    if kind == "struct":
        return pa.struct([inner(field) for field in data_type.fields])
    if kind == "map":
        key, item = inner(data_type.key_field), inner(data_type.item_field)
        return pa.map_(key, item, keys_sorted=data_type.keys_sorted)
    if kind == "list":
        return _list_of(leaf(data_type), inner(data_type.value_field))
    return leaf(data_type)


def _normal(data_type: pa.DataType) -> pa.DataType:
    kind = _kind(data_type)
    if kind == "string":
        return pa.string()
    if kind == "binary" and not pt.is_fixed_size_binary(data_type):
        return pa.binary()
    if kind == "list" and not pt.is_fixed_size_list(data_type):
        return pa.list_(data_type.value_field)
    return data_type


def _large(data_type: pa.DataType) -> pa.DataType:
    normal = _normal(data_type)
    if pt.is_string(normal):
        return pa.large_string()
    if pt.is_binary(normal):
        return pa.large_binary()
    return pa.large_list(normal.value_field) if pt.is_list(normal) else normal


def _rewrite_schema(schema: pa.Schema, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.Schema:
    return pa.schema([f.with_type(_rewrite(f.type, leaf)) for f in schema], schema.metadata)


def convert_large_types_to_normal(schema: pa.Schema) -> pa.Schema:
    """The schema with plain ``string``, ``binary`` and ``list`` for their large and view variants.

    Nested types are converted throughout; names, order, nullability and metadata stay.

    >>> convert_large_types_to_normal(pa.schema([("a", pa.large_string())])).field("a").type
    DataType(string)
    """
    return _rewrite_schema(schema, _normal)


# ---------------------------------------------------------------------------------------------------
# Whole schemas.


def unify_schemas(
    schemas: Iterable[pa.Schema],
    *,
    use_large_dtypes: bool | None = None,
    timezone: str | None = None,
    operation: str = "unify_schemas",
    path: str | None = None,
) -> pa.Schema:
    """One schema that holds the columns of all, each in its :func:`common_type`.

    Columns come in order of first appearance. A column is nullable where any schema says so or
    lacks it. Schema metadata is the first schema's, field metadata that of the first field with any.

    Args:
        schemas: At least one schema.
        use_large_dtypes: True makes strings, binaries and lists large, False makes them normal,
            None leaves each as the first schema with the column has it.
        timezone: The zone that zoned timestamps get; instants stay, timestamps without zone too.
        operation: Named in errors.
        path: Named in errors.

    Raises:
        SchemaMismatch: Naming every column whose types do not meet, that is there twice, or whose
            name differs only by case from another's.
    """
    given = list(schemas)
    if not given:
        raise InputError(f"{operation}: no schema given", path=path)
    fields: dict[str, pa.Field] = {}
    problems = _name_problems(given)
    for schema in given if not problems else ():
        for field in schema:
            if field.name not in fields:
                fields[field.name] = field
                continue
            merged = _common_field(fields[field.name], field)
            if merged is None:
                problems.append(f"{field.name!r} is {fields[field.name].type} and {field.type}")
            else:
                fields[field.name] = merged if merged.metadata else merged.with_metadata(field.metadata)
    if problems:
        raise _mismatch(problems, operation, path, "cast the column to one type in every file")
    absent = {name for name in fields if any(name not in schema.names for schema in given)}
    found = [field.with_nullable(field.nullable or name in absent) for name, field in fields.items()]
    unified = pa.schema(found, given[0].metadata)
    if use_large_dtypes is not None:
        unified = _rewrite_schema(unified, _large if use_large_dtypes else _normal)
    if timezone is not None:
        unified = _rewrite_schema(unified, lambda t: _in_zone(t, timezone))
    return unified


def _in_zone(data_type: pa.DataType, zone: str) -> pa.DataType:
    return pa.timestamp(data_type.unit, zone) if _kind(data_type) == "zoned timestamp" else data_type


def _name_problems(schemas: Sequence[pa.Schema]) -> list[str]:
    """Names that are there twice in one schema, or that two schemas spell in different case."""
    spellings: dict[str, set[tuple[str, ...]]] = {}
    problems: dict[str, None] = {}
    for schema in schemas:
        counts = Counter(schema.names)
        problems |= {f"{name!r} is there {n} times": None for name, n in counts.items() if n > 1}
        folded: dict[str, list[str]] = {}
        for name in sorted(counts):
            folded.setdefault(name.casefold(), []).append(name)
        for key, names in folded.items():
            spellings.setdefault(key, set()).add(tuple(names))
    for variants in spellings.values():
        if len(variants) > 1:
            names = sorted({name for variant in variants for name in variant})
            problems[" and ".join(map(repr, names)) + " differ only by case, which is ambiguous"] = None
    return list(problems)


def _mismatch(problems: Sequence[str], operation: str, path: str | None, hint: str) -> SchemaMismatch:
    where = f" at {path}" if path else ""
    columns = "1 column does" if len(problems) == 1 else f"{len(problems)} columns do"
    message = f"{operation}: {columns} not fit{where}: {'; '.join(problems)}."
    return SchemaMismatch(message, path=path, hint=hint)


def _evolution(schema_evolution: str | Collection[str] | None) -> frozenset[str]:
    parts = schema_evolution.split(",") if isinstance(schema_evolution, str) else schema_evolution or ()
    chosen = frozenset(part.strip() for part in parts)
    if not chosen <= {"add", "widen"}:
        raise InputError(
            f"schema_evolution={schema_evolution!r} is not known",
            hint='use None, "add", "widen" or "add,widen"',
        )
    return chosen


def conform_schema(
    source: pa.Schema,
    target: pa.Schema,
    *,
    operation: str,
    path: str,
    missing: Literal["error", "null"] = "error",
    schema_evolution: str | Collection[str] | None = None,
    partition_columns: Collection[str] = (),
) -> pa.Schema:
    """The schema the dataset has once rows of ``source`` are merged into it.

    These are the target's columns, in its order and types. With ``schema_evolution`` "add" the new
    columns (and struct fields) of the source follow, nullable; with "widen" a column takes the common
    type of both sides. Whether the values fit is answered by :func:`conform_table`.

    Args:
        source: The schema of the rows that come.
        target: The schema of the dataset.
        operation: Named in errors.
        path: The dataset, named in errors.
        missing: "null" lets a nullable column that the source lacks be NULL in its rows.
        schema_evolution: None, "add", "widen", "add,widen" or a collection of these words.
        partition_columns: Columns that may never be missing.

    Raises:
        SchemaMismatch: One error that lists every column that does not fit, with both types.
        InputError: ``missing`` or ``schema_evolution`` is not one of the above.
    """
    if missing not in ("error", "null"):
        raise InputError(f"missing={missing!r} is not known", hint='use "error" or "null"')
    evolution = _evolution(schema_evolution)
    hints: dict[str, None] = {}
    problems = _name_problems([target, source])
    if problems:
        raise _mismatch(problems, operation, path, "rename columns of the source to the target's spelling")
    fields = []
    for field in target:
        if field.name in source.names:
            theirs = source.field(field.name)
            fields.append(field.with_type(_meet(field, theirs, missing, evolution, problems, hints)))
        else:
            fields.append(field)
            if missing == "error" or not field.nullable or field.name in partition_columns:
                problems.append(_missing_problem(field, partition_columns, hints))
    for field in source:
        if field.name not in target.names:
            fields.append(field.with_nullable(True))
            if "add" not in evolution:
                problems.append(f"{field.name!r} ({field.type}) is new, the target does not have it")
                hints['drop new columns from the source, or add them with schema_evolution="add"'] = None
    if problems:
        raise _mismatch(problems, operation, path, "; ".join(hints))
    return pa.schema(fields, target.metadata)


def _missing_problem(field: pa.Field, partition_columns: Collection[str], hints: dict[str, None]) -> str:
    said = f"{field.name!r} ({field.type}) is missing from the source"
    if field.name in partition_columns:
        hints["a row needs its partition columns"] = None
        return f"{said} and is a partition column"
    if not field.nullable:
        hints["a NOT NULL column needs a value in every row"] = None
        return f"{said} and is NOT NULL in the target"
    hints['a merge replaces whole rows: give every column, or write NULL with missing="null"'] = None
    return said


def _meet(
    target: pa.Field,
    source: pa.Field,
    missing: str,
    evolution: frozenset[str],
    problems: list[str],
    hints: dict[str, None],
) -> pa.DataType:
    """The type a column gets, noting in ``problems`` and ``hints`` why it cannot."""
    name, before = target.name, len(problems)
    widest = common_type(target.type, source.type)
    if widest is None and _are_numbers(target.type, source.type) and "widen" not in evolution:
        return target.type  # no type holds both, but these values may all fit: cast_exact looks at each
    if widest is None:
        problems.append(f"{name!r} is {target.type} in the target and {source.type} in the source")
        hints[_CAST_IT] = None
        return target.type
    new = _lacking(target.type, source.type, name)
    if new and "add" not in evolution:
        problems.extend(f"{child!r} is a new struct field, the target does not have it" for child in new)
        hints['drop new struct fields from the source, or add them with schema_evolution="add"'] = None
    for child, nullable in _lacking(source.type, target.type, name).items():
        if missing == "error" or not nullable:
            problems.append(f"{child!r} is a struct field missing from the source")
            hints[
                'a merge replaces whole rows: give every struct field, or write NULL with missing="null"'
            ] = None
    if len(problems) > before:
        return target.type
    return _evolved(target.type, source.type, "widen" in evolution)


def _are_numbers(left: pa.DataType, right: pa.DataType) -> bool:
    return all(pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t) for t in (left, right))


def _lacking(poor: pa.DataType, rich: pa.DataType, prefix: str) -> dict[str, bool]:
    """Dotted name and nullability of each struct field of ``rich``, at any depth, that ``poor`` lacks."""
    poor, rich = _plain(poor), _plain(rich)
    kind = _kind(rich)
    if kind != _kind(poor) or kind not in ("list", "map", "struct"):
        return {}
    if kind == "list":
        return _lacking(poor.value_type, rich.value_type, f"{prefix}.{rich.value_field.name}")
    if kind == "map":
        return _lacking(poor.item_type, rich.item_type, f"{prefix}.{rich.item_field.name}")
    ours = {field.name: field.type for field in poor.fields}
    lacking: dict[str, bool] = {}
    for field in rich.fields:
        name = f"{prefix}.{field.name}"
        if field.name in ours:
            lacking |= _lacking(ours[field.name], field.type, name)
        else:
            lacking[name] = field.nullable
    return lacking


def _evolved(target: pa.DataType, source: pa.DataType, widen: bool) -> pa.DataType:
    """The target's type with the struct fields only the source has, at any depth; wider where asked.

    Unlike in :func:`common_type`, what is NOT NULL inside the target stays so.
    """
    kind = _kind(target)
    if kind != _kind(source) or kind not in ("list", "map", "struct"):
        return common_type(target, source) if widen else target
    if kind == "list":
        item = target.value_field.with_type(_evolved(target.value_type, source.value_type, widen))
        return _list_of(common_type(target, source) if widen else target, item)
    if kind == "map":
        key = target.key_field.with_type(_evolved(target.key_type, source.key_type, widen))
        item = target.item_field.with_type(_evolved(target.item_type, source.item_type, widen))
        return pa.map_(key, item, keys_sorted=target.keys_sorted)
    theirs = {field.name: field for field in source.fields}
    fields = []
    for field in target.fields:
        other = theirs.pop(field.name, field)
        fields.append(field.with_type(_evolved(field.type, other.type, widen)))
    return pa.struct(fields + [field.with_nullable(True) for field in theirs.values()])


# ---------------------------------------------------------------------------------------------------
# Values.


class _Refused(Exception):
    """The types themselves rule a cast out, whatever the values are."""


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
        # An empty array first: types that rule each other out are an error without rows, too.
        _cast(pa.nulls(0, chunked.type), data_type)
        plain = data_type.value_type if pt.is_dictionary(data_type) else data_type
        pieces = [piece for chunk in chunked.chunks for piece in _cast_pieces(chunk, plain)]
        cast = pa.chunked_array(pieces, plain)
        return _encode(cast, data_type) if pt.is_dictionary(data_type) else cast
    except (_Refused, pa.ArrowNotImplementedError) as error:
        reason = f": {error}" if str(error) else ""
        problem = f"{column!r} cannot go from {chunked.type} to {data_type}{reason}"
        raise _mismatch([problem], operation, path, _CAST_IT) from error
    except _Unfit as error:
        problem = f"{column!r} is {data_type}, which cannot hold {error.value} exactly ({error.reason})"
        hint = 'correct the value, or widen the column with schema_evolution="widen"'
        raise _mismatch([problem], operation, path, hint) from error


class _Unfit(Exception):
    def __init__(self, value: str, reason: str) -> None:
        super().__init__(value)
        self.value, self.reason = value, reason


def _cast_pieces(chunk: pa.Array, data_type: pa.DataType) -> list[pa.Array]:
    """The chunk cast, halved where it does not go in one piece.

    Halving finds the first value that does not fit in n + n/2 + n/4 ... steps of vectorised work, and
    it is also what a chunk needs that is too large for 32-bit offsets.
    """
    try:
        return [_cast(chunk, data_type)]
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        if len(chunk) <= 1:
            raise _Unfit(_shown(chunk), str(error)) from error
    half = len(chunk) // 2
    return _cast_pieces(chunk.slice(0, half), data_type) + _cast_pieces(chunk.slice(half), data_type)


def _shown(array: pa.Array) -> str:
    """The only value of the array as text."""
    if pt.is_temporal(array.type):  # Python has no nanoseconds and no year 10000; Arrow prints them
        text = " ".join(str(array).split())[1:-1].strip()
    else:
        text = ", ".join(map(repr, array.to_pylist()))
    return text if len(text) <= 120 else text[:117] + "..."


def _cast(array: pa.Array, to: pa.DataType) -> pa.Array:
    source = array.type
    if source.equals(to):
        return array
    if pt.is_null(source):
        return _nulls(len(array), to)
    if isinstance(to, pa.BaseExtensionType):
        if isinstance(source, pa.BaseExtensionType):
            raise _Refused("two different extension types")
        return pa.ExtensionArray.from_storage(to, _cast(array, to.storage_type))
    if isinstance(source, pa.BaseExtensionType):
        return _cast(array.storage, to)
    if _is_encoded(source):
        return _cast(_decode(array), to)
    if pt.is_dictionary(to):
        return _indexed(_cast(array, to.value_type).dictionary_encode(), to)
    if pt.is_run_end_encoded(to):
        return pc.run_end_encode(_cast(array, to.value_type), run_end_type=to.run_end_type)
    if pt.is_null(to):
        if array.null_count < len(array):
            raise pa.ArrowInvalid("the column has the type null")
        return pa.nulls(len(array))
    kind = _kind(source)
    if kind == _kind(to) and kind in _CAST_NESTED:
        return _CAST_NESTED[kind](array, to)
    return _cast_leaf(array, to)


def _decode(array: pa.Array) -> pa.Array:
    if pt.is_run_end_encoded(array.type):
        return pc.run_end_decode(array)
    # Arrow cannot take from views, so the dictionary goes through its normal type.
    dictionary = pc.cast(array.dictionary, _normal(array.type.value_type))
    return dictionary.take(array.indices)


def _encode(values: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    """One dictionary for all chunks: with one each, a file could hold more values than it can index."""
    return pa.chunked_array([_indexed(chunk, to) for chunk in values.dictionary_encode().chunks], to)


def _indexed(encoded: pa.Array, to: pa.DataType) -> pa.Array:
    count = len(encoded.dictionary)
    room = 1 << (_bits(to.index_type) - int(pt.is_signed_integer(to.index_type)))
    if count > room:
        raise _Refused(f"{count} distinct values, but {to.index_type} has room for {room}")
    indices = pc.cast(encoded.indices, to.index_type)
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=to.ordered)


def _cast_leaf(array: pa.Array, to: pa.DataType) -> pa.Array:
    kinds = (_kind(array.type), _kind(to))
    if None in kinds or not (kinds[0] == kinds[1] or set(kinds) <= _NUMBERS):
        raise _Refused
    cast = _steps(array, to)
    if _may_round(array.type, to):
        before, back = _widened(array), _widened(_steps(cast, array.type))
        same = pc.equal(before, back)
        if kinds[0] == "float":
            same = pc.or_(same, pc.and_(pc.is_nan(before), pc.is_nan(back)))
        if not pc.all(same, min_count=0).as_py():
            raise pa.ArrowInvalid("it would be another value")
    return cast


def _widened(array: pa.Array) -> pa.Array:
    """Arrow has no comparison of the narrowest floats."""
    return pc.cast(array, pa.float32()) if pt.is_float16(array.type) else array


def _may_round(source: pa.DataType, to: pa.DataType) -> bool:
    """Where Arrow's safe cast changes values without a word; elsewhere it checks every value itself."""
    if pt.is_floating(source):
        return bool(pt.is_decimal(to) or (pt.is_floating(to) and _bits(to) < _bits(source)))
    if pt.is_decimal(to):
        # With fewer digits before the point, multiplying by the scale may overflow unnoticed.
        source = _as_decimal(source)
        return bool(source.precision - source.scale > to.precision - to.scale)
    return bool(pt.is_float16(to) or (pt.is_decimal(source) and pt.is_floating(to)))


def _steps(array: pa.Array, to: pa.DataType) -> pa.Array:
    """Arrow's safe cast, through a type between where it has no way or a wrong one."""
    source = array.type
    if pt.is_integer(source) and pt.is_decimal(to):
        # Directly, Arrow wants a precision that fits any integer, whatever the values.
        array = pc.cast(array, pa.decimal128(20, 0))
    elif pt.is_decimal(source) and pt.is_integer(to) and _bits(source) < 128:
        # Directly, Arrow finds every narrow decimal out of the bounds of a wide integer.
        array = pc.cast(array, pa.decimal128(38, source.scale))
    elif {_kind(source), _kind(to)} == {"decimal", "float"} and 16 in (_bits(source), _bits(to)):
        array = pc.cast(array, pa.float32())
    return pc.cast(array, to)


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _nulls(length: int, data_type: pa.DataType) -> pa.Array:
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
    offsets, mask = _offsets(lengths), _mask(array)
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


def _offsets(lengths: pa.Array) -> pa.Array:
    total = pc.cumulative_sum(pc.cast(lengths, pa.int64()))
    return pa.concat_arrays([pa.array([0], pa.int64()), total])


def _cast_map(array: pa.Array, to: pa.DataType) -> pa.Array:
    # As a list of pairs, since the keys and items of a sliced map are those of the whole.
    pair = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
    pairs = pc.cast(array, pa.list_(pair))
    keys, items = pairs.flatten().flatten()
    keys, items = _cast(keys, to.key_type), _cast(items, to.item_type)
    _check_required(to.item_field, items)
    offsets = pc.cast(_offsets(pc.fill_null(pc.list_value_length(pairs), 0)), pa.int32())
    return pa.MapArray.from_arrays(offsets, keys, items, to, mask=_mask(array))


_CAST_NESTED: dict[str, Callable[[pa.Array, pa.DataType], pa.Array]] = {
    "struct": _cast_struct,
    "list": _cast_list,
    "map": _cast_map,
}


def conform_table(table: pa.Table, schema: pa.Schema, *, operation: str, path: str) -> pa.Table:
    """The table with exactly the schema's columns, order and types, and all of its values.

    A nullable column that the table lacks is filled with NULL. Idempotent.

    Raises:
        SchemaMismatch: A value does not fit (the message has it), a NOT NULL column would hold NULLs
            (the message has the count), a column is there twice, or the schema has no place for one.
    """
    problems = _name_problems([table.schema])
    known = set(schema.names)
    problems += [
        f"{f.name!r} ({f.type}) has no place in the target" for f in table.schema if f.name not in known
    ]
    if problems:
        raise _mismatch(problems, operation, path, 'drop the column, or add it with schema_evolution="add"')
    columns = []
    for field in schema:
        name = field.name
        if name in table.column_names:
            column = cast_exact(table[name], field.type, column=name, operation=operation, path=path)
        else:
            column = pa.chunked_array([_nulls(table.num_rows, field.type)])
        if not field.nullable and column.null_count:
            problems.append(f"{name!r} is NOT NULL in the target and NULL in {column.null_count} rows")
        columns.append(column)
    if problems:
        raise _mismatch(problems, operation, path, "give those rows a value")
    return pa.Table.from_arrays(columns, schema=schema)


def cast_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table brought to the schema without losing a value: :func:`conform_table` under its old name."""
    return conform_table(table, schema, operation="cast_schema", path="")


def check_key_types(schema: pa.Schema, keys: Sequence[str], *, side: str, operation: str, path: str) -> None:
    """Raise KeyColumnError where a key column is not there or has a type that cannot be a key."""
    absent = [name for name in keys if name not in schema.names]
    if absent:
        raise KeyColumnError(
            f"{operation}: the {side} at {path} has no key column {', '.join(map(repr, absent))}",
            path=path,
            hint=f"its columns are {', '.join(schema.names)}",
        )
    fields = [schema.field(name) for name in keys]
    bad = [f"{field.name!r} ({field.type})" for field in fields if not _can_be_key(field.type)]
    if bad:
        raise KeyColumnError(
            f"{operation}: the {side} at {path} has types that cannot be a key: {', '.join(bad)}",
            path=path,
            hint="use columns of plain types, such as the fields of a struct as columns of their own",
        )


def _can_be_key(data_type: pa.DataType) -> bool:
    return not is_nested(data_type) and _kind(_plain(data_type)) is not None


# ---------------------------------------------------------------------------------------------------
# The smallest type of a column.


def opt_dtype(
    table: pa.Table, *, include: str | Collection[str] | None = None, exclude: str | Collection[str] = ()
) -> pa.Table:
    """The table with each column in the smallest type that holds every value exactly.

    Integers shrink; floats become integers or float32; strings become integers, booleans, dates or
    timestamps. A string column changes only where every value reads back as the very same text, so
    "007" stays. Columns without any value, and all other types, stay. Idempotent.

    Args:
        table: Any table.
        include: The only columns to look at; all by default.
        exclude: Columns to leave alone.

    Raises:
        ColumnNotFound: ``include`` or ``exclude`` names a column that is not there.
    """
    chosen = set(table.column_names if include is None else _names(include)) - set(_names(exclude))
    absent = sorted((chosen | set(_names(exclude))) - set(table.column_names))
    if absent:
        raise ColumnNotFound(
            f"opt_dtype: no column {', '.join(map(repr, absent))}",
            hint=f"there are {', '.join(table.column_names)}",
        )
    for i, field in enumerate(table.schema):
        column = table.column(i)
        small = _smallest(column) if field.name in chosen and column.null_count < len(column) else None
        if small is not None and not small.type.equals(field.type):
            table = table.set_column(i, field.with_type(small.type), small)
    return table


def _names(names: str | Collection[str]) -> Collection[str]:
    return [names] if isinstance(names, str) else names


def _smallest(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    kind = _kind(column.type)
    if kind == "integer":
        return _shrink(column)
    if kind == "float":
        return _shrink_float(column)
    data_type = text_type(column) if kind == "string" else None
    if data_type is None:
        return None
    # Any "T" between date and time is read all the same.
    parsed = pc.cast(_as_string(column), data_type)
    return _shrink(parsed) if pt.is_integer(data_type) else parsed


def _shrink(column: pa.ChunkedArray) -> pa.ChunkedArray:
    signed = pt.is_signed_integer(column.type)
    types = (pa.int8(), pa.int16(), pa.int32()) if signed else (pa.uint8(), pa.uint16(), pa.uint32())
    bounds = pc.min_max(column)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    for data_type in types:
        if _bits(data_type) < _bits(column.type):
            top = 1 << (_bits(data_type) - signed)
            if (-top if signed else 0) <= low and high < top:
                return pc.cast(column, data_type)
    return column


def _shrink_float(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # The sign of -0.0 is part of the value: an integer cannot keep it.
    wide = _widened(column)
    zeros = pc.cast(pc.unique(wide.filter(pc.equal(wide, 0))), pa.string())
    if not pc.any(pc.equal(zeros, "-0"), min_count=0).as_py():
        try:
            return _shrink(cast_exact(column, pa.int64(), column=""))
        except SchemaMismatch:
            pass
    if not pt.is_float64(column.type):
        return column
    try:
        return cast_exact(column, pa.float32(), column="")
    except SchemaMismatch:
        return column


def _as_string(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column if pt.is_large_string(column.type) else pc.cast(column, pa.large_string())


def text_type(column: pa.ChunkedArray | pa.Array) -> pa.DataType | None:
    """The type whose values read back as the very texts of the column; None to leave it a string.

    Looked for: int64, bool ("true" and "false"), date32, and timestamps of one precision, with a blank
    or a "T" before the time, with a final "Z" or without a zone.
    """
    texts = _as_string(pa.chunked_array([column]) if isinstance(column, pa.Array) else column).drop_null()
    if not len(texts):
        return None
    first = texts[0].as_py()
    for data_type in (*_PLAIN_TEXT, *_timestamp_of(first)):
        try:
            back = pc.cast(pc.cast(texts, data_type), pa.large_string())
        except pa.ArrowInvalid:
            continue
        if pt.is_timestamp(data_type) and first[10] == "T":
            back = pc.replace_substring(back, " ", "T", max_replacements=1)
        if back.equals(texts):
            return data_type
    return None


_PLAIN_TEXT = (pa.int64(), pa.bool_(), pa.date32())


def _timestamp_of(text: str) -> tuple[pa.DataType, ...]:
    zone = "UTC" if text.endswith("Z") else None
    unit = {19: "s", 23: "ms", 26: "us", 29: "ns"}.get(len(text.removesuffix("Z")))
    return () if unit is None else (pa.timestamp(unit, zone),)
