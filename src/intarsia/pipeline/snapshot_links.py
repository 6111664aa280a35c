"""States of targets as hard links, for engines that read files by themselves while others may commit."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from intarsia.common.log import get_logger
from intarsia.core.ports import Table
from intarsia.core.snapshot import Snapshot
from intarsia.errors import CommitConflict, IntarsiaError
from intarsia.tables.parquet import ParquetTable

log = get_logger(__name__)


@dataclass(slots=True)
class SnapshotLinks:
    """Links to the files of datasets that a step reads, which last until :meth:`close`.

    A commit that replaces a file leaves its link as it was. Those of a killed process are removed by the
    dataset's next recovery.
    """

    stack: ExitStack = field(default_factory=ExitStack)
    writes: bool = True
    """Whether links may be made; a dry run makes none."""

    def take_snapshot(self, table: Table) -> Snapshot:
        """The current state of a table, of files that nobody replaces where links can be made.

        Elsewhere (a store without links, a directory that cannot be written) it is the state as it is, and
        whoever reads a file checks that it is still the same.
        """
        if not self.writes or not isinstance(table, ParquetTable) or not table.storage.atomic:
            return table.snapshot()
        if not table.control.exists():  # written by others alone: no directory of ours is made there
            return table.snapshot()
        try:
            return self.stack.enter_context(table.materialise()).snapshot
        except CommitConflict:
            raise
        except (IntarsiaError, OSError) as error:
            log.info("no links to the files of %s are made: %s", table.root, error)
            return table.snapshot()

    def close(self) -> None:
        """Remove the links. Idempotent."""
        self.stack.close()
