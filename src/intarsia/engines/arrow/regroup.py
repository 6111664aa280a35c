"""What compacting and optimizing share: the form of the new files, the rows of the old, full row groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.int96 import arrow_schema
from intarsia.common.schema import conform_table
from intarsia.core.change import Change, StagedFile
from intarsia.core.files import DataFile
from intarsia.core.intent import WriteOptions
from intarsia.core.layout import Layout, layout_of
from intarsia.core.matches import Hits
from intarsia.core.notes import joined_notes
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import Workplace
from intarsia.core.spark_note import joined_note, note_for
from intarsia.engines.arrow.overlay import between, without
from intarsia.engines.arrow.placing import ROW_GROUP_ROWS
from intarsia.engines.arrow.reading import FileReader
from intarsia.engines.arrow.writing import FileWriter, stamp
from intarsia.errors import DamagedTable


@dataclass(frozen=True, slots=True)
class Form:
    """How the new files of one group are written."""

    schema: pa.Schema
    """The columns they store."""
    layout: Layout
    metadata: Mapping[bytes, bytes]

    def writer(self, tx: Workplace, label: str) -> FileWriter:
        staging = tx.staging
        return FileWriter(
            staging.location(label),
            self.schema,
            filesystem=staging.filesystem,
            layout=self.layout,
            metadata=self.metadata,
        )


def form_of(group: FileGroup, plan: Plan, txid: str) -> Form:
    """The layout of the group's largest file, as far as no option says else, and what all notes agree on.

    An order that every file declares is kept, for the caller to keep true.
    """
    options: WriteOptions = plan.intent.options
    largest = max(group.files, key=lambda file: file.size)
    layout = _layout(largest)
    rows = options.row_group_size or _row_group_rows(largest, layout)
    sorting = layout.sorting
    if sorting and not all(_layout(file).sorting == sorting for file in group.files):
        sorting = ()
    filters = {name: max(count, min(rows, group.rows)) for name, count in layout.bloom_filters.items()}
    layout = replace(layout, row_group_rows=rows, sorting=sorting, bloom_filters=filters)
    if options.int96 == "convert":
        layout = layout.without_int96()
    if options.compression is not None:
        layout = layout.with_compression(options.compression)
    partition_columns = plan.snapshot.partition_columns
    schema = _stored_schema(group, plan)
    layout = layout.with_like((file.footer for file in group.files), schema.names)
    metadata = {**_notes(group, schema), **stamp(txid, plan.schema, partition_columns)}
    return Form(schema, layout, metadata)


def _notes(group: FileGroup, schema: pa.Schema) -> Mapping[bytes, bytes]:
    """What notes of the group's files are true of a file that holds all their rows."""
    noted = [(_layout(file).key_value_metadata, _file_schema(file)) for file in group.files]
    spark, before = joined_note(file.footer for file in group.files)
    return {**joined_notes(noted, schema), **note_for(spark, schema, before)}


def _file_schema(file: DataFile) -> pa.Schema:
    return pa.schema([]) if file.footer is None else arrow_schema(file.footer)


def _layout(file: DataFile) -> Layout:
    return Layout() if file.footer is None else layout_of(file.footer)


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
    row_groups: range | None = None,
) -> Iterator[pa.Table]:
    """The rows of a file in exactly the columns and types of ``schema``, less those to skip.

    ``row_groups`` are the only ones to read, if given. Memory: one row group, or a piece of it where it
    is large.
    """
    seen = plan.schema if file.lens is None else schema  # which may have more than the table's columns
    with FileReader(file, seen, plan.snapshot.filesystem) as reader:
        wanted = range(reader.footer.num_row_groups) if row_groups is None else row_groups
        start = reader.start_of(wanted.start)
        for group in wanted:
            for piece in reader.pieces(schema.names, group, batch_rows=batch_rows):
                count = piece.num_rows
                gone = [] if skip is None else [skip.within(start, start + count).positions]
                gone += [] if reader.dead is None else [between(reader.dead, start, start + count)]
                if gone:
                    positions = pc.subtract(pa.concat_arrays(gone), pa.scalar(start, pa.int64()))
                    piece = without(piece, positions)
                start += count
                if piece.num_rows:
                    yield as_written(piece, schema, operation=plan.operation, path=file.path)
        if start != file.records and row_groups is None:
            raise DamagedTable(
                f"{file.path} has {start:,} rows, but its footer says {file.records:,}.", path=file.path
            )


def as_written(table: pa.Table, schema: pa.Schema, *, operation: str, path: str) -> pa.Table:
    """Exactly the types written; NULL in a NOT NULL column is refused."""
    if table.schema.equals(schema):
        return table
    return conform_table(table, schema, operation=operation, path=path)


def check_rows(staged: Sequence[StagedFile], expected: int, group: FileGroup) -> None:
    """No row may get lost or come twice on the way."""
    found = sum(file.rows for file in staged)
    if found != expected:
        raise DamagedTable(
            f"{len(group.files):,} files with {expected:,} rows to write became {found:,} rows.",
            path=group.files[0].path,
            hint="nothing was changed; check the files with inspect() and run again.",
        )


def regrouped(plan: Plan, staged: Sequence[StagedFile], *, exclusive: bool) -> Change:
    """All files of the plan's groups go, and new ones come."""
    files = tuple(file for group in plan.groups for file in group.files)
    return Change(
        plan.operation,
        added=tuple(staged),
        removed=files,
        planned=files,
        exclusive=exclusive,
        properties=plan.intent.properties,
    )
