"""The state of a branch: its metadata, manifests and live entries; each manifest is read once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from intarsia.errors import InputError, NotSupported
from intarsia.tables.iceberg.manifests import (
    DataFileContent,
    ManifestEntry,
    ManifestFile,
    read_manifest,
    read_manifest_list,
)

NEWEST_VERSION = 3


class ManifestCache:
    """Manifests that were read: a manifest never changes once it is written. Threads may share it."""

    def __init__(self, io: FileIO) -> None:
        self.io = io
        self._lists: dict[str, tuple[ManifestFile, ...]] = {}
        self._entries: dict[tuple[str, int | None], tuple[ManifestEntry, ...]] = {}

    def read_manifests(self, path: str) -> tuple[ManifestFile, ...]:
        found = self._lists.get(path)
        if found is None:
            found = self._lists[path] = tuple(read_manifest_list(self.io, path))
        return found

    def read_entries(self, manifest: ManifestFile) -> tuple[ManifestEntry, ...]:
        """The live entries of a manifest."""
        key = _make_key(manifest)
        found = self._entries.get(key)
        if found is None:
            found = self._entries[key] = tuple(read_manifest(self.io, manifest))
        return found

    def keep_only(self, state: BranchState) -> None:
        """Forget manifests that a state does not have."""
        lists = {state.head.manifest_list} if state.head is not None else set()
        keys = set(map(_make_key, state.manifests))
        # Copied at once, since another thread may add to them.
        self._lists = {path: found for path, found in list(self._lists.items()) if path in lists}
        self._entries = {key: found for key, found in list(self._entries.items()) if key in keys}


def _make_key(manifest: ManifestFile) -> tuple[str, int | None]:
    # Row ids are assigned to manifests from before version 3 by a later list, separately on each branch.
    return manifest.manifest_path, manifest.first_row_id


@dataclass(frozen=True, slots=True)
class BranchState:
    """What a branch of a table was at one moment."""

    metadata: TableMetadata = field(repr=False)
    branch: str
    head: Snapshot | None
    manifests: tuple[ManifestFile, ...] = field(repr=False)
    cache: ManifestCache = field(repr=False, compare=False)

    @staticmethod
    def of(table: Table, branch: str | None, cache: ManifestCache) -> BranchState:
        """The state that a loaded table has on a branch.

        Raises:
            InputError: there is no such branch, or it is a tag.
            NotSupported: the table has a format version that is not known.
        """
        metadata = table.metadata
        check_version(metadata)
        name = branch or MAIN_BRANCH
        head = _find_head(metadata, name)
        manifests = () if head is None else cache.read_manifests(head.manifest_list)
        return BranchState(metadata, name, head, manifests, cache)

    @property
    def head_id(self) -> int | None:
        return None if self.head is None else self.head.snapshot_id

    @property
    def version(self) -> int:
        """The number of the last commit: its sequence number; V1 has none, so its snapshots are counted."""
        if self.metadata.format_version == 1:
            return len(self.metadata.snapshots)
        return 0 if self.head is None else self.head.sequence_number or 0

    def iterate_entries(self, *, deletes: bool) -> Iterable[ManifestEntry]:
        """All live entries of data files, or of delete files."""
        for manifest in self.manifests:
            if (manifest.content is not DataFileContent.DATA) == deletes and has_live_files(manifest):
                yield from self.cache.read_entries(manifest)


FileKey = tuple[str, int | None]


def make_file_key(entry: ManifestEntry) -> FileKey:
    """What identifies a file: path and offset, since deletion vectors share the path of a Puffin file."""
    return entry.file.file_path, entry.file.content_offset


def iterate_ancestors(head: Snapshot | None, metadata: TableMetadata) -> Iterator[Snapshot]:
    """A snapshot and its ancestors, as far as they are known (Java's ``SnapshotUtil.ancestorsOf``)."""
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    while head is not None:
        yield head
        head = known.get(head.parent_snapshot_id or 0)


def has_live_files(manifest: ManifestFile) -> bool:
    """Whether a manifest may list a live file; an unknown count may be anything."""
    return manifest.added_files_count != 0 or manifest.existing_files_count != 0


def check_version(metadata: TableMetadata) -> None:
    """Refuse format versions that are not known, and tables whose files are encrypted."""
    if metadata.format_version > NEWEST_VERSION:
        raise NotSupported(
            f"The table has format version {metadata.format_version}; {NEWEST_VERSION} is the newest known.",
            path=metadata.location,
        )
    key = metadata.properties.get("encryption.key-id")
    if key is not None:
        raise NotSupported(
            f"The table is encrypted (encryption.key-id = {key!r}).",
            path=metadata.location,
            hint="change it with an engine that has its keys",
        )


def _find_head(metadata: TableMetadata, branch: str) -> Snapshot | None:
    ref = metadata.refs.get(branch)
    if ref is None:
        if branch == MAIN_BRANCH:
            return metadata.current_snapshot()
        raise InputError(
            f"There is no branch {branch!r}; {_describe_branches(metadata)}.",
            path=metadata.location,
            hint="create it first: table.manage_snapshots().create_branch(snapshot_id, name).commit()",
        )
    if ref.snapshot_ref_type == SnapshotRefType.TAG:
        raise InputError(
            f"{branch!r} is a tag, which never moves; {_describe_branches(metadata)}.", path=metadata.location
        )
    return metadata.snapshot_by_id(ref.snapshot_id)


def _describe_branches(metadata: TableMetadata) -> str:
    names = sorted(
        {name for name, ref in metadata.refs.items() if ref.snapshot_ref_type == SnapshotRefType.BRANCH}
        | {MAIN_BRANCH}
    )
    return "the branches are " + ", ".join(names) if len(names) > 1 else f"the only branch is {names[0]}"


def has_commits_since(state: BranchState, version: int) -> bool:
    """Whether every snapshot after a version is still known, as far as sequence numbers tell (not in V1).

    A snapshot without a parent need not be the first: PyIceberg forgets parents that have expired.
    """
    if state.head is None or state.metadata.format_version == 1:
        return True
    first = max(version, 1)
    return any((one.sequence_number or 0) <= first for one in iterate_ancestors(state.head, state.metadata))


def list_summaries_since(state: BranchState, version: int) -> list[dict[str, str]]:
    """The summaries of the commits of a branch after a version, newest first."""
    known = list(iterate_ancestors(state.head, state.metadata))
    if state.metadata.format_version == 1:  # versions are counted there
        newer = known[: max(len(state.metadata.snapshots) - version, 0)]
    else:
        newer = [one for one in known if (one.sequence_number or 0) > version]
    return [{} if one.summary is None else dict(one.summary.additional_properties) for one in newer]
