"""New rows that executors have become new files of the table, each task's under names of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

from intarsia.core.change import StagedFile
from intarsia.core.keys import arange
from intarsia.core.plan import Plan
from intarsia.core.ports import Transaction, Workplace
from intarsia.core.prepare import Prepared
from intarsia.core.refusals import ValuesRefused
from intarsia.engines.arrow.matching import MergeMatcher
from intarsia.engines.arrow.placing import Placing, all_rows
from intarsia.engines.spark.afresh import new_placing
from intarsia.engines.spark.carry import restored
from intarsia.engines.spark.carrying import written
from intarsia.engines.spark.crew import Attempt, Crew
from intarsia.engines.spark.jobs import light
from intarsia.engines.spark.remote import PART, ROW, RemoteRows

PLACE_BYTES = 256 << 20
DEAL_BYTES = 32 << 20
"""In memory; so much is dealt out over partitions at once."""


def _gathered(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.Table]:
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
class PlaceRows:
    """Writes rows as new files of the table; runs on an executor."""

    placing: Placing
    wanted: pa.Schema
    matcher: MergeMatcher | None
    """Whose clauses choose among the rows; without one all of them are new."""
    prefix: str
    workplace: Workplace | None

    def placed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[StagedFile]]]:
        """How many rows are new, and the files they became; memory: so many rows as fill a file or two."""
        for rows in _gathered(batches, PLACE_BYTES):
            source = restored(
                rows, self.wanted, operation=self.placing.operation, path=self.placing.snapshot.root
            )
            inserts = all_rows(source)
            if self.matcher is not None:
                inserts = list(self.matcher.inserts_of(source, arange(source.num_rows)))
            count = sum(len(taken) for _, taken in inserts)
            if self.workplace is None:
                yield count, []
                continue
            tx = Named(Attempt.at(self.workplace), uuid.uuid4().hex[:8])
            files = self.placing.files(inserts, source, tx, prefix=self.prefix)
            yield count, [self.placing.write(file, source, tx) for file in files]


@dataclass(frozen=True, slots=True)
class DealRows:
    """Writes rows as new files of a table that deals them out by itself; runs on an executor."""

    plan: Plan
    placing: Placing
    wanted: pa.Schema
    matcher: MergeMatcher | None
    """Whose clauses choose among the rows; without one all of them are new."""
    workplace: Workplace | None

    def placed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[StagedFile]]]:
        """How many rows are new, and the files they became; memory: rows that wait for their row groups."""
        counts: list[int] = []
        rows = self._rows(batches, counts)
        if self.workplace is None:
            for _ in rows:
                continue
            yield sum(counts), []
        else:
            staged = written(self.plan, self.workplace, rows, lineage=False)
            yield sum(counts), staged

    def _rows(
        self, batches: Iterator[pa.RecordBatch], counts: list[int]
    ) -> Iterator[pa.Table | ValuesRefused]:
        for rows in _gathered(batches, DEAL_BYTES):
            path = self.plan.snapshot.root
            source = restored(rows, self.wanted, operation=self.plan.operation, path=path)
            inserts = all_rows(source)
            if self.matcher is not None:
                inserts = list(self.matcher.inserts_of(source, arange(source.num_rows)))
            for action, taken in inserts:
                counts.append(len(taken))
                if self.workplace is not None:
                    yield from self.placing.pieces(action, taken, source, self.workplace)


@dataclass(frozen=True, slots=True)
class Named:
    """A workplace whose table paths carry a task's own mark, so that no two tasks meet."""

    place_of: Workplace
    mark: str

    @property
    def txid(self) -> str:
        return self.place_of.txid

    @property
    def staging(self) -> Any:
        return self.place_of.staging

    def place(self, partition: Any, prefix: str, ordinal: int, *, beside: Any = None) -> str:
        return self.place_of.place(partition, f"{prefix}-{self.mark}", ordinal, beside=beside)

    def locate(self, path: str) -> str:
        return self.place_of.locate(path)


def place_rows(
    crew: Crew,
    rows: Any,
    plan: Plan,
    prepared: Prepared,
    *,
    matcher: MergeMatcher | None,
    prefix: str,
    tx: Transaction | None,
) -> tuple[int, list[StagedFile]]:
    """A DataFrame's rows as new files: how many, and which; without a transaction only how many.

    Rows of one partition go to one task, so that each gets few files.
    """
    wanted = prepared.remote.wanted
    columns = prepared.remote.columns
    if plan.snapshot.spread is not None:
        dealing = DealRows(light(plan), new_placing(plan), wanted, matcher, tx.workplace() if tx else None)
        done = crew.over(_by_part(crew, rows, prepared.remote).select(*columns.values()), dealing.placed)
        return sum(count for count, _ in done), [file for _, files in done for file in files]
    apart = [columns[name] for name in prepared.partition_columns if name in columns]
    spread = rows.repartition(crew.tasks, *apart) if apart else rows.coalesce(crew.tasks)
    snapshot = replace(plan.snapshot, files=plan.snapshot.files[:1])
    placing = Placing(snapshot, plan.schema, prepared.partition_columns, plan.intent.options, plan.operation)
    work = PlaceRows(placing, wanted, matcher, prefix, None if tx is None else tx.workplace())
    done = crew.over(spread.select(*columns.values()), work.placed)
    return sum(count for count, _ in done), [file for _, files in done for file in files]


def _by_part(crew: Crew, rows: Any, remote: RemoteRows) -> Any:
    """Rows of one partition in one task, or in a few where there are many of them."""
    if not remote.homes:
        return rows.coalesce(crew.tasks)
    row_bytes = remote.size / max(remote.spool.rows, 1)
    tasks = {code: int(count * row_bytes / PLACE_BYTES) + 1 for code, count in remote.homes.items()}
    many = [F.lit(number).cast("long") for pair in tasks.items() if pair[1] > 1 for number in pair]
    salt = F.pmod(F.hash(ROW), F.coalesce(F.create_map(*many)[F.col(PART)], F.lit(1))) if many else F.lit(0)
    return rows.repartition(crew.tasks, F.col(PART), salt)
