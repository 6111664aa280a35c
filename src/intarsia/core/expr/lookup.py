"""The column that a name means: on which side, in which spelling, of which type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import pyarrow as pa
import pyarrow.types as pt

from intarsia.common.names import near_names, suggestion
from intarsia.core.expr.nodes import Column, Side
from intarsia.core.expr.operate import Typed
from intarsia.core.expr.text import to_sql
from intarsia.core.expr.types import working_type
from intarsia.errors import ColumnNotFound, InputError


def find_column(node: Column, schema: pa.Schema, source: pa.Schema | None) -> Typed:
    """The column as the schemas spell it, and the type it is computed in.

    Raises:
        ColumnNotFound: there is none of this name.
        InputError: the name could mean several.
    """
    if source is None:
        # "target" and "source" are plain names outside a merge, unless no such column exists.
        if node.side is not None and any(name.lower() == node.side for name in schema.names):
            node = Column((node.side, *node.path), None, node.exact)
        if node.side == "source":
            raise InputError(f"{to_sql(node)} names a source, and there is none here")
        path, type = _find(node, schema)
        return Column(path, None, True), type
    side: Side = node.side or _side_of(node, schema, source)
    path, type = _find(node, schema if side == "target" else source)
    return Column(path, side, True), type


def stored_type(node: Column, schema: pa.Schema, source: pa.Schema | None) -> pa.DataType:
    """The type that a column, as :func:`found_column` gives it back, has in its schema."""
    side = source if node.side == "source" and source is not None else schema
    found: pa.DataType = side.field(node.path[0]).type
    for part in node.path[1:]:
        found = found.field(part).type
    return found


def _side_of(node: Column, target: pa.Schema, source: pa.Schema) -> Side:
    places: list[Side] = []
    if _match_names(node.path[0], target.names, node.exact):
        places.append("target")
    if _match_names(node.path[0], source.names, node.exact):
        places.append("source")
    if len(places) == 2:
        name = ".".join(node.path)
        raise InputError(f"{name!r} is a column of both sides", hint=f"write target.{name} or source.{name}")
    return places[0] if places else "target"


def _find(node: Column, schema: pa.Schema) -> tuple[tuple[str, ...], pa.DataType]:
    fields = list(schema)
    path: list[str] = []
    found: pa.DataType = pa.null()
    for part in node.path:
        names = [field.name for field in fields]
        matches = _match_names(part, names, node.exact)
        if len(matches) != 1:
            _not_one(".".join(node.path), part, matches, names)
        field = fields[names.index(matches[0])]
        path.append(field.name)
        found = field.type
        fields = list(field.type) if pt.is_struct(field.type) else []
    return tuple(path), working_type(found)


def _match_names(name: str, names: Sequence[str], exact: bool) -> list[str]:
    if name in names:
        return [name]
    return [] if exact else [other for other in names if other.lower() == name.lower()]


def _not_one(path: str, part: str, matches: Sequence[str], names: Sequence[str]) -> NoReturn:
    if matches:
        raise InputError(
            f"column {path!r} could be any of {', '.join(map(repr, matches))}", hint="quote the one you mean"
        )
    close = near_names(part, names)
    hint = suggestion([part], names) if names else ""
    if not close and path == part:  # a text that is not quoted, or not as SQL does
        hint += f" A text is written in single quotes: '{part}'"
    raise ColumnNotFound(f"there is no column {path!r}", hint=hint.strip() or None)
