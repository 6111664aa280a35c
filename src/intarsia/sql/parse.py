"""Turns SQL text into expressions with sqlglot; what an expression means is resolved in core.expr."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import ModuleType
from typing import Any

import pyarrow as pa

from intarsia.common.paths import is_encodable
from intarsia.core.expr import (
    And,
    Arithmetic,
    Case,
    Cast,
    Column,
    Compare,
    Expr,
    Literal,
    Negate,
    find_columns,
    make_literal,
    make_null_safe_equal,
    split_conjuncts,
    to_sql,
)
from intarsia.errors import InputError, NotSupported

DIALECTS = {None: "duckdb", "ansi": "duckdb", "duckdb": "duckdb", "spark": "spark"}

Path = tuple[str, ...]


def parse_expression(text: str, *, dialect: str | None = None) -> Expr:
    """Parse an expression.

    Args:
        dialect: the SQL it is written in: ANSI with DuckDB's functions, or ``"spark"``.

    Raises:
        InputError: it is not one expression; the message shows where.
        NotSupported: it uses something expressions do not have, or sqlglot is not installed.
    """
    name = _find_dialect(dialect)
    tree = _parse_tree(text, name)
    from intarsia.sql.build import build  # needs sqlglot, which is there by now

    try:
        return build(tree, text=text, dialect=name)
    except RecursionError as error:
        raise _make_depth_error(text) from error


def parse_predicate(text: str, *, dialect: str | None = None) -> Expr:
    """Parse a condition; text that can only be a number or a string is refused."""
    expr = parse_expression(text, dialect=dialect)
    constant = isinstance(expr, Literal) and not (expr.value is None or isinstance(expr.value, bool))
    if constant or isinstance(expr, Arithmetic | Negate):
        raise InputError(f"{text!r} is a value, not a condition", hint="compare it with something")
    return expr


def parse_assignments(assignments: Any, *, dialect: str | None = None) -> tuple[tuple[Path, Expr], ...]:
    """Columns, or fields inside them (``"p.amt"``), with the expressions they are set to.

    A value that is not text is taken as a constant. Raises InputError for anything but a mapping of names,
    and when a field is set twice, or a struct is set together with one of its fields.
    """
    if not isinstance(assignments, Mapping) or not all(isinstance(name, str) for name in assignments):
        raise InputError(
            f"assignments must be a dict from columns to values, not {assignments!r}",
            hint='such as {"price": "price * 1.1", "note": "\'x\'"}',
        )
    found = tuple(
        (_parse_path(name, dialect), _parse_assigned(value, dialect)) for name, value in assignments.items()
    )
    if not found:
        raise InputError(
            "there is no assignment: nothing to set", hint="give at least one column and its new value"
        )
    for path, other in pairwise(sorted(tuple(part.lower() for part in path) for path, _ in found)):
        if other[: len(path)] == path:  # itself, or a field inside it, which sorts right after it
            raise InputError(f"{'.'.join(path)!r} and {'.'.join(other)!r} cannot both be set")
    return found


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A target column and a source column that must be equal."""

    target: Column
    source: Column
    null_safe: bool = False
    """Whether NULL equals NULL (``<=>``, ``is not distinct from``)."""


def parse_type(name: str, *, dialect: str | None = None) -> pa.DataType:
    """The Arrow type of an SQL type's name, such as ``decimal(10, 2)``. Raises InputError or NotSupported."""
    expr = parse_expression(f"cast(x as {name})", dialect=dialect)
    if not isinstance(expr, Cast) or expr.operand != Column(("x",)):
        raise InputError(f"{name!r} is not the name of a type.")
    return expr.type


def parse_merge_condition(
    text: str, *, dialect: str | None = None
) -> tuple[tuple[KeyPair, ...], Expr | None]:
    """The pairs of columns that must be equal, and the rest of the condition.

    Raises InputError for a bare column name, and where no equality ties the two sides together.
    """
    expr = parse_predicate(text, dialect=dialect)
    for side, path in sorted(find_columns(expr), key=str):
        if side is None:
            name = ".".join(path)
            raise InputError(
                f"{name!r} in {text!r} does not say which side", hint=f"write target.{name} or source.{name}"
            )
    pairs: list[KeyPair] = []
    rest: Expr | None = None
    for part in split_conjuncts(expr):
        pair = _find_pair(part)
        if pair is not None:
            pairs.append(pair)
        else:
            rest = part if rest is None else And(rest, part)
    if not pairs:
        raise InputError(
            f"{text!r} has no equality between the two sides", hint="such as target.id = source.id"
        )
    return tuple(dict.fromkeys(pairs)), rest


def _find_pair(expr: Expr) -> KeyPair | None:
    match expr:
        case Compare("=", Column(side="target") as target, Column(side="source") as source):
            return KeyPair(target, source)
        case Compare("=", Column(side="source") as source, Column(side="target") as target):
            return KeyPair(target, source)
        case Case(_, Compare("=", left, right) as same) if expr == make_null_safe_equal(left, right):
            pair = _find_pair(same)
            return None if pair is None else replace(pair, null_safe=True)
    return None


def _parse_assigned(value: Any, dialect: str | None) -> Expr:
    if isinstance(value, str):
        return parse_expression(value, dialect=dialect)
    try:
        return make_literal(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{value!r} is neither SQL text nor a plain value: {error}") from error


def _parse_path(name: str, dialect: str | None) -> Path:
    """The column path of a key; a key that is no valid SQL name, such as ``my col``, is the name itself."""
    try:
        expr = parse_expression(name, dialect=dialect)
    except (InputError, NotSupported):
        import_sqlglot()
        return (name,)
    if not isinstance(expr, Column):
        return (name,)
    if expr.side == "source":
        raise InputError(f"{to_sql(expr)} cannot be set: it belongs to the source")
    return expr.path


def _find_dialect(dialect: str | None) -> str:
    try:
        return DIALECTS[dialect]
    except (KeyError, TypeError):
        known = ", ".join(repr(name) for name in DIALECTS if name)
        raise NotSupported(f"there is no dialect {dialect!r}", hint=f"there are {known}") from None


def import_sqlglot() -> ModuleType:
    """Import sqlglot; raises NotSupported, which says how to install it."""
    try:
        import sqlglot
    except ImportError as error:
        raise NotSupported(
            "SQL text needs sqlglot, which is not installed",
            hint="pip install 'intarsia[sql]', or give a pyarrow.compute expression",
        ) from error
    return sqlglot


def tokenize(text: str, *, dialect: str | None = None) -> list[Any]:
    """The tokens of an SQL text, with their positions. Raises InputError if it is not SQL."""
    sqlglot = import_sqlglot()
    if not isinstance(text, str):
        raise InputError(f"SQL text is needed, not {type(text).__name__}")
    if not is_encodable(text):
        raise InputError(f"{text!r} is not SQL: it has half of a character in it (a lone surrogate)")
    try:
        tokens: list[Any] = sqlglot.Dialect.get_or_raise(_find_dialect(dialect)).tokenize(text)
    except sqlglot.errors.TokenError as error:
        raise InputError(f"{text!r} is not SQL: {error}", hint="is a quote left open?") from error
    _check(tokens, text)
    return tokens


def _parse_tree(text: str, dialect: str) -> Any:
    sqlglot = import_sqlglot()
    tokens = tokenize(text, dialect=dialect)
    try:
        trees = (
            sqlglot.Dialect.get_or_raise(dialect)
            .parser(error_level=sqlglot.ErrorLevel.IMMEDIATE)
            .parse_into(sqlglot.exp.Condition, tokens, text)
        )
    except sqlglot.errors.ParseError as error:
        raise InputError(_describe_syntax_error(text, error), hint="check the SQL") from error
    except RecursionError as error:
        raise _make_depth_error(text) from error
    if len(trees) != 1 or trees[0] is None:
        raise InputError(f"{text!r} is not one expression")
    return trees[0]


def _make_depth_error(text: str) -> InputError:
    return InputError(f"the SQL is nested too deeply ({len(text)} characters)")


def _check(tokens: Any, text: str) -> None:
    if not tokens:
        raise InputError("the SQL text is empty")
    for token in tokens:
        if token.comments:
            raise InputError(f"comments are not allowed in {text!r}", hint="leave the comment out")
        if token.token_type.name == "SEMICOLON":
            raise InputError(f"{text!r} holds a semicolon: one expression is needed, not statements")


def _describe_syntax_error(text: str, error: Any) -> str:
    details = (getattr(error, "errors", None) or [{}])[-1]
    where = f" at line {details['line']}, column {details['col']}" if details.get("line") else ""
    near = f", near {details['highlight']!r}" if details.get("highlight") else ""
    reason = details.get("description") or str(error).splitlines()[0]
    if "<class" in reason:  # sqlglot names its own classes where an operand is missing
        reason = "something is missing after it"
    return f"cannot read the SQL {text!r}{where}{near}: {reason.rstrip('. ')}"
