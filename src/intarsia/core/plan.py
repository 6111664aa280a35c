"""The plan: the files an operation reads, rewrites, removes or keeps, and why; a value without effects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

import pyarrow as pa

from intarsia.common.requests import Requests
from intarsia.core import render
from intarsia.core.change import Change, Hits, Matches, PositionDeletes, Replacement, Staged
from intarsia.core.file_table import FileTable
from intarsia.core.intent import (
    CompactIntent,
    DeleteIntent,
    Intent,
    OptimizeIntent,
    Predicate,
    UpdateIntent,
    WriteIntent,
)
from intarsia.core.snapshot import DataFile, Snapshot

Action = Literal["keep", "scan", "rewrite", "add_deletes", "remove", "regroup"]


@dataclass(frozen=True, slots=True)
class FilePlan:
    """What happens to one file, and the reason in a few words."""

    file: DataFile
    action: Action
    reason: str
    row_groups: tuple[int, ...] = ()
    """The row groups that a scan has to read."""
    scan_bytes: int = 0
    is_move_check: bool = False
    """Scanned only to find keys that would move to another partition."""
    scanned: bool = False
    hits: int = 0
    forced: str = ""
    """Why the file is rewritten even if no row of it is hit."""


class SparsePlans(Sequence[FilePlan]):
    """The plans of many files of which most are kept: plans of those are made when they are asked for.

    As a tuple of all would be; pickled, it becomes one.
    """

    __slots__ = ("changed", "files", "reasons")

    def __init__(self, files: FileTable, reasons: Sequence[str], changed: Mapping[int, FilePlan]) -> None:
        """``reasons`` why files are kept, by the number of their directory; ``changed`` are the others."""
        self.files = files
        self.reasons = reasons
        self.changed = dict(sorted(changed.items()))

    def __len__(self) -> int:
        return len(self.files)

    @overload
    def __getitem__(self, place: int) -> FilePlan: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[FilePlan, ...]: ...
    def __getitem__(self, place: int | slice) -> FilePlan | tuple[FilePlan, ...]:
        if isinstance(place, slice):
            return tuple(self[number] for number in range(*place.indices(len(self))))
        number = place + len(self) if place < 0 else place
        known = self.changed.get(number)
        return known if known is not None else self._make_kept(number, self.files[number])

    def __iter__(self) -> Iterator[FilePlan]:
        for number, file in enumerate(self.files):
            known = self.changed.get(number)
            yield known if known is not None else self._make_kept(number, file)

    def _make_kept(self, number: int, file: DataFile) -> FilePlan:
        return FilePlan(file, "keep", self.reasons[self.files.get_directory_number(number)])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (SparsePlans, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return tuple, (list(self),)

    def __repr__(self) -> str:
        return f"<plans of {len(self):,} files, {len(self.changed):,} of them not just kept>"

    def resolve(self, matches: Matches, resolve_file: Callable[[FilePlan], FilePlan]) -> SparsePlans:
        """The plans after matching, which leaves files that were not scanned as they are, mostly."""
        seen = {plan.file.path for plan in self.changed.values()}
        others = self.files.find_numbers({*matches.hits, *matches.dropped} - seen)
        changed = {**self.changed, **{number: self[number] for number in others}}
        return SparsePlans(
            self.files, self.reasons, {number: resolve_file(plan) for number, plan in changed.items()}
        )


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files of one partition that are rewritten together."""

    files: tuple[DataFile, ...]
    partition: Mapping[str, object] = field(default_factory=dict)
    outputs: int = 1
    concatenated: bool = False
    """Whether row groups are copied as they are, since they are large already; the kernel decodes them
    nevertheless where their bytes do not allow it."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Plan:
    """What an operation will do. Making one changes nothing; two plans of one state are equal.

    Before matching, ``scan`` marks the files whose key columns have to be read; after it, every file
    is kept, rewritten, removed or regrouped, and the counts are exact.
    """

    intent: Intent = field(repr=False)
    snapshot: Snapshot = field(repr=False)
    files: Sequence[FilePlan]
    schema: pa.Schema = field(repr=False)
    """The dataset's schema after the operation."""
    groups: tuple[FileGroup, ...] = ()
    source_rows: int = 0
    engine: str = "arrow"
    engine_reason: str = ""
    notes: tuple[str, ...] = ()
    matched: bool = False
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    insert_bytes: int = 0
    new_files: int = 0
    """How many new files there will be, once rows are matched; files rewritten in place do not count."""
    new_files_exact: bool = False
    """Whether the number is exact; otherwise the notes say why there may be more."""
    measured_bytes: int | None = None
    """The size of all files that are written, where they were encoded to know it."""
    requests: Requests | None = field(default=None, compare=False)
    """What planning has sent to the object store; None where it is not counted, such as on a disk."""

    @property
    def operation(self) -> str:
        return self.intent.operation

    @property
    def touched(self) -> Sequence[FilePlan]:
        """All but those of files that are kept unread."""
        return [plan for plan in self._stored if plan.scanned or plan.action != "keep"]

    @property
    def _stored(self) -> Collection[FilePlan]:
        """All but those that are made on demand, of files that are just kept."""
        return self.files.changed.values() if isinstance(self.files, SparsePlans) else self.files

    def count(self, action: Action) -> int:
        if action == "keep":
            return len(self.files) - sum(plan.action != "keep" for plan in self.touched)
        return sum(plan.action == action for plan in self.touched)

    def select(self, action: Action) -> tuple[FilePlan, ...]:
        plans = self.files if action == "keep" else self.touched
        return tuple(plan for plan in plans if plan.action == action)

    @property
    def bytes_to_scan(self) -> int:
        """Bytes of key columns that are, or were, read to find hits."""
        return sum(plan.scan_bytes for plan in self._stored)

    @property
    def bytes_to_read(self) -> int:
        if self.operation == "restore":  # files are put back as they are
            return 0
        whole = sum(p.file.size for p in self.touched if p.action in ("rewrite", "regroup"))
        return self.bytes_to_scan + whole

    @property
    def bytes_to_write(self) -> int:
        """The size of the files that are written, an estimate unless ``bytes_exact``.

        In an estimate, rewritten files keep their size, and files that are combined keep one footer.
        """
        if self.measured_bytes is not None:
            return self.measured_bytes
        kept = sum(p.file.size for p in self.touched if p.action in ("rewrite", "regroup"))
        moved = (p.file.footer for p in self.touched if p.action == "regroup")
        footers = sorted((f.serialized_size for f in moved if f is not None), reverse=True)
        spared = footers[max(sum(group.outputs for group in self.groups), 1) :]
        return kept - sum(spared) + self.insert_bytes

    @property
    def bytes_exact(self) -> bool:
        """Whether ``bytes_to_write`` is exact; writing nothing is."""
        if self.matched and not self.bytes_to_write:
            return True
        return self.measured_bytes is not None

    def with_matches(self, matches: Matches, *, insert_bytes: int = 0) -> Plan:
        """The plan after matching: scans are resolved by what they found."""
        changed = self._changed
        files: Sequence[FilePlan]
        if isinstance(self.files, SparsePlans):
            files = self.files.resolve(matches, lambda plan: _resolve_file(plan, matches, changed))
        else:
            files = tuple(_resolve_file(plan, matches, changed) for plan in self.files)
        return replace(
            self,
            files=files,
            matched=True,
            inserted=matches.inserted,
            updated=matches.updated,
            deleted=matches.deleted,
            insert_bytes=insert_bytes,
            notes=(*self.notes, *matches.notes),
        )

    @property
    def _changed(self) -> Action:
        """The action on a file that has hits."""
        return "add_deletes" if self.snapshot.format.merge_on_read.get(self.operation) else "rewrite"

    def make_change(self, matches: Matches, staged: Staged) -> Change:
        """What the plan, once resolved and executed, does to the table's files."""
        rewritten = self.select("rewrite")
        in_place = self.snapshot.replaces_in_place
        removed = [item.file for item in self.select("remove")]
        removed += [] if in_place else [item.file for item in rewritten]
        removed += [file for group in self.groups for file in group.files]
        return Change(
            self.operation,
            replaced=tuple(
                Replacement(item.file, staged.rewritten[item.file.path]) for item in rewritten if in_place
            ),
            added=staged.added,
            removed=tuple(removed),
            position_deletes=tuple(
                PositionDeletes(item.file, matches.hits.get(item.file.path, Hits.make_empty()).positions)
                for item in self.select("add_deletes")
            ),
            planned=tuple(self._read_files()),
            exclusive=self.exclusive,
            properties=self.intent.properties,
            reads=self.reads,
        )

    def _read_files(self) -> list[DataFile]:
        """The files that were scanned, or are replaced or removed."""
        if self.groups or isinstance(self.intent, (CompactIntent, OptimizeIntent)):
            return [file for group in self.groups for file in group.files]
        return [item.file for item in self.touched]

    @property
    def exclusive(self) -> bool:
        """Whether rows that other writers add meanwhile might change the result."""
        match self.intent:
            case WriteIntent() as intent:
                return intent.where is not None
            case CompactIntent():
                return False
            case OptimizeIntent() as intent:
                return intent.removes_duplicates
            case _:
                return True

    @property
    def reads(self) -> Predicate:
        """The condition outside of which nothing is read; None is everything."""
        return (
            self.intent.where if isinstance(self.intent, (DeleteIntent, UpdateIntent, WriteIntent)) else None
        )

    def __repr__(self) -> str:
        return render.render_text(self)

    def _repr_html_(self) -> str:
        return render.render_html(self)


def _resolve_file(plan: FilePlan, matches: Matches, changed: Action) -> FilePlan:
    path = plan.file.path
    scanned = plan.action == "scan"
    if path in matches.dropped:
        reason = plan.reason if plan.action == "remove" else "every row goes"
        return replace(plan, action="remove", reason=reason, hits=plan.file.rows, scanned=scanned)
    hits = matches.count_hit_rows(path)
    if hits:
        what = "rows hit" if not scanned else "key scan: rows hit"
        if hits == plan.file.rows:  # position deletes would leave no row of it
            changed = "rewrite"
        return replace(plan, action=changed, reason=what, hits=hits, scanned=scanned)
    if plan.forced:
        return replace(plan, action="rewrite", reason=plan.forced, scanned=scanned)
    if scanned:
        why = "key scan: key in no other partition" if plan.is_move_check else "key scan: no row hit"
        return replace(plan, action="keep", reason=why, scanned=True)
    return plan


def keep_all(files: Sequence[DataFile], reason: str) -> tuple[FilePlan, ...]:
    return tuple(FilePlan(file, "keep", reason) for file in files)
