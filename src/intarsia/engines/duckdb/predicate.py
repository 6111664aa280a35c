"""Matching a predicate: DuckDB evaluates the parts that mean the same there; the rest is evaluated here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.python_values import make_scalar
from intarsia.core.change import Hits, Matches
from intarsia.core.evaluate import find_hit_positions
from intarsia.core.expr import (
    And,
    Column,
    Compare,
    Expr,
    In,
    IsNull,
    Literal,
    Not,
    Or,
    find_columns,
    split_conjuncts,
)
from intarsia.core.expr.run import can_fail
from intarsia.core.expr.types import NANOS, find_working_type
from intarsia.core.intent import DeleteIntent, Predicate, UpdateIntent, WriteIntent
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import Progress
from intarsia.core.prove import list_predicate_columns
from intarsia.core.snapshot import DataFile
from intarsia.engines.duckdb.scan import Scan, list_live_rows, number_rows, read_deleted_rows, split_by_file
from intarsia.engines.duckdb.session import BATCH_ROWS, Session
from intarsia.engines.duckdb.sql import (
    FILE,
    POS,
    find_sql_type,
    is_comparable,
    quote,
    quote_all,
    quote_text,
    restore_types,
)
from intarsia.kernel.match import resolve_hits

__all__ = ["choose_batch_rows", "compile_condition", "match_predicate", "split_predicate"]


FILES_AT_ONCE = 64
"""Files that one statement reads; it names their row groups."""
_BATCH_BYTES = 64 << 20
_LEAST_BATCH = 2048


def match_predicate(
    plan: Plan, intent: DeleteIntent | UpdateIntent | WriteIntent, session: Session, progress: Progress
) -> Matches:
    """Which rows the predicate of a DELETE, UPDATE or overwrite hits.

    Memory: a batch of rows, and 16 bytes per row that is hit. Raises what evaluating the predicate raises,
    as any engine does.
    """
    scans = plan.select("scan")
    if intent.where is None:
        return resolve_hits(plan, scans, _hit_every_row(plan, session, scans))
    if isinstance(intent.where, pc.Expression) and any(item.row_groups for item in scans):
        find_hit_positions(intent.where, pa.Table.from_batches([], plan.snapshot.schema))  # names, types
    search = PredicateSearch.of(plan, intent, session, scans)
    found: list[Hits] = []
    for start in range(0, len(scans), FILES_AT_ONCE):
        found += search.find_hits(scans[start : start + FILES_AT_ONCE])
        progress("scan rows", len(found), len(scans))
    return resolve_hits(plan, scans, found)


def _hit_every_row(plan: Plan, session: Session, scans: Sequence[FilePlan]) -> list[Hits]:
    """All live rows of the files."""
    files = [item.file for item in scans]
    deleted = read_deleted_rows(files, plan.snapshot.filesystem, threads=session.threads)
    return [Hits(list_live_rows(file, deleted.get(file.path))) for file in files]


@dataclass(frozen=True, slots=True)
class PredicateSearch:
    scan: Scan
    picked: str | None
    """The part that DuckDB evaluates, as SQL."""
    rest: Predicate
    """The part that is evaluated on the rows which DuckDB returns."""
    reads: tuple[str, ...]
    """The columns of both parts."""
    batch_rows: int | None

    @staticmethod
    def of(
        plan: Plan,
        intent: DeleteIntent | UpdateIntent | WriteIntent,
        session: Session,
        scans: Sequence[FilePlan],
    ) -> PredicateSearch:
        schema = plan.snapshot.schema
        picked, rest = split_predicate(intent.where, schema)
        reads = list_predicate_columns(intent.where, schema)
        if rest is None and not find_columns(intent.where):
            reads = []
        scan = Scan.of(session, plan.snapshot, [item.file for item in scans], schema, columns=reads)
        return PredicateSearch(scan, picked, rest, tuple(reads), intent.options.batch_rows)

    def find_hits(self, scans: Sequence[FilePlan]) -> list[Hits]:
        """The rows of some files where the predicate is TRUE."""
        files = [item.file for item in scans]
        return [Hits(rows) for rows in split_by_file(files, self._find_positions(scans, files))]

    def _find_positions(
        self, scans: Sequence[FilePlan], files: Sequence[DataFile]
    ) -> Iterator[pa.Int64Array]:
        schema = self.scan.schema
        wanted = [] if self.rest is None else list_predicate_columns(self.rest, schema)
        first = self.scan.numbers[files[0].path]
        looked_at = self.scan.select_row_groups([(item.file, item.row_groups) for item in scans])
        conditions = [each for each in (looked_at, self.picked) if each is not None]
        where = f" WHERE {' AND '.join(f'({each})' for each in conditions)}" if conditions else ""
        sql = (
            f"SELECT {quote_all([FILE, POS, *wanted])}"
            f" FROM ({self.scan.make_sql(self.reads, files, keys=True)}) t{where}"
        )
        rows = choose_batch_rows(files, self.batch_rows) if wanted else BATCH_ROWS
        with closing(self.scan.session.read_batches(sql, rows)) as batches:
            for batch in batches:
                numbers = pc.subtract(batch.column(0), make_scalar(first, pa.int64()))
                mine = number_rows(files, numbers, batch.column(1))
                if self.rest is not None:
                    table = restore_types(pa.Table.from_batches([batch]).select(wanted), schema)
                    mine = mine.take(find_hit_positions(self.rest, table))
                yield mine


def choose_batch_rows(files: Sequence[DataFile], asked: int | None = None) -> int:
    """How many rows a batch has: as many as asked for, else some megabytes."""
    if asked is not None:
        return min(asked, BATCH_ROWS)
    rows = sum(file.record_count for file in files)
    size = sum(
        file.footer.row_group(group).total_byte_size
        for file in files
        if file.footer is not None
        for group in range(file.footer.num_row_groups)
    )
    return max(_LEAST_BATCH, min(BATCH_ROWS, _BATCH_BYTES * rows // max(size, 1)))


_MOST_DEPTH = 200
"""DuckDB refuses expressions that are nested deeper than 1000."""
_DAY_NANOS = 86_400 * NANOS["s"]
_FIRST_DAY, _AFTER_LAST_DAY = -719_162, 2_932_897
"""Days since 1970 of the years 1 to 9999, which Arrow and DuckDB write as the same text."""


def split_predicate(where: Predicate, schema: pa.Schema) -> tuple[str | None, Predicate]:
    """The part of a predicate that DuckDB evaluates, and the part to evaluate on the rows it returns.

    None is no part. Both together select the rows of the predicate and raise the same errors as without
    DuckDB: a part that can fail is evaluated on every row for which the parts before it are not FALSE.
    """
    if isinstance(where, pc.Expression):
        return None, where
    parts = split_conjuncts(where)
    if not any(map(can_fail, parts)):
        done = [(part, compile_condition(part, schema)) for part in parts]
        rest = [part for part, sql in done if sql is None]
        return _join_conditions(sql for _, sql in done), _join_parts(rest)
    safe = takewhile(lambda part: not can_fail(part), parts)
    known = [sql for part in safe if (sql := compile_condition(part, schema)) is not None]
    return _join_conditions(f"({sql}) IS DISTINCT FROM FALSE" for sql in known), where


def _join_conditions(conditions: Iterable[str | None]) -> str | None:
    return " AND ".join(f"({each})" for each in conditions if each is not None) or None


def _join_parts(parts: Sequence[Expr]) -> Expr | None:
    joined: Expr | None = None
    for part in parts:
        joined = part if joined is None else And(joined, part)
    return joined


def compile_condition(expr: Expr, schema: pa.Schema, *, depth: int = 0) -> str | None:
    """A resolved condition as SQL; None where DuckDB might evaluate it differently."""
    if depth > _MOST_DEPTH:
        return None
    match expr:
        case Literal(value, kind) if pa.types.is_boolean(kind):
            return "CAST(NULL AS BOOLEAN)" if value is None else str(value).upper()
        case Column() if _find_exact_type(expr, schema) == pa.bool_():
            return quote(expr.path[0])
        case Not(operand):
            inner = compile_condition(operand, schema, depth=depth + 1)
            return None if inner is None else f"NOT ({inner})"
        case And() | Or():
            word = " AND " if isinstance(expr, And) else " OR "
            found = [compile_condition(each, schema, depth=depth + 1) for each in _flatten(expr, type(expr))]
            return None if None in found else word.join(f"({each})" for each in found)
        case IsNull(Column((column,))) if column in schema.names:
            return None if pa.types.is_nested(schema.field(column).type) else f"{quote(column)} IS NULL"
        case IsNull(operand):
            inner = compile_condition(operand, schema, depth=depth + 1)
            return None if inner is None else f"({inner}) IS NULL"
        case Compare(op, Column() as left, right):
            one, other = _compile_value(left, left, schema), _compile_value(right, left, schema)
            return None if one is None or other is None else f"{one} {op} {other}"
        case In(Column() as operand, items, negated):
            return _compile_membership(operand, items, negated, schema)
    return None


def _flatten(expr: Expr, of: type[And | Or]) -> list[Expr]:
    """The operands of nested ANDs, or nested ORs, from left to right."""
    found: list[Expr] = []
    waiting = [expr]
    while waiting:
        here = waiting.pop()
        if isinstance(here, And | Or) and isinstance(here, of):
            waiting += [here.right, here.left]
        else:
            found.append(here)
    return found


def _compile_membership(
    operand: Column, items: Sequence[Expr], negated: bool, schema: pa.Schema
) -> str | None:
    value = _compile_value(operand, operand, schema)
    found = [_compile_value(item, operand, schema) for item in items]
    if value is None or None in found or any(isinstance(item, Column) for item in items):
        return None
    if not found:  # an empty list; NULL stays NULL
        return f"{value} {'=' if negated else '<>'} {value}"
    return f"{value} {'NOT IN' if negated else 'IN'} ({', '.join(map(str, found))})"


def _compile_value(expr: Expr, beside: Column, schema: pa.Schema) -> str | None:
    """A column or a constant as SQL, if it has the type that ``beside`` is compared in."""
    kind = _find_exact_type(beside, schema)
    if kind is None:
        return None
    match expr:
        case Column() if _find_exact_type(expr, schema) == kind:
            return quote(expr.path[0])
        case Literal(_, own) if own == kind:
            return _compile_constant(expr)
    return None


def _find_exact_type(column: Column, schema: pa.Schema) -> pa.DataType | None:
    """The type that a column is compared in; None where DuckDB compares its values differently."""
    if len(column.path) != 1 or column.side is not None or column.path[0] not in schema.names:
        return None
    kind = schema.field(column.path[0]).type
    working = find_working_type(kind)
    exact = is_comparable(kind) and find_sql_type(working) is not None and not pa.types.is_floating(working)
    return working if exact else None


def _compile_constant(expr: Literal) -> str | None:
    value, kind = expr.value, expr.type
    if value is None:
        return f"CAST(NULL AS {_choose_column_type(kind)})"
    if isinstance(value, bool):
        return str(value).upper()
    if pa.types.is_temporal(kind):
        return _compile_moment(expr)
    if isinstance(value, str):
        return None if "\0" in value else quote_text(value)  # the end of the statement to older versions
    if isinstance(value, bytes):
        return f"from_hex('{value.hex()}')"
    written = f"{value:f}" if pa.types.is_decimal(kind) else str(value)
    return f"CAST({quote_text(written)} AS {_choose_column_type(kind)})"


def _choose_column_type(kind: pa.DataType) -> str:
    """DuckDB's type of such a column: it reads seconds and milliseconds as microseconds."""
    if pa.types.is_timestamp(kind) and kind.tz is None and kind.unit != "ns":
        return "TIMESTAMP"
    return str(find_sql_type(kind))


def _compile_moment(expr: Literal) -> str | None:
    value, kind = int(expr.value), expr.type
    day = _DAY_NANOS // (_DAY_NANOS if pa.types.is_date(kind) else NANOS[kind.unit])
    known = 0 <= value < day if pa.types.is_time(kind) else _FIRST_DAY * day <= value < _AFTER_LAST_DAY * day
    if not known:
        return None
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    plain = make_scalar(value, pa.timestamp(kind.unit)) if zoned else expr.scalar
    written = plain.cast(pa.string()).as_py()
    return f"CAST({quote_text(written + '+00' if zoned else written)} AS {_choose_column_type(kind)})"
