"""After a commit the Spark session at hand sees the table as it is: cached rows, views and tables."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.spark import refresh
from intarsia.spark.errors import list_spark_error_types
from intarsia.tables.parquet import ParquetTable

pytestmark = pytest.mark.session_at_hand

ROWS = pa.table({"id": range(100), "v": ["old"] * 100})
MORE = pa.table({"id": range(50, 110), "v": ["new"] * 60})
SEEN = [("new", 60), ("old", 50)]


def seen(frame):
    return sorted((row.v, row["count"]) for row in frame.groupBy("v").count().collect())


@pytest.fixture
def place(tmp_path, make_dataset):
    return make_dataset(tmp_path / "orders at home", ROWS, files=2)


@pytest.fixture
def name(spark):
    """A name that no view or table has yet; both are dropped."""
    name = f"t{uuid.uuid4().hex}"
    yield name
    spark.catalog.dropTempView(name)
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def changed(spark, place, engine):
    """A merge with new rows, by an engine or by a DataFrame as the source."""
    if engine == "frame":
        return it.merge(spark.createDataFrame(MORE), str(place), on="id")
    return it.merge(MORE, str(place), on="id", engine=spark if engine == "spark" else engine)


@pytest.mark.parametrize("engine", ["frame", "spark", "arrow", "duckdb"])
def test_a_view_over_the_directory_sees_the_rows_that_are_there(spark, place, name, engine):
    spark.read.parquet(str(place)).createOrReplaceTempView(name)
    assert seen(spark.table(name)) == [("old", 100)]
    result = changed(spark, place, engine)
    assert seen(spark.table(name)) == SEEN
    assert not [note for note in result.notes if "session" in note]


def test_a_view_that_looks_at_a_part_of_the_directory_or_joins_it_sees_the_rows(spark, place, name):
    frame = spark.read.parquet(str(place)).where("id >= 0")
    frame.join(spark.range(200), "id").createOrReplaceGlobalTempView(name)
    try:
        assert seen(spark.table(f"global_temp.{name}")) == [("old", 100)]
        changed(spark, place, "frame")
        assert seen(spark.table(f"global_temp.{name}")) == SEEN
    finally:
        spark.catalog.dropGlobalTempView(name)


@pytest.mark.parametrize("engine", ["frame", "arrow"])
def test_a_table_with_that_location_sees_the_rows_that_are_there(spark, place, name, engine):
    spark.sql(f"CREATE TABLE {name} USING parquet LOCATION '{place}'")
    assert seen(spark.table(name)) == [("old", 100)]
    changed(spark, place, engine)
    assert seen(spark.table(name)) == SEEN


def test_rows_that_were_cached_are_read_again(spark, place):
    frame = spark.read.parquet(str(place)).cache()
    try:
        assert seen(frame) == [("old", 100)]
        changed(spark, place, "arrow")
        assert seen(frame) == SEEN
    finally:
        frame.unpersist()


ADDED = pa.table({"id": range(100, 110), "v": ["new"] * 10})
WRITERS = {
    "append": lambda spark, path: spark.createDataFrame(ADDED).write.mode("append").parquet(path),
    "overwrite": lambda spark, path: spark.createDataFrame(ADDED).write.mode("overwrite").parquet(path),
}


def rows_seen(frame):
    """How many rows a DataFrame has now; None where it reads files that are gone."""
    from pyspark.errors import PySparkException

    try:
        return frame.count()
    except (PySparkException, *list_spark_error_types()):
        return None


def seen_after(spark, path, name, write):
    """What was read before a write sees after it, each in its own way."""
    frames = {kind: spark.read.parquet(path) for kind in ("read before", "read and filtered", "cached")}
    frames["read and filtered"] = frames["read and filtered"].where("id > -1")
    frames["cached"] = frames["cached"].where("id > -2").cache()
    frames["never looked at"] = spark.read.parquet(path)
    spark.read.parquet(path).createOrReplaceTempView(name)  # with which a frame it is made of is refreshed
    spark.sql(f"CREATE TABLE {name}t USING parquet LOCATION '{path}'")
    try:
        tables = {"view": name, "table": f"{name}t"}
        used = [frame for kind, frame in frames.items() if kind != "never looked at"]
        assert {frame.count() for frame in (*used, *map(spark.table, tables.values()))} == {100}
        write()
        frames |= {kind: spark.table(table) for kind, table in tables.items()}
        return {kind: rows_seen(frame) for kind, frame in frames.items()}
    finally:
        frames["cached"].unpersist()
        spark.catalog.dropTempView(name)
        spark.sql(f"DROP TABLE {name}t")


@pytest.mark.parametrize("engine", ["frame", "arrow"])
@pytest.mark.parametrize("mode", WRITERS)
def test_what_was_read_before_sees_what_it_sees_after_a_write_of_sparks_own(
    spark, tmp_path, make_dataset, name, mode, engine
):
    """A DataFrame that is not cached keeps its files, whoever writes; views and tables see the new rows."""
    theirs, ours = (str(make_dataset(tmp_path / kind, ROWS, files=2)) for kind in ("theirs", "ours"))
    source = spark.createDataFrame(ADDED) if engine == "frame" else ADDED
    after_theirs = seen_after(spark, theirs, name, lambda: WRITERS[mode](spark, theirs))
    after_ours = seen_after(spark, ours, name, lambda: it.write(source, ours, mode=mode))
    there = 110 if mode == "append" else 10
    assert after_ours == after_theirs | {"view": there, "table": there}
    assert after_ours["cached"] == there
    assert after_ours["read before"] == (100 if mode == "append" else None)


@pytest.mark.parametrize(
    "operation",
    [
        lambda path: it.delete(path, "id < 10"),
        lambda path: it.compact(path),
        lambda path: it.write(MORE, path, mode="overwrite"),
    ],
    ids=["delete", "compact", "overwrite"],
)
def test_after_every_operation_a_view_reads_what_is_there(spark, place, name, operation, rows):
    spark.read.parquet(str(place)).createOrReplaceTempView(name)
    operation(str(place))
    assert spark.table(name).count() == len(rows(place))


def test_views_that_cannot_be_read_and_other_views_do_no_harm(spark, place, name, tmp_path, make_dataset):
    other = make_dataset(tmp_path / "orders at home 2", ROWS)
    spark.read.parquet(str(other)).createOrReplaceTempView(name)
    spark.sql(f"CREATE TABLE {name}x USING parquet LOCATION '{other}'")
    spark.sql(f"CREATE TEMPORARY VIEW {name}y AS SELECT * FROM {name}x")
    spark.sql(f"DROP TABLE {name}x")
    try:
        assert changed(spark, place, "frame").notes == ()
    finally:
        spark.catalog.dropTempView(f"{name}y")


def test_a_session_that_cannot_be_told_is_a_note_and_no_error(spark, place, monkeypatch, rows):
    from pyspark.errors import AnalysisException

    def refused(*_):
        raise AnalysisException("no catalog today")

    monkeypatch.setattr(refresh, "_refresh_paths", refused)
    result = changed(spark, place, "frame")
    (note,) = result.notes
    assert "no catalog today" in note
    assert "REFRESH TABLE" in note
    assert len(rows(place)) == 110


class StandIn:
    """A session of which nothing can be asked."""


@pytest.mark.parametrize(
    "fails",
    [AttributeError("'Session' object has no attribute 'catalog'"), RuntimeError("odd"), ConnectionError()],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("what", ["active_session", "_list_spark_paths"])
def test_nothing_that_a_session_raises_fails_a_change_that_is_made(place, monkeypatch, rows, fails, what):
    def refused(*_):
        raise fails

    monkeypatch.setattr(refresh, what, refused)
    monkeypatch.setitem(sys.modules, "pyspark.sql", sys.modules.get("pyspark.sql", StandIn))
    if what != "active_session":
        monkeypatch.setattr(refresh, "active_session", StandIn)
    (note,) = it.merge(MORE, str(place), on="id").notes
    assert "The change is made" in note
    assert len(rows(place)) == 110


def test_an_engine_with_a_stand_in_for_a_session_gives_a_note(place, monkeypatch):
    monkeypatch.setattr(refresh, "active_session", lambda: None)
    (note,) = refresh.refresh_sessions(ParquetTable(place), own=StandIn())
    assert "catalog" in note


def test_ctrl_c_meanwhile_is_no_failure_of_the_session(place, monkeypatch):
    def interrupted():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ConnectionError from error

    monkeypatch.setattr(refresh, "active_session", interrupted)
    with pytest.raises(KeyboardInterrupt):
        refresh.refresh_sessions(ParquetTable(place))


def test_a_catalog_of_many_tables_is_not_searched(spark, place, name, monkeypatch):
    monkeypatch.setattr(refresh, "MOST_TABLES", 0)
    spark.sql(f"CREATE TABLE {name} USING parquet LOCATION '{place}'")
    (note,) = changed(spark, place, "frame").notes
    assert "REFRESH TABLE" in note


def test_without_pyspark_nothing_of_spark_is_imported(tmp_path):
    code = f"""
import sys, pyarrow as pa, intarsia as it
it.write(pa.table({{"id": [1]}}), {str(tmp_path / "t")!r})
assert not [name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j")]
assert "intarsia.spark.refresh" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
