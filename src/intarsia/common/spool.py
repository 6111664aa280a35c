"""Batches gathered in memory up to a limit and on disk beyond it, as tables in the end.

The spool is a file without a name: readable by its owner alone, and gone with the last table that maps it,
also when the process is killed. It holds Arrow IPC streams one after the other, uncompressed, and is
mapped into memory, so rows are paged in when they are read.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.schema import cast_exact, is_nested
from intarsia.errors import StorageError

__all__ = ["Intake", "combine", "take", "take_rows", "tidy", "tidy_schema"]

_TELL_SECONDS = 0.2
_UNIT = 64 << 20
"""Bytes that become one batch in the spool: few chunks, and little to hold while writing."""


@dataclass(slots=True)
class _MappedPart:
    """Rows of one schema: first what is in the spool, then what is in memory."""

    schema: pa.Schema
    spooled: list[tuple[int, int]] = field(default_factory=list)
    held: list[pa.RecordBatch] = field(default_factory=list)
    own: list[pa.Table] = field(default_factory=list)
    """Tables the caller holds in memory anyway; to spool them would free nothing."""


class Intake:
    """Takes rows in; memory stays within ``limit`` bytes and some 100 MiB for what is being written."""

    def __init__(
        self,
        limit: int,
        directory: str | os.PathLike[str] | None = None,
        *,
        report: Callable[[int], None] | None = None,
    ) -> None:
        """``told`` is called with the number of rows so far, a few times a second at most."""
        self._report = report
        self._rows = 0
        self._next = time.monotonic() + _TELL_SECONDS
        self._limit = limit
        self._directory = directory
        self._parts: list[_MappedPart] = []
        self._held = 0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Intake:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()  # what is mapped stays; what is not is gone

    @property
    def spooled(self) -> bool:
        """Whether anything went to disk."""
        return self._file is not None

    def keep(self, table: pa.Table) -> None:
        """Take in a table that is in memory anyway. No copy."""
        self._parts.append(_MappedPart(table.schema, own=[table]))

    def add(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, as_is: bool = False) -> None:
        """Take in a stream in tidy types, or ``as_is``; each batch is read once."""
        schema = schema if as_is else tidy_schema(schema)
        part = _MappedPart(schema)
        self._parts.append(part)
        for batch in batches:
            tidied = tidy(batch, schema)
            part.held += tidied
            self._count(batch.num_rows)
            self._held += sum(one.nbytes for one in tidied)
            if self._held > (self._limit if self._file is None else min(self._limit, _UNIT)):
                self._flush()

    def _count(self, rows: int) -> None:
        self._rows += rows
        if self._report is not None and (now := time.monotonic()) >= self._next:
            self._next = now + _TELL_SECONDS
            self._report(self._rows)

    def tables(self) -> list[pa.Table]:
        """What was taken in, one table per part. Call it once, at the end."""
        buffer = self._mapped()
        tables = []
        for part in self._parts:
            pieces = [
                pa.ipc.open_stream(pa.BufferReader(buffer.slice(start, stop - start))).read_all()
                for start, stop in part.spooled
            ]
            pieces = [_cast_tables(piece, part.schema) for piece in pieces]
            pieces += part.own
            if part.held or not pieces:
                pieces.append(pa.Table.from_batches(part.held, part.schema))
            tables.append(pa.concat_tables(pieces) if len(pieces) > 1 else pieces[0])
        return tables

    def _flush(self) -> None:
        try:
            if self._file is None:
                where = _spool_directory(self._directory)
                # Closed with the intake, which is a context manager.
                self._file = tempfile.TemporaryFile(prefix="intarsia-", dir=where)  # noqa: SIM115
            for part in self._parts:
                if part.held:
                    start = self._file.tell()
                    _write(self._file, part.schema, part.held)
                    part.held = []
                    part.spooled.append((start, self._file.tell()))
        except OSError as error:
            where = _spool_directory(self._directory) or tempfile.gettempdir()
            raise StorageError(
                f"Could not write {self._held} bytes of the source to a temporary file in {where}: "
                f"{error.strerror or error}",
                errno=error.errno,
                path=where,
                hint="name a directory with room by spool_dir= or TMPDIR, or raise spool_bytes=",
            ) from error
        self._held = 0

    def _mapped(self) -> pa.Buffer:
        if self._file is None:
            return pa.py_buffer(b"")
        self._flush()
        self._file.flush()
        return pa.py_buffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))


def _spool_directory(given: str | os.PathLike[str] | None) -> str | None:
    """/var/tmp is for large files and on disk, where /tmp is often memory."""
    if given is not None:
        return os.fspath(given)
    if os.environ.get("TMPDIR") or not os.access("/var/tmp", os.W_OK):
        return None
    return "/var/tmp"


def _write(file: IO[bytes], schema: pa.Schema, batches: list[pa.RecordBatch]) -> None:
    # The stream format, since the file format cannot change a dictionary between batches.
    with pa.ipc.new_stream(pa.PythonFile(file, "w"), schema) as writer:
        for group in _units(batches):
            writer.write_table(combine(pa.Table.from_batches(group, schema)))


def _units(batches: list[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.nbytes
        if size >= _UNIT:
            yield group
            group, size = [], 0
    if group:
        yield group


def combine(table: pa.Table) -> pa.Table:
    """The table in as few chunks as its types allow (32-bit offsets end at 2 GiB)."""
    if table.num_columns < 2 or table.nbytes < _UNIT:
        return _combine(table)
    with ThreadPoolExecutor(pa.cpu_count(), "intarsia-combine") as pool:
        each = list(pool.map(lambda n: _combine(table.select([n])), range(table.num_columns)))
    return pa.Table.from_arrays([one.column(0) for one in each], schema=table.schema)


def _combine(table: pa.Table) -> pa.Table:
    try:
        return table.combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowCapacityError):  # nested values of more than 2 GiB
        return table


def _cast_tables(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """With the extension types that a stream cannot carry because nobody registered them."""
    if table.schema.equals(schema):
        return table
    columns = [cast_exact(table[f.name], f.type, column=f.name) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


# ---------------------------------------------------------------------------------------------------
# Rows by number.


def take_rows(table: pa.Table, rows: Any) -> pa.Table:
    """The rows with these numbers, in this order; a NULL gives a row of NULLs.

    ``table.take`` would first put each column of several chunks together, which for a spooled table is all
    of it. Here only the chunks that are hit are read; memory is that of the result, twice.
    """
    numbers = rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows
    numbers = numbers.cast(pa.int64())
    plans: dict[tuple[int, ...], _Gather] = {}
    columns = []
    for column in table.columns:
        if column.num_chunks == 1 or not len(numbers):
            columns.append(column.slice(0, 0) if not len(numbers) else take(column, numbers))
            continue
        lengths = tuple(len(chunk) for chunk in column.chunks)
        if lengths not in plans:  # the columns of a table nearly always share their chunks
            plans[lengths] = _gather(lengths, numbers)
        columns.append(plans[lengths].take(column))
    return pa.Table.from_arrays(columns, schema=table.schema)


def take(values: Any, rows: pa.Array) -> Any:
    """``take`` for every type, also those without a kernel of their own, such as views."""
    dtype = values.type
    plain = _tidy_type(dtype)
    return values.take(rows) if plain == dtype else values.cast(plain).take(rows).cast(dtype)


@dataclass(frozen=True, slots=True)
class _Gather:
    """Rows by chunk: what to take of which, and the place of each in the result (None: as they come)."""

    takes: list[tuple[int | None, pa.Array]]
    places: pa.Array | None

    def take(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        pieces = [
            pa.nulls(len(local), column.type) if chunk is None else take(column.chunk(chunk), local)
            for chunk, local in self.takes
        ]
        gathered = pa.chunked_array(pieces, column.type)
        return gathered if self.places is None else take(gathered, self.places)


def _gather(lengths: tuple[int, ...], rows: pa.Array) -> _Gather:
    ends = pc.cumulative_sum(pa.array(lengths, pa.int64()))
    starts = pc.subtract(ends, pa.array(lengths, pa.int64()))
    if pc.any(pc.or_(pc.less(rows, 0), pc.greater_equal(rows, sum(lengths))), min_count=0).as_py():
        raise pa.ArrowIndexError(f"a row number is not within the {sum(lengths)} rows")
    chunk_of = pc.search_sorted(ends, rows, side="right").cast(pa.int64())
    order = pc.array_sort_indices(chunk_of).cast(pa.int64())  # stable
    grouped = rows.take(order)
    counts = chunk_of.take(order).value_counts()
    takes, begin = [], 0
    for chunk, count in zip(
        counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True
    ):
        part = grouped.slice(begin, count)
        takes.append((chunk, part if chunk is None else pc.subtract(part, starts[chunk])))
        begin += count
    in_order = order.equals(pa.arange(0, len(rows), 1))
    return _Gather(takes, None if in_order else pc.inverse_permutation(order))


# ---------------------------------------------------------------------------------------------------
# Types that every kernel can work on.


def tidy_schema(schema: pa.Schema) -> pa.Schema:
    """The schema without views, narrow decimals and run-end encoding; extension types stay."""
    return pa.schema([one.with_type(_tidy_type(one.type)) for one in schema], schema.metadata)


def _tidy_type(data_type: pa.DataType) -> pa.DataType:
    is_ = pa.types
    if is_.is_string_view(data_type):
        return pa.string()
    if is_.is_binary_view(data_type):
        return pa.binary()
    if is_.is_decimal32(data_type) or is_.is_decimal64(data_type):
        return pa.decimal128(data_type.precision, data_type.scale)
    if is_.is_run_end_encoded(data_type):
        return _tidy_type(data_type.value_type)
    if is_.is_dictionary(data_type):
        return pa.dictionary(data_type.index_type, _tidy_type(data_type.value_type), data_type.ordered)
    return _tidy_nested(data_type) if is_nested(data_type) else data_type


def _tidy_nested(data_type: pa.DataType) -> pa.DataType:
    is_ = pa.types

    def inner(one: pa.Field) -> pa.Field:
        return one.with_type(_tidy_type(one.type))

    if is_.is_struct(data_type):
        return pa.struct([inner(one) for one in data_type.fields])
    if is_.is_map(data_type):
        key, item = inner(data_type.key_field), inner(data_type.item_field)
        return pa.map_(key, item, keys_sorted=data_type.keys_sorted)
    if is_.is_fixed_size_list(data_type):
        return pa.list_(inner(data_type.value_field), data_type.list_size)
    if is_.is_large_list(data_type) or is_.is_large_list_view(data_type):
        return pa.large_list(inner(data_type.value_field))
    if is_.is_list(data_type) or is_.is_list_view(data_type):
        return pa.list_(inner(data_type.value_field))
    return data_type


def tidy(batch: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
    """A batch in the types of a tidy schema: itself, or several where it is too large for one."""
    if batch.schema.equals(schema, check_metadata=True):
        return [batch]
    columns = [
        cast_exact(batch.column(number), one.type, column=one.name, operation="adopt")
        for number, one in enumerate(schema)
    ]
    return pa.Table.from_arrays(columns, schema=schema).to_batches()
