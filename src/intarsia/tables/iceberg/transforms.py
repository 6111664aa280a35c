"""Partition transforms of whole columns, and what a transformed value proves of its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal, localcontext
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
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
from pyiceberg_core import transform as core  # type: ignore[import-untyped]

from intarsia.errors import NotSupported, SchemaMismatch
from intarsia.tables.iceberg.calendar import days_before_month

AnyTransform = Transform[Any, Any]

_EPOCH_YEAR = 1970
_DAY_HOURS = 24
_DECIMAL_DIGITS = 60  # more than any decimal of Iceberg has
_PER_DAY = {"us": 86_400_000_000, "ns": 86_400_000_000_000}

_ARROW: Mapping[type[IcebergType], pa.DataType] = {
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    DateType: pa.date32(),
    TimeType: pa.time64("us"),
    TimestampType: pa.timestamp("us"),
    TimestamptzType: pa.timestamp("us", "UTC"),
    TimestampNanoType: pa.timestamp("ns"),
    TimestamptzNanoType: pa.timestamp("ns", "UTC"),
    StringType: pa.large_string(),
    BinaryType: pa.large_binary(),
    UUIDType: pa.binary(16),
}
_LIMITS: Mapping[type[IcebergType], int] = {IntegerType: 2**31 - 1, LongType: 2**63 - 1}


class Range(NamedTuple):
    """What is known of a column's values in one partition; None is unbounded."""

    low: Any
    high: Any
    nulls: bool
    """Whether every value is NULL; otherwise none is."""

    def narrowed(self, other: Range) -> Range:
        """What both together prove."""
        if self.nulls or other.nulls:
            return Range(None, None, True)
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return Range(max(lows, default=None), min(highs, default=None), False)


def transformed(transform: AnyTransform, source: IcebergType, column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column's partition values in Iceberg's own form: integers for dates, times and timestamps.

    NULL becomes NULL.

    Args:
        transform: any that Iceberg defines.
        source: the column's Iceberg type.
        column: its values, in any Arrow type that can be cast to it.

    Raises:
        NotSupported: the transform is not known, or not for this type.
        SchemaMismatch: the column is not of the type.
    """
    check_transform(transform, source)
    if isinstance(transform, VoidTransform):
        return pa.nulls(len(column))
    values = _canonical(source, column)
    match transform:
        case IdentityTransform():
            return _internal(values)
        case BucketTransform():
            return core.bucket(_in_micros(values), transform.num_buckets)
        case TruncateTransform():
            return _truncated(values, transform.width)
        case YearTransform():
            return _years(values)
        case MonthTransform():
            return _months(values)
        case DayTransform():
            return _units(values, 1)
        case HourTransform():
            return _units(values, _DAY_HOURS)
    raise _unknown(transform, source)


def check_transform(transform: AnyTransform, source: IcebergType) -> None:
    """Refuse a transform that rows cannot be dealt out by.

    Raises:
        NotSupported: the transform is not known, or not for this type.
    """
    if not transform.can_transform(source) or not (
        isinstance(transform, VoidTransform) or _arrow_type(source) is not None
    ):
        raise _unknown(transform, source)


def source_range(transform: AnyTransform, source: IcebergType, value: Any) -> Range | None:
    """What a partition value proves of every source value; None where it proves nothing."""
    match transform:
        case IdentityTransform():
            return _identity_range(value)
        case TruncateTransform():
            return _truncate_range(source, transform.width, value)
        case YearTransform() | MonthTransform() | DayTransform() | HourTransform():
            return _time_range(transform, source, value)
    return None


def _unknown(transform: AnyTransform, source: IcebergType) -> NotSupported:
    # An unknown transform's own text is only in its repr.
    name = repr(transform) if "Unknown" in type(transform).__name__ else str(transform)
    return NotSupported(
        f"partition transform {name} of a column of type {source}",
        hint="tables partitioned so can be read; rows are added by an engine that knows the transform",
    )


def _arrow_type(source: IcebergType) -> pa.DataType | None:
    match source:
        case DecimalType():
            return pa.decimal128(source.precision, source.scale)
        case FixedType():
            return pa.binary(len(source))
    return _ARROW.get(type(source))


def _canonical(source: IcebergType, column: pa.ChunkedArray | pa.Array) -> pa.Array:
    wanted = _arrow_type(source)
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    try:
        cast = column.cast(wanted) if column.type != wanted else column
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(f"a column of type {column.type} where the table has {source}") from error
    return cast.combine_chunks() if isinstance(cast, pa.ChunkedArray) else cast


def _internal(values: pa.Array) -> pa.Array:
    if pa.types.is_date32(values.type):
        return values.view(pa.int32())
    if pa.types.is_timestamp(values.type) or pa.types.is_time64(values.type):
        return values.view(pa.int64())
    return values


def _in_micros(values: pa.Array) -> pa.Array:
    # Timestamps are hashed by their microseconds, whatever their unit, floored.
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        return _floor_divided(values.view(pa.int64()), 1000).cast(pa.timestamp("us"))
    return values


def _truncated(values: pa.Array, width: int) -> pa.Array:
    kind = values.type
    if pa.types.is_large_string(kind):
        return pc.utf8_slice_codeunits(values, 0, width)
    if pa.types.is_large_binary(kind):
        return pc.binary_slice(values, 0, width)
    if pa.types.is_decimal(kind):
        return core.truncate(values, width)
    # Below the least value it wraps around, as in Java.
    wide = values.cast(pa.int64())
    rest = pc.subtract(wide, pc.multiply(_floor_divided(wide, width), width))
    return pc.subtract(wide, rest).cast(kind, safe=False)


def _floor_divided(values: pa.Array, by: int) -> pa.Array:
    quotient = pc.divide(values, by)
    down = pc.less(values, pc.multiply(quotient, by))
    return pc.subtract(quotient, down.cast(pa.int64()))


def _units(values: pa.Array, per_day: int) -> pa.Array:
    if pa.types.is_date32(values.type):
        return values.view(pa.int32())
    size = _PER_DAY[values.type.unit] // per_day
    return _floor_divided(values.view(pa.int64()), size).cast(pa.int32())


def _years(values: pa.Array) -> pa.Array:
    return pc.subtract(pc.year(_as_dates(values)), _EPOCH_YEAR).cast(pa.int32())


def _months(values: pa.Array) -> pa.Array:
    dates = _as_dates(values)
    years = pc.subtract(pc.year(dates), _EPOCH_YEAR)
    return pc.add(pc.multiply(years, 12), pc.subtract(pc.month(dates), 1)).cast(pa.int32())


def _as_dates(values: pa.Array) -> pa.Array:
    return _units(values, 1).view(pa.date32())


def _identity_range(value: Any) -> Range | None:
    if isinstance(value, float) and math.isnan(value):
        return None
    return Range(value, value, value is None)


def _truncate_range(source: IcebergType, width: int, value: Any) -> Range | None:
    if value is None:
        return Range(None, None, True)
    if isinstance(value, (str, bytes)):
        return Range(value, value if len(value) < width else None, False)
    if isinstance(source, DecimalType):
        with localcontext(prec=_DECIMAL_DIGITS):
            return Range(value, value + Decimal(width - 1).scaleb(-source.scale), False)
    limit = _LIMITS.get(type(source), 0)
    if value > limit - width:
        return None  # the last of its type, or one that wrapped around below the least
    return Range(value, value + width - 1, False)


def _time_range(transform: AnyTransform, source: IcebergType, value: Any) -> Range | None:
    if value is None:
        return Range(None, None, True)
    # Old writers rounded times before 1970 up; Iceberg's readers look one further down there, too.
    first = value - 1 if value <= 0 else value
    low, _ = _instants(transform, source, first)
    _, high = _instants(transform, source, value)
    return Range(low, high - 1, False)


def _instants(transform: AnyTransform, source: IcebergType, value: int) -> tuple[int, int]:
    if isinstance(source, DateType):
        per_day = 1
    else:
        per_day = _PER_DAY["ns" if isinstance(source, (TimestampNanoType, TimestamptzNanoType)) else "us"]
    match transform:
        case HourTransform():
            size = per_day // _DAY_HOURS
            return value * size, (value + 1) * size
        case DayTransform():
            return value * per_day, (value + 1) * per_day
        case MonthTransform():
            return days_before_month(value) * per_day, days_before_month(value + 1) * per_day
    return days_before_month(value * 12) * per_day, days_before_month((value + 1) * 12) * per_day
