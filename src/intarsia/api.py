"""The library's face: one small set of calls for every engine and table.

Every call that changes a table is atomic (all or nothing, also across a crash) and raises typed errors
from :mod:`intarsia.errors`; with ``dry_run=True`` it stops after the plan and writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

import intarsia.show  # noqa: F401  values learn to show themselves
from intarsia.common.log import logger, operation_log
from intarsia.common.names import check_columns, spelled_as
from intarsia.core.effects import check_effects
from intarsia.core.expr import resolve
from intarsia.core.files import Snapshot
from intarsia.core.inspection import Inspection, inspect_snapshot
from intarsia.core.intent import (
    MISSING,
    Compact,
    Deduplicate,
    Delete,
    Merge,
    Missing,
    Optimize,
    Update,
    Write,
)
from intarsia.core.plan import Plan
from intarsia.core.ports import Table
from intarsia.core.problems import check_exists
from intarsia.core.report import MergeResult
from intarsia.engines.arrow.scan import Scan
from intarsia.errors import CommitConflict, InputError
from intarsia.request import (
    Clauses,
    Columns,
    Request,
    Target,
    bytes_per_file,
    column_names,
    iceberg_table,
    is_condition,
    key_pairs,
    merge_rule,
    one_of,
    predicate_of,
    requested,
    shown,
    tell_spark,
)
from intarsia.sql.parse import parse_assignments

log = logger(__name__)

_READ_ATTEMPTS = 20

WriteMode = Literal["append", "overwrite", "overwrite_partitions"]
Curve = Literal["zorder", "hilbert", "linear"]


def merge(
    source: Any,
    target: Target,
    *,
    on: Columns,
    strategy: str = "upsert",
    clauses: Clauses | None = None,
    dedup_order_by: Columns | None = None,
    null_keys: Literal["error", "match"] = "error",
    missing: Missing = "error",
    schema_evolution: Any = None,
    except_columns: Columns | None = None,
    partition_by: Columns | None = None,
    engine: Any = "auto",
    dry_run: bool = False,
    **options: Any,
) -> MergeResult:
    """Set source rows into a table by key; only files that really change are rewritten.

    Args:
        source: a table, record batches, a dataset, anything with an Arrow stream (polars, pandas, a
            DuckDB relation), or paths of Parquet, CSV or JSON files.
        target: path or URL of a Parquet dataset (insert and upsert make it when it does not exist), a
            table of PyIceberg, or :func:`iceberg`.
        on: key columns, or a condition such as ``"target.id = source.id and target.open"``.
        strategy: ``insert``, ``update``, ``upsert``, ``full_merge`` or ``deduplicate``.
        clauses: instead of a strategy, :func:`when_matched` and its kin, or SQL text such as ``"when
            matched then update set *"``, or a list of these; the first that applies decides. A star
            passes over source columns that the target lacks, which conditions may read all the same.
        dedup_order_by: with ``deduplicate``, the row with the highest values of these wins.
        null_keys: ``"match"`` lets NULL equal NULL instead of refusing NULL keys.
        missing: of columns that the source lacks, ``"null"`` writes NULL and ``"keep"`` leaves those of
            existing rows as they are (new rows get NULL); else such a source is refused.
        schema_evolution: ``"add"`` takes new columns over, ``"widen"`` promotes types.
        except_columns: source columns that whole rows are made without; conditions may read them.
        partition_by: for a dataset that does not exist yet.
        engine: ``"auto"``, ``"arrow"``, ``"duckdb"``, ``"spark"``, a DuckDB connection or a SparkSession.
        dry_run: plan and count, write nothing.
        options: table (``filesystem``, ``storage_options``, ``control_path``, ``single_writer``,
            ``lock_timeout``, ``retain``), writing (``compression``, ``row_group_size``,
            ``max_rows_per_file``, ``batch_rows``, ``int96``), engine (``threads``, ``memory_bytes``), source
            (``spool_bytes``, ``spool_dir``, ``naive_timestamps``), Iceberg (``branch``, ``mode``), and
            ``dialect``, ``progress``, ``properties``.

    Raises:
        KeyColumnError: keys missing, NULL, duplicate or of a nested type.
        PartitionMoveError: an existing key would change its partition.
        SchemaMismatch: a column or a value that does not fit.
        CommitConflict: another writer kept getting in between.

    Example:
        >>> import pyarrow as pa, intarsia as it
        >>> result = it.merge(pa.table({"id": [2, 3], "n": ["b2", "c"]}), orders, on="id")
        >>> result.updated, result.inserted
        (1, 1)
    """
    with operation_log(log, "merge", shown(target)):
        sql = (on if is_condition(on) else None, clauses)
        request = requested("merge", engine, target, options, source=source, sql=sql, dry_run=dry_run)
        rule = merge_rule(strategy, clauses, request.dialect)
        intent = Merge(
            rule=rule,
            **key_pairs(on, request.dialect),
            dedup_order_by=column_names(dedup_order_by, "dedup_order_by"),
            null_keys=one_of(null_keys, "null_keys", ("error", "match")),
            missing=one_of(missing, "missing", MISSING),
            schema_evolution=schema_evolution,
            partition_columns=None if partition_by is None else column_names(partition_by, "partition_by"),
            except_columns=column_names(except_columns, "except_columns"),
            **request.writing,
        )
        check_effects(intent)
    with operation_log(log, rule.name, shown(target)), ExitStack() as stack:
        adopted = request.source(source, stack, intent)
        return request.carry_out(intent, adopted)


def delete(
    target: Target, where: Any, *, engine: Any = "auto", dry_run: bool = False, **options: Any
) -> MergeResult:
    """Delete the rows for which ``where`` is TRUE (not NULL).

    ``where`` is SQL text (``"price < 0 and region = 'eu'"``) or a ``pyarrow.compute`` expression. Files
    whose partition or bounds decide the question are not read; a file that loses every row is removed.

    Raises:
        NothingMatched: there is no such table.
        ColumnNotFound, InputError: ``where`` does not fit the table.
    """
    with operation_log(log, "delete", shown(target)):
        request = requested("delete", engine, target, options, sql=(where,), dry_run=dry_run)
        if where is None:
            raise InputError("a predicate is needed.", hint='pass where="true" to delete every row.')
        predicate = predicate_of(where, request.dialect)
        return request.carry_out(Delete(predicate, **request.writing))


def update(
    target: Target,
    assignments: Mapping[str, Any],
    where: Any = None,
    *,
    engine: Any = "auto",
    dry_run: bool = False,
    **options: Any,
) -> MergeResult:
    """Assign columns of the rows for which ``where`` is TRUE; of every row without it.

    Values are SQL text over the row as it was: ``{"price": "price * 1.1", "note": "'x'"}``; a nested
    field is named ``"p.amt"``. Partition columns cannot be assigned.

    Raises:
        NothingMatched: there is no such table.
        ColumnNotFound, InputError: a column, a value or ``where`` does not fit the table.
    """
    with operation_log(log, "update", shown(target)):
        request = requested("update", engine, target, options, sql=(assignments, where), dry_run=dry_run)
        parsed = parse_assignments(assignments, dialect=request.dialect)
        predicate = None if where is None else predicate_of(where, request.dialect)
        return request.carry_out(Update(parsed, predicate, **request.writing))


def write(
    source: Any,
    target: Target,
    *,
    mode: WriteMode = "append",
    where: Any = None,
    partition_by: Columns | None = None,
    missing: Missing = "error",
    schema_evolution: Any = None,
    engine: Any = "auto",
    dry_run: bool = False,
    **options: Any,
) -> MergeResult:
    """Add rows, or put them in the place of all rows, of those that match, or of the partitions they are in.

    New files appear first, then the old ones go: a reader sees too much for a moment, never too little.
    Files that are not Parquet data stay.

    Args:
        source: as in :func:`merge`.
        target: as in :func:`merge`.
        mode: ``append``, ``overwrite``, or ``overwrite_partitions``: those that the source has rows of.
        where: with ``overwrite``, only the rows for which it is TRUE are replaced, in one commit; the
            source may hold no others. SQL text (``"day = date '2025-03-01'"``), or an expression of
            ``pyarrow.compute``.
        partition_by: for a dataset that does not exist yet, or is overwritten as a whole.
        missing: of columns that the source lacks, ``"null"`` and ``"keep"`` write NULL.
        schema_evolution: ``"add"`` takes new columns over, ``"widen"`` promotes types.
        engine: as in :func:`merge`.
        dry_run: plan and count, write nothing.
        options: as in :func:`merge`.

    Raises:
        InputError: a row of the source for which ``where`` is not TRUE, and options that have no effect.
        SchemaMismatch: a column or a value that does not fit.
        CommitConflict: another writer kept getting in between.
    """
    with operation_log(log, "write", shown(target)), ExitStack() as stack:
        request = requested("write", engine, target, options, source=source, sql=(where,), dry_run=dry_run)
        intent = Write(
            mode=one_of(mode, "mode", ("append", "overwrite", "overwrite_partitions")),
            partition_columns=None if partition_by is None else column_names(partition_by, "partition_by"),
            missing=one_of(missing, "missing", MISSING),
            schema_evolution=schema_evolution,
            where=None if where is None else predicate_of(where, request.dialect),
            **request.writing,
        )
        check_effects(intent)
        adopted = request.source(source, stack, intent)
        return request.carry_out(intent, adopted)


def compact(
    target: Target,
    *,
    target_mb_per_file: float | None = None,
    target_rows_per_file: int | None = None,
    partition_filter: Any = None,
    engine: Any = "auto",
    dry_run: bool = False,
    **options: Any,
) -> MergeResult:
    """Bring small files of each partition together into files of about the target size.

    Idempotent: run again, it finds nothing to do. Rows and their order within a file stay.
    """
    with operation_log(log, "compact", shown(target)):
        request = requested("compact", engine, target, options, dry_run=dry_run)
        size = bytes_per_file(target_mb_per_file, target_rows_per_file)
        intent = Compact(size, target_rows_per_file, partition_filter, **request.writing)
        return request.carry_out(intent)


def optimize(
    target: Target,
    *,
    by: Columns = (),
    curve: Curve = "zorder",
    target_mb_per_file: float | None = None,
    target_rows_per_file: int | None = None,
    partition_filter: Any = None,
    deduplicate_on: Columns | None = None,
    dedup_order_by: Columns | None = None,
    engine: Any = "auto",
    dry_run: bool = False,
    **options: Any,
) -> MergeResult:
    """Order the rows of each partition along a curve over ``by``, so that filters on them read less.

    One column is a sort; several follow a z-order or Hilbert curve, or with ``curve="linear"`` the
    plain order of the columns. NULLs come last. ``deduplicate_on`` leaves one row per key meanwhile.
    """
    with operation_log(log, "optimize", shown(target)):
        request = requested("optimize", engine, target, options, dry_run=dry_run)
        intent = Optimize(
            by=column_names(by, "by"),
            curve=one_of(curve, "curve", ("zorder", "hilbert", "linear")),
            target_bytes=bytes_per_file(target_mb_per_file, target_rows_per_file),
            target_rows=target_rows_per_file,
            partition_filter=partition_filter,
            deduplicate_keys=column_names(deduplicate_on, "deduplicate_on"),
            deduplicate=deduplicate_on is not None,
            dedup_order_by=column_names(dedup_order_by, "dedup_order_by"),
            **request.writing,
        )
        if not intent.by and not intent.deduplicate:
            raise InputError("the columns to order by are needed.", hint="pass by=[...].")
        check_effects(intent)
        return request.carry_out(intent)


def deduplicate(
    target: Target,
    *,
    on: Columns | None = None,
    order_by: Columns | None = None,
    partition_filter: Any = None,
    engine: Any = "auto",
    dry_run: bool = False,
    **options: Any,
) -> MergeResult:
    """Leave one row per key: the one with the highest ``order_by``, else the last.

    Without ``on``, one of each set of rows that are equal in every column. Only files that lose a row
    are rewritten. Idempotent.
    """
    with operation_log(log, "deduplicate", shown(target)):
        request = requested("deduplicate", engine, target, options, dry_run=dry_run)
        intent = Deduplicate(
            keys=column_names(on, "on"),
            order_by=column_names(order_by, "order_by"),
            partition_filter=partition_filter,
            **request.writing,
        )
        check_effects(intent)
        return request.carry_out(intent)


def plan(operation: str, *args: Any, **kwargs: Any) -> Plan:
    """The plan of any operation, by its name: ``plan("merge", source, target, on="id")``.

    Tells for each file whether it is kept, rewritten or removed and why, and how many bytes will be
    read and written. Reads what the operation would read to decide; writes nothing.
    """
    calls = {call.__name__: call for call in (merge, delete, update, write, compact, optimize, deduplicate)}
    if str(operation) not in calls:
        raise InputError(f"There is no operation {operation!r} to plan; there is {', '.join(calls)}.")
    made = calls[str(operation)](*args, **{**kwargs, "dry_run": True}).plan
    assert made is not None
    return made


def iceberg(
    identifier: str | tuple[str, ...],
    *,
    catalog: Any,
    branch: str | None = None,
    mode: Literal["copy-on-write", "merge-on-read"] | None = None,
) -> Table:
    """An Iceberg table as a target: ``it.merge(rows, it.iceberg("db.orders", catalog="lake"), on="id")``.

    Args:
        identifier: the table's name in the catalog.
        catalog: a catalog of PyIceberg, the name of a configured one, or a warehouse directory, whose
            catalog is the SQLite file ``catalog.db`` in it.
        branch: the branch to read and change; ``main`` if None.
        mode: how rows go: by rewriting files, or by delete files beside them. None follows the table's
            properties ``write.delete.mode``, ``write.update.mode`` and ``write.merge.mode``.

    Raises:
        InputError: there is no such table, catalog or branch.
        NotSupported: PyIceberg is not installed, or the table is of a kind that cannot be changed.
    """
    with operation_log(log, "iceberg", ".".join(identifier) if isinstance(identifier, tuple) else identifier):
        return iceberg_table(identifier, catalog, branch=branch, mode=mode)


def snapshot(target: Target, **options: Any) -> Snapshot:
    """One consistent state of a table, also while a commit is under way or after a crash."""
    with operation_log(log, "snapshot", shown(target)):
        return requested("snapshot", "auto", target, options).table.snapshot()


def inspect(target: Target, **options: Any) -> Inspection:
    """What a table looks like: files, rows, bytes, partitions, small files; from footers alone.

    Raises:
        NothingMatched: there is no such table.
    """
    with operation_log(log, "inspect", shown(target)):
        found = requested("inspect", "auto", target, options).table.snapshot()
        check_exists(found, "inspect")
        return inspect_snapshot(found)


def read(
    target: Target, *, columns: Columns | None = None, where: Any = None, **options: Any
) -> pa.RecordBatchReader:
    """The rows of a dataset or an Iceberg table as a stream of record batches, of one consistent state.

    Of an Iceberg table, position deletes, deletion vectors and equality deletes are applied and columns
    found by their ids. Files and row groups are pruned by ``where``. Memory: a row group per thread.

    The files of a dataset on a local disk are opened first, so that commits meanwhile change nothing; on
    another store, and where there are more files than half of those a process may have open, a file that
    is replaced while the stream is read ends it with CommitConflict.

    Args:
        target: path or URL of a Parquet dataset, a table of PyIceberg, or :func:`iceberg`. One without
            rows gives none, in its schema.
        columns: all of them if None.
        where: SQL text or a ``pyarrow.compute`` expression; rows for which it is TRUE.
        options: ``threads``, ``dialect``; of paths ``filesystem``, ``storage_options``; of an Iceberg
            table ``branch``.

    Raises:
        NothingMatched: there is no such dataset.
        ColumnNotFound, InputError: a column or ``where`` does not fit the table.
        CommitConflict: a file was replaced while it was read.

    Example:
        >>> import intarsia as it
        >>> it.read(orders, columns=["id"], where="id < 2").read_all().num_rows
        1
    """
    with operation_log(log, "read", shown(target)):
        request = requested("read", "arrow", target, options, sql=(where,))
        threads = int(options.get("threads") or os.cpu_count() or 1)
        for attempt in range(_READ_ATTEMPTS):
            scan = _scan(request, columns, where)
            try:
                batches = scan.batches(threads=threads)
            except CommitConflict:  # a commit came between listing and opening
                if attempt + 1 == _READ_ATTEMPTS:
                    raise
                continue
            return pa.RecordBatchReader.from_batches(scan.schema, batches)
        raise AssertionError("unreachable")


def _scan(request: Request, columns: Columns | None, where: Any) -> Scan:
    found = request.table.snapshot()
    check_exists(found, "read")
    known = found.schema.names
    names = spelled_as(column_names(columns, "columns"), known, path=found.root) or tuple(known)
    check_columns(names, found.schema.names, operation="read", path=found.root)
    predicate = None if where is None else predicate_of(where, request.dialect)
    if predicate is not None and not isinstance(predicate, pc.Expression):
        predicate = resolve(predicate, found.schema, expect=pa.bool_())
    return Scan(found, names, predicate)


def recover(target: Target, **options: Any) -> tuple[str, ...]:
    """Finish or undo what a crashed writer left; the sentences say what was done. Idempotent.

    Never needed: the next operation that writes does the same.
    """
    with operation_log(log, "recover", shown(target)):
        table = requested("recover", "auto", target, options).table
        done = table.recover()
        return (*done, *tell_spark(table)) if done else done
