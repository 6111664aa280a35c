"""Files and row groups that may hold a key: by partition, then by bounds; unknown always means maybe.

A bound of a column in a row group is given only where it is proven to hold. It is left out (NULL) where the
footer has none, where its type's order is not one we trust, or where a writer may have cut it off (long
strings). Nothing here reads a file. Predicates are judged in :mod:`intarsia.core.prove`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.common.python_values import make_array, make_scalar
from intarsia.common.radix import sort_integers, view_integers
from intarsia.common.types import get_value_type
from intarsia.core.file_table import FileTable
from intarsia.core.keys import KeyIndex, decode_dictionary, search, to_array, to_comparable
from intarsia.core.lazy_footer import find_store
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.errors import DamagedTable

_LONGEST_EXACT_BOUND = 31
"""Writers cut longer strings (at 64 bytes or less), and footers do not say whether one did."""

_ABSENT, _NESTED = -1, -2
_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


@dataclass(frozen=True, slots=True)
class Bounds:
    """One entry per row group, files in the order given.

    ``lower`` and ``upper`` have the comparable form of the dataset's type. Bounds of floats leave NaN
    out: a row group may hold NaN whatever they say.
    """

    file: pa.Int32Array
    row_group: pa.Int32Array
    rows: pa.Int64Array
    lower: pa.Array
    upper: pa.Array
    null_count: pa.Int64Array
    """NULL where it is not known."""


def read_bounds(files: Sequence[DataFile], column: str, dtype: pa.DataType) -> Bounds:
    """The bounds of a top-level column whose type in the dataset is ``dtype``."""
    if isinstance(files, FileTable):
        return _read_many_bounds(files, column, dtype)
    store = find_store(files)
    if store is not None:
        return store.read_bounds([file.footer.number for file in files], column, dtype)  # type: ignore[union-attr]
    found = _BoundsBuilder()
    leaf: Any = None
    reading: _BoundReader | None = None
    position = 0
    for number, file in enumerate(files):
        footer = file.footer
        if footer is None:
            found.add(number, 0, file.record_count, *_read_table_bounds(file, column, dtype))
            continue
        position = _find_file_leaf(file, footer, column, max(position, 0))
        if position >= 0:
            # A column has the same type in most files, and choosing a reader costs far more than comparing.
            before, leaf = leaf, footer.schema.column(position)
            if before is None or not leaf.equals(before):
                reading = _choose_reader(leaf, dtype)
        for group in range(footer.num_row_groups):
            meta = footer.row_group(group)
            rows = meta.num_rows
            stats = meta.column(position).statistics if position >= 0 else None
            if stats is not None:
                low, high = reading.read(stats) if reading is not None else (None, None)
                found.add(number, group, rows, low, high, stats.null_count, reading)
            else:
                # A file that lacks the column reads as NULL throughout; of a nested one nothing is known.
                found.add(number, group, rows, nulls=rows if position == _ABSENT else None)
    return found.build(dtype)


def _read_many_bounds(files: FileTable, column: str, dtype: pa.DataType) -> Bounds:
    """The bounds that columns tell, and those in the footers of files of which these are known."""
    every = files.store.read_bounds(range(len(files)), column, dtype)
    if not files.known:
        return every
    better = read_bounds(list(files.known.values()), column, dtype)
    if better.lower.type != every.lower.type:
        return read_bounds(list(files), column, dtype)
    numbers = pa.array(list(files.known), pa.int32())
    left = pc.invert(pc.is_in(every.file, value_set=numbers))
    better = replace(better, file=numbers.take(better.file))
    joined = [
        pa.concat_arrays([getattr(every, name).filter(left), getattr(better, name)])
        for name in Bounds.__dataclass_fields__
    ]
    table = pa.Table.from_arrays(joined, names=list(Bounds.__dataclass_fields__))
    ordered = table.sort_by([("file", "ascending"), ("row_group", "ascending")]).combine_chunks()
    return Bounds(*(ordered[name].combine_chunks() for name in Bounds.__dataclass_fields__))


def make_file_bounds(found: Iterable[tuple[int, Any, Any, int | None]], dtype: pa.DataType) -> Bounds:
    """Bounds of whole files, as a table itself knows them: of each its rows, both bounds, and its NULLs."""
    built, reading = _BoundsBuilder(), _BoundReader(get_value_type(dtype), raw=True)
    for number, (rows, low, high, nulls) in enumerate(found):
        built.add(number, 0, rows, low, high, nulls, reading)
    return built.build(dtype)


def _read_table_bounds(
    file: DataFile, column: str, dtype: pa.DataType
) -> tuple[Any, Any, int | None, _BoundReader | None]:
    """What the table itself knows of a whole file."""
    if file.scan_task is None:
        return None, None, None, None
    low, high, nulls = file.scan_task.get_bounds(column)
    return low, high, nulls, _BoundReader(get_value_type(dtype), raw=True)


def _find_file_leaf(file: DataFile, footer: pq.FileMetaData, column: str, guess: int) -> int:
    if file.scan_task is None:
        return _find_leaf(footer, column, guess)
    position = file.scan_task.find_leaf(footer, column)
    return _NESTED if position is None else position  # a missing column may read as its default


class _BoundsBuilder:
    """Bounds as they are found, column by column."""

    def __init__(self) -> None:
        self.file: list[int] = []
        self.row_group: list[int] = []
        self.rows: list[int] = []
        self.lower: list[Any] = []
        self.upper: list[Any] = []
        self.null_count: list[int | None] = []
        self.readings: list[_BoundReader | None] = []

    def add(
        self,
        file: int,
        row_group: int,
        rows: int,
        lower: Any = None,
        upper: Any = None,
        nulls: int | None = None,
        reading: _BoundReader | None = None,
    ) -> None:
        self.file.append(file)
        self.row_group.append(row_group)
        self.rows.append(rows)
        self.lower.append(lower)
        self.upper.append(upper)
        self.null_count.append(nulls)
        self.readings.append(reading)

    def build(self, dtype: pa.DataType) -> Bounds:
        return Bounds(
            make_array(self.file, pa.int32()),
            make_array(self.row_group, pa.int32()),
            make_array(self.rows, pa.int64()),
            _convert_all(self.lower, self.readings, dtype),
            _convert_all(self.upper, self.readings, dtype),
            make_array(self.null_count, pa.int64()),
        )


def _find_leaf(footer: pq.FileMetaData, column: str, guess: int) -> int:
    """The leaf number of a flat top-level column, or _ABSENT or _NESTED; files mostly agree."""
    schema = footer.schema
    if guess < len(schema) and _is_flat(schema.column(guess), column):
        return guess
    for number in range(len(schema)):
        path = schema.column(number).path
        if _is_flat(schema.column(number), column):
            return number
        if path.startswith(f"{column}."):
            return _NESTED
    return _ABSENT


def _is_flat(leaf: pq.ColumnSchema, column: str) -> bool:
    """Whether a leaf is the column itself: a field ``b`` of a struct ``a`` has the path ``a.b``, too."""
    return bool(leaf.name == column and leaf.path == column)


@dataclass(frozen=True, slots=True)
class _BoundReader:
    """How the statistics of one physical column become values of the dataset's type."""

    stored: pa.DataType
    raw: bool

    def read(self, stats: pq.Statistics | None) -> tuple[Any, Any]:
        if stats is None or not stats.has_min_max:
            return None, None
        low, high = (stats.min_raw, stats.max_raw) if self.raw else (stats.min, stats.max)
        if isinstance(low, int):
            return low, high
        if isinstance(low, float) and (low != low or high != high):
            return None, None
        return (None if _is_cut(low) else low), (None if _is_cut(high) else high)


def _is_cut(value: Any) -> bool:
    if isinstance(value, str):
        return len(value.encode()) > _LONGEST_EXACT_BOUND
    return isinstance(value, bytes) and len(value) > _LONGEST_EXACT_BOUND


def _choose_reader(column: pq.ColumnSchema, dtype: pa.DataType) -> _BoundReader | None:
    """None when the column's statistics cannot be trusted for this type."""
    if pa.types.is_dictionary(dtype):
        dtype = dtype.value_type
    logical = json.loads(column.logical_type.to_json()) if column.logical_type.type != "NONE" else {}
    physical, name = column.physical_type, logical.get("Type")
    if pa.types.is_timestamp(dtype) or pa.types.is_time(dtype):
        unit = _UNITS.get(logical.get("timeUnit", ""))
        if unit is None or physical not in ("INT32", "INT64"):
            return None
        if pa.types.is_timestamp(dtype):
            return _BoundReader(pa.timestamp(unit, dtype.tz), raw=True) if name == "Timestamp" else None
        return _BoundReader(pa.time32("ms") if unit == "ms" else pa.time64(unit), raw=True)
    if pa.types.is_date(dtype):
        return _BoundReader(pa.date32(), raw=True) if name == "Date" else None
    if pa.types.is_duration(dtype):
        return _BoundReader(dtype, raw=True) if physical == "INT64" and name is None else None
    if pa.types.is_decimal(dtype):
        if name != "Decimal":
            return None
        return _BoundReader(pa.decimal256(max(column.precision, 1), column.scale), raw=False)
    if pa.types.is_boolean(dtype):
        return _BoundReader(dtype, raw=False) if physical == "BOOLEAN" else None
    if pa.types.is_integer(dtype):
        if physical not in ("INT32", "INT64") or name not in (None, "Int"):
            return None
        signed = logical.get("isSigned", True)  # an unsigned bound is a signed one physically
        return _BoundReader(pa.int64(), raw=True) if signed else _BoundReader(pa.uint64(), raw=False)
    if pa.types.is_float32(dtype) or pa.types.is_float64(dtype):
        if physical in ("FLOAT", "DOUBLE"):
            return _BoundReader(pa.float64(), raw=False)
        return _BoundReader(pa.int64(), raw=False) if physical == "INT32" and name in (None, "Int") else None
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype):
        return _BoundReader(pa.string(), raw=False) if name == "String" else None
    if pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype) or pa.types.is_binary_view(dtype):
        return _BoundReader(pa.binary(), raw=False) if physical == "BYTE_ARRAY" and name is None else None
    if pa.types.is_fixed_size_binary(dtype):
        return _BoundReader(pa.binary(), raw=False) if name is None else None
    return None


def _convert_all(values: list[Any], readings: list[_BoundReader | None], dtype: pa.DataType) -> pa.Array:
    """The values in the comparable form of the dataset's type; NULL where one cannot be converted."""
    if pa.types.is_dictionary(dtype):
        dtype = dtype.value_type
    if pa.types.is_nested(dtype) or pa.types.is_null(dtype) or pa.types.is_float16(dtype):
        return pa.nulls(len(values), pa.int64())
    stored = {reading.stored for reading in {id(r): r for r in readings}.values() if reading is not None}
    if len(stored) == 1:
        return _convert(values, stored.pop(), dtype)
    pieces = []
    for of in stored:
        mine = [
            v if r is not None and r.stored == of else None for v, r in zip(values, readings, strict=True)
        ]
        pieces.append(_convert(mine, of, dtype))
    empty = pa.nulls(len(values), _find_comparable_type(dtype))
    if not pieces:
        return empty
    result = pieces[0]
    for piece in pieces[1:]:
        result = pa.compute.coalesce(result, piece)
    return result


def _convert(values: list[Any], stored: pa.DataType, dtype: pa.DataType) -> pa.Array:
    try:
        if pa.types.is_time(stored) or pa.types.is_timestamp(stored) or pa.types.is_date32(stored):
            width = pa.int32() if stored.bit_width == 32 else pa.int64()
            column = make_array(values, width).cast(stored)
        elif pa.types.is_duration(stored):
            column = make_array(values, pa.int64()).cast(stored)
        else:
            column = make_array(values, stored)
        return to_comparable(column.cast(dtype)).combine_chunks()
    except pa.ArrowInvalid:  # a bound outside of the dataset's type proves nothing
        return pa.nulls(len(values), _find_comparable_type(dtype))


def _find_comparable_type(dtype: pa.DataType) -> pa.DataType:
    return to_comparable(pa.nulls(0, dtype)).type


# Keys of the source


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The values of one key column on the source side, sorted."""

    values: pa.Array
    """Ascending, comparable; without NULL and NaN."""
    has_null: bool
    has_nan: bool
    span: bool = False
    """True when the values are only the ends of a range that may hold any value between them."""

    @staticmethod
    def of_index(index: KeyIndex, number: int, column: Any) -> KeyRange:
        """The same from an index over the key, whose values are sorted or distinct already."""
        ordered = index.sort() if index.single else None
        if ordered is not None:
            return KeyRange(ordered.values, has_null=False, has_nan=False)
        known = KeyRange.of(index.list_distinct(number))
        return replace(known, has_null=column.null_count > 0)

    @staticmethod
    def of(column: Any) -> KeyRange:
        values = to_array(decode_dictionary(to_comparable(column)))
        has_null = values.null_count > 0
        values = values.drop_null()
        has_nan = False
        if pa.types.is_floating(values.type):
            nan = pc.is_nan(values)
            has_nan = bool(pc.any(nan).as_py())
            values = values.filter(pc.invert(nan))
        if view_integers(values) is not None:  # sooner sorted than hashed
            return KeyRange(_drop_repeats(values.take(sort_integers(values))), has_null, has_nan)
        values = pc.unique(values)
        return KeyRange(values.take(pc.array_sort_indices(values)), has_null, has_nan)

    def meets(self, bounds: Bounds, *, null_match: bool) -> pa.BooleanArray:
        """Per row group: may it hold one of these values?"""
        if self.has_nan or len(bounds.lower) == 0 or bounds.lower.type != self.values.type:
            return make_array([True] * len(bounds.file), pa.bool_())
        inside = self._overlaps(bounds) if self.span else self._holds(bounds)
        # All values NULL: there are no bounds, and no value either.
        all_null = pc.fill_null(pc.equal(bounds.null_count, bounds.rows), make_scalar(False))
        inside = pc.and_(inside, pc.invert(all_null))
        if null_match and self.has_null:
            inside = pc.or_(
                inside, pc.fill_null(pc.greater(bounds.null_count, make_scalar(0)), make_scalar(True))
            )
        return inside

    def _holds(self, bounds: Bounds) -> pa.BooleanArray:
        first = search(self.values, bounds.lower, side="left")
        last = search(self.values, bounds.upper, side="right")
        return pc.fill_null(pc.greater(last, first), make_scalar(True))

    def _overlaps(self, bounds: Bounds) -> pa.BooleanArray:
        if not len(self.values):
            return make_array([False] * len(bounds.file), pa.bool_())
        ends = [self.values[0], self.values[len(self.values) - 1]]
        above = pc.greater_equal(bounds.upper, ends[0])
        below = pc.less_equal(bounds.lower, ends[1])
        return pc.and_(pc.fill_null(above, make_scalar(True)), pc.fill_null(below, make_scalar(True)))


def _drop_repeats(ordered: pa.Array) -> pa.Array:
    """The distinct values of those in order."""
    rest = ordered.slice(1)
    first = pc.not_equal(rest, ordered.slice(0, len(rest)))
    return pa.concat_arrays([ordered.slice(0, 1), rest.filter(first)])


_MANY_FILES = 10_000
"""From so many on, memory that comparing their bounds took is given back."""


def find_candidates(
    files: Sequence[DataFile],
    schema: pa.Schema,
    ranges: Mapping[str, KeyRange],
    *,
    null_match: bool = False,
) -> dict[int, tuple[int, ...]]:
    """By number of a file the row groups that no key column's bounds exclude; files without any left out."""
    if not files:
        return {}
    verdict: pa.BooleanArray | None = None
    bounds: Bounds | None = None
    for name, values in ranges.items():
        bounds = read_bounds(files, name, schema.field(name).type)
        meets = values.meets(bounds, null_match=null_match)
        verdict = meets if verdict is None else pc.and_(verdict, meets)
    if verdict is None or bounds is None:
        every = ((number, list_row_groups(file)) for number, file in enumerate(files))
        return {number: groups for number, groups in every if groups}
    filled = pc.greater(bounds.rows, make_scalar(0))
    chosen = pc.and_(verdict, filled)
    numbers = bounds.file.filter(chosen).to_pylist()
    groups = bounds.row_group.filter(chosen).to_pylist()
    found: dict[int, list[int]] = {}  # most files hold no key
    for number, group in zip(numbers, groups, strict=True):
        found.setdefault(number, []).append(group)
    if len(files) >= _MANY_FILES:
        del verdict, filled, chosen
        pa.default_memory_pool().release_unused()
    return {number: tuple(mine) for number, mine in found.items()}


def list_row_groups(file: DataFile) -> tuple[int, ...]:
    """The numbers of a file's row groups; one whose footer is not known counts as having one."""
    return tuple(range(file.footer.num_row_groups if file.footer is not None else 1))


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """The partitions that source rows belong to."""

    columns: tuple[str, ...]
    index: KeyIndex | None = field(repr=False, default=None)
    schema: pa.Schema | None = None

    @staticmethod
    def of(table: pa.Table, columns: Sequence[str]) -> PartitionSet:
        distinct = table.select(list(columns))
        return PartitionSet(
            tuple(columns),
            KeyIndex([distinct[name] for name in columns], null_match=True) if columns else None,
            distinct.schema,
        )

    def find_rows(self, files: Sequence[DataFile]) -> list[int | None]:
        """For each file a source row of the same partition, as :meth:`find_partitions` gives them."""
        return self.find_partitions([file.partition for file in files])

    def find_partitions(self, partitions: Sequence[Mapping[str, Any]]) -> list[int | None]:
        """For each partition of files a source row of the same one; None when there is none.

        One that is not fully known answers -1.
        """
        if self.index is None or self.schema is None:
            return [-1] * len(partitions)
        known = [all(name in values for name in self.columns) for values in partitions]
        columns = [
            make_array(
                [values.get(name) for values in partitions], get_value_type(self.schema.field(name).type)
            )
            for name in self.columns
        ]
        found = self.index.lookup(columns).to_pylist() if partitions else []
        return [row if sure else -1 for row, sure in zip(found, known, strict=True)]


def count_scan_bytes(
    snapshot: Snapshot, file: DataFile, columns: Sequence[str], groups: Sequence[int]
) -> int:
    """The compressed bytes of some columns in some row groups of a file."""
    footer = file.footer
    if footer is None:
        return file.size
    wanted = set(columns)
    total = 0
    for group in groups:
        meta = footer.row_group(group)
        for number in range(meta.num_columns):
            chunk = meta.column(number)
            try:
                mine = chunk.path_in_schema.split(".", 1)[0] in wanted
            except UnicodeDecodeError as error:
                raise DamagedTable(
                    f"The footer of {snapshot.show_path(file)} is damaged: {error}",
                    path=snapshot.show_path(file),
                ) from error
            if mine:
                total += chunk.total_compressed_size
    return total
