"""What a restore does to a table's files, as a value; its plan and its report. Nothing is restored here."""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import pyarrow as pa

from intarsia.core.change import Committed
from intarsia.core.history import History
from intarsia.core.intent import Intent, RestoreIntent
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.report import MergeFileMetadata, MergeResult
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.errors import InputError

__all__ = [
    "Restorable",
    "Restoration",
    "ReturningFile",
    "check_version",
    "make_restore_plan",
    "report_restore",
]


@dataclass(frozen=True, slots=True)
class ReturningFile:
    """A file that a restore brings back; ``replaces`` the one of its name that is there now, if any."""

    path: str
    rows: int
    size: int
    replaces: DataFile | None = None


@dataclass(frozen=True, slots=True)
class Restoration:
    """The files that come and go when a table is set back to a version."""

    version: int
    now: Snapshot = field(repr=False)
    returning: tuple[ReturningFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    schema: pa.Schema | None = field(default=None, repr=False)
    """The table's schema afterwards, where it is known before the commit."""
    bytes_copied: int = 0
    """Bytes of data files that are written; 0 where they are linked, or only referred to."""
    is_empty: bool = False
    """Whether the table is in that state already."""
    notes: tuple[str, ...] = ()

    @property
    def rows_after(self) -> int:
        gone = sum(file.rows for file in self.removed)
        gone += sum(file.replaces.rows for file in self.returning if file.replaces is not None)
        return self.now.rows - gone + sum(file.rows for file in self.returning)


class Restorable(Protocol):
    """A table that knows its commits, and can be set back to one of them."""

    def history(self) -> History:
        """Its commits, newest first. Writes nothing."""

    def plan_restore(self, version: int) -> Restoration:
        """What a restore would do; raises RestoreError where it cannot be done. Writes nothing."""

    def restore(self, version: int, properties: Mapping[str, str]) -> tuple[Restoration, Committed | None]:
        """Set the table back, in one commit; None where there was nothing to do."""


def check_version(version: Any) -> int:
    """A version as a number. Raises InputError where it is none, or negative."""
    if isinstance(version, bool):
        raise InputError(f"version must be a whole number, it is {version!r}.")
    try:
        number = operator.index(version)
    except TypeError as error:
        raise InputError(
            f"version must be a whole number, it is {version!r}.", hint="history() lists the versions."
        ) from error
    if number < 0:
        raise InputError(
            f"version must not be negative, it is {number}.", hint="history() lists the versions."
        )
    return number


def make_restore_plan(found: Restoration, intent: RestoreIntent) -> Plan:
    """The plan that people see: every file is kept, replaced or removed, and why."""
    back = {file.path for file in found.returning if file.replaces is not None}
    gone = {file.path for file in found.removed}
    why = f"as it was after version {found.version}"

    def plan_file(file: DataFile) -> FilePlan:
        if file.path in back:
            return FilePlan(file, "rewrite", why)
        if file.path in gone:
            return FilePlan(file, "remove", f"came after version {found.version}")
        return FilePlan(file, "keep", f"not changed since version {found.version}")

    return Plan(
        cast(Intent, intent),  # which no engine gets to see
        found.now,
        tuple(plan_file(file) for file in found.now.files),
        found.schema or found.now.schema,
        engine="none",
        notes=(*found.notes, *_note_counts(found)),
        matched=True,
        inserted=max(found.rows_after - found.now.rows, 0),
        deleted=max(found.now.rows - found.rows_after, 0),
        new_files=sum(file.replaces is None for file in found.returning),
        new_files_exact=True,
        measured_bytes=found.bytes_copied,
    )


def _note_counts(found: Restoration) -> tuple[str, ...]:
    if found.is_empty:
        return (f"The table is as it was after version {found.version}: there is nothing to do.",)
    return ("Whole files are put back: inserted and deleted are the difference in rows, not rows compared.",)


def report_restore(
    found: Restoration,
    intent: RestoreIntent,
    *,
    begun: float,
    committed: Committed | None = None,
    dry_run: bool = False,
) -> MergeResult:
    """The result of a restore, or of its dry run."""
    plan = make_restore_plan(found, intent)
    shown = found.now.show_path
    new = {file.path: file for file in found.returning}
    kinds = {"rewrite": "rewritten", "remove": "removed"}
    files: list[MergeFileMetadata] = []
    for item in plan.files:
        back = new.get(item.file.path)
        rows, size = (item.file.rows, item.file.size) if back is None else (back.rows, back.size)
        kind: Any = kinds.get(item.action, "preserved")
        files.append(MergeFileMetadata(shown(item.file), rows, kind, size))
    if not dry_run:
        files += [
            MergeFileMetadata(shown(file.path), file.rows, "inserted", file.size)
            for file in found.returning
            if file.replaces is None
        ]
    paths = {kind: [file.path for file in files if file.operation == kind] for kind in _KINDS}
    return MergeResult(
        strategy=intent.operation,
        source_count=0,
        target_count_before=found.now.rows,
        target_count_after=found.rows_after,
        inserted=plan.inserted,
        updated=0,
        deleted=plan.deleted,
        files=files,
        rewritten_files=paths["rewritten"],
        inserted_files=paths["inserted"],
        preserved_files=paths["preserved"],
        removed_files=paths["removed"],
        operation=intent.operation,
        path=found.now.root,
        engine=plan.engine,
        dry_run=dry_run,
        bytes_written=found.bytes_copied,
        seconds=time.perf_counter() - begun,
        version=None if dry_run else found.now.version if committed is None else committed.version,
        txid=None if committed is None else committed.txid,
        notes=(*plan.notes, *(() if committed is None else committed.notes)),
        new_files=plan.new_files,
        plan=plan,
    )


_KINDS = ("rewritten", "inserted", "preserved", "removed")
