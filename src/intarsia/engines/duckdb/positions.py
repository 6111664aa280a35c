"""Rows that DuckDB found, by file and in order, whatever order they came in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.files import DataFile

__all__ = ["by_file", "row_numbers"]


def row_numbers(files: Sequence[DataFile], numbers: pa.Array, positions: pa.Array) -> pa.Int64Array:
    """Rows, each named by a file's number and a position, counted over all of the files."""
    bases = pa.array(list(accumulate((file.records for file in files), initial=0)), pa.int64())
    return pc.add(bases.take(numbers), positions)


def by_file(files: Sequence[DataFile], found: Iterable[pa.Int64Array]) -> list[pa.Int64Array]:
    """For each file the positions found, ascending, from numbers over all of the files.

    Memory: 8 bytes per row found, twice.
    """
    rows = pa.concat_arrays([pa.array([], pa.int64()), *found])
    if not pc.all(pc.less(rows.slice(0, max(len(rows) - 1, 0)), rows.slice(1)), min_count=0).as_py():
        rows = rows.take(pc.array_sort_indices(rows))
    edges = list(accumulate((file.records for file in files), initial=0))
    cuts = pc.search_sorted(rows, pa.array(edges, pa.int64())).to_pylist()
    return [
        pc.subtract(rows.slice(low, high - low), pa.scalar(base, pa.int64()))
        for base, low, high in zip(edges, cuts, cuts[1:], strict=False)
    ]
