"""Gives operands of + - * / // % the types they are computed in; part of resolving an expression."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

from intarsia.core.expr.casts import check_zone
from intarsia.core.expr.nodes import Arithmetic, ArithmeticOp, Cast, Expr, Literal, literal
from intarsia.core.expr.run import NO_ROWS, run
from intarsia.core.expr.types import DATE, FLOAT64, INT64, UINT64, as_decimal, common_type, decimal, finest
from intarsia.errors import NotSupported

Typed = tuple[Expr, pa.DataType]


def as_type(typed: Typed, type: pa.DataType) -> Expr:
    """The expression in that type; a constant is converted right here."""
    expr, current = typed
    if current == type:
        return expr
    if isinstance(expr, Literal):
        return literal(run(Cast(expr, type), NO_ROWS))
    return Cast(expr, type)


def with_shared_zone(typed: Sequence[Typed]) -> list[Typed]:
    """The same with constant instants in the zone that all others share; a constant has none of its own."""
    zones = {_zone(item) for item in typed if not isinstance(item[0], Literal)} - {None}
    if len(zones) != 1:
        return list(typed)
    (zone,) = zones
    found: list[Typed] = []
    for expr, type in typed:
        if isinstance(expr, Literal) and _zone((expr, type)) is not None:
            type = pa.timestamp(type.unit, zone)
            expr = Literal(expr.value, type)
        found.append((expr, type))
    return found


def _zone(typed: Typed) -> str | None:
    return typed[1].tz if pt.is_timestamp(typed[1]) else None


def numeric(op: ArithmeticOp, left: Typed, right: Typed) -> Typed | None:
    """Two numbers, or None where the operator has no meaning for them."""
    types = (left[1], right[1])
    whole = all(map(pt.is_integer, types))
    if op == "//" and not whole:
        return None
    if op == "/" or any(map(pt.is_floating, types)):
        type = FLOAT64
    elif whole:
        type = _whole(left, right)
    else:
        return _exact(op, left, right)
    if pt.is_decimal(type):
        return _exact(op, left, right)
    return Arithmetic(op, as_type(left, type), as_type(right, type)), type


def _whole(left: Typed, right: Typed) -> pa.DataType:
    """Integers are computed in 64 bits, whatever they are stored in."""
    if UINT64 not in (left[1], right[1]):
        return INT64
    unsigned = all(
        pt.is_unsigned_integer(type) or (isinstance(expr, Literal) and expr.value >= 0)
        for expr, type in (left, right)
    )
    return UINT64 if unsigned else decimal(20, 0)


def _exact(op: ArithmeticOp, left: Typed, right: Typed) -> Typed | None:
    """Decimals, wide enough that nothing is lost; pyarrow's own rules for the result's digits."""
    one, two = _decimal_of(left), _decimal_of(right)
    if op == "//":
        return None
    scale = max(one.scale, two.scale)
    whole = max(one.precision - one.scale, two.precision - two.scale)
    if op == "%":
        type = decimal(whole + scale, scale)
        return Arithmetic(op, as_type(left, type), as_type(right, type)), type
    if op == "*":
        type = decimal(one.precision + two.precision + 1, one.scale + two.scale)
    else:
        type = decimal(whole + scale + 1, scale)
    one, two = _widen(one, type), _widen(two, type)
    return Arithmetic(op, as_type(left, one), as_type(right, two)), type


def _decimal_of(typed: Typed) -> pa.DataType:
    expr, type = typed
    if isinstance(expr, Literal) and pt.is_integer(type):
        return decimal(len(str(abs(expr.value))), 0)
    return as_decimal(type)


def _widen(type: pa.DataType, like: pa.DataType) -> pa.DataType:
    return pa.decimal256(type.precision, type.scale) if pt.is_decimal256(like) else type


def temporal(op: ArithmeticOp, left: Typed, right: Typed) -> Typed | None:
    """A moment and a span, or two of one kind; None where that has no meaning."""
    one, two = left[1], right[1]
    if op not in ("+", "-"):
        return None
    if pt.is_date(one) and pt.is_integer(two):
        return Arithmetic(op, left[0], as_type(right, INT64)), DATE
    if op == "-" and pt.is_date(one) and pt.is_date(two):
        return Arithmetic(op, left[0], right[0]), INT64
    moments = [pt.is_timestamp(type) or pt.is_date(type) for type in (one, two)]
    if op == "-" and all(moments):
        type = common_type(one, two)
        assert type is not None
        return Arithmetic(op, as_type(left, type), as_type(right, type)), pa.duration(type.unit)
    if pt.is_duration(one) and pt.is_duration(two):
        unit = finest(one.unit, two.unit)
        type = pa.duration(unit)
        return Arithmetic(op, as_type(left, type), as_type(right, type)), type
    if moments[0] and pt.is_duration(two):
        unit = two.unit if pt.is_date(one) else finest(one.unit, two.unit)
        type = pa.timestamp(unit, None if pt.is_date(one) else one.tz)
        return Arithmetic(op, as_type(left, type), as_type(right, pa.duration(unit))), type
    if moments[0] and pt.is_interval(two):
        return _by_interval(op, left, right[0])
    return None


def _by_interval(op: ArithmeticOp, left: Typed, interval: Expr) -> Typed:
    if not isinstance(interval, Literal):
        raise NotSupported("an interval must be a constant")
    type = left[1]
    nanos = interval.value[2] if interval.value is not None else 0
    check_zone(type)
    if nanos and pt.is_date(type):
        type = pa.timestamp("us")
    elif nanos % 10**9:
        type = pa.timestamp(finest(type.unit, "us"), type.tz)
    return Arithmetic(op, as_type(left, type), interval), type
