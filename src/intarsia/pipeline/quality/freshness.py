"""Freshness: the newest value of a column, and how old it may be; all times are compared as instants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from intarsia.common.types import classify_type
from intarsia.errors import InputError

_KEYS = ("column", "within", "as_of")
_WITHIN = re.compile(r"(\d+)\s*(second|minute|hour|day|week)s?")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_SECOND = 10**9
_DAY = 86400 * _SECOND


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old the newest value of a column may be. Times are nanoseconds since 1970 in UTC."""

    column: str
    within: str
    within_ns: int
    as_of_ns: int | None = None
    """The instant that counts as now; None is the clock's."""

    @property
    def expectation(self) -> str:
        return f"{self.column} is fresh within {self.within}"

    def find_staleness(self, newest: int | None) -> str:
        """Why the newest value is too old; empty where it is not."""
        if newest is None:
            return "there is no value"
        now = self.as_of_ns if self.as_of_ns is not None else _read_clock()
        if now - newest <= self.within_ns:
            return ""
        return f"the newest is {_format_instant(newest)}, at {_format_instant(now)}"


def parse_freshness(fresh: Mapping[str, str]) -> Freshness | None:
    """What ``fresh`` says; None where it says nothing. Raises InputError."""
    if not fresh:
        return None
    for name in fresh:
        if name not in _KEYS:
            raise InputError(f"fresh has no {name!r}.", hint="it has column, within and as_of.")
    if not fresh.get("column") or not fresh.get("within"):
        raise InputError(
            "fresh needs a column and within.", hint='fresh = { column = "loaded_at", within = "24 hours" }'
        )
    within = _WITHIN.fullmatch(fresh["within"].strip())
    if within is None:
        raise InputError(
            f"{fresh['within']!r} is no span of time.", hint='write "90 minutes", "24 hours" or "2 days".'
        )
    span = int(within[1]) * _SECONDS[within[2]] * _SECOND
    as_of = fresh.get("as_of")
    return Freshness(
        fresh["column"], fresh["within"].strip(), span, None if as_of is None else _parse_instant(as_of)
    )


def _parse_instant(text: str) -> int:
    try:
        given = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InputError(
            f"as_of: {text!r} is no time.", hint='write "2025-03-01" or "2025-03-01T06:00:00+01:00".'
        ) from error
    zoned = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
    return _count_nanoseconds(zoned)


def _read_clock() -> int:
    return _count_nanoseconds(datetime.now(UTC))


def _count_nanoseconds(instant: datetime) -> int:
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


def _format_instant(nanoseconds: int) -> str:
    try:
        shown = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=nanoseconds // _SECOND)
    except OverflowError:
        return f"{nanoseconds // _DAY:,} days from 1970"
    return f"{shown:%Y-%m-%d %H:%M:%S} UTC"


def check_time_column(name: str, schema: pa.Schema) -> None:
    """Raise InputError where a column has no dates or timestamps."""
    kind = schema.field(name).type
    if classify_type(kind) not in ("date", "timestamp", "zoned timestamp"):
        raise InputError(
            f"fresh: the column {name!r} is {kind}, and no date or timestamp.",
            hint="derive one of it with cast, or declare its type in columns.",
        )


def read_instant(newest: pa.Scalar) -> int | None:
    """A date or timestamp as nanoseconds; without a zone it is in UTC, and a date is its beginning."""
    if not newest.is_valid:
        return None
    kind = newest.type
    if pa.types.is_date32(kind):
        return int(newest.value) * _DAY
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    return int(newest.value) * _UNITS[unit]
