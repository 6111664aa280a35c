"""The search for duplicates, cut into units that share no key and fit in memory; samples files for it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.keys import arange, flat
from intarsia.core.plan import Plan
from intarsia.core.prune import Bounds, bounds_of
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.kernel.repeats import key_form
from intarsia.kernel.sample import sample_rows

_ROW_OVERHEAD = 40
"""Bytes per row for codes, row numbers and marks beside the key itself."""
_UNKNOWN_WIDTH = 32
_GLANCE_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class Unit:
    """Some files, and the part of their keys to look at."""

    files: tuple[DataFile, ...]
    keys: tuple[str, ...]
    """Those that differ within the files; the most telling one first."""
    cell: Cell = ()
    fits: bool = True
    row_groups: tuple[frozenset[int], ...] = ()
    """Per file those that may hold keys of the cell; empty when all do."""

    @property
    def bases(self) -> list[int]:
        """Where each file's rows begin in a count over all of them, and the end."""
        return list(accumulate((file.record_count for file in self.files), initial=0))

    @property
    def partial(self) -> bool:
        """Whether only some rows of the files are compared, so that their positions have to be kept."""
        return self.cell != () or any(
            file.scan_task is not None and file.scan_task.has_deletes for file in self.files
        )


@dataclass(frozen=True, slots=True)
class Cutting:
    """How the search for duplicates of some keys is cut."""

    plan: Plan
    keys: tuple[str, ...]
    threads: int
    memory_bytes: int

    def units(self, files: Sequence[DataFile]) -> list[Unit]:
        """All of the work, cut into parts that share no key and fit in memory together."""
        apart = [
            Unit(tuple(mine), self._varying(mine))
            for mine in components(files, self.keys, self.plan.snapshot)
        ]
        costs = [self._cost(unit) for unit in apart]
        if sum(costs) <= self.memory_bytes:
            return [self._led(unit) for unit in apart]
        share = max(self.memory_bytes // self.threads, 1)
        units: list[Unit] = []
        for unit, cost in zip(apart, costs, strict=True):
            units += [self._led(unit)] if cost <= share or not unit.keys else self._cut(unit, cost, share)
        return units

    def _varying(self, files: Sequence[DataFile]) -> tuple[str, ...]:
        """Files of one component agree in the partition columns of the key that are known of all."""
        fixed = self.plan.snapshot.partition_columns
        return tuple(
            name
            for name in self.keys
            if name not in fixed or not all(name in file.partition for file in files)
        )

    def _cost(self, unit: Unit) -> int:
        """The memory to hold the first key column; which one that is, is not known yet."""
        rows = unit.bases[-1]
        return rows * _ROW_OVERHEAD + 2 * max((self._bytes(unit, name) for name in unit.keys), default=0)

    def _bytes(self, unit: Unit, name: str) -> int:
        dtype = self.plan.schema.field(name).type
        rows = unit.bases[-1]
        if pa.types.is_primitive(dtype) or pa.types.is_decimal(dtype):
            return rows * dtype.bit_width // 8
        stored = sum(_stored_bytes(file, name) for file in unit.files)
        return max(stored, rows * _UNKNOWN_WIDTH)  # a dictionary hides how long strings are

    def _led(self, unit: Unit) -> Unit:
        if len(unit.keys) < 2:
            return unit
        largest = max(unit.files, key=lambda file: file.rows)
        sample = self._sample(unit.keys, [largest], rows=_GLANCE_ROWS, groups=1)
        return replace(unit, keys=_by_distinct(sample))

    def _sample(self, names: Sequence[str], files: Sequence[DataFile], **limits: int) -> pa.Table:
        sample = sample_rows(files, names, self.plan, threads=self.threads, **limits)
        return pa.table({name: key_form(sample[name]) for name in names})

    def _cut(self, unit: Unit, cost: int, share: int) -> list[Unit]:
        sample = self._sample(unit.keys, unit.files)
        unit = replace(unit, keys=_by_distinct(sample))
        rows = unit.bases[-1]
        most = max(1, rows * share // cost)
        found = cells(sample.select(unit.keys), rows=rows, most_rows=most)
        bounds: dict[str, Any] = {}
        units = []
        for cell in found:
            for span in cell:
                if span.column not in bounds:
                    dtype = self.plan.schema.field(span.column).type
                    bounds[span.column] = bounds_of(unit.files, span.column, dtype)
            kept = sample.num_rows
            for span in cell:
                kept = min(kept, pc.sum(span.mask(flat(sample[span.column]))).as_py() or 0)
            fits = rows * kept // max(sample.num_rows, 1) <= 2 * most
            units.append(replace(unit, cell=cell, fits=fits, row_groups=_row_groups(unit, cell, bounds)))
        return units


def _stored_bytes(file: DataFile, name: str) -> int:
    footer = file.footer
    if footer is None:
        return 0
    leaf = next((n for n in range(footer.num_columns) if footer.schema.column(n).path == name), None)
    if leaf is None:
        return 0
    return sum(
        footer.row_group(number).column(leaf).total_uncompressed_size
        for number in range(footer.num_row_groups)
    )


def _by_distinct(sample: pa.Table) -> tuple[str, ...]:
    """The columns, the one with the most different values first."""
    counts = {name: pc.count_distinct(sample[name], mode="all").as_py() for name in sample.column_names}
    return tuple(sorted(sample.column_names, key=lambda name: -counts[name]))


def _row_groups(unit: Unit, cell: Cell, bounds: dict[str, Any]) -> tuple[frozenset[int], ...]:
    found: list[set[int]] = [set() for _ in unit.files]
    if not cell:
        return ()
    outside: pa.Array | None = None
    for span in cell:
        mine = span.excludes(bounds[span.column])
        outside = mine if outside is None else pc.or_(outside, mine)
    of = bounds[cell[0].column]
    inside = pc.invert(outside)
    numbers, groups = of.file.filter(inside).to_pylist(), of.row_group.filter(inside).to_pylist()
    for number, group in zip(numbers, groups, strict=True):
        found[number].add(group)
    return tuple(frozenset(groups) for groups in found)


_MOST_COLUMNS = 4
"""Key columns whose bounds are compared: the first few tell files apart, or none does."""


def components(files: Sequence[DataFile], keys: Sequence[str], snapshot: Snapshot) -> list[list[DataFile]]:
    """The files in sets of which no two can hold the same key; order is kept.

    Files are apart when a partition column of the key differs, or when their ranges of a key column
    do not meet, not even through other files. What is not known keeps them together.
    """
    marks: list[list[Hashable]] = []
    for name in keys:
        if name in snapshot.partition_columns:
            marks.append(_by_value(files, name))
    plain = [name for name in keys if name not in snapshot.partition_columns]
    for name in plain[:_MOST_COLUMNS]:
        marks.append(_by_range(files, name, snapshot.schema.field(name).type))
    sets: dict[tuple[Hashable, ...], list[DataFile]] = {}
    for number, file in enumerate(files):
        sets.setdefault(tuple(mark[number] for mark in marks), []).append(file)
    return list(sets.values())


def _by_value(files: Sequence[DataFile], name: str) -> list[Hashable]:
    if not all(name in file.partition for file in files):
        return [0] * len(files)
    values = [file.partition[name] for file in files]
    return ["NaN" if value != value else (value,) for value in values]


def _by_range(files: Sequence[DataFile], name: str, dtype: pa.DataType) -> list[Hashable]:
    """A number for each file; files with different numbers have no value in common."""
    together: list[Hashable] = [0] * len(files)
    bounds = bounds_of(files, name, dtype)
    if pa.types.is_floating(bounds.lower.type) or pa.types.is_null(bounds.lower.type):
        return together  # any of them may hold NaN
    ranges = _file_ranges(bounds, len(files))
    if ranges is None:
        return together
    low, high, holds_null = ranges
    # Sweep over the files by their lower ends; files of NULLs alone have none and come last.
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
    """NULL equals NULL: files that may hold one belong together, with all that belongs to them."""
    joined = {number for number, null in zip(numbers, holds_null, strict=True) if null}
    return ["NULL" if number in joined else number for number in numbers]


def _file_ranges(bounds: Bounds, files: int) -> tuple[list[int | None], list[int | None], list[bool]] | None:
    """Per file its lower and upper end as ranks, and whether it may hold NULL; None when one is unknown."""
    filled = pc.greater(bounds.rows, 0)
    all_null = pc.fill_null(pc.equal(bounds.null_count, bounds.rows), False)
    known = pc.or_(pc.and_(pc.is_valid(bounds.lower), pc.is_valid(bounds.upper)), all_null)
    if not pc.all(pc.or_(known, pc.invert(filled)), min_count=0).as_py():
        return None
    ends = pa.concat_arrays([bounds.lower, bounds.upper])
    ranks = pc.rank(ends, sort_keys="ascending", tiebreaker="dense").cast(pa.int64())
    ranks = pc.if_else(pc.is_valid(ends), ranks, pa.scalar(None, pa.int64()))
    count = len(bounds.file)
    table = pa.table(
        {
            "file": bounds.file,
            "low": ranks.slice(0, count),
            "high": ranks.slice(count),
            "null": pc.fill_null(pc.greater(bounds.null_count, 0), True),
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
    """The values of a column from ``low`` on and below ``high``; an end that is None is open.

    The span without an upper end also has NULL and NaN.
    """

    column: str
    low: Any
    high: Any

    def mask(self, values: pa.Array) -> pa.BooleanArray:
        inside = pa.repeat(pa.scalar(True), len(values))
        if self.low is not None:
            inside = pc.fill_null(pc.invert(pc.less(values, self.low)), True)
        if self.high is not None:
            inside = pc.and_(inside, pc.fill_null(pc.less(values, self.high), False))
        return inside

    def excludes(self, bounds: Bounds) -> pa.BooleanArray:
        """Per row group: is it certain that no value of it is in the span?"""
        never = pa.repeat(pa.scalar(False), len(bounds.file))
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
        all_null = pc.fill_null(pc.equal(bounds.null_count, bounds.rows), False)
        return pc.or_(pc.or_(below, above), all_null)


Cell = tuple[KeySpan, ...]
"""Keys that are inside every one of some spans; the empty tuple is all keys."""


def cells(sample: pa.Table, *, rows: int, most_rows: int) -> list[Cell]:
    """Cells that together hold every key once, each of about ``most_rows`` rows where that is possible.

    Args:
        sample: key columns in key form, the most telling one first; evenly spread over the rows.
        rows: how many rows there are.
        most_rows: how many a cell should have at most; more where so many rows have equal keys.
    """
    if rows <= most_rows or sample.num_rows < 2:
        return [()]
    for name in sample.column_names:
        values = flat(sample[name])
        edges = _edges(values, parts=-(-rows // most_rows))
        if not len(edges):
            continue
        found: list[Cell] = []
        ends = [None, *(edges[number] for number in range(len(edges))), None]
        for low, high in pairwise(ends):
            span = KeySpan(name, low, high)
            part = sample.filter(span.mask(values))
            mine = rows * part.num_rows // sample.num_rows
            found += [(span, *inner) for inner in cells(part, rows=mine, most_rows=most_rows)]
        return found
    return [()]


def _edges(values: pa.Array, *, parts: int) -> pa.Array:
    """Values that cut the sample into so many parts, none of them empty."""
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
    # Where most rows have the least value, the first cut after it still helps.
    above = ordered.filter(pc.greater(ordered, ordered[0]))
    edges = edges.filter(pc.greater(edges, ordered[0]))
    return edges if len(edges) else above.slice(0, 1)
