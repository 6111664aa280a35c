"""Expressions as SQL text, for plans, messages and DuckDB; identifiers and constants are quoted here."""

from __future__ import annotations

import math
from typing import assert_never

import pyarrow as pa
import pyarrow.types as pt

from intarsia.core.expr.nodes import (
    And,
    Arithmetic,
    Call,
    Case,
    Cast,
    Column,
    Compare,
    Expr,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
)
from intarsia.core.expr.types import FLOAT64, NANOS, type_name
from intarsia.errors import NotSupported


def to_sql(expr: Expr, dialect: str = "duckdb") -> str:
    """The expression as SQL.

    A resolved expression carries its casts, so its text has the meaning it has here. What DuckDB
    does otherwise: a division by zero gives infinity there and raises here, as does the square root
    of a negative number. DuckDB's session must have the time zone UTC, and so must columns whose dates or
    parts are taken.
    """
    if dialect != "duckdb":
        raise NotSupported(f"expressions cannot be written in the dialect {dialect!r}", hint="use 'duckdb'")
    return _sql(expr)


def quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _sql(expr: Expr) -> str:
    match expr:
        case Column(path, side):
            return ".".join([*([side] if side else []), *map(quote_identifier, path)])
        case Literal():
            return _literal(expr)
        case Not(IsNull(operand)):
            return f"{_inner(operand)} IS NOT NULL"
        case Not(operand):
            return f"NOT {_inner(operand)}"
        case And(left, right):
            return f"{_inner(left, And)} AND {_inner(right, And)}"
        case Or(left, right):
            return f"{_inner(left, Or)} OR {_inner(right, Or)}"
        case Compare(op, left, right) | Arithmetic(op, left, right):
            return f"{_inner(left)} {op} {_inner(right)}"
        case Negate(operand):
            return f"-({_sql(operand)})"
        case IsNull(operand):
            return f"{_inner(operand)} IS NULL"
        case In(operand, items, negated):
            return _in(operand, items, negated)
        case Like(operand, pattern, ignore_case, escape):
            word = "ILIKE" if ignore_case else "LIKE"
            tail = f" ESCAPE {quote_text(escape)}" if escape else ""
            return f"{_inner(operand)} {word} {_inner(pattern)}{tail}"
        case Case(branches, default):
            whens = " ".join(f"WHEN {_sql(when)} THEN {_sql(then)}" for when, then in branches)
            return f"CASE {whens} ELSE {_sql(default)} END"
        case Cast(operand, type, try_):
            return f"{'TRY_CAST' if try_ else 'CAST'}({_sql(operand)} AS {type_name(type)})"
        case Call("struct_pack", args):
            names = [str(name.value) for name in args[::2] if isinstance(name, Literal)]
            pairs = zip(names, args[1::2], strict=True)
            return (
                f"struct_pack({', '.join(f'{quote_identifier(name)} := {_sql(arg)}' for name, arg in pairs)})"
            )
        case Call("map_value", args):
            entries = zip(args[::2], args[1::2], strict=True)
            return f"MAP {{{', '.join(f'{_sql(key)}: {_sql(item)}' for key, item in entries)}}}"
        case Call(name, args):
            return f"{name}({', '.join(map(_sql, args))})"
    assert_never(expr)


def _inner(expr: Expr, same: type[And] | type[Or] | None = None) -> str:
    """An operand, in parentheses unless it stands by itself."""
    atom = isinstance(expr, Column | Literal | Cast | Call | Case)
    return _sql(expr) if atom or (same is not None and isinstance(expr, same)) else f"({_sql(expr)})"


def _in(operand: Expr, items: tuple[Expr, ...], negated: bool) -> str:
    if not items:  # every item was of a value that the column cannot have
        return _sql(Compare("=" if negated else "<>", operand, operand))
    return f"{_inner(operand)} {'NOT IN' if negated else 'IN'} ({', '.join(map(_sql, items))})"


def _literal(expr: Literal) -> str:
    value, type = expr.value, expr.type
    if value is None:
        return "NULL" if pt.is_null(type) else f"CAST(NULL AS {type_name(type)})"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return quote_text(value)
    if isinstance(value, bytes):
        return quote_text("".join(f"\\x{byte:02X}" for byte in value)) + "::BLOB"
    if isinstance(value, float):
        return _float(value, type)
    if pt.is_interval(type):
        months, days, nanos = value
        return f"INTERVAL '{months} months {days} days {nanos // 1000} microseconds'"
    if pt.is_duration(type):
        return f"to_microseconds({value * NANOS[type.unit] // 1000})"
    if pt.is_temporal(type):
        return _moment(expr)
    return f"({value})" if value < 0 else str(value)


def _float(value: float, type: pa.DataType) -> str:
    if not math.isfinite(value):
        return f"CAST('{value}' AS {type_name(type)})"
    text = repr(value)
    text = text if "e" in text else f"{text}e0"
    text = f"({text})" if value < 0 or text.startswith("-") else text
    return text if type == FLOAT64 else f"CAST({text} AS {type_name(type)})"


def _moment(expr: Literal) -> str:
    type = expr.type
    if pt.is_timestamp(type) and type.tz:
        plain = pa.scalar(expr.value, pa.timestamp(type.unit))
        return f"TIMESTAMPTZ '{_trim_zeros(plain.cast(pa.string()).as_py())}+00'"
    text = expr.scalar.cast(pa.string()).as_py()
    return f"{type_name(type)} '{_trim_zeros(text)}'"


def _trim_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
