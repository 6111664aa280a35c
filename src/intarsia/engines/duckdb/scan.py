"""Data files as SQL relations, in the types of the dataset, without deleted rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from intarsia.common.python_values import make_array, make_scalar
from intarsia.core.keys import arange
from intarsia.core.plan import Plan
from intarsia.core.ports import LINEAGE, ROW_ID, with_lineage
from intarsia.core.prune import read_bounds
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.sql import FILE, POS, find_sql_type, quote, quote_list
from intarsia.kernel.read import FileReader
from intarsia.kernel.threads import map_in_order

__all__ = [
    "UUID",
    "Scan",
    "StoredColumns",
    "find_columns",
    "find_physical_names",
    "is_float",
    "is_uuid",
    "list_live_rows",
    "make_rewritten_schema",
    "number_rows",
    "read_deleted_rows",
    "split_by_file",
]

_CONSTANTS, _DELETED = "constants", "deleted"
UUID = "UUID"


def is_uuid(file: DataFile, own: pa.Field) -> bool:
    """Whether DuckDB reads a column of bytes as UUIDs."""
    kind = own.type.storage_type if isinstance(own.type, pa.UuidType) else own.type
    if file.footer is None or not (pa.types.is_fixed_size_binary(kind) and kind.byte_width == 16):
        return False
    leaves = (file.footer.schema.column(number) for number in range(len(file.footer.schema)))
    return any(leaf.path == own.name and leaf.logical_type.type == UUID for leaf in leaves)


def _find_read_type(kind: pa.DataType) -> str:
    """The type in which DuckDB reads a column: it has microseconds for coarser timestamps."""
    return str(find_sql_type(kind)).replace("TIMESTAMP_MS", "TIMESTAMP").replace("TIMESTAMP_S", "TIMESTAMP")


def is_float(kind: pa.DataType) -> bool:
    """Whether values may be NaN, which statistics of Parquet files leave out."""
    return bool(pa.types.is_floating(kind.value_type if pa.types.is_dictionary(kind) else kind))


@dataclass(frozen=True, slots=True)
class ColumnOrigin:
    """The origin of a column: a column of the file, with its type, or a constant; else it is NULL."""

    own: str = ""
    kind: str = ""
    has_constant: bool = False


@dataclass(frozen=True, slots=True)
class ReadForm:
    """What the files of one ``read_parquet`` have in common."""

    origins: tuple[ColumnOrigin, ...]
    some_deleted: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """Some files of a snapshot as SQL; a file's number is its index among them. Deleted rows are left out."""

    session: Session
    snapshot: Snapshot
    files: tuple[DataFile, ...]
    schema: pa.Schema
    """The types of the columns."""
    numbers: dict[str, int] = field(repr=False)
    stored_columns: Mapping[str, StoredColumns] = field(default_factory=dict, repr=False)
    """By path, for files that have a scan task."""
    deleted: Mapping[str, pa.Int64Array] = field(default_factory=dict, repr=False)
    tag: str = ""
    """Tells its tables from those of other scans of the session."""

    @staticmethod
    def of(
        session: Session,
        snapshot: Snapshot,
        files: Sequence[DataFile],
        schema: pa.Schema,
        *,
        columns: Collection[str] | None = None,
        tag: str = "",
    ) -> Scan:
        """``columns`` are all that will be read; those of the schema if None. Each ``tag`` is one scan."""
        names = schema.names if columns is None else tuple(dict.fromkeys(columns))
        numbers = {file.path: number for number, file in enumerate(files)}
        stored_columns = {
            file.path: find_columns(file, names, schema) for file in files if file.scan_task is not None
        }
        deleted = (
            read_deleted_rows(files, snapshot.filesystem, threads=session.threads) if stored_columns else {}
        )
        scan = Scan(session, snapshot, tuple(files), schema, numbers, stored_columns, deleted, tag)
        scan._write_constants()
        scan._write_deleted()
        return scan

    def _name_table(self, name: str) -> str:
        return self.session.name_table(f"{name}{self.tag}")

    def list_live(self, file: DataFile) -> pa.Int64Array | None:
        """The positions of rows that are not deleted; None is all of them."""
        deleted = self.deleted.get(file.path)
        return None if deleted is None else list_live_rows(file, deleted)

    def _write_constants(self) -> None:
        """Write a table of the values that are not stored in files, such as those of their directories."""
        columns = [each for each in self.snapshot.partition_columns if each in self.schema.names]
        constants = {each for seen in self.stored_columns.values() for each in seen.constants}
        columns += [each for each in self.schema.names if each in constants]
        known = [each for each in columns if find_sql_type(self.schema.field(each).type) is not None]
        table = pa.table({FILE: make_array(range(len(self.files)), pa.int64())})
        for each in known:
            kind = self.schema.field(each).type
            plain = kind.value_type if pa.types.is_dictionary(kind) else kind
            table = table.append_column(
                each, make_array([self._find_constant(f, each) for f in self.files], plain)
            )
        with self.session.register_view(table) as view:
            self.session.run(f"CREATE OR REPLACE TABLE {self._name_table(_CONSTANTS)} AS FROM {view}")

    def _find_constant(self, file: DataFile, column: str) -> Any:
        seen = self.stored_columns.get(file.path)
        return file.partition.get(column) if seen is None else seen.constants.get(column)

    def _write_deleted(self) -> None:
        """Write a table of the deleted rows, by file and position."""
        if not self.deleted:
            return
        rows = [
            pa.table(
                {FILE: pa.repeat(make_scalar(self.numbers[path], pa.int64()), len(deleted)), POS: deleted}
            )
            for path, deleted in self.deleted.items()
        ]
        with self.session.register_view(pa.concat_tables(rows)) as view:
            self.session.run(f"CREATE OR REPLACE TABLE {self._name_table(_DELETED)} AS FROM {view}")

    def make_sql(
        self, columns: Sequence[str], files: Sequence[DataFile] | None = None, *, keys: bool = False
    ) -> str:
        """SQL for columns of some of the files, or of all, with the number of the file and the position.

        With ``keys``, DuckDB prunes no rows by statistics that might be wrong.
        """
        chosen = self.files if files is None else files
        groups: dict[ReadForm, list[DataFile]] = {}
        for file in chosen:
            groups.setdefault(self._find_form(file, columns), []).append(file)
        parts = [self._select_files(form, members, columns, keys) for form, members in groups.items()]
        return " UNION ALL ".join(parts) if parts else self._select_nothing(columns)

    def select_row_groups(self, looked_at: Sequence[tuple[DataFile, Sequence[int]]]) -> str | None:
        """A condition for some row groups of files; None if these are all."""
        parts, some = [], False
        for file, row_groups in looked_at:
            ranges = _find_position_ranges(file, row_groups)
            number = f"{quote(FILE)} = {self.numbers[file.path]}"
            some = some or ranges != [(0, file.record_count)]
            for start, stop in ranges:
                parts.append(f"({number} AND {quote(POS)} >= {start} AND {quote(POS)} < {stop})")
        return (" OR ".join(parts) or "FALSE") if some else None

    def _find_form(self, file: DataFile, columns: Sequence[str]) -> ReadForm:
        """The origin of each column."""
        seen = self.stored_columns.get(file.path) or find_columns(file, columns, self.schema)
        origins = []
        for column in columns:
            own = seen.stored.get(column)
            kind = "" if own is None else UUID if is_uuid(file, own) else _find_read_type(own.type)
            origins.append(ColumnOrigin("" if own is None else own.name, kind, column in seen.constants))
        return ReadForm(tuple(origins), file.path in self.deleted)

    def _select_files(
        self, form: ReadForm, files: Sequence[DataFile], columns: Sequence[str], keys: bool
    ) -> str:
        session, filesystem = self.session, self.snapshot.filesystem
        locations = quote_list(session.quote_location(filesystem, file.location) for file in files)
        numbers = [self.numbers[file.path] for file in files]
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            number = f"t.file_index::BIGINT + {numbers[0]}"
        else:
            number = f"({quote_list(map(str, numbers))}::BIGINT[])[t.file_index::BIGINT + 1]"
        chosen = [f"{number} AS {quote(FILE)}", f"t.file_row_number AS {quote(POS)}"]
        for column, origin in zip(columns, form.origins, strict=True):
            chosen.append(f"{self._select_value(column, origin, files, keys)} AS {quote(column)}")
        sql = f"SELECT {', '.join(chosen)} FROM read_parquet({locations}, hive_partitioning=false) t"
        if any(origin.has_constant for origin in form.origins):
            sql += f" JOIN {self._name_table(_CONSTANTS)} p ON p.{quote(FILE)} = {number}"
        if form.some_deleted:
            sql += f" ANTI JOIN {self._name_table(_DELETED)} d ON d.{quote(FILE)} = {number}"
            sql += f" AND d.{quote(POS)} = t.file_row_number"
        return sql

    def _select_value(self, column: str, origin: ColumnOrigin, files: Sequence[DataFile], keys: bool) -> str:
        kind = self.schema.field(column).type
        wanted = find_sql_type(kind)
        if not origin.own:
            return self._select_constant(column) if origin.has_constant else f"CAST(NULL AS {wanted})"
        value = f"t.{quote(origin.own)}"
        if keys and not self._has_bounds(column, files):
            # An expression, so that DuckDB does not prune by the column's statistics. DuckDB knows no bounds
            # of the ELSE branch, so it does not derive bounds of the expression, either.
            other = f"CAST(error('no place') AS {origin.kind})"
            value = f"CASE WHEN t.file_row_number >= 0 THEN {value} ELSE {other} END"
        if origin.kind == UUID:
            return f"from_hex(replace(CAST({value} AS VARCHAR), '-', ''))"
        same = origin.kind == wanted or (keys and origin.kind == _find_read_type(kind))
        value = value if same else f"CAST({value} AS {wanted})"
        return f"COALESCE({value}, {self._select_constant(column)})" if origin.has_constant else value

    def _select_constant(self, column: str) -> str:
        """SQL for the constant of a column; row ids are counted from the id of the file's first row."""
        return f"(p.{quote(column)} + t.file_row_number)" if column == ROW_ID else f"p.{quote(column)}"

    def _has_bounds(self, column: str, files: Sequence[DataFile]) -> bool:
        """Whether rows may be pruned by the statistics of a column."""
        kind = self.schema.field(column).type
        if is_float(kind):
            return False
        bounds = read_bounds(files, column, kind)
        known = pc.and_(pc.is_valid(bounds.lower), pc.is_valid(bounds.upper))
        empty = pc.equal(bounds.rows, pc.fill_null(bounds.null_count, make_scalar(-1)))
        return bool(pc.all(pc.or_(known, empty)).as_py())

    def _select_nothing(self, columns: Sequence[str]) -> str:
        kinds = [
            f"CAST(NULL AS {find_sql_type(self.schema.field(each).type)}) AS {quote(each)}"
            for each in columns
        ]
        own = [f"0::BIGINT AS {quote(FILE)}", f"0::BIGINT AS {quote(POS)}"]
        return f"SELECT {', '.join([*own, *kinds])} WHERE false"


def _find_position_ranges(file: DataFile, row_groups: Sequence[int]) -> list[tuple[int, int]]:
    """The ranges of positions of some row groups of a file; adjacent ones are joined."""
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


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """Some columns of a table in one file; one that is neither stored nor constant is NULL."""

    stored: Mapping[str, pa.Field]
    """The columns of the file."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """The value of all rows; of row ids, that of the first row."""


def make_rewritten_schema(plan: Plan) -> pa.Schema:
    """The columns of rows that are rewritten, with row lineage where the table keeps it."""
    return with_lineage(plan.schema) if plan.snapshot.format.keeps_row_ids else plan.schema


def find_columns(file: DataFile, columns: Iterable[str], schema: pa.Schema) -> StoredColumns:
    """Where some columns of ``schema`` are in a file whose footer is known.

    Raises as reading them does: DamagedTable for a column that is required and nowhere, or whose type in
    the file cannot become the table's.
    """
    assert file.footer is not None
    physical = file.footer.schema.to_arrow_schema()
    names = list(columns)
    if file.scan_task is None:
        constants = {each: file.partition[each] for each in names if each in file.partition}
        own_names = set(physical.names) - constants.keys()
        stored = {each: physical.field(each) for each in names if each in own_names}
        return StoredColumns(stored, constants)
    view = file.scan_task.project_columns(physical, schema)
    own = {each: view.list_physical_columns([each]) for each in names}
    stored = {each: physical.field(theirs[0]) for each, theirs in own.items() if theirs}
    # Projecting one row of NULLs gives the values of columns that are not stored.
    nothing = {known.name: pa.nulls(1, known.type) for known in stored.values()} or {"": pa.nulls(1)}
    row = view.project(pa.table(nothing), names, start=0)
    constants = {each: row[each][0] for each in names if each not in stored or each in LINEAGE}
    return StoredColumns(stored, {each: value for each, value in constants.items() if value.is_valid})


def find_physical_names(file: DataFile, columns: Collection[str]) -> frozenset[str]:
    """The names of some columns of a table in a file, as far as it stores them."""
    if file.scan_task is None or file.footer is None:
        return frozenset(columns)
    view = file.scan_task.project_columns(file.footer.schema.to_arrow_schema(), pa.schema([]))
    return frozenset(view.list_physical_columns(list(columns)))


def read_deleted_rows(
    files: Sequence[DataFile], filesystem: pafs.FileSystem, *, threads: int
) -> dict[str, pa.Int64Array]:
    """The positions of deleted rows, ascending, by the path of each file that has any."""

    def look(file: DataFile) -> pa.Int64Array | None:
        with FileReader(file, pa.schema([]), filesystem) as reader:
            return reader.deleted

    some = [file for file in files if file.scan_task is not None and file.scan_task.has_deletes]
    found = map_in_order(look, some, threads=max(1, min(threads, len(some))))
    pairs = zip(some, found, strict=True)
    return {file.path: rows for file, rows in pairs if rows is not None and len(rows)}


def list_live_rows(file: DataFile, deleted: pa.Int64Array | None) -> pa.Int64Array:
    """The positions of the live rows of a file."""
    rows = arange(file.record_count)
    return rows if deleted is None else rows.filter(pc.invert(pc.is_in(rows, value_set=deleted)))


def number_rows(files: Sequence[DataFile], numbers: pa.Array, positions: pa.Array) -> pa.Int64Array:
    """Row numbers over all files, of rows that are given by file number and position."""
    bases = make_array(list(accumulate((file.record_count for file in files), initial=0)), pa.int64())
    return pc.add(bases.take(numbers), positions)


def split_by_file(files: Sequence[DataFile], found: Iterable[pa.Int64Array]) -> list[pa.Int64Array]:
    """For each file the positions found, ascending, from numbers over all of the files.

    Memory: 8 bytes per row found, twice.
    """
    rows = pa.concat_arrays([pa.nulls(0, pa.int64()), *found])
    if not pc.all(pc.less(rows.slice(0, max(len(rows) - 1, 0)), rows.slice(1)), min_count=0).as_py():
        rows = rows.take(pc.array_sort_indices(rows))
    edges = list(accumulate((file.record_count for file in files), initial=0))
    cuts = pc.search_sorted(rows, make_array(edges, pa.int64())).to_pylist()
    return [
        pc.subtract(rows.slice(low, high - low), make_scalar(base, pa.int64()))
        for base, low, high in zip(edges, cuts, cuts[1:], strict=False)
    ]
