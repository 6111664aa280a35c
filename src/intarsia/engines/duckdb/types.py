"""Which of Arrow's types DuckDB holds exactly, and columns back in the type they were asked for."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import pyarrow as pa

from intarsia.engines.duckdb.sql import quote

__all__ = ["has_case_clash", "is_comparable", "restore_types", "sql_type"]


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
        if any(part is None for _, part in parts) or has_case_clash(n for n, _ in parts):
            return None
        return f"STRUCT({', '.join(f'{quote(n)} {part}' for n, part in parts)})"
    return None


def has_case_clash(names: Iterable[str]) -> bool:
    """Whether some names are one to DuckDB, which does not look at case."""
    every = [each.lower() for each in names]
    return len(set(every)) < len(every)


def is_comparable(kind: pa.DataType) -> bool:
    """Whether DuckDB can tell exactly which values of a type are equal."""
    return not pa.types.is_nested(kind) and sql_type(kind) is not None


@lru_cache(maxsize=1)
def _has_zoned_nanoseconds() -> bool:
    import duckdb

    try:
        duckdb.type("TIMESTAMPTZ_NS")
    except duckdb.Error:
        return False
    return True


def restore_types(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the types that its columns have in ``schema``; DuckDB has one for several of Arrow's."""
    fields = [schema.field(each) for each in table.column_names]
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(table.columns, fields, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema([f.with_nullable(True) for f in fields]))
