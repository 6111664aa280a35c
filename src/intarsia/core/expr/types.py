"""The types that expressions compute in: working types, common types of two, and their names in SQL."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from intarsia.common.types import is_uuid
from intarsia.errors import NotSupported

STRING, LARGE_STRING = pa.string(), pa.large_string()
INT64, UINT64, FLOAT64, BOOL, DATE = pa.int64(), pa.uint64(), pa.float64(), pa.bool_(), pa.date32()
INTERVAL = pa.month_day_nano_interval()
_UNITS = ("s", "ms", "us", "ns")
NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
DAY_NANOS = 86_400 * 10**9
_UTC_NAMES = frozenset({"UTC", "utc", "Etc/UTC", "Z", "+00:00", "-00:00", "+0000"})


def find_working_type(type: pa.DataType) -> pa.DataType:
    """The type that expressions compute a column in: dictionaries, views and odd widths become plain types.

    A zoned timestamp keeps its zone, which decides what dates and parts it has.
    """
    if isinstance(type, pa.BaseExtensionType):
        return find_working_type(type.storage_type)
    if pt.is_dictionary(type):
        return find_working_type(type.value_type)
    if pt.is_run_end_encoded(type):
        return find_working_type(type.value_type)
    if pt.is_string_view(type):
        return LARGE_STRING
    if pt.is_binary_view(type):
        return pa.large_binary()
    if pt.is_fixed_size_binary(type):
        return pa.binary()
    if pt.is_float16(type):
        return pa.float32()
    if pt.is_date64(type):
        return DATE
    if pt.is_time32(type):
        return pa.time64("us")
    if pt.is_decimal(type):
        return make_decimal(type.precision, type.scale)
    return type


def is_utc(zone: str) -> bool:
    """Whether a zone is UTC under one of its names."""
    return zone in _UTC_NAMES


def make_decimal(precision: int, scale: int) -> pa.DataType:
    """A decimal of 128 bits where it fits, else of 256; NotSupported beyond 76 digits."""
    if precision > 76:
        raise NotSupported(
            f"a decimal of {precision} digits is needed, and 76 is the most there is",
            hint="cast the operands to fewer digits, or to double, first",
        )
    if precision < 1:
        raise NotSupported(f"a decimal has at least one digit, not {precision}")
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def is_text(type: pa.DataType) -> bool:
    return pt.is_string(type) or pt.is_large_string(type)


def is_bytes(type: pa.DataType) -> bool:
    return pt.is_binary(type) or pt.is_large_binary(type)


def is_number(type: pa.DataType) -> bool:
    return pt.is_integer(type) or pt.is_floating(type) or pt.is_decimal(type)


def is_scalar_type(type: pa.DataType) -> bool:
    """False for structs, lists, maps and other types that cannot be compared or computed with."""
    return (
        is_number(type)
        or is_text(type)
        or is_bytes(type)
        or pt.is_boolean(type)
        or pt.is_null(type)
        or (pt.is_temporal(type) and not (pt.is_interval(type) and type != INTERVAL))
    )


def count_integer_digits(type: pa.DataType) -> int:
    """The number of decimal digits that hold every value of an integer type."""
    return {8: 3, 16: 5, 32: 10, 64: 20 if pt.is_unsigned_integer(type) else 19}[type.bit_width]


def get_integer_range(type: pa.DataType) -> tuple[int, int]:
    bits = type.bit_width
    return (0, 2**bits - 1) if pt.is_unsigned_integer(type) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def as_decimal(type: pa.DataType) -> pa.DataType:
    """The decimal type that holds every value of an integer or decimal type."""
    return type if pt.is_decimal(type) else make_decimal(count_integer_digits(type), 0)


def find_common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type in which two working types are compared; None if they cannot be."""
    if left == right or pt.is_null(right):
        return left
    if pt.is_null(left):
        return right
    if is_number(left) and is_number(right):
        return _find_common_number(left, right)
    if is_text(left) and is_text(right):
        return LARGE_STRING
    if is_bytes(left) and is_bytes(right):
        return pa.large_binary()
    return _find_common_temporal(left, right)


def _find_common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pt.is_floating(left) or pt.is_floating(right):
        return FLOAT64
    if pt.is_decimal(left) or pt.is_decimal(right):
        left, right = as_decimal(left), as_decimal(right)
        scale = max(left.scale, right.scale)
        return make_decimal(max(left.precision - left.scale, right.precision - right.scale) + scale, scale)
    if pt.is_unsigned_integer(left) == pt.is_unsigned_integer(right):
        return left if left.bit_width >= right.bit_width else right
    unsigned, signed = (left, right) if pt.is_unsigned_integer(left) else (right, left)
    if unsigned.bit_width == 64:
        return make_decimal(20, 0)
    return max((signed, _get_signed_type(unsigned.bit_width * 2)), key=lambda type: type.bit_width)


def _get_signed_type(bits: int) -> pa.DataType:
    return {16: pa.int16(), 32: pa.int32(), 64: INT64}[bits]


def _find_common_temporal(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pt.is_timestamp(left) or pt.is_timestamp(right):
        moments = [type for type in (left, right) if pt.is_timestamp(type)]
        if len(moments) < 2 and not (pt.is_date(left) or pt.is_date(right)):
            return None
        zones = {type.tz for type in moments if type.tz}
        zone = zones.pop() if len(zones) == 1 else "UTC" if zones else None
        return pa.timestamp(find_finest_unit(*(type.unit for type in moments)), zone)
    if pt.is_time(left) and pt.is_time(right):
        return pa.time64(find_finest_unit(left.unit, right.unit))
    if pt.is_duration(left) and pt.is_duration(right):
        return pa.duration(find_finest_unit(left.unit, right.unit))
    return None


def find_finest_unit(*units: str) -> str:
    return max(units, key=_UNITS.index)


def is_widening(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast keeps every value and their order, so that bounds stay valid."""
    if pt.is_floating(target):
        exact_integer = pt.is_integer(source) and source.bit_width <= 32 and target == FLOAT64
        return exact_integer or source == target or source == pa.float32()
    if pt.is_timestamp(source) and pt.is_timestamp(target):
        if source.tz and not target.tz and not is_utc(source.tz):  # an hour may come twice
            return False
        return find_finest_unit(source.unit, target.unit) == target.unit
    if is_text(source) or is_bytes(source):
        return is_text(source) == is_text(target) and is_bytes(source) == is_bytes(target)
    return find_common_type(source, target) == target


_NAMES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.null(): '"NULL"',
    INTERVAL: "INTERVAL",
}
_TIMESTAMPS = {"s": "TIMESTAMP_S", "ms": "TIMESTAMP_MS", "us": "TIMESTAMP", "ns": "TIMESTAMP_NS"}


def name_type(type: pa.DataType) -> str:
    """The SQL name of the type (DuckDB's); pyarrow's name if SQL has none."""
    if is_uuid(type):
        return "UUID"
    type = find_working_type(type)
    if type in _NAMES:
        return _NAMES[type]
    if is_text(type):
        return "VARCHAR"
    if is_bytes(type):
        return "BLOB"
    if pt.is_decimal(type):
        return f"DECIMAL({type.precision}, {type.scale})"
    if pt.is_timestamp(type):
        return "TIMESTAMPTZ" if type.tz else _TIMESTAMPS[type.unit]
    if pt.is_time(type):
        return "TIME"
    if pt.is_duration(type):
        return "INTERVAL"
    return str(type)
