"""Names, texts, paths and types in DuckDB's SQL; every name and text that comes from outside is quoted here.

Also which of Arrow's types DuckDB holds exactly, and how columns get their Arrow type again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import duckdb
import pyarrow as pa

from intarsia.common.exact import cast_exact
from intarsia.common.types import rewrite_type

__all__ = [
    "FILE",
    "POS",
    "SRC",
    "find_scanned_type",
    "find_sql_type",
    "has_case_clash",
    "is_comparable",
    "quote",
    "quote_all",
    "quote_list",
    "quote_path",
    "quote_text",
    "restore_types",
]

FILE, POS, SRC = "~file", "~pos", "~src"
"""Names of added columns: the number of the file, the position in it, the number of the source row."""

_WILD = frozenset("*?[")
_MOST_DIGITS = 38


def quote(identifier: str) -> str:
    """The name of a column or a table as SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def quote_all(identifiers: Iterable[str], of: str | None = None) -> str:
    """Some columns with commas between them, of the table ``of`` if given."""
    before = "" if of is None else f"{of}."
    return ", ".join(before + quote(identifier) for identifier in identifiers)


def quote_text(value: str) -> str:
    """A text as SQL."""
    return "'" + value.replace("'", "''") + "'"


def quote_path(location: str) -> str:
    """The path of one file as SQL, with wildcard characters escaped."""
    return quote_text("".join(f"[{c}]" if c in _WILD else c for c in location))


def quote_list(values: Iterable[str]) -> str:
    """A list of expressions as SQL."""
    return f"[{', '.join(values)}]"


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


def find_sql_type(kind: pa.DataType) -> str | None:
    """DuckDB's type for values of an Arrow type; None where it has none that holds them all exactly."""
    found = _SIMPLE.get(kind)
    if found is not None:
        return found
    if isinstance(kind, pa.BaseExtensionType):
        return None
    if pa.types.is_dictionary(kind):
        return find_sql_type(kind.value_type)
    if pa.types.is_fixed_size_binary(kind):
        return "BLOB"
    if pa.types.is_decimal(kind):
        return (
            f"DECIMAL({kind.precision},{kind.scale})"
            if 0 <= kind.scale <= kind.precision <= _MOST_DIGITS
            else None
        )
    if pa.types.is_timestamp(kind):  # with a time zone; the others are in the table above
        return (
            ("TIMESTAMPTZ_NS" if _has_zoned_nanoseconds() else None) if kind.unit == "ns" else "TIMESTAMPTZ"
        )
    return _find_nested_type(kind)


def _find_nested_type(kind: pa.DataType) -> str | None:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = find_sql_type(kind.value_type)
        return None if inner is None else f"{inner}[]"
    if pa.types.is_map(kind):
        key, item = find_sql_type(kind.key_type), find_sql_type(kind.item_type)
        return None if key is None or item is None else f"MAP({key}, {item})"
    if pa.types.is_struct(kind) and kind.num_fields:
        parts = [(field.name, find_sql_type(field.type)) for field in kind]
        if any(part is None for _, part in parts) or has_case_clash(n for n, _ in parts):
            return None
        return f"STRUCT({', '.join(f'{quote(n)} {part}' for n, part in parts)})"
    return None


def find_scanned_type(kind: pa.DataType) -> pa.DataType | None:
    """The Arrow type in which DuckDB scans values exactly; None where it has none that holds them all.

    Durations become intervals, which have microseconds: a value that does not fit has to be refused.
    """
    lost = False

    def choose(leaf: pa.DataType) -> pa.DataType:
        nonlocal lost
        if pa.types.is_float16(leaf):
            return pa.float32()
        if pa.types.is_duration(leaf):
            return pa.duration("us")
        if pa.types.is_decimal256(leaf):
            lost = lost or leaf.precision > _MOST_DIGITS
            return leaf if lost else pa.decimal128(leaf.precision, leaf.scale)
        return leaf

    found = rewrite_type(kind, choose)
    return None if lost else found


def has_case_clash(names: Iterable[str]) -> bool:
    """Whether some names differ only by case, which DuckDB ignores."""
    every = [each.lower() for each in names]
    return len(set(every)) < len(every)


def is_comparable(kind: pa.DataType) -> bool:
    """Whether DuckDB compares values of a type exactly."""
    return not pa.types.is_nested(kind) and find_sql_type(kind) is not None


@lru_cache(maxsize=1)
def _has_zoned_nanoseconds() -> bool:
    try:
        duckdb.type("TIMESTAMPTZ_NS")
    except duckdb.Error:
        return False
    return True


def restore_types(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the Arrow types of ``schema``; DuckDB has one type for several of Arrow's."""
    fields = [schema.field(each) for each in table.column_names]
    columns = [
        column if column.type == field.type else _restore_type(column, field)
        for column, field in zip(table.columns, fields, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema([f.with_nullable(True) for f in fields]))


def _restore_type(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """The column in a type of Arrow; its own cast takes no NULL struct to one with NOT NULL fields."""
    if _has_required_field(field.type):
        return cast_exact(column, field.type, column=field.name)
    return column.cast(field.type)


def _has_required_field(kind: pa.DataType) -> bool:
    """Whether there is a struct with NOT NULL fields in a type."""
    if not pa.types.is_nested(kind):
        return False
    inner = [kind.field(number) for number in range(kind.num_fields)]
    required = pa.types.is_struct(kind) and not all(field.nullable for field in inner)
    return required or any(_has_required_field(field.type) for field in inner)
