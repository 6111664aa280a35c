"""Plain directories of Parquet files as tables."""

from __future__ import annotations

from intarsia.tables.parquet.links import HardLinkSnapshot
from intarsia.tables.parquet.listing import Listing, list_data_files
from intarsia.tables.parquet.table import ParquetTable, ParquetTransaction

__all__ = ["HardLinkSnapshot", "Listing", "ParquetTable", "ParquetTransaction", "list_data_files"]
