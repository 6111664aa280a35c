"""One partition value: as text, as a part of a path, and typed again; knows no files and no schemas."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.types as pt

from intarsia.common import system
from intarsia.common.python_values import make_scalar
from intarsia.common.types import get_value_type

__all__ = ["HIVE_NULL", "escape", "parse_partition_text", "partition_text", "to_python_value", "unescape"]

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"

# What Hive and Spark escape (ExternalCatalogUtils.escapePathName) and the closing brace, which is one
# half of a glob. Letters beyond ASCII stay as they are: Spark reads %C3%A4 as two letters.
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^\x7f") | {chr(code) for code in range(1, 32)}


_ESCAPED_ON_WINDOWS = _ESCAPED | frozenset("<>|")


def escape(text: str) -> str:
    """The text as a part of a path, escaped as Hive and Spark do.

    On Windows so are characters that no name can have, and a last dot or space, which it would drop.
    """
    if system.WINDOWS:
        return _escape_for_windows(text)
    if _ESCAPED.isdisjoint(text):
        return text
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in text)


def _escape_for_windows(text: str) -> str:
    last = len(text) - 1
    return "".join(
        f"%{ord(letter):02X}"
        if letter in _ESCAPED_ON_WINDOWS or (place == last and letter in ". ")
        else letter
        for place, letter in enumerate(text)
    )


def unescape(text: str) -> str:
    """The inverse of :func:`escape`; also reads what other writers escape more of."""
    if "%" not in text:
        return text
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:  # Hive's way: each escape is a letter of its own
        return unquote(text, encoding="latin-1")


def partition_text(value: Any) -> str:
    """The text of one typed value, before escaping; it reads back as the value.

    Timestamps with a zone are written as the instant in UTC, with a final Z.
    """
    match value:
        case str():
            return value
        case bytes():
            return value.decode()
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value + 0.0)  # -0.0 is 0.0
        case decimal.Decimal():
            return format(value, "f")
        case dt.datetime() if value.tzinfo is not None:
            return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(" ") + "Z"
        case dt.datetime():
            return value.isoformat(" ")
        case pa.Scalar():
            return _format_scalar(value)
        case _:
            return str(value)


def _format_scalar(scalar: pa.Scalar) -> str:
    """As Arrow writes it where Python cannot hold the value: nanoseconds and far years.

    Raises ArrowInvalid where even Arrow would not read its own text back.
    """
    value = to_python_value(scalar)
    if not isinstance(value, pa.Scalar):
        return partition_text(value)
    if pt.is_timestamp(scalar.type) and scalar.type.tz is not None:
        scalar = scalar.cast(pa.timestamp(scalar.type.unit, "UTC"))
    text = str(scalar.cast(pa.string()).as_py())
    parse_partition_text(text, scalar.type)
    return text


def to_python_value(scalar: pa.Scalar) -> Any:
    """The Python value; the Arrow scalar itself where Python would lose nanoseconds or has no such year.

    Equal values give equal results, however they came: NaN is always the same object, -0.0 is 0.0.
    """
    data_type = scalar.type
    if not scalar.is_valid:
        return None
    if pt.is_floating(data_type):
        number = scalar.as_py()
        return math.nan if number != number else number + 0.0
    try:
        if pt.is_timestamp(data_type) and data_type.unit == "ns":
            scalar = scalar.cast(pa.timestamp("us", data_type.tz))
        elif pt.is_time64(data_type) and data_type.unit == "ns":
            scalar = scalar.cast(pa.time64("us"))
        return scalar.as_py()
    except (ValueError, OverflowError):  # ArrowInvalid is a ValueError, too
        return scalar


@lru_cache(maxsize=65536)
def parse_partition_text(text: str, data_type: pa.DataType) -> Any:
    """The value of the type that the text says. Raises ArrowInvalid where it says none."""
    plain = get_value_type(data_type)
    if pt.is_string(plain) or pt.is_large_string(plain) or pt.is_string_view(plain):
        return text
    if pt.is_time(plain):  # Arrow reads no times, but takes the time of a timestamp
        # A text has more digits than a coarse unit; the cast below refuses those that are not zero.
        unit = "ns" if plain.unit == "ns" else "us"
        stamp = make_scalar(f"1970-01-01 {text}").cast(pa.timestamp(unit))
        return to_python_value(stamp.cast(pa.timestamp(plain.unit)).cast(plain))
    if pt.is_timestamp(plain) and plain.tz is not None and not text.endswith("Z"):
        try:
            return to_python_value(make_scalar(text).cast(plain))
        except pa.ArrowInvalid:  # no offset: other writers leave it out
            text += "Z"
    return to_python_value(make_scalar(text).cast(plain))
