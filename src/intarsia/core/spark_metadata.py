"""The metadata entry in which Spark keeps a file's schema: types that Parquet lacks, such as intervals.

Spark stores day-time intervals as INT64 (microseconds) and year-month intervals as INT32 (months), and the
lengths of ``char`` and collations nowhere but here. A directory is read by the note of one of its files, so
every file of a dataset has to have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from intarsia.common.exact import cast_exact
from intarsia.common.int96 import read_arrow_schema
from intarsia.common.source import IngestedSource
from intarsia.common.types import classify_type, list_like
from intarsia.core.snapshot import Snapshot
from intarsia.errors import SchemaMismatch

__all__ = [
    "SPARK_SCHEMA",
    "check_variants",
    "conform_to_stored",
    "is_variant_storage",
    "join_spark_schemas",
    "make_spark_schema",
    "read_spark_schema",
    "read_spark_types",
    "to_stored_schema",
]

SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"

OTHER_SHREDDING = (
    "have Spark write it in one form: set spark.sql.variant.writeShredding.enabled to false, and write what"
    " it reads from here into another directory."
)
_MICROSECONDS = pa.duration("us")
_SHREDDED = "typed_value"
_SIMPLE = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.uint8(): "short",
    pa.uint16(): "integer",
    pa.uint32(): "long",
    pa.uint64(): "decimal(20,0)",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("ms"): "timestamp_ntz",
    _MICROSECONDS: "interval day to second",
}


def read_spark_types(notes: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """Spark's type of each column, as its JSON has it; nothing where there is no note that can be read."""
    return {name: field["type"] for name, field in _read_fields(notes).items()}


def read_spark_schema(snapshot: Snapshot) -> tuple[Mapping[bytes, bytes], pa.Schema]:
    """What such notes of a dataset's files tell, with the columns they tell it of; both may be empty."""
    if snapshot.format.owns_schema:
        return {}, pa.schema([])
    return join_spark_schemas(file.footer for file in snapshot.files.list_kinds())


def join_spark_schemas(footers: Iterable[pq.FileMetaData | None]) -> tuple[Mapping[bytes, bytes], pa.Schema]:
    """One note for the columns of several files: of each what the first file notes that has it noted.

    With it come the columns as they are in those files. Both are empty where no file has a note.
    """
    seen: dict[bytes, tuple[dict[str, Any], pa.Schema]] = {}
    for footer in footers:
        note = None if footer is None else (footer.metadata or {}).get(SPARK_SCHEMA)
        if note is not None and note not in seen:
            seen[note] = _read_fields({SPARK_SCHEMA: note}), read_arrow_schema(footer)
    fields: dict[str, tuple[Any, pa.Field | None]] = {}
    for known, schema in seen.values():
        for name, field in known.items():
            stored = schema.field(name) if schema.names.count(name) == 1 else None
            fields.setdefault(name, (field, stored))
    before = pa.schema([stored for _, stored in fields.values() if stored is not None])
    if not fields:
        return {}, before
    note = next(iter(seen)) if len(seen) == 1 else _encode_fields([field for field, _ in fields.values()])
    return {SPARK_SCHEMA: note}, before


def make_spark_schema(
    notes: Mapping[bytes, bytes], schema: pa.Schema, before: pa.Schema
) -> dict[bytes, bytes]:
    """The note for a file of another schema than the one it was read from; none where there is none to write.

    Columns that are as before keep what is noted of them. Of others Spark's type follows from Arrow's;
    where Spark has none, the note is left out, and Spark reads what Parquet tells.
    """
    known = _read_fields(notes)
    if not known:
        return {}
    fields = []
    for field in schema:
        had = before.field(field.name).type if before.names.count(field.name) == 1 else None
        noted = _describe_field(field, known.get(field.name), had)
        if noted is None:
            return {}
        fields.append(noted)
    return {SPARK_SCHEMA: _encode_fields(fields)}


def _encode_fields(fields: Sequence[Any]) -> bytes:
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":")).encode()


def _describe_field(field: pa.Field, known: Any, had: pa.DataType | None) -> Any:
    """A column as it is noted: comments stay, and a type that is as before."""
    if known is None:
        dtype = _to_spark_type(field.type)
        return None if dtype is None else _make_field(field.name, dtype, field.nullable)
    dtype = _describe_type(field.type, known["type"], had)
    if dtype is None:
        return None
    metadata = {} if dtype != known["type"] and _tells_type(known) else known.get("metadata", {})
    return {**known, "type": dtype, "metadata": metadata}


def _tells_type(known: Any) -> bool:
    """Whether a field's own metadata tells its type: the length of ``char``, a collation."""
    return isinstance(known["type"], str) and any(key.startswith("__") for key in known.get("metadata") or ())


def _describe_type(dtype: pa.DataType, known: Any, had: pa.DataType | None) -> Any:
    """The note of a type that may have other fields than before; None where Spark has no such type."""
    if had is not None and had.equals(dtype):
        return known
    if known == "variant" and is_variant_storage(dtype):
        return known
    if had is None or not isinstance(known, dict) or classify_type(dtype) != classify_type(had):
        return _to_spark_type(dtype)
    match classify_type(dtype), known.get("type"):
        case "struct", "struct":
            theirs = {field.name: field.type for field in had.fields}
            noted = {field["name"]: field for field in known["fields"]}
            fields = [_describe_field(f, noted.get(f.name), theirs.get(f.name)) for f in dtype.fields]
            return None if None in fields else {**known, "fields": fields}
        case "map", "map":
            key = _describe_type(dtype.key_type, known["keyType"], had.key_type)
            item = _describe_type(dtype.item_type, known["valueType"], had.item_type)
            return None if key is None or item is None else {**known, "keyType": key, "valueType": item}
        case "list", "array":
            item = _describe_type(dtype.value_type, known["elementType"], had.value_type)
            return None if item is None else {**known, "elementType": item}
        case _:
            return _to_spark_type(dtype)


def _make_field(name: str, dtype: Any, nullable: bool) -> dict[str, Any]:
    return {"name": name, "type": dtype, "nullable": nullable, "metadata": {}}


def to_stored_schema(source: pa.Schema, snapshot: Snapshot) -> pa.Schema:
    """The source's schema with types of Spark's own as the files hold them.

    Durations are numbers where Spark notes a day-time interval. A VARIANT has a field ``typed_value`` where
    the files' are shredded, NULL in rows that are not (Parquet's VariantShredding allows for both).
    """
    noted = read_spark_types(read_spark_schema(snapshot)[0])
    fields = []
    known = noted.keys() & set(snapshot.schema.names)
    for field in source:
        if field.name in known:
            dtype = _to_stored_type(field.type, snapshot.schema.field(field.name).type, noted[field.name])
            field = field.with_type(dtype)
        fields.append(field)
    return pa.schema(fields, source.metadata)


def conform_to_stored(source: IngestedSource, snapshot: Snapshot, *, operation: str) -> IngestedSource:
    """A source whose columns of Spark's own types fit those of the files; see :func:`to_stored_schema`.

    Raises SchemaMismatch for a duration that is not one of whole microseconds.
    """
    if not any(_is_spark_like(field.type) for field in source.schema):
        return source
    schema = to_stored_schema(source.schema, snapshot)
    if schema.equals(source.schema):
        return source
    table = source.table
    columns = [
        to_stored_column(table.column(number), field, operation=operation, path=snapshot.root)
        for number, field in enumerate(schema)
    ]
    made = IngestedSource(pa.Table.from_arrays(columns, schema=schema), origin=source.origin)
    made.rows = source.rows
    return made


def check_variants(snapshot: Snapshot) -> None:
    """Raise SchemaMismatch where files of a dataset hold a VARIANT shredded in different ways.

    Rows of such files cannot come together in one without being encoded again.
    """
    note = read_spark_schema(snapshot)[0]
    if b"variant" not in note.get(SPARK_SCHEMA, b""):
        return
    forms: dict[str, set[str]] = {}
    for file in snapshot.files.list_kinds():
        if file.footer is not None:
            for field in file.footer.schema.to_arrow_schema():
                forms.setdefault(field.name, set()).update(_find_shredded_forms(field.type))
    several = [name for name, found in forms.items() if len(found) > 1]
    if several:
        raise SchemaMismatch(
            f"The files of {snapshot.root} hold the VARIANT of {', '.join(map(repr, several))} shredded in"
            " different ways.",
            path=snapshot.root,
            hint=OTHER_SHREDDING,
        )


def _find_shredded_forms(dtype: pa.DataType) -> set[str]:
    """The types of what is shredded, of a VARIANT and of such inside."""
    if classify_type(dtype) not in ("struct", "map", "list"):
        return set()
    inner = [dtype.field(number) for number in range(dtype.num_fields)]
    if is_variant_storage(dtype):
        return {str(field.type) for field in inner if field.name == _SHREDDED}
    return {f"{field.name}.{form}" for field in inner for form in _find_shredded_forms(field.type)}


def to_stored_column(column: Any, field: pa.Field, *, operation: str, path: str) -> Any:
    """A column in a type of :func:`to_stored_schema`."""
    if column.type.equals(field.type):
        return column
    exact = cast_exact(
        column, _to_microseconds(column.type), column=field.name, operation=operation, path=path
    )
    return exact.cast(field.type)


def _read_fields(notes: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    try:
        found = json.loads((notes or {}).get(SPARK_SCHEMA, b"{}"))
        return {field["name"]: field for field in found.get("fields", ()) if "type" in field}
    except (ValueError, TypeError, KeyError, AttributeError):  # a note that nobody can read says nothing
        return {}


def _is_spark_like(dtype: pa.DataType) -> bool:
    """Whether a type of the source, or one inside, may be stored otherwise by Spark."""
    if classify_type(dtype) in ("struct", "map", "list"):
        inner = (dtype.field(number).type for number in range(dtype.num_fields))
        return _is_variant(dtype) or any(_is_spark_like(one) for one in inner)
    return bool(pa.types.is_duration(dtype))


def is_variant_storage(dtype: pa.DataType) -> bool:
    """Whether a type is how files hold a VARIANT, shredded or not."""
    names = {field.name for field in dtype.fields} if classify_type(dtype) == "struct" else set()
    return {"metadata", "value"} <= names <= {"metadata", "value", _SHREDDED}


def _is_variant(dtype: pa.DataType) -> bool:
    """Whether a type is what Spark gives Arrow for a VARIANT."""
    return classify_type(dtype) == "struct" and {field.name for field in dtype.fields} == {
        "metadata",
        "value",
    }


def _to_stored_type(dtype: pa.DataType, stored: pa.DataType, noted: Any) -> pa.DataType:
    """The source's type, with the stored one where Spark notes a day-time interval for a duration."""
    if pa.types.is_duration(dtype):
        is_interval = isinstance(noted, str) and noted.startswith("interval ") and pa.types.is_int64(stored)
        return stored if is_interval else dtype
    if noted == "variant" and _is_variant(dtype) and classify_type(stored) == "struct":
        return pa.struct([*dtype.fields, *(f for f in stored.fields if f.name == _SHREDDED)])
    if not isinstance(noted, dict) or classify_type(dtype) != classify_type(stored):
        return dtype
    match classify_type(dtype), noted.get("type"):
        case "struct", "struct":
            inner = {field["name"]: field["type"] for field in noted["fields"]}
            theirs = {field.name: field.type for field in stored.fields}
            return pa.struct(
                [
                    field.with_type(_to_stored_type(field.type, theirs[field.name], inner[field.name]))
                    if field.name in inner and field.name in theirs
                    else field
                    for field in dtype.fields
                ]
            )
        case "map", "map":
            key = _to_stored_type(dtype.key_type, stored.key_type, noted["keyType"])
            item = _to_stored_type(dtype.item_type, stored.item_type, noted["valueType"])
            return pa.map_(dtype.key_field.with_type(key), dtype.item_field.with_type(item))
        case "list", "array":
            item = _to_stored_type(dtype.value_type, stored.value_type, noted["elementType"])
            return list_like(dtype, dtype.value_field.with_type(item))
        case _:
            return dtype


def _to_microseconds(dtype: pa.DataType) -> pa.DataType:
    match classify_type(dtype):
        case "struct":
            return pa.struct([field.with_type(_to_microseconds(field.type)) for field in dtype.fields])
        case "map":
            key, item = _to_microseconds(dtype.key_type), _to_microseconds(dtype.item_type)
            return pa.map_(dtype.key_field.with_type(key), dtype.item_field.with_type(item))
        case "list":
            return list_like(dtype, dtype.value_field.with_type(_to_microseconds(dtype.value_type)))
        case _:
            return _MICROSECONDS if pa.types.is_duration(dtype) else dtype


def _to_spark_type(dtype: pa.DataType) -> Any:
    """Spark's type of a column that Parquet holds of this Arrow type, as JSON; None where it has none."""
    if dtype in _SIMPLE:
        return _SIMPLE[dtype]
    if pa.types.is_decimal128(dtype):
        return f"decimal({dtype.precision},{dtype.scale})"
    if pa.types.is_timestamp(dtype):
        return "timestamp" if dtype.tz is not None and dtype.unit in ("us", "ms") else None
    match classify_type(dtype):
        case "struct":
            fields = [(field, _to_spark_type(field.type)) for field in dtype.fields]
            if any(inner is None for _, inner in fields):
                return None
            return {
                "type": "struct",
                "fields": [_make_field(field.name, inner, field.nullable) for field, inner in fields],
            }
        case "map":
            key, item = _to_spark_type(dtype.key_type), _to_spark_type(dtype.item_type)
            if key is None or item is None:
                return None
            return {"type": "map", "keyType": key, "valueType": item, "valueContainsNull": True}
        case "list":
            item = _to_spark_type(dtype.value_type)
            return None if item is None else {"type": "array", "elementType": item, "containsNull": True}
        case _:
            return None
