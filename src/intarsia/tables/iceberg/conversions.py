"""Single values as bytes, as manifests store bounds (Iceberg spec, appendix D; Java's ``Conversions``)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

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

from intarsia.errors import InputError, NotSupported

_INT, _LONG, _FLOAT, _DOUBLE = (struct.Struct(code) for code in ("<i", "<q", "<f", "<d"))
_DAY_MICROS = 86_400_000_000
_BYTES = (BinaryType, FixedType, UUIDType)
_LONGS = (
    LongType,
    TimeType,
    TimestampType,
    TimestamptzType,
    TimestampNanoType,
    TimestamptzNanoType,
)


def to_bytes(kind: IcebergType, value: Any) -> bytes:
    """An internal value as bytes.

    Raises:
        NotSupported: the type has no such form.
    """
    match kind:
        case BooleanType():
            return b"\x01" if value else b"\x00"
        case IntegerType() | DateType():
            return _INT.pack(value)
        case FloatType():
            return _FLOAT.pack(value)
        case DoubleType():
            return _DOUBLE.pack(value)
        case StringType():
            return str(value).encode()
        case DecimalType():
            return _to_unscaled_bytes(value, kind.scale)
    if isinstance(kind, _LONGS):
        return _LONG.pack(value)
    if isinstance(kind, _BYTES):
        return bytes(value)
    raise NotSupported(f"A value of the type {kind} has no form as bytes.")


def make_decoder(kind: IcebergType) -> Callable[[bytes], Any]:
    """A function from bytes to internal values of a type, which returns None for invalid bytes.

    Bytes of a type from which the column was promoted since are understood: they are shorter.
    """
    match kind:
        case BooleanType():
            return lambda data: data != b"\x00" if len(data) == 1 else None
        case IntegerType() | DateType():
            return lambda data: _INT.unpack(data)[0] if len(data) == 4 else None
        case LongType():
            return _decode_long
        case TimestampType():
            return lambda data: _decode_timestamp(data, _DAY_MICROS)
        case TimestampNanoType():
            return lambda data: _decode_timestamp(data, _DAY_MICROS * 1000)
        case FloatType():
            return lambda data: _FLOAT.unpack(data)[0] if len(data) == 4 else None
        case DoubleType():
            return _decode_double
        case StringType():
            return _decode_text
        case DecimalType():
            return lambda data: (
                scale_decimal(int.from_bytes(data, "big", signed=True), kind.scale) if data else None
            )
    if isinstance(kind, _LONGS):
        return lambda data: _LONG.unpack(data)[0] if len(data) == 8 else None
    if isinstance(kind, _BYTES):
        return bytes
    return lambda _: None


def from_bytes(kind: IcebergType, data: bytes) -> Any:
    """Bytes as an internal value of a type; None for invalid bytes."""
    return make_decoder(kind)(data)


def scale_decimal(unscaled: int, scale: int) -> Decimal:
    """A decimal from its digits, exactly: arithmetic on decimals would round to 28 of them."""
    return Decimal(f"{unscaled}E{-scale}")


def unscale_decimal(value: Decimal, scale: int) -> int:
    """A decimal's digits at a scale, exactly.

    Raises:
        InputError: it has more digits after the point.
    """
    sign, digits, exponent = value.as_tuple()
    shift = int(exponent) + scale
    number = int("".join(map(str, digits)) or "0")
    number, rest = (number * 10**shift, 0) if shift >= 0 else divmod(number, 10**-shift)
    if rest:
        raise InputError(f"the decimal {value} has more than {scale} digits after the point")
    return -number if sign else number


def _to_unscaled_bytes(value: Decimal, scale: int) -> bytes:
    number = unscale_decimal(value, scale)
    # As few bytes as hold the number and its sign: -128 needs one, 128 two.
    length = ((number if number >= 0 else ~number).bit_length() // 8) + 1
    return number.to_bytes(length, "big", signed=True)


def _decode_long(data: bytes) -> int | None:
    if len(data) == 8:
        return int(_LONG.unpack(data)[0])
    return int(_INT.unpack(data)[0]) if len(data) == 4 else None


def _decode_timestamp(data: bytes, day: int) -> int | None:
    """A timestamp, or a date that was promoted to one; one that does not fit is none."""
    if len(data) == 4:
        value = int(_INT.unpack(data)[0]) * day
        return value if -(2**63) <= value < 2**63 else None
    return int(_LONG.unpack(data)[0]) if len(data) == 8 else None


def _decode_double(data: bytes) -> float | None:
    if len(data) == 8:
        return float(_DOUBLE.unpack(data)[0])
    return float(_FLOAT.unpack(data)[0]) if len(data) == 4 else None


def _decode_text(data: bytes) -> str | None:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:  # old writers cut characters in two
        return None
