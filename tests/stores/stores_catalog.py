"""The catalog that is one object, on S3 in memory: how it is opened, and what operations make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.fsspec import FsspecFileIO
from stores_memory import BUCKET, MemoryFileSystem, MemoryStore, Process

from intarsia.tables.iceberg import object_catalog

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
WAREHOUSE = f"s3://{BUCKET}/lake"
OBJECT = "lake/catalog.json"
State = dict[str, list[int]]
"""By table, the rows; namespaces have none and end with a dot."""
_PROCESSES: dict[str, Process] = {}


class MemoryIO(FsspecFileIO):
    """PyIceberg's way to the store of one process."""

    def get_fs(self, scheme: str, hostname: str | None = None) -> Any:
        return MemoryFileSystem(_PROCESSES[self.properties["test.process"]])


def open_catalog(process: Process) -> Catalog:
    name = str(id(process))
    _PROCESSES[name] = process
    return object_catalog(WAREHOUSE, **{"py-io-impl": "stores_catalog.MemoryIO", "test.process": name})


def read_state(server: MemoryStore) -> State:
    catalog = open_catalog(Process(server))
    found: State = {}
    for namespace in catalog.list_namespaces():
        found[f"{namespace[0]}."] = []
        for name in catalog.list_tables(namespace):
            rows = catalog.load_table(name).scan().to_arrow()["id"].to_pylist()
            found[".".join(name)] = sorted(rows)
    return found


def make_server() -> MemoryStore:
    server = MemoryStore()
    catalog = open_catalog(Process(server))
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", schema=ROWS.schema).append(ROWS)
    return server


def append(catalog: Catalog, *ids: int) -> None:
    catalog.load_table("shop.orders").append(pa.table({"id": pa.array(ids, pa.int64())}))


BEFORE: State = {"shop.": [], "shop.orders": [1, 2]}


@dataclass(frozen=True)
class CatalogOperation:
    name: str
    run: Callable[[Catalog], Any]
    after: State


OPERATIONS = [
    CatalogOperation("commit", lambda c: append(c, 3), {**BEFORE, "shop.orders": [1, 2, 3]}),
    CatalogOperation("create namespace", lambda c: c.create_namespace("new"), {**BEFORE, "new.": []}),
    CatalogOperation(
        "create table",
        lambda c: c.create_table("shop.new", schema=ROWS.schema),
        {**BEFORE, "shop.new": []},
    ),
    CatalogOperation(
        "rename",
        lambda c: c.rename_table("shop.orders", "shop.renamed"),
        {"shop.": [], "shop.renamed": [1, 2]},
    ),
    CatalogOperation("drop", lambda c: c.drop_table("shop.orders"), {"shop.": []}),
]
