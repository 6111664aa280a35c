"""The zone of a column of instants: what clocks there show, and which instant a time on them is."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.core.expr.types import INT64, is_utc
from intarsia.errors import NotSupported

_DAY_NANOS = 86_400 * 10**9
_FIRST, _LAST = -(2**63) + _DAY_NANOS, 2**63 - 1 - _DAY_NANOS


def check_zone(type: pa.DataType) -> None:
    """Raise NotSupported for a timestamp in a zone that the machine's database does not have."""
    if pt.is_timestamp(type) and type.tz is not None and not is_utc(type.tz):
        _check_known(type.tz)


def check_cast(source: pa.DataType, target: pa.DataType) -> None:
    """Raise the same where a conversion depends on the zone."""
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


def in_utc(value: Any) -> Any:
    """A timestamp without a zone: the date and time in UTC."""
    return pc.cast(value, pa.timestamp(value.type.unit)) if value.type.tz else value


def local(value: Any) -> Any:
    """A timestamp without a zone: the date and time that clocks in the value's own zone show."""
    zone = value.type.tz
    if zone is None or is_utc(zone):
        return in_utc(value)
    _check_known(zone)
    if value.type.unit == "ns":  # all other units reach further than any calendar
        ticks = pc.cast(value, INT64)
        wrong = pc.or_(pc.less(ticks, _FIRST), pc.greater(ticks, _LAST))
        if (wrong if isinstance(wrong, pa.Scalar) else pc.any(wrong)).as_py():
            raise pa.ArrowInvalid(f"the time in {zone} overflows nanoseconds")
    return pc.local_timestamp(value)


def start(wall: Any, value: Any, *, whole_days: bool) -> Any:
    """The instant at which the period of ``value`` that starts at a time on clocks of its zone began.

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
    """The instant at which clocks of the zone of ``value`` show the time that it was moved to.

    A time that clocks skip is as much later as they were set forward. Of one that comes twice it is the one
    with the offset of ``value``, else the first.
    """
    if is_utc(value.type.tz):
        return pc.cast(wall, value.type)
    first = _assume_zone(wall, value.type, ambiguous="earliest", nonexistent="earliest")
    last = _assume_zone(wall, value.type, ambiguous="latest", nonexistent="latest")
    # Of a skipped time "earliest" is the moment before clocks are set, and so of the offset before.
    found = pc.cast(pc.subtract_checked(wall, _offset(first)), value.type)
    alike = pc.cast(pc.subtract_checked(wall, _offset(value)), value.type)
    return pc.if_else(pc.equal(alike, last), last, found)


def _assume_zone(wall: Any, type: pa.DataType, *, ambiguous: str, nonexistent: str) -> Any:
    return pc.assume_timezone(wall, type.tz, ambiguous=ambiguous, nonexistent=nonexistent)


def _offset(value: Any) -> Any:
    return pc.subtract(local(value), in_utc(value))
