"""Any source in: tables, streams, frames, files and rows become one Arrow table, read exactly once."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.common.formats import SUFFIXES, Format, file_errors, format_of, stream
from intarsia.common.log import redact
from intarsia.common.partitions import (
    PARTITION_SCHEMA_KEY,
    decode_partition_schema,
    infer_partition_schema,
    parse_hive_partition_path,
    typed_partition,
)
from intarsia.common.paths import InputFile, find_input_files
from intarsia.common.schema import conform_table, unify_schemas
from intarsia.common.spool import Intake, combined, tidy_schema
from intarsia.errors import InputError, NotSupported, SchemaMismatch

__all__ = ["SPOOL_BYTES", "Source", "adopt", "conformed"]

SPOOL_BYTES = 512 << 20

_TAKEN = (
    "a pyarrow Table, RecordBatch, RecordBatchReader, Dataset or Scanner, anything with __arrow_c_stream__ "
    "or __arrow_c_array__ (polars, pandas, DuckDB), an iterable of record batches, a path, URL or glob of "
    "Parquet, CSV or JSON files, a dict of columns, a list of dicts, or a list of any of these"
)
_CHUNK_ROWS = 1 << 20


class Source:
    """Rows that were taken in, ready to be looked at as often as needed. A context manager.

    ``table`` is in memory, or mapped from a spool on disk where ``spooled``; closing lets go of both, and
    the spool is gone when nothing refers to the table any more.
    """

    __slots__ = ("_bounds", "_table", "origin", "rows", "schema", "spooled")

    def __init__(self, table: pa.Table, *, origin: str, spooled: bool = False) -> None:
        self._table: pa.Table | None = table
        self._bounds: dict[int, pa.Array] = {}
        self.schema: pa.Schema = table.schema
        self.rows: int = table.num_rows
        self.origin = origin
        self.spooled = spooled

    @property
    def table(self) -> pa.Table:
        if self._table is None:
            raise InputError(f"The source {self.origin} was closed.")
        return self._table

    def take(self, rows: Any) -> pa.Table:
        """The rows with these numbers, in this order (NULL gives a row of NULLs).

        Unlike ``table.take`` this never puts the whole column together: memory is that of the result,
        twice.
        """
        table = self.table
        rows = rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows
        rows = rows.cast(pa.int64())
        columns = [self._take_column(column, rows) for column in table.columns]
        return pa.Table.from_arrays(columns, schema=table.schema)

    def _take_column(self, column: pa.ChunkedArray, rows: pa.Array) -> Any:
        if column.num_chunks <= 1 or rows.null_count:
            return column.take(rows)
        lengths = [len(chunk) for chunk in column.chunks]
        starts = pc.subtract(pc.cumulative_sum(pa.array(lengths, pa.int64())), pa.array(lengths, pa.int64()))
        chunk_of = pc.subtract(pc.search_sorted(starts, rows, side="right").cast(pa.int64()), 1)
        order = pc.array_sort_indices(chunk_of)  # stable
        grouped = rows.take(order)
        pieces = []
        for number, begin, end in _runs(chunk_of.take(order)):
            local = pc.subtract(grouped.slice(begin, end - begin), starts[number])
            pieces.append(column.chunk(number).take(local))
        gathered = pa.chunked_array(pieces, column.type)
        return gathered.take(pc.inverse_permutation(order))

    def close(self) -> None:
        """Let go of the rows. Idempotent."""
        self._table = None

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Source({self.origin}, {self.rows} rows{', spooled' if self.spooled else ''})"


def _runs(ordered: pa.Array) -> list[tuple[int, int, int]]:
    """(value, begin, end) of each run in an ascending array of few distinct values."""
    counts = ordered.value_counts()
    ends = pc.cumulative_sum(counts.field("counts")).to_pylist()
    return list(zip(counts.field("values").to_pylist(), [0, *ends], ends, strict=False))


def adopt(
    source: Any,
    *,
    spool_bytes: int = SPOOL_BYTES,
    spool_dir: str | os.PathLike[str] | None = None,
    partition_columns: Sequence[str] = (),
    types: pa.Schema | None = None,
    filesystem: Any = None,
) -> Source:
    """Take in any source, reading it exactly once.

    Memory stays within ``spool_bytes`` and a little: what is more goes to a temporary file without a
    name, so nothing is left behind, whatever happens. Data that is an Arrow table already is neither
    copied nor spooled where it is larger than that. Views, narrow decimals and run-end encoded
    columns get plain types; extension types stay.

    Args:
        source: What to take in. In a list, columns meet by name in their common types.
        spool_bytes: How much to hold in memory.
        spool_dir: Where the temporary file is; else TMPDIR, else /var/tmp.
        partition_columns: Columns to take from a path's own ``name=value`` directories, also those
            above it, where the files lack them.
        types: Types for columns that have none of their own: of text files and of ``name=value``
            directories. What cannot be read so keeps the type its values suggest.
        filesystem: The pyarrow or fsspec file system that paths are on.

    Raises:
        InputError: this is no source, or it has no columns.
        SchemaMismatch: a column is there twice, or columns of a list do not meet.
        NotSupported: a Spark DataFrame.
        NothingMatched: a path without a data file.
        StorageError, DamagedTable: a file cannot be read.
    """
    reading = _Reading(partition_columns=tuple(partition_columns), types=types, filesystem=filesystem)
    with Intake(spool_bytes, spool_dir) as intake:
        origin = reading.take_in(source, intake)
        tables = intake.tables()
        for table in tables:
            _check_columns(table.schema, origin)
        source = Source(_concatenated(tables, origin, spool_bytes, spool_dir), origin=origin, spooled=intake.spooled)
    return source


def conformed(
    source: Source,
    schema: pa.Schema,
    *,
    operation: str,
    path: str,
    spool_bytes: int = SPOOL_BYTES,
    spool_dir: str | os.PathLike[str] | None = None,
) -> Source:
    """The source with exactly the schema's columns, order and types; itself when it has them already.

    A spooled source is cast batch by batch into a new spool. The source given stays open.

    Raises:
        SchemaMismatch: see :func:`intarsia.common.schema.conform_table`.
    """
    table = source.table
    if table.schema.equals(schema, check_metadata=True):
        return source
    if not source.spooled:
        return Source(conform_table(table, schema, operation=operation, path=path), origin=source.origin)
    with Intake(0, spool_dir) as intake:
        intake.add(schema, _conformed_batches(table, schema, operation, path))
        (result,) = intake.tables()
        return Source(result, origin=source.origin, spooled=intake.spooled)


def _conformed_batches(table: pa.Table, schema: pa.Schema, operation: str, path: str) -> Iterator[pa.RecordBatch]:
    for batch in table.to_batches(max_chunksize=_CHUNK_ROWS):
        yield from conform_table(
            pa.Table.from_batches([batch]), schema, operation=operation, path=path
        ).to_batches()


def _check_columns(schema: pa.Schema, origin: str) -> None:
    if not schema.names:
        raise InputError(f"The source {origin} has no columns.")
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise SchemaMismatch(
            f"The source {origin} has more than one column {', '.join(map(repr, twice))}.",
            hint="rename or drop the others",
        )


def _concatenated(
    tables: list[pa.Table], origin: str, spool_bytes: int, spool_dir: str | os.PathLike[str] | None
) -> pa.Table:
    if not tables:
        raise InputError(f"The source {origin} is empty and has no schema.", hint="pass a table with no rows")
    schema = tables[0].schema
    if any(not table.schema.equals(schema, check_metadata=True) for table in tables):
        schema = unify_schemas([table.schema for table in tables], operation="adopt", path=origin)
    size = sum(table.nbytes for table in tables)
    if size <= spool_bytes:
        tables = [_in_schema(table, schema, origin) for table in tables]
        return combined(pa.concat_tables(tables))
    # Larger than may be held: only what has another schema is copied, and that into a spool.
    whole = []
    for table in tables:
        if table.schema.equals(schema):
            whole.append(table.replace_schema_metadata(schema.metadata))
            continue
        with Intake(0, spool_dir) as intake:
            intake.add(schema, _conformed_batches(table, schema, "adopt", origin))
            whole += intake.tables()
    return pa.concat_tables(whole)


def _in_schema(table: pa.Table, schema: pa.Schema, origin: str) -> pa.Table:
    if table.schema.equals(schema, check_metadata=True):
        return table
    return conform_table(table, schema, operation="adopt", path=origin)


@dataclass(frozen=True, slots=True)
class _Reading:
    """How to take in one source, and the sources inside a list."""

    partition_columns: tuple[str, ...]
    types: pa.Schema | None
    filesystem: Any

    def take_in(self, source: Any, intake: Intake) -> str:
        """Feed a source to the intake; a short description of it."""
        origin = _name_of(source)
        _refuse_spark(source, origin)
        dataset = sys.modules.get("pyarrow.dataset")  # not imported: then it is none
        if isinstance(source, (str, os.PathLike)):
            return self._take_path(source, intake)
        if isinstance(source, pa.RecordBatch):
            source = pa.Table.from_batches([source])
        if isinstance(source, Mapping):
            source = _from_columns(source, origin)
        if isinstance(source, pa.Table):
            _take_table(source, intake)
        elif isinstance(source, pa.RecordBatchReader):
            intake.add(source.schema, source)
        elif dataset is not None and isinstance(source, dataset.Dataset):
            reader = source.scanner().to_reader()
            intake.add(reader.schema, reader)
        elif dataset is not None and isinstance(source, dataset.Scanner):
            reader = source.to_reader()
            intake.add(reader.schema, reader)
        elif hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
            _take_protocol(source, intake, origin)
        elif isinstance(source, (list, tuple)):
            return self._take_list(source, intake)
        elif isinstance(source, Iterable) and not isinstance(source, (bytes, bytearray, memoryview, set)):
            _take_batches(source, intake, origin)
        else:
            raise _no_source(origin)
        return origin

    def _take_list(self, sources: Sequence[Any], intake: Intake) -> str:
        if not sources:
            raise InputError("The source is an empty list, which has no schema.", hint="pass a table with no rows")
        if all(isinstance(row, Mapping) and not _is_columns(row) for row in sources):
            _take_table(_from_rows(sources), intake)
            return f"list of {len(sources)} dicts"
        names = [self.take_in(one, intake) for one in sources]
        return names[0] if len(names) == 1 else f"list of {len(names)} sources ({names[0]}, ...)"

    def _take_path(self, path: str | os.PathLike[str], intake: Intake) -> str:
        shown = redact(os.fspath(path))
        every = tuple(end for ends in SUFFIXES.values() for end in ends)
        files = find_input_files(path, filesystem=self.filesystem, suffixes=every)
        kind = _one_format(files, shown)
        values, partitions = self._partitions(files, kind)
        for file, partition in zip(files, values, strict=True):
            schema, batches = stream(file, kind, types=self.types)
            extra = [field for field in partitions if field.name in partition and field.name not in schema.names]
            if extra:
                typed = typed_partition(partition, partitions, path=file.shown)
                batches = _with_constants(batches, extra, typed)
                schema = pa.schema([*schema, *extra], schema.metadata)
            intake.add(schema, batches)
        if files[0].shown == shown:
            return shown
        return f"{shown} ({len(files)} {kind if kind == 'parquet' else kind.upper()} files)"

    def _partitions(self, files: list[InputFile], kind: Format) -> tuple[list[dict[str, Any]], pa.Schema]:
        """The partition values of each file as text, and the types of the columns."""
        values = [
            parse_hive_partition_path(file.location, self.partition_columns) | parse_hive_partition_path(file.below)
            for file in files
        ]
        names = {name for partition in values for name in partition}
        if not names:
            return values, pa.schema([])
        known = {f.name: _value_field(f) for f in self.types or () if f.name in names}
        if kind == "parquet" and known.keys() < names:
            known = {field.name: field for field in _declared(files)} | known
        return values, infer_partition_schema(_readable(values, known), pa.schema(list(known.values())))


def _value_field(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _readable(values: list[dict[str, Any]], known: dict[str, pa.Field]) -> list[dict[str, Any]]:
    """The values as they are; a known type that one of them cannot be read in is known no more."""
    raise NotImplementedError


def _declared(files: list[InputFile]) -> pa.Schema:
    """The types the partition columns were written with, if a file says so."""
    for file in files:
        with file_errors(file, "a Parquet"):
            metadata = pq.read_schema(file.location, filesystem=file.filesystem).metadata or {}
        if PARTITION_SCHEMA_KEY in metadata:
            return decode_partition_schema(metadata[PARTITION_SCHEMA_KEY], path=file.shown)
    return pa.schema([])


def _with_constants(
    batches: Iterable[pa.RecordBatch], fields: list[pa.Field], values: Mapping[str, Any]
) -> Iterator[pa.RecordBatch]:
    scalars = []
    for field in fields:
        value = values[field.name]
        scalars.append(value.cast(field.type) if isinstance(value, pa.Scalar) else pa.scalar(value, field.type))
    for batch in batches:
        for field, scalar in zip(fields, scalars, strict=True):
            batch = batch.append_column(field, pa.repeat(scalar, batch.num_rows))
        yield batch
