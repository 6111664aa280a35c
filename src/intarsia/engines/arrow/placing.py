"""New rows into new files: split by partition, cut to size, written in slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from intarsia.common.log import logger
from intarsia.common.partitions import split_by_partition
from intarsia.common.schema import conform_table
from intarsia.core.change import StagedFile, Staging
from intarsia.core.files import Snapshot
from intarsia.core.intent import WriteOptions
from intarsia.core.keys import arange, flat
from intarsia.core.layout import Layout, layout_of
from intarsia.core.ports import Workplace
from intarsia.core.refusals import Refusal, ValuesRefused
from intarsia.core.rule import Assign, Insert
from intarsia.core.spark_note import SPARK_SCHEMA, note_for, note_of
from intarsia.engines.arrow.overlay import take_rows
from intarsia.engines.arrow.rewrite import assigned
from intarsia.engines.arrow.row_groups import RowGroups
from intarsia.engines.arrow.writing import FileWriter, stamp
from intarsia.errors import InputError

log = logger(__name__)

SLICE_ROWS = 262_144
ROW_GROUP_ROWS = 500_000


@dataclass(frozen=True, slots=True)
class NewFile:
    """One file to be made of some source rows."""

    rows: pa.Array
    """Numbers of source rows."""
    action: Insert
    partition: Mapping[str, Any]
    path: str
    label: str


@dataclass(frozen=True, slots=True)
class Placing:
    """How new rows of one operation become files of a table."""

    snapshot: Snapshot
    schema: pa.Schema
    """The dataset's schema after the operation."""
    partition_columns: tuple[str, ...]
    options: WriteOptions
    operation: str

    def files(self, inserts: Any, source: pa.Table, tx: Workplace, *, prefix: str) -> list[NewFile]:
        """Every file with its final path; raises on an unsafe partition value before writing."""
        if inserts:
            self._check_columns_left()
        try:
            return self._files(inserts, source, tx, prefix=prefix)
        except ValuesRefused:  # to be counted, wherever the rows would have gone
            return [NewFile(rows, action, {}, "", "") for action, rows in inserts]

    def _files(self, inserts: Any, source: pa.Table, tx: Workplace, *, prefix: str) -> list[NewFile]:
        result: list[NewFile] = []
        for action, rows in inserts:
            for partition, mine in self._split(rows, action, source):
                for start in range(0, len(mine), self.options.rows_per_file):
                    part = mine.slice(start, self.options.rows_per_file)
                    number = len(result)
                    path = tx.place(partition, prefix, number)
                    result.append(NewFile(part, action, partition, path, f"{prefix}-{number:05d}"))
        return result

    def write(self, file: NewFile, source: pa.Table, tx: Workplace) -> StagedFile:
        """Write one file, a slice of its rows at a time; see :func:`~intarsia.engines.arrow.rewrite.rewrite`
        for values that cannot be written."""
        staging = tx.staging
        if staging.writes:
            try:
                return self._write(file, source, staging)
            except ValuesRefused:
                log.debug("%s is not written: values are refused", file.path, exc_info=True)
        return StagedFile.unwritten(self.refused_rows(file.rows, file.action, source), file.path)

    def refused_rows(self, rows: pa.Array, action: Insert, source: pa.Table) -> list[Refusal]:
        """The values of new rows that the columns they are assigned to cannot take."""
        found: list[Refusal] = []
        if action.values is None:
            return found
        for part in _slices(rows, SLICE_ROWS):
            try:
                table = self.built(part, action, source)
            except ValuesRefused as error:
                found += error.refusals
            else:
                conform_table(table, self.schema, operation=self.operation, path=self.snapshot.root)
        return found

    def _write(self, file: NewFile, source: pa.Table, staging: Staging) -> StagedFile:
        layout = self.layout()
        writer = FileWriter(
            staging.location(file.label),
            self.file_schema(),
            filesystem=staging.filesystem,
            layout=layout,
            metadata=self.metadata(staging.txid),
        )
        whole = len(file.rows) <= min(layout.row_group_rows, SLICE_ROWS * 4)
        row_groups = RowGroups(writer, layout)
        try:
            for rows in _slices(file.rows, len(file.rows) if whole else SLICE_ROWS):
                table = self.built(rows, file.action, source).select(writer.schema.names)
                table = conform_table(table, writer.schema, operation=self.operation, path=self.snapshot.root)
                row_groups.add(table)
            row_groups.finish()
            return writer.close(file.path, file.partition)
        finally:
            writer.abandon()

    def pieces(
        self, action: Insert, rows: pa.Array, source: pa.Table, tx: Workplace
    ) -> Iterator[pa.Table | ValuesRefused]:
        """Some new rows for whoever deals rows out, a slice at a time, or what is wrong with them."""
        if not tx.staging.writes:
            if refused := self.refused_rows(rows, action, source):
                yield ValuesRefused.of(refused, len(rows))
            return
        for part in _slices(rows, SLICE_ROWS):
            try:
                yield self.built(part, action, source)
            except ValuesRefused as error:
                yield error

    def file_schema(self) -> pa.Schema:
        """The columns of a new file: partition columns only where the table's files repeat them."""
        apart = set(self.partition_columns)
        first = self.snapshot.model_footer
        if first is not None and apart:
            apart -= set(first.schema.to_arrow_schema().names)
        # Spark's note is one of these columns, see metadata().
        notes = {key: value for key, value in (self.schema.metadata or {}).items() if key != SPARK_SCHEMA}
        return pa.schema([field for field in self.schema if field.name not in apart], notes or None)

    def layout(self) -> Layout:
        """As the table's first file is written, where the caller asks for nothing else."""
        first = self.snapshot.model_footer
        layout = Layout() if first is None else layout_of(first).for_new_file()
        if self.options.int96 == "convert":
            layout = layout.without_int96()
        layout = layout.with_like((file.footer for file in self.snapshot.files), self.file_schema().names)
        if self.options.compression is not None:
            layout = layout.with_compression(self.options.compression)
        return layout.with_row_group_rows(self.options.row_group_size or ROW_GROUP_ROWS)

    def metadata(self, txid: str) -> dict[bytes, bytes]:
        """The notes of a new file: ours, and Spark's where the files beside it, or the source, have it."""
        notes, before = ({}, self.schema) if self.operation == "overwrite" else note_of(self.snapshot)
        if not notes:
            notes, before = self.schema.metadata or {}, self.schema
        return {
            **note_for(notes, self.file_schema(), before),
            **stamp(txid, self.schema, self.partition_columns),
        }

    def _check_columns_left(self) -> None:
        if not [n for n in self.schema.names if n not in self.partition_columns]:
            raise InputError(
                f"{self.operation}: every column is a partition column; a file needs at least one other.",
                path=self.snapshot.root,
            )

    def built(self, rows: pa.Array, action: Insert, source: pa.Table) -> pa.Table:
        """Rows of the dataset, made of some source rows."""
        theirs = take_rows(source, rows) if len(rows) != source.num_rows else source
        return self._completed(theirs) if action.values is None else self._made(theirs, action)

    def _completed(self, rows: pa.Table) -> pa.Table:
        """Whole source rows; columns that the source lacks are NULL."""
        for field in self.schema:
            if field.name not in rows.column_names:
                rows = rows.append_column(field.name, pa.nulls(rows.num_rows, field.type))
        return rows

    def _made(self, rows: pa.Table, action: Insert) -> pa.Table:
        """Rows of the given columns and fields of structs only; the rest is NULL."""
        empty = pa.table({field.name: pa.nulls(rows.num_rows, field.type) for field in self.schema})
        try:
            values = assigned(
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
        columns = {name: flat(values.get(name, empty[name])) for name in empty.column_names}
        return pa.table(columns)

    def _split(self, rows: pa.Array, action: Insert, source: pa.Table) -> Iterator[tuple[Any, pa.Array]]:
        if not self.partition_columns:
            yield {}, rows
            return
        apart = list(self.partition_columns)
        keys = [self.built(part, action, source).select(apart) for part in _slices(rows, SLICE_ROWS * 4)]
        table = pa.concat_tables(keys).append_column("__row__", arange(len(rows)))
        for partition, part in split_by_partition(table, apart):
            yield partition, rows.take(flat(part["__row__"]))


def all_rows(source: pa.Table) -> list[tuple[Insert, pa.Array]]:
    """Every source row, as it is."""
    return [(Insert(), arange(source.num_rows))] if source.num_rows else []


def _slices(rows: pa.Array, size: int) -> Iterator[pa.Array]:
    for start in range(0, len(rows), max(size, 1)):
        yield rows.slice(start, size)
