"""The ports of the core: what it asks of a table, of its files and of an engine. They meet in values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.requests import Requests
from intarsia.core.change import Change, Committed, Staged, Staging
from intarsia.core.snapshot import DataFile, Snapshot

if TYPE_CHECKING:
    from intarsia.common.source import IngestedSource
    from intarsia.core.change import Matches
    from intarsia.core.intent import Intent
    from intarsia.core.plan import Plan
    from intarsia.core.prepare import Prepared

J = TypeVar("J")
R = TypeVar("R")
ROW_ID = "_row_id"
"""The identity of a row where the table keeps one; never a column of the dataset's schema."""
LAST_UPDATED = "_last_updated_sequence_number"
LINEAGE = (ROW_ID, LAST_UPDATED)
FIELD_ID = b"PARQUET:field_id"
_LINEAGE_IDS = ((ROW_ID, b"2147483540"), (LAST_UPDATED, b"2147483539"))

Progress = Callable[[str, int, int], None]
"""Called with the step's name, how much of it is done, and how much there is."""


class Distribute(Protocol):
    """Runs a function on the machines of an engine; ``distribute`` of an engine that has executors."""

    def __call__(
        self, work: Callable[[Any, J], R], jobs: Sequence[J], *, shared: Any, weights: Sequence[int]
    ) -> list[R]:
        """``work(shared, job)`` for every job, results in the jobs' order; all of it pickles."""


class OutputLocation(Protocol):
    """Where new files are written and what they will be called; the part of a transaction that travels.

    What :meth:`Transaction.output` returns is a value: it pickles and works in another process.
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
        """Raise where no change of the table could be committed; transactions call it first.

        Writes nothing, and asks for no permission to write.
        """

    def check_change(self, snapshot: Snapshot, change: Change, staging: Staging | None = None) -> None:
        """Raise where this change of this state could never be committed, whoever else writes; commits call
        it.

        With ``staging``, where the change's files are, these are read as well. Writes nothing.
        """

    @property
    def commit_attempts(self) -> int | None:
        """How often an operation is planned when other writers come first, at the most; None where they wait
        at a lock or the table tries again by itself, so that the caller's number does."""

    @property
    def requests(self) -> Requests | None:
        """What was sent to the object store since the table was opened; None where it is not counted."""

    def last_batch(self, app_id: str) -> int | None:
        """The highest batch that was committed with this ``app_id``, or None."""

    def recover(self, *, run_id: str | None = None) -> tuple[str, ...]:
        """Finish or undo what a crash left; the sentences say what was done.

        ``run_id`` names a run whose process is gone: what it committed is finished also where the work of
        crashed writers cannot be distinguished from that of running ones.
        """


# Engines


@dataclass(frozen=True, slots=True)
class Execution:
    """What an engine needs to match and stage one operation."""

    plan: Plan
    prepared: Prepared = field(repr=False)
    tx: Transaction | None = field(repr=False)
    """Where files are written; None where rows are only matched."""
    progress: Progress = field(repr=False)

    def with_plan(self, plan: Plan) -> Execution:
        """The same with another plan, such as the one that matching has resolved."""
        return replace(self, plan=plan)

    @property
    def transaction(self) -> Transaction:
        """The transaction, where something is to be written."""
        assert self.tx is not None
        return self.tx

    @property
    def output(self) -> OutputLocation | None:
        """Where files are written, as a value that travels; None where nothing is."""
        return None if self.tx is None else self.tx.output()


class Engine(Protocol):
    """Finds rows and writes them to files; knows no tables."""

    @property
    def name(self) -> str: ...

    def ingest(self, source: Any, **options: Any) -> IngestedSource:
        """Take a source in, reading it once; a context manager that lets go of it."""

    def prepare(self, intent: Intent, snapshot: Snapshot, source: IngestedSource | None) -> Prepared:
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


# The files of a table


def with_lineage(schema: pa.Schema) -> pa.Schema:
    """A table's columns, followed by the lineage columns."""
    fields = [pa.field(name, pa.int64(), metadata={FIELD_ID: number}) for name, number in _LINEAGE_IDS]
    return pa.schema([*schema, *fields], schema.metadata)


class ColumnProjection(Protocol):
    """One file's columns seen as the table's."""

    @property
    def stored(self) -> frozenset[str]:
        """The table's columns that the file itself holds, at least in part."""

    def list_physical_columns(self, columns: list[str]) -> list[str]:
        """The file's own columns to be read for some of the table's."""

    def project(
        self, table: pa.Table, columns: list[str], *, start: int, rows: pa.Int64Array | None = None
    ) -> pa.Table:
        """The rows as columns of the table; ``start`` is the position of the first row.

        With ``rows``, the table has only these of the rows from ``start`` on, which is row 0.
        Columns the file lacks are their default, or NULL. With lineage columns asked for, those too.
        """


class FileScanTask(Protocol):
    """What a table knows of one file beyond its bytes. A value: it pickles, and works in another process."""

    def project_columns(self, physical: pa.Schema, wanted: pa.Schema) -> ColumnProjection:
        """How columns of ``physical`` (with field ids, where the file has them) become ``wanted`` ones."""

    def find_leaf(self, footer: pq.FileMetaData, column: str) -> int | None:
        """Where a flat top-level column's chunk is in a footer; None where it has no chunk of its own."""

    def get_bounds(self, column: str) -> tuple[Any, Any, int | None]:
        """Lower bound, upper bound and NULLs of a top-level column over the whole file; None is unknown.

        NULLs are counted over all ``records``. Temporal values are integers in the unit of the dataset's
        type.
        """

    def get_constant(self, column: str) -> tuple[Any] | None:
        """The one value that a top-level column has in every row, as its partition says; None is unknown.

        In the form of ``bounds``; the value may be NULL.
        """

    def read_deleted(self, parquet: pq.ParquetFile, filesystem: pafs.FileSystem) -> pa.Int64Array | None:
        """The positions of rows that were deleted, ascending; None for none."""

    @property
    def has_deletes(self) -> bool:
        """Whether any delete may apply to the file."""

    @property
    def record_count(self) -> int:
        """The rows the file holds, deleted ones included."""

    @property
    def has_exact_count(self) -> bool:
        """Whether the file's ``rows`` are known to be exact without reading its deletes."""
