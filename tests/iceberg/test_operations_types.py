"""Columns of every type of Iceberg come through every operation, also where they partition the table."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from operation_tools import House
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from tests.contract.iceberg_lakes import COW, MOR, Warehouse

import intarsia as it

UTC = dt.UTC
MOMENT = dt.datetime(2024, 2, 28, 12, 30, 0, 5)

VALUES: dict[str, tuple[Any, pa.DataType, list[Any]]] = {
    "bool": (BooleanType(), pa.bool_(), [True, None, False, True]),
    "int": (IntegerType(), pa.int32(), [-(2**31), None, 2**31 - 1, 0]),
    "long": (LongType(), pa.int64(), [-(2**63), None, 2**63 - 1, 0]),
    "float": (FloatType(), pa.float32(), [math.nan, None, -0.0, 1.5]),
    "double": (DoubleType(), pa.float64(), [math.inf, None, math.nan, 0.1]),
    "decimal9": (
        DecimalType(9, 2),
        pa.decimal128(9, 2),
        [Decimal("-1.10"), None, Decimal("9.99"), Decimal("0.00")],
    ),
    "decimal18": (
        DecimalType(18, 4),
        pa.decimal128(18, 4),
        [Decimal("1.1000"), None, Decimal("-9.9900"), Decimal(0)],
    ),
    "decimal38": (
        DecimalType(38, 10),
        pa.decimal128(38, 10),
        [Decimal(10**20), None, Decimal(-(10**20)), Decimal(1)],
    ),
    "date": (
        DateType(),
        pa.date32(),
        [dt.date(1960, 2, 29), None, dt.date(2024, 1, 1), dt.date(9999, 12, 31)],
    ),
    "time": (TimeType(), pa.time64("us"), [dt.time(0), None, dt.time(23, 59, 59, 999_999), dt.time(1)]),
    "ts": (
        TimestampType(),
        pa.timestamp("us"),
        [MOMENT, None, MOMENT.replace(year=1900), MOMENT.replace(day=1)],
    ),
    "tz": (
        TimestamptzType(),
        pa.timestamp("us", "UTC"),
        [
            MOMENT.replace(tzinfo=UTC),
            None,
            MOMENT.replace(year=1900, tzinfo=UTC),
            MOMENT.replace(day=1, tzinfo=UTC),
        ],
    ),
    "string": (StringType(), pa.string(), ["", None, "ä" * 20, "a text of more than sixteen bytes"]),
    "uuid": (UUIDType(), pa.binary(16), [uuid.UUID(int=n).bytes if n else None for n in (1, 0, 2**127, 3)]),
    "fixed": (FixedType(2), pa.binary(2), [b"ab", None, b"\x00\xff", b"\xff\xff"]),
    "binary": (BinaryType(), pa.binary(), [b"", None, b"\xff" * 20, b"a"]),
    "list": (
        ListType(101, StringType(), element_required=False),
        pa.list_(pa.string()),
        [[], None, ["a", None], ["b"]],
    ),
    "map": (
        MapType(102, StringType(), 103, IntegerType(), value_required=False),
        pa.map_(pa.string(), pa.int32()),
        [[], None, [("a", 1)], [("b", None)]],
    ),
    "struct": (
        StructType(
            NestedField(104, "x", IntegerType()),
            NestedField(105, "l", ListType(106, LongType(), element_required=False)),
        ),
        pa.struct([("x", pa.int32()), ("l", pa.list_(pa.int64()))]),
        [{"x": 1, "l": [1]}, None, {"x": None, "l": None}, {"x": 4, "l": []}],
    ),
}

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "half", IntegerType()),
    *(NestedField(3 + place, name, kind) for place, (name, (kind, _, _)) in enumerate(VALUES.items())),
)
ROWS = pa.table(
    {
        "id": pa.array(range(4), pa.int64()),
        "half": pa.array([0, 0, 1, 1], pa.int32()),
        **{name: pa.array(values, kind) for name, (_, kind, values) in VALUES.items()},
    }
)

OPERATIONS: dict[str, tuple[Callable[[Any], Any], list[tuple[int, int]]]] = {
    "delete": (lambda t: it.delete(t, "id = 1"), [(0, 0), (2, 2), (3, 3)]),
    "update": (lambda t: it.update(t, {"id": "id + 10"}, "id >= 2"), [(0, 0), (1, 1), (12, 2), (13, 3)]),
    "upsert": (lambda t: it.merge(ROWS.slice(1, 2), t, on="id"), [(n, n) for n in range(4)]),
    "full_merge": (lambda t: it.merge(ROWS.slice(1, 2), t, on="id", strategy="full_merge"), [(1, 1), (2, 2)]),
    "append": (
        lambda t: it.write(ROWS.set_column(0, "id", pa.array(range(4, 8))), t),
        [(n, n % 4) for n in range(8)],
    ),
    "overwrite": (lambda t: it.write(ROWS.slice(0, 2), t, mode="overwrite"), [(0, 0), (1, 1)]),
    "compact": (lambda t: it.compact(t), [(n, n) for n in range(4)]),
    "optimize": (lambda t: it.optimize(t, by=["half", "id"]), [(n, n) for n in range(4)]),
    "deduplicate": (lambda t: it.deduplicate(t, on="half", order_by="id"), [(1, 1), (3, 3)]),
}
"""Each with the ids that it leaves, and the row whose values each of them has."""

PARTITIONS: dict[str, list[tuple[str, Any]]] = {
    "nothing": [],
    "identities": [
        (name, IdentityTransform())
        for name in VALUES
        if name not in ("list", "map", "struct", "float", "double")
    ],
    "buckets": [
        (name, BucketTransform(3))
        for name in VALUES
        if name not in ("bool", "float", "double", "list", "map", "struct")
    ],
    "truncations": [
        (name, TruncateTransform(2)) for name in ("int", "long", "decimal9", "decimal38", "string", "binary")
    ],
}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    warehouse = Warehouse(tmp_path)
    yield House(warehouse)
    warehouse.catalog.close()


def comparable(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return value.bytes
    return repr(value) if isinstance(value, float) else value


def found(table: pa.Table) -> list[dict[str, Any]]:
    rows = [{name: comparable(value) for name, value in row.items()} for row in table.to_pylist()]
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.parametrize("by", PARTITIONS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_columns_of_every_type_come_through(house: House, name: str, by: str) -> None:
    run, left = OPERATIONS[name]
    version, mode = [(2, COW), (2, MOR), (3, MOR)][(len(name) + len(by)) % 3]
    house.make(SCHEMA, mode=mode, version=version)
    it.write(ROWS.slice(0, 2), house.target)
    house.evolve(*PARTITIONS[by])
    it.write(ROWS.slice(2), house.target)
    before = found(ROWS)
    assert found(house.read()) == before
    run(house.target)
    expected = [{**before[origin], "id": number} for number, origin in left]
    assert found(house.read()) == expected
    assert found(house.table.scan().to_arrow()) == expected
    house.check()


@pytest.mark.parametrize("name", [name for name in VALUES if name not in ("list", "map", "struct")])
def test_a_key_of_every_type_is_found(house: House, name: str) -> None:
    house.make(SCHEMA, mode=MOR)
    house.evolve(*PARTITIONS["identities"])
    it.write(ROWS, house.target)
    source = ROWS.slice(2, 1).set_column(0, "id", pa.array([20]))
    result = it.merge(source, house.target, on=name, null_keys="match")
    same = ROWS[name].to_pylist().count(ROWS[name][2].as_py()) or 1
    assert (result.updated, result.inserted) == (same, 0)
    assert it.read(house.target, where="id = 20", columns=["id"]).read_all().num_rows == same
