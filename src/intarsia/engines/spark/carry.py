"""Arrow values through Spark: types that Spark lacks travel as ones it has, and come back exactly."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from intarsia.common.schema import cast_exact
from intarsia.errors import NotSupported


def carrier(kind: pa.DataType) -> pa.DataType:
    """A type of Spark's that holds every value of ``kind``."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        return carrier(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return carrier(kind.storage_type)
    if is_.is_uint64(kind):
        return pa.decimal128(20, 0)
    if is_.is_unsigned_integer(kind) or is_.is_time(kind) or is_.is_duration(kind):
        return pa.int64()
    if is_.is_timestamp(kind):
        return pa.int64() if kind.unit == "ns" else pa.timestamp("us", kind.tz)
    if is_.is_date(kind):
        return pa.date32()
    if is_.is_float16(kind):
        return pa.float32()
    if is_.is_large_string(kind) or is_.is_string_view(kind):
        return pa.string()
    if is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind) or is_.is_binary_view(kind):
        return pa.binary()
    if is_.is_null(kind):
        return pa.int32()
    if is_.is_decimal(kind):
        if kind.precision > 38:
            raise NotSupported(
                f"Spark has no decimal of {kind.precision} digits.", hint='use engine="arrow".'
            )
        return pa.decimal128(kind.precision, kind.scale)
    return _nested(kind) if is_.is_nested(kind) else kind


def _nested(kind: pa.DataType) -> pa.DataType:
    is_ = pa.types
    if is_.is_struct(kind):
        return pa.struct([field.with_type(carrier(field.type)) for field in kind])
    if is_.is_map(kind):
        return pa.map_(carrier(kind.key_type), carrier(kind.item_type))
    return pa.list_(carrier(kind.value_type))


def carried(table: pa.Table) -> pa.Table:
    """The table in carrier types."""
    columns = [_cast(column, carrier(column.type)) for column in table.columns]
    return pa.table(columns, names=table.column_names)


def restored(table: pa.Table, schema: pa.Schema, *, operation: str, path: str) -> pa.Table:
    """The columns of ``schema``, which are the first that came back from Spark, in exactly its types."""
    columns = []
    for number, field in enumerate(schema):
        column = table.column(number)
        kind = field.type
        storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        if _by_number(storage):
            column = _cast(_cast(column, pa.int64()), storage)
        columns.append(cast_exact(column, kind, column=field.name, operation=operation, path=path))
    return pa.table(columns, schema=schema)


def _by_number(kind: pa.DataType) -> bool:
    """Types that travel as their count of units."""
    is_ = pa.types
    return bool(is_.is_time(kind) or is_.is_duration(kind) or (is_.is_timestamp(kind) and kind.unit == "ns"))


def _cast(column: Any, kind: pa.DataType) -> Any:
    if column.type == kind:
        return column
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_time32(column.type):
        column = column.cast(pa.int32())
    if pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    return column.cast(kind)
