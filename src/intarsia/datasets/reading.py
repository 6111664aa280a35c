"""One consistent state of a Parquet dataset read into Arrow, file by file; writes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.log import get_logger
from intarsia.common.names import check_columns, suggest_names
from intarsia.core.evaluate import evaluate_mask
from intarsia.core.expr import And, Column, Compare, Expr, In, Not, Or, find_columns, make_literal, resolve
from intarsia.core.incremental import make_files_snapshot
from intarsia.core.merge import list_column_names
from intarsia.core.prove import Verdict, judge_files
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.errors import (
    ColumnNotFound,
    DamagedTable,
    InputError,
    NothingMatched,
    SchemaMismatch,
    StorageError,
)
from intarsia.kernel.read import FileReader
from intarsia.kernel.threads import map_in_order
from intarsia.options import check_whole
from intarsia.sql.parse import parse_predicate
from intarsia.tables.parquet import ParquetTable

log = get_logger(__name__)

FILE_PATH = "file_path"


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The arguments of ``read_parquet``: columns, filter and how to read, as they were given."""

    columns: str | Sequence[str] | None = None
    filters: Any = None
    include_file_path: bool = False
    use_threads: bool = True
    batch_rows: int | None = None
    dialect: str | None = None

    def __post_init__(self) -> None:
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(list_column_names(self.columns, "columns")))
        check_whole("batch_rows", self.batch_rows)


class RowReader(Protocol):
    """Reads the rows of a scan: with PyArrow in this process, or with an engine. Used once, in a ``with``."""

    def __enter__(self) -> RowReader: ...

    def __exit__(self, *_: object) -> None: ...

    def read_rows(self, task: DatasetScan) -> Iterator[pa.Table]:
        """The rows asked for, in the order of files and of the rows in them."""


def read_dataset(
    table: ParquetTable, wanted: ReadRequest, reader: Callable[[], RowReader] | None = None
) -> pa.Table:
    """One consistent state of a dataset, or of a single file, as a table.

    Memory: the rows and columns that are asked for, and a piece of a file per thread. A dataset that
    is changed meanwhile is read again, from hard links to its files. ``reader`` makes the reader; by default
    it is PyArrow.

    Raises:
        NothingMatched: there is no such path.
        ColumnNotFound, InputError: a column or the filter does not fit the dataset.
    """
    make = reader or ArrowRows
    snapshot = read_snapshot(table)
    try:
        result = _read(snapshot, wanted, make)
        changed = _find_changed(table, snapshot)
    except (DamagedTable, StorageError):
        if not (changed := _find_changed(table, snapshot)):
            raise
        result = None
    if result is not None and not changed:
        return result
    log.info("read %s: reading again, %s has changed", table.root, changed)
    with table.materialise() as linked:
        return _read(linked.snapshot, wanted, make)


def read_snapshot(table: ParquetTable) -> Snapshot:
    """The snapshot to read: a dataset's, or that of a single file. Raises NothingMatched without either."""
    found = table.storage.stat(table.control.root)
    if found is not None and found.kind == "file":
        return _read_one_file(table)
    if found is not None or table.control.exists():
        snapshot = table.snapshot()
        if snapshot.exists:
            return snapshot
    raise NothingMatched(f"There is no dataset at {table.root}.", path=table.root)


def _read_one_file(table: ParquetTable) -> Snapshot:
    snapshot = make_files_snapshot([table.control.root], (), filesystem=table.storage.filesystem)
    return snapshot.with_files(replace(file, path=table.root) for file in snapshot.files)


def _find_changed(table: ParquetTable, snapshot: Snapshot) -> str | None:
    """The path of a file that was replaced since the snapshot; None where there is none."""
    for file in snapshot.files:
        if not file.fingerprint:  # a file on its own
            continue
        entry = table.storage.stat(file.location)
        if entry is None or entry.fingerprint != file.fingerprint:
            return file.path
    return None


def _read(snapshot: Snapshot, wanted: ReadRequest, make: Callable[[], RowReader]) -> pa.Table:
    task = DatasetScan.of(snapshot, wanted)
    with make() as reader:
        return pa.concat_tables([pa.Table.from_batches([], task.schema), *reader.read_rows(task)])


class ArrowRows:
    """Reads with Arrow, files in parallel threads."""

    def __enter__(self) -> ArrowRows:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def read_rows(self, task: DatasetScan) -> Iterator[pa.Table]:
        threads = (os.cpu_count() or 1) if task.wanted.use_threads else 1
        for tables in map_in_order(task.read, task.list_files(), threads=threads):
            yield from tables


@dataclass(frozen=True, slots=True)
class DatasetScan:
    """A read request resolved against one snapshot."""

    snapshot: Snapshot
    columns: tuple[str, ...]
    """The columns of the result, without ``file_path``."""
    needed: tuple[str, ...]
    """The columns that are read: those of the result and of the filter."""
    where: Any
    wanted: ReadRequest

    @staticmethod
    def of(snapshot: Snapshot, wanted: ReadRequest) -> DatasetScan:
        schema = snapshot.schema
        names = schema.names if wanted.columns is None else list(wanted.columns)
        if not snapshot.has_schema:  # without files or a log there is no schema to check names with
            empty = pa.schema([(name, pa.null()) for name in names])
            return DatasetScan(replace(snapshot, schema=empty), tuple(names), (), None, wanted)
        _check_names(names, wanted, snapshot)
        where = parse_filters(wanted.filters, schema, dialect=wanted.dialect)
        used = {*names, *list_filter_columns(where, schema)}
        needed = tuple(name for name in schema.names if name in used)
        return DatasetScan(snapshot, tuple(names), needed, where, wanted)

    @property
    def schema(self) -> pa.Schema:
        fields = [self.snapshot.schema.field(name) for name in self.columns]
        extra = [pa.field(FILE_PATH, pa.string())] if self.wanted.include_file_path else []
        return pa.schema([*fields, *extra], self.snapshot.schema.metadata)

    def list_files(self) -> list[tuple[DataFile, Verdict]]:
        """The files that may have rows for the filter, by their partition and bounds."""
        if isinstance(self.where, pc.Expression):
            return [(file, verdict) for file, verdict in self._judge_all() if self._may_partition_match(file)]
        return [(file, verdict) for file, verdict in self._judge_all() if not verdict.never]

    def _judge_all(self) -> list[tuple[DataFile, Verdict]]:
        return list(zip(self.snapshot.files, judge_files(self.where, self.snapshot), strict=True))

    def _may_partition_match(self, file: DataFile) -> bool:
        """Whether a file's partition may satisfy a pyarrow expression; True where it reads other columns."""
        schema = self.snapshot.schema
        used = list_filter_columns(self.where, schema)
        if not used or any(name not in file.partition for name in used):
            return True
        row = pa.table(
            {
                name: pa.array([file.partition[name]], _unwrap_dictionary(schema.field(name).type))
                for name in used
            }
        )
        return bool(filter_rows(row, self.where).num_rows)

    def read(self, item: tuple[DataFile, Verdict]) -> list[pa.Table]:
        """The rows and columns of one file."""
        return list(self.read_pieces(item))

    def read_pieces(self, item: tuple[DataFile, Verdict]) -> Iterator[pa.Table]:
        """The rows and columns of one file, piece by piece."""
        file, verdict = item
        with FileReader(file, self.snapshot.schema, self.snapshot.filesystem) as reader:
            for group in verdict.row_groups:
                for piece in reader.read_pieces(self.needed, group, batch_rows=self.wanted.batch_rows):
                    kept = piece if self.where is None else filter_rows(piece, self.where)
                    yield self._finish(kept, file)

    def show_path(self, file: DataFile) -> str:
        """The value of ``file_path`` for a file."""
        return self.snapshot.show_path(file) if self.snapshot.root else file.path

    def _finish(self, piece: pa.Table, file: DataFile) -> pa.Table:
        columns = [piece[name] for name in self.columns]
        if self.wanted.include_file_path:
            shown = pa.scalar(self.show_path(file), pa.string())
            columns.append(pa.chunked_array([pa.repeat(shown, piece.num_rows)]))
        return pa.Table.from_arrays(columns, schema=self.schema)


def _check_names(names: Sequence[str], wanted: ReadRequest, snapshot: Snapshot) -> None:
    check_columns(names, snapshot.schema.names, operation="read_parquet", path=snapshot.root)
    if wanted.include_file_path and FILE_PATH in snapshot.schema.names:
        raise InputError(
            f"read_parquet: {snapshot.root} has a column {FILE_PATH!r} of its own.",
            path=snapshot.root,
            hint="read it without include_file_path.",
        )


def _unwrap_dictionary(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def parse_filters(filters: Any, schema: pa.Schema, *, dialect: str | None = None) -> Any:
    """A filter as an expression: SQL text, tuples as ``pyarrow.parquet`` takes them, or one of pyarrow's.

    Raises:
        InputError: it is something else.
        ColumnNotFound: it names a column that is not there.
    """
    if filters is None or isinstance(filters, pc.Expression):
        return filters
    if isinstance(filters, str):
        return resolve(parse_predicate(filters, dialect=dialect), schema, expect=pa.bool_())
    return resolve(_parse_disjunction(filters, schema), schema, expect=pa.bool_())


def _parse_disjunction(filters: Any, schema: pa.Schema) -> Expr:
    """A list of lists as OR of ANDs; a flat list is one AND."""
    if isinstance(filters, tuple) and filters and isinstance(filters[0], str):
        filters = [filters]
    if not isinstance(filters, (list, tuple)):
        raise InputError(
            f"filters must be SQL text, a list of (column, operator, value), or a pyarrow.compute expression,"
            f" not {filters!r}.",
            hint='such as [("day", ">=", "2025-01-01")].',
        )
    alternatives = list(filters)
    if not alternatives:
        raise InputError("filters is an empty list.", hint="leave it out to read every row.")
    if not any(isinstance(part, list) for part in alternatives):
        alternatives = [alternatives]
    return _join(
        Or, [_join(And, [_parse_condition(part, schema) for part in parts]) for parts in alternatives]
    )


def _join(join: Callable[[Expr, Expr], Expr], parts: Sequence[Expr]) -> Expr:
    if not parts:
        raise InputError("filters holds an empty list of conditions.")
    whole = parts[0]
    for part in parts[1:]:
        whole = join(whole, part)
    return whole


def _parse_condition(part: Any, schema: pa.Schema) -> Expr:
    if not isinstance(part, (tuple, list)) or len(part) != 3:
        raise InputError(
            f"A filter is (column, operator, value), not {part!r}.",
            hint='such as ("day", ">=", "2025-01-01").',
        )
    name, operator, value = part
    if name not in schema.names:
        raise ColumnNotFound(
            f"the filter names column {name!r}, which does not exist.",
            hint=suggest_names([str(name)], schema.names),
        )
    column = Column((name,), exact=True)
    kind = _unwrap_dictionary(schema.field(name).type)
    match operator:
        case "=" | "==":
            return Compare("=", column, _make_constant(value, kind, name))
        case "!=" | "<>":
            return Compare("<>", column, _make_constant(value, kind, name))
        case "<" | "<=" | ">" | ">=":
            return Compare(operator, column, _make_constant(value, kind, name))
        case "in" | "not in":
            isin = In(column, tuple(_make_constant(item, kind, name) for item in value))
            return isin if operator == "in" else Not(isin)
    raise InputError(
        f"There is no filter operator {operator!r}.", hint="there are =, !=, <, <=, >, >=, in, not in."
    )


def _make_constant(value: Any, kind: pa.DataType, name: str) -> Expr:
    """A literal; text for a column of another type is cast, such as a date given as text."""
    try:
        scalar = pa.scalar(value)
        if isinstance(value, str) and scalar.type != kind and not pa.types.is_large_string(kind):
            scalar = _read_text(scalar, kind)
        return make_literal(scalar)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise InputError(f"The filter's {value!r} is no value for column {name!r} ({kind}).") from error


def _read_text(text: pa.Scalar, kind: pa.DataType) -> pa.Scalar:
    """Text cast to a type; a timestamp without an offset is in UTC for a column with a zone, as in SQL."""
    if not (pa.types.is_timestamp(kind) and kind.tz is not None):
        return text.cast(kind)
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return text.cast(pa.timestamp(kind.unit)).cast(kind)


def list_filter_columns(where: Any, schema: pa.Schema) -> list[str]:
    """The columns that a filter reads.

    pyarrow has no way to ask an expression, so every name that is in its text counts; one that is there by
    chance is read needlessly.
    """
    if where is None:
        return []
    if isinstance(where, pc.Expression):
        text = str(where)
        if "FieldPath(" in text:  # by position, which needs all columns in their order
            return list(schema.names)
        return [name for name in schema.names if name in text]
    used = {path[0] for _, path in find_columns(where)}
    return [name for name in schema.names if name in used]


def filter_rows(table: pa.Table, where: Any) -> pa.Table:
    if not isinstance(where, pc.Expression):
        return table.filter(evaluate_mask(where, table))
    try:
        return table.filter(where)
    except pa.ArrowKeyError as error:
        raise ColumnNotFound(f"The filter names a column that is not there: {error}") from error
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        if "No match for FieldRef" in str(error):
            raise ColumnNotFound(f"The filter names a column that is not there: {error}") from error
        raise SchemaMismatch(f"The filter does not fit the columns' types: {error}") from error
