"""Optimizing: DuckDB sorts the rows of each group along a curve, on disk where it has to, and writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa

from intarsia.core.change import Change, StagedFile
from intarsia.core.files import DataFile
from intarsia.core.intent import Optimize
from intarsia.core.matches import Matches
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import Progress, Workplace
from intarsia.engines.arrow.optimize import NewFiles, order_of
from intarsia.engines.arrow.ordering import Order
from intarsia.engines.arrow.regroup import check_rows, regrouped
from intarsia.engines.arrow.sampling import MOST_GROUPS, SAMPLE_ROWS
from intarsia.engines.arrow.threads import in_order
from intarsia.engines.duckdb.codes import Codes
from intarsia.engines.duckdb.describing import OtherTypes
from intarsia.engines.duckdb.predicates import batch_rows
from intarsia.engines.duckdb.regroup import target_of
from intarsia.engines.duckdb.results import restored
from intarsia.engines.duckdb.scan import Scan
from intarsia.engines.duckdb.seen import moved_schema
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.source import key
from intarsia.engines.duckdb.text import FILE, POS, name, named
from intarsia.engines.duckdb.writing import distinct_values, optional
from intarsia.errors import DamagedTable, NotSupported

__all__ = ["stage_optimize"]

_GONE = "gone"
_ALONE_ROWS = 1 << 20
"""A group of more rows has DuckDB's threads, and its memory, for itself."""


def stage_optimize(
    plan: Plan,
    tx: Workplace,
    session: Session,
    progress: Progress,
    drops: Matches,
    *,
    writers: int | None = None,
) -> Change:
    """Write the rows of each group anew, ordered along the curve over all of the group's new files.

    Rows that ``drops`` names are left out. ``writers`` are how many files may be written at once, as many
    as DuckDB has threads if None. Where the table deals rows out over partitions by itself, PyArrow writes
    what DuckDB has put in order. Memory: DuckDB's limit; what does not fit is sorted through
    its temporary files. Nothing of the table changes.

    Raises:
        ColumnNotFound: a clustering column is not there.
        InputError: a clustering column is nested, there are too many, or the curve is unknown.
        DamagedTable: a file has not the rows its footer says.
    """
    intent = plan.intent
    assert isinstance(intent, Optimize)
    order = order_of(plan)
    every = [file for group in plan.groups for file in group.files]
    scan = Scan.of(session, plan.snapshot, every, moved_schema(plan))
    _write_gone(scan, drops)
    dictionary = distinct_values(scan, every[:1]) if plan.snapshot.spread is None else None
    tasks = [replace(task, dictionary=dictionary) for task in _tasks(plan, tx, scan, order, drops)]
    small = all(task.rows <= _ALONE_ROWS for task in tasks)
    threads = writers or session.threads
    outer = min(threads, len(tasks)) if small else 1
    inner = 1 if outer > 1 else threads
    staged: list[StagedFile] = []
    for number, written in enumerate(in_order(lambda task: task.staged(inner), tasks, threads=outer)):
        staged += written
        progress("write files", number + 1, len(tasks))
    return regrouped(plan, staged, exclusive=intent.deduplicate or bool(intent.deduplicate_keys))


def _write_gone(scan: Scan, drops: Matches) -> None:
    """The rows to leave out, by file and place."""
    rows = [
        pa.table({FILE: pa.repeat(pa.scalar(number, pa.int64()), len(hits)), POS: hits.positions})
        for number, hits in ((scan.numbers[path], hits) for path, hits in drops.hits.items())
    ]
    if rows:
        with scan.session.view(pa.concat_tables(rows)) as view:
            scan.session.run(f"CREATE OR REPLACE TABLE {scan.session.table(_GONE)} AS FROM {view}")


def _tasks(plan: Plan, tx: Workplace, scan: Scan, order: Order, drops: Matches) -> Iterator[_Task]:
    first = 0
    for group in plan.groups:
        files = tuple(file for file in group.files if file.rows and file.path not in drops.dropped)
        gone = sum(len(drops.hits[file.path]) for file in files if file.path in drops.hits)
        rows = sum(file.rows for file in files) - gone
        new = NewFiles.of(group, plan, tx, order, first=first)
        yield _Task(scan.session, scan, tx, group, files, rows, bool(gone), order, new)
        first += max(group.outputs, 1)


@dataclass(frozen=True, slots=True)
class _Task:
    """One group of files to be ordered."""

    session: Session = field(repr=False)
    scan: Scan = field(repr=False)
    tx: Workplace = field(repr=False)
    group: FileGroup
    files: tuple[DataFile, ...]
    """Those with rows that stay."""
    rows: int
    fewer: bool
    """Whether rows of these files are left out."""
    order: Order
    new: NewFiles
    dictionary: int | None = None

    def staged(self, threads: int) -> list[StagedFile]:
        """The new files. A group without rows becomes one empty file, unless duplicates emptied it."""
        if not self.rows and self.group.rows:
            return []
        with self.session.fork() as session:
            task = replace(self, session=session)
            count = max(1, min(self.group.outputs, self.rows))
            tabled = count > 1 or self._needs_table
            staged = task._in_parts(count, threads) if tabled else task._whole()
        check_rows(staged, self.rows, self.group)
        return staged

    @property
    def _needs_table(self) -> bool:
        """Whether DuckDB writes columns that are NOT NULL, which stay so in tables."""
        return self.new.fresh is None and not all(each.nullable for each in self._schema)

    @property
    def _schema(self) -> pa.Schema:
        return self.new.form.schema

    def _rows(self, columns: Sequence[str]) -> str:
        """Some columns and, in one number, where a row comes from."""
        place = f"(t.{name(FILE)} << 40) | t.{name(POS)} AS {name(POS)}"
        sql = f"SELECT {named(columns, 't')}, {place} FROM ({self.scan.sql(columns, self.files)}) t"
        if self.fewer:
            gone = self.session.table(_GONE)
            sql += f" ANTI JOIN {gone} g ON t.{name(FILE)} = g.{name(FILE)} AND t.{name(POS)} = g.{name(POS)}"
        return sql

    def _ordered(self, rows: str) -> tuple[str, str]:
        """The rows of a query with all that their order needs, and that order; NULLs last."""
        if self.order.plain:
            kinds = [self._schema.field(each).type for each in self.order.by]
            terms = [
                f"{key(name(each), kind)} ASC NULLS LAST"
                for each, kind in zip(self.order.by, kinds, strict=True)
            ]
            return rows, ", ".join([*terms, f"{name(POS)} ASC"])
        order = self.order.measured(self._sample())
        codes = Codes.of(self.session, order, self._schema, table=f"curve-{self.new.first}")
        return codes.sql(rows), f"{name(codes.column)} ASC, {name(POS)} ASC"

    def _sample(self) -> pa.Table:
        """Some rows of the columns to order by, spread evenly over some of the files."""
        most = min(len(self.files), MOST_GROUPS)
        files = tuple(self.files[number * len(self.files) // most] for number in range(most))
        step = max(1, sum(file.rows for file in files) // SAMPLE_ROWS)
        rows = replace(self, files=files)._rows(self.order.by)
        sql = f"SELECT {named(self.order.by)} FROM ({rows}) WHERE {_shuffled(name(POS))} % {step} = 0"
        return restored(self.session.arrow(sql), self.scan.schema)

    def _whole(self) -> list[StagedFile]:
        rows, order = self._ordered(self._optional(self._rows(self._schema.names)))
        query = f"SELECT {named(self._schema.names)} FROM ({rows}) ORDER BY {order}"
        return self._write(self.session, 0, self.rows, query)

    def _in_parts(self, count: int, threads: int) -> list[StagedFile]:
        """All rows in order in a table, which is then written part by part."""
        table = self.session.table(f"sorted-{self.new.first}")
        edges = [self.rows * number // count for number in range(count + 1)]

        def write(item: tuple[int, tuple[int, int]]) -> list[StagedFile]:
            number, (low, high) = item
            with self.session.fork() as session:
                return self._write(session, number, high - low, self._part(table, low, high))

        self._fill(table)
        staged = list(in_order(write, enumerate(pairwise(edges)), threads=min(threads, count)))
        self.session.run(f"DROP TABLE {table}")  # after an error the session lets go of all it has
        return [file for files in staged for file in files]

    def _fill(self, table: str) -> None:
        rows, order = self._ordered(self._rows(self._schema.names))
        columns = named(self._schema.names)
        if self.session.ordered:
            sql = f"SELECT {columns} FROM ({rows}) ORDER BY {order}"
        else:
            sql = f"SELECT {columns}, row_number() OVER (ORDER BY {order}) - 1 AS {name(POS)} FROM ({rows})"
        self.session.run(f"CREATE OR REPLACE TABLE {table} AS {sql}")
        found = self.session.rows(f"SELECT count(*) FROM {table}")[0][0]
        if found != self.rows:
            raise DamagedTable(
                f"{len(self.files):,} files with {self.rows:,} rows to write became {found:,} rows.",
                path=self.group.files[0].path,
                hint="nothing was changed; check the files with inspect() and run again.",
            )

    def _part(self, table: str, low: int, high: int) -> str:
        columns = named(self._schema.names)
        number = "rowid" if self.session.ordered else name(POS)
        mine = f"{number} >= {low} AND {number} < {high}"
        rows = f"SELECT {columns}, {number} AS {name(POS)} FROM {table} WHERE {mine}"
        return f"SELECT {columns} FROM ({self._optional(rows)}) ORDER BY {name(POS)} ASC"

    def _optional(self, rows: str) -> str:
        """What DuckDB's writer has to be told of columns that are not NOT NULL, if it writes them."""
        return optional(self._schema, rows) if self.new.fresh is None else rows

    def _write(self, session: Session, number: int, rows: int, query: str) -> list[StagedFile]:
        new, ordinal = self.new, self.new.first + number
        if new.fresh is not None:
            return new.write(number, rows, self._pieces(session, query))
        layout = replace(new.form.layout, row_group_rows=new.row_group_rows(rows))
        target = target_of(
            replace(new.form, layout=layout), self.tx, f"optimized-{ordinal:05d}", self.dictionary
        )
        partition = self.group.partition
        path = self.tx.place(partition, "optimized", ordinal, beside=self.group.files[0])
        try:
            return [target.write(session, query, path, partition, rows=rows)]
        except OtherTypes as error:
            raise NotSupported(
                f"DuckDB cannot write a file of {self.group.files[0].path}'s schema: {error}.",
                path=path,
                hint='nothing was changed; use engine="arrow".',
            ) from error

    def _pieces(self, session: Session, query: str) -> Iterator[pa.Table]:
        """Rows of a query, as many at a time as take some megabytes."""
        with closing(session.batches(query, batch_rows(self.files))) as batches:
            for batch in batches:
                yield restored(pa.Table.from_batches([batch]), self._schema)


def _shuffled(place: str) -> str:
    """A number that says nothing about where a row comes from, and is the same every time."""
    return f"(hash({place}) >> 1)"
