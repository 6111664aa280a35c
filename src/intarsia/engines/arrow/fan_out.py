"""Rows dealt out over the partitions of a table: one open file for each, cut to size; knows no operation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from intarsia.common.schema import conform_table
from intarsia.core.change import StagedFile
from intarsia.core.intent import WriteOptions
from intarsia.core.layout import Layout
from intarsia.core.lens import with_lineage
from intarsia.core.opened import open_limit
from intarsia.core.plan import Plan
from intarsia.core.ports import Workplace
from intarsia.core.refusals import Refusal, ValuesRefused
from intarsia.core.spread import Part, Spread
from intarsia.engines.arrow.overlay import take_rows
from intarsia.engines.arrow.placing import ROW_GROUP_ROWS
from intarsia.engines.arrow.row_groups import RowGroups
from intarsia.engines.arrow.writing import FileWriter, stamp

BUFFERED_BYTES = 128 << 20
"""Rows that wait for their row group to fill, over all partitions of one dealer."""
TARGET_BYTES = 512 << 20
_LEAST_GROUP_ROWS = 100
FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class FreshForm:
    """How new files of a table that deals rows out by itself are written; a value that travels."""

    schema: pa.Schema
    layout: Layout
    spread: Spread
    metadata: Mapping[bytes, bytes]
    operation: str
    root: str
    target_bytes: int = TARGET_BYTES
    max_rows: int | None = None

    @staticmethod
    def of(
        plan: Plan,
        tx: Workplace,
        *,
        lineage: bool,
        target_bytes: int | None = None,
        rows: int | None = None,
    ) -> FreshForm:
        """``lineage`` is asked for where rows come that were there before."""
        snapshot, options = plan.snapshot, plan.intent.options
        assert snapshot.spread is not None
        keeps = lineage and snapshot.lineage
        return FreshForm(
            schema=with_lineage(plan.schema) if keeps else plan.schema,
            layout=_layout(plan, options),
            spread=snapshot.spread,
            metadata=stamp(tx.txid, plan.schema, ()),
            operation=plan.operation,
            root=snapshot.root,
            target_bytes=target_bytes or snapshot.target_bytes or TARGET_BYTES,
            max_rows=rows or options.rows_per_file,
        )


def _layout(plan: Plan, options: WriteOptions) -> Layout:
    snapshot = plan.snapshot
    layout = snapshot.layout or Layout(row_group_rows=ROW_GROUP_ROWS)
    assert snapshot.spread is not None
    layout = replace(layout, sorting=snapshot.spread.sorting, like=(*_replaced(plan), *layout.like))
    if options.compression is not None:
        layout = layout.with_compression(options.compression)
    if options.row_group_size is not None:
        layout = layout.with_row_group_rows(options.row_group_size)
    return layout


def _replaced(plan: Plan) -> list[pq.FileMetaData]:
    """The first file whose rows are written anew, if it has the columns of now under their ids."""
    files = [file for group in plan.groups for file in group.files]
    files += [item.file for item in plan.files if item.action != "keep"]
    first = next((file.footer for file in files if file.footer is not None), None)
    if first is None or _fields(first.schema.to_arrow_schema()) != _fields(plan.schema):
        return []
    return [first]


def _fields(schema: pa.Schema | pa.DataType) -> list[Any]:
    """Names and ids of columns, and of fields within; those of lists and maps are called in many ways."""
    nested = isinstance(schema, pa.DataType)
    inner = [schema.field(number) for number in range(schema.num_fields)] if nested else list(schema)
    named = not nested or pa.types.is_struct(schema)
    return [
        (one.name if named else None, (one.metadata or {}).get(FIELD_ID), _fields(one.type)) for one in inner
    ]


class FanOut:
    """Takes rows in any order and writes each to a file of its partition.

    Memory: a row group of each partition, and no more than ``BUFFERED_BYTES`` over all of them. Files
    beyond those that may be open at once are closed with the rows they have. Nothing of it counts until
    a commit names the files.
    """

    def __init__(self, form: FreshForm, tx: Workplace, label: str) -> None:
        """``label`` must be unique within the transaction."""
        self._form = form
        self._tx = tx
        self._label = label
        self._open: dict[Any, _Open] = {}
        """By the key of their partition."""
        self._ordinal = 0
        self._buffered = 0
        self._begun = 0
        self._most_begun = _most_begun()
        self._done: list[StagedFile] = []
        self._row_bytes: float | None = None
        """Of a row in the last file that was finished."""

    def add(self, table: pa.Table) -> None:
        """Rows with at least the table's columns, in any order."""
        if not table.num_rows:
            return
        form = self._form
        table = conform_table(
            _completed(table, form.schema), form.schema, operation=form.operation, path=form.root
        )
        for part, rows in form.spread.split(table):
            self._add(part, table if rows is None else take_rows(table, rows))
        if self._buffered > BUFFERED_BYTES:
            self._flush()

    def close(self) -> list[StagedFile]:
        """Finish every file and say what they are."""
        for state in list(self._open.values()):
            self._finish(state.part)
        return self._done

    def abandon(self) -> None:
        """Let go of the handles after an error."""
        for state in self._open.values():
            with suppress(OSError):
                state.writer.abandon()

    def _add(self, part: Part, table: pa.Table) -> None:
        """A row group's rows at a time, so that a file is cut as soon as it is large enough."""
        most = self._form.max_rows
        while table.num_rows:
            state = self._opened(part)
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
                self._settle(state)

    def _group_rows(self, state: _Open, table: pa.Table) -> int:
        """How many rows the next row group has: as many as the table's sizes leave room for.

        A row is as large as those of this file or the one before, else as the table's are; of an empty table
        it is known in memory only, which is more than it will be.
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
        room = max(target - state.writer.size, target // 8)  # no row group for the sake of a few rows
        wanted = min(layout.row_group_bytes, room)
        return max(_LEAST_GROUP_ROWS, min(layout.row_group_rows, int(wanted / max(row_bytes, 1e-3))))

    def _settle(self, state: _Open) -> None:
        """A file that was begun stays open, as long as others leave it a handle."""
        if state.begun or not state.writer.size:
            return
        if self._begun == self._most_begun:
            self._finish(state.part)
        else:
            state.begun = True
            self._begun += 1

    def _opened(self, part: Part) -> _Open:
        state = self._open.get(part.key)
        if state is None:
            form, tx = self._form, self._tx
            path = tx.place(part.values, f"{self._label}{tx.staging.attempt}", self._ordinal)
            self._ordinal += 1
            writer = FileWriter(
                tx.locate(path),
                form.schema,
                filesystem=tx.staging.filesystem,
                layout=form.layout,
                metadata=form.metadata,
                count_nans=True,
            )
            state = _Open(part, path, writer, RowGroups(writer, form.layout))
            self._open[part.key] = state
        return state

    def _finish(self, part: Part) -> None:
        state = self._open.pop(part.key)
        self._buffered -= state.buffered
        self._begun -= state.begun
        try:
            state.row_groups.finish()
            staged = state.writer.close(state.path, part.values)
        finally:
            state.writer.abandon()
        self._row_bytes = staged.size / max(staged.rows, 1)
        self._done.append(replace(staged, tag=part.tag))

    def _flush(self) -> None:
        """Write what waits most, until half of the room is free."""
        for state in sorted(self._open.values(), key=lambda one: -one.buffered):
            if self._buffered <= BUFFERED_BYTES // 2:
                return
            self._buffered -= state.buffered
            state.row_groups.finish()
            self._settle(state)


def dealt_out(
    form: FreshForm, tx: Workplace, label: str, pieces: Iterable[pa.Table | ValuesRefused]
) -> list[StagedFile]:
    """Rows that come in pieces as new files of their partitions; ``label`` as in :class:`FanOut`.

    A piece may be what is wrong with its values; then the rest is only counted.
    """
    out = FanOut(form, tx, label)
    refused: list[Refusal] = []
    try:
        for piece in pieces:
            if isinstance(piece, ValuesRefused):
                refused += piece.refusals
            elif not refused:
                out.add(piece)
        return [StagedFile.unwritten(refused)] if refused else out.close()
    finally:
        out.abandon()


@dataclass(slots=True)
class _Open:
    """A file that is being written."""

    part: Part
    path: str
    writer: FileWriter
    row_groups: RowGroups
    rows: int = 0
    begun: bool = False
    """Whether it has a handle that is counted."""

    @property
    def buffered(self) -> int:
        return self.row_groups.waiting_bytes

    def add(self, table: pa.Table) -> None:
        if table.num_rows:
            self.row_groups.add(table)
            self.rows += table.num_rows


def _most_begun() -> int:
    """How many files one dealer keeps open: half of those the process may, shared by one for each core."""
    return max(1, open_limit() // 2 // (os.cpu_count() or 1))


def _completed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns that rows of this kind do not have, as NULL: a row that is new has no identity yet."""
    absent: Sequence[pa.Field] = [f for f in schema if f.name not in table.column_names and f.nullable]
    for missing in absent:
        table = table.append_column(missing.name, pa.nulls(table.num_rows, missing.type))
    return table.select(schema.names)
