"""Sessions whose zone is not UTC: ``intarsia.spark.read`` and ``it.spark_table`` show and keep instants."""

from __future__ import annotations

import datetime as dt
import uuid

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.spark import read

NOON = "timestamp '2025-07-01 12:00:00'"
INSTANT = dt.datetime(2025, 7, 1, 16, tzinfo=dt.UTC)
"""Noon in New York."""


@pytest.fixture(autouse=True)
def new_york(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def lake(spark, tmp_path):
    name = f"zones{uuid.uuid4().hex}"
    spark.sql(f"CREATE DATABASE {name} LOCATION 'file:{tmp_path}/managed'")
    yield name
    spark.sql(f"DROP DATABASE {name} CASCADE")


def test_int96_is_read_as_spark_reads_it(spark, tmp_path):
    path = str(tmp_path / "events")
    spark.sql(f"select 1L id, {NOON} at, cast({NOON} as timestamp_ntz) wall").write.parquet(path)
    shown = ["cast(at as string) at", "cast(wall as string) wall"]
    mine, theirs = read(spark, path), spark.read.parquet(path)
    assert mine.schema.simpleString() == theirs.schema.simpleString()
    expected = [("2025-07-01 12:00:00", "2025-07-01 12:00:00")]
    assert [tuple(row) for row in mine.selectExpr(*shown).collect()] == expected
    assert [tuple(row) for row in theirs.selectExpr(*shown).collect()] == expected
    assert read(spark, path, where="at = timestamptz '2025-07-01 12:00:00-04:00'").count() == 1


def test_columns_of_any_zone_are_the_same_instants(spark, tmp_path):
    path = str(tmp_path / "zoned")
    at = pa.array([INSTANT], pa.timestamp("us", "Asia/Tokyo"))
    it.write(pa.table({"id": [1], "at": at}), path, engine="arrow")
    assert read(spark, path).where(f"at = {NOON}").count() == 1


def test_a_table_of_the_catalog_keeps_instants_and_int96(spark, lake):
    name = f"{lake}.events"
    spark.sql(f"create table {name} (id bigint, at timestamp) using parquet")
    spark.sql(f"insert into {name} values (1, {NOON})")
    changes = spark.sql(f"select 2L id, {NOON} + interval 1 hour at")
    assert it.merge(changes, it.spark_table(name, session=spark), on="id").inserted == 1
    seen = spark.sql(f"select id, cast(at as string) at from {name} order by id").collect()
    assert [tuple(row) for row in seen] == [(1, "2025-07-01 12:00:00"), (2, "2025-07-01 13:00:00")]
    rows = it.read(it.spark_table(name, session=spark)).read_all().sort_by("id").to_pylist()
    assert [row["at"] for row in rows] == [INSTANT, INSTANT + dt.timedelta(hours=1)]
    deleted = it.delete(it.spark_table(name, session=spark), "at = timestamptz '2025-07-01 12:00:00-04:00'")
    assert deleted.deleted == 1
    assert [row.id for row in spark.table(name).collect()] == [2]
