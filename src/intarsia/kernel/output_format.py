"""The format of the new files of an operation, for each kind of new file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.int96 import read_arrow_schema
from intarsia.core.intent import WriteOptions
from intarsia.core.key_value_metadata import join_metadata
from intarsia.core.layout import Layout, read_key_value_metadata, read_layout
from intarsia.core.partitioner import HivePartitioner, Partitioner
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import LINEAGE, OutputLocation, with_lineage
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.core.spark_metadata import (
    SPARK_SCHEMA,
    join_spark_schemas,
    make_spark_schema,
    read_spark_schema,
)
from intarsia.kernel.read import as_encoded, find_encoded_columns
from intarsia.kernel.write import FileWriter, make_file_metadata

ROW_GROUP_ROWS = 500_000
TARGET_BYTES = 512 << 20
FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The format of new files of a table; a value that pickles."""

    schema: pa.Schema
    """The columns that the files store."""
    layout: Layout
    metadata: Mapping[bytes, bytes]
    operation: str
    root: str
    partitioner: Partitioner = field(default_factory=HivePartitioner)
    target_bytes: int = TARGET_BYTES
    """The size at which :class:`~intarsia.kernel.partitioned_writer.PartitionedWriter` closes a file."""
    max_rows: int | None = None
    encoded: tuple[str, ...] = ()
    """Columns that are given as dictionaries; readers see plain values."""

    @property
    def given(self) -> pa.Schema:
        """The columns in the types that they are given in."""
        return as_encoded(self.schema, self.encoded)

    @staticmethod
    def of(
        plan: Plan,
        tx: OutputLocation,
        *,
        lineage: bool,
        target_bytes: int | None = None,
        rows: int | None = None,
    ) -> OutputFormat:
        """The format of a table that is never replaced in place: its own layout, sizes and partitions.

        ``lineage`` is set where rows of the table are copied, which keep their identity.
        """
        snapshot, options = plan.snapshot, plan.intent.options
        keeps = lineage and snapshot.format.keeps_row_ids
        return OutputFormat(
            schema=with_lineage(plan.schema) if keeps else plan.schema,
            layout=_make_table_layout(plan, options),
            metadata=make_file_metadata(tx.txid, plan.schema, ()),
            operation=plan.operation,
            root=snapshot.root,
            partitioner=snapshot.partitioner,
            target_bytes=target_bytes or snapshot.format.target_bytes or TARGET_BYTES,
            max_rows=rows or options.rows_per_file,
        )

    @staticmethod
    def of_group(group: FileGroup, plan: Plan, txid: str) -> OutputFormat:
        """The format of files of a directory that are rewritten together.

        It has the layout of the group's largest file, as far as no option says otherwise, and the metadata
        that all files agree on. An order that every file declares is kept, for the caller to keep true.
        """
        schema = _make_stored_schema(group, plan)
        layout = _make_group_layout(group, plan.intent.options)
        layout = layout.with_like((file.footer for file in group.files), schema.names)
        partition_columns = plan.snapshot.partition_columns
        metadata = {
            **_make_group_metadata(group, schema),
            **make_file_metadata(txid, plan.schema, partition_columns),
        }
        return OutputFormat(schema, layout, metadata, plan.operation, plan.snapshot.root)

    @staticmethod
    def of_new_rows(
        snapshot: Snapshot,
        schema: pa.Schema,
        partition_columns: tuple[str, ...],
        options: WriteOptions,
        *,
        operation: str,
        txid: str,
    ) -> OutputFormat:
        """The format of a directory's files of new rows: that of its first file, where no option says
        otherwise."""
        stored = _make_new_file_schema(snapshot, schema, partition_columns)
        return OutputFormat(
            schema=stored,
            layout=_make_new_file_layout(snapshot, options, stored),
            metadata={
                **_make_spark_metadata(snapshot, schema, stored, keeps=operation != "overwrite"),
                **make_file_metadata(txid, schema, partition_columns),
            },
            operation=operation,
            root=snapshot.root,
            partitioner=HivePartitioner(partition_columns),
            max_rows=options.rows_per_file,
        )

    def with_encoded(self, files: Iterable[DataFile], *, plain: Collection[str] = ()) -> OutputFormat:
        """The format for columns that are dictionaries from file to file: those that all files store so.

        Their values are neither decoded nor looked up again. ``plain`` columns are left out.
        """
        found: set[str] | None = None
        for file in files:
            own = set(find_encoded_columns(file, self.schema)) - file.partition.keys() if file.rows else found
            found = own if found is None or own is None else found & own
            if not found:
                break
        chosen = (found or set()).difference(plain)
        return replace(self, encoded=tuple(name for name in self.schema.names if name in chosen))

    def open(self, location: str, filesystem: pafs.FileSystem, *, count_nans: bool = False) -> FileWriter:
        """A writer of one file."""
        return FileWriter(
            location,
            self.schema,
            filesystem=filesystem,
            layout=self.layout,
            metadata=self.metadata,
            encoded=self.encoded,
            count_nans=count_nans,
        )


def _make_table_layout(plan: Plan, options: WriteOptions) -> Layout:
    snapshot = plan.snapshot
    layout = snapshot.format.layout or Layout(row_group_rows=ROW_GROUP_ROWS)
    layout = replace(
        layout, sorting=snapshot.partitioner.sorting, like=(*_find_replaced_footer(plan), *layout.like)
    )
    if options.compression is not None:
        layout = layout.with_compression(options.compression)
    if options.row_group_size is not None:
        layout = layout.with_row_group_rows(options.row_group_size)
    return layout


def _find_replaced_footer(plan: Plan) -> list[pq.FileMetaData]:
    """The footer of the first file that is rewritten, if it has the current names and ids of columns."""
    files = [file for group in plan.groups for file in group.files]
    files += [item.file for item in plan.touched if item.action != "keep"]
    first = next((file.footer for file in files if file.footer is not None), None)
    if first is None or _list_fields(first.schema.to_arrow_schema()) != _list_fields(plan.schema):
        return []
    return [first]


def has_fields_of(stored: pa.Schema, schema: pa.Schema) -> bool:
    """Whether a file's columns have the names and ids of the table's, nested fields too.

    Lineage columns may be missing: what a file lacks of them is known.
    """
    ours, theirs = (
        _list_fields(pa.schema([each for each in columns if each.name not in LINEAGE]))
        for columns in (stored, schema)
    )
    return bool(ours == theirs)


def _list_fields(schema: pa.Schema | pa.DataType) -> list[Any]:
    """Names and ids of columns and of nested fields; without the names inside lists and maps, which differ
    between writers."""
    nested = isinstance(schema, pa.DataType)
    inner = [schema.field(number) for number in range(schema.num_fields)] if nested else list(schema)
    named = not nested or pa.types.is_struct(schema)
    return [
        (one.name if named else None, (one.metadata or {}).get(FIELD_ID), _list_fields(one.type))
        for one in inner
    ]


def _make_group_layout(group: FileGroup, options: WriteOptions) -> Layout:
    largest = max(group.files, key=lambda file: file.size)
    layout = _read_layout(largest)
    rows = options.row_group_size or _choose_row_group_rows(largest, layout)
    sorting = layout.sorting
    if sorting and not all(_read_layout(file).sorting == sorting for file in group.files):
        sorting = ()
    filters = {name: max(count, min(rows, group.rows)) for name, count in layout.bloom_filters.items()}
    layout = replace(layout, row_group_rows=rows, sorting=sorting, bloom_filters=filters)
    if options.int96 == "convert":
        layout = layout.without_int96()
    if options.compression is not None:
        layout = layout.with_compression(options.compression)
    return layout


def _make_group_metadata(group: FileGroup, schema: pa.Schema) -> Mapping[bytes, bytes]:
    """The key-value metadata that holds for a file with the rows of all files of a group."""
    noted = [
        ({} if file.footer is None else read_key_value_metadata(file.footer), _read_file_schema(file))
        for file in group.files
    ]
    spark, before = join_spark_schemas(file.footer for file in group.files)
    return {**join_metadata(noted, schema), **make_spark_schema(spark, schema, before)}


def _read_file_schema(file: DataFile) -> pa.Schema:
    return pa.schema([]) if file.footer is None else read_arrow_schema(file.footer)


def _read_layout(file: DataFile) -> Layout:
    return Layout() if file.footer is None else read_layout(file.footer)


def _choose_row_group_rows(file: DataFile, layout: Layout) -> int:
    """A file of one row group shows no limit: it may just have been small."""
    several = file.footer is not None and file.footer.num_row_groups > 1
    return layout.row_group_rows if several else max(layout.row_group_rows, ROW_GROUP_ROWS)


def _make_stored_schema(group: FileGroup, plan: Plan) -> pa.Schema:
    """The dataset's columns without the partition columns that no file of the group stores."""
    partition_columns = set(plan.snapshot.partition_columns)
    stored: set[str] = set()
    if partition_columns:
        for file in group.files:
            stored |= _list_top_level(file) | (partition_columns - set(file.partition))
    names = [name for name in plan.schema.names if name not in partition_columns or name in stored]
    return pa.schema([plan.schema.field(name) for name in names])


def _list_top_level(file: DataFile) -> set[str]:
    if file.footer is None:
        return set()
    schema = file.footer.schema
    return {schema.column(number).path.split(".", 1)[0] for number in range(len(schema))}


def _make_new_file_schema(
    snapshot: Snapshot, schema: pa.Schema, partition_columns: tuple[str, ...]
) -> pa.Schema:
    """The columns of a new file: partition columns only where the table's files store them."""
    path_columns = set(partition_columns)
    first = snapshot.model_footer
    if first is not None and path_columns:
        path_columns -= set(first.schema.to_arrow_schema().names)
    # Spark's schema is that of these columns only, see _make_spark_metadata().
    metadata = {key: value for key, value in (schema.metadata or {}).items() if key != SPARK_SCHEMA}
    return pa.schema([field for field in schema if field.name not in path_columns], metadata or None)


def _make_new_file_layout(snapshot: Snapshot, options: WriteOptions, stored: pa.Schema) -> Layout:
    first = snapshot.model_footer
    layout = Layout() if first is None else read_layout(first).for_new_file()
    if options.int96 == "convert":
        layout = layout.without_int96()
    layout = layout.with_like((file.footer for file in snapshot.files), stored.names)
    if options.compression is not None:
        layout = layout.with_compression(options.compression)
    return layout.with_row_group_rows(options.row_group_size or ROW_GROUP_ROWS)


def _make_spark_metadata(
    snapshot: Snapshot, schema: pa.Schema, stored: pa.Schema, *, keeps: bool
) -> Mapping[bytes, bytes]:
    """Spark's metadata of the table's files, if ``keeps``, else that of the source."""
    metadata, before = read_spark_schema(snapshot) if keeps else ({}, schema)
    if not metadata:
        metadata, before = schema.metadata or {}, schema
    return make_spark_schema(metadata, stored, before)
