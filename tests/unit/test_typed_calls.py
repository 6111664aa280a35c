"""A type checker reads scripts with mistakes planted in them, and must find each of these and no other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUNCTIONS = """
import intarsia as it
from intarsia import pipeline
from intarsia.spark import local_session, merge_batches
from intarsia.tables.iceberg import embedded_catalog

it.merge({"id": [1]}, "lake", on="id", strategy="upsert", compression="zstd", engine="duckdb", dry_run=True)
it.merge({"id": [1]}, "lake", on="id", compresion="zstd")  # wrong
it.merge({"id": [1]}, "lake", on="id", strategy="upserd")  # wrong
it.merge(3, "lake", on="id")  # wrong
it.merge({"id": [1]}, 3, on="id")  # wrong
it.merge({"id": [1]}, "lake", on="id", engine="sprk")  # wrong
it.delete("lake", "id = 1", threads=2, mode="merge-on-read")
it.delete("lake", "id = 1", threads="2")  # wrong
it.compact("lake", spool_bytes=1)  # wrong
it.plan(it.merge, {"id": [1]}, "lake", on="id", compression="zstd").count("rewrite")
it.plan(it.merge, {"id": [1]}, "lake", on="id", compresion="zstd")  # wrong
it.plan(it.delete, "lake")  # wrong
it.plan("delete", "lake", "id = 1")
it.plan("delte", "lake", "id = 1")  # wrong
it.read("lake", columns=["id"], dialect="spark")
it.read("lake", compression="zstd")  # wrong
pipeline.run_file("orders.toml", params={"day": "2025-03-04"}, dry_run=True, engine="arrow")
pipeline.run_file("orders.toml", dryrun=True)  # wrong
it.merge({"id": [1]}, it.iceberg("shop.orders", catalog=embedded_catalog("warehouse")), on="id")
it.iceberg("shop.orders", catalog=3)  # wrong
it.merge(local_session().table("changes"), "lake", on="id", engine=local_session())
it.merge(local_session().tables("changes"), "lake", on="id")  # wrong
pipeline.run_file("orders.toml", session=local_session())
pipeline.run_file("orders.toml", session="local[*]")  # wrong
merge_batches("lake", "id", app_id="clicks", null_keys="match", retain=2)
merge_batches("lake", "id", ap_id="clicks")  # wrong
merge_batches("lake", "id", batch_id=3)  # wrong
"""
DATASETS = """
from intarsia.datasets.duckdb import DuckDBDatasetIO
from intarsia.datasets.pyarrow import (
    PyarrowDatasetIO,
    compact_parquet_dataset_pyarrow,
    deduplicate_parquet_dataset_pyarrow,
    merge_parquet_dataset_pyarrow,
    optimize_parquet_dataset_pyarrow,
)
from intarsia.datasets.spark import SparkDatasetIO
from intarsia.spark import local_session

rows = {"id": [1]}
io = PyarrowDatasetIO(None, storage_options={"anon": True}, threads=2, lock_timeout=1.5)
PyarrowDatasetIO(storage_option={})  # wrong
DuckDBDatasetIO(memory_bytes=1 << 30)
DuckDBDatasetIO(memory="1 GB")  # wrong
DuckDBDatasetIO("lake.db")  # wrong
SparkDatasetIO("local[*]")  # wrong
SparkDatasetIO(local_session()).read_parquet("lake").count()
SparkDatasetIO(local_session()).read_parquet("lake").counts()  # wrong
io.read_parquet("lake", columns="id", filters=[("id", ">", 1)])
io.read_parquet("lake", filter="id > 1")  # wrong
io.write_dataset(rows, "lake", mode="overwrite", where="id = 1", compression="zstd", dry_run=True)
io.write_dataset(rows, "lake", compresion="zstd")  # wrong
io.write_dataset(3, "lake")  # wrong
io.write_parquet_dataset(rows, "lake", strategy="upsert", key_columns="id", null_keys="match", missing="null")
io.write_parquet_dataset(rows, "lake", strategy="upsert", key_columns="id", null_key="match")  # wrong
io.write_parquet_dataset(rows, "lake", rewrite_mode="partly")  # wrong
io.merge(rows, "lake", "upsert", ["id"], schema_evolution="add", except_columns=["op"], batch_rows=5)
io.merge(rows, "lake", "upsert", ["id"], schema_evolution="ad")  # wrong
io.merge(rows, "lake", "upsert", ["id"], batch_row=5)  # wrong
io.delete("lake", "id = 1", single_writer=True, dry_run=True)
io.delete("lake", "id = 1", single_writers=True)  # wrong
io.update("lake", {"n": "upper(n)"}, retain=2)
io.update("lake", {"n": "upper(n)"}, retains=2)  # wrong
io.compact_parquet_dataset("lake", target_mb_per_file=64, partition_filter="day=1", compression="zstd")
io.compact_parquet_dataset("lake", target_mb_per_files=64)  # wrong
io.optimize_parquet_dataset("lake", ["id"], curve="hilbert", row_group_size=100)
io.optimize_parquet_dataset("lake", ["id"], row_group_sizes=100)  # wrong
io.deduplicate_parquet_dataset("lake", ["id"], partition_filter=["day=1"], threads=1)
io.deduplicate_parquet_dataset("lake", ["id"], partition_filter=1)  # wrong
merge_parquet_dataset_pyarrow(rows, "lake", ["id"], filesystem=None, null_keys="match", spool_bytes=1)
merge_parquet_dataset_pyarrow(rows, "lake", ["id"], null_key="match")  # wrong
compact_parquet_dataset_pyarrow("lake", target_mb_per_file=64, dry_run=True, compression="zstd")
compact_parquet_dataset_pyarrow("lake", target_mb_per_files=64)  # wrong
optimize_parquet_dataset_pyarrow("lake", ["id"], curve="linear", deduplicate_key_columns="id")
optimize_parquet_dataset_pyarrow("lake", ["id"], curves="linear")  # wrong
deduplicate_parquet_dataset_pyarrow("lake", ["id"], dedup_order_by="at", threads=1)
deduplicate_parquet_dataset_pyarrow("lake", ["id"], order_by="at")  # wrong
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [FUNCTIONS, DATASETS], ids=["functions", "datasets"])
def test_a_type_checker_finds_each_mistake_in_a_script_and_no_other(script: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(script, encoding="utf-8")
    done = subprocess.run(
        # With the options of make lint, so that what it has found out about our modules is used again.
        [sys.executable, "-m", "mypy", "--no-color-output", "--no-error-summary", "--no-pretty", str(path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=240,
    )
    assert not done.stderr
    found = {int(number) for number in re.findall(r"script\.py:(\d+): error:", done.stdout)}
    wrong = {number for number, line in enumerate(script.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, done.stdout
