"""What an operation wants to do to a table's files: the value that engines make and tables commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.core.refusals import Refusal, sum_refusals
from intarsia.core.snapshot import DataFile


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
    def unwritten(refused: Iterable[Refusal], path: str = "") -> StagedFile:
        """A staged file for rows that were evaluated but not written."""
        return StagedFile("", path, 0, 0, refused=sum_refusals(refused))


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
class Staged:
    """The files that an engine has written for one operation."""

    rewritten: Mapping[str, StagedFile] = field(default_factory=dict)
    """New content of files that keep their names, by the path of the old file."""
    added: tuple[StagedFile, ...] = ()


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

    @property
    def written(self) -> tuple[StagedFile, ...]:
        """Every file that was written, new or as a replacement."""
        return (*(one.new for one in self.replaced), *self.added)

    @property
    def empty(self) -> bool:
        return not (self.replaced or self.added or self.removed or self.position_deletes)


class Discard:
    """A file system that discards what is written to it, so that files are only measured; pickles."""

    def open_output_stream(self, _location: str) -> Any:
        return pa.MockOutputStream()

    def delete_file(self, _location: str) -> None:
        """Does nothing: no file was kept."""


def is_discarded(filesystem: Any) -> bool:
    """Whether a file system discards what is written to it."""
    return isinstance(filesystem, Discard)


BEGUN = "begun-"
"""Prefix of the name of a staged marker file; the id of an attempt that writes files in place follows."""


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

    def location(self, label: str) -> str:
        """A place to write one file; ``label`` must be unique within the transaction."""
        return f"{self.directory}/{label}{self.attempt}.part"


@dataclass(frozen=True, slots=True)
class Committed:
    """What a table's commit returns."""

    txid: str
    version: int
    rows: int | None = None
    """How many rows there are now, where others have committed since the change was planned."""
    notes: tuple[str, ...] = ()
    """Notes of the commit for the result."""
