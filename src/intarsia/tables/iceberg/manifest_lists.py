"""Manifest lists: which manifests a snapshot has; read and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyiceberg.io import FileIO

from intarsia.errors import InputError
from intarsia.tables.iceberg import avro
from intarsia.tables.iceberg.avro_schemas import list_schema
from intarsia.tables.iceberg.entries import Content, FieldSummary, Manifest, Status
from intarsia.tables.iceberg.manifests import read_manifest, renamed
from intarsia.tables.iceberg.metadata_files import read_bytes, write_bytes

# Old writers called the counts otherwise; the ids are the same.
_NAMES = {
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
_COUNTS = (
    "added_files_count",
    "existing_files_count",
    "deleted_files_count",
    "added_rows_count",
    "existing_rows_count",
    "deleted_rows_count",
)


def read_manifest_list(io: FileIO, path: str) -> list[Manifest]:
    """The manifests of a snapshot, in their order, of any format version.

    Raises:
        DamagedTable: the list is missing or cannot be read.
    """
    container = avro.decode(read_bytes(io, path, "manifest list"), path)
    with avro.reading(path):
        schema = renamed(container.schema, _NAMES)
        known = set(_NAMES.values())
        extra = {field["name"]: field for field in schema["fields"] if field["name"] not in known}
        return [_manifest(record, extra) for record in container.records(schema)]


def write_manifest_list(
    io: FileIO,
    path: str,
    manifests: Sequence[Manifest],
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
    row id get one each.

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
        made = _numbered(manifest, path, format_version, snapshot_id, sequence_number)
        made = _counted(io, made) if format_version > 1 else made
        if next_row_id is not None and made.content is Content.DATA and made.first_row_id is None:
            made = replace(made, first_row_id=next_row_id)
            # Kept files may have none either: those of snapshots before version 3.
            next_row_id += (made.existing_rows_count or 0) + (made.added_rows_count or 0)
        ready.append(made)
    encoder = avro.Encoder(_schema(ready, format_version), header, compression)
    for manifest in ready:
        encoder.append(_record(manifest))
    write_bytes(io, path, encoder.finish(), "manifest list")
    return next_row_id


def _manifest(record: Mapping[str, Any], extra: Mapping[str, Mapping[str, Any]]) -> Manifest:
    get = record.get
    return Manifest(
        manifest_path=record["manifest_path"],
        manifest_length=record["manifest_length"],
        partition_spec_id=get("partition_spec_id") or 0,
        content=Content(get("content") or 0),
        sequence_number=get("sequence_number") or 0,
        min_sequence_number=get("min_sequence_number") or 0,
        added_snapshot_id=record["added_snapshot_id"],
        partitions=_summaries(get("partitions")),
        key_metadata=get("key_metadata"),
        first_row_id=get("first_row_id"),
        extra={name: {"field": field, "value": record[name]} for name, field in extra.items()},
        **{name: get(name) for name in _COUNTS},
    )


def _summaries(records: Sequence[Mapping[str, Any]] | None) -> tuple[FieldSummary, ...] | None:
    if records is None:
        return None
    return tuple(
        FieldSummary(
            record["contains_null"],
            record.get("contains_nan"),
            record.get("lower_bound"),
            record.get("upper_bound"),
        )
        for record in records
    )


def _numbered(
    manifest: Manifest, path: str, format_version: int, snapshot_id: int, sequence_number: int
) -> Manifest:
    if format_version == 1 and manifest.content is not Content.DATA:
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


def _counted(io: FileIO, manifest: Manifest) -> Manifest:
    """With its counts, which lists of version 1 may lack and later ones need."""
    if all(getattr(manifest, name) is not None for name in _COUNTS):
        return manifest
    entries = read_manifest(io, manifest, live_only=False)
    counts: dict[str, Any] = {}
    for word, status in (("added", Status.ADDED), ("existing", Status.EXISTING), ("deleted", Status.DELETED)):
        files = [entry.file.record_count for entry in entries if entry.status is status]
        counts |= {f"{word}_files_count": len(files), f"{word}_rows_count": sum(files)}
    return replace(manifest, **counts)


def _schema(manifests: Sequence[Manifest], format_version: int) -> dict[str, Any]:
    schema = list_schema(format_version)
    names = {field["name"] for field in schema["fields"]}
    for manifest in manifests:
        for name, kept in manifest.extra.items():
            if name not in names:
                names.add(name)
                schema["fields"].append(_optional(kept["field"]))
    return schema


def _optional(field: Mapping[str, Any]) -> dict[str, Any]:
    # Manifests of this commit do not have the field.
    kind = field["type"]
    options = kind if isinstance(kind, list) else [kind]
    return {**field, "type": ["null", *(part for part in options if part != "null")], "default": None}


def _record(manifest: Manifest) -> dict[str, Any]:
    record = {name: getattr(manifest, name) for name in _NAMES.values()}
    record["content"] = 0 if manifest.content is Content.DATA else 1
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
