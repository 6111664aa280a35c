"""Conditions as SQL where DuckDB means by it exactly what every engine means; other conditions are not here.

That is so for comparisons of values of one type, membership, IS NULL and the logic around them, which has
three values here and there. Left out are floats, whose statistics leave NaN out, and whatever converts or
computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.expr import And, Column, Compare, Expr, In, IsNull, Literal, Not, Or, conjuncts
from intarsia.core.expr.run import can_fail
from intarsia.core.expr.types import NANOS, working_type
from intarsia.core.intent import Predicate
from intarsia.engines.duckdb.text import name, text
from intarsia.engines.duckdb.types import comparable, sql_type

__all__ = ["condition", "divided"]

_MOST_DEPTH = 200
"""DuckDB refuses expressions that are nested deeper than 1000."""
_DAY_NANOS = 86_400 * NANOS["s"]
_FIRST_DAY, _AFTER_LAST_DAY = -719_162, 2_932_897
"""Of the years 1 to 9999, which both write the same way."""


def divided(where: Predicate, schema: pa.Schema) -> tuple[str | None, Predicate]:
    """What DuckDB may pick rows by, and what has to be evaluated of the rows it picks; None for nothing.

    The rows left are those of the whole predicate, and what fails in one of them fails as it would without
    DuckDB: a part that can fail sees every row that the parts before it leave open.
    """
    if isinstance(where, pc.Expression):
        return None, where
    parts = conjuncts(where)
    if not any(map(can_fail, parts)):
        done = [(part, condition(part, schema)) for part in parts]
        rest = [part for part, sql in done if sql is None]
        return _all(sql for _, sql in done), _joined(rest)
    safe = takewhile(lambda part: not can_fail(part), parts)
    known = [sql for part in safe if (sql := condition(part, schema)) is not None]
    return _all(f"({sql}) IS DISTINCT FROM FALSE" for sql in known), where


def _all(conditions: Iterable[str | None]) -> str | None:
    return " AND ".join(f"({each})" for each in conditions if each is not None) or None


def _joined(parts: Sequence[Expr]) -> Expr | None:
    joined: Expr | None = None
    for part in parts:
        joined = part if joined is None else And(joined, part)
    return joined


def condition(expr: Expr, schema: pa.Schema, *, depth: int = 0) -> str | None:
    """A resolved condition over columns of ``schema``; None where DuckDB might see it another way."""
    if depth > _MOST_DEPTH:
        return None
    match expr:
        case Literal(value, kind) if pa.types.is_boolean(kind):
            return "CAST(NULL AS BOOLEAN)" if value is None else str(value).upper()
        case Column() if _kind(expr, schema) == pa.bool_():
            return name(expr.path[0])
        case Not(operand):
            inner = condition(operand, schema, depth=depth + 1)
            return None if inner is None else f"NOT ({inner})"
        case And() | Or():
            word = " AND " if isinstance(expr, And) else " OR "
            found = [condition(each, schema, depth=depth + 1) for each in _chain(expr, type(expr))]
            return None if None in found else word.join(f"({each})" for each in found)
        case IsNull(Column((column,))) if column in schema.names:
            return None if pa.types.is_nested(schema.field(column).type) else f"{name(column)} IS NULL"
        case IsNull(operand):
            inner = condition(operand, schema, depth=depth + 1)
            return None if inner is None else f"({inner}) IS NULL"
        case Compare(op, Column() as left, right):
            one, other = _value(left, left, schema), _value(right, left, schema)
            return None if one is None or other is None else f"{one} {op} {other}"
        case In(Column() as operand, items, negated):
            return _member(operand, items, negated, schema)
    return None


def _chain(expr: Expr, of: type[And | Or]) -> list[Expr]:
    """The parts that one and the same word joins, left to right."""
    found: list[Expr] = []
    waiting = [expr]
    while waiting:
        here = waiting.pop()
        if isinstance(here, And | Or) and isinstance(here, of):
            waiting += [here.right, here.left]
        else:
            found.append(here)
    return found


def _member(operand: Column, items: Sequence[Expr], negated: bool, schema: pa.Schema) -> str | None:
    value = _value(operand, operand, schema)
    found = [_value(item, operand, schema) for item in items]
    if value is None or None in found or any(isinstance(item, Column) for item in items):
        return None
    if not found:  # of nothing; NULL stays NULL
        return f"{value} {'=' if negated else '<>'} {value}"
    return f"{value} {'NOT IN' if negated else 'IN'} ({', '.join(map(str, found))})"


def _value(expr: Expr, beside: Column, schema: pa.Schema) -> str | None:
    """A column or a constant of the type that a column is computed in."""
    kind = _kind(beside, schema)
    if kind is None:
        return None
    match expr:
        case Column() if _kind(expr, schema) == kind:
            return name(expr.path[0])
        case Literal(_, own) if own == kind:
            return _constant(expr)
    return None


def _kind(column: Column, schema: pa.Schema) -> pa.DataType | None:
    """The type a column is computed in; None where DuckDB does not compare its values as is done here."""
    if len(column.path) != 1 or column.side is not None or column.path[0] not in schema.names:
        return None
    kind = schema.field(column.path[0]).type
    working = working_type(kind)
    exact = comparable(kind) and sql_type(working) is not None and not pa.types.is_floating(working)
    return working if exact else None


def _constant(expr: Literal) -> str | None:
    value, kind = expr.value, expr.type
    if value is None:
        return f"CAST(NULL AS {_column_type(kind)})"
    if isinstance(value, bool):
        return str(value).upper()
    if pa.types.is_temporal(kind):
        return _moment(expr)
    if isinstance(value, str):
        return None if "\0" in value else text(value)  # older versions take it for the end of the statement
    if isinstance(value, bytes):
        return f"from_hex('{value.hex()}')"
    return f"CAST({text(f'{value:f}' if pa.types.is_decimal(kind) else str(value))} AS {_column_type(kind)})"


def _column_type(kind: pa.DataType) -> str:
    """What DuckDB has values of the type as: seconds and milliseconds it reads as microseconds."""
    if pa.types.is_timestamp(kind) and kind.tz is None and kind.unit != "ns":
        return "TIMESTAMP"
    return str(sql_type(kind))


def _moment(expr: Literal) -> str | None:
    value, kind = int(expr.value), expr.type
    day = _DAY_NANOS // (_DAY_NANOS if pa.types.is_date(kind) else NANOS[kind.unit])
    known = 0 <= value < day if pa.types.is_time(kind) else _FIRST_DAY * day <= value < _AFTER_LAST_DAY * day
    if not known:
        return None
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    plain = pa.scalar(value, pa.timestamp(kind.unit)) if zoned else expr.scalar
    written = plain.cast(pa.string()).as_py()
    return f"CAST({text(written + '+00' if zoned else written)} AS {_column_type(kind)})"
