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

from intarsia.common.schema import conform_table
from intarsia.common.source import select_known
from intarsia.common.spool import combined, take_rows
from intarsia.core.expr import columns as columns_of
from intarsia.core.keys import arange, flat, marked
from intarsia.core.matches import Hits
from intarsia.core.plan import FilePlan
from intarsia.core.rule import Action, Assign, Replace
from intarsia.engines.arrow.matching import FileMatch, MergeMatcher
from intarsia.engines.spark.carrying import copies
from intarsia.engines.spark.reach import telling, unreachable
from intarsia.engines.spark.source import Part, spool_writer

SORTED_BYTES = 16 << 20
"""In memory; so much of a part is sorted by file at once."""

_HITS = pa.schema([("position", pa.int64()), ("source", pa.int64()), ("action", pa.int8())])
_WAYS = pa.schema([("file", pa.int32()), ("row", pa.int64())])


@dataclass(frozen=True, slots=True)
class Shelf:
    """A directory of Arrow files, whose batches are looked at one by one."""

    filesystem: pafs.FileSystem
    directory: str

    def put(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> str:
        """A new file, under a name that no other attempt has."""
        location = f"{self.directory}/{uuid.uuid4().hex}.arrow"
        with (
            telling("write", location),
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
            raise unreachable(location, told) from error


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
    shelf: Shelf | None
    """Where hits are noted; None only counts them."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of one file; its hits wait where ``noted`` says: a file, and the number of its batch."""

    number: int
    hits: int
    drops: int
    emptied: bool
    needed: int
    """How many source rows it is written anew with."""
    noted: tuple[str, int] | None
    nulls: Mapping[str, int] = field(default_factory=dict)
    moved: pa.Array | None = None
    several: int = 0
    positions: pa.Int64Array | None = None
    """Of the hits, where they are to be veiled."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What one task found."""

    files: list[Found]
    ways: str | None
    """The file that says which source row goes to which file; a batch per part of the source."""
    matched: pa.Array | None
    """Per source row whether it found a match; None where nobody asks."""


def probe_files(work: ProbeWork, files: Sequence[tuple[int, FilePlan]]) -> Probed:
    """Look for the source's keys in some files, and note what is hit."""
    matcher = work.matcher
    plans = [item for _, item in files]
    matches = [match for batch in matcher.batches(plans) for match in matcher.scan(batch)]
    matched = _flags(matches, matcher.source.table.num_rows) if matcher.rule.inserts else None
    noted: list[pa.RecordBatch] = []
    ways: list[pa.RecordBatch] = []
    found = []
    for (number, _), match in zip(files, matches, strict=True):
        hits, one = match.hits, _found(number, match, matcher)
        if work.shelf is not None and one.hits and not one.emptied:
            hits = hits if work.numbers is None else replace(hits, sources=_translated(hits, work.numbers))
            rows = rows_needed(hits, matcher.actions)
            one = replace(one, needed=len(rows), noted=("", len(noted)))
            noted.append(_as_batch(hits))
            ways.append(way(number, rows))
        found.append(one)
    if work.shelf is None or not noted:
        return Probed(found, None, matched)
    location = work.shelf.put(_HITS, noted)
    found = [one if one.noted is None else replace(one, noted=(location, one.noted[1])) for one in found]
    return Probed(found, put_ways(work.shelf, ways, work.starts), matched)


def _found(number: int, match: FileMatch, matcher: MergeMatcher) -> Found:
    emptied = matcher.empties(match)
    count, drops = len(match.hits), matcher.drops(match)
    positions = None if copies(matcher.plan) else match.hits.positions
    return Found(number, count, drops, emptied, 0, None, match.nulls, match.moved, match.several, positions)


def _flags(matches: Sequence[FileMatch], rows: int) -> pa.Array | None:
    known = [part for match in matches for part in match.matched]
    if not known:
        return None
    return marked(pa.chunked_array(known), rows)


def _translated(hits: Hits, numbers: pa.Array) -> pa.Array:
    return None if hits.sources is None else numbers.take(hits.sources)


def rows_needed(hits: Hits, actions: Sequence[Action]) -> pa.Array:
    """The source rows whose values go into a file, ascending, each once."""
    parts = [hits.only(number).sources for number, action in enumerate(actions) if _takes_values(action)]
    rows = pc.unique(pa.concat_arrays([pa.array([], pa.int64()), *(p for p in parts if p is not None)]))
    rows = rows.drop_null()
    return rows.take(pc.array_sort_indices(rows))


def _takes_values(action: Action) -> bool:
    if isinstance(action, Assign):
        return any(side == "source" for _, value in action.values for side, _ in columns_of(value))
    return isinstance(action, Replace)


def _as_batch(hits: Hits) -> pa.RecordBatch:
    count = len(hits)
    sources = pa.nulls(count, pa.int64()) if hits.sources is None else hits.sources
    action = hits.action
    numbers = pa.repeat(pa.scalar(action, pa.int8()), count) if isinstance(action, int) else action
    return pa.record_batch([hits.positions, sources, numbers], schema=_HITS)


def way(number: int, rows: pa.Array) -> pa.RecordBatch:
    return pa.record_batch([pa.repeat(pa.scalar(number, pa.int32()), len(rows)), rows], schema=_WAYS)


def put_ways(shelf: Shelf, ways: Sequence[pa.RecordBatch], starts: pa.Array) -> str:
    """Note which rows go where: a batch per part, rows counted from the part's first."""
    files, rows = (flat(column) for column in pa.Table.from_batches(ways, _WAYS).columns)
    part = pc.subtract(pc.search_sorted(starts, rows, side="right").cast(pa.int64()), 1)
    order = pc.array_sort_indices(part)  # stable: files and rows ascend in each part
    part, files, rows = part.take(order), files.take(order), rows.take(order)
    rows = pc.subtract(rows, starts.take(part))
    edges = [*pc.search_sorted(part, arange(len(starts))).to_pylist(), len(part)]
    whole = pa.record_batch([files, rows], schema=_WAYS)
    return shelf.put(_WAYS, (whole.slice(begin, end - begin) for begin, end in pairwise(edges)))


# ---------------------------------------------------------------------------------------------------
# Then: source rows, part by part, sorted by the file they go to.


@dataclass(frozen=True, slots=True)
class RouteWork:
    """Where source rows go: to files that are written anew, and to new ones."""

    shelf: Shelf
    schema: pa.Schema
    """In which the rows travel; values of dictionaries as themselves."""
    ways: tuple[str, ...]
    """Files that say which row goes where; each has a batch per part."""
    bundles: tuple[int, ...]
    """The number of the first file of each bundle, ascending."""
    operation: str
    path: str


@dataclass(frozen=True, slots=True)
class Routed:
    """The rows of a part, sorted; the numbers of a bundle's batches by its own."""

    location: str
    batches: Mapping[int, list[int]]


def route_part(work: RouteWork, job: tuple[int, Part]) -> Routed | None:
    """Sort the rows of one part by file; memory: ``SORTED_BYTES``, twice."""
    number, part = job
    ways = [batch for location in work.ways for batch in work.shelf.get(location, [number])]
    whole = pa.Table.from_batches(ways, _WAYS).combine_chunks()
    if not whole.num_rows:
        return None
    whole = whole.take(pc.sort_indices(whole, sort_keys=[("row", "ascending")])).combine_chunks()
    batches: dict[int, list[int]] = {}
    schema = pa.schema([_WAYS.field("file"), *work.schema])
    location = work.shelf.put(schema, _sorted_batches(work, part, whole, batches))
    return Routed(location, batches)


def _sorted_batches(
    work: RouteWork, part: Part, ways: pa.Table, batches: dict[int, list[int]]
) -> Iterator[pa.RecordBatch]:
    count = start = 0
    rows, files = ways["row"].chunk(0), ways["file"].chunk(0)
    for table in _pieces(part, work.shelf.filesystem):
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
        taken = combined(taken.add_column(0, _WAYS.field("file"), names))
        edges = [*pc.search_sorted(names, pa.array(work.bundles, pa.int32())).to_pylist(), len(names)]
        for bundle, (begin, end) in enumerate(pairwise(edges)):
            for batch in taken.slice(begin, end - begin).to_batches():
                batches.setdefault(bundle, []).append(count)
                count += 1
                yield batch


def _pieces(part: Part, filesystem: pafs.FileSystem) -> Iterator[pa.Table]:
    """The rows of a part, some row groups at a time."""
    with _opened(part.location, filesystem) as file:
        held: list[pa.Table] = []
        for group in range(file.num_row_groups):
            held.append(file.read_row_group(group, use_threads=False))
            if sum(table.nbytes for table in held) >= SORTED_BYTES or group == file.num_row_groups - 1:
                table = held[0] if len(held) == 1 else pa.concat_tables(held)
                held = []
                yield combined(table)
                del table


def _opened(location: str, filesystem: pafs.FileSystem) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(location, filesystem=filesystem)
    except FileNotFoundError as error:
        raise unreachable(location, f"An executor does not see {location}.") from error


# ---------------------------------------------------------------------------------------------------
# Before all: parts whose types are not the dataset's.


@dataclass(frozen=True, slots=True)
class CastWork:
    """Brings parts of a source to other types."""

    shelf: Shelf
    schema: pa.Schema
    operation: str
    path: str


def cast_rows(work: CastWork, part: Part) -> Part:
    """The same rows in new types, in a new file; raises SchemaMismatch."""
    location = f"{work.shelf.directory}/{uuid.uuid4().hex}.parquet"
    size = 0
    with (
        telling("write", location),
        spool_writer(location, work.schema, work.shelf.filesystem) as writer,
    ):
        for piece in _pieces(part, work.shelf.filesystem):
            known = select_known(piece, work.schema)
            table = conform_table(known, work.schema, operation=work.operation, path=work.path)
            size += table.nbytes
            writer.write_table(table)
    return Part(location, part.rows, size, part.columns)
