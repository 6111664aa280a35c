"""A file written from the column chunks of another and from new ones: what does not change is not encoded.

Chunks are taken over as bytes, their pages with checksums; only the places in the footer and in the
indexes are new. The reader sees the same file as if all of it had been written by us.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.common.thrift import BINARY, LIST, STRUCT, Struct, get
from intarsia.core.change import StagedFile
from intarsia.core.layout import Layout, leaves_of, same_leaves, split
from intarsia.kernel import chunks
from intarsia.kernel.chunks import Chunk, ChunkSource, ChunkWriter, NotCopyable, is_copyable
from intarsia.kernel.file_format import FileFormat, unkept
from intarsia.kernel.read import FileReader
from intarsia.kernel.write import unwritable

CHUNK_BYTES = 16 << 10
"""Chunks smaller than this on average are encoded sooner than taken over."""
MOST_CHUNK_BYTES = 256 << 20
"""A chunk is held in memory while it moves."""


class ChunkCopy:
    """Writes one staged file, row group by row group of the file that it replaces.

    Memory: the encoded chunks of one row group. Nothing of it counts until a commit names it.
    """

    def __init__(
        self,
        location: str,
        *,
        filesystem: pafs.FileSystem,
        form: FileFormat,
        chunk_source: ChunkSource,
        footer: Struct,
        alike: frozenset[str],
    ) -> None:
        self.schema = form.schema
        self.alike = alike
        """Columns whose chunks can be taken over."""
        self._form = form
        self._chunk_source = chunk_source
        self._footer = footer
        self._columns = split(get(footer, chunks.FILE_SCHEMA)[1])[1]
        self._joined = False
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
        writer: bytes | None = None,
    ) -> ChunkCopy | None:
        """A splice of the file being read, or None where nothing would be won or it cannot be done.

        ``writer`` is whom the file is said to be written by; PyArrow if None.
        """
        if any(_narrow(field.type) for field in schema):
            return None
        form = FileFormat.of(schema, layout, metadata=metadata, encoded=encoded)
        known = form.file_schema
        if known is None or (not known.lost and not _worth_it(reader)):
            return None
        chunk_source = reader.chunk_source()
        theirs = {name: tuple(elements) for name, elements in chunk_source.columns().items()}
        columns = {name: theirs[name] if name in known.lost else known.columns[name] for name in schema.names}
        alike = _alike(reader, chunk_source, {name for name in theirs if columns.get(name) == theirs[name]})
        if not chunk_source.trusted or not alike or known.lost - alike:
            return None
        footer = form.footer
        if not form.described:
            sink = pa.BufferOutputStream()
            form.writer(sink, pa.Table.from_batches([], form.schema)).close()
            footer = ChunkSource.of_buffer(sink.getvalue()).footer
        elements = [known.root, *(element for column in columns.values() for element in column)]
        footer = {**footer, chunks.FILE_SCHEMA: (LIST, (STRUCT, elements))}
        if writer is not None:
            footer[chunks.FILE_WRITER] = (BINARY, writer)
        return ChunkCopy(
            location, filesystem=filesystem, form=form, chunk_source=chunk_source, footer=footer, alike=alike
        )

    def add(self, group: int, table: pa.Table) -> None:
        """A row group of the file with some columns new, the others as they are.

        ``table`` holds the new columns: at least those that are not alike; all of them where the
        number of rows or their order has changed.
        """
        lost = frozenset() if self._form.file_schema is None else self._form.file_schema.lost
        if lost.intersection(table.column_names):
            raise unkept(lost.intersection(table.column_names), self._chunks.location)
        if not table.num_columns:
            self._add(group, {}, int(get(self._chunk_source.groups()[group], chunks.GROUP_ROWS)))
        elif table.num_rows:
            try:
                fresh = self._form.chunks(table)
            except pa.ArrowNotImplementedError as error:
                raise unwritable(error, self._chunks.location) from error
            self._add(group, fresh, table.num_rows)

    def join(self, group: int, part: ChunkSource) -> None:
        """The same with the new columns from a file of one row group, which another writer made.

        The file is then named as one of that writer's. Raises NotCopyable where it stores columns otherwise.
        """
        fresh = {}
        theirs = part.columns()
        for name, found in part.chunks(0).items():
            if not same_leaves(self._columns[name], theirs[name]):
                raise NotCopyable(f"{name!r} is stored in two ways")
            leaves = zip(found, leaves_of(self._columns[name]), leaves_of(theirs[name]), strict=True)
            fresh[name] = [
                Chunk(one, part, leaf, leaf.order is not None and leaf.order == other.order)
                for one, leaf, other in leaves
            ]
        self._joined = True
        self._footer = {**self._footer, chunks.FILE_WRITER: part.footer[chunks.FILE_WRITER]}
        self._add(group, fresh, int(get(part.groups()[0], chunks.GROUP_ROWS)))

    def _add(self, group: int, fresh: Mapping[str, list[Chunk]], rows: int) -> None:
        """A row group with some new columns, and the rest as they are."""
        taken = self._chunk_source.chunks(group)
        columns: list[Chunk] = []
        for name in self.schema.names:
            columns += (
                fresh[name] if name in fresh else [Chunk(one, self._chunk_source) for one in taken[name]]
            )
        declared = self._chunk_source.groups()[group].get(chunks.GROUP_SORTING)
        self._chunks.add(columns, rows, declared if self._form.layout.sorting else None)

    def close(self, path: str, partition: Mapping[str, Any]) -> StagedFile:
        """Finish the file and say what it is."""
        size = self._chunks.finish(self._footer, indexed=not self._joined)
        made = self._chunks
        return StagedFile(made.location, path, made.rows, size, dict(partition), footer=made.footer)

    def abandon(self) -> None:
        """Let go of the handle after an error; the staged bytes are swept with the transaction."""
        self._chunks.abandon()


def _worth_it(reader: FileReader) -> bool:
    footer = reader.footer
    sizes = [
        footer.row_group(group).column(number).total_compressed_size
        for group in range(footer.num_row_groups)
        for number in range(footer.num_columns)
    ]
    return bool(sizes) and sum(sizes) >= CHUNK_BYTES * len(sizes) and max(sizes) <= MOST_CHUNK_BYTES


def _narrow(dtype: pa.DataType) -> bool:
    """A dictionary that may outgrow its indices, so that a row group must be cut in two."""
    return pa.types.is_dictionary(dtype) and dtype.index_type.bit_width < 32


def _alike(reader: FileReader, chunk_source: ChunkSource, same: Collection[str]) -> frozenset[str]:
    """Columns described as in the file, whose chunks can be taken over from every row group."""
    found = set(same) - reader.file.partition.keys()  # to be compared with what the path says
    found -= reader.unproven  # whose values have to be read
    for group in range(len(chunk_source.groups())):
        for name, stored in chunk_source.chunks(group).items():
            if not all(is_copyable(chunk) for chunk in stored):
                found.discard(name)
    return frozenset(found)
