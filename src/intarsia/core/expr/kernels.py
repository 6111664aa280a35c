"""Operators on Arrow arrays and scalars of one type, as SQL means them; casts are in casts.py."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.core.expr.casts import cast, move_zone, to_local
from intarsia.core.expr.nodes import ArithmeticOp, CompareOp
from intarsia.core.expr.types import DATE, INT64, NANOS
from intarsia.errors import NotSupported

Value = Any
"""A pa.Array, or a pa.Scalar that stands for the same value in every row."""

_COMPARE = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_MIRROR: dict[CompareOp, CompareOp] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compare(op: CompareOp, left: Value, right: Value) -> Value:
    """Compare; NaN equals NaN and is greater than every number; NULL gives NULL."""
    if not pt.is_floating(left.type):
        return _COMPARE[op](left, right)
    if op in (">", ">="):
        op, left, right = _MIRROR[op], right, left
    plain = _COMPARE[op](left, right)
    # pc.and_ and pc.or_ give NULL for NULL, which the Kleene versions would not.
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    if op == "=":
        return pc.or_(plain, pc.and_(left_nan, right_nan))
    if op == "<>":
        return pc.and_(plain, pc.invert(pc.and_(left_nan, right_nan)))
    if op == "<":
        return pc.or_(plain, pc.and_(right_nan, pc.invert(left_nan)))
    return pc.or_(plain, right_nan)


def mirror_operator(op: CompareOp) -> CompareOp:
    """The equivalent operator for swapped operands: ``<`` for ``>``."""
    return _MIRROR[op]


def is_in(value: Value, items: pa.Array) -> Value:
    """Membership: NULL for a NULL value, and where nothing matches but an item is NULL."""
    has_null = items.null_count > 0
    items = items.drop_null()
    if pt.is_floating(items.type) and pc.any(pc.equal(items, 0.0)).as_py():
        items = pa.concat_arrays([items, pa.array([0.0, -0.0], items.type)])
    found = pc.is_in(value, value_set=items)
    unknown = pc.or_(pc.is_null(value), pc.invert(found)) if has_null else pc.is_null(value)
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)


def match_like(value: Value, pattern: str, *, ignore_case: bool, escape: str | None) -> Value:
    """Match the whole text against a LIKE pattern."""
    parts = split_like_pattern(pattern, escape)
    literal = "".join(part for part in parts if part not in (ANY, ONE))
    wild = [part for part in parts if part in (ANY, ONE)]
    if not ignore_case and ONE not in wild:
        if not wild:
            return pc.equal(value, pa.scalar(literal, value.type))
        if wild == [ANY] and parts[-1] is ANY:
            return pc.starts_with(value, pattern=literal)
        if wild == [ANY] and parts[0] is ANY:
            return pc.ends_with(value, pattern=literal)
        if wild == [ANY, ANY] and parts[0] is ANY and parts[-1] is ANY:
            return pc.match_substring(value, pattern=literal)
    regex = "".join(".*" if p is ANY else "." if p is ONE else quote_regex(p) for p in parts)
    return pc.match_substring_regex(value, pattern=f"(?s)^{regex}$", ignore_case=ignore_case)


def quote_regex(text: str) -> str:
    """A regular expression that matches the text literally."""
    return re.escape(text).replace("\x00", r"\x00")


class _Wild(str):
    """A wildcard of LIKE; distinguished from text by identity."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other


ANY = _Wild("%")
ONE = _Wild("_")


def split_like_pattern(pattern: str, escape: str | None) -> list[str]:
    """A LIKE pattern as runs of plain text and the wildcards ANY and ONE."""
    parts: list[str] = []
    plain = ""
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            plain += next(characters, character)
        elif character in "%_":
            parts += [*([plain] if plain else []), ANY if character == "%" else ONE]
            plain = ""
        else:
            plain += character
    return [*parts, plain] if plain else parts


def compute_arithmetic(op: ArithmeticOp, left: Value, right: Value) -> Value:
    """Compute with checked kernels: overflow and division by zero raise pa.ArrowInvalid."""
    if op == "||":
        return pc.binary_join_element_wise(left, right, pa.scalar("", left.type), null_handling="emit_null")
    if op in "+-" and not (_is_number(left.type) and _is_number(right.type)):
        return _compute_temporal(op, left, right)
    if op == "+":
        return pc.add_checked(left, right)
    if op == "-":
        return pc.subtract_checked(left, right)
    if op == "*":
        return pc.multiply_checked(left, right)
    if op == "%":
        return _compute_remainder(left, right)
    return pc.divide_checked(left, right)


def _is_number(type: pa.DataType) -> bool:
    return not pt.is_temporal(type)


def _compute_remainder(left: Value, right: Value) -> Value:
    """The remainder of a division that truncates towards zero; it has the sign of the dividend."""
    if pt.is_integer(left.type):
        return pc.subtract(left, pc.multiply(pc.divide_checked(left, right), right))
    if "remainder_checked" not in pc.list_functions():
        raise NotSupported("% on decimals and floats needs pyarrow 26 or newer", hint="cast to an integer")
    return pc.call_function("remainder_checked", [left, right])


def _compute_temporal(op: ArithmeticOp, left: Value, right: Value) -> Value:
    if pt.is_interval(right.type):
        if not right.is_valid:
            return pc.if_else(pa.scalar(None, pa.bool_()), left, left)
        sign = -1 if op == "-" else 1
        months, days, nanos = (sign * part for part in right.as_py())
        return shift(left, months=months, days=days, nanos=nanos)
    if pt.is_date(left.type) and pt.is_integer(right.type):
        days = pc.cast(pc.cast(left, pa.int32()), INT64)
        moved = pc.add_checked(days, right) if op == "+" else pc.subtract_checked(days, right)
        return pc.cast(pc.cast(moved, pa.int32()), DATE)
    if pt.is_date(left.type) and pt.is_date(right.type):
        days = pc.cast(pc.cast(left, pa.int32()), INT64), pc.cast(pc.cast(right, pa.int32()), INT64)
        return pc.subtract(*days)
    return pc.add_checked(left, right) if op == "+" else pc.subtract_checked(left, right)


def shift(value: Value, *, months: int, days: int, nanos: int) -> Value:
    """Add an interval to dates or timestamps; a month after the 31st is the last day of a shorter month.

    Months and days are those of a timestamp's zone; what is shorter is a length of time everywhere.
    """
    if (months or days) and pt.is_timestamp(value.type) and value.type.tz:
        wall = shift(to_local(value), months=months, days=days, nanos=0)
        value, months, days = move_zone(wall, value), 0, 0
    if months:
        value = _add_months(value, months)
    if pt.is_date(value.type):
        moved = pc.add_checked(pc.cast(pc.cast(value, pa.int32()), INT64), pa.scalar(days))
        return pc.cast(pc.cast(moved, pa.int32()), DATE)
    ticks, rest = divmod(days * 86_400 * 10**9 + nanos, NANOS[value.type.unit])
    if rest:
        raise pa.ArrowInvalid(f"the interval is finer than {value.type}")
    return pc.add_checked(value, pa.scalar(ticks, pa.duration(value.type.unit)))


def _add_months(value: Value, months: int) -> Value:
    total = pc.add(pc.add(pc.multiply(pc.year(value), 12), pc.month(value)), months - 1)
    first, following = find_month_start(total), find_month_start(pc.add(total, 1))
    day = pc.min_element_wise(pc.day(value), pc.subtract(following, first), skip_nulls=False)
    date = pc.cast(pc.cast(pc.subtract(pc.add(first, day), 1), pa.int32()), DATE)
    if pt.is_date(value.type):
        return date
    clock = pc.subtract(value, cast(pc.cast(value, DATE), value.type))
    return pc.add_checked(cast(date, value.type), clock)


def find_month_start(total: Value) -> Value:
    """Days from 1970-01-01 to the first of the month, given as year * 12 + month - 1.

    Howard Hinnant's days_from_civil, for years from 1 on.
    """
    shifted = pc.subtract(total, 2)  # the year begins in March, so that a leap day comes last
    year = pc.divide(shifted, 12)
    month = pc.subtract(shifted, pc.multiply(year, 12))
    era = pc.divide(year, 400)
    of_era = pc.subtract(year, pc.multiply(era, 400))
    leap = pc.subtract(pc.divide(of_era, 4), pc.divide(of_era, 100))
    of_year = pc.divide(pc.add(pc.multiply(month, 153), 2), 5)
    days = pc.add(pc.add(pc.multiply(of_era, 365), leap), of_year)
    return pc.subtract(pc.add(pc.multiply(era, 146_097), days), 719_468)
