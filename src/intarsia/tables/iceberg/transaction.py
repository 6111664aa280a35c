"""The transaction layer's names: which spec files belong to, and manifests for each spec.

Every manifest holds files of one partition spec. The spec of a file is fixed when the file is written,
so files of any number of specs can be committed together.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from intarsia.errors import InputError
from intarsia.tables.iceberg.entries import Content, ContentFile, Entry, Manifest, Status
from intarsia.tables.iceberg.manifest_writer import (
    TARGET_BYTES,
    ManifestWriter,
    new_manifest_writer_for_spec,
    rolled_manifests,
)
from intarsia.tables.iceberg.specs import find_compatible_schema, spec_by_id

__all__ = [
    "ManifestSite",
    "find_compatible_schema",
    "group_entries_by_spec",
    "group_files_by_spec",
    "new_manifest_writer_for_spec",
    "validate_added_data_files",
    "write_added_manifests",
    "write_delete_manifests",
    "write_deleted_data_manifests",
    "write_existing_data_manifests",
    "write_manifests",
]

_Item = TypeVar("_Item")


@dataclass(slots=True)
class ManifestSite:
    """Where and how one commit writes its manifests."""

    metadata: TableMetadata
    io: FileIO
    snapshot_id: int
    commit_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    format_version: int | None = None
    """The table's unless given."""
    compression: str = ""
    """As ``write.manifest.compression-codec`` names it, and says unless given."""
    target_bytes: int = 0
    """What ``commit.manifest.target-size-bytes`` says unless given."""
    written: list[str] = field(default_factory=list)
    """Paths of the manifests begun so far: what to remove if the commit fails."""
    _numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        properties = self.metadata.properties
        self.format_version = self.format_version or self.metadata.format_version
        self.compression = self.compression or properties.get("write.manifest.compression-codec", "gzip")
        self.target_bytes = self.target_bytes or int(
            properties.get("commit.manifest.target-size-bytes", TARGET_BYTES)
        )

    @property
    def location(self) -> str:
        """The directory of the table's metadata."""
        own = self.metadata.properties.get("write.metadata.path")
        return (own or f"{self.metadata.location.rstrip('/')}/metadata").rstrip("/")

    def next_path(self) -> str:
        """The path of one more manifest."""
        path = f"{self.location}/{self.commit_id}-m{next(self._numbers)}.avro"
        self.written.append(path)
        return path


def validate_added_data_files(metadata: TableMetadata, files: Iterable[ContentFile]) -> None:
    """Accept files of every spec the table has or had.

    Raises:
        InputError: a file names a spec that the table does not know; the message has its id.
    """
    known = {spec.spec_id for spec in metadata.partition_specs}
    for file in files:
        spec_id = _spec_of(file)
        if spec_id not in known:
            raise InputError(
                f"data file {file.file_path} references unknown partition spec: {spec_id}",
                path=metadata.location,
                hint=f"the table has the specs {', '.join(map(str, sorted(known)))}",
            )


def group_files_by_spec(files: Iterable[ContentFile]) -> dict[int, list[ContentFile]]:
    """Files by the id of their spec, ids ascending; a file without one belongs to spec 0."""
    return _grouped(files, _spec_of)


def group_entries_by_spec(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    """Entries by the id of their file's spec, ids ascending; a file without one belongs to spec 0."""
    return _grouped(entries, lambda entry: _spec_of(entry.file))


def write_added_manifests(site: ManifestSite, files: Sequence[ContentFile]) -> list[Manifest]:
    """Manifests of data files that a commit adds, one per spec, more only beyond the target size.

    Raises:
        InputError: a file names a spec the table does not know, or does not fit its own.
        StorageError: a manifest cannot be written; ``site.written`` says which were begun.
    """
    validate_added_data_files(site.metadata, files)
    return write_manifests(site, [_added(file) for file in files], Content.DATA)


def write_delete_manifests(site: ManifestSite, files: Sequence[ContentFile]) -> list[Manifest]:
    """Manifests of delete files that a commit adds, one per spec: that of the data they delete from.

    Raises:
        InputError: a file names a spec the table does not know, or does not fit its own.
        StorageError: a manifest cannot be written; ``site.written`` says which were begun.
    """
    validate_added_data_files(site.metadata, files)
    return write_manifests(site, [_added(file) for file in files], Content.POSITION_DELETES)


def write_deleted_data_manifests(site: ManifestSite, entries: Sequence[Entry]) -> list[Manifest]:
    """Manifests of data files that a commit removes, one per spec."""
    return write_manifests(site, [_as(entry, Status.DELETED) for entry in entries], Content.DATA)


def write_existing_data_manifests(site: ManifestSite, entries: Sequence[Entry]) -> list[Manifest]:
    """Manifests of data files that stay, with everything they had, one per spec."""
    return write_manifests(site, [_as(entry, Status.EXISTING) for entry in entries], Content.DATA)


def write_manifests(site: ManifestSite, entries: Sequence[Entry], content: Content) -> list[Manifest]:
    """Manifests of one content for entries of any specs, each written as its status says.

    Removed and kept entries of one spec may share a manifest. Order is kept within a spec.
    """
    if not entries:
        return []
    first = _spec_of(entries[0].file)
    if all(_spec_of(entry.file) == first for entry in entries):
        return _write_spec(site, first, entries, content)
    return [
        manifest
        for spec_id, group in group_entries_by_spec(entries).items()
        for manifest in _write_spec(site, spec_id, group, content)
    ]


def _write_spec(
    site: ManifestSite, spec_id: int, entries: Iterable[Entry], content: Content
) -> list[Manifest]:
    spec = spec_by_id(site.metadata, spec_id)

    def open_writer() -> ManifestWriter:
        return new_manifest_writer_for_spec(
            site.metadata,
            spec,
            io=site.io,
            path=site.next_path(),
            snapshot_id=site.snapshot_id,
            content=content,
            format_version=site.format_version,
            compression=site.compression,
        )

    return list(rolled_manifests(open_writer, entries, target_bytes=site.target_bytes))


def _spec_of(file: ContentFile) -> int:
    # Version 1 knows files without one.
    spec_id: int | None = file.spec_id
    return 0 if spec_id is None else spec_id


def _grouped(items: Iterable[_Item], spec_of: Callable[[_Item], int]) -> dict[int, list[_Item]]:
    groups: dict[int, list[_Item]] = {}
    for item in items:
        groups.setdefault(spec_of(item), []).append(item)
    return dict(sorted(groups.items()))


def _added(file: ContentFile) -> Entry:
    return Entry(Status.ADDED, None, file)


def _as(entry: Entry, status: Status) -> Entry:
    return Entry(status, entry.snapshot_id, entry.file, entry.sequence_number, entry.file_sequence_number)
