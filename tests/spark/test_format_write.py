"""``df.write.format("intarsia")``: merges and writes in one commit, whatever tasks do; errors before rows."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

import intarsia as it
import intarsia.errors
from intarsia.tables.iceberg import embedded_catalog
from pyspark_intarsia import DefaultSource
from pyspark_intarsia.options import parse_write_options
from pyspark_intarsia.writing import open_writer

ORDERS = pa.table({"id": [1, 2, 3], "n": ["a", "b", "c"], "day": ["mon", "mon", "tue"]})
NAMES = "id long, n string, day string"


@pytest.fixture
def orders(tmp_path):
    path = str(tmp_path / "orders")
    it.write(ORDERS, path, partition_by="day", engine="arrow")
    return path


@pytest.fixture
def save(spark):
    def save(rows: Any, path: str, mode: str = "append", schema: str = NAMES, **options: Any) -> None:
        frame = spark.createDataFrame(rows, schema) if isinstance(rows, list) else rows
        frame.write.format("intarsia").options(**options).mode(mode).save(path)

    return save


@pytest.fixture
def save_here(spark):
    """What Spark does with a writer, in this process: a task, then the commit, else the abort."""

    def save(rows: list[Any], path: str, mode: str = "append", schema: str = NAMES, **options: Any) -> None:
        frame = spark.createDataFrame(rows, schema)
        source = DefaultSource(CaseInsensitiveDict({"path": path, **options}))
        writer = source.writer(frame.schema, mode == "overwrite")
        message = writer.write(iter(frame.toArrow().to_batches()))
        try:
            writer.commit([message])
        except it.errors.IntarsiaError:
            writer.abort([message])
            raise

    return save


def read(path: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in it.read(path).read_all().to_pylist())


def list_names(path: str) -> set[str]:
    """Everything beside the dataset and in its control directory."""
    parent = Path(path).parent
    return {str(found.relative_to(parent)) for found in parent.rglob("*") if "spools" in str(found)}


def test_rows_are_merged_by_key_in_one_commit(save, orders):
    save([(2, "b2", "mon"), (9, "z", "wed")], orders, on="id", strategy="upsert")
    assert read(orders) == [(1, "a", "mon"), (2, "b2", "mon"), (3, "c", "tue"), (9, "z", "wed")]
    assert not list_names(orders)


def test_a_dataset_is_made_with_its_partitions(save, tmp_path):
    path = str(tmp_path / "lake" / "new")
    save([(1, "a", "mon"), (2, "b", "tue")], path, on='["id"]', partition_by="day", compression="zstd")
    assert sorted(os.listdir(path)) == ["day=mon", "day=tue"]
    assert read(path) == [(1, "a", "mon"), (2, "b", "tue")]


def test_without_keys_rows_are_appended_or_replace_all_or_partitions(save, save_here, orders):
    save([(4, "d", "tue")], orders)
    assert len(read(orders)) == 4
    save([(5, "e", "tue")], orders, "overwrite", partitionOverwriteMode="dynamic")
    assert read(orders) == [(1, "a", "mon"), (2, "b", "mon"), (5, "e", "tue")]
    save_here([(7, "g", "mon")], orders, "overwrite", where="day = 'mon'")
    assert read(orders) == [(5, "e", "tue"), (7, "g", "mon")]
    save_here([(6, "f", "wed")], orders, "overwrite")
    assert read(orders) == [(6, "f", "wed")]


def test_every_argument_of_a_merge_is_an_option(save_here, orders):
    clauses = "when matched and source.n = 'gone' then delete when not matched then insert *"
    save_here([(1, "gone", "mon"), (8, "h", "tue")], orders, on="target.id = source.id", clauses=clauses)
    assert [row[0] for row in read(orders)] == [2, 3, 8]
    more = [(2, "mon", 5)]
    save_here(
        more, orders, schema="id long, day string, more int", on="id", missing="keep", schema_evolution="add"
    )
    assert (2, "b", 5, "mon") in read(orders)
    twice = [(3, "old", "tue", 1), (3, "new", "tue", 2)]
    schema = f"{NAMES}, more int"
    save_here(twice, orders, schema=schema, on="id", strategy="deduplicate", dedup_order_by="more")
    assert (3, "new", 2, "tue") in read(orders)


def test_an_iceberg_table_is_written_through_its_catalog(spark, save, tmp_path):
    warehouse = str(tmp_path / "warehouse")
    catalog = embedded_catalog(warehouse)
    catalog.create_namespace("db")
    catalog.create_table("db.t", schema=ORDERS.schema)
    save([(1, "a", "mon"), (2, "b", "mon")], "db.t", catalog=warehouse)
    changes = spark.createDataFrame([(2, "b2", "tue"), (3, "c", "tue")], NAMES).write.format("intarsia")
    changes.option("catalog", warehouse).option("on", "id").option("mode", "merge-on-read").mode(
        "append"
    ).save("db.t")
    target = it.iceberg("db.t", catalog=warehouse)
    assert read(target) == [(1, "a", "mon"), (2, "b2", "tue"), (3, "c", "tue")]
    assert not list(Path(warehouse).rglob("spools/*"))


def test_types_of_a_dataframe_are_those_of_merge(spark, save, tmp_path):
    frame = spark.sql(
        "select 1L id, timestamp '2025-07-01 12:00:00' at, timestamp_ntz '2025-07-01 12:00:00' wall,"
        " cast(1.5 as decimal(10, 2)) d, named_struct('a', array(1, 2)) s, map('k', 1) m, interval 1 day i,"
        " X'01' b, cast('x' as char(3)) c, parse_json('[1]') v"
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        save(frame, str(tmp_path / "format"), on="id")
        it.merge(frame, str(tmp_path / "merge"), on="id")
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    mine, theirs = (it.read(str(tmp_path / name)).read_all() for name in ("format", "merge"))
    assert mine.schema == theirs.schema
    assert mine == theirs


def test_tasks_that_fail_leave_nothing(spark, save, orders, tmp_path, tree_digest):
    before = tree_digest(tmp_path)
    frame = spark.range(40).selectExpr("id", "if(id = 39, raise_error('no'), 'n') n", "'mon' day")
    with pytest.raises(Exception, match="no"):
        save(frame.repartition(4), orders, on="id")
    assert tree_digest(tmp_path) == before
    with pytest.raises(Exception, match="no"):
        save(frame, str(tmp_path / "deep" / "new"), on="id")
    assert tree_digest(tmp_path) == before


def test_rows_of_attempts_that_did_not_count_are_not_written(spark, orders):
    options = {"path": orders, "on": "id"}
    frame = spark.createDataFrame([(9, "z", "wed")], NAMES)
    writer = open_writer(options, frame.schema, overwrite=False)
    batches = frame.toArrow().to_batches()
    first, _other = writer.write(iter(batches)), writer.write(iter(batches))
    writer.commit([first])
    assert len(read(orders)) == 4
    with pytest.raises(OSError, match="is gone"):
        writer.write(iter(batches))  # a task that comes too late
    writer.abort([first])
    assert not list_names(orders)


def test_a_write_that_was_given_up_is_swept_by_the_next_one(spark, save, orders):
    frame = spark.createDataFrame([(9, "z", "wed")], NAMES)
    writer = open_writer({"path": orders}, frame.schema, overwrite=False)
    writer.write(iter(frame.toArrow().to_batches()))
    (lease,) = Path(orders).parent.rglob("*.lease")
    save([(4, "d", "tue")], orders)
    assert lease.exists()  # within its hour
    lease.write_text("1\n")
    save([(5, "e", "tue")], orders)
    assert not list_names(orders)


def test_more_than_the_driver_commits_is_refused_and_names_merge(spark, save, orders, tmp_path, tree_digest):
    before = tree_digest(tmp_path)
    frame = spark.range(20_000).selectExpr("id", "'n' n", "'mon' day")  # a task ends early
    with pytest.raises(Exception, match=r"NotSupported: .*max_bytes.*intarsia.merge\(df, target, on=...\)"):
        save(frame, orders, on="id", max_bytes=100_000)
    assert tree_digest(tmp_path) == before


WRONG = [
    ({}, {"stratgy": "upsert"}, "InputError: there is no option 'stratgy' .*did you mean strategy"),
    ({}, {"partitionBy": "day"}, "InputError: there is no option 'partitionby' .*did you mean partition_by"),
    ({}, {"on": "idd"}, "KeyColumnError: .*'idd' is missing.*did you mean 'id'"),
    ({}, {"on": "id", "strategy": "upsrt"}, "InputError: .*upsrt"),
    ({}, {"on": "id", "null_keys": "maybe"}, "InputError: .*null_keys"),
    ({}, {"on": "id", "retain": "few"}, "InputError: retain must be a number"),
    ({}, {"on": "id", "single_writer": "perhaps"}, "InputError: single_writer must be true or false"),
    ({}, {"on": "id", "engine": "spark"}, "InputError: engine must be auto, arrow or duckdb"),
    ({}, {"strategy": "upsert"}, "InputError: the option strategy goes with a merge"),
    ({}, {"where": "id = 1"}, "InputError: the option where goes with mode"),
    ({"mode": "overwrite"}, {"on": "id"}, "InputError: the option on merges rows"),
    ({"schema": "id string, n string, day string"}, {"on": "id"}, "SchemaMismatch: .*'id' is int64"),
    ({"schema": "id long, n string, day interval year"}, {"on": "id"}, "NotSupported: 'day' has year-month"),
    ({"schema": "id long, n string, day void"}, {"on": "id"}, "SchemaMismatch: 'day' is void"),
    ({"rows": [(2, "x", "mon"), (2, "y", "mon")]}, {"on": "id"}, "KeyColumnError: .*1 duplicate key in id"),
    ({"rows": [(None, "x", "mon")]}, {"on": "id"}, "KeyColumnError: .*NULL"),
]


@pytest.mark.parametrize(("call", "options", "message"), WRONG, ids=str)
def test_what_is_wrong_is_told_and_changes_nothing(
    save_here, orders, tmp_path, tree_digest, call, options, message
):
    before = tree_digest(tmp_path)
    given: dict[str, Any] = {"rows": [], **call}
    with pytest.raises(it.errors.IntarsiaError) as caught:
        save_here(given.pop("rows"), orders, **given, **options)
    assert re.search(message, f"{type(caught.value).__name__}: {caught.value}")
    assert tree_digest(tmp_path) == before


@pytest.mark.parametrize("rows", [[], [(2, "x", "mon"), (2, "y", "mon")]], ids=["plan", "commit"])
def test_spark_raises_the_text_of_the_error_among_its_first_lines(save, orders, rows):
    options = {"on": "id"} if rows else {"stratgy": "upsert"}
    message = "KeyColumnError: .*1 duplicate key in id" if rows else "InputError: .*did you mean strategy"
    with pytest.raises(Exception, match=rf"intarsia\.errors\.{message}") as caught:
        save(rows, orders, **options)
    assert str(caught.value).partition("intarsia.errors.")[0].count("\n") < 8


def test_a_missing_path_and_modes_that_spark_does_not_have_are_told(spark, orders):
    frame = spark.createDataFrame([], NAMES)
    with pytest.raises(it.errors.InputError, match="a path is needed"):
        DefaultSource({}).writer(frame.schema, False)
    writer = frame.write.format("intarsia")
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        writer.mode("error").save(orders)


def test_every_option_of_merge_and_write_that_a_text_can_say_is_taken(tmp_path):
    from intarsia.options import KEYWORDS

    python_only = {"filesystem", "lock", "progress", "measured_bytes", "columns", "tasks", "broadcast_bytes"}
    for name, option in KEYWORDS.items():
        if "merge" not in option.operations or name in python_only:
            continue
        text = '{"a": "b"}' if name in ("properties", "storage_options") else "1"
        given = {"path": "t", "catalog": "c", "on": "id", name: "true" if name == "single_writer" else text}
        made = parse_write_options(given, overwrite=False)
        assert name in made.arguments or made.spool_dir == "1", name


def test_the_class_is_what_spark_looks_for():
    assert DefaultSource.name() == "intarsia"
