"""Metrics of data files, against what Iceberg's Java library wrote for the same rows.

``data/java_metrics.json`` is what manifests of iceberg-spark-runtime-4.1_2.13 1.12.0 say of these rows.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema, assign_fresh_schema_ids
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
    UUIDType,
)
from tests.iceberg.scan_tools import identified, metadata_of, schema_of

from intarsia.tables.iceberg.metrics import read_metrics, truncate_lower_bound, truncate_upper_bound
from intarsia.tables.iceberg.properties import WriteProperties
from intarsia.tables.iceberg.schemas import to_arrow_schema

JAVA = json.loads((Path(__file__).parent / "data" / "java_metrics.json").read_text())
NAN = float("nan")
UTC = dt.UTC
PARTS = {
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
}
COLUMNS: list[tuple[str, Any]] = [
    ("flag", BooleanType()),
    ("small", IntegerType()),
    ("big", LongType()),
    ("single", FloatType()),
    ("double", DoubleType()),
    ("d9", DecimalType(9, 2)),
    ("d18", DecimalType(18, 3)),
    ("d38", DecimalType(38, 10)),
    ("day", DateType()),
    ("ts", TimestampType()),
    ("tz", TimestamptzType()),
    ("text", StringType()),
    ("wide", StringType()),
    ("top", StringType()),
    ("bin", BinaryType()),
    ("binmax", BinaryType()),
    ("fix", FixedType(20)),
    ("id", UUIDType()),
    (
        "s",
        StructType(
            NestedField(201, "a", IntegerType()),
            NestedField(202, "f", DoubleType()),
            NestedField(203, "deep", StructType(NestedField(204, "t", StringType()))),
        ),
    ),
    (
        "l",
        ListType(
            205, StructType(NestedField(206, "x", DoubleType()), NestedField(207, "y", StringType())), False
        ),
    ),
    ("m", MapType(208, StringType(), 209, IntegerType(), False)),
    ("nothing", StringType()),
    ("nans", DoubleType()),
    ("surrogate", StringType()),
    ("zero", DoubleType()),
    ("li", ListType(210, IntegerType(), False)),
    ("must", LongType()),
    ("neg", DecimalType(9, 2)),
]
ROWS: list[tuple[Any, ...]] = [
    (
        *(True, -5, 2**40, 1.5, NAN),
        *(Decimal("1.28"), Decimal("-12345.678"), Decimal("12345678901234567890.0123456789")),
        dt.date(1969, 12, 31),
        dt.datetime(1969, 12, 31, 23, 59, 59, 1),
        dt.datetime(2020, 5, 1, 12, tzinfo=UTC),
        *("b" * 20, "ä😀" * 20, "\U0010ffff" * 17),
        *(b"\x01" * 20, b"\xff" * 17, b"\x02" * 20),
        uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes,
        {"a": 1, "f": 2.5, "deep": {"t": "inner" * 5}},
        [{"x": 1.0, "y": "p"}, {"x": NAN, "y": None}],
        [("k", 1), ("z", None)],
        *(None, NAN, "x" * 15 + "\ud7ff" + "tail", 0.0, [1, None], 1, Decimal("-1.28")),
    ),
    (
        *(False, 7, -3, NAN, -2.25),
        *(Decimal("-1.29"), Decimal("0.001"), Decimal("-0.0000000001")),
        dt.date(2024, 2, 29),
        dt.datetime(2024, 1, 1),
        dt.datetime(1960, 1, 1, tzinfo=UTC),
        *("a" * 16, "ä😀" * 8 + "a", "\U0010ffff" * 16),
        *(b"\x01" * 15 + b"\xff" * 5, b"\xff" * 16, b"\xff" * 20),
        uuid.UUID(int=1).bytes,
        *(None, None, None, None, NAN, "x" * 15 + "\ud7ff" + "tai", -0.0, [], 2, Decimal("-327.68")),
    ),
    (*[None] * 18, {"a": None, "f": NAN, "deep": None}, [], [], *[None] * 5, -3, None),
]
NANS = {"single": 1, "double": 1, "s.f": 1, "nans": 2, "zero": 0}
PREFIX = "write.metadata.metrics"
MODES = {
    "plain": {},
    "full": {f"{PREFIX}.default": "full"},
    "counts": {
        f"{PREFIX}.default": "counts",
        f"{PREFIX}.column.text": "truncate(3)",
        f"{PREFIX}.column.s.a": "none",
    },
    "none": {f"{PREFIX}.default": "none"},
    "few": {f"{PREFIX}.max-inferred-column-defaults": "26"},
}


def java_schema() -> Schema:
    fields = [
        NestedField(n, name, kind, required=name == "must") for n, (name, kind) in enumerate(COLUMNS, start=1)
    ]
    return assign_fresh_schema_ids(Schema(*fields))


def properties_of(schema: Schema, properties: dict[str, str] | None = None) -> WriteProperties:
    return WriteProperties.of(metadata_of(schema, properties=properties))


def footer_of(table: pa.Table, **options: Any) -> pq.FileMetaData:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return pq.read_metadata(pa.BufferReader(sink.getvalue()))


def plain(values: dict[int, Any]) -> dict[str, Any]:
    return {str(n): value.hex() if isinstance(value, bytes) else value for n, value in values.items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group_rows", [3, 1])
def test_metrics_are_those_that_java_writes(mode: str, group_rows: int) -> None:
    schema = java_schema()
    arrow = to_arrow_schema(schema)
    table = pa.table({name: [row[n] for row in ROWS] for n, name in enumerate(arrow.names)}, arrow)
    properties = properties_of(schema, MODES[mode])
    options = properties.layout.make_writer_options(arrow, dictionary_columns=["text"])
    footer = footer_of(table, row_group_size=group_rows, **options)
    found = read_metrics(footer, schema, properties.metrics, NANS)
    # Whether an all-NaN row group has bounds cannot be told from its footer: they are left out then.
    unsure = {"4", "5", "23", "30"} if group_rows == 1 else set()
    for part in PARTS - {"column_sizes"}:
        mine, java = plain(found[part]), JAVA[mode][part]
        if part.endswith("bounds"):
            assert all(mine[n] == java[n] for n in unsure & set(mine))
            mine, java = ({n: v for n, v in one.items() if n not in unsure} for one in (mine, java))
        assert mine == java, part
    assert sorted(found["column_sizes"]) == JAVA[mode]["column_sizes"]
    assert len(found["split_offsets"]) == 3 // group_rows


def test_split_offsets_are_where_row_groups_begin() -> None:
    schema = schema_of((1, "a", StringType()))
    table = pa.table({"a": ["x", "y"] * 500}, to_arrow_schema(schema))
    footer = footer_of(table, row_group_size=500)
    first = footer.row_group(0).column(0)
    assert first.has_dictionary_page
    assert read_metrics(footer, schema, properties_of(schema).metrics)["split_offsets"] == (
        4,
        4 + first.total_compressed_size,
    )
    assert (
        read_metrics(footer_of(table.slice(0, 0)), schema, properties_of(schema).metrics)["split_offsets"]
        is None
    )


def test_a_value_too_long_for_the_footer_leaves_no_bounds() -> None:
    schema = schema_of((1, "a", StringType()))
    table = pa.table({"a": ["b", "a" * 10_000]}, to_arrow_schema(schema))
    found = read_metrics(footer_of(table, row_group_size=1), schema, properties_of(schema).metrics)
    assert found["value_counts"] == {1: 2}
    assert found["lower_bounds"] == found["upper_bounds"] == {}


def test_a_column_without_statistics_has_a_size_only() -> None:
    schema = schema_of((1, "a", LongType()), (2, "b", LongType()))
    table = pa.table({"a": [1], "b": [2]}, to_arrow_schema(schema))
    found = read_metrics(footer_of(table, write_statistics=["b"]), schema, properties_of(schema).metrics)
    assert set(found["column_sizes"]) == {1, 2}
    assert found["value_counts"] == {2: 1}
    assert set(found["lower_bounds"]) == {2}


def test_columns_of_another_type_or_without_an_id_have_no_bounds() -> None:
    schema = schema_of((1, "a", TimestampType()))
    stored = pa.schema([identified("a", 1, pa.timestamp("ms")), pa.field("stray", pa.int64())])
    found = read_metrics(
        footer_of(pa.table({"a": [5], "stray": [1]}, stored)), schema, properties_of(schema).metrics
    )
    assert found["value_counts"] == {1: 1}
    assert found["lower_bounds"] == {}


def test_sorted_columns_keep_their_bounds_where_the_default_is_less() -> None:
    from pyiceberg.table.sorting import SortField, SortOrder
    from pyiceberg.transforms import BucketTransform, IdentityTransform

    from intarsia.tables.iceberg.metrics import MetricsConfig

    schema = schema_of((1, "a", LongType()), (2, "b", LongType()), (3, "c", LongType()))
    order = SortOrder(SortField(1, IdentityTransform()), SortField(2, BucketTransform(4)))
    config = MetricsConfig.of({f"{PREFIX}.default": "none"}, schema, order)
    assert [config.get_mode(n) for n in (1, 2, 3)] == [16, None, None]
    full = MetricsConfig.of({f"{PREFIX}.default": "full"}, schema, order)
    assert full.get_mode(1) == full.get_mode(3)


def test_modes_that_are_none_are_passed_over() -> None:
    from intarsia.tables.iceberg.metrics import MetricsConfig

    schema = schema_of((1, "a", LongType()))
    config = MetricsConfig.of({f"{PREFIX}.default": "truncate(0)", f"{PREFIX}.column.a": "lots"}, schema)
    assert config.get_mode(1) == 16


@pytest.mark.parametrize(
    ("value", "length", "low", "high"),
    [
        ("abc", 3, "abc", "abc"),
        ("abcd", 3, "abc", "abd"),
        ("ab\U0010ffffd", 3, "ab\U0010ffff", "ac"),
        ("\U0010ffff" * 4, 3, "\U0010ffff" * 3, None),
        ("é😀x", 2, "é😀", "é😁"),
        ("\ud7ffx", 1, "\ud7ff", "\ue000"),
        (b"ab\xff\x00", 3, b"ab\xff", b"ac"),
        (b"\xff" * 4, 3, b"\xff" * 3, None),
        (12345, 3, 12345, 12345),
    ],
)
def test_bounds_are_cut_so_that_they_still_hold(value: Any, length: int, low: Any, high: Any) -> None:
    assert truncate_lower_bound(value, length) == low
    assert truncate_upper_bound(value, length) == high
