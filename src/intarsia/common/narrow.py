"""The smallest type that holds every value of a column exactly; a text must read back as itself."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.common.exact import cast_exact, widened
from intarsia.common.names import check_columns
from intarsia.common.types import bit_width, kind_of
from intarsia.errors import SchemaMismatch

__all__ = ["opt_dtype", "text_type"]

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
        small = _smallest(column) if field.name in chosen and column.null_count < len(column) else None
        if small is not None and not small.type.equals(field.type):
            table = table.set_column(i, field.with_type(small.type), small)
    return table


def _names(names: str | Collection[str]) -> Collection[str]:
    return [names] if isinstance(names, str) else names


def _smallest(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    kind = kind_of(column.type)
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
        if bit_width(data_type) < bit_width(column.type):
            top = 1 << (bit_width(data_type) - signed)
            if (-top if signed else 0) <= low and high < top:
                return pc.cast(column, data_type)
    return column


def _shrink_float(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # The sign of -0.0 is part of the value: an integer cannot keep it.
    wide = widened(column)
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


def _timestamp_of(text: str) -> tuple[pa.DataType, ...]:
    zone = "UTC" if text.endswith("Z") else None
    unit = {19: "s", 23: "ms", 26: "us", 29: "ns"}.get(len(text.removesuffix("Z")))
    return () if unit is None else (pa.timestamp(unit, zone),)
