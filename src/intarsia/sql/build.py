"""Builds expressions out of sqlglot's syntax trees; text and tokens are in parse.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlglot import exp

from intarsia.common.names import suggest_names
from intarsia.core.expr import (
    FALSE,
    NULL,
    TRUE,
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
    make_null_safe_equal,
)
from intarsia.core.expr.functions import FUNCTIONS, NOW, list_part_names
from intarsia.core.expr.nodes import ArithmeticOp, CompareOp, Side
from intarsia.core.expr.types import INTERVAL, make_decimal
from intarsia.errors import InputError, NotSupported
from intarsia.sql.calls import (
    CALLS,
    PARTS,
    SPECIAL_CALLS,
    SYNONYMS,
    UNITS,
    build_named_struct,
    build_row,
    find_near_functions,
)

COMPARE: dict[type[exp.Expression], CompareOp] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
ARITHMETIC: dict[type[exp.Expression], ArithmeticOp] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "//",
    exp.Mod: "%",
    exp.DPipe: "||",
}
TYPES: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "INT128": make_decimal(38, 0),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "UUID": pa.uuid(),
    "DATE": pa.date32(),
    "DATE32": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "DATETIME": pa.timestamp("us"),
    "TIMESTAMP_S": pa.timestamp("s"),
    "TIMESTAMP_MS": pa.timestamp("ms"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPLTZ": pa.timestamp("us", "UTC"),
}
INTERVALS = {
    "year": (12, 0, 0),
    "quarter": (3, 0, 0),
    "month": (1, 0, 0),
    "week": (0, 7, 0),
    "day": (0, 1, 0),
    "hour": (0, 0, 3600 * 10**9),
    "minute": (0, 0, 60 * 10**9),
    "second": (0, 0, 10**9),
    "millisecond": (0, 0, 10**6),
    "microsecond": (0, 0, 10**3),
}
NO_VALUE_HERE = {
    exp.Query: "a subquery",
    exp.Subquery: "a subquery",
    exp.Exists: "a subquery",
    exp.AggFunc: "an aggregate",
    exp.Filter: "an aggregate",
    exp.Window: "a window function",
    exp.Placeholder: "a parameter",
    exp.Parameter: "a parameter",
    exp.Star: "*",
    exp.Lambda: "a lambda",
    exp.UDTF: "a table function",
    exp.Explode: "a table function",
}
# Arguments of sqlglot's nodes that change nothing here, or that are read where they matter.
HARMLESS = {
    "safe",
    "typed",
    "coalesce",
    "ignore_nulls",
    "big_int",
    "nested",
    "_type",
    "is_string",
    "quoted",
} | {
    "date_part_boundary",
    "flatten",
    "is_left",
    "null_if_pos_overflow",
    "single_replace",
}


def build(tree: exp.Expression, *, text: str, dialect: str) -> Expr:
    """The expression of a syntax tree; NotSupported names what expressions do not have."""
    return _Builder(text, spark=dialect != "duckdb").build_expr(tree)


@dataclass(frozen=True, slots=True)
class _Builder:
    text: str
    spark: bool

    def build_expr(self, node: Any) -> Expr:
        kind = type(node)
        if kind in COMPARE:
            return Compare(COMPARE[kind], *self.build_pair(node))
        if kind in ARITHMETIC:
            return Arithmetic(ARITHMETIC[kind], *self.build_pair(node))
        if kind in PARTS:
            return self.build_part(PARTS[kind], self.get_sole(node))
        if kind in CALLS:
            name, keys = CALLS[kind]
            return self.build_call(name, self.build_arguments(node, keys))
        if kind in _SPECIAL:
            keys, build = _SPECIAL[kind]
            self.check_only(node, *keys)
            return build(self, node)
        raise self.make_refusal(node)

    def build_pair(self, node: exp.Expression) -> tuple[Expr, Expr]:
        self.check_only(node, "this", "expression")
        return self.build_expr(node.this), self.build_expr(node.expression)

    def make_refusal(self, node: Any) -> NotSupported:
        for kind, word in NO_VALUE_HERE.items():
            if isinstance(node, kind):
                return NotSupported(f"{word} cannot be used in {self.text!r}", hint="use values of one row")
        shown = node.sql(dialect="spark" if self.spark else "duckdb")
        if isinstance(node, exp.Func):
            hint = find_near_functions(re.split(r"[^a-z0-9_]", shown.lower())[0])
            return NotSupported(f"there is no function for {shown} in {self.text!r}", hint=hint)
        return NotSupported(f"{shown} ({type(node).__name__}) cannot be used in {self.text!r}")

    def build_arguments(self, node: exp.Expression, keys: tuple[str, ...]) -> tuple[Expr, ...]:
        """The arguments under these keys; a node that has others is refused."""
        self.check_only(node, *keys)
        found: list[Expr] = []
        for key in keys:
            value = node.args.get(key)
            for item in value if isinstance(value, list) else [value]:
                if item is not None:
                    found.append(self.build_expr(item))
        return tuple(found)

    def check_only(self, node: exp.Expression, *keys: str) -> None:
        for key, value in node.args.items():
            if value not in (None, False, []) and key not in keys and key not in HARMLESS:
                raise NotSupported(f"{node.sql()}: {key} is not supported in {self.text!r}")

    def get_sole(self, node: exp.Expression) -> Any:
        self.check_only(node, "this")
        return node.this

    def build_column(self, node: Any) -> Expr:
        if isinstance(node.this, exp.Star):
            raise self.make_refusal(node.this)
        return self.build_named([node.args.get(key) for key in ("catalog", "db", "table", "this")])

    def build_named(self, identifiers: Iterable[exp.Identifier | None]) -> Expr:
        parts = [part for part in identifiers if part is not None]
        path = tuple(part.name for part in parts)
        exact = any(part.args.get("quoted") for part in parts)
        side = self.find_side(parts[0]) if len(parts) > 1 else None
        return Column(path[1:], side, exact) if side else Column(path, None, exact)

    def find_side(self, first: exp.Identifier) -> Side | None:
        name = first.name.lower()
        if first.args.get("quoted"):
            return None
        return "target" if name == "target" else "source" if name == "source" else None

    def build_dot(self, node: Any) -> Expr:
        outer = self.build_expr(node.this)
        if not isinstance(outer, Column) or not isinstance(node.expression, exp.Identifier):
            raise self.make_refusal(node)
        quoted = bool(node.expression.args.get("quoted"))
        return Column((*outer.path, node.expression.name), outer.side, outer.exact or quoted)

    def build_bracket(self, node: Any) -> Expr:
        outer, keys = self.build_expr(node.this), node.expressions
        if not isinstance(outer, Column) or len(keys) != 1 or not getattr(keys[0], "is_string", False):
            raise NotSupported(f"{node.sql()}: elements of lists and maps cannot be used in {self.text!r}")
        if outer.side is None and len(outer.path) == 1 and outer.path[0].lower() in ("target", "source"):
            raise NotSupported(f"{node.sql()}: write the column after a dot")
        return Column((*outer.path, keys[0].name), outer.side, outer.exact)

    def build_literal(self, node: Any) -> Expr:
        return Literal(node.this, pa.string()) if node.is_string else _parse_number(node.this)

    def build_chain(self, node: Any) -> Expr:
        """A chain of ANDs or ORs as a balanced tree, in the same order."""
        kind, parts = type(node), []
        while isinstance(node, kind):
            parts.append(node.expression)
            node = node.this
        return _join_balanced(
            And if kind is exp.And else Or, [self.build_expr(part) for part in (node, *reversed(parts))]
        )

    def negate(self, node: Any) -> Expr:
        operand = self.build_expr(node.this)
        if isinstance(operand, Literal) and isinstance(operand.value, int | float | Decimal):
            # With the sign, so that the smallest integer is still an integer.
            return (
                _parse_number(f"-{node.this.this}") if isinstance(node.this, exp.Literal) else Negate(operand)
            )
        return Negate(operand)

    def is_(self, node: Any) -> Expr:
        operand = self.build_expr(node.this)
        match node.expression:
            case exp.Null():
                return IsNull(operand)
            case exp.Boolean(this=wanted):
                return And(Not(IsNull(operand)), operand if wanted else Not(operand))
        raise self.make_refusal(node)

    def build_null_safe(self, node: Any) -> Expr:
        same = make_null_safe_equal(self.build_expr(node.this), self.build_expr(node.expression))
        return Not(same) if isinstance(node, exp.NullSafeNEQ) else same

    def build_in(self, node: Any) -> Expr:
        if node.args.get("query") is not None:
            raise self.make_refusal(node.args["query"])
        if not node.expressions:
            raise InputError(f"IN needs at least one value in {self.text!r}")
        return In(self.build_expr(node.this), tuple(self.build_expr(item) for item in node.expressions))

    def build_between(self, node: Any) -> Expr:
        operand = self.build_expr(node.this)
        low, high = self.build_expr(node.args["low"]), self.build_expr(node.args["high"])
        return And(Compare(">=", operand, low), Compare("<=", operand, high))

    def build_like(self, node: Any, escape: str | None = None) -> Expr:
        if escape is None and self.spark:
            escape = "\\"
        found = Like(
            self.build_expr(node.this), self.build_expr(node.expression), isinstance(node, exp.ILike), escape
        )
        return Not(found) if node.args.get("negate") else found

    def build_escaped(self, node: Any) -> Expr:
        if not isinstance(node.this, exp.Like | exp.ILike) or not isinstance(node.expression, exp.Literal):
            raise self.make_refusal(node)
        self.check_only(node.this, *_LIKE)
        return self.build_like(node.this, node.expression.this)

    def build_case(self, node: Any) -> Expr:
        subject = None if node.this is None else self.build_expr(node.this)
        branches = []
        for branch in node.args["ifs"]:
            when, then = self.build_expr(branch.this), self.build_expr(branch.args["true"])
            branches.append((when if subject is None else Compare("=", subject, when), then))
        return Case(tuple(branches), self.build_optional(node.args.get("default")))

    def build_if(self, node: Any) -> Expr:
        then = self.build_expr(node.args["true"])
        return Case(((self.build_expr(node.this), then),), self.build_optional(node.args.get("false")))

    def build_optional(self, node: Any) -> Expr:
        return NULL if node is None else self.build_expr(node)

    def build_nullif(self, node: Any) -> Expr:
        left, right = self.build_expr(node.this), self.build_expr(node.expression)
        return Case(((Compare("=", left, right), NULL),), left)

    def build_cast(self, node: Any) -> Expr:
        return Cast(
            self.build_expr(node.this),
            self.build_type(node.args["to"]),
            bool(node.args.get("safe")),
            self.spark,
        )

    def build_type(self, node: Any) -> pa.DataType:
        name = getattr(node.this, "value", str(node.this)).upper()
        if name == "DECIMAL":
            digits = [int(param.name) for param in node.expressions]
            precision, scale = [*digits, 0][:2] if digits else (10, 0) if self.spark else (18, 3)
            return make_decimal(precision, scale)
        if name not in TYPES or (node.expressions and name not in ("VARCHAR", "CHAR", "TEXT")):
            wanted = node.sql()
            raise NotSupported(
                f"there is no type {wanted} to cast to",
                hint=suggest_names([wanted.upper()], ["DECIMAL", *TYPES]),
            )
        return TYPES[name]

    def build_interval(self, node: Any) -> Expr:
        amount = node.this
        amount = amount.this if isinstance(amount, exp.Paren) else amount
        negative = isinstance(amount, exp.Neg)
        amount = amount.this if negative else amount
        if not isinstance(amount, exp.Literal):
            raise NotSupported(f"{node.sql()}: an interval must be a constant")
        unit = node.args.get("unit")
        words = f"{amount.this} {unit.name}" if unit is not None else str(amount.this)
        months, days, nanos = _parse_interval(words, self.text)
        sign = -1 if negative else 1
        return Literal((sign * months, sign * days, sign * nanos), INTERVAL)

    def trim(self, node: Any) -> Expr:
        name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or ""), "trim")
        characters = node.args.get("expression")
        args = (
            self.build_expr(node.this),
            *([self.build_expr(characters)] if characters is not None else []),
        )
        return Call(name, args)

    def build_concat(self, node: Any) -> Expr:
        args = tuple(self.build_expr(item) for item in node.expressions)
        if node.args.get("coalesce"):
            return Call("concat", args)
        joined = args[0]  # Spark's concat is NULL when any part is
        for part in args[1:]:
            joined = Arithmetic("||", joined, part)
        return joined

    def build_part(self, name: str, value: Any) -> Expr:
        operand = self.build_expr(value.this if isinstance(value, exp.TsOrDsToDate) else value)
        if name == "epoch":
            return Call("epoch", (operand,))
        found = Call("date_part", (Literal(name, pa.string()), operand))
        if self.spark and name in ("dayofweek", "dow"):  # Sunday is 1 there, and 0 here
            return Arithmetic("+", found, _parse_number("1"))
        return found

    def extract(self, node: Any) -> Expr:
        return self.build_part(node.this.name.lower(), node.expression)

    def build_truncated(self, node: Any) -> Expr:
        unit = node.args["unit"].name.lower()
        return Call("date_trunc", (Literal(UNITS.get(unit, unit), pa.string()), self.build_expr(node.this)))

    def build_anonymous(self, node: Any) -> Expr:
        name = str(node.this).lower()
        if name == "iff":
            return self.iff(node)
        if name in ("row", "named_struct"):
            return (build_row if name == "row" else build_named_struct)(self, node)
        if name == "date_part" and len(node.expressions) == 2:
            unit, value = node.expressions
            return self.build_part(unit.name.lower(), value)
        if name in list_part_names() and len(node.expressions) == 1:
            return self.build_part(name, node.expressions[0])
        name = SYNONYMS.get(name, name)
        if name == "isnull" and len(node.expressions) == 1:
            return IsNull(self.build_expr(node.expressions[0]))
        if name not in FUNCTIONS and name not in NOW:
            raise NotSupported(
                f"there is no function {name}() for {self.text!r}", hint=find_near_functions(name)
            )
        return self.build_call(name, tuple(self.build_expr(item) for item in node.expressions))

    def iff(self, node: Any) -> Expr:
        args = [self.build_expr(item) for item in node.expressions]
        if len(args) != 3:
            raise InputError(f"iff(condition, then, else) was given {len(args)} arguments")
        return Case(((args[0], args[1]),), args[2])

    def build_call(self, name: str, args: tuple[Expr, ...]) -> Expr:
        if self.spark and name == "substring" and isinstance(args[1], Literal) and args[1].value == 0:
            args = (args[0], _parse_number("1"), *args[2:])  # Spark takes 0 for the first place, too
        return Call(name, args)

    def build_added(self, node: Any) -> Expr:
        if not isinstance(node.expression, exp.Interval):
            raise self.make_refusal(node)
        sign: ArithmeticOp = "-" if isinstance(node, exp.DateSub) else "+"
        return Arithmetic(sign, self.build_expr(node.this), self.build_expr(node.expression))


def _join_balanced(join: type[And] | type[Or], parts: list[Expr]) -> Expr:
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_join_balanced(join, parts[:middle]), _join_balanced(join, parts[middle:]))


def _parse_number(text: str) -> Literal:
    if re.search("[eE]", text):
        try:
            return Literal(float(text), pa.float64())
        except ValueError:
            raise InputError(f"{text!r} is not a number") from None
    if "." in text:
        value = Decimal(text)
        digits, scale = len(value.as_tuple().digits), max(-int(value.as_tuple().exponent), 0)
        return Literal(value, make_decimal(max(digits, scale, 1), scale))
    whole = int(text)
    if -(2**63) <= whole < 2**63:
        return Literal(whole, pa.int64())
    return Literal(Decimal(whole), make_decimal(len(text.lstrip("-")), 0))


def _parse_interval(words: str, text: str) -> tuple[int, int, int]:
    months = days = nanos = Decimal(0)
    rest = re.sub(r"\s*(-?\d+(?:\.\d+)?)\s*([A-Za-z]+?)[sS]?\b\s*,?", "", words)
    found = re.findall(r"(-?\d+(?:\.\d+)?)\s*([A-Za-z]+?)[sS]?\b", words)
    if rest.strip() or not found:
        raise InputError(f"{words!r} is not an interval in {text!r}", hint="such as interval 3 day")
    for amount, unit in found:
        if unit.lower() not in INTERVALS:
            raise InputError(f"there is no interval unit {unit!r}", hint=f"there are {', '.join(INTERVALS)}")
        each = INTERVALS[unit.lower()]
        months, days, nanos = (
            total + Decimal(amount) * step for total, step in zip((months, days, nanos), each, strict=True)
        )
    if max(abs(months), abs(days)) >= 2**31 or abs(nanos) >= 2**63:
        raise InputError(f"the interval {words!r} is too long: months and days have 32 bits")
    if months % 1 or days % 1 or nanos % 1000:
        raise InputError(f"{words!r} is not a whole number of months, days and microseconds")
    return int(months), int(days), int(nanos)


_ONE, _TWO, _LIKE = ("this",), ("this", "expression"), ("this", "expression", "negate")
_SPECIAL: dict[type[Any], tuple[tuple[str, ...], Callable[[_Builder, Any], Expr]]] = {
    exp.Column: (("this", "table", "db", "catalog"), _Builder.build_column),
    exp.Identifier: (_ONE, lambda builder, node: builder.build_named([node])),
    exp.Dot: (_TWO, _Builder.build_dot),
    exp.Bracket: (("this", "expressions"), _Builder.build_bracket),
    exp.Literal: (_ONE, _Builder.build_literal),
    exp.HexString: (_ONE, lambda _, node: Literal(bytes.fromhex(node.this), pa.binary())),
    exp.Boolean: (_ONE, lambda _, node: TRUE if node.this else FALSE),
    exp.Null: ((), lambda _, node: NULL),
    exp.Paren: (_ONE, lambda builder, node: builder.build_expr(node.this)),
    exp.Not: (_ONE, lambda builder, node: Not(builder.build_expr(node.this))),
    exp.And: (_TWO, _Builder.build_chain),
    exp.Or: (_TWO, _Builder.build_chain),
    exp.Neg: (_ONE, _Builder.negate),
    exp.Is: (_TWO, _Builder.is_),
    exp.NullSafeEQ: (_TWO, _Builder.build_null_safe),
    exp.NullSafeNEQ: (_TWO, _Builder.build_null_safe),
    exp.In: (("this", "expressions", "query"), _Builder.build_in),
    exp.Between: (("this", "low", "high"), _Builder.build_between),
    exp.Like: (_LIKE, _Builder.build_like),
    exp.ILike: (_LIKE, _Builder.build_like),
    exp.Escape: (_TWO, _Builder.build_escaped),
    exp.Case: (("this", "ifs", "default"), _Builder.build_case),
    exp.If: (("this", "true", "false"), _Builder.build_if),
    exp.Nullif: (_TWO, _Builder.build_nullif),
    exp.Cast: (("this", "to"), _Builder.build_cast),
    exp.TryCast: (("this", "to"), _Builder.build_cast),
    exp.Interval: (("this", "unit"), _Builder.build_interval),
    exp.Trim: (("this", "expression", "position"), _Builder.trim),
    exp.Concat: (("expressions",), _Builder.build_concat),
    exp.Extract: (_TWO, _Builder.extract),
    exp.TimestampTrunc: (("this", "unit"), _Builder.build_truncated),
    exp.DateTrunc: (("this", "unit"), _Builder.build_truncated),
    exp.Anonymous: (("this", "expressions"), _Builder.build_anonymous),
    exp.CurrentTimestamp: ((), lambda _, node: Call("current_timestamp")),
    exp.CurrentDate: ((), lambda _, node: Call("current_date")),
    exp.DateAdd: (_TWO, _Builder.build_added),
    exp.DateSub: (_TWO, _Builder.build_added),
    **SPECIAL_CALLS,
}
