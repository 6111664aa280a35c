"""Targets of a dry run on which steps really run: changed in a scratch place, so that later steps see it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs

from intarsia.common.log import get_logger
from intarsia.common.scratch import make_scratch_directory
from intarsia.errors import StorageError
from intarsia.storage.scratch_place import ScratchPlace, make_scratch_place
from intarsia.tables.parquet import ParquetTable
from intarsia.tables.parquet.scratch_dataset import ScratchDataset

if TYPE_CHECKING:
    from intarsia.pipeline.resources import LoggedTable

__all__ = ["Rehearsal"]

log = get_logger(__name__)


@dataclass(slots=True)
class Rehearsal:
    """The scratch places of one dry run. What was written to them is removed by :meth:`close`.

    A place is in TMPDIR, on a disk of this machine. Where executors of Spark are elsewhere it is where they
    spool sources to: beside the target, or in the step's ``spool_dir``.
    """

    stack: ExitStack = field(default_factory=ExitStack)
    directories: list[str] = field(default_factory=list)
    """Where the places are, to be named in errors."""

    def close(self) -> None:
        """Remove everything that was written. Idempotent."""
        self.stack.close()
        self.directories.clear()

    def open(self, table: Any, session: Any, spool_dir: str | None) -> LoggedTable | None:
        """A table that starts as ``table`` is now, and whose changes stay in a scratch place.

        None where no such place can be written.
        """
        try:
            place = self._make_place(table.workspace, session, spool_dir)
        except OSError as error:
            log.info("a dry run has no place to write to: %s", error)
            return None
        self.directories.append(place.directory)
        if isinstance(table, ParquetTable):
            return ScratchDataset(table, place)
        from intarsia.tables.iceberg.scratch_table import ScratchIcebergTable  # needs PyIceberg

        return ScratchIcebergTable(table, place)

    def _make_place(
        self, workspace: tuple[pafs.FileSystem, str, str], session: Any, spool_dir: str | None
    ) -> ScratchPlace:
        filesystem, beside, _ = workspace
        if session is None:
            directory = self.stack.enter_context(make_scratch_directory())
            return make_scratch_place(filesystem, beside, pafs.LocalFileSystem(), directory)
        from intarsia.engines.spark.source import create_spool  # needs pyspark

        spool = create_spool(session, workspace, spool_dir)
        self.stack.callback(spool.remove)
        return make_scratch_place(filesystem, beside, spool.filesystem, spool.directory)

    @contextmanager
    def explain_full_disk(self) -> Iterator[None]:
        """Say where room is lacking, when a step of a dry run fills the disk."""
        try:
            yield
        except StorageError as error:
            if error.errno != errno.ENOSPC or not self.directories:
                raise
            raise StorageError(
                f"There is no room for what the steps of a dry run write: {error}",
                errno=errno.ENOSPC,
                path=self.directories[-1],
                hint="point TMPDIR (with Spark on a cluster, spool_dir) to a place with room for what the"
                " steps write, or plan the steps one by one",
            ) from error
