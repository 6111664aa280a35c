"""One lake for all cross-engine tests: Spark with Iceberg's runtime and PyIceberg on one SQLite catalog."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from intarsia.spark import local_session

NAME = "ice"
NAMESPACE = "db"


@dataclass
class Lake:
    """A Spark session and a PyIceberg catalog that see the same tables, and the place the files are in."""

    spark: Any
    catalog: Catalog
    warehouse: Path
    name: str = NAME
    server: Any = None
    """Of a REST catalog."""
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def sql(self, text: str) -> pa.Table:
        """Run a statement in Spark; its rows as Arrow."""
        return self.spark.sql(text).toArrow()

    def fresh(self, stem: str) -> str:
        """A table name that nobody has used."""
        return f"{NAMESPACE}.{stem}_{next(self._numbers)}"

    def in_spark(self, table: str) -> str:
        return f"{self.name}.{table}"

    def metadata_file(self, table: str) -> Path:
        """The current metadata file of a table, as the catalog has it now."""
        return local(self.catalog.load_table(table).metadata_location)

    def clone(self, table: str, stem: str) -> str:
        """A second table that starts with the same metadata file: same files, its own history from here."""
        name = self.fresh(stem)
        self.catalog.register_table(name, self.catalog.load_table(table).metadata_location)
        return name

    def java_table(self, table: str) -> Any:
        """The table in Iceberg's Java API, through Spark's gateway."""
        jvm = self.spark._jvm
        return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.spark._jsparkSession, self.in_spark(table)
        )


def local(location: str) -> Path:
    """The path of a ``file:`` URI, in any of the forms that Java and Python write."""
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def open_lake(room: Path, jars: list[Path]) -> Lake:
    """Start the session and make the catalog's namespace; ``room`` is an empty directory."""
    warehouse = room / "warehouse"
    warehouse.mkdir()
    catalog = SqlCatalog(NAME, uri=f"sqlite:///{room}/catalog.db", warehouse=f"file://{warehouse}")
    spark = local_session(
        "intarsia cross tests",
        master="local[2]",
        config={
            **SETTINGS,
            "spark.driver.extraClassPath": ":".join(map(str, jars)),
            "spark.sql.warehouse.dir": str(room / "spark"),
            **catalog_settings(
                NAME,
                type="jdbc",
                uri=f"jdbc:sqlite:{room}/catalog.db",
                warehouse=f"file://{warehouse}",
                **{"jdbc.schema-version": "V1"},
            ),
        },
    )
    catalog.create_namespace(NAMESPACE)
    return Lake(spark, catalog, warehouse)


def catalog_settings(name: str, **properties: str) -> dict[str, str]:
    """Spark's settings of one Iceberg catalog; nothing is cached, since others commit in between."""
    prefix = f"spark.sql.catalog.{name}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.cache-enabled": "false",
        **{f"{prefix}.{key}": value for key, value in properties.items()},
    }


SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.shuffle.partitions": "2",
    # The tables have a few dozen rows: compiling and re-planning would cost more than running.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.iceberg.aggregate-push-down.enabled": "false",  # counts are read from rows, not metadata
}
