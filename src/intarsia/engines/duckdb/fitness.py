"""What DuckDB leaves to the Arrow kernel of an operation, and why; the reasons are for the plan's notes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.core.files import DataFile
from intarsia.core.intent import Compact, Deduplicate, Delete, Merge, Optimize, Update, Write
from intarsia.core.layout import layout_of
from intarsia.core.matches import Matches
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.planning import predicate_columns
from intarsia.core.prepare import MergeTerms
from intarsia.core.rule import Action, Assign, Insert, Replace
from intarsia.engines.arrow.placing import Placing
from intarsia.engines.arrow.regroup import Form, form_of
from intarsia.engines.arrow.rewrite import file_types, inputs, widened_columns
from intarsia.engines.duckdb.duplicates import looked_through
from intarsia.engines.duckdb.matching import asked_for
from intarsia.engines.duckdb.scan import MOST_MILLISECONDS, unreadable
from intarsia.engines.duckdb.seen import moved_schema
from intarsia.engines.duckdb.types import collide, comparable
from intarsia.engines.duckdb.writing import beyond_writer, unkept_notes

__all__ = [
    "beyond_matching",
    "duplicates_beyond",
    "group_beyond",
    "looked_at",
    "merge_beyond",
    "optimize_beyond",
    "placing_beyond",
    "rewrite_beyond",
    "whole_rows_beyond",
    "writing_notes",
]

_FIELD_IDS = "New files are written by PyArrow, which gives columns their field ids."
_MOST = {"s": MOST_MILLISECONDS // 1000, "ms": MOST_MILLISECONDS}


def merge_beyond(terms: MergeTerms, source: pa.Table) -> str | None:
    """Why DuckDB cannot join the keys of a merge; None if it can."""
    intent = terms.intent
    if collide(terms.wanted.names):
        return "names of the source's columns differ only by case"
    columns = [*intent.source_keys, *intent.dedup_order_by]
    return incomparable(terms.wanted, columns) or _first_late(source, intent.source_keys)


def _first_late(source: pa.Table, keys: Iterable[str]) -> str | None:
    """The first key with a time that DuckDB cannot compare with those of files."""
    for column in (each for each in keys if each in source.column_names):
        kind = source.schema.field(column).type
        if pa.types.is_timestamp(kind) and kind.unit in _MOST:
            ends = (end.value for end in pc.min_max(source[column]).values() if end.is_valid)
            if any(abs(end) > _MOST[kind.unit] for end in ends):
                return f"{column!r} holds times beyond those of DuckDB"
    return None


def incomparable(schema: pa.Schema, columns: Iterable[str]) -> str | None:
    """Why DuckDB cannot compare values of some columns; None if it can."""
    for column in columns:
        kind = schema.field(column).type
        if not comparable(kind):
            return f"DuckDB has no type for {column!r} ({kind})"
    return None


def beyond_matching(plan: Plan) -> str | None:
    """Why DuckDB cannot read or compare what decides about rows; None if it can."""
    if isinstance(plan.intent, Deduplicate):
        return duplicates_beyond(plan, plan.intent.keys, plan.intent.order_by)
    files = [item.file for item in plan.chosen("scan")]
    return first_unreadable(files, looked_at(plan), plan.snapshot.schema)


def looked_at(plan: Plan) -> list[str]:
    """The columns that decide about rows."""
    match plan.intent:
        case Merge() as intent:
            return [*intent.keys, *asked_for(plan.snapshot, intent)]
        case Delete() | Update() | Write() as intent if intent.where is not None:
            return list(predicate_columns(intent.where, plan.snapshot.schema))
        case Deduplicate() as intent:
            return [*(intent.keys or plan.schema.names), *intent.order_by]
    return []


def duplicates_beyond(
    plan: Plan, keys: Sequence[str], order_by: Sequence[str], files: Sequence[DataFile] | None = None
) -> str | None:
    """Why DuckDB cannot look for duplicate keys in some files, or those to scan; None if it can."""
    schema, chosen = plan.schema, looked_through(plan, files)
    compared = keys or [field.name for field in schema if not pa.types.is_null(field.type)]
    if not compared:
        return "there is no column to compare rows by"
    needed = [each for each in dict.fromkeys((*compared, *order_by)) if each in schema.names]
    return incomparable(schema, needed) or first_unreadable(chosen, needed, schema)


def first_unreadable(files: Sequence[DataFile], columns: Iterable[str], schema: pa.Schema) -> str | None:
    """The first reason why some columns of some files cannot be read exactly; None if all can."""
    known = [each for each in columns if each in schema.names]
    for file in files:
        reason = unreadable(file, known, schema)
        if reason is not None:
            return f"in {file.path}, {reason}"
    return None


def group_beyond(group: FileGroup, plan: Plan, form: Form, *, tabled: bool = False) -> str | None:
    """Why DuckDB cannot write the files of a group anew in this form, from a table or not; None if it can."""
    files, names = group.files, form.schema.names
    reason = first_unreadable(files, names, plan.schema)
    if reason is not None:
        return reason
    rows = group.rows
    size = plan.intent.options.row_group_size
    reasons = (
        beyond_writer(form.schema, form.layout, rows=rows, file=file, tabled=tabled, row_group_size=size)
        for file in files
    )
    return next((each for each in reasons if each is not None), None) or _first_loose(files, form.schema)


def _first_loose(files: Sequence[DataFile], schema: pa.Schema) -> str | None:
    """The first file that might hold NULL in a column that is to have none."""
    required = [field.name for field in schema if not field.nullable]
    for file in files if required else ():
        assert file.footer is not None
        fixed = {field.name for field in file.footer.schema.to_arrow_schema() if not field.nullable}
        for column in required:
            if column not in fixed and column not in file.partition:
                return f"in {file.path}, {column!r} may hold NULL"
    return None


def optimize_beyond(plan: Plan) -> str | None:
    """Why DuckDB cannot write every group of a plan anew, or not without duplicates; None if it can."""
    intent = plan.intent
    assert isinstance(intent, Optimize)
    files = [file for group in plan.groups for file in group.files]
    if plan.snapshot.spread is not None:  # DuckDB reads and sorts, and PyArrow writes
        schema = moved_schema(plan)
        reason = first_unreadable(files, schema.names, schema)
    else:
        reasons = (group_beyond(group, plan, form_of(group, plan, ""), tabled=True) for group in plan.groups)
        reason = next((each for each in reasons if each is not None), None)
    if reason is None and (intent.deduplicate or intent.deduplicate_keys):
        reason = duplicates_beyond(plan, intent.deduplicate_keys, intent.dedup_order_by, files)
    return reason


def writing_notes(plan: Plan, matches: Matches, source: pa.Table) -> tuple[str, ...]:
    """What the plan says of the files that will be written anew."""
    if plan.snapshot.spread is not None:
        return _afresh_notes(plan, matches)
    if plan.groups:
        return _optimize_notes(plan, plan.intent) if isinstance(plan.intent, Optimize) else _group_notes(plan)
    files = [item.file for item in plan.files if matches.hit_rows(item.file.path) or item.forced]
    reasons = [_rewrite_beyond(file, plan, matches.actions, source) for file in files]
    mine = [file for file, reason in zip(files, reasons, strict=True) if reason is None]
    new = _new_beyond(plan, matches, source) if matches.inserted else None
    size = plan.intent.options.row_group_size
    placed = bool(matches.inserted) and new is None
    if placed:  # new files are written as those that are there
        mine += [file for file in plan.snapshot.files[:1] if file not in mine]
    notes = unkept_notes(mine, size) if mine or (placed and size is not None) else ()
    beyond = [reason for reason in reasons if reason is not None]
    if beyond:
        notes += (f"{len(beyond):,} of {len(files):,} files are rewritten by PyArrow: {beyond[0]}.",)
    if new is not None:
        notes += (f"New files are written by PyArrow: {new}.",)
    return notes


def _afresh_notes(plan: Plan, matches: Matches) -> tuple[str, ...]:
    """What is said where the table deals rows out by itself: new files are never DuckDB's."""
    if isinstance(plan.intent, Optimize) and plan.groups:
        reason = optimize_beyond(plan)
        if reason is not None:
            return (f"Rows are ordered and written by PyArrow: {reason}.",)
        return (f"Rows are ordered by DuckDB. {_FIELD_IDS}",)
    if isinstance(plan.intent, Compact) and plan.groups:
        return (f"Rows are read by PyArrow, as they are not to be ordered. {_FIELD_IDS}",)
    return (_FIELD_IDS,) if matches.inserted or matches.updated or _copies(plan, matches) else ()


def _copies(plan: Plan, matches: Matches) -> bool:
    """Whether rows that stay are written anew since others of their file go."""
    return bool(matches.hits) and not plan.snapshot.veils.get(plan.operation)


def rewrite_beyond(
    file: DataFile,
    schema: pa.Schema,
    stored: Sequence[str],
    actions: Sequence[Action],
    *,
    widened: Collection[str] = (),
    row_group_size: int | None = None,
) -> str | None:
    """Why DuckDB cannot write some columns of a file anew as they are, and asked for; None if it can."""
    if file.footer is None:
        return "its footer is not known"
    written = pa.schema([schema.field(each) for each in stored])
    asked = {*stored, *inputs(actions)}
    reason = _of_own_type(file.footer, written, widened) or unreadable(file, asked, schema)
    reason = reason or beyond_writer(
        written, layout_of(file.footer), rows=file.rows, file=file, row_group_size=row_group_size
    )
    return reason or _assigned_beyond(written, actions)


def _rewrite_beyond(file: DataFile, plan: Plan, actions: Sequence[Action], source: pa.Table) -> str | None:
    """The same for a file of a plan, and for whole source rows that come into it."""
    stored = _stored(file, plan)
    reason = rewrite_beyond(
        file,
        plan.schema,
        stored,
        actions,
        widened=widened_columns(plan),
        row_group_size=plan.intent.options.row_group_size,
    )
    if reason is None and any(isinstance(action, Replace) for action in actions):
        reason = whole_rows_beyond(source, plan.schema, stored)
    return reason


def whole_rows_beyond(source: pa.Table, schema: pa.Schema, columns: Sequence[str]) -> str | None:
    """Why source rows are not, as they are, rows of the dataset in some columns; None if they are."""
    for column in columns:
        if column not in source.column_names:
            return f"the source has no column {column!r}"
        if not schema.field(column).nullable and source[column].null_count:
            return f"{column!r} is NOT NULL, and NULL in the source"
    return None


def _of_own_type(footer: pq.FileMetaData, written: pa.Schema, widened: Collection[str]) -> str | None:
    """A column that has a type of its own in a file keeps it."""
    own = file_types(footer, written, widened)
    for each, other in zip(written, own, strict=True):
        if each.type != other.type or each.nullable != other.nullable:
            return f"{each.name!r} is stored as {other.type}{'' if other.nullable else ' not null'} there"
    return None


def _assigned_beyond(written: pa.Schema, actions: Sequence[Action]) -> str | None:
    """PyArrow refuses NULL for a column that has none."""
    assigned = {path[0] for action in actions if isinstance(action, Assign) for path, _ in action.values}
    fixed = [field.name for field in written if not field.nullable and field.name in assigned]
    return f"{fixed[0]!r} is NOT NULL and is assigned" if fixed else None


def _stored(file: DataFile, plan: Plan) -> list[str]:
    """The columns that a file has once it is written anew, or nearly so."""
    own = [] if file.footer is None else file.footer.schema.to_arrow_schema().names
    new = (each for each in plan.schema.names if each not in plan.snapshot.partition_columns)
    return [each for each in dict.fromkeys((*own, *new)) if each in plan.schema.names]


def _new_beyond(plan: Plan, matches: Matches, source: pa.Table) -> str | None:
    """Why DuckDB cannot write new files; None if it can."""
    if any(isinstance(action, Insert) and action.values is not None for action, _ in matches.inserts):
        return "their rows are made by expressions"
    intent = plan.intent
    asked = intent.partition_columns if isinstance(intent, (Merge, Write)) else None
    columns = plan.snapshot.partition_columns or tuple(asked or ())
    placing = Placing(plan.snapshot, plan.schema, columns, intent.options, plan.operation)
    whole = whole_rows_beyond(source, plan.schema, placing.file_schema().names)
    return whole or placing_beyond(placing, matches.inserted)


def placing_beyond(placing: Placing, rows: int) -> str | None:
    """Why DuckDB cannot write new files, which are like the first that is there; None if it can."""
    first = next((file for file in placing.snapshot.files if file.footer is not None), None)
    size = placing.options.row_group_size
    return beyond_writer(placing.file_schema(), placing.layout(), rows=rows, file=first, row_group_size=size)


def _group_notes(plan: Plan) -> tuple[str, ...]:
    reasons = [group_beyond(group, plan, form_of(group, plan, "")) for group in plan.groups]
    beyond = [reason for reason in reasons if reason is not None]
    kept = zip(plan.groups, reasons, strict=True)
    files = [file for group, reason in kept if reason is None for file in group.files]
    notes = unkept_notes(files, plan.intent.options.row_group_size) if files else ()
    if beyond:
        notes += (f"{len(beyond):,} of {len(reasons):,} new files are written by PyArrow: {beyond[0]}.",)
    return notes


def _optimize_notes(plan: Plan, intent: Optimize) -> tuple[str, ...]:
    reason = optimize_beyond(plan)
    if reason is not None:
        return (f"Rows are ordered and written by PyArrow: {reason}.",)
    files = [file for group in plan.groups for file in group.files]
    notes = unkept_notes(files, intent.options.row_group_size)
    if intent.curve == "linear" or len(intent.by) == 1:
        notes += ("DuckDB's writer does not declare the order that the new files have.",)
    return notes
