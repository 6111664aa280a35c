"""Position delete files, read: the positions that one of them names for one data file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.errors import DamagedTable, NotSupported, StorageError
from intarsia.tables.iceberg.delete_cache import DeleteCache
from intarsia.tables.iceberg.deletes import PATH_ID, POS_ID, sole_path
from intarsia.tables.iceberg.entries import ContentFile, Entry

FIELD_ID = b"PARQUET:field_id"
_SHARE = 4
"""A delete file is decoded whole when it takes at most this part of the cache."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How the bytes of recorded paths are reached, and what was decoded of them before."""

    filesystem: pafs.FileSystem
    locate: Callable[[str], str]
    """The location on the file system of a path that was recorded."""
    cache: DeleteCache


def read_positions(delete: Entry, path: str, reach: Reach) -> pa.Int64Array:
    """The positions that a position delete file names for a data file, in no certain order.

    Memory: the row groups that may name the file, one at a time. A file about several data files is
    decoded once for all of them where the cache has room for it.

    Raises:
        NotSupported: it is not Parquet.
        DamagedTable: it is not a position delete file, or a position in it is NULL or negative.
        StorageError: the file system refused.
    """
    file = delete.file
    if sole_path(file) is None and 8 * file.record_count * _SHARE <= reach.cache.limit:
        positions = reach.cache.get(("positions", file.file_path), lambda: _all_positions(file, reach))
        return positions.get(path, pa.array([], pa.int64()))
    with open_delete_file(file, reach) as parquet:
        columns = _Columns.of(parquet, file)
        parts = [
            part
            for group in range(parquet.metadata.num_row_groups)
            for part in _named_in(parquet, group, columns, path)
        ]
    found = pa.concat_arrays(parts) if parts else pa.array([], pa.int64())
    return _checked(found, file)


def open_delete_file(file: ContentFile, reach: Reach) -> pq.ParquetFile:
    """A delete file, open; the paths of position deletes come as dictionaries.

    Raises:
        NotSupported: it is not Parquet.
        DamagedTable: it cannot be read as Parquet.
        StorageError: the file system refused.
    """
    if file.file_format.upper() != "PARQUET":
        raise NotSupported(
            f"Delete file {file.file_path} is {file.file_format}: only Parquet delete files are read.",
            path=file.file_path,
            hint="rewrite the table's delete files with Iceberg's rewrite_position_delete_files or"
            " rewrite_data_files, with write.delete.format.default=parquet",
        )
    try:
        source = reach.filesystem.open_input_file(reach.locate(file.file_path))
        footer = pq.read_metadata(source)
        encoded = ["file_path"] if "file_path" in footer.schema.names else []
        return pq.ParquetFile(source, metadata=footer, read_dictionary=encoded)
    except pa.ArrowInvalid as error:
        raise DamagedTable(
            f"Delete file {file.file_path} cannot be read: {error}", path=file.file_path
        ) from error
    except OSError as error:
        raise StorageError(
            f"Could not open delete file {file.file_path}: {error}", errno=error.errno, path=file.file_path
        ) from error


def field_id(field: pa.Field) -> int | None:
    """The field id that a Parquet file gives a column."""
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


@dataclass(frozen=True, slots=True)
class _Columns:
    path: str
    pos: str
    path_leaf: int

    @staticmethod
    def of(parquet: pq.ParquetFile, file: ContentFile) -> _Columns:
        schema = parquet.schema_arrow
        by_id = {field_id(field): field.name for field in schema}
        path = by_id.get(PATH_ID, "file_path")
        pos = by_id.get(POS_ID, "pos")
        if path not in schema.names or pos not in schema.names:
            raise DamagedTable(
                f"Delete file {file.file_path} has no columns file_path and pos: it has"
                f" {', '.join(schema.names) or 'none'}.",
                path=file.file_path,
            )
        leaves = [parquet.schema.column(n).path for n in range(len(parquet.schema))]
        return _Columns(path, pos, leaves.index(path))


def _named_in(parquet: pq.ParquetFile, group: int, columns: _Columns, path: str) -> list[pa.Int64Array]:
    """The positions that one row group names for a file; it is not read where its statistics exclude that."""
    statistics = parquet.metadata.row_group(group).column(columns.path_leaf).statistics
    whole = False
    if statistics is not None and statistics.has_min_max:
        low, high, wanted = _bytes(statistics.min), _bytes(statistics.max), path.encode()
        if not low <= wanted <= high:
            return []
        whole = low == high and statistics.null_count == 0
    if whole:
        table = parquet.read_row_group(group, [columns.pos])
        return [part.cast(pa.int64()) for part in table[columns.pos].chunks]
    table = parquet.read_row_group(group, [columns.path, columns.pos])
    return [
        batch.column(columns.pos).filter(_names(batch.column(columns.path), path)).cast(pa.int64())
        for batch in table.to_batches()
    ]


def _names(paths: pa.Array, path: str) -> pa.BooleanArray:
    if pa.types.is_dictionary(paths.type):
        return pc.equal(paths.indices, pc.index(paths.dictionary, path))  # -1, which is no index, for none
    return pc.equal(paths, path)


def _all_positions(file: ContentFile, reach: Reach) -> tuple[Mapping[str, pa.Int64Array], int]:
    """Everything a file says, by data file."""
    parts: dict[str, list[pa.Int64Array]] = defaultdict(list)
    with open_delete_file(file, reach) as parquet:
        columns = _Columns.of(parquet, file)
        for group in range(parquet.metadata.num_row_groups):
            table = parquet.read_row_group(group, [columns.path, columns.pos])
            for batch in table.to_batches():
                _deal_out(batch.column(columns.path), batch.column(columns.pos).cast(pa.int64()), parts)
    # Copies, so that no slice keeps all the rest alive.
    found = {path: _checked(pa.concat_arrays(found), file) for path, found in parts.items()}
    return found, sum(len(path) + positions.nbytes for path, positions in found.items())


def _deal_out(paths: pa.Array, positions: pa.Int64Array, parts: dict[str, list[pa.Int64Array]]) -> None:
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


def _checked(positions: pa.Int64Array, file: ContentFile) -> pa.Int64Array:
    lowest = pc.min(positions).as_py()
    if positions.null_count or (lowest is not None and lowest < 0):
        what = "NULL" if positions.null_count else str(lowest)
        raise DamagedTable(f"Delete file {file.file_path} names {what} as a position.", path=file.file_path)
    return positions


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
