"""INT96 timestamps of Parquet files as instants in UTC; no other column is concerned.

INT96 is a day and the nanoseconds within it. Spark (by default), Hive and Impala write it for instants; the
format says neither that nor in which unit. PyArrow gives it back without a zone, in nanoseconds that
silently wrap beyond the years 1677 to 2262, or in microseconds with the rest cut off. Where it is not known
which of the two is exact, both are read here: together they tell every value. :class:`ParquetInput` reads one
file by itself in that way.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.types import classify_type, list_like
from intarsia.errors import NotSupported

__all__ = [
    "Int96",
    "ParquetInput",
    "check_instants",
    "correct_metadata",
    "find_int96_columns",
    "iterate_leaves",
    "list_duration_units",
    "list_leaf_types",
    "make_noted_schema",
    "make_units_note",
    "read_arrow_schema",
    "read_int96",
]

Unit = Literal["us", "ns"]

_ZONE = "UTC"
_ARROW_SCHEMA = b"ARROW:schema"
_OURS = b"intarsia.txid"
_UNITS = b"intarsia.int96"
"""Metadata key of files we write: the units of the timestamps that INT96 columns were written from."""
_SPARK = (b"org.apache.spark.version", b"org.apache.spark.sql.parquet.row.metadata")
_SPARK_VERSION = b"org.apache.spark.version"
_LEGACY = b"org.apache.spark.legacyINT96"
_LEGACY_TIMES = b"org.apache.spark.legacyDateTime"
"""Spark's key for dates, and for timestamps that are not INT96."""
_REBASED_BEFORE = -2_208_988_800_000_000
"""1900-01-01 in microseconds: only earlier instants differ between the calendars that Spark has used."""
_FURTHEST = (2**63 - 1) // 1000
"""Microseconds since 1970 up to which an instant fits 64-bit nanoseconds, too."""
_BATCH_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class Int96:
    """The INT96 columns of one file, and how they are read exactly."""

    leaves: tuple[bool, ...]
    """For each leaf of the file's schema whether it is INT96."""
    columns: frozenset[str]
    """The top-level columns that are, or contain, one."""
    units: tuple[Unit, ...]
    """For each leaf the unit in which its values are shown."""
    proven: bool
    """Whether the writer is known to write no value that the unit cannot hold."""
    legacy: bool
    """Whether Spark shifts instants before 1900 when it reads the file."""

    def add_zones(self, schema: pa.Schema) -> pa.Schema:
        """The file's Arrow schema with its INT96 columns as instants."""
        dtypes = (pa.timestamp(unit, _ZONE) for unit in self.units)
        leaves = iter(zip(self.leaves, dtypes, strict=True))
        fields = [field.with_type(_retype(field.type, leaves)) for field in schema]
        return pa.schema(fields, schema.metadata)

    def needs_both(self, names: Sequence[str]) -> list[str]:
        """The columns that have to be read in both units, of some columns."""
        return [] if self.proven else [name for name in names if name in self.columns]

    @property
    def unit(self) -> Unit:
        """The unit to read the file in."""
        return "ns" if self.proven and "ns" in _collect_units(self.units, self.leaves) else "us"

    def restore_instants(
        self, table: pa.Table, fine: pa.Table | None, *, schema: pa.Schema, wanted: pa.Schema, path: str
    ) -> pa.Table:
        """A table as read, with instants in place of timestamps without a zone.

        Args:
            table: read in :attr:`unit`.
            fine: the columns of :meth:`needs_both`, read in nanoseconds.
            schema: the file's, as :meth:`add_zones` gives it.
            wanted: the types that columns are to have in the end; of these only the units count here.
            path: of the file, for errors.

        Raises:
            NotSupported: the unit cannot hold a value, or it is not known which instant it is.
        """
        for number, name in enumerate(table.column_names):
            if name not in self.columns:
                continue
            column, dtype = table.column(number), schema.field(name).type
            if self.legacy:
                _check_calendar(column, name, path)
            if fine is not None and name in fine.column_names:
                target = wanted.field(name).type if name in wanted.names else dtype
                unit: Unit = "ns" if _has_nanoseconds(target) else "us"
                _check_exact(column, fine[name], unit, name, path)
                column = fine[name] if unit == "ns" else column
                dtype = _convert_unit(dtype, unit)
            table = table.set_column(number, schema.field(name).with_type(dtype), column.cast(dtype))
        return table


def find_int96_columns(schema: pq.ParquetSchema) -> frozenset[str]:
    """The top-level columns that are, or contain, an INT96 one (of a name with a dot, its beginning, too)."""
    paths = [leaf.path for leaf in _iterate_leaves(schema) if leaf.physical_type == "INT96"]
    return frozenset(name for path in paths for name in (path, path.split(".", 1)[0]))


def read_arrow_schema(footer: pq.FileMetaData) -> pa.Schema:
    """The Arrow schema of a file, INT96 columns being instants in UTC."""
    schema = footer.schema.to_arrow_schema()
    known = read_int96(footer, schema)
    return schema if known is None else known.add_zones(schema)


def read_int96(footer: pq.FileMetaData, schema: pa.Schema | None = None) -> Int96 | None:
    """What is known of a file's INT96 columns; None where it has none. ``schema`` is PyArrow's own."""
    leaves = tuple(leaf.physical_type == "INT96" for leaf in _iterate_leaves(footer.schema))
    if not any(leaves):
        return None
    notes = footer.metadata or {}
    schema = footer.schema.to_arrow_schema() if schema is None else schema
    declared = _parse_units_note(notes.get(_UNITS), leaves) or _parse_declared_units(
        notes.get(_ARROW_SCHEMA), leaves
    )
    spark = any(note in notes for note in _SPARK)
    usual: Unit = "ns" if (footer.created_by or "").startswith("fastparquet") else "us"
    return Int96(
        leaves,
        _find_top_level(schema, leaves),
        (usual,) * len(leaves) if declared is None else declared,
        # Of the Arrow columns that were written the unit is known; Spark itself has no nanoseconds.
        proven=(_UNITS in notes or _OURS not in notes)
        and (spark if declared is None else len(_collect_units(declared, leaves)) == 1),
        legacy=_is_legacy(notes),
    )


def _collect_units(units: Sequence[Unit], leaves: Sequence[bool]) -> set[Unit]:
    return {unit for unit, is_int96 in zip(units, leaves, strict=True) if is_int96}


def _iterate_leaves(schema: pq.ParquetSchema) -> Iterator[Any]:
    return (schema.column(number) for number in range(len(schema)))


def _find_top_level(schema: pa.Schema, leaves: Sequence[bool]) -> frozenset[str]:
    found, at = set(), 0
    for field in schema:
        width = len(list(_iterate_leaf_types(field.type)))
        if any(leaves[at : at + width]):
            found.add(field.name)
        at += width
    return frozenset(found)


def make_units_note(schema: pa.Schema, leaves: Sequence[bool]) -> dict[bytes, bytes]:
    """The metadata entry that says in which units INT96 columns were written; empty without INT96 columns.

    Args:
        schema: the Arrow columns that are written.
        leaves: for each leaf of the file whether it is INT96.
    """
    dtypes = list_leaf_types(schema)
    units = [dtype.unit for dtype, is_int96 in zip(dtypes, leaves, strict=True) if is_int96]
    return {_UNITS: ",".join("ns" if unit == "ns" else "us" for unit in units).encode()} if units else {}


def make_noted_schema(schema: pa.Schema, leaves: Sequence[bool]) -> pa.Schema:
    """The schema to store as ``ARROW:schema``, with INT96 columns as Arrow readers see them.

    Some readers (Polars) trust that entry and others do not, and files of Spark in the dataset have none.
    """
    marks = iter((is_int96, pa.timestamp("ns")) for is_int96 in leaves)
    return pa.schema([f.with_type(_retype(f.type, marks)) for f in schema], schema.metadata)


def _parse_units_note(note: bytes | None, leaves: Sequence[bool]) -> tuple[Unit, ...] | None:
    given = [] if note is None else note.decode(errors="replace").split(",")
    if len(given) != sum(leaves) or not set(given) <= {"us", "ns"}:
        return None
    following = iter(given)
    return tuple("ns" if is_int96 and next(following) == "ns" else "us" for is_int96 in leaves)


def _parse_declared_units(encoded: bytes | None, leaves: Sequence[bool]) -> tuple[Unit, ...] | None:
    """The units of the Arrow columns that a file was written from, by leaf; None where it does not say."""
    if encoded is None:
        return None
    try:
        schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(encoded)))
    except (pa.ArrowException, OSError, ValueError):  # an unreadable entry says nothing
        return None
    dtypes = list_leaf_types(schema)
    if len(dtypes) != len(leaves):
        return None
    times = [dtype for dtype, is_int96 in zip(dtypes, leaves, strict=True) if is_int96]
    if not all(map(pa.types.is_timestamp, times)):
        return None
    units: tuple[Unit, ...] = tuple(
        "ns" if is_int96 and dtype.unit == "ns" else "us"
        for dtype, is_int96 in zip(dtypes, leaves, strict=True)
    )
    return units


def correct_metadata(notes: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The metadata of a file with INT96 columns, corrected for a file rewritten from what was read.

    No instant that was read depends on the calendar; new ones must not be shifted by Spark. Dates and times
    of other types may depend on it, so that a file of Spark 2 says in a note what its version has said.
    """
    kept = {key: value for key, value in notes.items() if key not in (_LEGACY, _UNITS)}
    if not _is_legacy(kept):
        return kept
    others = {_LEGACY_TIMES: b""} if kept[_SPARK_VERSION] < b"3" else {}
    return {**kept, **others, _SPARK_VERSION: b"3.1.0"}


def _is_legacy(notes: Mapping[bytes, bytes]) -> bool:
    """As Spark decides (DataSourceUtils.int96RebaseSpec): a note, or a version before 3.1."""
    if _LEGACY in notes:
        return True
    found = re.match(rb"(\d+)\.(\d+)", notes.get(_SPARK_VERSION, b""))
    return found is not None and (int(found[1]), int(found[2])) < (3, 1)


# ---------------------------------------------------------------------------------------------------
# Types: the leaves of an Arrow type are those of its Parquet column, in order.


def list_leaf_types(schema: pa.Schema) -> list[pa.DataType]:
    """The types of the leaves that columns have in Parquet, in order."""
    return [dtype for field in schema for dtype in _iterate_leaf_types(field.type)]


def list_duration_units(schema: pa.Schema, names: Sequence[str]) -> list[str | None]:
    """The units of durations in the leaves of some columns; None for other leaves."""
    leaves = list_leaf_types(pa.schema([schema.field(name) for name in names]))
    return [dtype.unit if pa.types.is_duration(dtype) else None for dtype in leaves]


def _iterate_leaf_types(dtype: pa.DataType) -> Iterator[pa.DataType]:
    if isinstance(dtype, pa.BaseExtensionType):
        dtype = dtype.storage_type
    if pa.types.is_dictionary(dtype):
        dtype = dtype.value_type
    match classify_type(dtype):
        case "struct":
            for field in dtype.fields:
                yield from _iterate_leaf_types(field.type)
        case "map":
            yield from _iterate_leaf_types(dtype.key_type)
            yield from _iterate_leaf_types(dtype.item_type)
        case "list":
            yield from _iterate_leaf_types(dtype.value_type)
        case _:
            yield dtype


def _retype(dtype: pa.DataType, leaves: Iterator[tuple[bool, pa.DataType]]) -> pa.DataType:
    """The type with some of its leaves replaced; consumes as many leaves as the type has."""

    def retype_field(field: pa.Field) -> pa.Field:
        return field.with_type(_retype(field.type, leaves))

    if isinstance(dtype, pa.BaseExtensionType):
        for _ in _iterate_leaf_types(dtype):
            next(leaves)
        return dtype
    match classify_type(dtype):
        case "struct":
            return pa.struct([retype_field(field) for field in dtype.fields])
        case "map":
            key, item = retype_field(dtype.key_field), retype_field(dtype.item_field)
            return pa.map_(key, item, keys_sorted=dtype.keys_sorted)
        case "list":
            return list_like(dtype, retype_field(dtype.value_field))
        case _:
            is_int96, other = next(leaves)
            return other if is_int96 else dtype


def _convert_unit(dtype: pa.DataType, unit: Unit) -> pa.DataType:
    """The type with its instants in one unit."""
    instant = pa.timestamp(unit, _ZONE)
    return _retype(
        dtype, iter((pa.types.is_timestamp(t) and t.tz == _ZONE, instant) for t in _iterate_leaf_types(dtype))
    )


def _has_nanoseconds(dtype: pa.DataType) -> bool:
    return any(pa.types.is_timestamp(leaf) and leaf.unit == "ns" for leaf in _iterate_leaf_types(dtype))


# ---------------------------------------------------------------------------------------------------
# Values.


def iterate_leaves(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """The columns of plain values inside a column, at any depth; a plain column is its own."""
    match classify_type(column.type):
        case "struct":
            for number in range(column.type.num_fields):
                yield from iterate_leaves(pc.struct_field(column, number))
        case "map":
            for number, dtype in enumerate((column.type.key_type, column.type.item_type)):
                parts = [(chunk.keys, chunk.items)[number] for chunk in column.chunks]
                yield from iterate_leaves(pa.chunked_array(parts, dtype))
        case "list":
            yield from iterate_leaves(pc.list_flatten(column))
        case _:
            yield column


def _iterate_times(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """The values of every naive timestamp inside a column, as numbers."""
    for leaf in iterate_leaves(column):
        if classify_type(leaf.type) == "timestamp":
            yield leaf.cast(pa.int64())


def _check_exact(coarse: pa.ChunkedArray, fine: pa.ChunkedArray, unit: Unit, column: str, path: str) -> None:
    """Raise NotSupported where values read in the wanted unit differ from what is stored.

    Nanoseconds wrap as 64-bit integers do, and so do microseconds times 1000: the difference is what
    microseconds leave out.
    """
    for rough, whole in zip(_iterate_times(coarse), _iterate_times(fine), strict=True):
        if unit == "ns":
            wrong = pc.or_(pc.greater(rough, _FURTHEST), pc.less(rough, -_FURTHEST))
            why = "lie beyond the years 1677 to 2262 that nanoseconds reach"
        else:
            wrong = pc.not_equal(pc.subtract(whole, pc.multiply(rough, 1000)), 0)
            why = "have nanoseconds, of which microseconds are shown"
        count = pc.sum(wrong, min_count=0).as_py()
        if count:
            raise _make_unreadable_error(
                column, path, count, rough.filter(pc.fill_null(wrong, False))[0], why, _UNIT_HINT
            )


_UNIT_HINT = (
    "store the column as TIMESTAMP of nanoseconds or microseconds instead of INT96, such as with"
    " pyarrow.parquet.write_table."
)


def _check_calendar(column: pa.ChunkedArray, name: str, path: str) -> None:
    for numbers in _iterate_times(column):
        unit = 1000 if _has_nanoseconds(column.type) else 1
        early = pc.less(numbers, _REBASED_BEFORE * unit)
        count = pc.sum(early, min_count=0).as_py()
        if count:
            sample = pc.divide(numbers.filter(pc.fill_null(early, False))[0], unit)
            why = "are before 1900 in the hybrid calendar of Spark 2 (its note legacyINT96, or its version)"
            hint = (
                "write the file again with Spark and spark.sql.parquet.int96RebaseModeInWrite=CORRECTED;"
                " the instants of its rows depend on the calendar."
            )
            raise _make_unreadable_error(name, path, count, sample, why, hint)


def _make_unreadable_error(
    column: str, path: str, count: int, sample: pa.Scalar, why: str, hint: str
) -> NotSupported:
    shown = str(pa.array([sample.as_py()], pa.timestamp("us", _ZONE))[0].cast(pa.string()))
    return NotSupported(
        f"{count:,} INT96 timestamps in column {column!r} of {path} {why}; the first is about {shown}.",
        path=path,
        hint=hint,
    )


class ParquetInput:
    """A file that is open for reading. A context manager.

    Like ``pyarrow.parquet.ParquetFile``, whose errors it raises; but INT96 columns are instants in UTC, and a
    value that its unit cannot hold raises NotSupported.
    """

    def __init__(self, location: str, filesystem: pafs.FileSystem, *, shown: str | None = None) -> None:
        self._shown = location if shown is None else shown
        self._handle = filesystem.open_input_file(location)
        self._parquet = pq.ParquetFile(self._handle)
        self.schema: pa.Schema = self._parquet.schema_arrow
        self._int96 = read_int96(self._parquet.metadata, self.schema)
        if self._int96 is not None:
            self._parquet = self._open(self._int96.unit)
            self.schema = self._int96.add_zones(self._parquet.schema_arrow)

    @property
    def int96_columns(self) -> frozenset[str]:
        """The columns that are, or contain, an INT96 one."""
        return frozenset() if self._int96 is None else self._int96.columns

    def _open(self, unit: str) -> pq.ParquetFile:
        return pq.ParquetFile(self._handle, metadata=self._parquet.metadata, coerce_int96_timestamp_unit=unit)

    def read_batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, in order; some columns, or all. Memory: a batch."""
        names = None if columns is None else list(columns)
        wanted = self.schema.names if names is None else names
        both = [] if self._int96 is None else self._int96.needs_both(wanted)
        fine = self._open("ns").iter_batches(rows, columns=both) if both else None
        for batch in self._parquet.iter_batches(rows, columns=names):
            if self._int96 is None:
                yield batch
                continue
            other = None if fine is None else pa.Table.from_batches([next(fine)])
            yield from self._restore_instants(pa.Table.from_batches([batch]), other).to_batches()

    def read(self, columns: Sequence[str] | None = None, *, use_threads: bool = True) -> pa.Table:
        """The same as one table."""
        names = None if columns is None else list(columns)
        table = self._parquet.read(columns=names, use_threads=use_threads)
        if self._int96 is None:
            return table
        both = self._int96.needs_both(table.column_names)
        fine = self._open("ns").read(columns=both, use_threads=use_threads) if both else None
        return self._restore_instants(table, fine)

    def _restore_instants(self, table: pa.Table, fine: pa.Table | None) -> pa.Table:
        assert self._int96 is not None
        return self._int96.restore_instants(
            table, fine, schema=self.schema, wanted=self.schema, path=self._shown
        )

    def close(self) -> None:
        self._handle.close()

    def __enter__(self) -> ParquetInput:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_instants(location: str, filesystem: pafs.FileSystem, *, shown: str) -> None:
    """Raise NotSupported where an INT96 value of a file does not fit its unit. Reads those columns only."""
    with ParquetInput(location, filesystem, shown=shown) as opened:
        for _ in opened.read_batches(_BATCH_ROWS, sorted(opened.int96_columns)):
            pass
