"""The peers on Spark, and intarsia on a session: all of them in local mode, with the same cores and heap."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import duckdb

from bench.check import data_files, scan
from bench.spark.contenders import Delta, Iceberg, Intarsia, session
from bench.tpch.contenders import OnFiles, Room
from bench.tpch.data import KEYS

CLAUSES = {
    "insert": "WHEN NOT MATCHED THEN INSERT *",
    "delete": "WHEN MATCHED THEN DELETE",
    "upsert": "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
}


@dataclass
class OnSpark:
    """Delta Lake's or Iceberg's own DML, on tables over the same files."""

    room: Room
    spark: Any
    make: Callable[[dict[str, Any]], Any]
    tables: dict[str, Any] = field(default_factory=dict)

    def set_up(self) -> None:
        for step in self.room.workload.steps:
            table = self.make(
                {
                    "table": step.table,
                    "target": str(self.room.tables.path(step.table)),
                    "source": str(self.room.source(step)),
                    "room": str(self.room.path),
                    "daily": False,
                }
            )
            table.set_up(self.spark)
            source = self.spark.read.parquet(str(self.room.source(step)))
            source.createOrReplaceTempView(f"source_{step.table}")
            self.tables[step.table] = table

    def reset(self) -> None:
        for table in self.tables.values():
            table.reset(self.spark)

    def prepare(self) -> None:
        """Nothing: the source is read in the statement, as it is by all on Spark."""

    def run(self) -> None:
        for step in self.room.workload.steps:
            name, source = self.tables[step.table].name, f"source_{step.table}"
            self.spark.sql(make_statement(step.kind, name, source, step.keys)).toArrow()

    def rows(self, table: str) -> tuple[duckdb.DuckDBPyConnection, str]:
        """What Spark reads, handed over in files."""
        copy = self.room.path / f"rows-{table}"
        shutil.rmtree(copy, ignore_errors=True)
        self.tables[table].result(self.spark).write.parquet(str(copy))
        return duckdb.connect(), f"select * from {scan(data_files(copy), daily=False)}"

    def read(self, table: str, sums: str) -> None:
        self.tables[table].result(self.spark).selectExpr(*sums.split("; ")).toArrow()


def make_statement(kind: str, name: str, source: str, keys: tuple[str, ...]) -> str:
    """One statement of Spark SQL for a step."""
    if kind == "append":
        return f"INSERT INTO {name} SELECT * FROM {source}"
    on = " AND ".join(f"t.{key} = s.{key}" for key in keys)
    return f"MERGE INTO {name} t USING {source} s ON {on} {CLAUSES[kind]}"


def open_session(name: str, room: Room, *, heap: str, jars: str | None) -> Any:
    """The session that a contender needs."""
    peer = Intarsia if name == "intarsia-spark" else PEERS[name]
    one_table = peer({"room": str(room.path), "table": next(iter(KEYS))})
    return session(one_table, heap=heap, jars=jars, stock=False)


PEERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "delta": Delta,
    "iceberg-mor": lambda job: Iceberg(job, "merge-on-read"),
    "iceberg-cow": lambda job: Iceberg(job, "copy-on-write"),
}

ON_SPARK: dict[str, Callable[[Room, Any], Any]] = {
    "intarsia-spark": lambda room, spark: OnFiles(room, "intarsia", spark),
    **{name: lambda room, spark, peer=peer: OnSpark(room, spark, peer) for name, peer in PEERS.items()},
}
