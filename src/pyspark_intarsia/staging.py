"""Rows of a DataFrame that wait on storage, from the tasks that computed them to the commit on the driver.

No process lives as long as a write does, so a staging directory has a lease instead of an owner: whoever
works on it renews it, and one that was not renewed for an hour is swept by the next operation on the table.
It waits a day for its first task, since stages of the query before that may take their time.
"""

from __future__ import annotations

import errno
import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql.datasource import WriterCommitMessage

from intarsia.common.scratch import renew_lease
from intarsia.engines.spark.source import (
    PartWriter,
    Spool,
    SpoolPart,
    check_exists,
    create_shared_spool,
)
from intarsia.errors import StorageError

__all__ = ["StagedRows", "StagingArea", "create_staging", "make_stream_directory"]


@dataclass(frozen=True, slots=True)
class StagedRows(WriterCommitMessage):
    """What one task has staged."""

    parts: tuple[SpoolPart, ...]
    is_complete: bool
    """Whether these are all rows of the task: one that has too many for the commit stages no more."""


@dataclass(frozen=True, slots=True)
class StagingArea:
    """A directory for the rows of one write, which driver and executors share; pickles."""

    spool: Spool

    def write(self, batches: Iterable[pa.RecordBatch], most: int) -> StagedRows:
        """Write the rows of a task into a file of its own; runs on an executor. Memory: a row group.

        Ends early where one task has more than ``most`` bytes, which the commit refuses.
        """
        place, limited = self.spool, _LimitedBatches(iter(batches), most)
        with renew_lease(place.filesystem, place.directory):
            writer = PartWriter(place.filesystem, place.directory, place.schema)
            parts = tuple(part for part in writer.write_parts(limited) if part.rows)
        return StagedRows(parts, limited.held <= most)

    def open(self, messages: Sequence[WriterCommitMessage | None]) -> StagedSource:
        """The rows that tasks have staged, in the order of the DataFrame's partitions."""
        staged = [message for message in messages if isinstance(message, StagedRows)]
        parts = sorted((part for one in staged for part in one.parts), key=lambda part: part.location)
        return StagedSource(replace(self.spool, parts=tuple(parts)), all(one.is_complete for one in staged))

    def remove(self) -> None:
        """Remove what was staged; a refusal is logged, and leaves it to a sweep."""
        self.spool.remove()


@dataclass(frozen=True, slots=True)
class StagedSource:
    """Staged rows as the source of an operation."""

    spool: Spool
    is_complete: bool

    @property
    def size(self) -> int:
        """Bytes, as Arrow."""
        return self.spool.size

    def make_reader(self, stack: ExitStack) -> pa.RecordBatchReader:
        """The rows, read file by file while the stack is open. Memory: a row group."""
        stack.enter_context(renew_lease(self.spool.filesystem, self.spool.directory))
        check_exists(self.spool)
        return pa.RecordBatchReader.from_batches(self.spool.schema, self._read())

    def _read(self) -> Iterator[pa.RecordBatch]:
        for part in self.spool.parts:
            try:
                with pq.ParquetFile(part.location, filesystem=self.spool.filesystem) as file:
                    for batch in file.iter_batches(1 << 16, use_threads=False):
                        yield pa.RecordBatch.from_arrays(batch.columns, schema=self.spool.schema)
            except FileNotFoundError as error:
                raise StorageError(
                    f"{part.location}, where rows of the source wait, is gone.",
                    errno=errno.ENOENT,
                    path=part.location,
                    hint="write again; a stream with the same app_id may run beside this one.",
                ) from error


def create_staging(
    workspace: tuple[pafs.FileSystem, str, str], schema: pa.Schema, *, spool_dir: str | None, name: str = ""
) -> StagingArea:
    """An empty staging directory beside the table, or in ``spool_dir``. Raises StorageError."""
    spool = create_shared_spool(workspace, spool_dir, name or uuid.uuid4().hex)
    return StagingArea(replace(spool, schema=schema))


def make_stream_directory(app_id: str, *table: str) -> str:
    """The name of a stream's directory, the same for the tasks of a batch and for its commit.

    ``table`` is what tells the table, and its branch, from others.
    """
    return hashlib.sha256("\0".join((app_id, *table)).encode()).hexdigest()[:32]


class _LimitedBatches:
    """Batches until they are more than ``most`` bytes together; ``held`` says how many they were."""

    def __init__(self, batches: Iterator[pa.RecordBatch], most: int) -> None:
        self._batches = batches
        self._most = most
        self.held = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self.held > self._most:
            raise StopIteration
        batch = next(self._batches)
        self.held += batch.nbytes
        return batch
