"""The two ports of the core: what it asks of a table and of an engine. They meet only in values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from intarsia.core.change import Change, Committed, Staging
from intarsia.core.files import DataFile, Snapshot

if TYPE_CHECKING:
    from intarsia.common.source import Source
    from intarsia.core.intent import Intent
    from intarsia.core.matches import Matches
    from intarsia.core.plan import Plan
    from intarsia.core.prepare import Prepared

Progress = Callable[[str, int, int], None]
"""Called with the step's name, how much of it is done, and how much there is."""


class Workplace(Protocol):
    """Where new files are written and what they will be called; the part of a transaction that travels.

    What :meth:`Transaction.workplace` gives is a value: it pickles, and works in another process.
    """

    @property
    def txid(self) -> str: ...

    @property
    def staging(self) -> Staging:
        """Where to write; the directory exists."""

    def place(
        self, partition: Mapping[str, Any], prefix: str, ordinal: int, *, beside: DataFile | None = None
    ) -> str:
        """The table path of a new file with these typed partition values.

        ``beside`` is a file whose rows it takes over, for tables whose files lie where their writer put
        them.
        """

    def locate(self, path: str) -> str:
        """Where on the staging file system a file of this table path is, for files that are written where
        they stay; its directory exists."""


class Transaction(Workplace, Protocol):
    """One attempt to change a table, begun by :meth:`Table.transaction`."""

    @property
    def snapshot(self) -> Snapshot:
        """The state the attempt starts from."""

    def workplace(self) -> Workplace:
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

    def recover(self, *, run_id: str | None = None) -> tuple[str, ...]:
        """Finish or undo what a crash left; the sentences say what was done.

        ``run_id`` names a run whose process is gone: what it committed is finished also where nothing
        else can be told from the work of writers alive.
        """


class Engine(Protocol):
    """Moves rows; knows no tables."""

    @property
    def name(self) -> str: ...

    def adopt(self, source: Any, **options: Any) -> Source:
        """Take a source in, reading it once; a context manager that lets go of it."""

    def prepare(self, intent: Intent, snapshot: Snapshot, source: Source | None) -> Prepared:
        """Settle every name and type and check the source's rows.

        Raises InputError and its kin before anything of the table is read or written.
        """

    def match(self, plan: Plan, prepared: Prepared, progress: Progress) -> Matches:
        """Which rows change, exactly. Reads as little as it can and writes nothing.

        Raises KeyColumnError or PartitionMoveError for target rows that make the operation impossible.
        """

    def execute(
        self, plan: Plan, prepared: Prepared, tx: Transaction, progress: Progress
    ) -> tuple[Plan, Change]:
        """Match, and write the files that come to staging; the settled plan, and what takes whose place."""

    def measuring(self, plan: Plan) -> AbstractContextManager[Staging | None]:
        """Staging for a dry run that writes what the run would, just so, and leaves nothing behind.

        None where there is no such place.
        """
