"""The search for duplicates, cut into units that share no key and fit in memory; samples files for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.bounds import bounds_of
from intarsia.core.files import DataFile
from intarsia.core.keys import flat
from intarsia.core.plan import Plan
from intarsia.engines.arrow.repeats import key_form
from intarsia.engines.arrow.sampling import sample_rows
from intarsia.engines.arrow.separate import Cell, cells, components

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
        return list(accumulate((file.records for file in self.files), initial=0))

    @property
    def partial(self) -> bool:
        """Whether only some rows of the files are looked at, so that their positions have to be kept."""
        return self.cell != () or any(file.lens is not None and file.lens.has_dead for file in self.files)


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
        kind = self.plan.schema.field(name).type
        rows = unit.bases[-1]
        if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
            return rows * kind.bit_width // 8
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
                    kind = self.plan.schema.field(span.column).type
                    bounds[span.column] = bounds_of(unit.files, span.column, kind)
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
