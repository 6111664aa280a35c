"""Rows split by the values of their partition columns, without a loop over rows; writes nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.common.partition_values import python_value, value_type
from intarsia.common.schema import cast_exact, convert_large_types_to_normal

__all__ = ["split_by_partition"]


def split_by_partition(table: pa.Table, columns: Sequence[str]) -> list[tuple[dict[str, Any], pa.Table]]:
    """The rows of each partition, with its typed values; partitions in order of first appearance.

    Rows keep their order, and all columns stay. NULL is a partition of its own, NaN is one value, -0.0
    is 0.0. One sort however many partitions there are; memory: one copy of the table, which the parts
    share. A table whose partitions lie together already is not copied.
    """
    if not table.num_rows:
        return []
    if not columns:
        return [({}, table)]
    keys = [_comparable(table[name]) for name in columns]
    codes = _codes(keys[0])
    for key in keys[1:]:
        inner = _codes(key)
        width = pc.max(inner).as_py() + 1
        # Dense codes stay below 2^31, so their product fits 64 bits.
        codes = _codes(pa.chunked_array([pc.add(pc.multiply(codes, width), inner)]))
    counts = pc.value_counts(codes).field("counts").to_pylist()
    order = None
    if not pc.all(pc.greater_equal(codes[1:], codes[:-1]), min_count=0).as_py():
        order = pc.array_sort_indices(codes)  # stable
        table = _take(table, order)
    starts = [0, *itertools.accumulate(counts)][:-1]
    firsts = pa.array(starts, pa.int64()) if order is None else order.take(pa.array(starts, pa.int64()))
    values = [[python_value(scalar) for scalar in key.take(firsts)] for key in keys]
    return [
        (dict(zip(columns, found, strict=True)), table.slice(start, count))
        for start, count, *found in zip(starts, counts, *values, strict=True)
    ]


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in a type Arrow can hash and take from, with one NaN and one zero."""
    plain = value_type(column.type)
    normal = convert_large_types_to_normal(pa.schema([("", plain)])).field(0).type
    if pt.is_decimal32(plain) or pt.is_decimal64(plain):
        normal = pa.decimal128(plain.precision, plain.scale)
    if pt.is_float16(plain):
        normal = pa.float32()
    column = cast_exact(column, normal, column="", operation="split_by_partition")
    if not pt.is_floating(normal):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(math.nan, normal), pc.add(column, pa.scalar(0.0, normal)))


def _codes(column: pa.ChunkedArray) -> pa.Array:
    """A number per row from 0, in order of first appearance; NULL has its own."""
    encoded = column.dictionary_encode(null_encoding="encode")
    indices = [chunk.indices for chunk in encoded.chunks]
    return pc.cast(pa.concat_arrays(indices), pa.int64())


def _take(table: pa.Table, order: pa.Array) -> pa.Table:
    columns = []
    for field, column in zip(table.schema, table.columns, strict=True):
        try:
            columns.append(column.take(order))
        except pa.ArrowNotImplementedError:  # views: through their normal type and back
            normal = convert_large_types_to_normal(pa.schema([field])).field(0).type
            there = cast_exact(column, normal, column=field.name).take(order)
            columns.append(cast_exact(there, field.type, column=field.name))
    return pa.Table.from_arrays(columns, schema=table.schema)
