"""The two ports of the core: what it asks of a table and of an engine. They meet only in values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from intarsia.core.change import Change, Committed, Staged, Staging
from intarsia.core.snapshot import DataFile, Snapshot

if TYPE_CHECKING:
    from intarsia.common.source import Source
    from intarsia.core.execution import Execution
    from intarsia.core.intent import Intent
    from intarsia.core.matches import Matches
    from intarsia.core.prepare import Prepared

Progress = Callable[[str, int, int], None]
"""Called with the step's name, how much of it is done, and how much there is."""


class OutputLocation(Protocol):
    """Where new files are written and what they will be called; the part of a transaction that travels.

    What :meth:`Transaction.output` gives is a value: it pickles, and works in another process.
    """

    @property
    def txid(self) -> str: ...

    @property
    def staging(self) -> Staging:
        """Where to write; the directory exists."""

    def new_file_path(
        self, partition: Mapping[str, Any], prefix: str, ordinal: int, *, beside: DataFile | None = None
    ) -> str:
        """The table path of a new file with these typed partition values.

        ``beside`` is a file whose rows it takes over, for tables whose files lie where their writer put
        them.
        """

    def filesystem_path(self, path: str) -> str:
        """Where on the staging file system a file of this table path is, for files that are written where
        they stay; its directory exists."""


class Transaction(OutputLocation, Protocol):
    """One attempt to change a table, begun by :meth:`Table.transaction`."""

    @property
    def snapshot(self) -> Snapshot:
        """The state the attempt starts from."""

    def output(self) -> OutputLocation:
        """The same place as a value."""

    def last_batch(self, app_id: str) -> int | None:
        """The highest batch that was committed with this ``app_id`` before the attempt began, or None."""

    def commit(self, change: Change) -> Committed:
        """Put the change into effect, all of it or nothing.

        Raises CommitConflict (nothing changed) when a planned file is no longer what it was.
        """


class Table(Protocol):
    """Knows files and swaps them; never touches a row."""

    def snapshot(self) -> Snapshot:
        """The current state, also of a table whose last writer crashed. Writes nothing."""

    def transaction(self, operation: str) -> AbstractContextManager[Transaction]:
        """Begin a change: finish or undo what a crash left, then hand out a fresh snapshot.

        Leaving the block without a commit removes everything that was staged.
        """

    def check(self) -> None:
        """Refuse what would keep every change of the table from being committed; transactions ask it first.

        Writes nothing, and asks for no permission to write.
        """

    def check_change(self, snapshot: Snapshot, change: Change, staging: Staging | None = None) -> None:
        """Refuse what no commit of a change to this state could do, whoever else writes; commits ask it.

        With ``staging``, where the change's files are, these are read as well. Writes nothing.
        """

    def last_batch(self, app_id: str) -> int | None:
        """The highest batch that was committed with this ``app_id``, or None."""

    def recover(self, *, run_id: str | None = None) -> tuple[str, ...]:
        """Finish or undo what a crash left; the sentences say what was done.

        ``run_id`` names a run whose process is gone: what it committed is finished also where the work of
        crashed writers cannot be distinguished from that of running ones.
        """


class Engine(Protocol):
    """Finds rows and writes them to files; knows no tables."""

    @property
    def name(self) -> str: ...

    def ingest(self, source: Any, **options: Any) -> Source:
        """Take a source in, reading it once; a context manager that lets go of it."""

    def prepare(self, intent: Intent, snapshot: Snapshot, source: Source | None) -> Prepared:
        """Resolve every name and type and check the source's rows.

        Raises InputError and related errors before anything of the table is read or written.
        """

    def match(self, execution: Execution) -> Matches:
        """Which rows change, exactly. Reads as little as it can.

        An engine that matches and writes a file in one pass may write it here, unless the execution has no
        transaction; ``Matches.staged`` says what was written.

        Raises KeyColumnError or PartitionMoveError for target rows that make the operation impossible.
        """

    def stage(self, execution: Execution, matches: Matches) -> Staged:
        """Write the files of the execution's plan, which is resolved; all of them, with those of matching."""
