"""Conversions between types and time zones on Arrow values, as SQL means them: checked, never wrapped."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.common.python_values import make_scalar
from intarsia.common.types import is_uuid, parse_uuids
from intarsia.core.expr.types import (
    BOOL,
    DAY_NANOS,
    FLOAT64,
    INT64,
    as_decimal,
    find_finest_unit,
    find_working_type,
    is_bytes,
    is_number,
    is_text,
    is_utc,
    make_decimal,
)
from intarsia.errors import NotSupported

_FIRST, _LAST = -(2**63) + DAY_NANOS, 2**63 - 1 - DAY_NANOS
"""Instants in nanoseconds whose local time fits 64 bits in every zone."""
_UNIT_WORDS = {"s": "second", "ms": "millisecond", "us": "microsecond"}
_CLOCK = r"\d{2}(:\d{2}(:\d{2}(\.\d{1,9})?)?)?"
_OFFSET = r"Z|UTC|[+-]\d{2}(:?\d{2})?"
_SHAPES = (
    (pt.is_boolean, r"(?i)^(true|false|t|f|yes|no|y|n|1|0)$"),
    (pt.is_integer, r"^[+-]?\d{1,20}$"),
    (is_number, r"(?i)^[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?|inf(inity)?|nan)$"),
    (pt.is_date, r"^\d{4}-\d{2}-\d{2}$"),
    (pt.is_timestamp, rf"(?i)^\d{{4}}-\d{{2}}-\d{{2}}([T ]{_CLOCK} ?({_OFFSET})?)?$"),
    (pt.is_time, rf"^{_CLOCK}$"),
)


def can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether SQL has a conversion between two working types."""
    if source == target or pt.is_null(source):
        return True
    if is_text(source) or is_text(target):
        other = target if is_text(source) else source
        plain = is_text(other) or is_bytes(other) or is_number(other) or pt.is_boolean(other)
        return plain or pt.is_date(other) or pt.is_timestamp(other) or pt.is_time(other)
    if is_number(source) and (is_number(target) or pt.is_boolean(target)):
        return True
    if pt.is_boolean(source):
        return is_number(target)
    if pt.is_timestamp(source):
        return pt.is_timestamp(target) or pt.is_date(target) or pt.is_time(target)
    if pt.is_date(source):
        return pt.is_timestamp(target)
    same = ((pt.is_time, pt.is_time), (pt.is_duration, pt.is_duration), (is_bytes, is_bytes))
    return any(is_source(source) and is_target(target) for is_source, is_target in same)


def cast(value: Any, target: pa.DataType) -> Any:
    """Convert an array or scalar; raises pa.ArrowInvalid where a value does not fit.

    An instant becomes the date, time or naive timestamp that clocks in its zone show. Naive timestamps and
    the midnights of dates become instants as times of UTC, and the text of an instant is that of UTC.
    """
    source = value.type
    if source == target:
        return value
    if pt.is_null(source):
        return pa.nulls(1, target)[0] if isinstance(value, pa.Scalar) else pa.nulls(len(value), target)
    wanted = find_working_type(target)
    if is_uuid(target) and is_text(find_working_type(source)):
        return _to_stored(parse_uuids(to_working(value)), target)
    if wanted != target:
        return _to_stored(cast(value, wanted), target)
    if pt.is_dictionary(source) or pt.is_run_end_encoded(source) or source != find_working_type(source):
        return cast(to_working(value), target)
    if is_text(source):
        return _from_text(value, target)
    if is_text(target):
        return pc.cast(_to_text(value), target)
    if pt.is_boolean(source) or pt.is_boolean(target):
        return _cast_boolean(value, target)
    if is_number(source) and is_number(target):
        return _cast_number(value, target)
    if pt.is_timestamp(target) and target.tz and pt.is_date(source):
        return pc.cast(pc.cast(value, pa.timestamp(target.unit)), target)
    has_unit = pt.is_timestamp(target) or pt.is_time(target)
    if pt.is_timestamp(source) and source.tz and not (pt.is_timestamp(target) and target.tz):
        value = to_local(value)
    if pt.is_timestamp(source) and has_unit and find_finest_unit(source.unit, target.unit) != target.unit:
        value = pc.floor_temporal(to_utc(value), unit=_UNIT_WORDS[target.unit])
    return pc.cast(value, target)


def to_working(value: Any) -> Any:
    """A stored column cast to the type that expressions compute in."""
    if pt.is_run_end_encoded(value.type):
        value = pc.run_end_decode(value)
    if isinstance(value.type, pa.BaseExtensionType):
        value = _get_storage(value)
    type = find_working_type(value.type)
    if type == value.type:
        return value
    if pt.is_dictionary(value.type) and value.type.value_type != type:
        value = pc.cast(value, value.type.value_type)
    return pc.cast(value, type)


def _get_storage(value: Any) -> Any:
    """The storage values of an extension array."""
    if isinstance(value, pa.Scalar):
        return value.value if value.is_valid else pa.scalar(None, value.type.storage_type)
    if isinstance(value, pa.ChunkedArray):
        return pa.chunked_array([chunk.storage for chunk in value.chunks], value.type.storage_type)
    return value.storage


def _to_stored(value: Any, target: pa.DataType) -> Any:
    if isinstance(target, pa.BaseExtensionType):
        stored = cast(value, target.storage_type)
        if isinstance(stored, pa.Scalar):
            return pa.ExtensionScalar.from_storage(target, stored)
        return pa.ExtensionArray.from_storage(target, stored)
    if pt.is_dictionary(target):
        plain = cast(value, target.value_type)
        return plain if isinstance(plain, pa.Scalar) else pc.cast(plain.dictionary_encode(), target)
    stored = pc.cast(value, target)
    if pt.is_float16(target):
        _check_finite(value, pc.cast(stored, value.type))
    return stored


def _cast_boolean(value: Any, target: pa.DataType) -> Any:
    if target == BOOL:
        return pc.not_equal(value, pa.scalar(0).cast(value.type))
    number = pc.cast(value, pa.int8())
    return number if target == pa.int8() else cast(number, target)


def _cast_number(value: Any, target: pa.DataType) -> Any:
    source = value.type
    if pt.is_floating(target):
        result = pc.cast(value, target, safe=False)
        if pt.is_floating(source) and target != FLOAT64:
            _check_finite(value, result)
        return result
    if pt.is_integer(target):
        if pt.is_floating(source):
            value = pc.round(value, round_mode="half_to_even")
        elif pt.is_decimal(source):
            value = _round(value, 0)
        return pc.cast(value, target)
    if pt.is_integer(source):
        digits = as_decimal(source).precision
        return pc.cast(pc.cast(value, make_decimal(digits + max(target.scale, 0), target.scale)), target)
    if pt.is_decimal(source) and target.scale < source.scale:
        value = _round(value, target.scale)
    return pc.cast(value, target)


def _round(value: Any, digits: int) -> Any:
    type = value.type
    room = value if type.precision == 76 else pc.cast(value, make_decimal(type.precision + 1, type.scale))
    return pc.round(room, ndigits=digits, round_mode="half_towards_infinity")


def round_number(value: Any, digits: int) -> Any:
    """Round half away from zero; the type stays, with a digit more for a decimal."""
    if pt.is_decimal(value.type):
        return _round(value, digits)
    return pc.round(value, ndigits=digits, round_mode="half_towards_infinity")


def _check_finite(value: Any, result: Any) -> None:
    lost = pc.and_(pc.is_finite(value), pc.invert(pc.is_finite(result)))
    if pc.any(as_array(lost)).as_py():
        raise pa.ArrowInvalid("a number is too large for the float")


def as_array(value: Any) -> pa.Array:
    """The value as an array; a scalar becomes one of a single row."""
    return pa.array([value.as_py()], value.type) if isinstance(value, pa.Scalar) else value


def _from_text(value: Any, target: pa.DataType) -> Any:
    if is_text(target) or is_bytes(target):
        return pc.cast(value, target)
    text = pc.utf8_trim_whitespace(value)
    if pt.is_boolean(target):
        text = pc.replace_substring_regex(text, pattern=r"(?i)^(t|yes|y)$", replacement="true")
        text = pc.replace_substring_regex(text, pattern=r"(?i)^(f|no|n)$", replacement="false")
        return pc.cast(text, target)
    if pt.is_decimal(target):
        # SQL rounds digits beyond the scale; pyarrow would refuse them.
        scale = min(max(target.scale, 76 - 38), 76)
        return pc.cast(_round(pc.cast(text, pa.decimal256(76, scale)), target.scale), target)
    if pt.is_time(target):
        moment = pc.binary_join_element_wise("1970-01-01", pc.cast(text, pa.string()), " ")
        return pc.cast(pc.cast(moment, pa.timestamp(target.unit)), target)
    if pt.is_timestamp(target) and target.tz:
        with_offset = pc.match_substring_regex(text, pattern=rf"(?i):.*({_OFFSET})$")
        text = pc.replace_substring_regex(text, pattern=r"(?i) ?UTC$", replacement="Z")
        dated = pc.match_substring_regex(text, pattern=r"^\d+-\d+-\d+$")
        moment = pc.if_else(dated, _append_text(text, " 00:00:00"), text)
        return pc.cast(pc.if_else(with_offset, moment, _append_text(moment, "Z")), target)
    return pc.cast(text, target)


def _append_text(text: Any, tail: str) -> Any:
    return pc.binary_join_element_wise(text, make_scalar(tail, text.type), make_scalar("", text.type))


def _to_text(value: Any) -> Any:
    source = value.type
    if pt.is_floating(source):
        text = pc.cast(value, pa.string())
        return pc.replace_substring_regex(text, pattern=r"^(-?\d+)$", replacement=r"\1.0")
    if pt.is_timestamp(source):
        text = pc.cast(to_utc(value), pa.string())
        text = pc.replace_substring_regex(text, pattern=r"(\.\d*?)0+$", replacement=r"\1")
        text = pc.replace_substring_regex(text, pattern=r"\.$", replacement="")
        return _append_text(text, "+00") if source.tz else text
    if pt.is_time(source):
        text = pc.cast(value, pa.string())
        text = pc.replace_substring_regex(text, pattern=r"(\.\d*?)0+$", replacement=r"\1")
        return pc.replace_substring_regex(text, pattern=r"\.$", replacement="")
    return pc.cast(value, pa.string())


def try_cast(value: Any, target: pa.DataType) -> Any:
    """Convert, with NULL where a value does not fit.

    Text that does not look like the type is set aside in one pass; what then still fails (out of
    range, no such day) is found by halving, once per distinct value.
    """
    try:
        return cast(value, target)
    except pa.ArrowInvalid:
        pass
    if isinstance(value, pa.Scalar):
        return pa.nulls(1, target)[0]
    encoded = value.dictionary_encode()
    distinct = encoded.dictionary
    if is_text(distinct.type):
        distinct = _drop_implausible(distinct, target)
    return _cast_by_halves(distinct, target).take(encoded.indices)


def _drop_implausible(text: pa.Array, target: pa.DataType) -> pa.Array:
    for fits, shape in _SHAPES:
        if fits(target):
            looks = pc.match_substring_regex(pc.utf8_trim_whitespace(text), pattern=shape)
            return pc.if_else(looks, text, pa.scalar(None, text.type))
    return text


def _cast_by_halves(values: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return cast(values, target)
    except pa.ArrowInvalid:
        if len(values) == 1:
            return pa.nulls(1, target)
    middle = len(values) // 2
    halves = values.slice(0, middle), values.slice(middle)
    return pa.concat_arrays([_cast_by_halves(half, target) for half in halves])


# Time zones: local times of instants, and instants of local times


def check_zone(type: pa.DataType) -> None:
    """Raise NotSupported for a time zone that the machine's database does not have."""
    if pt.is_timestamp(type) and type.tz is not None and not is_utc(type.tz):
        _check_known(type.tz)


def check_cast(source: pa.DataType, target: pa.DataType) -> None:
    """Raise NotSupported for an unknown zone if the conversion depends on it."""
    if pt.is_date(target) or pt.is_time(target) or (pt.is_timestamp(target) and target.tz is None):
        check_zone(source)


@lru_cache(maxsize=256)
def _check_known(zone: str) -> None:
    try:
        pc.local_timestamp(pa.scalar(0, pa.timestamp("s", zone)))
    except pa.ArrowInvalid as error:
        raise NotSupported(
            f"dates and times of the zone {zone!r} are not known here: {error}",
            hint="install the time zone database of the system (tzdata), or give the column a zone it has",
        ) from error


def to_utc(value: Any) -> Any:
    """The timestamp as date and time in UTC, without a zone."""
    return pc.cast(value, pa.timestamp(value.type.unit)) if value.type.tz else value


def to_local(value: Any) -> Any:
    """The timestamp as local date and time in its own zone, without a zone."""
    zone = value.type.tz
    if zone is None or is_utc(zone):
        return to_utc(value)
    _check_known(zone)
    if value.type.unit == "ns":  # all other units have room to spare
        ticks = pc.cast(value, INT64)
        wrong = pc.or_(pc.less(ticks, _FIRST), pc.greater(ticks, _LAST))
        if (wrong if isinstance(wrong, pa.Scalar) else pc.any(wrong)).as_py():
            raise pa.ArrowInvalid(f"the time in {zone} overflows nanoseconds")
    return pc.local_timestamp(value)


def start(wall: Any, value: Any, *, whole_days: bool) -> Any:
    """The instant at which a period that contains ``value`` began, given its start as local time ``wall``.

    Where clocks were set forward past the start, that is the moment they were. Of a start that comes twice,
    days and longer periods have the first, and shorter ones the last before the value.
    """
    if is_utc(value.type.tz):
        return pc.cast(wall, value.type)
    first = _assume_zone(wall, value.type, ambiguous="earliest", nonexistent="latest")
    if whole_days:
        return first
    last = _assume_zone(wall, value.type, ambiguous="latest", nonexistent="latest")
    return pc.if_else(pc.less_equal(last, value), last, first)


def move_zone(wall: Any, value: Any) -> Any:
    """The instant of the local time ``wall`` in the zone of ``value``, from which it was moved.

    A time that clocks skip is as much later as they were set forward. Of one that comes twice it is the one
    with the offset of ``value``, else the first.
    """
    if is_utc(value.type.tz):
        return pc.cast(wall, value.type)
    first = _assume_zone(wall, value.type, ambiguous="earliest", nonexistent="earliest")
    last = _assume_zone(wall, value.type, ambiguous="latest", nonexistent="latest")
    # Of a skipped time "earliest" is the moment before clocks are set, and so of the offset before.
    found = pc.cast(pc.subtract_checked(wall, _compute_offset(first)), value.type)
    alike = pc.cast(pc.subtract_checked(wall, _compute_offset(value)), value.type)
    return pc.if_else(pc.equal(alike, last), last, found)


def _assume_zone(wall: Any, type: pa.DataType, *, ambiguous: str, nonexistent: str) -> Any:
    return pc.assume_timezone(wall, type.tz, ambiguous=ambiguous, nonexistent=nonexistent)


def _compute_offset(value: Any) -> Any:
    return pc.subtract(to_local(value), to_utc(value))
