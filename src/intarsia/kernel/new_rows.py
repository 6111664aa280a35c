"""New rows into new files: split by partition, cut to size, written in slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from intarsia.common.log import logger
from intarsia.common.schema import conform_table
from intarsia.core.change import StagedFile
from intarsia.core.execution import Execution
from intarsia.core.intent import Merge, WriteOptions
from intarsia.core.keys import arange, flat
from intarsia.core.matches import Hits, Matches
from intarsia.core.partitioner import HivePartitioner
from intarsia.core.plan import Plan
from intarsia.core.ports import OutputLocation
from intarsia.core.refusals import Refusal, ValuesRefused
from intarsia.core.rule import Assign, Insert
from intarsia.core.snapshot import Snapshot
from intarsia.errors import InputError
from intarsia.kernel.output_format import OutputFormat
from intarsia.kernel.overlay import take_rows
from intarsia.kernel.partitioned_writer import write_file
from intarsia.kernel.rewrite import Rewrite, assign_values

log = logger(__name__)

SLICE_ROWS = 262_144


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
class NewRowWriter:
    """How new rows of one operation become files of a table."""

    snapshot: Snapshot
    schema: pa.Schema
    """The dataset's schema after the operation."""
    partition_columns: tuple[str, ...]
    options: WriteOptions
    operation: str

    def files(self, inserts: Any, source: pa.Table, tx: OutputLocation, *, prefix: str) -> list[NewFile]:
        """Every file with its final path; raises on an unsafe partition value before writing."""
        if inserts:
            self.check_columns_left()
        try:
            return self._files(inserts, source, tx, prefix=prefix)
        except ValuesRefused:  # to be counted, wherever the rows would have gone
            return [NewFile(rows, action, {}, "", "") for action, rows in inserts]

    def _files(self, inserts: Any, source: pa.Table, tx: OutputLocation, *, prefix: str) -> list[NewFile]:
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
        """Write one file, a slice of its rows at a time; see :func:`~intarsia.kernel.rewrite.rewrite`
        for values that cannot be written."""
        staging = tx.staging
        if staging.writes:
            try:
                return self._write(file, source, tx)
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
                table = self.build(part, action, source)
            except ValuesRefused as error:
                found += error.refusals
            else:
                conform_table(table, self.schema, operation=self.operation, path=self.snapshot.root)
        return found

    def _write(self, file: NewFile, source: pa.Table, tx: OutputLocation) -> StagedFile:
        form = self.form(tx.txid)
        whole = len(file.rows) <= min(form.layout.row_group_rows, SLICE_ROWS * 4)
        slices = _slices(file.rows, len(file.rows) if whole else SLICE_ROWS)
        return write_file(
            form,
            tx,
            file.label,
            (self._stored(self.build(rows, file.action, source), form.schema) for rows in slices),
            path=file.path,
            partition=file.partition,
        )

    def _stored(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """The columns that a file stores, in its types."""
        rows = rows.select(schema.names)
        return conform_table(rows, schema, operation=self.operation, path=self.snapshot.root)

    def form(self, txid: str) -> OutputFormat:
        """How the new files are written."""
        return OutputFormat.of_new_rows(
            self.snapshot,
            self.schema,
            self.partition_columns,
            self.options,
            operation=self.operation,
            txid=txid,
        )

    def pieces(
        self, action: Insert, rows: pa.Array, source: pa.Table, tx: OutputLocation
    ) -> Iterator[pa.Table | ValuesRefused]:
        """New rows for a partitioned writer, a slice at a time, or the values that are refused."""
        if not tx.staging.writes:
            if refused := self.refused_rows(rows, action, source):
                yield ValuesRefused.of(refused, len(rows))
            return
        for part in _slices(rows, SLICE_ROWS):
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
        """Rows of the dataset, made of some source rows."""
        theirs = take_rows(source, rows) if len(rows) != source.num_rows else source
        return self._complete(theirs) if action.values is None else self._assign(theirs, action)

    def _complete(self, rows: pa.Table) -> pa.Table:
        """Whole source rows; columns that the source lacks are NULL."""
        for each in self.schema:
            if each.name not in rows.column_names:
                rows = rows.append_column(each.name, pa.nulls(rows.num_rows, each.type))
        return rows

    def _assign(self, rows: pa.Table, action: Insert) -> pa.Table:
        """Rows of the given columns and fields of structs only; the rest is NULL."""
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
        columns = {name: flat(values.get(name, empty[name])) for name in empty.column_names}
        return pa.table(columns)

    def _split(self, rows: pa.Array, action: Insert, source: pa.Table) -> Iterator[tuple[Any, pa.Array]]:
        """Source rows by their partition, without making more of each than its partition columns."""
        if not self.partition_columns:
            yield {}, rows
            return
        columns = list(self.partition_columns)
        keys = [self.build(part, action, source).select(columns) for part in _slices(rows, SLICE_ROWS * 4)]
        partitioner = HivePartitioner(self.partition_columns)
        for part, mine in partitioner.partition_rows(pa.concat_tables(keys)):
            yield part.values, rows if mine is None else rows.take(mine)


def all_rows(source: pa.Table) -> list[tuple[Insert, pa.Array]]:
    """Every source row, as it is."""
    return [(Insert(), arange(source.num_rows))] if source.num_rows else []


def _slices(rows: pa.Array, size: int) -> Iterator[pa.Array]:
    for start in range(0, len(rows), max(size, 1)):
        yield rows.slice(start, size)


@dataclass(frozen=True, slots=True)
class RowFiles:
    """The files that a plan writes once its rows are matched."""

    plan: Plan
    rewrites: Sequence[Rewrite]
    """Files rewritten under their names."""
    new: Sequence[NewFile]
    placing: NewRowWriter = field(repr=False)
    """Writes the new ones."""

    @staticmethod
    def of(execution: Execution, matches: Matches) -> RowFiles:
        plan, prepared, tx = execution.plan, execution.prepared, execution.transaction
        placing = NewRowWriter(
            plan.snapshot, plan.schema, prepared.partition_columns, plan.intent.options, plan.operation
        )
        prefix = "insert" if isinstance(plan.intent, Merge) else "part"
        new = placing.files(matches.inserts, prepared.table, tx, prefix=prefix)
        rewrites = [
            Rewrite.of(
                item.file,
                matches.hits.get(item.file.path, Hits.empty()),
                plan,
                tx,
                actions=matches.actions,
                label=f"rewrite-{number:05d}",
            )
            for number, item in enumerate(plan.select("rewrite"))
        ]
        return RowFiles(plan, rewrites, new, placing)
