"""Snapshots of file changes: manifests are written, kept, filtered and merged, and listed with a summary.

As Java's ``MergingSnapshotProducer``, ``ManifestFilterManager``, ``ManifestMergeManager`` and
``SnapshotSummary``. Manifests that one attempt of a commit has written are used again by the next where
they still apply.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from intarsia.common.log import get_logger
from intarsia.errors import CommitConflict
from intarsia.tables.iceberg._pyiceberg import find_next_row_id
from intarsia.tables.iceberg.manifest_writer import (
    ManifestOutput,
    group_entries_by_spec,
    validate_added_data_files,
    write_manifests,
)
from intarsia.tables.iceberg.manifests import (
    ContentFile,
    DataFileContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    find_referenced_data_file,
    make_partition_key,
    write_manifest_list,
)
from intarsia.tables.iceberg.specs import find_spec, partition_to_path
from intarsia.tables.iceberg.state import BranchState, FileKey, has_live_files, make_file_key

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FileChange:
    """Files that one snapshot adds and removes."""

    added_data: Sequence[ContentFile] = ()
    added_deletes: Sequence[ContentFile] = ()
    removed_data: Sequence[ManifestEntry] = ()
    removed_deletes: Sequence[ManifestEntry] = ()
    """Deletes that new ones supersede; those that do not exist any more are skipped."""
    rewrites: bool = False
    """Whether the added files hold the rows of the removed ones, as after a compaction."""
    data_sequence_number: int | None = None
    """For a rewrite: the sequence number of the state it read, so that later deletes apply to its files."""

    @property
    def empty(self) -> bool:
        return not (self.added_data or self.added_deletes or self.removed_data or self.removed_deletes)

    @property
    def operation(self) -> str:
        """The operation that the snapshot's summary names."""
        if self.rewrites or not (self.added_data or self.added_deletes or self.removed_data):
            return "replace"
        if not self.added_data:
            return "delete"
        return "overwrite" if self.added_deletes or self.removed_data else "append"


@dataclass(frozen=True, slots=True)
class CommitIdentity:
    """What identifies one commit over all its attempts."""

    snapshot_id: int
    uuid: str
    properties: dict[str, str] = field(default_factory=dict)
    """Noted in the snapshot's summary."""


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """How manifests are written, from the table's properties."""

    merging: ManifestMergeOptions
    compression: str = "gzip"
    partition_limit: int = 0


class SnapshotProducer:
    """Makes the snapshot of one change, as often as a commit has to be tried."""

    def __init__(
        self,
        change: FileChange,
        identity: CommitIdentity,
        options: SnapshotOptions,
        *,
        io: FileIO,
        place: Callable[[str], str],
    ) -> None:
        """``place`` gives the location of a metadata file by its name."""
        self.change = change
        self.identity = identity
        self._options = options
        self._io = io
        self._place = place
        self._factories: dict[int, ManifestFactory] = {}
        self._added: dict[int, list[ManifestFile]] = {}
        self._filtered: dict[tuple[str, int | None, frozenset[FileKey]], list[ManifestFile]] = {}
        self._lists: list[str] = []
        self._removed_paths = frozenset(entry.file.file_path for entry in change.removed_data)
        self._removed_keys = frozenset(make_file_key(entry) for entry in change.removed_deletes)

    def produce(self, head: BranchState) -> tuple[Snapshot, tuple[ManifestFile, ...]]:
        """Write manifests and a manifest list on top of a state; the snapshot and all its manifests.

        Raises:
            CommitConflict: a file that is to be removed is not there any more.
        """
        factory = self._make_factory(head)
        removed: list[ManifestEntry] = []
        data, replaced = self._filter_data(head, factory, removed)
        deletes, more = self._filter_deletes(head, factory, removed, self._find_oldest(data, head))
        ours = self._write_added_manifests(factory, head)
        groups: list[ManifestFile] = []
        for manifests, content in ((data, DataFileContent.DATA), (deletes, DataFileContent.POSITION_DELETES)):
            new = [manifest for manifest in ours if manifest.content is content]
            kept = [m for m in (*new, *manifests) if has_live_files(m) or factory.has_written(m)]
            found = merge_manifests(kept, factory, self._options.merging, head)
            groups += found.manifests
            more += found.replaced
        return self._make_snapshot(head, groups, removed, replaced + more), tuple(groups)

    def clean(self, keep: Iterable[str] = ()) -> None:
        """Remove the manifests and lists that were written, but for those in use."""
        kept = set(keep)
        written = [*self._lists, *(path for f in self._factories.values() for path in f.paths)]
        remove_files(self._io, [path for path in written if path not in kept])

    def _make_factory(self, head: BranchState) -> ManifestFactory:
        version = head.metadata.format_version
        if version not in self._factories:  # after an upgrade manifests have another format
            site = ManifestOutput(
                head.metadata,
                self._io,
                self.identity.snapshot_id,
                commit_id=self.identity.uuid if not self._factories else str(uuid.uuid4()),
                compression=self._options.compression,
                target_bytes=self._options.merging.target_bytes,
            )
            self._factories[version] = ManifestFactory(site)
        factory = self._factories[version]
        factory.see(head.metadata)
        return factory

    def _write_added_manifests(self, factory: ManifestFactory, head: BranchState) -> list[ManifestFile]:
        version = head.metadata.format_version
        if version not in self._added:
            groups = (self.change.added_data, self.change.added_deletes)
            validate_added_data_files(head.metadata, chain(*groups))
            self._added[version] = [
                m for files in groups for m in factory.write(list(map(self._make_entry, files)))
            ]
        return self._added[version]

    def _make_entry(self, file: ContentFile) -> ManifestEntry:
        """The entry of a new file; it inherits sequence numbers, so that a retry can use its manifest."""
        old = self.change.data_sequence_number if file.content is DataFileContent.DATA else None
        return ManifestEntry(ManifestEntryStatus.ADDED, self.identity.snapshot_id, file, sequence_number=old)

    def _filter_data(
        self, head: BranchState, factory: ManifestFactory, removed: list[ManifestEntry]
    ) -> tuple[list[ManifestFile], int]:
        specs = {entry.file.spec_id for entry in self.change.removed_data}
        manifests, replaced = self._filter(
            head,
            factory,
            removed,
            content=DataFileContent.DATA,
            concerns=lambda manifest: manifest.partition_spec_id in specs,
            goes=lambda entry: entry.file.file_path in self._removed_paths,
        )
        missing = self._removed_paths - {entry.file.file_path for entry in removed}
        if missing:
            raise CommitConflict(
                f"{len(missing)} data file(s) to be removed are not in the table any more, such as "
                f"{min(missing)}.",
                path=head.metadata.location,
                hint="nothing was changed; run the operation again",
            )
        return manifests, replaced

    def _filter_deletes(
        self, head: BranchState, factory: ManifestFactory, removed: list[ManifestEntry], oldest: int
    ) -> tuple[list[ManifestFile], int]:
        """Delete manifests without entries that are superseded, too old, or of removed data files.

        Java drops what is too old and vectors of removed data files (``dropDeleteFilesOlderThan`` and
        ``removeDanglingDeletesFor`` of ``ManifestFilterManager``); position delete files that no data file
        is left for are dropped here as well.
        """
        going = (*self.change.removed_data, *self.change.removed_deletes)
        specs = {entry.file.spec_id for entry in going}
        left = self._find_oldest_left(head)

        def concerns(manifest: ManifestFile) -> bool:
            return manifest.partition_spec_id in specs or (manifest.min_sequence_number or 0) < oldest

        def goes(entry: ManifestEntry) -> bool:
            return (
                make_file_key(entry) in self._removed_keys
                or 0 < (entry.sequence_number or 0) < oldest
                or find_referenced_data_file(entry.file) in self._removed_paths
                or _has_no_data_left(entry, left)
            )

        return self._filter(
            head, factory, removed, content=DataFileContent.POSITION_DELETES, concerns=concerns, goes=goes
        )

    def _find_oldest_left(self, head: BranchState) -> dict[tuple[Any, ...], int]:
        """By partition that loses data files, the least sequence number of those left; huge if none is."""
        specs = {entry.file.spec_id for entry in self.change.removed_data}
        concerned = [manifest for manifest in head.manifests if manifest.partition_spec_id in specs]
        if all(manifest.content is DataFileContent.DATA for manifest in concerned):
            return {}
        found = {make_partition_key(entry.file): 1 << 62 for entry in self.change.removed_data}
        for manifest in concerned:
            if manifest.content is DataFileContent.DATA and has_live_files(manifest):
                for entry in head.cache.read_entries(manifest):
                    key = make_partition_key(entry.file)
                    if key in found and entry.file.file_path not in self._removed_paths:
                        found[key] = min(found[key], entry.sequence_number or 0)
        return found

    def _filter(
        self,
        head: BranchState,
        factory: ManifestFactory,
        removed: list[ManifestEntry],
        *,
        content: DataFileContent,
        concerns: Callable[[ManifestFile], bool],
        goes: Callable[[ManifestEntry], bool],
    ) -> tuple[list[ManifestFile], int]:
        """Manifests without removed entries; only those that hold one are rewritten."""
        result: list[ManifestFile] = []
        replaced = 0
        for manifest in head.manifests:
            if manifest.content is not content or not has_live_files(manifest):
                continue
            entries = head.cache.read_entries(manifest) if concerns(manifest) else ()
            going = [entry for entry in entries if goes(entry)]
            if not going:
                result.append(manifest)
                continue
            removed += going
            replaced += 1
            gone = frozenset(map(make_file_key, going))
            # Another commit may have assigned row ids to the manifest since the last attempt.
            key = (manifest.manifest_path, manifest.first_row_id, gone)
            if key not in self._filtered or not all(map(factory.has_written, self._filtered[key])):
                self._filtered[key] = factory.write([self._mark_entry(entry, gone) for entry in entries])
            result += self._filtered[key]
        return result, replaced

    def _mark_entry(self, entry: ManifestEntry, going: frozenset[FileKey]) -> ManifestEntry:
        if make_file_key(entry) in going:
            return replace(entry, status=ManifestEntryStatus.DELETED, snapshot_id=self.identity.snapshot_id)
        return replace(entry, status=ManifestEntryStatus.EXISTING)

    def _find_oldest(self, data: Sequence[ManifestFile], head: BranchState) -> int:
        """The least sequence number of any data file; older deletes apply to nothing."""
        next_one = find_last_sequence_number(head.metadata) + 1
        known = [manifest.min_sequence_number for manifest in data]
        return min(
            number for number in (next_one, self.change.data_sequence_number, *known) if number is not None
        )

    def _make_snapshot(
        self,
        head: BranchState,
        manifests: Sequence[ManifestFile],
        removed: Sequence[ManifestEntry],
        replaced: int,
    ) -> Snapshot:
        metadata, version = head.metadata, head.metadata.format_version
        sequence = find_last_sequence_number(metadata) + 1 if version > 1 else 0
        first_row = find_next_row_id(metadata) if version >= 3 else None
        number = len(self._lists)
        path = self._place(f"snap-{self.identity.snapshot_id}-{number}-{self.identity.uuid}.avro")
        self._lists.append(path)
        next_row = write_manifest_list(
            self._io,
            path,
            manifests,
            format_version=version,
            snapshot_id=self.identity.snapshot_id,
            parent_snapshot_id=head.head_id,
            sequence_number=sequence,
            first_row_id=first_row,
        )
        return Snapshot.model_validate(
            {
                "snapshot-id": self.identity.snapshot_id,
                "parent-snapshot-id": head.head_id,
                "sequence-number": sequence,
                "timestamp-ms": max(int(time.time() * 1000), metadata.last_updated_ms),
                "manifest-list": path,
                "summary": self._make_summary(head, manifests, removed, replaced),
                "schema-id": metadata.current_schema_id,
                "first-row-id": first_row,
                "added-rows": None if first_row is None else (next_row or first_row) - first_row,
            }
        )

    def _make_summary(
        self,
        head: BranchState,
        manifests: Sequence[ManifestFile],
        removed: Sequence[ManifestEntry],
        replaced: int,
    ) -> Summary:
        metadata = head.metadata
        created = sum(m.added_snapshot_id == self.identity.snapshot_id for m in manifests)
        previous = None
        if head.head is not None:
            previous = {} if head.head.summary is None else head.head.summary.additional_properties
        fields = make_summary(
            (*self.change.added_data, *self.change.added_deletes),
            (entry.file for entry in removed),
            previous=previous,
            place_of=lambda f: partition_to_path(metadata, find_spec(metadata, f.spec_id), f.partition),
            partition_limit=self._options.partition_limit,
            manifests={
                "manifests-created": created,
                "manifests-kept": len(manifests) - created,
                "manifests-replaced": replaced,
            },
            properties=self.identity.properties,
        )
        return Summary(Operation(self.change.operation), **fields)


def _has_no_data_left(entry: ManifestEntry, left: Mapping[tuple[Any, ...], int]) -> bool:
    """Whether all data files left in the partition of a position delete file are newer than it."""
    file = entry.file
    if file.content is not DataFileContent.POSITION_DELETES or file.is_vector:
        return False
    return left.get(make_partition_key(file), 0) > (entry.sequence_number or 0)


def find_last_sequence_number(metadata: TableMetadata) -> int:
    """The highest sequence number given so far; version 1 gives none."""
    if isinstance(metadata, TableMetadataV1):
        return 0
    # What the metadata says itself may be too low: PyIceberg takes it from whichever snapshot came last.
    return max(metadata.last_sequence_number, *(s.sequence_number or 0 for s in metadata.snapshots), 0)


def remove_files(io: FileIO, paths: Iterable[str]) -> None:
    """Remove files that nothing refers to; a file that cannot be removed is logged."""
    for path in paths:
        try:
            io.delete(path)
        except FileNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001 - a store may raise anything; the commit must not fail for it
            log.warning("%s is not needed and could not be removed: %s", path, error)


@dataclass(frozen=True, slots=True)
class ManifestMergeOptions:
    """When manifests are merged."""

    enabled: bool = True
    target_bytes: int = 8 << 20
    min_count: int = 100
    """Least number of manifests before the newest bin is merged."""


@dataclass(frozen=True, slots=True)
class MergedManifests:
    """Manifests after merging, and how many of older snapshots they replace."""

    manifests: tuple[ManifestFile, ...]
    replaced: int = 0


def merge_manifests(
    manifests: Sequence[ManifestFile],
    factory: ManifestFactory,
    merging: ManifestMergeOptions,
    head: BranchState,
) -> MergedManifests:
    """Merge manifests of one content, the newest first, as Java's ``ManifestMergeManager.mergeManifests``."""
    if not merging.enabled or not manifests:
        return MergedManifests(tuple(manifests))
    groups: dict[int, list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        groups[manifest.partition_spec_id].append(manifest)
    result: list[ManifestFile] = []
    replaced = 0
    for spec_id in sorted(groups, reverse=True):
        for bin_ in _pack_bins(groups[spec_id], merging.target_bytes):
            if len(bin_) == 1 or (manifests[0] in bin_ and len(bin_) < merging.min_count):
                result += bin_
                continue
            replaced += sum(not factory.has_written(manifest) for manifest in bin_)
            result += factory.write(
                [e for manifest in bin_ for e in _list_entries_to_merge(manifest, factory, head)]
            )
    return MergedManifests(tuple(result), replaced)


def _list_entries_to_merge(
    manifest: ManifestFile, factory: ManifestFactory, head: BranchState
) -> Sequence[ManifestEntry]:
    """Entries for a merged manifest: EXISTING unless this snapshot added or removed them."""
    if factory.has_written(manifest):
        return factory.list_entries(manifest)
    return [
        replace(entry, status=ManifestEntryStatus.EXISTING) for entry in head.cache.read_entries(manifest)
    ]


def _pack_bins(manifests: Sequence[ManifestFile], target: int) -> list[list[ManifestFile]]:
    """Neighbours together up to a size, filled from the end, so that the bin with the newest is not full.

    Java's ``BinPacking.ListPacker.packEnd`` with a lookback of one.
    """
    bins: list[list[ManifestFile]] = []
    size = 0
    for manifest in reversed(manifests):
        if not bins or size + manifest.manifest_length > target:
            bins.append([])
            size = 0
        bins[-1].append(manifest)
        size += manifest.manifest_length
    return [bin_[::-1] for bin_ in reversed(bins)]


class ManifestFactory:
    """Writes the manifests of one snapshot in one format version, and remembers their entries."""

    def __init__(self, site: ManifestOutput) -> None:
        self._site = site
        self._entries: dict[str, tuple[ManifestEntry, ...]] = {}

    @property
    def paths(self) -> list[str]:
        """Paths of all manifests that were begun."""
        return self._site.written

    def see(self, metadata: TableMetadata) -> None:
        """Use the metadata of a retry, which may have more specs; the format version is the same."""
        self._site.metadata = metadata

    def write(self, entries: Sequence[ManifestEntry]) -> list[ManifestFile]:
        """Entries of one content, each as its status says, in as few manifests as specs and sizes allow."""
        written: list[ManifestFile] = []
        for group in group_entries_by_spec(entries).values():
            deletes = group[0].file.content is not DataFileContent.DATA
            content = DataFileContent.POSITION_DELETES if deletes else DataFileContent.DATA
            at = 0
            for manifest in write_manifests(self._site, group, content):
                size = _count_entries(manifest)
                self._entries[manifest.manifest_path] = tuple(group[at : at + size])
                at += size
                written.append(manifest)
        return written

    def has_written(self, manifest: ManifestFile) -> bool:
        return manifest.manifest_path in self._entries

    def list_entries(self, manifest: ManifestFile) -> Sequence[ManifestEntry]:
        """What a manifest of this factory lists."""
        return self._entries[manifest.manifest_path]


def _count_entries(manifest: ManifestFile) -> int:
    counts = (manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count)
    return sum(count or 0 for count in counts)


_TOTALS = (
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)
PartitionPath = Callable[[ContentFile], str]
"""Gives the path of a file's partition under its own spec; empty for an unpartitioned one."""


@dataclass(slots=True)
class UpdateMetrics:
    """Added and removed files, rows and bytes, without zeros (Java's ``SnapshotSummary.UpdateMetrics``)."""

    values: dict[str, int] = field(default_factory=dict)

    def count_added(self, file: ContentFile) -> None:
        self._count(file, "added", "added", "added")

    def count_removed(self, file: ContentFile) -> None:
        self._count(file, "removed", "deleted", "deleted")

    def _count(self, file: ContentFile, verb: str, data_verb: str, row_verb: str) -> None:
        self._add(f"{verb}-files-size", content_size(file))
        match file.content:
            case DataFileContent.DATA:
                self._add(f"{data_verb}-data-files", 1)
                self._add(f"{row_verb}-records", file.record_count)
            case DataFileContent.POSITION_DELETES:
                self._add(f"{verb}-delete-files", 1)
                self._add(f"{verb}-dvs" if file.is_vector else f"{verb}-position-delete-files", 1)
                self._add(f"{verb}-position-deletes", file.record_count)
            case DataFileContent.EQUALITY_DELETES:
                self._add(f"{verb}-delete-files", 1)
                self._add(f"{verb}-equality-delete-files", 1)
                self._add(f"{verb}-equality-deletes", file.record_count)

    def _add(self, name: str, amount: int) -> None:
        if amount:
            self.values[name] = self.values.get(name, 0) + amount


def content_size(file: ContentFile) -> int:
    """Bytes of a file; of a vector those of its blob (Java's ``ScanTaskUtil.contentSizeInBytes``)."""
    if file.is_vector and file.content_size_in_bytes is not None:
        return file.content_size_in_bytes
    return file.file_size_in_bytes


def make_summary(
    added: Iterable[ContentFile],
    removed: Iterable[ContentFile],
    *,
    previous: Mapping[str, str] | None,
    place_of: PartitionPath,
    partition_limit: int,
    manifests: Mapping[str, int],
    properties: Mapping[str, str],
) -> dict[str, str]:
    """The fields beside the operation; what the caller adds never overrides a count.

    ``previous`` is the parent's summary, None where there is no parent: a total that the parent does
    not have is left out here, too. ``manifests`` are the counts of manifests by their field.
    """
    whole = UpdateMetrics()
    parts: dict[str, UpdateMetrics] = {}
    for file in added:
        whole.count_added(file)
        parts.setdefault(place_of(file), UpdateMetrics()).count_added(file)
    for file in removed:
        whole.count_removed(file)
        parts.setdefault(place_of(file), UpdateMetrics()).count_removed(file)
    fields = {name: str(value) for name, value in whole.values.items()}
    fields["changed-partition-count"] = str(len(parts))
    if parts and len(parts) <= partition_limit:
        fields["partition-summaries-included"] = "true"
        fields |= {f"partitions.{path}": _format_metrics(counts) for path, counts in parts.items()}
    fields |= {name: str(count) for name, count in manifests.items()}
    return {**properties, **fields, **_add_totals(whole, previous)}


def _format_metrics(counts: UpdateMetrics) -> str:
    return ",".join(f"{name}={value}" for name, value in counts.values.items())


def _add_totals(counts: UpdateMetrics, previous: Mapping[str, str] | None) -> dict[str, str]:
    totals: dict[str, str] = {}
    for total, plus, minus in _TOTALS:
        before = "0" if previous is None else previous.get(total)
        if before is None or not before.isdecimal():
            continue
        after = int(before) + counts.values.get(plus, 0) - counts.values.get(minus, 0)
        if after >= 0:
            totals[total] = str(after)
    return totals
