"""Data files as relations of SQL, in the dataset's own types; says which files DuckDB cannot read exactly."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.core.bounds import bounds_of
from intarsia.core.files import DataFile, Snapshot
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
_PLACES = "places"
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
    int96 = {
        leaf.path.split(".", 1)[0]
        for leaf in (file.footer.schema.column(n) for n in range(len(file.footer.schema)))
        if leaf.physical_type == "INT96"
    }
    for column in columns:
        wanted = schema.field(column).type
        if sql_type(wanted) is None:
            return f"DuckDB has no type for {column!r} ({wanted})"
        if column in int96:
            return f"{column!r} is stored as INT96"
        if column in physical.names and column in file.partition:
            return f"{column!r} is stored in the file and in its path, which have to agree"
        if column in physical.names:
            stored = physical.field(column).type
            if not _widens(stored, wanted):
                return f"{column!r} is stored as {stored}, not as {wanted}"
            if not _in_microseconds(file.footer, column):
                return f"{column!r} may hold times beyond those of DuckDB"
    return None


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
class Scan:
    """Reads some files of a snapshot; a file's number is its place among them."""

    session: Session
    snapshot: Snapshot
    files: tuple[DataFile, ...]
    schema: pa.Schema
    """The types that columns are given back in."""
    numbers: dict[str, int] = field(repr=False)

    @staticmethod
    def of(session: Session, snapshot: Snapshot, files: Sequence[DataFile], schema: pa.Schema) -> Scan:
        scan = Scan(session, snapshot, tuple(files), schema, {file.path: n for n, file in enumerate(files)})
        scan._write_places()
        return scan

    def _write_places(self) -> None:
        """The values that files have from their directories, for SQL to look up."""
        columns = [each for each in self.snapshot.partition_columns if each in self.schema.names]
        known = [each for each in columns if sql_type(self.schema.field(each).type) is not None]
        table = pa.table({FILE: pa.array(range(len(self.files)), pa.int64())})
        for each in known:
            kind = self.schema.field(each).type
            plain = kind.value_type if pa.types.is_dictionary(kind) else kind
            values = [file.partition.get(each) for file in self.files]
            table = table.append_column(each, pa.array(values, plain))
        with self.session.view(table) as view:
            self.session.run(f"CREATE OR REPLACE TABLE {self.session.table(_PLACES)} AS FROM {view}")

    def sql(
        self, columns: Sequence[str], files: Sequence[DataFile] | None = None, *, keys: bool = False
    ) -> str:
        """The columns of some of the files, or of all, with the number of the file and the row's place.

        Of ``keys`` no statistic that might be wrong decides whether a row is looked at.
        """
        chosen = self.files if files is None else files
        groups: dict[tuple[tuple[str, str], ...], list[DataFile]] = {}
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
            some = some or ranges != [(0, file.rows)]
            for start, stop in ranges:
                parts.append(f"({number} AND {name(POS)} >= {start} AND {name(POS)} < {stop})")
        return (" OR ".join(parts) or "FALSE") if some else None

    def _form(self, file: DataFile, columns: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """Per column where it comes from: the file, with its type, its directory, or nowhere."""
        assert file.footer is not None
        physical = file.footer.schema.to_arrow_schema()
        form = []
        for column in columns:
            if column in file.partition:
                form.append((column, "place"))
            elif column in physical.names:
                form.append((column, _read_as(physical.field(column).type)))
            else:
                form.append((column, "absent"))
        return tuple(form)

    def _part(
        self, form: tuple[tuple[str, str], ...], files: Sequence[DataFile], columns: Sequence[str], keys: bool
    ) -> str:
        session, filesystem = self.session, self.snapshot.filesystem
        locations = listed(session.location(filesystem, file.location) for file in files)
        numbers = [self.numbers[file.path] for file in files]
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            number = f"t.file_index::BIGINT + {numbers[0]}"
        else:
            number = f"({listed(map(str, numbers))}::BIGINT[])[t.file_index::BIGINT + 1]"
        chosen = [f"{number} AS {name(FILE)}", f"t.file_row_number AS {name(POS)}"]
        for column, origin in form:
            chosen.append(f"{self._value(column, origin, files, keys)} AS {name(column)}")
        sql = f"SELECT {', '.join(chosen)} FROM read_parquet({locations}, hive_partitioning=false) t"
        if any(origin == "place" for _, origin in form):
            sql += f" JOIN {session.table(_PLACES)} p ON p.{name(FILE)} = {number}"
        return sql

    def values(self, file: DataFile, columns: Sequence[str]) -> list[tuple[str, str]]:
        """Columns that a file stores, or lacks, each with the expression that gives it, of ``t``."""
        form = self._form(file, columns)
        return [(column, self._value(column, origin, [file], keys=False)) for column, origin in form]

    def _value(self, column: str, origin: str, files: Sequence[DataFile], keys: bool) -> str:
        kind = self.schema.field(column).type
        wanted = sql_type(kind)
        if origin == "absent":
            return f"CAST(NULL AS {wanted})"
        if origin == "place":
            return f"p.{name(column)}"
        value = f"t.{name(column)}"
        if keys and not self._proven(column, files):
            # Not a bare column, so that DuckDB prunes nothing by it; and of what else it might be, DuckDB
            # knows nothing, so that it does not take the bounds for those of the expression, either.
            other = f"CAST(error('no place') AS {origin})"
            value = f"CASE WHEN t.file_row_number >= 0 THEN {value} ELSE {other} END"
        same = origin == wanted or (keys and origin == _read_as(kind))
        return value if same else f"CAST({value} AS {wanted})"

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
