"""Conditions of Polars as conditions of ours that are TRUE at least where those are.

A scan prunes files and row groups by them, and Polars filters what is left by its own condition: what is
translated in part, or not at all, costs time and no exactness. What SQL might find FALSE where Polars finds
it TRUE is not translated; to Polars, for one, NaN is above all other numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from functools import reduce
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.expr import And, Column, Compare, Expr, In, IsNull, Not, Or, make_literal
from intarsia.core.expr.nodes import CompareOp

__all__ = ["translate_predicate"]

Node = Any
"""A part of an expression as Polars writes it in JSON: a dict with one key, its kind."""

_OPERATORS: Mapping[str, CompareOp] = {
    "Eq": "=",
    "NotEq": "<>",
    "Lt": "<",
    "LtEq": "<=",
    "Gt": ">",
    "GtEq": ">=",
}
_NEGATED: Mapping[CompareOp, CompareOp] = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_SWAPPED: Mapping[CompareOp, CompareOp] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_BETWEEN: Mapping[str, tuple[CompareOp, CompareOp]] = {
    "Both": (">=", "<="),
    "Left": (">=", "<"),
    "Right": (">", "<="),
    "None": (">", "<"),
}
_UNITS = {"Milliseconds": "ms", "Microseconds": "us", "Nanoseconds": "ns"}
_MOST_ITEMS = 1000
"""Of a list with more, the least and the greatest are enough to prune by."""


def translate_predicate(predicate: pl.Expr, schema: pa.Schema) -> Expr | None:
    """A condition that is TRUE for every row for which ``predicate`` is; None where nothing is known."""
    try:
        node = json.loads(predicate.meta.serialize(format="json"))
    except (pl.exceptions.PolarsError, ValueError):  # such as a function of Python's in it
        return None
    return _translate(node, schema, negated=False)


def _translate(node: Node, schema: pa.Schema, *, negated: bool) -> Expr | None:
    match node:
        case {"Column": str(name)} if _is_type(schema, name, pa.types.is_boolean):
            return Compare("=", _column(name), make_literal(not negated))
        case {"BinaryExpr": {"left": left, "op": "And" | "Or" as operator, "right": right}}:
            parts = [_translate(part, schema, negated=negated) for part in (left, right)]
            return _join(parts, is_and=(operator == "And") != negated)
        case {"BinaryExpr": {"left": left, "op": str(operator), "right": right}} if operator in _OPERATORS:
            sign = _NEGATED[_OPERATORS[operator]] if negated else _OPERATORS[operator]
            if "Column" in right:
                return _compare(right, _SWAPPED[sign], left, schema)
            return _compare(left, sign, right, schema)
        case {"Function": {"input": [part], "function": {"Boolean": "Not"}}}:
            return _translate(part, schema, negated=not negated)
        case {
            "Function": {
                "input": [{"Column": str(name)}],
                "function": {"Boolean": "IsNull" | "IsNotNull" as question},
            }
        } if name in schema.names:
            is_null = IsNull(_column(name))
            return is_null if (question == "IsNull") != negated else Not(is_null)
        case {
            "Function": {
                "input": [part, low, high],
                "function": {"Boolean": {"IsBetween": {"closed": closed}}},
            }
        }:
            operators = zip(_BETWEEN.get(closed, ()), (low, high), strict=False)
            sides = [_compare(part, _NEGATED[one] if negated else one, end, schema) for one, end in operators]
            return _join(sides, is_and=not negated)
        case {
            "Function": {
                "input": [{"Column": str(name)}, {"Literal": {"Scalar": {"List": values}}}],
                "function": {"Boolean": {"IsIn": {"nulls_equal": False}}},
            }
        } if not negated:
            return _is_in(name, bytes(values), schema)
    return None


def _join(parts: list[Expr | None], *, is_and: bool) -> Expr | None:
    """All of them; of several that must all be TRUE, those that are known are enough."""
    known = [part for part in parts if part is not None]
    if not known or (not is_and and len(known) < len(parts)):
        return None
    return reduce(And if is_and else Or, known)


def _column(name: str) -> Column:
    return Column((name,), exact=True)


def _compare(column: Node, sign: CompareOp, literal: Node, schema: pa.Schema) -> Expr | None:
    match column, literal:
        case {"Column": str(name)}, {"Literal": value} if name in schema.names:
            scalar = _make_scalar(value, schema.field(name).type)
            if scalar is None or (pa.types.is_floating(scalar.type) and sign not in ("=", "<", "<=")):
                return None
            return Compare(sign, _column(name), make_literal(scalar))
    return None


def _is_in(name: str, values: bytes, schema: pa.Schema) -> Expr | None:
    """``name`` is one of the values, which Polars writes as a stream of Arrow."""
    if name not in schema.names or not _is_comparable(schema.field(name).type):
        return None
    try:
        found = pa.ipc.open_stream(values).read_all().column(0).combine_chunks()
        items = found.drop_null().cast(schema.field(name).type)
    except pa.ArrowException:
        return None
    if not len(items):
        return None
    if len(items) <= _MOST_ITEMS:
        return In(_column(name), tuple(map(make_literal, items)))
    least, greatest = pc.min_max(items).values()
    return And(
        Compare(">=", _column(name), make_literal(least)),
        Compare("<=", _column(name), make_literal(greatest)),
    )


def _is_type(schema: pa.Schema, name: str, question: Callable[[pa.DataType], bool]) -> bool:
    return name in schema.names and question(schema.field(name).type)


def _is_comparable(data_type: pa.DataType) -> bool:
    """Whether values of a type are equal here exactly where they are in Polars."""
    types = pa.types
    return types.is_integer(data_type) or types.is_date32(data_type) or _is_text(data_type)


def _is_text(data_type: pa.DataType) -> bool:
    return data_type in (pa.string(), pa.large_string(), pa.string_view())


def _make_scalar(literal: Node, data_type: pa.DataType) -> pa.Scalar | None:
    """The value that a column of this type is compared with; None where the two may mean something else."""
    types = pa.types
    match literal:
        case {"Dyn": {"Int": int(value)}} if types.is_integer(data_type):
            return _convert(value, data_type)
        case {"Dyn": {"Float": float(value)}} if types.is_float64(data_type):
            return _convert(value, data_type)
        case {"Scalar": dict(typed)} if len(typed) == 1:
            return _make_typed_scalar(*next(iter(typed.items())), data_type)
    return None


def _make_typed_scalar(kind: str, value: Any, data_type: pa.DataType) -> pa.Scalar | None:
    types = pa.types
    match kind, value:
        case ("Boolean", bool()) if types.is_boolean(data_type):
            return _convert(value, data_type)
        case (_, int()) if kind.startswith(("Int", "UInt")) and types.is_integer(data_type):
            return _convert(value, data_type)
        case ("Float64", float()) if types.is_float64(data_type):
            return _convert(value, data_type)
        case ("String" | "StringOwned", str()) if _is_text(data_type):
            return _convert(value, data_type)
        case ("Date", int()) if types.is_date32(data_type):
            return _convert(value, data_type)
        case ("Datetime", [int(count), str(unit), zone]) if types.is_timestamp(data_type):
            if unit in _UNITS and (zone is None) == (data_type.tz is None):
                return _convert(pa.scalar(count, pa.timestamp(_UNITS[unit], data_type.tz)), data_type)
        case ("Decimal", [int(digits), int(), int(scale)]) if types.is_decimal128(data_type):
            if scale <= data_type.scale:  # Polars may round what has more digits
                return _convert(Context(prec=76).scaleb(Decimal(digits), -scale), data_type)
    return None


def _convert(value: Any, data_type: pa.DataType) -> pa.Scalar | None:
    """The value as one of the type; None where the type has no such value."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    try:
        return value.cast(data_type) if isinstance(value, pa.Scalar) else pa.scalar(value, data_type)
    except (pa.ArrowException, OverflowError):
        return None
