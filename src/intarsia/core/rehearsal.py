"""The transaction of a dry run: what an operation writes is measured, or its values only looked at."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow.fs as pafs

from intarsia.common.scratch import scratch_directory
from intarsia.core.change import Change, Committed, Discard, Staging
from intarsia.core.directories import PartitionDirectories
from intarsia.core.files import DataFile, Snapshot

__all__ = ["MEASURED_BYTES", "Rehearsal", "in_scratch", "nowhere"]

MEASURED_BYTES = 256 << 20
"""Bytes up to which a dry run encodes what the run would write; beyond that it estimates."""


def nowhere(*, writes: bool = True) -> Staging:
    """Staging that keeps nothing: what is written to it is counted, on whatever machine."""
    return Staging(filesystem=Discard(), directory="", txid=uuid.uuid4().hex, writes=writes)


@contextmanager
def in_scratch(parent: str | None) -> Iterator[Staging]:
    """Staging in a directory of this machine, for writers that need one; it is gone afterwards."""
    with scratch_directory(parent) as directory:
        yield Staging(filesystem=pafs.LocalFileSystem(), directory=directory, txid=uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A transaction that is never committed; see :class:`intarsia.core.ports.Transaction`.

    Names are made as the table makes them, so that values which cannot be part of one are refused.
    """

    staging: Staging
    root: str
    partition_columns: tuple[str, ...]
    directories: PartitionDirectories | None
    """None where the table's files lie wherever it likes."""
    of: Snapshot | None = field(default=None, repr=False)

    @staticmethod
    def at(snapshot: Snapshot, staging: Staging) -> Rehearsal:
        named = PartitionDirectories.of(snapshot.files) if snapshot.spread is None else None
        return Rehearsal(staging, snapshot.root, snapshot.partition_columns, named, snapshot)

    @property
    def txid(self) -> str:
        return self.staging.txid

    @property
    def snapshot(self) -> Snapshot:
        assert self.of is not None
        return self.of

    def workplace(self) -> Rehearsal:
        """Without the snapshot, which does not travel."""
        return replace(self, of=None)

    def place(
        self, partition: Mapping[str, Any], prefix: str, ordinal: int, *, beside: DataFile | None = None
    ) -> str:
        name = f"{prefix}-{self.txid}-{ordinal:05d}.parquet"
        if self.directories is None or beside is not None:
            return name
        order = [column for column in self.partition_columns if column in partition]
        values = {column: partition[column] for column in dict.fromkeys([*order, *partition])}
        return posixpath.join(self.directories.directory(values, path=self.root), name)

    def locate(self, path: str) -> str:
        return f"{self.staging.directory}/{posixpath.basename(path)}"

    def last_batch(self, _app_id: str) -> int | None:
        return None

    def commit(self, _change: Change) -> Committed:
        raise AssertionError("a dry run commits nothing")
