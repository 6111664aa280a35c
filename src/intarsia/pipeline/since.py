"""``since = "last run"``: the rows of a target that were added or changed since a step's last success.

These are the rows that the target has now, less those that it had then, each counted as often as it is there.
Files that are the same in both states cancel out, so only the others are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from intarsia.core.ports import Table
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.kernel.difference import find_incomparable
from intarsia.show import units
from intarsia.tables.parquet.retained import FileKey

__all__ = ["Increment", "find_increment"]

Position = Mapping[str, Any]
"""A state of a target, as JSON: the id of an Iceberg snapshot, or the files of a dataset."""


@runtime_checkable
class SnapshotHistory(Protocol):
    """A table that can be read as it was at an earlier snapshot: an Iceberg table."""

    def take_position(self) -> tuple[Snapshot, int]:
        """The current state and the id of its snapshot."""

    def snapshot_at(self, snapshot_id: int) -> Snapshot | None:
        """An earlier state, in the schema of the one that was taken last; None where that has expired."""


@runtime_checkable
class RetainedFiles(Protocol):
    """A table that may keep files which were replaced: a Parquet dataset."""

    def find_retained(self, now: Snapshot, wanted: Collection[FileKey]) -> Snapshot | None:
        """Former files, in the schema of now; None unless all are kept and have its types."""


@dataclass(frozen=True, slots=True)
class Increment:
    """What a step reads of a target: the state, and the part of it that is new since the last success."""

    snapshot: Snapshot
    """The state, which the step reads wherever it reads the target."""
    position: Position
    """That state, to be noted with the step's success."""
    added: Snapshot
    """The files with new rows; all files where all rows are read."""
    before: Snapshot | None = None
    """The files whose rows are not new, as they were at the last success; None for none."""
    note: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether all rows are read."""
        return self.added is self.snapshot


def find_increment(
    table: Table,
    take_snapshot: Callable[[Table], Snapshot],
    last: Position | None,
    *,
    name: str,
    unknown: str = "the first time",
) -> Increment:
    """The rows of a table that are new since a position; all rows where that cannot be known exactly.

    Args:
        table: the target.
        take_snapshot: takes its state, of files that stay as they are where that is possible.
        last: the position of the step's last success; None where there is none.
        name: the target's, for the note.
        unknown: why there is no position, for the note.
    """
    if isinstance(table, SnapshotHistory):
        snapshot, number = table.take_position()
        position: dict[str, Any] = {"snapshot": number}
    else:
        snapshot = take_snapshot(table)
        position = {"files": [[file.path, *file.fingerprint] for file in snapshot.files]}
    whole = Increment(snapshot, position, snapshot)

    def read_all(reason: str) -> Increment:
        return replace(whole, note=f"all rows of {name} are read: {reason}")

    if last is None:
        return read_all(unknown)
    if isinstance(table, SnapshotHistory):
        before = table.snapshot_at(last["snapshot"]) if "snapshot" in last else None
        if before is None:
            return read_all("the snapshot of its last success has expired")
        added, gone = _drop_equal(snapshot, before, _identify_scanned)
        return _compare(whole, added, gone, name)
    if "files" not in last or not isinstance(table, RetainedFiles):
        return read_all("the target was of another kind")
    old = {(str(path), tuple(fingerprint)) for path, *fingerprint in last["files"]}
    now = {(file.path, file.fingerprint) for file in snapshot.files}
    files = tuple(file for file in snapshot.files if (file.path, file.fingerprint) not in old)
    added, missing = replace(snapshot, files=files), old - now
    if not missing or not files:  # nothing that is new can be a row of before
        return _compare(whole, added, None, name)
    former = table.find_retained(snapshot, missing)
    if former is None:
        some = units.format_count(len(missing), "file")
        lost = "are not kept (retain of the target), or in other types"
        return read_all(f"{some} of before were replaced or removed, and {lost}")
    return _compare(whole, added, former, name)


def _compare(whole: Increment, added: Snapshot, before: Snapshot | None, name: str) -> Increment:
    before = before if before is not None and before.files and added.files else None
    odd = find_incomparable(whole.snapshot.schema) if before is not None else None
    if odd is not None:
        reason = f"rows are not compared in the column {odd!r}, which is nested"
        return replace(whole, note=f"all rows of {name} are read: {reason}")
    if not added.files:
        return replace(whole, added=added, note=f"{name} has no rows that are new since the last run")
    read = units.format_count(len(added.files), "file")
    less = ""
    if before is not None:
        less = f", less the rows of {units.format_count(len(before.files), 'file')} of before"
    return replace(
        whole, added=added, before=before, note=f"of {name}, what is new since the last run: {read}{less}"
    )


def _identify_scanned(file: DataFile) -> tuple[Any, ...]:
    """What identifies the rows of a file whose bytes never change: its path, and what is deleted of it."""
    deletes = getattr(file.scan_task, "deletes", None)
    return (file.path, () if deletes is None else tuple(sorted(deletes.marks, key=str)))


def _drop_equal(
    now: Snapshot, before: Snapshot, identify: Callable[[DataFile], tuple[Any, ...]]
) -> tuple[Snapshot, Snapshot]:
    """Both states without the files that are the same in both."""
    same = {identify(file) for file in now.files} & {identify(file) for file in before.files}
    new, old = (
        replace(state, files=tuple(file for file in state.files if identify(file) not in same))
        for state in (now, before)
    )
    return new, old
