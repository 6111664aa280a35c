"""Partition transforms of whole columns, the source range of a partition value, and its text.

Results are those of Java's ``org.apache.iceberg.transforms``, texts those of ``Transform.toHumanString``.
"""

from __future__ import annotations

import base64
import math
import struct
import uuid
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
    DateType,
    DecimalType,
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
    UnknownType,
    UUIDType,
)
from pyiceberg_core import transform as core  # type: ignore[import-untyped]

from intarsia.errors import NotSupported, SchemaMismatch
from intarsia.tables.iceberg.schemas import ARROW_TYPES

AnyTransform = Transform[Any, Any]

_EPOCH_YEAR = 1970
_DAY_HOURS = 24
_DECIMAL_DIGITS = 60  # more than any decimal of Iceberg has
_PER_DAY = {"us": 86_400_000_000, "ns": 86_400_000_000_000}

_ARROW: Mapping[type[IcebergType], pa.DataType] = {
    **{kind: stored for kind, stored in ARROW_TYPES.items() if kind is not UnknownType},
    StringType: pa.large_string(),
    BinaryType: pa.large_binary(),
}
_LIMITS: Mapping[type[IcebergType], int] = {IntegerType: 2**31 - 1, LongType: 2**63 - 1}


class SourceRange(NamedTuple):
    """What is known of a column's values in one partition; None is unbounded."""

    low: Any
    high: Any
    nulls: bool
    """Whether every value is NULL; otherwise none is."""

    def intersect(self, other: SourceRange) -> SourceRange:
        """What both together prove."""
        if self.nulls or other.nulls:
            return SourceRange(None, None, True)
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return SourceRange(max(lows, default=None), min(highs, default=None), False)


def apply_transform(
    transform: AnyTransform, source: IcebergType, column: pa.ChunkedArray | pa.Array
) -> pa.Array:
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
    values = _cast_to_source(source, column)
    match transform:
        case IdentityTransform():
            return _to_internal(values)
        case BucketTransform():
            return core.bucket(_floor_to_micros(values), transform.num_buckets)
        case TruncateTransform():
            return _truncate(values, transform.width)
        case YearTransform():
            return _count_years(values)
        case MonthTransform():
            return _count_months(values)
        case DayTransform():
            return _count_units(values, 1)
        case HourTransform():
            return _count_units(values, _DAY_HOURS)
    raise _make_transform_error(transform, source)


def check_transform(transform: AnyTransform, source: IcebergType) -> None:
    """Refuse a transform that rows cannot be partitioned by.

    Raises:
        NotSupported: the transform is not known, or not for this type.
    """
    if not transform.can_transform(source) or not (
        isinstance(transform, VoidTransform) or _get_arrow_type(source) is not None
    ):
        raise _make_transform_error(transform, source)


def find_source_range(transform: AnyTransform, source: IcebergType, value: Any) -> SourceRange | None:
    """What a partition value proves of every source value; None where it proves nothing."""
    match transform:
        case IdentityTransform():
            return _make_identity_range(value)
        case TruncateTransform():
            return _truncate_range(source, transform.width, value)
        case YearTransform() | MonthTransform() | DayTransform() | HourTransform():
            return _find_time_range(transform, source, value)
    return None


def _make_transform_error(transform: AnyTransform, source: IcebergType) -> NotSupported:
    # An unknown transform's own text is only in its repr.
    name = repr(transform) if "Unknown" in type(transform).__name__ else str(transform)
    return NotSupported(
        f"partition transform {name} of a column of type {source}",
        hint="tables partitioned so can be read; rows are added by an engine that knows the transform",
    )


def _get_arrow_type(source: IcebergType) -> pa.DataType | None:
    match source:
        case DecimalType():
            return pa.decimal128(source.precision, source.scale)
        case FixedType():
            return pa.binary(len(source))
    return _ARROW.get(type(source))


def _cast_to_source(source: IcebergType, column: pa.ChunkedArray | pa.Array) -> pa.Array:
    wanted = _get_arrow_type(source)
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    try:
        cast = column.cast(wanted) if column.type != wanted else column
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(f"a column of type {column.type} where the table has {source}") from error
    return cast.combine_chunks() if isinstance(cast, pa.ChunkedArray) else cast


def _to_internal(values: pa.Array) -> pa.Array:
    if pa.types.is_date32(values.type):
        return values.view(pa.int32())
    if pa.types.is_timestamp(values.type) or pa.types.is_time64(values.type):
        return values.view(pa.int64())
    return values


def _floor_to_micros(values: pa.Array) -> pa.Array:
    # Timestamps are hashed by their microseconds, whatever their unit, floored.
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        return _floor_divide(values.view(pa.int64()), 1000).cast(pa.timestamp("us"))
    return values


def _truncate(values: pa.Array, width: int) -> pa.Array:
    kind = values.type
    if pa.types.is_large_string(kind):
        return pc.utf8_slice_codeunits(values, 0, width)
    if pa.types.is_large_binary(kind):
        return pc.binary_slice(values, 0, width)
    if pa.types.is_decimal(kind):
        return core.truncate(values, width)
    # Below the least value it wraps around, as in Java.
    wide = values.cast(pa.int64())
    rest = pc.subtract(wide, pc.multiply(_floor_divide(wide, width), width))
    return pc.subtract(wide, rest).cast(kind, safe=False)


def _floor_divide(values: pa.Array, by: int) -> pa.Array:
    quotient = pc.divide(values, by)
    down = pc.less(values, pc.multiply(quotient, by))
    return pc.subtract(quotient, down.cast(pa.int64()))


def _count_units(values: pa.Array, per_day: int) -> pa.Array:
    if pa.types.is_date32(values.type):
        return values.view(pa.int32())
    size = _PER_DAY[values.type.unit] // per_day
    return _floor_divide(values.view(pa.int64()), size).cast(pa.int32())


def _count_years(values: pa.Array) -> pa.Array:
    return pc.subtract(pc.year(_to_dates(values)), _EPOCH_YEAR).cast(pa.int32())


def _count_months(values: pa.Array) -> pa.Array:
    dates = _to_dates(values)
    years = pc.subtract(pc.year(dates), _EPOCH_YEAR)
    return pc.add(pc.multiply(years, 12), pc.subtract(pc.month(dates), 1)).cast(pa.int32())


def _to_dates(values: pa.Array) -> pa.Array:
    return _count_units(values, 1).view(pa.date32())


def _make_identity_range(value: Any) -> SourceRange | None:
    if isinstance(value, float) and math.isnan(value):
        return None
    return SourceRange(value, value, value is None)


def _truncate_range(source: IcebergType, width: int, value: Any) -> SourceRange | None:
    if value is None:
        return SourceRange(None, None, True)
    if isinstance(value, (str, bytes)):
        return SourceRange(value, value if len(value) < width else None, False)
    if isinstance(source, DecimalType):
        with localcontext(prec=_DECIMAL_DIGITS):
            return SourceRange(value, value + Decimal(width - 1).scaleb(-source.scale), False)
    limit = _LIMITS.get(type(source), 0)
    if value > limit - width:
        return None  # the last of its type, or one that wrapped around below the least
    return SourceRange(value, value + width - 1, False)


def _find_time_range(transform: AnyTransform, source: IcebergType, value: Any) -> SourceRange | None:
    if value is None:
        return SourceRange(None, None, True)
    # Iceberg 0.10 and older rounded times before 1970 up: Java's ProjectionUtil.fixInclusiveTimeProjection.
    first = value - 1 if value <= 0 else value
    low, _ = _find_unit_limits(transform, source, first)
    _, high = _find_unit_limits(transform, source, value)
    return SourceRange(low, high - 1, False)


def _find_unit_limits(transform: AnyTransform, source: IcebergType, value: int) -> tuple[int, int]:
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
            return count_days_before_month(value) * per_day, count_days_before_month(value + 1) * per_day
    return count_days_before_month(value * 12) * per_day, count_days_before_month((value + 1) * 12) * per_day


_ERA_DAYS = 146_097  # 400 years
_EPOCH_DAYS = 719_468  # from the first of March of year 0 to 1970-01-01


def count_days_before_month(month: int) -> int:
    """The days from 1970-01-01 to the first of a month, counted from January 1970."""
    year, index = 1970 + month // 12, month % 12
    # Years are counted from March, so that the leap day is their last.
    shifted = year if index >= 2 else year - 1
    era, in_era = divmod(shifted, 400)
    day_of_year = (153 * ((index + 10) % 12) + 2) // 5
    return era * _ERA_DAYS + in_era * 365 + in_era // 4 - in_era // 100 + day_of_year - _EPOCH_DAYS


def split_day(day: int) -> tuple[int, int, int]:
    """Year, month and day of the month of a day counted from 1970-01-01."""
    era, in_era = divmod(day + _EPOCH_DAYS, _ERA_DAYS)
    year = (in_era - in_era // 1460 + in_era // 36_524 - in_era // (_ERA_DAYS - 1)) // 365
    day_of_year = in_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year + era * 400 + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1


_NANOS = 1_000_000_000


def to_human_string(transform: Transform[Any, Any], kind: IcebergType, value: Any) -> str:
    """A partition value for people, as Java's ``TransformUtil``; ``kind`` is the partition field's type."""
    if value is None or isinstance(transform, VoidTransform):
        return "null"
    match transform:
        case YearTransform():
            return f"{1970 + value:04d}"
        case MonthTransform():
            return f"{1970 + value // 12:04d}-{1 + value % 12:02d}"
        case DayTransform():
            return _format_day(value)
        case HourTransform():
            return f"{_format_day(value // 24)}-{value % 24:02d}"
    return _format_value(kind, value)


def _format_value(kind: IcebergType, value: Any) -> str:
    match kind:
        case DateType():
            return _format_day(value)
        case TimeType():
            return _format_time(value * 1000)
        case TimestampType():
            return _format_timestamp(value * 1000)
        case TimestamptzType():
            return _format_timestamp(value * 1000) + "+00:00"
        case TimestampNanoType():
            return _format_timestamp(value)
        case TimestamptzNanoType():
            return _format_timestamp(value) + "+00:00"
        case UUIDType():
            return str(uuid.UUID(bytes=value))
        case FloatType():
            return _format_float(value, single=True)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _format_float(value, single=False)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return str(value)


def _format_day(day: int) -> str:
    year, month, of_month = split_day(day)
    return f"{year:04d}-{month:02d}-{of_month:02d}"


def _format_timestamp(nanos: int) -> str:
    days, rest = divmod(nanos, 86_400 * _NANOS)
    day = _format_day(days)
    if split_day(days)[0] > 9999:
        day = f"+{day}"
    return f"{day}T{_format_time(rest)}"


def _format_time(nanos: int) -> str:
    # As java.time formats ISO times: seconds always, of their fraction what there is.
    seconds, fraction = divmod(nanos, _NANOS)
    minutes, second = divmod(seconds, 60)
    text = f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}"
    return f"{text}.{fraction:09d}".rstrip("0") if fraction else text


def _format_float(value: float, *, single: bool) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    shortest = Decimal(_format_shortest_single(value) if single else repr(value))
    sign, digits, _ = shortest.as_tuple()
    minus = "-" if sign else ""
    if not shortest:
        return f"{minus}0.0"
    size = abs(shortest)
    if Decimal("0.001") <= size < 10_000_000:
        plain = f"{size:f}"
        plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
        return f"{minus}{plain}" if "." in plain else f"{minus}{plain}.0"
    text = "".join(map(str, digits)).rstrip("0")
    return f"{minus}{text[0]}.{text[1:] or '0'}E{shortest.adjusted()}"


def _format_shortest_single(value: float) -> str:
    for precision in range(1, 10):
        text = f"{value:.{precision}g}"
        try:
            same = struct.pack("<f", float(text)) == struct.pack("<f", value)
        except OverflowError:  # rounded up beyond the largest
            continue
        if same:
            return text
    return repr(value)
