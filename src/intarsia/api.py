"""The public functions: one small set of calls for every engine and table.

Every call that changes a table is atomic (all or nothing, also across a crash) and raises typed errors
from :mod:`intarsia.errors`; with ``dry_run=True`` it stops after the plan and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Literal, ParamSpec, Unpack, overload

import intarsia.show  # noqa: F401  values learn to show themselves
from intarsia.arguments import (
    Clauses,
    Curve,
    Operation,
    Predicate,
    SchemaEvolution,
    WriteMode,
    compute_file_bytes,
    is_condition,
    list_columns,
    make_rule,
    parse_keys,
    parse_where,
)
from intarsia.arguments import Strategy as Strategy  # for facades that may import nothing else
from intarsia.common.log import get_logger, operation_log
from intarsia.core.dry_run import PLAN_BYTES
from intarsia.core.effects import check_effects
from intarsia.core.intent import (
    MISSING,
    CompactIntent,
    DeduplicateIntent,
    DeleteIntent,
    MergeIntent,
    Missing,
    OptimizeIntent,
    UpdateIntent,
    WriteIntent,
)
from intarsia.core.plan import Plan
from intarsia.core.ports import Table
from intarsia.core.report import MergeResult
from intarsia.engine_choice import EngineLike
from intarsia.errors import InputError
from intarsia.options import (
    CatalogSource,
    Columns,
    DeduplicateOptions,
    DeleteOptions,
    MaintenanceOptions,
    MergeOptions,
    PartitionFilter,
    RecoverOptions,
    RowSource,
    TableTarget,
    WriteCallOptions,
    check_choice,
)
from intarsia.request import make_request, open_iceberg, refresh_spark, show_target
from intarsia.sql.parse import parse_assignments
from intarsia.undo import restore

log = get_logger(__name__)

P = ParamSpec("P")


def merge(
    source: RowSource,
    target: TableTarget,
    *,
    on: Columns,
    strategy: Strategy = "upsert",
    clauses: Clauses | None = None,
    dedup_order_by: Columns | None = None,
    null_keys: Literal["error", "match"] = "error",
    missing: Missing = "error",
    schema_evolution: SchemaEvolution | None = None,
    except_columns: Columns | None = None,
    partition_by: Columns | None = None,
    engine: EngineLike = "auto",
    dry_run: bool = False,
    **options: Unpack[MergeOptions],
) -> MergeResult:
    """Merge source rows into a table by key; only files with changed rows are rewritten.

    Atomic. With a strategy, idempotent: run again with the same source, the table holds the same rows.
    Memory: the source (in a spool where it is large) and a row group per thread.

    Args:
        source: a table, record batches, a dataset, anything with an Arrow stream (polars, pandas, a
            DuckDB relation), a Spark DataFrame, or paths of Parquet, Arrow, CSV or JSON files.
        target: path or URL of a Parquet dataset (insert and upsert create it), a table of PyIceberg,
            :func:`iceberg` or :func:`intarsia.spark_table`.
        on: key columns, or a condition such as ``"target.id = source.id and target.open"``.
        strategy: ``insert``, ``update``, ``upsert``, ``full_merge`` or ``deduplicate``.
        clauses: instead of a strategy, :func:`when_matched` and related, or SQL text such as ``"when
            matched then update set *"``, or a list of these; the first that applies decides. A star
            leaves out source columns that the target lacks; conditions may read them.
        dedup_order_by: with ``deduplicate``, the row with the highest values of these wins.
        null_keys: ``"match"`` lets NULL equal NULL instead of refusing NULL keys.
        missing: for columns that the source lacks, ``"null"`` writes NULL and ``"keep"`` keeps the values of
            existing rows (new rows get NULL); ``"error"`` refuses such a source.
        schema_evolution: ``"add"`` adds new columns, ``"widen"`` promotes types.
        except_columns: source columns that are not written; conditions may read them.
        partition_by: partition columns of a dataset that does not exist yet.
        engine: ``"auto"``, ``"arrow"``, ``"duckdb"``, ``"spark"``, a DuckDB connection or a SparkSession.
        dry_run: plan and count, write nothing; the numbers are what the run then does.
        options: see :class:`intarsia.options.MergeOptions`.

    Raises:
        KeyColumnError: keys missing, NULL, duplicate or of a nested type.
        PartitionMoveError: an existing key would change its partition.
        SchemaMismatch: a column or a value that does not fit.
        InputError: an unknown option, or one that can have no effect in this call.
        CommitConflict: other writers changed the same files, again after several attempts.

    Example:
        >>> import pyarrow as pa, intarsia as it
        >>> result = it.merge(pa.table({"id": [2, 3], "n": ["b2", "c"]}), "lake/orders", on="id")
        >>> result.updated, result.inserted
        (1, 1)
    """
    with operation_log(log, "merge", show_target(target)):
        sql = (on if is_condition(on) else None, clauses)
        request = make_request("merge", engine, target, options, source=source, sql=sql, dry_run=dry_run)
        rule = make_rule(strategy, clauses, request.dialect)
        intent = MergeIntent(
            rule=rule,
            **parse_keys(on, request.dialect),
            dedup_order_by=list_columns(dedup_order_by, "dedup_order_by"),
            null_keys=check_choice(null_keys, "null_keys", ("error", "match")),
            missing=check_choice(missing, "missing", MISSING),
            schema_evolution=schema_evolution,
            partition_columns=None if partition_by is None else list_columns(partition_by, "partition_by"),
            except_columns=list_columns(except_columns, "except_columns"),
            **request.writing,
        )
        check_effects(intent)
    with operation_log(log, rule.name, show_target(target)), ExitStack() as stack:
        ingested = request.ingest(source, stack, intent)
        return request.execute(intent, ingested)


def delete(
    target: TableTarget,
    where: Predicate,
    *,
    engine: EngineLike = "auto",
    dry_run: bool = False,
    **options: Unpack[DeleteOptions],
) -> MergeResult:
    """Delete the rows for which ``where`` is TRUE (not NULL).

    Atomic and idempotent. Files whose partition or bounds decide the question are not read; a file that
    loses every row is removed.

    Args:
        target: as in :func:`merge`.
        where: SQL text (``"price < 0 and region = 'eu'"``) or a ``pyarrow.compute`` expression; ``"true"``
            deletes every row.
        engine: as in :func:`merge`.
        dry_run: plan and count, write nothing; the numbers are what the run then does.
        options: see :class:`intarsia.options.DeleteOptions`.

    Raises:
        NothingMatched: there is no such table.
        ColumnNotFound, InputError: ``where`` does not fit the table.
        CommitConflict: other writers changed the same files, again after several attempts.

    Example:
        >>> import intarsia as it
        >>> it.delete("lake/orders", "id > 1").deleted
        1
    """
    with operation_log(log, "delete", show_target(target)):
        request = make_request("delete", engine, target, options, sql=(where,), dry_run=dry_run)
        if where is None:
            raise InputError("a predicate is needed.", hint='pass where="true" to delete every row.')
        predicate = parse_where(where, request.dialect)
        return request.execute(DeleteIntent(predicate, **request.writing))


def update(
    target: TableTarget,
    assignments: Mapping[str, Any],
    where: Predicate | None = None,
    *,
    engine: EngineLike = "auto",
    dry_run: bool = False,
    **options: Unpack[DeleteOptions],
) -> MergeResult:
    """Assign columns of the rows for which ``where`` is TRUE; of every row without it. Atomic.

    Args:
        target: as in :func:`merge`.
        assignments: values by column, as SQL text over the row as it was: ``{"price": "price * 1.1",
            "note": "'x'"}``. A nested field is named ``"p.amt"``; partition columns of a dataset cannot be
            assigned.
        where: as in :func:`delete`.
        engine: as in :func:`merge`.
        dry_run: plan and count, write nothing; the numbers are what the run then does.
        options: see :class:`intarsia.options.DeleteOptions`.

    Raises:
        NothingMatched: there is no such table.
        ColumnNotFound, InputError: a column, a value or ``where`` does not fit the table.
        CommitConflict: other writers changed the same files, again after several attempts.

    Example:
        >>> import intarsia as it
        >>> it.update("lake/orders", {"n": "upper(n)"}, "id = 1").updated
        1
    """
    with operation_log(log, "update", show_target(target)):
        request = make_request("update", engine, target, options, sql=(assignments, where), dry_run=dry_run)
        parsed = parse_assignments(assignments, dialect=request.dialect)
        predicate = None if where is None else parse_where(where, request.dialect)
        return request.execute(UpdateIntent(parsed, predicate, **request.writing))


def write(
    source: RowSource,
    target: TableTarget,
    *,
    mode: WriteMode = "append",
    where: Predicate | None = None,
    partition_by: Columns | None = None,
    missing: Missing = "error",
    schema_evolution: SchemaEvolution | None = None,
    engine: EngineLike = "auto",
    dry_run: bool = False,
    **options: Unpack[WriteCallOptions],
) -> MergeResult:
    """Append rows, or replace all rows, those that match, or the partitions that the source has rows of.

    Atomic. New files appear first, then the old ones are removed: a reader that lists the directory sees too
    much for a moment, never too little. Files that are not Parquet data stay.

    Args:
        source: as in :func:`merge`.
        target: as in :func:`merge`.
        mode: ``append``, ``overwrite``, or ``overwrite_partitions``: those that the source has rows of.
        where: as in :func:`delete`; with ``overwrite``, only the rows for which it is TRUE are replaced, in
            one commit, and the source may hold no others.
        partition_by: partition columns of a dataset that does not exist yet, or is overwritten as a whole.
        missing: for columns that the source lacks, ``"null"`` and ``"keep"`` write NULL.
        schema_evolution: ``"add"`` adds new columns, ``"widen"`` promotes types.
        engine: as in :func:`merge`.
        dry_run: plan and count, write nothing; the numbers are what the run then does.
        options: see :class:`intarsia.options.WriteCallOptions`.

    Raises:
        InputError: a row of the source for which ``where`` is not TRUE, and options that have no effect.
        SchemaMismatch: a column or a value that does not fit.
        CommitConflict: other writers changed the same files, again after several attempts.

    Example:
        >>> import pyarrow as pa, intarsia as it
        >>> it.write(pa.table({"id": [7], "n": ["g"]}), "lake/orders").total
        3
    """
    with operation_log(log, "write", show_target(target)), ExitStack() as stack:
        request = make_request("write", engine, target, options, source=source, sql=(where,), dry_run=dry_run)
        intent = WriteIntent(
            mode=check_choice(mode, "mode", ("append", "overwrite", "overwrite_partitions")),
            partition_columns=None if partition_by is None else list_columns(partition_by, "partition_by"),
            missing=check_choice(missing, "missing", MISSING),
            schema_evolution=schema_evolution,
            where=None if where is None else parse_where(where, request.dialect),
            **request.writing,
        )
        check_effects(intent)
        ingested = request.ingest(source, stack, intent)
        return request.execute(intent, ingested)


def compact(
    target: TableTarget,
    *,
    target_mb_per_file: float | None = None,
    target_rows_per_file: int | None = None,
    partition_filter: PartitionFilter | None = None,
    engine: EngineLike = "auto",
    dry_run: bool = False,
    **options: Unpack[MaintenanceOptions],
) -> MergeResult:
    """Rewrite small files of each partition into files of about the target size.

    Atomic and idempotent: run again, it finds nothing to do. Rows and their order within a file stay.

    Args:
        target: as in :func:`merge`.
        target_mb_per_file: size of a file in MiB.
        target_rows_per_file: rows of a file.
        partition_filter: only these partitions: ``"day=2025-11-04/region=eu"``, or several of them.
        engine: as in :func:`merge`.
        dry_run: plan and count, write nothing; the numbers are what the run then does.
        options: see :class:`intarsia.options.MaintenanceOptions`.

    Raises:
        NothingMatched: there is no such table, or no such partition.
        InputError: a threshold is not greater than zero.
        CommitConflict: other writers changed the same files, again after several attempts.

    Example:
        >>> import pyarrow as pa, intarsia as it
        >>> appended = it.write(pa.table({"id": [3], "n": ["c"]}), "lake/orders")
        >>> it.compact("lake/orders").total, len(it.snapshot("lake/orders").files)
        (3, 1)
    """
    with operation_log(log, "compact", show_target(target)):
        request = make_request("compact", engine, target, options, dry_run=dry_run)
        size = compute_file_bytes(target_mb_per_file, target_rows_per_file)
        intent = CompactIntent(size, target_rows_per_file, partition_filter, **request.writing)
        return request.execute(intent)


def optimize(
    target: TableTarget,
    *,
    by: Columns = (),
    curve: Curve = "zorder",
    target_mb_per_file: float | None = None,
    target_rows_per_file: int | None = None,
    partition_filter: PartitionFilter | None = None,
    deduplicate_on: Columns | None = None,
    dedup_order_by: Columns | None = None,
    engine: EngineLike = "auto",
    dry_run: bool = False,
    **options: Unpack[MaintenanceOptions],
) -> MergeResult:
    """Sort the rows of each partition along a curve over ``by``, so that filters on them read less.

    Atomic. One column is a sort; several follow a z-order or Hilbert curve, or with ``curve="linear"`` the
    plain order of the columns. NULLs come last. Memory: ``memory_bytes``, beyond which runs are spilled.

    Args:
        target: as in :func:`merge`.
        by: the columns to sort by.
        curve: ``"zorder"``, ``"hilbert"`` or ``"linear"``.
        target_mb_per_file: size of a file in MiB.
        target_rows_per_file: rows of a file.
        partition_filter: as in :func:`compact`.
        deduplicate_on: also keep one row per key of these columns.
        dedup_order_by: with ``deduplicate_on``, the row with the highest values of these is kept.
        engine: as in :func:`merge`.
        dry_run: plan and count, write nothing; the numbers are what the run then does.
        options: see :class:`intarsia.options.MaintenanceOptions`.

    Raises:
        NothingMatched: there is no such table, or no such partition.
        ColumnNotFound, InputError: a column that is not there or cannot be sorted by.
        CommitConflict: other writers changed the same files, again after several attempts.

    Example:
        >>> import intarsia as it
        >>> it.optimize("lake/orders", by=["n", "id"]).total
        2
    """
    with operation_log(log, "optimize", show_target(target)):
        request = make_request("optimize", engine, target, options, dry_run=dry_run)
        intent = OptimizeIntent(
            by=list_columns(by, "by"),
            curve=check_choice(curve, "curve", ("zorder", "hilbert", "linear")),
            target_bytes=compute_file_bytes(target_mb_per_file, target_rows_per_file),
            target_rows=target_rows_per_file,
            partition_filter=partition_filter,
            deduplicate_keys=list_columns(deduplicate_on, "deduplicate_on"),
            deduplicate=deduplicate_on is not None,
            dedup_order_by=list_columns(dedup_order_by, "dedup_order_by"),
            **request.writing,
        )
        if not intent.by and not intent.deduplicate:
            raise InputError("the columns to order by are needed.", hint="pass by=[...].")
        check_effects(intent)
        return request.execute(intent)


def deduplicate(
    target: TableTarget,
    *,
    on: Columns | None = None,
    order_by: Columns | None = None,
    partition_filter: PartitionFilter | None = None,
    engine: EngineLike = "auto",
    dry_run: bool = False,
    **options: Unpack[DeduplicateOptions],
) -> MergeResult:
    """Keep one row per key: the one with the highest ``order_by``, else the last.

    Atomic and idempotent. Only files that lose a row are rewritten.

    Args:
        target: as in :func:`merge`.
        on: key columns; without them, rows that are equal in every column are duplicates.
        order_by: the row with the highest values of these is kept.
        partition_filter: as in :func:`compact`.
        engine: as in :func:`merge`.
        dry_run: plan and count, write nothing; the numbers are what the run then does.
        options: see :class:`intarsia.options.DeduplicateOptions`.

    Raises:
        NothingMatched: there is no such table, or no such partition.
        ColumnNotFound, InputError: a column that is not there, or ``order_by`` without ``on``.
        CommitConflict: other writers changed the same files, again after several attempts.

    Example:
        >>> import pyarrow as pa, intarsia as it
        >>> appended = it.write(pa.table({"id": [2], "n": ["later"]}), "lake/orders")
        >>> it.deduplicate("lake/orders", on="id", order_by="n").deleted
        1
    """
    with operation_log(log, "deduplicate", show_target(target)):
        request = make_request("deduplicate", engine, target, options, dry_run=dry_run)
        intent = DeduplicateIntent(
            keys=list_columns(on, "on"),
            order_by=list_columns(order_by, "order_by"),
            partition_filter=partition_filter,
            **request.writing,
        )
        check_effects(intent)
        return request.execute(intent)


@overload
def plan(operation: Callable[P, MergeResult], *args: P.args, **kwargs: P.kwargs) -> Plan: ...
@overload
def plan(operation: Operation, *args: Any, **kwargs: Any) -> Plan: ...
def plan(operation: Operation | Callable[..., MergeResult], *args: Any, **kwargs: Any) -> Plan:
    """Plan an operation: ``plan(it.merge, source, target, on="id")``.

    The plan says for each file whether it is kept, rewritten or removed and why, and how many bytes will be
    read and written. Reads what the operation would read to decide; writes nothing. Of a large operation
    (256 MB, or ``measured_bytes=``) new files and bytes are estimates; ``dry_run=True`` has them exactly.

    Args:
        operation: :func:`merge`, :func:`delete`, :func:`update`, :func:`write`, :func:`compact`,
            :func:`optimize`, :func:`deduplicate` or :func:`restore`, or its name; an editor completes and
            checks the arguments of the function.
        args: positional arguments of that function.
        kwargs: its keyword arguments and options.

    Raises:
        InputError: there is no such operation; else as the operation itself.

    Example:
        >>> import intarsia as it
        >>> it.plan(it.delete, "lake/orders", "id = 1").count("rewrite")
        1
    """
    known = (merge, delete, update, write, compact, optimize, deduplicate, restore)
    calls: dict[str, Callable[..., MergeResult]] = {call.__name__: call for call in known}
    call = next((one for name, one in calls.items() if operation is one or str(operation) == name), None)
    if call is None:
        raise InputError(f"There is no operation {operation!r} to plan; there is {', '.join(calls)}.")
    limit = {} if call is restore else {"measured_bytes": PLAN_BYTES}
    made = call(*args, **{**limit, **kwargs, "dry_run": True}).plan
    assert made is not None
    return made


def iceberg(
    identifier: str | tuple[str, ...],
    *,
    catalog: CatalogSource,
    branch: str | None = None,
    mode: Literal["copy-on-write", "merge-on-read"] | None = None,
) -> Table:
    """Open an Iceberg table as a target for the other functions.

    Args:
        identifier: the table's name in the catalog.
        catalog: a catalog of PyIceberg, the name of a configured one, or a warehouse directory, whose
            catalog is the SQLite file ``catalog.db`` in it.
        branch: the branch to read and change; ``main`` if None.
        mode: rewrite files (``"copy-on-write"``), or write delete files beside them (``"merge-on-read"``).
            None follows the table's properties ``write.delete.mode``, ``write.update.mode`` and
            ``write.merge.mode``.

    Raises:
        InputError: there is no such table, catalog or branch.
        NotSupported: PyIceberg is not installed, or the table is of a kind that cannot be changed.

    Example:
        >>> import pyarrow as pa, intarsia as it
        >>> from intarsia.tables.iceberg import embedded_catalog
        >>> rows, catalog = pa.table({"id": [1, 2]}), embedded_catalog("./warehouse")
        >>> catalog.create_namespace("shop")
        >>> created = catalog.create_table("shop.orders", schema=rows.schema)
        >>> it.merge(rows, it.iceberg("shop.orders", catalog="./warehouse"), on="id").inserted
        2
    """
    with operation_log(log, "iceberg", ".".join(identifier) if isinstance(identifier, tuple) else identifier):
        return open_iceberg(identifier, catalog, branch=branch, mode=mode)


def recover(target: TableTarget, **options: Unpack[RecoverOptions]) -> tuple[str, ...]:
    """Finish or undo what a crashed writer left; the sentences say what was done. Idempotent.

    Never needed: the next operation that writes does the same.

    Args:
        target: as in :func:`merge`.
        options: see :class:`intarsia.options.RecoverOptions`.

    Raises:
        CommitError: another writer holds the lock, or what was committed cannot be finished.
        StorageError: files cannot be read or written.

    Example:
        >>> import intarsia as it
        >>> it.recover("lake/orders")
        ()
    """
    with operation_log(log, "recover", show_target(target)):
        table = make_request("recover", "auto", target, options).table
        done = table.recover()
        return (*done, *refresh_spark(table)) if done else done
