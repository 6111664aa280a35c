"""Iceberg's types as Arrow's, defaults, and single values as bytes."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes as convert_with_pyiceberg
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    GeometryType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)
from tests.iceberg.scan_tools import schema_of

from intarsia.errors import NotSupported
from intarsia.tables.iceberg.conversions import from_bytes, to_bytes
from intarsia.tables.iceberg.schemas import (
    collect_initial_defaults,
    get_field_id,
    refuse_unwritable,
    to_arrow_schema,
    to_arrow_type,
)

LONG = LongType()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (BooleanType(), pa.bool_()),
        (IntegerType(), pa.int32()),
        (LONG, pa.int64()),
        (DecimalType(9, 2), pa.decimal128(9, 2)),
        (DateType(), pa.date32()),
        (TimeType(), pa.time64("us")),
        (TimestampType(), pa.timestamp("us")),
        (TimestamptzType(), pa.timestamp("us", "UTC")),
        (TimestampNanoType(), pa.timestamp("ns")),
        (TimestamptzNanoType(), pa.timestamp("ns", "UTC")),
        (StringType(), pa.string()),
        (BinaryType(), pa.binary()),
        (FixedType(3), pa.binary(3)),
        (UUIDType(), pa.binary(16)),
        (UnknownType(), pa.null()),
    ],
)
def test_primitive_types_are_arrows(kind: Any, expected: pa.DataType) -> None:
    assert to_arrow_type(kind) == expected


def test_every_level_has_its_id_and_whether_it_may_be_null() -> None:
    inner = StructType(NestedField(5, "x", LONG, required=True))
    schema = to_arrow_schema(
        schema_of(
            (1, "a", LONG, {"required": True}),
            (2, "m", MapType(3, StringType(), 4, inner, False)),
            (6, "l", ListType(7, LONG, True)),
        )
    )
    assert [get_field_id(one) for one in schema] == [1, 2, 6]
    assert [one.nullable for one in schema] == [False, True, True]
    kind = schema.field("m").type
    assert (get_field_id(kind.key_field), get_field_id(kind.item_field)) == (3, 4)
    assert get_field_id(kind.item_type.field("x")) == 5
    assert not kind.item_type.field("x").nullable
    element = schema.field("l").type.value_field
    assert (get_field_id(element), element.name, element.nullable) == (7, "element", False)


def test_a_type_that_is_not_handled_is_named_with_its_column() -> None:
    schema = schema_of((1, "s", StructType(NestedField(2, "shape", GeometryType()))))
    with pytest.raises(NotSupported, match=r"'s\.shape'.*geometry"):
        to_arrow_schema(schema)


def test_a_column_that_cannot_be_written_is_named() -> None:
    refuse_unwritable(schema_of((1, "a", LONG), (2, "u", UnknownType())))
    with pytest.raises(NotSupported, match=r"'s\.u'.*unknown"):
        refuse_unwritable(schema_of((1, "s", StructType(NestedField(2, "u", UnknownType())))))


def test_defaults_are_in_the_internal_form() -> None:
    schema = schema_of(
        (1, "d", DateType(), {"initial_default": "1970-01-02", "write_default": "1970-01-03"}),
        (2, "t", TimeType(), {"initial_default": "00:00:01"}),
        (3, "ts", TimestampType(), {"initial_default": "1969-12-31T23:59:59.999999"}),
        (4, "tz", TimestamptzType(), {"initial_default": "1970-01-01T00:00:00.000001+00:00"}),
        (5, "u", UUIDType(), {"initial_default": "00000000-0000-0000-0000-000000000001"}),
        (6, "s", StructType(NestedField(7, "x", DecimalType(4, 2), initial_default="1.20"))),
        (8, "f", BooleanType(), {"initial_default": False}),
        (9, "none", LONG),
    )
    assert collect_initial_defaults(schema) == {
        1: 1,
        2: 1_000_000,
        3: -1,
        4: 1,
        5: bytes(15) + b"\x01",
        7: Decimal("1.20"),
        8: False,
    }


@given(st.integers(-(10**38) + 1, 10**38 - 1))
def test_decimals_round_trip_in_the_fewest_bytes(unscaled: int) -> None:
    value = Decimal(f"{unscaled}E-10")
    kind = DecimalType(38, 10)
    data = to_bytes(kind, value)
    assert int.from_bytes(data, "big", signed=True) == unscaled
    assert from_bytes(kind, data) == value
    assert len(data) == 1 or not -(2 ** (8 * len(data) - 9)) <= unscaled < 2 ** (8 * len(data) - 9)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (BooleanType(), True),
        (BooleanType(), False),
        (IntegerType(), -1),
        (LONG, 2**62),
        (DoubleType(), -0.5),
        (DateType(), -3),
        (TimeType(), 5),
        (TimestampType(), -(2**60)),
        (StringType(), "é"),
        (UUIDType(), bytes(range(16))),
        (FixedType(2), b"ab"),
        (BinaryType(), b""),
        (DecimalType(9, 2), Decimal("-1.28")),
    ],
)
def test_single_values_have_the_bytes_of_pyiceberg(kind: Any, value: Any) -> None:
    assert to_bytes(kind, value) == convert_with_pyiceberg(kind, value)
    assert from_bytes(kind, to_bytes(kind, value)) == value


def test_nanoseconds_are_eight_bytes() -> None:
    assert to_bytes(TimestampNanoType(), 5) == struct.pack("<q", 5)
    assert from_bytes(TimestamptzNanoType(), struct.pack("<q", 5)) == 5


def test_a_type_without_a_form_is_refused() -> None:
    with pytest.raises(NotSupported, match="list"):
        to_bytes(ListType(1, LONG, False), [1])
