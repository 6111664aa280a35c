"""New rows of a source on storage, written by executors as new files of the table.

Which task gets a row, and in which order, follows from the row's number in the source alone: not from how
Spark joins, nor from what it decides while it runs. So the same work gives the same files.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark.sql import functions as F

from intarsia.core.change import StagedFile
from intarsia.core.keys import arange
from intarsia.core.plan import Plan
from intarsia.core.ports import OutputLocation, Transaction
from intarsia.core.prepare import Prepared
from intarsia.core.refusals import ValuesRefused
from intarsia.engines.spark.copies import new_row_writer, write_copies
from intarsia.engines.spark.join_source import PART, ROW, RemoteRows
from intarsia.engines.spark.output import AttemptOutput, MarkedOutput
from intarsia.engines.spark.source import PartSlice
from intarsia.engines.spark.staging import without_files
from intarsia.engines.spark.tasks import TaskRunner
from intarsia.engines.spark.types import from_spark_types
from intarsia.kernel.match import MergeMatcher, all_rows
from intarsia.kernel.partitioned_writer import NewRowWriter

FILE_BYTES = 256 << 20
PARTITION_BYTES = 32 << 20
"""In memory; so much is partitioned at once."""
BLOCK_BITS = 12
"""Of the source's rows 4,096 that follow each other go to one task."""


def _gather_batches(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.Table]:
    """Batches put together up to about so many bytes."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= most:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if any(batch.num_rows for batch in held):
        yield pa.Table.from_batches(held)


@dataclass(frozen=True, slots=True)
class WriteNewFiles:
    """Writes rows as new files of the table; runs on an executor."""

    writer: NewRowWriter
    wanted: pa.Schema
    matcher: MergeMatcher | None
    """Whose clauses choose among the rows; without one all of them are new."""
    prefix: str
    output: OutputLocation | None

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[StagedFile]]]:
        """Write rows; how many are new, and their files; memory: so many rows as fill a file or two."""
        for rows in _gather_batches(batches, FILE_BYTES):
            source = from_spark_types(
                rows, self.wanted, operation=self.writer.operation, path=self.writer.snapshot.root
            )
            inserts = all_rows(source)
            if self.matcher is not None:
                inserts = list(self.matcher.inserts_of(source, arange(source.num_rows)))
            count = sum(len(taken) for _, taken in inserts)
            if self.output is None:
                yield count, []
                continue
            tx = MarkedOutput(AttemptOutput.at(self.output), uuid.uuid4().hex[:8])
            files = self.writer.files(inserts, source, tx, prefix=self.prefix)
            yield count, [self.writer.write(file, source, tx) for file in files]


@dataclass(frozen=True, slots=True)
class WritePartitions:
    """Writes rows as new files of a table that partitions by a spec; runs on an executor."""

    plan: Plan
    writer: NewRowWriter
    wanted: pa.Schema
    matcher: MergeMatcher | None
    """Whose clauses choose among the rows; without one all of them are new."""
    output: OutputLocation | None

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[StagedFile]]]:
        """Write rows; how many are new, and their files; memory: rows that wait for their row groups."""
        counts: list[int] = []
        rows = self._rows(batches, counts)
        if self.output is None:
            for _ in rows:
                continue
            yield sum(counts), []
        else:
            staged = write_copies(self.plan, self.output, rows, lineage=False)
            yield sum(counts), staged

    def _rows(
        self, batches: Iterator[pa.RecordBatch], counts: list[int]
    ) -> Iterator[pa.Table | ValuesRefused]:
        for rows in _gather_batches(batches, PARTITION_BYTES):
            path = self.plan.snapshot.root
            source = from_spark_types(rows, self.wanted, operation=self.plan.operation, path=path)
            inserts = all_rows(source)
            if self.matcher is not None:
                inserts = list(self.matcher.inserts_of(source, arange(source.num_rows)))
            for action, taken in inserts:
                counts.append(len(taken))
                if self.output is not None:
                    yield from self.writer.pieces(action, taken, source, self.output)


def write_source_rows(
    runner: TaskRunner,
    rows: Any,
    plan: Plan,
    prepared: Prepared,
    *,
    matcher: MergeMatcher | None,
    prefix: str,
    tx: Transaction | None,
) -> tuple[int, list[StagedFile]]:
    """A DataFrame's rows as new files: how many, and which; without a transaction only how many.

    None are all rows of the source. Rows of one partition go to one task, so that each gets few files.
    """
    wanted = prepared.remote.wanted
    remote: RemoteRows = prepared.remote
    output = None if tx is None else tx.output()
    work: WriteNewFiles | WritePartitions
    if not plan.snapshot.replaces_in_place:
        work = WritePartitions(without_files(plan), new_row_writer(plan), wanted, matcher, output)
        keys = _partition_keys(remote)
    else:
        columns, snapshot = prepared.partition_columns, replace(plan.snapshot, files=plan.snapshot.files[:1])
        writer = NewRowWriter(snapshot, plan.schema, columns, plan.intent.options, plan.operation)
        work = WriteNewFiles(writer, wanted, matcher, prefix, output)
        keys = [F.col(remote.columns[name]) for name in columns if name in remote.columns]
    if rows is None and not keys and remote.numbered:
        done = _write_slices(runner, remote, work)
    else:
        tasks = runner.tasks if keys else _count_tasks(runner, remote)
        frame = remote.frame(runner) if rows is None else rows
        frame = frame.repartition(tasks, *(keys or [F.shiftright(ROW, BLOCK_BITS)]))
        done = runner.over(frame.sortWithinPartitions(ROW).select(*remote.columns.values()), work.write)
    return sum(count for count, _ in done), [file for _, files in done for file in files]


def _count_tasks(runner: TaskRunner, remote: RemoteRows) -> int:
    """How many tasks share rows among them that may go to any."""
    return len(runner.shares([PARTITION_BYTES] * (remote.size // PARTITION_BYTES + 1)))


def _write_slices(
    runner: TaskRunner, remote: RemoteRows, work: WriteNewFiles | WritePartitions
) -> list[tuple[int, list[StagedFile]]]:
    """All rows of a source, as many to each task, neighbours together; they are read without Spark."""
    count, total = _count_tasks(runner, remote), remote.spool.rows
    edges = [total * number // count for number in range(count + 1)]
    shared = WriteSlices(work, remote.spool.filesystem, tuple(remote.columns.values()))
    jobs = [remote.spool.rows_between(low, high) for low, high in pairwise(edges)]
    done = runner.each(write_slices, jobs, shared=shared, weights=[1] * count)
    return [one for each in done for one in each]


@dataclass(frozen=True, slots=True)
class WriteSlices:
    """Writes rows of some parts of a source as new files."""

    work: WriteNewFiles | WritePartitions
    filesystem: pafs.FileSystem
    columns: tuple[str, ...]


def write_slices(shared: WriteSlices, slices: Sequence[PartSlice]) -> list[tuple[int, list[StagedFile]]]:
    """Runs on an executor."""
    batches = (
        batch for one in slices for batch in one.batches(shared.filesystem, columns=list(shared.columns))
    )
    return list(shared.work.write(batches))


def _partition_keys(remote: RemoteRows) -> list[Any]:
    """What brings rows of one partition to one task, or to a few where there are many of them."""
    if not remote.homes:
        return []
    row_bytes = remote.size / max(remote.spool.rows, 1)
    tasks = {code: int(count * row_bytes / FILE_BYTES) + 1 for code, count in remote.homes.items()}
    many = [F.lit(number).cast("long") for pair in tasks.items() if pair[1] > 1 for number in pair]
    salt = F.pmod(F.hash(ROW), F.coalesce(F.create_map(*many)[F.col(PART)], F.lit(1))) if many else F.lit(0)
    return [F.col(PART), salt]
