"""A change of files becomes a snapshot: manifests written, kept, rewritten and merged, then their list.

What is written for one try is used again by the next wherever it still fits.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from intarsia.common.log import logger
from intarsia.errors import CommitConflict
from intarsia.tables.iceberg._pyiceberg import next_row_id
from intarsia.tables.iceberg.deletes import partition_key, sole_path
from intarsia.tables.iceberg.entries import Content, ContentFile, Entry, Manifest, Status
from intarsia.tables.iceberg.manifest_lists import write_manifest_list
from intarsia.tables.iceberg.merging import Merging, merged
from intarsia.tables.iceberg.specs import partition_path, spec_by_id
from intarsia.tables.iceberg.state import State, has_live_files
from intarsia.tables.iceberg.summary import make_summary
from intarsia.tables.iceberg.transaction import ManifestSite, validate_added_data_files
from intarsia.tables.iceberg.validate import FileKey, key_of
from intarsia.tables.iceberg.writing import ManifestFactory

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class FileChange:
    """Files that come and go with one snapshot."""

    added_data: Sequence[ContentFile] = ()
    added_deletes: Sequence[ContentFile] = ()
    removed_data: Sequence[Entry] = ()
    removed_deletes: Sequence[Entry] = ()
    """Deletes that new ones supersede, or whose data files go. Those found gone already are passed over."""
    rewrites: bool = False
    """Whether the same rows come as go, as a compaction has it."""
    data_sequence_number: int | None = None
    """For a rewrite: the sequence number of the state it read, so that later deletes apply to its files."""

    @property
    def empty(self) -> bool:
        return not (self.added_data or self.added_deletes or self.removed_data or self.removed_deletes)

    @property
    def operation(self) -> str:
        """Iceberg's word for it."""
        if self.rewrites or not (self.added_data or self.added_deletes or self.removed_data):
            return "replace"
        if not self.added_data:
            return "delete"
        return "overwrite" if self.added_deletes or self.removed_data else "append"


@dataclass(frozen=True, slots=True)
class Identity:
    """What one commit is known by, the same over all its tries."""

    snapshot_id: int
    uuid: str
    properties: dict[str, str] = field(default_factory=dict)
    """Noted in the snapshot's summary."""


@dataclass(frozen=True, slots=True)
class Options:
    """How manifests are written, from the table's properties."""

    merging: Merging
    compression: str = "gzip"
    partition_limit: int = 0


class Producer:
    """Makes the snapshot of one change, as often as a commit has to be tried."""

    def __init__(
        self,
        change: FileChange,
        identity: Identity,
        options: Options,
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
        self._added: dict[int, list[Manifest]] = {}
        self._filtered: dict[tuple[str, int | None, frozenset[FileKey]], list[Manifest]] = {}
        self._lists: list[str] = []
        self._removed_paths = frozenset(entry.file.file_path for entry in change.removed_data)
        self._removed_keys = frozenset(key_of(entry) for entry in change.removed_deletes)

    def produce(self, head: State) -> tuple[Snapshot, tuple[Manifest, ...]]:
        """Write what the change needs on top of a state; the snapshot, and the manifests it consists of.

        Raises:
            CommitConflict: a file that is to be removed is not there any more.
        """
        factory = self._factory(head)
        removed: list[Entry] = []
        data, replaced = self._filter_data(head, factory, removed)
        deletes, more = self._filter_deletes(head, factory, removed, self._oldest(data, head))
        ours = self._added_manifests(factory, head)
        groups: list[Manifest] = []
        for manifests, content in ((data, Content.DATA), (deletes, Content.POSITION_DELETES)):
            new = [manifest for manifest in ours if manifest.content is content]
            kept = [m for m in (*new, *manifests) if has_live_files(m) or factory.wrote(m)]
            found = merged(kept, factory, self._options.merging, head)
            groups += found.manifests
            more += found.replaced
        return self._snapshot(head, groups, removed, replaced + more), tuple(groups)

    def clean(self, keep: Iterable[str] = ()) -> None:
        """Remove the manifests and lists that were written, but for those in use."""
        kept = set(keep)
        written = [*self._lists, *(path for f in self._factories.values() for path in f.paths)]
        remove_files(self._io, [path for path in written if path not in kept])

    def _factory(self, head: State) -> ManifestFactory:
        version = head.metadata.format_version
        if version not in self._factories:  # an upgrade in between: manifests are of another form then
            site = ManifestSite(
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

    def _added_manifests(self, factory: ManifestFactory, head: State) -> list[Manifest]:
        version = head.metadata.format_version
        if version not in self._added:
            groups = (self.change.added_data, self.change.added_deletes)
            validate_added_data_files(head.metadata, chain(*groups))
            self._added[version] = [
                m for files in groups for m in factory.write(list(map(self._entry, files)))
            ]
        return self._added[version]

    def _entry(self, file: ContentFile) -> Entry:
        """A new file inherits its sequence numbers, so that its manifest survives a further try."""
        old = self.change.data_sequence_number if file.content is Content.DATA else None
        return Entry(Status.ADDED, self.identity.snapshot_id, file, sequence_number=old)

    def _filter_data(
        self, head: State, factory: ManifestFactory, removed: list[Entry]
    ) -> tuple[list[Manifest], int]:
        specs = {entry.file.spec_id for entry in self.change.removed_data}
        manifests, replaced = self._filter(
            head,
            factory,
            removed,
            content=Content.DATA,
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
        self, head: State, factory: ManifestFactory, removed: list[Entry], oldest: int
    ) -> tuple[list[Manifest], int]:
        """Without what is superseded, belongs to data files that go, or is older than all data."""
        going = (*self.change.removed_data, *self.change.removed_deletes)
        specs = {entry.file.spec_id for entry in going}
        left = self._left(head)

        def concerns(manifest: Manifest) -> bool:
            return manifest.partition_spec_id in specs or (manifest.min_sequence_number or 0) < oldest

        def goes(entry: Entry) -> bool:
            return (
                key_of(entry) in self._removed_keys
                or 0 < (entry.sequence_number or 0) < oldest
                or sole_path(entry.file) in self._removed_paths
                or _names_nothing(entry, left)
            )

        return self._filter(
            head, factory, removed, content=Content.POSITION_DELETES, concerns=concerns, goes=goes
        )

    def _left(self, head: State) -> dict[tuple[Any, ...], int]:
        """By partition that loses data, the sequence number of the oldest that stays, huge if none does."""
        specs = {entry.file.spec_id for entry in self.change.removed_data}
        concerned = [manifest for manifest in head.manifests if manifest.partition_spec_id in specs]
        if all(manifest.content is Content.DATA for manifest in concerned):
            return {}
        found = {partition_key(entry.file): 1 << 62 for entry in self.change.removed_data}
        for manifest in concerned:
            if manifest.content is Content.DATA and has_live_files(manifest):
                for entry in head.shelf.entries(manifest):
                    key = partition_key(entry.file)
                    if key in found and entry.file.file_path not in self._removed_paths:
                        found[key] = min(found[key], entry.sequence_number or 0)
        return found

    def _filter(
        self,
        head: State,
        factory: ManifestFactory,
        removed: list[Entry],
        *,
        content: Content,
        concerns: Callable[[Manifest], bool],
        goes: Callable[[Entry], bool],
    ) -> tuple[list[Manifest], int]:
        """Manifests without the entries that go; only those that hold one are written anew."""
        result: list[Manifest] = []
        replaced = 0
        for manifest in head.manifests:
            if manifest.content is not content or not has_live_files(manifest):
                continue
            entries = head.shelf.entries(manifest) if concerns(manifest) else ()
            going = [entry for entry in entries if goes(entry)]
            if not going:
                result.append(manifest)
                continue
            removed += going
            replaced += 1
            gone = frozenset(map(key_of, going))
            # A list may have given the manifest row ids since the last try.
            key = (manifest.manifest_path, manifest.first_row_id, gone)
            if key not in self._filtered or not all(map(factory.wrote, self._filtered[key])):
                self._filtered[key] = factory.write([self._marked(entry, gone) for entry in entries])
            result += self._filtered[key]
        return result, replaced

    def _marked(self, entry: Entry, going: frozenset[FileKey]) -> Entry:
        if key_of(entry) in going:
            return replace(entry, status=Status.DELETED, snapshot_id=self.identity.snapshot_id)
        return replace(entry, status=Status.EXISTING)

    def _oldest(self, data: Sequence[Manifest], head: State) -> int:
        """The sequence number below which a delete can apply to nothing."""
        next_one = last_sequence(head.metadata) + 1
        known = [manifest.min_sequence_number for manifest in data]
        return min(
            number for number in (next_one, self.change.data_sequence_number, *known) if number is not None
        )

    def _snapshot(
        self, head: State, manifests: Sequence[Manifest], removed: Sequence[Entry], replaced: int
    ) -> Snapshot:
        metadata, version = head.metadata, head.metadata.format_version
        sequence = last_sequence(metadata) + 1 if version > 1 else 0
        first_row = next_row_id(metadata) if version >= 3 else None
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
                "summary": self._summary(head, manifests, removed, replaced),
                "schema-id": metadata.current_schema_id,
                "first-row-id": first_row,
                "added-rows": None if first_row is None else (next_row or first_row) - first_row,
            }
        )

    def _summary(
        self, head: State, manifests: Sequence[Manifest], removed: Sequence[Entry], replaced: int
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
            place_of=lambda f: partition_path(metadata, spec_by_id(metadata, f.spec_id), f.partition),
            partition_limit=self._options.partition_limit,
            manifests={
                "manifests-created": created,
                "manifests-kept": len(manifests) - created,
                "manifests-replaced": replaced,
            },
            properties=self.identity.properties,
        )
        return Summary(Operation(self.change.operation), **fields)


def _names_nothing(entry: Entry, left: Mapping[tuple[Any, ...], int]) -> bool:
    """Whether deletes by position can name no data that stays: new files they do not know."""
    file = entry.file
    if file.content is not Content.POSITION_DELETES or file.is_vector:
        return False
    return left.get(partition_key(file), 0) > (entry.sequence_number or 0)


def last_sequence(metadata: TableMetadata) -> int:
    """The highest sequence number given so far; version 1 gives none."""
    if isinstance(metadata, TableMetadataV1):
        return 0
    # What the metadata says itself may be too low: PyIceberg takes it from whichever snapshot came last.
    return max(metadata.last_sequence_number, *(s.sequence_number or 0 for s in metadata.snapshots), 0)


def remove_files(io: FileIO, paths: Iterable[str]) -> None:
    """Remove files that nothing refers to; what cannot be removed is an orphan, and said to be one."""
    for path in paths:
        try:
            io.delete(path)
        except FileNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001 - a store may raise anything; the commit must not fail for it
            log.warning("%s is not needed and could not be removed: %s", path, error)
