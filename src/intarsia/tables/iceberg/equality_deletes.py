"""Equality deletes: rows of a data file that equal a row of a delete file.

The rules are those of the Iceberg spec, "Equality Delete Files".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.errors import DamagedTable, NotSupported
from intarsia.tables.iceberg.file_io import DeleteFileAccess, open_delete_file
from intarsia.tables.iceberg.manifests import ContentFile, ManifestEntry
from intarsia.tables.iceberg.schemas import get_field_id

FEW_ROWS, MANY_ROWS = 1 << 17, 1 << 20
"""Rows of a data file that are compared at once: as many as there are deletes, within these."""

ColumnPath = tuple[str, ...]
"""A column's name after the names of the structs around it."""


@dataclass(frozen=True, slots=True)
class EqualityColumns:
    """How columns named by equality deletes are found in one data file. A value: it pickles."""

    names: Mapping[ColumnPath, int] = field(default_factory=dict)
    """Field ids by name, for a file that has none of its own (``flatten_name_mapping``)."""
    defaults: Mapping[int, Any] = field(default_factory=dict)
    """Initial defaults: what a file lacks that was written before the column was added."""
    constants: Mapping[int, Any] = field(default_factory=dict)
    """Values of the file's identity partitions, for columns that it lacks; in Iceberg's own form."""


def flatten_name_mapping(mapping: Any, above: ColumnPath = ()) -> dict[ColumnPath, int]:
    """The names in a name mapping of PyIceberg (or in a list of its fields), at every level of structs."""
    found: dict[ColumnPath, int] = {}
    for mapped in getattr(mapping, "root", mapping):
        for name in mapped.names:
            if mapped.field_id is not None:
                found[(*above, name)] = mapped.field_id
            found.update(flatten_name_mapping(mapped.fields, (*above, name)))
    return found


def find_equal_positions(
    equalities: Sequence[ManifestEntry],
    file_path: str,
    parquet: pq.ParquetFile,
    *,
    access: DeleteFileAccess,
    columns: EqualityColumns,
) -> Iterator[pa.Int64Array]:
    """The positions of rows that some equality delete matches, in parts that may overlap.

    NULL equals NULL, NaN equals NaN, and 0.0 does not equal -0.0, as in Java. Only row groups whose
    statistics admit a match are read, and of those the columns compared.

    Args:
        equalities: delete files that apply to the data file, of any sets of columns.
        file_path: the data file's path, for messages.
        parquet: the data file, open.
        access: how delete files are reached.
        columns: how columns are found in the data file.

    Memory: the columns of about a million rows, and the deletes.

    Raises:
        DamagedTable: a delete file is damaged, or lacks a column it is about.
        NotSupported: a delete file is not Parquet, or the data file has no field ids and no name mapping.
        StorageError: the file system refused.
    """
    by_columns: dict[tuple[int, ...], list[ContentFile]] = defaultdict(list)
    for entry in equalities:
        by_columns[_sort_equality_ids(entry.file)].append(entry.file)
    if not by_columns or not parquet.metadata.num_rows:
        return
    view = _DataColumns(parquet, columns, _find_column_paths(parquet.schema_arrow, columns.names, file_path))
    for ids, files in by_columns.items():
        kinds = [view.find_type(number) for number in ids]
        keys = _load_key_set(
            ids, files, access, [None if kind is None else find_comparison_type(kind) for kind in kinds]
        )
        if keys.rows:
            yield from _find_matches(view, ids, keys)


def _sort_equality_ids(file: ContentFile) -> tuple[int, ...]:
    if not file.equality_ids:
        raise DamagedTable(
            f"Equality delete file {file.file_path} has no equality_ids in its manifest entry.",
            path=file.file_path,
        )
    return tuple(sorted(set(file.equality_ids)))


def _load_key_set(
    ids: tuple[int, ...],
    files: Sequence[ContentFile],
    access: DeleteFileAccess,
    forms: Sequence[pa.DataType | None],
) -> KeySet:
    """All rows of some delete files; kept for the next data file, which often has the same.

    ``forms`` are those of the data file's columns, as far as it has them.
    """

    def load() -> tuple[KeySet, int]:
        tables = [_load_delete_rows(ids, file, access) for file in files]
        columns = []
        for n, own in enumerate(forms):
            parts = [table[n] for table in tables]
            kind = find_common_comparison_type([part.type for part in parts] + ([] if own is None else [own]))
            chunks = [chunk for part in parts for chunk in cast_for_comparison(part, kind).chunks]
            columns.append(pa.chunked_array(chunks, kind))
        keys = KeySet.of(columns)
        return keys, keys.nbytes

    paths = tuple(file.file_path for file in files)
    return access.cache.get(("keys", ids, tuple(forms), paths), load)


def _load_delete_rows(
    ids: tuple[int, ...], file: ContentFile, access: DeleteFileAccess
) -> list[pa.ChunkedArray]:
    """The columns of a delete file in the order of their ids, in the form they are compared in."""

    def load() -> tuple[list[pa.ChunkedArray], int]:
        with open_delete_file(file, access) as parquet:
            paths = dict(_iterate_field_ids(parquet.schema_arrow, ()))
            missing = [number for number in ids if number not in paths]
            if missing:
                raise DamagedTable(
                    f"Equality delete file {file.file_path} lacks the columns with field ids"
                    f" {', '.join(map(str, missing))} that it is about.",
                    path=file.file_path,
                )
            table = parquet.read([".".join(paths[number]) for number in ids])
        columns = [_get_column(table, paths[number]) for number in ids]
        found = [cast_for_comparison(column, find_comparison_type(column.type)) for column in columns]
        return found, sum(column.nbytes for column in found)

    return access.cache.get(("rows", ids, file.file_path), load)


@dataclass(frozen=True, slots=True)
class _DataColumns:
    """The data file's columns by field id."""

    parquet: pq.ParquetFile
    columns: EqualityColumns
    paths: Mapping[int, ColumnPath]

    def make_column(self, number: int, table: pa.Table, kind: pa.DataType) -> pa.ChunkedArray:
        """A column of some rows that were read, in the form it is compared in."""
        if number in self.paths:
            return cast_for_comparison(_get_column(table, self.paths[number]), kind)
        value = self.columns.constants.get(number, self.columns.defaults.get(number))
        return repeat_constant(value, kind, table.num_rows)

    def find_type(self, number: int) -> pa.DataType | None:
        """The type of a column that the file has."""
        if number not in self.paths:
            return None
        first, *rest = self.paths[number]
        kind: pa.DataType = self.parquet.schema_arrow.field(first).type
        return reduce(lambda outer, name: outer.field(name).type, rest, kind)

    def find_leaf(self, number: int) -> int | None:
        """Where the chunk of a column is in the footer."""
        wanted = ".".join(self.paths.get(number, ()))
        schema = self.parquet.schema
        found = [leaf for leaf in range(len(schema)) if schema.column(leaf).path == wanted]
        return found[0] if len(found) == 1 else None


def _find_matches(view: _DataColumns, ids: tuple[int, ...], keys: KeySet) -> Iterator[pa.Int64Array]:
    read = [".".join(view.paths[number]) for number in ids if number in view.paths]
    rows = min(MANY_ROWS, max(FEW_ROWS, keys.rows))
    if not read:  # every row is the same
        one = pa.table({"row": pa.nulls(1)})
        if len(keys.match(_read_key_columns(view, ids, keys, one))):
            every = pa.repeat(True, view.parquet.metadata.num_rows)
            yield pc.indices_nonzero(every).cast(pa.int64())
        return
    for start, table in _read_batches(view, _find_row_groups(view, ids, keys), read, rows):
        found = keys.match(_read_key_columns(view, ids, keys, table))
        if len(found):
            yield pc.add(found, start)


def _read_key_columns(
    view: _DataColumns, ids: tuple[int, ...], keys: KeySet, table: pa.Table
) -> list[pa.ChunkedArray]:
    return [view.make_column(number, table, kind) for number, kind in zip(ids, keys.kinds, strict=True)]


def _find_row_groups(view: _DataColumns, ids: tuple[int, ...], keys: KeySet) -> list[tuple[int, int]]:
    """Row groups that may hold a match, each with the position of its first row."""
    metadata = view.parquet.metadata
    places = [(column, view.find_leaf(number), view.find_type(number)) for column, number in enumerate(ids)]
    found, start = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if all(
            leaf is None or kind is None or keys.may_match(column, group.column(leaf).statistics, kind)
            for column, leaf, kind in places
        ):
            found.append((number, start))
        start += group.num_rows
    return found


def _read_batches(
    view: _DataColumns, groups: Sequence[tuple[int, int]], columns: Sequence[str], rows: int
) -> Iterator[tuple[int, pa.Table]]:
    """Rows of some row groups, about so many at once, with the position of the first; none are left out."""
    kept: list[pa.RecordBatch] = []
    first = size = 0
    for number, start in groups:
        if kept and start != first + size:
            yield first, pa.Table.from_batches(kept)
            kept, size = [], 0
        for batch in view.parquet.iter_batches(rows, row_groups=[number], columns=list(columns)):
            if not kept:
                first = start
            kept.append(batch)
            start += batch.num_rows
            size += batch.num_rows
            if size >= rows:
                yield first, pa.Table.from_batches(kept)
                kept, size = [], 0
    if kept:
        yield first, pa.Table.from_batches(kept)


def _find_column_paths(
    schema: pa.Schema, names: Mapping[ColumnPath, int], file_path: str
) -> dict[int, ColumnPath]:
    """Columns by field id, also those in structs; by their names where the file has no ids at all."""
    found = dict(_iterate_field_ids(schema, ()))
    if found or not len(schema):
        return found
    if not names:
        raise NotSupported(
            f"{file_path} has no field ids, and equality deletes name columns by them.",
            path=file_path,
            hint="set the table's property schema.name-mapping.default",
        )
    return {names[path]: path for path in _iterate_paths(schema, ()) if path in names}


def _iterate_field_ids(fields: Any, above: ColumnPath) -> Iterator[tuple[int, ColumnPath]]:
    for one in fields:
        path = (*above, one.name)
        number = get_field_id(one)
        if number is not None:
            yield number, path
        if pa.types.is_struct(one.type):
            yield from _iterate_field_ids(one.type, path)


def _iterate_paths(fields: Any, above: ColumnPath) -> Iterator[ColumnPath]:
    for one in fields:
        path = (*above, one.name)
        yield path
        if pa.types.is_struct(one.type):
            yield from _iterate_paths(one.type, path)


def _get_column(table: pa.Table, path: ColumnPath) -> pa.ChunkedArray:
    """A column, also of a struct: NULL where the struct is."""
    column = table[path[0]]
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


_is = pa.types


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """Least and greatest value of a column, in the form of Parquet's statistics."""

    low: Any
    """An integer or bytes; None where all are NULL."""
    high: Any
    has_null: bool


@dataclass(frozen=True, slots=True)
class KeySet:
    """Rows of some columns.

    A row is looked up as numbers: that of its value among the distinct ones of the column that has most,
    then that of the pair of both numbers among the distinct pairs, and so on for each further column.
    """

    kinds: tuple[pa.DataType, ...]
    """The types that columns are compared in."""
    columns: tuple[pa.ChunkedArray, ...]
    leading: int
    """Index of the column with the most distinct values, which is looked up first."""
    distinct: pa.Array
    """Its values, once each."""
    codes: Any
    """The index in ``distinct`` of each row's value."""
    bounds: tuple[KeyBounds | None, ...]
    """None where values have no order that statistics follow."""

    @staticmethod
    def of(columns: Sequence[pa.ChunkedArray]) -> KeySet:
        """The rows of columns that ``cast_for_comparison`` made, all of one length."""
        exact = tuple(map(_to_exact_bits, columns))
        distinct = [column.unique() for column in exact]
        leading = max(range(len(exact)), key=lambda n: len(distinct[n]))
        kinds = tuple(column.type for column in columns)
        return KeySet(
            kinds,
            exact,
            leading,
            distinct[leading],
            pc.index_in(exact[leading], distinct[leading]) if len(exact) > 1 else None,
            tuple(_compute_bounds(kind, found) for kind, found in zip(kinds, distinct, strict=True)),
        )

    @property
    def rows(self) -> int:
        return len(self.columns[0])

    @property
    def nbytes(self) -> int:
        codes = 0 if self.codes is None else self.codes.nbytes
        return sum(part.nbytes for part in (*self.columns, self.distinct)) + int(codes)

    def match(self, columns: Sequence[pa.ChunkedArray]) -> pa.Int64Array:
        """Which rows of columns, in the set's types, are in the set, ascending."""
        first = _to_exact_bits(columns[self.leading])
        if self.codes is None:
            return pc.indices_nonzero(pc.is_in(first, self.distinct)).cast(pa.int64())
        codes = pc.index_in(first, self.distinct)
        rows = pc.indices_nonzero(codes.is_valid())
        codes = codes.drop_null()
        # On both sides only rows that match so far, since looking values up takes the time.
        alike = pc.indices_nonzero(pc.is_in(self.codes, codes.unique()))
        own_codes = self.codes.take(alike)
        for number, column in enumerate(columns):
            if number == self.leading:
                continue
            own = self.columns[number].take(alike)
            distinct = own.unique()
            own_codes = _combine_codes(own_codes, pc.index_in(own, distinct), len(distinct))
            codes = _combine_codes(
                codes, pc.index_in(_to_exact_bits(column.take(rows)), distinct), len(distinct)
            )
            pairs = own_codes.unique()
            own_codes, codes = pc.index_in(own_codes, pairs), pc.index_in(codes, pairs)
            rows = rows.filter(codes.is_valid())
            codes = codes.drop_null()
        return rows.cast(pa.int64())

    def may_match(self, column: int, statistics: Any, kind: pa.DataType) -> bool:
        """Whether rows with these statistics of a Parquet column, seen as ``kind``, may be in the set."""
        bounds = self.bounds[column]
        kind = kind.value_type if _is.is_dictionary(kind) else kind
        if bounds is None or statistics is None or find_comparison_type(kind) != self.kinds[column]:
            return True
        nulls = not statistics.has_null_count or statistics.null_count > 0
        if bounds.has_null and nulls:
            return True
        only_nulls = statistics.has_null_count and statistics.num_values == 0
        if bounds.low is None or only_nulls:
            return False
        if not statistics.has_min_max or _is.is_unsigned_integer(kind):
            return True
        if _is.is_timestamp(kind) and kind.unit != "us":  # the unit stored may be another
            return True
        low, high = statistics.min_raw, statistics.max_raw
        if type(low) is not type(bounds.low):
            return True
        return bool(low <= bounds.high and bounds.low <= high)


def find_comparison_type(kind: pa.DataType) -> pa.DataType:
    """The type that a column is compared in, the same for all types that Iceberg promotes to each other.

    A date that became a timestamp stays a date here; ``common_comparison_type`` brings the two together.

    Raises:
        NotSupported: lists, maps and structs are not compared.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return find_comparison_type(kind.storage_type)
    if _is.is_dictionary(kind):
        return find_comparison_type(kind.value_type)
    if _is.is_integer(kind):
        return pa.int64()
    if _is.is_floating(kind):
        return pa.float64()
    if _is.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    if _is.is_string(kind) or _is.is_large_string(kind) or _is.is_string_view(kind):
        return pa.large_string()
    if _is.is_binary(kind) or _is.is_large_binary(kind) or _is.is_binary_view(kind):
        return pa.large_binary()
    if _is.is_fixed_size_binary(kind):
        return pa.large_binary()
    if _is.is_date(kind):
        return pa.date32()
    if _is.is_time(kind):
        return pa.time64("us")
    if _is.is_timestamp(kind):
        return pa.timestamp("ns" if kind.unit == "ns" else "us")
    if _is.is_boolean(kind) or _is.is_null(kind):
        return kind
    raise NotSupported(f"Columns of type {kind} cannot be compared for equality deletes.")


def find_common_comparison_type(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The one type in which columns of several forms are compared, the deletes' before the data's.

    Raises:
        DamagedTable: Iceberg promotes none of them to the other.
    """
    return reduce(_choose_wider_type, kinds)


def cast_for_comparison(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column in a type that ``common_comparison_type`` gave."""
    if isinstance(column.type, pa.BaseExtensionType):
        stored = [chunk.storage for chunk in column.chunks]
        column = pa.chunked_array(stored, column.type.storage_type)
    if _is.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column if column.type == kind else column.cast(kind, safe=False)


def repeat_constant(value: Any, kind: pa.DataType, rows: int) -> pa.ChunkedArray:
    """A column of one value, in a type that ``common_comparison_type`` gave."""
    if value is None:
        return pa.chunked_array([pa.nulls(rows, kind)])
    if hasattr(value, "bytes") and _is.is_large_binary(kind):  # a UUID
        value = value.bytes
    return pa.chunked_array([pa.repeat(pa.scalar(value, kind), rows)])


def _choose_wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other or _is.is_null(other):
        return one
    if _is.is_null(one):
        return other
    if _is.is_timestamp(one) and (_is.is_timestamp(other) or _is.is_date(other)):
        return one
    if _is.is_date(one) and _is.is_timestamp(other):
        return other
    if {one, other} == {pa.large_string(), pa.large_binary()}:
        return pa.large_binary()
    raise DamagedTable(f"A column of equality deletes is {one} in one file and {other} in another.")


def _to_exact_bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats as their bits, by which all NaNs are one value and 0.0 and -0.0 are two, as in Java."""
    if not _is.is_floating(column.type):
        return column
    one = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    return pa.chunked_array([chunk.view(pa.int64()) for chunk in one.chunks], pa.int64())


def _combine_codes(codes: Any, others: Any, count: int) -> Any:
    """Two numbers as one; NULL where either is. Both are below 2**31, so that it fits."""
    return pc.add(pc.multiply(codes.cast(pa.int64()), count), others.cast(pa.int64()))


def _compute_bounds(kind: pa.DataType, values: pa.Array) -> KeyBounds | None:
    has_null = values.null_count > 0
    if _is.is_int64(kind):
        ordered = values
    elif _is.is_date(kind):
        ordered = values.cast(pa.int32())
    elif _is.is_timestamp(kind):
        ordered = values.cast(pa.int64())
    elif _is.is_large_string(kind):
        ordered = values.cast(pa.large_binary())
    else:
        return None
    found = pc.min_max(ordered).as_py()
    return KeyBounds(found["min"], found["max"], has_null)
