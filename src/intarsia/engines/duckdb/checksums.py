"""Page checksums of files that DuckDB is about to read: DuckDB does not verify them, so this module does."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.int96 import read_arrow_schema
from intarsia.common.requests import count_reads
from intarsia.common.thrift import Struct, get, read_struct
from intarsia.core.snapshot import DataFile
from intarsia.engines.duckdb.scan import find_physical_names
from intarsia.errors import IntarsiaError
from intarsia.kernel.chunks import PAGE_CHECKSUM, PAGE_STORED, to_signed
from intarsia.kernel.read import FileReader, make_unreadable_error
from intarsia.kernel.threads import map_in_order

__all__ = ["verify", "verify_each"]

_WINDOW = 8 << 20
_HEADERS = (1 << 10, 1 << 16, _WINDOW)
"""Bytes to read for the header of a page: most are small, but a header may hold bounds of long texts."""


def verify(
    file: DataFile,
    filesystem: pafs.FileSystem,
    *,
    columns: Collection[str] | None = None,
    row_groups: Sequence[int] | None = None,
) -> None:
    """Compare every page of a file, or of some columns and row groups, with its checksum.

    Columns have their names in the table. Pages are not decoded. A row group whose first page has no
    checksum is skipped. Memory: some megabytes.

    Raises:
        DamagedTable: a page is not as it was written.
        StorageError: the file cannot be read.
    """
    footer = file.footer
    if footer is None:
        return
    wanted = range(footer.num_row_groups) if row_groups is None else row_groups
    columns = None if columns is None else find_physical_names(file, columns)
    try:
        with filesystem.open_input_file(file.location) as handle:
            count = partial(count_reads, filesystem)
            for group in wanted:
                for column in _find_suspected(handle, footer, group, columns, count):
                    _decode(file, filesystem, group, column)
    except IntarsiaError:
        raise
    except (pa.ArrowInvalid, OSError) as error:
        raise make_unreadable_error(file, error) from error


def verify_each(
    parts: Iterable[tuple[DataFile, Sequence[int] | None]],
    filesystem: pafs.FileSystem,
    *,
    columns: Collection[str] | None = None,
    threads: int = 1,
) -> None:
    """Verify several files, each with the row groups to verify; None for all of them."""

    def verify_part(part: tuple[DataFile, Sequence[int] | None]) -> None:
        verify(part[0], filesystem, columns=columns, row_groups=part[1])

    for _ in map_in_order(verify_part, parts, threads=threads):
        pass


def _find_suspected(
    handle: pa.NativeFile,
    footer: pq.FileMetaData,
    group: int,
    columns: Collection[str] | None,
    count: Callable[[], None],
) -> Iterator[str]:
    """The columns of a row group with a page that differs from its checksum, or is no page."""
    meta = footer.row_group(group)
    for number in range(meta.num_columns):
        chunk = meta.column(number)
        pages = _PageReader(handle, chunk, count)
        if number == 0 and not pages.has_checksums():
            return
        column = chunk.path_in_schema
        named = columns is None or column in columns or column.split(".", 1)[0] in columns
        if named and not pages.is_intact():
            yield column


def _decode(file: DataFile, filesystem: pafs.FileSystem, group: int, column: str) -> None:
    """Decode a column with PyArrow, which raises what is wrong with it, if anything is."""
    assert file.footer is not None
    schema = read_arrow_schema(file.footer)
    name = column if column in schema.names else column.split(".", 1)[0]
    with FileReader(replace(file, partition={}, scan_task=None), schema, filesystem) as reader:
        for _ in reader.read_pieces([name], group):
            pass


@dataclass(slots=True)
class _PageReader:
    """The pages of one column chunk, read a window at a time."""

    handle: pa.NativeFile
    chunk: pq.ColumnChunkMetaData
    count: Callable[[], None]
    """Called whenever a window is read."""
    _ahead: int = 0
    _start: int = 0
    _held: memoryview = field(default_factory=lambda: memoryview(b""), repr=False)

    @property
    def _place(self) -> int:
        dictionary = self.chunk.dictionary_page_offset
        data = self.chunk.data_page_offset
        return int(min(data, dictionary) if dictionary else data)

    @property
    def _end(self) -> int:
        return self._place + int(self.chunk.total_compressed_size)

    def has_checksums(self) -> bool:
        """Whether the first page has a checksum, or may have one since its header cannot be read."""
        header = self._read_header(self._place)
        return header is None or PAGE_CHECKSUM in header[0]

    def is_intact(self) -> bool:
        """Whether no page differs from its checksum, and the pages fill the chunk."""
        self._ahead, at, end = _WINDOW, self._place, self._end
        while at < end:
            header = self._read_header(at)
            if header is None:
                return False
            page, body = header
            at = body + get(page, PAGE_STORED, -1)
            if not body <= at <= end:
                return False
            stated = get(page, PAGE_CHECKSUM)
            if stated is not None and to_signed(self._compute_checksum(body, at)) != stated:
                return False
        return True

    def _read_header(self, at: int) -> tuple[Struct, int] | None:
        """The header of the page at an offset, and the offset of its body; None if there is no header."""
        for size in _HEADERS:
            try:
                header, length = read_struct(self._read_part(at, size))
            except ValueError:
                continue
            return header, at + length
        return None

    def _compute_checksum(self, at: int, end: int) -> int:
        checksum = 0
        while at < end:
            part = self._read_part(at, min(end - at, _WINDOW))
            if not part:
                return -1
            checksum = zlib.crc32(part, checksum)
            at += len(part)
        return checksum

    def _read_part(self, at: int, size: int) -> memoryview:
        """``size`` bytes from an offset on; fewer at the end of the chunk."""
        size = min(size, self._end - at)
        if not self._start <= at <= at + size <= self._start + len(self._held):
            self.count()
            self.handle.seek(at)
            read = self.handle.read_buffer(max(size, min(self._ahead, self._end - at)))
            self._start, self._held = at, memoryview(read).cast("B")
        return self._held[at - self._start : at - self._start + size]
