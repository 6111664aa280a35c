"""Structured Streaming: every micro-batch takes effect exactly once, whatever becomes of the query."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

import intarsia as it
from intarsia.errors import InputError
from intarsia.pipeline.streams.stream_steps import start_query
from intarsia.spark import merge_batches
from intarsia.spark.session import is_connect
from intarsia.tables.parquet import ParquetTable

KEYS = "id long, n long"


def _frame(spark, *rows):
    return spark.createDataFrame(list(rows), KEYS)


def test_a_batch_that_was_committed_is_not_merged_again(spark, tmp_path, rows):
    merge = merge_batches(tmp_path / "t", "id", app_id="orders")
    merge(_frame(spark, (1, 10), (2, 20)), 0)
    merge(_frame(spark, (1, 11)), 1)
    merge(_frame(spark, (1, 10), (2, 20), (3, 30)), 0)
    merge(_frame(spark, (1, 99)), 1)
    assert rows(tmp_path / "t") == [{"id": 1, "n": 11}, {"id": 2, "n": 20}]
    assert ParquetTable(tmp_path / "t").last_batch("orders") == 1


def test_applications_count_their_batches_apart(spark, tmp_path, rows):
    merge_batches(tmp_path / "t", "id", app_id="a")(_frame(spark, (1, 1)), 5)
    merge_batches(tmp_path / "t", "id", app_id="b")(_frame(spark, (2, 2)), 0)
    assert [row["id"] for row in rows(tmp_path / "t")] == [1, 2]
    table = ParquetTable(tmp_path / "t")
    assert (table.last_batch("a"), table.last_batch("b")) == (5, 0)


def test_a_batch_without_rows_is_recorded(spark, tmp_path, rows, leftovers):
    merge = merge_batches(tmp_path / "t", "id", app_id="orders")
    merge(_frame(spark), 0)
    assert ParquetTable(tmp_path / "t").last_batch("orders") == 0
    merge(_frame(spark, (1, 1)), 1)
    merge(_frame(spark), 2)
    assert ParquetTable(tmp_path / "t").last_batch("orders") == 2
    assert rows(tmp_path / "t") == [{"id": 1, "n": 1}]
    assert leftovers(tmp_path / "t") == []


def test_the_batch_is_asked_for_under_the_lock_of_the_commit(tmp_path, rows):
    """Whoever comes second with the same batch finds it done, though nobody told them before."""
    table = pa.table({"id": [1], "n": [1]})
    options = {"on": "id", "app_id": "orders", "batch_id": 3}
    first = it.merge(table, tmp_path / "t", **options)
    second = it.merge(pa.table({"id": [1], "n": [2]}), tmp_path / "t", **options)
    assert (first.inserted, second.inserted, second.updated, second.changed) == (1, 0, 0, False)
    assert "Batch 3 of 'orders' was committed before" in second.notes[0]
    assert second.total == 1
    assert rows(tmp_path / "t") == [{"id": 1, "n": 1}]


def test_merging_batches_travels_and_refuses_what_it_decides_itself(tmp_path):
    merge = merge_batches(tmp_path / "t", ["id"], strategy="insert", app_id="x", null_keys="match")
    assert pickle.loads(pickle.dumps(merge)) == merge
    with pytest.raises(InputError, match="batch_id"):
        merge_batches(tmp_path / "t", "id", batch_id=1)
    with pytest.raises(InputError, match="upsert"):
        merge_batches(tmp_path / "t", "id", strategy="replace")


def test_a_batch_outside_of_a_query_needs_an_app_id(spark, tmp_path):
    with pytest.raises(InputError, match="app_id"):
        merge_batches(tmp_path / "t", "id")(_frame(spark, (1, 1)), 0)


def test_a_path_is_taken_from_the_directory_that_it_was_named_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    merge = merge_batches("t", "id", app_id="x", control_path="c", spool_dir=Path("s"))
    assert merge.target == str(tmp_path / "t")
    assert merge.options == {"control_path": str(tmp_path / "c"), "spool_dir": str(tmp_path / "s")}
    assert merge_batches("memory://lake/t", "id", app_id="x").target == "memory://lake/t"
    elsewhere = pafs.SubTreeFileSystem("/", pafs.LocalFileSystem())
    assert merge_batches("t", "id", app_id="x", filesystem=elsewhere).target == "t"
    with pytest.raises(InputError, match="path"):
        merge_batches("", "id", app_id="x")


def test_where_the_id_of_a_query_cannot_be_told_an_app_id_is_asked_for_at_once(spark, tmp_path):
    refused = pytest.raises(InputError, match="app_id") if is_connect(spark) else nullcontext()
    with refused:
        merge_batches(tmp_path / "t", "id")


def _land(place: Path, batch: int) -> None:
    """One file is one batch: a key of its own, and a counter that all batches set to their number."""
    place.mkdir(exist_ok=True)
    rows = [{"id": 0, "n": batch}, {"id": batch, "n": batch}]
    file = place / f"{batch}.json"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    os.utime(file, (1_700_000_000 + batch, 1_700_000_000 + batch))  # Spark takes the oldest first


def _stream(spark: Any, place: Path, merge: Any) -> None:
    """One query over all that has landed, to its end."""
    source = spark.readStream.schema(KEYS).option("maxFilesPerTrigger", 1).json(str(place / "in"))
    writer = source.writeStream.foreachBatch(merge).option("checkpointLocation", str(place / "checkpoint"))
    query = start_query(writer.trigger(availableNow=True))  # a busy Connect server may need to be asked again
    assert query.awaitTermination(300)


def test_a_query_has_every_batch_once_though_spark_gives_one_again(spark, tmp_path, monkeypatch, rows):
    """On Spark Connect the function runs in another process, in another directory."""
    for batch in (1, 2):
        _land(tmp_path / "in", batch)
    with monkeypatch.context() as here:
        here.chdir(tmp_path)
        merge = merge_batches("t", "id", app_id="orders")
    _stream(spark, tmp_path, merge)
    everything = [{"id": 0, "n": 2}, {"id": 1, "n": 1}, {"id": 2, "n": 2}]
    assert rows(tmp_path / "t") == everything
    version = it.snapshot(tmp_path / "t").version

    commits = tmp_path / "checkpoint" / "commits"
    (commits / "1").unlink()  # as though Spark had been killed before it noted its last batch
    (commits / ".1.crc").unlink(missing_ok=True)
    _stream(spark, tmp_path, merge)
    assert (commits / "1").exists()  # it did give the batch again
    assert rows(tmp_path / "t") == everything
    assert it.snapshot(tmp_path / "t").version == version


ADDS = "when matched then update set n = target.n + source.n when not matched then insert *"


def _make_iceberg(tmp_path: Path) -> Any:
    pytest.importorskip("pyiceberg")
    from intarsia.tables.iceberg import embedded_catalog

    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("db")
    catalog.create_table("db.t", pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    return catalog


def _read_iceberg(catalog: Any) -> list[tuple[int, int]]:
    found = catalog.load_table("db.t").scan().to_arrow()
    return sorted(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True))


def test_a_query_adds_every_batch_to_an_iceberg_table_once_though_spark_gives_one_again(
    spark, tmp_path, monkeypatch
):
    """On Spark Connect the table is opened again in another process."""
    catalog = _make_iceberg(tmp_path)
    for batch in (1, 2):
        _land(tmp_path / "in", batch)
    with monkeypatch.context() as here:
        here.chdir(tmp_path)
        merge = merge_batches(it.iceberg("db.t", catalog="./warehouse"), "id", app_id="orders", clauses=ADDS)
    _stream(spark, tmp_path, merge)
    assert _read_iceberg(catalog) == [(0, 3), (1, 1), (2, 2)]
    it.write(pa.table({"id": [9], "n": [9]}), it.iceberg("db.t", catalog=catalog), engine="arrow")

    commits = tmp_path / "checkpoint" / "commits"
    (commits / "1").unlink()  # as though Spark had been killed before it noted its last batch
    (commits / ".1.crc").unlink(missing_ok=True)
    _stream(spark, tmp_path, merge)
    assert (commits / "1").exists()  # it did give the batch again
    assert _read_iceberg(catalog) == [(0, 3), (1, 1), (2, 2), (9, 9)]


def test_what_is_neither_a_dataset_nor_an_iceberg_table_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"the path of a dataset or an Iceberg table, not ParquetTable"):
        merge_batches(ParquetTable(tmp_path / "t"), "id", app_id="x")


def test_merging_into_an_iceberg_table_travels(tmp_path):
    catalog = _make_iceberg(tmp_path)
    merge = merge_batches(catalog.load_table("db.t"), "id", app_id="x")
    travelled = pickle.loads(pickle.dumps(merge))
    assert travelled == merge
    assert travelled.target.open().last_batch("x") is None


QUERY = Path(__file__).with_name("streaming_query.py")
DIED = {"exit": 77, "kill": -signal.SIGKILL, "never": 0}


def _run(tmp_path: Path, how: str, die_after: int | None = None) -> None:
    command = [sys.executable, str(QUERY), str(tmp_path), str(die_after), how]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, start_new_session=True
    )
    assert done.returncode == DIED[how], done.stderr[-3000:]


@pytest.mark.slow
def test_a_query_that_dies_and_is_killed_after_commits_and_started_again_has_every_batch_once(
    spark, tmp_path, rows, leftovers
):
    target, noted = tmp_path / "t", tmp_path / "checkpoint" / "commits"
    for batch in (1, 2, 3, 4):
        _land(tmp_path / "in", batch)
    _run(tmp_path, "exit", die_after=1)
    assert [row["id"] for row in rows(target)] == [0, 1]
    _run(tmp_path, "kill", die_after=2)  # the driver and its JVM at once, by SIGKILL
    assert [row["id"] for row in rows(target)] == [0, 1, 2]
    assert (noted / "0").exists()
    assert not (noted / "1").exists()  # Spark does not know that batch 1 (of 0..3) is done
    versions = it.snapshot(target).version
    _run(tmp_path, "never")
    assert rows(target) == [{"id": 0, "n": 4}] + [{"id": n, "n": n} for n in (1, 2, 3, 4)]
    assert it.snapshot(target).version == versions + 2  # the two batches that were left, none twice
    assert leftovers(target) == []
    seen = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert seen == [0, 0, 1, 1, 2, 3]  # Spark did give batches 0 and 1 a second time
