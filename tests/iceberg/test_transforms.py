"""Partition transforms of columns: the same as PyIceberg's of single values, NULL and old dates included."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from intarsia.errors import NotSupported, SchemaMismatch
from intarsia.tables.iceberg.transforms import SourceRange, apply_transform, find_source_range

_DAYS = st.integers(-719_162, 2_932_896)  # the years of Python's own dates
_MICROS = st.integers(-719_162 * 86_400_000_000, 2_932_896 * 86_400_000_000)
_NANOS = st.integers(-(2**63) + 1, 2**63 - 1)
_CENTS = st.integers(-(10**15), 10**15).map(lambda n: Decimal(n).scaleb(-2))

_VALUES: dict[IcebergType, tuple[st.SearchStrategy[Any], pa.DataType]] = {
    IntegerType(): (st.integers(-(2**31), 2**31 - 1), pa.int32()),
    LongType(): (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    DateType(): (_DAYS, pa.date32()),
    TimeType(): (st.integers(0, 86_399_999_999), pa.time64("us")),
    TimestampType(): (_MICROS, pa.timestamp("us")),
    TimestamptzType(): (_MICROS, pa.timestamp("us", "UTC")),
    TimestampNanoType(): (_NANOS, pa.timestamp("ns")),
    TimestamptzNanoType(): (_NANOS, pa.timestamp("ns", "UTC")),
    StringType(): (st.text(max_size=9), pa.string()),
    BinaryType(): (st.binary(max_size=9), pa.binary()),
    FixedType(5): (st.binary(min_size=5, max_size=5), pa.binary(5)),
    UUIDType(): (st.binary(min_size=16, max_size=16), pa.binary(16)),
    DecimalType(17, 2): (_CENTS, pa.decimal128(17, 2)),
    DecimalType(38, 2): (_CENTS, pa.decimal128(38, 2)),
    BooleanType(): (st.booleans(), pa.bool_()),
    DoubleType(): (st.floats(allow_nan=False), pa.float64()),
    FloatType(): (st.floats(allow_nan=False, width=32), pa.float32()),
}
_TRANSFORMS: list[Transform[Any, Any]] = [
    IdentityTransform(),
    BucketTransform(7),
    BucketTransform(1000),
    TruncateTransform(3),
    TruncateTransform(10),
    YearTransform(),
    MonthTransform(),
    DayTransform(),
    HourTransform(),
]
_CASES = [(t, kind) for t in _TRANSFORMS for kind in _VALUES if t.can_transform(kind)]


def _column(kind: IcebergType, values: list[Any]) -> pa.Array:
    wanted = _VALUES[kind][1]
    if pa.types.is_temporal(wanted):
        raw = pa.array(values, pa.int32() if pa.types.is_date32(wanted) else pa.int64())
        return raw.view(wanted)
    return pa.array(values, wanted)


def _wrapped(kind: IcebergType, value: Any) -> Any:
    """Java's integers wrap around where PyIceberg's go on."""
    bits = {IntegerType: 32, LongType: 64}.get(type(kind))
    if bits is None or value is None:
        return value
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


@pytest.mark.parametrize(("transform", "kind"), _CASES, ids=lambda part: str(part))
def test_columns_transform_as_single_values_do(transform: Transform[Any, Any], kind: IcebergType) -> None:
    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.none() | _VALUES[kind][0], max_size=8))
    def check(values: list[Any]) -> None:
        one = transform.transform(kind)
        expected = [one(value) for value in values]
        if isinstance(transform, TruncateTransform):
            expected = [_wrapped(kind, value) for value in expected]
        assert apply_transform(transform, kind, _column(kind, values)).to_pylist() == expected

    check()


@pytest.mark.parametrize(("transform", "kind"), _CASES, ids=lambda part: str(part))
def test_a_value_lies_in_the_range_its_partition_proves(
    transform: Transform[Any, Any], kind: IcebergType
) -> None:
    @settings(max_examples=25, deadline=None)
    @given(_VALUES[kind][0])
    def check(value: Any) -> None:
        proved = find_source_range(
            transform, kind, apply_transform(transform, kind, _column(kind, [value])).to_pylist()[0]
        )
        if proved is None:
            return
        low, high, nulls = proved
        assert not nulls
        assert low is None or low <= value
        assert high is None or value <= high

    check()


@pytest.mark.parametrize(
    ("transform", "kind", "value", "expected"),
    [
        (YearTransform(), DateType(), 54, (19_723, 20_088)),
        (MonthTransform(), DateType(), 649, (19_754, 19_782)),
        (DayTransform(), TimestampType(), 1, (86_400_000_000, 172_799_999_999)),
        (HourTransform(), TimestampNanoType(), 1, (3_600_000_000_000, 7_199_999_999_999)),
        (TruncateTransform(10), IntegerType(), -10, (-10, -1)),
        (TruncateTransform(3), StringType(), "ab", ("ab", "ab")),
        (TruncateTransform(3), StringType(), "abc", ("abc", None)),
        (TruncateTransform(50), DecimalType(9, 2), Decimal("1.00"), (Decimal("1.00"), Decimal("1.49"))),
        (IdentityTransform(), LongType(), 5, (5, 5)),
    ],
    ids=str,
)
def test_partitions_prove_exact_ranges(
    transform: Transform[Any, Any], kind: IcebergType, value: Any, expected: tuple[Any, Any]
) -> None:
    assert find_source_range(transform, kind, value) == SourceRange(*expected, False)


def test_before_1970_the_range_reaches_one_unit_further_down_for_old_writers() -> None:
    proved = find_source_range(DayTransform(), TimestampType(), 0)
    assert proved == SourceRange(-86_400_000_000, 86_399_999_999, False)


@pytest.mark.parametrize("transform", [IdentityTransform(), DayTransform(), TruncateTransform(3)], ids=str)
def test_a_null_value_proves_that_all_are_null(transform: Transform[Any, Any]) -> None:
    assert find_source_range(transform, TimestampType(), None) == SourceRange(None, None, True)


@pytest.mark.parametrize(
    "transform", [BucketTransform(3), VoidTransform(), parse_transform("zorder[2]")], ids=str
)
def test_buckets_and_what_is_unknown_prove_nothing(transform: Transform[Any, Any]) -> None:
    assert find_source_range(transform, LongType(), 1) is None


def test_nan_proves_nothing() -> None:
    assert find_source_range(IdentityTransform(), DoubleType(), math.nan) is None


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (StringType(), pa.array(["abcd"], pa.large_string())),
        (StringType(), pa.array(["abcd"], pa.string_view())),
        (StringType(), pa.array(["abcd"]).dictionary_encode()),
        (StringType(), pa.chunked_array([["abcd"]])),
        (BinaryType(), pa.array([b"abcd"], pa.large_binary())),
    ],
    ids=str,
)
def test_other_arrow_types_of_the_same_values_do(kind: IcebergType, column: Any) -> None:
    as_text = isinstance(kind, StringType)
    assert apply_transform(TruncateTransform(3), kind, column).to_pylist() == ["abc" if as_text else b"abc"]
    expected = BucketTransform(16).transform(kind)("abcd" if as_text else b"abcd")
    assert apply_transform(BucketTransform(16), kind, column).to_pylist() == [expected]


def test_coarser_timestamps_are_brought_to_the_tables_unit() -> None:
    column = pa.array([86_400, None], pa.int64()).cast(pa.timestamp("s"))
    assert apply_transform(IdentityTransform(), TimestampType(), column).to_pylist() == [86_400_000_000, None]


def test_a_zone_does_not_move_a_timestamp() -> None:
    column = pa.array([0], pa.timestamp("us", "Asia/Tokyo"))
    assert apply_transform(HourTransform(), TimestamptzType(), column).to_pylist() == [0]
    assert apply_transform(YearTransform(), TimestamptzType(), column).to_pylist() == [0]


def test_uuids_of_arrow_are_their_bytes() -> None:
    column = pa.array([b"0123456789abcdef", None], pa.uuid())
    assert apply_transform(IdentityTransform(), UUIDType(), column).to_pylist() == [b"0123456789abcdef", None]


def test_void_is_null() -> None:
    assert apply_transform(VoidTransform(), LongType(), pa.array([1, 2])).to_pylist() == [None, None]


def test_an_unknown_transform_is_refused_by_its_name() -> None:
    with pytest.raises(NotSupported, match=r"zorder\[2\]"):
        apply_transform(parse_transform("zorder[2]"), LongType(), pa.array([1]))


def test_a_transform_of_a_type_it_does_not_take_is_refused() -> None:
    with pytest.raises(NotSupported, match=r"hour of a column of type date"):
        apply_transform(HourTransform(), DateType(), pa.array([1], pa.int32()).view(pa.date32()))


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="string where the table has timestamp"):
        apply_transform(DayTransform(), TimestampType(), pa.array(["no date"]))
