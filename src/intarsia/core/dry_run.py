"""The transaction of a dry run: what an operation writes is only measured, or only evaluated."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from intarsia.core.change import Change, Committed, Discard, Staging
from intarsia.core.partitioner import PartitionDirectories
from intarsia.core.snapshot import DataFile, Snapshot

__all__ = ["MEASURED_BYTES", "DryRun", "discard_output"]

MEASURED_BYTES = 256 << 20
"""Bytes up to which a dry run encodes what the run would write; beyond that it estimates."""


def discard_output(*, writes: bool = True) -> Staging:
    """Staging that keeps nothing: what is written to it is counted, on whatever machine."""
    return Staging(filesystem=Discard(), directory="", txid=uuid.uuid4().hex, writes=writes)


@dataclass(frozen=True, slots=True)
class DryRun:
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
    def at(snapshot: Snapshot, staging: Staging) -> DryRun:
        named = PartitionDirectories.of(snapshot.files) if snapshot.replaces_in_place else None
        return DryRun(staging, snapshot.root, snapshot.partition_columns, named, snapshot)

    @property
    def txid(self) -> str:
        return self.staging.txid

    @property
    def snapshot(self) -> Snapshot:
        assert self.of is not None
        return self.of

    def output(self) -> DryRun:
        """Without the snapshot, which does not travel."""
        return replace(self, of=None)

    def new_file_path(
        self, partition: Mapping[str, Any], prefix: str, ordinal: int, *, beside: DataFile | None = None
    ) -> str:
        name = f"{prefix}-{self.txid}-{ordinal:05d}.parquet"
        if self.directories is None:
            return "/".join([*(f"{column}={text}" for column, text in partition.items()), name])
        if beside is not None:
            directory = posixpath.dirname(beside.path)
            return posixpath.join(self.directories.aliases.get(directory, directory), name)
        order = [column for column in self.partition_columns if column in partition]
        values = {column: partition[column] for column in dict.fromkeys([*order, *partition])}
        return posixpath.join(self.directories.directory(values, path=self.root), name)

    def filesystem_path(self, path: str) -> str:
        return f"{self.staging.directory}/{posixpath.basename(path)}"

    def last_batch(self, _app_id: str) -> int | None:
        return None

    def commit(self, _change: Change) -> Committed:
        raise AssertionError("a dry run commits nothing")
