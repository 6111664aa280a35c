"""The merge of a table or a dataset into a Parquet dataset: a function with PyArrow only; and with DuckDB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spec_tables import pairs_of, table_of

from intarsia.datasets.duckdb import DuckDBDatasetIO
from intarsia.datasets.pyarrow import merge_parquet_dataset_pyarrow


@pytest.fixture(params=["duckdb", "pyarrow"])
def merge(request: pytest.FixtureRequest) -> Any:
    """The function, and the merge of DuckDB, whose semantics it has."""
    if request.param == "pyarrow":
        return merge_parquet_dataset_pyarrow

    def with_duckdb(
        source: Any, path: Any, key_columns: Any, strategy: str, **options: Any
    ) -> dict[str, int]:
        return dict(DuckDBDatasetIO().merge(source, path, strategy, key_columns, **options))

    return with_duckdb


@pytest.mark.parametrize("kind", ["table", "dataset"])
def test_scenario_upsert_with_single_key_column(tmp_path, make_dataset, merge, rows, kind):
    path = make_dataset(tmp_path / "ds", table_of([1, 2, 7]), files=3)
    source = table_of([1, 2, 3], "new")
    if kind == "dataset":
        source = make_dataset(tmp_path / "source", source, files=2)
    stats = merge(source, path, key_columns=["id"], strategy="upsert")
    assert stats == {"inserted": 1, "updated": 2, "deleted": 0, "total": 4}
    assert pairs_of(path, rows) == [(1, "new"), (2, "new"), (3, "new"), (7, "old")]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("insert", [(1, "old"), (2, "old"), (3, "new")]),
        ("update", [(1, "old"), (2, "new")]),
        ("full_merge", [(2, "new"), (3, "new")]),
        ("deduplicate", [(1, "old"), (2, "new"), (3, "new")]),
    ],
)
def test_scenario_insert_update_full_merge_deduplicate(
    tmp_path, make_dataset, merge, rows, strategy, expected
):
    path = make_dataset(tmp_path / "ds", table_of([1, 2]), files=2)
    source, order = table_of([2, 3], "new"), None
    if strategy == "deduplicate":
        source, order = pa.concat_tables([source, table_of([2, 3], "lower")]), ["v"]
    merge(source, path, ["id"], strategy, dedup_order_by=order)
    assert pairs_of(path, rows) == expected


def test_scenario_stats_reflect_merge_operations(tmp_path, make_dataset, merge, rows):
    path = make_dataset(tmp_path / "ds", table_of(range(13)), files=4)
    source = table_of([*range(3, 13), *range(50, 55)], "new")
    stats = merge(source, path, ["id"], "full_merge")
    assert stats == {"inserted": 5, "updated": 10, "deleted": 3, "total": 15}
    assert len(rows(path)) == 15


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("problem", ["missing", "null"])
def test_scenario_missing_key_columns_or_null_keys(tmp_path, make_dataset, merge, unchanged, side, problem):
    good = pa.table({"id": [1, 2]})
    bad = pa.table({"x": [1, 2]}) if problem == "missing" else pa.table({"id": [1, None]})
    path = make_dataset(tmp_path / "ds", bad if side == "target" else good)
    with unchanged(path), pytest.raises(ValueError, match=f"'id'.*{side}"):
        merge(bad if side == "source" else good, path, ["id"], "upsert")


def test_scenario_schema_incompatibility(tmp_path, make_dataset, merge, unchanged):
    path = make_dataset(tmp_path / "ds", table_of([1]))
    with (
        unchanged(path),
        pytest.raises(TypeError, match="'v' is string in the target and int64 in the source"),
    ):
        merge(pa.table({"id": [1], "v": [1]}), path, ["id"], "upsert")


def test_scenario_key_filtered_scanning_on_large_target(tmp_path, make_dataset, reads):
    path = make_dataset(tmp_path / "ds", table_of(range(2000)), files=20, row_group_size=50)
    source = (batch for batch in table_of([510, 511, 1510], "new").to_batches(max_chunksize=1))
    reads.clear()
    stats = merge_parquet_dataset_pyarrow(source, path, ["id"], "update")
    assert stats["updated"] == 3
    assert reads.paths == {"part-00005.parquet", "part-00015.parquet"}
    assert sum(read.rows for read in reads.all if read.columns == ("id",)) == 100  # one row group of each
    assert reads.largest <= 50


def test_scenario_partition_limited_merge(tmp_path, make_dataset, rows, reads):
    days = [f"2025-11-{day}" for day in (14, 15, 16)]
    data = pa.table({"id": [1, 1, 1], "v": ["old"] * 3, "date": days})
    path = make_dataset(tmp_path / "ds", data, partition="date")
    updates = make_dataset(tmp_path / "updates" / "date=2025-11-15", table_of([1], "new"))
    reads.clear()
    stats = merge_parquet_dataset_pyarrow(updates, path, ["id", "date"], "upsert")
    assert stats == {"inserted": 0, "updated": 1, "deleted": 0, "total": 3}
    assert [row["date"] for row in rows(path) if row["v"] == "new"] == ["2025-11-15"]
    assert {read.path for read in reads.all if read.path.startswith("date=")} == {
        "date=2025-11-15/part-00000.parquet"
    }


def test_nothing_but_pyarrow_is_needed(tmp_path: Path):
    script = f"""
import sys
for name in ("duckdb", "pyspark", "pandas", "polars", "fsspec", "numpy"):
    sys.modules[name] = None
import pyarrow as pa
from intarsia.datasets.pyarrow import PyarrowDatasetIO, merge_parquet_dataset_pyarrow
path = {str(tmp_path / "ds")!r}
merge_parquet_dataset_pyarrow(pa.table({{"id": [1, 2], "p": ["a", "b"]}}), path, ["id"], partition_by="p")
stats = merge_parquet_dataset_pyarrow(pa.table({{"id": [2, 3], "p": ["b", "b"]}}), path, ["id"])
assert stats == {{"inserted": 1, "updated": 1, "deleted": 0, "total": 3}}, stats
assert PyarrowDatasetIO().optimize_parquet_dataset(path, ["id"])["after_file_count"] == 2
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
