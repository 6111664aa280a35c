"""The first write into an empty table follows the table's sizes of files and row groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.tables.iceberg.catalog import embedded_catalog

ROWS = 400_000
MB = 1 << 20


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return pa.table({"id": pa.array(range(ROWS)), "x": pc.random(ROWS, initializer=7)})


def files_of(path: Path, rows: Any, engine: str, properties: dict[str, str]) -> list[pq.FileMetaData]:
    catalog = embedded_catalog(path)
    catalog.create_namespace("db")
    catalog.create_table("db.t", rows.schema, properties=properties)
    it.write(rows, it.iceberg("db.t", catalog=catalog), engine=engine, threads=1)
    return [pq.read_metadata(file) for file in path.rglob("*.parquet")]


def size_of(footer: pq.FileMetaData) -> int:
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    return sum(group.column(n).total_compressed_size for group in groups for n in range(footer.num_columns))


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_files_are_cut_at_their_size(tmp_path: Path, rows: pa.Table, engine: str) -> None:
    files = files_of(tmp_path, rows, engine, {"write.target-file-size-bytes": str(MB)})
    assert sum(file.num_rows for file in files) == ROWS
    assert len(files) >= 3
    assert max(size_of(file) for file in files) < 1.3 * MB


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_row_groups_are_cut_at_their_size(tmp_path: Path, rows: pa.Table, engine: str) -> None:
    (file,) = files_of(tmp_path, rows, engine, {"write.parquet.row-group-size-bytes": str(MB // 2)})
    assert file.num_row_groups >= 6
    assert max(file.row_group(n).num_rows for n in range(file.num_row_groups)) < ROWS / 5
