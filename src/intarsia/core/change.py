"""What engines find and write and tables commit, as values: hits and matches, staged files, the change."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.python_values import make_array, make_scalar
from intarsia.core.file_table import Files, FileTuple
from intarsia.core.history import RowCounts
from intarsia.core.refusals import Refusal, sum_refusals
from intarsia.core.rule import Action
from intarsia.core.snapshot import DataFile

BEGUN = "begun-"
"""Prefix of the name of a staged marker file; the id of an attempt that writes files in place follows."""


@dataclass(frozen=True, slots=True)
class Hits:
    """The rows of one file that change.

    ``positions`` ascend (int64). ``action`` numbers an entry of ``Matches.actions`` for all rows,
    or per row as an int8 array. ``sources`` names the source row of each hit, NULL where the
    action needs none. ``values`` are columns of these rows as they are, as far as they were kept when the
    rows were found.
    """

    positions: pa.Int64Array
    action: int | pa.Int8Array = 0
    sources: pa.Int64Array | None = None
    values: pa.Table | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def select_range(self, start: int, stop: int) -> Hits:
        """The hits in a range of positions, still counted from the start of the file."""
        low, high = pc.search_sorted(self.positions, make_array([start, stop], pa.int64())).to_pylist()
        return Hits(
            self.positions.slice(low, high - low),
            self.action if isinstance(self.action, int) else self.action.slice(low, high - low),
            None if self.sources is None else self.sources.slice(low, high - low),
            None if self.values is None else self.values.slice(low, high - low),
        )

    def shift(self, start: int) -> Hits:
        """The hits with positions counted from ``start``."""
        positions = pc.subtract(self.positions, make_scalar(start, pa.int64()))
        return Hits(positions, self.action, self.sources, self.values)

    def select_action(self, number: int) -> Hits:
        """The hits with one action."""
        if isinstance(self.action, int):
            return self if self.action == number else self.make_empty()
        chosen = pc.equal(self.action, make_scalar(number))
        return Hits(
            self.positions.filter(chosen),
            number,
            None if self.sources is None else self.sources.filter(chosen),
            None if self.values is None else self.values.filter(chosen),
        )

    @staticmethod
    def make_empty() -> Hits:
        return Hits(pa.nulls(0, pa.int64()), 0, pa.nulls(0, pa.int64()))


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file written to staging, not yet part of the table."""

    location: str
    """Where its bytes are, on the staging file system."""
    path: str
    """The name it will have inside the table."""
    rows: int
    size: int
    partition: Mapping[str, Any] = field(default_factory=dict)
    tag: Any = None
    """The tag of the :class:`~intarsia.core.partitioner.PartitionKey` that its rows belong to."""
    nans: Mapping[str, int] | None = None
    """Number of NaN in each float column, by the path of its leaf, where they were counted."""
    retyped: frozenset[str] = frozenset()
    """Columns stored in another type than in the file it replaces, on purpose."""
    refused: tuple[Refusal, ...] = ()
    """Values that its columns cannot take; with any, the file was not written and the change fails."""
    footer: pq.FileMetaData | None = field(default=None, repr=False, compare=False)
    """Its footer, where the file was only measured and cannot be opened again."""

    @staticmethod
    def make_unwritten(refused: Iterable[Refusal], path: str = "") -> StagedFile:
        """A staged file for rows that were evaluated but not written."""
        return StagedFile("", path, 0, 0, refused=sum_refusals(refused))


@dataclass(frozen=True, slots=True)
class Staged:
    """The files that an engine has written for one operation."""

    rewritten: Mapping[str, StagedFile] = field(default_factory=dict)
    """New content of files that keep their names, by the path of the old file."""
    added: tuple[StagedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Matches:
    """All hits, and the source rows that become new rows."""

    actions: tuple[Action, ...] = ()
    hits: Mapping[str, Hits] = field(default_factory=dict)
    """By file path; a file without hits is absent."""
    dropped: frozenset[str] = frozenset()
    """Files that lose every row, known without positions."""
    inserts: tuple[tuple[Action, pa.Int64Array], ...] = ()
    """Source rows to insert, and how."""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    scanned_bytes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of changed rows by file, where their positions stayed on the executors that found them."""
    notes: tuple[str, ...] = ()
    """Notes for the plan."""
    staged: Staged = field(default_factory=Staged)
    """Files written during matching, by an engine that matches and writes in one pass."""
    done: frozenset[str] = frozenset()
    """Paths of the files that are completely written."""

    def count_hit_rows(self, path: str) -> int:
        """How many rows of a file change."""
        return len(self.hits[path]) if path in self.hits else self.counts.get(path, 0)


@dataclass(frozen=True, slots=True)
class PositionDeletes:
    """Rows of a file that are deleted while the file stays."""

    file: DataFile
    positions: pa.Int64Array = field(repr=False)
    """Ascending; none of them deleted before."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """``new`` takes the place and the name of ``old``."""

    old: DataFile
    new: StagedFile


@dataclass(frozen=True, slots=True)
class Change:
    """Files that are removed, replaced and added, as one commit.

    ``planned`` are all files the operation has read: one of them changing underneath is a
    conflict. With ``exclusive``, so is a data file that has appeared since, because it might hold
    a key that was taken for new.
    """

    operation: str
    replaced: tuple[Replacement, ...] = ()
    added: tuple[StagedFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    planned: tuple[DataFile, ...] = ()
    exclusive: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)
    """Recorded with the commit, such as a streaming query's id and batch."""
    position_deletes: tuple[PositionDeletes, ...] = ()
    reads: Any = None
    """The condition (an Expr over the table's columns) outside of which the operation has read nothing;
    None is everything."""
    schema: pa.Schema | None = None
    """The dataset's schema after the operation, where the operation decides it. It is recorded when no file
    is left to hold it; a change without files is committed for it."""
    partition_columns: tuple[str, ...] = ()
    """The partition columns that go with ``schema``."""
    counts: RowCounts | None = None
    """How many rows change; noted with the commit, as is ``engine``."""
    engine: str | None = None

    @property
    def written(self) -> tuple[StagedFile, ...]:
        """Every file that was written, new or as a replacement."""
        return (*(one.new for one in self.replaced), *self.added)

    @property
    def empty(self) -> bool:
        return not (self.replaced or self.added or self.removed or self.position_deletes)


@dataclass(frozen=True, slots=True)
class Committed:
    """What a table's commit returns."""

    txid: str
    version: int
    rows: int | None = None
    """How many rows there are now, where others have committed since the change was planned."""
    notes: tuple[str, ...] = ()
    """Notes of the commit for the result."""


_NO_FILES = FileTuple()
_LAST_TIME = 2**63 - 1
_NAME_END = r"-(?P<time>[0-9a-f]{16})[0-9a-f]{16}-[0-9]{5,}\.parquet$"


def make_transaction_id(files: Files = _NO_FILES) -> str:
    """32 hexadecimal digits, unique and growing: with time, and beyond those in the names of ``files``.

    They are in the names of new files, whose order decides between rows with equal keys: of two files that
    are called alike otherwise, the later one comes last, also where a clock was set back, or that of another
    writer is ahead. Commits are in the order of the journal, whatever their ids.
    """
    newest = _find_newest(files.paths)
    now = time.time_ns()
    return f"{newest + 1 if now <= newest < _LAST_TIME else now:016x}{uuid.uuid4().hex[:16]}"


def _find_newest(paths: pa.StringArray) -> int:
    """The highest time in the names of files; hexadecimal digits of one length sort as numbers do."""
    found = pc.extract_regex(paths, _NAME_END)
    newest = pc.max(pc.struct_field(found, "time")).as_py()
    return -1 if newest is None else int(newest, 16)


class Discard:
    """A file system that discards what is written to it, so that files are only measured; pickles."""

    def open_output_stream(self, _location: str) -> Any:
        return pa.MockOutputStream()

    def delete_file(self, _location: str) -> None:
        """Does nothing: no file was kept."""


def is_discarded(filesystem: Any) -> bool:
    """Whether a file system discards what is written to it."""
    return isinstance(filesystem, Discard)


@dataclass(frozen=True, slots=True)
class Staging:
    """Where an engine writes, as a value that can travel to another process."""

    filesystem: pafs.FileSystem = field(repr=False)
    directory: str
    txid: str
    attempt: str = ""
    """Set where work may be repeated elsewhere, so that no two attempts share a name."""
    writes: bool = True
    """False where values are only evaluated, to find those that cannot be written."""

    @property
    def discards(self) -> bool:
        """Whether files written here are discarded."""
        return is_discarded(self.filesystem)

    def make_location(self, label: str) -> str:
        """A place to write one file; ``label`` must be unique within the transaction."""
        return f"{self.directory}/{label}{self.attempt}.part"
