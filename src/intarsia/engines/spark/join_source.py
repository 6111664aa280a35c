"""Rows of a source that stay on shared storage: cast there, with their keys beside them, read by Spark."""

from __future__ import annotations

import re
import socket
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema

from intarsia.common.partitions import split_by_partition
from intarsia.common.rows import take_rows
from intarsia.common.schema import conform_table
from intarsia.common.source import select_known
from intarsia.core.intent import Predicate
from intarsia.core.keys import arange, comparable, decoded
from intarsia.core.partitioner import Partitioner
from intarsia.core.prepare import rows_outside
from intarsia.core.prune import KeyRange
from intarsia.engines.spark.shared_buffers import unreachable_error
from intarsia.engines.spark.source import Spool, SpoolPart, column_names, spool_writer
from intarsia.engines.spark.tasks import TaskRunner
from intarsia.engines.spark.types import to_spark_types

ROW = "__row"
FILE = "__file"
POSITION = "__position"
PART = "__part"
_SAMPLES = 64


def key_name(number: int) -> str:
    """The column of the n-th key in Spark."""
    return f"__k{number}"


def key_names(count: int) -> list[str]:
    return [key_name(number) for number in range(count)]


def frame_of(runner: TaskRunner, locations: Sequence[str], filesystem: pafs.FileSystem) -> Any:
    """Files of ours as a DataFrame.

    Spark reads local files by itself. Of other storage it may have another name or none, so there tasks
    read with the file system that wrote.
    """
    if isinstance(filesystem, pafs.LocalFileSystem):
        return runner.spark.read.parquet(*(f"file://{_GLOB.sub(_escape, path)}" for path in locations))
    footer = pq.read_schema(locations[0], filesystem=filesystem)
    schema = from_arrow_schema(footer, prefer_timestamp_ntz=True)
    jobs = runner.spark.range(0, len(locations), 1, len(locations))
    return jobs.mapInArrow(PartReader(filesystem, tuple(locations)).batches, schema)


_GLOB = re.compile(r"[\\{}\[\]*?]")


def _escape(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


@dataclass(frozen=True, slots=True)
class PartReader:
    """Reads files whose numbers a task is given."""

    filesystem: pafs.FileSystem
    locations: tuple[str, ...]

    def batches(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs on an executor; memory: one batch."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with pq.ParquetFile(self.locations[number], filesystem=self.filesystem) as file:
                    yield from file.iter_batches(1 << 16, use_threads=False)


@dataclass(frozen=True, slots=True)
class RemoteRows:
    """A source in the dataset's types, on shared storage."""

    spool: Spool
    wanted: pa.Schema
    homes: Mapping[int, int] = field(default_factory=dict)
    """How many rows go to each partition, by its code in the column ``PART``; empty without that column."""
    numbered: bool = True
    """Whether the rows lie in the order of their numbers."""

    @property
    def size(self) -> int:
        return self.spool.size

    @property
    def columns(self) -> dict[str, str]:
        """What each column is called in the frame."""
        return dict(zip(self.wanted.names, column_names(len(self.wanted)), strict=True))

    def frame(self, runner: TaskRunner) -> Any:
        """The rows as a DataFrame; there must be some."""
        return frame_of(runner, [part.location for part in self.spool.parts], self.spool.filesystem)


@dataclass(frozen=True, slots=True)
class PartProfile:
    """What the cast of one part found out."""

    part: SpoolPart
    nulls: dict[str, int]
    ends: dict[str, pa.Array]
    nan: dict[str, bool]
    partitions: pa.Table
    homes: Mapping[Any, int] = field(default_factory=dict)
    """How many rows go to each partition, by its key, where the table has a partition spec."""
    outside: int = 0
    """How many rows the condition of an overwrite does not cover."""
    samples: pa.Table | None = None
    """Some of those."""


@dataclass(frozen=True, slots=True)
class CastParts:
    """Casts parts of a source, and looks at their keys and partitions."""

    wanted: pa.Schema
    keys: tuple[str, ...]
    partitions: tuple[str, ...]
    operation: str
    path: str
    filesystem: pafs.FileSystem
    directory: str
    partitioner: Partitioner | None = None
    """Whose partitions are noted beside the rows, where that is of use."""
    where: Predicate = None
    """What every row has to make TRUE."""


def cast_parts(runner: TaskRunner, spool: Spool, casting: CastParts) -> list[PartProfile]:
    """Every part in the dataset's types, in new files; raises SchemaMismatch as casting here would."""
    jobs = list(enumerate(spool.parts))
    return runner.each(cast_part, jobs, shared=casting, weights=[part.size for part in spool.parts])


def cast_part(work: CastParts, job: tuple[int, SpoolPart]) -> PartProfile:
    """One part of the source in the dataset's types, with its keys beside it; runs on an executor."""
    number, part = job
    keys = work.keys
    location = f"{work.directory}/{uuid.uuid4().hex}.parquet"
    rows = size = 0
    nulls = dict.fromkeys(keys, 0)
    ends: dict[str, list[pa.Array]] = {name: [] for name in keys}
    nan = dict.fromkeys(keys, False)
    partitions: list[pa.Table] = []
    homes: dict[Any, int] = {}
    outside, samples = 0, pa.Table.from_batches([], work.wanted)
    writer: pq.ParquetWriter | None = None
    reader = _open_part(part.location, work.filesystem)
    try:
        for batch in reader.iter_batches(1 << 18, use_threads=False):
            taken = select_known(pa.Table.from_batches([batch]), work.wanted)
            table = conform_table(taken, work.wanted, operation=work.operation, path=work.path)
            for name in keys:
                nulls[name] += table[name].null_count
                known = KeyRange.of(table[name])
                nan[name] = nan[name] or known.has_nan
                ends[name] += [known.values.slice(0, 1), known.values.slice(max(len(known.values) - 1, 0))]
            partitions += [distinct_rows(table, work.partitions)]
            if work.where is not None:
                uncovered = rows_outside(work.where, table)
                outside += len(uncovered)
                if samples.num_rows < _SAMPLES:
                    samples = pa.concat_tables([samples, take_rows(table, uncovered.slice(0, _SAMPLES))])
            sent = to_spark_types(table).rename_columns(column_names(table.num_columns))
            sent = with_keys(sent, [table[name] for name in keys])
            sent = sent.append_column(ROW, arange(table.num_rows, (number << 40) + rows))
            if work.partitioner is not None:
                sent = sent.append_column(PART, _code_partitions(table, work.partitioner, homes))
            if writer is None:
                writer = spool_writer(location, sent.schema, work.filesystem)
            writer.write_table(sent)
            rows += table.num_rows
            size += table.nbytes
    finally:
        if writer is not None:
            writer.close()
    whole = (
        pa.concat_tables(partitions)
        if partitions
        else pa.Table.from_batches([], work.wanted).select(list(work.partitions))
    )
    return PartProfile(
        SpoolPart(location, rows, size),
        nulls,
        {name: pa.concat_arrays(arrays) for name, arrays in ends.items() if arrays},
        nan,
        distinct_rows(whole, work.partitions),
        homes,
        outside,
        samples if outside else None,
    )


def _code_partitions(table: pa.Table, partitioner: Partitioner, homes: dict[Any, int]) -> pa.Array:
    """Per row a number for the partition it goes to; how many go to each is added to ``homes``."""
    codes, rows = [], []
    for part, mine in partitioner.partition_rows(table.select(list(partitioner.columns))):
        numbers = arange(table.num_rows) if mine is None else mine
        homes[part.key] = homes.get(part.key, 0) + len(numbers)
        codes.append(pa.repeat(pa.scalar(partition_code(part.key), pa.int64()), len(numbers)))
        rows.append(numbers)
    return pa.concat_arrays(codes).take(pc.array_sort_indices(pa.concat_arrays(rows)))


def partition_code(key: Any) -> int:
    """The same number for a partition in every process; two may share one."""
    return zlib.crc32(repr(key).encode())


def _open_part(location: str, filesystem: pafs.FileSystem) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(location, filesystem=filesystem)
    except FileNotFoundError as error:
        here = socket.gethostname()
        raise unreachable_error(location, f"The executor on {here} does not see {location}.") from error


def with_keys(table: pa.Table, keys: Sequence[Any]) -> pa.Table:
    """The table with its key in the form that Spark compares as we do."""
    for number, column in enumerate(keys):
        plain = pa.table({"key": decoded(comparable(column))})
        table = table.append_column(key_name(number), to_spark_types(plain)["key"])
    return table


def distinct_rows(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    if not columns:
        return table.select([])
    parts = split_by_partition(table.select(list(columns)), list(columns))
    return pa.concat_tables([part.slice(0, 1) for _, part in parts]) if parts else table.select(list(columns))
