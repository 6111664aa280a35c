"""The terms on which a large group of files is put in order: its rows sampled, the order cut into ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import Workplace
from intarsia.engines.arrow.optimize import NewFiles, stored_bytes
from intarsia.engines.arrow.ordering import Cuts, Order
from intarsia.engines.arrow.sampling import (
    MOST_GROUPS,
    SAMPLE_ROWS,
    RowGroup,
    sample_row_groups,
    spread_row_groups,
)
from intarsia.engines.spark.crew import Crew, balanced

RANGES_PER_FILE = 4
"""Several, so that files can be cut between them and a range fits in memory."""
LEAST_MEMORY = 1 << 16
"""Less is not worth a file of its own, however little memory a task is given."""
_LEAST_BATCH = 1024


@dataclass(frozen=True, slots=True)
class RangeWork:
    """What every task knows."""

    plan: Plan
    workplace: Workplace
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Ranged:
    """A group of files, and into how many ranges its order is cut."""

    group: FileGroup
    ranges: int

    @property
    def size(self) -> int:
        return stored_bytes(self.group.files)


@dataclass(frozen=True, slots=True)
class Terms:
    """How the rows of one group are dealt out and written."""

    cuts: Cuts
    new: NewFiles
    read_rows: int
    """The most rows to read at once."""
    part_rows: int
    """About what a range holds; one that holds a single place of the order is cut into such parts."""


def cut(crew: Crew, work: RangeWork, order: Order, groups: Sequence[Ranged]) -> list[Terms]:
    """Executors sample the clustering columns of each group, and its order is cut by the sample."""
    jobs: list[tuple[tuple[str, ...], list[RowGroup], float]] = []
    owners: list[int] = []
    for number, one in enumerate(groups):
        chosen = spread_row_groups(one.group.files, max(MOST_GROUPS, 2 * one.ranges))
        share = max(SAMPLE_ROWS, 32 * one.ranges) / max(sum(item.rows for item in chosen), 1)
        for mine in balanced([item.rows for item in chosen], crew.tasks):
            jobs.append((order.by, [chosen[at] for at in mine], share))
            owners.append(number)
    weights = [sum(item.rows for item in chosen) for _, chosen, _ in jobs]
    samples = crew.each(sample_range_keys, jobs, shared=work, weights=weights)
    return [
        _terms(
            work,
            order,
            one,
            pa.concat_tables(s for s, owner in zip(samples, owners, strict=True) if owner == n),
        )
        for n, one in enumerate(groups)
    ]


def sample_range_keys(work: RangeWork, job: tuple[tuple[str, ...], list[RowGroup], float]) -> pa.Table:
    """Some rows of the clustering columns; runs on an executor."""
    columns, chosen, share = job
    return sample_row_groups(chosen, columns, work.plan, share=share)


def _terms(work: RangeWork, order: Order, one: Ranged, sample: pa.Table) -> Terms:
    order = order.measured(sample)
    group = one.group
    new = NewFiles.of(group, work.plan, work.workplace, order)
    light = replace(group, files=group.files[:1])
    return Terms(
        Cuts.of(sample, order, parts=one.ranges),
        replace(new, group=light),
        read_rows=max(_LEAST_BATCH, group.rows * work.memory_bytes // (4 * max(one.size, 1))),
        part_rows=max(group.rows // (RANGES_PER_FILE * group.outputs), 1),
    )
