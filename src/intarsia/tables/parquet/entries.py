"""What a listing tells of many files, as columns; which files count is decided in ``listing``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import overload

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.storage import FileEntry

MANY_FILES = 256
"""From this many files on columns pay, and with them a cache of footers: below it reading footers takes about
15 ms."""
_CHUNK = 1024
_FLUSH = 8192
_NAMES = ("path", "size", "mtime_ns", "identity", "changed_ns")

KEY_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("identity", pa.string()),
        ("changed_ns", pa.int64()),
    ]
)
"""What tells files apart: another file under the same path differs in one of these."""

Located = tuple[FileEntry, str]
"""A data file, and where its bytes are."""


class EntryTable(Sequence[FileEntry]):
    """Regular files, as a tuple of their entries would be; each entry is made when it is asked for.

    Memory: about 80 bytes per file, where an entry has 300.
    """

    __slots__ = ("table",)

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @staticmethod
    def of(entries: Iterable[FileEntry]) -> EntryTable:
        """The entries in their order."""
        collected = EntryCollector()
        for entry in entries:
            collected.add(entry)
        return EntryTable(collected.build())

    @property
    def paths(self) -> pa.StringArray:
        return _get_column(self.table, "path")

    @property
    def sizes(self) -> pa.Int64Array:
        return _get_column(self.table, "size")

    def make_keys(self) -> pa.Table:
        """The same in :data:`KEY_SCHEMA`."""
        columns = [self.table[field.name].cast(field.type) for field in KEY_SCHEMA]
        return pa.Table.from_arrays(columns, schema=KEY_SCHEMA)

    def __len__(self) -> int:
        count: int = self.table.num_rows
        return count

    @overload
    def __getitem__(self, place: int) -> FileEntry: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[FileEntry, ...]: ...
    def __getitem__(self, place: int | slice) -> FileEntry | tuple[FileEntry, ...]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return tuple(self[number] for number in range(start, stop, step))
        number = place + len(self) if place < 0 else place
        if not 0 <= number < len(self):
            raise IndexError(place)
        return self.make_range(number, number + 1)[0]

    def __iter__(self) -> Iterator[FileEntry]:
        for start in range(0, len(self), _CHUNK):
            yield from self.make_range(start, min(start + _CHUNK, len(self)))

    def make_range(self, start: int, stop: int) -> list[FileEntry]:
        """The entries from one number up to another."""
        columns = [_get_column(self.table, name).slice(start, stop - start).to_pylist() for name in _NAMES]
        return [
            FileEntry(path, "file", size, mtime_ns, identity, changed_ns)
            for path, size, mtime_ns, identity, changed_ns in zip(*columns, strict=True)
        ]


class EntryCollector:
    """Collects entries of regular files into columns; of a few thousand at a time there are objects."""

    def __init__(self) -> None:
        self.few: list[FileEntry] = []
        """Those that are not in columns yet; all of them, as long as there are few."""
        self._pieces: list[tuple[pa.Array, ...]] = []
        self.count = 0

    def add(self, entry: FileEntry) -> None:
        self.few.append(entry)
        if len(self.few) == _FLUSH:
            self._flush()

    def __len__(self) -> int:
        return self.count + len(self.few)

    def _flush(self) -> None:
        few = self.few
        self._pieces.append(
            (
                pa.array([entry.path for entry in few], pa.string()),
                pa.array([entry.size for entry in few], pa.int64()),
                pa.array([entry.mtime_ns for entry in few], pa.int64()),
                _make_identities([entry.identity for entry in few]),
                pa.array([entry.changed_ns for entry in few], pa.int64()),
            )
        )
        self.count += len(few)
        self.few = []

    def build(self) -> pa.Table:
        """The columns of all, in the order they came in; each is one array."""
        self._flush()
        columns = [_join([piece[number] for piece in self._pieces]) for number in range(len(_NAMES))]
        return pa.Table.from_arrays(columns, names=list(_NAMES))


def _make_identities(values: list[int | str | None]) -> pa.Array:
    try:
        return pa.array(values)
    except (OverflowError, pa.ArrowInvalid):  # inodes above 2 ** 63
        return pa.array(values, pa.uint64())


def _join(pieces: Sequence[pa.Array]) -> pa.Array:
    """One array of several, which differ in type where one has NULLs only, or large inodes."""
    kinds = {piece.type for piece in pieces if not pa.types.is_null(piece.type)}
    dtype = kinds.pop() if len(kinds) == 1 else pa.uint64() if kinds else pa.int64()
    return pa.concat_arrays([piece.cast(dtype) for piece in pieces])


def sort_entries(table: pa.Table) -> EntryTable:
    """Entries by path; of several with one path, which some stores list, the last."""
    order = pc.sort_indices(table["path"])  # stable, and UTF-8 sorts as text does
    ordered = table.take(order).combine_chunks()
    paths = _get_column(ordered, "path")
    repeated = pc.equal(paths.slice(1), paths.slice(0, max(len(paths) - 1, 0)))
    if pc.any(repeated).as_py():
        last = pc.invert(pa.concat_arrays([repeated, pa.array([False])]))
        ordered = ordered.filter(last).combine_chunks()
    return EntryTable(ordered)


def _get_column(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


class LocatedFiles(Sequence[Located]):
    """Entries with where their bytes are: below a root, but for those that are not published yet."""

    __slots__ = ("entries", "moved", "root")

    def __init__(self, entries: EntryTable, root: str, moved: Mapping[int, str] | None = None) -> None:
        self.entries = entries
        self.root = root
        self.moved = moved or {}

    @staticmethod
    def of(files: Sequence[Located], root: str = "") -> LocatedFiles:
        """The same files as columns."""
        if isinstance(files, LocatedFiles):
            return files
        moved = {
            number: location
            for number, (entry, location) in enumerate(files)
            if location != f"{root}/{entry.path}"
        }
        return LocatedFiles(EntryTable.of(entry for entry, _ in files), root, moved)

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, place: int) -> Located: ...
    @overload
    def __getitem__(self, place: slice) -> list[Located]: ...
    def __getitem__(self, place: int | slice) -> Located | list[Located]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        number = place + len(self) if place < 0 else place
        entry = self.entries[number]
        return entry, self.locate(number, entry)

    def __iter__(self) -> Iterator[Located]:
        for number, entry in enumerate(self.entries):
            yield entry, self.locate(number, entry)

    def locate(self, number: int, entry: FileEntry) -> str:
        """Where the bytes of a file are."""
        return self.moved.get(number) or f"{self.root}/{entry.path}"

    def with_moved(self, moved: Mapping[int, str]) -> LocatedFiles:
        """The same files, some of them elsewhere."""
        return LocatedFiles(self.entries, self.root, {**self.moved, **moved})
