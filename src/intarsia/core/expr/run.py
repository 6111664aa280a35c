"""Computing a resolved expression on rows; its types are those that resolve.py has given it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.core.expr.assign import assign
from intarsia.core.expr.casts import cast, to_working, try_cast
from intarsia.core.expr.functions import call
from intarsia.core.expr.kernels import Value, compare, compute_arithmetic, is_in, match_like
from intarsia.core.expr.nested import MAKERS, convert, find_made_type, is_equal, make
from intarsia.core.expr.nodes import (
    And,
    Arithmetic,
    Call,
    Case,
    Cast,
    Column,
    Compare,
    CompareOp,
    Expr,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Side,
    find_columns,
    to_sql,
    walk,
)
from intarsia.errors import InputError, NotSupported

_NULL = pa.nulls(1, pa.bool_())[0]


Key = tuple[Side | None, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ExprRows:
    """The columns an expression reads, in the types it computes in, by side and path."""

    values: Mapping[Key, pa.Array]
    length: int

    @classmethod
    def of(
        cls, expr: Expr, target: pa.RecordBatch, source: pa.RecordBatch | None, *, length: int
    ) -> ExprRows:
        """The rows of one table, or pairs of rows of two."""
        values = {}
        for side, path in find_columns(expr):
            batch = source if side == "source" else target
            assert batch is not None
            array = batch.column(path[0])
            values[side, path] = to_working(pc.struct_field(array, list(path[1:])) if path[1:] else array)
        return cls(values, length)

    def filter_rows(self, mask: pa.BooleanArray, expr: Expr) -> ExprRows:
        """The rows selected by the mask, with only the columns that the expression reads."""
        return ExprRows({key: self.values[key].filter(mask) for key in find_columns(expr)}, mask.true_count)


NO_ROWS = ExprRows({}, 0)
"""The rows for computing constants: no columns, and the result is a scalar."""


def run(expr: Expr, rows: ExprRows) -> Value:
    """The value in every row; a scalar when it is the same in all of them."""
    match expr:
        case Column(path, side):
            return rows.values[side, path]
        case Literal():
            return expr.scalar
        case Not(operand):
            return pc.invert(run(operand, rows))
        case IsNull(operand):
            return pc.is_null(run(operand, rows))
        case And(left, right):
            return _run_logical(left, right, rows, stop=False)
        case Or(left, right):
            return _run_logical(left, right, rows, stop=True)
        case Compare(op, left, right):
            return _run_compare(op, run(left, rows), run(right, rows), rows.length)
        case In(operand, items, negated):
            value = run(operand, rows)
            found = is_in(value, _make_value_set(items, value.type))
            return pc.invert(found) if negated else found
        case Like(operand, pattern, ignore_case, escape):
            return _match_like(run(operand, rows), pattern, ignore_case, escape)
        case Case(branches, default):
            return _run_case([*branches, (None, default)], rows)
        case Arithmetic(sign, left, right):
            values = run(left, rows), run(right, rows)
            return _compute(expr, lambda: compute_arithmetic(sign, *values))
        case Negate(operand):
            value = run(operand, rows)
            return _compute(expr, lambda: pc.negate_checked(value))
        case Cast(operand, type) if pt.is_nested(type):
            value = run(operand, rows)
            return pa.nulls(1, type)[0] if isinstance(value, pa.Scalar) else convert(value, type)
        case Cast(operand, type, assign=True):
            return assign(run(operand, rows), type, operand, rows.length)
        case Cast(operand, type, try_):
            value = run(operand, rows)
            return _compute(expr, lambda: (try_cast if try_ else cast)(value, type))
        case Call("coalesce", args) if any(map(can_fail, args[1:])):
            return _run_case([*((Not(IsNull(arg)), arg) for arg in args[:-1]), (None, args[-1])], rows)
        case Call(name, args) if name in MAKERS:
            parts = [broadcast(run(arg, rows), rows.length) for arg in args]
            type = find_made_type(name, args, [part.type for part in parts])
            return _compute(expr, lambda: make(name, parts, type, rows.length))
        case Call(name, args):
            arguments = [run(arg, rows) for arg in args]
            return _compute(expr, lambda: call(name, arguments))
    assert_never(expr)


def _run_compare(op: CompareOp, left: Value, right: Value, length: int) -> Value:
    if not pt.is_nested(left.type):
        return compare(op, left, right)
    found = is_equal(broadcast(left, length), broadcast(right, length))
    return pc.invert(found) if op == "<>" else found


def run_empty(expr: Call, types: Sequence[pa.DataType]) -> None:
    """Compute a function on zero rows, which raises for constants that it refuses."""
    arguments = [
        arg.scalar if isinstance(arg, Literal) else pa.array([], type)
        for arg, type in zip(expr.args, types, strict=True)
    ]
    _compute(expr, lambda: call(expr.name, arguments))


def can_fail(expr: Expr) -> bool:
    """Whether computing it may raise for some value, so that only rows that need it may be computed."""
    return any(isinstance(node, Arithmetic | Negate | Cast | Call) for node in walk(expr))


def broadcast(value: Value, length: int) -> pa.Array:
    """The value as an array of that length."""
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, length) if value.is_valid else pa.nulls(length, value.type)
    return value


def _compute(expr: Expr, compute: Callable[[], Value]) -> Value:
    try:
        return compute()
    except pa.ArrowNotImplementedError as error:
        raise NotSupported(f"pyarrow cannot compute {to_sql(expr)}: {error}") from error
    except pa.ArrowInvalid as error:
        raise InputError(
            f"cannot compute {to_sql(expr)}: {error}", hint=_make_hint(expr, str(error))
        ) from error
    except pa.ArrowCapacityError as error:
        raise InputError(
            f"cannot compute {to_sql(expr)}: the values of the rows at hand have more than 2 GiB",
            hint="make them shorter, or handle fewer rows at once with batch_rows=",
        ) from error


def _make_hint(expr: Expr, reason: str) -> str | None:
    if "zero" in reason:
        return "exclude the zeros with a condition, or divide by nullif(x, 0)"
    if "zone offset" in reason:
        return "a time with an offset is an instant: timestamptz '...', or cast(... as timestamptz)"
    if isinstance(expr, Cast):
        return "try_cast gives NULL where a value does not fit"
    return "cast to a wider type first" if "overflow" in reason else None


def _match_like(value: Value, pattern: Expr, ignore_case: bool, escape: str | None) -> Value:
    assert isinstance(pattern, Literal)
    if pattern.value is None:
        return _NULL
    return match_like(value, pattern.value, ignore_case=ignore_case, escape=escape)


def _make_value_set(items: Sequence[Expr], type: pa.DataType) -> pa.Array:
    """The items of IN as an array; resolved, they are constants of the operand's type."""
    return pa.array([item.value for item in items if isinstance(item, Literal)], type)


def _run_logical(left: Expr, right: Expr, rows: ExprRows, *, stop: bool) -> Value:
    """AND (stops at FALSE) and OR (stops at TRUE), in SQL's three-valued logic.

    A right side that can fail is computed only on the rows that the left side does not decide, so that
    ``x <> 0 and 1 / x > 2`` is safe.
    """
    combine = pc.or_kleene if stop else pc.and_kleene
    first = run(left, rows)
    if not can_fail(right):
        return combine(first, run(right, rows))
    length = rows.length
    decided = pc.fill_null(pc.equal(first, stop), False)
    if isinstance(decided, pa.Scalar):
        return first if decided.as_py() else combine(first, run(right, rows))
    opened = pc.invert(decided)
    inner = rows.filter_rows(opened, right)
    second = broadcast(run(right, inner), inner.length)
    return combine(broadcast(first, length), _pick_cases([(opened, second)], second.type))


def _run_case(branches: Sequence[tuple[Expr | None, Expr]], rows: ExprRows) -> Value:
    """Each branch is computed on the rows that take it, and on no others."""
    length = rows.length
    if rows is NO_ROWS:
        return _run_constant_case(branches)
    opened = broadcast(pa.scalar(True), length)
    pieces: list[tuple[pa.BooleanArray, pa.Array]] = []
    for condition, result in branches:
        mask = opened
        if condition is not None:
            inner = rows.filter_rows(opened, condition)
            holds = broadcast(run(condition, inner), inner.length)
            mask = pc.fill_null(_pick_cases([(opened, holds)], pa.bool_()), False)
            opened = pc.and_not(opened, mask)
        chosen = rows.filter_rows(mask, result)
        pieces.append((mask, broadcast(run(result, chosen), chosen.length)))
    return _pick_cases(pieces, pieces[0][1].type)


def _run_constant_case(branches: Sequence[tuple[Expr | None, Expr]]) -> Value:
    for condition, result in branches:
        if condition is None or run(condition, NO_ROWS).as_py():
            return run(result, NO_ROWS)
    raise AssertionError("the last branch has no condition")


def _pick_cases(pieces: Sequence[tuple[pa.BooleanArray, pa.Array]], type: pa.DataType) -> pa.Array:
    """Scatter the values of each mask to the rows of the mask; NULL elsewhere."""
    index: Value = pa.scalar(None, pa.int64())
    offset = 0
    for mask, values in pieces:
        position = pc.add(pc.cumulative_sum(pc.cast(mask, pa.int64())), offset - 1)
        index = pc.if_else(mask, position, index)
        offset += len(values)
    if not offset:
        return pa.nulls(len(pieces[0][0]), type)
    return pa.concat_arrays([values for _, values in pieces]).take(index)
