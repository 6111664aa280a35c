"""Partition specs by id, their types through every evolution of the schema, paths and proven bounds."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from metadata_samples import metadata, spec
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
    parse_transform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from intarsia.errors import ColumnNotFound, DamagedTable, InputError, NotSupported
from intarsia.tables.iceberg.specs import (
    SpecPartitioner,
    find_compatible_schema,
    find_implied_ranges,
    find_spec,
    make_partition_type,
    partition_to_path,
)

_ID = NestedField(1, "id", LongType(), required=False)
_TS = NestedField(2, "ts", TimestampType(), required=False)
_REGION = NestedField(3, "region", StringType(), required=False)
_UNPARTITIONED = spec(0)


def _day(field_id: int = 1000) -> PartitionField:
    return PartitionField(2, field_id, DayTransform(), "ts_day")


def _region(field_id: int = 1001) -> PartitionField:
    return PartitionField(3, field_id, IdentityTransform(), "region")


class TestById:
    def test_any_spec_of_the_table_is_found(self) -> None:
        meta = metadata("t", [Schema(_ID, _TS, _REGION)], [spec(0, _day()), spec(4, _region())])
        assert [find_spec(meta, spec_id).spec_id for spec_id in (0, 4)] == [0, 4]

    def test_no_id_is_spec_0(self) -> None:
        meta = metadata("t", [Schema(_ID, _TS, _REGION)], [spec(0, _day()), spec(4, _region())])
        assert find_spec(meta, None).spec_id == 0

    def test_an_unknown_id_is_named(self) -> None:
        meta = metadata("lake/t", [Schema(_ID)], [_UNPARTITIONED])
        with pytest.raises(InputError, match="references unknown partition spec: 99") as caught:
            find_spec(meta, 99)
        assert caught.value.path == "lake/t"


class TestCompatibleSchema:
    def test_the_current_one_is_taken_if_it_has_every_source(self) -> None:
        old, new = Schema(_ID, _TS, schema_id=0), Schema(_ID, _TS, _REGION, schema_id=1)
        meta = metadata("t", [old, new], [spec(0, _day())])
        assert find_compatible_schema(meta, meta.partition_specs[0]).schema_id == 1

    def test_a_renamed_source_is_still_the_same_column(self) -> None:
        renamed = NestedField(2, "time", TimestampType(), required=False)
        meta = metadata("t", [Schema(_TS, schema_id=0), Schema(renamed, schema_id=1)], [spec(0, _day())])
        assert find_compatible_schema(meta, meta.partition_specs[0]).schema_id == 1
        assert make_partition_type(meta, meta.partition_specs[0]).fields[0].name == "ts_day"

    def test_a_dropped_source_is_found_in_the_newest_schema_that_has_it(self) -> None:
        schemas = [
            Schema(_ID, _REGION, schema_id=0),
            Schema(_ID, _TS, _REGION, schema_id=1),
            Schema(_ID, _TS, schema_id=2),
        ]
        meta = metadata("t", schemas, [spec(0, _region()), spec(1, _day())])
        assert find_compatible_schema(meta, meta.partition_specs[0]).schema_id == 1
        assert make_partition_type(meta, meta.partition_specs[0]) == StructType(
            NestedField(1001, "region", StringType(), required=False)
        )

    def test_sources_that_never_were_in_one_schema_are_merged(self) -> None:
        schemas = [
            Schema(_ID, _REGION, schema_id=0),
            Schema(_ID, _TS, schema_id=1),
            # The name is taken again, by another column.
            Schema(_ID, NestedField(4, "region", IntegerType(), required=False), schema_id=2),
        ]
        meta = metadata("t", schemas, [spec(0, _day(), _region()), _spec_of(1)])
        schema = find_compatible_schema(meta, meta.partition_specs[0])
        assert schema.find_field(2).field_type == TimestampType()
        assert schema.find_field(3).field_type == StringType()
        assert schema.find_field("region").field_id == 4
        assert [field.field_type for field in make_partition_type(meta, meta.partition_specs[0]).fields] == [
            DateType(),
            StringType(),
        ]

    def test_a_promoted_source_has_its_current_type(self) -> None:
        narrow = NestedField(5, "k", IntegerType(), required=False)
        wide = NestedField(5, "k", LongType(), required=False)
        by_key = PartitionField(5, 1000, IdentityTransform(), "k")
        meta = metadata(
            "t",
            [Schema(narrow, _REGION, schema_id=0), Schema(wide, schema_id=1)],
            [spec(0, by_key, _region())],
        )
        # The schema that still has the region knows the key by its old type only.
        assert find_compatible_schema(meta, meta.partition_specs[0]).schema_id == 0
        assert make_partition_type(meta, meta.partition_specs[0]).fields[0].field_type == LongType()

    def test_a_nested_source_is_found(self) -> None:
        inner = NestedField(11, "d", DateType(), required=True)
        point = NestedField(10, "p", StructType(inner), required=False)
        meta = metadata("t", [Schema(_ID, point)], [spec(0, PartitionField(11, 1000, MonthTransform(), "m"))])
        field = make_partition_type(meta, meta.partition_specs[0]).fields[0]
        assert (field.field_type, field.required) == (IntegerType(), False)

    def test_two_fields_may_share_a_source(self) -> None:
        both = spec(0, _day(), PartitionField(2, 1001, HourTransform(), "ts_hour"))
        meta = metadata("t", [Schema(_TS)], [both])
        kinds = [field.field_type for field in make_partition_type(meta, meta.partition_specs[0]).fields]
        assert kinds == [DateType(), IntegerType()]

    def test_a_void_field_needs_no_source(self) -> None:
        meta = metadata("t", [Schema(_ID)], [spec(0, PartitionField(77, 1000, VoidTransform(), "gone"))])
        assert len(make_partition_type(meta, meta.partition_specs[0]).fields) == 1
        assert find_compatible_schema(meta, meta.partition_specs[0]).schema_id == 0

    def test_a_source_that_no_schema_has_is_damage(self) -> None:
        meta = metadata("lake/t", [Schema(_ID)], [spec(0, _region())])
        with pytest.raises(DamagedTable, match="source column 3 of partition field 'region'") as caught:
            find_compatible_schema(meta, meta.partition_specs[0])
        assert caught.value.path == "lake/t"
        with pytest.raises(DamagedTable, match="source column 3"):
            make_partition_type(meta, meta.partition_specs[0])

    def test_an_unknown_transform_has_text_as_pyiceberg_says(self) -> None:
        strange = PartitionField(1, 1000, parse_transform("zorder[2]"), "z")
        meta = metadata("t", [Schema(_ID)], [spec(0, strange)])
        assert make_partition_type(meta, spec(0, strange)).fields[0].field_type == StringType()


def _spec_of(spec_id: int) -> Any:
    return spec(spec_id, PartitionField(1, 1009, IdentityTransform(), "id"))


_HOUR = 3_600_000_000


# The texts are those of directories that Iceberg 1.12 made for these values, where Spark has the type.
@pytest.mark.parametrize(
    ("kind", "transform", "value", "text"),
    [
        (TimestamptzType(), DayTransform(), 19_724, "2024-01-02"),
        (TimestampType(), DayTransform(), -1, "1969-12-31"),
        (TimestamptzType(), HourTransform(), -1, "1969-12-31-23"),
        (TimestamptzType(), HourTransform(), -719_162 * 24, "0001-01-01-00"),
        (DateType(), MonthTransform(), 649, "2024-02"),
        (DateType(), MonthTransform(), -1, "1969-12"),
        (DateType(), YearTransform(), 54, "2024"),
        (DateType(), YearTransform(), -1969, "0001"),
        (DateType(), IdentityTransform(), -365, "1969-01-01"),
        (TimestampType(), IdentityTransform(), 1_704_164_640_000_000, "2024-01-02T03%3A04%3A00"),
        (TimestampType(), IdentityTransform(), 1_704_164_645_120_000, "2024-01-02T03%3A04%3A05.12"),
        (TimestampType(), IdentityTransform(), -1, "1969-12-31T23%3A59%3A59.999999"),
        (TimestamptzType(), IdentityTransform(), -_HOUR, "1969-12-31T23%3A00%3A00%2B00%3A00"),
        (
            TimestamptzType(),
            IdentityTransform(),
            1_704_164_645_678_000,
            "2024-01-02T03%3A04%3A05.678%2B00%3A00",
        ),
        (TimestampNanoType(), IdentityTransform(), 1, "1970-01-01T00%3A00%3A00.000000001"),
        (TimestamptzNanoType(), IdentityTransform(), 0, "1970-01-01T00%3A00%3A00%2B00%3A00"),
        (TimeType(), IdentityTransform(), 1_500_000, "00%3A00%3A01.5"),
        (DecimalType(20, 2), IdentityTransform(), Decimal("-12.34"), "-12.34"),
        (DecimalType(20, 2), IdentityTransform(), Decimal("0.00"), "0.00"),
        (StringType(), IdentityTransform(), "a/b c=d~*é", "a%2Fb+c%3Dd%7E*%C3%A9"),
        (StringType(), IdentityTransform(), "", ""),
        (StringType(), IdentityTransform(), "日本", "%E6%97%A5%E6%9C%AC"),
        (BinaryType(), TruncateTransform(3), b"\x00\xff\x10", "AP8Q"),
        (BinaryType(), TruncateTransform(3), b"\x01", "AQ%3D%3D"),
        (FixedType(2), IdentityTransform(), b"\x00\x01", "AAE%3D"),
        (UUIDType(), IdentityTransform(), bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        (FloatType(), IdentityTransform(), 3.4028234663852886e38, "3.4028235E38"),
        (FloatType(), IdentityTransform(), 0.10000000149011612, "0.1"),
        (FloatType(), IdentityTransform(), 16777216.0, "1.6777216E7"),
        (FloatType(), IdentityTransform(), 1e7, "1.0E7"),
        (FloatType(), IdentityTransform(), 123456.703125, "123456.7"),
        (FloatType(), IdentityTransform(), float("nan"), "NaN"),
        (DoubleType(), IdentityTransform(), 1e10, "1.0E10"),
        (DoubleType(), IdentityTransform(), 1e-5, "1.0E-5"),
        (DoubleType(), IdentityTransform(), 0.001, "0.001"),
        (DoubleType(), IdentityTransform(), 0.0009, "9.0E-4"),
        (DoubleType(), IdentityTransform(), 12345678.9, "1.23456789E7"),
        (DoubleType(), IdentityTransform(), 9999999.5, "9999999.5"),
        (DoubleType(), IdentityTransform(), -1.5e300, "-1.5E300"),
        (DoubleType(), IdentityTransform(), 100.0, "100.0"),
        (DoubleType(), IdentityTransform(), -0.0, "-0.0"),
        (DoubleType(), IdentityTransform(), float("inf"), "Infinity"),
        (DoubleType(), IdentityTransform(), float("-inf"), "-Infinity"),
        (BooleanType(), IdentityTransform(), True, "true"),
        (LongType(), BucketTransform(4), 3, "3"),
        (LongType(), TruncateTransform(10), -20, "-20"),
        (LongType(), VoidTransform(), None, "null"),
        (TimestampType(), DayTransform(), None, "null"),
        (TimestampType(), DayTransform(), 4_000_000, "12921-08-18"),
    ],
    ids=str,
)
def test_paths_are_those_of_iceberg_for_java(
    kind: IcebergType, transform: Transform[Any, Any], value: Any, text: str
) -> None:
    column = NestedField(1, "c", kind, required=False)
    meta = metadata("t", [Schema(column)], [spec(0, PartitionField(1, 1000, transform, "odd name"))])
    assert partition_to_path(meta, meta.partition_specs[0], (value,)) == f"odd+name={text}"


def test_a_path_has_a_part_for_each_field_and_none_without_fields() -> None:
    meta = metadata("t", [Schema(_ID, _TS, _REGION)], [_UNPARTITIONED, spec(1, _day(), _region())])
    assert partition_to_path(meta, meta.partition_specs[1], (0, None)) == "ts_day=1970-01-01/region=null"
    assert partition_to_path(meta, meta.partition_specs[0], ()) == ""


def test_a_tuple_of_the_wrong_length_is_refused() -> None:
    meta = metadata("t", [Schema(_ID, _TS)], [spec(3, _day())])
    with pytest.raises(InputError, match="2 values for partition spec 3, which has 1 fields"):
        partition_to_path(meta, meta.partition_specs[0], (0, 1))


class TestImpliedBounds:
    def test_they_are_given_by_source_column(self) -> None:
        bucket = PartitionField(1, 1002, BucketTransform(4), "b")
        meta = metadata("t", [Schema(_ID, _TS, _REGION)], [spec(0, _day(), _region(), bucket)])
        assert find_implied_ranges(meta, meta.partition_specs[0], (1, None, 3)) == {
            2: (86_400_000_000, 172_799_999_999, False),
            3: (None, None, True),
        }

    def test_two_fields_on_one_source_prove_more(self) -> None:
        truncated = PartitionField(1, 1000, TruncateTransform(10), "t")
        exact = PartitionField(1, 1001, IdentityTransform(), "i")
        meta = metadata("t", [Schema(_ID)], [spec(0, truncated, exact)])
        assert find_implied_ranges(meta, meta.partition_specs[0], (10, 12)) == {1: (12, 12, False)}

    def test_void_and_unknown_prove_nothing(self) -> None:
        void = PartitionField(1, 1000, VoidTransform(), "v")
        strange = PartitionField(1, 1001, parse_transform("zorder[2]"), "z")
        meta = metadata("t", [Schema(_ID)], [spec(0, void, strange)])
        assert find_implied_ranges(meta, spec(0, void, strange), (None, "x")) == {}

    def test_a_dropped_source_is_no_obstacle(self) -> None:
        meta = metadata(
            "t", [Schema(_ID, _REGION, schema_id=0), Schema(_ID, schema_id=1)], [spec(0, _region())]
        )
        assert find_implied_ranges(meta, meta.partition_specs[0], ("eu",)) == {3: ("eu", "eu", False)}


class TestSpread:
    def test_rows_go_to_the_partitions_of_the_default_spec(self) -> None:
        schema = pa.schema({"id": pa.int64(), "ts": pa.timestamp("us"), "region": pa.string()})
        meta = metadata("t", [Schema(_ID, _TS, _REGION)], [spec(0, _region()), spec(1, _day(), _region())])
        partitioner = SpecPartitioner.of(meta, schema)
        day = 86_400_000_000
        rows = pa.table(
            [
                range(6),
                pa.array([0, -1, 5, None, 0, day - 1], pa.int64()).cast(pa.timestamp("us")),
                ["eu", "eu", "us", None, "us", "eu"],
            ],
            schema=schema,
        )
        parts = {
            part.tag: (dict(part.values), found.to_pylist())
            for part, found in partitioner.partition_rows(rows)
        }
        assert partitioner.columns == ("ts", "region")
        assert parts == {
            (1, (0, "eu")): ({"ts_day": "1970-01-01", "region": "eu"}, [0, 5]),
            (1, (-1, "eu")): ({"ts_day": "1969-12-31", "region": "eu"}, [1]),
            (1, (0, "us")): ({"ts_day": "1970-01-01", "region": "us"}, [2, 4]),
            (1, (None, None)): ({"ts_day": "null", "region": "null"}, [3]),
        }

    def test_it_pickles_and_works_the_same(self) -> None:
        schema = pa.schema({"id": pa.int64()})
        bucket = PartitionField(1, 1000, BucketTransform(4), "b")
        partitioner = SpecPartitioner.of(metadata("t", [Schema(_ID)], [spec(0, bucket)]), schema)
        rows = pa.table([range(50)], schema=schema)
        copy = pickle.loads(pickle.dumps(partitioner))
        assert [(p, r.to_pylist()) for p, r in copy.partition_rows(rows)] == [
            (p, r.to_pylist()) for p, r in partitioner.partition_rows(rows)
        ]

    def test_one_partition_is_all_rows(self) -> None:
        schema = pa.schema({"region": pa.string()})
        partitioner = SpecPartitioner.of(metadata("t", [Schema(_REGION)], [spec(0, _region())]), schema)
        ((part, rows),) = partitioner.partition_rows(pa.table([["eu", "eu"]], schema=schema))
        assert (part.tag, rows) == ((0, ("eu",)), None)

    def test_without_fields_every_row_is_of_one_part(self) -> None:
        partitioner = SpecPartitioner.of(
            metadata("t", [Schema(_ID)], [spec(2)]), pa.schema({"id": pa.int64()})
        )
        ((part, rows),) = partitioner.partition_rows(pa.table({"id": [1, 2]}))
        assert (part.tag, part.values, rows, partitioner.columns) == ((2, ()), {}, None, ())

    def test_no_rows_have_no_part(self) -> None:
        schema = pa.schema({"region": pa.string()})
        partitioner = SpecPartitioner.of(metadata("t", [Schema(_REGION)], [spec(0, _region())]), schema)
        assert partitioner.partition_rows(schema.empty_table()) == []

    def test_a_nested_source_of_a_null_struct_is_null(self) -> None:
        inner = NestedField(11, "d", DateType(), required=False)
        point = NestedField(10, "p", StructType(inner), required=False)
        by_month = spec(0, PartitionField(11, 1000, MonthTransform(), "m"))
        rows = pa.table(
            {
                "p": pa.array([{"d": 31}, None, {"d": None}, {"d": 40}], pa.struct({"d": pa.int32()})).cast(
                    pa.struct({"d": pa.date32()})
                )
            }
        )
        partitioner = SpecPartitioner.of(metadata("t", [Schema(point)], [by_month]), rows.schema)
        found = {part.tag[1]: rows.to_pylist() for part, rows in partitioner.partition_rows(rows)}
        assert found == {(1,): [0, 3], (None,): [1, 2]}
        assert partitioner.columns == ("p",)

    def test_void_fields_are_null_and_need_no_column(self) -> None:
        void = spec(0, PartitionField(77, 1000, VoidTransform(), "gone"), _region())
        schema = pa.schema({"region": pa.string()})
        partitioner = SpecPartitioner.of(metadata("t", [Schema(_REGION)], [void]), schema)
        ((part, _),) = partitioner.partition_rows(pa.table([["eu"]], schema=schema))
        assert (part.tag, part.values) == ((0, (None, "eu")), {"gone": "null", "region": "eu"})

    def test_zeros_of_both_signs_differ_and_nans_do_not(self) -> None:
        column = NestedField(1, "x", DoubleType(), required=False)
        by_x = spec(0, PartitionField(1, 1000, IdentityTransform(), "x"))
        rows = pa.table({"x": [0.0, -0.0, float("nan"), -float("nan"), 0.0, None]})
        partitioner = SpecPartitioner.of(metadata("t", [Schema(column)], [by_x]), rows.schema)
        found = [(part.values["x"], rows.to_pylist()) for part, rows in partitioner.partition_rows(rows)]
        assert found == [("0.0", [0, 4]), ("-0.0", [1]), ("NaN", [2, 3]), ("null", [5])]

    def test_many_fields_with_many_values_do_not_overflow(self) -> None:
        names = [f"c{n}" for n in range(8)]
        columns = [NestedField(n + 1, name, LongType(), required=False) for n, name in enumerate(names)]
        fields = [PartitionField(n + 1, 1000 + n, IdentityTransform(), name) for n, name in enumerate(names)]
        rows = pa.table({name: range(n, n + 3000) for n, name in enumerate(names)})
        partitioner = SpecPartitioner.of(metadata("t", [Schema(*columns)], [spec(0, *fields)]), rows.schema)
        parts = partitioner.partition_rows(rows)
        assert len(parts) == 3000
        assert all(part.tag[1] == tuple(range(n, n + 8)) for n, (part, _) in enumerate(parts))

    def test_an_unknown_transform_is_refused_before_any_row(self) -> None:
        strange = spec(0, PartitionField(1, 1000, parse_transform("zorder[2]"), "z"))
        meta = metadata("t", [Schema(_ID)], [spec(0)])
        meta = meta.model_copy(update={"partition_specs": [strange]})
        with pytest.raises(NotSupported, match=r"zorder\[2\]"):
            SpecPartitioner.of(meta, pa.schema({"id": pa.int64()}))

    def test_rows_without_the_source_column_are_refused(self) -> None:
        meta = metadata("t", [Schema(_ID, _REGION)], [spec(0, _region())])
        with pytest.raises(ColumnNotFound, match="'region'"):
            SpecPartitioner.of(meta, pa.schema({"id": pa.int64()}))
