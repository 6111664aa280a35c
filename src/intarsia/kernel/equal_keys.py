"""Equal keys, found without opening a file: which files and which ranges of keys can be searched separately,
which rows share a key, and which of them stays.

A hash table that does not fit in the CPU cache is several times slower, so long columns are first split into
buckets by value, and each bucket is hashed by itself. Equal values are in the same bucket; whether two values
are equal is always decided by the values.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.python_values import make_scalar
from intarsia.core.keys import arange, decode_dictionary, mark_numbers, search, to_array, to_comparable
from intarsia.core.prune import Bounds, read_bounds
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.kernel.threads import map_in_order

_BUCKET_ROWS = 1 << 15
_MOST_BITS = 11
_SAMPLE_ROWS = 1 << 14
_FIBONACCI = make_scalar(0x9E3779B97F4A7C15, pa.uint64())
"""2**64 over the golden ratio (Knuth, TAOCP 6.4): multiplying by it mixes the high bits well."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """Rows whose value is not unique, in any order, and the number of the group of equal values of each."""

    rows: pa.Int64Array
    groups: pa.Int64Array
    count: int
    """The number of groups."""


def to_key_form(values: Any) -> pa.Array:
    """A column as one array that can be hashed and compared; equal keys have equal bits."""
    column = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return to_array(decode_dictionary(to_comparable(column)))


def find_repeats(values: pa.Array, *, threads: int = 1) -> Repeats:
    """The rows whose value occurs more than once; NULL is a value.

    Memory: the values once more, and a few integers per row.
    """
    bits = min(_MOST_BITS, (len(values) // _BUCKET_ROWS).bit_length())
    if bits < 2:
        return _find_repeats_in(values, None)
    buckets = _choose_buckets(values, bits)
    order = pc.array_sort_indices(buckets)  # PyArrow sorts small integers by counting
    grouped = values.take(order)
    counts = buckets.value_counts()
    sizes = counts.field("counts").take(pc.array_sort_indices(counts.field("values"))).to_pylist()
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)

    def find_in_part(number: int) -> Repeats:
        start, size = starts[number], sizes[number]
        return _find_repeats_in(grouped.slice(start, size), order.slice(start, size))

    return _join_repeats(
        [found for found in map_in_order(find_in_part, range(len(sizes)), threads=threads) if found.count]
    )


def _join_repeats(parts: Sequence[Repeats]) -> Repeats:
    total = 0
    groups = []
    for part in parts:
        groups.append(pc.add(part.groups, make_scalar(total, pa.int64())))
        total += part.count
    empty = pa.nulls(0, pa.int64())
    return Repeats(
        pa.concat_arrays([empty, *(part.rows for part in parts)]), pa.concat_arrays([empty, *groups]), total
    )


def _find_repeats_in(values: pa.Array, names: pa.Array | None) -> Repeats:
    """The repeats of one bucket; ``names`` are the row numbers of its values."""
    encoded = values.dictionary_encode("encode")
    codes, distinct = encoded.indices, len(encoded.dictionary)
    if distinct == len(values):
        return Repeats(pa.nulls(0, pa.int64()), pa.nulls(0, pa.int64()), 0)
    # Codes are given in the order of first appearance: a code that is not above all before it is a repeat.
    seen = pc.cumulative_max(codes)
    again = codes.slice(1).filter(pc.less_equal(codes.slice(1), seen.slice(0, len(seen) - 1)))
    again = pc.unique(again).cast(pa.int64())
    dense = pc.scatter(arange(len(again)), again, max_index=distinct - 1).take(codes)
    rows = pc.indices_nonzero(pc.is_valid(dense))
    rows = rows.cast(pa.int64()) if names is None else names.take(rows).cast(pa.int64())
    return Repeats(rows, dense.drop_null(), len(again))


def _choose_buckets(values: pa.Array, bits: int) -> pa.UInt16Array:
    """A small number for each value, the same for equal values."""
    numbers = _to_bit_pattern(values)
    if numbers is not None:
        mixed = pc.shift_right(pc.multiply(numbers, _FIBONACCI), make_scalar(64 - bits, pa.uint64()))
        return pc.fill_null(mixed.cast(pa.uint16()), 0)
    sample = values.take(pc.divide(pc.multiply(arange(_SAMPLE_ROWS), len(values)), _SAMPLE_ROWS)).drop_null()
    ordered = sample.take(pc.array_sort_indices(sample))
    cuts = pc.divide(pc.multiply(arange((1 << bits) - 1, 1), len(ordered)), 1 << bits)
    edges = pc.unique(ordered.take(cuts)) if len(ordered) else ordered
    return pc.fill_null(search(edges, values, side="right").cast(pa.uint16()), 0)


def _to_bit_pattern(values: pa.Array) -> pa.UInt64Array | None:
    """Fixed-width values of up to 64 bits as integers; None for others."""
    dtype = values.type
    if pa.types.is_boolean(dtype) or pa.types.is_null(dtype):
        return pc.fill_null(values.cast(pa.uint8()), 2).cast(pa.uint64())
    if not pa.types.is_primitive(dtype):
        return None
    unsigned = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
    return values.view(unsigned[dtype.bit_width]).cast(pa.uint64())


def find_losers(
    keys: Sequence[pa.Array],
    order_by: Sequence[pa.Array],
    *,
    groups: pa.Int64Array | None = None,
    count: int = 0,
    threads: int = 1,
) -> pa.Int64Array:
    """The rows to delete, ascending, so that each key occurs once.

    The row with the highest ``order_by`` stays, column by column; NULL loses against any value, NaN is
    the highest number; on ties, and without an order, the last row stays. NULL equals NULL in a key.

    Args:
        keys: columns in key form, the one with the most different values first.
        order_by: columns in key form.
        groups: group numbers by other key columns, if known: rows with different numbers have different keys.
        count: the number of groups; above every number in ``groups``.
        threads: how many may work at once.
    """
    rows: pa.Array | None = None
    for key in keys:
        mine = key if rows is None else key.take(rows)
        if groups is None:
            found = find_repeats(mine, threads=threads)
        else:
            digit = mine.dictionary_encode("encode")
            radix = make_scalar(max(len(digit.dictionary), 1), pa.int64())
            codes = pc.add(pc.multiply(groups, radix), digit.indices.cast(pa.int64()))
            found = find_repeats(codes, threads=threads)
        rows = found.rows if rows is None else rows.take(found.rows)
        groups, count = found.groups, found.count
        if not count:
            return pa.nulls(0, pa.int64())
    if groups is None:
        raise ValueError("a key needs at least one column")
    if rows is None:
        rows = arange(len(groups))
    stay = _find_winners(rows, groups, order_by, count)
    total = len(order_by[0]) if order_by else (len(keys[0]) if keys else len(rows))
    return _subtract_rows(rows, stay, total)


def _find_winners(rows: pa.Array, groups: pa.Array, order_by: Sequence[pa.Array], count: int) -> pa.Array:
    """One row of each group."""
    for column in order_by:
        values = _rank_values(column.take(rows))
        best = _find_largest(groups, values, count).take(groups)
        level = pc.or_(pc.fill_null(pc.equal(values, best), False), pc.is_null(best))
        rows, groups = rows.filter(level), groups.filter(level)
    return _find_largest(groups, rows, count).drop_null()


def _find_largest(groups: pa.Array, values: pa.Array, count: int) -> pa.Array:
    """For each group number its largest value, NULL where it has none."""
    found = pa.table({"group": groups, "value": values}).group_by("group", use_threads=False)
    found = found.aggregate([("value", "max")])
    return pc.scatter(to_array(found["value_max"]), to_array(found["group"]), max_index=count - 1)


def _rank_values(values: pa.Array) -> pa.Array:
    """Integers in the order of the values; NULL stays NULL."""
    dtype = values.type
    if pa.types.is_uint64(dtype):
        return values
    if pa.types.is_null(dtype):
        return values.cast(pa.int64())
    if pa.types.is_floating(dtype):
        # The bits of a float are ordered like an integer, once all bits but the sign are inverted for
        # negative numbers; NaN is after infinity.
        bits = values.cast(pa.float64()).view(pa.int64())
        turned = pc.bit_wise_xor(bits, make_scalar((1 << 63) - 1, pa.int64()))
        return pc.if_else(pc.less(bits, make_scalar(0, pa.int64())), turned, bits)
    if pa.types.is_boolean(dtype) or pa.types.is_integer(dtype):
        return values.cast(pa.int64())
    if pa.types.is_primitive(dtype):
        return values.view(pa.int32() if dtype.bit_width == 32 else pa.int64()).cast(pa.int64())
    ranks = pc.rank(values, sort_keys="ascending", tiebreaker="dense").cast(pa.int64())
    return pc.if_else(pc.is_valid(values), ranks, make_scalar(None, pa.int64()))


def _subtract_rows(rows: pa.Array, stay: pa.Array, total: int) -> pa.Array:
    """The rows without those that stay, ascending."""
    goes = pc.and_not(mark_numbers(rows, total), mark_numbers(stay, total))
    return pc.indices_nonzero(goes).cast(pa.int64())


_MOST_COLUMNS = 4
"""Key columns whose bounds are compared: if the first few do not separate files, others hardly do."""


def find_components(
    files: Sequence[DataFile], keys: Sequence[str], snapshot: Snapshot
) -> list[list[DataFile]]:
    """Sets of files such that files of different sets share no key; the order of files is kept.

    Files are separate when a partition column of the key differs, or when their ranges of a key column do not
    overlap, not even through other files. Files with unknown bounds are in one set.
    """
    marks: list[list[Hashable]] = []
    for name in keys:
        if name in snapshot.partition_columns:
            marks.append(_group_by_value(files, name))
    plain = [name for name in keys if name not in snapshot.partition_columns]
    for name in plain[:_MOST_COLUMNS]:
        marks.append(_group_by_range(files, name, snapshot.schema.field(name).type))
    sets: dict[tuple[Hashable, ...], list[DataFile]] = {}
    for number, file in enumerate(files):
        sets.setdefault(tuple(mark[number] for mark in marks), []).append(file)
    return list(sets.values())


def _group_by_value(files: Sequence[DataFile], name: str) -> list[Hashable]:
    if not all(name in file.partition for file in files):
        return [0] * len(files)
    values = [file.partition[name] for file in files]
    return ["NaN" if value != value else (value,) for value in values]


def _group_by_range(files: Sequence[DataFile], name: str, dtype: pa.DataType) -> list[Hashable]:
    """A number for each file; files with different numbers have no value in common."""
    together: list[Hashable] = [0] * len(files)
    bounds = read_bounds(files, name, dtype)
    if pa.types.is_floating(bounds.lower.type) or pa.types.is_null(bounds.lower.type):
        return together  # any file may hold NaN
    ranges = _find_file_ranges(bounds, len(files))
    if ranges is None:
        return together
    low, high, holds_null = ranges
    # Sweep over the files by their lower ends; files with only NULLs have none and are last.
    order = sorted(range(len(files)), key=lambda n: (low[n] is None, low[n] or 0))
    numbers: list[Hashable] = [0] * len(files)
    current, reach = 0, -1
    for n in order:
        first, last = low[n], high[n]
        if first is not None and last is not None:
            if first > reach:
                current += 1
            reach = max(reach, last)
            numbers[n] = current
        else:
            numbers[n] = "NULL"
    return _with_nulls_joined(numbers, holds_null)


def _with_nulls_joined(numbers: list[Hashable], holds_null: Sequence[bool]) -> list[Hashable]:
    """The numbers with those of files that may hold NULL joined, since NULL equals NULL."""
    joined = {number for number, null in zip(numbers, holds_null, strict=True) if null}
    return ["NULL" if number in joined else number for number in numbers]


def _find_file_ranges(
    bounds: Bounds, files: int
) -> tuple[list[int | None], list[int | None], list[bool]] | None:
    """Per file its lower and upper end as ranks, and whether it may hold NULL; None if a bound is unknown."""
    filled = pc.greater(bounds.rows, make_scalar(0))
    all_null = pc.fill_null(pc.equal(bounds.null_count, bounds.rows), make_scalar(False))
    known = pc.or_(pc.and_(pc.is_valid(bounds.lower), pc.is_valid(bounds.upper)), all_null)
    if not pc.all(pc.or_(known, pc.invert(filled)), min_count=0).as_py():
        return None
    ends = pa.concat_arrays([bounds.lower, bounds.upper])
    ranks = pc.rank(ends, sort_keys="ascending", tiebreaker="dense").cast(pa.int64())
    ranks = pc.if_else(pc.is_valid(ends), ranks, make_scalar(None, pa.int64()))
    count = len(bounds.file)
    table = pa.table(
        {
            "file": bounds.file,
            "low": ranks.slice(0, count),
            "high": ranks.slice(count),
            "null": pc.fill_null(pc.greater(bounds.null_count, make_scalar(0)), make_scalar(True)),
        }
    ).filter(filled)
    grouped = table.group_by("file", use_threads=False)
    found = grouped.aggregate([("low", "min"), ("high", "max"), ("null", "any")])
    low: list[int | None] = [None] * files
    high: list[int | None] = [None] * files
    null = [False] * files
    for row in found.to_pylist():
        low[row["file"]], high[row["file"]] = row["low_min"], row["high_max"]
        null[row["file"]] = row["null_any"]
    return low, high, null


@dataclass(frozen=True, slots=True)
class KeySpan:
    """The values of a column with ``low <= value < high``; None is no limit.

    A span without an upper limit includes NULL and NaN.
    """

    column: str
    low: Any
    high: Any

    def mask(self, values: pa.Array) -> pa.BooleanArray:
        inside = pa.repeat(make_scalar(True), len(values))
        if self.low is not None:
            inside = pc.fill_null(pc.invert(pc.less(values, self.low)), True)
        if self.high is not None:
            inside = pc.and_(inside, pc.fill_null(pc.less(values, self.high), False))
        return inside

    def excludes(self, bounds: Bounds) -> pa.BooleanArray:
        """Per row group: whether it certainly has no value in the span."""
        never = pa.repeat(make_scalar(False), len(bounds.file))
        dtype = bounds.lower.type
        below = never
        if self.low is not None and self.low.type == dtype:
            below = pc.fill_null(pc.less(bounds.upper, self.low), False)
        if self.high is None:
            no_null = pc.fill_null(pc.equal(bounds.null_count, 0), False)
            return never if pa.types.is_floating(dtype) else pc.and_(below, no_null)
        if self.high.type != dtype:
            return never
        above = pc.fill_null(pc.greater_equal(bounds.lower, self.high), False)
        all_null = pc.fill_null(pc.equal(bounds.null_count, bounds.rows), make_scalar(False))
        return pc.or_(pc.or_(below, above), all_null)


Cell = tuple[KeySpan, ...]
"""The keys that are in all of some spans; the empty tuple is all keys."""


def cut_cells(sample: pa.Table, *, rows: int, most_rows: int) -> list[Cell]:
    """Cells that together hold every key once, each of about ``most_rows`` rows where that is possible.

    Args:
        sample: key columns in key form, the one with the most distinct values first; evenly spread rows.
        rows: the number of all rows.
        most_rows: the most rows of a cell; a cell has more where so many rows have equal keys.
    """
    if rows <= most_rows or sample.num_rows < 2:
        return [()]
    for name in sample.column_names:
        values = to_array(sample[name])
        edges = _find_edges(values, parts=-(-rows // most_rows))
        if not len(edges):
            continue
        found: list[Cell] = []
        ends = [None, *(edges[number] for number in range(len(edges))), None]
        for low, high in pairwise(ends):
            span = KeySpan(name, low, high)
            part = sample.filter(span.mask(values))
            mine = rows * part.num_rows // sample.num_rows
            found += [(span, *inner) for inner in cut_cells(part, rows=mine, most_rows=most_rows)]
        return found
    return [()]


def _find_edges(values: pa.Array, *, parts: int) -> pa.Array:
    """Values that cut the sample into ``parts`` parts, none of them empty."""
    if pa.types.is_boolean(values.type) or pa.types.is_null(values.type):
        return values.slice(0, 0)
    known = values.drop_null()
    if pa.types.is_floating(known.type):
        known = known.filter(pc.invert(pc.is_nan(known)))
    if not len(known):
        return known
    ordered = known.take(pc.array_sort_indices(known))
    parts = min(parts, len(ordered))
    cuts = pc.divide(pc.multiply(arange(parts - 1, 1), len(ordered)), parts)
    edges = pc.unique(ordered.take(cuts))
    # If most rows have the least value, cut after that value.
    above = ordered.filter(pc.greater(ordered, ordered[0]))
    edges = edges.filter(pc.greater(edges, ordered[0]))
    return edges if len(edges) else above.slice(0, 1)
