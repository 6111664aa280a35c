"""Conflict detection: whether commits since the planned state prevent a change from being committed.

The rules are those of Java's ``MergingSnapshotProducer.validate*``. States are compared, not histories, so
rollbacks and expired snapshots in between are judged rightly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from intarsia.errors import CommitConflict
from intarsia.tables.iceberg.deletes import DeleteFileIndex, find_bound_orders, find_unpartitioned_specs
from intarsia.tables.iceberg.manifests import DataFileContent, ManifestEntry, ManifestFile
from intarsia.tables.iceberg.state import BranchState, ancestors_of, has_live_files, last_batch

_HINT = "nothing was changed; run the operation again"
_MAX_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Validation:
    """What must still hold when a change is committed; see :func:`check`."""

    existing: Sequence[ManifestEntry] = ()
    """Data files that must still be there; deletes that were taken back must not be given again."""
    undisturbed: Sequence[ManifestEntry] = ()
    """Data files that must still be there, with the deletes they had."""
    exclusive: bool = False
    """Whether a data file that has appeared is in the way (serializable isolation)."""
    may_concern: Callable[[ManifestEntry, TableMetadata], bool] | None = None
    """Tells of a data file of a table whether the operation would have read it; None is any."""
    equalities: bool = True
    """Whether new equality deletes count. They do not where new data takes the place of old under the old
    sequence number, since they then apply to it as well."""
    specs: frozenset[int] | None = None
    """The specs of that new data, None for those of the old: equality deletes of others count after all."""
    position_deletes: bool = False
    """Whether position delete files are committed, which version 3 forbids."""
    batch: tuple[str, int] | None = None
    """An application's batch that nobody else may have committed meanwhile."""


@dataclass(frozen=True, slots=True)
class StateDifference:
    """The entries by which two states differ, for data files and delete files alike."""

    come: tuple[ManifestEntry, ...]
    gone: tuple[ManifestEntry, ...]

    def data(self, entries: Iterable[ManifestEntry]) -> list[ManifestEntry]:
        return [entry for entry in entries if entry.file.content is DataFileContent.DATA]

    def deletes(self, entries: Iterable[ManifestEntry]) -> list[ManifestEntry]:
        return [entry for entry in entries if entry.file.content is not DataFileContent.DATA]


def validate_state(validation: Validation, base: BranchState, head: BranchState) -> None:
    """Compare the state that was read with the one that is to be built on.

    Raises:
        CommitConflict: the change does not hold any more; nothing was changed.
    """
    where = head.metadata.location
    if head.metadata.table_uuid != base.metadata.table_uuid:
        raise CommitConflict("The table was replaced by another one meanwhile.", path=where, hint=_HINT)
    if validation.position_deletes and head.metadata.format_version >= 3:
        raise CommitConflict(
            f"The table was upgraded to format version {head.metadata.format_version} meanwhile, which has "
            "deletion vectors instead of position delete files.",
            path=where,
            hint=_HINT,
        )
    if head.head_id == base.head_id:
        return
    _check_batch(validation, head)
    since = compare_states(base, head)
    _check_data_files_exist(validation, since, where)
    _check_no_conflicting_deletes(validation, since, head)
    if validation.exclusive:
        _check_no_conflicting_data(validation, since, base, head)


def compare_states(base: BranchState, head: BranchState) -> StateDifference:
    """What came and went between two states; only manifests that are in one of them alone are read."""
    before = {manifest.manifest_path for manifest in base.manifests}
    after = {manifest.manifest_path for manifest in head.manifests}
    old = _index_live_entries(base, (m for m in base.manifests if m.manifest_path not in after))
    new = _index_live_entries(head, (m for m in head.manifests if m.manifest_path not in before))
    return StateDifference(
        tuple(entry for key, entry in new.items() if key not in old),
        tuple(entry for key, entry in old.items() if key not in new),
    )


FileKey = tuple[str, int | None]


def file_key(entry: ManifestEntry) -> FileKey:
    """What a file is known by: several deletion vectors share the path of their Puffin file."""
    return entry.file.file_path, entry.file.content_offset


def _index_live_entries(
    state: BranchState, manifests: Iterable[ManifestFile]
) -> dict[FileKey, ManifestEntry]:
    return {
        file_key(entry): entry
        for manifest in manifests
        if has_live_files(manifest)
        for entry in state.cache.entries(manifest)
    }


def _check_batch(validation: Validation, head: BranchState) -> None:
    if validation.batch is None:
        return
    app, number = validation.batch
    last = last_batch(head, app)
    if last is not None and last >= number:
        raise CommitConflict(
            f"Another process has committed batch {last} of {app!r} meanwhile.",
            path=head.metadata.location,
            hint=_HINT,
        )


def _check_data_files_exist(validation: Validation, since: StateDifference, where: str) -> None:
    gone = {entry.file.file_path for entry in since.data(since.gone)}
    if not gone:
        return
    wanted = (*validation.existing, *validation.undisturbed)
    missing = sorted({entry.file.file_path for entry in wanted} & gone)
    if missing:
        raise CommitConflict(
            f"Another writer has removed {len(missing)} data file(s) that were read: "
            f"{_format_some(missing)}.",
            path=where,
            hint=_HINT,
        )


def _check_no_conflicting_deletes(validation: Validation, since: StateDifference, head: BranchState) -> None:
    unpartitioned = find_unpartitioned_specs(head.metadata)

    def counts(entry: ManifestEntry) -> bool:
        if validation.equalities or entry.file.content is not DataFileContent.EQUALITY_DELETES:
            return True
        spec_id, specs = entry.file.spec_id, validation.specs
        return specs is not None and spec_id not in specs and spec_id not in unpartitioned

    come, gone = filter(counts, since.deletes(since.come)), since.deletes(since.gone)
    undisturbed, existing = validation.undisturbed, validation.existing
    for entries, verb, files in (
        (list(come), "added", undisturbed),
        (gone, "removed", (*undisturbed, *existing)),
    ):
        if not entries or not files:
            continue
        index = DeleteFileIndex.of(
            entries, unpartitioned=unpartitioned, orders=find_bound_orders(head.metadata)
        )
        hit = sorted(e.file.file_path for e in files if index.for_data_file(e))
        if hit:
            raise CommitConflict(
                f"Another writer has {verb} deletes of {len(hit)} data file(s) that were read: "
                f"{_format_some(hit)}.",
                path=head.metadata.location,
                hint=_HINT,
            )


def _check_no_conflicting_data(
    validation: Validation, since: StateDifference, base: BranchState, head: BranchState
) -> None:
    holds_old = _make_rewrite_test(base, head)
    appeared = sorted(
        entry.file.file_path
        for entry in since.data(since.come)
        if not holds_old(entry.snapshot_id, entry.sequence_number)
        and (validation.may_concern is None or validation.may_concern(entry, head.metadata))
    )
    if appeared:
        raise CommitConflict(
            f"Another writer has added {len(appeared)} data file(s) whose rows may matter here: "
            f"{_format_some(appeared)}.",
            path=head.metadata.location,
            hint=f"{_HINT}; write.*.isolation-level = snapshot would let such a change pass",
        )


def _make_rewrite_test(base: BranchState, head: BranchState) -> Callable[[int | None, int | None], bool]:
    """Tells by snapshot and sequence number whether a file only holds rows that were there at the base.

    A compaction's does, unless it has moved rows that came after the base.
    """
    known = {snapshot.snapshot_id: snapshot for snapshot in head.metadata.snapshots}

    @cache
    def holds_old(snapshot_id: int | None, number: int | None) -> bool:
        snapshot = known.get(snapshot_id or 0)
        if snapshot is None or base.head is None or not _is_replace(snapshot):
            return False
        numbered = base.metadata.format_version > 1 and number is not None
        if numbered and (number or 0) < (snapshot.sequence_number or 0):  # that of the state it has read
            return (number or 0) <= (base.head.sequence_number or 0)
        for before in ancestors_of(snapshot, head.metadata):
            if before.snapshot_id == base.head.snapshot_id:
                return True
            if not _is_replace(before):
                return False
        return False

    return holds_old


def _is_replace(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def _format_some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_MAX_SHOWN]) + (", ..." if len(paths) > _MAX_SHOWN else "")
