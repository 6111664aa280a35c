"""Parquet datasets with DuckDB, in an instance of its own or beside a connection of the caller's."""

from __future__ import annotations

from intarsia.datasets.duckdb.io import DuckDBDatasetIO

__all__ = ["DuckDBDatasetIO"]
