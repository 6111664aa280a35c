"""The deleted positions of one data file, from all deletes that apply to it (Java's ``DeleteFilter``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyroaring import BitMap64

from intarsia.tables.iceberg.deletes import DeleteCache, DeleteFileAccess, Deletes
from intarsia.tables.iceberg.deletion_vectors import read_vector, to_bitmap, to_positions
from intarsia.tables.iceberg.equality_deletes import EqualityColumns, find_equal_positions
from intarsia.tables.iceberg.manifests import ManifestEntry
from intarsia.tables.iceberg.position_deletes import read_positions


@dataclass(frozen=True, slots=True)
class MergedPositions:
    """The positions of one data file with those that older deletes name."""

    positions: pa.Int64Array
    """Ascending, once each."""
    superseded: tuple[ManifestEntry, ...]
    """Older deletes of this data file alone, which a file with the positions replaces."""


def read_deleted_positions(
    deletes: Deletes,
    file_path: str,
    parquet: pq.ParquetFile,
    filesystem: pafs.FileSystem,
    filesystem_path: Callable[[str], str],
    columns: EqualityColumns,
    *,
    cache: DeleteCache | None = None,
) -> pa.Int64Array | None:
    """The positions of a data file's deleted rows, ascending and once each; None for none.

    Args:
        deletes: what applies to the data file.
        file_path: its path as it was recorded; position deletes name it so.
        parquet: the data file, open; only columns named by equality deletes are read.
        filesystem: where delete files are.
        filesystem_path: the location there of a path that was recorded.
        columns: how columns named by equality deletes are found in the data file.
        cache: what was decoded for other data files of the operation.

    Memory: the positions, some row groups' equality columns, and the cache.

    Raises:
        DamagedTable: a delete file is damaged.
        NotSupported: a delete file is not Parquet or Puffin.
        StorageError: the file system refused.
    """
    if not deletes:
        return None
    access = _make_access(filesystem, filesystem_path, cache)
    bitmap = _read_positional(deletes, file_path, access)
    for part in find_equal_positions(deletes.equalities, file_path, parquet, access=access, columns=columns):
        bitmap |= to_bitmap(part)
    found = to_positions(bitmap)
    rows = parquet.metadata.num_rows
    if len(found) and found[-1].as_py() >= rows:  # such a delete deletes nothing
        found = found.filter(pc.less(found, rows))
    return found if len(found) else None


def merge_positions(
    positions: pa.Int64Array,
    deletes: Deletes,
    file_path: str,
    *,
    filesystem: pafs.FileSystem,
    filesystem_path: Callable[[str], str],
    cache: DeleteCache | None = None,
    replaced_only: bool = False,
) -> MergedPositions:
    """New positions of a data file together with those of its older vector or position deletes.

    A new vector has to hold them all, since readers look at nothing else once there is one. A new
    position delete file need hold only those of the deletes it replaces, which are about this data file
    alone: ``replaced_only``. Equality deletes stay as they are.

    Raises:
        As ``deleted_positions``; InputError for positions that cannot be.
    """
    bitmap = to_bitmap(positions)
    old = deletes.replaceable_entries
    if replaced_only and deletes.vector is None:
        deletes = Deletes(None, old)
    if deletes.vector is not None or deletes.positions:
        bitmap |= _read_positional(deletes, file_path, _make_access(filesystem, filesystem_path, cache))
    return MergedPositions(to_positions(bitmap), old)


def _make_access(
    filesystem: pafs.FileSystem, filesystem_path: Callable[[str], str], cache: DeleteCache | None
) -> DeleteFileAccess:
    # Without a cache to share, no more of a file is decoded than what is asked for.
    return DeleteFileAccess(filesystem, filesystem_path, DeleteCache(0) if cache is None else cache)


def _read_positional(deletes: Deletes, file_path: str, access: DeleteFileAccess) -> BitMap64:
    if deletes.vector is not None:
        return read_vector(
            deletes.vector, filesystem=access.filesystem, filesystem_path=access.filesystem_path
        )
    bitmap = BitMap64()
    for entry in deletes.positions:
        bitmap |= to_bitmap(read_positions(entry, file_path, access))
    return bitmap
