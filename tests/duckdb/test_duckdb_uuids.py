"""Columns of bytes that DuckDB reads as UUIDs of its own."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it

KEYS = [UUID(int=number << 100).bytes for number in range(1, 5)]


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_uuids_of_a_file_without_a_schema_of_arrow_are_bytes(tmp_path: Path, engine: str) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    keys = pa.ExtensionArray.from_storage(pa.uuid(), pa.array(KEYS, pa.binary(16)))
    pq.write_table(pa.table({"u": keys, "n": [1, 2, 3, 4]}), root / "a.parquet", store_schema=False)
    source = pa.table({"u": pa.array([KEYS[1], b"x" * 16], pa.binary(16)), "n": [20, 50]})
    result = it.merge(source, root, on="u", engine=engine)
    assert (result.updated, result.inserted) == (1, 1)
    assert it.delete(root, "n = 20", engine=engine).deleted == 1
