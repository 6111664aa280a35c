"""Data files read as Arrow tables, in the types of the dataset."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.int96 import Int96, list_duration_units, read_int96
from intarsia.common.log import is_refused_access
from intarsia.common.python_values import make_array, make_scalar
from intarsia.common.requests import count_chunk_reads, count_reads
from intarsia.common.schema import conform_table
from intarsia.core.evaluate import find_hit_positions
from intarsia.core.intent import Predicate
from intarsia.core.keys import arange
from intarsia.core.lazy_footer import get_footer
from intarsia.core.ports import ColumnProjection
from intarsia.core.prove import Verdict, judge_files, list_predicate_columns
from intarsia.core.snapshot import DataFile, Snapshot, check_same, open_files, open_limit
from intarsia.errors import DamagedTable, SchemaMismatch, StorageError
from intarsia.kernel.chunks import ChunkSource, NotCopyable
from intarsia.kernel.overlay import select_positions, take_rows
from intarsia.kernel.pages import choose_pages, is_sparse
from intarsia.kernel.threads import map_in_order

PIECE_ROWS = 1 << 20
PIECE_BYTES = 128 << 20
"""A row group larger than this is read, changed and written in pieces."""


def as_encoded(schema: pa.Schema, columns: Collection[str]) -> pa.Schema:
    """The schema with some columns as dictionaries."""
    if not columns:
        return schema
    fields = [f.with_type(pa.dictionary(pa.int32(), f.type)) if f.name in columns else f for f in schema]
    return pa.schema(fields, schema.metadata)


class FileReader:
    """Reads one data file; columns have the types and the order of ``schema``.

    Columns that the file lacks are NULL; partition columns are read from its path. A file with a scan task is
    projected by it. Deleted rows are read, too; :meth:`find_live_rows` tells which rows are live. Memory:
    what one call returns. Every page checksum that is there is verified.
    """

    def __init__(
        self,
        file: DataFile,
        schema: pa.Schema,
        filesystem: pafs.FileSystem,
        *,
        encoded: Sequence[str] = (),
        handle: pa.NativeFile | None = None,
        threaded: bool = False,
    ) -> None:
        """``encoded`` columns are read as dictionaries, the way the file stores them.

        ``handle`` is the file where it is open already; it stays open. ``threaded`` decodes columns of a row
        group at once, in PyArrow's threads.
        """
        self.file = file
        self._filesystem = filesystem
        self._threaded = threaded
        self._owns_handle = handle is None
        encoded = () if file.scan_task is not None else encoded
        self.schema = as_encoded(schema, encoded)
        self._bare_name = _choose_unused_name(schema)
        try:
            self._handle = filesystem.open_input_file(file.location) if handle is None else handle
            self._int96 = None if file.scan_task is not None else self._find_int96(file)
            # Read as nanoseconds, times after 2262 would silently become others.
            unit = "us" if self._int96 is None else self._int96.unit
            self._parquet = self._open(unit, get_footer(file), encoded)
            self.physical: pa.Schema = self._parquet.schema_arrow
            if self._int96 is not None:
                self.physical = self._int96.add_zones(self.physical)
        except pa.ArrowInvalid as error:
            raise DamagedTable(f"Cannot read {file.path}: {error}", path=file.path) from error
        except OSError as error:
            raise make_unreadable_error(file, error) from error
        self.footer: pq.FileMetaData = self._parquet.metadata
        self._starts = [0, *accumulate(self._count_group_rows(n) for n in range(self.footer.num_row_groups))]
        self._projection: ColumnProjection | None = None
        self.deleted: pa.Int64Array | None = None
        self._chunk_source: ChunkSource | None = None
        if file.scan_task is not None:
            self._projection = file.scan_task.project_columns(self.physical, self.schema)
            if file.scan_task.has_deletes:
                self.deleted = file.scan_task.read_deleted(self._parquet, filesystem)

    def _open(self, unit: str, footer: pq.FileMetaData | None, encoded: Sequence[str] = ()) -> pq.ParquetFile:
        return pq.ParquetFile(
            self._handle,
            metadata=footer,
            read_dictionary=list(encoded) or None,
            pre_buffer=False,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit=unit,
        )

    def _find_int96(self, file: DataFile) -> Int96 | None:
        return read_int96(pq.read_metadata(self._handle) if file.footer is None else file.footer)

    def close(self) -> None:
        self._parquet.close(force=self._owns_handle)

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_chunk_source(self) -> ChunkSource:
        """The file as a source of column chunks that are copied undecoded."""
        return ChunkSource.of_file(self.footer, self._handle, lambda: count_reads(self._filesystem))

    @property
    def stored(self) -> frozenset[str]:
        """The columns the file itself holds."""
        return frozenset(self.physical.names) if self._projection is None else self._projection.stored

    @property
    def unproven(self) -> frozenset[str]:
        """Columns whose values have to be read to know what they are in the type of the schema.

        INT96 ones, whose values may not fit it, and durations, whose unit Parquet's own schema does not tell.
        """
        known = self._int96
        mine = set(self.physical.names).intersection(self.schema.names)
        others = {n for n in mine if self.physical.field(n).type != self.schema.field(n).type}
        durations = {
            name
            for name in others
            if list_duration_units(self.physical, [name]) != list_duration_units(self.schema, [name])
        }
        if known is None:
            return frozenset(durations)
        return known.columns & (others if known.proven and not known.legacy else known.columns) | durations

    def find_live_rows(self, start: int, count: int) -> pa.Int64Array | None:
        """Which of ``count`` rows from ``start`` on are live, counted from ``start``; None is all of them."""
        if self.deleted is None:
            return None
        gone = select_positions(self.deleted, start, start + count)
        if not len(gone):
            return None
        gone = pc.subtract(gone, make_scalar(start, pa.int64()))
        rows = arange(count)
        return rows.filter(pc.invert(pc.is_in(rows, value_set=gone)))

    def get_start(self, row_group: int) -> int:
        """The position of a row group's first row."""
        return self._starts[row_group]

    def _count_group_rows(self, row_group: int) -> int:
        return int(self.footer.row_group(row_group).num_rows)

    def read(self, columns: Sequence[str], row_group: int) -> pa.Table:
        """Some columns of one row group."""
        return self._complete_columns(self._read(columns, row_group), columns, self._starts[row_group])

    def read_pieces(
        self, columns: Sequence[str], row_group: int, *, batch_rows: int | None = None
    ) -> Iterator[pa.Table]:
        """A row group as a whole, or in pieces where it is large or ``batch_rows`` is given."""
        limit = self.choose_piece_rows(row_group, batch_rows)
        if limit is None:
            yield self.read(columns, row_group)
            return
        physical = self._list_physical(columns)
        first = self._starts[row_group]
        if not physical:
            rows = self._count_group_rows(row_group)
            for start in range(0, rows, limit):
                yield self._complete_columns(
                    self._make_bare_table(min(limit, rows - start)), columns, first + start
                )
            return
        batches = self._read_batches(self._parquet, limit, row_group, physical)
        both = [] if self._int96 is None else self._int96.needs_both(physical)
        fine = self._read_batches(self._open("ns", self.footer), limit, row_group, both) if both else None
        for table in batches:
            piece = self._as_instants(table.select(physical), None if fine is None else next(fine))
            yield self._complete_columns(piece, columns, first)
            first += table.num_rows

    def _read_batches(
        self, parquet: pq.ParquetFile, limit: int, row_group: int, physical: list[str]
    ) -> Iterator[pa.Table]:
        count_chunk_reads(self._filesystem, self.footer, physical)
        batches = parquet.iter_batches(limit, row_groups=[row_group], columns=physical, use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowInvalid, OSError) as error:
                raise make_unreadable_error(self.file, error) from error
            if batch is None:
                return
            yield pa.Table.from_batches([batch])

    def _as_instants(self, table: pa.Table, fine: pa.Table | None) -> pa.Table:
        if self._int96 is None:
            return table
        return self._int96.restore_instants(
            table, fine, schema=self.physical, wanted=self.schema, path=self.file.path
        )

    def read_live_pieces(
        self, columns: Sequence[str], row_group: int, *, batch_rows: int | None = None
    ) -> Iterator[pa.Table]:
        """The same without deleted rows."""
        start = self._starts[row_group]
        for piece in self.read_pieces(columns, row_group, batch_rows=batch_rows):
            live = self.find_live_rows(start, piece.num_rows)
            start += piece.num_rows
            yield piece if live is None else take_rows(piece, live)

    def read_rows(
        self, columns: Sequence[str], row_group: int, rows: pa.Int64Array, *, batch_rows: int | None = None
    ) -> pa.Table:
        """Some columns of some rows of a row group; ``rows`` count from its start and ascend.

        Columns are decoded one after the other, and texts that the file stores as a small dictionary only
        for these rows. Memory: a column of the row group, or of a piece of it, and what is returned.
        """
        start = self._starts[row_group]
        if self._int96 is not None:
            pieces = self.read_pieces(columns, row_group, batch_rows=batch_rows)
            return pa.concat_tables(_take_from_each(pieces, rows))
        limit = self.choose_piece_rows(row_group, batch_rows)
        physical = self._list_physical(columns)
        encoded = _find_small_dictionaries(self.footer.row_group(row_group), self.physical, physical)
        parquet = self._open("us", self.footer, encoded) if encoded else self._parquet
        sparse = is_sparse(rows, self._count_group_rows(row_group))
        chosen: dict[str, pa.ChunkedArray] = {}
        for name in physical:  # PyArrow also reads the field b of a struct a for the name "a.b"
            if sparse and (taken := self._read_from_pages(name, row_group, rows)) is not None:
                pass
            elif limit is None:
                taken = take_rows(self._read_group(parquet, row_group, [name]).select([name]), rows)
            else:
                batches = self._read_batches(parquet, limit, row_group, [name])
                taken = pa.concat_tables(_take_from_each((one.select([name]) for one in batches), rows))
            chosen[name] = taken[name]
        table = pa.table(chosen) if chosen else self._make_bare_table(len(rows))
        return self._complete_columns(table, columns, start, rows)

    def _read_from_pages(self, name: str, row_group: int, rows: pa.Int64Array) -> pa.Table | None:
        """Rows of one column, decoded from the pages that hold them; None where that is not possible."""
        if self._chunk_source is None:
            self._chunk_source = self.open_chunk_source()
        field = self.physical.field(name)
        try:
            pages = choose_pages(self._chunk_source, row_group, field, rows)
        except NotCopyable:  # to be read as a whole, which says what is wrong
            return None
        if pages is None:
            return None
        try:
            parquet = pq.ParquetFile(
                pa.BufferReader(pages.data),
                pre_buffer=False,
                page_checksum_verification=True,
                coerce_int96_timestamp_unit="us",
            )
            read = parquet.read(use_threads=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise make_unreadable_error(self.file, error) from error
        return take_rows(read, pages.rows) if read.schema.types == [field.type] else None

    def choose_piece_rows(self, row_group: int, batch_rows: int | None) -> int | None:
        """How many rows to read at once; None reads the row group as a whole."""
        meta = self.footer.row_group(row_group)
        rows, size = meta.num_rows, meta.total_byte_size
        if batch_rows is None and rows <= PIECE_ROWS and size <= PIECE_BYTES:
            return None
        fitting = max(1024, rows * (PIECE_BYTES // 2) // max(size, 1))
        limit = min(PIECE_ROWS // 4, fitting) if batch_rows is None else batch_rows
        return None if limit >= rows else limit

    def _read(self, columns: Sequence[str], row_group: int) -> pa.Table:
        physical = self._list_physical(columns)
        if not physical:
            return self._make_bare_table(self._count_group_rows(row_group))
        both = [] if self._int96 is None else self._int96.needs_both(physical)
        table = self._read_group(self._parquet, row_group, physical)
        fine = self._read_group(self._open("ns", self.footer), row_group, both) if both else None
        # PyArrow also reads the field b of a struct a for the name "a.b".
        return self._as_instants(table.select(physical), fine)

    def _read_group(self, parquet: pq.ParquetFile, row_group: int, physical: list[str]) -> pa.Table:
        count_chunk_reads(self._filesystem, self.footer, physical)
        try:
            return parquet.read_row_group(row_group, columns=physical, use_threads=self._threaded)
        except (pa.ArrowInvalid, OSError) as error:
            raise make_unreadable_error(self.file, error) from error

    def _list_physical(self, columns: Sequence[str]) -> list[str]:
        if self._projection is not None:
            return self._projection.list_physical_columns(list(columns))
        stored = self.stored
        return [name for name in columns if name in stored]

    def _make_bare_table(self, rows: int) -> pa.Table:
        """A table with this number of rows, for when no column is read."""
        return pa.table({self._bare_name: pa.nulls(rows)})

    def _complete_columns(
        self, table: pa.Table, columns: Sequence[str], start: int, chosen: pa.Int64Array | None = None
    ) -> pa.Table:
        if self._projection is not None:
            return self._projection.project(table, list(columns), start=start, rows=chosen)
        rows = table.num_rows
        wanted = pa.schema([self.schema.field(name) for name in columns])
        for name in columns:
            if name not in self.file.partition:
                continue
            dtype = self.schema.field(name).type
            constant = make_constant_column(self.file.partition[name], dtype, rows)
            if name in self.stored:
                self._check_agrees(table[name], constant, name)
                table = table.set_column(table.column_names.index(name), name, constant)
            else:
                table = table.append_column(name, constant)
        if self._bare_name in table.column_names:
            if table.num_columns == 1 and columns:
                table = pa.table({f.name: pa.nulls(rows, f.type) for f in wanted}, schema=wanted)
                return table
            table = table.drop_columns([self._bare_name])
        if table.schema.equals(wanted):
            return table
        return conform_table(table, _make_nullable(wanted), operation="read", path=self.file.path)

    def _check_agrees(self, column: pa.ChunkedArray, constant: pa.Array, name: str) -> None:
        """A file may repeat its partition column, but not contradict its directory."""
        stored = column.cast(constant.type)
        same = pc.fill_null(pc.equal(stored, constant), False)
        both_null = pc.and_(pc.is_null(stored), pc.is_null(constant))
        if not pc.all(pc.or_(same, both_null), min_count=0).as_py():
            raise SchemaMismatch(
                f"Column {name!r} of {self.file.path} holds other values than the partition directory"
                f" it lies in ({name}={self.file.partition[name]!r}).",
                path=self.file.path,
                hint="move the rows to their partition's directory, or drop the column from the file.",
            )


def _choose_unused_name(schema: pa.Schema) -> str:
    """A name that none of the columns has."""
    name = "__rows__"
    while name in schema.names:
        name += "_"
    return name


def _make_nullable(schema: pa.Schema) -> pa.Schema:
    """The schema without NOT NULL, which is checked when rows are written."""
    return pa.schema([field.with_nullable(True) for field in schema], schema.metadata)


def make_constant_column(value: Any, dtype: pa.DataType, rows: int) -> pa.Array:
    """A column of one value; a dictionary where ``dtype`` is one."""
    if pa.types.is_dictionary(dtype):
        dictionary = make_array([] if value is None else [value], dtype.value_type)
        if value is None:
            return pa.nulls(rows, dtype)
        indices = pa.repeat(make_scalar(0, dtype.index_type), rows)
        return pa.DictionaryArray.from_arrays(indices, dictionary)
    return pa.repeat(make_scalar(value, dtype), rows) if value is not None else pa.nulls(rows, dtype)


def make_constant_key(value: Any, dtype: pa.DataType, rows: int) -> pa.Array:
    """A key column of one value in the form that is cheapest to look up."""
    plain = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    return make_constant_column(value, pa.dictionary(pa.int32(), plain), rows)


ENCODED_BYTES = 2
"""Bytes per value below which a string column is a small dictionary with narrow indices."""


def find_encoded_columns(file: DataFile, schema: pa.Schema) -> list[str]:
    """Plain string columns that the file stores as small dictionaries throughout."""
    footer = file.footer
    if footer is None or not footer.num_row_groups:
        return []
    found = schema.names
    for group in range(footer.num_row_groups):
        found = _find_small_dictionaries(footer.row_group(group), schema, found)
    return found


def _find_small_dictionaries(
    group: pq.RowGroupMetaData, schema: pa.Schema, columns: Collection[str]
) -> list[str]:
    """Those of some columns that are plain strings and small dictionaries in a row group."""
    small: dict[str, bool] = {}
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.physical_type == "BYTE_ARRAY":
            fits = (
                chunk.has_dictionary_page and chunk.total_uncompressed_size < ENCODED_BYTES * chunk.num_values
            )
            name = chunk.path_in_schema
            small[name] = small.get(name, True) and fits
    return [
        field.name
        for field in schema
        if small.get(field.name)
        and field.name in columns
        and (pa.types.is_string(field.type) or pa.types.is_binary(field.type))
    ]


def _take_from_each(pieces: Iterable[pa.Table], rows: pa.Int64Array) -> Iterator[pa.Table]:
    """The rows with these ascending numbers, of each piece of a table."""
    start = 0
    for piece in pieces:
        mine = select_positions(rows, start, start + piece.num_rows)
        yield take_rows(piece, pc.subtract(mine, make_scalar(start, pa.int64())))
        start += piece.num_rows


def make_unreadable_error(file: DataFile, error: Exception) -> DamagedTable | StorageError:
    """The error for a file that cannot be read or is damaged."""
    if isinstance(error, OSError) and error.errno is not None:
        return StorageError(f"Cannot read {file.path}: {error}", errno=error.errno, path=file.path)
    if is_refused_access(str(error)):
        return StorageError(f"Cannot read {file.path}: {error}", errno=errno.EACCES, path=file.path)
    return DamagedTable(
        f"Cannot read {file.path}: {error}",
        path=file.path,
        hint="the file is damaged, or was replaced while it was read; restore it or run again.",
    )


_Job = tuple[Snapshot, DataFile, int, pa.NativeFile | None]


@dataclass(frozen=True, slots=True)
class SnapshotScan:
    """Some columns of the rows for which a condition is TRUE, of one snapshot."""

    snapshot: Snapshot
    columns: tuple[str, ...]
    where: Predicate = None
    """Resolved against the snapshot's schema; None is every row."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([self.snapshot.schema.field(name).with_nullable(True) for name in self.columns])

    def list_files(self) -> list[tuple[DataFile, Verdict]]:
        """The files that may have rows to return, by their partition and bounds; no file is opened."""
        verdicts = zip(self.snapshot.files, judge_files(self.where, self.snapshot), strict=True)
        return [(file, verdict) for file, verdict in verdicts if not verdict.never]

    def read_pieces(self, item: tuple[DataFile, Verdict]) -> Iterator[pa.Table]:
        """The rows of one file that :meth:`list_files` gave, piece by piece; works in another process.

        Also gives pieces without rows, so that the caller can check the file after each that was read.
        """
        file, verdict = item
        needed = self._list_needed()
        with FileReader(file, self.snapshot.schema, self.snapshot.filesystem) as reader:
            for group in verdict.row_groups if file.footer is not None else self._judge_groups(reader):
                for piece in reader.read_live_pieces(needed, group):
                    yield self._select_rows(piece)

    def _judge_groups(self, reader: FileReader) -> tuple[int, ...]:
        """The row groups that may have rows to return, of a file whose footer was not known before."""
        known = replace(reader.file, footer=reader.footer)
        return judge_files(self.where, self.snapshot.with_files([known]))[0].row_groups

    def read_batches(self, *, threads: int) -> Iterator[pa.RecordBatch]:
        """Record batches in the order of files and positions. Memory: a row group per thread.

        The files are opened here, where that keeps them as they are; see :func:`open_files`.

        Raises:
            CommitConflict: a file was replaced or removed since the snapshot was taken.
        """
        snapshot = self._with_footers()
        few = len(snapshot.files) <= open_limit() // 2
        handles = (open_files(snapshot) if few else None) or [None] * len(snapshot.files)
        jobs = [
            (snapshot, file, group, handle)
            for file, handle, verdict in zip(
                snapshot.files, handles, judge_files(self.where, snapshot), strict=True
            )
            for group in verdict.row_groups
        ]
        return self._stream(jobs, threads)

    def _stream(self, jobs: list[_Job], threads: int) -> Iterator[pa.RecordBatch]:
        for tables in map_in_order(lambda job: list(self._read_rows(*job)), jobs, threads=threads):
            for table in tables:
                yield from table.cast(self.schema).to_batches()

    def _with_footers(self) -> Snapshot:
        """The snapshot with only the files that may have rows to return, and with their footers."""
        snapshot = self.snapshot
        chosen = [file for file, _ in self.list_files()]
        if snapshot.footer_loader is not None:
            chosen = list(snapshot.footer_loader(chosen))
        return snapshot.with_files(chosen)

    def _read_rows(
        self, snapshot: Snapshot, file: DataFile, group: int, handle: pa.NativeFile | None
    ) -> Iterator[pa.Table]:
        needed = self._list_needed()
        # An object is read by many requests, also after it was replaced.
        may_change = handle is None and not isinstance(snapshot.filesystem, pafs.LocalFileSystem)
        try:
            with FileReader(file, snapshot.schema, snapshot.filesystem, handle=handle) as reader:
                if handle is None:
                    check_same(snapshot, file)  # after opening: what is open is what the snapshot names
                for piece in reader.read_live_pieces(needed, group):
                    rows = self._select_rows(piece)
                    if rows.num_rows:
                        yield rows
        except (DamagedTable, StorageError):
            if may_change:
                check_same(snapshot, file)
            raise
        if may_change:
            check_same(snapshot, file)

    def _list_needed(self) -> list[str]:
        """The columns to read: those of the result and of the condition."""
        schema = self.snapshot.schema
        asked = [] if self.where is None else list_predicate_columns(self.where, schema)
        return list(dict.fromkeys([*self.columns, *asked])) or list(schema.names[:1])

    def _select_rows(self, piece: pa.Table) -> pa.Table:
        if self.where is not None:
            piece = take_rows(piece, find_hit_positions(self.where, piece))
        return piece.select(list(self.columns))
