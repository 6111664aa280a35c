"""The commits of a table as values: who made them, when, what they did, and which can be restored."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, overload

from intarsia.common.process import describe_program, describe_user
from intarsia.core import render

__all__ = ["Commit", "CommitInfo", "History", "RowCounts", "parse_count", "parse_time"]


@dataclass(frozen=True, slots=True)
class RowCounts:
    """How many rows an operation has changed."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """What a commit notes of itself for people; no decision depends on it. As Delta's ``commitInfo``.

    What is not known is None: commits of earlier versions and of other programs have less.
    """

    time: str | None = None
    """ISO 8601, in UTC, by the writer's clock."""
    user: str | None = None
    """``user@host`` of the process."""
    program: str | None = None
    engine: str | None = None
    intarsia: str | None = None
    """The version of this package."""
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    bytes_written: int | None = None
    rows_after: int | None = None
    files_after: int | None = None
    bytes_after: int | None = None

    @staticmethod
    def now(version: str, counts: RowCounts | None = None, **facts: Any) -> CommitInfo:
        """What this process notes of a commit that it makes now."""
        time = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        rows = {} if counts is None else {name: getattr(counts, name) for name in _COUNTS}
        return CommitInfo(
            time, describe_user(), describe_program() or None, intarsia=version, **rows, **facts
        )

    def to_json(self) -> dict[str, Any]:
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    @staticmethod
    def from_json(raw: Any) -> CommitInfo:
        """Read back; what is not as we would write it is left out, since nothing depends on it."""
        if not isinstance(raw, Mapping):
            return CommitInfo()
        texts = {name: raw[name] for name in _TEXTS if isinstance(raw.get(name), str)}
        numbers = {name: raw[name] for name in _NUMBERS if type(raw.get(name)) is int}
        return CommitInfo(**texts, **numbers)


_DIGITS = 19
_COUNTS = ("inserted", "updated", "deleted")
_TEXTS = ("time", "user", "program", "engine", "intarsia")
_NUMBERS = (*_COUNTS, "bytes_written", "rows_after", "files_after", "bytes_after")


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a table; what is not known of it is None."""

    version: int
    """Its number: what :func:`intarsia.restore` takes. Of an Iceberg table the sequence number; of one of
    format version 1, which has none, the snapshot's id."""
    operation: str
    time: dt.datetime | None = None
    user: str | None = None
    """``user@host`` of the process that made it."""
    program: str | None = None
    engine: str | None = None
    """The engine that did the work, or what else wrote an Iceberg snapshot."""
    inserted: int | None = None
    """Rows; as ``updated`` and ``deleted``."""
    updated: int | None = None
    deleted: int | None = None
    files_added: int | None = None
    files_replaced: int | None = None
    files_removed: int | None = None
    bytes_written: int | None = None
    rows_after: int | None = None
    bytes_after: int | None = None
    """The size of all data files after it."""
    app_id: str | None = None
    batch_id: int | None = None
    txid: str | None = None
    snapshot_id: int | None = None
    """The id of an Iceberg snapshot."""
    restorable: bool = False
    """Whether the state after this commit can be brought back, as far as the log tells."""
    rolled_back: bool = False
    """Whether an Iceberg branch was set back behind it."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """What else was recorded with it."""

    def as_json(self) -> dict[str, Any]:
        """The commit as plain JSON types."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        time = None if self.time is None else self.time.isoformat()
        return {**found, "time": time, "properties": dict(self.properties)}


@dataclass(frozen=True, slots=True, repr=False)
class History:
    """The commits of a table, newest first: a sequence of :class:`Commit`."""

    root: str
    commits: tuple[Commit, ...] = ()
    version: int = 0
    """The version of the table now."""
    branch: str | None = None
    """The branch of an Iceberg table."""
    notes: tuple[str, ...] = ()
    restorable: tuple[int, ...] = ()
    """The versions that can be restored, as far as the log tells, newest first: also those whose commits are
    not listed, and 0, the state that other programs have made before the first commit."""

    def __iter__(self) -> Iterator[Commit]:
        return iter(self.commits)

    def __len__(self) -> int:
        return len(self.commits)

    @overload
    def __getitem__(self, place: int) -> Commit: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Commit, ...]: ...
    def __getitem__(self, place: int | slice) -> Commit | tuple[Commit, ...]:
        return self.commits[place]

    def as_json(self) -> dict[str, Any]:
        """The history as plain JSON types."""
        return {
            "path": self.root,
            "version": self.version,
            "branch": self.branch,
            "restorable": list(self.restorable),
            "commits": [commit.as_json() for commit in self.commits],
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        return render.render_text(self)

    def _repr_html_(self) -> str:
        return render.render_html(self)


def parse_count(text: str | None) -> int | None:
    """A number in a commit's properties; None where it is none, or beyond 64 bits."""
    return int(text) if text is not None and len(text) < _DIGITS and text.isdecimal() else None


def parse_time(text: str | None) -> dt.datetime | None:
    """The time of a commit's note, in UTC; None where it is none."""
    if text is None:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
