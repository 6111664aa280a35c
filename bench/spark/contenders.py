"""The contenders on Spark: how each opens a session, takes the target's files in, merges, and goes back.

All get the same cores and the same heap, and the source as a DataFrame over the same Parquet file.
"""

from __future__ import annotations

import importlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import intarsia
from intarsia.spark import local_session

MASTER = "local[2]"
DELTA = "io.delta:delta-spark_4.1_2.13:4.4.0"
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


@dataclass
class Intarsia:
    """This library on the caller's session."""

    job: dict[str, Any]
    config: dict[str, str] = field(default_factory=dict)

    def set_up(self, spark: Any) -> None:
        importlib.import_module("intarsia.api")
        self.source = spark.read.parquet(self.job["source"])
        self.reset(spark)

    def reset(self, spark: Any) -> None:
        shutil.rmtree(self.room, ignore_errors=True)
        shutil.copytree(self.job["target"], self.room)

    @property
    def room(self) -> Path:
        return Path(self.job["room"], "target")

    def merge(self, spark: Any) -> None:
        intarsia.merge(self.source, self.room, on=self.job["keys"], engine=spark)

    def result(self, spark: Any) -> Any:
        return spark.read.parquet(str(self.room))


@dataclass
class Delta:
    """Delta Lake with deletion vectors, over the same files."""

    job: dict[str, Any]
    config: dict[str, str] = field(
        default_factory=lambda: {
            "packages": DELTA,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "2",  # its 50 are made for large logs
        }
    )

    @property
    def name(self) -> str:
        return f"delta.`{self.job['room']}/{table_name(self.job)}`"

    def set_up(self, spark: Any) -> None:
        copy = f"{self.job['room']}/{table_name(self.job)}"
        shutil.copytree(self.job["target"], copy)
        spark.read.parquet(self.job["source"]).createOrReplaceTempView("source")
        by_day = " PARTITIONED BY (day DATE)" if self.job["daily"] else ""
        spark.sql(f"CONVERT TO DELTA parquet.`{copy}`{by_day}")
        spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
        versions = spark.sql(f"DESCRIBE HISTORY {self.name}").select("version").toArrow()["version"]
        self.version = max(versions.to_pylist())

    def reset(self, spark: Any) -> None:
        spark.sql(f"RESTORE TABLE {self.name} TO VERSION AS OF {self.version}")

    def merge(self, spark: Any) -> None:
        spark.sql(merge_sql(self.name, self.job)).toArrow()

    def result(self, spark: Any) -> Any:
        return spark.table(self.name)


@dataclass
class Iceberg:
    """Iceberg over the same files, which it never changes."""

    job: dict[str, Any]
    mode: str
    config: dict[str, str] = field(
        default_factory=lambda: {
            "packages": ICEBERG,
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.ice.type": "hadoop",
        }
    )

    @property
    def name(self) -> str:
        return f"ice.bench.{table_name(self.job)}"

    def __post_init__(self) -> None:
        self.config["spark.sql.catalog.ice.warehouse"] = f"{self.job['room']}/warehouse"

    def set_up(self, spark: Any) -> None:
        target = spark.read.parquet(self.job["target"])
        spark.read.parquet(self.job["source"]).createOrReplaceTempView("source")
        columns = ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in target.schema)
        by_day = " PARTITIONED BY (day)" if self.job["daily"] else ""
        version = 3 if self.mode == "merge-on-read" else 2  # 3 has deletion vectors
        spark.sql(
            f"CREATE TABLE {self.name} ({columns}) USING iceberg{by_day} TBLPROPERTIES"
            f" ('format-version' = '{version}', 'write.merge.mode' = '{self.mode}',"
            " 'write.parquet.compression-codec' = 'snappy')"
        )
        taken = f"table => 'bench.{table_name(self.job)}', source_table => '`parquet`.`{self.job['target']}`'"
        spark.sql(f"CALL ice.system.add_files({taken})").toArrow()
        found = spark.sql(f"SELECT snapshot_id FROM {self.name}.snapshots").toArrow()
        self.version = found["snapshot_id"][0].as_py()

    def reset(self, spark: Any) -> None:
        known = f"'bench.{table_name(self.job)}', {self.version}"
        spark.sql(f"CALL ice.system.rollback_to_snapshot({known})").toArrow()

    def merge(self, spark: Any) -> None:
        spark.sql(merge_sql(self.name, self.job)).toArrow()

    def result(self, spark: Any) -> Any:
        return spark.table(self.name)


def table_name(job: dict[str, Any]) -> str:
    """Of the table, where a job has more than one."""
    return str(job.get("table", "target"))


def merge_sql(name: str, job: dict[str, Any]) -> str:
    """An upsert by the keys; where asked for, the days are named outright, so that others are not read."""
    on = " AND ".join(f"t.{key} = s.{key}" for key in job["keys"])
    if job["daily"] and job["name_days"]:
        on += "".join(f" AND t.day IN ({', '.join(map(repr, job['days']))})")
    return (
        f"MERGE INTO {name} t USING source s ON {on}"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


CONTENDERS: dict[str, Any] = {
    "intarsia": Intarsia,
    "delta": Delta,
    "iceberg-mor": lambda job: Iceberg(job, "merge-on-read"),
    "iceberg-cow": lambda job: Iceberg(job, "copy-on-write"),
}


def session(contender: Any, *, heap: str, jars: str | None, stock: bool) -> Any:
    """A warm-to-be session; ``jars`` is a directory to take the peers' jars from instead of fetching them.

    ``stock`` leaves the number of shuffle partitions as Spark has it, instead of one for few cores.
    """
    config = dict(contender.config)
    if stock:
        config["spark.sql.shuffle.partitions"] = "200"
    packages = config.pop("packages", None)
    if packages and jars:
        config["spark.jars"] = ",".join(str(path) for path in sorted(Path(jars).glob("*.jar")))
    elif packages:
        config["spark.jars.packages"] = packages
    return local_session("bench", master=MASTER, config={"spark.driver.memory": heap, **config})
