"""Parquet datasets with PyArrow alone: an IO object, and the same as functions that return plain dicts."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any, Unpack

from intarsia.arguments import Strategy
from intarsia.common.arrow import ingest
from intarsia.common.log import get_logger, operation_log
from intarsia.common.schema import cast_schema, convert_large_types_to_normal, opt_dtype, unify_schemas
from intarsia.core.incremental import list_partition_names
from intarsia.core.merge import compute_merge_stats, normalize_keys, validate_keys_and_schema
from intarsia.core.rule import get_strategy_rule
from intarsia.core.snapshot import with_target_types
from intarsia.datasets.io import DatasetIO
from intarsia.datasets.options import (
    CompactArguments,
    DeduplicateArguments,
    MergePathArguments,
    OptimizeArguments,
)
from intarsia.datasets.statistics import Statistics
from intarsia.options import TABLE_OPTIONS, Columns, RowSource
from intarsia.request import show_target

__all__ = [
    "PyarrowDatasetIO",
    "cast_schema",
    "compact_parquet_dataset_pyarrow",
    "convert_large_types_to_normal",
    "deduplicate_parquet_dataset_pyarrow",
    "merge_parquet_dataset_pyarrow",
    "opt_dtype",
    "optimize_parquet_dataset_pyarrow",
    "unify_schemas",
]

log = get_logger(__name__)

Path = str | os.PathLike[str]


class PyarrowDatasetIO(DatasetIO):
    """Parquet datasets in this process, with PyArrow alone.

    Args:
        filesystem: the pyarrow or fsspec file system that all paths are on; None for local paths
            and URLs.
        options: for every call, such as ``storage_options``, ``single_writer`` or ``lock_timeout``; a
            call's own options win.

    Raises:
        InputError: an option of another engine.

    Example:
        >>> import pyarrow as pa
        >>> from intarsia.datasets.pyarrow import PyarrowDatasetIO
        >>> io = PyarrowDatasetIO()
        >>> result = io.merge(pa.table({"id": [3], "n": ["c"]}), "lake/orders", "upsert", ["id"])
        >>> result["inserted"], result["total"]
        (1, 3)
    """

    engine = "arrow"
    backend = "pyarrow"


def merge_parquet_dataset_pyarrow(
    source: RowSource,
    target_path: Path,
    key_columns: Columns,
    strategy: Strategy = "upsert",
    *,
    dedup_order_by: Columns | None = None,
    partition_columns: Columns | None = None,
    partition_by: Columns | None = None,
    filesystem: Any = None,
    **options: Unpack[MergePathArguments],
) -> dict[str, int]:
    """Merge a table, or Parquet files, into a dataset; how many rows were inserted, updated and deleted.

    Atomic. Memory: the source (mapped from a spool where it is large) and a row group per thread;
    ``batch_rows`` limits how much of the target is handled at once.

    Args:
        source: as of :func:`intarsia.merge`.
        target_path: path or URL of the dataset.
        key_columns: what rows are matched by.
        strategy: ``insert``, ``update``, ``upsert``, ``full_merge`` or ``deduplicate``.
        dedup_order_by: with ``deduplicate``, the row with the highest values of these wins.
        partition_columns: of a new dataset; else its layout decides.
        partition_by: another name for ``partition_columns``.
        filesystem: the pyarrow or fsspec file system that the path is on.
        options: as of :func:`intarsia.merge`.

    Returns:
        ``inserted``, ``updated``, ``deleted``, and ``total``: the rows that a reader then finds.

    Raises:
        KeyColumnError: keys missing, NULL or duplicate; nothing was written.
        SchemaMismatch: columns or values that do not fit; nothing was written.

    Example:
        >>> import pyarrow as pa
        >>> from intarsia.datasets.pyarrow import merge_parquet_dataset_pyarrow
        >>> merge_parquet_dataset_pyarrow(pa.table({"id": [2], "n": ["B"]}), "lake/orders", ["id"])
        {'inserted': 0, 'updated': 1, 'deleted': 0, 'total': 2}
    """
    with ExitStack() as stack:
        with operation_log(log, "merge", show_target(target_path)):
            keys = normalize_keys(key_columns)
            rule = get_strategy_rule(strategy)
            given: dict[str, Any] = {**options}
            opened = {name: given.pop(name) for name in TABLE_OPTIONS if name in given}
            io = PyarrowDatasetIO(filesystem, **opened)
            names = list_partition_names(partition_columns, partition_by)
            table = io.table(target_path)
            found = table.snapshot()
            spool = {name: given.pop(name) for name in ("spool_bytes", "spool_dir") if name in given}
            ingested = ingest(
                source,
                filesystem=filesystem,
                partition_columns=found.partition_columns if names is None else names,
                types=found.schema if found.has_schema else None,
                **spool,
            )
            taken = stack.enter_context(ingested)
            snapshot = with_target_types(taken.schema, found)
            validate_keys_and_schema(
                taken.schema if options.get("null_keys") == "match" else taken.table,
                snapshot.schema if snapshot.has_schema else None,
                keys,
                operation=rule.name,
                path=snapshot.root,
                missing=options.get("missing", "error"),
                schema_evolution=options.get("schema_evolution"),
                partition_columns=snapshot.partition_columns,
            )
        # Outside of the block above: the merge logs what it does not expect itself.
        result = io.merge(
            taken.table, table, strategy, keys, partition_by=names, dedup_order_by=dedup_order_by, **given
        )
    return compute_merge_stats(
        inserted=result.inserted,
        updated=result.updated,
        deleted=result.deleted,
        previous_total=result.target_count_before,
    )


def compact_parquet_dataset_pyarrow(
    path: Path, *, filesystem: Any = None, **options: Unpack[CompactArguments]
) -> Statistics:
    """Rewrite small files of each partition into larger ones.

    Args:
        path: path or URL of the dataset.
        filesystem: the pyarrow or fsspec file system that the path is on.
        options: as of :meth:`PyarrowDatasetIO.compact_parquet_dataset`: ``target_mb_per_file``,
            ``target_rows_per_file``, ``partition_filter``, ``compression``, ``dry_run``.

    Raises:
        InputError: a threshold is not greater than zero; nothing was read.
        NothingMatched: no Parquet file under the path, or under ``partition_filter``.

    Example:
        >>> from intarsia.datasets.pyarrow import compact_parquet_dataset_pyarrow
        >>> compact_parquet_dataset_pyarrow("lake/orders", target_mb_per_file=64)["after_file_count"]
        1
    """
    return PyarrowDatasetIO(filesystem).compact_parquet_dataset(path, **options)


def optimize_parquet_dataset_pyarrow(
    path: Path, zorder_columns: Columns = (), *, filesystem: Any = None, **options: Unpack[OptimizeArguments]
) -> Statistics:
    """Sort rows along some columns, into ``optimized-*.parquet`` files.

    Args:
        path: path or URL of the dataset.
        zorder_columns: the columns to sort by.
        filesystem: the pyarrow or fsspec file system that the path is on.
        options: as of :meth:`PyarrowDatasetIO.optimize_parquet_dataset`.

    Raises:
        InputError: a column that is not there, or a threshold that is not greater than zero.
        NothingMatched: no Parquet file under the path, or under ``partition_filter``.

    Example:
        >>> from intarsia.datasets.pyarrow import optimize_parquet_dataset_pyarrow
        >>> optimize_parquet_dataset_pyarrow("lake/orders", ["id", "n"])["total_rows"]
        2
    """
    return PyarrowDatasetIO(filesystem).optimize_parquet_dataset(path, zorder_columns, **options)


def deduplicate_parquet_dataset_pyarrow(
    path: Path,
    key_columns: Columns | None = None,
    *,
    filesystem: Any = None,
    **options: Unpack[DeduplicateArguments],
) -> Statistics:
    """Keep one row per key, else one of each set of equal rows.

    Args:
        path: path or URL of the dataset.
        key_columns: columns of the key.
        filesystem: the pyarrow or fsspec file system that the path is on.
        options: as of :meth:`PyarrowDatasetIO.deduplicate_parquet_dataset`.

    Raises:
        InputError: a column that is not there.
        NothingMatched: no Parquet file under the path, or under ``partition_filter``.

    Example:
        >>> from intarsia.datasets.pyarrow import deduplicate_parquet_dataset_pyarrow
        >>> deduplicate_parquet_dataset_pyarrow("lake/orders", ["id"])["deduplicated_rows"]
        0
    """
    return PyarrowDatasetIO(filesystem).deduplicate_parquet_dataset(path, key_columns, **options)
