"""``it.spark_table``: tables of a session's catalog as targets; the catalog follows the directory."""

from __future__ import annotations

import datetime as dt
import json
import os
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.errors import EngineError, InputError, NothingMatched, NotSupported, SchemaMismatch
from intarsia.spark import catalog, read
from intarsia.tables.iceberg import embedded_catalog

MON, TUE, WED = (dt.date(2025, 1, day) for day in (6, 7, 8))


def orders(*rows):
    """Rows of (id, state, day)."""
    ids, states, days = zip(*rows, strict=True)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "state": pa.array(states, pa.string()),
            "day": pa.array(days, pa.date32()),
        }
    )


@pytest.fixture
def lake(spark, tmp_path):
    """A database whose managed tables are in ``tmp_path``."""
    name = f"lake{uuid.uuid4().hex}"
    spark.sql(f"CREATE DATABASE {name} LOCATION 'file:{tmp_path}/managed tables'")
    yield name
    spark.sql(f"DROP DATABASE {name} CASCADE")


@pytest.fixture
def name(spark, lake):
    """A managed table that is partitioned by day, with a row of Monday and one of Tuesday."""
    name = f"{lake}.orders"
    spark.sql(f"CREATE TABLE {name} (id BIGINT, state STRING, day DATE) USING parquet PARTITIONED BY (day)")
    spark.sql(
        f"INSERT INTO {name} VALUES (1, 'open', DATE '2025-01-06'), (2, 'open', DATE '2025-01-07'),"
        " (3, 'paid', DATE '2025-01-07')"
    )
    return name


def seen(spark, name):
    """The rows that Spark sees."""
    return sorted(tuple(row) for row in spark.table(name).select("id", "state", "day").collect())


def partitions(spark, name):
    return [row[0].removeprefix("day=") for row in spark.sql(f"SHOW PARTITIONS {name}").collect()]


def told(spark, name):
    return json.loads(spark.sql(f"DESCRIBE TABLE EXTENDED {name} AS JSON").collect()[0][0])


def directory(spark, name):
    return Path(told(spark, name)["location"].removeprefix("file:"))


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_a_merge_registers_partitions_that_are_new(spark, name, engine):
    target = it.spark_table(name, session=spark)
    source = orders((2, "paid", TUE), (4, "open", WED), (5, "open", None))
    given = spark.createDataFrame(source) if engine == "spark" else source
    result = it.merge(given, target, on="id")
    assert (result.updated, result.inserted, result.engine) == (1, 2, engine)
    assert [note for note in result.notes if "2 partitions were registered" in note]
    assert partitions(spark, name) == [str(MON), str(TUE), str(WED), "__HIVE_DEFAULT_PARTITION__"]
    rows = [(1, "open", MON), (2, "paid", TUE), (3, "paid", TUE), (4, "open", WED), (5, "open", None)]
    assert seen(spark, name) == rows
    assert spark.table(name).where("day = DATE '2025-01-08'").count() == 1


def test_every_operation_takes_such_a_table(spark, name):
    target = it.spark_table(name, session=spark)
    assert it.inspect(target).rows == it.snapshot(target).rows == 3
    assert it.plan("delete", target, "id = 1").count("remove") == 1
    assert it.delete(target, "id = 1", dry_run=True).deleted == 1
    assert partitions(spark, name) == [str(MON), str(TUE)]
    deleted = it.delete(target, "id = 1")
    assert [note for note in deleted.notes if "1 partition was dropped" in note]
    assert partitions(spark, name) == [str(TUE)]
    assert it.update(target, {"state": "upper(state)"}, "id = 3").updated == 1
    it.write(orders((3, "again", TUE), (6, "new", WED)), target)
    assert it.deduplicate(target, on="id", order_by="state").deleted == 1
    it.compact(target)
    it.optimize(target, by="id")
    assert seen(spark, name) == [(2, "open", TUE), (3, "again", TUE), (6, "new", WED)]
    it.write(orders((9, "only", MON)), target, mode="overwrite")
    assert (seen(spark, name), partitions(spark, name)) == ([(9, "only", MON)], [str(MON)])
    assert it.read(target, where="id = 9", columns="day").read_all().to_pylist() == [{"day": MON}]
    assert [tuple(row) for row in read(spark, target, columns=["id", "day"]).collect()] == [(9, MON)]


def test_spark_goes_on_writing_to_the_table(spark, name):
    target = it.spark_table(name, session=spark)
    it.merge(orders((4, "open", WED)), target, on="id")
    spark.sql(f"INSERT INTO {name} VALUES (7, 'spark', DATE '2025-01-09')")
    assert it.merge(orders((7, "ours", dt.date(2025, 1, 9))), target, on="id").updated == 1
    spark.sql(f"INSERT OVERWRITE {name} PARTITION (day = DATE '2025-01-08') VALUES (8, 'spark')")
    assert (4, "open", WED) not in seen(spark, name)
    assert it.snapshot(target).rows == len(seen(spark, name)) == 5


def test_a_table_without_files_has_the_columns_that_the_catalog_declares(spark, lake):
    spark.sql(
        f"CREATE TABLE {lake}.empty (id INT, at TIMESTAMP, tags ARRAY<STRING>, day STRING) USING parquet"
        " PARTITIONED BY (day)"
    )
    target = it.spark_table(f"{lake}.empty", session=spark)
    assert read(spark, target).schema.simpleString() == spark.table(f"{lake}.empty").schema.simpleString()
    assert it.delete(target, "id = 1").deleted == 0
    with pytest.raises(SchemaMismatch):
        it.write(
            pa.table({"id": [2**40], "at": [dt.datetime.now(dt.UTC)], "tags": [["a"]], "day": ["x"]}), target
        )
    rows = pa.table(
        {"id": [7], "at": [dt.datetime(2025, 1, 1, tzinfo=dt.UTC)], "tags": [["a"]], "day": ["x"]}
    )
    assert it.write(rows, target).total == 1
    (row,) = spark.sql(f"SELECT id, unix_seconds(at), tags, day FROM {lake}.empty").collect()
    assert tuple(row) == (7, 1735689600, ["a"], "x")


def test_an_external_table_without_partitions_in_a_place_of_its_own(spark, lake, tmp_path):
    place = tmp_path / "of its own"
    spark.sql(f"CREATE TABLE {lake}.outside (id BIGINT, v STRING) USING parquet LOCATION 'file:{place}'")
    target = it.spark_table(f"{lake}.outside", session=spark)
    spark.table(f"{lake}.outside").cache()
    assert it.merge(pa.table({"id": [1, 2], "v": ["a", "b"]}), target, on="id").inserted == 2
    assert it.merge(pa.table({"id": [2, 3], "v": ["B", "c"]}), target, on="id").updated == 1
    found = spark.table(f"{lake}.outside").orderBy("id").collect()
    assert [tuple(row) for row in found] == [(1, "a"), (2, "B"), (3, "c")]
    assert list(place.glob("*.parquet"))
    spark.sql(f"DROP TABLE {lake}.outside")
    assert list(place.glob("*.parquet")), "an external table's files stay"


def test_statistics_that_no_longer_hold_are_dropped(spark, name):
    spark.sql(f"ANALYZE TABLE {name} COMPUTE STATISTICS FOR ALL COLUMNS")
    target = it.spark_table(name, session=spark)
    assert told(spark, name)["statistics"]["num_rows"] == 3
    it.delete(target, "id = 77")
    assert told(spark, name)["statistics"]["num_rows"] == 3, "nothing has changed"
    result = it.update(target, {"state": "'x'"}, "id = 2")
    assert "statistics" not in told(spark, name)
    assert [note for note in result.notes if "statistics were dropped" in note]
    assert (told(spark, name)["type"], partitions(spark, name)) == ("MANAGED", [str(MON), str(TUE)])


def test_a_crash_before_the_catalog_is_told_is_made_up_for_by_the_next_operation(spark, name, monkeypatch):
    spark.sql(f"ANALYZE TABLE {name} COMPUTE STATISTICS")
    target = it.spark_table(name, session=spark)

    def crash(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(catalog, "repair_partitions", crash)
        with pytest.raises(KeyboardInterrupt):
            it.merge(orders((4, "open", WED)), target, on="id")
    assert partitions(spark, name) == [str(MON), str(TUE)]
    assert it.delete(it.spark_table(name, session=spark), "id = 77").deleted == 0
    assert partitions(spark, name) == [str(MON), str(TUE), str(WED)]
    assert "statistics" not in told(spark, name)
    assert (4, "open", WED) in seen(spark, name)


def test_a_crash_before_a_partition_is_dropped_is_made_up_for(spark, name, monkeypatch):
    """Its directory is gone, and the catalog still has it."""
    target = it.spark_table(name, session=spark)
    with monkeypatch.context() as patch:
        patch.setattr(type(target), "sync_catalog", lambda *_args, **_options: ())
        it.delete(target, "day = date '2025-01-06'")
    assert partitions(spark, name) == [str(MON), str(TUE)]
    again = it.spark_table(name, session=spark)
    assert it.merge(orders((2, "paid", TUE)), again, on="id").updated == 1
    assert partitions(spark, name) == [str(TUE)]


def test_a_table_that_was_dropped_and_made_again_begins_anew(spark, name):
    place = directory(spark, name)
    it.delete(it.spark_table(name, session=spark), "id = 1")
    spark.sql(f"DROP TABLE {name}")
    assert not place.exists(), "a managed table's files go with it"
    spark.sql(f"CREATE TABLE {name} (key STRING, n INT) USING parquet")
    target = it.spark_table(name, session=spark)
    assert it.merge(pa.table({"key": ["a"], "n": pa.array([1], pa.int32())}), target, on="key").total == 1
    assert [tuple(row) for row in spark.table(name).collect()] == [("a", 1)]


def test_a_catalog_that_refuses_is_a_note_and_recover_makes_up_for_it(spark, name, monkeypatch):
    target = it.spark_table(name, session=spark)

    def refuse(*_args):
        raise EngineError("the metastore is away")

    with monkeypatch.context() as patch:
        patch.setattr(catalog, "repair_partitions", refuse)
        result = it.merge(orders((4, "open", WED)), target, on="id")
    assert result.inserted == 1
    assert [note for note in result.notes if "the metastore is away" in note]
    assert [note for note in it.recover(target) if "1 partition was registered" in note]
    assert it.recover(target) == ()
    assert partitions(spark, name) == [str(MON), str(TUE), str(WED)]


def test_a_new_column_is_added_to_the_catalog(spark, name):
    target = it.spark_table(name, session=spark)
    more = orders((4, "open", WED)).append_column("amount", pa.array([1.5]))
    more = more.append_column("at", pa.array([dt.datetime(2025, 1, 1)], pa.timestamp("us")))
    it.merge(more, target, on="id", schema_evolution="add", dry_run=True)
    assert "amount" not in spark.table(name).columns
    it.merge(more, target, on="id", schema_evolution="add")
    shown = spark.table(name).schema.simpleString()
    assert shown == "struct<id:bigint,state:string,amount:double,at:timestamp_ntz,day:date>"
    found = spark.table(name).where("amount is not null").select("id", "amount", "day").collect()
    assert [tuple(row) for row in found] == [(4, 1.5, WED)]


def test_a_column_that_the_catalog_got_from_spark_can_be_written(spark, name):
    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (note STRING)")
    target = it.spark_table(name, session=spark)
    it.merge(orders((2, "paid", TUE)).append_column("note", pa.array(["x"])), target, on="id")
    it.update(target, {"note": "'y'"}, "id = 1")
    found = spark.table(name).select("id", "note").orderBy("id").collect()
    assert [tuple(row) for row in found] == [(1, "y"), (2, "x"), (3, None)]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            lambda target: it.merge(
                orders((4, "x", WED)).append_column("t", pa.array([1], pa.timestamp("ns"))),
                target,
                on="id",
                schema_evolution="add",
            ),
            "timestamp.ns",
        ),
        (
            lambda target: it.write(
                pa.table({"id": ["text"], "state": ["x"], "day": [MON]}), target, mode="overwrite"
            ),
            "declares bigint",
        ),
        (
            lambda target: it.write(
                orders((4, "x", WED)).append_column("more", pa.array([1])), target, mode="overwrite"
            ),
            "'more'",
        ),
        (lambda target: it.write(orders((4, "x", WED)).drop_columns("day"), target, mode="overwrite"), "day"),
    ],
    ids=["nanoseconds", "another type", "another column", "no partition column"],
)
def test_what_the_catalog_cannot_declare_is_refused_before_anything_is_written(
    spark, name, unchanged, call, error
):
    target = it.spark_table(name, session=spark)
    before = spark.table(name).schema
    with unchanged(directory(spark, name)), pytest.raises((SchemaMismatch, InputError), match=error):
        call(target)
    assert spark.table(name).schema == before


def test_a_type_cannot_be_widened(spark, lake, unchanged):
    spark.sql(f"CREATE TABLE {lake}.narrow (id INT) USING parquet")
    spark.sql(f"INSERT INTO {lake}.narrow VALUES (1)")
    target = it.spark_table(f"{lake}.narrow", session=spark)
    with unchanged(directory(spark, f"{lake}.narrow")), pytest.raises(SchemaMismatch, match="declares int"):
        it.merge(pa.table({"id": [2**40]}), target, on="id", schema_evolution="widen")


def test_files_and_a_catalog_that_do_not_fit_are_refused(spark, lake, tmp_path, make_dataset):
    place = make_dataset(tmp_path / "t", pa.table({"id": [1], "v": ["a"]}))
    spark.sql(f"CREATE TABLE {lake}.other (id STRING, v STRING) USING parquet LOCATION 'file:{place}'")
    with pytest.raises(SchemaMismatch, match=r"'id' .* is int64 in its files, and string in the catalog"):
        it.delete(it.spark_table(f"{lake}.other", session=spark), "v = 'a'")
    spark.sql(
        f"CREATE TABLE {lake}.parts (id BIGINT, v STRING) USING parquet PARTITIONED BY (v)"
        f" LOCATION 'file:{place}'"
    )
    with pytest.raises(InputError, match="partitioned by nothing"):
        it.snapshot(it.spark_table(f"{lake}.parts", session=spark))


def test_partitions_with_locations_of_their_own_are_refused(spark, name, tmp_path):
    target = it.spark_table(name, session=spark)
    elsewhere = tmp_path / "elsewhere"
    spark.sql(f"ALTER TABLE {name} ADD PARTITION (day = DATE '2025-01-09') LOCATION 'file:{elsewhere}'")
    for call in (lambda: it.spark_table(name, session=spark), lambda: it.delete(target, "id = 1")):
        with pytest.raises(NotSupported, match=r"location of its own.*elsewhere"):
            call()
    spark.sql(f"INSERT INTO {name} VALUES (9, 'there', DATE '2025-01-09')")
    assert os.listdir(elsewhere)
    with pytest.raises(NotSupported, match=r"location of its own.*elsewhere"):
        it.spark_table(name, session=spark)


REFUSED = {
    "temporary view": ("CREATE TEMPORARY VIEW {name} AS SELECT 1 AS id", "a temporary view"),
    "view": ("CREATE VIEW {lake}.{name} AS SELECT 1 AS id", "a view"),
    "orc": ("CREATE TABLE {lake}.{name} (id INT) USING orc", "of the format orc"),
    "csv": ("CREATE TABLE {lake}.{name} (id INT) USING csv", "of the format csv"),
    "buckets": (
        "CREATE TABLE {lake}.{name} (id INT) USING parquet CLUSTERED BY (id) INTO 4 BUCKETS",
        "bucketed",
    ),
    "part of a directory": (
        "CREATE TABLE {lake}.{name} (id INT) USING parquet OPTIONS (pathGlobFilter 'a*')",
        "pathGlobFilter",
    ),
    "default": ("CREATE TABLE {lake}.{name} (id INT, n INT DEFAULT 5) USING parquet", "'n' .* has a default"),
    "instants": (
        "CREATE TABLE {lake}.{name} (id INT, at TIMESTAMP) USING parquet PARTITIONED BY (at)",
        "partitioned by 'at'",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_changed_is_refused_by_name(spark, lake, kind):
    statement, message = REFUSED[kind]
    name = f"t{uuid.uuid4().hex}"
    spark.sql(statement.format(lake=lake, name=name))
    try:
        with pytest.raises(NotSupported, match=f"{name} .*{message}|{message}.* {name}|{message}"):
            it.spark_table(name if kind == "temporary view" else f"{lake}.{name}", session=spark)
    finally:
        if kind == "temporary view":
            spark.catalog.dropTempView(name)


def test_a_merge_by_path_says_that_files_are_in_buckets(spark, lake, tmp_path):
    name = f"{lake}.in_buckets"
    spark.range(8).selectExpr("id", "'old' as state").write.bucketBy(2, "id").saveAsTable(name)
    path = tmp_path / "managed tables" / "in_buckets"
    result = it.merge(pa.table({"id": [1, 9], "state": ["new", "new"]}), path, on="id")
    (note,) = result.notes
    assert "in buckets" in note
    assert sorted(row.id for row in spark.read.parquet(str(path)).collect()) == [*range(8), 9]
    with pytest.raises(Exception, match="INVALID_BUCKET_FILE"):  # so the note is needed
        spark.table(name).groupBy("id").count().collect()


def test_names_are_resolved_as_spark_resolves_them(spark, name):
    lake, _, table = name.partition(".")
    for spelled in (name, f"spark_catalog.{name}", f"`{lake}`.`{table}`", name.upper()):
        assert it.snapshot(it.spark_table(spelled, session=spark)).rows == 3
    with pytest.raises(NothingMatched, match=r"no table lake_of_nobody.orders"):
        it.spark_table("lake_of_nobody.orders", session=spark)
    for wrong in ("", "a..b", "a b", 7):
        with pytest.raises(InputError, match="name"):
            it.spark_table(wrong, session=spark)
    with pytest.raises(InputError, match="branch="):
        it.spark_table(name, session=spark, branch="main")


def test_an_iceberg_table_is_opened_by_the_settings_of_its_catalog(spark, tmp_path):
    warehouse, lake = tmp_path / "warehouse", f"ice{uuid.uuid4().hex[:8]}"
    made = embedded_catalog(warehouse, name=lake)
    made.create_namespace("db")
    made.create_table("db.t", schema=pa.schema([("id", pa.int64())]))
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{warehouse}/catalog.db",
        ".jdbc.schema-version": "V1",
        ".warehouse": f"file://{warehouse}",
    }
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{lake}{key}", value)
    try:
        target = it.spark_table(f"{lake}.db.t", session=spark)
        assert it.merge(pa.table({"id": [1, 2]}), target, on="id").inserted == 2
        assert made.load_table("db.t").scan().to_arrow().num_rows == 2
        with pytest.raises(InputError, match=r"no table db.none"):
            it.spark_table(f"{lake}.db.none", session=spark)
        with pytest.raises(InputError, match="retain="):
            it.spark_table(f"{lake}.db.t", session=spark, retain=2)
        spark.conf.set(f"spark.sql.catalog.{lake}.type", "hadoop")
        with pytest.raises(NotSupported, match="of type hadoop") as caught:
            it.spark_table(f"{lake}.db.t", session=spark)
        assert "intarsia.iceberg(" in str(caught.value.hint)
        spark.conf.set(f"spark.sql.catalog.{lake}", "org.example.Catalog")
        with pytest.raises(NotSupported, match=r"org\.example\.Catalog"):
            it.spark_table(f"{lake}.db.t", session=spark)
    finally:
        for key in settings:
            spark.conf.unset(f"spark.sql.catalog.{lake}{key}")
