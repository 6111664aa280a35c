"""Keywords that the dataset IOs pass on to an operation: some of its arguments, and its options.

Editors complete them and type checkers find a wrong one, as of the functions in :mod:`intarsia.api`.
"""

from __future__ import annotations

import os
from typing import Any, Literal, TypedDict

from intarsia.arguments import Curve, MatchArguments, Predicate, SourceArguments
from intarsia.options import (
    Columns,
    DeleteOptions,
    IOOptions,
    MergeOptions,
    PartitionFilter,
    RewriteOptions,
    WriteCallOptions,
)
from intarsia.tables.parquet import ParquetTable

__all__ = [
    "CompactArguments",
    "DatasetPath",
    "DeduplicateArguments",
    "DeleteArguments",
    "Filters",
    "MergeArguments",
    "MergePathArguments",
    "OptimizeArguments",
    "RewriteMode",
    "WriteArguments",
    "WriteOrMergeArguments",
]

DatasetPath = str | os.PathLike[str] | ParquetTable
"""A path or URL of a dataset, or the table that an earlier call has opened."""
RewriteMode = Literal["full", "incremental"]

_Condition = tuple[str, str, Any]
Filters = Predicate | _Condition | list[_Condition] | list[list[_Condition]]
"""SQL text, a ``pyarrow.compute`` expression, or ``(column, operator, value)`` as ``pyarrow.parquet``
has them: a list of which all hold, or a list of such lists of which one holds."""


class _DryRun(TypedDict, total=False):
    dry_run: bool


class MergeArguments(MergeOptions, MatchArguments, _DryRun, total=False):
    """Of :func:`intarsia.merge`."""


class MergePathArguments(IOOptions, MatchArguments, _DryRun, total=False):
    """Of :func:`intarsia.merge`, but for the file system, which is an argument of its own."""


class WriteArguments(WriteCallOptions, SourceArguments, _DryRun, total=False):
    """Of :func:`intarsia.write`."""

    where: Predicate | None


class WriteOrMergeArguments(WriteArguments, MatchArguments, total=False):
    """Of :func:`intarsia.write`, or of :func:`intarsia.merge` where there is a strategy."""

    partition_columns: Columns | None
    dedup_order_by: Columns | None


class DeleteArguments(DeleteOptions, _DryRun, total=False):
    """Of :func:`intarsia.delete` and :func:`intarsia.update`."""


class DeduplicateArguments(RewriteOptions, _DryRun, total=False):
    """Of :func:`intarsia.deduplicate`, but for the file system, which is an argument of its own."""

    partition_filter: PartitionFilter | None
    dedup_order_by: Columns | None


class CompactArguments(RewriteOptions, _DryRun, total=False):
    """Of :func:`intarsia.compact`, but for the file system, which is an argument of its own."""

    partition_filter: PartitionFilter | None
    target_mb_per_file: float | None
    target_rows_per_file: int | None


class OptimizeArguments(CompactArguments, total=False):
    """Of :func:`intarsia.optimize`, under the names of :meth:`DatasetIO.optimize_parquet_dataset`."""

    curve: Curve
    deduplicate_key_columns: Columns | None
    dedup_order_by: Columns | None
