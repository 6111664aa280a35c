"""Which delete files apply to which data file, from manifest entries alone; no file is opened here."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform

from intarsia.errors import DamagedTable
from intarsia.tables.iceberg.entries import Content, ContentFile, Entry
from intarsia.tables.iceberg.overlap import Order, may_match

PATH_ID = 2147483546
"""Field id of ``file_path`` in position delete files."""
POS_ID = 2147483545
"""Field id of ``pos`` in position delete files."""


@dataclass(frozen=True, slots=True)
class Deletes:
    """The deletes that apply to one data file; false when there are none."""

    vector: Entry | None = None
    positions: tuple[Entry, ...] = ()
    """Position delete files that may name it; none where there is a vector, which supersedes them."""
    equalities: tuple[Entry, ...] = ()

    def __bool__(self) -> bool:
        return self.vector is not None or bool(self.positions) or bool(self.equalities)

    @property
    def known_count(self) -> int | None:
        """How many rows are deleted, where metadata alone proves it."""
        if self.positions or self.equalities:
            return None
        return self.vector.file.record_count if self.vector else 0

    @property
    def likely_count(self) -> int:
        """How many rows are deleted, as far as metadata tells: no writer deletes a row twice, but may."""
        sole = (entry.file.record_count for entry in self.replaceable)
        return sum(sole) if self.vector is None else self.vector.file.record_count

    @property
    def marks(self) -> tuple[tuple[str, int | None], ...]:
        """Tells these deletes from others: files never change, and a vector has its place in one."""
        vector = () if self.vector is None else (self.vector,)
        every = (*vector, *self.positions, *self.equalities)
        return tuple((entry.file.file_path, entry.file.content_offset) for entry in every)

    @property
    def guessed(self) -> bool:
        """Whether ``likely_count`` leaves deletes out, or may count one twice."""
        if self.equalities:
            return True
        return self.vector is None and (
            len(self.positions) > 1 or len(self.positions) != len(self.replaceable)
        )

    @property
    def replaceable(self) -> tuple[Entry, ...]:
        """Those that hold deletes of this data file alone: a vector that takes them over replaces them."""
        vector = () if self.vector is None else (self.vector,)
        return (*vector, *(entry for entry in self.positions if sole_path(entry.file) is not None))


NO_DELETES = Deletes()


def sole_path(file: ContentFile) -> str | None:
    """The one data file that a position delete file or vector is about; None where it may be several.

    As Java has it: the referenced data file, or bounds of the path that are equal.
    """
    if file.content is not Content.POSITION_DELETES:
        return None
    if file.referenced_data_file is not None:
        return file.referenced_data_file
    lower = (file.lower_bounds or {}).get(PATH_ID)
    upper = (file.upper_bounds or {}).get(PATH_ID)
    return lower.decode() if lower is not None and lower == upper else None


def partition_key(file: ContentFile) -> tuple[Any, ...]:
    """Spec and tuple as a key, by which NaN is NaN and 0.0 is not -0.0, as Java compares tuples."""
    for value in file.partition:
        if type(value) is float:
            return (file.spec_id, tuple(map(_value_key, file.partition)))
    return (file.spec_id, file.partition)


def unpartitioned_specs(metadata: TableMetadata) -> frozenset[int]:
    """The specs without any field but dropped ones (``void``), whose equality deletes are global."""
    return frozenset(
        spec.spec_id
        for spec in metadata.partition_specs
        if all(isinstance(field.transform, VoidTransform) for field in spec.fields)
    )


class DeleteIndex:
    """Delete files by what they apply to: a path, a partition, or everything.

    Building and asking are linear in the entries: 100,000 of each take about a second.
    """

    def __init__(
        self,
        vectors: dict[str, Entry],
        by_path: dict[str, _BySequence],
        by_partition: dict[tuple[Any, ...], _BySequence],
        equal_by_partition: dict[tuple[Any, ...], _BySequence],
        everywhere: _BySequence,
        orders: Mapping[int, Order],
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
        entries: Iterable[Entry],
        *,
        unpartitioned: Collection[int] = (),
        orders: Mapping[int, Order] | None = None,
    ) -> DeleteIndex:
        """An index of live delete entries, with their sequence numbers filled in.

        Args:
            entries: entries of delete manifests; those of data files are passed over.
            unpartitioned: ids of specs that have ``void`` fields only (``unpartitioned_specs``). A spec
                without any field is known by its empty tuples.
            orders: how bounds of columns are compared (``orders_of``); with it, equality deletes that
                cannot match by what manifests say of both files are left out.

        Raises:
            DamagedTable: two vectors for one data file.
        """
        vectors: dict[str, Entry] = {}
        by_path: dict[str, list[Entry]] = defaultdict(list)
        by_partition: dict[tuple[Any, ...], list[Entry]] = defaultdict(list)
        equal: dict[tuple[Any, ...], list[Entry]] = defaultdict(list)
        everywhere: list[Entry] = []
        for entry in entries:
            file = entry.file
            if file.content is Content.EQUALITY_DELETES:
                if not file.partition or file.spec_id in unpartitioned:
                    everywhere.append(entry)
                else:
                    equal[partition_key(file)].append(entry)
            elif file.is_vector:
                _add_vector(vectors, entry)
            elif file.content is Content.POSITION_DELETES:
                path = sole_path(file)
                if path is None:
                    by_partition[partition_key(file)].append(entry)
                else:
                    by_path[path].append(entry)
        return DeleteIndex(
            vectors,
            {path: _BySequence(found) for path, found in by_path.items()},
            {key: _BySequence(found) for key, found in by_partition.items()},
            {key: _BySequence(found) for key, found in equal.items()},
            _BySequence(everywhere),
            orders or {},
        )

    def __bool__(self) -> bool:
        return not self._empty

    def applying(self, data: Entry) -> Deletes:
        """The deletes that apply to a data file.

        Raises:
            DamagedTable: a vector or delete file about this data file has another spec or tuple, or a
                vector is older than the file. Iceberg's own readers refuse such a table as well.
        """
        if self._empty:
            return NO_DELETES
        file, sequence = data.file, _sequence(data)
        key = partition_key(file)
        equalities = self._everywhere.since(sequence + 1)
        partition = self._equal_by_partition.get(key)
        if partition is not None:
            equalities += partition.since(sequence + 1)
        if equalities and self._orders:
            equalities = tuple(e for e in equalities if may_match(file, e.file, self._orders))
        vector = self._vectors.get(file.file_path)
        if vector is not None:
            _check_vector(vector, data)
            return Deletes(vector, (), equalities)
        positions: tuple[Entry, ...] = ()
        scoped = self._by_path.get(file.file_path)
        if scoped is not None:
            positions = scoped.since(sequence)
            for entry in positions:
                _check_partition(entry, data)
        shared = self._by_partition.get(key)
        if shared is not None:
            path = file.file_path.encode()
            positions += tuple(entry for entry in shared.since(sequence) if _may_name(entry.file, path))
        return Deletes(None, positions, equalities) if positions or equalities else NO_DELETES


class _BySequence:
    """Delete files in the order of their sequence numbers."""

    __slots__ = ("_entries", "_sequences")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = tuple(sorted(entries, key=_sequence))
        self._sequences = [_sequence(entry) for entry in self._entries]

    def __bool__(self) -> bool:
        return bool(self._entries)

    def since(self, sequence: int) -> tuple[Entry, ...]:
        return self._entries[bisect_left(self._sequences, sequence) :]


def _sequence(entry: Entry) -> int:
    if entry.sequence_number is None:
        raise DamagedTable(
            f"The manifest entry of {entry.file.file_path} has no sequence number.",
            path=entry.file.file_path,
        )
    return entry.sequence_number


def _add_vector(vectors: dict[str, Entry], entry: Entry) -> None:
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


def _check_vector(vector: Entry, data: Entry) -> None:
    if _sequence(vector) < _sequence(data):
        raise DamagedTable(
            f"The deletion vector in {vector.file.file_path} (sequence number {vector.sequence_number}) is"
            f" older than its data file {data.file.file_path} ({data.sequence_number}).",
            path=data.file.file_path,
        )
    _check_partition(vector, data)


def _check_partition(delete: Entry, data: Entry) -> None:
    if partition_key(delete.file) == partition_key(data.file):
        return
    raise DamagedTable(
        f"Delete file {delete.file.file_path} has partition spec {delete.file.spec_id} and partition"
        f" {delete.file.partition}, its data file {data.file.file_path} has spec {data.file.spec_id} and"
        f" {data.file.partition}.",
        path=data.file.file_path,
        hint="the snapshot is damaged: roll the table back to an earlier one",
    )


def _may_name(file: ContentFile, path: bytes) -> bool:
    """Whether the bounds of a delete file's paths admit a path; they may be cut short, and still bound it."""
    lower = (file.lower_bounds or {}).get(PATH_ID)
    upper = (file.upper_bounds or {}).get(PATH_ID)
    return (lower is None or lower <= path) and (upper is None or path <= upper)


def _value_key(value: Any) -> Any:
    if type(value) is not float:
        return value
    return b"nan" if value != value else struct.pack("<d", value)
