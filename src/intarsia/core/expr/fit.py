"""Brings a constant to the type of what it meets, exactly: no comparison changes its outcome by rounding."""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pyarrow.types as pt

from intarsia.core.expr.nodes import Cast, Compare, CompareOp, Expr, Literal
from intarsia.core.expr.types import DAY_NANOS, FLOAT64, NANOS, integer_range, is_bytes, is_number, is_text
from intarsia.errors import InputError

_EXAMPLES = {"date": "'2025-01-31'", "time": "'13:30:00'", "timestamp": "'2025-01-31 13:30:00'"}
_OFFSET = re.compile(r":.*?\s*(Z|UTC|[+-]\d{2}(?::?\d{2})?)$", re.IGNORECASE)


def against_literal(op: CompareOp, expr: Expr, type: pa.DataType, constant: Literal) -> Expr | None:
    """``expr op constant`` with both in one type, or None when they do not go together.

    A constant that the type has no value for moves to the next one that says the same:
    ``n < 2.5`` is ``n <= 2`` for an integer n, and ``n = 2.5`` is never true.
    """
    if constant.value is None:
        return Compare(op, expr, Literal(None, type))
    if pt.is_null(type):
        return Compare(op, Literal(None, constant.type), constant)
    steps = _steps(constant, type)
    if steps is not None:
        return _on_grid(op, expr, type, steps)
    if is_number(type) and is_number(constant.type):
        wide = type if _fits_float(constant, type) else FLOAT64
        return Compare(op, expr if wide == type else Cast(expr, wide), _float(constant, wide))
    if is_text(type) and is_text(constant.type):
        return Compare(op, expr, Literal(constant.value, type))
    if is_bytes(type) and (is_bytes(constant.type) or is_text(constant.type)):
        data = constant.value
        return Compare(op, expr, Literal(data.encode() if isinstance(data, str) else data, type))
    return Compare(op, expr, constant) if type == constant.type else None


def fit_literal(constant: Literal, type: pa.DataType) -> Literal | None:
    """The constant as a value of the type, or None where the type does not have it."""
    if constant.value is None:
        return Literal(None, type)
    equal = against_literal("=", Literal(None, type), type, constant)
    match equal:
        case Compare("=", _, Literal() as found) if found.type == type and found.value is not None:
            return found
    return None


def _fits_float(constant: Literal, type: pa.DataType) -> bool:
    if not pt.is_floating(type):
        return False
    value = float(constant.value)
    return type == FLOAT64 or not math.isfinite(value) or math.isfinite(_single(value))


def _single(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.inf


def _float(constant: Literal, type: pa.DataType) -> Literal:
    value = float(constant.value)
    return Literal(value if type == FLOAT64 else _single(value), type)


def _steps(constant: Literal, type: pa.DataType) -> Fraction | None:
    """The constant counted in the smallest steps of the type, where the type has such steps."""
    value = constant.value
    if is_number(type) and is_number(constant.type):
        if pt.is_floating(type) or (isinstance(value, float) and pt.is_decimal(type)):
            return None
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return Fraction(value) * (Fraction(10) ** type.scale if pt.is_decimal(type) else 1)
    if pt.is_temporal(type) and not pt.is_interval(type):
        nanos = _nanos(constant, type)
        return None if nanos is None else Fraction(nanos, _step_nanos(type))
    return None


def _step_nanos(type: pa.DataType) -> int:
    return DAY_NANOS if pt.is_date(type) else NANOS[type.unit]


def _nanos(constant: Literal, type: pa.DataType) -> int | None:
    """A constant beside a date, time, timestamp or duration, in nanoseconds."""
    own = constant.type
    kinds = (lambda kind: pt.is_date(kind) or pt.is_timestamp(kind), pt.is_time, pt.is_duration)
    if any(is_kind(own) and is_kind(type) for is_kind in kinds):
        return int(constant.value) * _step_nanos(own)
    if pt.is_interval(own) and pt.is_duration(type) and constant.value[0] == 0:
        return int(constant.value[1] * DAY_NANOS + constant.value[2])
    return text_nanos(constant.value, type) if is_text(own) and not pt.is_duration(type) else None


def text_nanos(text: str, type: pa.DataType) -> int:
    """The text of a date, time or timestamp, in nanoseconds; without an offset it is UTC."""
    text = text.strip()
    zoned = pt.is_timestamp(type) and type.tz is not None
    try:
        if pt.is_time(type):
            return _parse_text(f"1970-01-01 {text}", pa.timestamp("ns"))
        offset = _OFFSET.search(text)
        if offset and not zoned:
            raise InputError(
                f"{text!r} has an offset, and {type} has no zone", hint="leave the offset out of the text"
            )
        if offset:
            text = text[: offset.start(1)].rstrip() + offset[1].upper().replace("UTC", "Z")
            return _parse_text(text, pa.timestamp("us", "UTC"))
        return _parse_text(text, pa.timestamp("us"))
    except pa.ArrowInvalid as error:
        if isinstance(error, InputError):
            raise
        hint = f"write it as {_EXAMPLES[_noun(type)]}"
        raise InputError(f"{text!r} is not a {_noun(type)}: {error}", hint=hint) from error


def _parse_text(text: str, type: pa.DataType) -> int:
    """Microseconds reach every year; nanoseconds are tried where the text has more digits."""
    if re.search(r"\.\d{7,9}(\D|$)", text):
        type = pa.timestamp("ns", type.tz)
    return int(pa.scalar(text).cast(type).value) * NANOS[type.unit]


def _noun(type: pa.DataType) -> str:
    return "date" if pt.is_date(type) else "time" if pt.is_time(type) else "timestamp"


def _range(type: pa.DataType) -> tuple[int, int]:
    if pt.is_integer(type):
        return integer_range(type)
    if pt.is_decimal(type):
        most = 10**type.precision - 1
        return -most, most
    bits = 32 if pt.is_date(type) else 64
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _on_grid(op: CompareOp, expr: Expr, type: pa.DataType, steps: Fraction) -> Expr:
    low, high = _range(type)

    def at(op: CompareOp, step: int) -> Expr:
        return Compare(op, expr, _value(step, type))

    never, always = Compare("<>", expr, expr), Compare("=", expr, expr)  # NULL where the operand is
    if steps.denominator == 1 and low <= steps <= high:
        return at(op, int(steps))
    if op == "=":
        return never
    if op == "<>":
        return always
    if op in ("<", "<="):
        below = math.floor(steps)
        return never if below < low else always if below >= high else at("<=", below)
    above = math.ceil(steps)
    return never if above > high else always if above <= low else at(">=", above)


def _value(step: int, type: pa.DataType) -> Literal:
    if pt.is_decimal(type):
        digits = tuple(map(int, str(abs(step))))  # built digit by digit: Decimal's operators round to 28
        return Literal(Decimal((int(step < 0), digits, -type.scale)), type)
    return Literal(step, type)
