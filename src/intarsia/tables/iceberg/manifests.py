"""Manifests and manifest lists: their entries as values, reading both, and writing lists.

Every field of an entry is kept. Inheritance of sequence numbers and row ids follows the Iceberg spec
("Sequence Number Inheritance", "First Row ID Inheritance"), and Java's ``InheritableMetadataFactory`` and
``ManifestReader.idAssigner``.
"""

from __future__ import annotations

import json
import struct
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from pyiceberg.io import FileIO

from intarsia.errors import DamagedTable, InputError
from intarsia.tables.iceberg import avro
from intarsia.tables.iceberg.avro_schemas import make_list_schema
from intarsia.tables.iceberg.conversions import scale_decimal
from intarsia.tables.iceberg.file_io import read_bytes, write_bytes


class DataFileContent(IntEnum):
    """What a file holds."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


class ManifestEntryStatus(IntEnum):
    """What a manifest says of a file."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


@dataclass(frozen=True, slots=True)
class ContentFile:
    """A data file or delete file, every field of its manifest record kept as it was written.

    ``partition`` are the values of the spec's fields, in their order, in Iceberg's own form: ``int`` for
    dates (days), times and timestamps (micros or nanos), ``decimal.Decimal``, ``bytes`` for fixed,
    binary and UUID. ``spec_id`` is fixed when the file is written and never looked up again.
    """

    content: DataFileContent
    file_path: str
    """Byte for byte as it was recorded; delete files name it so."""
    file_format: str
    spec_id: int
    partition: tuple[Any, ...]
    record_count: int
    file_size_in_bytes: int
    column_sizes: Mapping[int, int] | None = None
    value_counts: Mapping[int, int] | None = None
    null_value_counts: Mapping[int, int] | None = None
    nan_value_counts: Mapping[int, int] | None = None
    lower_bounds: Mapping[int, bytes] | None = None
    upper_bounds: Mapping[int, bytes] | None = None
    key_metadata: bytes | None = None
    split_offsets: tuple[int, ...] | None = None
    equality_ids: tuple[int, ...] | None = None
    sort_order_id: int | None = None
    first_row_id: int | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None

    @property
    def is_vector(self) -> bool:
        """Whether it is a deletion vector: a blob inside a Puffin file."""
        return self.content is DataFileContent.POSITION_DELETES and self.file_format.upper() == "PUFFIN"


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A file as one manifest lists it.

    Sequence numbers are None in what a commit adds: they are inherited from the manifest, so that a
    manifest survives a retry. Entries read through a manifest have them filled in.
    """

    status: ManifestEntryStatus
    snapshot_id: int | None
    file: ContentFile
    sequence_number: int | None = None
    """The data sequence number."""
    file_sequence_number: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionFieldSummary:
    """What a manifest list says of one partition field over all files of a manifest."""

    contains_null: bool
    contains_nan: bool | None = None
    lower_bound: bytes | None = None
    upper_bound: bytes | None = None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A manifest as a manifest list names it: always of one content and one spec."""

    manifest_path: str
    manifest_length: int
    partition_spec_id: int
    content: DataFileContent
    """DATA, or POSITION_DELETES for a manifest of delete files of either kind."""
    sequence_number: int | None
    """None until the commit that adds it knows its own."""
    min_sequence_number: int | None
    added_snapshot_id: int
    added_files_count: int | None = None
    existing_files_count: int | None = None
    deleted_files_count: int | None = None
    added_rows_count: int | None = None
    existing_rows_count: int | None = None
    deleted_rows_count: int | None = None
    partitions: tuple[PartitionFieldSummary, ...] | None = None
    key_metadata: bytes | None = None
    first_row_id: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the record that are not known here, kept."""


PATH_ID = 2147483546
"""Field id of ``file_path`` in position delete files."""
POS_ID = 2147483545
"""Field id of ``pos`` in position delete files."""


def find_referenced_data_file(file: ContentFile) -> str | None:
    """The one data file that a position delete file or vector is about; None where it may be several.

    The field says so, or equal bounds of the path (Java's ``ContentFileUtil.referencedDataFile``).
    """
    if file.content is not DataFileContent.POSITION_DELETES:
        return None
    if file.referenced_data_file is not None:
        return file.referenced_data_file
    lower = (file.lower_bounds or {}).get(PATH_ID)
    upper = (file.upper_bounds or {}).get(PATH_ID)
    return lower.decode() if lower is not None and lower == upper else None


def make_partition_key(file: ContentFile) -> tuple[Any, ...]:
    """Spec and tuple as a key: NaN equals NaN, 0.0 does not equal -0.0 (Iceberg spec, "Scan Planning")."""
    for value in file.partition:
        if type(value) is float:
            return (file.spec_id, tuple(map(_make_value_key, file.partition)))
    return (file.spec_id, file.partition)


def _make_value_key(value: Any) -> Any:
    if type(value) is not float:
        return value
    return b"nan" if value != value else struct.pack("<d", value)


_FIRST_PARTITION_FIELD = 1000
_CONTENTS = (DataFileContent.DATA, DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES)
_STATUSES = (ManifestEntryStatus.EXISTING, ManifestEntryStatus.ADDED, ManifestEntryStatus.DELETED)

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

_TupleReader = Callable[[Mapping[str, Any]], tuple[Any, ...]]


def read_manifest(io: FileIO, manifest: ManifestFile, *, live_only: bool = True) -> list[ManifestEntry]:
    """The entries of a manifest, in their order, with what they inherit from it filled in.

    Args:
        io: of the table.
        manifest: as a manifest list names it.
        live_only: leave out files that were removed.

    Raises:
        DamagedTable: the manifest is missing or cannot be read.
    """
    data = read_bytes(io, manifest.manifest_path, "manifest")
    container = avro.parse_avro(data, manifest.manifest_path)
    with avro.report_damage(manifest.manifest_path):
        return list(_iterate_entries(container, manifest, live_only=live_only))


def _iterate_entries(
    container: avro.AvroFile, manifest: ManifestFile, *, live_only: bool
) -> Iterator[ManifestEntry]:
    schema = rename_fields_by_id(container.schema, _ENTRY_NAMES)
    place = next((i for i, field in enumerate(schema["fields"]) if field["name"] == "data_file"), None)
    if place is None:
        raise DamagedTable("not a manifest: its records have no data_file", path=container.path)
    file_type = schema["fields"][place]["type"] = rename_fields_by_id(
        schema["fields"][place]["type"], _FILE_NAMES
    )
    as_tuple = _make_tuple_reader(_find_partition_fields(file_type), _read_spec_field_ids(container))
    next_row_id = manifest.first_row_id if manifest.content is DataFileContent.DATA else None
    for record in container.read_records(schema):
        status = _STATUSES[record["status"]]
        file = record["data_file"]
        first_row_id = file.get("first_row_id")
        if next_row_id is not None and first_row_id is None and status is not ManifestEntryStatus.DELETED:
            first_row_id = next_row_id
            next_row_id += file["record_count"]
        if live_only and status is ManifestEntryStatus.DELETED:
            continue
        yield _make_entry(
            record, status, manifest, _make_content_file(file, manifest, as_tuple, first_row_id)
        )


def _make_entry(
    record: Mapping[str, Any], status: ManifestEntryStatus, manifest: ManifestFile, file: ContentFile
) -> ManifestEntry:
    snapshot_id = record["snapshot_id"]
    if snapshot_id is None or snapshot_id == manifest.added_snapshot_id:
        snapshot_id = manifest.added_snapshot_id  # one integer for all of them
    sequence = record.get("sequence_number")
    file_sequence = record.get("file_sequence_number")
    # Version 1 has no numbers: they are 0. Later only what a commit adds takes those of its manifest.
    inherits = status is ManifestEntryStatus.ADDED or manifest.sequence_number == 0
    if sequence is None and not inherits and status is not ManifestEntryStatus.DELETED:
        raise DamagedTable(
            f"the manifest lists {file.file_path} as kept, without its sequence number",
            path=manifest.manifest_path,
            hint="restore the manifest, or roll the table back to a snapshot without it",
        )
    return ManifestEntry(
        status,
        snapshot_id,
        file,
        manifest.sequence_number if sequence is None and inherits else sequence,
        manifest.sequence_number if file_sequence is None and inherits else file_sequence,
    )


def _make_content_file(
    file: Mapping[str, Any], manifest: ManifestFile, as_tuple: _TupleReader, first_row_id: int | None
) -> ContentFile:
    get = file.get
    return ContentFile(
        _CONTENTS[get("content") or 0],
        file["file_path"],
        sys.intern(file["file_format"]),
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
        _to_tuple(get("split_offsets")),
        _to_tuple(get("equality_ids")),
        get("sort_order_id"),
        first_row_id,
        get("referenced_data_file"),
        get("content_offset"),
        get("content_size_in_bytes"),
    )


_ONE_ROW_GROUP = (4,)
"""The offsets of a file with one row group, which most are."""


def _to_tuple(values: Sequence[int] | None) -> tuple[int, ...] | None:
    if values is None:
        return None
    return _ONE_ROW_GROUP if len(values) == 1 and values[0] == 4 else tuple(values)


def rename_fields_by_id(record: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """A record's schema with its fields named by their ids; what has another id keeps its name."""
    fields = [
        {**field, "name": names.get(field.get("field-id", -1), field["name"])} for field in record["fields"]
    ]
    return {**record, "fields": fields}


def _find_partition_fields(file: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    for one in file["fields"]:
        if one["name"] == "partition":
            return list(one["type"]["fields"])
    return []


def _read_spec_field_ids(container: avro.AvroFile) -> list[int] | None:
    text = container.get_text("partition-spec")
    if text is None:
        return None
    fields = json.loads(text)
    return [field.get("field-id", _FIRST_PARTITION_FIELD + place) for place, field in enumerate(fields)]


def _make_tuple_reader(fields: Sequence[Mapping[str, Any]], ids: Sequence[int] | None) -> _TupleReader:
    """How the values of a record become a tuple in the order of the spec.

    A field that is in the spec but not in the records is NULL: some writers leave out one whose source
    column was dropped.
    """
    readers = [(field["name"], _make_value_reader(field["type"])) for field in fields]
    own = [field.get("field-id") for field in fields]
    ordered: list[tuple[str, Callable[[Any], Any] | None] | None] = list(readers)
    if ids is not None and None not in own and own != list(ids):
        by_id = dict(zip(own, readers, strict=True))
        ordered = [by_id.get(field_id) for field_id in ids]

    def as_tuple(record: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(
            None if reader is None else _read_value(reader[1], record[reader[0]]) for reader in ordered
        )

    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def read_shared(record: Mapping[str, Any]) -> tuple[Any, ...]:
        # Many files are of few partitions.
        raw = tuple(record.values())
        found = known.get(raw)
        if found is None:
            found = known[raw] = as_tuple(record)
        return found

    # 0.0 and -0.0 are different values but equal keys.
    floating = any("float" in str(field["type"]) or "double" in str(field["type"]) for field in fields)
    return as_tuple if floating else read_shared


def _read_value(read: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if read is None or value is None else read(value)


def _make_value_reader(kind: Any) -> Callable[[Any], Any] | None:
    if isinstance(kind, list):
        kind = next((part for part in kind if part != "null"), "null")
    if not isinstance(kind, Mapping):
        return None
    match kind.get("logicalType"):
        case "decimal":
            scale = kind.get("scale", 0)
            return lambda value: scale_decimal(int.from_bytes(value, "big", signed=True), scale)
        case "uuid" if kind["type"] == "string":
            return lambda value: uuid.UUID(value).bytes
    return None


# Old writers called the counts otherwise; the ids are the same.
_LIST_NAMES = {
    500: "manifest_path",
    501: "manifest_length",
    502: "partition_spec_id",
    517: "content",
    515: "sequence_number",
    516: "min_sequence_number",
    503: "added_snapshot_id",
    504: "added_files_count",
    505: "existing_files_count",
    506: "deleted_files_count",
    512: "added_rows_count",
    513: "existing_rows_count",
    514: "deleted_rows_count",
    507: "partitions",
    519: "key_metadata",
    520: "first_row_id",
}
_LIST_COUNTS = (
    "added_files_count",
    "existing_files_count",
    "deleted_files_count",
    "added_rows_count",
    "existing_rows_count",
    "deleted_rows_count",
)


def read_manifest_list(io: FileIO, path: str) -> list[ManifestFile]:
    """The manifests of a snapshot, in their order, of any format version.

    Raises:
        DamagedTable: the list is missing or cannot be read.
    """
    container = avro.parse_avro(read_bytes(io, path, "manifest list"), path)
    with avro.report_damage(path):
        schema = rename_fields_by_id(container.schema, _LIST_NAMES)
        known = set(_LIST_NAMES.values())
        extra = {field["name"]: field for field in schema["fields"] if field["name"] not in known}
        return [_make_manifest_file(record, extra) for record in container.read_records(schema)]


def write_manifest_list(
    io: FileIO,
    path: str,
    manifests: Sequence[ManifestFile],
    *,
    format_version: int,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
    first_row_id: int | None = None,
    compression: str = "gzip",
) -> int | None:
    """Write the list of a snapshot's manifests.

    Manifests without a sequence number get the commit's; in version 3, data manifests without a first
    row id get one each (Iceberg spec, "First Row ID Assignment"; Java's ``ManifestListWriter``).

    Args:
        io: of the table.
        path: of the list, new.
        manifests: in their order; those of this commit carry its snapshot id.
        format_version: of the table.
        snapshot_id: of the commit.
        parent_snapshot_id: the snapshot it follows.
        sequence_number: of the commit.
        first_row_id: the table's next row id, in version 3.
        compression: as ``write.manifest.compression-codec`` names it.

    Returns:
        The next row id after this commit, in version 3.

    Raises:
        InputError: a manifest cannot be in a list of this version.
        StorageError: the list cannot be written.
    """
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_snapshot_id is None else str(parent_snapshot_id),
    }
    if format_version > 1:
        header["sequence-number"] = str(sequence_number)
    next_row_id = None
    if format_version > 2:
        if first_row_id is None:
            raise InputError("a manifest list of version 3 without first_row_id", path=path)
        header["first-row-id"] = str(first_row_id)
        next_row_id = first_row_id
    header["format-version"] = str(format_version)

    ready = []
    for manifest in manifests:
        made = _assign_sequence_number(manifest, path, format_version, snapshot_id, sequence_number)
        made = _fill_counts(io, made) if format_version > 1 else made
        if next_row_id is not None and made.content is DataFileContent.DATA and made.first_row_id is None:
            made = replace(made, first_row_id=next_row_id)
            # Kept files may have none either: those of snapshots before version 3.
            next_row_id += (made.existing_rows_count or 0) + (made.added_rows_count or 0)
        ready.append(made)
    encoder = avro.AvroFileWriter(_make_list_schema(ready, format_version), header, compression)
    for manifest in ready:
        encoder.append(_make_list_record(manifest))
    write_bytes(io, path, encoder.finish(), "manifest list")
    return next_row_id


def _make_manifest_file(record: Mapping[str, Any], extra: Mapping[str, Mapping[str, Any]]) -> ManifestFile:
    get = record.get
    return ManifestFile(
        manifest_path=record["manifest_path"],
        manifest_length=record["manifest_length"],
        partition_spec_id=get("partition_spec_id") or 0,
        content=DataFileContent(get("content") or 0),
        sequence_number=get("sequence_number") or 0,
        min_sequence_number=get("min_sequence_number") or 0,
        added_snapshot_id=record["added_snapshot_id"],
        partitions=_make_summaries(get("partitions")),
        key_metadata=get("key_metadata"),
        first_row_id=get("first_row_id"),
        extra={name: {"field": field, "value": record[name]} for name, field in extra.items()},
        **{name: get(name) for name in _LIST_COUNTS},
    )


def _make_summaries(records: Sequence[Mapping[str, Any]] | None) -> tuple[PartitionFieldSummary, ...] | None:
    if records is None:
        return None
    return tuple(
        PartitionFieldSummary(
            record["contains_null"],
            record.get("contains_nan"),
            record.get("lower_bound"),
            record.get("upper_bound"),
        )
        for record in records
    )


def _assign_sequence_number(
    manifest: ManifestFile, path: str, format_version: int, snapshot_id: int, sequence_number: int
) -> ManifestFile:
    if format_version == 1 and manifest.content is not DataFileContent.DATA:
        raise InputError("delete files in a table of format version 1", path=path)
    unassigned = manifest.sequence_number is None or manifest.min_sequence_number is None
    if unassigned and manifest.added_snapshot_id != snapshot_id:
        raise InputError(
            f"the manifest {manifest.manifest_path} has no sequence number, and is of snapshot "
            f"{manifest.added_snapshot_id}, not of {snapshot_id}",
            path=path,
        )
    if not unassigned:
        return manifest
    least = manifest.min_sequence_number
    return replace(
        manifest,
        sequence_number=sequence_number if manifest.sequence_number is None else manifest.sequence_number,
        min_sequence_number=sequence_number if least is None else least,
    )


def _fill_counts(io: FileIO, manifest: ManifestFile) -> ManifestFile:
    """With its counts, which lists of version 1 may lack and later ones need."""
    if all(getattr(manifest, name) is not None for name in _LIST_COUNTS):
        return manifest
    entries = read_manifest(io, manifest, live_only=False)
    counts: dict[str, Any] = {}
    for word, status in (
        ("added", ManifestEntryStatus.ADDED),
        ("existing", ManifestEntryStatus.EXISTING),
        ("deleted", ManifestEntryStatus.DELETED),
    ):
        files = [entry.file.record_count for entry in entries if entry.status is status]
        counts |= {f"{word}_files_count": len(files), f"{word}_rows_count": sum(files)}
    return replace(manifest, **counts)


def _make_list_schema(manifests: Sequence[ManifestFile], format_version: int) -> dict[str, Any]:
    schema = make_list_schema(format_version)
    names = {field["name"] for field in schema["fields"]}
    for manifest in manifests:
        for name, kept in manifest.extra.items():
            if name not in names:
                names.add(name)
                schema["fields"].append(_make_optional(kept["field"]))
    return schema


def _make_optional(field: Mapping[str, Any]) -> dict[str, Any]:
    # Manifests of this commit do not have the field.
    kind = field["type"]
    options = kind if isinstance(kind, list) else [kind]
    return {**field, "type": ["null", *(part for part in options if part != "null")], "default": None}


def _make_list_record(manifest: ManifestFile) -> dict[str, Any]:
    record = {name: getattr(manifest, name) for name in _LIST_NAMES.values()}
    record["content"] = 0 if manifest.content is DataFileContent.DATA else 1
    if manifest.partitions is not None:
        record["partitions"] = [
            {
                "contains_null": part.contains_null,
                "contains_nan": part.contains_nan,
                "lower_bound": part.lower_bound,
                "upper_bound": part.upper_bound,
            }
            for part in manifest.partitions
        ]
    return record | {name: kept["value"] for name, kept in manifest.extra.items()}
