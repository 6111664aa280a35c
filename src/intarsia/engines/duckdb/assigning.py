"""New values of assigned columns: rows read by DuckDB, expressions evaluated as on every engine."""

from __future__ import annotations

import pyarrow as pa

from intarsia.core.matches import Hits
from intarsia.core.rule import Assign
from intarsia.engines.arrow.overlay import take_rows
from intarsia.engines.arrow.rewrite import Rewrite, assigned, inputs
from intarsia.engines.duckdb.results import restored
from intarsia.engines.duckdb.scan import Scan
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.text import POS, name, named

__all__ = ["assigned_rows"]


def assigned_rows(
    task: Rewrite, action: Assign, hits: Hits, scan: Scan, source: pa.Table, session: Session
) -> pa.Table:
    """The new values of the assigned columns, row by row that changes.

    Memory: the columns that the expressions read, of the rows that change in one file.
    """
    nested = {path[0] for path, _ in action.values if len(path) > 1}
    needed = sorted({*inputs([action]), *nested})
    rows = _rows(task, hits, scan, session, needed)
    other = None
    if hits.sources is not None and not hits.sources.null_count:
        other = take_rows(source, hits.sources)
    values = assigned(
        rows, action, source=other, schema=task.schema, operation=task.operation, path=task.file.path
    )
    return pa.table(values)


def _rows(task: Rewrite, hits: Hits, scan: Scan, session: Session, columns: list[str]) -> pa.Table:
    if not columns:  # rows are counted by a column, whatever it is
        return pa.table({POS: hits.positions})
    with session.fork() as apart, apart.view(pa.table({POS: hits.positions})) as wanted:
        sql = (
            f"SELECT {named(columns, 't')} FROM ({scan.sql(columns, [task.file])}) t"
            f" SEMI JOIN {wanted} w ON t.{name(POS)} = w.{name(POS)} ORDER BY t.{name(POS)} ASC"
        )
        return restored(apart.arrow(sql), task.schema)
