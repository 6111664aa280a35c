"""Equality deletes: the rows of a data file that equal one of a delete file in columns named by field id."""

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
from intarsia.tables.iceberg.entries import ContentFile, Entry
from intarsia.tables.iceberg.key_sets import KeySet, common, constant, form, plain
from intarsia.tables.iceberg.position_files import Reach, field_id, open_delete_file

FEW_ROWS, MANY_ROWS = 1 << 17, 1 << 20
"""Rows of a data file that are compared at once: as many as there are deletes, within these."""

Names = tuple[str, ...]
"""A column's name, behind those of the structs it is in."""


@dataclass(frozen=True, slots=True)
class EqualityColumns:
    """How columns named by equality deletes are found in one data file. A value: it pickles."""

    names: Mapping[Names, int] = field(default_factory=dict)
    """Field ids by name, for a file that has none of its own (``names_of`` a name mapping)."""
    defaults: Mapping[int, Any] = field(default_factory=dict)
    """Initial defaults: what a file lacks that was written before the column was added."""
    constants: Mapping[int, Any] = field(default_factory=dict)
    """Values of the file's identity partitions, for columns that it lacks; in Iceberg's own form."""


def names_of(mapping: Any, above: Names = ()) -> dict[Names, int]:
    """The names in a name mapping of PyIceberg (or in a list of its fields), at every level of structs."""
    found: dict[Names, int] = {}
    for mapped in getattr(mapping, "root", mapping):
        for name in mapped.names:
            if mapped.field_id is not None:
                found[(*above, name)] = mapped.field_id
            found.update(names_of(mapped.fields, (*above, name)))
    return found


def equal_positions(
    equalities: Sequence[Entry],
    file_path: str,
    parquet: pq.ParquetFile,
    *,
    reach: Reach,
    columns: EqualityColumns,
) -> Iterator[pa.Int64Array]:
    """The positions of rows that some equality delete matches, in parts that may overlap.

    NULL equals NULL, NaN equals NaN, and 0.0 does not equal -0.0, as in Java. Only row groups whose
    statistics admit a match are read, and of those the columns compared.

    Args:
        equalities: delete files that apply to the data file, of any sets of columns.
        file_path: the data file's path, for messages.
        parquet: the data file, open.
        reach: how delete files are reached.
        columns: how columns are found in the data file.

    Memory: the columns of about a million rows, and the deletes.

    Raises:
        DamagedTable: a delete file is damaged, or lacks a column it is about.
        NotSupported: a delete file is not Parquet, or the data file has no field ids and no name mapping.
        StorageError: the file system refused.
    """
    by_columns: dict[tuple[int, ...], list[ContentFile]] = defaultdict(list)
    for entry in equalities:
        by_columns[_equality_ids(entry.file)].append(entry.file)
    if not by_columns or not parquet.metadata.num_rows:
        return
    view = _DataView(parquet, columns, _paths(parquet.schema_arrow, columns.names, file_path))
    for ids, files in by_columns.items():
        kinds = [view.kind(number) for number in ids]
        keys = _key_set(ids, files, reach, [None if kind is None else form(kind) for kind in kinds])
        if keys.rows:
            yield from _matching(view, ids, keys)


def _equality_ids(file: ContentFile) -> tuple[int, ...]:
    if not file.equality_ids:
        raise DamagedTable(
            f"Equality delete file {file.file_path} has no equality_ids in its manifest entry.",
            path=file.file_path,
        )
    return tuple(sorted(set(file.equality_ids)))


def _key_set(
    ids: tuple[int, ...], files: Sequence[ContentFile], reach: Reach, forms: Sequence[pa.DataType | None]
) -> KeySet:
    """All rows of some delete files; kept for the next data file, which often has the same.

    ``forms`` are those of the data file's columns, as far as it has them.
    """

    def load() -> tuple[KeySet, int]:
        tables = [_delete_rows(ids, file, reach) for file in files]
        columns = []
        for n, own in enumerate(forms):
            parts = [table[n] for table in tables]
            kind = common([part.type for part in parts] + ([] if own is None else [own]))
            chunks = [chunk for part in parts for chunk in plain(part, kind).chunks]
            columns.append(pa.chunked_array(chunks, kind))
        keys = KeySet.of(columns)
        return keys, keys.nbytes

    paths = tuple(file.file_path for file in files)
    return reach.cache.get(("keys", ids, tuple(forms), paths), load)


def _delete_rows(ids: tuple[int, ...], file: ContentFile, reach: Reach) -> list[pa.ChunkedArray]:
    """The columns of a delete file in the order of their ids, in the form they are compared in."""

    def load() -> tuple[list[pa.ChunkedArray], int]:
        with open_delete_file(file, reach) as parquet:
            paths = dict(_by_id(parquet.schema_arrow, ()))
            missing = [number for number in ids if number not in paths]
            if missing:
                raise DamagedTable(
                    f"Equality delete file {file.file_path} lacks the columns with field ids"
                    f" {', '.join(map(str, missing))} that it is about.",
                    path=file.file_path,
                )
            table = parquet.read([".".join(paths[number]) for number in ids])
        columns = [_column(table, paths[number]) for number in ids]
        found = [plain(column, form(column.type)) for column in columns]
        return found, sum(column.nbytes for column in found)

    return reach.cache.get(("rows", ids, file.file_path), load)


@dataclass(frozen=True, slots=True)
class _DataView:
    """The data file's columns by field id."""

    parquet: pq.ParquetFile
    columns: EqualityColumns
    paths: Mapping[int, Names]

    def column(self, number: int, table: pa.Table, kind: pa.DataType) -> pa.ChunkedArray:
        """A column of some rows that were read, in the form it is compared in."""
        if number in self.paths:
            return plain(_column(table, self.paths[number]), kind)
        value = self.columns.constants.get(number, self.columns.defaults.get(number))
        return constant(value, kind, table.num_rows)

    def kind(self, number: int) -> pa.DataType | None:
        """The type of a column that the file has."""
        if number not in self.paths:
            return None
        first, *rest = self.paths[number]
        kind: pa.DataType = self.parquet.schema_arrow.field(first).type
        return reduce(lambda outer, name: outer.field(name).type, rest, kind)

    def leaf(self, number: int) -> int | None:
        """Where the chunk of a column is in the footer."""
        wanted = ".".join(self.paths.get(number, ()))
        schema = self.parquet.schema
        found = [leaf for leaf in range(len(schema)) if schema.column(leaf).path == wanted]
        return found[0] if len(found) == 1 else None


def _matching(view: _DataView, ids: tuple[int, ...], keys: KeySet) -> Iterator[pa.Int64Array]:
    read = [".".join(view.paths[number]) for number in ids if number in view.paths]
    rows = min(MANY_ROWS, max(FEW_ROWS, keys.rows))
    if not read:  # every row is the same
        one = pa.table({"row": pa.nulls(1)})
        if len(keys.matches(_columns(view, ids, keys, one))):
            every = pa.repeat(True, view.parquet.metadata.num_rows)
            yield pc.indices_nonzero(every).cast(pa.int64())
        return
    for start, table in _batches(view, _groups(view, ids, keys), read, rows):
        found = keys.matches(_columns(view, ids, keys, table))
        if len(found):
            yield pc.add(found, start)


def _columns(view: _DataView, ids: tuple[int, ...], keys: KeySet, table: pa.Table) -> list[pa.ChunkedArray]:
    return [view.column(number, table, kind) for number, kind in zip(ids, keys.kinds, strict=True)]


def _groups(view: _DataView, ids: tuple[int, ...], keys: KeySet) -> list[tuple[int, int]]:
    """Row groups that may hold a match, each with the position of its first row."""
    metadata = view.parquet.metadata
    places = [(column, view.leaf(number), view.kind(number)) for column, number in enumerate(ids)]
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


def _batches(
    view: _DataView, groups: Sequence[tuple[int, int]], columns: Sequence[str], rows: int
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


def _paths(schema: pa.Schema, names: Mapping[Names, int], file_path: str) -> dict[int, Names]:
    """Columns by field id, also those in structs; by their names where the file has no ids at all."""
    found = dict(_by_id(schema, ()))
    if found or not len(schema):
        return found
    if not names:
        raise NotSupported(
            f"{file_path} has no field ids, and equality deletes name columns by them.",
            path=file_path,
            hint="set the table's property schema.name-mapping.default",
        )
    return {names[path]: path for path in _all_names(schema, ()) if path in names}


def _by_id(fields: Any, above: Names) -> Iterator[tuple[int, Names]]:
    for one in fields:
        path = (*above, one.name)
        number = field_id(one)
        if number is not None:
            yield number, path
        if pa.types.is_struct(one.type):
            yield from _by_id(one.type, path)


def _all_names(fields: Any, above: Names) -> Iterator[Names]:
    for one in fields:
        path = (*above, one.name)
        yield path
        if pa.types.is_struct(one.type):
            yield from _all_names(one.type, path)


def _column(table: pa.Table, path: Names) -> pa.ChunkedArray:
    """A column, also of a struct: NULL where the struct is."""
    column = table[path[0]]
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column
