"""Large sources: rows in parts on storage, in the dataset's types, and notes of which of them are meant.

A row has a number, all parts counted through. A note of rows is an Arrow file with a batch per part, in which
rows are counted from the part's first.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.partitions import split_by_partition
from intarsia.common.rows import combine
from intarsia.common.schema import conform_table, is_nested
from intarsia.common.source import select_known
from intarsia.core.expr import find_columns
from intarsia.core.keys import arange, to_array
from intarsia.core.prepare import MergeTerms
from intarsia.core.rule import Insert
from intarsia.core.snapshot import Snapshot
from intarsia.engines.spark.source import Spool, SpoolPart, open_spool_writer
from intarsia.engines.spark.tasks import TaskRunner, make_unreachable_error, wrap_storage_errors
from intarsia.engines.spark.types import from_spark_types, to_spark_type, to_spark_types

SORTED_BYTES = 16 << 20
"""Bytes in memory of a part that are read, and sorted by file, at once."""
ROUTES = pa.schema([("file", pa.int32()), ("row", pa.int64())])
MATCHED = -1
"""In place of a file: the row found a match, and goes nowhere."""


@dataclass(frozen=True, slots=True)
class ArrowStore:
    """A directory of Arrow files, whose batches are read one by one."""

    filesystem: pafs.FileSystem
    directory: str

    def put(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> str:
        """Write a new file, under a name that no other attempt has."""
        location = f"{self.directory}/{uuid.uuid4().hex}.arrow"
        with (
            wrap_storage_errors("write", location),
            self.filesystem.open_output_stream(location) as sink,
            pa.ipc.new_file(sink, schema) as writer,
        ):
            for batch in batches:
                writer.write_batch(batch)
        return location

    def get(self, location: str, numbers: Sequence[int]) -> list[pa.RecordBatch]:
        """Some of a file's batches; on this machine they are mapped."""
        try:
            local = isinstance(self.filesystem, pafs.LocalFileSystem)
            file = pa.memory_map(location) if local else self.filesystem.open_input_file(location)
            reader = pa.ipc.open_file(file)
            return [reader.get_batch(number) for number in numbers]
        except FileNotFoundError as error:
            told = f"An executor does not see {location}, where rows of the source wait."
            raise make_unreachable_error(location, told) from error

    def remove(self, locations: Iterable[str]) -> None:
        """Remove files; what cannot be removed is removed with the source."""
        for location in locations:
            with suppress(OSError):
                self.filesystem.delete_file(location)


@dataclass(frozen=True, slots=True)
class LargeSource:
    """A source on shared storage, in the dataset's types."""

    spool: Spool
    wanted: pa.Schema
    inserting: tuple[str, ...] = ()
    """The columns by which it is decided which rows are new, and where they go."""
    numbers: pa.Array | None = field(default=None, repr=False)
    """The rows that the driver's index is over; None: all of them, or there is no such index."""
    key_files: tuple[str, ...] | None = None
    """The deciding columns in Spark's types with the numbers of rows; None where the driver has an index."""
    kept: tuple[str, ...] | None = None
    """Notes of the only rows that count; None: all of them."""
    rows: int = 0
    """How many rows count."""

    @property
    def row_bytes(self) -> float:
        return self.spool.size / max(self.spool.rows, 1)

    @property
    def size(self) -> int:
        """Bytes in memory of the rows that count."""
        return int(self.row_bytes * self.rows)

    @property
    def store(self) -> ArrowStore:
        return ArrowStore(self.spool.filesystem, self.spool.directory)

    @property
    def starts(self) -> pa.Array:
        """The number of the row with which each part begins."""
        return find_starts(self.spool)


def find_starts(spool: Spool) -> pa.Array:
    """The number of the row with which each part begins."""
    ends = pc.cumulative_sum(pa.array([0, *(part.rows for part in spool.parts)], pa.int64()))
    return ends.slice(0, len(spool.parts))


def route_rows(number: int, rows: pa.Array) -> pa.RecordBatch:
    """Which rows go to one file."""
    return pa.record_batch([pa.repeat(pa.scalar(number, pa.int32()), len(rows)), rows], schema=ROUTES)


def write_routes(store: ArrowStore, routes: Sequence[pa.RecordBatch], starts: pa.Array) -> str:
    """Note which rows go where."""
    files, rows = (to_array(column) for column in pa.Table.from_batches(routes, ROUTES).columns)
    part = pc.subtract(pc.search_sorted(starts, rows, side="right").cast(pa.int64()), 1)
    order = pc.array_sort_indices(part)  # stable: files and rows ascend in each part
    part, files, rows = part.take(order), files.take(order), rows.take(order)
    rows = pc.subtract(rows, starts.take(part))
    edges = [*pc.search_sorted(part, arange(len(starts))).to_pylist(), len(part)]
    whole = pa.record_batch([files, rows], schema=ROUTES)
    return store.put(ROUTES, (whole.slice(begin, end - begin) for begin, end in pairwise(edges)))


# ---------------------------------------------------------------------------------------------------
# Parts, and the types in which they hold rows.


def stored_schema(wanted: pa.Schema) -> pa.Schema:
    """The types in which parts hold rows: those that come back from a file as they were."""
    fields = [one.with_type(to_spark_type(one.type)) if is_special(one.type) else one for one in wanted]
    fields = [
        one.with_type(one.type.value_type) if pa.types.is_dictionary(one.type) else one for one in fields
    ]
    return pa.schema(fields, wanted.metadata)


def is_special(kind: pa.DataType) -> bool:
    """Whether values would not come back from a file as they were; a dictionary by itself can be decoded."""
    if pa.types.is_dictionary(kind):
        return is_special(kind.value_type)
    return _has_special(kind)


def _has_special(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        return True
    return is_nested(kind) and any(_has_special(kind.field(n).type) for n in range(kind.num_fields))


def restore_types(table: pa.Table, wanted: pa.Schema, *, operation: str, path: str) -> pa.Table:
    """Rows of a part, with some of its columns, in the types that were wanted."""
    known = select_known(table, wanted)
    if any(is_special(kind) for kind in wanted.types):
        return from_spark_types(known.select(wanted.names), wanted, operation=operation, path=path)
    return conform_table(known, wanted, operation=operation, path=path)


def read_pieces(
    part: SpoolPart, filesystem: pafs.FileSystem, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """The rows of a part, some row groups at a time; of some columns, those that it has."""
    with _open_part(part.location, filesystem) as file:
        names = None if columns is None else [name for name in file.schema_arrow.names if name in columns]
        held: list[pa.Table] = []
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=names, use_threads=False)
            held.append(table if names is None else table.select(names))
            if sum(table.nbytes for table in held) >= SORTED_BYTES or group == file.num_row_groups - 1:
                table = held[0] if len(held) == 1 else pa.concat_tables(held)
                held = []
                yield combine(table)
                del table


def _open_part(location: str, filesystem: pafs.FileSystem) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(location, filesystem=filesystem)
    except FileNotFoundError as error:
        here = socket.gethostname()
        raise make_unreachable_error(location, f"The executor on {here} does not see {location}.") from error


@dataclass(frozen=True, slots=True)
class CastWork:
    """Brings parts of a source to the dataset's types."""

    store: ArrowStore
    wanted: pa.Schema
    operation: str
    path: str


def cast_rows(work: CastWork, part: SpoolPart) -> SpoolPart:
    """The same rows in new types, in a new file; raises SchemaMismatch."""
    location = f"{work.store.directory}/{uuid.uuid4().hex}.parquet"
    stored = stored_schema(work.wanted)
    special = [one.name for one in work.wanted if is_special(one.type)]
    exact = pa.schema([work.wanted.field(one.name) if one.name in special else one for one in stored])
    size = 0
    with (
        wrap_storage_errors("write", location),
        open_spool_writer(location, stored, work.store.filesystem) as writer,
    ):
        for piece in read_pieces(part, work.store.filesystem):
            known = select_known(piece, work.wanted)
            table = conform_table(known, exact, operation=work.operation, path=work.path)
            size += table.nbytes
            for name in special:
                place = table.schema.get_field_index(name)
                column = to_spark_types(table.select([name])).column(0)
                table = table.set_column(place, stored.field(place), column)
            writer.write_table(pa.Table.from_arrays(table.columns, schema=stored))
    return SpoolPart(location, part.rows, size, part.columns)


def cast_spool(runner: TaskRunner, spool: Spool, wanted: pa.Schema, *, operation: str, path: str) -> Spool:
    """The source in the dataset's types; raises SchemaMismatch as casting here would."""
    stored = stored_schema(wanted)
    if _fits(spool.schema, stored):
        return spool
    work = CastWork(ArrowStore(spool.filesystem, spool.directory), wanted, operation, path)
    parts = runner.run_each(cast_rows, spool.parts, shared=work, weights=[part.size for part in spool.parts])
    return replace(spool, schema=stored, parts=tuple(parts))


def _fits(source: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether no value can fail to be one of the dataset's; columns may have another order, or be missing."""
    mine = {field.name: field for field in source}
    return all(
        (field.name not in mine or mine[field.name].type == field.type)
        and (field.nullable or (field.name in mine and not mine[field.name].nullable))
        for field in wanted
    ) and set(mine) <= set(wanted.names)


def find_distinct_rows(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The distinct values of some partition columns."""
    if not columns:
        return table.select([])
    parts = split_by_partition(table.select(list(columns)), list(columns))
    return pa.concat_tables([part.slice(0, 1) for _, part in parts]) if parts else table.select(list(columns))


# ---------------------------------------------------------------------------------------------------
# The columns that decide.


def deciding_columns(terms: MergeTerms, snapshot: Snapshot) -> list[str]:
    """The source's columns by which it is decided what becomes of which row."""
    intent = terms.intent
    used = {
        *intent.source_keys,
        *intent.dedup_order_by,
        *terms.partition_columns,
        *snapshot.partition_columns,
    }
    if intent.residual is not None:
        used |= {path[0] for side, path in find_columns(intent.residual) if side == "source"}
    for clause in intent.rule.clauses:
        alone = clause.side == "source_only"
        if clause.condition is not None:
            used |= {path[0] for side, path in find_columns(clause.condition) if alone or side == "source"}
        if isinstance(clause.action, Insert):
            used |= _find_partition_sources(clause.action, terms, snapshot)
    return [name for name in terms.wanted.names if name in used]


def inserting_columns(terms: MergeTerms, snapshot: Snapshot) -> list[str]:
    """Those of them by which it is decided which rows are new, and where they go."""
    used: set[str] = set(terms.partition_columns)
    for clause in terms.intent.rule.list_clauses("source_only"):
        if clause.condition is not None:
            used |= {path[0] for _, path in find_columns(clause.condition)}
        if isinstance(clause.action, Insert):
            used |= _find_partition_sources(clause.action, terms, snapshot)
    return [name for name in terms.wanted.names if name in used]


def _find_partition_sources(action: Insert, terms: MergeTerms, snapshot: Snapshot) -> set[str]:
    """The source's columns by which it is decided where a new row goes, beside the partition columns."""
    partitioner = snapshot.partitioner.columns if snapshot.format.owns_schema else ()
    if action.values is None:
        return set(partitioner)
    if not (terms.partition_columns or partitioner):
        return set()
    return {path[0] for _, value in action.values for _, path in find_columns(value)}
