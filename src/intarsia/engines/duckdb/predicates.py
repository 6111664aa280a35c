"""Matching a predicate: DuckDB reads, and picks rows where it means the same; the rest is evaluated here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.expr import columns as columns_of
from intarsia.core.files import DataFile
from intarsia.core.intent import Delete, Predicate, Update, Write
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.planning import predicate_columns
from intarsia.core.ports import Progress
from intarsia.engines.arrow.predicates import hit_positions, settle_predicate
from intarsia.engines.duckdb.conditions import divided
from intarsia.engines.duckdb.positions import by_file, row_numbers
from intarsia.engines.duckdb.results import restored
from intarsia.engines.duckdb.scan import Scan
from intarsia.engines.duckdb.seen import dead_rows, live_rows
from intarsia.engines.duckdb.session import BATCH_ROWS, Session
from intarsia.engines.duckdb.text import FILE, POS, named

__all__ = ["batch_rows", "match_predicate"]

FILES_AT_ONCE = 64
"""So many are read by one statement, which names the row groups to look into."""
_BATCH_BYTES = 64 << 20
_LEAST_BATCH = 2048


def match_predicate(
    plan: Plan, intent: Delete | Update | Write, session: Session, progress: Progress
) -> Matches:
    """Which rows the predicate of a DELETE, UPDATE or overwrite hits.

    Memory: a batch of rows, and 16 bytes per row that is hit. Raises what evaluating the predicate raises,
    as any engine does.
    """
    scans = plan.chosen("scan")
    if intent.where is None:
        return settle_predicate(plan, scans, _whole(plan, session, scans))
    if isinstance(intent.where, pc.Expression) and any(item.row_groups for item in scans):
        hit_positions(intent.where, pa.Table.from_batches([], plan.snapshot.schema))  # names, types
    search = _Search.of(plan, intent, session, scans)
    found: list[Hits] = []
    for start in range(0, len(scans), FILES_AT_ONCE):
        found += search.hits(scans[start : start + FILES_AT_ONCE])
        progress("scan rows", len(found), len(scans))
    return settle_predicate(plan, scans, found)


def _whole(plan: Plan, session: Session, scans: Sequence[FilePlan]) -> list[Hits]:
    """All rows of files that are there."""
    files = [item.file for item in scans]
    dead = dead_rows(files, plan.snapshot.filesystem, threads=session.threads)
    return [Hits(live_rows(file, dead.get(file.path))) for file in files]


@dataclass(frozen=True, slots=True)
class _Search:
    scan: Scan
    picked: str | None
    """What DuckDB picks rows by."""
    rest: Predicate
    """What is evaluated of these."""
    reads: tuple[str, ...]
    """The columns of both."""
    batch_rows: int | None

    @staticmethod
    def of(
        plan: Plan, intent: Delete | Update | Write, session: Session, scans: Sequence[FilePlan]
    ) -> _Search:
        schema = plan.snapshot.schema
        picked, rest = divided(intent.where, schema)
        reads = predicate_columns(intent.where, schema)
        if rest is None and not columns_of(intent.where):
            reads = []
        scan = Scan.of(session, plan.snapshot, [item.file for item in scans], schema, columns=reads)
        return _Search(scan, picked, rest, tuple(reads), intent.options.batch_rows)

    def hits(self, scans: Sequence[FilePlan]) -> list[Hits]:
        """The rows of some files where the predicate is TRUE."""
        files = [item.file for item in scans]
        return [Hits(rows) for rows in by_file(files, self._found(scans, files))]

    def _found(self, scans: Sequence[FilePlan], files: Sequence[DataFile]) -> Iterator[pa.Int64Array]:
        schema = self.scan.schema
        wanted = [] if self.rest is None else predicate_columns(self.rest, schema)
        first = self.scan.numbers[files[0].path]
        looked_at = self.scan.within([(item.file, item.row_groups) for item in scans])
        conditions = [each for each in (looked_at, self.picked) if each is not None]
        where = f" WHERE {' AND '.join(f'({each})' for each in conditions)}" if conditions else ""
        sql = (
            f"SELECT {named([FILE, POS, *wanted])}"
            f" FROM ({self.scan.sql(self.reads, files, keys=True)}) t{where}"
        )
        rows = batch_rows(files, self.batch_rows) if wanted else BATCH_ROWS
        with closing(self.scan.session.batches(sql, rows)) as batches:
            for batch in batches:
                numbers = pc.subtract(batch.column(0), pa.scalar(first, pa.int64()))
                mine = row_numbers(files, numbers, batch.column(1))
                if self.rest is not None:
                    table = restored(pa.Table.from_batches([batch]).select(wanted), schema)
                    mine = mine.take(hit_positions(self.rest, table))
                yield mine


def batch_rows(files: Sequence[DataFile], asked: int | None = None) -> int:
    """How many rows to have in Arrow at once: what was asked for, else what takes some megabytes."""
    if asked is not None:
        return min(asked, BATCH_ROWS)
    rows = sum(file.records for file in files)
    size = sum(
        file.footer.row_group(group).total_byte_size
        for file in files
        if file.footer is not None
        for group in range(file.footer.num_row_groups)
    )
    return max(_LEAST_BATCH, min(BATCH_ROWS, _BATCH_BYTES * rows // max(size, 1)))
