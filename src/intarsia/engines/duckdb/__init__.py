"""DuckDB as an engine."""

from intarsia.engines.duckdb.engine import DuckDBEngine

__all__ = ["DuckDBEngine"]
