"""A DataFrame as a source: its rows are written once, by executors, and read from there ever after."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.arrow import Source
from intarsia.common.log import cleanup, logger
from intarsia.common.spool import tidy, tidy_schema
from intarsia.engines.spark.crew import Crew
from intarsia.errors import NothingMatched

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a spool."""

    location: str
    rows: int
    size: int
    """In memory, as Arrow."""


@dataclass(frozen=True, slots=True)
class Spool:
    """Rows of a source on storage that driver and executors share."""

    filesystem: pafs.FileSystem
    directory: str
    schema: pa.Schema
    parts: tuple[Part, ...] = ()

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def read(self) -> pa.Table:
        """All of it, into the driver."""
        tables = [pq.read_table(part.location, filesystem=self.filesystem) for part in self.parts]
        return pa.concat_tables([self.schema.empty_table(), *tables])

    def remove(self) -> None:
        """Remove the files; a refusal is logged."""
        cleanup(log, (f"remove {self.directory}", lambda: self.filesystem.delete_dir(self.directory)))


class SparkSource(Source):
    """A source whose rows stay on executors; ``table`` brings them to the driver."""

    __slots__ = ("spool",)

    def __init__(self, spool: Spool, *, origin: str) -> None:
        super().__init__(spool.schema.empty_table(), origin=origin)
        self.spool = spool
        self.rows = spool.rows

    @property
    def table(self) -> pa.Table:
        return self.spool.read()

    def close(self) -> None:
        super().close()
        self.spool.remove()


def workspace(spark: Any, shared: tuple[pafs.FileSystem, str] | None, asked: str | None) -> Spool:
    """Where a spool can be: as asked, else on this machine where all of Spark is, else beside the table."""
    name = f"spool-{uuid.uuid4().hex}"
    if asked is not None:
        filesystem, path = (
            pafs.FileSystem.from_uri(asked) if "://" in asked else (pafs.LocalFileSystem(), asked)
        )
    elif str(spark.conf.get("spark.master", "")).startswith("local") or shared is None:
        filesystem, path = pafs.LocalFileSystem(), tempfile.gettempdir()
    else:
        filesystem, path = shared
    directory = f"{path.rstrip('/')}/{name}"
    filesystem.create_dir(directory, recursive=True)
    return Spool(filesystem, directory, pa.schema([]))


def spooled(crew: Crew, frame: Any, place: Spool) -> Spool:
    """Write a DataFrame's rows, evaluating it once; only files of attempts that succeeded count."""
    schema = tidy_schema(_arrow_schema(frame))
    writing = Writing(place.filesystem, place.directory, schema)
    parts = [part for part in crew.over(frame, writing.parts) if part.rows]
    return Spool(place.filesystem, place.directory, schema, tuple(sorted(parts, key=lambda p: p.location)))


def _arrow_schema(frame: Any) -> pa.Schema:
    """The Arrow types that a DataFrame's batches have."""
    return frame.limit(0).toArrow().schema


@dataclass(frozen=True, slots=True)
class Writing:
    """Writes what a task is given as one Parquet file."""

    filesystem: pafs.FileSystem
    directory: str
    schema: pa.Schema | None = None
    """What the rows are brought to; None writes them as they come."""

    def parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Part]:
        """Runs on an executor; memory: one batch and the encoded row group."""
        location = f"{self.directory}/{uuid.uuid4().hex}.parquet"
        rows = size = 0
        writer: pq.ParquetWriter | None = None
        try:
            for batch in batches:
                schema = self.schema or batch.schema
                if writer is None:
                    writer = pq.ParquetWriter(location, schema, filesystem=self.filesystem)
                for piece in tidy(batch, schema):
                    writer.write_batch(piece)
                    rows += piece.num_rows
                    size += piece.nbytes
        finally:
            if writer is not None:
                writer.close()
        if writer is not None:
            yield Part(location, rows, size)


def check_exists(spool: Spool) -> None:
    """Raise NothingMatched where the storage that executors wrote to is not the driver's."""
    for part in spool.parts[:1]:
        if spool.filesystem.get_file_info(part.location).type == pafs.FileType.NotFound:
            raise NothingMatched(
                f"Executors wrote {part.location}, but the driver does not see it.",
                path=spool.directory,
                hint="name spool_dir= on storage that driver and executors share.",
            )
