"""Iceberg tables with a past, for two engines to work on: columns of many kinds, and deletes by value."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)
from tests.iceberg.lake import Lake
from tests.spark.iceberg_twins import NAME, rows, unpartitioned

import intarsia as it
from intarsia.tables.iceberg.manifests import ContentFile, DataFileContent
from intarsia.tables.iceberg.schemas import to_arrow_schema
from intarsia.tables.iceberg.snapshot_producer import FileChange

_POINT = StructType(NestedField(21, "x", IntegerType()), NestedField(22, "y", StringType()))
_FIRST = (
    NestedField(1, "k", IntegerType()),
    NestedField(2, "f", FloatType()),
    NestedField(3, "d", DecimalType(9, 2)),
    NestedField(4, "at", TimestamptzType()),
    NestedField(5, "u", UUIDType()),
    NestedField(6, "b", BinaryType()),
    NestedField(7, "day", DateType()),
    NestedField(8, "point", _POINT),
    NestedField(9, "tags", ListType(23, StringType(), False)),
    NestedField(10, "again", StringType()),
)


def _values(number: int) -> dict[str, Any]:
    odd = number % 7
    return {
        "k": number,
        "f": [1.5, -0.0, float("nan"), None, 2.25, float("inf"), -3.5][odd],
        "d": None if odd == 3 else Decimal(number) / 4,
        "at": datetime(2026, 3, 1, tzinfo=UTC) + timedelta(hours=5 * (number % 20)),
        "u": UUID(int=number << 64).bytes,
        "b": bytes([odd, 0, 255]),
        "day": date(2026, 1, 1) + timedelta(days=odd),
        "point": None if odd == 2 else {"x": number, "y": f"y{odd}", "z": odd},
        "tags": [None, [], ["a", None], ["b"]][number % 4],
        "again": f"text {odd}",
        "late": f"late {odd}",
        "count": number,
    }


def many_rows(ids: Any, schema: pa.Schema) -> pa.Table:
    """Rows that follow from their key, in the columns of a schema; ``id`` is what ``k`` is called later."""
    names = {"id": "k"}
    rows = [{name: _values(n)[names.get(name, name)] for name in schema.names} for n in ids]
    return pa.Table.from_pylist(rows, schema=schema)


def _schema(catalog: Catalog) -> pa.Schema:
    return to_arrow_schema(catalog.load_table(NAME).schema())


def _append(catalog: Catalog, ids: Any) -> None:
    target = it.iceberg(NAME, catalog=catalog)
    it.write(many_rows(ids, _schema(catalog)), target, mode="append", engine="arrow")


def promoted(catalog: Catalog, version: int) -> None:
    """Columns promoted, renamed, added, dropped and added again; by day, then by day and bucket."""
    catalog.create_table(NAME, Schema(*_FIRST), properties={"format-version": str(version)})
    with catalog.load_table(NAME).update_spec() as spec:
        spec.add_field("day", DayTransform(), "on_day")
    for ids in (range(70), range(70, 140)):
        _append(catalog, ids)
    if version > 1:
        it.delete(it.iceberg(NAME, catalog=catalog, mode="merge-on-read"), "k % 9 = 4", engine="arrow")
    with catalog.load_table(NAME).update_schema() as schema:
        schema.update_column("k", field_type=LongType())
        schema.update_column("f", field_type=DoubleType())
        schema.update_column("d", field_type=DecimalType(18, 2))
        schema.rename_column("k", "id")
        schema.delete_column("again")
    with catalog.load_table(NAME).update_schema() as schema:
        schema.add_column("again", StringType())
        schema.add_column("late", StringType())
        schema.add_column(("point", "z"), LongType())
        if version == 3:
            schema.add_column("count", LongType(), default_value=11)
    with catalog.load_table(NAME).update_spec() as spec:
        spec.add_field("id", BucketTransform(3), "bucket")
    _append(catalog, range(140, 210))


def mapped(catalog: Catalog, version: int) -> None:
    """Files of other writers, without field ids and without the partition column; then ones of our own."""
    unpartitioned(catalog, version)
    table = catalog.load_table(NAME)
    with table.transaction() as change:
        names = [{"field-id": one.field_id, "names": [one.name]} for one in table.schema().fields]
        change.set_properties({"schema.name-mapping.default": json.dumps(names)})
    with catalog.load_table(NAME).update_spec() as spec:
        spec.add_identity("region")
    lake = Lake(Path(table.location().removeprefix("file://")), catalog)
    added = []
    for region, ids in (("us", range(220, 240)), (None, range(240, 250))):
        location = f"{lake.directory}/data/mapped-{region}.parquet"
        pq.write_table(rows(ids, name="foreign").select(["name", "id", "v", "ts"]), location)
        size = os.path.getsize(location)
        added.append(
            ContentFile(DataFileContent.DATA, f"file://{location}", "PARQUET", 1, (region,), len(ids), size)
        )
    lake.commit(FileChange(added_data=added))
    it.delete(
        it.iceberg(NAME, catalog=catalog, mode="merge-on-read"), "id in (219, 221, 243)", engine="arrow"
    )


def wide(ids: Any, text: str) -> pa.Table:
    """Rows of some size."""
    numbers = pa.array(ids, pa.int64())
    padded = pc.binary_join_element_wise(
        text, pc.cast(pc.multiply(numbers, 7919), pa.string()), "-" * 60, " "
    )
    groups = pc.bit_wise_and(numbers, pa.scalar(0xFFFF, pa.int64()))
    return pa.table({"id": numbers, "group": groups, "text": padded})


def large(catalog: Catalog, version: int) -> None:
    """More rows than fit in little memory, in several files."""
    first = wide(range(300_000), "old")
    made = catalog.create_table(NAME, first.schema, properties={"format-version": str(version)})
    it.write(first, made, engine="arrow", max_rows_per_file=60_000, row_group_size=20_000)
    it.delete(it.iceberg(NAME, catalog=catalog, mode="merge-on-read"), "id % 1000 = 3", engine="arrow")


def struck(catalog: Catalog, version: int) -> None:
    """Rows of an unpartitioned table deleted by value, others by position, and some that came back since."""
    unpartitioned(catalog, version)
    target = it.iceberg(NAME, catalog=catalog, mode="merge-on-read")
    it.delete(target, "id % 10 = 7", engine="arrow")
    lake = Lake(Path(catalog.load_table(NAME).location().removeprefix("file://")), catalog)
    gone = [*range(100, 140), 999]
    location = f"{lake.directory}/data/struck.parquet"
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table([gone], schema=pa.schema([field])), location)
    size = os.path.getsize(location)
    lake.commit(
        FileChange(
            added_deletes=[
                ContentFile(
                    DataFileContent.EQUALITY_DELETES,
                    f"file://{location}",
                    "PARQUET",
                    0,
                    (),
                    len(gone),
                    size,
                    equality_ids=(1,),
                )
            ]
        )
    )
    with catalog.load_table(NAME).update_spec() as spec:
        spec.add_field("id", BucketTransform(2), "bucket")
    it.write(rows(range(105, 110), name="back"), target, mode="append", engine="arrow")
