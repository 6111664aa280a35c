"""Which deletes apply to a data file, and the positions they delete in it.

``DeleteFileIndex`` works on manifest entries alone, as Java's class of that name, by the rules of the Iceberg
spec, "Scan Planning". ``read_deleted_positions`` reads what was found, as Java's ``DeleteFilter`` does. The
formats are in ``position_deletes``, ``deletion_vectors`` and ``equality_deletes``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import (
    DateType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
)
from pyroaring import BitMap64

from intarsia.errors import DamagedTable
from intarsia.tables.iceberg.deletion_vectors import read_vector, to_bitmap, to_positions
from intarsia.tables.iceberg.equality_deletes import EqualityColumns, find_equal_positions
from intarsia.tables.iceberg.file_io import DeleteCache, DeleteFileAccess
from intarsia.tables.iceberg.manifests import (
    PATH_ID,
    ContentFile,
    DataFileContent,
    ManifestEntry,
    find_referenced_data_file,
    make_partition_key,
)
from intarsia.tables.iceberg.position_deletes import read_positions


@dataclass(frozen=True, slots=True)
class Deletes:
    """The deletes that apply to one data file; false when there are none."""

    vector: ManifestEntry | None = None
    positions: tuple[ManifestEntry, ...] = ()
    """Position delete files that may name it; none where there is a vector, which supersedes them."""
    equalities: tuple[ManifestEntry, ...] = ()

    def __bool__(self) -> bool:
        return self.vector is not None or bool(self.positions) or bool(self.equalities)

    @property
    def exact_count(self) -> int | None:
        """How many rows are deleted, where metadata alone proves it."""
        if self.positions or self.equalities:
            return None
        return self.vector.file.record_count if self.vector else 0

    @property
    def estimated_count(self) -> int:
        """How many rows are deleted, as far as metadata tells; a row that was deleted twice counts twice."""
        sole = (entry.file.record_count for entry in self.replaceable_entries)
        return sum(sole) if self.vector is None else self.vector.file.record_count

    @property
    def marks(self) -> tuple[tuple[str, int | None], ...]:
        """What identifies these deletes: path and offset of each, since files never change."""
        vector = () if self.vector is None else (self.vector,)
        every = (*vector, *self.positions, *self.equalities)
        return tuple((entry.file.file_path, entry.file.content_offset) for entry in every)

    @property
    def is_estimate(self) -> bool:
        """Whether ``estimated_count`` leaves deletes out, or may count one twice."""
        if self.equalities:
            return True
        return self.vector is None and (
            len(self.positions) > 1 or len(self.positions) != len(self.replaceable_entries)
        )

    @property
    def replaceable_entries(self) -> tuple[ManifestEntry, ...]:
        """The vector or position delete files of this data file alone, which a new one can replace."""
        vector = () if self.vector is None else (self.vector,)
        return (
            *vector,
            *(entry for entry in self.positions if find_referenced_data_file(entry.file) is not None),
        )


NO_DELETES = Deletes()


def find_unpartitioned_specs(metadata: TableMetadata) -> frozenset[int]:
    """Ids of specs that have no field but ``void`` ones; their equality deletes are global."""
    return frozenset(
        spec.spec_id
        for spec in metadata.partition_specs
        if all(isinstance(field.transform, VoidTransform) for field in spec.fields)
    )


class DeleteFileIndex:
    """Delete files by what they apply to: a path, a partition, or everything.

    Building and asking are linear in the entries: 100,000 of each take about a second.
    """

    def __init__(
        self,
        vectors: dict[str, ManifestEntry],
        by_path: dict[str, _BySequence],
        by_partition: dict[tuple[Any, ...], _BySequence],
        equal_by_partition: dict[tuple[Any, ...], _BySequence],
        everywhere: _BySequence,
        orders: Mapping[int, BoundOrder],
    ) -> None:
        self._vectors = vectors
        self._by_path = by_path
        self._by_partition = by_partition
        self._equal_by_partition = equal_by_partition
        self._everywhere = everywhere
        self._orders = orders
        self._empty = not (vectors or by_path or by_partition or equal_by_partition or everywhere)

    @staticmethod
    def of(
        entries: Iterable[ManifestEntry],
        *,
        unpartitioned: Collection[int] = (),
        orders: Mapping[int, BoundOrder] | None = None,
    ) -> DeleteFileIndex:
        """An index of live delete entries, with their sequence numbers filled in.

        Args:
            entries: entries of delete manifests; those of data files are passed over.
            unpartitioned: ids of specs that have ``void`` fields only (``find_unpartitioned_specs``). A spec
                without any field is known by its empty tuples.
            orders: how bounds of columns are compared (``find_bound_orders``); with it, equality deletes that
                cannot match by what manifests say of both files are left out.

        Raises:
            DamagedTable: two vectors for one data file.
        """
        vectors: dict[str, ManifestEntry] = {}
        by_path: dict[str, list[ManifestEntry]] = defaultdict(list)
        by_partition: dict[tuple[Any, ...], list[ManifestEntry]] = defaultdict(list)
        equal: dict[tuple[Any, ...], list[ManifestEntry]] = defaultdict(list)
        everywhere: list[ManifestEntry] = []
        for entry in entries:
            file = entry.file
            if file.content is DataFileContent.EQUALITY_DELETES:
                if not file.partition or file.spec_id in unpartitioned:
                    everywhere.append(entry)
                else:
                    equal[make_partition_key(file)].append(entry)
            elif file.is_vector:
                _add_vector(vectors, entry)
            elif file.content is DataFileContent.POSITION_DELETES:
                path = find_referenced_data_file(file)
                if path is None:
                    by_partition[make_partition_key(file)].append(entry)
                else:
                    by_path[path].append(entry)
        return DeleteFileIndex(
            vectors,
            {path: _BySequence(found) for path, found in by_path.items()},
            {key: _BySequence(found) for key, found in by_partition.items()},
            {key: _BySequence(found) for key, found in equal.items()},
            _BySequence(everywhere),
            orders or {},
        )

    def __bool__(self) -> bool:
        return not self._empty

    def find_deletes(self, data: ManifestEntry) -> Deletes:
        """The deletes that apply to a data file.

        Raises:
            DamagedTable: a vector or delete file about this data file has another spec or tuple, or a
                vector is older than the file. Java refuses such a table as well (``validatePartitionMatch``).
        """
        if self._empty:
            return NO_DELETES
        file, sequence = data.file, _get_sequence_number(data)
        key = make_partition_key(file)
        equalities = self._everywhere.select_since(sequence + 1)
        partition = self._equal_by_partition.get(key)
        if partition is not None:
            equalities += partition.select_since(sequence + 1)
        if equalities and self._orders:
            equalities = tuple(e for e in equalities if may_match_rows(file, e.file, self._orders))
        vector = self._vectors.get(file.file_path)
        if vector is not None:
            _check_vector(vector, data)
            return Deletes(vector, (), equalities)
        positions: tuple[ManifestEntry, ...] = ()
        scoped = self._by_path.get(file.file_path)
        if scoped is not None:
            positions = scoped.select_since(sequence)
            for entry in positions:
                _check_partition(entry, data)
        shared = self._by_partition.get(key)
        if shared is not None:
            path = file.file_path.encode()
            positions += tuple(
                entry for entry in shared.select_since(sequence) if _may_reference(entry.file, path)
            )
        return Deletes(None, positions, equalities) if positions or equalities else NO_DELETES


class _BySequence:
    """Delete files in the order of their sequence numbers."""

    __slots__ = ("_entries", "_sequences")

    def __init__(self, entries: Sequence[ManifestEntry]) -> None:
        self._entries = tuple(sorted(entries, key=_get_sequence_number))
        self._sequences = [_get_sequence_number(entry) for entry in self._entries]

    def __bool__(self) -> bool:
        return bool(self._entries)

    def select_since(self, sequence: int) -> tuple[ManifestEntry, ...]:
        return self._entries[bisect_left(self._sequences, sequence) :]


def _get_sequence_number(entry: ManifestEntry) -> int:
    if entry.sequence_number is None:
        raise DamagedTable(
            f"The manifest entry of {entry.file.file_path} has no sequence number.",
            path=entry.file.file_path,
        )
    return entry.sequence_number


def _add_vector(vectors: dict[str, ManifestEntry], entry: ManifestEntry) -> None:
    path = entry.file.referenced_data_file
    if path is None:
        raise DamagedTable(
            f"The deletion vector in {entry.file.file_path} names no data file.", path=entry.file.file_path
        )
    other = vectors.setdefault(path, entry)
    if other is not entry:
        raise DamagedTable(
            f"{path} has two deletion vectors, in {other.file.file_path} and {entry.file.file_path}.",
            path=path,
            hint="the snapshot is damaged: roll the table back to an earlier one",
        )


def _check_vector(vector: ManifestEntry, data: ManifestEntry) -> None:
    if _get_sequence_number(vector) < _get_sequence_number(data):
        raise DamagedTable(
            f"The deletion vector in {vector.file.file_path} (sequence number {vector.sequence_number}) is"
            f" older than its data file {data.file.file_path} ({data.sequence_number}).",
            path=data.file.file_path,
        )
    _check_partition(vector, data)


def _check_partition(delete: ManifestEntry, data: ManifestEntry) -> None:
    if make_partition_key(delete.file) == make_partition_key(data.file):
        return
    raise DamagedTable(
        f"Delete file {delete.file.file_path} has partition spec {delete.file.spec_id} and partition"
        f" {delete.file.partition}, its data file {data.file.file_path} has spec {data.file.spec_id} and"
        f" {data.file.partition}.",
        path=data.file.file_path,
        hint="the snapshot is damaged: roll the table back to an earlier one",
    )


def _may_reference(file: ContentFile, path: bytes) -> bool:
    """Whether a path is within the bounds of a delete file's paths; truncated bounds are valid bounds."""
    lower = (file.lower_bounds or {}).get(PATH_ID)
    upper = (file.upper_bounds or {}).get(PATH_ID)
    return (lower is None or lower <= path) and (upper is None or path <= upper)


class BoundOrder(Enum):
    """How bounds of a column are compared."""

    NUMBER = "number"
    """Integers of four or eight bytes."""
    INSTANT = "instant"
    """Integers that are compared only if they have the same length: dates and timestamps differ in unit."""
    TEXT = "text"
    """Bytes of UTF-8; truncated bounds are valid bounds."""


_BOUND_ORDERS: Mapping[type[IcebergType], BoundOrder] = {
    IntegerType: BoundOrder.NUMBER,
    LongType: BoundOrder.NUMBER,
    DateType: BoundOrder.INSTANT,
    TimeType: BoundOrder.INSTANT,
    TimestampType: BoundOrder.INSTANT,
    TimestamptzType: BoundOrder.INSTANT,
    TimestampNanoType: BoundOrder.INSTANT,
    TimestamptzNanoType: BoundOrder.INSTANT,
    StringType: BoundOrder.TEXT,
}


def find_bound_orders(metadata: TableMetadata) -> dict[int, BoundOrder]:
    """How bounds are compared, by field id, over all schemas of the table."""
    found: dict[int, BoundOrder] = {}
    for schema in metadata.schemas:
        found.update(_find_schema_orders(schema))
    return found


def may_match_rows(data: ContentFile, delete: ContentFile, orders: Mapping[int, BoundOrder]) -> bool:
    """Whether some row of a data file may equal one of a delete file; True where it is not known.

    As Java's ``DeleteFileIndex.canContainEqDeletesForFile``: no row matches where one file has only NULLs in
    a column and the other has none, or where the bounds are disjoint, unless both files may have NULLs there.
    """
    for number in delete.equality_ids or ():
        order = orders.get(number)
        if order is None or (_may_contain_null(data, number) and _may_contain_null(delete, number)):
            continue
        if _is_all_null(data, number) or _is_all_null(delete, number):
            return False
        if _has_disjoint_bounds(data, delete, number, order):
            return False
    return True


def _find_schema_orders(schema: Schema) -> dict[int, BoundOrder]:
    return {
        number: _BOUND_ORDERS[type(field.field_type)]
        for number, field in index_by_id(schema).items()
        if type(field.field_type) in _BOUND_ORDERS
    }


def _may_contain_null(file: ContentFile, number: int) -> bool:
    return (file.null_value_counts or {}).get(number, 1) > 0


def _is_all_null(file: ContentFile, number: int) -> bool:
    nulls = (file.null_value_counts or {}).get(number)
    return nulls is not None and nulls == (file.value_counts or {}).get(number)


def _has_disjoint_bounds(data: ContentFile, delete: ContentFile, number: int, order: BoundOrder) -> bool:
    bounds = [
        (bounds or {}).get(number)
        for bounds in (data.lower_bounds, data.upper_bounds, delete.lower_bounds, delete.upper_bounds)
    ]
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return False
    if order is BoundOrder.TEXT:
        low, high, delete_low, delete_high = known
        return delete_low > high or low > delete_high
    if order is BoundOrder.INSTANT and len({len(bound) for bound in known}) > 1:
        return False
    first, last, delete_first, delete_last = (int.from_bytes(bound, "little", signed=True) for bound in known)
    return delete_first > last or first > delete_last


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
    if len(found) and found[-1].as_py() >= rows:  # positions behind the last row delete nothing
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
        As ``read_deleted_positions``; InputError for invalid positions.
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
    # Without a shared cache, only what is asked for is decoded.
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
