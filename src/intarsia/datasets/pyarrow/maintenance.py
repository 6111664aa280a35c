"""Maintenance as plain functions: compaction, ordering and deduplication with PyArrow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from intarsia.datasets.pyarrow.io import PyarrowDatasetIO
from intarsia.datasets.statistics import Statistics

Path = str | os.PathLike[str]
Columns = str | Sequence[str]


def compact_parquet_dataset_pyarrow(path: Path, *, filesystem: Any = None, **options: Any) -> Statistics:
    """Bring small files together.

    As :meth:`PyarrowDatasetIO.compact_parquet_dataset`, with the same options: ``target_mb_per_file``,
    ``target_rows_per_file``, ``partition_filter``, ``compression``, ``dry_run``.
    """
    return PyarrowDatasetIO(filesystem).compact_parquet_dataset(path, **options)


def optimize_parquet_dataset_pyarrow(
    path: Path, zorder_columns: Columns = (), *, filesystem: Any = None, **options: Any
) -> Statistics:
    """Order rows along some columns, in ``optimized-*.parquet`` files.

    As :meth:`PyarrowDatasetIO.optimize_parquet_dataset`, with the same options.
    """
    return PyarrowDatasetIO(filesystem).optimize_parquet_dataset(path, zorder_columns, **options)


def deduplicate_parquet_dataset_pyarrow(
    path: Path, key_columns: Columns | None = None, *, filesystem: Any = None, **options: Any
) -> Statistics:
    """Leave one row per key.

    As :meth:`PyarrowDatasetIO.deduplicate_parquet_dataset`, with the same options.
    """
    return PyarrowDatasetIO(filesystem).deduplicate_parquet_dataset(path, key_columns, **options)
