"""The functions expressions may call: their argument types and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.core.expr.casts import cast, round_number
from intarsia.core.expr.kernels import Value, compare
from intarsia.core.expr.nodes import CompareOp
from intarsia.core.expr.types import (
    BOOL,
    FLOAT64,
    INT64,
    LARGE_STRING,
    STRING,
    decimal,
    is_number,
    is_text,
)

Types = Sequence[pa.DataType]
Rule = Callable[[Types], tuple[Types, pa.DataType] | None]
"""Given the arguments' types: the types to cast them to and the result's, or None if they are wrong."""


@dataclass(frozen=True, slots=True)
class Function:
    """One function: how many arguments, which types, and how to compute it.

    ``alike`` arguments are first brought to one common type. ``constant`` are the positions that
    must be constants; those reach ``run`` as Python values.
    """

    takes: str
    least: int
    most: int | None
    rule: Rule
    run: Callable[..., Value]
    constant: frozenset[int] = frozenset()
    alike: bool = False


def _wide(types: Types) -> pa.DataType:
    return LARGE_STRING if any(pt.is_large_string(type) for type in types) else STRING


def _text_to(result: pa.DataType | None) -> Rule:
    def rule(types: Types) -> tuple[Types, pa.DataType] | None:
        if not all(is_text(type) or pt.is_null(type) for type in types):
            return None
        wide = _wide(types)
        return [wide] * len(types), result or wide

    return rule


def _joined(types: Types) -> tuple[Types, pa.DataType] | None:
    wide = _wide(types)
    return [wide] * len(types), wide


def _substring_rule(types: Types) -> tuple[Types, pa.DataType] | None:
    if not is_text(types[0]) or not all(pt.is_integer(type) for type in types[1:]):
        return None
    return types, types[0]


def _number_to(result: pa.DataType | None) -> Rule:
    def rule(types: Types) -> tuple[Types, pa.DataType] | None:
        if not is_number(types[0]) or not all(pt.is_integer(type) for type in types[1:]):
            return None
        first = pa.float64() if pt.is_floating(types[0]) else types[0]
        return [first, *types[1:]], result or first

    return rule


def _round_rule(types: Types) -> tuple[Types, pa.DataType] | None:
    found = _number_to(None)(types)
    if found is not None and pt.is_integer(types[0]):
        wide = types[0] if types[0].bit_width == 64 else INT64
        return [wide, *types[1:]], wide
    if found is None or not pt.is_decimal(types[0]):
        return found
    return types, decimal(min(types[0].precision + 1, 76), types[0].scale)


def _floats(types: Types) -> tuple[Types, pa.DataType] | None:
    return ([FLOAT64] * len(types), FLOAT64) if all(map(is_number, types)) else None


def _same(types: Types) -> tuple[Types, pa.DataType]:
    return types, types[0]


_CLOCK_PARTS = {"hour": pc.hour, "minute": pc.minute, "second": pc.second}
_DATE_PARTS: dict[str, Callable[[Value], Value]] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "week": pc.iso_week,
    "day": pc.day,
    "dayofyear": pc.day_of_year,
    "dayofweek": lambda value: pc.day_of_week(value, count_from_zero=True, week_start=7),
    "isodow": lambda value: pc.day_of_week(value, count_from_zero=False, week_start=1),
}
_PART_NAMES = {"dow": "dayofweek", "doy": "dayofyear", "weekofyear": "week", "dayofmonth": "day"}
_DATE_UNITS = ("year", "quarter", "month", "week", "day")
_TRUNC_UNITS = (*_DATE_UNITS, "hour", "minute", "second", "millisecond", "microsecond")


def _part_rule(types: Types) -> tuple[Types, pa.DataType] | None:
    kinds = (pt.is_date, pt.is_timestamp, pt.is_time)
    return (types, INT64) if any(kind(types[1]) for kind in kinds) else None


def _trunc_rule(types: Types) -> tuple[Types, pa.DataType] | None:
    return (types, types[1]) if pt.is_date(types[1]) or pt.is_timestamp(types[1]) else None


def _part(unit: str, value: Value) -> Value:
    unit = _singular(unit)
    unit = _PART_NAMES.get(unit, unit)
    if unit in _CLOCK_PARTS:
        moment = cast(value, pa.timestamp("s")) if pt.is_date(value.type) else value
        return cast(_CLOCK_PARTS[unit](moment), INT64)
    if unit not in _DATE_PARTS or pt.is_time(value.type):
        known = ", ".join([*_DATE_PARTS, *_CLOCK_PARTS])
        raise pa.ArrowInvalid(f"there is no part {unit!r} of {value.type}; there are {known}")
    return cast(_DATE_PARTS[unit](value), INT64)


def _trunc_to(unit: str, value: Value) -> Value:
    unit = _singular(unit)
    if unit not in _TRUNC_UNITS:
        raise pa.ArrowInvalid(f"there is no unit {unit!r} to cut to; there are {', '.join(_TRUNC_UNITS)}")
    if pt.is_date(value.type) and unit not in _DATE_UNITS:
        return value
    if pt.is_timestamp(value.type) and value.type.tz:
        plain = pc.cast(value, pa.timestamp(value.type.unit))
        return pc.cast(pc.floor_temporal(plain, unit=unit), value.type)
    return pc.floor_temporal(value, unit=unit)


def _singular(unit: str) -> str:
    unit = unit.strip().lower()
    return unit[:-1] if unit.endswith("s") else unit


def _trim(kernel: Callable[..., Value]) -> Callable[..., Value]:
    def run(value: Value, characters: str = " ") -> Value:
        return kernel(value, characters=characters) if characters else value

    return run


def _substring(value: Value, start: int, length: int | None = None) -> Value:
    """SQL counts from 1, and from the end below 0; a start of 0 is the place before the first."""
    if length is not None and length < 0:
        raise pa.ArrowInvalid(f"substring of a negative length {length}")
    if start >= 0:
        begin, end = max(start - 1, 0), None if length is None else max(start - 1 + length, 0)
        return pc.utf8_slice_codeunits(value, start=begin, stop=end)
    if length is None or start + length >= 0:
        return pc.utf8_slice_codeunits(value, start=start)
    return pc.utf8_slice_codeunits(value, start=start, stop=start + length)


def _replace(value: Value, old: str, new: str) -> Value:
    return pc.replace_substring(value, pattern=old, replacement=new) if old else value


def _concat(*values: Value) -> Value:
    empty = pa.scalar("", values[0].type)
    # null_handling="skip" drops the row when every part is NULL.
    return pc.binary_join_element_wise(*values, empty, null_handling="replace", null_replacement="")


def _extreme(op: CompareOp) -> Callable[..., Value]:
    def pick(left: Value, right: Value) -> Value:
        take_left = pc.or_kleene(pc.is_null(right), compare(op, left, right))
        take_left = pc.and_kleene(take_left, pc.is_valid(left))
        return pc.if_else(pc.coalesce(take_left, False), left, right)

    return lambda *values: reduce(pick, values)


def _sign(value: Value) -> Value:
    zero = cast(pa.scalar(0), value.type)
    negative = pc.if_else(pc.less(value, zero), pa.scalar(-1), pa.scalar(0))
    return pc.if_else(pc.greater(value, zero), pa.scalar(1), negative)


def _whole(kernel: Callable[[Value], Value]) -> Callable[[Value], Value]:
    def run(value: Value) -> Value:
        if pt.is_integer(value.type):
            return value
        if pt.is_decimal(value.type):  # up may need a digit more
            value = pc.cast(value, decimal(min(value.type.precision + 1, 76), value.type.scale))
        return kernel(value)

    return run


def _round(value: Value, digits: int = 0) -> Value:
    if pt.is_integer(value.type) and digits >= 0:
        return value
    if pt.is_integer(value.type):
        return cast(round_number(cast(value, decimal(20, 0)), digits), value.type)
    return round_number(value, digits)


def _matcher(kernel: Callable[..., Value]) -> Callable[..., Value]:
    return lambda value, pattern: kernel(value, pattern=pattern)


_SECOND, _REST = frozenset({1}), frozenset({1, 2})

FUNCTIONS: dict[str, Function] = {
    "lower": Function("text", 1, 1, _text_to(None), pc.utf8_lower),
    "upper": Function("text", 1, 1, _text_to(None), pc.utf8_upper),
    "trim": Function("text[, characters]", 1, 2, _text_to(None), _trim(pc.utf8_trim), _SECOND),
    "ltrim": Function("text[, characters]", 1, 2, _text_to(None), _trim(pc.utf8_ltrim), _SECOND),
    "rtrim": Function("text[, characters]", 1, 2, _text_to(None), _trim(pc.utf8_rtrim), _SECOND),
    "length": Function("text", 1, 1, _text_to(INT64), lambda value: cast(pc.utf8_length(value), INT64)),
    "substring": Function("text, start[, length]", 2, 3, _substring_rule, _substring, _REST),
    "concat": Function("text, ...", 1, None, _joined, _concat),
    "replace": Function("text, old, new", 3, 3, _text_to(None), _replace, _REST),
    "starts_with": Function("text, prefix", 2, 2, _text_to(BOOL), _matcher(pc.starts_with), _SECOND),
    "ends_with": Function("text, suffix", 2, 2, _text_to(BOOL), _matcher(pc.ends_with), _SECOND),
    "contains": Function("text, part", 2, 2, _text_to(BOOL), _matcher(pc.match_substring), _SECOND),
    "abs": Function("number", 1, 1, _number_to(None), pc.abs_checked),
    "sign": Function("number", 1, 1, _number_to(INT64), _sign),
    "round": Function("number[, digits]", 1, 2, _round_rule, _round, _SECOND),
    "floor": Function("number", 1, 1, _round_rule, _whole(pc.floor)),
    "ceil": Function("number", 1, 1, _round_rule, _whole(pc.ceil)),
    "trunc": Function("number", 1, 1, _round_rule, _whole(pc.trunc)),
    "sqrt": Function("number", 1, 1, _floats, pc.sqrt_checked),
    "power": Function("base, exponent", 2, 2, _floats, pc.power_checked),
    "coalesce": Function("value, ...", 1, None, _same, pc.coalesce, alike=True),
    "greatest": Function("value, ...", 1, None, _same, _extreme(">="), alike=True),
    "least": Function("value, ...", 1, None, _same, _extreme("<="), alike=True),
    "date_part": Function("part, date or time", 2, 2, _part_rule, _part, frozenset({0})),
    "date_trunc": Function("unit, date or timestamp", 2, 2, _trunc_rule, _trunc_to, frozenset({0})),
}

NOW = ("current_timestamp", "current_date")
"""Functions of the moment; a resolved expression has constants in their place."""


def call(name: str, values: Sequence[Value]) -> Value:
    """Compute a function on values of the types its rule asked for."""
    function = FUNCTIONS[name]
    arguments: list[Any] = []
    for position, value in enumerate(values):
        if position in function.constant:
            value = value.as_py()
            if value is None:  # every function with constants gives NULL for NULL
                return _null_like(function, values)
        arguments.append(value)
    return function.run(*arguments)


def _null_like(function: Function, values: Sequence[Value]) -> pa.Scalar:
    found = function.rule([value.type for value in values])
    return pa.scalar(None, found[1] if found else pa.null())


def part_names() -> tuple[str, ...]:
    """The parts of dates and times that functions such as ``year(x)`` may be named after."""
    return (*_DATE_PARTS, *_CLOCK_PARTS, *_PART_NAMES)
