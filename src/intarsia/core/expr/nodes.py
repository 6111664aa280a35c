"""The nodes of an expression, as values that compare, hash and pickle; nothing here knows a schema."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from intarsia.core.expr.types import decimal

Side: TypeAlias = typing.Literal["target", "source"]
CompareOp: TypeAlias = typing.Literal["=", "<>", "<", "<=", ">", ">="]
ArithmeticOp: TypeAlias = typing.Literal["+", "-", "*", "/", "//", "%", "||"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or with a longer ``path`` a field inside a struct.

    ``side`` says which table of a merge; None is the only table there is. ``exact`` names match
    letter for letter, others in any case as long as that is unambiguous.
    """

    path: tuple[str, ...]
    side: Side | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. Make one from a Python value or a pyarrow scalar with :func:`literal`.

    ``value`` is None, bool, int, float, Decimal, str or bytes; of a date the days and of a time,
    timestamp or duration the units since its origin, as an int; of an interval the months, days and
    nanoseconds, as a tuple.
    """

    value: Any
    type: pa.DataType

    @property
    def scalar(self) -> pa.Scalar:
        """The constant as pyarrow has it."""
        if self.value is None:
            return pa.nulls(1, self.type)[0]  # which PyArrow has of every type
        if pt.is_interval(self.type):
            return pa.scalar(pa.MonthDayNano(self.value), self.type)
        return pa.scalar(self.value, self.type)


@dataclass(frozen=True, slots=True)
class Not:
    operand: Expr


@dataclass(frozen=True, slots=True)
class And:
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Or:
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Compare:
    op: CompareOp
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``/`` is true division, ``//`` divides integers towards zero, ``||`` joins strings."""

    op: ArithmeticOp
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Negate:
    operand: Expr


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Expr


@dataclass(frozen=True, slots=True)
class In:
    operand: Expr
    items: tuple[Expr, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Like:
    """``%`` is any text, ``_`` any one character; ``escape`` makes the next character plain."""

    operand: Expr
    pattern: Expr
    ignore_case: bool = False
    escape: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """The value of the first branch whose condition is TRUE, else ``default``."""

    branches: tuple[tuple[Expr, Expr], ...]
    default: Expr


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion that raises where a value does not fit, or gives NULL there with ``try_``.

    Fractions are rounded on the way to an integer, or cut off with ``truncate`` (as Spark does). With
    ``assign`` it is the conversion to the column that is set: a fraction or an instant to be cut raises.
    """

    operand: Expr
    type: pa.DataType
    try_: bool = False
    truncate: bool = False
    assign: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A function by its lower-case name."""

    name: str
    args: tuple[Expr, ...] = ()


Expr: TypeAlias = (
    Column
    | Literal
    | Not
    | And
    | Or
    | Compare
    | Arithmetic
    | Negate
    | IsNull
    | In
    | Like
    | Case
    | Cast
    | Call
)

TRUE = Literal(True, pa.bool_())
FALSE = Literal(False, pa.bool_())
NULL = Literal(None, pa.null())


def literal(value: Any, type: pa.DataType | None = None) -> Literal:
    """A constant from a Python value or a pyarrow scalar; ``type`` where the value alone cannot say."""
    if type is None and isinstance(value, int) and not -(2**63) <= value < 2**63:
        return Literal(Decimal(value), decimal(len(str(abs(value))), 0))  # as SQL text has it
    scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value, type)
    if type is not None and scalar.type != type:
        scalar = scalar.cast(type)
    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value if scalar.is_valid else pa.scalar(None, scalar.type.value_type)
    if not scalar.is_valid:
        return Literal(None, scalar.type)
    if pt.is_interval(scalar.type):
        return Literal(tuple(scalar.as_py()), scalar.type)
    if pt.is_temporal(scalar.type):
        return Literal(_ticks(scalar), scalar.type)
    plain = scalar.as_py()
    if isinstance(plain, bool | int | float | Decimal | str | bytes):
        return Literal(plain, scalar.type)
    raise TypeError(f"a value of type {scalar.type} cannot be a constant")


def _ticks(scalar: Any) -> int:
    return int(scalar.value)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands, left to right."""
    match expr:
        case Column() | Literal():
            return ()
        case Not(operand) | Negate(operand) | IsNull(operand) | Cast(operand):
            return (operand,)
        case And(left, right) | Or(left, right):
            return (left, right)
        case Compare(_, left, right) | Arithmetic(_, left, right):
            return (left, right)
        case In(operand, items):
            return (operand, *items)
        case Like(operand, pattern):
            return (operand, pattern)
        case Case(branches, default):
            return (*(part for branch in branches for part in branch), default)
        case Call(_, args):
            return args
    typing.assert_never(expr)


def transform(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The same expression with ``change`` applied to every direct operand."""
    match expr:
        case Column() | Literal():
            return expr
        case Not(operand):
            return Not(change(operand))
        case Negate(operand):
            return Negate(change(operand))
        case IsNull(operand):
            return IsNull(change(operand))
        case Cast(operand, type, try_, truncate, assign):
            return Cast(change(operand), type, try_, truncate, assign)
        case And(left, right):
            return And(change(left), change(right))
        case Or(left, right):
            return Or(change(left), change(right))
        case Compare(op, left, right):
            return Compare(op, change(left), change(right))
        case Arithmetic(sign, left, right):
            return Arithmetic(sign, change(left), change(right))
        case In(operand, items, negated):
            return In(change(operand), tuple(map(change, items)), negated)
        case Like(operand, pattern, ignore_case, escape):
            return Like(change(operand), change(pattern), ignore_case, escape)
        case Case(branches, default):
            return Case(tuple((change(when), change(then)) for when, then in branches), change(default))
        case Call(name, args):
            return Call(name, tuple(map(change, args)))
    typing.assert_never(expr)


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything in it, outermost first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def columns(expr: Expr) -> set[tuple[Side | None, tuple[str, ...]]]:
    """Every column read, as (side, path)."""
    return {(node.side, node.path) for node in walk(expr) if isinstance(node, Column)}


def conjuncts(expr: Expr) -> tuple[Expr, ...]:
    """The parts that AND joins, left to right."""
    if isinstance(expr, And):
        return (*conjuncts(expr.left), *conjuncts(expr.right))
    return (expr,)


def null_safe_equal(left: Expr, right: Expr) -> Expr:
    """Equality that is never NULL: NULL equals NULL (``<=>``, ``is not distinct from``)."""
    return Case(((IsNull(left), IsNull(right)), (IsNull(right), FALSE)), Compare("=", left, right))
