"""SQL's date and time functions on Arrow arrays; a zoned timestamp is read in its zone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.core.expr import casts
from intarsia.core.expr.casts import as_array, cast, to_local, to_utc
from intarsia.core.expr.kernels import Value, find_month_start, quote_regex
from intarsia.core.expr.types import DATE, FLOAT64, INT64, NANOS, find_finest_unit

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _get_milliseconds(value: Value) -> Value:
    return pc.add(pc.multiply(pc.second(value), 1000), pc.millisecond(value))


CLOCK_PARTS: dict[str, Callable[[Value], Value]] = {
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
    "millisecond": _get_milliseconds,
    "microsecond": lambda value: pc.add(pc.multiply(_get_milliseconds(value), 1000), pc.microsecond(value)),
}
DATE_PARTS: dict[str, Callable[[Value], Value]] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "week": pc.iso_week,
    "day": pc.day,
    "dayofyear": pc.day_of_year,
    "dayofweek": lambda value: pc.day_of_week(value, count_from_zero=True, week_start=7),
    "isodow": lambda value: pc.day_of_week(value, count_from_zero=False, week_start=1),
    "isoyear": pc.iso_year,
}
PART_NAMES = {"dow": "dayofweek", "doy": "dayofyear", "weekofyear": "week", "dayofmonth": "day"}
_DATE_UNITS = ("year", "quarter", "month", "week", "day")
TRUNC_UNITS = (*_DATE_UNITS, "hour", "minute", "second", "millisecond", "microsecond")
_BETWEEN: dict[str, Callable[[Value, Value], Value]] = {
    "year": pc.years_between,
    "quarter": pc.quarters_between,
    "day": pc.days_between,
    "hour": pc.hours_between,
    "minute": pc.minutes_between,
    "second": pc.seconds_between,
    "millisecond": pc.milliseconds_between,
    "microsecond": pc.microseconds_between,
}


def extract_part(unit: str, value: Value) -> Value:
    unit = _to_singular(unit)
    unit = PART_NAMES.get(unit, unit)
    if unit in CLOCK_PARTS:
        return cast(CLOCK_PARTS[unit](value if pt.is_time(value.type) else _to_local(value)), INT64)
    if unit not in DATE_PARTS or pt.is_time(value.type):
        known = ", ".join([*DATE_PARTS, *CLOCK_PARTS])
        raise pa.ArrowInvalid(f"there is no part {unit!r} of {value.type}; there are {known}")
    return cast(DATE_PARTS[unit](value if pt.is_date(value.type) else _to_local(value)), INT64)


def truncate_to(unit: str, value: Value) -> Value:
    unit = _to_singular(unit)
    if unit not in TRUNC_UNITS:
        raise pa.ArrowInvalid(f"there is no unit {unit!r} to cut to; there are {', '.join(TRUNC_UNITS)}")
    if pt.is_date(value.type) and unit not in _DATE_UNITS:
        return value
    if pt.is_timestamp(value.type) and value.type.tz:
        wall = pc.floor_temporal(_to_local(value), unit=unit)
        return casts.start(wall, value, whole_days=unit in _DATE_UNITS)
    return pc.floor_temporal(value, unit=unit)


def _to_singular(unit: str) -> str:
    unit = unit.strip().lower()
    return unit[:-1] if unit.endswith("s") else unit


def _to_local(value: Value) -> Value:
    """The local time of a timestamp, without a zone; the midnight of a date."""
    return cast(value, pa.timestamp("s")) if pt.is_date(value.type) else to_local(value)


def date_diff(unit: str, start: Value, end: Value) -> Value:
    """How often a new year, month, day, hour begins between two moments; of weeks, those that are whole.

    Instants are read in their zone, two of different zones in UTC. Beside them a date is one of that zone,
    and a naive timestamp is UTC. Hours and less are counted as they pass, not as clocks are set.
    """
    unit = _to_singular(unit)
    names = {value.type.tz for value in (start, end) if pt.is_timestamp(value.type) and value.type.tz}
    if names:
        zone = names.pop() if len(names) == 1 else "UTC"
        start, end = (_truncate_in_zone(value, zone) for value in (start, end))
        if unit in _BETWEEN and unit not in _DATE_UNITS:
            start, end = (to_utc(truncate_to(unit, value)) for value in (start, end))
    start, end = _to_local(start), _to_local(end)
    finer = pa.timestamp(find_finest_unit(start.type.unit, end.type.unit))
    start, end = pc.cast(start, finer), pc.cast(end, finer)
    if unit == "week":
        return pc.divide(pc.cast(pc.days_between(start, end), INT64), pa.scalar(7))
    if unit == "month":
        return cast(pc.subtract(_number_month(end), _number_month(start)), INT64)
    if unit not in _BETWEEN:
        known = ", ".join(["year", "quarter", "month", "week", *list(_BETWEEN)[2:]])
        raise pa.ArrowInvalid(f"there is no unit {unit!r} to count; there are {known}")
    return cast(_BETWEEN[unit](start, end), INT64)


def _truncate_in_zone(value: Value, zone: str) -> Value:
    if not pt.is_date(value.type):
        return pc.cast(value, pa.timestamp(value.type.unit, zone))
    midnight = cast(value, pa.timestamp("s"))
    return casts.start(midnight, pc.cast(midnight, pa.timestamp("s", zone)), whole_days=True)


def _number_month(value: Value) -> Value:
    return pc.add(pc.multiply(pc.year(value), 12), pc.month(value))


def last_day(value: Value) -> Value:
    """The last day of the month."""
    following = find_month_start(_number_month(_to_local(value)))
    return pc.cast(pc.cast(pc.subtract(following, 1), pa.int32()), DATE)


def make_name_finder(names: Sequence[str], number: Callable[[Value], Value]) -> Callable[[Value], Value]:
    def run(value: Value) -> Value:
        found = pa.array(names).take(as_array(number(value)))
        return found[0] if isinstance(value, pa.Scalar) else found

    return run


def _get_month_index(value: Value) -> Value:
    return pc.subtract(pc.month(_to_local(value)), 1)


def _get_day_index(value: Value) -> Value:
    return pc.day_of_week(_to_local(value), count_from_zero=True, week_start=1)


month_name = make_name_finder(MONTHS, _get_month_index)
day_name = make_name_finder(DAYS, _get_day_index)


def epoch(value: Value) -> Value:
    """Seconds since 1970-01-01 00:00 UTC; for a time of day, since midnight."""
    if pt.is_date(value.type):
        return pc.multiply(pc.cast(pc.cast(value, pa.int32()), FLOAT64), 86_400.0)
    ticks = pc.cast(pc.cast(value, INT64), FLOAT64, safe=False)
    return pc.divide(ticks, float(10**9 // NANOS[value.type.unit]))


def to_timestamp(seconds: Value) -> Value:
    """The instant so many seconds after 1970-01-01 00:00 UTC, to the microsecond."""
    ticks = pc.round(pc.multiply(seconds, 1e6), round_mode="half_to_even")
    return pc.cast(pc.cast(ticks, INT64), pa.timestamp("us", "UTC"))


def make_date(year: Value, month: Value, day: Value) -> Value:
    days = _compute_days(year, month, day)
    _check_all(days, (year, month, day), "such day")
    return pc.cast(pc.cast(days, pa.int32()), DATE)


def make_timestamp(year: Value, month: Value, day: Value, hour: Value, minute: Value, second: Value) -> Value:
    within = [_is_between(hour, 0, 23), _is_between(minute, 0, 59)]
    exact = pc.and_(pc.greater_equal(second, 0.0), pc.less(second, 60.0))
    days = _compute_days(year, month, day)
    for holds in (*within, exact):
        days = pc.if_else(holds, days, pa.scalar(None, INT64))
    _check_all(days, (year, month, day, hour, minute, second), "such day or time")
    ticks = pc.cast(pc.round(pc.multiply(second, 1e6), round_mode="half_to_even"), INT64)
    return _make_moment(days, hour, minute, ticks)


def _is_between(value: Value, low: int, high: int) -> Value:
    return pc.and_(
        pc.greater_equal(value, pa.scalar(low, value.type)), pc.less_equal(value, pa.scalar(high, value.type))
    )


def _compute_days(year: Value, month: Value, day: Value) -> Value:
    """Days since 1970-01-01; NULL for a day that does not exist in the years 1 to 9999."""
    total = pc.add(pc.multiply(year, 12), pc.subtract(month, 1))
    known = pc.and_(_is_between(year, 1, 9999), _is_between(month, 1, 12))
    total = pc.if_else(known, total, pa.scalar(None, INT64))
    first, following = find_month_start(total), find_month_start(pc.add(total, 1))
    found = pc.add(first, pc.subtract(day, 1))
    holds = pc.and_(pc.greater_equal(found, first), pc.less(found, following))
    return pc.if_else(holds, found, pa.scalar(None, INT64))


def _check_all(found: Value, given: Sequence[Value], what: str) -> None:
    lost: Value = pc.is_null(found)
    for value in given:
        lost = pc.and_(lost, pc.is_valid(value))
    count = pc.sum(as_array(lost)).as_py()
    if count:
        raise pa.ArrowInvalid(f"there is no {what} in {count:,} rows")


def _make_moment(days: Value, hour: Value, minute: Value, micros: Value) -> Value:
    seconds = pc.add(pc.multiply(pc.add(pc.multiply(days, 24), hour), 3600), pc.multiply(minute, 60))
    return pc.cast(pc.add(pc.multiply(seconds, 1_000_000), micros), pa.timestamp("us"))


# Formats


def _make_digits(number: Callable[[Value], Value], width: int) -> Callable[[Value], Value]:
    return lambda value: pc.utf8_lpad(pc.cast(number(value), pa.string()), width=width, padding="0")


def _get_hour12(value: Value) -> Value:
    rest = pc.subtract(pc.hour(value), pc.multiply(pc.divide(pc.hour(value), 12), 12))
    return pc.if_else(pc.equal(rest, 0), pa.scalar(12, INT64), rest)


def _get_year2(value: Value) -> Value:
    year = pc.year(value)
    return pc.subtract(year, pc.multiply(pc.divide(year, 100), 100))


def _get_micros(value: Value) -> Value:
    return pc.add(pc.multiply(pc.millisecond(value), 1000), pc.microsecond(value))


def _get_half_day(value: Value) -> Value:
    return pc.if_else(pc.less(pc.hour(value), 12), pa.scalar("AM"), pa.scalar("PM"))


def _shorten_name(name: Callable[[Value], Value]) -> Callable[[Value], Value]:
    return lambda value: pc.utf8_slice_codeunits(name(value), start=0, stop=3)


_NUMBERS: dict[str, tuple[Callable[[Value], Value], int]] = {
    "Y": (pc.year, 4),
    "y": (_get_year2, 2),
    "m": (pc.month, 2),
    "d": (pc.day, 2),
    "j": (pc.day_of_year, 3),
    "H": (pc.hour, 2),
    "I": (_get_hour12, 2),
    "M": (pc.minute, 2),
    "S": (pc.second, 2),
    "f": (_get_micros, 6),
    "g": (pc.millisecond, 3),
    "G": (pc.iso_year, 4),
    "V": (pc.iso_week, 2),
    "u": (DATE_PARTS["isodow"], 1),
    "w": (DATE_PARTS["dayofweek"], 1),
}
_WORDS: dict[str, Callable[[Value], Value]] = {
    "b": _shorten_name(month_name),
    "B": month_name,
    "a": _shorten_name(day_name),
    "A": day_name,
    "p": _get_half_day,
}
_FORMAT = re.compile(r"%(-?[A-Za-z%])|([^%]+)|(%)")


def _split_format(format: str) -> list[tuple[str, str]]:
    """The format as (specifier, literal text) pairs; one of each pair is empty."""
    found = []
    for match in _FORMAT.finditer(format):
        letter, plain, bad = match.groups()
        if bad or (letter and letter.lstrip("-") not in (*_NUMBERS, *_WORDS, "%")):
            known = ", ".join(f"%{each}" for each in (*_NUMBERS, *_WORDS, "%"))
            raise pa.ArrowInvalid(f"{match[0]!r} is not known in the format {format!r}; there are {known}")
        found.append(("", "%") if letter == "%" else (letter or "", plain or ""))
    return found


def strftime(value: Value, format: str) -> Value:
    """A date or timestamp as text."""
    moment = _to_local(value)
    texts: list[Value] = []
    for letter, plain in _split_format(format):
        if not letter:
            texts.append(pa.scalar(plain))
        elif letter in _WORDS:
            texts.append(_WORDS[letter](moment))
        else:
            number, width = _NUMBERS[letter[-1]]
            texts.append(_make_digits(number, 1 if letter[0] == "-" else width)(moment))
    if not any(letter for letter, _ in _split_format(format)):
        texts.append(pc.utf8_slice_codeunits(pc.cast(moment, pa.string()), start=0, stop=0))  # NULL for NULL
    return pc.binary_join_element_wise(*texts, pa.scalar("")) if texts else pa.scalar("")


_PATTERNS = {
    **dict.fromkeys("mdHIMS", r"\d{1,2}"),
    "Y": r"\d{1,4}",
    "y": r"\d{1,2}",
    "j": r"\d{1,3}",
    "f": r"\d{1,6}",
    "b": f"(?i:{'|'.join(name[:3] for name in MONTHS)})",
    "B": f"(?i:{'|'.join(MONTHS)})",
    "a": f"(?i:{'|'.join(name[:3] for name in DAYS)})",
    "A": f"(?i:{'|'.join(DAYS)})",
    "p": "(?i:am|pm)",
}


def strptime(value: Value, format: str) -> Value:
    """The timestamp that a text says in the format; raises where the text does not follow it."""
    found = try_strptime(value, format)
    lost = pc.and_(pc.is_valid(value), pc.is_null(found))
    count = pc.sum(as_array(lost)).as_py()
    if count:
        example = as_array(value).filter(as_array(lost))[0].as_py()
        raise pa.ArrowInvalid(f"{example!r} is not of the format {format!r} ({count:,} rows)")
    return found


def try_strptime(value: Value, format: str) -> Value:
    """The timestamp that a text says in the format; NULL where the text does not follow it."""
    texts = as_array(value)
    letters, regex = [], r"(?s)\A\s*"
    for letter, plain in _split_format(format):
        if not letter:
            regex += r"\s+".join(quote_regex(each) for each in re.split(r"\s+", plain))
            continue
        letter = letter[-1]
        if letter in letters or letter not in _PATTERNS:
            raise pa.ArrowInvalid(f"%{letter} cannot be read, or not twice, in the format {format!r}")
        letters.append(letter)
        regex += f"(?P<{_name_group(letter)}>{_PATTERNS[letter]})"
    if not letters:
        raise pa.ArrowInvalid(f"the format {format!r} says nothing of a date or time")
    parts = pc.extract_regex(texts, pattern=regex + r"\s*\z")
    found = _read({letter: pc.struct_field(parts, _name_group(letter)) for letter in letters})
    return found[0] if isinstance(value, pa.Scalar) else found


def _name_group(letter: str) -> str:
    return f"upper_{letter}" if letter.isupper() else f"lower_{letter}"


def _read(texts: dict[str, Value]) -> Value:
    numbers = {letter: pc.cast(text, INT64) for letter, text in texts.items() if letter not in "bBaApf"}
    length = len(next(iter(texts.values())))

    def number(letter: str, default: int) -> Value:
        return numbers[letter] if letter in numbers else pa.repeat(pa.scalar(default, INT64), length)

    year = number("Y", 1900)
    if "Y" not in numbers and "y" in numbers:
        year = pc.add(numbers["y"], pc.if_else(pc.less(numbers["y"], 69), pa.scalar(2000), pa.scalar(1900)))
    month = number("m", 1)
    for letter in set("bB") & texts.keys():
        short = pc.utf8_lower(pc.utf8_slice_codeunits(texts[letter], start=0, stop=3))
        names = pa.array([name[:3].lower() for name in MONTHS], short.type)
        month = pc.add(pc.cast(pc.index_in(short, value_set=names), INT64), 1)
    days = _compute_days(year, month, number("d", 1))
    if "j" in numbers:
        last = pc.subtract(_compute_days(pc.add(year, 1), number("-", 1), number("-", 1)), days)
        fits = pc.and_(_is_between(numbers["j"], 1, 366), pc.less_equal(numbers["j"], last))
        days = pc.if_else(fits, pc.add(days, pc.subtract(numbers["j"], 1)), pa.scalar(None, INT64))
    hour = number("H", 0)
    if "I" in numbers:
        hour = pc.if_else(_is_between(numbers["I"], 1, 12), numbers["I"], pa.scalar(None, INT64))
        hour = pc.subtract(hour, pc.multiply(pc.divide(hour, 12), 12))
        if "p" in texts:
            late = pc.equal(pc.utf8_lower(texts["p"]), pa.scalar("pm", texts["p"].type))
            hour = pc.add(hour, pc.if_else(late, pa.scalar(12), pa.scalar(0)))
    minute, second = number("M", 0), number("S", 0)
    for value, high in ((hour, 23), (minute, 59), (second, 59)):
        days = pc.if_else(_is_between(value, 0, high), days, pa.scalar(None, INT64))
    micros = pc.multiply(second, 1_000_000)
    if "f" in texts:
        micros = pc.add(micros, pc.cast(pc.utf8_rpad(texts["f"], width=6, padding="0"), INT64))
    return _make_moment(days, hour, minute, micros)
