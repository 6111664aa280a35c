"""Position delete files in Parquet, read and written (Iceberg spec, "Position Delete Files")."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.core.layout import Layout
from intarsia.errors import DamagedTable, StorageError
from intarsia.tables.iceberg.deletion_vectors import (
    DeleteFileNamer,
    RowsToDelete,
    group_by_partition,
    to_positions,
)
from intarsia.tables.iceberg.file_io import DeleteFileAccess, open_delete_file
from intarsia.tables.iceberg.manifests import (
    PATH_ID,
    POS_ID,
    ContentFile,
    DataFileContent,
    ManifestEntry,
    find_referenced_data_file,
)
from intarsia.tables.iceberg.metrics import find_row_group_offset
from intarsia.tables.iceberg.schemas import get_field_id

_CACHE_SHARE = 4
"""A delete file is decoded whole when it takes at most one fourth of the cache."""


def read_positions(delete: ManifestEntry, path: str, access: DeleteFileAccess) -> pa.Int64Array:
    """The positions that a position delete file names for a data file, in no certain order.

    Memory: the row groups that may name the file, one at a time. A file about several data files is
    decoded once for all of them where the cache has room for it.

    Raises:
        NotSupported: it is not Parquet.
        DamagedTable: it is not a position delete file, or a position in it is NULL or negative.
        StorageError: the file system refused.
    """
    file = delete.file
    if find_referenced_data_file(file) is None and 8 * file.record_count * _CACHE_SHARE <= access.cache.limit:
        positions = access.cache.get(("positions", file.file_path), lambda: _read_all_positions(file, access))
        return positions.get(path, pa.array([], pa.int64()))
    with open_delete_file(file, access) as parquet:
        columns = _PositionColumns.of(parquet, file)
        parts = [
            part
            for group in range(parquet.metadata.num_row_groups)
            for part in _read_row_group(parquet, group, columns, path)
        ]
    found = pa.concat_arrays(parts) if parts else pa.array([], pa.int64())
    return _check_positions(found, file)


@dataclass(frozen=True, slots=True)
class _PositionColumns:
    path: str
    pos: str
    path_leaf: int

    @staticmethod
    def of(parquet: pq.ParquetFile, file: ContentFile) -> _PositionColumns:
        schema = parquet.schema_arrow
        by_id = {get_field_id(field): field.name for field in schema}
        path = by_id.get(PATH_ID, "file_path")
        pos = by_id.get(POS_ID, "pos")
        if path not in schema.names or pos not in schema.names:
            raise DamagedTable(
                f"Delete file {file.file_path} has no columns file_path and pos: it has"
                f" {', '.join(schema.names) or 'none'}.",
                path=file.file_path,
            )
        leaves = [parquet.schema.column(n).path for n in range(len(parquet.schema))]
        return _PositionColumns(path, pos, leaves.index(path))


def _read_row_group(
    parquet: pq.ParquetFile, group: int, columns: _PositionColumns, path: str
) -> list[pa.Int64Array]:
    """The positions that one row group names for a file; it is not read where its statistics exclude that."""
    statistics = parquet.metadata.row_group(group).column(columns.path_leaf).statistics
    whole = False
    if statistics is not None and statistics.has_min_max:
        low, high, wanted = _to_bytes(statistics.min), _to_bytes(statistics.max), path.encode()
        if not low <= wanted <= high:
            return []
        whole = low == high and statistics.null_count == 0
    if whole:
        table = parquet.read_row_group(group, [columns.pos])
        return [part.cast(pa.int64()) for part in table[columns.pos].chunks]
    table = parquet.read_row_group(group, [columns.path, columns.pos])
    return [
        batch.column(columns.pos).filter(_mask_path(batch.column(columns.path), path)).cast(pa.int64())
        for batch in table.to_batches()
    ]


def _mask_path(paths: pa.Array, path: str) -> pa.BooleanArray:
    if pa.types.is_dictionary(paths.type):
        return pc.equal(
            paths.indices, pc.index(paths.dictionary, path)
        )  # -1, which no index equals, if there is none
    return pc.equal(paths, path)


def _read_all_positions(
    file: ContentFile, access: DeleteFileAccess
) -> tuple[Mapping[str, pa.Int64Array], int]:
    """All positions of a delete file, by data file."""
    parts: dict[str, list[pa.Int64Array]] = defaultdict(list)
    with open_delete_file(file, access) as parquet:
        columns = _PositionColumns.of(parquet, file)
        for group in range(parquet.metadata.num_row_groups):
            table = parquet.read_row_group(group, [columns.path, columns.pos])
            for batch in table.to_batches():
                _split_by_path(batch.column(columns.path), batch.column(columns.pos).cast(pa.int64()), parts)
    # Copies, so that a slice does not keep the whole buffer.
    found = {path: _check_positions(pa.concat_arrays(found), file) for path, found in parts.items()}
    return found, sum(len(path) + positions.nbytes for path, positions in found.items())


def _split_by_path(paths: pa.Array, positions: pa.Int64Array, parts: dict[str, list[pa.Int64Array]]) -> None:
    if not pa.types.is_dictionary(paths.type):
        paths = paths.dictionary_encode()
    codes = paths.indices
    runs = pc.run_end_encode(codes)
    if len(runs.values) > 2 * len(paths.dictionary):  # not in the order that the format asks for
        order = pc.sort_indices(codes)
        positions = positions.take(order)
        runs = pc.run_end_encode(codes.take(order))
    names = paths.dictionary.to_pylist()
    start = 0
    for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        if code is not None:
            parts[names[code]].append(positions.slice(start, end - start))
        start = end


def _check_positions(positions: pa.Int64Array, file: ContentFile) -> pa.Int64Array:
    lowest = pc.min(positions).as_py()
    if positions.null_count or (lowest is not None and lowest < 0):
        what = "NULL" if positions.null_count else str(lowest)
        raise DamagedTable(f"Delete file {file.file_path} names {what} as a position.", path=file.file_path)
    return positions


def _to_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


DEFAULT_TARGET_BYTES = 64 << 20
_ID = "PARQUET:field_id"
_PATHS = pa.field("file_path", pa.dictionary(pa.int32(), pa.string()), False, {_ID: str(PATH_ID)})
_POSITIONS = pa.field("pos", pa.int64(), False, {_ID: str(POS_ID)})
POSITION_DELETE_SCHEMA = pa.schema([_PATHS, _POSITIONS])
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


class DeleteGranularity(Enum):
    """What one position delete file may be about (``write.delete.granularity``)."""

    FILE = "file"
    PARTITION = "partition"


def write_position_deletes(
    positions: Iterable[tuple[ManifestEntry, pa.Int64Array]],
    *,
    place: DeleteFileNamer,
    filesystem: pafs.FileSystem,
    granularity: DeleteGranularity = DeleteGranularity.PARTITION,
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
    writing = _PositionDeleteWriter(place, filesystem, target_bytes, layout or Layout())
    written: list[ContentFile] = []
    for group in group_by_partition(positions):
        units = [[target] for target in group] if granularity is DeleteGranularity.FILE else [group]
        for unit in units:
            written.extend(writing.write(unit))
    return written


@dataclass(frozen=True, slots=True)
class _PositionDeleteWriter:
    place: DeleteFileNamer
    filesystem: pafs.FileSystem
    target_bytes: int
    layout: Layout

    def write(self, targets: Sequence[RowsToDelete]) -> Iterator[ContentFile]:
        """Some data files' deletes, in as many files as their size needs."""
        groups = _make_row_groups(targets, self.layout.row_group_rows)
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
            yield _make_content_file(file, path, size, footer, spans)

    def _write_file(
        self, location: str, first: _PositionRowGroup, groups: Iterator[_PositionRowGroup]
    ) -> tuple[list[_PositionSpan], int, pq.FileMetaData, _PositionRowGroup | None]:
        """One file of the first row group and those after it, until it is large enough; what is left."""
        options = self.layout.make_writer_options(POSITION_DELETE_SCHEMA, dictionary_columns=["file_path"])
        options["sorting_columns"] = [pq.SortingColumn(0), pq.SortingColumn(1)]
        spans: list[_PositionSpan] = []
        footers: list[pq.FileMetaData] = []
        group: _PositionRowGroup | None = first
        with self.filesystem.open_output_stream(location) as sink:
            writer = pq.ParquetWriter(
                sink, POSITION_DELETE_SCHEMA, store_schema=False, metadata_collector=footers, **options
            )
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
class _PositionSpan:
    """The positions of one data file in one row group."""

    path: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class _PositionRowGroup:
    """One row group to be written."""

    table: pa.Table
    spans: tuple[_PositionSpan, ...]


def _make_row_groups(targets: Sequence[RowsToDelete], rows: int) -> Iterator[_PositionRowGroup]:
    """The rows of a delete file in their order, a row group at a time."""
    parts: list[tuple[str, pa.Int64Array]] = []
    room = rows
    for target in targets:
        positions = to_positions(target.bitmap)
        while len(positions):
            part = positions.slice(0, room)
            parts.append((target.path, part))
            positions = positions.slice(len(part))
            room -= len(part)
            if not room:
                yield _make_row_group(parts)
                parts, room = [], rows
    if parts:
        yield _make_row_group(parts)


def _make_row_group(parts: Sequence[tuple[str, pa.Int64Array]]) -> _PositionRowGroup:
    codes = [pa.repeat(pa.scalar(code, pa.int32()), len(part)) for code, (_, part) in enumerate(parts)]
    names = pa.array([path for path, _ in parts], pa.string())
    paths = pa.DictionaryArray.from_arrays(pa.concat_arrays(codes), names)
    positions = pa.concat_arrays([part for _, part in parts])
    spans = tuple(_PositionSpan(path, part[0].as_py(), part[-1].as_py()) for path, part in parts)
    return _PositionRowGroup(pa.table([paths, positions], schema=POSITION_DELETE_SCHEMA), spans)


def _make_content_file(
    data: ContentFile, path: str, size: int, footer: pq.FileMetaData, spans: Sequence[_PositionSpan]
) -> ContentFile:
    """The manifest's record of a position delete file, with the metrics of Java's ``PositionDeleteWriter``.

    No counts of its two columns, and bounds only where all rows are of one data file: equal bounds of the
    path mean that.
    """
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    sizes = {
        field: sum(group.column(leaf).total_compressed_size for group in groups)
        for leaf, field in enumerate((PATH_ID, POS_ID))
    }
    file = ContentFile(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format="PARQUET",
        spec_id=data.spec_id,
        partition=data.partition,
        record_count=footer.num_rows,
        file_size_in_bytes=size,
        column_sizes=sizes,
        split_offsets=tuple(map(find_row_group_offset, groups)),
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
