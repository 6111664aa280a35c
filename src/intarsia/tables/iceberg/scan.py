"""Scan tasks of data files: projection, bounds, deletes and footers, each decoded when it is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, UUIDType

from intarsia.common.python_values import make_array
from intarsia.core.file_table import FileTable
from intarsia.core.prune import Bounds, make_file_bounds
from intarsia.core.snapshot import DataFile
from intarsia.errors import DamagedTable, NotSupported
from intarsia.tables.iceberg.conversions import make_decoder
from intarsia.tables.iceberg.deletes import NO_DELETES, Deletes, read_deleted_positions
from intarsia.tables.iceberg.equality_deletes import EqualityColumns, flatten_name_mapping
from intarsia.tables.iceberg.file_io import DeleteCache, Store
from intarsia.tables.iceberg.manifests import ManifestEntry
from intarsia.tables.iceberg.packed_maps import PackedNumbers
from intarsia.tables.iceberg.projection import (
    DataFileOrigin,
    FieldIdProjection,
    FileField,
    NameMapping,
    apply_name_mapping,
    list_child_fields,
    list_file_fields,
)
from intarsia.tables.iceberg.schemas import collect_initial_defaults
from intarsia.tables.iceberg.specs import find_implied_ranges, find_spec
from intarsia.tables.iceberg.transforms import SourceRange
from intarsia.tables.parquet.footers import read_footers

MANY_FILES = 256
"""From this many files on columns pay."""
_MOST_COLUMNS = 8
_UNKNOWN: tuple[Any, Any, int | None] = (None, None, None)


@dataclass(frozen=True, slots=True)
class _BoundColumn:
    """A primitive top-level column, and how its bounds are read."""

    number: int
    decode: Callable[[bytes], Any]
    is_uuid: bool


class TableScanContext:
    """What the scan tasks of all files of a table share; pickled once for many of them.

    Only schemas, specs and properties of the metadata are kept. What is worked out on the way is
    remembered, and stays behind when it is pickled.
    """

    __slots__ = (
        "_columns",
        "_constants",
        "_equality",
        "_footer",
        "_implied",
        "cache",
        "defaults",
        "fields",
        "metadata",
        "names",
        "schema",
        "store",
    )

    def __init__(self, metadata: TableMetadata, schema: Schema, store: Store) -> None:
        """``metadata`` may be complete; ``schema`` is the one the table is seen in."""
        self.metadata = _drop_history(metadata)
        self.schema = schema
        self.store = store
        self._derive()

    def _derive(self) -> None:
        mapping = self.metadata.name_mapping()
        self.names: NameMapping | None = None if mapping is None else _to_name_mapping(mapping)
        self.fields: dict[str, NestedField] = {field.name: field for field in self.schema.fields}
        self.defaults = collect_initial_defaults(self.schema)
        self.cache = DeleteCache()
        self._columns: dict[str, _BoundColumn | None] = {}
        self._implied: dict[tuple[int, tuple[Any, ...]], dict[int, SourceRange]] = {}
        self._constants: dict[tuple[int, tuple[Any, ...]], dict[int, Any]] = {}
        self._equality: EqualityColumns | None = None
        self._footer: tuple[pq.ParquetSchema, dict[int, int]] | None = None

    def __getstate__(self) -> tuple[TableMetadata, Schema, Store]:
        return self.metadata, self.schema, self.store

    def __setstate__(self, state: tuple[TableMetadata, Schema, Store]) -> None:
        self.metadata, self.schema, self.store = state
        self._derive()

    def make_scan_task(self, entry: ManifestEntry, deletes: Deletes = NO_DELETES) -> IcebergScanTask:
        """The scan task of one data file."""
        return IcebergScanTask(self, entry, deletes)

    def make_data_file(self, entry: ManifestEntry, deletes: Deletes = NO_DELETES) -> DataFile:
        """One data file as it is planned with: nothing of it was read."""
        file = entry.file
        return DataFile(
            path=file.file_path,
            location=self.store.filesystem_path(file.file_path),
            size=file.file_size_in_bytes,
            rows=max(0, file.record_count - deletes.estimated_count) if deletes else file.record_count,
            tag=entry,
            scan_task=self.make_scan_task(entry, deletes),
        )

    def find_column(self, name: str) -> _BoundColumn | None:
        """How bounds of a column are read; None where it has none."""
        if name not in self._columns:
            known = self.fields.get(name)
            if known is None or not known.field_type.is_primitive:
                self._columns[name] = None
            else:
                kind = known.field_type
                self._columns[name] = _BoundColumn(
                    known.field_id, make_decoder(kind), isinstance(kind, UUIDType)
                )
        return self._columns[name]

    def find_implied_range(self, entry: ManifestEntry, number: int) -> SourceRange | None:
        """What the partition of a file proves of a column."""
        key = (entry.file.spec_id, entry.file.partition)
        if not key[1]:
            return None
        proved = self._implied.get(key)
        if proved is None:
            spec = find_spec(self.metadata, key[0])
            proved = self._implied[key] = find_implied_ranges(self.metadata, spec, key[1])
        return proved.get(number)

    def find_constants(self, entry: ManifestEntry) -> Mapping[int, Any]:
        """Values of fields that a file lacks: identity partition values, then initial defaults."""
        key = (entry.file.spec_id, entry.file.partition)
        if not key[1]:
            return self.defaults
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = {**self.defaults, **self.find_identity_values(*key)}
        return found

    def make_equality_columns(self, entry: ManifestEntry) -> EqualityColumns:
        """How columns named by equality deletes are found in a file; they may have been dropped since."""
        if self._equality is None:
            mapping = self.metadata.name_mapping()
            defaults: dict[int, Any] = {}
            for schema in (*self.metadata.schemas, self.schema):
                defaults.update(collect_initial_defaults(schema))
            self._equality = EqualityColumns(
                {} if mapping is None else flatten_name_mapping(mapping), defaults
            )
        constants = self.find_identity_values(entry.file.spec_id, entry.file.partition)
        return replace(self._equality, constants=constants)

    def find_identity_values(self, spec_id: int, values: tuple[Any, ...]) -> dict[int, Any]:
        """By source field id the values of a tuple whose transform is the identity."""
        spec = find_spec(self.metadata, spec_id)
        return {
            field.source_id: value
            for field, value in zip(spec.fields, values, strict=True)
            if isinstance(field.transform, IdentityTransform)
        }

    def find_leaves(self, footer: pq.FileMetaData) -> dict[int, int]:
        """By field id the chunk of each flat top-level column; files mostly agree."""
        schema, last = footer.schema, self._footer  # read once, since other threads replace it
        if last is not None and last[0].equals(schema):
            return last[1]
        fields = apply_name_mapping(list_file_fields(schema.to_arrow_schema()), self.names)
        found: dict[int, int] = {}
        at = 0
        for held in fields:
            if held.number is not None and not held.inner:
                found.setdefault(held.number, at)
            at += _count_leaves(held)
        self._footer = (schema, found)
        return found


@dataclass(frozen=True, slots=True)
class IcebergScanTask:
    """Implements ``core.ports.FileScanTask`` for one data file of a table."""

    table: TableScanContext
    entry: ManifestEntry
    deletes: Deletes = NO_DELETES

    def project_columns(self, physical: pa.Schema, wanted: pa.Schema) -> FieldIdProjection:
        """How columns of the file become the table's."""
        file = self.entry.file
        origin = DataFileOrigin(
            file.file_path,
            file.first_row_id,
            self.entry.sequence_number,
            self.table.find_constants(self.entry),
        )
        return FieldIdProjection(
            physical, wanted, columns=self.table.fields, names=self.table.names, origin=origin
        )

    def find_leaf(self, footer: pq.FileMetaData, column: str) -> int | None:
        """Where a flat top-level column's chunk is in a footer; None where it has no chunk of its own."""
        known = self.table.fields.get(column)
        return None if known is None else self.table.find_leaves(footer).get(known.field_id)

    def get_bounds(self, column: str) -> tuple[Any, Any, int | None]:
        """Lower bound, upper bound and NULLs of a top-level column over the whole file; None is unknown.

        Of all rows that are stored, deleted ones included. The number of NULLs is given only where it holds
        whatever deletes apply: all, none, or any number where no delete applies.
        """
        known = self.table.find_column(column)
        if known is None:
            return _UNKNOWN
        file = self.entry.file
        counts = file.null_value_counts or {}
        nulls = counts.peek(known.number) if isinstance(counts, PackedNumbers) else counts.get(known.number)
        low, high = (
            self._decode_metric(file.lower_bounds, known),
            self._decode_metric(file.upper_bounds, known),
        )
        if nulls is not None and (nulls < 0 or nulls > file.record_count):
            nulls = None  # the writer counted otherwise
        implied = self.table.find_implied_range(self.entry, known.number)
        if implied is not None:
            if implied.nulls:
                return None, None, file.record_count
            nulls = 0
            low, high = _take_max(low, implied.low), _take_min(high, implied.high)
        if nulls == file.record_count:
            return None, None, nulls
        return low, high, nulls if nulls == 0 or not self.deletes else None

    def get_constant(self, column: str) -> tuple[Any] | None:
        """The one value that a column has in every row, where the file's spec has it as it is."""
        known = self.table.find_column(column)
        file = self.entry.file
        if known is None or not file.partition:
            return None
        values = self.table.find_identity_values(file.spec_id, file.partition)
        return (values[known.number],) if known.number in values else None

    def _decode_metric(self, bounds: Mapping[int, bytes] | None, column: _BoundColumn) -> Any:
        data = None if bounds is None else bounds.get(column.number)
        if data is None:
            return None
        if column.is_uuid and len(self.entry.file.split_offsets or ()) != 1:
            # Java merges the bounds of row groups by the signed order of java.util.UUID, which is not the
            # order of the bytes.
            return None
        value = column.decode(data)
        return None if _is_nan(value) else value

    def read_deleted(self, parquet: pq.ParquetFile, filesystem: pafs.FileSystem) -> pa.Int64Array | None:
        """The positions of rows that were deleted, ascending; None for none.

        Kept for whoever opens the file next, since equality deletes are looked for in all of its rows.
        """
        deletes, path = self.deletes, self.entry.file.file_path
        if not deletes:
            return None

        def load() -> tuple[pa.Int64Array | None, int]:
            table = self.table
            columns = table.make_equality_columns(self.entry)
            filesystem_path, cache = table.store.filesystem_path, table.cache
            found = read_deleted_positions(
                deletes, path, parquet, filesystem, filesystem_path, columns, cache=cache
            )
            return found, 0 if found is None else found.nbytes

        return self.table.cache.get(("deleted", path, deletes.marks), load)

    @property
    def has_deletes(self) -> bool:
        """Whether any delete may apply to the file."""
        return bool(self.deletes)

    @property
    def record_count(self) -> int:
        """The rows the file holds, deleted ones included."""
        return self.entry.file.record_count

    @property
    def has_exact_count(self) -> bool:
        """Whether the file's rows are known to be exact without reading its deletes."""
        return self.deletes.exact_count is not None


def _take_max(one: Any, other: Any) -> Any:
    """The tighter of two lower bounds."""
    return other if one is None else one if other is None else max(one, other)


def _take_min(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else min(one, other)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _count_leaves(held: FileField) -> int:
    return sum(map(_count_leaves, held.inner)) if held.inner else 0 if list_child_fields(held.type) else 1


def _to_name_mapping(fields: Any) -> NameMapping:
    """PyIceberg's name mapping as plain values."""
    return {name: (one.field_id, _to_name_mapping(one.fields)) for one in fields for name in one.names}


def _drop_history(metadata: TableMetadata) -> TableMetadata:
    """The metadata without its history, which may be long and is not looked at here."""
    history = ("snapshots", "snapshot_log", "metadata_log", "statistics", "partition_statistics")
    emptied: dict[str, Any] = {name: [] for name in history if hasattr(metadata, name)}
    return metadata.model_copy(update={**emptied, "refs": {}, "current_snapshot_id": None})


class ManifestEntries:
    """The data files of a table's state, in order; see :class:`intarsia.core.file_table.FileStore`.

    Bounds of the columns that were asked for last are kept: a second merge by the same key decodes none.
    """

    first_of_kinds: Sequence[int] = ()
    sizes: Sequence[int] = ()

    def __init__(
        self, table: TableScanContext, entries: Sequence[ManifestEntry], deletes: Mapping[int, Deletes]
    ) -> None:
        """``deletes`` are those that apply to files, by their numbers."""
        self._table = table
        self._entries = entries
        self._deletes = deletes
        self._bounds: dict[tuple[str, pa.DataType], Bounds] = {}

    def make_files(self) -> FileTable:
        """The files as columns; raises NotSupported where one is on another store than the table."""
        files = [entry.file for entry in self._entries]
        stores = {tuple(file.file_path.split("/", 3)[:3]): file.file_path for file in reversed(files)}
        for path in reversed(stores.values()):
            self._table.store.filesystem_path(path)
        rows = [file.record_count for file in files]
        for number, deletes in self._deletes.items():
            rows[number] = max(0, rows[number] - deletes.estimated_count)
        return FileTable(
            self._make_range,
            paths=make_array([file.file_path for file in files], pa.string()),
            sizes=make_array([file.file_size_in_bytes for file in files], pa.int64()),
            rows=make_array(rows, pa.int64()),
            directories=[""],
            partitions=[{}],
            numbers=None,
            store=self,
        )

    def _make_range(self, start: int, stop: int, _partitions: Sequence[Mapping[str, Any]]) -> list[DataFile]:
        entries = enumerate(self._entries[start:stop], start)
        return [
            self._table.make_data_file(one, self._deletes.get(number, NO_DELETES)) for number, one in entries
        ]

    def read_bounds(self, numbers: Sequence[int], column: str, dtype: pa.DataType) -> Bounds:
        """Of all files."""
        assert len(numbers) == len(self._entries)
        found = self._bounds.get((column, dtype))
        if found is None:
            while len(self._bounds) >= _MOST_COLUMNS:
                self._bounds.pop(next(iter(self._bounds)), None)
            found = self._bounds[column, dtype] = make_file_bounds(self._iterate_bounds(column), dtype)
        return found

    def _iterate_bounds(self, column: str) -> Iterator[tuple[int, Any, Any, int | None]]:
        for number, entry in enumerate(self._entries):
            task = self._table.make_scan_task(entry, self._deletes.get(number, NO_DELETES))
            yield (entry.file.record_count, *task.get_bounds(column))


@dataclass(frozen=True, slots=True)
class FooterLoader:
    """Adds footers and exact row counts to files; see :class:`intarsia.core.snapshot.Snapshot`."""

    filesystem: pafs.FileSystem

    def __call__(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Raises NotSupported for files that are not Parquet, DamagedTable for missing or broken ones."""
        for file in files:
            _check_file_format(file)
        try:
            footers = read_footers(self.filesystem, [file.location for file in files])
        except FileNotFoundError as error:
            raise DamagedTable(
                f"A data file that the table names is not there: {error}",
                path=files[0].path,
                hint="its snapshot may have been expired meanwhile: run the operation again; else restore it",
            ) from error
        return [self._add_footer(file, footer.metadata) for file, footer in zip(files, footers, strict=True)]

    def _add_footer(self, file: DataFile, footer: pq.FileMetaData) -> DataFile:
        recorded = file.tag.file.record_count if isinstance(file.tag, ManifestEntry) else footer.num_rows
        if footer.num_rows != recorded:
            raise DamagedTable(
                f"{file.path} has {footer.num_rows} rows, the table's manifests say {recorded}.",
                path=file.path,
            )
        if file.scan_task is None or not file.scan_task.has_deletes or file.scan_task.has_exact_count:
            return replace(file, footer=footer)
        with self.filesystem.open_input_file(file.location) as source:
            deleted = file.scan_task.read_deleted(pq.ParquetFile(source, metadata=footer), self.filesystem)
        return replace(file, footer=footer, rows=footer.num_rows - (0 if deleted is None else len(deleted)))


def _check_file_format(file: DataFile) -> None:
    entry = file.tag
    if isinstance(entry, ManifestEntry) and entry.file.file_format.upper() != "PARQUET":
        raise NotSupported(
            f"{file.path} is a file of format {entry.file.file_format}; only Parquet can be read.",
            path=file.path,
            hint="rewrite it as Parquet with the engine that wrote it",
        )
