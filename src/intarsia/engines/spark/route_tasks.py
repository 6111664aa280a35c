"""What tasks do with source rows on storage: look for their keys in files, sort them by file."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.rows import combine, take_rows
from intarsia.common.schema import conform_table
from intarsia.common.source import select_known
from intarsia.core.change import Hits, StagedFile
from intarsia.core.expr import columns as columns_of
from intarsia.core.keys import arange, flat, marked
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import OutputLocation
from intarsia.core.refusals import ValuesRefused
from intarsia.core.rule import Action, Assign, Replace
from intarsia.engines.spark.copies import is_copy_on_write, replacement_rows, write_copies
from intarsia.engines.spark.output import AttemptOutput
from intarsia.engines.spark.shared_buffers import unreachable_error, wrap_storage_errors
from intarsia.engines.spark.source import SpoolPart, spool_writer
from intarsia.kernel.match import FileMatch, MergeMatcher
from intarsia.kernel.partitioned_writer import NewFile, NewRowWriter
from intarsia.kernel.rewrite import Rewrite, rewrite

SORTED_BYTES = 16 << 20
"""In memory; so much of a part is sorted by file at once."""
_HITS = pa.schema([("position", pa.int64()), ("source", pa.int64()), ("action", pa.int8())])
_ROUTES = pa.schema([("file", pa.int32()), ("row", pa.int64())])
FILE_BATCH_BYTES = 16 << 20
"""Of source rows, in memory, that wait for a task's files together."""


@dataclass(frozen=True, slots=True)
class ArrowStore:
    """A directory of Arrow files, whose batches are looked at one by one."""

    filesystem: pafs.FileSystem
    directory: str

    def put(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> str:
        """A new file, under a name that no other attempt has."""
        location = f"{self.directory}/{uuid.uuid4().hex}.arrow"
        with (
            wrap_storage_errors("write", location),
            self.filesystem.open_output_stream(location) as sink,
            pa.ipc.new_file(sink, schema) as writer,
        ):
            for batch in batches:
                writer.write_batch(batch)
        return location

    def get(self, location: str, numbers: Sequence[int]) -> list[pa.RecordBatch]:
        """Some of a file's batches; on this machine they are mapped."""
        try:
            local = isinstance(self.filesystem, pafs.LocalFileSystem)
            file = pa.memory_map(location) if local else self.filesystem.open_input_file(location)
            reader = pa.ipc.open_file(file)
            return [reader.get_batch(number) for number in numbers]
        except FileNotFoundError as error:
            told = f"An executor does not see {location}, where rows of the source wait."
            raise unreachable_error(location, told) from error


# ---------------------------------------------------------------------------------------------------
# First: which rows of which files are hit.


@dataclass(frozen=True, slots=True)
class ProbeWork:
    """A merge whose source is there with the columns by which it is decided."""

    matcher: MergeMatcher
    starts: pa.Array
    """The source row with which each part begins."""
    numbers: pa.Array | None
    """Which row of all the parts each of the matcher's is; None where they are the same."""
    store: ArrowStore | None
    """Where hits are noted; None only counts them."""


@dataclass(frozen=True, slots=True)
class FileHits:
    """What is known of one file; its hits wait where ``noted`` says: a file, and the number of its batch."""

    number: int
    hits: int
    drops: int
    emptied: bool
    needed: int
    """How many source rows go into the rewritten file."""
    noted: tuple[str, int] | None
    nulls: Mapping[str, int] = field(default_factory=dict)
    moved: pa.Array | None = None
    several: int = 0
    positions: pa.Int64Array | None = None
    """Positions of the hits, where position deletes are written."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one task found."""

    files: list[FileHits]
    routes: str | None
    """The file that says which source row goes to which file; a batch per part of the source."""
    matched: pa.Array | None
    """Per source row whether it found a match; None where nobody asks."""


def probe_files(work: ProbeWork, files: Sequence[tuple[int, FilePlan]]) -> ProbeResult:
    """Look for the source's keys in some files, and note what is hit."""
    matcher = work.matcher
    plans = [item for _, item in files]
    matches = [match for batch in matcher.batches(plans) for match in matcher.scan(batch)]
    matched = _mark_matched(matches, matcher.source.table.num_rows) if matcher.rule.inserts else None
    noted: list[pa.RecordBatch] = []
    routes: list[pa.RecordBatch] = []
    found = []
    for (number, _), match in zip(files, matches, strict=True):
        hits, one = match.hits, _summarize_match(number, match, matcher)
        if work.store is not None and one.hits and not one.emptied:
            hits = (
                hits
                if work.numbers is None
                else replace(hits, sources=_translate_sources(hits, work.numbers))
            )
            rows = find_needed_rows(hits, matcher.actions)
            one = replace(one, needed=len(rows), noted=("", len(noted)))
            noted.append(_hits_batch(hits))
            routes.append(route_rows(number, rows))
        found.append(one)
    if work.store is None or not noted:
        return ProbeResult(found, None, matched)
    location = work.store.put(_HITS, noted)
    found = [one if one.noted is None else replace(one, noted=(location, one.noted[1])) for one in found]
    return ProbeResult(found, write_routes(work.store, routes, work.starts), matched)


def _summarize_match(number: int, match: FileMatch, matcher: MergeMatcher) -> FileHits:
    emptied = matcher.empties(match)
    count, drops = len(match.hits), matcher.drops(match)
    positions = None if is_copy_on_write(matcher.plan) else match.hits.positions
    return FileHits(
        number, count, drops, emptied, 0, None, match.nulls, match.moved, match.several, positions
    )


def _mark_matched(matches: Sequence[FileMatch], rows: int) -> pa.Array | None:
    known = [part for match in matches for part in match.matched]
    if not known:
        return None
    return marked(pa.chunked_array(known), rows)


def _translate_sources(hits: Hits, numbers: pa.Array) -> pa.Array:
    return None if hits.sources is None else numbers.take(hits.sources)


def find_needed_rows(hits: Hits, actions: Sequence[Action]) -> pa.Array:
    """The source rows whose values go into a file, ascending, each once."""
    parts = [hits.only(number).sources for number, action in enumerate(actions) if _takes_values(action)]
    rows = pc.unique(pa.concat_arrays([pa.array([], pa.int64()), *(p for p in parts if p is not None)]))
    rows = rows.drop_null()
    return rows.take(pc.array_sort_indices(rows))


def _takes_values(action: Action) -> bool:
    if isinstance(action, Assign):
        return any(side == "source" for _, value in action.values for side, _ in columns_of(value))
    return isinstance(action, Replace)


def _hits_batch(hits: Hits) -> pa.RecordBatch:
    count = len(hits)
    sources = pa.nulls(count, pa.int64()) if hits.sources is None else hits.sources
    action = hits.action
    numbers = pa.repeat(pa.scalar(action, pa.int8()), count) if isinstance(action, int) else action
    return pa.record_batch([hits.positions, sources, numbers], schema=_HITS)


def route_rows(number: int, rows: pa.Array) -> pa.RecordBatch:
    return pa.record_batch([pa.repeat(pa.scalar(number, pa.int32()), len(rows)), rows], schema=_ROUTES)


def write_routes(store: ArrowStore, routes: Sequence[pa.RecordBatch], starts: pa.Array) -> str:
    """Note which rows go where: a batch per part, rows counted from the part's first."""
    files, rows = (flat(column) for column in pa.Table.from_batches(routes, _ROUTES).columns)
    part = pc.subtract(pc.search_sorted(starts, rows, side="right").cast(pa.int64()), 1)
    order = pc.array_sort_indices(part)  # stable: files and rows ascend in each part
    part, files, rows = part.take(order), files.take(order), rows.take(order)
    rows = pc.subtract(rows, starts.take(part))
    edges = [*pc.search_sorted(part, arange(len(starts))).to_pylist(), len(part)]
    whole = pa.record_batch([files, rows], schema=_ROUTES)
    return store.put(_ROUTES, (whole.slice(begin, end - begin) for begin, end in pairwise(edges)))


# ---------------------------------------------------------------------------------------------------
# Then: source rows, part by part, sorted by the file they go to.


@dataclass(frozen=True, slots=True)
class RouteWork:
    """Where source rows go: to rewritten files, and to new ones."""

    store: ArrowStore
    schema: pa.Schema
    """In which the rows travel; values of dictionaries as themselves."""
    routes: tuple[str, ...]
    """Files that say which row goes where; each has a batch per part."""
    file_batches: tuple[int, ...]
    """The number of the first file of each batch, ascending."""
    operation: str
    path: str


@dataclass(frozen=True, slots=True)
class SortedPart:
    """The rows of a part, sorted; the numbers of a batch's batches by its own."""

    location: str
    batches: Mapping[int, list[int]]


def route_part(work: RouteWork, job: tuple[int, SpoolPart]) -> SortedPart | None:
    """Sort the rows of one part by file; memory: ``SORTED_BYTES``, twice."""
    number, part = job
    routes = [batch for location in work.routes for batch in work.store.get(location, [number])]
    whole = pa.Table.from_batches(routes, _ROUTES).combine_chunks()
    if not whole.num_rows:
        return None
    whole = whole.take(pc.sort_indices(whole, sort_keys=[("row", "ascending")])).combine_chunks()
    batches: dict[int, list[int]] = {}
    schema = pa.schema([_ROUTES.field("file"), *work.schema])
    location = work.store.put(schema, _sort_batches(work, part, whole, batches))
    return SortedPart(location, batches)


def _sort_batches(
    work: RouteWork, part: SpoolPart, routes: pa.Table, batches: dict[int, list[int]]
) -> Iterator[pa.RecordBatch]:
    count = start = 0
    rows, files = routes["row"].chunk(0), routes["file"].chunk(0)
    for table in _read_pieces(part, work.store.filesystem):
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
        taken = combine(taken.add_column(0, _ROUTES.field("file"), names))
        edges = [*pc.search_sorted(names, pa.array(work.file_batches, pa.int32())).to_pylist(), len(names)]
        for file_batch, (begin, end) in enumerate(pairwise(edges)):
            for batch in taken.slice(begin, end - begin).to_batches():
                batches.setdefault(file_batch, []).append(count)
                count += 1
                yield batch


def _read_pieces(part: SpoolPart, filesystem: pafs.FileSystem) -> Iterator[pa.Table]:
    """The rows of a part, some row groups at a time."""
    with _open_part(part.location, filesystem) as file:
        held: list[pa.Table] = []
        for group in range(file.num_row_groups):
            held.append(file.read_row_group(group, use_threads=False))
            if sum(table.nbytes for table in held) >= SORTED_BYTES or group == file.num_row_groups - 1:
                table = held[0] if len(held) == 1 else pa.concat_tables(held)
                held = []
                yield combine(table)
                del table


def _open_part(location: str, filesystem: pafs.FileSystem) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(location, filesystem=filesystem)
    except FileNotFoundError as error:
        raise unreachable_error(location, f"An executor does not see {location}.") from error


# ---------------------------------------------------------------------------------------------------
# Before all: parts whose types are not the dataset's.


@dataclass(frozen=True, slots=True)
class CastWork:
    """Brings parts of a source to other types."""

    store: ArrowStore
    schema: pa.Schema
    operation: str
    path: str


def cast_rows(work: CastWork, part: SpoolPart) -> SpoolPart:
    """The same rows in new types, in a new file; raises SchemaMismatch."""
    location = f"{work.store.directory}/{uuid.uuid4().hex}.parquet"
    size = 0
    with (
        wrap_storage_errors("write", location),
        spool_writer(location, work.schema, work.store.filesystem) as writer,
    ):
        for piece in _read_pieces(part, work.store.filesystem):
            known = select_known(piece, work.schema)
            table = conform_table(known, work.schema, operation=work.operation, path=work.path)
            size += table.nbytes
            writer.write_table(table)
    return SpoolPart(location, part.rows, size, part.columns)


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
    def joined(file_batches: Sequence[FileBatch]) -> FileBatch:
        """All of their files; no rows yet."""
        files = tuple(file for file_batch in file_batches for file in file_batch.files)
        new = tuple(file for file_batch in file_batches for file in file_batch.new)
        return FileBatch(files, new, sum(file_batch.needed for file_batch in file_batches))


def batch_files(alone: Sequence[FileBatch], *, row_bytes: float, tasks: int) -> Iterator[FileBatch]:
    """Files that follow each other together: few source rows wait for them, and every task gets some."""
    weights = [file_batch.weight(row_bytes) for file_batch in alone]
    most = sum(weights) / (4 * tasks)
    held: list[FileBatch] = []
    size = weight = 0.0
    for file_batch, mine in zip(alone, weights, strict=True):
        held.append(file_batch)
        size += file_batch.needed * row_bytes
        weight += mine
        if size >= FILE_BATCH_BYTES or weight >= most:
            yield FileBatch.joined(held)
            held, size, weight = [], 0.0, 0.0
    if held:
        yield FileBatch.joined(held)


def write_file_batch(work: WriteWork, job: FileBatch) -> list[StagedFile]:
    """Write the files of a batch, in its order."""
    tx = AttemptOutput.at(work.output)
    batches = _batches(work, job)
    staged = []
    for number, item, hits, source in _rewritten_files(work, job, batches):
        label = f"rewrite-{number:05d}"
        task = Rewrite.of(item.file, hits, work.plan, tx, actions=work.actions, label=label)
        staged.append(rewrite(task, source))
    for file, source in _new_files_of(work, job, batches):
        staged.append(work.placing.write(file, source, tx))
    return staged


def copy_file_batches(work: WriteWork, jobs: Sequence[FileBatch]) -> list[StagedFile]:
    """Copy the rows of some batches of files into new files, where files are never replaced.

    Memory: what waits for one file_batch, and rows that wait for their row groups.
    """
    pieces = (piece for job in jobs for piece in _copied_rows(work, job))
    return write_copies(work.plan, work.output, pieces, lineage=any(job.files for job in jobs))


def _copied_rows(work: WriteWork, job: FileBatch) -> Iterator[pa.Table | ValuesRefused]:
    batches = _batches(work, job)
    for _, item, hits, source in _rewritten_files(work, job, batches):
        yield from replacement_rows(item, hits, work.plan, work.output, actions=work.actions, source=source)
    for file, source in _new_files_of(work, job, batches):
        yield from work.placing.pieces(file.action, file.rows, source, work.output)


def _batches(work: WriteWork, job: FileBatch) -> list[pa.RecordBatch]:
    return [batch for location, numbers in job.rows for batch in work.store.get(location, numbers)]


def _rewritten_files(
    work: WriteWork, job: FileBatch, batches: Sequence[pa.RecordBatch]
) -> Iterator[tuple[int, FilePlan, Hits, pa.Table]]:
    """The files of a batch, each with its hits and the source rows they name."""
    for number, item, (location, place) in job.files:
        (noted,) = work.store.get(location, [place])
        hits = _read_hits(noted)
        source = _select_rows(number, batches, work)
        known = find_needed_rows(hits, work.actions)
        assert len(known) == source.num_rows, "rows for a file are missing"
        # A hit whose source row gives no value is left without one: the row has not come.
        local = replace(hits, sources=pc.index_in(hits.sources, value_set=known).cast(pa.int64()))
        yield number, item, local, source


def _new_files_of(
    work: WriteWork, job: FileBatch, batches: Sequence[pa.RecordBatch]
) -> Iterator[tuple[NewFile, pa.Table]]:
    """The new files of a batch, each with its rows."""
    for number, file, count in job.new:
        source = _select_rows(number, batches, work)
        assert count == source.num_rows, "rows for a new file are missing"
        yield replace(file, rows=arange(count)), source


def _read_hits(batch: pa.RecordBatch) -> Hits:
    positions, sources, action = batch.columns
    one = pc.min_max(action).as_py()
    return Hits(positions, action if one["min"] != one["max"] else one["min"], sources)


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
    return conform_table(table, work.wanted, operation=work.operation, path=work.plan.snapshot.root)
