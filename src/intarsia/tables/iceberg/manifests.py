"""Reading manifests with everything they say; nothing here writes one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from pyiceberg.io import FileIO

from intarsia.errors import DamagedTable
from intarsia.tables.iceberg import avro
from intarsia.tables.iceberg.entries import Content, ContentFile, Entry, Manifest, Status
from intarsia.tables.iceberg.metadata_files import read_bytes

_FIRST_PARTITION_FIELD = 1000
_CONTENTS = (Content.DATA, Content.POSITION_DELETES, Content.EQUALITY_DELETES)
_STATUSES = (Status.EXISTING, Status.ADDED, Status.DELETED)

# Fields are known by their ids: old writers had other names for some.
_ENTRY_NAMES = {
    0: "status",
    1: "snapshot_id",
    2: "data_file",
    3: "sequence_number",
    4: "file_sequence_number",
}
_FILE_NAMES = {
    134: "content",
    100: "file_path",
    101: "file_format",
    102: "partition",
    103: "record_count",
    104: "file_size_in_bytes",
    108: "column_sizes",
    109: "value_counts",
    110: "null_value_counts",
    137: "nan_value_counts",
    125: "lower_bounds",
    128: "upper_bounds",
    131: "key_metadata",
    132: "split_offsets",
    135: "equality_ids",
    140: "sort_order_id",
    142: "first_row_id",
    143: "referenced_data_file",
    144: "content_offset",
    145: "content_size_in_bytes",
}

_Tuple = Callable[[Mapping[str, Any]], tuple[Any, ...]]


def read_manifest(io: FileIO, manifest: Manifest, *, live_only: bool = True) -> list[Entry]:
    """The entries of a manifest, in their order, with what they inherit from it filled in.

    Args:
        io: of the table.
        manifest: as a manifest list names it.
        live_only: leave out files that were removed.

    Raises:
        DamagedTable: the manifest is missing or cannot be read.
    """
    data = read_bytes(io, manifest.manifest_path, "manifest")
    container = avro.decode(data, manifest.manifest_path)
    with avro.reading(manifest.manifest_path):
        return list(_entries(container, manifest, live_only=live_only))


def _entries(container: avro.Container, manifest: Manifest, *, live_only: bool) -> Iterator[Entry]:
    schema = renamed(container.schema, _ENTRY_NAMES)
    place = next((i for i, field in enumerate(schema["fields"]) if field["name"] == "data_file"), None)
    if place is None:
        raise DamagedTable("not a manifest: its records have no data_file", path=container.path)
    file_type = schema["fields"][place]["type"] = renamed(schema["fields"][place]["type"], _FILE_NAMES)
    as_tuple = _tuple_of(_partition_fields(file_type), _spec_field_ids(container))
    next_row_id = manifest.first_row_id if manifest.content is Content.DATA else None
    for record in container.records(schema):
        status = _STATUSES[record["status"]]
        file = record["data_file"]
        first_row_id = file.get("first_row_id")
        if next_row_id is not None and first_row_id is None and status is not Status.DELETED:
            first_row_id = next_row_id
            next_row_id += file["record_count"]
        if live_only and status is Status.DELETED:
            continue
        yield _entry(record, status, manifest, _file(file, manifest, as_tuple, first_row_id))


def _entry(record: Mapping[str, Any], status: Status, manifest: Manifest, file: ContentFile) -> Entry:
    snapshot_id = record["snapshot_id"]
    sequence = record.get("sequence_number")
    file_sequence = record.get("file_sequence_number")
    # Version 1 has no numbers: they are 0. Later only what a commit adds takes those of its manifest.
    inherits = status is Status.ADDED or manifest.sequence_number == 0
    if sequence is None and not inherits and status is not Status.DELETED:
        raise DamagedTable(
            f"the manifest lists {file.file_path} as kept, without its sequence number",
            path=manifest.manifest_path,
            hint="restore the manifest, or roll the table back to a snapshot without it",
        )
    return Entry(
        status,
        manifest.added_snapshot_id if snapshot_id is None else snapshot_id,
        file,
        manifest.sequence_number if sequence is None and inherits else sequence,
        manifest.sequence_number if file_sequence is None and inherits else file_sequence,
    )


def _file(
    file: Mapping[str, Any], manifest: Manifest, as_tuple: _Tuple, first_row_id: int | None
) -> ContentFile:
    get = file.get
    return ContentFile(
        _CONTENTS[get("content") or 0],
        file["file_path"],
        file["file_format"],
        manifest.partition_spec_id,
        as_tuple(file["partition"]),
        file["record_count"],
        file["file_size_in_bytes"],
        get("column_sizes"),
        get("value_counts"),
        get("null_value_counts"),
        get("nan_value_counts"),
        get("lower_bounds"),
        get("upper_bounds"),
        get("key_metadata"),
        _list(get("split_offsets")),
        _list(get("equality_ids")),
        get("sort_order_id"),
        first_row_id,
        get("referenced_data_file"),
        get("content_offset"),
        get("content_size_in_bytes"),
    )


def _list(values: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


def renamed(record: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """A record's schema with its fields named by their ids; what has another id keeps its name."""
    fields = [
        {**field, "name": names.get(field.get("field-id", -1), field["name"])} for field in record["fields"]
    ]
    return {**record, "fields": fields}


def _partition_fields(file: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    for field in file["fields"]:
        if field["name"] == "partition":
            return list(field["type"]["fields"])
    return []


def _spec_field_ids(container: avro.Container) -> list[int] | None:
    text = container.text("partition-spec")
    if text is None:
        return None
    fields = json.loads(text)
    return [field.get("field-id", _FIRST_PARTITION_FIELD + place) for place, field in enumerate(fields)]


def _tuple_of(fields: Sequence[Mapping[str, Any]], ids: Sequence[int] | None) -> _Tuple:
    """How the values of a record become a tuple in the order of the spec.

    A field that is in the spec but not in the records is NULL: some writers leave out one whose source
    column was dropped.
    """
    readers = [(field["name"], _value_reader(field["type"])) for field in fields]
    own = [field.get("field-id") for field in fields]
    ordered: list[tuple[str, Callable[[Any], Any] | None] | None] = list(readers)
    if ids is not None and None not in own and own != list(ids):
        by_id = dict(zip(own, readers, strict=True))
        ordered = [by_id.get(field_id) for field_id in ids]

    def as_tuple(record: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(None if reader is None else _read(reader[1], record[reader[0]]) for reader in ordered)

    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def shared(record: Mapping[str, Any]) -> tuple[Any, ...]:
        # Many files are of few partitions.
        raw = tuple(record.values())
        found = known.get(raw)
        if found is None:
            found = known[raw] = as_tuple(record)
        return found

    # 0.0 and -0.0 are different values but equal keys.
    floating = any("float" in str(field["type"]) or "double" in str(field["type"]) for field in fields)
    return as_tuple if floating else shared


def _read(read: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if read is None or value is None else read(value)


def _value_reader(kind: Any) -> Callable[[Any], Any] | None:
    if isinstance(kind, list):
        kind = next((part for part in kind if part != "null"), "null")
    if not isinstance(kind, Mapping):
        return None
    match kind.get("logicalType"):
        case "decimal":
            scale = kind.get("scale", 0)
            return lambda value: _decimal(value, scale)
        case "uuid" if kind["type"] == "string":
            return lambda value: uuid.UUID(value).bytes
    return None


def _decimal(value: bytes, scale: int) -> Decimal:
    number = int.from_bytes(value, "big", signed=True)
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))
