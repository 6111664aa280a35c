"""``df.writeStream.format("intarsia")``: a micro-batch takes effect once, by its query's id or app_id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StringType, StructField, StructType

import intarsia as it
import intarsia.errors
from intarsia.errors import InputError, KeyColumnError
from intarsia.tables.iceberg import embedded_catalog
from intarsia.tables.parquet import ParquetTable
from pyspark_intarsia import DefaultSource

SCHEMA = StructType([StructField("id", LongType()), StructField("n", StringType())])


def send(options: dict[str, str], batch_id: int, *rows: tuple[int, str], overwrite: bool = False) -> None:
    """What Spark does with a micro-batch: one writer for the tasks, another one for the commit."""
    tasks = DefaultSource(CaseInsensitiveDict(options)).streamWriter(SCHEMA, overwrite)
    table = pa.table({"id": pa.array([r[0] for r in rows], pa.int64()), "n": [r[1] for r in rows]})
    messages = [tasks.write(iter(table.to_batches()))] if rows else []
    driver = DefaultSource(CaseInsensitiveDict(options)).streamWriter(SCHEMA, overwrite)
    try:
        driver.commit(messages, batch_id)
    except it.errors.IntarsiaError:
        driver.abort(messages, batch_id)
        raise


def read(target: Any) -> dict[int, str]:
    return {row["id"]: row["n"] for row in it.read(target).read_all().to_pylist()}


def test_a_batch_that_was_committed_is_not_merged_again(tmp_path, leftovers):
    path = str(tmp_path / "t")
    options = {"path": path, "on": "id", "app_id": "feed"}
    send(options, 0, (1, "a"), (2, "b"))
    send(options, 1, (2, "b2"))
    send(options, 0, (1, "again"), (3, "c"))
    send(options, 1, (2, "again"))
    assert read(path) == {1: "a", 2: "b2"}
    send(options, 2)
    assert ParquetTable(path).last_batch("feed") == 2
    assert leftovers(path) == []


def test_without_keys_batches_are_appended_and_complete_ones_replace_all(tmp_path):
    path = str(tmp_path / "t")
    send({"path": path, "app_id": "a"}, 0, (1, "a"))
    send({"path": path, "app_id": "a"}, 1, (2, "b"))
    send({"path": path, "app_id": "a"}, 1, (2, "b"))
    assert sorted(read(path)) == [1, 2]
    send({"path": path, "app_id": "whole"}, 0, (7, "g"), overwrite=True)
    assert read(path) == {7: "g"}


def test_an_iceberg_table_has_each_batch_once(tmp_path):
    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("db")
    catalog.create_table("db.t", schema=pa.schema([("id", pa.int64()), ("n", pa.string())]))
    options = {"path": "db.t", "catalog": str(tmp_path / "warehouse"), "on": "id", "app_id": "feed"}
    send(options, 0, (1, "a"))
    send(options, 1, (1, "a1"), (2, "b"))
    send(options, 1, (1, "again"))
    assert read(it.iceberg("db.t", catalog=catalog)) == {1: "a1", 2: "b"}


def test_batches_of_one_app_id_to_two_branches_stage_their_rows_apart(tmp_path):
    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("db")
    made = catalog.create_table("db.t", schema=pa.schema([("id", pa.int64()), ("n", pa.string())]))
    it.write(pa.table({"id": [0], "n": ["z"]}), made)
    made.refresh()
    made.manage_snapshots().create_branch(made.current_snapshot().snapshot_id, "audit").commit()
    options = {"path": "db.t", "catalog": str(tmp_path / "warehouse"), "on": "id", "app_id": "feed"}
    rows = pa.table({"id": pa.array([1], pa.int64()), "n": ["a"]})
    writers = [
        DefaultSource(CaseInsensitiveDict(options | branch)).streamWriter(SCHEMA, False)
        for branch in ({}, {"branch": "audit"})
    ]
    staged = [writer.write(iter(rows.to_batches())) for writer in writers]
    for writer, message in zip(writers, staged, strict=True):
        writer.commit([message], 0)
    for branch in (None, "audit"):
        assert read(it.iceberg("db.t", catalog=catalog, branch=branch)) == {0: "z", 1: "a"}


def test_the_id_of_the_query_is_read_from_its_checkpoint(tmp_path):
    path, checkpoint = str(tmp_path / "t"), tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": "query-1"}))
    send({"path": path, "on": "id", "checkpointLocation": f"file:{checkpoint}"}, 3, (1, "a"))
    assert ParquetTable(path).last_batch("query-1") == 3


def test_a_stream_that_cannot_be_told_from_others_is_refused(tmp_path):
    options = {"path": str(tmp_path / "t"), "on": "id"}
    with pytest.raises(InputError, match=r"needs the option app_id or checkpointLocation"):
        send(options, 0)
    with pytest.raises(InputError, match=r"cannot be read from its checkpoint .*app_id"):
        send({**options, "checkpointLocation": str(tmp_path / "none")}, 0)
    with pytest.raises(InputError, match="batch_id is not for streams"):
        send({**options, "app_id": "a", "batch_id": "3"}, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(KeyColumnError, match="duplicate"):
        send({"path": str(tmp_path / "t"), "on": "id", "app_id": "a"}, 0, (1, "a"), (1, "b"))
    assert list(tmp_path.iterdir()) == []


def test_a_query_that_spark_repeats_is_written_once(spark, tmp_path):
    landing, checkpoint, path = (tmp_path / name for name in ("landing", "checkpoint", "t"))
    landing.mkdir()

    def run() -> None:
        frame = spark.readStream.schema("id long, n string").json(str(landing))
        writer = frame.writeStream.format("intarsia").option("on", "id").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start(str(path))
        query.awaitTermination(120)
        assert query.exception() is None

    (landing / "0.json").write_text('{"id": 1, "n": "a"}\n{"id": 2, "n": "b"}')
    run()
    for done in checkpoint.glob("commits/*0*"):
        done.unlink()  # killed between our commit and Spark's
    for done in checkpoint.glob("commits/.*"):
        done.unlink()
    it.update(str(path), {"n": "'mine'"}, "id = 1")
    (landing / "1.json").write_text('{"id": 2, "n": "b2"}')
    run()
    assert read(str(path)) == {1: "mine", 2: "b2"}
    assert not list(Path(tmp_path).rglob("*.lease"))
