"""Which source columns whole rows are made of: what a star takes, what it passes over, what rows keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from intarsia.common.mismatch import mismatch, name_problems
from intarsia.common.names import check_columns, listed_names
from intarsia.core.expr import columns as columns_of
from intarsia.core.files import Snapshot
from intarsia.core.intent import Merge
from intarsia.core.rule import STRATEGIES, Assign, Insert
from intarsia.errors import InputError

__all__ = ["Star", "resolve_star"]


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
    """Those that are passed over, but that a condition, a value or an order reads."""

    def wanted(self, source: pa.Schema, schema: pa.Schema, *, strict: bool) -> pa.Schema:
        """The schema that the source is cast to, of a dataset of ``schema``.

        Unless ``strict``, NULL is refused when a row is written: a row that only deletes may lack values.
        """
        fields = [field for field in schema if field.name not in self.kept]
        if not strict:
            fields = [field.with_nullable(True) for field in fields]
        return pa.schema([*fields, *(source.field(name) for name in self.read)], schema.metadata)

    @property
    def notes(self) -> tuple[str, ...]:
        """What plan and result say."""
        notes = []
        if self.passed_over:
            notes.append(f"Columns of the source that are not written: {listed_names(self.passed_over)}.")
        if self.kept:
            kept = listed_names(self.kept)
            notes.append(f"Columns that the source lacks keep their values (new rows get NULL): {kept}.")
        return tuple(notes)


def resolve_star(intent: Merge, snapshot: Snapshot, source: pa.Schema) -> Star:
    """What whole rows take of the source. Raises InputError for what cannot be left out or kept."""
    _check_excepted(intent, snapshot, source)
    if not intent.rule.replaces_rows:
        return Star(source)
    excepted = set(intent.except_columns)
    target = snapshot.schema if snapshot.settled else None
    if target is not None and (problems := name_problems([target, source])):
        hint = "rename columns of the source to the target's spelling"
        raise mismatch(problems, intent.rule.name, snapshot.root, hint)
    if target is not None and intent.rule.name not in STRATEGIES and not _adds(intent):
        excepted |= set(source.names) - set(target.names)
    written = pa.schema([f for f in source if f.name not in excepted], source.metadata)
    kept: tuple[str, ...] = ()
    if target is not None and intent.missing == "keep":
        kept = tuple(name for name in target.names if name not in written.names)
    passed_over = tuple(name for name in source.names if name in excepted)
    mentioned = {name.lower() for name in _mentioned(intent)}
    read = tuple(name for name in passed_over if name.lower() in mentioned)
    clash = [name for name in read if target is not None and name in target.names]
    if clash:
        raise InputError(
            f"{intent.rule.name}: {listed_names(clash)} is left out by except_columns=, but a clause reads"
            " it, and the target has a column of that name.",
            path=snapshot.root,
            hint="give the source's column another name.",
        )
    return Star(written, passed_over, kept, read)


def _adds(intent: Merge) -> bool:
    evolution: Any = intent.schema_evolution or ()
    return "add" in (evolution.split(",") if isinstance(evolution, str) else evolution)


def _check_excepted(intent: Merge, snapshot: Snapshot, source: pa.Schema) -> None:
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
            f"{intent.rule.name}: key column {listed_names(keys)} cannot be left out: rows are found by it.",
            path=path,
            hint="take it out of except_columns.",
        )


def _mentioned(intent: Merge) -> Iterator[str]:
    """Names of columns that anything but a star reads."""
    yield from intent.source_keys
    yield from intent.dedup_order_by
    for expression in _expressions(intent):
        for _, path in columns_of(expression):
            yield path[0]


def _expressions(intent: Merge) -> Iterator[Any]:
    if intent.residual is not None:
        yield intent.residual
    for clause in intent.rule.clauses:
        if clause.condition is not None:
            yield clause.condition
        if isinstance(clause.action, (Assign, Insert)):
            yield from (value for _, value in clause.action.values or ())
