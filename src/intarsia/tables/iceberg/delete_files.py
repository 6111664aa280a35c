"""Delete files, written: Parquet position deletes, and vectors in Puffin, under the data file's partition."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyroaring import BitMap64

from intarsia.core.layout import Layout
from intarsia.errors import InputError, StorageError
from intarsia.tables.iceberg.deletes import PATH_ID, POS_ID, partition_key
from intarsia.tables.iceberg.entries import Content, ContentFile, Entry
from intarsia.tables.iceberg.puffin import write_puffin
from intarsia.tables.iceberg.vectors import bitmap_of, positions_of, vector_blob

DEFAULT_TARGET_BYTES = 64 << 20
_ID = "PARQUET:field_id"
_PATHS = pa.field("file_path", pa.dictionary(pa.int32(), pa.string()), False, {_ID: str(PATH_ID)})
_POSITIONS = pa.field("pos", pa.int64(), False, {_ID: str(POS_ID)})
SCHEMA = pa.schema([_PATHS, _POSITIONS])
"""Paths are handed to the writer as a dictionary; the file has plain strings."""
_NOTES = {
    "delete-type": "position",
    "iceberg.schema": json.dumps(
        {
            "type": "struct",
            "schema-id": 0,
            "fields": [
                {
                    "id": PATH_ID,
                    "name": "file_path",
                    "required": True,
                    "type": "string",
                    "doc": "Path of a file in which a deleted row is stored",
                },
                {
                    "id": POS_ID,
                    "name": "pos",
                    "required": True,
                    "type": "long",
                    "doc": "Ordinal position of a deleted row in the data file",
                },
            ],
        },
        separators=(",", ":"),
    ),
}


class Granularity(Enum):
    """What one position delete file may be about (``write.delete.granularity``)."""

    FILE = "file"
    PARTITION = "partition"


class Place(Protocol):
    """Gives a new file a name of its own: the path to record, and the location on the file system."""

    def __call__(self, spec_id: int, partition: tuple[Any, ...] | None, suffix: str, /) -> tuple[str, str]:
        """``suffix`` is ``parquet`` or ``puffin``; a Puffin file is of a spec, and of no one partition."""


def write_position_deletes(
    positions: Iterable[tuple[Entry, pa.Int64Array]],
    *,
    place: Place,
    filesystem: pafs.FileSystem,
    granularity: Granularity = Granularity.PARTITION,
    target_bytes: int = DEFAULT_TARGET_BYTES,
    layout: Layout | None = None,
) -> list[ContentFile]:
    """Write Parquet position delete files, each of one spec and tuple: that of its data files.

    Args:
        positions: data files with positions of rows to delete, in any order; a data file may come again.
        place: names the new files.
        filesystem: where they are written.
        granularity: one delete file for each data file, or for each partition.
        target_bytes: a file that has become larger is finished, and another begun.
        layout: compression and row groups.

    Memory: the positions as bitmaps, and one row group. Nothing counts until a commit names it: whoever
    gives up removes what ``place`` has named.

    Raises:
        InputError: a position is NULL or negative, or a data file comes with two partitions.
        StorageError: the file system refused.
    """
    writing = _Writing(place, filesystem, target_bytes, layout or Layout())
    written: list[ContentFile] = []
    for group in _by_partition(positions):
        units = [[target] for target in group] if granularity is Granularity.FILE else [group]
        for unit in units:
            written.extend(writing.write(unit))
    return written


def write_vectors(
    positions: Iterable[tuple[Entry, pa.Int64Array]],
    *,
    place: Place,
    filesystem: pafs.FileSystem,
    created_by: str = "intarsia",
) -> list[ContentFile]:
    """Write one deletion vector for each data file, all of a spec in one Puffin file.

    One per spec, since readers are known that take a Puffin file for one of the first spec they meet it
    under. The positions are all of the data file's: those of older deletes have to be merged before.

    Raises:
        InputError: a position that cannot be, or a data file comes with two partitions.
        StorageError: the file system refused.
    """
    by_spec: dict[int, list[_Target]] = defaultdict(list)
    for group in _by_partition(positions):
        by_spec[group[0].file.spec_id].extend(group)
    written: list[ContentFile] = []
    for spec_id, targets in sorted(by_spec.items()):
        written.extend(_write_puffin_of(spec_id, targets, place, filesystem, created_by))
    return written


@dataclass(frozen=True, slots=True)
class _Target:
    """A data file, and the rows of it to delete."""

    file: ContentFile
    bitmap: BitMap64

    @property
    def path(self) -> str:
        return self.file.file_path


def _by_partition(positions: Iterable[tuple[Entry, pa.Int64Array]]) -> list[list[_Target]]:
    """The data files that have rows to delete, by spec and tuple, in the order of their paths."""
    targets: dict[str, _Target] = {}
    for entry, found in positions:
        path = entry.file.file_path
        bitmap = bitmap_of(found)
        before = targets.get(path)
        if before is not None:
            if partition_key(before.file) != partition_key(entry.file):
                raise InputError(f"{path} comes with two partitions.", path=path)
            bitmap |= before.bitmap
        if bitmap:
            targets[path] = _Target(entry.file, bitmap)
    groups: dict[tuple[Any, ...], list[_Target]] = defaultdict(list)
    for path in sorted(targets):
        groups[partition_key(targets[path].file)].append(targets[path])
    return list(groups.values())


def _write_puffin_of(
    spec_id: int, targets: Sequence[_Target], place: Place, filesystem: pafs.FileSystem, created_by: str
) -> Iterator[ContentFile]:
    path, location = place(spec_id, None, "puffin")
    blobs = (vector_blob(target.path, target.bitmap) for target in targets)
    size, places = write_puffin(blobs, location, filesystem=filesystem, created_by=created_by)
    for target, found in zip(targets, places, strict=True):
        yield ContentFile(
            content=Content.POSITION_DELETES,
            file_path=path,
            file_format="PUFFIN",
            spec_id=spec_id,
            partition=target.file.partition,
            record_count=len(target.bitmap),
            file_size_in_bytes=size,
            referenced_data_file=target.path,
            content_offset=found.offset,
            content_size_in_bytes=found.length,
        )


@dataclass(frozen=True, slots=True)
class _Writing:
    place: Place
    filesystem: pafs.FileSystem
    target_bytes: int
    layout: Layout

    def write(self, targets: Sequence[_Target]) -> Iterator[ContentFile]:
        """Some data files' deletes, in as many files as their size needs."""
        groups = _row_groups(targets, self.layout.row_group_rows)
        first = next(groups, None)
        while first is not None:
            file = targets[0].file
            path, location = self.place(file.spec_id, file.partition, "parquet")
            try:
                spans, size, footer, first = self._write_file(location, first, groups)
            except OSError as error:
                raise StorageError(
                    f"Could not write {path}: {error}", errno=error.errno, path=path
                ) from error
            yield _described(file, path, size, footer, spans)

    def _write_file(
        self, location: str, first: _Rows, groups: Iterator[_Rows]
    ) -> tuple[list[_Span], int, pq.FileMetaData, _Rows | None]:
        """One file of the first row group and those after it, until it is large enough; what is left."""
        options = self.layout.writer_options(SCHEMA, dictionary_columns=["file_path"])
        options["sorting_columns"] = [pq.SortingColumn(0), pq.SortingColumn(1)]
        spans: list[_Span] = []
        footers: list[pq.FileMetaData] = []
        group: _Rows | None = first
        with self.filesystem.open_output_stream(location) as sink:
            writer = pq.ParquetWriter(sink, SCHEMA, store_schema=False, metadata_collector=footers, **options)
            try:
                writer.add_key_value_metadata(_NOTES)
                while group is not None and (not spans or sink.tell() < self.target_bytes):
                    writer.write_table(group.table, row_group_size=group.table.num_rows)
                    spans.extend(group.spans)
                    group = next(groups, None)
                writer.close()
            finally:
                writer.is_open = False  # else it would write its footer when it is collected, and fail
            size = sink.tell()
        return spans, size, footers[0], group


@dataclass(frozen=True, slots=True)
class _Span:
    """The positions of one data file in one row group."""

    path: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class _Rows:
    """One row group to be written."""

    table: pa.Table
    spans: tuple[_Span, ...]


def _row_groups(targets: Sequence[_Target], rows: int) -> Iterator[_Rows]:
    """The rows of a delete file in their order, a row group at a time."""
    parts: list[tuple[str, pa.Int64Array]] = []
    room = rows
    for target in targets:
        positions = positions_of(target.bitmap)
        while len(positions):
            part = positions.slice(0, room)
            parts.append((target.path, part))
            positions = positions.slice(len(part))
            room -= len(part)
            if not room:
                yield _rows_of(parts)
                parts, room = [], rows
    if parts:
        yield _rows_of(parts)


def _rows_of(parts: Sequence[tuple[str, pa.Int64Array]]) -> _Rows:
    codes = [pa.repeat(pa.scalar(code, pa.int32()), len(part)) for code, (_, part) in enumerate(parts)]
    names = pa.array([path for path, _ in parts], pa.string())
    paths = pa.DictionaryArray.from_arrays(pa.concat_arrays(codes), names)
    positions = pa.concat_arrays([part for _, part in parts])
    spans = tuple(_Span(path, part[0].as_py(), part[-1].as_py()) for path, part in parts)
    return _Rows(pa.table([paths, positions], schema=SCHEMA), spans)


def _described(
    data: ContentFile, path: str, size: int, footer: pq.FileMetaData, spans: Sequence[_Span]
) -> ContentFile:
    """What the manifest says of a position delete file, as Java has it.

    No counts of its two columns, and bounds only where all rows are of one data file: equal bounds of
    the path say that it is so.
    """
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    sizes = {
        field: sum(group.column(leaf).total_compressed_size for group in groups)
        for leaf, field in enumerate((PATH_ID, POS_ID))
    }
    file = ContentFile(
        content=Content.POSITION_DELETES,
        file_path=path,
        file_format="PARQUET",
        spec_id=data.spec_id,
        partition=data.partition,
        record_count=footer.num_rows,
        file_size_in_bytes=size,
        column_sizes=sizes,
        split_offsets=tuple(_start(group) for group in groups),
    )
    if len({span.path for span in spans}) > 1:
        return file
    name = spans[0].path.encode()
    return replace(
        file,
        lower_bounds={PATH_ID: name, POS_ID: spans[0].low.to_bytes(8, "little")},
        upper_bounds={PATH_ID: name, POS_ID: spans[-1].high.to_bytes(8, "little")},
        referenced_data_file=spans[0].path,
    )


def _start(group: Any) -> int:
    chunk = group.column(0)
    offsets = (chunk.dictionary_page_offset, chunk.data_page_offset)
    return min(offset for offset in offsets if offset)
