"""Files with column chunks copied from those that they replace: only what changes is encoded.

Chunks are copied as bytes, their pages with checksums; offsets in the footer and in the page indexes are
adjusted. Readers see no difference to a file that was encoded as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.common.thrift import LIST, STRUCT, Struct, get
from intarsia.core.change import StagedFile
from intarsia.core.layout import Layout
from intarsia.core.snapshot import DataFile
from intarsia.kernel import chunks
from intarsia.kernel.chunks import Chunk, ChunkSource, ChunkWriter, is_copyable
from intarsia.kernel.file_format import FileFormat, make_unkept_error
from intarsia.kernel.read import FileReader
from intarsia.kernel.write import make_unwritable_error, sort_declared

CHUNK_BYTES = 16 << 10
"""The least average size of chunks: smaller ones are encoded faster than they are copied."""
MOST_CHUNK_BYTES = 256 << 20
"""The largest chunk that is copied: it is held in memory."""


class ChunkCopy:
    """Writes one staged file, row group by row group of the file that it replaces.

    Memory: the encoded chunks of one row group. The file is no part of the table until a commit names it.
    """

    def __init__(
        self,
        location: str,
        *,
        filesystem: pafs.FileSystem,
        form: FileFormat,
        chunk_source: ChunkSource,
        footer: Struct,
        copyable: frozenset[str],
        threads: int = 1,
    ) -> None:
        self.schema = form.schema
        self.copyable = copyable
        """Columns whose chunks can be copied."""
        self._form = form
        self._chunk_source = chunk_source
        self._footer = footer
        self._threads = threads
        self._chunks = ChunkWriter(location, filesystem)

    @staticmethod
    def of(
        reader: FileReader,
        location: str,
        schema: pa.Schema,
        *,
        filesystem: pafs.FileSystem,
        layout: Layout,
        metadata: Mapping[bytes, bytes],
        encoded: Collection[str],
        threads: int = 1,
    ) -> ChunkCopy | None:
        """A copy of the file being read; None where chunks cannot be copied, or encoding them is faster."""
        if any(_narrow(field.type) for field in schema):
            return None
        form = FileFormat.of(schema, layout, metadata=metadata, encoded=encoded)
        known = form.file_schema
        if known is None or (not known.lost and not _is_worth_copying(reader)):
            return None
        chunk_source = reader.open_chunk_source()
        theirs = {name: tuple(elements) for name, elements in chunk_source.read_columns().items()}
        columns = {name: theirs[name] if name in known.lost else known.columns[name] for name in schema.names}
        copyable = _find_copyable(
            reader, chunk_source, {name for name in theirs if columns.get(name) == theirs[name]}
        )
        if not chunk_source.trusted or not copyable or known.lost - copyable:
            return None
        footer = _make_footer(form, columns)
        return ChunkCopy(
            location,
            filesystem=filesystem,
            form=form,
            chunk_source=chunk_source,
            footer=footer,
            copyable=copyable,
            threads=threads,
        )

    def add(self, group: int, table: pa.Table) -> None:
        """Write a row group of the file with some columns new, and the chunks of the others.

        ``table`` has the new columns: at least those whose chunks cannot be copied; all of them where the
        number of rows or their order has changed.
        """
        lost = frozenset() if self._form.file_schema is None else self._form.file_schema.lost
        if lost.intersection(table.column_names):
            raise make_unkept_error(lost.intersection(table.column_names), self._chunks.location)
        if not table.num_columns:
            self._add(group, {}, int(get(self._chunk_source.read_groups()[group], chunks.GROUP_ROWS)))
        elif table.num_rows:
            try:
                fresh = self._form.encode_chunks(table, threads=self._threads)
            except pa.ArrowNotImplementedError as error:
                raise make_unwritable_error(error, self._chunks.location) from error
            self._add(group, fresh, table.num_rows)

    def select_fresh(
        self,
        after: pa.Table,
        changed: Collection[str],
        *,
        rows_before: int,
        order: Sequence[tuple[str, str, str]],
    ) -> pa.Table:
        """The columns of a row group to :meth:`add`, of those that were decoded, in the order it declares.

        ``order`` are its sort keys where rows may have to move.
        """
        sorted_ = sort_declared(after, order)
        decoded = set(after.column_names)
        names = [name for name in self.schema.names if name in decoded]
        if sorted_ is after and after.num_rows == rows_before:
            names = [name for name in names if name in changed or name not in self.copyable]
        return sorted_.select(names)

    def _add(self, group: int, fresh: Mapping[str, list[Chunk]], rows: int) -> None:
        taken = self._chunk_source.read_chunks(group)
        columns: list[Chunk] = []
        for name in self.schema.names:
            columns += (
                fresh[name] if name in fresh else [Chunk(one, self._chunk_source) for one in taken[name]]
            )
        declared = self._chunk_source.read_groups()[group].get(chunks.GROUP_SORTING)
        self._chunks.add(columns, rows, declared if self._form.layout.sorting else None)

    def close(self, path: str, partition: Mapping[str, Any]) -> StagedFile:
        """Write the footer and describe the file."""
        size = self._chunks.finish(self._footer)
        made = self._chunks
        return StagedFile(made.location, path, made.rows, size, dict(partition), footer=made.footer)

    def abandon(self) -> None:
        """Close the file after an error; what was written is removed with the transaction."""
        self._chunks.abandon()


def concatenate(
    files: Sequence[DataFile],
    read_schema: pa.Schema,
    location: str,
    form: FileFormat,
    *,
    source: pafs.FileSystem,
    filesystem: pafs.FileSystem,
) -> ChunkWriter | None:
    """Write the row groups of some files into one, undecoded; None where one of them cannot be copied.

    Page checksums are verified, Bloom filters and page indexes stay. Memory: a column chunk. Raises
    NotCopyable where a file is not as its footer says.
    """
    known = form.file_schema
    if known is None or any(_narrow(field.type) for field in form.schema):
        return None
    made = ChunkWriter(location, filesystem)
    columns: dict[str, tuple[Struct, ...]] = {}
    try:
        for file in files:
            with FileReader(file, read_schema, source) as reader:
                chunk_source = reader.open_chunk_source()
                theirs = {name: tuple(elements) for name, elements in chunk_source.read_columns().items()}
                columns = columns or {
                    name: theirs.get(name, ()) if name in known.lost else known.columns[name]
                    for name in form.schema.names
                }
                copyable = _find_copyable(reader, chunk_source, theirs)
                if theirs != columns or not chunk_source.trusted or len(copyable) < len(theirs):
                    return None
                if max(_list_chunk_sizes(reader), default=0) > MOST_CHUNK_BYTES:
                    return None
                for group in range(reader.footer.num_row_groups):
                    _copy_group(chunk_source, group, form, made)
        made.finish(_make_footer(form, columns))
        return made
    finally:
        made.abandon()


def _copy_group(chunk_source: ChunkSource, group: int, form: FileFormat, made: ChunkWriter) -> None:
    taken = chunk_source.read_chunks(group)
    stored = chunk_source.read_groups()[group]
    made.add(
        [Chunk(one, chunk_source) for name in form.schema.names for one in taken[name]],
        int(get(stored, chunks.GROUP_ROWS)),
        stored.get(chunks.GROUP_SORTING) if form.layout.sorting else None,
    )


def _make_footer(form: FileFormat, columns: Mapping[str, Sequence[Struct]]) -> Struct:
    """The footer of a file without rows, with these elements of its schema."""
    assert form.file_schema is not None
    footer = form.footer
    if not form.described:
        sink = pa.BufferOutputStream()
        form.open_writer(sink, pa.Table.from_batches([], form.schema)).close()
        footer = ChunkSource.of_buffer(sink.getvalue()).footer
    elements = [form.file_schema.root, *(element for column in columns.values() for element in column)]
    return {**footer, chunks.FILE_SCHEMA: (LIST, (STRUCT, elements))}


def _list_chunk_sizes(reader: FileReader) -> list[int]:
    footer = reader.footer
    return [
        footer.row_group(group).column(number).total_compressed_size
        for group in range(footer.num_row_groups)
        for number in range(footer.num_columns)
    ]


def _is_worth_copying(reader: FileReader) -> bool:
    sizes = _list_chunk_sizes(reader)
    return bool(sizes) and sum(sizes) >= CHUNK_BYTES * len(sizes) and max(sizes) <= MOST_CHUNK_BYTES


def _narrow(dtype: pa.DataType) -> bool:
    """Whether a dictionary may get more values than its indices can number: row groups are then split."""
    return pa.types.is_dictionary(dtype) and dtype.index_type.bit_width < 32


def _find_copyable(reader: FileReader, chunk_source: ChunkSource, same: Collection[str]) -> frozenset[str]:
    """Columns that are described as in the file and whose chunks can be copied from every row group."""
    found = set(same) - reader.file.partition.keys()  # their values are compared with the path
    found -= reader.unproven  # their values have to be read
    for group in range(len(chunk_source.read_groups())):
        for name, stored in chunk_source.read_chunks(group).items():
            if not all(is_copyable(chunk) for chunk in stored):
                found.discard(name)
    return frozenset(found)
