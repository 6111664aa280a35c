"""Why DuckDB cannot do an operation exactly; the reasons are notes of the plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.common.int96 import find_int96_columns
from intarsia.core.intent import (
    DeduplicateIntent,
    DeleteIntent,
    MergeIntent,
    OptimizeIntent,
    UpdateIntent,
    WriteIntent,
)
from intarsia.core.key_value_metadata import read_geometry_columns
from intarsia.core.plan import Plan
from intarsia.core.ports import FIELD_ID
from intarsia.core.prepare import MergeTerms
from intarsia.core.prove import list_predicate_columns
from intarsia.core.snapshot import DataFile
from intarsia.core.spark_metadata import is_variant_storage
from intarsia.engines.duckdb.duplicates import list_searched_files
from intarsia.engines.duckdb.match import list_condition_columns
from intarsia.engines.duckdb.scan import UUID, find_columns, is_uuid, make_rewritten_schema
from intarsia.engines.duckdb.sql import FILE, POS, SRC, find_sql_type, has_case_clash, is_comparable

__all__ = [
    "explain_unreadable",
    "explain_unsupported_duplicates",
    "explain_unsupported_match",
    "explain_unsupported_merge",
    "explain_unsupported_optimize",
    "list_matched_columns",
]

_OWN = frozenset(
    {FILE, POS, SRC, "filename", "file_row_number", "file_index", "file_row_group_number", "rowid"}
)
"""Names that are used here or by DuckDB, so that no column of a file may have them."""
_UNKNOWN_TYPE = "BSON"
_OTHER_TYPES = frozenset({_UNKNOWN_TYPE, "ENUM", "INTERVAL", "GEOMETRY", "GEOGRAPHY"})
_UNITS = {"s": 0, "ms": 1, "us": 2, "ns": 3}
MOST_MILLISECONDS = (2**63 - 1) // 1000
"""The largest timestamp in milliseconds that fits microseconds."""
_MOST = {"s": MOST_MILLISECONDS // 1000, "ms": MOST_MILLISECONDS}


def explain_unsupported_merge(terms: MergeTerms, source: pa.Table) -> str | None:
    """Why DuckDB cannot join the keys of a merge; None if it can."""
    intent = terms.intent
    if has_case_clash(terms.wanted.names):
        return "names of the source's columns differ only by case"
    columns = [*intent.source_keys, *intent.dedup_order_by]
    return explain_incomparable(terms.wanted, columns) or _explain_late_time(source, intent.source_keys)


def _explain_late_time(source: pa.Table, keys: Iterable[str]) -> str | None:
    """Why DuckDB cannot compare the times of a key with those of files; None if it can."""
    for column in (each for each in keys if each in source.column_names):
        kind = source.schema.field(column).type
        if pa.types.is_timestamp(kind) and kind.unit in _MOST:
            ends = (end.value for end in pc.min_max(source[column]).values() if end.is_valid)
            if any(abs(end) > _MOST[kind.unit] for end in ends):
                return f"{column!r} holds times beyond those of DuckDB"
    return None


def explain_incomparable(schema: pa.Schema, columns: Iterable[str]) -> str | None:
    """Why DuckDB cannot compare values of some columns; None if it can."""
    for column in columns:
        kind = schema.field(column).type
        if not is_comparable(kind):
            return f"DuckDB has no type for {column!r} ({kind})"
    return None


def explain_unsupported_match(plan: Plan) -> str | None:
    """Why DuckDB cannot read or compare the columns that decide which rows change; None if it can."""
    if isinstance(plan.intent, DeduplicateIntent):
        return explain_unsupported_duplicates(plan, plan.intent.keys, plan.intent.order_by)
    files = [item.file for item in plan.select("scan")]
    return explain_first_unreadable(files, list_matched_columns(plan), plan.snapshot.schema)


def list_matched_columns(plan: Plan) -> list[str]:
    """The columns that decide which rows change."""
    match plan.intent:
        case MergeIntent() as intent:
            return [*intent.keys, *list_condition_columns(plan.snapshot, intent)]
        case DeleteIntent() | UpdateIntent() | WriteIntent() as intent if intent.where is not None:
            return list(list_predicate_columns(intent.where, plan.snapshot.schema))
        case DeduplicateIntent() as intent:
            return [*(intent.keys or plan.schema.names), *intent.order_by]
    return []


def explain_unsupported_duplicates(
    plan: Plan, keys: Sequence[str], order_by: Sequence[str], files: Sequence[DataFile] | None = None
) -> str | None:
    """Why DuckDB cannot find duplicate keys in some files, or in those to scan; None if it can."""
    schema, chosen = plan.schema, list_searched_files(plan, files)
    compared = keys or [field.name for field in schema if not pa.types.is_null(field.type)]
    if not compared:
        return "there is no column to compare rows by"
    names = set(schema.names)
    needed = [each for each in dict.fromkeys((*compared, *order_by)) if each in names]
    return explain_incomparable(schema, needed) or explain_first_unreadable(chosen, needed, schema)


def explain_first_unreadable(
    files: Sequence[DataFile], columns: Iterable[str], schema: pa.Schema
) -> str | None:
    """The first reason why some columns of some files cannot be read exactly; None if all can."""
    names = set(schema.names)
    known = [each for each in columns if each in names]
    for file in files:
        reason = explain_unreadable(file, known, schema)
        if reason is not None:
            return f"in {file.path}, {reason}"
    return None


def explain_unsupported_optimize(plan: Plan) -> str | None:
    """Why DuckDB cannot sort the rows of every group of a plan, or not without duplicates; None if it can."""
    intent = plan.intent
    assert isinstance(intent, OptimizeIntent)
    files = [file for group in plan.groups for file in group.files]
    schema = make_rewritten_schema(plan)
    reason = explain_first_unreadable(files, schema.names, schema)
    if reason is None and intent.removes_duplicates:
        reason = explain_unsupported_duplicates(plan, intent.deduplicate_keys, intent.dedup_order_by, files)
    return reason


def explain_unreadable(file: DataFile, columns: Collection[str], schema: pa.Schema) -> str | None:
    """Why DuckDB cannot read some columns of a file exactly in the dataset's types; None if it can."""
    if file.footer is None:
        return "its footer is not known"
    physical = file.footer.schema.to_arrow_schema()
    if not physical.names:
        return "it has no columns, which DuckDB refuses"
    if has_case_clash(physical.names) or has_case_clash(schema.names):
        return "names of columns differ only by case"
    taken = [each for each in (*physical.names, *schema.names) if each.lower() in _OWN]
    if taken:
        return f"DuckDB has a column {taken[0]!r} of its own"
    other = _find_other_types(file.footer.schema)
    if _UNKNOWN_TYPE in other.values():
        return f"DuckDB does not know the type {_UNKNOWN_TYPE}, which one of its columns has"
    geometries = read_geometry_columns(file.footer.metadata)
    if geometries is None:
        return "its note 'geo' is not as GeoParquet has it, which DuckDB refuses"
    int96, far = find_int96_columns(file.footer.schema), _find_far_times(file.footer)
    path_columns = file.partition.keys() & set(physical.names)
    stored_columns = find_columns(file, columns, schema).stored
    for column in columns:
        wanted = schema.field(column).type
        if find_sql_type(wanted) is None:
            return f"DuckDB has no type for {column!r} ({wanted})"
        if column in path_columns:
            return f"{column!r} is stored in the file and in its path, which have to agree"
        if column not in stored_columns:
            continue
        own, stored = stored_columns[column].name, stored_columns[column].type
        if own in int96:
            return f"{column!r} is stored as INT96"
        if own in geometries:
            return f"{column!r} is a geometry by the note 'geo', which is another type to DuckDB"
        if own in other:
            return f"{column!r} is annotated as {other[own]}, which is another type to DuckDB"
        if _may_hold_variant(stored):
            return f"{column!r} may be a VARIANT, which is another type to DuckDB"
        if not _can_become(file, stored_columns[column], wanted):
            return f"{column!r} is stored as {stored}, not as {wanted}"
        if own in far:
            return f"{column!r} may hold times beyond those of DuckDB"
    return None


def _may_hold_variant(dtype: pa.DataType) -> bool:
    """Whether a type is, or holds, the struct that files store a VARIANT as; its annotation is on a group,
    of which PyArrow says nothing."""
    return is_variant_storage(dtype) or any(_may_hold_variant(field.type) for field in _list_fields(dtype))


def _find_other_types(schema: pq.ParquetSchema) -> dict[str, str]:
    """Columns that DuckDB reads as another type than Arrow does, by name, with their annotation."""
    found = {}
    for leaf in (schema.column(number) for number in range(len(schema))):
        kind = str(leaf.logical_type.type)
        kind = str(leaf.converted_type) if kind in ("UNKNOWN", "NONE") else kind
        zoned = kind == "TIME" and "isAdjustedToUTC=true" in str(leaf.logical_type)
        column, _, inner = leaf.path.partition(".")
        within = bool(inner) and kind == UUID  # read as text, which only whole columns are cast from
        if kind in _OTHER_TYPES or zoned or within:
            found[column] = "TIME in UTC" if zoned else kind
    return found


def _can_become(file: DataFile, own: pa.Field, wanted: pa.DataType) -> bool:
    """Whether DuckDB can read a column of a file as the type wanted."""
    if file.scan_task is not None and pa.types.is_nested(wanted):
        return has_same_fields(own.type, wanted)
    if is_uuid(file, own):
        return find_sql_type(wanted) == "BLOB"
    return _is_exact_cast(own.type, wanted)


def _find_far_times(footer: pq.FileMetaData) -> set[str]:
    """Columns in milliseconds that DuckDB, which reads them as microseconds, may not be able to hold."""
    leaves = [footer.schema.column(number) for number in range(len(footer.schema))]
    return {
        leaf.path.split(".", 1)[0]
        for number, leaf in enumerate(leaves)
        if leaf.physical_type == "INT64"
        and "timeUnit=milliseconds" in str(leaf.logical_type)
        and not _fits_microseconds(footer, number)
    }


def _fits_microseconds(footer: pq.FileMetaData, number: int) -> bool:
    for group in range(footer.num_row_groups):
        chunk = footer.row_group(group).column(number)
        known = chunk.statistics
        if known is not None and known.has_null_count and known.null_count == chunk.num_values:
            continue
        if known is None or not known.has_min_max:
            return False
        if not -MOST_MILLISECONDS <= known.min_raw <= known.max_raw <= MOST_MILLISECONDS:
            return False
    return True


def _is_exact_cast(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether DuckDB's cast from one type to the other is exact, and the same as ours."""
    stored = stored.value_type if pa.types.is_dictionary(stored) else stored
    wanted = wanted.value_type if pa.types.is_dictionary(wanted) else wanted
    have = find_sql_type(stored)
    if have is None:
        return False
    if have == find_sql_type(wanted):
        return True
    if pa.types.is_integer(stored):
        return pa.types.is_integer(wanted) or pa.types.is_float64(wanted) or pa.types.is_decimal(wanted)
    if pa.types.is_float32(stored):
        return pa.types.is_float64(wanted)
    if pa.types.is_decimal(stored) and pa.types.is_decimal(wanted):
        return True
    if pa.types.is_timestamp(stored) and pa.types.is_timestamp(wanted):
        same_kind = (stored.tz is None) == (wanted.tz is None)
        return same_kind and _UNITS[stored.unit] <= _UNITS[wanted.unit]
    return False


def has_same_fields(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two nested types have the same fields, by their ids at every level."""
    if not pa.types.is_nested(one):
        return bool(one.equals(other))
    mine, theirs = _list_fields(one), _list_fields(other)
    if one.id != other.id or len(mine) != len(theirs):
        return False
    named = pa.types.is_struct(one)
    return all(
        _get_field_id(a) is not None
        and _get_field_id(a) == _get_field_id(b)
        and (a.name == b.name or not named)
        and has_same_fields(a.type, b.type)
        for a, b in zip(mine, theirs, strict=True)
    )


def _list_fields(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(number) for number in range(kind.num_fields)]


def _get_field_id(known: pa.Field) -> bytes | None:
    return (known.metadata or {}).get(FIELD_ID)
