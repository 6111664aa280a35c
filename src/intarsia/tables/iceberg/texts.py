"""Partition values as text, exactly as Iceberg's Java library writes them into paths."""

from __future__ import annotations

import base64
import struct
import uuid
from decimal import Decimal
from typing import Any

from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    MonthTransform,
    Transform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    DateType,
    FloatType,
    IcebergType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from intarsia.tables.iceberg.calendar import date_of_day

_NANOS = 1_000_000_000


def human(transform: Transform[Any, Any], kind: IcebergType, value: Any) -> str:
    """A partition value for people; ``kind`` is the type of the partition field."""
    if value is None or isinstance(transform, VoidTransform):
        return "null"
    match transform:
        case YearTransform():
            return f"{1970 + value:04d}"
        case MonthTransform():
            return f"{1970 + value // 12:04d}-{1 + value % 12:02d}"
        case DayTransform():
            return _day(value)
        case HourTransform():
            return f"{_day(value // 24)}-{value % 24:02d}"
    return _text(kind, value)


def _text(kind: IcebergType, value: Any) -> str:
    match kind:
        case DateType():
            return _day(value)
        case TimeType():
            return _clock(value * 1000)
        case TimestampType():
            return _moment(value * 1000)
        case TimestamptzType():
            return _moment(value * 1000) + "+00:00"
        case TimestampNanoType():
            return _moment(value)
        case TimestamptzNanoType():
            return _moment(value) + "+00:00"
        case UUIDType():
            return str(uuid.UUID(bytes=value))
        case FloatType():
            return _float(value, single=True)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value, single=False)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return str(value)


def _day(day: int) -> str:
    year, month, of_month = date_of_day(day)
    return f"{year:04d}-{month:02d}-{of_month:02d}"


def _moment(nanos: int) -> str:
    days, rest = divmod(nanos, 86_400 * _NANOS)
    day = _day(days)
    if date_of_day(days)[0] > 9999:
        day = f"+{day}"
    return f"{day}T{_clock(rest)}"


def _clock(nanos: int) -> str:
    # As java.time formats ISO times: seconds always, of their fraction what there is.
    seconds, fraction = divmod(nanos, _NANOS)
    minutes, second = divmod(seconds, 60)
    text = f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}"
    return f"{text}.{fraction:09d}".rstrip("0") if fraction else text


def _float(value: float, *, single: bool) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    shortest = Decimal(_shortest_single(value) if single else repr(value))
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


def _shortest_single(value: float) -> str:
    for precision in range(1, 10):
        text = f"{value:.{precision}g}"
        try:
            same = struct.pack("<f", float(text)) == struct.pack("<f", value)
        except OverflowError:  # rounded up beyond the largest
            continue
        if same:
            return text
    return repr(value)
