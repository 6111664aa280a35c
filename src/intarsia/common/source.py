"""Rows that were taken in, in memory or spooled, and the same rows in another schema or fewer of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from intarsia.common.schema import conform_table
from intarsia.common.spool import Intake, take_rows
from intarsia.errors import InputError

__all__ = ["Source", "conform_batches", "conform_source", "select_known", "select_rows"]

_CHUNK_ROWS = 1 << 20


class Source:
    """Rows that were taken in, ready to be read as often as needed. A context manager.

    ``table`` is in memory, or mapped from a spool on disk where ``spooled``; closing lets go of both, and
    the spool is gone when nothing refers to the table any more.
    """

    __slots__ = ("_table", "origin", "rows", "schema", "spooled")

    def __init__(self, table: pa.Table, *, origin: str, spooled: bool = False) -> None:
        self._table: pa.Table | None = table
        self.schema: pa.Schema = table.schema
        self.rows: int = table.num_rows
        self.origin = origin
        self.spooled = spooled

    @property
    def table(self) -> pa.Table:
        if self._table is None:
            raise InputError(f"The source {self.origin} was closed.")
        return self._table

    def take(self, rows: Any) -> pa.Table:
        """The rows with these numbers, in this order; see :func:`take_rows`."""
        return take_rows(self.table, rows)

    def close(self) -> None:
        """Let go of the rows. Idempotent."""
        self._table = None

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Source({self.origin}, {self.rows} rows{', spooled' if self.spooled else ''})"


def conform_source(
    source: Source,
    schema: pa.Schema,
    *,
    operation: str,
    path: str,
    spool_dir: str | os.PathLike[str] | None = None,
) -> Source:
    """The source with exactly the schema's columns, order and types; itself when it has them already.

    Columns that the schema lacks are left out: whether they may be was decided before. A spooled source
    is cast batch by batch into a new spool. The source given stays open.

    Raises:
        SchemaMismatch: see :func:`intarsia.common.schema.conform_table`.
    """
    table = source.table
    if table.schema.equals(schema, check_metadata=True):
        return source
    if not source.spooled:
        known = select_known(table, schema)
        return Source(conform_table(known, schema, operation=operation, path=path), origin=source.origin)
    with Intake(0, spool_dir) as intake:
        intake.add(schema, conform_batches(table, schema, operation, path), as_is=True)
        (result,) = intake.tables()
        return Source(result, origin=source.origin, spooled=intake.spooled)


def select_known(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a table that a schema has, in the table's order."""
    return table.select([name for name in table.column_names if name in schema.names])


def conform_batches(
    table: pa.Table, schema: pa.Schema, operation: str, path: str
) -> Iterator[pa.RecordBatch]:
    """The table's rows in the schema, some at a time."""
    table = select_known(table, schema)
    for batch in table.to_batches(max_chunksize=_CHUNK_ROWS):
        yield from conform_table(
            pa.Table.from_batches([batch]), schema, operation=operation, path=path
        ).to_batches()


def select_rows(source: Source, rows: pa.Array, *, spool_dir: str | os.PathLike[str] | None = None) -> Source:
    """The source with only the rows of these numbers; a spooled one is spooled again."""
    if not source.spooled:
        return Source(source.take(rows), origin=source.origin)
    schema = source.schema
    pieces = (source.take(rows.slice(start, _CHUNK_ROWS)) for start in range(0, len(rows), _CHUNK_ROWS))
    with Intake(0, spool_dir) as intake:
        intake.add(schema, (batch for piece in pieces for batch in piece.to_batches()), as_is=True)
        (table,) = intake.tables()
        return Source(table, origin=source.origin, spooled=intake.spooled)
