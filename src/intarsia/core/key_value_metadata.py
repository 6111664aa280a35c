"""Key-value metadata of Parquet files: which entries stay true where rows change or files are combined.

The entry in which Spark keeps a schema is in :mod:`intarsia.core.spark_metadata`. Unknown entries stay in a
file that is rewritten, and are copied into other files where all files that have them agree.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.common.int96 import find_int96_columns, iterate_leaves
from intarsia.common.types import classify_type
from intarsia.core.snapshot import DataFile
from intarsia.core.spark_metadata import SPARK_SCHEMA, make_spark_schema
from intarsia.errors import NotSupported, SchemaMismatch

__all__ = [
    "check_calendar",
    "check_geometries",
    "check_metadata",
    "find_exact_columns",
    "is_legacy",
    "join_metadata",
    "read_geometry_columns",
    "rewrite_metadata",
    "share_metadata",
]

KeyValueMetadata = Mapping[bytes, bytes]

GEO = b"geo"
"""GeoParquet's: coordinate system and encoding of geometries, their extent, and which kinds there are."""
PANDAS = b"pandas"
"""Types of pandas, and its index; a ``RangeIndex`` is nowhere but here."""
_DEFAULT_CRS = {"id": {"authority": "OGC", "code": "CRS84"}}
_OF_ROWS = frozenset(
    {
        b"org.apache.hudi.bloomfilter",
        b"hoodie_bloom_filter_type_code",
        b"hoodie_min_record_key",
        b"hoodie_max_record_key",
    }
)
"""Keys of entries that describe which rows a file holds."""
_OF_COLUMNS = frozenset(
    {
        b"avro.schema",
        b"iceberg.schema",
        b"parquet.avro.schema",
        b"parquet.proto.descriptor",
        b"thrift.descriptor",
    }
)
"""Keys of entries from which other libraries read the columns, or which repeat the schema."""
_SPARK_VERSION = b"org.apache.spark.version"
_CALENDARS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.timeZone")
_FIRST_DAY = -141_427
"""1582-10-15, the first day that both calendars have."""
_FIRST_SECOND = -2_208_988_800
"""1900-01-01 in UTC: in no time zone do Spark's calendars differ since."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FIRST_CORRECT = (3, 1)
"""The first version of Spark that writes neither INT96 nor other dates and times in the old calendar."""


def rewrite_metadata(
    notes: KeyValueMetadata, schema: pa.Schema, before: pa.Schema, *, changed: Collection[str], moved: bool
) -> KeyValueMetadata:
    """The notes of a file for the one that replaces it, with the columns of ``schema``.

    Args:
        changed: columns whose values change in some rows.
        moved: whether rows are deleted or change their positions.
    """
    kept = _with_columns(notes, schema, before)
    if SPARK_SCHEMA not in kept:
        kept |= make_spark_schema(notes, schema, before)
    if changed or moved:
        kept = {key: value for key, value in kept.items() if key not in _OF_ROWS}
    if GEO in kept and changed:
        kept[GEO] = _edit_json(kept[GEO], lambda geo: _without_extent(geo, changed))
    if PANDAS in kept and moved:
        kept[PANDAS] = _edit_json(kept[PANDAS], _without_range)
    return kept


def share_metadata(files: Iterable[KeyValueMetadata]) -> dict[bytes, bytes]:
    """The entries that a new file takes over from others: those they agree on, and none that describes rows.

    The note in which Spark keeps the schema is left out.
    """
    known: dict[bytes, dict[bytes, None]] = {}
    for notes in files:
        for key, value in notes.items():
            known.setdefault(key, {})[value] = None
    kept = {}
    for key, values in known.items():
        edit = _WITHOUT_ROWS.get(key)
        several = list(values if edit is None else dict.fromkeys(_edit_json(one, edit) for one in values))
        if key == _SPARK_VERSION:
            newest = max(several, key=_parse_version)
            kept[key] = newest if _parse_version(newest) >= _FIRST_CORRECT else b"3.1.0"
        elif len(several) == 1 and key not in _OF_ROWS and key not in _CALENDARS and key != SPARK_SCHEMA:
            kept[key] = several[0]
    return kept


def join_metadata(
    files: Sequence[tuple[KeyValueMetadata, pa.Schema]], schema: pa.Schema
) -> dict[bytes, bytes]:
    """The notes of files for one with the columns of ``schema`` that holds the rows of all, in any order.

    The note in which Spark keeps the schema is left out.
    """
    kept = share_metadata(_with_columns(notes, schema, before) for notes, before in files)
    if GEO in kept:
        known = [_parse_json(notes.get(GEO)) for notes, _ in files]
        kept[GEO] = _edit_json(kept[GEO], lambda first: _with_extents(first, known))
    if any(is_legacy(notes) for notes, _ in files) and all(is_legacy(notes) for notes, _ in files):
        for key in (_SPARK_VERSION, *_CALENDARS):
            values = {notes.get(key) for notes, _ in files}
            if None not in values:
                kept[key] = min(value for value in values if value is not None)
    return kept


def check_metadata(files: Sequence[DataFile], path: str) -> None:
    """Raise SchemaMismatch where files of the dataset at ``path`` cannot become one: their notes contradict.

    That is so of geometries in different coordinate systems or encodings, and of dates and times of which
    Spark would shift some by its old calendar.
    """
    footers = [file.footer for file in files if file.footer is not None]
    known = [footer.metadata or {} for footer in footers]
    geo = {notes[GEO] for notes in known if GEO in notes}
    if len({_edit_json(one, _without_all_extents) for one in geo}) > 1:
        raise SchemaMismatch(
            f"{len(footers):,} files of {path} that are to become one have different notes 'geo' on their"
            " geometries, such as another coordinate system.",
            path=path,
            hint="bring the geometries into one form first; nothing was changed.",
        )
    legacy = [footer for footer, notes in zip(footers, known, strict=True) if is_legacy(notes)]
    if 0 < len(legacy) < len(footers) and any(map(_may_be_ancient, legacy)):
        raise SchemaMismatch(
            f"{len(legacy):,} of {len(footers):,} files of {path} that are to become one may hold dates or"
            " times in the calendar of Spark 2, and the others do not.",
            path=path,
            hint="have Spark read and write those files anew; nothing was changed.",
        )


def check_geometries(source: pa.Schema, target: pa.Schema, path: str) -> None:
    """Raise SchemaMismatch where source rows come with geometries of another coordinate system."""
    theirs, ours = (_read_coordinate_systems((schema.metadata or {}).get(GEO)) for schema in (source, target))
    for name in theirs.keys() & ours.keys():
        if theirs[name] != ours[name]:
            known = [_show_crs(one[name]) for one in (theirs, ours)]
            raise SchemaMismatch(
                f"{name!r} has geometries in {known[0]} in the source, and in {known[1]} in the target.",
                path=path,
                hint="transform the source's geometries; without a note 'geo' they are taken as they are.",
            )


def _read_coordinate_systems(raw: bytes | None) -> dict[str, Any]:
    """The coordinate system of each geometry: its identifier where it has one."""
    columns = (_parse_json(raw) or {}).get("columns")
    found = {}
    for name, column in columns.items() if isinstance(columns, dict) else ():
        crs = column.get("crs", _DEFAULT_CRS) if isinstance(column, dict) else None
        found[name] = crs.get("id", crs) if isinstance(crs, dict) else crs
    return found


def _show_crs(crs: Any) -> str:
    if isinstance(crs, dict):
        return f"{crs['authority']}:{crs['code']}" if {"authority", "code"} <= crs.keys() else "a system"
    return "an unknown coordinate system" if crs is None else str(crs)


def read_geometry_columns(notes: KeyValueMetadata | None) -> frozenset[str] | None:
    """The columns that GeoParquet's note names; None where it is not as its specification has it."""
    raw = (notes or {}).get(GEO)
    if raw is None:
        return frozenset()
    found = _parse_json(raw)
    columns = found.get("columns") if found is not None else None
    if found is None or not isinstance(columns, dict) or "version" not in found:
        return None
    if not all(isinstance(one, dict) and "geometry_types" in one for one in columns.values()):
        return None
    return frozenset(columns)


def _with_columns(notes: KeyValueMetadata, schema: pa.Schema, before: pa.Schema) -> dict[bytes, bytes]:
    """The notes for columns that may be others than the file had, without Spark's."""
    if schema.remove_metadata().equals(before.remove_metadata()):
        return dict(notes)
    kept = {key: value for key, value in notes.items() if key not in _OF_COLUMNS and key != SPARK_SCHEMA}
    known = set(before.names)
    retyped = {
        field.name for field in schema if field.name in known and before.field(field.name).type != field.type
    }
    if PANDAS in kept and retyped:
        kept[PANDAS] = _edit_json(kept[PANDAS], lambda pandas: _without_types(pandas, retyped))
    return kept


# ---------------------------------------------------------------------------------------------------
# JSON values: one that cannot be parsed, or is not as its specification says, stays unchanged.

Edit = Callable[[dict[str, Any]], dict[str, Any]]


def _parse_json(raw: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(raw or b"")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _edit_json(raw: bytes, edit: Edit) -> bytes:
    found = _parse_json(raw)
    if found is None:
        return raw
    try:
        changed = edit(found)
    except (AttributeError, KeyError, TypeError):
        return raw
    return raw if changed == found else json.dumps(changed, separators=(",", ":")).encode()


def _with_geometries(geo: dict[str, Any], edit: Callable[[str, dict[str, Any]], Any]) -> dict[str, Any]:
    return {**geo, "columns": {name: edit(name, column) for name, column in geo["columns"].items()}}


def _without_extent(geo: dict[str, Any], changed: Collection[str]) -> dict[str, Any]:
    """The changed columns without their extent, and without kinds of geometry, since any may occur now."""

    def edit(name: str, column: dict[str, Any]) -> dict[str, Any]:
        if name not in changed:
            return column
        kept = {key: value for key, value in column.items() if key != "bbox"}
        return {**kept, "geometry_types": []}

    return _with_geometries(geo, edit)


def _without_all_extents(geo: dict[str, Any]) -> dict[str, Any]:
    return _without_extent(geo, geo["columns"].keys())


def _with_extents(geo: dict[str, Any], files: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Each column with the extent and the kinds of geometry of all files, where every file has its own."""

    def edit(name: str, column: dict[str, Any]) -> dict[str, Any]:
        known = [{} if one is None else one["columns"].get(name, {}) for one in files]
        box = _join_boxes([one.get("bbox") for one in known])
        kinds = [one.get("geometry_types") or [] for one in known]
        named = list(dict.fromkeys(kind for each in kinds for kind in each)) if all(kinds) else []
        return {**column, "geometry_types": named, **({} if box is None else {"bbox": box})}

    return _with_geometries(geo, edit)


def _join_boxes(boxes: Sequence[Any]) -> list[float] | None:
    """One box around all others; None where one is unknown or crosses the date line."""
    if not boxes or any(not isinstance(box, list) or len(box) not in (4, 6) for box in boxes):
        return None
    half = len(boxes[0]) // 2
    for box in boxes:
        if len(box) != 2 * half or not all(
            isinstance(one, (int, float)) and math.isfinite(one) for one in box
        ):
            return None
        if any(box[axis] > box[axis + half] for axis in range(half)):
            return None
    return [min(box[axis] for box in boxes) for axis in range(half)] + [
        max(box[axis + half] for box in boxes) for axis in range(half)
    ]


def _without_range(pandas: dict[str, Any]) -> dict[str, Any]:
    """Without a range index, which numbers rows by position."""
    kept = [
        one for one in pandas["index_columns"] if not (isinstance(one, dict) and one.get("kind") == "range")
    ]
    return {**pandas, "index_columns": kept}


def _without_types(pandas: dict[str, Any], columns: Collection[str]) -> dict[str, Any]:
    kept = [one for one in pandas["columns"] if one.get("field_name", one.get("name")) not in columns]
    return {**pandas, "columns": kept}


_WITHOUT_ROWS: dict[bytes, Edit] = {GEO: _without_all_extents, PANDAS: _without_range}
"""How to remove what an entry says about rows."""


# ---------------------------------------------------------------------------------------------------
# Spark's calendars: before version 3 dates were Julian until 1582-10-15, and files do not always say so. By
# the notes in a file newer versions shift such dates, and times before 1900. What is stored stays as it is:
# no value is moved here, and a new one that Spark would shift is refused.


def _parse_version(text: bytes) -> tuple[int, int]:
    found = re.match(rb"(\d+)\.(\d+)", text)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


def is_legacy(notes: KeyValueMetadata) -> bool:
    """As Spark decides (DataSourceUtils.datetimeRebaseSpec): a note, or a version before 3."""
    if _SPARK_VERSION not in notes:
        return False
    return _CALENDARS[0] in notes or _parse_version(notes[_SPARK_VERSION]) < (3, 0)


def _may_be_ancient(footer: pq.FileMetaData) -> bool:
    """Whether a file may hold dates or times before 1900, on which calendars and zones do not agree."""
    for number in range(len(footer.schema)):
        leaf = footer.schema.column(number)
        if leaf.logical_type.type not in ("DATE", "TIMESTAMP"):
            continue
        for group in (footer.row_group(place) for place in range(footer.num_row_groups)):
            known = group.column(number).statistics
            if known is None or (not known.has_min_max and known.null_count != group.num_rows):
                return True
            if known.has_min_max and known.min.year < 1900:
                return True
    return False


def find_exact_columns(file: DataFile, footer: pq.FileMetaData | None = None) -> frozenset[str] | None:
    """The columns of a legacy file that Spark does not shift; None where it shifts no column of the file.

    Tables whose columns are found by id do not keep Spark's notes.
    """
    footer = file.footer if footer is None else footer
    if footer is None or file.scan_task is not None or not is_legacy(footer.metadata or {}):
        return None
    return frozenset(find_int96_columns(footer.schema))  # INT96 columns have an entry of their own


def check_calendar(values: Mapping[str, Any], exact: frozenset[str] | None, path: str) -> None:
    """Raise NotSupported where Spark would shift new values of a file when it reads them.

    Args:
        values: columns by name.
        exact: what :func:`find_exact_columns` gives for the file.
    """
    for name, column in values.items() if exact is not None else ():
        if exact is None or name in exact:
            continue
        chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
        for times in _iterate_times(chunked):
            first = _find_first_exact(times.type)
            old = times.filter(
                pc.fill_null(pc.less(times.cast(_choose_number_type(times.type)), first), False)
            )
            if len(old):
                raise _make_shift_error(old, name, path)


def _make_shift_error(old: pa.ChunkedArray, column: str, path: str) -> NotSupported:
    values = "1 new value" if len(old) == 1 else f"{len(old):,} new values"
    since = "1582-10-15" if pa.types.is_date(old.type) else "1900"
    return NotSupported(
        f"{values} of column {column!r}, such as {old[0].cast(pa.string())}, would be shifted by Spark where"
        f" it is read: {path} has the calendar of Spark 2, which is another before {since}.",
        path=path,
        hint="have Spark read and write that file anew; nothing was changed.",
    )


def _choose_number_type(dtype: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(dtype) else pa.int64()


def _find_first_exact(dtype: pa.DataType) -> int:
    if pa.types.is_date(dtype):
        return _FIRST_DAY if pa.types.is_date32(dtype) else _FIRST_DAY * 86_400_000
    return _FIRST_SECOND * _PER_SECOND[dtype.unit]


def _iterate_times(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """The dates and timestamps in a column, at any depth."""
    for leaf in iterate_leaves(column):
        if classify_type(leaf.type) in ("timestamp", "zoned timestamp", "date"):
            yield leaf
