"""The footers of a dataset's files, each read once: counts, kinds, and bounds of columns asked for.

What is known of unchanged files comes from an earlier store, of this process or of the cache
(:mod:`intarsia.tables.parquet.footer_cache`); that one's format and the rules of trust are not in here.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.core.file_table import FileTable
from intarsia.core.lazy_footer import LazyFooter, find_store
from intarsia.core.ports import Distribute
from intarsia.core.prune import Bounds, read_bounds
from intarsia.core.snapshot import DataFile
from intarsia.errors import CommitConflict, DamagedTable
from intarsia.storage import Storage
from intarsia.tables.parquet.entries import KEY_SCHEMA, Located, LocatedFiles
from intarsia.tables.parquet.footers import Footer, parse_footer, read_listed_footers
from intarsia.tables.parquet.remote_footers import (
    JOB_FILES,
    REMOTE_FOOTERS,
    ListedFile,
    count_remotely,
    read_bounds_remotely,
)

_PARSED = 10_000
"""Footers that are kept parsed, which takes some ten times the memory of their bytes."""
_CHUNK = 1024
_TRUSTED = 1 << 62
"""The time of listing of what the cache tells: it tells of files only that may be trusted for ever."""

T = TypeVar("T")
COUNT_SCHEMA = pa.schema(
    [("rows", pa.int64()), ("row_groups", pa.int32()), ("footer_size", pa.int32()), ("kind", pa.int32())]
)


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """The bounds of one column, sorted by file and row group."""

    dtype: pa.DataType
    """Of the dataset's column: bounds are in its comparable form."""
    table: pa.Table
    missing: frozenset[int] = frozenset()
    """Files whose bounds are not known."""


@dataclass(frozen=True, slots=True)
class KnownFooters:
    """What is known of files' footers: ``keys`` tell the files apart, ``counts`` have a row for each."""

    keys: pa.Table
    counts: pa.Table
    models: Sequence[Footer]
    """A footer of each kind: files of a kind have the same schema, key-value metadata and writer."""
    bounds: dict[str, ColumnBounds] = field(default_factory=dict)
    fingerprint: tuple[int, int, int | str | None] | None = None
    """Of the cache that tells it."""

    def find(self, keys: pa.Table, *, strict: bool) -> pa.Int32Array:
        """For each file its number in here, NULL for one that is not here or has changed since.

        Args:
            keys: those of the files.
            strict: whether a file of which the store does not tell when it changed counts as changed.
        """
        place = pc.index_in(keys["path"].combine_chunks(), value_set=self.keys["path"].combine_chunks())
        same = pc.is_valid(place)
        for name in KEY_SCHEMA.names[1:]:
            one, other = keys[name].combine_chunks(), self.keys[name].combine_chunks().take(place)
            equal = pc.fill_null(pc.equal(one, other), False)
            if not strict:
                equal = pc.or_(equal, pc.and_(pc.is_null(one), pc.is_null(other)))
            same = pc.and_(same, equal)
        return pc.if_else(same, place, pa.scalar(None, pa.int32()))


class ParquetFooterStore:
    """The footers of these files; see :class:`intarsia.core.lazy_footer.FooterStore`.

    Memory: about 100 bytes per file, and the footers that were read now: parsed up to 10,000 files, else
    their bytes.
    """

    def __init__(
        self,
        storage: Storage,
        files: Sequence[Located],
        *,
        listed_ns: int = 0,
        former: KnownFooters | None = None,
        before: ParquetFooterStore | None = None,
        find_executors: Callable[[], Distribute | None] = lambda: None,
    ) -> None:
        """Raises as :func:`~intarsia.tables.parquet.footers.read_footers` does.

        Args:
            listed_ns: when the files were listed, or earlier.
            former: what the cache tells of files.
            before: an earlier store of this process, which has read footers.
            find_executors: finds what runs functions on executors as long as there are some: these read
                footers where they are many.
        """
        self.files = LocatedFiles.of(files)
        count = len(files)
        self.listed_ns = array("q", [listed_ns]) * count
        """By file: when it was listed before its footer was read."""
        self.keys = self.files.entries.make_keys()
        self.models: list[Footer] = []
        self.bounds: dict[str, ColumnBounds] = {}
        self.saved_columns: frozenset[str] = frozenset() if former is None else frozenset(former.bounds)
        """Columns whose bounds are in the cache."""
        self.cached: pa.Array = pa.array([], pa.string())
        """The files that the cache tells of."""
        self.outdated = False
        """Whether one of them is not there any more, or has changed since."""
        self.fingerprint = None if former is None else former.fingerprint
        """Of the cache as it was read or written last; None where it was not."""
        self._storage = storage
        self._find_executors = find_executors
        self._kinds_by_key: dict[tuple[object, ...], int] = {}
        self._parsed: dict[int, pq.FileMetaData] = {}
        self._raw: dict[int, bytes] = {}
        self._ahead, self._next = 1, -1
        if before is not None:
            former, self.saved_columns = before.known, before.saved_columns
            self.fingerprint = before.fingerprint
        places = pa.nulls(count, pa.int32())
        if former is not None:
            places = former.find(self.keys, strict=before is None)
            self.listed_ns = _find_listed(places, listed_ns, None if before is None else before.listed_ns)
            self.cached = former.keys["path"].combine_chunks() if before is None else before.cached
            here = self.keys["path"].filter(pc.is_valid(places))
            left = pc.all(pc.is_in(self.cached, value_set=here.combine_chunks()))
            self.outdated = (before is not None and before.outdated) or not left.as_py()
            self._take_counts(former, places)
            self._take_bounds(former, places)
        else:
            self.rows = array("q", [0]) * count
            self.row_groups, self.sizes, self.kinds = (array("i", [0]) * count for _ in range(3))
        if before is not None:
            self._parsed = _renumber(before._parsed, places)
            self._raw = _renumber(before._raw, places)
        unknown = pc.indices_nonzero(pc.is_null(places)).to_pylist()
        self.unread: int = len(unknown) + (0 if before is None else before.unread)
        """How many files the cache told nothing of."""
        if len(unknown) >= REMOTE_FOOTERS and (distribute := find_executors()) is not None:
            unknown = self._count_remotely(distribute, unknown)
        for start in range(0, len(unknown), _CHUNK):
            self._read(unknown[start : start + _CHUNK])

    @property
    def known(self) -> KnownFooters:
        columns = (self.rows, self.row_groups, self.sizes, self.kinds)
        arrays = [_to_arrow(values, one.type) for values, one in zip(columns, COUNT_SCHEMA, strict=True)]
        counts = pa.Table.from_arrays(arrays, schema=COUNT_SCHEMA)
        return KnownFooters(self.keys, counts, self.models, self.bounds)

    @property
    def listed(self) -> pa.Int64Array:
        """By file: when it was listed before its footer was read."""
        return _to_arrow(self.listed_ns, pa.int64())

    def count_rows(self) -> pa.Int64Array:
        """The rows of each file."""
        return _to_arrow(self.rows, pa.int64())

    def forget_cache(self) -> None:
        """There is no cache any more."""
        self.unread, self.saved_columns, self.fingerprint = len(self.files), frozenset(), None
        self.cached, self.outdated = pa.array([], pa.string()), False

    @property
    def first_of_kinds(self) -> list[int]:
        """The first file of each kind, ascending."""
        kinds = _to_arrow(self.kinds, pa.int32())
        return list(pc.index_in(pc.unique(kinds), value_set=kinds).to_pylist())

    @property
    def models_in_order(self) -> list[Footer]:
        """A footer of each kind, in the order of the first file of each."""
        return [self.models[self.kinds[number]] for number in self.first_of_kinds]

    @property
    def fingerprints(self) -> list[tuple[int, int, int | str | None]]:
        return [entry.fingerprint for entry, _ in self.files]

    @property
    def footers(self) -> list[LazyFooter]:
        return [LazyFooter(self, number) for number in range(len(self.files))]

    def get_model(self, number: int) -> pq.FileMetaData:
        return self.models[self.kinds[number]].metadata

    def load(self, numbers: Sequence[int]) -> list[pq.FileMetaData]:
        self._read_unchanged([number for number in numbers if not self._has(number)])
        return [self._get(number) for number in numbers]

    def load_one(self, number: int) -> pq.FileMetaData:
        """A footer; where one after the other is asked for, more are read ahead, in parallel if it pays."""
        if not self._has(number):
            count = self._ahead * 2 if number == self._next else 1
            ahead = range(number, min(number + count, len(self.files)))
            self._read_unchanged([one for one in ahead if not self._has(one)])
            self._ahead, self._next = min(count, _CHUNK // 2), ahead.stop
        return self._get(number)

    def _has(self, number: int) -> bool:
        return number in self._parsed or number in self._raw

    def _get(self, number: int) -> pq.FileMetaData:
        found = self._parsed.get(number)
        return parse_footer(self._raw[number]).metadata if found is None else found

    def _keep(self, number: int, footer: Footer) -> None:
        if len(self._parsed) < _PARSED and len(self.files) <= _PARSED:
            self._parsed[number] = footer.metadata
        else:
            self._raw[number] = footer.raw

    def read_bounds(self, numbers: Sequence[int], column: str, dtype: pa.DataType) -> Bounds:
        every = range(len(self.files))
        known = self.bounds.get(column)
        if known is None or not known.dtype.equals(dtype):
            known = ColumnBounds(dtype, _as_table(read_bounds([], column, dtype)), frozenset(every))
        wanted = sorted(known.missing if len(numbers) == len(every) else known.missing.intersection(numbers))
        if wanted:
            pieces = [known.table]
            left = wanted
            if len(wanted) >= REMOTE_FOOTERS and (distribute := self._find_executors()) is not None:
                read, left = self._read_bounds_remotely(distribute, wanted, column, dtype)
                pieces += read
            for start in range(0, len(left), _CHUNK):
                part = left[start : start + _CHUNK]
                stubs = [DataFile("", "", 0, 0, footer=footer) for footer in self.load(part)]
                pieces.append(_with_files(_as_table(read_bounds(stubs, column, dtype)), part))
            table = _sort(pa.concat_tables(pieces))
            known = ColumnBounds(dtype, table.combine_chunks(), known.missing.difference(wanted))
            self.bounds[column] = known
        return _select(known.table, numbers, len(every))

    def _read_bounds_remotely(
        self, distribute: Distribute, numbers: Sequence[int], column: str, dtype: pa.DataType
    ) -> tuple[list[pa.Table], list[int]]:
        """Bounds that executors read, and the files that were not as they were listed."""
        located = ((number, *self.files[number]) for number in numbers)
        files = [ListedFile(place, entry.fingerprint, self.rows[number]) for number, entry, place in located]
        pieces, left, numbered = [], [], iter(numbers)
        for bounds, failed in read_bounds_remotely(distribute, self._storage, files, column, dtype):
            mine = list(itertools.islice(numbered, JOB_FILES))
            table = _as_table(bounds)
            if failed:
                left += [mine[place] for place in failed]
                gone = pa.array(failed, pa.int32())
                table = table.filter(pc.invert(pc.is_in(table["file"], value_set=gone)))
            pieces.append(_with_files(table, mine))
        return pieces, left

    def _take_counts(self, former: KnownFooters, places: pa.Int32Array) -> None:
        taken = former.counts.take(places)
        self.rows = _from_arrow(taken["rows"], "q")
        self.row_groups, self.sizes = (
            _from_arrow(taken[name], "i") for name in ("row_groups", "footer_size")
        )
        known = pc.unique(taken["kind"]).drop_null()
        numbers = pa.array([self._number_kind(former.models[kind]) for kind in known.to_pylist()], pa.int32())
        self.kinds = _from_arrow(numbers.take(pc.index_in(taken["kind"], value_set=known)), "i")

    def _take_bounds(self, former: KnownFooters, places: pa.Int32Array) -> None:
        """Former bounds with the numbers that the files have now."""
        unknown = frozenset(pc.indices_nonzero(pc.is_null(places)).to_pylist())
        for column, bounds in former.bounds.items():
            file = pc.index_in(bounds.table["file"].combine_chunks(), value_set=places)
            table = bounds.table.set_column(0, "file", file)
            if file.null_count:
                table = table.filter(pc.is_valid(file))
            missing = unknown.union(_find_places(bounds.missing, places).values())
            self.bounds[column] = ColumnBounds(bounds.dtype, _sort(table).combine_chunks(), missing)

    def _read(self, numbers: Sequence[int]) -> None:
        read = read_listed_footers(self._storage, [self.files[number] for number in numbers])
        for number, footer in zip(numbers, read, strict=True):
            self.rows[number] = footer.num_rows
            self.row_groups[number] = footer.metadata.num_row_groups
            self.sizes[number] = footer.metadata.serialized_size
            self.kinds[number] = self._number_kind(footer)
            self._keep(number, footer)

    def _count_remotely(self, distribute: Distribute, numbers: Sequence[int]) -> list[int]:
        """Have executors read footers; the files that they could not read."""
        failed: list[int] = []
        left = iter(numbers)
        locations = [self.files[number][1] for number in numbers]
        for part in count_remotely(distribute, self._storage, locations):
            kinds = [self._number_kind(parse_footer(model)) for model in part.models]
            mine = list(itertools.islice(left, len(part.rows)))
            failed += [mine[place] for place in part.failed]
            for place, number in enumerate(mine):
                self.rows[number] = part.rows[place]
                self.row_groups[number] = part.row_groups[place]
                self.sizes[number] = part.sizes[place]
                self.kinds[number] = kinds[part.kinds[place]] if kinds else 0
        return failed

    def _number_kind(self, footer: Footer) -> int:
        kind = self._kinds_by_key.setdefault(footer.kind, len(self.models))
        if kind == len(self.models):
            self.models.append(footer)
        return kind

    def _read_unchanged(self, numbers: Sequence[int]) -> None:
        """Read the footers of files, each still the one that was listed."""
        if not numbers:
            return
        files = [self.files[number] for number in numbers]
        try:
            read = read_listed_footers(self._storage, files)
        except FileNotFoundError as error:
            raise _make_conflict(f"A file was removed since it was listed: {error}") from error
        for number, (entry, location), footer in zip(numbers, files, read, strict=True):
            if self._storage.atomic:
                now = self._storage.stat(location)
                if now is None or now.fingerprint != entry.fingerprint:
                    raise _make_conflict(f"{location} was replaced or removed since it was listed.")
            if footer.num_rows != self.rows[number]:
                raise DamagedTable(
                    f"{location} has {footer.num_rows} rows, the cache of footers says {self.rows[number]}.",
                    path=location,
                    hint="remove footers.cache from the control directory, which is made anew",
                )
            self._keep(number, footer)


def make_file_table(store: ParquetFooterStore) -> FileTable:
    """The files of a store, without partition values."""
    files, entries = store.files, store.files.entries
    directories, numbers = _find_directories(entries.paths)

    def make(start: int, stop: int, partitions: Sequence[Mapping[str, Any]]) -> list[DataFile]:
        return [
            DataFile(
                entry.path,
                files.locate(number, entry),
                entry.size,
                store.rows[number],
                partition,
                entry.fingerprint,
                LazyFooter(store, number),
            )
            for number, entry, partition in zip(
                range(start, stop), entries.make_range(start, stop), partitions, strict=True
            )
        ]

    return FileTable(
        make,
        paths=entries.paths,
        sizes=entries.sizes,
        rows=store.count_rows(),
        directories=directories,
        partitions=[{}] * len(directories),
        numbers=numbers,
        store=store,
    )


def _find_directories(paths: pa.StringArray) -> tuple[list[str], pa.Int32Array | None]:
    """The distinct directories of files, in order, and by file the number of its own; None: it is the one."""
    if not pc.any(pc.match_substring(paths, "/")).as_py():
        return [""], None
    found = pc.replace_substring_regex(paths, r"/?[^/]*$", "").dictionary_encode()
    directories = found.dictionary.to_pylist()
    return directories, found.indices if len(directories) > 1 else None


def move_footers(files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """Files whose footers are read from where the files are: of links, which outlast what they are of."""
    store = find_store(files)
    if not isinstance(store, ParquetFooterStore):
        return tuple(files)
    moved = copy(store)
    numbers = [file.footer.number for file in files]  # type: ignore[union-attr]
    places = {number: file.location for number, file in zip(numbers, files, strict=True)}
    moved.files = store.files.with_moved(places)
    pairs = zip(numbers, files, strict=True)
    return tuple(replace(file, footer=LazyFooter(moved, number)) for number, file in pairs)


def is_sorted(bounds: pa.Table) -> bool:
    """Whether bounds are by file and row group, each once."""
    file, group = (bounds[name].combine_chunks() for name in ("file", "row_group"))
    count = max(len(file) - 1, 0)
    later = pc.greater(file.slice(1), file.slice(0, count))
    same = pc.equal(file.slice(1), file.slice(0, count))
    grows = pc.greater(group.slice(1), group.slice(0, count))
    return bool(pc.all(pc.or_(later, pc.and_(same, grows)), skip_nulls=False).as_py())


def _sort(bounds: pa.Table) -> pa.Table:
    if is_sorted(bounds):  # as they are mostly
        return bounds
    return bounds.sort_by([("file", "ascending"), ("row_group", "ascending")])


def _make_conflict(message: str) -> CommitConflict:
    return CommitConflict(message, hint="nothing was changed; run the operation again")


def _find_places(numbers: Collection[int], places: pa.Int32Array) -> dict[int, int]:
    """By former number the number that a file has now, for those that are still there."""
    former = list(numbers)
    found = pc.index_in(pa.array(former, pa.int32()), value_set=places).to_pylist()
    return {old: new for old, new in zip(former, found, strict=True) if new is not None}


def _renumber(known: dict[int, T], places: pa.Int32Array) -> dict[int, T]:
    return {new: known[old] for old, new in _find_places(known, places).items()}


def _find_listed(places: pa.Int32Array, listed_ns: int, before: array[int] | None) -> array[int]:
    """When each file was listed before its footer was read: now, or by whoever knew it."""
    listed = pa.scalar(listed_ns, pa.int64())
    former = pa.scalar(_TRUSTED, pa.int64()) if before is None else _to_arrow(before, pa.int64()).take(places)
    return _from_arrow(pc.if_else(pc.is_valid(places), former, listed), "q")


def _from_arrow(column: pa.Array | pa.ChunkedArray, code: str) -> array[int]:
    """A column as an array that can be changed; 0 for NULL."""
    values = pc.fill_null(column, 0)
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    made = array(code)
    if len(values):
        width = made.itemsize
        made.frombytes(values.buffers()[1].slice(values.offset * width, len(values) * width))
    return made


def _to_arrow(values: array[int], dtype: pa.DataType) -> pa.Array:
    """A copy, since an array that is seen through a buffer cannot grow or change."""
    return pa.Array.from_buffers(dtype, len(values), [None, pa.py_buffer(values.tobytes())])


def _as_table(bounds: Bounds) -> pa.Table:
    columns = (bounds.file, bounds.row_group, bounds.rows, bounds.lower, bounds.upper, bounds.null_count)
    return pa.table(dict(zip(BOUND_NAMES, columns, strict=True)))


BOUND_NAMES = ("file", "row_group", "rows", "lower", "upper", "null_count")


def _with_files(table: pa.Table, numbers: Sequence[int]) -> pa.Table:
    return table.set_column(0, "file", pa.array(numbers, pa.int32()).take(table["file"]))


def _select(table: pa.Table, numbers: Sequence[int], count: int) -> Bounds:
    """The bounds of some files, numbered by their order here."""
    if numbers != range(count) and list(numbers) != list(range(count)):
        place = pc.index_in(table["file"].combine_chunks(), value_set=pa.array(numbers, pa.int32()))
        table = _sort(table.set_column(0, "file", place).filter(pc.is_valid(place)))
    return Bounds(*(table[name].combine_chunks() for name in BOUND_NAMES))
