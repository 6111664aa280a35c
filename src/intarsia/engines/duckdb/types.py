"""Which of Arrow's types DuckDB holds exactly, and which of them its writer leaves as they were."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import pyarrow as pa

from intarsia.engines.arrow.overlay import most_values
from intarsia.engines.duckdb.text import name

__all__ = ["collide", "comparable", "numbers_fewer", "sql_type", "unwritable", "writable"]

_MANY = 1 << 31

_SIMPLE: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.large_string(): "VARCHAR",
    pa.string_view(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.large_binary(): "BLOB",
    pa.binary_view(): "BLOB",
    pa.date32(): "DATE",
    pa.date64(): "DATE",
    pa.time32("s"): "TIME",
    pa.time32("ms"): "TIME",
    pa.time64("us"): "TIME",
    pa.time64("ns"): "TIME_NS",
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
}
_CHANGED = frozenset({pa.date64(), pa.time32("s"), pa.time32("ms"), pa.timestamp("s")})
"""Held exactly, but written as another type."""


def sql_type(kind: pa.DataType) -> str | None:
    """DuckDB's type for values of an Arrow type; None where it has none that holds them all exactly."""
    found = _SIMPLE.get(kind)
    if found is not None:
        return found
    if isinstance(kind, pa.BaseExtensionType):
        return None
    if pa.types.is_dictionary(kind):
        return sql_type(kind.value_type)
    if pa.types.is_fixed_size_binary(kind):
        return "BLOB"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})" if 0 <= kind.scale <= kind.precision <= 38 else None
    if pa.types.is_timestamp(kind):  # with a zone, as the others are in the table
        return (
            ("TIMESTAMPTZ_NS" if _has_zoned_nanoseconds() else None) if kind.unit == "ns" else "TIMESTAMPTZ"
        )
    return _nested_type(kind)


def _nested_type(kind: pa.DataType) -> str | None:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = sql_type(kind.value_type)
        return None if inner is None else f"{inner}[]"
    if pa.types.is_map(kind):
        key, item = sql_type(kind.key_type), sql_type(kind.item_type)
        return None if key is None or item is None else f"MAP({key}, {item})"
    if pa.types.is_struct(kind) and kind.num_fields:
        parts = [(field.name, sql_type(field.type)) for field in kind]
        if any(part is None for _, part in parts) or collide(n for n, _ in parts):
            return None
        return f"STRUCT({', '.join(f'{name(n)} {part}' for n, part in parts)})"
    return None


def collide(names: Iterable[str]) -> bool:
    """Whether some names are one to DuckDB, which does not look at case."""
    every = [each.lower() for each in names]
    return len(set(every)) < len(every)


def comparable(kind: pa.DataType) -> bool:
    """Whether DuckDB can tell exactly which values of a type are equal."""
    return not pa.types.is_nested(kind) and sql_type(kind) is not None


def writable(kind: pa.DataType) -> bool:
    """Whether DuckDB's writer leaves a column of the type one of the same type."""
    if pa.types.is_dictionary(kind):
        return writable(kind.value_type)
    if kind in _CHANGED or pa.types.is_fixed_size_binary(kind):
        return False
    if pa.types.is_timestamp(kind) and kind.tz is not None and kind.unit in ("s", "ms"):
        return False
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _kept_within(kind.value_field)
    if pa.types.is_map(kind):
        return writable(kind.key_type) and _kept_within(kind.item_field)
    if pa.types.is_struct(kind):
        return sql_type(kind) is not None and all(map(_kept_within, kind))
    return sql_type(kind) is not None


def _kept_within(field: pa.Field) -> bool:
    """The same of a part of a nested column, which the writer never makes NOT NULL."""
    return bool(field.nullable) and writable(field.type)


def numbers_fewer(kind: pa.DataType, values: int) -> bool:
    """Whether a column of dictionaries cannot number so many values as there may be.

    Readers take the width of the numbers from the schema of Arrow that a file holds, whatever its pages
    hold. How many values a list has is not known.
    """
    if not pa.types.is_dictionary(kind):
        parts = [kind.field(number).type for number in range(kind.num_fields)]
        return any(numbers_fewer(part, _MANY) for part in parts)
    return most_values(kind) < values


def unwritable(schema: pa.Schema) -> list[str]:
    """The columns that DuckDB's writer would change, each with its type."""
    return [f"{field.name!r} ({field.type})" for field in schema if not writable(field.type)]


@lru_cache(maxsize=1)
def _has_zoned_nanoseconds() -> bool:
    import duckdb

    try:
        duckdb.type("TIMESTAMPTZ_NS")
    except duckdb.Error:
        return False
    return True
