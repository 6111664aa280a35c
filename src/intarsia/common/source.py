"""Rows of a source, taken in once: in memory up to a limit and spooled to disk beyond it.

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
from dataclasses import dataclass, field
from typing import IO, Any

import pyarrow as pa

from intarsia.common.exact import cast_exact, check_categories, conform_table
from intarsia.common.rows import combine, take_rows, tidy, tidy_schema
from intarsia.errors import InputError, StorageError

__all__ = ["IngestedSource", "Intake", "conform_batches", "conform_source", "select_known", "select_rows"]

_CHUNK_ROWS = 1 << 20
_TELL_SECONDS = 0.2
_UNIT = 64 << 20
"""Bytes of one batch in the spool: few chunks, little memory while writing."""


@dataclass(slots=True)
class _MappedPart:
    """Rows of one schema: first what is in the spool, then what is in memory."""

    schema: pa.Schema
    spooled: list[tuple[int, int]] = field(default_factory=list)
    held: list[pa.RecordBatch] = field(default_factory=list)
    own: list[pa.Table] = field(default_factory=list)
    """Tables that the caller holds in memory anyway, so that spooling would free nothing."""


class Intake:
    """Takes rows in; memory stays within ``limit`` bytes and some 100 MiB for what is being written."""

    def __init__(
        self,
        limit: int,
        directory: str | os.PathLike[str] | None = None,
        *,
        report: Callable[[int], None] | None = None,
    ) -> None:
        """``report`` is called with the number of rows so far, a few times a second at most."""
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
            self._file.close()  # mapped data stays readable

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

    def finish(self) -> list[pa.Table]:
        """What was taken in, one table per part. Call it once, at the end."""
        buffer = self._map_file()
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
                where = _choose_spool_directory(self._directory)
                # Closed with the intake, which is a context manager.
                self._file = tempfile.TemporaryFile(prefix="intarsia-", dir=where)  # noqa: SIM115
            for part in self._parts:
                if part.held:
                    start = self._file.tell()
                    _write(self._file, part.schema, part.held)
                    part.held = []
                    part.spooled.append((start, self._file.tell()))
        except OSError as error:
            where = _choose_spool_directory(self._directory) or tempfile.gettempdir()
            raise StorageError(
                f"Could not write {self._held} bytes of the source to a temporary file in {where}: "
                f"{error.strerror or error}",
                errno=error.errno,
                path=where,
                hint="name a directory with room by spool_dir= or TMPDIR, or raise spool_bytes=",
            ) from error
        self._held = 0

    def _map_file(self) -> pa.Buffer:
        if self._file is None:
            return pa.py_buffer(b"")
        self._flush()
        self._file.flush()
        return pa.py_buffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))


def _choose_spool_directory(given: str | os.PathLike[str] | None) -> str | None:
    """The directory for the spool: /var/tmp by default, since /tmp is often in memory."""
    if given is not None:
        return os.fspath(given)
    if os.environ.get("TMPDIR") or not os.access("/var/tmp", os.W_OK):
        return None
    return "/var/tmp"


def _write(file: IO[bytes], schema: pa.Schema, batches: list[pa.RecordBatch]) -> None:
    # The stream format, since the file format cannot change a dictionary between batches.
    with pa.ipc.new_stream(pa.PythonFile(file, "w"), schema) as writer:
        for group in _group_batches(batches):
            writer.write_table(combine(pa.Table.from_batches(group, schema)))


def _group_batches(batches: list[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
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


def _cast_tables(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the extension types of the schema, which a stream loses when they are not registered."""
    if table.schema.equals(schema):
        return table
    columns = [cast_exact(table[f.name], f.type, column=f.name) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


class IngestedSource:
    """Rows that were taken in, ready to be read as often as needed. A context manager.

    ``table`` is in memory, or mapped from a spool on disk where ``spooled``; closing lets go of both, and
    the spool is gone when nothing refers to the table any more.
    """

    __slots__ = ("_table", "origin", "rows", "schema", "spooled")

    def __init__(self, table: pa.Table, *, origin: str, spooled: bool = False) -> None:
        self._table: pa.Table | None = table
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
        """The rows with these numbers, in this order; see :func:`take_rows`."""
        return take_rows(self.table, rows)

    def close(self) -> None:
        """Let go of the rows. Idempotent."""
        self._table = None

    def __enter__(self) -> IngestedSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Source({self.origin}, {self.rows} rows{', spooled' if self.spooled else ''})"


def conform_source(
    source: IngestedSource,
    schema: pa.Schema,
    *,
    operation: str,
    path: str,
    spool_dir: str | os.PathLike[str] | None = None,
) -> IngestedSource:
    """The source with exactly the schema's columns, order and types; itself when it has them already.

    Columns that the schema lacks are left out: whether they may be was decided before. A spooled source
    is cast batch by batch into a new spool. The source given stays open.

    Raises:
        SchemaMismatch: see :func:`intarsia.common.schema.conform_table`.
    """
    table = source.table
    if table.schema.equals(schema, check_metadata=True):
        return source
    if not source.spooled:
        known = select_known(table, schema)
        check_categories(known, schema, operation=operation, path=path)
        return IngestedSource(
            conform_table(known, schema, operation=operation, path=path), origin=source.origin
        )
    with Intake(0, spool_dir) as intake:
        intake.add(schema, conform_batches(table, schema, operation, path), as_is=True)
        (result,) = intake.finish()
        return IngestedSource(result, origin=source.origin, spooled=intake.spooled)


def select_known(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a table that a schema has, in the table's order."""
    known = set(schema.names)
    return table.select([name for name in table.column_names if name in known])


def conform_batches(
    table: pa.Table, schema: pa.Schema, operation: str, path: str
) -> Iterator[pa.RecordBatch]:
    """The table's rows in the schema, some at a time."""
    table = select_known(table, schema)
    for batch in table.to_batches(max_chunksize=_CHUNK_ROWS):
        piece = pa.Table.from_batches([batch])
        check_categories(piece, schema, operation=operation, path=path)
        yield from conform_table(piece, schema, operation=operation, path=path).to_batches()


def select_rows(
    source: IngestedSource, rows: pa.Array, *, spool_dir: str | os.PathLike[str] | None = None
) -> IngestedSource:
    """The source with only the rows of these numbers; a spooled one is spooled again."""
    if not source.spooled:
        return IngestedSource(source.take(rows), origin=source.origin)
    schema = source.schema
    pieces = (source.take(rows.slice(start, _CHUNK_ROWS)) for start in range(0, len(rows), _CHUNK_ROWS))
    with Intake(0, spool_dir) as intake:
        intake.add(schema, (batch for piece in pieces for batch in piece.to_batches()), as_is=True)
        (table,) = intake.finish()
        return IngestedSource(table, origin=source.origin, spooled=intake.spooled)
