"""Two Iceberg tables of the same files and history, one for each engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestampType

import intarsia as it
from intarsia.core.intent import CompactIntent
from intarsia.core.plan import Plan
from intarsia.core.ports import LAST_UPDATED, ROW_ID, with_lineage
from intarsia.kernel.compact import read_pieces
from intarsia.tables.iceberg.catalog import embedded_catalog

NAME = "db.t"
_COLUMNS = (
    NestedField(1, "id", LongType()),
    NestedField(2, "region", StringType()),
    NestedField(3, "ts", TimestampType()),
    NestedField(4, "v", DoubleType()),
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
REGIONS = ("eu", "us", "a/b c=d", None)
START = datetime(2026, 3, 1)


def rows(ids: Any, *, v: float = 0.0, name: str = "old", shift: int = 0) -> pa.Table:
    """Rows whose region and day follow from their key."""
    ids = list(ids)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "region": pa.array([REGIONS[(n + shift) % 4] for n in ids], pa.string()),
            "ts": pa.array([START + timedelta(hours=7 * (n % 12)) for n in ids], pa.timestamp("us")),
            "v": pa.array([v + n for n in ids], pa.float64()),
            "name": pa.array([f"{name} {n}" for n in ids], pa.string()),
        }
    )


@dataclass(frozen=True)
class Twin:
    """One of the two tables."""

    catalog: Catalog
    name: str
    mode: str | None

    @property
    def target(self) -> Any:
        return it.iceberg(self.name, catalog=self.catalog, mode=self.mode)

    def table(self) -> Table:
        return self.catalog.load_table(self.name)

    def rows(self) -> list[dict[str, Any]]:
        """All rows, as PyIceberg reads them."""
        return sorted(self.table().scan().to_arrow().to_pylist(), key=repr)

    def lineage(self) -> dict[int, tuple[int, int]]:
        """By key the identity of each row, and the snapshot that last changed it."""
        snapshot = self.target.snapshot()
        snapshot = snapshot.with_footers(snapshot.files)
        plan = Plan(CompactIntent(), snapshot, (), snapshot.schema)
        return {
            row["id"]: (row[ROW_ID], row[LAST_UPDATED])
            for file in snapshot.files
            for piece in read_pieces(file, plan, with_lineage(snapshot.schema))
            for row in piece.to_pylist()
        }

    def data_files(self) -> set[str]:
        """All data and delete files on the disk; both twins have their files in one place."""
        found = Path(self.table().location().removeprefix("file://")).rglob("*")
        return {str(path) for path in found if path.is_file() and "metadata" not in path.parts}

    def strangers(self, before: set[str]) -> set[str]:
        """Files that came since and that no snapshot names."""
        named = self.table().inspect.all_files()["file_path"].to_pylist()
        return self.data_files() - before - {path.removeprefix("file://") for path in named}


def _made(catalog: Catalog, version: int, label: str, **options: Any) -> None:
    schema = Schema(*_COLUMNS, NestedField(5, label, StringType()))
    catalog.create_table(NAME, schema, properties={"format-version": str(version)}, **options)


def _append(catalog: Catalog, table: pa.Table) -> None:
    it.write(table, it.iceberg(NAME, catalog=catalog), mode="append", engine="arrow")


def unpartitioned(catalog: Catalog, version: int) -> None:
    """A table without partitions, written in two goes."""
    _made(catalog, version, "name")
    for ids in (range(120), range(120, 240)):
        _append(catalog, rows(ids))


def evolved(catalog: Catalog, version: int) -> None:
    """Written by region, then by region and day, then by day and bucket; a column renamed, rows deleted."""
    _made(catalog, version, "title", partition_spec=BY_REGION)
    target = it.iceberg(NAME, catalog=catalog, mode="merge-on-read" if version > 1 else None)
    for ids in (range(60), range(60, 120)):
        _append(catalog, rows(ids).rename_columns({"name": "title"}))
    it.delete(target, "id % 10 = 3", engine="arrow")
    with catalog.load_table(NAME).update_spec() as update:
        update.add_field("ts", DayTransform(), "day")
    with catalog.load_table(NAME).update_schema() as update:
        update.rename_column("title", "name")
    _append(catalog, rows(range(120, 180)))
    with catalog.load_table(NAME).update_spec() as update:
        update.remove_field("region")
        update.add_field("id", BucketTransform(3), "bucket")
    _append(catalog, rows(range(180, 240)))
    it.delete(target, "id % 10 = 7 and id > 100", engine="arrow")


Making = Callable[[Catalog, int], None]


class Twins:
    """Makes each kind of table once, and hands out two names of it at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[tuple[str, int], Catalog] = {}
        self._numbers = count()

    def __call__(self, making: Making, version: int, mode: str | None) -> tuple[Twin, Twin]:
        key = (making.__name__, version)
        if key not in self._made:
            catalog = embedded_catalog(self._directory / str(next(self._numbers)), name="lake")
            catalog.create_namespace("db")
            making(catalog, version)
            self._made[key] = catalog
        catalog = self._made[key]
        base = catalog.load_table(NAME)
        names = [f"db.{side}{next(self._numbers)}" for side in ("arrow", "spark")]
        for name in names:
            catalog.register_table(name, base.metadata_location)
        return Twin(catalog, names[0], mode), Twin(catalog, names[1], mode)
