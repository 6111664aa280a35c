"""Parquet datasets read, written and changed by the methods of one object, on any engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Unpack

import pyarrow as pa

from intarsia import api
from intarsia.arguments import Curve, Operation, Predicate, Strategy, WriteMode
from intarsia.common.log import get_logger, operation_log
from intarsia.core.effects import ENGINE_OPTIONS, OPTIONS, OperationCall, check_options, select_effective
from intarsia.core.incremental import list_partition_names, merge
from intarsia.core.plan import Plan
from intarsia.core.report import MergeResult, WriteDatasetResult, make_file_metadata
from intarsia.core.rule import get_strategy_rule
from intarsia.datasets.options import (
    DatasetPath,
    DeleteArguments,
    Filters,
    MergeArguments,
    RewriteMode,
    WriteArguments,
    WriteOrMergeArguments,
)
from intarsia.datasets.reading import ReadRequest, RowReader, read_dataset
from intarsia.datasets.statistics import (
    Statistics,
    make_deduplicate_statistics,
    make_maintenance_statistics,
    make_optimize_statistics,
)
from intarsia.engine_choice import EngineName, list_engines
from intarsia.errors import InputError
from intarsia.options import (
    TABLE_OPTIONS,
    Columns,
    DeduplicateOptions,
    IOOptions,
    MaintenanceOptions,
    PartitionFilter,
    RowSource,
)
from intarsia.request import describe_call, show_target
from intarsia.tables.parquet import ParquetTable

log = get_logger(__name__)

_MODES = ("append", "overwrite", "overwrite_partitions")
_REWRITE_MODES = ("full", "incremental")
_POSITIONS = {
    "merge": ("source", "target"),
    "write": ("source", "target"),
    "delete": ("target", "where"),
    "update": ("target", "assignments", "where"),
}


class DatasetIO:
    """Parquet datasets on one engine; a subclass says which.

    Args:
        filesystem: the pyarrow or fsspec file system that all paths are on; None for local paths
            and URLs.
        options: for every call, such as ``storage_options``, ``single_writer`` or ``lock_timeout``; a
            call's own options win.
    """

    engine: ClassVar[EngineName] = "auto"
    backend: ClassVar[str] = "pyarrow"

    def __init__(self, filesystem: Any = None, **options: Unpack[IOOptions]) -> None:
        own = {name: value for name, value in options.items() if name in ENGINE_OPTIONS[1:]}
        check_options(OperationCall("this IO", engines=list_engines(self.engine, "merge", None)), own)
        self._options: dict[str, Any] = {**options, "filesystem": filesystem, "engine": self.engine}

    def _with(
        self,
        operation: str,
        path: Any,
        options: Mapping[str, Any],
        *,
        source: RowSource | None = None,
        strategy: str = "upsert",
        sql: Sequence[Any] = (),
    ) -> dict[str, Any]:
        """The options of a call, and those of the IO that have an effect in it."""
        adds = operation == "write" or (operation == "merge" and get_strategy_rule(strategy).inserts)
        call = replace(
            describe_call(operation, self._options["engine"], path, source=source, sql=sql),
            adds_files=adds,
            reads_rows=operation != "write",
        )
        rest = {name: value for name, value in self._options.items() if name not in OPTIONS}
        shared = {name: value for name, value in self._options.items() if name in OPTIONS}
        return {**rest, **select_effective(call, shared), **options}

    def read_parquet(
        self,
        path: DatasetPath,
        *,
        columns: Columns | None = None,
        filters: Filters | None = None,
        include_file_path: bool = False,
        use_threads: bool = True,
        batch_rows: int | None = None,
        dialect: str | None = None,
    ) -> pa.Table:
        """One consistent state of a dataset, or a single file, as a table.

        The state is consistent also while a commit is under way or after a crash. Partition columns have
        the type they were written with. Files and row groups that the filter rules out are not read.

        Args:
            path: path or URL of a dataset or a file.
            columns: the columns to return, in this order; all by default. Others are not read.
            filters: SQL text, tuples as ``pyarrow.parquet`` takes them, or a ``pyarrow.compute``
                expression.
            include_file_path: add ``file_path``, a string column with the path each row is from.
            use_threads: read in parallel; the result is the same either way.
            batch_rows: read so many rows at once; a row group by default.
            dialect: of SQL text.

        Raises:
            NothingMatched: there is no such path.
            ColumnNotFound: a column that is named is not there.

        Example:
            >>> import pyarrow as pa
            >>> from intarsia.datasets.pyarrow import PyarrowDatasetIO
            >>> io = PyarrowDatasetIO()
            >>> io.read_parquet("lake/orders", columns=["id"], filters="n = 'b'").num_rows
            1
        """
        with operation_log(log, "read_parquet", show_target(path)):
            wanted = ReadRequest(columns, filters, include_file_path, use_threads, batch_rows, dialect)
            return read_dataset(self.table(path), wanted, self._choose_reader())

    def _choose_reader(self) -> Callable[[], RowReader] | None:
        """A function that makes the reader of rows; None for PyArrow in this process."""
        return None

    def plan(self, operation: Operation, *args: Any, **options: Any) -> Plan:
        """Plan an operation, by its name, on this engine; see :func:`intarsia.plan`.

        Args:
            operation: the name of the operation.
            args: its positional arguments.
            options: its keyword arguments and options.

        Raises:
            InputError: there is no such operation; else as the operation itself.

        Example:
            >>> import pyarrow as pa
            >>> from intarsia.datasets.pyarrow import PyarrowDatasetIO
            >>> io = PyarrowDatasetIO()
            >>> io.plan("delete", "lake/orders", "id = 1").count("rewrite")
            1
        """
        given = dict(zip(_POSITIONS.get(operation, ("target",)), args, strict=False)) | options
        source, where = given.get("source"), given.get("where")
        asked = self._with(operation, given.get("target"), options, source=source, sql=(where,))
        return api.plan(operation, *args, **asked)

    def table(self, path: DatasetPath) -> ParquetTable:
        """Open the dataset as a table with this IO's options; every method takes it as ``path``.

        Args:
            path: path or URL of the dataset.

        Raises:
            InputError, NotSupported: this is no place for a dataset.

        Example:
            >>> import pyarrow as pa
            >>> from intarsia.datasets.pyarrow import PyarrowDatasetIO
            >>> io = PyarrowDatasetIO()
            >>> io.table("lake/orders").snapshot().rows
            2
        """
        if isinstance(path, ParquetTable):
            return path
        given = {name: self._options[name] for name in TABLE_OPTIONS if name in self._options}
        return ParquetTable(path, **given)

    def write_dataset(
        self,
        data: RowSource,
        path: DatasetPath,
        *,
        mode: WriteMode = "append",
        partition_by: Columns | None = None,
        partition_columns: Columns | None = None,
        **options: Unpack[WriteArguments],
    ) -> WriteDatasetResult:
        """Append rows in new files, or replace all rows or whole partitions. Atomic.

        Args:
            data: any source that :func:`intarsia.write` takes.
            path: path or URL of the dataset, which is made when it is not there.
            mode: ``append``, ``overwrite`` or ``overwrite_partitions``; files that are not Parquet stay.
            partition_by: of a new dataset; else its layout decides.
            partition_columns: another name for ``partition_by``.
            options: as of :func:`intarsia.write`.

        Raises:
            SchemaMismatch: a column or a value that does not fit.
            CommitConflict: other writers changed the same files, again after several attempts.

        Example:
            >>> import pyarrow as pa
            >>> from intarsia.datasets.pyarrow import PyarrowDatasetIO
            >>> io = PyarrowDatasetIO()
            >>> io.write_dataset(pa.table({"id": [3], "n": ["c"]}), "lake/orders").total_rows
            1
        """
        with operation_log(log, "write", show_target(path)):
            names = list_partition_names(partition_columns, partition_by)
        asked = self._with("write", path, options, source=data, sql=(options.get("where"),))
        result = api.write(data, path, mode=mode, partition_by=names, **asked)
        files = make_file_metadata(result)
        return WriteDatasetResult(files, sum(file.row_count for file in files), mode, self.backend)

    def write_parquet_dataset(
        self,
        data: RowSource,
        path: DatasetPath,
        *,
        mode: WriteMode | None = None,
        strategy: Strategy | None = None,
        key_columns: Columns | None = None,
        rewrite_mode: RewriteMode = "full",
        partition_by: Columns | None = None,
        **options: Unpack[WriteOrMergeArguments],
    ) -> WriteDatasetResult | MergeResult:
        """Append or overwrite by ``mode``, or merge by ``strategy``, which decides where both are given.

        Every strategy leaves files without a matching key alone, whatever the ``rewrite_mode``;
        ``"incremental"`` insists on it and refuses ``full_merge``, which may touch every file.

        Args:
            data: any source.
            path: path or URL of the dataset.
            mode: ``append`` (the default) or ``overwrite``.
            strategy: ``insert``, ``update``, ``upsert``, ``full_merge`` or ``deduplicate``.
            key_columns: what a strategy matches rows by.
            rewrite_mode: ``full`` or ``incremental``.
            partition_by: of a new dataset; else its layout decides.
            options: as of :meth:`merge` or :meth:`write_dataset`.

        Raises:
            InputError: the arguments contradict each other; nothing was read or written.

        Example:
            >>> import pyarrow as pa
            >>> from intarsia.datasets.pyarrow import PyarrowDatasetIO
            >>> io = PyarrowDatasetIO()
            >>> rows = pa.table({"id": [2], "n": ["B"]})
            >>> io.write_parquet_dataset(rows, "lake/orders", strategy="upsert", key_columns="id").updated
            1
        """
        with operation_log(log, "write", show_target(path)):
            _check_modes(mode, strategy, key_columns, rewrite_mode)
        given: dict[str, Any] = {**options, "partition_by": partition_by}
        if strategy is None:
            return self.write_dataset(data, path, mode=mode or "append", **given)
        assert key_columns is not None
        if mode is not None:
            warnings.warn(
                f"mode={mode!r} is ignored: strategy={strategy!r} takes precedence.",
                UserWarning,
                stacklevel=2,
            )
        return self.merge(data, path, strategy, key_columns, **given)

    def merge(
        self,
        data: RowSource,
        path: DatasetPath,
        strategy: Strategy,
        key_columns: Columns,
        *,
        partition_columns: Columns | None = None,
        partition_by: Columns | None = None,
        dedup_order_by: Columns | None = None,
        **options: Unpack[MergeArguments],
    ) -> MergeResult:
        """Merge rows into a dataset by key; only files with changed rows are rewritten. Atomic.

        Args:
            data: any source that :func:`intarsia.merge` takes.
            path: path or URL of the dataset.
            strategy: ``insert``, ``update``, ``upsert``, ``full_merge`` or ``deduplicate``.
            key_columns: what rows are matched by.
            partition_columns: of a new dataset; else its layout decides.
            partition_by: another name for ``partition_columns``.
            dedup_order_by: with ``deduplicate``, the row with the highest values of these wins.
            options: as of :func:`intarsia.merge`.

        Raises:
            KeyColumnError: keys missing, NULL or duplicate; nothing was written.
            SchemaMismatch: a column or a value that does not fit.
            CommitConflict: other writers changed the same files, again after several attempts.

        Example:
            >>> import pyarrow as pa
            >>> from intarsia.datasets.pyarrow import PyarrowDatasetIO
            >>> io = PyarrowDatasetIO()
            >>> io.merge(pa.table({"id": [3], "n": ["c"]}), "lake/orders", "upsert", ["id"]).inserted
            1
        """
        return merge(
            data,
            path,
            strategy,
            key_columns,
            partition_columns=partition_columns,
            partition_by=partition_by,
            dedup_order_by=dedup_order_by,
            **self._with("merge", path, options, source=data, strategy=strategy),
        )

    def delete(self, path: DatasetPath, where: Predicate, **options: Unpack[DeleteArguments]) -> MergeResult:
        """Delete the rows for which ``where`` is TRUE; see :func:`intarsia.delete`. Atomic.

        Args:
            path: path or URL of the dataset.
            where: SQL text or a ``pyarrow.compute`` expression.
            options: as of :func:`intarsia.delete`.

        Raises:
            NothingMatched: there is no such dataset.
            InputError: ``where`` does not fit it.

        Example:
            >>> import pyarrow as pa
            >>> from intarsia.datasets.pyarrow import PyarrowDatasetIO
            >>> io = PyarrowDatasetIO()
            >>> io.delete("lake/orders", "id = 1").deleted
            1
        """
        return api.delete(path, where, **self._with("delete", path, options, sql=(where,)))

    def update(
        self,
        path: DatasetPath,
        assignments: Mapping[str, Any],
        where: Predicate | None = None,
        **options: Unpack[DeleteArguments],
    ) -> MergeResult:
        """Assign columns of the rows for which ``where`` is TRUE; see :func:`intarsia.update`. Atomic.

        Args:
            path: path or URL of the dataset.
            assignments: SQL text by column.
            where: SQL text or a ``pyarrow.compute`` expression; every row without it.
            options: as of :func:`intarsia.update`.

        Raises:
            NothingMatched: there is no such dataset.
            InputError: a column, a value or ``where`` does not fit it.

        Example:
            >>> import pyarrow as pa
            >>> from intarsia.datasets.pyarrow import PyarrowDatasetIO
            >>> io = PyarrowDatasetIO()
            >>> io.update("lake/orders", {"n": "upper(n)"}, "id = 1").updated
            1
        """
        asked = self._with("update", path, options, sql=(assignments, where))
        return api.update(path, assignments, where, **asked)

    def compact_parquet_dataset(
        self,
        path: DatasetPath,
        *,
        target_mb_per_file: float | None = None,
        target_rows_per_file: int | None = None,
        partition_filter: PartitionFilter | None = None,
        dry_run: bool = False,
        **options: Unpack[MaintenanceOptions],
    ) -> Statistics:
        """Rewrite small files of each partition into larger ones; see :func:`intarsia.compact`. Atomic.

        Args:
            path: path or URL of the dataset.
            target_mb_per_file: size of a file in MiB.
            target_rows_per_file: rows of a file.
            partition_filter: only these partitions.
            dry_run: plan and count, write nothing.
            options: as of :func:`intarsia.compact`.

        Returns:
            Files and bytes before and after, and ``planned_groups``: which files are rewritten together.

        Raises:
            InputError: a threshold is not greater than zero; nothing was read.
            NothingMatched: no Parquet file under the path, or under ``partition_filter``.

        Example:
            >>> import pyarrow as pa
            >>> from intarsia.datasets.pyarrow import PyarrowDatasetIO
            >>> io = PyarrowDatasetIO()
            >>> io.compact_parquet_dataset("lake/orders", target_mb_per_file=64)["after_file_count"]
            1
        """
        result = api.compact(
            path,
            target_mb_per_file=target_mb_per_file,
            target_rows_per_file=target_rows_per_file,
            partition_filter=partition_filter,
            dry_run=dry_run,
            **self._with("compact", path, options),
        )
        return make_maintenance_statistics(result)

    def optimize_parquet_dataset(
        self,
        path: DatasetPath,
        zorder_columns: Columns = (),
        *,
        curve: Curve = "zorder",
        target_mb_per_file: float | None = None,
        target_rows_per_file: int | None = None,
        partition_filter: PartitionFilter | None = None,
        deduplicate_key_columns: Columns | None = None,
        dedup_order_by: Columns | None = None,
        dry_run: bool = False,
        **options: Unpack[MaintenanceOptions],
    ) -> Statistics:
        """Sort the rows of each partition along some columns, into new files; see :func:`intarsia.optimize`.

        Args:
            path: path or URL of the dataset.
            zorder_columns: the columns to sort by.
            curve: ``"zorder"``, ``"hilbert"`` or ``"linear"``.
            target_mb_per_file: size of a file in MiB.
            target_rows_per_file: rows of a file.
            partition_filter: only these partitions.
            deduplicate_key_columns: also keep one row per key of these columns.
            dedup_order_by: the row with the highest values of these is kept.
            dry_run: plan and count, write nothing.
            options: as of :func:`intarsia.optimize`.

        Raises:
            InputError: a threshold is not greater than zero, or a column is not there.
            NothingMatched: no Parquet file under the path, or under ``partition_filter``.

        Example:
            >>> import pyarrow as pa
            >>> from intarsia.datasets.pyarrow import PyarrowDatasetIO
            >>> io = PyarrowDatasetIO()
            >>> io.optimize_parquet_dataset("lake/orders", ["id", "n"])["total_rows"]
            2
        """
        result = api.optimize(
            path,
            by=zorder_columns,
            curve=curve,
            target_mb_per_file=target_mb_per_file,
            target_rows_per_file=target_rows_per_file,
            partition_filter=partition_filter,
            deduplicate_on=deduplicate_key_columns,
            dedup_order_by=dedup_order_by,
            dry_run=dry_run,
            **self._with("optimize", path, options),
        )
        return make_optimize_statistics(result)

    def deduplicate_parquet_dataset(
        self,
        path: DatasetPath,
        key_columns: Columns | None = None,
        *,
        dedup_order_by: Columns | None = None,
        partition_filter: PartitionFilter | None = None,
        dry_run: bool = False,
        **options: Unpack[DeduplicateOptions],
    ) -> Statistics:
        """Keep one row per key, else one of each set of equal rows; see :func:`intarsia.deduplicate`.

        Args:
            path: path or URL of the dataset.
            key_columns: columns of the key.
            dedup_order_by: the row with the highest values of these is kept.
            partition_filter: only these partitions.
            dry_run: plan and count, write nothing.
            options: as of :func:`intarsia.deduplicate`.

        Raises:
            InputError: a column is not there.
            NothingMatched: no Parquet file under the path, or under ``partition_filter``.

        Example:
            >>> import pyarrow as pa
            >>> from intarsia.datasets.pyarrow import PyarrowDatasetIO
            >>> io = PyarrowDatasetIO()
            >>> io.deduplicate_parquet_dataset("lake/orders", ["id"])["deduplicated_rows"]
            0
        """
        result = api.deduplicate(
            path,
            on=key_columns,
            order_by=dedup_order_by,
            partition_filter=partition_filter,
            dry_run=dry_run,
            **self._with("deduplicate", path, options),
        )
        return make_deduplicate_statistics(result)


def _check_modes(
    mode: str | None, strategy: str | None, key_columns: Columns | None, rewrite_mode: str
) -> None:
    """Raise InputError for arguments that contradict each other, before anything is read."""
    if mode is not None and mode not in _MODES:
        raise InputError(f"mode must be one of {', '.join(map(repr, _MODES))}, it is {mode!r}.")
    if rewrite_mode not in _REWRITE_MODES:
        raise InputError(f'rewrite_mode must be "full" or "incremental", it is {rewrite_mode!r}.')
    if strategy is None:
        if key_columns is not None or rewrite_mode == "incremental":
            raise InputError(
                "key_columns and rewrite_mode go with a strategy.", hint='such as strategy="upsert".'
            )
        return
    name = get_strategy_rule(strategy).name
    if name == "full_merge" and rewrite_mode == "incremental":
        raise InputError(
            'rewrite_mode="incremental" is not supported for full_merge, which may rewrite every file.',
            hint='leave rewrite_mode out, or use strategy="upsert".',
        )
    if key_columns:
        return
    if mode == "append" and name != "insert":
        raise InputError(
            f'mode="append" is not supported for strategy {name!r}, which needs key_columns.',
            hint="name key_columns, or leave the strategy out to append.",
        )
    raise InputError(f"strategy {name!r} needs key_columns.", hint='such as key_columns=["id"].')
