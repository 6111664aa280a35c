"""Iceberg's catalogs in Spark keep a table for a while; the session at hand is told of a change."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import intarsia as it
from intarsia.spark import read
from tests.cross.lake import Lake

pytestmark = pytest.mark.session_at_hand

ROWS = pa.table({"id": pa.array(range(10), pa.int64()), "v": ["a"] * 10})
MORE = pa.table({"id": pa.array(range(5, 15), pa.int64()), "v": ["b"] * 10})


@pytest.mark.parametrize("engine", ["spark", "arrow"])
def test_spark_sees_the_new_snapshot_though_its_catalog_caches(lake: Lake, engine: str) -> None:
    name = f"caching_{engine}"
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": lake.spark.conf.get("spark.sql.catalog.ice.uri"),
        ".warehouse": lake.spark.conf.get("spark.sql.catalog.ice.warehouse"),
        ".jdbc.schema-version": "V1",
        ".cache-enabled": "true",
        ".cache.expiration-interval-ms": "600000",
    }
    for key, value in settings.items():
        lake.spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
    catalog = SqlCatalog(
        name,
        uri=settings[".uri"].removeprefix("jdbc:").replace("sqlite:", "sqlite:///"),
        warehouse=settings[".warehouse"],
    )
    catalog.create_namespace("db")
    table = catalog.create_table("db.orders", ROWS.schema)
    it.write(ROWS, table, engine="arrow")
    assert lake.spark.table(f"{name}.db.orders").count() == 10
    frame = lake.spark.table(f"{name}.db.orders").cache()
    assert frame.count() == 10
    result = it.merge(MORE, table, on="id", engine=lake.spark if engine == "spark" else engine)
    assert result.total == 15
    assert lake.spark.table(f"{name}.db.orders").count() == 15
    assert lake.spark.sql(f"select * from {name}.db.orders where v = 'b'").count() == 10
    assert not [note for note in result.notes if "session" in note]


@pytest.mark.parametrize("kind", ["lake", "rest"])
def test_a_table_is_opened_by_its_name_in_the_session(request: pytest.FixtureRequest, kind: str) -> None:
    lake: Lake = request.getfixturevalue(kind)
    table = lake.fresh("named")
    lake.sql(f"CREATE TABLE {lake.in_spark(table)} (id BIGINT, v STRING) USING iceberg")
    target = it.spark_table(lake.in_spark(table), session=lake.spark)
    assert it.merge(ROWS, target, on="id", engine="arrow").inserted == 10
    assert it.merge(lake.spark.createDataFrame(MORE), target, on="id", mode="merge-on-read").updated == 5
    theirs = lake.spark.table(lake.in_spark(table)).orderBy("id").collect()
    assert read(lake.spark, target).orderBy("id").collect() == theirs
    assert len(theirs) == 15
