"""Arrow tables written to one staged Parquet file, in row groups, with the layout that is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.partitions import encode_partition_schema
from intarsia.common.paths import start_writeback
from intarsia.core.change import StagedFile, is_discarded
from intarsia.core.keys import arange, decode_dictionary, to_comparable
from intarsia.core.layout import Layout
from intarsia.errors import NotSupported, SchemaMismatch, StorageError
from intarsia.kernel.chunks import ChunkWriter, write_failure
from intarsia.kernel.file_format import FileFormat, with_required_fields
from intarsia.kernel.overlay import count_dictionary_room, take_rows
from intarsia.kernel.read import PIECE_BYTES


class FileWriter:
    """Writes one staged file; the caller decides on row groups.

    The file is no part of the table until a commit names it. Memory: the encoded pages of the open row group.
    """

    def __init__(
        self,
        location: str,
        schema: pa.Schema,
        *,
        filesystem: pafs.FileSystem,
        layout: Layout,
        metadata: Mapping[bytes, bytes],
        encoded: Collection[str] = (),
        count_nans: bool = False,
        threads: int = 1,
    ) -> None:
        """``encoded`` columns are given as dictionaries and written as such; readers see plain values.

        With ``threads`` columns of a row group are encoded at once, where the file is like another one.
        """
        self.location = location
        self._form = FileFormat.of(schema, layout, metadata=metadata, encoded=encoded)
        self.schema = self._form.schema
        self.rows = 0
        self._filesystem = filesystem
        self._form.refuse_lost(location)
        self._writer: pq.ParquetWriter | None = None
        self._chunks = ChunkWriter(location, filesystem) if self._form.described else None
        self._sink: Any = None
        self._nans: dict[str, int] | None = {} if count_nans else None
        self._encoded = encoded
        self._threads = threads

    @property
    def size(self) -> int:
        """The bytes written so far, without the open row group."""
        if self._chunks is not None:
            return self._chunks.place
        return 0 if self._sink is None else int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        """Write these rows as one row group; as several where a dictionary cannot number all their values."""
        if _is_outgrown(table):
            half = table.num_rows // 2
            self.write(table.slice(0, half))
            self.write(table.slice(half))
        elif table.num_rows:
            self._write(unify_dictionaries(table, self._encoded))
            if self._nans is not None:
                _count_nans(table, self._nans)

    def close(self, path: str, partition: Mapping[str, Any]) -> StagedFile:
        """Write the footer and describe the file."""
        if self._chunks is not None:
            size = self._chunks.finish(self._form.footer)
            return self._make_staged_file(path, partition, size, self._chunks.footer)
        self._guard(lambda _: None, pa.Table.from_batches([], self.schema))
        assert self._writer is not None
        try:
            self._writer.close()
            size = self._sink.tell()
            self._sink.close()
        except OSError as error:
            raise self._make_failure(error) from error
        start_writeback(self._filesystem, self.location)
        measured = is_discarded(self._filesystem)
        return self._make_staged_file(
            path, partition, size, self._writer.writer.metadata if measured else None
        )

    def _make_staged_file(
        self, path: str, partition: Mapping[str, Any], size: int, footer: pq.FileMetaData | None
    ) -> StagedFile:
        return StagedFile(
            self.location, path, self.rows, size, dict(partition), nans=self._nans, footer=footer
        )

    def abandon(self) -> None:
        """Close the file after an error; what was written is removed with the transaction."""
        if self._chunks is not None:
            self._chunks.abandon()
        if self._writer is not None:
            self._writer.is_open = False  # otherwise it writes a footer when it is collected, and fails
        if self._sink is not None and not self._sink.closed:
            with suppress(OSError):  # such as a full disk, which has been raised already
                self._sink.close()

    def _write(self, table: pa.Table) -> None:
        if self._chunks is None:
            whole = with_required_fields(table)
            self._guard(lambda writer: writer.write_table(whole, row_group_size=whole.num_rows), table)
            return
        try:
            found = self._form.encode_chunks(table, threads=self._threads)
        except pa.ArrowNotImplementedError as error:
            raise make_unwritable_error(error, self.location) from error
        columns = [chunk for name in self.schema.names for chunk in found[name]]
        self._chunks.add(columns, table.num_rows, self._form.make_sorting())
        self.rows += table.num_rows

    def _guard(self, action: Any, table: pa.Table) -> None:
        try:
            if self._writer is None:
                self._open(table)
            action(self._writer)
        except OSError as error:
            raise self._make_failure(error) from error
        except pa.ArrowNotImplementedError as error:
            raise make_unwritable_error(error, self.location) from error
        self.rows += table.num_rows

    def _open(self, sample: pa.Table) -> None:
        self._sink = self._filesystem.open_output_stream(self.location)
        self._writer = self._form.open_writer(self._sink, sample)

    def _make_failure(self, error: OSError) -> StorageError:
        return write_failure(error, self.location)


def unify_dictionaries(table: pa.Table, columns: Collection[str]) -> pa.Table:
    """The table with one dictionary per column: where chunks have several, PyArrow stores plain values."""
    for name in columns:
        if table[name].num_chunks > 1:
            table = table.set_column(
                table.column_names.index(name), table.schema.field(name), table[name].unify_dictionaries()
            )
    return table


def _count_nans(table: pa.Table, counts: dict[str, int]) -> None:
    """Add the number of NaN in every column of floats, also inside structs, to the counts."""
    for field, column in zip(table.schema, table.columns, strict=True):
        for path, values in _iterate_floats(field.name, column):
            found = pc.sum(pc.is_nan(values), min_count=0).as_py()
            counts[path] = counts.get(path, 0) + (found or 0)


def _iterate_floats(path: str, column: Any) -> Iterator[tuple[str, Any]]:
    if pa.types.is_floating(column.type):
        yield path, column
    elif pa.types.is_struct(column.type):
        for field in column.type:
            yield from _iterate_floats(f"{path}.{field.name}", pc.struct_field(column, field.name))


def make_unwritable_error(error: pa.ArrowNotImplementedError, location: str) -> NotSupported:
    """The error for a column whose type Parquet cannot store."""
    return NotSupported(
        f"A column has a type that cannot be written to Parquet: {error}",
        path=location,
        hint="cast it to another type, or leave it out.",
    )


def _is_outgrown(table: pa.Table) -> bool:
    """Whether a dictionary column has more values than its index type can number."""
    narrow = [f for f in table.schema if pa.types.is_dictionary(f.type) and f.type.index_type.bit_width < 32]
    return any(
        table.num_rows > count_dictionary_room(field.type)
        and pc.count_distinct(table[field.name].cast(field.type.value_type)).as_py()
        > count_dictionary_room(field.type)
        for field in narrow
    )


def make_file_metadata(
    txid: str, schema: pa.Schema, partition_columns: tuple[str, ...]
) -> dict[bytes, bytes]:
    """The key-value metadata of every new file: its transaction, and the types of partition columns."""
    metadata = {b"intarsia.txid": txid.encode()}
    if partition_columns:
        typed = pa.schema([schema.field(name) for name in partition_columns])
        metadata[b"intarsia.partitions"] = encode_partition_schema(typed)
    return metadata


class Sink(Protocol):
    """Where row groups are written to, such as a FileWriter."""

    schema: pa.Schema

    def write(self, table: pa.Table) -> None: ...


class RowGroups:
    """Collects pieces of any size into row groups of one size.

    A row group is also complete at ``PIECE_BYTES`` of memory. Its rows are sorted by the order that the
    layout declares. Memory: one row group.
    """

    def __init__(self, writer: Sink, layout: Layout) -> None:
        self._writer = writer
        self._rows = layout.row_group_rows
        self._order = layout.make_sort_keys(writer.schema)
        self._waiting: list[pa.Table] = []
        self._count = 0
        self._bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """The bytes in memory of the rows that are not written yet."""
        return self._bytes

    @property
    def waiting_rows(self) -> int:
        return self._count

    def add(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._count += table.num_rows
        self._bytes += table.nbytes
        if self._count < self._rows and self._bytes < PIECE_BYTES:
            return
        whole = self._take()
        rest = whole.num_rows % self._rows if whole.num_rows >= self._rows else 0
        full = whole.num_rows - rest
        for start in range(0, full, self._rows):
            self._write(whole.slice(start, min(self._rows, full - start)))
        if rest:
            self.add(whole.slice(full))

    def finish(self) -> None:
        """Write the collected rows as a row group."""
        if self._count:
            self._write(self._take())

    def _take(self) -> pa.Table:
        whole = pa.concat_tables(self._waiting)
        self._waiting, self._count, self._bytes = [], 0, 0
        return whole

    def _write(self, table: pa.Table) -> None:
        self._writer.write(sort_declared(table, self._order))


def sort_declared(table: pa.Table, keys: Sequence[tuple[str, str, str]]) -> pa.Table:
    """The rows sorted by the keys; unchanged without keys."""
    if not keys or table.num_rows < 2:
        return table
    # PyArrow cannot sort some types, such as dictionaries; it can sort their comparable form.
    columns = {name: decode_dictionary(to_comparable(table[name])) for name, *_ in keys}
    order = pc.sort_indices(pa.table(columns), sort_keys=list(keys))
    if order.equals(arange(table.num_rows).cast(order.type)):
        return table
    return take_rows(table, order)


_WIDE = 32


def widen_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with indices of dictionaries, also of nested ones, wide enough for all files' values."""
    fields = [field.with_type(_change_dictionaries(field.type, plain=False)) for field in schema]
    return pa.schema(fields, schema.metadata)


def widen(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table in the types of a widened schema."""
    if table.schema.equals(schema):
        return table
    columns = [column.cast(field.type) for column, field in zip(table.columns, schema, strict=True)]
    return pa.table(columns, schema=schema)


def narrow(table: pa.Table, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows in the types of ``schema``, in as many tables as its dictionaries need.

    Raises:
        SchemaMismatch: one row alone holds more values than its type can number.
    """
    if table.schema.equals(schema):
        yield table
        return
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        stored = _narrow(column, field.type)
        if stored is None:
            break
        columns.append(stored)
    else:
        yield pa.table(columns, schema=schema)
        return
    if table.num_rows < 2:
        raise SchemaMismatch(
            f"A row holds more distinct values than column {field.name!r} of type {field.type} can number.",
            hint="make the column one of plain values, or of wider indices, in every file.",
        )
    half = table.num_rows // 2
    yield from narrow(table.slice(0, half), schema)
    yield from narrow(table.slice(half), schema)


class NarrowingSink:
    """Writes rows whose dictionaries have wide indices with the narrow indices of the file's schema."""

    def __init__(self, writer: Sink, schema: pa.Schema) -> None:
        self.schema = writer.schema
        self._writer = writer
        self._stored = schema

    def write(self, table: pa.Table) -> None:
        for part in narrow(table, self._stored):
            self._writer.write(part)


def _narrow(column: pa.ChunkedArray, dtype: pa.DataType) -> Any:
    """The column in a type with narrower indices; None if it has too many values for them."""
    if column.type == dtype:
        return column
    # Through plain values, since the dictionary may have values of other rows, too.
    plain = column.cast(_change_dictionaries(dtype, plain=True)).combine_chunks()
    try:
        return plain.cast(dtype)
    except pa.ArrowInvalid:
        return None


def _change_dictionaries(dtype: pa.DataType, *, plain: bool) -> pa.DataType:
    """The type with wide indices in place of narrow ones, or with plain values in place of dictionaries."""
    is_ = pa.types

    def change_field(field: pa.Field) -> pa.Field:
        return field.with_type(_change_dictionaries(field.type, plain=plain))

    if is_.is_dictionary(dtype):
        if dtype.index_type.bit_width >= _WIDE:
            return dtype
        return dtype.value_type if plain else pa.dictionary(pa.int32(), dtype.value_type, dtype.ordered)
    if is_.is_struct(dtype):
        return pa.struct([change_field(field) for field in dtype])
    if is_.is_map(dtype):
        return pa.map_(
            change_field(dtype.key_field), change_field(dtype.item_field), keys_sorted=dtype.keys_sorted
        )
    if is_.is_fixed_size_list(dtype):
        return pa.list_(change_field(dtype.value_field), dtype.list_size)
    if is_.is_large_list(dtype):
        return pa.large_list(change_field(dtype.value_field))
    if is_.is_list(dtype):
        return pa.list_(change_field(dtype.value_field))
    return dtype
