"""What compacting and optimizing share: the form of the new files, the rows of the old, full row groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.schema import conform_table
from intarsia.core.change import StagedFile
from intarsia.core.files import DataFile
from intarsia.core.intent import WriteOptions
from intarsia.core.layout import Layout, layout_of
from intarsia.core.matches import Hits
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import Transaction
from intarsia.engines.arrow.overlay import take_rows, without
from intarsia.engines.arrow.placing import ROW_GROUP_ROWS, stamp
from intarsia.engines.arrow.reading import PIECE_BYTES, FileReader
from intarsia.engines.arrow.writing import FileWriter
from intarsia.errors import DamagedTable


@dataclass(frozen=True, slots=True)
class Form:
    """How the new files of one group are written."""

    schema: pa.Schema
    """The columns they store."""
    layout: Layout
    metadata: Mapping[bytes, bytes]

    def writer(self, tx: Transaction, label: str) -> FileWriter:
        staging = tx.staging
        return FileWriter(
            staging.location(label),
            self.schema,
            filesystem=staging.filesystem,
            layout=self.layout,
            metadata=self.metadata,
        )


def form_of(group: FileGroup, plan: Plan, txid: str) -> Form:
    """The layout of the group's largest file and the notes of its first, as far as no option says else.

    An order that every file declares is kept, for the caller to keep true.
    """
    options: WriteOptions = plan.intent.options
    layouts = [Layout() if file.footer is None else layout_of(file.footer) for file in group.files]
    largest = max(range(len(layouts)), key=lambda number: group.files[number].size)
    layout = layouts[largest]
    rows = options.row_group_size or _row_group_rows(group.files[largest], layout)
    sorting = layout.sorting if all(other.sorting == layout.sorting for other in layouts) else ()
    filters = {name: max(count, min(rows, group.rows)) for name, count in layout.bloom_filters.items()}
    layout = replace(layout, row_group_rows=rows, sorting=sorting, bloom_filters=filters)
    if options.compression is not None:
        layout = layout.with_compression(options.compression)
    partition_columns = plan.snapshot.partition_columns
    metadata = {**layouts[0].key_value_metadata, **stamp(txid, plan.schema, partition_columns)}
    return Form(_stored_schema(group, plan), layout, metadata)


def _row_group_rows(file: DataFile, layout: Layout) -> int:
    """A file of one row group shows no limit: it may just have been small."""
    several = file.footer is not None and file.footer.num_row_groups > 1
    return layout.row_group_rows if several else max(layout.row_group_rows, ROW_GROUP_ROWS)


def _stored_schema(group: FileGroup, plan: Plan) -> pa.Schema:
    """The dataset's columns, less the partition columns that no file of the group repeats."""
    partition_columns = set(plan.snapshot.partition_columns)
    stored: set[str] = set()
    if partition_columns:
        for file in group.files:
            stored |= _top_level(file) | (partition_columns - set(file.partition))
    names = [name for name in plan.schema.names if name not in partition_columns or name in stored]
    return pa.schema([plan.schema.field(name) for name in names])


def _top_level(file: DataFile) -> set[str]:
    if file.footer is None:
        return set()
    schema = file.footer.schema
    return {schema.column(number).path.split(".", 1)[0] for number in range(len(schema))}


def pieces_of(
    file: DataFile,
    plan: Plan,
    schema: pa.Schema,
    *,
    skip: Hits | None = None,
    batch_rows: int | None = None,
) -> Iterator[pa.Table]:
    """The rows of a file in exactly the columns and types of ``schema``, less those to skip.

    Memory: one row group, or a piece of it where it is large.
    """
    with FileReader(file, plan.schema, plan.snapshot.filesystem) as reader:
        start = 0
        for group in range(reader.footer.num_row_groups):
            for piece in reader.pieces(schema.names, group, batch_rows=batch_rows):
                count = piece.num_rows
                if skip is not None:
                    positions = skip.within(start, start + count).positions
                    piece = without(piece, pc.subtract(positions, pa.scalar(start, pa.int64())))
                start += count
                if piece.num_rows:
                    yield as_written(piece, schema, operation=plan.operation, path=file.path)
        if start != file.rows:
            raise DamagedTable(
                f"{file.path} has {start:,} rows, but its footer says {file.rows:,}.", path=file.path
            )


def as_written(table: pa.Table, schema: pa.Schema, *, operation: str, path: str) -> pa.Table:
    """Exactly the types written; NULL in a NOT NULL column is refused."""
    if table.schema.equals(schema):
        return table
    return conform_table(table, schema, operation=operation, path=path)


class RowGroups:
    """Puts rows that come in pieces of any size together to row groups of one size.

    A row group also closes at ``PIECE_BYTES`` of memory. Rows are brought into the order that the
    layout declares, row group by row group. Memory: one row group.
    """

    def __init__(self, writer: FileWriter, layout: Layout) -> None:
        self._writer = writer
        self._rows = layout.row_group_rows
        self._order = layout.sort_keys(writer.schema)
        self._waiting: list[pa.Table] = []
        self._count = 0
        self._bytes = 0

    def add(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._count += table.num_rows
        self._bytes += table.nbytes
        if self._count < self._rows and self._bytes < PIECE_BYTES:
            return
        whole = self._taken()
        full = whole.num_rows - whole.num_rows % self._rows if whole.num_rows >= self._rows else whole.num_rows
        for start in range(0, full, self._rows):
            self._write(whole.slice(start, min(self._rows, full - start)))
        if full < whole.num_rows:
            self.add(whole.slice(full))

    def finish(self) -> None:
        """Write what is left as the last row group."""
        if self._count:
            self._write(self._taken())

    def _taken(self) -> pa.Table:
        whole = pa.concat_tables(self._waiting)
        self._waiting, self._count, self._bytes = [], 0, 0
        return whole

    def _write(self, table: pa.Table) -> None:
        self._writer.write(in_declared_order(table, self._order))


def in_declared_order(table: pa.Table, keys: Sequence[tuple[str, str, str]]) -> pa.Table:
    """The rows sorted by the keys; as they are without any."""
    if not keys or table.num_rows < 2:
        return table
    order = pc.sort_indices(table.select([name for name, *_ in keys]), sort_keys=list(keys))
    return take_rows(table, order)


def check_rows(staged: Sequence[StagedFile], expected: int, group: FileGroup) -> None:
    """No row may get lost or come twice on the way."""
    found = sum(file.rows for file in staged)
    if found != expected:
        raise DamagedTable(
            f"{len(group.files):,} files with {expected:,} rows to write became {found:,} rows.",
            path=group.files[0].path,
            hint="nothing was changed; check the files with inspect() and run again.",
        )
