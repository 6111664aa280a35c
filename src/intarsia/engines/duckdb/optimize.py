"""Optimizing: DuckDB sorts the rows of each group along a curve, on disk if it has to; the kernel writes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa

from intarsia.core.change import Matches, Staged, StagedFile
from intarsia.core.intent import Optimize
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import OutputLocation, Progress
from intarsia.core.snapshot import DataFile
from intarsia.engines.duckdb.curve_sql import CurveCodes
from intarsia.engines.duckdb.predicate import choose_batch_rows
from intarsia.engines.duckdb.scan import Scan, rewritten_schema
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.source import normalize_key
from intarsia.engines.duckdb.sql import FILE, POS, quote, quote_all
from intarsia.engines.duckdb.types import restore_types
from intarsia.kernel.compact import check_rows
from intarsia.kernel.optimize import NewFiles, order_of, stored_bytes
from intarsia.kernel.sample import MOST_GROUPS, SAMPLE_ROWS
from intarsia.kernel.sort import Order
from intarsia.kernel.threads import in_order
from intarsia.kernel.write import widen_schema

__all__ = ["stage_optimize"]

_DROPPED = "dropped"
_ALONE_ROWS = 1 << 20
"""A group of more rows has DuckDB's threads, and its memory, for itself."""


def stage_optimize(
    plan: Plan,
    tx: OutputLocation,
    session: Session,
    progress: Progress,
    drops: Matches,
    *,
    threads: int,
    memory_bytes: int,
) -> Staged:
    """Write the rows of each group into new files, ordered along the curve over all of the group's new files.

    DuckDB sorts, through its temporary files where rows do not fit in memory, and the kernel writes what
    comes out. Rows that ``drops`` names are left out. At most ``threads`` files are written at once, fewer
    where their rows would take more than ``memory_bytes``. Memory: that, DuckDB's limit, and a row group for
    each file being written. Nothing of the table changes.

    Raises:
        ColumnNotFound: a clustering column is not there.
        InputError: a clustering column is nested, there are too many, or the curve is unknown.
        DamagedTable: a file has not the rows its footer says.
    """
    intent = plan.intent
    assert isinstance(intent, Optimize)
    order = order_of(plan)
    every = [file for group in plan.groups for file in group.files]
    scan = Scan.of(session, plan.snapshot, every, rewritten_schema(plan))
    _write_dropped(scan, drops)
    tasks = list(_make_tasks(plan, tx, scan, order, drops))
    small = all(task.rows <= _ALONE_ROWS for task in tasks)
    outer = min(threads, len(tasks)) if small else 1
    inner = 1 if outer > 1 else threads
    staged: list[StagedFile] = []
    written = in_order(lambda task: task.stage(inner, memory_bytes), tasks, threads=outer)
    for number, files in enumerate(written):
        staged += files
        progress("write files", number + 1, len(tasks))
    return Staged(added=tuple(staged))


def _write_dropped(scan: Scan, drops: Matches) -> None:
    """The rows to leave out, by file and place."""
    rows = [
        pa.table({FILE: pa.repeat(pa.scalar(number, pa.int64()), len(hits)), POS: hits.positions})
        for number, hits in ((scan.numbers[path], hits) for path, hits in drops.hits.items())
    ]
    if rows:
        with scan.session.view(pa.concat_tables(rows)) as view:
            scan.session.run(f"CREATE OR REPLACE TABLE {scan.session.table(_DROPPED)} AS FROM {view}")


def _make_tasks(
    plan: Plan, tx: OutputLocation, scan: Scan, order: Order, drops: Matches
) -> Iterator[SortTask]:
    first = 0
    for group in plan.groups:
        files = tuple(file for file in group.files if file.rows and file.path not in drops.dropped)
        gone = sum(len(drops.hits[file.path]) for file in files if file.path in drops.hits)
        rows = sum(file.rows for file in files) - gone
        new = NewFiles.of(group, plan, tx, order, first=first)
        yield SortTask(scan.session, scan, tx, group, files, rows, bool(gone), order, new)
        first += max(group.outputs, 1)


@dataclass(frozen=True, slots=True)
class SortTask:
    """One group of files to be ordered."""

    session: Session = field(repr=False)
    scan: Scan = field(repr=False)
    tx: OutputLocation = field(repr=False)
    group: FileGroup
    files: tuple[DataFile, ...]
    """Those with rows that stay."""
    rows: int
    fewer: bool
    """Whether rows of these files are left out."""
    order: Order
    new: NewFiles

    def stage(self, threads: int, memory_bytes: int) -> list[StagedFile]:
        """The new files. A group without rows becomes one empty file, unless duplicates emptied it."""
        if not self.rows and self.group.rows:
            return []
        with self.session.fork() as session:
            staged = replace(self, session=session)._stage_files(threads, memory_bytes)
        check_rows(staged, self.rows, self.group)
        return staged

    def _stage_files(self, threads: int, memory_bytes: int) -> list[StagedFile]:
        """All rows in order as one stream, which is cut into files; as many are written at once as fit."""
        rows, order = self._add_order(self._select_rows(self._schema.names))
        query = f"SELECT {quote_all(self._schema.names)} FROM ({rows}) ORDER BY {order}"
        count = max(1, min(self.group.outputs, self.rows))
        held = min(threads, count, memory_bytes * count // max(2 * stored_bytes(self.files), 1))
        with closing(self._read_pieces(query)) as pieces:
            files: Iterator[tuple[int, int, Iterable[pa.Table]]] = self._cut_files(pieces, count)
            if held > 1:
                files = ((number, rows, list(mine)) for number, rows, mine in files)
            write = in_order(lambda item: self.new.write(*item), files, threads=held, ahead=held - 1)
            return [file for staged in write for file in staged]

    def _cut_files(
        self, pieces: Iterator[pa.Table], count: int
    ) -> Iterator[tuple[int, int, Iterator[pa.Table]]]:
        """Number, rows and pieces of each file, to be read one file after the other."""
        left: list[pa.Table] = []

        def read(rows: int | None) -> Iterator[pa.Table]:
            while rows is None or rows:
                piece = left.pop() if left else next(pieces, None)
                if piece is None:
                    return
                if rows is not None and piece.num_rows > rows:
                    left.append(piece.slice(rows))
                    piece = piece.slice(0, rows)
                yield piece
                rows = None if rows is None else rows - piece.num_rows

        edges = [self.rows * number // count for number in range(count + 1)]
        for number, (low, high) in enumerate(pairwise(edges)):
            # The last file takes all that is left, so that rows too many are counted.
            yield number, high - low, read(high - low if number + 1 < count else None)

    @property
    def _schema(self) -> pa.Schema:
        """The columns of the new files; a batch may hold more values than narrow dictionaries can number."""
        return widen_schema(self.new.form.schema)

    def _select_rows(self, columns: Sequence[str]) -> str:
        """Some columns and, in one number, where a row comes from."""
        place = f"(t.{quote(FILE)} << 40) | t.{quote(POS)} AS {quote(POS)}"
        sql = f"SELECT {quote_all(columns, 't')}, {place} FROM ({self.scan.sql(columns, self.files)}) t"
        if self.fewer:
            gone = self.session.table(_DROPPED)
            same = " AND ".join(f"t.{quote(each)} = g.{quote(each)}" for each in (FILE, POS))
            sql += f" ANTI JOIN {gone} g ON {same}"
        return sql

    def _add_order(self, rows: str) -> tuple[str, str]:
        """The rows of a query with all that their order needs, and that order; NULLs last."""
        if self.order.plain:
            kinds = [self._schema.field(each).type for each in self.order.by]
            terms = [
                f"{normalize_key(quote(each), kind)} ASC NULLS LAST"
                for each, kind in zip(self.order.by, kinds, strict=True)
            ]
            return rows, ", ".join([*terms, f"{quote(POS)} ASC"])
        order = self.order.measured(self._read_sample())
        codes = CurveCodes.of(self.session, order, self._schema, table=f"curve-{self.new.first}")
        return codes.sql(rows), f"{quote(codes.column)} ASC, {quote(POS)} ASC"

    def _read_sample(self) -> pa.Table:
        """Some rows of the columns to order by, spread evenly over some of the files."""
        most = min(len(self.files), MOST_GROUPS)
        files = tuple(self.files[number * len(self.files) // most] for number in range(most))
        step = max(1, sum(file.rows for file in files) // SAMPLE_ROWS)
        rows = replace(self, files=files)._select_rows(self.order.by)
        sql = (
            f"SELECT {quote_all(self.order.by)} FROM ({rows}) WHERE {_hash_position(quote(POS))} % {step} = 0"
        )
        return restore_types(self.session.arrow(sql), self.scan.schema)

    def _read_pieces(self, query: str) -> Generator[pa.Table, None, None]:
        """Rows of a query, as many at a time as take some megabytes."""
        with closing(self.session.batches(query, choose_batch_rows(self.files))) as batches:
            for batch in batches:
                yield restore_types(pa.Table.from_batches([batch]), self._schema)


def _hash_position(place: str) -> str:
    """A number that says nothing about where a row comes from, and is the same every time."""
    return f"(hash({place}) >> 1)"
