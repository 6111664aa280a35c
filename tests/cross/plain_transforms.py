"""Iceberg's partition transforms on one plain value, from the specification; for checking only."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid
from typing import Any

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
HOUR = dt.timedelta(hours=1)
_32 = 0xFFFFFFFF


def transform(name: str, value: Any) -> Any:
    """What a partition tuple holds for a value: a number for times, the internal value for identity."""
    if value is None or name == "void":
        return None
    match re.fullmatch(r"(\w+)(?:\[(\d+)\])?", name).groups():  # type: ignore[union-attr]
        case "identity", _:
            return internal(value)
        case "bucket", width:
            return (murmur3(_hashed(value)) & 0x7FFFFFFF) % int(width)
        case "truncate", width:
            return _truncated(value, int(width))
        case "year", _:
            return _instant(value).year - 1970
        case "month", _:
            at = _instant(value)
            return (at.year - 1970) * 12 + at.month - 1
        case "day", _:
            return (_instant(value) - EPOCH) // DAY
        case "hour", _:
            return (_instant(value) - EPOCH) // HOUR
    raise AssertionError(f"no such transform: {name}")


def internal(value: Any) -> Any:
    """A value as Avro and single-value bytes hold it: days and microseconds since 1970 are numbers."""
    match value:
        case uuid.UUID():
            return value.bytes
        case dt.datetime():
            return (_instant(value) - EPOCH) // dt.timedelta(microseconds=1)
        case dt.date():
            return (value - EPOCH.date()).days
        case dt.time():
            since = dt.timedelta(hours=value.hour, minutes=value.minute, seconds=value.second)
            return (since + dt.timedelta(microseconds=value.microsecond)) // dt.timedelta(microseconds=1)
        case _:
            return value


def _instant(value: dt.date) -> dt.datetime:
    if not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


def _truncated(value: Any, width: int) -> Any:
    match value:
        case str() | bytes():
            return value[:width]
        case decimal.Decimal():
            scale = -int(value.as_tuple().exponent)
            unscaled = int(value.scaleb(scale))
            return decimal.Decimal(unscaled - unscaled % width).scaleb(-scale)
        case _:
            return value - value % width


def _hashed(value: Any) -> bytes:
    match value:
        case bool():
            return int(value).to_bytes(8, "little")
        case int():
            return value.to_bytes(8, "little", signed=True)
        case str():
            return value.encode()
        case bytes():
            return value
        case uuid.UUID():
            return value.bytes
        case decimal.Decimal():
            unscaled = int(value.scaleb(-int(value.as_tuple().exponent)))
            return unscaled.to_bytes((8 + (unscaled + (unscaled < 0)).bit_length()) // 8, "big", signed=True)
        case dt.date() | dt.time():
            return int(internal(value)).to_bytes(8, "little", signed=True)
    raise AssertionError(f"cannot be hashed: {value!r}")


def murmur3(data: bytes) -> int:
    """Murmur3, 32 bits, x86 variant, seed 0."""
    found = 0
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        found ^= _mixed(int.from_bytes(data[start : start + 4], "little"))
        found = (found << 13 | found >> 19) & _32
        found = (found * 5 + 0xE6546B64) & _32
    if data[whole:]:
        found ^= _mixed(int.from_bytes(data[whole:], "little"))
    found ^= len(data)
    found = ((found ^ found >> 16) * 0x85EBCA6B) & _32
    found = ((found ^ found >> 13) * 0xC2B2AE35) & _32
    return found ^ found >> 16


def _mixed(word: int) -> int:
    word = (word * 0xCC9E2D51) & _32
    word = (word << 15 | word >> 17) & _32
    return (word * 0x1B873593) & _32
