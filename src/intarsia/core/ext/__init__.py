"""Reading helpers: Parquet, CSV and JSON files as PyArrow tables; they write nothing."""

from __future__ import annotations

from intarsia.core.ext.csv import read_csv
from intarsia.core.ext.json import read_json
from intarsia.core.ext.parquet import read_parquet, read_parquet_file

__all__ = ["read_csv", "read_json", "read_parquet", "read_parquet_file"]
