"""Optimizing: the rows of each group sorted along a curve into new files, on disk if needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.common.names import check_columns
from intarsia.common.schema import is_nested
from intarsia.common.scratch import make_scratch_directory
from intarsia.core.change import Hits, Matches, Staged, StagedFile
from intarsia.core.curve import CURVES, choose_bits
from intarsia.core.intent import OptimizeIntent
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import OutputLocation, Progress
from intarsia.core.snapshot import DataFile
from intarsia.errors import InputError
from intarsia.kernel.compact import check_rows, read_pieces
from intarsia.kernel.duplicates import match_duplicates
from intarsia.kernel.output_format import OutputFormat
from intarsia.kernel.overlay import take_rows
from intarsia.kernel.partitioned_writer import write_file, write_partitioned
from intarsia.kernel.sort import Cuts, Order, sample_rows
from intarsia.kernel.spill import Portion, Sorter, Span, Spill, assign_spans, with_order
from intarsia.kernel.threads import map_in_order, share_threads
from intarsia.kernel.write import widen, widen_schema

ROW_GROUP_ROWS = 122_880
"""Small row groups, so that their bounds exclude much."""
_LEAST_BATCH = 1024


def stage_optimize(
    plan: Plan,
    tx: OutputLocation,
    *,
    threads: int,
    memory_bytes: int,
    progress: Progress,
    drops: Matches | None = None,
) -> Staged:
    """Rewrite the rows of each group, ordered along the curve over all of the group's new files.

    Duplicates are left out if the intent says so; ``drops`` are these, if they are known already. A group
    that does not fit in ``memory_bytes`` is sorted in temporary files of the staging directory, which are
    removed in every case. The table is not changed.

    Raises:
        ColumnNotFound: a clustering column is not there.
        InputError: a clustering column is nested, there are too many, or the curve is unknown.
        DamagedTable: a file has not the rows its footer says.
    """
    intent = plan.intent
    assert isinstance(intent, OptimizeIntent)
    order = make_order(plan)
    files = tuple(file for group in plan.groups for file in group.files)
    if drops is None and intent.removes_duplicates:
        drops = match_duplicates(
            plan,
            keys=intent.deduplicate_keys,
            order_by=intent.dedup_order_by,
            threads=threads,
            memory_bytes=memory_bytes,
            progress=progress,
            files=files,
        )
    outer, inner = share_threads(threads, len(plan.groups))
    tasks = list(_iterate_tasks(plan, tx, order, drops or Matches()))

    def run_task(task: _SortTask) -> list[StagedFile]:
        return replace(task, threads=inner, memory_bytes=max(memory_bytes // outer, 1)).write()

    staged: list[StagedFile] = []
    for number, written in enumerate(map_in_order(run_task, tasks, threads=outer)):
        staged += written
        progress("write files", number + 1, len(tasks))
    return Staged(added=tuple(staged))


def make_order(plan: Plan) -> Order:
    """The order that a plan asks for; raises for columns that rows cannot be ordered by."""
    intent = plan.intent
    assert isinstance(intent, OptimizeIntent)
    path, schema = plan.snapshot.root, plan.schema
    if intent.curve not in CURVES:
        known = ", ".join(map(repr, CURVES))
        raise InputError(
            f"{plan.operation}: curve={intent.curve!r} is not known.", path=path, hint=f"use one of {known}."
        )
    check_columns(intent.by, schema.names, operation=plan.operation, path=path)
    bad = [
        name
        for name in intent.by
        if is_nested(schema.field(name).type) or pa.types.is_interval(schema.field(name).type)
    ]
    if bad:
        raise InputError(
            f"{plan.operation}: {', '.join(f'{name!r} ({schema.field(name).type})' for name in bad)}"
            " has no order to cluster by.",
            path=path,
            hint="name columns of plain types.",
        )
    # Constant within a directory, so it orders nothing there.
    fixed = set(plan.snapshot.partition_columns)
    by = tuple(dict.fromkeys(name for name in intent.by if name not in fixed))
    if intent.curve != "linear" and len(by) > 1:
        choose_bits(len(by))
    return Order(by, intent.curve)


def _iterate_tasks(plan: Plan, tx: OutputLocation, order: Order, drops: Matches) -> Iterator[_SortTask]:
    first = 0
    for group in plan.groups:
        files = tuple(file for file in group.files if file.rows and file.path not in drops.dropped)
        skip = {file.path: drops.hits[file.path] for file in files if file.path in drops.hits}
        rows = sum(file.rows for file in files) - sum(len(hits) for hits in skip.values())
        new = NewFiles.of(group, plan, tx, order, first=first)
        yield _SortTask(plan, group, files, skip, rows, order, new)
        first += max(group.outputs, 1)


@dataclass(frozen=True, slots=True)
class NewFiles:
    """The new files of one group, for rows that are in order."""

    tx: OutputLocation
    group: FileGroup
    form: OutputFormat
    first: int
    """The number of the first new file."""
    partitioned: bool = False
    """Whether rows are partitioned while they are written; otherwise all belong to the group's partition."""

    @staticmethod
    def of(group: FileGroup, plan: Plan, tx: OutputLocation, order: Order, *, first: int = 0) -> NewFiles:
        assert isinstance(plan.intent, OptimizeIntent)
        in_place = plan.snapshot.replaces_in_place
        grouped = OutputFormat.of_group(group, plan, tx.txid)
        form = grouped
        if not in_place:
            form = OutputFormat.of(plan, tx, lineage=True, target_bytes=plan.intent.target_bytes)
        sorting = tuple((name, False, False) for name in order.by) if order.plain else ()
        most = grouped.layout.row_group_rows
        if plan.intent.options.row_group_size is None:
            most = min(most, ROW_GROUP_ROWS)
        layout = replace(form.layout, sorting=sorting, row_group_rows=most)
        if in_place:
            layout = replace(layout, plain=frozenset())
        return NewFiles(tx, group, replace(form, layout=layout), first, not in_place)

    def choose_row_group_rows(self, rows: int) -> int:
        """The rows per row group of a file of this many rows, so that row groups are about equal."""
        most = self.form.layout.row_group_rows
        return max(1, -(-rows // max(1, -(-rows // most))))

    def write(self, number: int, rows: int, pieces: Iterable[pa.Table]) -> list[StagedFile]:
        """Write one new file of sorted rows; indices of dictionaries may be wide.

        If rows are partitioned, one file for each of their partitions.
        """
        form, ordinal = self.form, self.first + number
        label = f"optimized-{ordinal:05d}"
        if self.partitioned:
            return write_partitioned(form, self.tx, label, pieces)
        partition = self.group.partition
        return [
            write_file(
                form,
                self.tx,
                label,
                pieces,
                path=self.tx.new_file_path(partition, "optimized", ordinal, beside=self.group.files[0]),
                partition=partition,
                layout=replace(form.layout, row_group_rows=self.choose_row_group_rows(rows), sorting=()),
            )
        ]

    def write_portions(
        self, portions: Iterable[Portion], outputs: int, sorter: Sorter, *, threads: int = 1
    ) -> list[StagedFile]:
        """Write ``outputs`` files of about equal rows, sorted portion by portion; each has to fit."""

        def write(item: tuple[int, list[Span]]) -> list[StagedFile]:
            number, mine = item
            rows = sum(span.stop - span.start for span in mine)
            size = self.form.layout.row_group_rows
            return self.write(
                number, rows, (piece for span in mine for piece in sorter.read_pieces(span, size))
            )

        written = map_in_order(write, enumerate(assign_spans(list(portions), outputs)), threads=threads)
        return [staged for files in written for staged in files]

    @contextmanager
    def spill(self, schema: pa.Schema) -> Iterator[Spill]:
        """A directory for spilled rows that no other task or attempt uses."""
        staging = self.tx.staging
        name = f"sort-{self.first:05d}{staging.attempt}"
        with ExitStack() as stack:
            filesystem, directory = staging.filesystem, staging.directory
            if staging.discards:  # spilled rows are read again, so they need a real disk
                filesystem, directory = pafs.LocalFileSystem(), stack.enter_context(make_scratch_directory())
            yield stack.enter_context(Spill(filesystem, f"{directory}/{name}", schema))


@dataclass(frozen=True, slots=True)
class _SortTask:
    """One group of files to be ordered."""

    plan: Plan
    group: FileGroup
    files: tuple[DataFile, ...]
    """The files with rows that stay."""
    skip: dict[str, Hits]
    rows: int
    order: Order
    new: NewFiles
    threads: int = 1
    memory_bytes: int = 0

    def write(self) -> list[StagedFile]:
        """The new files. A group without rows becomes one empty file, unless duplicates emptied it."""
        if not self.rows and self.group.rows:
            return []
        if not self.order.by:
            staged = self._write_unsorted()
        else:
            task = self._with_encoded()
            tables = task._read_into_memory()
            staged = self._sort_on_disk() if tables is None else task._sort_in_memory(tables)
        check_rows(staged, self.rows, self.group)
        return staged

    def _with_encoded(self) -> _SortTask:
        """The task for rows in memory, where columns may be dictionaries."""
        if self.new.partitioned:
            return self
        form = self.new.form.with_encoded(self.files, plain=self.order.by)
        return replace(self, new=replace(self.new, form=form))

    @property
    def _schema(self) -> pa.Schema:
        return widen_schema(self.new.form.given)

    def _read_pieces(self, file: DataFile, batch_rows: int | None = None) -> Iterator[pa.Table]:
        rows = self.plan.intent.options.batch_rows or batch_rows
        form, wide = self.new.form, self._schema
        pieces = read_pieces(
            file,
            self.plan,
            form.schema,
            skip=self.skip.get(file.path),
            encoded=form.encoded,
            batch_rows=rows,
        )
        for piece in pieces:
            yield widen(piece, wide)

    @property
    def _bytes(self) -> int:
        return count_stored_bytes(self.files)

    def _find_edges(self) -> list[int]:
        """The first row of each new file, and the number of all rows."""
        count = max(1, min(self.group.outputs, self.rows))
        return [self.rows * number // count for number in range(count + 1)]

    def _read_into_memory(self) -> list[pa.Table] | None:
        """All rows; None as soon as they exceed the memory."""
        if self._bytes > self.memory_bytes:
            return None
        size = 0
        tables: list[pa.Table] = [pa.Table.from_batches([], self._schema)]
        # Footers have encoded sizes: a value that a dictionary stores once may occur a thousand times.
        with closing(
            map_in_order(lambda f: list(self._read_pieces(f)), self.files, threads=self.threads)
        ) as read:
            for pieces in read:
                tables += pieces
                size += sum(piece.nbytes for piece in pieces)
                if size > self.memory_bytes:
                    return None
        return tables

    def _sort_in_memory(self, tables: list[pa.Table]) -> list[StagedFile]:
        table, indices = with_order(tables, self.order)
        edges = self._find_edges()

        def write(number: int) -> list[StagedFile]:
            mine = indices.slice(edges[number], edges[number + 1] - edges[number])
            size = self.new.choose_row_group_rows(len(mine))
            pieces = (take_rows(table, mine.slice(start, size)) for start in range(0, len(mine), size))
            return self.new.write(number, len(mine), pieces)

        written = map_in_order(write, range(len(edges) - 1), threads=self.threads)
        return [staged for files in written for staged in files]

    def _write_unsorted(self) -> list[StagedFile]:
        """Write the rows file by file, if there is no column to order by."""
        pieces = (piece for file in self.files for piece in self._read_pieces(file))
        left: list[pa.Table] = []

        def take_next(count: int) -> Iterator[pa.Table]:
            while count:
                piece = left.pop() if left else next(pieces)
                yield piece.slice(0, count)
                if piece.num_rows > count:
                    left.append(piece.slice(count))
                count -= min(count, piece.num_rows)

        edges = enumerate(pairwise(self._find_edges()))
        written = [self.new.write(number, high - low, take_next(high - low)) for number, (low, high) in edges]
        return [staged for files in written for staged in files]

    def _sort_on_disk(self) -> list[StagedFile]:
        """Spill rows into portions along the order, then sort and write portion by portion."""
        sample = sample_rows(self.files, self.order.by, self.plan, threads=self.threads)
        order = self.order.with_boundaries(sample)
        share = max(self.memory_bytes // self.threads, 1)
        sorter = Sorter(order, share, self.threads)
        cuts = Cuts.of(sample, order, parts=sorter.count_portions(self._bytes, least=self.group.outputs))
        batch_rows = max(_LEAST_BATCH, self.rows * share // (4 * max(self._bytes, 1)))
        sources = [partial(self._read_pieces, file, batch_rows) for file in self.files]
        with self.new.spill(self._schema) as spill:
            spilled = sorter.deal(spill, cuts, sources)
            portions = [small for portion in spilled for small in sorter.split(spill, portion)]
            return self.new.write_portions(portions, self.group.outputs, sorter, threads=self.threads)


def count_stored_bytes(files: Iterable[DataFile]) -> int:
    """The uncompressed size of files by their footers; the values in memory may be larger."""
    return sum(_count_stored_bytes(file) for file in files)


def _count_stored_bytes(file: DataFile) -> int:
    footer = file.footer
    if footer is None:
        return file.size * 4
    return sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
