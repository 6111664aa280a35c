"""Column chunks of Parquet files as bytes: where they are in a file, and how they are copied undecoded."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.paths import start_writeback
from intarsia.common.thrift import BINARY, I16, I32, I64, LIST, STRUCT, Struct, get, read_struct, write_struct
from intarsia.core.change import is_discarded
from intarsia.core.layout import Leaf
from intarsia.errors import StorageError

MAGIC = b"PAR1"

# Field numbers of the structs of the Parquet format (parquet.thrift) that are used here.
FILE_SCHEMA, FILE_ROWS, FILE_GROUPS, FILE_WRITER, FILE_ORDERS, FILE_ENCRYPTION = 2, 3, 4, 6, 7, 8
ELEMENT_NAME, ELEMENT_CHILDREN = 4, 5
GROUP_CHUNKS, GROUP_SIZE, GROUP_ROWS, GROUP_SORTING, GROUP_PLACE, GROUP_STORED = 1, 2, 3, 4, 5, 6
GROUP_NUMBER = 7
CHUNK_FILE, CHUNK_PLACE, CHUNK_META = 1, 2, 3
CHUNK_OFFSETS, CHUNK_OFFSETS_SIZE, CHUNK_BOUNDS, CHUNK_BOUNDS_SIZE, CHUNK_ENCRYPTION = 4, 5, 6, 7, 8
META_PATH, META_VALUES, META_SIZE, META_STORED = 3, 5, 6, 7
META_DATA, META_INDEX, META_DICTIONARY, META_STATISTICS = 9, 10, 11, 12
META_BLOOM, META_BLOOM_SIZE = 14, 15
PAGE_STORED, PAGE_CHECKSUM, PAGE_DATA, PAGE_DATA_V2 = 3, 4, 5, 8
_OLD_BOUNDS, _BOUNDS = (1, 2), (5, 6)
_TYPE_ORDER: Struct = {1: (STRUCT, {})}

_FIXED_SINCE = {"parquet-mr": (1, 10), "parquet-cpp-arrow": (4, 0), "parquet-cpp": (99, 0)}
"""The first version of each writer with right statistics. Readers ignore the wrong ones of older versions by
the writer's name, which a file with copied chunks does not have."""


class NotCopyable(Exception):
    """A chunk is not as its footer says and cannot be copied; the caller decodes the file instead."""


@dataclass(frozen=True, slots=True)
class ChunkSource:
    """A Parquet file that column chunks are copied from."""

    footer: Struct
    read: Callable[[int, int], memoryview] = field(repr=False)
    """``read(size, place)``"""
    own: bool = False
    """Whether it was just encoded in memory: its pages have checksums that need not be verified."""

    @staticmethod
    def of_file(
        footer: pq.FileMetaData, handle: pa.NativeFile, count: Callable[[], None] = lambda: None
    ) -> ChunkSource:
        """The chunks of an open file; ``count`` is called whenever bytes are read."""
        sink = pa.BufferOutputStream()
        footer.write_metadata_file(sink)

        def read(size: int, place: int) -> memoryview:
            count()
            try:
                handle.seek(place)
                return _make_view(handle.read_buffer(size))
            except OSError as error:
                raise NotCopyable(f"{size} bytes at {place}: {error}") from error

        return ChunkSource(_read_footer(sink.getvalue()), read)

    @staticmethod
    def of_buffer(buffer: pa.Buffer) -> ChunkSource:
        view = _make_view(buffer)
        return ChunkSource(_read_footer(buffer), lambda size, place: view[place : place + size], own=True)

    @property
    def trusted(self) -> bool:
        """Whether the file's statistics hold under another writer's name, too."""
        orders = get(self.footer, FILE_ORDERS, (STRUCT, []))[1]
        if FILE_ENCRYPTION in self.footer or not all(order == _TYPE_ORDER for order in orders) or not orders:
            return False
        name = get(self.footer, FILE_WRITER, b"").decode(errors="replace")
        known = re.match(r"(\S+) version (\d+)\.(\d+)", name)
        if known is None:
            return bool(name) and not name.startswith(tuple(_FIXED_SINCE))
        return (int(known[2]), int(known[3])) >= _FIXED_SINCE.get(known[1], (0, 0))

    def read_columns(self) -> dict[str, list[Struct]]:
        """The schema's elements by top-level column; empty where two columns share a name."""
        elements = get(self.footer, FILE_SCHEMA)[1]
        columns: dict[str, list[Struct]] = {}
        at = 1
        while at < len(elements):
            end = _find_end(elements, at)
            columns[get(elements[at], ELEMENT_NAME).decode()] = elements[at:end]
            at = end
        return columns if len(columns) == get(elements[0], ELEMENT_CHILDREN, 0) else {}

    def read_groups(self) -> list[Struct]:
        """The row groups."""
        found: list[Struct] = get(self.footer, FILE_GROUPS, (STRUCT, []))[1]
        return found

    def read_chunks(self, group: int) -> dict[str, list[Struct]]:
        """The column chunks of a row group, by top-level column."""
        found: dict[str, list[Struct]] = {}
        for chunk in get(self.read_groups()[group], GROUP_CHUNKS)[1]:
            name = get(get(chunk, CHUNK_META), META_PATH)[1][0].decode()
            found.setdefault(name, []).append(chunk)
        return found


def is_copyable(chunk: Struct) -> bool:
    """Whether a chunk means the same in another file."""
    meta: Struct | None = get(chunk, CHUNK_META)
    if meta is None or CHUNK_FILE in chunk or CHUNK_ENCRYPTION in chunk or META_INDEX in meta:
        return False
    statistics: Struct = get(meta, META_STATISTICS, {})
    # Which order the deprecated min and max have depends on the writer, too.
    return all(new in statistics for old, new in zip(_OLD_BOUNDS, _BOUNDS, strict=True) if old in statistics)


@dataclass(frozen=True, slots=True)
class CopiedChunk:
    """A chunk for another file: its pages, and what that file's footer and indexes say of it."""

    pages: Sequence[bytes | memoryview]
    chunk: Struct
    bloom: bytes | None
    offsets: bytes | None
    bounds: bytes | None


def copy_chunk(chunk: Struct, chunk_source: ChunkSource, place: int) -> CopiedChunk:
    """The chunk with its offsets for another place in a file, and with a checksum in every page.

    Checksums that are there are verified. Raises NotCopyable.
    """
    try:
        return _copy_pages(chunk, chunk_source, place)
    except (ValueError, TypeError, AttributeError) as error:  # bytes that are not the struct they should be
        raise NotCopyable(f"{type(error).__name__}: {error}") from error


def _copy_pages(chunk: Struct, chunk_source: ChunkSource, place: int) -> CopiedChunk:
    meta: Struct = dict(get(chunk, CHUNK_META))
    start = find_chunk_start(meta)
    raw = chunk_source.read(get(meta, META_STORED), start)
    pages, places = ([raw], {}) if chunk_source.own else _check_pages(raw, get(meta, META_VALUES))
    growth = sum(len(part) for part in pages) - len(raw)
    for number in (META_DATA, META_DICTIONARY):
        if number in meta:
            old = get(meta, number) - start
            meta[number] = (I64, place + places.get(old, (old, 0))[0])
    for number in (META_SIZE, META_STORED):
        meta[number] = (I64, get(meta, number) + growth)
    bloom = _read_bloom_filter(meta, chunk_source)
    bounds = _read_part(chunk, chunk_source, CHUNK_BOUNDS, CHUNK_BOUNDS_SIZE)
    offsets = _read_part(chunk, chunk_source, CHUNK_OFFSETS, CHUNK_OFFSETS_SIZE)
    if offsets is not None:
        offsets = _shift_offsets(offsets, start, place, places)
    return CopiedChunk(pages, {CHUNK_PLACE: (I64, 0), CHUNK_META: (STRUCT, meta)}, bloom, offsets, bounds)


def find_chunk_start(meta: Struct) -> int:
    """The place of a chunk's first page in its file."""
    data, dictionary = get(meta, META_DATA), get(meta, META_DICTIONARY)
    return int(min(data, dictionary) if dictionary else data)


def _check_pages(
    raw: memoryview, values: int
) -> tuple[Sequence[bytes | memoryview], Mapping[int, tuple[int, int]]]:
    """The pages with checksums; and for each page's old offset the new one, and the growth of its header."""
    parts: list[bytes | memoryview] = []
    places: dict[int, tuple[int, int]] = {}
    at = new = seen = 0
    grown = False
    while at < len(raw):
        header, body = read_struct(raw, at)
        end = body + get(header, PAGE_STORED, len(raw))
        checksum = zlib.crc32(raw[body:end])
        stated = get(header, PAGE_CHECKSUM)
        if not body <= end <= len(raw) or stated not in (None, to_signed(checksum)):
            raise NotCopyable("a page that ends beyond its chunk, or differs from its checksum")
        for kind in (PAGE_DATA, PAGE_DATA_V2):
            seen += get(get(header, kind, {}), 1, 0)
        head: bytes | memoryview = raw[at:body]
        if stated is None:
            head = write_struct({**header, PAGE_CHECKSUM: (I32, to_signed(checksum))})
            grown = True
        places[at] = (new, len(head) - (body - at))
        parts += (head, raw[body:end])
        new += len(head) + end - body
        at = end
    if seen != values:
        raise NotCopyable(f"{seen} values in the pages where the footer says {values}")
    return (parts, places) if grown else ([raw], {})


def to_signed(checksum: int) -> int:
    """A checksum as the signed integer that page headers store."""
    return checksum - (1 << 32) if checksum >= 1 << 31 else checksum


def _read_bloom_filter(meta: Struct, chunk_source: ChunkSource) -> bytes | None:
    place = get(meta, META_BLOOM)
    if place is None:
        return None
    size = get(meta, META_BLOOM_SIZE)
    if size is None:  # older writers store it in the filter's own header only
        header, end = read_struct(chunk_source.read(64, place))
        size = end + get(header, 1)
        meta[META_BLOOM_SIZE] = (I32, size)
    return bytes(chunk_source.read(size, place))


def _read_part(chunk: Struct, chunk_source: ChunkSource, place: int, size: int) -> bytes | None:
    return bytes(chunk_source.read(get(chunk, size), get(chunk, place))) if place in chunk else None


def _shift_offsets(offsets: bytes, start: int, place: int, places: Mapping[int, tuple[int, int]]) -> bytes:
    """The offset index for the new offsets of pages."""
    index, _ = read_struct(offsets)
    pages = []
    for page in get(index, 1)[1]:
        old = get(page, 1) - start
        new, growth = places.get(old, (old, 0))
        pages.append({**page, 1: (I64, place + new), 2: (I32, get(page, 2) + growth)})
    return write_struct({**index, 1: (LIST, (STRUCT, pages))})


def _find_end(elements: Sequence[Struct], at: int) -> int:
    """The index of the element after this one and its descendants."""
    children = get(elements[at], ELEMENT_CHILDREN, 0)
    at += 1
    for _ in range(children):
        at = _find_end(elements, at)
    return at


def _read_footer(data: pa.Buffer) -> Struct:
    view = _make_view(data)
    (size,) = struct.unpack("<I", view[-8:-4])
    return read_struct(bytes(view[-8 - size : -8]))[0]


def _make_view(buffer: pa.Buffer) -> memoryview:
    return memoryview(buffer).cast("B")  # a buffer's own bytes are signed


_STATISTICS_BOUNDS = (1, 2, 5, 6, 7, 8)
"""The fields of a chunk's statistics for its least and greatest value, and whether they are exact."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column chunk of a file, and the leaf that it is described as in another; None changes nothing."""

    chunk: Struct
    chunk_source: ChunkSource
    leaf: Leaf | None = None
    bounded: bool = True
    """Whether its bounds have the same meaning there."""


class ChunkWriter:
    """Writes one file, row group by row group, and its footer.

    Memory: the metadata of the chunks. The file is no part of the table until a commit names it.
    """

    def __init__(self, location: str, filesystem: pafs.FileSystem) -> None:
        self.location = location
        self.rows = 0
        self.place = 0
        """The bytes written so far."""
        self.groups: list[Struct] = []
        self.footer: pq.FileMetaData | None = None
        """The footer of a finished file whose bytes were discarded, as in dry runs."""
        self._filesystem = filesystem
        self._written: list[CopiedChunk] = []
        self._sink: Any = None

    def add(self, columns: Sequence[Chunk], rows: int, sorting: tuple[int, Any] | None = None) -> None:
        """Write a row group of these chunks; ``sorting`` is the order that it declares, as a Thrift value."""
        start = self.place or len(MAGIC)
        written = [self._take(column) for column in columns]
        metas = [get(chunk, CHUNK_META) for chunk in written]
        made: Struct = {
            GROUP_CHUNKS: (LIST, (STRUCT, written)),
            GROUP_SIZE: (I64, sum(get(meta, META_SIZE) for meta in metas)),
            GROUP_ROWS: (I64, rows),
            GROUP_PLACE: (I64, start),
            GROUP_STORED: (I64, sum(get(meta, META_STORED) for meta in metas)),
        }
        if sorting is not None:
            made[GROUP_SORTING] = sorting
        if len(self.groups) < 1 << 15:
            made[GROUP_NUMBER] = (I16, len(self.groups))
        self.rows += rows
        self.groups.append(made)

    def finish(self, footer: Struct) -> int:
        """Write Bloom filters, page indexes and the footer. Returns the size of the file."""
        self._write(b"")
        for item in self._written:
            if item.bloom is not None:
                get(item.chunk, CHUNK_META)[META_BLOOM] = (I64, self.place)
                self._write(item.bloom)
        for item in self._written:
            self._write_index(item, item.bounds, CHUNK_BOUNDS, CHUNK_BOUNDS_SIZE)
        for item in self._written:
            self._write_index(item, item.offsets, CHUNK_OFFSETS, CHUNK_OFFSETS_SIZE)
        raw = write_struct(
            {
                **footer,
                FILE_ROWS: (I64, self.rows),
                FILE_GROUPS: (LIST, (STRUCT, self.groups)),
            }
        )
        end = raw + len(raw).to_bytes(4, "little") + MAGIC
        self._write(end)
        if is_discarded(self._filesystem):
            self.footer = pq.read_metadata(pa.BufferReader(end))
        try:
            self._sink.close()
        except OSError as error:
            raise write_failure(error, self.location) from error
        start_writeback(self._filesystem, self.location)
        return self.place

    def abandon(self) -> None:
        """Close the file after an error; what was written is removed with the transaction."""
        if self._sink is not None and not self._sink.closed:
            with suppress(OSError):  # such as a full disk, which has been raised already
                self._sink.close()

    def _take(self, column: Chunk) -> Struct:
        self._write(b"")
        item = copy_chunk(column.chunk, column.chunk_source, self.place)
        for part in item.pages:
            self._write(part)
        item = replace(item, pages=())  # which are written, and need no memory any more
        if column.leaf is not None:
            item = _describe_copy(item, column.leaf, column.bounded)
        self._written.append(item)
        return item.chunk

    def _write_index(self, item: CopiedChunk, data: bytes | None, place: int, size: int) -> None:
        if data is not None:
            item.chunk[place], item.chunk[size] = (I64, self.place), (I32, len(data))
            self._write(data)

    def _write(self, data: bytes | memoryview) -> None:
        try:
            if self._sink is None:
                self._sink = self._filesystem.open_output_stream(self.location)
                self._sink.write(MAGIC)
                self.place = len(MAGIC)
            if data:
                self._sink.write(data)
                self.place += len(data)
        except OSError as error:
            raise write_failure(error, self.location) from error


def describe_chunk(chunk: Struct, leaf: Leaf, bounded: bool) -> None:
    """Give a chunk the path of its leaf, and leave out bounds that have another meaning there."""
    meta = get(chunk, CHUNK_META)
    meta[META_PATH] = (LIST, (BINARY, [part.encode() for part in leaf.path]))
    statistics = get(meta, META_STATISTICS)
    if statistics is not None and not bounded:
        kept = {number: value for number, value in statistics.items() if number not in _STATISTICS_BOUNDS}
        meta[META_STATISTICS] = (STRUCT, kept)


def _describe_copy(item: CopiedChunk, leaf: Leaf, bounded: bool) -> CopiedChunk:
    describe_chunk(item.chunk, leaf, bounded)
    return item if bounded else replace(item, bounds=None)


def write_failure(error: OSError, location: str) -> StorageError:
    """The storage refused a staged file."""
    return StorageError(f"Cannot write a staged file: {error}", errno=error.errno, path=location)
