"""The positions of a data file's dead rows, from whatever deletes apply to it; nothing here writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyroaring import BitMap64

from intarsia.tables.iceberg.delete_cache import DeleteCache
from intarsia.tables.iceberg.deletes import Deletes
from intarsia.tables.iceberg.entries import Entry
from intarsia.tables.iceberg.equality import EqualityColumns, equal_positions
from intarsia.tables.iceberg.position_files import Reach, read_positions
from intarsia.tables.iceberg.vectors import bitmap_of, positions_of, read_vector


@dataclass(frozen=True, slots=True)
class Merged:
    """The positions of one data file with those that older deletes name."""

    positions: pa.Int64Array
    """Ascending, once each."""
    superseded: tuple[Entry, ...]
    """Older deletes of this data file alone, which a file with the positions replaces."""


def dead_positions(
    deletes: Deletes,
    file_path: str,
    parquet: pq.ParquetFile,
    filesystem: pafs.FileSystem,
    locate: Callable[[str], str],
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
        locate: the location there of a path that was recorded.
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
    reach = _reach(filesystem, locate, cache)
    bitmap = _positional(deletes, file_path, reach)
    for part in equal_positions(deletes.equalities, file_path, parquet, reach=reach, columns=columns):
        bitmap |= bitmap_of(part)
    found = positions_of(bitmap)
    rows = parquet.metadata.num_rows
    if len(found) and found[-1].as_py() >= rows:  # such a delete deletes nothing
        found = found.filter(pc.less(found, rows))
    return found if len(found) else None


def merge_old(
    positions: pa.Int64Array,
    deletes: Deletes,
    file_path: str,
    *,
    filesystem: pafs.FileSystem,
    locate: Callable[[str], str],
    cache: DeleteCache | None = None,
    replaced_only: bool = False,
) -> Merged:
    """New positions of a data file together with those of its older vector or position deletes.

    A new vector has to hold them all, since readers look at nothing else once there is one. A new
    position delete file need hold only those of the deletes it replaces, which are about this data file
    alone: ``replaced_only``. Equality deletes stay as they are.

    Raises:
        As ``dead_positions``; InputError for positions that cannot be.
    """
    bitmap = bitmap_of(positions)
    old = deletes.replaceable
    if replaced_only and deletes.vector is None:
        deletes = Deletes(None, old)
    if deletes.vector is not None or deletes.positions:
        bitmap |= _positional(deletes, file_path, _reach(filesystem, locate, cache))
    return Merged(positions_of(bitmap), old)


def _reach(filesystem: pafs.FileSystem, locate: Callable[[str], str], cache: DeleteCache | None) -> Reach:
    # Without a cache to share, no more of a file is decoded than what is asked for.
    return Reach(filesystem, locate, DeleteCache(0) if cache is None else cache)


def _positional(deletes: Deletes, file_path: str, reach: Reach) -> BitMap64:
    if deletes.vector is not None:
        return read_vector(deletes.vector, filesystem=reach.filesystem, locate=reach.locate)
    bitmap = BitMap64()
    for entry in deletes.positions:
        bitmap |= bitmap_of(read_positions(entry, file_path, reach))
    return bitmap
