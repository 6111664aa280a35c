"""Rows spilled into buckets on disk, as Arrow streams; the caller decides which row goes to which."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.ipc as ipc

from intarsia.errors import StorageError
from intarsia.kernel.overlay import take_rows


@dataclass(frozen=True, slots=True)
class Bucket:
    """Some rows on disk. In an ``even`` bucket all rows have the same place in the order."""

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
    """Takes rows for numbered buckets and gives them back bucket by bucket, in a directory of its own.

    A context manager: leaving it removes the directory, whatever happened. Safe to use from several
    threads; rows of one bucket are in the order in which they came. Memory: what one call is given.
    """

    def __init__(self, filesystem: pafs.FileSystem, directory: str, schema: pa.Schema) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._schema = schema
        self._files = 0
        self._lock = Lock()

    def __enter__(self) -> Spill:
        with storage_errors(self._directory):
            self._filesystem.create_dir(self._directory, recursive=True)
        return self

    def __exit__(self, *_: object) -> None:
        with storage_errors(self._directory):
            self._filesystem.delete_dir(self._directory)

    def deal(self, even: Sequence[bool], *, most_bytes: int) -> Deal:
        """Begin to fill a row of buckets; an even one is cut where it outgrows ``most_bytes``."""
        return Deal(self, even, most_bytes)

    def open(self) -> _Open:
        with self._lock:
            self._files += 1
            location = f"{self._directory}/{self._files:06d}.arrows"
        with storage_errors(location):
            return _Open(location, self._filesystem, self._schema)

    def read(self, bucket: Bucket) -> Iterator[pa.Table]:
        """The rows of a bucket in pieces."""
        with (
            storage_errors(bucket.location),
            self._filesystem.open_input_stream(bucket.location) as source,
            ipc.open_stream(source) as stream,
        ):
            for batch in stream:
                yield pa.Table.from_batches([batch])

    def remove(self, bucket: Bucket) -> None:
        """Free the disk space of a bucket that is done with."""
        with storage_errors(bucket.location):
            self._filesystem.delete_file(bucket.location)


class Deal:
    """One round of dealing rows out to buckets."""

    def __init__(self, spill: Spill, even: Sequence[bool], most_bytes: int) -> None:
        self._spill = spill
        self._even = tuple(even)
        self._most = most_bytes
        self._locks = [Lock() for _ in even]
        self._open: list[_Open | None] = [None for _ in even]
        self._done: list[list[Bucket]] = [[] for _ in even]

    def add(self, table: pa.Table, numbers: pa.Array) -> None:
        """Rows, and the number of the bucket of each."""
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
            with storage_errors(bucket.location):
                bucket.write(rows)
            if self._even[number] and bucket.bytes >= self._most:
                self._close(number)

    def _close(self, number: int) -> None:
        bucket = self._open[number]
        if bucket is not None:
            with storage_errors(bucket.location):
                bucket.close()
            self._done[number].append(Bucket(bucket.location, bucket.rows, bucket.bytes, self._even[number]))
            self._open[number] = None

    def finish(self) -> list[Bucket]:
        """The buckets with rows in them, in order."""
        for number in range(len(self._open)):
            self._close(number)
        return [bucket for done in self._done for bucket in done]

    def abandon(self) -> None:
        """Let go of the handles after an error."""
        for bucket in self._open:
            if bucket is not None:
                with contextlib.suppress(OSError):
                    bucket.close()


@contextlib.contextmanager
def storage_errors(location: str) -> Iterator[None]:
    """What storage refuses while rows are sorted, as a StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"Cannot sort on disk: {error}",
            errno=error.errno,
            path=location,
            hint="make room there, or give the engine more memory.",
        ) from error
