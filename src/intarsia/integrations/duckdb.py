"""DuckDB: the rows and the files of a table, and what an operation did to them, as relations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Unpack

import duckdb
import pyarrow as pa

from intarsia import reading
from intarsia.arguments import Predicate
from intarsia.core.report import MergeResult
from intarsia.core.snapshot import Snapshot
from intarsia.errors import InputError, NotSupported, SchemaMismatch
from intarsia.options import Columns, ReadOptions, TableTarget
from intarsia.request import show_target

__all__ = ["list_files", "relation"]

_FILES = pa.schema([("path", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])


def relation(
    target: TableTarget | Snapshot,
    connection: duckdb.DuckDBPyConnection | None = None,
    *,
    columns: Columns | None = None,
    where: Predicate | None = None,
    **options: Unpack[ReadOptions],
) -> duckdb.DuckDBPyRelation:
    """The rows of a dataset or an Iceberg table as a relation of DuckDB, read whenever it is evaluated.

    Each evaluation reads one consistent state, that of then; deletes of an Iceberg table are applied. Rows
    are streamed: memory is a row group per thread, and what DuckDB holds. Conditions of a query on the
    relation are DuckDB's, and prune no file: ``columns``, and ``where`` as SQL text, do. What fails in an
    evaluation is an error of DuckDB's with the text of ours.

    Args:
        target: as in :func:`intarsia.merge`; or a snapshot of a Parquet dataset, which stays the state that
            it is, and whose files conditions and projections of DuckDB's prune.
        connection: DuckDB's default connection if None.
        columns: all of them if None.
        where: SQL text or a ``pyarrow.compute`` expression; rows for which it is TRUE.
        options: see :class:`intarsia.options.ReadOptions`.

    Raises:
        NothingMatched: there is no such dataset.
        ColumnNotFound, InputError: a column or ``where`` does not fit the table.
        NotSupported: DuckDB lacks the type of a column.

    Example:
        >>> from intarsia.integrations.duckdb import relation
        >>> relation("lake/orders", columns=["id"]).aggregate("sum(id)").fetchall()
        [(3,)]
    """
    connection = connection or duckdb.default_connection()
    if isinstance(target, Snapshot):
        if columns is not None or where is not None or options:
            raise InputError(
                "of a snapshot there is a relation of all rows.", hint="filter and project that."
            )
        return connection.from_arrow(target.dataset())

    def read() -> pa.RecordBatchReader:
        return reading.read(target, columns=columns, where=where, **options)

    with read() as reader:
        rows = _Rows(show_target(target), reader.schema, read)
    try:
        return connection.from_arrow(rows)
    except duckdb.NotImplementedException as error:
        raise NotSupported(
            f"DuckDB lacks the type of a column: {error}.",
            path=rows.name,
            hint="leave the column out: relation(..., columns=[...]).",
        ) from error


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that DuckDB may read many times; it often asks for the schema alone, which opens no file."""

    name: str
    schema: pa.Schema
    read: Callable[[], pa.RecordBatchReader]

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        stream = pa.RecordBatchReader.from_batches(self.schema, self._read_batches())
        return stream.__arrow_c_stream__(requested_schema)

    def _read_batches(self) -> Iterator[pa.RecordBatch]:
        with self.read() as reader:
            if not reader.schema.equals(self.schema):
                raise SchemaMismatch(
                    "the table has other columns than when the relation was made.",
                    path=self.name,
                    hint="make the relation again.",
                )
            yield from reader


def list_files(
    of: Snapshot | MergeResult, connection: duckdb.DuckDBPyConnection | None = None
) -> duckdb.DuckDBPyRelation:
    """The files of a snapshot, or those that an operation looked at, as a relation of DuckDB.

    It has the columns ``path``, ``rows`` and ``bytes``; of a result also ``operation``: rewritten, inserted,
    preserved, removed or with_deletes.

    Args:
        of: what :func:`intarsia.snapshot`, or an operation such as :func:`intarsia.merge`, returned.
        connection: DuckDB's default connection if None.

    Raises:
        duckdb.Error: the connection cannot be used, such as one that is closed.

    Example:
        >>> import intarsia as it
        >>> from intarsia.integrations.duckdb import list_files
        >>> list_files(it.snapshot("lake/orders")).aggregate("count(*), sum(rows)").fetchall()
        [(1, 2)]
    """
    if isinstance(of, Snapshot):
        listed = [{"path": of.show_path(file), "rows": file.rows, "bytes": file.size} for file in of.files]
        table = pa.Table.from_pylist(listed, schema=_FILES)
    else:
        touched = [
            {
                "path": file.path,
                "rows": file.row_count,
                "bytes": file.size_bytes,
                "operation": file.operation,
            }
            for file in of.files
        ]
        table = pa.Table.from_pylist(touched, schema=_FILES.append(pa.field("operation", pa.string())))
    return (connection or duckdb.default_connection()).from_arrow(table)
