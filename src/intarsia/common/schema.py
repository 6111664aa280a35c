"""How schemas meet: unify, conform and check them, and the names for casting by them; reads no files.

The rules, in one place for every engine:

- :func:`find_common_type` is the narrowest type that holds every value of two types exactly, or None.
- :func:`unify_schemas` applies it to whole schemas, by column name.
- :func:`conform_schema` decides what schema a dataset has after a merge.
- :func:`cast_exact` brings values to a type, or names the first value that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.common.exact import (
    cast_exact,
    check_categories,
    conform_table,
    make_cast_hint,
    widen_float16,
)
from intarsia.common.names import check_columns, make_mismatch_error, name_problems, suggest_names
from intarsia.common.types import (
    NUMBERS,
    classify_type,
    find_common_field,
    find_common_type,
    get_bit_width,
    is_nested,
    list_like,
    normalize_type,
    rewrite_type,
    to_large_type,
    unwrap_type,
)
from intarsia.errors import InputError, KeyColumnError, SchemaMismatch

__all__ = [
    "cast_exact",
    "cast_schema",
    "check_categories",
    "check_key_types",
    "conform_schema",
    "conform_table",
    "convert_large_types_to_normal",
    "find_common_type",
    "infer_text_type",
    "is_nested",
    "opt_dtype",
    "unify_schemas",
]


def convert_large_types_to_normal(schema: pa.Schema) -> pa.Schema:
    """The schema with plain ``string``, ``binary`` and ``list`` for their large and view variants.

    Nested types are converted throughout; names, order, nullability and metadata stay.

    >>> convert_large_types_to_normal(pa.schema([("a", pa.large_string())])).field("a").type
    DataType(string)
    """
    return _rewrite_schema(schema, normalize_type)


def _rewrite_schema(schema: pa.Schema, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.Schema:
    return pa.schema([f.with_type(rewrite_type(f.type, leaf)) for f in schema], schema.metadata)


def unify_schemas(
    schemas: Iterable[pa.Schema],
    *,
    use_large_dtypes: bool | None = None,
    timezone: str | None = None,
    operation: str = "unify_schemas",
    path: str | None = None,
) -> pa.Schema:
    """One schema that holds the columns of all, each in its :func:`find_common_type`.

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
    problems = name_problems(given)
    for schema in given if not problems else ():
        for field in schema:
            if field.name not in fields:
                fields[field.name] = field
                continue
            merged = find_common_field(fields[field.name], field)
            if merged is None:
                problems.append(f"{field.name!r} is {fields[field.name].type} and {field.type}")
            else:
                fields[field.name] = merged if merged.metadata else merged.with_metadata(field.metadata)
    if problems:
        raise make_mismatch_error(problems, operation, path, "cast the column to one type in every file")
    everywhere = set(fields).intersection(*(schema.names for schema in given))
    absent = fields.keys() - everywhere
    found = [field.with_nullable(field.nullable or name in absent) for name, field in fields.items()]
    unified = pa.schema(found, given[0].metadata)
    if use_large_dtypes is not None:
        unified = _rewrite_schema(unified, to_large_type if use_large_dtypes else normalize_type)
    if timezone is not None:
        unified = _rewrite_schema(unified, lambda t: _set_zone(t, timezone))
    return unified


def _set_zone(data_type: pa.DataType, zone: str) -> pa.DataType:
    return pa.timestamp(data_type.unit, zone) if classify_type(data_type) == "zoned timestamp" else data_type


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
            hint=suggest_names(absent, schema.names),
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
    return not is_nested(data_type) and classify_type(unwrap_type(data_type)) is not None


# ---------------------------------------------------------------------------------------------------
# The schema of a dataset after a merge.


def conform_schema(
    source: pa.Schema,
    target: pa.Schema,
    *,
    operation: str,
    path: str,
    missing: Literal["error", "null", "keep"] = "error",
    schema_evolution: str | Collection[str] | None = None,
    partition_columns: Collection[str] = (),
    options: Collection[str] = ("null", "schema_evolution"),
) -> pa.Schema:
    """The schema the dataset has once rows of ``source`` are merged into it.

    These are the target's columns, in its order and types. With ``schema_evolution`` "add" the new
    columns (and struct fields) of the source follow, nullable; with "widen" a column takes the common
    type of both sides. Whether the values fit is answered by :func:`conform_table`.

    Args:
        source: The schema of the new rows.
        target: The schema of the dataset.
        operation: Named in errors.
        path: The dataset, named in errors.
        missing: "null" lets a nullable column that the source lacks be NULL in its rows; so does "keep",
            which leaves such a column alone in rows that are there, but takes no struct in part.
        schema_evolution: None, "add", "widen", "add,widen" or a collection of these words.
        partition_columns: Columns that may never be missing.
        options: What hints may name: "null", "keep", "schema_evolution", "except_columns".

    Raises:
        SchemaMismatch: One error that lists every column that does not fit, with both types.
        InputError: ``missing`` or ``schema_evolution`` is not one of the above.
    """
    if missing not in ("error", "null", "keep"):
        raise InputError(f"missing={missing!r} is not known", hint='use "error", "null" or "keep"')
    evolution = _parse_evolution(schema_evolution)
    hints: dict[str, None] = {}
    problems = name_problems([target, source])
    if problems:
        raise make_mismatch_error(
            problems, operation, path, "rename columns of the source to the target's spelling"
        )
    fields = []
    given, known = set(source.names), set(target.names)
    for field in target:
        if field.name in given:
            theirs = source.field(field.name)
            fields.append(field.with_type(_meet(field, theirs, missing, evolution, problems, hints, options)))
        else:
            fields.append(field)
            if missing == "error" or not field.nullable or field.name in partition_columns:
                problems.append(_describe_missing(field, partition_columns, hints, options))
    for field in source:
        if field.name not in known:
            fields.append(field.with_nullable(True))
            if "add" not in evolution:
                problems.append(f"{field.name!r} ({field.type}) is new, the target does not have it")
                hints[_make_new_column_hint("columns", options)] = None
    if problems:
        raise make_mismatch_error(problems, operation, path, "; ".join(hints))
    return pa.schema(fields, target.metadata)


def _parse_evolution(schema_evolution: str | Collection[str] | None) -> frozenset[str]:
    parts: Any = schema_evolution.split(",") if isinstance(schema_evolution, str) else schema_evolution
    if parts is None or parts is False:
        parts = ()
    known = isinstance(parts, Collection) and all(isinstance(part, str) for part in parts)
    chosen = frozenset(part.strip() for part in parts) if known else frozenset()
    if not known or not chosen <= {"add", "widen"}:
        raise InputError(
            f"schema_evolution={schema_evolution!r} is not known",
            hint='use None, "add", "widen" or "add,widen"',
        )
    return chosen


def _make_new_column_hint(what: str, options: Collection[str]) -> str:
    """What to do about columns, or struct fields, that the target does not have."""
    ways = [f"drop new {what} from the source"]
    if "except_columns" in options and what == "columns":
        ways.append("name them in except_columns=")
    if "schema_evolution" in options:
        ways.append('add them with schema_evolution="add"')
    else:
        ways.append("evolve the schema with the table's own update_schema() first")
    return _join_ways(ways)


def _make_missing_column_hint(what: str, options: Collection[str]) -> str:
    """What to do about columns, or struct fields, that the source does not have."""
    ways = [f"give every {what}"]
    if "null" in options:
        ways.append('write NULL with missing="null"')
    if "keep" in options and what == "column":
        ways.append('keep what is there with missing="keep"')
    return f"a merge replaces whole rows: {_join_ways(ways)}"


def _join_ways(ways: Sequence[str]) -> str:
    *first, last = ways
    return f"{', '.join(first)}, or {last}" if first else last


UNREADABLE = b"intarsia.unreadable"
"""Field metadata of a text file's column: why it could not be read in its known type."""


def get_unreadable_reason(field: pa.Field) -> str:
    """Why a column was not read in the type that is known for it; empty where it was."""
    return str((field.metadata or {}).get(UNREADABLE, b"").decode())


def _describe_missing(
    field: pa.Field, partition_columns: Collection[str], hints: dict[str, None], options: Collection[str]
) -> str:
    said = f"{field.name!r} ({field.type}) is missing from the source"
    if field.name in partition_columns:
        hints["a row needs its partition columns"] = None
        return f"{said} and is a partition column"
    if not field.nullable:
        hints["a NOT NULL column needs a value in every row"] = None
        return f"{said} and is NOT NULL in the target"
    hints[_make_missing_column_hint("column", options)] = None
    return said


def _meet(
    target: pa.Field,
    source: pa.Field,
    missing: str,
    evolution: frozenset[str],
    problems: list[str],
    hints: dict[str, None],
    options: Collection[str],
) -> pa.DataType:
    """The type a column gets, noting in ``problems`` and ``hints`` why it cannot."""
    name, before = target.name, len(problems)
    widest = find_common_type(target.type, source.type)
    if widest is None and _are_numbers(target.type, source.type) and "widen" not in evolution:
        return target.type  # no type holds both, but these values may all fit: cast_exact looks at each
    if widest is None:
        why = f" ({get_unreadable_reason(source)})" if get_unreadable_reason(source) else ""
        problems.append(f"{name!r} is {target.type} in the target and {source.type} in the source{why}")
        hints[make_cast_hint(source.type, target.type)] = None
        return target.type
    new = _find_lacking_fields(target.type, source.type, name)
    if new and "add" not in evolution:
        problems.extend(f"{child!r} is a new struct field, the target does not have it" for child in new)
        hints[_make_new_column_hint("struct fields", options)] = None
    for child, nullable in _find_lacking_fields(source.type, target.type, name).items():
        if missing != "null" or not nullable:
            problems.append(f"{child!r} is a struct field missing from the source")
            hints[_make_missing_column_hint("struct field", options)] = None
    if len(problems) > before:
        return target.type
    return _evolve_type(target.type, source.type, "widen" in evolution)


def _are_numbers(left: pa.DataType, right: pa.DataType) -> bool:
    return {classify_type(left), classify_type(right)} <= NUMBERS


def _find_lacking_fields(poor: pa.DataType, rich: pa.DataType, prefix: str) -> dict[str, bool]:
    """Dotted name and nullability of each struct field of ``rich``, at any depth, that ``poor`` lacks."""
    poor, rich = unwrap_type(poor), unwrap_type(rich)
    kind = classify_type(rich)
    if kind != classify_type(poor) or kind not in ("list", "map", "struct"):
        return {}
    if kind == "list":
        return _find_lacking_fields(poor.value_type, rich.value_type, f"{prefix}.{rich.value_field.name}")
    if kind == "map":
        return _find_lacking_fields(poor.item_type, rich.item_type, f"{prefix}.{rich.item_field.name}")
    ours = {field.name: field.type for field in poor.fields}
    lacking: dict[str, bool] = {}
    for field in rich.fields:
        name = f"{prefix}.{field.name}"
        if field.name in ours:
            lacking |= _find_lacking_fields(ours[field.name], field.type, name)
        else:
            lacking[name] = field.nullable
    return lacking


def _evolve_type(target: pa.DataType, source: pa.DataType, widen: bool) -> pa.DataType:
    """The target's type with the struct fields only the source has, at any depth; wider where asked.

    Unlike in :func:`find_common_type`, what is NOT NULL inside the target stays so.
    """
    kind = classify_type(target)
    if kind != classify_type(source) or kind not in ("list", "map", "struct"):
        return find_common_type(target, source) if widen else target
    if kind == "list":
        item = target.value_field.with_type(_evolve_type(target.value_type, source.value_type, widen))
        return list_like(find_common_type(target, source) if widen else target, item)
    if kind == "map":
        key = target.key_field.with_type(_evolve_type(target.key_type, source.key_type, widen))
        item = target.item_field.with_type(_evolve_type(target.item_type, source.item_type, widen))
        return pa.map_(key, item, keys_sorted=target.keys_sorted)
    theirs = {field.name: field for field in source.fields}
    fields = []
    for field in target.fields:
        other = theirs.pop(field.name, field)
        fields.append(field.with_type(_evolve_type(field.type, other.type, widen)))
    return pa.struct(fields + [field.with_nullable(True) for field in theirs.values()])


_PLAIN_TEXT = (pa.int64(), pa.bool_(), pa.date32())


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
    named = sorted(chosen | set(_names(exclude)))
    check_columns(named, table.column_names, operation="opt_dtype")
    for i, field in enumerate(table.schema):
        column = table.column(i)
        small = _shrink_column(column) if field.name in chosen and column.null_count < len(column) else None
        if small is not None and not small.type.equals(field.type):
            table = table.set_column(i, field.with_type(small.type), small)
    return table


def _names(names: str | Collection[str]) -> Collection[str]:
    return [names] if isinstance(names, str) else names


def _shrink_column(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    kind = classify_type(column.type)
    if kind == "integer":
        return _shrink(column)
    if kind == "float":
        return _shrink_float(column)
    data_type = infer_text_type(column) if kind == "string" else None
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
        if get_bit_width(data_type) < get_bit_width(column.type):
            top = 1 << (get_bit_width(data_type) - signed)
            if (-top if signed else 0) <= low and high < top:
                return pc.cast(column, data_type)
    return column


def _shrink_float(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # The sign of -0.0 is part of the value: an integer cannot keep it.
    wide = widen_float16(column)
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


def infer_text_type(column: pa.ChunkedArray | pa.Array) -> pa.DataType | None:
    """The type whose values read back as the very texts of the column; None to leave it a string.

    Looked for: int64, bool ("true" and "false"), date32, and timestamps of one precision, with a blank
    or a "T" before the time, with a final "Z" or without a zone.
    """
    texts = _as_string(pa.chunked_array([column]) if isinstance(column, pa.Array) else column).drop_null()
    if not len(texts):
        return None
    first = texts[0].as_py()
    for data_type in (*_PLAIN_TEXT, *_infer_timestamp(first)):
        try:
            back = pc.cast(pc.cast(texts, data_type), pa.large_string())
        except pa.ArrowInvalid:
            continue
        if pt.is_timestamp(data_type) and first[10] == "T":
            back = pc.replace_substring(back, " ", "T", max_replacements=1)
        if back.equals(texts):
            return data_type
    return None


def _infer_timestamp(text: str) -> tuple[pa.DataType, ...]:
    zone = "UTC" if text.endswith("Z") else None
    unit = {19: "s", 23: "ms", 26: "us", 29: "ns"}.get(len(text.removesuffix("Z")))
    return () if unit is None else (pa.timestamp(unit, zone),)
