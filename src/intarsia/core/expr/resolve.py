"""Resolving an expression against schemas: columns found, constants fitted, casts inserted.

What comes out computes the same on every engine, because nothing is left to an engine's own rules of
conversion. Columns, constants and arithmetic are in operands.py.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, assert_never

import pyarrow as pa
import pyarrow.types as pt

from intarsia.common.names import suggest_names
from intarsia.common.types import holds_uuids, is_uuid, parse_uuid
from intarsia.core.expr.casts import can_cast, cast, check_cast, check_zone
from intarsia.core.expr.functions import FUNCTIONS, NOW, TIME_FUNCTIONS
from intarsia.core.expr.kernels import mirror_operator
from intarsia.core.expr.nested import (
    LIST,
    MAKERS,
    MAP,
    ROW,
    STRUCT,
    find_common_nested,
    find_field_places,
    find_made_type,
    is_list,
)
from intarsia.core.expr.nodes import (
    NULL,
    And,
    Arithmetic,
    ArithmeticOp,
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
    list_children,
    make_literal,
    to_sql,
)
from intarsia.core.expr.operands import (
    Typed,
    as_type,
    compare_with_literal,
    find_column,
    find_stored_type,
    fit_literal,
    resolve_numeric,
    resolve_temporal,
    with_shared_zone,
)
from intarsia.core.expr.run import NO_ROWS, run, run_empty
from intarsia.core.expr.types import (
    BOOL,
    DATE,
    FLOAT64,
    INT64,
    STRING,
    UINT64,
    find_common_type,
    find_working_type,
    is_bytes,
    is_number,
    is_scalar_type,
    is_text,
    make_decimal,
    name_type,
)
from intarsia.errors import InputError, NotSupported, SchemaMismatch

_SOME_UUID = "123e4567-e89b-12d3-a456-426614174000"


def resolve(
    expr: Expr,
    schema: pa.Schema,
    *,
    source: pa.Schema | None = None,
    expect: pa.DataType | None = None,
    now: datetime.datetime | None = None,
) -> Expr:
    """The expression with every name and type resolved; pure, and the same again when resolved again.

    Args:
        schema: the table's columns (a merge's target).
        source: the other side of a merge; then a bare name must be on one side only.
        expect: the type the value must have: ``pa.bool_()`` for a predicate, the column's for an
            assignment (SPEC S27; what does not fit raises later, where it is not a constant).
        now: what ``current_timestamp`` is; the present when not given.

    Raises:
        ColumnNotFound: a column does not exist; close names are the hint.
        SchemaMismatch: types that do not go together.
        InputError: an ambiguous name, or a constant that cannot be computed.
        NotSupported: an unknown function.
    """
    resolver = _Resolver(schema, source, now or datetime.datetime.now(datetime.UTC))
    typed = resolver.resolve(expr)
    if expr == Call("current_timestamp") and expect is not None and pt.is_timestamp(expect):
        # The clock is read in the unit of the column, so that no digit is lost.
        assert isinstance(typed[0], Literal)
        typed = (
            make_literal(cast(typed[0].scalar, pa.timestamp(expect.unit, "UTC"))),
            pa.timestamp(expect.unit, "UTC"),
        )
    return resolver.fit_to(typed, expect) if expect is not None else typed[0]


def find_type(expr: Expr, schema: pa.Schema, *, source: pa.Schema | None = None) -> pa.DataType:
    """The type of the expression's value; raises what :func:`resolve` raises."""
    return _Resolver(schema, source, datetime.datetime.now(datetime.UTC)).resolve(expr)[1]


@dataclass(frozen=True, slots=True)
class _Resolver:
    schema: pa.Schema
    source: pa.Schema | None
    now: datetime.datetime

    def resolve(self, expr: Expr) -> Typed:
        """The resolved expression and its type; a constant expression is computed at once."""
        found, type = self._resolve(expr)
        operands = list_children(found)
        constant = bool(operands) and all(isinstance(operand, Literal) for operand in operands)
        # A constant is kept in the type it is computed in; a cast to how it is stored stays a cast.
        if constant and type == find_working_type(type) and not pt.is_nested(type):
            return make_literal(run(found, NO_ROWS)), type
        return found, type

    def _resolve(self, expr: Expr) -> Typed:
        match expr:
            case Column():
                return find_column(expr, self.schema, self.source)
            case Literal(_, type):
                return _to_working_literal(expr), find_working_type(type)
            case Not(operand):
                return Not(self.resolve_condition(operand)), BOOL
            case And(left, right):
                return And(self.resolve_condition(left), self.resolve_condition(right)), BOOL
            case Or(left, right):
                return Or(self.resolve_condition(left), self.resolve_condition(right)), BOOL
            case IsNull(operand):
                return IsNull(self.resolve(operand)[0]), BOOL
            case Compare(op, left, right):
                return self.resolve_comparison(op, self.resolve(left), self.resolve(right)), BOOL
            case In():
                return self.resolve_in(expr), BOOL
            case Like():
                return self.resolve_like(expr), BOOL
            case Arithmetic(sign, left, right):
                return self.resolve_arithmetic(sign, self.resolve(left), self.resolve(right))
            case Negate(operand):
                return self.resolve_negation(operand)
            case Case(branches, default):
                conditions = [self.resolve_condition(when) for when, _ in branches]
                results, type = self.unify([*(then for _, then in branches), default])
                return Case(tuple(zip(conditions, results, strict=False)), results[-1]), type
            case Cast():
                return self.resolve_cast(expr)
            case Call(name, args):
                return self.resolve_call(name, args)
        assert_never(expr)

    # Types

    def resolve_condition(self, expr: Expr) -> Expr:
        typed = self.resolve(expr)
        if pt.is_null(typed[1]):
            return Literal(None, BOOL)
        if not pt.is_boolean(typed[1]):
            raise SchemaMismatch(
                f"{to_sql(expr)} is {name_type(typed[1])} where a condition is needed",
                hint="compare it with something",
            )
        return typed[0]

    def as_uuid(self, typed: Typed, beside: pa.DataType | None) -> Typed:
        """A text constant next to a column of UUIDs as the UUID's bytes; any other value unchanged."""
        expr, type = typed
        if not isinstance(expr, Literal) or not is_text(type) or expr.value is None:
            return typed
        if beside is None or not holds_uuids(beside):
            return typed
        data = parse_uuid(expr.value)
        if data is None and is_uuid(beside):
            raise InputError(f"{to_sql(expr)} is no UUID", hint=f"write it as '{_SOME_UUID}'")
        return typed if data is None else (Literal(data, pa.binary()), pa.binary())

    def find_stored_type(self, expr: Expr) -> pa.DataType | None:
        """The type of a column in its schema; None for other expressions."""
        return find_stored_type(expr, self.schema, self.source) if isinstance(expr, Column) else None

    def fit_to(self, typed: Typed, expect: pa.DataType) -> Expr:
        expr, type = self.as_uuid(typed, expect)
        if type == expect:
            return expr
        wanted = find_working_type(expect)
        if isinstance(expr, Call) and expr.name in MAKERS and pt.is_nested(expect):
            return fit_made_value(expr, type, expect, self)
        if isinstance(expr, Literal):
            expr = fit_literal(expr, wanted) or expr
            type = find_working_type(expr.type)
        alike = find_common_type(type, wanted) is not None and not pt.is_boolean(wanted)
        to_date = pt.is_timestamp(type) and pt.is_date(wanted)
        if not (alike or to_date or type == wanted or pt.is_null(type)):
            if isinstance(expr, Case) and (is_text(type) or pt.is_nested(type)):  # branch by branch
                branches = [(when, self.fit_to((then, type), expect)) for when, then in expr.branches]
                return Case(tuple(branches), self.fit_to((expr.default, type), expect))
            raise SchemaMismatch(
                f"{to_sql(expr)} is {name_type(type)} where {name_type(expect)} is needed",
                hint=f"cast({to_sql(expr)} as {name_type(expect)}) if that is what you mean",
            )
        check_cast(type, wanted)
        if isinstance(expr, Literal) and wanted == expect:
            return make_literal(run(Cast(expr, expect, assign=True), NO_ROWS))
        return expr if type == expect else Cast(expr, expect, assign=True)

    def resolve_comparison(self, op: CompareOp, left: Typed, right: Typed) -> Expr:
        if pt.is_nested(left[1]) or pt.is_nested(right[1]):
            return self.resolve_nested_comparison(op, left, right)
        left, right = (
            self.as_uuid(left, self.find_stored_type(right[0])),
            self.as_uuid(right, self.find_stored_type(left[0])),
        )
        for _, type in (left, right):
            if not is_scalar_type(type):
                raise NotSupported(
                    f"values of type {type} cannot be compared", hint="compare their fields, or use IS NULL"
                )
        if isinstance(right[0], Literal) and not (isinstance(left[0], Literal) and is_text(left[1])):
            found = compare_with_literal(op, *left, right[0])
        elif isinstance(left[0], Literal):
            found = compare_with_literal(mirror_operator(op), *right, left[0])
        else:
            type = find_common_type(left[1], right[1])
            found = type and Compare(op, as_type(left, type), as_type(right, type))
        if found is None:
            self.raise_mismatch(op, left, right)
        return found

    def resolve_nested_comparison(self, op: CompareOp, left: Typed, right: Typed) -> Expr:
        if op not in ("=", "<>"):
            raise NotSupported(f"nested values have no order for {op}", hint="compare their fields")
        type = find_common_nested(left[1], right[1])
        if type is None:
            self.raise_mismatch(op, left, right)
        return Compare(op, as_type(left, type), as_type(right, type))

    def raise_mismatch(self, op: str, left: Typed, right: Typed) -> NoReturn:
        raise SchemaMismatch(
            f"{to_sql(left[0])} ({name_type(left[1])}) {op} {to_sql(right[0])} ({name_type(right[1])}): "
            "the types do not go together",
            hint="cast one of them, or write the constant as the other's type",
        )

    def resolve_in(self, expr: In) -> Expr:
        operand = self.resolve(expr.operand)
        if all(isinstance(item, Literal) and item.type == operand[1] for item in expr.items):
            return In(operand[0], expr.items, expr.negated)
        tests = [self.resolve_comparison("=", operand, self.resolve(item)) for item in expr.items]
        items: list[Expr] = []
        for test in tests:
            match test:
                case Compare("=", left, Literal() as item) if left == operand[0]:
                    items.append(item)
                case Compare("<>"):
                    pass  # a value the operand's type does not have, such as 1.5 among integers
                case _:
                    break
        else:
            return In(operand[0], tuple(items), expr.negated)
        either = tests[0]
        for test in tests[1:]:
            either = Or(either, test)
        return Not(either) if expr.negated else either

    def resolve_like(self, expr: Like) -> Expr:
        operand, pattern = self.resolve(expr.operand), self.resolve(expr.pattern)
        if not isinstance(pattern[0], Literal):
            raise NotSupported("LIKE needs a constant pattern", hint="use contains, starts_with or ends_with")
        for typed in (operand, pattern):
            if not is_text(typed[1]) and not pt.is_null(typed[1]):
                self.raise_mismatch("LIKE", operand, pattern)
        if expr.escape is not None and len(expr.escape) != 1:
            raise InputError(f"ESCAPE needs one character, not {expr.escape!r}")
        return Like(
            as_type(operand, operand[1] if is_text(operand[1]) else STRING), *_make_pattern(pattern[0], expr)
        )

    def unify(self, exprs: Sequence[Expr]) -> tuple[tuple[Expr, ...], pa.DataType]:
        """The expressions in one common type: that of the columns, if the constants fit into it."""
        typed = with_shared_zone([self.resolve(expr) for expr in exprs])
        if any(pt.is_nested(item[1]) for item in typed):
            return self.unify_nested(typed)
        fixed = [item for item in typed if not isinstance(item[0], Literal)] or typed
        type: pa.DataType | None = pa.null()
        for item in fixed:
            type = find_common_type(type, item[1])
            if type is None:
                self.raise_mismatch("beside", fixed[0], item)
        fitted: list[Typed] = []
        for item in typed:
            fits = fit_literal(item[0], type) if isinstance(item[0], Literal) else None
            fitted.append((fits, fits.type) if fits is not None else item)
        for item in fitted:
            wider = find_common_type(type, item[1])
            if wider is None:
                self.raise_mismatch("beside", fixed[0], item)
            type = wider
        return tuple(as_type(item, type) for item in fitted), type

    def unify_nested(self, typed: Sequence[Typed]) -> tuple[tuple[Expr, ...], pa.DataType]:
        type: pa.DataType | None = pa.null()
        for item in typed:
            type = find_common_nested(type, item[1])
            if type is None:
                self.raise_mismatch("beside", typed[0], item)
        return tuple(as_type(item, type) for item in typed), type

    def resolve_cast(self, expr: Cast) -> Typed:
        operand, type = self.resolve(expr.operand)
        if pt.is_nested(expr.type):  # inserted by resolving
            return Cast(operand, expr.type, assign=expr.assign), expr.type
        if is_uuid(expr.type) and (is_text(type) or is_bytes(type)):
            return self.to_uuid(expr, operand, type)
        if not can_cast(type, find_working_type(expr.type)):
            raise SchemaMismatch(f"{to_sql(operand)} is {name_type(type)}, which cannot become {expr.type}")
        if type == expr.type:
            return operand, type
        check_cast(type, expr.type)
        if expr.truncate and pt.is_integer(expr.type) and (pt.is_floating(type) or pt.is_decimal(type)):
            operand = self.resolve(Call("trunc", (operand,)))[0]
        return Cast(operand, expr.type, expr.try_, assign=expr.assign), expr.type

    def to_uuid(self, expr: Cast, operand: Expr, type: pa.DataType) -> Typed:
        """A cast to UUID; its value is the bytes of the UUID, which expressions compute with."""
        if isinstance(operand, Literal) and is_text(type) and not expr.try_:
            return self.as_uuid((operand, type), expr.type)
        whole = Cast(operand, expr.type, expr.try_, assign=expr.assign) if is_text(type) else operand
        return Cast(whole, pa.binary()) if whole is not operand else operand, pa.binary()

    # Computing

    def resolve_negation(self, operand: Expr) -> Typed:
        found, type = self.resolve(operand)
        if pt.is_interval(type) and isinstance(found, Literal):
            return Literal(tuple(-part for part in found.value), type), type
        if not is_number(type):
            raise SchemaMismatch(f"-({to_sql(found)}): {name_type(type)} has no negative")
        wide = INT64 if pt.is_integer(type) and type != UINT64 else type
        wide = make_decimal(20, 0) if type == UINT64 else wide
        return Negate(as_type((found, type), wide)), wide

    def resolve_arithmetic(self, op: ArithmeticOp, left: Typed, right: Typed) -> Typed:
        if op == "||":
            return self.resolve_call("||", (left[0], right[0]))
        if pt.is_null(left[1]) or pt.is_null(right[1]):
            other = right[1] if pt.is_null(left[1]) else left[1]
            return Literal(None, FLOAT64 if op == "/" else other), FLOAT64 if op == "/" else other
        if is_number(left[1]) and is_number(right[1]):
            return resolve_numeric(op, left, right) or self.raise_mismatch(op, left, right)
        found = resolve_temporal(op, left, right)
        if found is None and op == "+":
            found = resolve_temporal(op, right, left)
        return found or self.raise_mismatch(op, left, right)

    def resolve_call(self, name: str, args: Sequence[Expr]) -> Typed:
        if name in NOW:
            moment = make_literal(self.now, pa.timestamp("us", "UTC"))
            return (moment, moment.type) if name == "current_timestamp" else _make_today(self.now)
        if name == "||":
            joined = [self.resolve(arg) for arg in args]
            rule = FUNCTIONS["concat"].rule([type for _, type in joined])
            assert rule is not None
            return Arithmetic("||", as_type(joined[0], rule[1]), as_type(joined[1], rule[1])), rule[1]
        if name in MAKERS:
            return resolve_maker(name, args, self)
        function = FUNCTIONS.get(name)
        if function is None:
            raise NotSupported(
                f"there is no function {name}()", hint=suggest_names([name], [*FUNCTIONS, *NOW]) or None
            )
        if len(args) < function.least or (function.most is not None and len(args) > function.most):
            raise InputError(f"{name}({function.takes}) was given {len(args)} arguments")
        if function.alike:
            found, type = self.unify(args)
            typed = [(arg, type) for arg in found]
        else:
            typed = with_shared_zone([self.resolve(arg) for arg in args])
        for position in function.constant - function.varying:
            if position < len(typed) and not isinstance(typed[position][0], Literal):
                raise NotSupported(
                    f"{name}({function.takes}): {to_sql(typed[position][0])} must be a constant"
                )
        rule = function.rule([type for _, type in typed])
        if rule is None or not all(is_scalar_type(type) for _, type in typed):
            given = ", ".join(name_type(type) for _, type in typed)
            raise SchemaMismatch(f"{name}({function.takes}) was given ({given})")
        for _, type in typed:
            if name in TIME_FUNCTIONS and name != "epoch":
                check_zone(type)
        found_call = Call(name, tuple(map(as_type, typed, rule[0])))
        if _has_constants(
            function.constant, found_call
        ):  # raises for a constant that the function does not accept
            run_empty(found_call, rule[0])
        return found_call, rule[1]


def _has_constants(positions: frozenset[int], call: Call) -> bool:
    given = [position for position in positions if position < len(call.args)]
    return bool(given) and all(isinstance(call.args[position], Literal) for position in given)


def _to_working_literal(expr: Literal) -> Literal:
    type = find_working_type(expr.type)
    return expr if type == expr.type else make_literal(expr.scalar.cast(type))


def _make_pattern(pattern: Expr, expr: Like) -> tuple[Literal, bool, str | None]:
    assert isinstance(pattern, Literal)
    return Literal(pattern.value, STRING), expr.ignore_case, expr.escape


def _make_today(now: datetime.datetime) -> Typed:
    return make_literal(now.astimezone(datetime.UTC).date(), DATE), DATE


def resolve_maker(name: str, args: Sequence[Expr], resolver: _Resolver) -> Typed:
    """A call of ``list``, ``struct``, ``row`` or ``map`` with its arguments resolved."""
    parts: Sequence[Expr]
    if name == LIST:
        parts = resolver.unify(args)[0] if args else ()
    elif name == MAP:
        keys, items = (resolver.unify(each)[0] if each else () for each in (args[::2], args[1::2]))
        parts = [part for pair in zip(keys, items, strict=True) for part in pair]
    else:
        parts = [resolver.resolve(arg)[0] for arg in args]
    call = Call(name, tuple(parts))
    return call, find_made_type(name, parts, [resolver.resolve(part)[1] for part in parts])


def fit_made_value(call: Call, type: pa.DataType, expect: pa.DataType, resolver: _Resolver) -> Expr:
    """A nested value with every part cast to the type that the column has there."""

    def fit(parts: Sequence[Expr], dtype: pa.DataType) -> list[Expr]:
        return [resolver.fit_to(resolver.resolve(part), dtype) for part in parts]

    name, args = call.name, call.args
    if name == LIST and is_list(expect):
        made = Call(LIST, tuple(fit(args, expect.value_type)))
    elif name == MAP and pt.is_map(expect):
        pairs = zip(fit(args[::2], expect.key_type), fit(args[1::2], expect.item_type), strict=True)
        made = Call(MAP, tuple(part for pair in pairs for part in pair))
    elif name in (STRUCT, ROW) and pt.is_struct(expect):
        places = find_field_places(type, expect)
        if places is None:
            raise SchemaMismatch(f"{to_sql(call)} has other fields than {expect}", hint="name its fields")
        given = dict(zip(places, args[1::2] if name == STRUCT else args, strict=True))
        parts: list[Expr] = []
        for place, field in enumerate(expect):
            if place not in given and not field.nullable:
                raise SchemaMismatch(f"{to_sql(call)} has no {field.name!r}, which is NOT NULL")
            parts += [make_literal(field.name), *fit([given.get(place, NULL)], field.type)]
        made = Call(STRUCT, tuple(parts))
    else:
        raise SchemaMismatch(f"{to_sql(call)} is {type} where {expect} is needed")
    return Cast(made, expect, assign=True)
