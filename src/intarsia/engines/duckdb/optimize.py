"""Optimizing: DuckDB sorts the rows of each group along a curve, on disk if needed; the kernel writes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.python_values import make_array, make_scalar
from intarsia.core.change import Matches, Staged, StagedFile
from intarsia.core.curve import choose_bits, compute_gray_flips, compute_step_ranks, spread_bits
from intarsia.core.intent import OptimizeIntent
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import OutputLocation, Progress
from intarsia.core.snapshot import DataFile
from intarsia.engines.duckdb.predicate import choose_batch_rows
from intarsia.engines.duckdb.scan import Scan, is_float, make_rewritten_schema
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.source import normalize_key
from intarsia.engines.duckdb.sql import FILE, POS, find_sql_type, quote, quote_all, restore_types
from intarsia.kernel.compact import check_rows
from intarsia.kernel.optimize import NewFiles, count_stored_bytes, make_order
from intarsia.kernel.sort import MOST_GROUPS, SAMPLE_ROWS, Order
from intarsia.kernel.threads import map_in_order
from intarsia.kernel.write import widen_schema

__all__ = ["CurveCodes", "stage_optimize"]

_DROPPED = "dropped"
_ALONE_ROWS = 1 << 20
"""Rows of a group from which it is sorted alone, with all threads and memory of DuckDB."""


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

    DuckDB sorts, in its temporary files where rows do not fit in memory, and the kernel writes the sorted
    rows. Rows of ``drops`` are left out. At most ``threads`` files are written at once, fewer where their
    rows would take more than ``memory_bytes``. Memory: that, DuckDB's limit, and a row group for each file
    being written. The table is not changed.

    Raises:
        ColumnNotFound: a clustering column is not there.
        InputError: a clustering column is nested, there are too many, or the curve is unknown.
        DamagedTable: a file has not the rows its footer says.
    """
    intent = plan.intent
    assert isinstance(intent, OptimizeIntent)
    order = make_order(plan)
    every = [file for group in plan.groups for file in group.files]
    scan = Scan.of(session, plan.snapshot, every, make_rewritten_schema(plan))
    _write_dropped(scan, drops)
    tasks = list(_make_tasks(plan, tx, scan, order, drops))
    small = all(task.rows <= _ALONE_ROWS for task in tasks)
    outer = min(threads, len(tasks)) if small else 1
    inner = 1 if outer > 1 else threads
    staged: list[StagedFile] = []
    written = map_in_order(lambda task: task.stage(inner, memory_bytes), tasks, threads=outer)
    for number, files in enumerate(written):
        staged += files
        progress("write files", number + 1, len(tasks))
    return Staged(added=tuple(staged))


def _write_dropped(scan: Scan, drops: Matches) -> None:
    """Write the rows to leave out to a table, by file and position."""
    rows = [
        pa.table({FILE: pa.repeat(make_scalar(number, pa.int64()), len(hits)), POS: hits.positions})
        for number, hits in ((scan.numbers[path], hits) for path, hits in drops.hits.items())
    ]
    if rows:
        with scan.session.register_view(pa.concat_tables(rows)) as view:
            scan.session.run(f"CREATE OR REPLACE TABLE {scan.session.name_table(_DROPPED)} AS FROM {view}")


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
    """The files with rows that stay."""
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
        """Write the sorted rows, which are one stream, to files; as many at once as fit in memory."""
        rows, order = self._add_order(self._select_rows(self._schema.names))
        query = f"SELECT {quote_all(self._schema.names)} FROM ({rows}) ORDER BY {order}"
        count = max(1, min(self.group.outputs, self.rows))
        held = min(threads, count, memory_bytes * count // max(2 * count_stored_bytes(self.files), 1))
        with closing(self._read_pieces(query)) as pieces:
            files: Iterator[tuple[int, int, Iterable[pa.Table]]] = self._cut_files(pieces, count)
            if held > 1:
                files = ((number, rows, list(mine)) for number, rows, mine in files)
            write = map_in_order(lambda item: self.new.write(*item), files, threads=held, ahead=held - 1)
            return [file for staged in write for file in staged]

    def _cut_files(
        self, pieces: Iterator[pa.Table], count: int
    ) -> Iterator[tuple[int, int, Iterator[pa.Table]]]:
        """Number, rows and pieces of each file; the pieces have to be read one file after the other."""
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
            # The last file gets all remaining rows, so that the count of rows shows any too many.
            yield number, high - low, read(high - low if number + 1 < count else None)

    @property
    def _schema(self) -> pa.Schema:
        """The columns of the new files; a batch may hold more values than narrow dictionaries can number."""
        return widen_schema(self.new.form.schema)

    def _select_rows(self, columns: Sequence[str]) -> str:
        """SQL for some columns, and for the file and position of each row as one number."""
        place = f"(t.{quote(FILE)} << 40) | t.{quote(POS)} AS {quote(POS)}"
        sql = f"SELECT {quote_all(columns, 't')}, {place} FROM ({self.scan.make_sql(columns, self.files)}) t"
        if self.fewer:
            gone = self.session.name_table(_DROPPED)
            same = " AND ".join(f"t.{quote(each)} = g.{quote(each)}" for each in (FILE, POS))
            sql += f" ANTI JOIN {gone} g ON {same}"
        return sql

    def _add_order(self, rows: str) -> tuple[str, str]:
        """The query with the columns to order by, and the ORDER BY terms; NULLs last."""
        if self.order.plain:
            kinds = [self._schema.field(each).type for each in self.order.by]
            terms = [
                f"{normalize_key(quote(each), kind)} ASC NULLS LAST"
                for each, kind in zip(self.order.by, kinds, strict=True)
            ]
            return rows, ", ".join([*terms, f"{quote(POS)} ASC"])
        order = self.order.with_boundaries(self._read_sample())
        codes = CurveCodes.of(self.session, order, self._schema, table=f"curve-{self.new.first}")
        return codes.make_sql(rows), f"{quote(codes.column)} ASC, {quote(POS)} ASC"

    def _read_sample(self) -> pa.Table:
        """Some rows of the columns to order by, spread evenly over some of the files."""
        most = min(len(self.files), MOST_GROUPS)
        files = tuple(self.files[number * len(self.files) // most] for number in range(most))
        step = max(1, sum(file.rows for file in files) // SAMPLE_ROWS)
        rows = replace(self, files=files)._select_rows(self.order.by)
        sql = (
            f"SELECT {quote_all(self.order.by)} FROM ({rows}) WHERE {_hash_position(quote(POS))} % {step} = 0"
        )
        return restore_types(self.session.fetch_arrow(sql), self.scan.schema)

    def _read_pieces(self, query: str) -> Generator[pa.Table, None, None]:
        """The rows of a query, some megabytes at a time."""
        with closing(self.session.read_batches(query, choose_batch_rows(self.files))) as batches:
            for batch in batches:
                yield restore_types(pa.Table.from_batches([batch]), self._schema)


def _hash_position(place: str) -> str:
    """SQL for a number that does not depend on the order of rows, and is the same in every run."""
    return f"(hash({place}) >> 1)"


@dataclass(frozen=True, slots=True)
class CurveCodes:
    """Positions on a measured curve as SQL: a binary search among boundaries, then lookups in small lists.

    The lists are in a table of one row, so that DuckDB holds them once and not with every row. The codes are
    exactly those of :func:`intarsia.core.curve.compute_curve_codes`; a Python function would take twice the
    time and the interpreter's lock.
    """

    order: Order
    schema: pa.Schema
    """The types of the query's columns."""
    table: str
    """The table of the lists, as SQL."""
    own: str
    """The prefix of the names of intermediate columns."""

    @staticmethod
    def of(session: Session, order: Order, schema: pa.Schema, *, table: str) -> CurveCodes:
        """Writes the lists into a table of the session."""
        codes = CurveCodes(order, schema, session.name_table(table), _find_unused_prefix(schema.names))
        lists = pa.table({known: _make_list(values) for known, values in codes._iterate_lists()})
        with session.register_view(lists) as view:
            session.run(f"CREATE OR REPLACE TABLE {codes.table} AS SELECT {codes._cast_lists()} FROM {view}")
        return codes

    @property
    def column(self) -> str:
        """The name that the code has in :meth:`make_sql`."""
        return self._name("code")

    def make_sql(self, rows: str) -> str:
        """A query with the code of each row as another column."""
        width = range(len(self.order.by))
        own = ", ".join(quote(known) for known, _ in self._iterate_lists())
        left = ", ".join([own, *(self._name_at(n) for n in width)])
        sql = f"SELECT r.*, l.*, {', '.join(f'0::BIGINT AS {self._name_at(n)}' for n in width)}"
        sql = f"{sql} FROM ({rows}) r, {self.table} l"
        for step in self._search():
            sql = _replace_columns(sql, step)
        if self.order.curve == "hilbert":
            sql = _replace_columns(sql, [f"{self._rank(n)}::BIGINT AS {self._name_at(n)}" for n in width])
            for step in self._transform():
                sql = _replace_columns(sql, step)
        return f"SELECT * EXCLUDE ({left}), {self._make_code()} AS {quote(self.column)} FROM ({sql})"

    @property
    def _boundaries(self) -> tuple[pa.Array, ...]:
        assert self.order.boundaries is not None
        return self.order.boundaries

    @property
    def _bits(self) -> int:
        return choose_bits(len(self.order.by))

    def _name(self, what: str) -> str:
        return f"{self.own}{what}"

    def _name_at(self, number: int) -> str:
        """The column with the number of boundaries that are not above a value; later its coordinate."""
        return quote(self._name(f"at{number}"))

    def _iterate_lists(self) -> Iterator[tuple[str, pa.Array]]:
        bits, width = self._bits, len(self.order.by)
        interleaved = spread_bits(bits, width)
        for number, limits in enumerate(self._boundaries):
            ranks = pa.concat_arrays([compute_step_ranks(len(limits), bits), _make_nan_rank(bits)])
            if self.order.curve == "zorder":  # ranks are final, so their bits are spread here
                ranks = pc.shift_left(interleaved.take(ranks), make_scalar(width - 1 - number, pa.uint64()))
            yield self._name(f"limits{number}"), limits
            yield self._name(f"ranks{number}"), ranks
        if self.order.curve == "hilbert":
            yield self._name("flips"), compute_gray_flips(bits)
            yield self._name("spread"), interleaved

    def _cast_lists(self) -> str:
        limits = {self._name(f"limits{n}"): self._get_sql_type(n) for n in range(len(self.order.by))}
        return ", ".join(
            f"CAST({quote(known)} AS {limits[known]}[]) AS {quote(known)}"
            if known in limits
            else quote(known)
            for known, _ in self._iterate_lists()
        )

    def _get_dtype(self, number: int) -> pa.DataType:
        return self.schema.field(self.order.by[number]).type

    def _get_sql_type(self, number: int) -> str:
        kind = str(find_sql_type(self._get_dtype(number)))
        return "UTINYINT" if kind == "BOOLEAN" else kind

    def _make_value(self, number: int) -> str:
        value = quote(self.order.by[number])
        return f"{value}::UTINYINT" if str(find_sql_type(self._get_dtype(number))) == "BOOLEAN" else value

    def _search(self) -> Iterator[list[str]]:
        """Steps of a binary search; an index beyond the end of a list is NULL, which no value is above."""
        reach = [1 << (len(limits).bit_length() - 1) if len(limits) else 0 for limits in self._boundaries]
        while any(reach):
            yield [
                f"CASE WHEN {self._make_value(n)}"
                f" >= {quote(self._name(f'limits{n}'))}[{self._name_at(n)} + {far}]"
                f" THEN {self._name_at(n)} + {far} ELSE {self._name_at(n)} END AS {self._name_at(n)}"
                for n, far in enumerate(reach)
                if far
            ]
            reach = [far >> 1 for far in reach]

    def _rank(self, number: int) -> str:
        ranks = quote(self._name(f"ranks{number}"))
        index = f"{self._name_at(number)} + 1"
        if is_float(self._get_dtype(number)):
            index = f"CASE WHEN isnan({self._make_value(number)}) THEN len({ranks}) ELSE {index} END"
        return f"{ranks}[{index}]"

    def _transform(self) -> Iterator[list[str]]:
        """Steps of the Hilbert curve as in :mod:`intarsia.core.curve`: low bits are inverted or exchanged."""
        first = self._name_at(0)
        for q in range(self._bits - 1, 0, -1):
            below = (1 << q) - 1
            for number in range(len(self.order.by)):
                x = self._name_at(number)
                invert = f"((({x} >> {q}) & 1) * {below})"
                if number == 0:
                    yield [f"xor({x}, {invert}) AS {x}"]
                    continue
                swap = f"(xor({first}, {x}) & xor({invert}, {below}))"
                yield [f"xor({x}, {swap}) AS {x}", f"xor({first}, xor({swap}, {invert})) AS {first}"]
        for number in range(1, len(self.order.by)):
            yield [f"xor({self._name_at(number)}, {self._name_at(number - 1)}) AS {self._name_at(number)}"]
        flips = f"{quote(self._name('flips'))}[{self._name_at(len(self.order.by) - 1)} + 1]"
        yield [
            f"xor({self._name_at(n)}, {flips}::BIGINT) AS {self._name_at(n)}"
            for n in range(len(self.order.by))
        ]

    def _make_code(self) -> str:
        """SQL for the bits of all axes and, above them, a bit for NULL of each column, the first highest."""
        width, parts = len(self.order.by), []
        for number, column in enumerate(self.order.by):
            if self.order.curve == "hilbert":
                interleaved = f"{quote(self._name('spread'))}[{self._name_at(number)} + 1]"
                parts.append(f"({interleaved} << {width - 1 - number}::UBIGINT)")
            else:
                parts.append(self._rank(number))
            bit = 1 << (self._bits * width + width - 1 - number)
            parts.append(f"CASE WHEN {quote(column)} IS NULL THEN {bit}::UBIGINT ELSE 0::UBIGINT END")
        return " | ".join(parts)


def _replace_columns(sql: str, columns: Sequence[str]) -> str:
    """One more step as a query around the last one, so that no expression is computed twice."""
    return f"SELECT * REPLACE ({', '.join(columns)}) FROM ({sql})"


def _make_list(values: pa.Array) -> pa.Array:
    """All values as one list."""
    return pa.LargeListArray.from_arrays(make_array([0, len(values)], pa.int64()), values)


def _make_nan_rank(bits: int) -> pa.Array:
    return make_array([(1 << bits) - 1], pa.uint16())


def _find_unused_prefix(names: Sequence[str]) -> str:
    own = "~"
    while any(each.lower().startswith(own) for each in names):
        own += "~"
    return own
