"""New files of rows, each with the rows of one partition: how rows become new files, in every operation.

There are two entry points, because the files are known either before any row is written or only afterwards:

- :class:`PartitionedWriter` takes rows as a stream, in any order. It has a file open for each partition and
  closes it when it is large enough. Tables whose files are never replaced in place are written in this way:
  their files are cut by size, which is not known before the rows are encoded.
- :class:`NewRowWriter` takes numbers of source rows and plans all new files of a directory first, by
  partition and ``rows_per_file``, with their final names. Each file is then written by itself, in any thread
  or Spark task, and a task that runs twice writes the same rows.

Both ask a :class:`~intarsia.core.partitioner.Partitioner` which partition rows belong to, and write each file
by :class:`OutputFormat` and :class:`OpenFile`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa

from intarsia.common.log import get_logger
from intarsia.common.schema import check_categories, conform_table
from intarsia.core.change import StagedFile
from intarsia.core.intent import WriteOptions
from intarsia.core.keys import to_array
from intarsia.core.layout import Layout
from intarsia.core.partitioner import HivePartitioner, PartitionKey
from intarsia.core.ports import OutputLocation
from intarsia.core.refusals import Refusal, ValuesRefused
from intarsia.core.rule import Assign, Insert
from intarsia.core.snapshot import Snapshot, open_limit
from intarsia.errors import InputError
from intarsia.kernel.output_format import OutputFormat
from intarsia.kernel.overlay import take_rows
from intarsia.kernel.rewrite import assign_values
from intarsia.kernel.write import FileWriter, NarrowingSink, RowGroups

log = get_logger(__name__)

SLICE_ROWS = 262_144
"""Source rows that are gathered at once."""
BUFFERED_BYTES = 128 << 20
"""The most bytes of rows that are not written yet, over all partitions of one writer."""
_LEAST_GROUP_ROWS = 100


@dataclass(slots=True)
class OpenFile:
    """A file that is being written, and the rows of its next row group."""

    part: PartitionKey
    path: str
    writer: FileWriter
    row_groups: RowGroups
    rows: int = 0
    begun: bool = False
    """Whether it counts as an open handle."""

    @staticmethod
    def of(
        form: OutputFormat, writer: FileWriter, part: PartitionKey, path: str, layout: Layout | None = None
    ) -> OpenFile:
        """``layout`` is that of row groups, if it is not the file's."""
        sink = NarrowingSink(writer, form.given)
        return OpenFile(part, path, writer, RowGroups(sink, layout or form.layout))

    @property
    def buffered(self) -> int:
        return self.row_groups.waiting_bytes

    def add(self, table: pa.Table) -> None:
        if table.num_rows:
            self.row_groups.add(table)
            self.rows += table.num_rows

    def close(self) -> StagedFile:
        """Write the last row group and the footer."""
        try:
            self.row_groups.finish()
            staged = self.writer.close(self.path, self.part.values)
        finally:
            self.writer.abandon()
        return replace(staged, tag=self.part.tag)


def write_file(
    form: OutputFormat,
    output: OutputLocation,
    label: str,
    pieces: Iterable[pa.Table],
    *,
    path: str,
    partition: Mapping[str, Any],
    layout: Layout | None = None,
) -> StagedFile:
    """Write one file of the staging directory with rows of one partition, in their order; also without rows.

    Memory: a row group.

    Args:
        form: how the file is written.
        output: where.
        label: unique within the transaction.
        pieces: rows in the types of the form's schema; indices of dictionaries may be wider.
        path: the name that the file will have inside the table.
        partition: the typed partition values.
        layout: that of row groups, if it is not the file's.
    """
    staging = output.staging
    writer = form.open(staging.make_location(label), staging.filesystem)
    try:
        file = OpenFile.of(form, writer, PartitionKey(partition), path, layout)
        for piece in pieces:
            file.add(piece)
        return file.close()
    finally:
        writer.abandon()


@dataclass(frozen=True, slots=True)
class WholeFile:
    """The remaining rows of a file, which may become one new file of the same partition."""

    part: PartitionKey
    write: Callable[[str, str], StagedFile | None]
    """``write(path, location)`` writes that file; None where the rows have to be written one by one."""
    make_pieces: Callable[[], Iterator[pa.Table | ValuesRefused]]
    """The rows."""


Piece: TypeAlias = pa.Table | ValuesRefused | WholeFile
"""Rows, the values that their columns refuse, or rows that are a whole file."""


class PartitionedWriter:
    """Takes rows in any order and writes each to a file of its partition.

    Memory: a row group of each partition, and no more than ``BUFFERED_BYTES`` over all of them. Files
    beyond those that may be open at once are closed with the rows they have. No file is part of the table
    until a commit names it.
    """

    def __init__(self, form: OutputFormat, tx: OutputLocation, label: str) -> None:
        """``label`` must be unique within the transaction."""
        self._form = form
        self._tx = tx
        self._label = label
        self._open: dict[Any, OpenFile] = {}
        """By the key of the partition."""
        self._ordinal = 0
        self._buffered = 0
        self._begun = 0
        self._most_begun = _limit_open_files()
        self._done: list[StagedFile] = []
        self._row_bytes: float | None = None
        """Stored bytes per row of the last file that was finished."""

    def add(self, table: pa.Table) -> None:
        """Write rows, in any order; columns that they lack are NULL."""
        if not table.num_rows:
            return
        table = _as_stored(table, self._form)
        for part, rows in self._form.partitioner.partition_rows(table):
            self._add(part, table if rows is None else take_rows(table, rows))
        if self._buffered > BUFFERED_BYTES:
            self._flush()

    def copy(self, file: WholeFile) -> bool:
        """Write the rows of a file as one new file; False where they have to be written one by one."""
        path = self._make_path(file.part)
        location = self._tx.filesystem_path(path)
        staged = file.write(path, location)
        if staged is None:
            with suppress(FileNotFoundError):
                self._tx.staging.filesystem.delete_file(location)
            return False
        self._done.append(replace(staged, tag=file.part.tag))
        return True

    def close(self) -> list[StagedFile]:
        """Finish every file and describe them."""
        for state in list(self._open.values()):
            self._finish(state.part)
        return self._done

    def abandon(self) -> None:
        """Close the files after an error."""
        for state in self._open.values():
            with suppress(OSError):
                state.writer.abandon()

    def _add(self, part: PartitionKey, table: pa.Table) -> None:
        """Add at most a row group at a time, so that a file is closed as soon as it is large enough."""
        most = self._form.max_rows
        while table.num_rows:
            state = self._open_file(part)
            step = self._group_rows(state, table)
            taken = max(1, step - state.row_groups.waiting_rows)
            if most is not None:
                taken = min(taken, most - state.rows)
            before = state.buffered
            state.add(table.slice(0, taken))
            if state.row_groups.waiting_rows >= step:
                state.row_groups.finish()
            self._buffered += state.buffered - before
            table = table.slice(taken)
            if state.writer.size >= self._form.target_bytes or state.rows == most:
                self._finish(part)
            else:
                self._count_handle(state)

    def _group_rows(self, state: OpenFile, table: pa.Table) -> int:
        """How many rows the next row group has, by the sizes of row groups and files that the table asks for.

        The size of a row is that of rows in this file or the one before, else in the table's files; for an
        empty table it is the size in memory, which is larger than the stored one.
        """
        layout = self._form.layout
        if layout.row_group_bytes is None:
            return layout.row_group_rows
        row_bytes = self._row_bytes
        if state.writer.rows:
            row_bytes = state.writer.size / state.writer.rows
        if row_bytes is None:
            row_bytes = layout.row_bytes or table.nbytes / table.num_rows
        target = self._form.target_bytes
        room = max(target - state.writer.size, target // 8)  # no row group of a few rows
        wanted = min(layout.row_group_bytes, room)
        return max(_LEAST_GROUP_ROWS, min(layout.row_group_rows, int(wanted / max(row_bytes, 1e-3))))

    def _count_handle(self, state: OpenFile) -> None:
        """Count a file that has written bytes as open; close it if too many are."""
        if state.begun or not state.writer.size:
            return
        if self._begun == self._most_begun:
            self._finish(state.part)
        else:
            state.begun = True
            self._begun += 1

    def _open_file(self, part: PartitionKey) -> OpenFile:
        state = self._open.get(part.key)
        if state is None:
            form, tx = self._form, self._tx
            path = self._make_path(part)
            writer = form.open(tx.filesystem_path(path), tx.staging.filesystem, count_nans=True)
            state = OpenFile.of(form, writer, part, path)
            self._open[part.key] = state
        return state

    def _make_path(self, part: PartitionKey) -> str:
        label = f"{self._label}{self._tx.staging.attempt}"
        self._ordinal += 1
        return self._tx.new_file_path(part.values, label, self._ordinal - 1)

    def _finish(self, part: PartitionKey) -> None:
        state = self._open.pop(part.key)
        self._buffered -= state.buffered
        self._begun -= state.begun
        staged = state.close()
        self._row_bytes = staged.size / max(staged.rows, 1)
        self._done.append(staged)

    def _flush(self) -> None:
        """Write the largest row groups, until half of ``BUFFERED_BYTES`` is free."""
        for state in sorted(self._open.values(), key=lambda one: -one.buffered):
            if self._buffered <= BUFFERED_BYTES // 2:
                return
            self._buffered -= state.buffered
            state.row_groups.finish()
            self._count_handle(state)


def write_partitioned(
    form: OutputFormat, tx: OutputLocation, label: str, pieces: Iterable[Piece]
) -> list[StagedFile]:
    """Write pieces of rows to new files of their partitions; ``label`` as in :class:`PartitionedWriter`.

    A piece may be the values that its columns refuse; then no file is written, and only these are collected.
    """
    out = PartitionedWriter(form, tx, label)
    refused: list[Refusal] = []
    try:
        for piece in _copy_whole_files(pieces, out, refused):
            if isinstance(piece, ValuesRefused):
                refused += piece.refusals
            elif not refused:
                out.add(piece)
        return [StagedFile.make_unwritten(refused)] if refused else out.close()
    finally:
        out.abandon()


def _copy_whole_files(
    pieces: Iterable[Piece], out: PartitionedWriter, refused: list[Refusal]
) -> Iterator[pa.Table | ValuesRefused]:
    """What is left of the pieces, once those that can be are copied as whole files."""
    for piece in pieces:
        if not isinstance(piece, WholeFile):
            yield piece
        elif refused or not out.copy(piece):
            yield from piece.make_pieces()


def _limit_open_files() -> int:
    """How many files one writer keeps open: half of the process's limit, shared by a writer per core."""
    return max(1, open_limit() // 2 // (os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class NewFile:
    """One new file, planned: which source rows it gets and what it is called."""

    rows: pa.Array
    """Numbers of source rows."""
    action: Insert
    partition: Mapping[str, Any]
    path: str
    label: str


@dataclass(frozen=True, slots=True)
class NewRowWriter:
    """Plans and writes the files of new rows of one operation."""

    snapshot: Snapshot
    schema: pa.Schema
    """The dataset's schema after the operation."""
    partition_columns: tuple[str, ...]
    options: WriteOptions
    operation: str

    def plan_files(self, inserts: Any, source: pa.Table, tx: OutputLocation, *, prefix: str) -> list[NewFile]:
        """All new files with their final paths; raises for an unsafe partition value. Writes nothing."""
        if inserts:
            self.check_columns_left()
        try:
            return self._plan_files(inserts, source, tx, prefix=prefix)
        except ValuesRefused:  # counted by write(), whatever their partition
            return [NewFile(rows, action, {}, "", "") for action, rows in inserts]

    def _plan_files(
        self, inserts: Any, source: pa.Table, tx: OutputLocation, *, prefix: str
    ) -> list[NewFile]:
        result: list[NewFile] = []
        for action, rows in inserts:
            for partition, mine in self._split(rows, action, source):
                for start in range(0, len(mine), self.options.rows_per_file):
                    part = mine.slice(start, self.options.rows_per_file)
                    number = len(result)
                    path = tx.new_file_path(partition, prefix, number)
                    result.append(NewFile(part, action, partition, path, f"{prefix}-{number:05d}"))
        return result

    def write(self, file: NewFile, source: pa.Table, tx: OutputLocation) -> StagedFile:
        """Write one file, a slice of its rows at a time.

        Where values cannot be written, all of them are counted, and the file is not written.
        """
        staging = tx.staging
        if staging.writes:
            try:
                return self._write(file, source, tx)
            except ValuesRefused:
                log.debug("%s is not written: values are refused", file.path, exc_info=True)
        return StagedFile.make_unwritten(self.find_refused_rows(file.rows, file.action, source), file.path)

    def find_refused_rows(self, rows: pa.Array, action: Insert, source: pa.Table) -> list[Refusal]:
        """The values of new rows that the columns they are assigned to cannot take."""
        found: list[Refusal] = []
        if action.values is None:
            return found
        for part in _iterate_slices(rows, SLICE_ROWS):
            try:
                table = self.build(part, action, source)
            except ValuesRefused as error:
                found += error.refusals
            else:
                conform_table(table, self.schema, operation=self.operation, path=self.snapshot.root)
        return found

    def _write(self, file: NewFile, source: pa.Table, tx: OutputLocation) -> StagedFile:
        form = self.make_format(tx.txid)
        whole = len(file.rows) <= min(form.layout.row_group_rows, SLICE_ROWS * 4)
        slices = _iterate_slices(file.rows, len(file.rows) if whole else SLICE_ROWS)
        return write_file(
            form,
            tx,
            file.label,
            (_as_stored(self.build(rows, file.action, source), form) for rows in slices),
            path=file.path,
            partition=file.partition,
        )

    def make_format(self, txid: str) -> OutputFormat:
        """The format of the new files."""
        return OutputFormat.of_new_rows(
            self.snapshot,
            self.schema,
            self.partition_columns,
            self.options,
            operation=self.operation,
            txid=txid,
        )

    def make_pieces(
        self, action: Insert, rows: pa.Array, source: pa.Table, tx: OutputLocation
    ) -> Iterator[pa.Table | ValuesRefused]:
        """New rows for :func:`write_partitioned`, a slice at a time, or the values that are refused."""
        if not tx.staging.writes:
            if refused := self.find_refused_rows(rows, action, source):
                yield ValuesRefused.of(refused, len(rows))
            return
        for part in _iterate_slices(rows, SLICE_ROWS):
            try:
                yield self.build(part, action, source)
            except ValuesRefused as error:
                yield error

    def check_columns_left(self) -> None:
        """Raise InputError where every column is a partition column."""
        if not [n for n in self.schema.names if n not in self.partition_columns]:
            raise InputError(
                f"{self.operation}: every column is a partition column; a file needs at least one other.",
                path=self.snapshot.root,
            )

    def build(self, rows: pa.Array, action: Insert, source: pa.Table) -> pa.Table:
        """Rows of the dataset, made of some source rows; columns that nothing is assigned to are NULL."""
        theirs = take_rows(source, rows) if len(rows) != source.num_rows else source
        return _with_missing(theirs, self.schema) if action.values is None else self._assign(theirs, action)

    def _assign(self, rows: pa.Table, action: Insert) -> pa.Table:
        """Rows with values in the assigned columns and fields of structs; the rest is NULL."""
        empty = pa.table({field.name: pa.nulls(rows.num_rows, field.type) for field in self.schema})
        try:
            values = assign_values(
                empty,
                Assign(action.values or ()),
                source=rows,
                schema=self.schema,
                operation=self.operation,
                path=self.snapshot.root,
            )
        except ValuesRefused as error:
            refused = [replace(one, inserted=True) for one in error.refusals]
            raise ValuesRefused.of(refused, rows.num_rows) from error
        columns = {name: to_array(values.get(name, empty[name])) for name in empty.column_names}
        return pa.table(columns)

    def _split(self, rows: pa.Array, action: Insert, source: pa.Table) -> Iterator[tuple[Any, pa.Array]]:
        """Source rows by their partition."""
        if not self.partition_columns:
            yield {}, rows
            return
        columns = list(self.partition_columns)
        if action.values is None and set(columns) <= set(source.column_names):
            keys = take_rows(source.select(columns), rows)  # no other column is gathered
        else:
            parts = _iterate_slices(rows, SLICE_ROWS * 4)
            keys = pa.concat_tables(self.build(part, action, source).select(columns) for part in parts)
        partitioner = HivePartitioner(self.partition_columns)
        for part, mine in partitioner.partition_rows(keys):
            yield part.values, rows if mine is None else rows.take(mine)


def _iterate_slices(rows: pa.Array, size: int) -> Iterator[pa.Array]:
    for start in range(0, len(rows), max(size, 1)):
        yield rows.slice(start, size)


def _as_stored(table: pa.Table, form: OutputFormat) -> pa.Table:
    """The columns that files of a format store, in their types; those that are missing are NULL."""
    stored = _with_missing(table, form.schema).select(form.schema.names)
    check_categories(stored, form.schema, operation=form.operation, path=form.root)
    return conform_table(stored, form.schema, operation=form.operation, path=form.root)


def _with_missing(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with NULL in the columns of a schema that it lacks, such as the row id of a new row."""
    given = set(table.column_names)
    for each in schema:
        if each.name not in given:
            table = table.append_column(each.name, pa.nulls(table.num_rows, each.type))
    return table
