"""Files that a task writes with source rows from storage, several of them together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.schema import conform_table
from intarsia.common.spool import combined
from intarsia.core.change import StagedFile
from intarsia.core.keys import arange
from intarsia.core.matches import Hits
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import Workplace
from intarsia.core.refusals import ValuesRefused
from intarsia.core.rule import Action
from intarsia.engines.arrow.placing import NewFile, Placing
from intarsia.engines.arrow.rewrite import Rewrite, rewrite
from intarsia.engines.spark.carrying import carried_rows, written
from intarsia.engines.spark.crew import Attempt
from intarsia.engines.spark.routing import Shelf, rows_needed

BUNDLE_BYTES = 16 << 20
"""Of source rows, in memory, that wait for a task's files together."""


@dataclass(frozen=True, slots=True)
class WriteWork:
    """Files to write, whose rows wait on the shelf."""

    plan: Plan
    workplace: Workplace
    actions: tuple[Action, ...]
    placing: Placing
    wanted: pa.Schema
    shelf: Shelf
    operation: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """Files that a task writes one after the other, and where the rows for them are."""

    files: tuple[tuple[int, FilePlan, tuple[str, int]], ...]
    """Their numbers, what is planned, and where their hits are noted."""
    new: tuple[tuple[int, NewFile, int], ...]
    """The same of new files, each with the count of its rows."""
    needed: int = 0
    """How many source rows go to them."""
    rows: tuple[tuple[str, list[int]], ...] = ()

    @property
    def first(self) -> int:
        """The lowest number of a file."""
        return min(number for number, *_ in (*self.files, *self.new))

    def weight(self, row_bytes: float) -> int:
        """Bytes that have to do with writing it."""
        return int(sum(item.file.size for _, item, _ in self.files) + self.needed * row_bytes)

    @staticmethod
    def joined(bundles: Sequence[Bundle]) -> Bundle:
        """All of their files; no rows yet."""
        files = tuple(file for bundle in bundles for file in bundle.files)
        new = tuple(file for bundle in bundles for file in bundle.new)
        return Bundle(files, new, sum(bundle.needed for bundle in bundles))


def bundled(alone: Sequence[Bundle], *, row_bytes: float, tasks: int) -> Iterator[Bundle]:
    """Files that follow each other together: few source rows wait for them, and every task gets some."""
    weights = [bundle.weight(row_bytes) for bundle in alone]
    most = sum(weights) / (4 * tasks)
    held: list[Bundle] = []
    size = weight = 0.0
    for bundle, mine in zip(alone, weights, strict=True):
        held.append(bundle)
        size += bundle.needed * row_bytes
        weight += mine
        if size >= BUNDLE_BYTES or weight >= most:
            yield Bundle.joined(held)
            held, size, weight = [], 0.0, 0.0
    if held:
        yield Bundle.joined(held)


def write_bundle(work: WriteWork, job: Bundle) -> list[StagedFile]:
    """Write the files of a bundle, in its order."""
    tx = Attempt.at(work.workplace)
    batches = _batches(work, job)
    staged = []
    for number, item, hits, source in _known(work, job, batches):
        label = f"rewrite-{number:05d}"
        task = Rewrite.of(item.file, hits, work.plan, tx, actions=work.actions, label=label)
        staged.append(rewrite(task, source))
    for file, source in _new(work, job, batches):
        staged.append(work.placing.write(file, source, tx))
    return staged


def carry_bundles(work: WriteWork, jobs: Sequence[Bundle]) -> list[StagedFile]:
    """Carry the rows of some bundles into new files, where files are never replaced.

    Memory: what waits for one bundle, and rows that wait for their row groups.
    """
    pieces = (piece for job in jobs for piece in _carried(work, job))
    return written(work.plan, work.workplace, pieces, lineage=any(job.files for job in jobs))


def _carried(work: WriteWork, job: Bundle) -> Iterator[pa.Table | ValuesRefused]:
    batches = _batches(work, job)
    for _, item, hits, source in _known(work, job, batches):
        yield from carried_rows(item, hits, work.plan, work.workplace, actions=work.actions, source=source)
    for file, source in _new(work, job, batches):
        yield from work.placing.pieces(file.action, file.rows, source, work.workplace)


def _batches(work: WriteWork, job: Bundle) -> list[pa.RecordBatch]:
    return [batch for location, numbers in job.rows for batch in work.shelf.get(location, numbers)]


def _known(
    work: WriteWork, job: Bundle, batches: Sequence[pa.RecordBatch]
) -> Iterator[tuple[int, FilePlan, Hits, pa.Table]]:
    """The files of a bundle, each with its hits and the source rows they name."""
    for number, item, (location, place) in job.files:
        (noted,) = work.shelf.get(location, [place])
        hits = _as_hits(noted)
        source = _rows_for(number, batches, work)
        known = rows_needed(hits, work.actions)
        assert len(known) == source.num_rows, "rows for a file are missing"
        # A hit whose source row gives no value is left without one: the row has not come.
        local = replace(hits, sources=pc.index_in(hits.sources, value_set=known).cast(pa.int64()))
        yield number, item, local, source


def _new(
    work: WriteWork, job: Bundle, batches: Sequence[pa.RecordBatch]
) -> Iterator[tuple[NewFile, pa.Table]]:
    """The new files of a bundle, each with its rows."""
    for number, file, count in job.new:
        source = _rows_for(number, batches, work)
        assert count == source.num_rows, "rows for a new file are missing"
        yield replace(file, rows=arange(count)), source


def _as_hits(batch: pa.RecordBatch) -> Hits:
    positions, sources, action = batch.columns
    one = pc.min_max(action).as_py()
    return Hits(positions, action if one["min"] != one["max"] else one["min"], sources)


def _rows_for(number: int, batches: Sequence[pa.RecordBatch], work: WriteWork) -> pa.Table:
    """In the order in which the source has them."""
    parts = []
    for batch in batches:
        ends = pa.array([number, number + 1], pa.int32())
        low, high = pc.search_sorted(batch.column(0), ends).to_pylist()
        if high > low:
            parts.append(batch.slice(low, high - low).remove_column(0))
    if not parts:
        return pa.Table.from_batches([], work.wanted)
    table = combined(pa.Table.from_batches(parts))
    return conform_table(table, work.wanted, operation=work.operation, path=work.plan.snapshot.root)
