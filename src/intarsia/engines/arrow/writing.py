"""Arrow tables into staged Parquet files, with the layout of the file they replace."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.disk import hasten
from intarsia.common.partitions import encode_partition_schema
from intarsia.core.change import StagedFile
from intarsia.core.layout import Layout
from intarsia.engines.arrow.chunk_writer import ChunkWriter, not_written
from intarsia.engines.arrow.file_form import Form, with_required_fields
from intarsia.engines.arrow.overlay import most_values
from intarsia.errors import NotSupported, StorageError


class FileWriter:
    """Writes one staged file; the row groups are the caller's.

    Nothing of it counts until a commit names it: whoever gives up simply does not. Memory: the
    encoded pages of the open row group.
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
    ) -> None:
        """``encoded`` columns come as dictionaries and are written as such; readers see plain values."""
        self.location = location
        self._form = Form.of(schema, layout, metadata=metadata, encoded=encoded)
        self.schema = self._form.schema
        self.rows = 0
        self._filesystem = filesystem
        self._form.refuse_lost(location)
        self._writer: pq.ParquetWriter | None = None
        self._chunks = ChunkWriter(location, filesystem) if self._form.described else None
        self._sink: Any = None
        self._nans: dict[str, int] | None = {} if count_nans else None

    @property
    def size(self) -> int:
        """The bytes written so far, without the open row group."""
        if self._chunks is not None:
            return self._chunks.place
        return 0 if self._sink is None else int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        """One row group of exactly these rows; two where a dictionary cannot number all their values."""
        if _outgrown(table):
            half = table.num_rows // 2
            self.write(table.slice(0, half))
            self.write(table.slice(half))
        elif table.num_rows:
            self._write(table)
            if self._nans is not None:
                _count_nans(table, self._nans)

    def close(self, path: str, partition: Mapping[str, Any]) -> StagedFile:
        """Finish the file and say what it is."""
        if self._chunks is not None:
            size = self._chunks.finish(self._form.footer)
            return StagedFile(self.location, path, self.rows, size, dict(partition), nans=self._nans)
        self._guard(lambda _: None, pa.Table.from_batches([], self.schema))
        assert self._writer is not None
        try:
            self._writer.close()
            size = self._sink.tell()
            self._sink.close()
        except OSError as error:
            raise self._failure(error) from error
        hasten(self._filesystem, self.location)
        return StagedFile(self.location, path, self.rows, size, dict(partition), nans=self._nans)

    def abandon(self) -> None:
        """Let go of the handles after an error; the staged bytes are swept with the transaction."""
        if self._chunks is not None:
            self._chunks.abandon()
        if self._writer is not None:
            self._writer.is_open = False  # else it would write its footer when it is collected, and fail
        if self._sink is not None and not self._sink.closed:
            with suppress(OSError):  # the disk may be full, which has been said
                self._sink.close()

    def _write(self, table: pa.Table) -> None:
        if self._chunks is None:
            whole = with_required_fields(table)
            self._guard(lambda writer: writer.write_table(whole, row_group_size=whole.num_rows), table)
            return
        try:
            found = self._form.chunks(table)
        except pa.ArrowNotImplementedError as error:
            raise unwritable(error, self.location) from error
        columns = [chunk for name in self.schema.names for chunk in found[name]]
        self._chunks.add(columns, table.num_rows, self._form.sorting())
        self.rows += table.num_rows

    def _guard(self, action: Any, table: pa.Table) -> None:
        try:
            if self._writer is None:
                self._open(table)
            action(self._writer)
        except OSError as error:
            raise self._failure(error) from error
        except pa.ArrowNotImplementedError as error:
            raise unwritable(error, self.location) from error
        self.rows += table.num_rows

    def _open(self, sample: pa.Table) -> None:
        self._sink = self._filesystem.open_output_stream(self.location)
        self._writer = self._form.writer(self._sink, sample)

    def _failure(self, error: OSError) -> StorageError:
        return not_written(error, self.location)


def _count_nans(table: pa.Table, counts: dict[str, int]) -> None:
    """Add the NaN of every column of floats, also inside structs, to the counts."""
    for field, column in zip(table.schema, table.columns, strict=True):
        for path, values in _floats(field.name, column):
            found = pc.sum(pc.is_nan(values), min_count=0).as_py()
            counts[path] = counts.get(path, 0) + (found or 0)


def _floats(path: str, column: Any) -> Iterator[tuple[str, Any]]:
    if pa.types.is_floating(column.type):
        yield path, column
    elif pa.types.is_struct(column.type):
        for field in column.type:
            yield from _floats(f"{path}.{field.name}", pc.struct_field(column, field.name))


def unwritable(error: pa.ArrowNotImplementedError, location: str) -> NotSupported:
    """Parquet has no place for a column."""
    return NotSupported(
        f"A column has a type that cannot be written to Parquet: {error}",
        path=location,
        hint="cast it to another type, or leave it out.",
    )


def _outgrown(table: pa.Table) -> bool:
    """Whether a reader could not number the values of a dictionary column with the indices it declares."""
    narrow = [f for f in table.schema if pa.types.is_dictionary(f.type) and f.type.index_type.bit_width < 32]
    return any(
        table.num_rows > most_values(field.type)
        and pc.count_distinct(table[field.name].cast(field.type.value_type)).as_py() > most_values(field.type)
        for field in narrow
    )


def stamp(txid: str, schema: pa.Schema, partition_columns: tuple[str, ...]) -> dict[bytes, bytes]:
    """What every file of ours says of itself: its transaction, and its partition columns' types."""
    metadata = {b"intarsia.txid": txid.encode()}
    if partition_columns:
        typed = pa.schema([schema.field(name) for name in partition_columns])
        metadata[b"intarsia.partitions"] = encode_partition_schema(typed)
    return metadata
