"""Parquet datasets with PyArrow alone: no DuckDB, no Spark, no pandas."""

from __future__ import annotations

from intarsia.common.schema import cast_schema, convert_large_types_to_normal, opt_dtype, unify_schemas
from intarsia.datasets.pyarrow.io import PyarrowDatasetIO
from intarsia.datasets.pyarrow.maintenance import (
    compact_parquet_dataset_pyarrow,
    deduplicate_parquet_dataset_pyarrow,
    optimize_parquet_dataset_pyarrow,
)
from intarsia.datasets.pyarrow.merge import merge_parquet_dataset_pyarrow

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
