"""The files of a snapshot: a tuple of few, columns of many, and what planning asks of either.

Of many files, all that is asked of all of them is there without an object for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, overload

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.python_values import make_array

if TYPE_CHECKING:
    from intarsia.core.prune import Bounds
    from intarsia.core.snapshot import DataFile

_CHUNK = 1024

MakeFiles = Callable[[int, int, Sequence[Mapping[str, Any]]], "list[DataFile]"]
"""Makes the files from one number up to another, with the partition values of each."""


class FileStore(Protocol):
    """What a table knows of its files, by their numbers, without an object for each."""

    @property
    def first_of_kinds(self) -> Sequence[int]:
        """The first file of each kind: files of a kind have one schema, key-value metadata and writer."""

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each footer, as far as footers are known."""

    def read_bounds(self, numbers: Sequence[int], column: str, dtype: pa.DataType) -> Bounds:
        """The bounds of a column in some files, as :func:`intarsia.core.prune.read_bounds` gives them."""


class FileTuple(tuple["DataFile", ...]):
    """The files of a snapshot, where they are few."""

    __slots__ = ()

    @property
    def paths(self) -> pa.StringArray:
        return make_array([file.path for file in self], pa.string())

    @property
    def total_rows(self) -> int:
        return sum(file.rows for file in self)

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self)

    @property
    def footer_bytes(self) -> int:
        """The size of all footers, as far as they are known."""
        return sum(file.footer.serialized_size for file in self if file.footer is not None)

    def with_known(self, files: Iterable[DataFile]) -> FileTuple:
        """The same files, of some of which more is known: their footers, and exact numbers of rows."""
        known = {file.path: file for file in files}
        return FileTuple(known.get(file.path, file) for file in self)

    def list_kinds(self) -> Sequence[DataFile]:
        """At least one file of each schema, key-value metadata and writer, in order."""
        return self

    def list_models(self) -> Iterable[DataFile]:
        """Files whose footer, where it is known, tells what new ones are to be like."""
        return self

    def list_partitions(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """The path of a file and its partition values, at least once for each directory."""
        return ((file.path, file.partition) for file in self)

    def map_partitions(self, read: Callable[[str], Mapping[str, Any]]) -> FileTuple:
        """The same files with the partition values that ``read`` finds in their paths."""
        return FileTuple(replace(file, partition=read(file.path)) for file in self)

    def group_directories(self) -> Iterable[tuple[str, Mapping[str, Any], int]]:
        """Each directory with its partition values and its rows, in the order of its first file."""
        found: dict[str, tuple[Mapping[str, Any], int]] = {}
        for file in self:
            directory = file.path.rpartition("/")[0]
            values, rows = found.get(directory, (file.partition, 0))
            found[directory] = values, rows + file.rows
        return ((directory, *rest) for directory, rest in found.items())


class FileTable(Sequence["DataFile"]):
    """The files of a snapshot, where they are many: as columns. A file is made whenever it is asked for.

    Has what :class:`FileTuple` has. Memory: about 100 bytes per file. Pickled, it becomes a tuple.
    """

    __slots__ = ("_make", "directories", "known", "numbers", "partitions", "paths", "rows", "sizes", "store")

    def __init__(
        self,
        make: MakeFiles,
        *,
        paths: pa.StringArray,
        sizes: pa.Int64Array,
        rows: pa.Int64Array,
        directories: Sequence[str],
        partitions: Sequence[Mapping[str, Any]],
        numbers: pa.Int32Array | None,
        store: FileStore,
        known: Mapping[int, DataFile] | None = None,
    ) -> None:
        self._make = make
        self.paths = paths
        self.sizes = sizes
        self.rows = rows
        self.directories = directories
        """Those that hold files, in the order of the first file of each."""
        self.partitions = partitions
        """The partition values of each directory."""
        self.numbers = numbers
        """By file the number of its directory; None where there is one only."""
        self.store = store
        self.known = known or {}
        """By number the files of which more is known than columns tell, such as their footers."""

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, place: int) -> DataFile: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[DataFile, ...]: ...
    def __getitem__(self, place: int | slice) -> DataFile | tuple[DataFile, ...]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step == 1:
                return tuple(self._make_range(start, max(start, stop)))
            return tuple(self[number] for number in range(start, stop, step))
        number = place + len(self) if place < 0 else place
        if not 0 <= number < len(self):
            raise IndexError(place)
        return self._make_range(number, number + 1)[0]

    def __iter__(self) -> Iterator[DataFile]:
        for start in range(0, len(self), _CHUNK):
            yield from self._make_range(start, min(start + _CHUNK, len(self)))

    def _make_range(self, start: int, stop: int) -> list[DataFile]:
        if self.numbers is None:
            places = [self.partitions[0]] * (stop - start)
        else:
            places = [
                self.partitions[number] for number in self.numbers.slice(start, stop - start).to_pylist()
            ]
        made = self._make(start, stop, places)
        if self.known:
            return [self.known.get(number, file) for number, file in enumerate(made, start)]
        return made

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, (FileTable, tuple)) or len(self) != len(other):
            return NotImplemented if not isinstance(other, (FileTable, tuple)) else False
        return all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return FileTuple, (list(self),)

    def __repr__(self) -> str:
        return f"<{len(self):,} files>"

    def get_directory_number(self, number: int) -> int:
        """The number of the directory that a file is in."""
        return 0 if self.numbers is None else int(self.numbers[number].as_py())

    def map_partitions(self, read: Callable[[str], Mapping[str, Any]]) -> FileTable:
        """The same files with the partition values that ``read`` finds in a path of their directory."""
        return FileTable(
            self._make,
            paths=self.paths,
            sizes=self.sizes,
            rows=self.rows,
            directories=self.directories,
            partitions=[read(path) for path in self._list_samples()],
            numbers=self.numbers,
            store=self.store,
        )

    def with_known(self, files: Iterable[DataFile]) -> FileTable:
        """The same files, of some of which more is known: their footers, and exact numbers of rows."""
        given = {file.path: file for file in files}
        known = {**self.known}
        for number in self.find_numbers(given):
            known[number] = given[self.paths[number].as_py()]
        rows = self.rows
        if any(rows[number].as_py() != file.rows for number, file in known.items()):
            counted = rows.to_pylist()
            for number, file in known.items():
                counted[number] = file.rows
            rows = pa.array(counted, pa.int64())
        return FileTable(
            self._make,
            paths=self.paths,
            sizes=self.sizes,
            rows=rows,
            directories=self.directories,
            partitions=self.partitions,
            numbers=self.numbers,
            store=self.store,
            known=dict(sorted(known.items())),
        )

    @property
    def total_rows(self) -> int:
        return int(pc.sum(self.rows).as_py())

    @property
    def total_bytes(self) -> int:
        return int(pc.sum(self.sizes).as_py())

    @property
    def footer_bytes(self) -> int:
        """The size of all footers, as far as they are known."""
        known = (file.footer for file in self.known.values())
        return sum(self.store.sizes) + sum(one.serialized_size for one in known if one is not None)

    def list_kinds(self) -> Sequence[DataFile]:
        """At least one file of each schema, key-value metadata and writer, in order."""
        return [self[number] for number in self.store.first_of_kinds]

    def list_models(self) -> Iterable[DataFile]:
        """Files whose footer, where it is known, tells what new ones are to be like."""
        return [*self[:1], *self.known.values()]  # others are as the first

    def list_partitions(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """The path of a file and its partition values, once for each directory."""
        return zip(self._list_samples(), self.partitions, strict=True)

    def group_directories(self) -> Iterable[tuple[str, Mapping[str, Any], int]]:
        """Each directory with its partition values and its rows, in the order of its first file."""
        return zip(self.directories, self.partitions, self._count_by_directory(), strict=True)

    def _list_samples(self) -> list[str]:
        """The path of a file of each directory, the first."""
        if self.numbers is None:
            return [self.paths[0].as_py()]
        every = pa.array(range(len(self.directories)), pa.int32())
        return list(self.paths.take(pc.index_in(every, value_set=self.numbers)).to_pylist())

    def _count_by_directory(self) -> list[int]:
        if self.numbers is None:
            return [self.total_rows]
        table = pa.table({"number": self.numbers, "rows": self.rows})
        found = table.group_by("number").aggregate([("rows", "sum")])
        rows = dict(zip(found["number"].to_pylist(), found["rows_sum"].to_pylist(), strict=True))
        return [rows[number] for number in range(len(self.directories))]

    def find_numbers(self, paths: Iterable[str]) -> list[int]:
        """The numbers of the files at these paths, as far as they are here, ascending."""
        # Those that are asked for are mostly few: a table of them takes no memory, one of all files does.
        found = pc.is_in(self.paths, value_set=make_array(list(paths), pa.string()))
        numbers: list[int] = pc.indices_nonzero(found).to_pylist()
        return numbers


Files = FileTuple | FileTable
"""The files of a snapshot."""


def find_unknown(paths: Sequence[str] | pa.StringArray, files: Files) -> list[str]:
    """Those of some paths that no file has, sorted."""
    wanted = paths if isinstance(paths, pa.Array) else make_array(paths, pa.string())
    return sorted(set(wanted.filter(pc.invert(pc.is_in(wanted, value_set=files.paths))).to_pylist()))
