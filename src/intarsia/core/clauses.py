"""The clauses of a merge and the assignments of an update, with every name and type in them settled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from intarsia.common.names import suggestion
from intarsia.common.zones import cast_hint
from intarsia.core.expr import columns as columns_of
from intarsia.core.expr import resolve, to_sql, type_of
from intarsia.core.refusals import ValuesRefused
from intarsia.core.rule import Assign, Clause, Insert, Rule
from intarsia.errors import ColumnNotFound, InputError, PartitionMoveError, SchemaMismatch

__all__ = ["resolve_assignments", "resolve_rule"]

_NO_COLUMNS = pa.schema([])


def resolve_rule(
    rule: Rule, target: pa.Schema, source: pa.Schema, partition_columns: Sequence[str], path: str
) -> Rule:
    """The rule with every name and type in its clauses settled."""
    clauses = [_resolved_clause(clause, target, source, partition_columns, path) for clause in rule.clauses]
    return replace(rule, clauses=tuple(clauses))


def _resolved_clause(
    clause: Clause, target: pa.Schema, source: pa.Schema, partition_columns: Sequence[str], path: str
) -> Clause:
    # Where there is no target row, a bare name can only be the source's.
    left = _NO_COLUMNS if clause.side == "source_only" else target
    other = None if clause.side == "target_only" else source
    condition = clause.condition
    if condition is not None:
        if clause.side == "source_only":
            _only_source_columns(condition, "condition", path)
        condition = resolve(condition, left, source=other, expect=pa.bool_())
    action: Any = clause.action
    if isinstance(action, (Assign, Insert)) and action.values is not None:
        if clause.side == "source_only":
            for _, value in action.values:
                _only_source_columns(value, "insert", path)
        apart = partition_columns if isinstance(action, Assign) else ()
        values = resolve_assignments(action.values, target, left=left, other=other, apart=apart, path=path)
        if isinstance(action, Insert):
            _check_required([column for column, _ in values], list(target), (), path)
        action = replace(action, values=values)
    return replace(clause, condition=condition, action=action)


def _check_required(
    named: Sequence[tuple[str, ...]], fields: Sequence[pa.Field], above: tuple[str, ...], path: str
) -> None:
    """Raise SchemaMismatch where an insert leaves out a column, or a field of a struct, that is NOT NULL."""
    for field in fields:
        column = (*above, field.name)
        inside = [each for each in named if each[: len(column)] == column]
        if not inside and not field.nullable:
            raise SchemaMismatch(
                f"{'.'.join(column)!r} is NOT NULL, and the insert gives it no value.",
                path=path,
                hint="name it among the columns of the insert.",
            )
        if inside and column not in inside:
            _check_required(inside, list(field.type), column, path)


def _only_source_columns(expression: Any, what: str, path: str) -> None:
    if any(side == "target" for side, _ in columns_of(expression)):
        raise InputError(
            f"The {what} of when_not_matched() cannot see the target: there is no such row.", path=path
        )


def resolve_assignments(
    values: Sequence[tuple[Any, Any]],
    target: pa.Schema,
    *,
    left: pa.Schema,
    other: pa.Schema | None,
    apart: Sequence[str],
    path: str,
) -> tuple[tuple[tuple[str, ...], Any], ...]:
    resolved = []
    seen: set[tuple[str, ...]] = set()
    for name, expression in values:
        column = _assigned_path(name, target, path)
        if column[0] in apart:
            raise PartitionMoveError(
                f"partition columns cannot change for existing rows, but {column[0]!r} is assigned.",
                path=path,
                hint="delete the rows and insert them anew.",
            )
        if any(column[: len(s)] == s or s[: len(column)] == column for s in seen):
            raise InputError(f"column {'.'.join(column)!r} is assigned twice.", path=path)
        seen.add(column)
        kind = _field_type(target, column)
        with naming_column(column):
            if other is not None and pa.types.is_timestamp(kind) and kind.tz is not None:
                _check_zone(expression, kind, left, other)
            resolved.append((column, resolve(expression, left, source=other, expect=kind)))
    return tuple(resolved)


def _check_zone(expression: Any, kind: pa.DataType, left: pa.Schema, other: pa.Schema) -> None:
    """Raise SchemaMismatch for times of the source without a zone, as where a whole row takes their place."""
    if not any(side == "source" or path[0] not in left.names for side, path in columns_of(expression)):
        return
    given = type_of(expression, left, source=other)
    if pa.types.is_timestamp(given) and given.tz is None:
        shown = to_sql(expression)
        raise SchemaMismatch(
            f"{shown} is {given}, without a zone, and the column is {kind}.",
            hint=f"{cast_hint(given, kind)}, or assign cast({shown} as timestamptz), which does the same",
        )


@contextmanager
def naming_column(column: Sequence[str]) -> Iterator[None]:
    """Say which column is set, in an error of a value that does not fit it."""
    try:
        yield
    except ValuesRefused as error:
        name = ".".join(column)
        error.refusals = tuple(replace(one, column=name) for one in error.refusals)
        error.message = f"column {name!r} cannot be set: {error.message}"
        raise
    except SchemaMismatch as error:
        raise SchemaMismatch(
            f"column {'.'.join(column)!r} cannot be set: {error.message}", hint=error.hint
        ) from error


def _assigned_path(name: Any, target: pa.Schema, path: str) -> tuple[str, ...]:
    parts = (name,) if isinstance(name, str) else tuple(name)
    whole = ".".join(parts)
    try:
        _field_type(target, parts)
    except KeyError:
        if whole in target.names:  # a dot may also be part of a name
            return (whole,)
        folded = [n for n in target.names if n.lower() == parts[0].lower()]
        if len(parts) == 1 and len(folded) == 1:
            return (folded[0],)
        near = suggestion([whole], _beside(parts, target))
        raise ColumnNotFound(f"column {whole!r} does not exist.", path=path, hint=near) from None
    return parts


def _beside(parts: Sequence[str], schema: pa.Schema) -> list[str]:
    """The names among which the first part that is not there might have been."""
    fields, above = list(schema), ""
    for part in parts:
        found = next((field for field in fields if field.name == part), None)
        if found is None or not pa.types.is_struct(found.type):
            break
        fields, above = list(found.type), f"{above}{part}."
    return [above + field.name for field in fields]


def _field_type(schema: pa.Schema, parts: Sequence[str]) -> pa.DataType:
    kind = schema.field(parts[0]).type
    for part in parts[1:]:
        if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            raise KeyError(part)
        kind = kind.field(part).type
    return kind
