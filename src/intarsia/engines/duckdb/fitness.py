"""What DuckDB leaves to the Arrow kernel of an operation, and why; the reasons are for the plan's notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from intarsia.core.files import DataFile, Snapshot
from intarsia.core.intent import Deduplicate, Delete, Merge, Optimize, Update
from intarsia.core.matches import Matches
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.planning import predicate_columns
from intarsia.core.prepare import MergeTerms
from intarsia.engines.arrow.regroup import Form, form_of
from intarsia.engines.duckdb.duplicates import looked_through
from intarsia.engines.duckdb.matching import asked_for
from intarsia.engines.duckdb.scan import unreadable
from intarsia.engines.duckdb.types import collide, comparable
from intarsia.engines.duckdb.writing import beyond_writer, unkept_notes

__all__ = [
    "beyond_matching",
    "duplicates_beyond",
    "group_beyond",
    "merge_beyond",
    "optimize_beyond",
    "writing_notes",
]


def merge_beyond(terms: MergeTerms, snapshot: Snapshot) -> str | None:
    """Why DuckDB cannot join the keys of a merge; None if it can."""
    intent = terms.intent
    if collide(terms.wanted.names):
        return "names of the source's columns differ only by case"
    columns = [*intent.source_keys, *intent.dedup_order_by]
    return incomparable(terms.wanted, columns)


def incomparable(schema: pa.Schema, columns: Iterable[str]) -> str | None:
    """Why DuckDB cannot compare values of some columns; None if it can."""
    for column in columns:
        kind = schema.field(column).type
        if not comparable(kind):
            return f"DuckDB has no type for {column!r} ({kind})"
    return None


def beyond_matching(plan: Plan) -> str | None:
    """Why DuckDB cannot read or compare what decides about rows; None if it can."""
    files, schema = [item.file for item in plan.chosen("scan")], plan.snapshot.schema
    match plan.intent:
        case Merge() as intent:
            columns = {*intent.keys, *asked_for(plan.snapshot, intent)}
            return first_unreadable(files, columns, schema)
        case Delete() | Update() as intent if intent.where is not None:
            needed = predicate_columns(intent.where, schema)
            return first_unreadable(files, needed, schema)
        case Deduplicate() as intent:
            return duplicates_beyond(plan, intent.keys, intent.order_by)
    return None


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


def group_beyond(group: FileGroup, plan: Plan, form: Form) -> str | None:
    """Why DuckDB cannot write the files of a group anew in this form; None if it can."""
    files, names = group.files, form.schema.names
    reason = first_unreadable(files, names, plan.schema)
    if reason is not None:
        return reason
    reasons = (beyond_writer(file, form.schema, form.layout) for file in files)
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
    reasons = (group_beyond(group, plan, form_of(group, plan, "")) for group in plan.groups)
    reason = next((each for each in reasons if each is not None), None)
    if reason is None and (intent.deduplicate or intent.deduplicate_keys):
        files = [file for group in plan.groups for file in group.files]
        reason = duplicates_beyond(plan, intent.deduplicate_keys, intent.dedup_order_by, files)
    return reason


def writing_notes(plan: Plan, matches: Matches) -> tuple[str, ...]:
    """What the plan says of the files that will be written anew."""
    if plan.groups:
        return _optimize_notes(plan, plan.intent) if isinstance(plan.intent, Optimize) else _group_notes(plan)
    files = [item.file for item in plan.files if matches.hit_rows(item.file.path) or item.forced]
    size = plan.intent.options.row_group_size
    if matches.inserted:  # new files are written as those that are there
        files += [file for file in plan.snapshot.files[:1] if file not in files]
    return unkept_notes(files, size) if files or (matches.inserted and size is not None) else ()


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
