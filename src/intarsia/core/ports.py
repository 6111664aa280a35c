"""The two ports of the core: what it asks of a table and of an engine. They meet only in values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from intarsia.core.change import Change, Committed, Staging
from intarsia.core.files import DataFile, Snapshot

if TYPE_CHECKING:
    from intarsia.core.matches import Matches
    from intarsia.core.plan import Plan
    from intarsia.core.prepare import Prepared

Progress = Callable[[str, int, int], None]
"""Called with the step's name, how much of it is done, and how much there is."""


class Transaction(Protocol):
    """One attempt to change a table, begun by :meth:`Table.transaction`."""

    @property
    def txid(self) -> str: ...

    @property
    def snapshot(self) -> Snapshot:
        """The state the attempt starts from."""

    @property
    def staging(self) -> Staging:
        """Where to write; created on first use."""

    def place(
        self,
        partition: Mapping[str, Any],
        prefix: str,
        ordinal: int,
        *,
        beside: DataFile | None = None,
    ) -> str:
        """The table path of a new file with these typed partition values.

        ``beside`` is a file whose rows it takes over, for tables whose files lie where their writer put
        them.
        """

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

    def recover(self) -> tuple[str, ...]:
        """Finish or undo what a crash left; the sentences say what was done."""


class Engine(Protocol):
    """Moves rows; knows no tables."""

    @property
    def name(self) -> str: ...

    def match(self, plan: Plan, prepared: Prepared, progress: Progress) -> Matches:
        """Which rows change, exactly. Reads as little as it can and writes nothing.

        Raises KeyColumnError or PartitionMoveError for target rows that make the operation impossible.
        """

    def stage(
        self, plan: Plan, matches: Matches, prepared: Prepared, tx: Transaction, progress: Progress
    ) -> Change:
        """Write the files that come to staging, and say which files go."""
