"""Who carries out the steps in process: a module of ``bench.contenders`` each, on copies of the tables.

All have the same methods: ``set_up`` once, ``reset`` and ``prepare`` before a pass, ``run`` for the pass
itself, ``rows`` for what is in a table then.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow.parquet as pq

from bench.check import data_files, delta_files, scan
from bench.data import copy_tree, make_delta
from bench.tpch.data import Step, Tables, Workload
from intarsia.tables.iceberg.catalog import embedded_catalog


@dataclass(frozen=True, slots=True)
class Room:
    """Where a contender works, and on what."""

    path: Path
    tables: Tables
    workload: Workload

    def source(self, step: Step) -> Path:
        return self.tables.source(self.workload, step)


class Contender(Protocol):
    """What a pass is made of."""

    def set_up(self) -> None: ...
    def reset(self) -> None: ...
    def prepare(self) -> None: ...
    def run(self) -> None: ...
    def rows(self, table: str) -> tuple[duckdb.DuckDBPyConnection, str]:
        """A connection and SQL that gives a table's rows in it, once."""
        ...


@dataclass
class OnFiles:
    """Operations on a directory of Parquet files, or a Delta table made of them."""

    room: Room
    module: str
    engine: Any = "arrow"
    acts: list[Callable[[], Any]] = field(default_factory=list)

    def set_up(self) -> None:
        self.contender = importlib.import_module(f"bench.contenders.{self.module}")

    def reset(self) -> None:
        for step in self.room.workload.steps:
            copy = self.target(step.table)
            shutil.rmtree(copy, ignore_errors=True)
            shutil.rmtree(copy.with_name(f".{copy.name}.intarsia"), ignore_errors=True)
            copy_tree(self._origin(step.table), copy)

    def prepare(self) -> None:
        self.acts = [
            self.contender.prepare(make_job(self.room, step, str(self.target(step.table)), self.engine))
            for step in self.room.workload.steps
        ]

    def run(self) -> None:
        for act in self.acts:
            act()

    def target(self, table: str) -> Path:
        return self.room.path / table

    def rows(self, table: str) -> tuple[duckdb.DuckDBPyConnection, str]:
        target = self.target(table)
        files: list[Path | str] = [*(delta_files(target) if self.is_delta else data_files(target))]
        return duckdb.connect(), f"select * from {scan(files, daily=False)}"

    @property
    def is_delta(self) -> bool:
        return self.module == "deltars"

    def _origin(self, table: str) -> Path:
        origin = self.room.tables.path(table)
        return make_delta(origin, daily=False) if self.is_delta else origin


@dataclass
class OnIceberg:
    """intarsia on Iceberg tables over the same files, which are never changed; read by PyIceberg.

    Of version 2, because PyIceberg adds files to no other: merge-on-read writes position deletes.
    """

    room: Room
    mode: str
    engine: Any = "arrow"
    acts: list[Callable[[], Any]] = field(default_factory=list)
    snapshots: dict[str, int] = field(default_factory=dict)

    def set_up(self) -> None:
        self.contender = importlib.import_module("bench.contenders.intarsia")
        self.catalog = embedded_catalog(self.room.path / "warehouse")
        self.catalog.create_namespace("bench")
        modes = {f"write.{word}.mode": self.mode for word in ("delete", "update", "merge")}
        codec = {"write.parquet.compression-codec": "snappy"}
        for step in self.room.workload.steps:
            files = [str(path) for path in data_files(self.room.tables.path(step.table))]
            schema = duckdb.sql(f"select * from {scan(files, daily=False)} limit 0").to_arrow_table().schema
            table = self.catalog.create_table(
                f"bench.{step.table}", schema, properties={"format-version": "2", **modes, **codec}
            )
            table.add_files(files)
            self.snapshots[step.table] = self._load(step.table).metadata.current_snapshot_id

    def reset(self) -> None:
        for name, snapshot in self.snapshots.items():
            table = self._load(name)
            if table.metadata.current_snapshot_id != snapshot:
                with table.manage_snapshots() as manage:
                    manage.rollback_to_snapshot(snapshot)

    def prepare(self) -> None:
        self.acts = [
            self.contender.prepare(make_job(self.room, step, self._load(step.table), self.engine))
            for step in self.room.workload.steps
        ]

    def run(self) -> None:
        for act in self.acts:
            act()

    def rows(self, table: str) -> tuple[duckdb.DuckDBPyConnection, str]:
        connection = duckdb.connect()
        connection.register("rows", self._load(table).scan().to_arrow_batch_reader())
        return connection, "select * from rows"

    def _load(self, table: str) -> Any:
        return self.catalog.load_table(f"bench.{table}")


def make_job(room: Room, step: Step, target: Any, engine: Any) -> dict[str, Any]:
    """As ``bench.contenders`` want it."""
    first = data_files(room.tables.path(step.table))[0]
    return {
        "engine": engine,
        "memory_bytes": 0,
        "kind": step.kind,
        "target": target,
        "source": str(room.source(step)),
        "keys": list(step.keys),
        "by": [],
        "file_rows": pq.read_metadata(first).num_rows,
    }


IN_PROCESS: dict[str, Callable[[Room], Contender]] = {
    "intarsia": lambda room: OnFiles(room, "intarsia"),
    "intarsia-duckdb": lambda room: OnFiles(room, "intarsia", "duckdb"),
    "intarsia-mor": lambda room: OnIceberg(room, "merge-on-read"),
    "intarsia-cow": lambda room: OnIceberg(room, "copy-on-write"),
    "polars": lambda room: OnFiles(room, "polars"),
    "duckdb": lambda room: OnFiles(room, "duckdb"),
    "deltars": lambda room: OnFiles(room, "deltars"),
}
