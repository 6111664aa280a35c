"""Directories that plain Spark wrote with its default timestamps (INT96), in a session far from UTC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.datasets.pyarrow import PyarrowDatasetIO
from intarsia.datasets.spark import SparkDatasetIO
from intarsia.errors import SchemaMismatch

ROWS = """
select id,
  timestamp '2025-07-01 22:00:00' + make_interval(0, 0, 0, 0, cast(id as int)) as at,
  case id when 0 then timestamp '0001-01-02 00:00:00' when 1 then timestamp '9999-12-30 23:59:59.999999' end
    as far,
  named_struct('t', timestamp '2025-01-01 00:00:00', 'n', id) as s,
  array(timestamp '2025-03-09 03:30:00') as l,
  map('a', timestamp '2025-11-02 01:30:00') as m
from range(10)
"""


@pytest.fixture
def new_york(spark: Any) -> Iterator[Any]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def lake(new_york: Any, tmp_path: Path) -> Path:
    new_york.sql(ROWS).repartition(2).write.parquet(str(tmp_path / "lake"))
    return tmp_path / "lake"


def seen(frame: Any) -> list[str]:
    """The rows as the session shows them: wall time in its zone."""
    return [row[0] for row in frame.orderBy("id").selectExpr("cast(struct(*) as string)").collect()]


def plain(spark: Any, lake: Path) -> list[str]:
    spark.catalog.refreshByPath(str(lake))
    return seen(spark.read.parquet(str(lake)))


def physical(lake: Path) -> set[str]:
    schemas = [pq.read_metadata(file).schema for file in lake.glob("*.parquet")]
    return {schema.column(1).physical_type for schema in schemas}


def adopted(frame: Any, engine: str) -> Any:
    return frame if engine == "spark" else frame.toArrow()


def chosen(engine: str, spark: Any) -> Any:
    return spark if engine == "spark" else engine


engines = pytest.mark.parametrize("engine", ["spark", "arrow", "duckdb"])


@engines
def test_s26_spark_sees_the_same_wall_time_before_and_after_every_operation(new_york, lake, engine):
    spark, on = new_york, chosen(engine, new_york)
    before = plain(spark, lake)
    assert "2025-07-01 22:00:00" in before[0]
    assert physical(lake) == {"INT96"}
    assert seen(SparkDatasetIO(spark).read_parquet(lake)) == before
    same = spark.read.parquet(str(lake)).where("id in (1, 4)")
    assert it.merge(adopted(same, engine), lake, on="id", engine=on).updated == 2
    assert plain(spark, lake) == before
    new = spark.sql(ROWS.replace("2025-07-01 22", "2030-01-01 09")).where("id = 3")
    it.merge(adopted(new, engine), lake, on="id", engine=on)
    expected = [*before[:3], seen(new)[0], *before[4:]]
    assert "2030-01-01 12:00:00" in expected[3]
    assert plain(spark, lake) == expected
    it.update(lake, {"at": "at + interval '1 hour'"}, where="id = 5", engine=on)
    expected[5] = expected[5].replace("2025-07-02 03:00:00", "2025-07-02 04:00:00")
    it.delete(lake, "id = 9", engine=on)
    assert plain(spark, lake) == expected[:9]
    it.compact(lake, engine=on)
    assert plain(spark, lake) == expected[:9]
    it.optimize(lake, by="at", engine=on)
    assert plain(spark, lake) == seen(SparkDatasetIO(spark).read_parquet(lake)) == expected[:9]
    assert physical(lake) == {"INT96"}


@pytest.mark.parametrize("broadcast_bytes", [0, 1 << 26])
def test_s26_large_sources_and_keys_of_int96_meet_as_instants(new_york, lake, broadcast_bytes):
    spark = new_york
    before = plain(spark, lake)
    source = spark.read.parquet(str(lake)).where("id < 4").withColumn("l", spark_array(spark))
    result = it.merge(source, lake, on="at", engine=spark, broadcast_bytes=broadcast_bytes)
    assert (result.updated, result.inserted) == (4, 0)
    assert (
        plain(spark, lake) == [row.replace("[2025-03-09 03:30:00]", "[]") for row in before[:4]] + before[4:]
    )


def spark_array(spark: Any) -> Any:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        from pyspark.sql.connect.functions import expr
    else:
        from pyspark.sql.functions import expr
    return expr("cast(array() as array<timestamp>)")


def test_s26_wall_times_of_spark_are_refused_or_utc_when_asked(new_york, lake):
    spark = new_york
    naive = spark.sql(ROWS.replace("timestamp '", "timestamp_ntz '")).where("id = 3")
    for broadcast_bytes in (0, 1 << 26):
        with pytest.raises(SchemaMismatch, match="naive_timestamps"):
            it.merge(naive, lake, on="id", engine=spark, broadcast_bytes=broadcast_bytes)
    it.merge(naive, lake, on="id", engine=spark, naive_timestamps="utc")
    # The hour was UTC's, which is four hours before New York's.
    assert "2025-07-01 21:00:00" in plain(spark, lake)[3]
    it.merge(naive, lake, on="id", engine=spark, naive_timestamps="utc", broadcast_bytes=0)
    assert "2025-07-01 21:00:00" in plain(spark, lake)[3]


def test_s26_both_of_sparks_timestamps_in_one_directory(new_york, lake):
    spark = new_york
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    try:
        more = spark.sql(ROWS).selectExpr("id + 100 as id", "at", "far", "s", "l", "m")
        more.coalesce(1).write.mode("append").parquet(str(lake))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    assert physical(lake) == {"INT96", "INT64"}
    before = plain(spark, lake)
    assert seen(SparkDatasetIO(spark).read_parquet(lake)) == before
    kinds = {f.name: pq.read_metadata(f).schema.column(1).physical_type for f in lake.glob("*.parquet")}
    it.merge(spark.read.parquet(str(lake)).where("id in (2, 102)"), lake, on="id", engine=spark)
    assert plain(spark, lake) == before
    assert kinds == {
        f.name: pq.read_metadata(f).schema.column(1).physical_type for f in lake.glob("*.parquet")
    }


def test_s26_int96_is_converted_when_asked_and_spark_sees_the_same(new_york, lake):
    spark = new_york
    before = plain(spark, lake)
    it.optimize(lake, by="id", engine=spark, int96="convert")
    assert physical(lake) == {"INT64"}
    assert plain(spark, lake) == before
    assert str(PyarrowDatasetIO().read_parquet(lake).schema.field("at").type) == "timestamp[us, tz=UTC]"
