"""The clauses of a merge and the assignments of an update, with every name and type in them resolved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from intarsia.common.exact import make_cast_hint
from intarsia.common.names import check_columns, join_names, make_mismatch_error, name_problems, suggest_names
from intarsia.core.expr import find_columns, find_type, resolve, to_sql
from intarsia.core.intent import MergeIntent
from intarsia.core.refusals import ValuesRefused
from intarsia.core.rule import STRATEGIES, Assign, Clause, Insert, Rule
from intarsia.core.snapshot import Snapshot
from intarsia.errors import ColumnNotFound, InputError, PartitionMoveError, SchemaMismatch

__all__ = ["Star", "resolve_assignments", "resolve_rule", "resolve_star"]


_NO_COLUMNS = pa.schema([])


def resolve_rule(
    rule: Rule, target: pa.Schema, source: pa.Schema, partition_columns: Sequence[str], path: str
) -> Rule:
    """The rule with every name and type in its clauses resolved."""
    clauses = [_resolve_clause(clause, target, source, partition_columns, path) for clause in rule.clauses]
    return replace(rule, clauses=tuple(clauses))


def _resolve_clause(
    clause: Clause, target: pa.Schema, source: pa.Schema, partition_columns: Sequence[str], path: str
) -> Clause:
    # Where there is no target row, a bare name can only be the source's.
    left = _NO_COLUMNS if clause.side == "source_only" else target
    other = None if clause.side == "target_only" else source
    condition = clause.condition
    if condition is not None:
        if clause.side == "source_only":
            _check_source_columns_only(condition, "condition", path)
        condition = resolve(condition, left, source=other, expect=pa.bool_())
    action: Any = clause.action
    if isinstance(action, (Assign, Insert)) and action.values is not None:
        if clause.side == "source_only":
            for _, value in action.values:
                _check_source_columns_only(value, "insert", path)
        path_columns = partition_columns if isinstance(action, Assign) else ()
        values = resolve_assignments(
            action.values, target, left=left, other=other, path_columns=path_columns, path=path
        )
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


def _check_source_columns_only(expression: Any, what: str, path: str) -> None:
    if any(side == "target" for side, _ in find_columns(expression)):
        raise InputError(
            f"The {what} of when_not_matched() cannot see the target: there is no such row.", path=path
        )


def resolve_assignments(
    values: Sequence[tuple[Any, Any]],
    target: pa.Schema,
    *,
    left: pa.Schema,
    other: pa.Schema | None,
    path_columns: Sequence[str],
    path: str,
) -> tuple[tuple[tuple[str, ...], Any], ...]:
    resolved = []
    seen: set[tuple[str, ...]] = set()
    within: set[tuple[str, ...]] = set()  # what holds a field that is assigned
    for name, expression in values:
        column = _resolve_assigned(name, target, path)
        if column[0] in path_columns:
            raise PartitionMoveError(
                f"partition columns cannot change for existing rows, but {column[0]!r} is assigned.",
                path=path,
                hint="delete the rows and insert them anew.",
            )
        starts = [column[:length] for length in range(1, len(column))]
        if column in seen or column in within or not seen.isdisjoint(starts):
            raise InputError(f"column {'.'.join(column)!r} is assigned twice.", path=path)
        seen.add(column)
        within.update(starts)
        dtype = _find_field_type(target, column)
        with add_column_to_errors(column):
            if other is not None and pa.types.is_timestamp(dtype) and dtype.tz is not None:
                _check_zone(expression, dtype, left, other)
            resolved.append((column, resolve(expression, left, source=other, expect=dtype)))
    return tuple(resolved)


def _check_zone(expression: Any, dtype: pa.DataType, left: pa.Schema, other: pa.Schema) -> None:
    """Raise SchemaMismatch for timestamps of the source without a zone, as for whole rows."""
    if not any(side == "source" or path[0] not in left.names for side, path in find_columns(expression)):
        return
    given = find_type(expression, left, source=other)
    if pa.types.is_timestamp(given) and given.tz is None:
        shown = to_sql(expression)
        raise SchemaMismatch(
            f"{shown} is {given}, without a zone, and the column is {dtype}.",
            hint=f"{make_cast_hint(given, dtype)},"
            f" or assign cast({shown} as timestamptz), which does the same",
        )


@contextmanager
def add_column_to_errors(column: Sequence[str]) -> Iterator[None]:
    """Add the name of the assigned column to an error about a value that does not fit it."""
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


def _resolve_assigned(name: Any, target: pa.Schema, path: str) -> tuple[str, ...]:
    parts = (name,) if isinstance(name, str) else tuple(name)
    whole = ".".join(parts)
    try:
        _find_field_type(target, parts)
    except KeyError:
        if whole in target.names:  # a dot may also be part of a name
            return (whole,)
        folded = [n for n in target.names if n.lower() == parts[0].lower()]
        if len(parts) == 1 and len(folded) == 1:
            return (folded[0],)
        near = suggest_names([whole], _list_siblings(parts, target))
        raise ColumnNotFound(f"column {whole!r} does not exist.", path=path, hint=near) from None
    return parts


def _list_siblings(parts: Sequence[str], schema: pa.Schema) -> list[str]:
    """The names at the level of the first part that does not exist, for suggestions."""
    fields, above = list(schema), ""
    for part in parts:
        found = next((field for field in fields if field.name == part), None)
        if found is None or not pa.types.is_struct(found.type):
            break
        fields, above = list(found.type), f"{above}{part}."
    return [above + field.name for field in fields]


def _find_field_type(schema: pa.Schema, parts: Sequence[str]) -> pa.DataType:
    dtype = schema.field(parts[0]).type
    for part in parts[1:]:
        if not pa.types.is_struct(dtype) or dtype.get_field_index(part) < 0:
            raise KeyError(part)
        dtype = dtype.field(part).type
    return dtype


@dataclass(frozen=True, slots=True)
class Star:
    """What ``update set *``, ``insert *`` and the strategies write of a source."""

    columns: pa.Schema
    """The source's columns that are written."""
    passed_over: tuple[str, ...] = ()
    """The source's other columns, which clauses may read."""
    kept: tuple[str, ...] = ()
    """The target's columns that the source lacks: they keep their values, and are NULL in new rows."""
    read: tuple[str, ...] = ()
    """Those of ``passed_over`` that a condition, a value or an order reads."""

    def make_source_schema(self, source: pa.Schema, schema: pa.Schema, *, strict: bool) -> pa.Schema:
        """The schema that the source is cast to, of a dataset of ``schema``.

        Unless ``strict``, NULL is refused when a row is written: a row that only deletes may lack values.
        """
        fields = [field for field in schema if field.name not in self.kept]
        if not strict:
            fields = [field.with_nullable(True) for field in fields]
        return pa.schema([*fields, *(source.field(name) for name in self.read)], schema.metadata)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the plan and the result."""
        notes = []
        if self.passed_over:
            notes.append(f"Columns of the source that are not written: {join_names(self.passed_over)}.")
        if self.kept:
            kept = join_names(self.kept)
            notes.append(f"Columns that the source lacks keep their values (new rows get NULL): {kept}.")
        return tuple(notes)


def resolve_star(intent: MergeIntent, snapshot: Snapshot, source: pa.Schema) -> Star:
    """The columns that whole rows take from the source; raises InputError where some cannot be left out."""
    _check_excepted(intent, snapshot, source)
    if not intent.rule.replaces_rows:
        return Star(source)
    excepted = set(intent.except_columns)
    target = snapshot.schema if snapshot.has_schema else None
    if target is not None and (problems := name_problems([target, source])):
        hint = "rename columns of the source to the target's spelling"
        raise make_mismatch_error(problems, intent.rule.name, snapshot.root, hint)
    if target is not None and intent.rule.name not in STRATEGIES and not _can_add_columns(intent):
        excepted |= set(source.names) - set(target.names)
    written = pa.schema([f for f in source if f.name not in excepted], source.metadata)
    kept: tuple[str, ...] = ()
    if target is not None and intent.missing == "keep":
        given = set(written.names)
        kept = tuple(name for name in target.names if name not in given)
    passed_over = tuple(name for name in source.names if name in excepted)
    mentioned = {name.lower() for name in _iterate_mentioned_columns(intent)}
    read = tuple(name for name in passed_over if name.lower() in mentioned)
    clash = [name for name in read if target is not None and name in target.names]
    if clash:
        raise InputError(
            f"{intent.rule.name}: {join_names(clash)} is left out by except_columns=, but a clause reads"
            " it, and the target has a column of that name.",
            path=snapshot.root,
            hint="give the source's column another name.",
        )
    return Star(written, passed_over, kept, read)


def _can_add_columns(intent: MergeIntent) -> bool:
    evolution: Any = intent.schema_evolution or ()
    return "add" in (evolution.split(",") if isinstance(evolution, str) else evolution)


def _check_excepted(intent: MergeIntent, snapshot: Snapshot, source: pa.Schema) -> None:
    named, path = intent.except_columns, snapshot.root
    if not named:
        return
    if not intent.rule.replaces_rows:
        raise InputError(
            "except_columns= goes with a strategy, or with `update set *` and `insert *`: no clause takes"
            " whole rows.",
            path=path,
            hint="leave it out.",
        )
    what = "except_columns: column of the source"
    check_columns(named, source.names, operation=intent.rule.name, path=path, what=what)
    keys = [name for name in named if name in intent.source_keys]
    if keys:
        raise InputError(
            f"{intent.rule.name}: key column {join_names(keys)} cannot be left out: rows are found by it.",
            path=path,
            hint="take it out of except_columns.",
        )


def _iterate_mentioned_columns(intent: MergeIntent) -> Iterator[str]:
    """Names of the columns that conditions, values and orders read."""
    yield from intent.source_keys
    yield from intent.dedup_order_by
    for expression in _iterate_expressions(intent):
        for _, path in find_columns(expression):
            yield path[0]


def _iterate_expressions(intent: MergeIntent) -> Iterator[Any]:
    if intent.residual is not None:
        yield intent.residual
    for clause in intent.rule.clauses:
        if clause.condition is not None:
            yield clause.condition
        if isinstance(clause.action, (Assign, Insert)):
            yield from (value for _, value in clause.action.values or ())
