"""Tasks that bring rows of a large source to the files they go to, through storage, and write those."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.rows import combine, take_rows
from intarsia.common.schema import conform_table
from intarsia.common.source import select_known
from intarsia.core.change import Hits, StagedFile
from intarsia.core.keys import arange
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import OutputLocation
from intarsia.core.refusals import ValuesRefused
from intarsia.core.rule import Action
from intarsia.engines.spark.copies import make_replacement_rows, write_copies
from intarsia.engines.spark.large_source import ROUTES, ArrowStore, read_pieces, restore_types, route_rows
from intarsia.engines.spark.new_rows import NewRowSlice, PlannedFile
from intarsia.engines.spark.probe import find_needed_rows, read_hits
from intarsia.engines.spark.source import SpoolPart
from intarsia.engines.spark.staging import AttemptOutput
from intarsia.kernel.partitioned_writer import NewFile, NewRowWriter
from intarsia.kernel.rewrite import Rewrite, rewrite

FILE_BATCH_BYTES = 16 << 20
"""Of source rows, in memory, that wait for a task's files together."""


@dataclass(frozen=True, slots=True)
class RouteWork:
    """Where source rows go: to rewritten files, and to new ones."""

    store: ArrowStore
    schema: pa.Schema
    """In which the rows are stored."""
    routes: tuple[str, ...]
    """Notes that say which row goes to which file."""
    file_batches: tuple[int, ...]
    """The number of the first file of each batch, ascending."""
    operation: str
    path: str


@dataclass(frozen=True, slots=True)
class SortedPart:
    """The rows of a part, sorted; the numbers of a batch's batches by its own."""

    location: str
    batches: Mapping[int, list[int]]


def route_part(
    work: RouteWork, job: tuple[int, SpoolPart, Sequence[tuple[int, NewRowSlice]]]
) -> SortedPart | None:
    """Sort the rows of one part by the file they go to; memory: ``SORTED_BYTES``, twice."""
    number, part, new = job
    noted = [batch for location in work.routes for batch in work.store.get(location, [number])]
    whole = pa.Table.from_batches(noted, ROUTES)
    whole = whole.filter(pc.greater_equal(whole["file"], 0))  # not those that only found a match
    batches = [*whole.to_batches(), *(_route_new_rows(work.store, file, rows) for file, rows in new)]
    whole = pa.Table.from_batches(batches, ROUTES).combine_chunks()
    if not whole.num_rows:
        return None
    whole = whole.take(pc.sort_indices(whole, sort_keys=[("row", "ascending")])).combine_chunks()
    places: dict[int, list[int]] = {}
    schema = pa.schema([ROUTES.field("file"), *work.schema])
    location = work.store.put(schema, _sort_batches(work, part, whole, places))
    return SortedPart(location, places)


def _route_new_rows(store: ArrowStore, file: int, new: NewRowSlice) -> pa.RecordBatch:
    location, place = new.noted
    (noted,) = store.get(location, [place])
    return route_rows(file, noted.column(0).slice(new.start, new.rows))


def _sort_batches(
    work: RouteWork, part: SpoolPart, routes: pa.Table, batches: dict[int, list[int]]
) -> Iterator[pa.RecordBatch]:
    count = start = 0
    rows, files = routes["row"].chunk(0), routes["file"].chunk(0)
    for table in read_pieces(part, work.store.filesystem):
        low, high = pc.search_sorted(rows, pa.array([start, start + table.num_rows], pa.int64())).to_pylist()
        mine = pc.subtract(rows.slice(low, high - low), pa.scalar(start, pa.int64()))
        start += table.num_rows
        order = pc.array_sort_indices(files.slice(low, high - low))  # stable: rows ascend in each file
        names = files.slice(low, high - low).take(order)
        taken = take_rows(table, mine.take(order))
        del table
        taken = conform_table(
            select_known(taken, work.schema), work.schema, operation=work.operation, path=work.path
        )
        taken = combine(taken.add_column(0, ROUTES.field("file"), names))
        edges = [*pc.search_sorted(names, pa.array(work.file_batches, pa.int32())).to_pylist(), len(names)]
        for file_batch, (begin, end) in enumerate(pairwise(edges)):
            for batch in taken.slice(begin, end - begin).to_batches():
                batches.setdefault(file_batch, []).append(count)
                count += 1
                yield batch


@dataclass(frozen=True, slots=True)
class WriteWork:
    """Files to write, whose rows are in the store."""

    plan: Plan
    output: OutputLocation
    actions: tuple[Action, ...]
    placing: NewRowWriter
    wanted: pa.Schema
    store: ArrowStore
    operation: str


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Files that a task writes one after the other, and where the rows for them are."""

    files: tuple[tuple[int, FilePlan, tuple[str, int]], ...]
    """Their numbers, what is planned, and where their hits are noted."""
    new: tuple[tuple[int, PlannedFile], ...]
    """New files, by number."""
    needed: int = 0
    """How many source rows go to them."""
    rows: tuple[tuple[str, list[int]], ...] = ()

    @property
    def first(self) -> int:
        """The lowest number of a file."""
        return min([number for number, *_ in self.files] + [number for number, _ in self.new])

    def estimate_bytes(self, row_bytes: float) -> int:
        """Bytes that have to do with writing it."""
        return int(sum(item.file.size for _, item, _ in self.files) + self.needed * row_bytes)

    @staticmethod
    def join(file_batches: Sequence[FileBatch]) -> FileBatch:
        """All of their files; no rows yet."""
        files = tuple(file for file_batch in file_batches for file in file_batch.files)
        new = tuple(file for file_batch in file_batches for file in file_batch.new)
        return FileBatch(files, new, sum(file_batch.needed for file_batch in file_batches))


def batch_files(alone: Sequence[FileBatch], *, row_bytes: float, tasks: int) -> Iterator[FileBatch]:
    """Files that follow each other together: few source rows wait for them, and every task gets some."""
    weights = [file_batch.estimate_bytes(row_bytes) for file_batch in alone]
    most = sum(weights) / (4 * tasks)
    held: list[FileBatch] = []
    size = weight = 0.0
    for file_batch, mine in zip(alone, weights, strict=True):
        held.append(file_batch)
        size += file_batch.needed * row_bytes
        weight += mine
        if size >= FILE_BATCH_BYTES or weight >= most:
            yield FileBatch.join(held)
            held, size, weight = [], 0.0, 0.0
    if held:
        yield FileBatch.join(held)


def write_file_batch(work: WriteWork, job: FileBatch) -> list[StagedFile]:
    """Write the files of a batch, in its order."""
    tx = AttemptOutput.at(work.output)
    batches = _read_batches(work, job)
    staged = []
    for number, item, hits, source in _iterate_rewritten_files(work, job, batches):
        label = f"rewrite-{number:05d}"
        task = Rewrite.of(item.file, hits, work.plan, tx, actions=work.actions, label=label)
        staged.append(rewrite(task, source))
    for file, source in _iterate_new_files(work, job, batches):
        staged.append(work.placing.write(file, source, tx))
    return staged


def copy_file_batches(work: WriteWork, jobs: Sequence[FileBatch]) -> list[StagedFile]:
    """Copy the rows of some batches of files into new files, where files are never replaced.

    Memory: what waits for one file_batch, and rows that wait for their row groups.
    """
    pieces = (piece for job in jobs for piece in _iterate_copied_rows(work, job))
    return write_copies(work.plan, work.output, pieces, lineage=any(job.files for job in jobs))


def _iterate_copied_rows(work: WriteWork, job: FileBatch) -> Iterator[pa.Table | ValuesRefused]:
    batches = _read_batches(work, job)
    for _, item, hits, source in _iterate_rewritten_files(work, job, batches):
        yield from make_replacement_rows(
            item, hits, work.plan, work.output, actions=work.actions, source=source
        )
    for file, source in _iterate_new_files(work, job, batches):
        yield from work.placing.make_pieces(file.action, file.rows, source, work.output)


def _read_batches(work: WriteWork, job: FileBatch) -> list[pa.RecordBatch]:
    return [batch for location, numbers in job.rows for batch in work.store.get(location, numbers)]


def _iterate_rewritten_files(
    work: WriteWork, job: FileBatch, batches: Sequence[pa.RecordBatch]
) -> Iterator[tuple[int, FilePlan, Hits, pa.Table]]:
    """The files of a batch, each with its hits and the source rows they name."""
    for number, item, (location, place) in job.files:
        (noted,) = work.store.get(location, [place])
        hits = read_hits(noted)
        source = _select_rows(number, batches, work)
        known = find_needed_rows(hits, work.actions)
        assert len(known) == source.num_rows, "rows for a file are missing"
        # A hit whose source row gives no value is left without one: the row has not come.
        local = replace(hits, sources=pc.index_in(hits.sources, value_set=known).cast(pa.int64()))
        yield number, item, local, source


def _iterate_new_files(
    work: WriteWork, job: FileBatch, batches: Sequence[pa.RecordBatch]
) -> Iterator[tuple[NewFile, pa.Table]]:
    """The new files of a batch, each with its rows."""
    for number, planned in job.new:
        source = _read_slices(planned, work) if planned.slices else _select_rows(number, batches, work)
        assert planned.rows == source.num_rows, "rows for a new file are missing"
        yield replace(planned.file, rows=arange(planned.rows)), source


def _read_slices(planned: PlannedFile, work: WriteWork) -> pa.Table:
    """Rows that follow each other in the source, read where they are."""
    batches = [batch for one in planned.slices for batch in one.read_batches(work.store.filesystem)]
    table = combine(pa.Table.from_batches(batches))
    return restore_types(table, work.wanted, operation=work.operation, path=work.plan.snapshot.root)


def _select_rows(number: int, batches: Sequence[pa.RecordBatch], work: WriteWork) -> pa.Table:
    """In the order in which the source has them."""
    parts = []
    for batch in batches:
        ends = pa.array([number, number + 1], pa.int32())
        low, high = pc.search_sorted(batch.column(0), ends).to_pylist()
        if high > low:
            parts.append(batch.slice(low, high - low).remove_column(0))
    if not parts:
        return pa.Table.from_batches([], work.wanted)
    table = combine(pa.Table.from_batches(parts))
    return restore_types(table, work.wanted, operation=work.operation, path=work.plan.snapshot.root)
