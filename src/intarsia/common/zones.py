"""Timestamps with and without a zone: what naive ones of a source are taken for, and what is said of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from intarsia.common.names import CAST_IT
from intarsia.common.types import common_type, kind_of, list_like, plain_type

__all__ = ["cast_hint", "utc_schema", "utc_table", "with_zones"]

_NAIVE = (
    "the source has times without a zone for a column of instants: say which they are, such as with"
    ' pyarrow.compute.assume_timezone, or pass naive_timestamps="utc" if they are in UTC'
)
_WALL = (
    "the source has instants for a column of times without a zone: bring them to the wall time that the"
    " column holds, such as with pyarrow.compute.local_timestamp"
)


def utc_schema(source: pa.Schema, target: pa.Schema) -> pa.Schema:
    """The source's schema with its naive timestamps in UTC, but where the target's column has no zone either.

    Structs meet by the names of their fields. A column that the target lacks is in UTC, too.
    """
    kinds = {field.name: field.type for field in target}
    return pa.schema(
        [field.with_type(_in_utc(field.type, kinds.get(field.name))) for field in source], source.metadata
    )


def utc_table(table: pa.Table, target: pa.Schema) -> pa.Table:
    """The same with rows, whose values stay the numbers that they are."""
    return with_zones(table, utc_schema(table.schema, target))


def with_zones(rows: Any, schema: pa.Schema) -> Any:
    """A table or a batch in the schema that :func:`utc_schema` has made of its own."""
    pairs = zip(rows.columns, schema, strict=True)
    columns = [column if column.type.equals(f.type) else column.cast(f.type) for column, f in pairs]
    return type(rows).from_arrays(columns, schema=schema)


def _in_utc(dtype: pa.DataType, like: pa.DataType | None) -> pa.DataType:
    def inner(field: pa.Field, other: pa.DataType | None) -> pa.Field:
        return field.with_type(_in_utc(field.type, other))

    plain = None if like is None else plain_type(like)
    same = plain if plain is not None and kind_of(plain) == kind_of(dtype) else None
    match kind_of(dtype):
        case "timestamp":
            return dtype if same is not None else pa.timestamp(dtype.unit, "UTC")
        case "struct":
            others = {} if same is None else {field.name: field.type for field in same.fields}
            return pa.struct([inner(field, others.get(field.name)) for field in dtype.fields])
        case "map":
            key = inner(dtype.key_field, None if same is None else same.key_type)
            item = inner(dtype.item_field, None if same is None else same.item_type)
            return pa.map_(key, item, keys_sorted=dtype.keys_sorted)
        case "list":
            return list_like(dtype, inner(dtype.value_field, None if same is None else same.value_type))
        case _:
            return dtype


def cast_hint(source: pa.DataType, target: pa.DataType) -> str:
    """What to do with a column of the source whose type the target's cannot take."""
    if common_type(target, _in_utc(source, target)) is not None:
        return _NAIVE
    if common_type(_in_utc(target, source), source) is not None:
        return _WALL
    return CAST_IT
