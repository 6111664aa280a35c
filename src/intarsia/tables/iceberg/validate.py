"""Whether what happened since a state was read is in the way of a change that was planned on it.

States are compared, not histories: a rollback or an expired snapshot in between is judged rightly, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from intarsia.errors import CommitConflict
from intarsia.tables.iceberg.batches import last_batch
from intarsia.tables.iceberg.deletes import DeleteIndex, unpartitioned_specs
from intarsia.tables.iceberg.entries import Content, Entry, Manifest
from intarsia.tables.iceberg.overlap import orders_of
from intarsia.tables.iceberg.state import State, ancestry, has_live_files

_HINT = "nothing was changed; run the operation again"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Validation:
    """What must still hold when a change is committed; see :func:`check`."""

    existing: Sequence[Entry] = ()
    """Data files that must still be there; deletes that were taken back must not be given again."""
    undisturbed: Sequence[Entry] = ()
    """Data files that must still be there, with the deletes they had."""
    exclusive: bool = False
    """Whether a data file that has appeared is in the way (serializable isolation)."""
    may_concern: Callable[[Entry, TableMetadata], bool] | None = None
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
class Difference:
    """The entries by which two states differ, for data files and delete files alike."""

    come: tuple[Entry, ...]
    gone: tuple[Entry, ...]

    def data(self, entries: Iterable[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry.file.content is Content.DATA]

    def deletes(self, entries: Iterable[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry.file.content is not Content.DATA]


def check(validation: Validation, base: State, head: State) -> None:
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
    since = difference(base, head)
    _check_there(validation, since, where)
    _check_deletes(validation, since, head)
    if validation.exclusive:
        _check_new(validation, since, base, head)


def difference(base: State, head: State) -> Difference:
    """What came and went between two states; only manifests that are in one of them alone are read."""
    before = {manifest.manifest_path for manifest in base.manifests}
    after = {manifest.manifest_path for manifest in head.manifests}
    old = _live(base, (m for m in base.manifests if m.manifest_path not in after))
    new = _live(head, (m for m in head.manifests if m.manifest_path not in before))
    return Difference(
        tuple(entry for key, entry in new.items() if key not in old),
        tuple(entry for key, entry in old.items() if key not in new),
    )


FileKey = tuple[str, int | None]


def key_of(entry: Entry) -> FileKey:
    """What a file is known by: several deletion vectors share the path of their Puffin file."""
    return entry.file.file_path, entry.file.content_offset


def _live(state: State, manifests: Iterable[Manifest]) -> dict[FileKey, Entry]:
    return {
        key_of(entry): entry
        for manifest in manifests
        if has_live_files(manifest)
        for entry in state.shelf.entries(manifest)
    }


def _check_batch(validation: Validation, head: State) -> None:
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


def _check_there(validation: Validation, since: Difference, where: str) -> None:
    gone = {entry.file.file_path for entry in since.data(since.gone)}
    if not gone:
        return
    wanted = (*validation.existing, *validation.undisturbed)
    missing = sorted({entry.file.file_path for entry in wanted} & gone)
    if missing:
        raise CommitConflict(
            f"Another writer has removed {len(missing)} data file(s) that were read: {_some(missing)}.",
            path=where,
            hint=_HINT,
        )


def _check_deletes(validation: Validation, since: Difference, head: State) -> None:
    unpartitioned = unpartitioned_specs(head.metadata)

    def counts(entry: Entry) -> bool:
        if validation.equalities or entry.file.content is not Content.EQUALITY_DELETES:
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
        index = DeleteIndex.of(entries, unpartitioned=unpartitioned, orders=orders_of(head.metadata))
        hit = sorted(e.file.file_path for e in files if index.applying(e))
        if hit:
            raise CommitConflict(
                f"Another writer has {verb} deletes of {len(hit)} data file(s) that were read: {_some(hit)}.",
                path=head.metadata.location,
                hint=_HINT,
            )


def _check_new(validation: Validation, since: Difference, base: State, head: State) -> None:
    holds_old = _rewrites(base, head)
    appeared = sorted(
        entry.file.file_path
        for entry in since.data(since.come)
        if not holds_old(entry.snapshot_id, entry.sequence_number)
        and (validation.may_concern is None or validation.may_concern(entry, head.metadata))
    )
    if appeared:
        raise CommitConflict(
            f"Another writer has added {len(appeared)} data file(s) whose rows may matter here: "
            f"{_some(appeared)}.",
            path=head.metadata.location,
            hint=f"{_HINT}; write.*.isolation-level = snapshot would let such a change pass",
        )


def _rewrites(base: State, head: State) -> Callable[[int | None, int | None], bool]:
    """Tells by snapshot and sequence number whether a file only holds rows that were there at the base.

    A compaction's does, unless it has moved rows that came after the base.
    """
    known = {snapshot.snapshot_id: snapshot for snapshot in head.metadata.snapshots}

    @cache
    def holds_old(snapshot_id: int | None, number: int | None) -> bool:
        snapshot = known.get(snapshot_id or 0)
        if snapshot is None or base.head is None or not _replaces(snapshot):
            return False
        numbered = base.metadata.format_version > 1 and number is not None
        if numbered and (number or 0) < (snapshot.sequence_number or 0):  # that of the state it has read
            return (number or 0) <= (base.head.sequence_number or 0)
        for before in ancestry(snapshot, head.metadata):
            if before.snapshot_id == base.head.snapshot_id:
                return True
            if not _replaces(before):
                return False
        return False

    return holds_old


def _replaces(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_SHOWN]) + (", ..." if len(paths) > _SHOWN else "")
