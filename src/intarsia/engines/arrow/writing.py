"""Arrow tables into staged Parquet files, with the layout of the file they replace."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.disk import hasten
from intarsia.common.partitions import encode_partition_schema
from intarsia.core.change import StagedFile
from intarsia.core.layout import Layout, leaf_columns
from intarsia.engines.arrow.overlay import most_values
from intarsia.engines.arrow.reading import as_encoded
from intarsia.errors import NotSupported, StorageError

SAMPLE_ROWS = 2_048
DICTIONARY_PAYS = 0.25
"""Distinct values among the sampled ones, up to which a dictionary makes a column smaller and faster."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a file of ours is written: its columns, its notes, its layout."""

    schema: pa.Schema
    layout: Layout
    encoded: bool = False
    """Whether some columns come as dictionaries though readers are to see plain values."""

    @staticmethod
    def of(
        schema: pa.Schema,
        layout: Layout,
        *,
        metadata: Mapping[bytes, bytes],
        encoded: Collection[str] = (),
    ) -> Form:
        notes = {**(schema.metadata or {}), **metadata}
        if encoded:
            # Readers that find a schema of Arrow take the file's metadata from it, and from nowhere else.
            whole = schema.with_metadata(notes or None)
            notes[b"ARROW:schema"] = base64.b64encode(whole.serialize().to_pybytes())
        return Form(as_encoded(schema, encoded).with_metadata(notes or None), layout, bool(encoded))

    def writer(self, sink: Any, sample: pa.Table) -> pq.ParquetWriter:
        """A writer of whole files; the first rows to come are the sample."""
        writer = self._open(sink, self.schema, sample, store_schema=not self.encoded)
        if self.encoded:  # a writer that stores no schema of its own stores no metadata either
            writer.add_key_value_metadata(dict(self.schema.metadata))
        return writer

    def encode(self, sink: Any, table: pa.Table) -> None:
        """Some of the columns as a file of one row group, without notes."""
        schema = pa.schema([self.schema.field(name) for name in table.column_names])
        with self._open(sink, schema, table, store_schema=False) as writer:
            writer.write_table(table, row_group_size=table.num_rows)

    def _open(
        self, sink: Any, schema: pa.Schema, sample: pa.Table, *, store_schema: bool
    ) -> pq.ParquetWriter:
        dictionaries = dictionary_columns(sample, self.layout)
        options = self.layout.writer_options(schema, dictionary_columns=dictionaries)
        return pq.ParquetWriter(
            sink, schema, store_schema=store_schema, write_batch_size=_batch_size(sample), **options
        )


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
        self._writer: pq.ParquetWriter | None = None
        self._sink: Any = None
        self._nans: dict[str, int] | None = {} if count_nans else None

    @property
    def size(self) -> int:
        """The bytes written so far, without the open row group."""
        return 0 if self._sink is None else int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        """One row group of exactly these rows; two where a dictionary cannot number all their values."""
        if _outgrown(table):
            half = table.num_rows // 2
            self.write(table.slice(0, half))
            self.write(table.slice(half))
        elif table.num_rows:
            self._guard(lambda writer: writer.write_table(table, row_group_size=table.num_rows), table)
            if self._nans is not None:
                _count_nans(table, self._nans)

    def close(self, path: str, partition: Mapping[str, Any]) -> StagedFile:
        """Finish the file and say what it is."""
        self._guard(lambda _: None, self.schema.empty_table())
        assert self._writer is not None
        try:
            self._writer.close()
            self._sink.close()
            size = self._filesystem.get_file_info(self.location).size
        except OSError as error:
            raise self._failure(error) from error
        hasten(self._filesystem, self.location)
        return StagedFile(self.location, path, self.rows, size or 0, dict(partition), nans=self._nans)

    def abandon(self) -> None:
        """Let go of the handles after an error; the staged bytes are swept with the transaction."""
        if self._writer is not None:
            self._writer.is_open = False  # else it would write its footer when it is collected, and fail
        if self._sink is not None and not self._sink.closed:
            with suppress(OSError):  # the disk may be full, which has been said
                self._sink.close()

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


def not_written(error: OSError, location: str) -> StorageError:
    """The storage refused a staged file."""
    return StorageError(f"Cannot write a staged file: {error}", errno=error.errno, path=location)


def unwritable(error: pa.ArrowNotImplementedError, location: str) -> NotSupported:
    """Parquet has no place for a column."""
    return NotSupported(
        f"A column has a type that cannot be written to Parquet: {error}",
        path=location,
        hint="cast it to another type, or leave it out.",
    )


def _batch_size(sample: pa.Table) -> int:
    """Values written between two looks at the page's size: many where they are narrow, which is quicker."""
    rows = max(sample.num_rows, 1)
    widest = max((column.nbytes // rows for column in sample.columns), default=0)
    return min(16_384, max(1_024, (1 << 20) // max(widest, 1)))


def _outgrown(table: pa.Table) -> bool:
    """Whether a reader could not number the values of a dictionary column with the indices it declares."""
    narrow = [f for f in table.schema if pa.types.is_dictionary(f.type) and f.type.index_type.bit_width < 32]
    return any(
        table.num_rows > most_values(field.type)
        and pc.count_distinct(table[field.name].cast(field.type.value_type)).as_py() > most_values(field.type)
        for field in narrow
    )


def dictionary_columns(sample: pa.Table, layout: Layout) -> list[str]:
    """The leaf columns for which a dictionary pays, judged by the distinct values of a sample."""
    rows = sample.num_rows
    head = sample.slice(max(0, (rows - SAMPLE_ROWS) // 2), SAMPLE_ROWS)
    chosen: list[str] = []
    for field in sample.schema:
        if pa.types.is_nested(field.type):
            chosen.extend(leaf_columns(pa.schema([field])))
        elif pa.types.is_dictionary(field.type) or _repeats(head[field.name]):
            chosen.append(field.name)
    return [path for path in chosen if layout.allows_dictionary(path)]


def _repeats(column: pa.ChunkedArray) -> bool:
    kind = column.type
    if pa.types.is_boolean(kind):
        return False
    if isinstance(kind, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type)
    if len(column) < 1024 or pa.types.is_null(kind):
        return True
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.binary() if pa.types.is_binary_view(column.type) else pa.string())
    try:
        distinct = pc.count_distinct(column).as_py()
    except pa.ArrowNotImplementedError:
        return True
    return bool(distinct <= len(column) * DICTIONARY_PAYS)


def stamp(txid: str, schema: pa.Schema, partition_columns: tuple[str, ...]) -> dict[bytes, bytes]:
    """What every file of ours says of itself: its transaction, and its partition columns' types."""
    metadata = {b"intarsia.txid": txid.encode()}
    if partition_columns:
        typed = pa.schema([schema.field(name) for name in partition_columns])
        metadata[b"intarsia.partitions"] = encode_partition_schema(typed)
    return metadata
