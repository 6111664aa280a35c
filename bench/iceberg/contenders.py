"""Who changes the table, and how; all go back to the same snapshot between passes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import intarsia as it
from bench.iceberg.data import NAME, Lake
from intarsia.spark import local_session

MASTER = "local[2]"
PACKAGES = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,org.xerial:sqlite-jdbc:3.50.3.0"
WHERE = "id % 100 = 17"


def rolled_back(lake: Lake, snapshot: int) -> None:
    table = lake.catalog.load_table(NAME)
    if table.metadata.current_snapshot_id != snapshot:
        with table.manage_snapshots() as manage:
            manage.rollback_to_snapshot(snapshot)


@dataclass
class Intarsia:
    """This library."""

    lake: Lake
    engine: Any

    def set_up(self) -> None:
        importlib.import_module("intarsia.api")
        self.table = self.lake.catalog.load_table(NAME)

    def merge(self) -> None:
        it.merge(self._source(), self.table, on="id", engine=self.engine, progress=False)

    def delete(self) -> None:
        it.delete(self.table, WHERE, engine=self.engine, progress=False)

    def update(self) -> None:
        it.update(self.table, {"quantity": "quantity + 1"}, WHERE, engine=self.engine, progress=False)

    def reset(self, snapshot: int) -> None:
        rolled_back(self.lake, snapshot)

    def _source(self) -> Any:
        if isinstance(self.engine, str):
            return pq.read_table(self.lake.source)
        return self.engine.read.parquet(str(self.lake.source))


@dataclass
class PyIceberg:
    """PyIceberg's own calls, which rewrite files."""

    lake: Lake

    def set_up(self) -> None:
        self.table = self.lake.catalog.load_table(NAME)

    def merge(self) -> None:
        self.table.upsert(pq.read_table(self.lake.source), join_cols=["id"])

    def delete(self) -> None:
        raise NotImplementedError("PyIceberg has no arithmetic in filters")

    update = delete

    def reset(self, snapshot: int) -> None:
        rolled_back(self.lake, snapshot)
        self.table = self.lake.catalog.load_table(NAME)


@dataclass
class OnSpark:
    """Iceberg's own DML on Spark, on the same table through the same catalog."""

    lake: Lake
    spark: Any

    def set_up(self) -> None:
        self.spark.read.parquet(str(self.lake.source)).createOrReplaceTempView("source")

    def merge(self) -> None:
        self._run(
            f"MERGE INTO local.{NAME} t USING source s ON t.id = s.id"
            " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def delete(self) -> None:
        self._run(f"DELETE FROM local.{NAME} WHERE {WHERE}")

    def update(self) -> None:
        self._run(f"UPDATE local.{NAME} SET quantity = quantity + 1 WHERE {WHERE}")

    def reset(self, snapshot: int) -> None:
        self._run(f"CALL local.system.rollback_to_snapshot('{NAME}', {snapshot})")

    def _run(self, sql: str) -> None:
        self.spark.sql(sql).toArrow()


def iceberg_session(lake: Lake, heap: str, jars: str | None) -> Any:
    """Spark with Iceberg's runtime, on the catalog that PyIceberg uses."""
    found = sorted(Path(jars).glob("*.jar")) if jars else []
    config = {
        "spark.driver.memory": heap,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.local.type": "jdbc",
        "spark.sql.catalog.local.uri": f"jdbc:sqlite:{lake.directory}/catalog.db",
        "spark.sql.catalog.local.jdbc.schema-version": "V1",
        "spark.sql.catalog.local.warehouse": f"file://{lake.directory}",
    }
    if found:
        config["spark.jars"] = ",".join(map(str, found))
    else:
        config["spark.jars.packages"] = PACKAGES
    return local_session("bench", master=MASTER, config=config)


def plain_session(lake: Lake, heap: str, jars: str | None) -> Any:
    return local_session("bench", master=MASTER, config={"spark.driver.memory": heap})


CONTENDERS: dict[str, tuple[Callable[..., Any] | None, Callable[..., Any]]] = {
    "intarsia": (None, lambda lake, _: Intarsia(lake, "arrow")),
    "intarsia-duckdb": (None, lambda lake, _: Intarsia(lake, "duckdb")),
    "intarsia-spark": (plain_session, Intarsia),
    "iceberg-spark": (iceberg_session, OnSpark),
    "pyiceberg": (None, lambda lake, _: PyIceberg(lake)),
}
"""The session each needs, if any, and what it is made of."""
