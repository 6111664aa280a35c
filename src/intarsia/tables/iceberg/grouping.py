"""Rows with equal values in some columns, found without looking at rows one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_LARGEST = 2**62


def grouped_rows(columns: Sequence[pa.Array]) -> list[tuple[tuple[Any, ...], pa.Int64Array | None]]:
    """The distinct tuples of several columns in order of first appearance, each with its rows ascending.

    NULL equals NULL, NaN equals NaN, and 0.0 is not -0.0. The rows of the only tuple are None: all.
    """
    encoded = [_encoded(column) for column in columns]
    groups = _combined([(part.indices, len(part.dictionary)) for part in encoded])
    count = len(groups.dictionary)
    if count == 1:
        return [(_values(columns, 0), None)]
    codes = groups.indices.cast(pa.int64())
    order = pc.array_sort_indices(codes).cast(pa.int64())  # stable: rows stay ascending
    sizes = pc.value_counts(codes)
    # Codes are given in order of appearance, and so are the counts.
    starts = 0
    found = []
    for size in sizes.field("counts").to_pylist():
        rows = order.slice(starts, size)
        found.append((_values(columns, rows[0].as_py()), rows))
        starts += size
    return found


def _values(columns: Sequence[pa.Array], row: int) -> tuple[Any, ...]:
    return tuple(column[row].as_py() for column in columns)


def _encoded(column: pa.Array) -> pa.DictionaryArray:
    return pc.dictionary_encode(_by_bits(column), null_encoding="encode")


def _by_bits(column: pa.Array) -> pa.Array:
    if not pa.types.is_floating(column.type):
        return column
    one_nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    return one_nan.view(pa.int32() if column.type == pa.float32() else pa.int64())


def _combined(parts: Sequence[tuple[pa.Array, int]]) -> pa.DictionaryArray:
    codes, size = parts[0][0].cast(pa.int64()), parts[0][1]
    for more, width in parts[1:]:
        if size * width > _LARGEST:
            packed = pc.dictionary_encode(codes)
            codes, size = packed.indices.cast(pa.int64()), len(packed.dictionary)
        codes = pc.add(pc.multiply(codes, width), more.cast(pa.int64()))
        size *= width
    return pc.dictionary_encode(codes)
