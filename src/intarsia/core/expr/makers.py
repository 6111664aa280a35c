"""Gives the parts of lists, structs, rows and maps their types; part of resolving an expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.types as pt

from intarsia.core.expr.nested import LIST, MAP, ROW, STRUCT, field_places, is_list, made_type
from intarsia.core.expr.nodes import NULL, Call, Cast, Expr, literal
from intarsia.core.expr.operate import Typed
from intarsia.core.expr.text import to_sql
from intarsia.errors import SchemaMismatch


class Resolver(Protocol):
    """What gives expressions their types."""

    def typed(self, expr: Expr) -> Typed: ...
    def alike(self, exprs: Sequence[Expr]) -> tuple[tuple[Expr, ...], pa.DataType]: ...
    def expected(self, typed: Typed, expect: pa.DataType) -> Expr: ...


def maker(name: str, args: Sequence[Expr], resolver: Resolver) -> Typed:
    """A list, struct, row or map of its parts."""
    parts: Sequence[Expr]
    if name == LIST:
        parts = resolver.alike(args)[0] if args else ()
    elif name == MAP:
        keys, items = (resolver.alike(each)[0] if each else () for each in (args[::2], args[1::2]))
        parts = [part for pair in zip(keys, items, strict=True) for part in pair]
    else:
        parts = [resolver.typed(arg)[0] for arg in args]
    call = Call(name, tuple(parts))
    return call, made_type(name, parts, [resolver.typed(part)[1] for part in parts])


def made_for(call: Call, type: pa.DataType, expect: pa.DataType, resolver: Resolver) -> Expr:
    """A nested value with every part in the type that a column has for it."""

    def fit(parts: Sequence[Expr], kind: pa.DataType) -> list[Expr]:
        return [resolver.expected(resolver.typed(part), kind) for part in parts]

    name, args = call.name, call.args
    if name == LIST and is_list(expect):
        made = Call(LIST, tuple(fit(args, expect.value_type)))
    elif name == MAP and pt.is_map(expect):
        pairs = zip(fit(args[::2], expect.key_type), fit(args[1::2], expect.item_type), strict=True)
        made = Call(MAP, tuple(part for pair in pairs for part in pair))
    elif name in (STRUCT, ROW) and pt.is_struct(expect):
        places = field_places(type, expect)
        if places is None:
            raise SchemaMismatch(f"{to_sql(call)} has other fields than {expect}", hint="name its fields")
        given = dict(zip(places, args[1::2] if name == STRUCT else args, strict=True))
        parts: list[Expr] = []
        for place, field in enumerate(expect):
            if place not in given and not field.nullable:
                raise SchemaMismatch(f"{to_sql(call)} has no {field.name!r}, which is NOT NULL")
            parts += [literal(field.name), *fit([given.get(place, NULL)], field.type)]
        made = Call(STRUCT, tuple(parts))
    else:
        raise SchemaMismatch(f"{to_sql(call)} is {type} where {expect} is needed")
    return Cast(made, expect, assign=True)
