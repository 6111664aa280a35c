"""The operands of an expression while it is resolved: columns found, constants fitted, types of arithmetic.

A constant is brought to the type of what it meets exactly: no comparison changes its outcome by rounding.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NoReturn

import pyarrow as pa
import pyarrow.types as pt

from intarsia.common.names import find_near_names, suggest_names
from intarsia.core.expr.casts import check_zone
from intarsia.core.expr.nodes import (
    Arithmetic,
    ArithmeticOp,
    Cast,
    Column,
    Compare,
    CompareOp,
    Expr,
    Literal,
    Side,
    make_literal,
    to_sql,
)
from intarsia.core.expr.run import NO_ROWS, run
from intarsia.core.expr.types import (
    DATE,
    DAY_NANOS,
    FLOAT64,
    INT64,
    NANOS,
    UINT64,
    as_decimal,
    find_common_type,
    find_finest_unit,
    find_working_type,
    get_integer_range,
    is_bytes,
    is_number,
    is_text,
    make_decimal,
)
from intarsia.errors import ColumnNotFound, InputError, NotSupported

Typed = tuple[Expr, pa.DataType]
_EXAMPLES = {"date": "'2025-01-31'", "time": "'13:30:00'", "timestamp": "'2025-01-31 13:30:00'"}
_OFFSET = re.compile(r":.*?\s*(Z|UTC|[+-]\d{2}(?::?\d{2})?)$", re.IGNORECASE)


# Columns


def find_column(node: Column, schema: pa.Schema, source: pa.Schema | None) -> Typed:
    """The column as the schemas spell it, and the type it is computed in.

    Raises:
        ColumnNotFound: there is none of this name.
        InputError: the name could mean several.
    """
    if source is None:
        # "target" and "source" are plain names outside a merge, unless no such column exists.
        if node.side is not None and any(name.lower() == node.side for name in schema.names):
            node = Column((node.side, *node.path), None, node.exact)
        if node.side == "source":
            raise InputError(f"{to_sql(node)} names a source, and there is none here")
        path, type = _find(node, schema)
        return Column(path, None, True), type
    side: Side = node.side or _find_side(node, schema, source)
    path, type = _find(node, schema if side == "target" else source)
    return Column(path, side, True), type


def find_stored_type(node: Column, schema: pa.Schema, source: pa.Schema | None) -> pa.DataType:
    """The type that a column, as :func:`find_column` gives it back, has in its schema."""
    side = source if node.side == "source" and source is not None else schema
    found: pa.DataType = side.field(node.path[0]).type
    for part in node.path[1:]:
        found = found.field(part).type
    return found


def _find_side(node: Column, target: pa.Schema, source: pa.Schema) -> Side:
    places: list[Side] = []
    if _match_names(node.path[0], target.names, node.exact):
        places.append("target")
    if _match_names(node.path[0], source.names, node.exact):
        places.append("source")
    if len(places) == 2:
        name = ".".join(node.path)
        raise InputError(f"{name!r} is a column of both sides", hint=f"write target.{name} or source.{name}")
    return places[0] if places else "target"


def _find(node: Column, schema: pa.Schema) -> tuple[tuple[str, ...], pa.DataType]:
    level: pa.Schema | pa.StructType | None = schema
    path: list[str] = []
    found: pa.DataType = pa.null()
    for part in node.path:
        at = -1 if level is None else level.get_field_index(part)
        if at < 0:  # spelt in another case, or none or several
            names = [] if level is None else [field.name for field in level]
            matches = _match_names(part, names, node.exact)
            if len(matches) != 1:
                _raise_not_one(".".join(node.path), part, matches, names)
            at = names.index(matches[0])
        assert level is not None
        field = level.field(at)
        path.append(field.name)
        found = field.type
        level = found if pt.is_struct(found) else None
    return tuple(path), find_working_type(found)


def _match_names(name: str, names: Sequence[str], exact: bool) -> list[str]:
    if name in names:
        return [name]
    return [] if exact else [other for other in names if other.lower() == name.lower()]


def _raise_not_one(path: str, part: str, matches: Sequence[str], names: Sequence[str]) -> NoReturn:
    if matches:
        raise InputError(
            f"column {path!r} could be any of {', '.join(map(repr, matches))}", hint="quote the one you mean"
        )
    close = find_near_names(part, names)
    hint = suggest_names([part], names) if names else ""
    if not close and path == part:  # a text that is not quoted, or not as SQL does
        hint += f" A text is written in single quotes: '{part}'"
    raise ColumnNotFound(f"there is no column {path!r}", hint=hint.strip() or None)


# Constants


def compare_with_literal(op: CompareOp, expr: Expr, type: pa.DataType, constant: Literal) -> Expr | None:
    """``expr op constant`` with both in one type; None if the types cannot be compared.

    A constant that the type has no value for moves to the next one that says the same:
    ``n < 2.5`` is ``n <= 2`` for an integer n, and ``n = 2.5`` is never true.
    """
    if constant.value is None:
        return Compare(op, expr, Literal(None, type))
    if pt.is_null(type):
        return Compare(op, Literal(None, constant.type), constant)
    steps = _count_steps(constant, type)
    if steps is not None:
        return _compare_on_grid(op, expr, type, steps)
    if is_number(type) and is_number(constant.type):
        wide = type if _fits_float(constant, type) else FLOAT64
        return Compare(op, expr if wide == type else Cast(expr, wide), _make_float(constant, wide))
    if is_text(type) and is_text(constant.type):
        return Compare(op, expr, Literal(constant.value, type))
    if is_bytes(type) and (is_bytes(constant.type) or is_text(constant.type)):
        data = constant.value
        return Compare(op, expr, Literal(data.encode() if isinstance(data, str) else data, type))
    return Compare(op, expr, constant) if type == constant.type else None


def fit_literal(constant: Literal, type: pa.DataType) -> Literal | None:
    """The constant as a value of the type; None if the type cannot represent it."""
    if constant.value is None:
        return Literal(None, type)
    equal = compare_with_literal("=", Literal(None, type), type, constant)
    match equal:
        case Compare("=", _, Literal() as found) if found.type == type and found.value is not None:
            return found
    return None


def _fits_float(constant: Literal, type: pa.DataType) -> bool:
    if not pt.is_floating(type):
        return False
    value = float(constant.value)
    return type == FLOAT64 or not math.isfinite(value) or math.isfinite(_to_float32(value))


def _to_float32(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.inf


def _make_float(constant: Literal, type: pa.DataType) -> Literal:
    value = float(constant.value)
    return Literal(value if type == FLOAT64 else _to_float32(value), type)


def _count_steps(constant: Literal, type: pa.DataType) -> Fraction | None:
    """The constant in the smallest steps of the type (1, 0.01, a day ...); None for other types."""
    value = constant.value
    if is_number(type) and is_number(constant.type):
        if pt.is_floating(type) or (isinstance(value, float) and pt.is_decimal(type)):
            return None
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return Fraction(value) * (Fraction(10) ** type.scale if pt.is_decimal(type) else 1)
    if pt.is_temporal(type) and not pt.is_interval(type):
        nanos = _to_nanos(constant, type)
        return None if nanos is None else Fraction(nanos, _get_step_nanos(type))
    return None


def _get_step_nanos(type: pa.DataType) -> int:
    return DAY_NANOS if pt.is_date(type) else NANOS[type.unit]


def _to_nanos(constant: Literal, type: pa.DataType) -> int | None:
    """A constant that is compared with a date, time, timestamp or duration, in nanoseconds."""
    own = constant.type
    kinds = (lambda kind: pt.is_date(kind) or pt.is_timestamp(kind), pt.is_time, pt.is_duration)
    if any(is_kind(own) and is_kind(type) for is_kind in kinds):
        return int(constant.value) * _get_step_nanos(own)
    if pt.is_interval(own) and pt.is_duration(type) and constant.value[0] == 0:
        return int(constant.value[1] * DAY_NANOS + constant.value[2])
    return parse_nanos(constant.value, type) if is_text(own) and not pt.is_duration(type) else None


def parse_nanos(text: str, type: pa.DataType) -> int:
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
        hint = f"write it as {_EXAMPLES[_name_kind(type)]}"
        raise InputError(f"{text!r} is not a {_name_kind(type)}: {error}", hint=hint) from error


def _parse_text(text: str, type: pa.DataType) -> int:
    """Parse as microseconds, which reach every year; as nanoseconds if the text has more digits."""
    if re.search(r"\.\d{7,9}(\D|$)", text):
        type = pa.timestamp("ns", type.tz)
    return int(pa.scalar(text).cast(type).value) * NANOS[type.unit]


def _name_kind(type: pa.DataType) -> str:
    return "date" if pt.is_date(type) else "time" if pt.is_time(type) else "timestamp"


def _get_range(type: pa.DataType) -> tuple[int, int]:
    if pt.is_integer(type):
        return get_integer_range(type)
    if pt.is_decimal(type):
        most = 10**type.precision - 1
        return -most, most
    bits = 32 if pt.is_date(type) else 64
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _compare_on_grid(op: CompareOp, expr: Expr, type: pa.DataType, steps: Fraction) -> Expr:
    low, high = _get_range(type)

    def compare_at(op: CompareOp, step: int) -> Expr:
        return Compare(op, expr, _make_value(step, type))

    never, always = Compare("<>", expr, expr), Compare("=", expr, expr)  # NULL where the operand is
    if steps.denominator == 1 and low <= steps <= high:
        return compare_at(op, int(steps))
    if op == "=":
        return never
    if op == "<>":
        return always
    if op in ("<", "<="):
        below = math.floor(steps)
        return never if below < low else always if below >= high else compare_at("<=", below)
    above = math.ceil(steps)
    return never if above > high else always if above <= low else compare_at(">=", above)


def _make_value(step: int, type: pa.DataType) -> Literal:
    if pt.is_decimal(type):
        digits = tuple(map(int, str(abs(step))))  # built digit by digit: Decimal's operators round to 28
        return Literal(Decimal((int(step < 0), digits, -type.scale)), type)
    return Literal(step, type)


# Arithmetic: + - * / // % and the types they are computed in


def as_type(typed: Typed, type: pa.DataType) -> Expr:
    """The expression cast to a type; a constant is converted at once."""
    expr, current = typed
    if current == type:
        return expr
    if isinstance(expr, Literal):
        return make_literal(run(Cast(expr, type), NO_ROWS))
    return Cast(expr, type)


def with_shared_zone(typed: Sequence[Typed]) -> list[Typed]:
    """The operands with constant instants in the time zone that all the others share."""
    zones = {_get_zone(item) for item in typed if not isinstance(item[0], Literal)} - {None}
    if len(zones) != 1:
        return list(typed)
    (zone,) = zones
    found: list[Typed] = []
    for expr, type in typed:
        if isinstance(expr, Literal) and _get_zone((expr, type)) is not None:
            type = pa.timestamp(type.unit, zone)
            expr = Literal(expr.value, type)
        found.append((expr, type))
    return found


def _get_zone(typed: Typed) -> str | None:
    return typed[1].tz if pt.is_timestamp(typed[1]) else None


def resolve_numeric(op: ArithmeticOp, left: Typed, right: Typed) -> Typed | None:
    """An operation on two numbers; None if the operator is not defined for them."""
    types = (left[1], right[1])
    whole = all(map(pt.is_integer, types))
    if op == "//" and not whole:
        return None
    if op == "/" or any(map(pt.is_floating, types)):
        type = FLOAT64
    elif whole:
        type = _choose_integer_type(left, right)
    else:
        return _resolve_decimal(op, left, right)
    if pt.is_decimal(type):
        return _resolve_decimal(op, left, right)
    return Arithmetic(op, as_type(left, type), as_type(right, type)), type


def _choose_integer_type(left: Typed, right: Typed) -> pa.DataType:
    """Integers are computed in 64 bits, whatever they are stored in."""
    if UINT64 not in (left[1], right[1]):
        return INT64
    unsigned = all(
        pt.is_unsigned_integer(type) or (isinstance(expr, Literal) and expr.value >= 0)
        for expr, type in (left, right)
    )
    return UINT64 if unsigned else make_decimal(20, 0)


def _resolve_decimal(op: ArithmeticOp, left: Typed, right: Typed) -> Typed | None:
    """An exact operation on decimals; the digits of the result follow pyarrow's rules."""
    one, two = _find_decimal(left), _find_decimal(right)
    if op == "//":
        return None
    scale = max(one.scale, two.scale)
    whole = max(one.precision - one.scale, two.precision - two.scale)
    if op == "%":
        type = make_decimal(whole + scale, scale)
        return Arithmetic(op, as_type(left, type), as_type(right, type)), type
    if op == "*":
        type = make_decimal(one.precision + two.precision + 1, one.scale + two.scale)
    else:
        type = make_decimal(whole + scale + 1, scale)
    one, two = _widen(one, type), _widen(two, type)
    return Arithmetic(op, as_type(left, one), as_type(right, two)), type


def _find_decimal(typed: Typed) -> pa.DataType:
    expr, type = typed
    if isinstance(expr, Literal) and pt.is_integer(type):
        return make_decimal(len(str(abs(expr.value))), 0)
    return as_decimal(type)


def _widen(type: pa.DataType, like: pa.DataType) -> pa.DataType:
    return pa.decimal256(type.precision, type.scale) if pt.is_decimal256(like) else type


def resolve_temporal(op: ArithmeticOp, left: Typed, right: Typed) -> Typed | None:
    """Dates, timestamps and durations; None where the operator has no meaning for them."""
    one, two = left[1], right[1]
    if op not in ("+", "-"):
        return None
    if pt.is_date(one) and pt.is_integer(two):
        return Arithmetic(op, left[0], as_type(right, INT64)), DATE
    if op == "-" and pt.is_date(one) and pt.is_date(two):
        return Arithmetic(op, left[0], right[0]), INT64
    moments = [pt.is_timestamp(type) or pt.is_date(type) for type in (one, two)]
    if op == "-" and all(moments):
        type = find_common_type(one, two)
        assert type is not None
        return Arithmetic(op, as_type(left, type), as_type(right, type)), pa.duration(type.unit)
    if pt.is_duration(one) and pt.is_duration(two):
        unit = find_finest_unit(one.unit, two.unit)
        type = pa.duration(unit)
        return Arithmetic(op, as_type(left, type), as_type(right, type)), type
    if moments[0] and pt.is_duration(two):
        unit = two.unit if pt.is_date(one) else find_finest_unit(one.unit, two.unit)
        type = pa.timestamp(unit, None if pt.is_date(one) else one.tz)
        return Arithmetic(op, as_type(left, type), as_type(right, pa.duration(unit))), type
    if moments[0] and pt.is_interval(two):
        return _resolve_interval(op, left, right[0])
    return None


def _resolve_interval(op: ArithmeticOp, left: Typed, interval: Expr) -> Typed:
    if not isinstance(interval, Literal):
        raise NotSupported("an interval must be a constant")
    type = left[1]
    nanos = interval.value[2] if interval.value is not None else 0
    check_zone(type)
    if nanos and pt.is_date(type):
        type = pa.timestamp("us")
    elif nanos % 10**9:
        type = pa.timestamp(find_finest_unit(type.unit, "us"), type.tz)
    return Arithmetic(op, as_type(left, type), interval), type
