"""A snapshot as its files say it, decoded with fastavro and json alone: no code under test, no PyIceberg."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import fastavro

from tests.cross.lake import local
from tests.cross.plain_transforms import internal

DATA, POSITIONS, EQUALITY = 0, 1, 2
EXISTING, ADDED, DELETED = 0, 1, 2
Tuple = tuple[Any, ...]


@dataclass(frozen=True)
class File:
    """One entry of a manifest, with what it inherits filled in."""

    status: int
    snapshot_id: int
    sequence: int
    file_sequence: int
    spec_id: int
    record: Mapping[str, Any]
    raw: Mapping[str, Any]
    """The entry as it stands in the manifest."""
    first_row_id: int | None = None

    @property
    def is_live(self) -> bool:
        return self.status != DELETED

    @property
    def content(self) -> int:
        return self.record.get("content") or DATA

    @property
    def path(self) -> str:
        return str(self.record["file_path"])

    @property
    def rows(self) -> int:
        return int(self.record["record_count"])

    @property
    def tuple(self) -> Tuple:
        return tuple(internal(value) for value in self.record["partition"].values())

    @property
    def is_vector(self) -> bool:
        return self.content == POSITIONS and self.record["file_format"].upper() == "PUFFIN"

    @property
    def counted_bytes(self) -> int:
        """What summaries count: of a deletion vector its blob, of any other file all of it."""
        size = self.record["content_size_in_bytes"] if self.is_vector else self.record["file_size_in_bytes"]
        return int(size)


@dataclass(frozen=True)
class Manifest:
    """A manifest list's record, and the manifest it names."""

    record: Mapping[str, Any]
    header: Mapping[str, str]
    files: tuple[File, ...]
    schema: Any

    @property
    def path(self) -> Path:
        return local(self.record["manifest_path"])

    @property
    def content(self) -> int:
        return self.record.get("content") or DATA

    @property
    def spec_id(self) -> int:
        return int(self.record["partition_spec_id"])


@dataclass(frozen=True)
class State:
    """One snapshot of a table."""

    path: Path
    metadata: Mapping[str, Any]
    snapshot: Mapping[str, Any] | None
    list_header: Mapping[str, str] = field(default_factory=dict)
    manifests: tuple[Manifest, ...] = ()

    @property
    def version(self) -> int:
        return int(self.metadata["format-version"])

    @cached_property
    def live(self) -> tuple[File, ...]:
        return tuple(file for manifest in self.manifests for file in manifest.files if file.is_live)

    @cached_property
    def data(self) -> tuple[File, ...]:
        return tuple(file for file in self.live if file.content == DATA)

    @cached_property
    def deletes(self) -> tuple[File, ...]:
        return tuple(file for file in self.live if file.content != DATA)

    @property
    def default_spec(self) -> int:
        return int(self.metadata["default-spec-id"])

    @cached_property
    def specs(self) -> Mapping[int, list[dict[str, Any]]]:
        """Fields by spec id."""
        return {spec["spec-id"]: spec["fields"] for spec in self.metadata["partition-specs"]}

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        wanted = self.metadata["current-schema-id"]
        return next(one for one in self.metadata["schemas"] if one["schema-id"] == wanted)

    @property
    def summary(self) -> Mapping[str, str]:
        assert self.snapshot is not None
        found: Mapping[str, str] = self.snapshot.get("summary", {})
        return found


def decode(metadata_file: Path, branch: str | None = None) -> State:
    """The current snapshot of a metadata file, or that of a branch."""
    metadata = json.loads(metadata_file.read_text())
    wanted = metadata["refs"][branch]["snapshot-id"] if branch else metadata.get("current-snapshot-id")
    snapshot = next((one for one in metadata.get("snapshots", ()) if one["snapshot-id"] == wanted), None)
    if snapshot is None:
        return State(metadata_file, metadata, None)
    with local(snapshot["manifest-list"]).open("rb") as stream:
        reader = fastavro.reader(stream)
        header: dict[str, str] = dict(reader.metadata)
        records: list[Any] = list(reader)
    manifests = tuple(read_manifest(record) for record in records)
    return State(metadata_file, metadata, snapshot, header, manifests)


def read_manifest(record: Mapping[str, Any]) -> Manifest:
    with local(record["manifest_path"]).open("rb") as stream:
        reader = fastavro.reader(stream)
        header, schema = dict(reader.metadata), reader.writer_schema
        raw: list[Any] = list(reader)
    next_row = record.get("first_row_id")
    files = []
    for entry in raw:
        added = entry["status"] == ADDED
        own = entry["data_file"].get("first_row_id")
        first = own
        if own is None and next_row is not None and entry["status"] != DELETED:
            first = next_row
            next_row += entry["data_file"]["record_count"]
        files.append(
            File(
                status=entry["status"],
                snapshot_id=_or(entry.get("snapshot_id"), record["added_snapshot_id"]),
                sequence=_or(
                    entry.get("sequence_number"), record.get("sequence_number") if added else None, 0
                ),
                file_sequence=_or(
                    entry.get("file_sequence_number"), record.get("sequence_number") if added else None, 0
                ),
                spec_id=record["partition_spec_id"],
                record=entry["data_file"],
                raw=entry,
                first_row_id=first,
            )
        )
    return Manifest(record, header, tuple(files), schema)


def _or(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
