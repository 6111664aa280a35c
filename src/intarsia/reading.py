"""The public functions that look at a table and change nothing: its state, a summary, its rows."""

from __future__ import annotations

import os
from typing import Unpack

import pyarrow as pa

import intarsia.show  # noqa: F401  values learn to show themselves
from intarsia.arguments import Predicate, list_columns
from intarsia.common.log import get_logger, operation_log
from intarsia.core.inspection import Inspection, inspect_snapshot
from intarsia.core.snapshot import Snapshot
from intarsia.core.validation import check_exists
from intarsia.options import Columns, InspectOptions, ReadOptions, TableTarget
from intarsia.request import make_request, show_target

log = get_logger(__name__)


def snapshot(target: TableTarget, **options: Unpack[InspectOptions]) -> Snapshot:
    """Read one consistent state of a table, also while a commit is under way or after a crash.

    Writes nothing.

    Args:
        target: as in :func:`merge`.
        options: see :class:`intarsia.options.InspectOptions`.

    Raises:
        InputError: this is no table, or an option that can have no effect.
        StorageError, DamagedTable: files or metadata cannot be read.

    Example:
        >>> import intarsia as it
        >>> it.snapshot("lake/orders").rows
        2
    """
    with operation_log(log, "snapshot", show_target(target)):
        return make_request("snapshot", "auto", target, options).table.snapshot()


def inspect(target: TableTarget, **options: Unpack[InspectOptions]) -> Inspection:
    """Summarize a table: files, rows, bytes, partitions, small files; from footers alone.

    Args:
        target: as in :func:`merge`.
        options: see :class:`intarsia.options.InspectOptions`.

    Raises:
        NothingMatched: there is no such table.
        StorageError, DamagedTable: files or metadata cannot be read.

    Example:
        >>> import intarsia as it
        >>> it.inspect("lake/orders").rows
        2
    """
    with operation_log(log, "inspect", show_target(target)):
        found = make_request("inspect", "auto", target, options).table.snapshot()
        check_exists(found, "inspect")
        return inspect_snapshot(found)


def read(
    target: TableTarget,
    *,
    columns: Columns | None = None,
    where: Predicate | None = None,
    **options: Unpack[ReadOptions],
) -> pa.RecordBatchReader:
    """Read the rows of a dataset or an Iceberg table as a stream of record batches, of one consistent state.

    Of an Iceberg table, position deletes, deletion vectors and equality deletes are applied and columns
    found by their ids. Files and row groups are pruned by ``where`` as SQL text, and no other columns are
    read than it needs; a ``pyarrow.compute`` expression cannot be looked into: with one, every column of
    every file is read. Memory: a row group per thread.

    The files of a dataset on a local disk are opened first, so that later commits change nothing; on
    another store, and where there are more files than half of those a process may have open, a file that
    is replaced while the stream is read ends it with CommitConflict.

    Args:
        target: as in :func:`merge`. A table without rows gives none, in its schema.
        columns: all of them if None.
        where: SQL text or a ``pyarrow.compute`` expression; rows for which it is TRUE.
        options: see :class:`intarsia.options.ReadOptions`.

    Raises:
        NothingMatched: there is no such dataset.
        ColumnNotFound, InputError: a column or ``where`` does not fit the table.
        CommitConflict: a file was replaced while it was read.

    Example:
        >>> import intarsia as it
        >>> it.read("lake/orders", columns=["id"], where="id < 2").read_all().num_rows
        1
    """
    with operation_log(log, "read", show_target(target)):
        request = make_request("read", "arrow", target, options, sql=(where,))
        threads = options.get("threads") or os.cpu_count() or 1
        return request.read(list_columns(columns, "columns"), where, threads)
