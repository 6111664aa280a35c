"""Data files as relations of SQL, in the dataset's own types; says which files DuckDB cannot read exactly."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.common.int96 import int96_columns
from intarsia.core.bounds import bounds_of
from intarsia.core.files import DataFile, Snapshot
from intarsia.core.lens import ROW_ID
from intarsia.core.notes import geometry_columns
from intarsia.engines.duckdb.seen import Sight, dead_rows, live_rows, same_inside, sight
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.text import FILE, POS, SRC, listed, name
from intarsia.engines.duckdb.types import collide, sql_type

__all__ = ["MOST_MILLISECONDS", "Scan", "float_kind", "unreadable"]

MOST_MILLISECONDS = (2**63 - 1) // 1000
"""So far from 1970 a timestamp may be to be one in microseconds, too."""

_OWN = frozenset(
    {FILE, POS, SRC, "filename", "file_row_number", "file_index", "file_row_group_number", "rowid"}
)
"""Names that would hide a column of the same name, or be hidden by it."""
_PLACES, _DEAD = "places", "dead"
_UUID = "UUID"
_UNKNOWN_TYPE = "BSON"
_OTHER_TYPES = frozenset({_UNKNOWN_TYPE, "ENUM", "INTERVAL", "GEOMETRY", "GEOGRAPHY"})
_UNITS = {"s": 0, "ms": 1, "us": 2, "ns": 3}


def unreadable(file: DataFile, columns: Collection[str], schema: pa.Schema) -> str | None:
    """Why DuckDB cannot give some columns of a file back exactly in the dataset's types; None if it can."""
    if file.footer is None:
        return "its footer is not known"
    physical = file.footer.schema.to_arrow_schema()
    if collide(physical.names) or collide(schema.names):
        return "names of columns differ only by case"
    taken = [each for each in (*physical.names, *schema.names) if each.lower() in _OWN]
    if taken:
        return f"DuckDB has a column {taken[0]!r} of its own"
    other = _other_types(file.footer.schema)
    if _UNKNOWN_TYPE in other.values():
        return f"DuckDB does not know the type {_UNKNOWN_TYPE}, which one of its columns has"
    geometries = geometry_columns(file.footer.metadata)
    if geometries is None:
        return "its note 'geo' is not as GeoParquet has it, which DuckDB refuses"
    int96 = int96_columns(file.footer.schema)
    held = sight(file, columns, schema).held
    for column in columns:
        wanted = schema.field(column).type
        if sql_type(wanted) is None:
            return f"DuckDB has no type for {column!r} ({wanted})"
        if column in physical.names and column in file.partition:
            return f"{column!r} is stored in the file and in its path, which have to agree"
        if column not in held:
            continue
        own, stored = held[column].name, held[column].type
        if own in int96:
            return f"{column!r} is stored as INT96"
        if own in geometries:
            return f"{column!r} is a geometry by the note 'geo', which is another type to DuckDB"
        if own in other:
            return f"{column!r} is annotated as {other[own]}, which is another type to DuckDB"
        if not _becomes(file, held[column], wanted):
            return f"{column!r} is stored as {stored}, not as {wanted}"
        if not _in_microseconds(file.footer, own):
            return f"{column!r} may hold times beyond those of DuckDB"
    return None


def _other_types(schema: pq.ParquetSchema) -> dict[str, str]:
    """Columns that DuckDB takes for another type than Arrow does, by name, and what they are annotated as."""
    found = {}
    for leaf in (schema.column(number) for number in range(len(schema))):
        kind = str(leaf.logical_type.type)
        kind = str(leaf.converted_type) if kind in ("UNKNOWN", "NONE") else kind
        zoned = kind == "TIME" and "isAdjustedToUTC=true" in str(leaf.logical_type)
        column, _, inner = leaf.path.partition(".")
        within = bool(inner) and kind == _UUID  # which comes back as text, and is cast only in whole columns
        if kind in _OTHER_TYPES or zoned or within:
            found[column] = "TIME in UTC" if zoned else kind
    return found


def _becomes(file: DataFile, own: pa.Field, wanted: pa.DataType) -> bool:
    """Whether DuckDB can give a column of a file back as one of the type wanted."""
    if file.lens is not None and pa.types.is_nested(wanted):
        return same_inside(own.type, wanted)
    if _is_uuid(file, own):
        return sql_type(wanted) == "BLOB"
    return _widens(own.type, wanted)


def _is_uuid(file: DataFile, own: pa.Field) -> bool:
    """Whether DuckDB reads a column of bytes as UUIDs."""
    kind = own.type.storage_type if isinstance(own.type, pa.UuidType) else own.type
    if file.footer is None or not (pa.types.is_fixed_size_binary(kind) and kind.byte_width == 16):
        return False
    leaves = (file.footer.schema.column(number) for number in range(len(file.footer.schema)))
    return any(leaf.path == own.name and leaf.logical_type.type == _UUID for leaf in leaves)


def _in_microseconds(footer: pq.FileMetaData, column: str) -> bool:
    """Whether DuckDB, which reads timestamps in milliseconds as microseconds, can do so with a column."""
    for number in range(len(footer.schema)):
        leaf = footer.schema.column(number)
        if leaf.path.split(".", 1)[0] != column or "timeUnit=milliseconds" not in str(leaf.logical_type):
            continue
        for group in range(footer.num_row_groups if leaf.physical_type == "INT64" else 0):
            chunk = footer.row_group(group).column(number)
            known = chunk.statistics
            if known is not None and known.has_null_count and known.null_count == chunk.num_values:
                continue
            if known is None or not known.has_min_max:
                return False
            if not -MOST_MILLISECONDS <= known.min_raw <= known.max_raw <= MOST_MILLISECONDS:
                return False
    return True


def _widens(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether DuckDB's cast from one type to the other is exact, and the same as ours."""
    stored = stored.value_type if pa.types.is_dictionary(stored) else stored
    wanted = wanted.value_type if pa.types.is_dictionary(wanted) else wanted
    have = sql_type(stored)
    if have is None:
        return False
    if have == sql_type(wanted):
        return True
    if pa.types.is_integer(stored):
        return pa.types.is_integer(wanted) or pa.types.is_float64(wanted) or pa.types.is_decimal(wanted)
    if pa.types.is_float32(stored):
        return pa.types.is_float64(wanted)
    if pa.types.is_decimal(stored) and pa.types.is_decimal(wanted):
        return True
    if pa.types.is_timestamp(stored) and pa.types.is_timestamp(wanted):
        same_kind = (stored.tz is None) == (wanted.tz is None)
        return same_kind and _UNITS[stored.unit] <= _UNITS[wanted.unit]
    return False


def _read_as(kind: pa.DataType) -> str:
    """The type in which DuckDB reads a column: it has microseconds for coarser timestamps."""
    return str(sql_type(kind)).replace("TIMESTAMP_MS", "TIMESTAMP").replace("TIMESTAMP_S", "TIMESTAMP")


def float_kind(kind: pa.DataType) -> bool:
    """Whether values may be NaN, which statistics of Parquet files leave out."""
    return bool(pa.types.is_floating(kind.value_type if pa.types.is_dictionary(kind) else kind))


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a column comes from in a file: its own, with its type, and what stands in; else it is NULL."""

    own: str = ""
    kind: str = ""
    told: bool = False


@dataclass(frozen=True, slots=True)
class _Form:
    """What files that are read by one expression have in common."""

    origins: tuple[_Origin, ...]
    some_dead: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """Reads some files of a snapshot; a file's number is its place among them. Dead rows are left out."""

    session: Session
    snapshot: Snapshot
    files: tuple[DataFile, ...]
    schema: pa.Schema
    """The types that columns are given back in."""
    numbers: dict[str, int] = field(repr=False)
    sights: Mapping[str, Sight] = field(default_factory=dict, repr=False)
    """Of files that are seen through a lens."""
    dead: Mapping[str, pa.Int64Array] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(
        session: Session,
        snapshot: Snapshot,
        files: Sequence[DataFile],
        schema: pa.Schema,
        *,
        columns: Collection[str] | None = None,
    ) -> Scan:
        """``columns`` are all that will be read; those of the schema if None."""
        names = schema.names if columns is None else tuple(dict.fromkeys(columns))
        numbers = {file.path: number for number, file in enumerate(files)}
        sights = {file.path: sight(file, names, schema) for file in files if file.lens is not None}
        dead = dead_rows(files, snapshot.filesystem, threads=session.threads) if sights else {}
        scan = Scan(session, snapshot, tuple(files), schema, numbers, sights, dead)
        scan._write_places()
        scan._write_dead()
        return scan

    def live(self, file: DataFile) -> pa.Int64Array | None:
        """The positions of rows that are not dead; None is all of them."""
        dead = self.dead.get(file.path)
        return None if dead is None else live_rows(file, dead)

    def _write_places(self) -> None:
        """The values that files have from elsewhere, such as their directories, for SQL to look up."""
        columns = [each for each in self.snapshot.partition_columns if each in self.schema.names]
        told = {each for seen in self.sights.values() for each in seen.told}
        columns += [each for each in self.schema.names if each in told]
        known = [each for each in columns if sql_type(self.schema.field(each).type) is not None]
        table = pa.table({FILE: pa.array(range(len(self.files)), pa.int64())})
        for each in known:
            kind = self.schema.field(each).type
            plain = kind.value_type if pa.types.is_dictionary(kind) else kind
            table = table.append_column(each, pa.array([self._told(f, each) for f in self.files], plain))
        with self.session.view(table) as view:
            self.session.run(f"CREATE OR REPLACE TABLE {self.session.table(_PLACES)} AS FROM {view}")

    def _told(self, file: DataFile, column: str) -> Any:
        seen = self.sights.get(file.path)
        return file.partition.get(column) if seen is None else seen.told.get(column)

    def _write_dead(self) -> None:
        """The rows that were deleted, by file and place."""
        if not self.dead:
            return
        rows = [
            pa.table({FILE: pa.repeat(pa.scalar(self.numbers[path], pa.int64()), len(dead)), POS: dead})
            for path, dead in self.dead.items()
        ]
        with self.session.view(pa.concat_tables(rows)) as view:
            self.session.run(f"CREATE OR REPLACE TABLE {self.session.table(_DEAD)} AS FROM {view}")

    def sql(
        self, columns: Sequence[str], files: Sequence[DataFile] | None = None, *, keys: bool = False
    ) -> str:
        """The columns of some of the files, or of all, with the number of the file and the row's place.

        Of ``keys`` no statistic that might be wrong decides whether a row is looked at.
        """
        chosen = self.files if files is None else files
        groups: dict[_Form, list[DataFile]] = {}
        for file in chosen:
            groups.setdefault(self._form(file, columns), []).append(file)
        parts = [self._part(form, members, columns, keys) for form, members in groups.items()]
        return " UNION ALL ".join(parts) if parts else self._nothing(columns)

    def within(self, looked_at: Sequence[tuple[DataFile, Sequence[int]]]) -> str | None:
        """A condition that leaves out all row groups of files but those named; None where all are named."""
        parts, some = [], False
        for file, row_groups in looked_at:
            ranges = _ranges(file, row_groups)
            number = f"{name(FILE)} = {self.numbers[file.path]}"
            some = some or ranges != [(0, file.records)]
            for start, stop in ranges:
                parts.append(f"({number} AND {name(POS)} >= {start} AND {name(POS)} < {stop})")
        return (" OR ".join(parts) or "FALSE") if some else None

    def _form(self, file: DataFile, columns: Sequence[str]) -> _Form:
        """Per column where it comes from."""
        seen = self.sights.get(file.path) or sight(file, columns, self.schema)
        origins = []
        for column in columns:
            own = seen.held.get(column)
            kind = "" if own is None else _UUID if _is_uuid(file, own) else _read_as(own.type)
            origins.append(_Origin("" if own is None else own.name, kind, column in seen.told))
        return _Form(tuple(origins), file.path in self.dead)

    def _part(self, form: _Form, files: Sequence[DataFile], columns: Sequence[str], keys: bool) -> str:
        session, filesystem = self.session, self.snapshot.filesystem
        locations = listed(session.location(filesystem, file.location) for file in files)
        numbers = [self.numbers[file.path] for file in files]
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            number = f"t.file_index::BIGINT + {numbers[0]}"
        else:
            number = f"({listed(map(str, numbers))}::BIGINT[])[t.file_index::BIGINT + 1]"
        chosen = [f"{number} AS {name(FILE)}", f"t.file_row_number AS {name(POS)}"]
        for column, origin in zip(columns, form.origins, strict=True):
            chosen.append(f"{self._value(column, origin, files, keys)} AS {name(column)}")
        sql = f"SELECT {', '.join(chosen)} FROM read_parquet({locations}, hive_partitioning=false) t"
        if any(origin.told for origin in form.origins):
            sql += f" JOIN {session.table(_PLACES)} p ON p.{name(FILE)} = {number}"
        if form.some_dead:
            sql += f" ANTI JOIN {session.table(_DEAD)} d ON d.{name(FILE)} = {number}"
            sql += f" AND d.{name(POS)} = t.file_row_number"
        return sql

    def values(self, file: DataFile, columns: Sequence[str]) -> list[tuple[str, str]]:
        """Columns that a file stores, or lacks, each with the expression that gives it, of ``t``."""
        origins = self._form(file, columns).origins
        return [
            (column, self._value(column, origin, [file], keys=False))
            for column, origin in zip(columns, origins, strict=True)
        ]

    def _value(self, column: str, origin: _Origin, files: Sequence[DataFile], keys: bool) -> str:
        kind = self.schema.field(column).type
        wanted = sql_type(kind)
        if not origin.own:
            return self._stand_in(column) if origin.told else f"CAST(NULL AS {wanted})"
        value = f"t.{name(origin.own)}"
        if keys and not self._proven(column, files):
            # Not a bare column, so that DuckDB prunes nothing by it; and of what else it might be, DuckDB
            # knows nothing, so that it does not take the bounds for those of the expression, either.
            other = f"CAST(error('no place') AS {origin.kind})"
            value = f"CASE WHEN t.file_row_number >= 0 THEN {value} ELSE {other} END"
        if origin.kind == _UUID:
            return f"from_hex(replace(CAST({value} AS VARCHAR), '-', ''))"
        same = origin.kind == wanted or (keys and origin.kind == _read_as(kind))
        value = value if same else f"CAST({value} AS {wanted})"
        return f"COALESCE({value}, {self._stand_in(column)})" if origin.told else value

    def _stand_in(self, column: str) -> str:
        """What is told of a column; the identity of a row is counted from that of the file's first."""
        return f"(p.{name(column)} + t.file_row_number)" if column == ROW_ID else f"p.{name(column)}"

    def _proven(self, column: str, files: Sequence[DataFile]) -> bool:
        """Whether the statistics of a column are such that rows may be passed over by them."""
        kind = self.schema.field(column).type
        if float_kind(kind):
            return False
        bounds = bounds_of(files, column, kind)
        known = pc.and_(pc.is_valid(bounds.lower), pc.is_valid(bounds.upper))
        empty = pc.equal(bounds.rows, pc.fill_null(bounds.null_count, -1))
        return bool(pc.all(pc.or_(known, empty)).as_py())

    def _nothing(self, columns: Sequence[str]) -> str:
        kinds = [
            f"CAST(NULL AS {sql_type(self.schema.field(each).type)}) AS {name(each)}" for each in columns
        ]
        own = [f"0::BIGINT AS {name(FILE)}", f"0::BIGINT AS {name(POS)}"]
        return f"SELECT {', '.join([*own, *kinds])} WHERE false"


def _ranges(file: DataFile, row_groups: Sequence[int]) -> list[tuple[int, int]]:
    """The positions that some row groups of a file take, adjacent ones together."""
    assert file.footer is not None
    sizes = (file.footer.row_group(group).num_rows for group in range(file.footer.num_row_groups))
    starts = list(accumulate(sizes, initial=0))
    wanted = set(row_groups)
    ranges: list[tuple[int, int]] = []
    for group, (start, stop) in enumerate(pairwise(starts)):
        if group not in wanted:
            continue
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, stop))
    return ranges
