"""A Parquet file put together from column chunks that are encoded already; knows no rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.fs as pafs

from intarsia.common.disk import hasten
from intarsia.common.thrift import BINARY, I16, I32, I64, LIST, STRUCT, Struct, get, write_struct
from intarsia.core.elements import Leaf
from intarsia.engines.arrow import chunks
from intarsia.engines.arrow.chunks import Donor, Moved, moved
from intarsia.errors import StorageError

_BOUNDS = (1, 2, 5, 6, 7, 8)
"""Of a chunk's statistics: its least and greatest value, and whether they are exact."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column chunk of a file, and what it is to be called in another; None leaves it as it is."""

    chunk: Struct
    donor: Donor
    leaf: Leaf | None = None
    bounded: bool = True
    """Whether its bounds mean the same there."""


class ChunkWriter:
    """Writes one file, row group by row group, and its footer.

    Memory: what it says of the chunks. Nothing of the file counts until a commit names it.
    """

    def __init__(self, location: str, filesystem: pafs.FileSystem) -> None:
        self.location = location
        self.rows = 0
        self.place = 0
        """The bytes written so far."""
        self.groups: list[Struct] = []
        self._filesystem = filesystem
        self._written: list[Moved] = []
        self._sink: Any = None

    def add(self, columns: Sequence[Chunk], rows: int, sorting: tuple[int, Any] | None = None) -> None:
        """A row group of these chunks; ``sorting`` is the order that it declares, as Thrift has it."""
        start = self.place or len(chunks.MAGIC)
        written = [self._take(column) for column in columns]
        metas = [get(chunk, chunks.CHUNK_META) for chunk in written]
        made: Struct = {
            chunks.GROUP_CHUNKS: (LIST, (STRUCT, written)),
            chunks.GROUP_SIZE: (I64, sum(get(meta, chunks.META_SIZE) for meta in metas)),
            chunks.GROUP_ROWS: (I64, rows),
            chunks.GROUP_PLACE: (I64, start),
            chunks.GROUP_STORED: (I64, sum(get(meta, chunks.META_STORED) for meta in metas)),
        }
        if sorting is not None:
            made[chunks.GROUP_SORTING] = sorting
        if len(self.groups) < 1 << 15:
            made[chunks.GROUP_NUMBER] = (I16, len(self.groups))
        self.rows += rows
        self.groups.append(made)

    def finish(self, footer: Struct, *, indexed: bool = True) -> int:
        """Write indexes and footer; the size. Without ``indexed``, indexes of all chunks or of none."""
        self._write(b"")
        for item in self._written:
            if item.bloom is not None:
                get(item.chunk, chunks.CHUNK_META)[chunks.META_BLOOM] = (I64, self.place)
                self._write(item.bloom)
        written = self._written
        # There are readers that look for the pages of all columns if one has an index of them.
        if not indexed and any(item.offsets is None for item in written):
            written = []
        for item in written:
            self._index(item, item.bounds, chunks.CHUNK_BOUNDS, chunks.CHUNK_BOUNDS_SIZE)
        for item in written:
            self._index(item, item.offsets, chunks.CHUNK_OFFSETS, chunks.CHUNK_OFFSETS_SIZE)
        raw = write_struct(
            {
                **footer,
                chunks.FILE_ROWS: (I64, self.rows),
                chunks.FILE_GROUPS: (LIST, (STRUCT, self.groups)),
            }
        )
        self._write(raw + len(raw).to_bytes(4, "little") + chunks.MAGIC)
        try:
            self._sink.close()
        except OSError as error:
            raise not_written(error, self.location) from error
        hasten(self._filesystem, self.location)
        return self.place

    def abandon(self) -> None:
        """Let go of the handle after an error; the staged bytes are swept with the transaction."""
        if self._sink is not None and not self._sink.closed:
            with suppress(OSError):  # the disk may be full, which has been said
                self._sink.close()

    def _take(self, column: Chunk) -> Struct:
        self._write(b"")
        item = moved(column.chunk, column.donor, self.place)
        for part in item.pages:
            self._write(part)
        item = replace(item, pages=())  # which are written, and not to be held
        if column.leaf is not None:
            item = _described(item, column.leaf, column.bounded)
        self._written.append(item)
        return item.chunk

    def _index(self, item: Moved, data: bytes | None, place: int, size: int) -> None:
        if data is not None:
            item.chunk[place], item.chunk[size] = (I64, self.place), (I32, len(data))
            self._write(data)

    def _write(self, data: bytes | memoryview) -> None:
        try:
            if self._sink is None:
                self._sink = self._filesystem.open_output_stream(self.location)
                self._sink.write(chunks.MAGIC)
                self.place = len(chunks.MAGIC)
            if data:
                self._sink.write(data)
                self.place += len(data)
        except OSError as error:
            raise not_written(error, self.location) from error


def described(chunk: Struct, leaf: Leaf, bounded: bool) -> None:
    """Call a chunk what its leaf is called, and leave out bounds that mean nothing there."""
    meta = get(chunk, chunks.CHUNK_META)
    meta[chunks.META_PATH] = (LIST, (BINARY, [part.encode() for part in leaf.path]))
    statistics = get(meta, chunks.META_STATISTICS)
    if statistics is not None and not bounded:
        kept = {number: value for number, value in statistics.items() if number not in _BOUNDS}
        meta[chunks.META_STATISTICS] = (STRUCT, kept)


def _described(item: Moved, leaf: Leaf, bounded: bool) -> Moved:
    described(item.chunk, leaf, bounded)
    return item if bounded else replace(item, bounds=None)


def not_written(error: OSError, location: str) -> StorageError:
    """The storage refused a staged file."""
    return StorageError(f"Cannot write a staged file: {error}", errno=error.errno, path=location)
