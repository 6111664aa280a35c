"""The nodes of an expression, values that compare, hash and pickle, and their SQL text; knows no schema."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias, assert_never

import pyarrow as pa
import pyarrow.types as pt

from intarsia.common.python_values import make_scalar
from intarsia.core.expr.types import FLOAT64, NANOS, make_decimal, name_type
from intarsia.errors import NotSupported

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
    """A constant. Make one from a Python value or a pyarrow scalar with :func:`make_literal`.

    ``value`` is None, bool, int, float, Decimal, str or bytes; of a date the days and of a time,
    timestamp or duration the units since its origin, as an int; of an interval the months, days and
    nanoseconds, as a tuple.
    """

    value: Any
    type: pa.DataType

    @property
    def scalar(self) -> pa.Scalar:
        """The constant as a pyarrow scalar."""
        if self.value is None:
            return pa.nulls(1, self.type)[0]  # works for every type
        if pt.is_interval(self.type):
            return pa.scalar(pa.MonthDayNano(self.value), self.type)
        return make_scalar(self.value, self.type)


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


def make_literal(value: Any, type: pa.DataType | None = None) -> Literal:
    """A constant from a Python value or a pyarrow scalar; ``type`` overrides the inferred type."""
    if type is None and isinstance(value, int) and not -(2**63) <= value < 2**63:
        return Literal(Decimal(value), make_decimal(len(str(abs(value))), 0))  # as SQL text has it
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
        return Literal(_get_ticks(scalar), scalar.type)
    plain = scalar.as_py()
    if isinstance(plain, bool | int | float | Decimal | str | bytes):
        return Literal(plain, scalar.type)
    raise TypeError(f"a value of type {scalar.type} cannot be a constant")


def _get_ticks(scalar: Any) -> int:
    return int(scalar.value)


def list_children(expr: Expr) -> tuple[Expr, ...]:
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
    """The expression and all of its operands, outermost first."""
    yield expr
    for child in list_children(expr):
        yield from walk(child)


def find_columns(expr: Expr) -> set[tuple[Side | None, tuple[str, ...]]]:
    """Every column read, as (side, path)."""
    return {(node.side, node.path) for node in walk(expr) if isinstance(node, Column)}


def split_conjuncts(expr: Expr) -> tuple[Expr, ...]:
    """The operands of the outermost ANDs, left to right."""
    if isinstance(expr, And):
        return (*split_conjuncts(expr.left), *split_conjuncts(expr.right))
    return (expr,)


def make_null_safe_equal(left: Expr, right: Expr) -> Expr:
    """Equality that is never NULL: NULL equals NULL (``<=>``, ``is not distinct from``)."""
    return Case(((IsNull(left), IsNull(right)), (IsNull(right), FALSE)), Compare("=", left, right))


# SQL text, for plans, messages and DuckDB


def to_sql(expr: Expr, dialect: str = "duckdb") -> str:
    """The expression as SQL.

    A resolved expression carries its casts, so its text has the meaning it has here. What DuckDB
    does otherwise: a division by zero gives infinity there and raises here, as does the square root
    of a negative number. DuckDB's session must have the time zone UTC, and so must columns whose dates or
    parts are taken.
    """
    if dialect != "duckdb":
        raise NotSupported(f"expressions cannot be written in the dialect {dialect!r}", hint="use 'duckdb'")
    return _to_sql(expr)


def quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _to_sql(expr: Expr) -> str:
    match expr:
        case Column(path, side):
            return ".".join([*([side] if side else []), *map(quote_identifier, path)])
        case Literal():
            return _format_literal(expr)
        case Not(IsNull(operand)):
            return f"{_format_operand(operand)} IS NOT NULL"
        case Not(operand):
            return f"NOT {_format_operand(operand)}"
        case And(left, right):
            return f"{_format_operand(left, And)} AND {_format_operand(right, And)}"
        case Or(left, right):
            return f"{_format_operand(left, Or)} OR {_format_operand(right, Or)}"
        case Compare(op, left, right) | Arithmetic(op, left, right):
            return f"{_format_operand(left)} {op} {_format_operand(right)}"
        case Negate(operand):
            return f"-({_to_sql(operand)})"
        case IsNull(operand):
            return f"{_format_operand(operand)} IS NULL"
        case In(operand, items, negated):
            return _format_in(operand, items, negated)
        case Like(operand, pattern, ignore_case, escape):
            word = "ILIKE" if ignore_case else "LIKE"
            tail = f" ESCAPE {quote_text(escape)}" if escape else ""
            return f"{_format_operand(operand)} {word} {_format_operand(pattern)}{tail}"
        case Case(branches, default):
            whens = " ".join(f"WHEN {_to_sql(when)} THEN {_to_sql(then)}" for when, then in branches)
            return f"CASE {whens} ELSE {_to_sql(default)} END"
        case Cast(operand, type, try_):
            return f"{'TRY_CAST' if try_ else 'CAST'}({_to_sql(operand)} AS {name_type(type)})"
        case Call("struct_pack", args):
            names = [str(name.value) for name in args[::2] if isinstance(name, Literal)]
            pairs = zip(names, args[1::2], strict=True)
            fields = [f"{quote_identifier(name)} := {_to_sql(arg)}" for name, arg in pairs]
            return f"struct_pack({', '.join(fields)})"
        case Call("map_value", args):
            entries = zip(args[::2], args[1::2], strict=True)
            return f"MAP {{{', '.join(f'{_to_sql(key)}: {_to_sql(item)}' for key, item in entries)}}}"
        case Call(name, args):
            return f"{name}({', '.join(map(_to_sql, args))})"
    assert_never(expr)


def _format_operand(expr: Expr, same: type[And] | type[Or] | None = None) -> str:
    """An operand as SQL, in parentheses where it needs them."""
    atom = isinstance(expr, Column | Literal | Cast | Call | Case)
    return _to_sql(expr) if atom or (same is not None and isinstance(expr, same)) else f"({_to_sql(expr)})"


def _format_in(operand: Expr, items: tuple[Expr, ...], negated: bool) -> str:
    if not items:  # no item is a value that the column can have
        return _to_sql(Compare("=" if negated else "<>", operand, operand))
    return f"{_format_operand(operand)} {'NOT IN' if negated else 'IN'} ({', '.join(map(_to_sql, items))})"


def _format_literal(expr: Literal) -> str:
    value, type = expr.value, expr.type
    if value is None:
        return "NULL" if pt.is_null(type) else f"CAST(NULL AS {name_type(type)})"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return quote_text(value)
    if isinstance(value, bytes):
        return quote_text("".join(f"\\x{byte:02X}" for byte in value)) + "::BLOB"
    if isinstance(value, float):
        return _format_float(value, type)
    if pt.is_interval(type):
        months, days, nanos = value
        return f"INTERVAL '{months} months {days} days {nanos // 1000} microseconds'"
    if pt.is_duration(type):
        return f"to_microseconds({value * NANOS[type.unit] // 1000})"
    if pt.is_temporal(type):
        return _format_moment(expr)
    return f"({value})" if value < 0 else str(value)


def _format_float(value: float, type: pa.DataType) -> str:
    if not math.isfinite(value):
        return f"CAST('{value}' AS {name_type(type)})"
    text = repr(value)
    text = text if "e" in text else f"{text}e0"
    text = f"({text})" if value < 0 or text.startswith("-") else text
    return text if type == FLOAT64 else f"CAST({text} AS {name_type(type)})"


def _format_moment(expr: Literal) -> str:
    type = expr.type
    if pt.is_timestamp(type) and type.tz:
        plain = pa.scalar(expr.value, pa.timestamp(type.unit))
        return f"TIMESTAMPTZ '{_trim_zeros(plain.cast(pa.string()).as_py())}+00'"
    text = expr.scalar.cast(pa.string()).as_py()
    return f"{name_type(type)} '{_trim_zeros(text)}'"


def _trim_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
