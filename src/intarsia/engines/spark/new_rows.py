"""New rows of a large source: tasks choose them part by part, the driver cuts them into files.

Which file gets a row, and in which order, follows from the row's number in the source alone. So the same
source gives the same files, however its keys were matched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.keys import arange, mark_numbers
from intarsia.core.partitioner import Partitioner, PartitionKey
from intarsia.core.plan import Plan
from intarsia.core.ports import Transaction
from intarsia.core.refusals import ValuesRefused
from intarsia.core.rule import Insert
from intarsia.engines.spark.copies import TASK_ROWS, split_new_rows
from intarsia.engines.spark.large_source import ArrowStore, LargeSource, read_pieces, restore_types
from intarsia.engines.spark.source import PartSlice, SpoolPart
from intarsia.engines.spark.tasks import TaskRunner
from intarsia.kernel.match import MergeMatcher
from intarsia.kernel.partitioned_writer import NewFile, NewRowWriter

FILE_BYTES = 256 << 20
"""Maximum bytes in memory of the rows of a new file."""
PARTITION_BYTES = 32 << 20
"""Bytes in memory of new rows of one directory that are worth a task, and so a file, of their own."""
_ROWS = pa.schema([("row", pa.int64())])
_REFUSED = PartitionKey(tag="values are refused")
"""In place of the partition of rows whose values cannot be written."""


@dataclass(frozen=True, slots=True)
class NewRowWork:
    """Rows of a source that have found no match."""

    store: ArrowStore
    notes: tuple[str, ...]
    """Notes of the rows that found one."""
    kept: tuple[str, ...] | None
    """Notes of the only rows that count; None: all of them."""
    schema: pa.Schema
    """The columns that decide which rows are new, and where they go."""
    matcher: MergeMatcher | None
    """Whose clauses choose among the rows; without one all of them are new."""
    writer: NewRowWriter
    partitioner: Partitioner | None
    """Divides the rows among partitions; None where they are only counted."""


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows of one part that one clause inserts into one partition; their numbers are a batch of a note."""

    part: int
    clause: int
    partition: PartitionKey
    rows: int
    noted: tuple[str, int]


def choose_new_rows(work: NewRowWork, job: tuple[int, SpoolPart]) -> list[NewRows]:
    """Which rows of one part are new, by clause and partition; memory: eight bytes for each."""
    number, part = job
    groups: dict[tuple[int, Any], tuple[PartitionKey, list[pa.Array]]] = {}
    left = _find_rows_left(work, number, part)
    for start, table in _read_deciding(work, part) if len(left) else ():
        low, high = pc.search_sorted(left, pa.array([start, start + table.num_rows], pa.int64())).to_pylist()
        mine = pc.subtract(left.slice(low, high - low), pa.scalar(start, pa.int64()))
        for clause, partition, rows in _divide_new_rows(work, table, mine):
            held = groups.setdefault((clause, partition.key), (partition, []))[1]
            held.append(pc.add(rows, pa.scalar(start, pa.int64())))
    merged = [
        (clause, partition, pa.concat_arrays(rows)) for (clause, _), (partition, rows) in groups.items()
    ]
    if not merged:
        return []
    location = ""
    if work.partitioner is not None:
        location = work.store.put(_ROWS, (pa.record_batch([rows], schema=_ROWS) for *_, rows in merged))
    return [
        NewRows(number, clause, partition, len(rows), (location, place))
        for place, (clause, partition, rows) in enumerate(merged)
    ]


def _find_rows_left(work: NewRowWork, number: int, part: SpoolPart) -> pa.Array:
    """The rows of a part that count and have found no match, ascending."""
    left = None if work.kept is None else _mark_noted(work.store, work.kept, number, part.rows)
    if work.notes:
        unmatched = pc.invert(_mark_noted(work.store, work.notes, number, part.rows))
        left = unmatched if left is None else pc.and_(left, unmatched)
    return arange(part.rows) if left is None else pc.indices_nonzero(left).cast(pa.int64())


def _mark_noted(store: ArrowStore, notes: Sequence[str], number: int, rows: int) -> pa.Array:
    """Which rows of a part some notes have."""
    noted = [batch.column("row") for location in notes for batch in store.get(location, [number])]
    return mark_numbers(pa.chunked_array(noted, pa.int64()), rows)


def _read_deciding(work: NewRowWork, part: SpoolPart) -> Iterator[tuple[int, pa.Table]]:
    """The deciding columns of a part, piece by piece, each with the number of its first row."""
    if not work.schema.names:  # of a table without columns only its length would be asked
        yield 0, pa.table({"row": arange(part.rows)})
        return
    operation, path, start = work.writer.operation, work.writer.snapshot.root, 0
    for table in read_pieces(part, work.store.filesystem, columns=work.schema.names):
        yield start, restore_types(table, work.schema, operation=operation, path=path)
        start += table.num_rows


def _divide_new_rows(
    work: NewRowWork, table: pa.Table, rows: pa.Array
) -> Iterator[tuple[int, PartitionKey, pa.Array]]:
    """Some rows of a table by the clause that takes them and the partition they go to."""
    inserts = [(Insert(), rows)] if work.matcher is None else work.matcher.choose_inserts(table, rows)
    for action, taken in inserts:
        clause = 0 if work.matcher is None else _clause_number(work.matcher, action)
        if work.partitioner is None:
            yield clause, PartitionKey(), taken
            continue
        try:
            parts = list(split_new_rows(work.writer, work.partitioner, action, taken, table))
        except ValuesRefused:  # to be counted by the task that writes, wherever the rows would have gone
            parts = [(_REFUSED, taken)]
        for partition, mine in parts:
            yield clause, partition, mine


def _clause_number(matcher: MergeMatcher, action: Insert) -> int:
    return next(number for number, one in enumerate(inserting_actions(matcher)) if one is action)


def inserting_actions(matcher: MergeMatcher | None) -> list[Insert]:
    """What clauses make of new rows; without clauses they are inserted as they are."""
    if matcher is None:
        return [Insert()]
    return [
        clause.action
        for clause in matcher.rule.list_clauses("source_only")
        if isinstance(clause.action, Insert)
    ]


# ---------------------------------------------------------------------------------------------------
# On the driver: which files they become.


@dataclass(frozen=True, slots=True)
class NewRowSlice:
    """Some of the noted new rows of a part, which go to one file."""

    part: int
    noted: tuple[str, int]
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that new rows become, or a share of them where the table has a partition spec."""

    file: NewFile
    rows: int
    noted: tuple[NewRowSlice, ...] = ()
    """Where the numbers of its rows are."""
    slices: tuple[PartSlice, ...] = ()
    """Where its rows are, in place of that, when they follow each other in the source."""


@dataclass(frozen=True, slots=True)
class FilePlanner:
    """Cuts new rows into files."""

    plan: Plan
    large: LargeSource
    tasks: int
    prefix: str

    def plan_files(
        self, chosen: Iterable[NewRows], actions: Sequence[Insert], tx: Transaction
    ) -> list[PlannedFile]:
        """The files of rows that tasks have chosen; those of one partition one after the other."""
        groups: dict[tuple[int, int], list[NewRows]] = {}
        order: dict[Any, int] = {}
        for one in chosen:
            place = order.setdefault(one.partition.key, len(order))
            groups.setdefault((place, one.clause), []).append(one)
        files: list[PlannedFile] = []
        for (_, clause), members in sorted(groups.items(), key=lambda group: group[0]):
            most = self._most_rows(sum(one.rows for one in members), members[0].partition)
            for slices in _cut_noted(members, most):
                file = self._new_file(actions[clause], members[0].partition, len(files), tx)
                files.append(PlannedFile(file, sum(one.rows for one in slices), tuple(slices)))
        return files

    def plan_slices(self, tx: Transaction) -> list[PlannedFile]:
        """The files of all rows of the source in their order, of a table without partitions."""
        total = self.large.spool.rows
        most = self._most_rows(total, PartitionKey())
        if not self.plan.snapshot.replaces_in_place:  # a slice is read with the row groups it is in
            most = int(PARTITION_BYTES / max(self.large.row_bytes, 1)) + 1
        return [
            PlannedFile(
                self._new_file(Insert(), PartitionKey(), number, tx),
                min(most, total - start),
                slices=tuple(self.large.spool.find_rows(start, start + most)),
            )
            for number, start in enumerate(range(0, total, most))
        ]

    def _most_rows(self, rows: int, partition: PartitionKey) -> int:
        """The most rows of a file; those of a directory are shared among tasks where they are many."""
        if not self.plan.snapshot.replaces_in_place:
            return TASK_ROWS  # whose writer makes few files of them
        row_bytes = max(self.large.row_bytes, 1)
        most = FILE_BYTES / row_bytes
        if not partition.values:
            most = min(most, max(PARTITION_BYTES / row_bytes, rows / self.tasks))
        return max(1, min(int(most) + 1, self.plan.intent.options.rows_per_file))

    def _new_file(self, action: Insert, partition: PartitionKey, number: int, tx: Transaction) -> NewFile:
        none = arange(0)
        if not self.plan.snapshot.replaces_in_place or partition == _REFUSED:
            return NewFile(none, action, {}, "", "")
        path = tx.new_file_path(partition.values, self.prefix, number)
        return NewFile(none, action, partition.values, path, f"{self.prefix}-{number:05d}")


def _cut_noted(members: Iterable[NewRows], most: int) -> Iterator[list[NewRowSlice]]:
    """The rows of some notes, one after the other, in shares of so many."""
    share: list[NewRowSlice] = []
    room = most
    for one in members:
        start = 0
        while start < one.rows:
            rows = min(room, one.rows - start)
            share.append(NewRowSlice(one.part, one.noted, start, rows))
            start, room = start + rows, room - rows
            if not room:
                yield share
                share, room = [], most
    if share:
        yield share


def choose_rows(runner: TaskRunner, work: NewRowWork, large: LargeSource) -> list[NewRows]:
    """Which rows of a source are new, by part, clause and partition."""
    weights = [part.size for part in large.spool.parts]
    done = runner.run_each(choose_new_rows, list(enumerate(large.spool.parts)), shared=work, weights=weights)
    return [one for part in done for one in part]
