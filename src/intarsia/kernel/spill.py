"""Rows on disk while they are sorted: in buckets, which one process sorts one after the other, or in runs.

A bucket (:class:`Spill`, :class:`Sorter`) is a file of its own and is read as a whole. A run
(:class:`RunWriter`) holds rows of all ranges of the order, those of a range together: the task that writes a
range reads the batches of that range from every run, and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.ipc as ipc

from intarsia.core.keys import to_array
from intarsia.errors import StorageError
from intarsia.kernel.overlay import take_rows
from intarsia.kernel.sort import SAMPLE_ROWS, Cuts, Order, spread_rows
from intarsia.kernel.threads import map_in_order


@dataclass(frozen=True, slots=True)
class Bucket:
    """Some rows on disk. In an ``even`` bucket all rows are equal in the order."""

    location: str
    rows: int
    bytes: int
    """In memory."""
    even: bool


class _Open:
    """A bucket that is being written."""

    def __init__(self, location: str, filesystem: pafs.FileSystem, schema: pa.Schema) -> None:
        codec = "lz4" if pa.Codec.is_available("lz4") else None
        self.location = location
        self.rows = self.bytes = 0
        self._sink = filesystem.open_output_stream(location)
        self._writer = ipc.new_stream(self._sink, schema, options=ipc.IpcWriteOptions(compression=codec))

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table)
        self.rows += table.num_rows
        self.bytes += table.nbytes

    def close(self) -> None:
        self._writer.close()
        self._sink.close()


class Spill:
    """Writes rows to numbered buckets, and reads them bucket by bucket, in a directory of its own.

    A context manager that removes the directory in every case. Thread-safe; rows of one bucket stay in the
    order in which they were added. Memory: the rows of one call.
    """

    def __init__(self, filesystem: pafs.FileSystem, directory: str, schema: pa.Schema) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._schema = schema
        self._files = 0
        self._lock = Lock()

    def __enter__(self) -> Spill:
        with translate_storage_errors(self._directory):
            self._filesystem.create_dir(self._directory, recursive=True)
        return self

    def __exit__(self, *_: object) -> None:
        with translate_storage_errors(self._directory):
            self._filesystem.delete_dir(self._directory)

    def deal(self, even: Sequence[bool], *, most_bytes: int) -> Deal:
        """Start to fill a sequence of buckets; an even one is split at ``most_bytes``."""
        return Deal(self, even, most_bytes)

    def open(self) -> _Open:
        with self._lock:
            self._files += 1
            location = f"{self._directory}/{self._files:06d}.arrows"
        with translate_storage_errors(location):
            return _Open(location, self._filesystem, self._schema)

    def read(self, bucket: Bucket) -> Iterator[pa.Table]:
        """The rows of a bucket in pieces."""
        with (
            translate_storage_errors(bucket.location),
            self._filesystem.open_input_stream(bucket.location) as source,
            ipc.open_stream(source) as stream,
        ):
            for batch in stream:
                yield pa.Table.from_batches([batch])

    def remove(self, bucket: Bucket) -> None:
        """Free the disk space of a bucket."""
        with translate_storage_errors(bucket.location):
            self._filesystem.delete_file(bucket.location)


class Deal:
    """Writes rows to a sequence of buckets, once."""

    def __init__(self, spill: Spill, even: Sequence[bool], most_bytes: int) -> None:
        self._spill = spill
        self._even = tuple(even)
        self._most = most_bytes
        self._locks = [Lock() for _ in even]
        self._open: list[_Open | None] = [None for _ in even]
        self._done: list[list[Bucket]] = [[] for _ in even]

    def add(self, table: pa.Table, numbers: pa.Array) -> None:
        """Write rows, each to the bucket of the given number."""
        order = pc.array_sort_indices(numbers)
        grouped = take_rows(table, order)
        sizes = {item["values"]: item["counts"] for item in numbers.value_counts().to_pylist()}
        start = 0
        for number in sorted(sizes):
            self._write(number, grouped.slice(start, sizes[number]))
            start += sizes[number]

    def _write(self, number: int, rows: pa.Table) -> None:
        with self._locks[number]:
            bucket = self._open[number]
            if bucket is None:
                bucket = self._open[number] = self._spill.open()
            with translate_storage_errors(bucket.location):
                bucket.write(rows)
            if self._even[number] and bucket.bytes >= self._most:
                self._close(number)

    def _close(self, number: int) -> None:
        bucket = self._open[number]
        if bucket is not None:
            with translate_storage_errors(bucket.location):
                bucket.close()
            self._done[number].append(Bucket(bucket.location, bucket.rows, bucket.bytes, self._even[number]))
            self._open[number] = None

    def finish(self) -> list[Bucket]:
        """The buckets with rows in them, in order."""
        for number in range(len(self._open)):
            self._close(number)
        return [bucket for done in self._done for bucket in done]

    def abandon(self) -> None:
        """Close the files after an error."""
        for bucket in self._open:
            if bucket is not None:
                with contextlib.suppress(OSError):
                    bucket.close()


@contextlib.contextmanager
def translate_storage_errors(location: str) -> Iterator[None]:
    """Raise a StorageError for an error of the disk while rows are sorted."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"Cannot sort on disk: {error}",
            errno=error.errno,
            path=location,
            hint="make room there, or give the engine more memory.",
        ) from error


_MOST_PORTIONS = 128
_OFF_TARGET = 0.25
"""How much of a file a cut may be off, so that fewer portions are sorted for two files."""

Rows = Callable[[], Iterator[pa.Table]]


@dataclass(frozen=True, slots=True)
class Portion:
    """Consecutive rows of an order; in an ``even`` portion all rows are equal in it."""

    rows: int
    bytes: int
    """In memory."""
    even: bool
    read: Rows
    """Reads the rows in pieces, in any order."""
    discard: Callable[[], None] | None = None
    """Frees the disk space of the portion."""


@dataclass(frozen=True, slots=True)
class Span:
    """Some rows of a portion, as a range of its sorted rows."""

    portion: Portion
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Sorter:
    """Sorts portions, one at a time. Memory: a few times ``share`` bytes per thread."""

    order: Order
    """With boundaries, so that all portions are sorted by the same codes."""
    share: int
    """The most bytes of a portion that is sorted in memory."""
    threads: int = 1

    def count_portions(self, size: int, *, least: int = 2) -> int:
        """The number of portions to split ``size`` bytes into."""
        return max(2, min(max(least, -(-2 * size // self.share)), _MOST_PORTIONS))

    def deal(self, spill: Spill, cuts: Cuts, sources: Sequence[Rows]) -> list[Portion]:
        """Write all rows of the sources to disk, in portions along the order."""
        deal = spill.deal(cuts.even, most_bytes=self.share)

        def spill_source(source: Rows) -> None:
            for piece in source():
                deal.add(piece, cuts.assign_buckets(piece))

        try:
            for _ in map_in_order(spill_source, sources, threads=self.threads):
                pass
            return [_make_portion(spill, bucket) for bucket in deal.finish()]
        finally:
            deal.abandon()

    def fits(self, portion: Portion) -> bool:
        """Whether a portion can be sorted in memory, or need not be sorted."""
        return portion.even or portion.bytes <= self.share

    def split(self, spill: Spill, portion: Portion) -> list[Portion]:
        """A portion that is too large to be sorted in memory as smaller ones; any other as it is."""
        if self.fits(portion):
            return [portion]
        share = SAMPLE_ROWS / portion.rows
        sample = pa.concat_tables(
            spread_rows(piece.select(self.order.by), int(piece.num_rows * share) + 1)
            for piece in portion.read()
        )
        cuts = Cuts.of(sample, self.order, parts=self.count_portions(portion.bytes))
        smaller = self.deal(spill, cuts, [portion.read])
        if portion.discard is not None:
            portion.discard()
        if len(smaller) == 1:  # no cut was found
            return smaller
        return [leaf for small in smaller for leaf in self.split(spill, small)]

    def read_pieces(self, span: Span, rows: int) -> Iterator[pa.Table]:
        """The sorted rows of a span, at most ``rows`` at once; those of an even portion as stored."""
        portion = span.portion
        if portion.even:
            start = 0
            for piece in portion.read():
                low, high = max(span.start - start, 0), min(span.stop - start, piece.num_rows)
                start += piece.num_rows
                if low < high:
                    yield piece.slice(low, high - low)
            return
        table, indices = with_order(list(portion.read()), self.order)
        indices = indices.slice(span.start, span.stop - span.start)
        for start in range(0, len(indices), rows):
            yield take_rows(table, indices.slice(start, rows))


def _make_portion(spill: Spill, bucket: Bucket) -> Portion:
    read, discard = partial(spill.read, bucket), partial(spill.remove, bucket)
    return Portion(bucket.rows, bucket.bytes, bucket.even, read, discard)


def with_order(tables: list[pa.Table], order: Order) -> tuple[pa.Table, pa.Array]:
    """All rows as one table, and the row numbers in order. Empties the list to save memory.

    Columns are one chunk each, where their type allows it: gathering rows is then many times faster.
    """
    table = pa.concat_tables(tables)
    tables.clear()
    indices = order.compute_indices(table)
    schema, columns = table.schema, table.columns
    del table
    for number, column in enumerate(columns):
        columns[number] = column.combine_chunks()
        del column
    return pa.table(columns, schema=schema), indices


def assign_spans(portions: Sequence[Portion], outputs: int) -> list[list[Span]]:
    """The spans of ``outputs`` files of about equal rows; files end between portions where that is close."""
    ends = [0]
    for portion in portions:
        ends.append(ends[-1] + portion.rows)
    total = ends[-1]
    target = total / max(outputs, 1)
    cuts = {0, total}
    for number in range(1, outputs):
        ideal = round(number * target)
        edge = min(ends, key=lambda end: abs(end - ideal))
        cuts.add(edge if abs(edge - ideal) <= target * _OFF_TARGET else ideal)
    result = []
    for low, high in pairwise(sorted(cuts)):
        mine = [
            Span(portion, max(low - begin, 0), min(high - begin, portion.rows))
            for portion, begin in zip(portions, ends, strict=False)
            if begin < high and begin + portion.rows > low
        ]
        result.append(mine)
    return result


CONTENTS = pa.schema(
    [("range", pa.int32()), ("batch", pa.int32()), ("rows", pa.int64()), ("bytes", pa.int64())]
)


@dataclass(frozen=True, slots=True)
class SpilledRun:
    """A file of rows; ``contents`` has the range, the rows and the bytes in memory of each batch."""

    location: str
    contents: pa.Table


class RunWriter:
    """Collects rows and writes a run whenever they have ``most_bytes``.

    Memory: about three times ``most_bytes``, and the rows of one call.
    """

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        location: Callable[[int], str],
        schema: pa.Schema,
        cuts: Cuts,
        *,
        most_bytes: int,
        batch_rows: int,
    ) -> None:
        """``location`` gives the path of the n-th run; ``batch_rows`` is the most of a batch."""
        self._filesystem = filesystem
        self._location = location
        self._schema = schema
        self._cuts = cuts
        self._most = most_bytes
        self._batch_rows = batch_rows
        self._waiting: list[pa.Table] = []
        self._numbers: list[pa.Array] = []
        self._bytes = 0
        self._runs: list[SpilledRun] = []

    def add(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._numbers.append(self._cuts.assign_buckets(table))
        self._bytes += table.nbytes
        if self._bytes >= self._most:
            self._flush()

    def finish(self) -> list[SpilledRun]:
        """Write the last run. Returns all runs; none is empty."""
        if self._numbers:
            self._flush()
        return self._runs

    def _flush(self) -> None:
        numbers = pa.concat_arrays(self._numbers)
        table = pa.concat_tables(self._waiting)
        self._waiting, self._numbers, self._bytes = [], [], 0
        grouped = _reorder(table, pc.array_sort_indices(numbers))  # a stable sort
        del table
        location = self._location(len(self._runs))
        with translate_storage_errors(location):
            contents = self._write(location, grouped, numbers)
        self._runs.append(SpilledRun(location, contents))

    def _write(self, location: str, grouped: pa.Table, numbers: pa.Array) -> pa.Table:
        counts = numbers.value_counts()
        sizes = dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
        rows: list[tuple[int, int, int]] = []
        options = ipc.IpcWriteOptions(compression="lz4" if pa.Codec.is_available("lz4") else None)
        with (
            self._filesystem.open_output_stream(location) as sink,
            ipc.new_file(sink, self._schema, options=options) as writer,
        ):
            start = 0
            for number in sorted(sizes):
                for batch in grouped.slice(start, sizes[number]).to_batches(max_chunksize=self._batch_rows):
                    writer.write_batch(batch)
                    rows.append((number, batch.num_rows, batch.nbytes))
                start += sizes[number]
        ranges, lengths, weights = zip(*rows, strict=True)
        return pa.table([ranges, range(len(rows)), lengths, weights], schema=CONTENTS)


def _reorder(table: pa.Table, order: pa.Array) -> pa.Table:
    """The rows in this order, each column as one chunk: all batches of a file have the same dictionaries."""
    columns = []
    for name in range(table.num_columns):
        one = pa.table({"column": to_array(table.column(name))})
        columns.append(take_rows(one, order)["column"].combine_chunks())
    return pa.table(columns, schema=table.schema)


def read_batches(filesystem: pafs.FileSystem, location: str, batches: Sequence[int]) -> Iterator[pa.Table]:
    """Read some batches of a run, one at a time."""
    with translate_storage_errors(location), filesystem.open_input_file(location) as source:
        reader = ipc.open_file(source)
        for number in batches:
            yield pa.Table.from_batches([reader.get_batch(number)])
