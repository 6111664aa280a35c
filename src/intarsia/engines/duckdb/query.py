"""A query of the caller's over Arrow streams, run by DuckDB; which tables it names is found elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa

from intarsia.common.exact import cast_exact
from intarsia.engines.duckdb.query_scan import select_files, split_files
from intarsia.engines.duckdb.session import BATCH_ROWS, Session
from intarsia.engines.duckdb.sql import find_scanned_type, quote
from intarsia.errors import DamagedTable, InputError, IntarsiaError, NotSupported, SchemaMismatch
from intarsia.kernel.read import SnapshotScan

__all__ = ["QueryRun"]


_LEAVE_OUT = "leave the column out of the query, or store it in another type."
_LINE = re.compile(r"^LINE (\d+):", re.MULTILINE)


class _Rescannable:
    """Rows that DuckDB may read several times: each scan opens them again, in types that DuckDB has."""

    def __init__(self, name: str, make: Callable[[], pa.RecordBatchReader]) -> None:
        self._name = name
        self._make = make
        self.failure: BaseException | None = None

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        try:
            reader = self._make()
            schema = self._choose_types(reader.schema)
        except BaseException as error:
            self.failure = self.failure or error
            raise
        return pa.RecordBatchReader.from_batches(schema, self._read(reader, schema)).__arrow_c_stream__(
            requested_schema
        )

    def _choose_types(self, schema: pa.Schema) -> pa.Schema:
        fields = []
        for field in schema:
            kind = find_scanned_type(field.type)
            if kind is None:
                raise NotSupported(
                    f"{self._name!r} has the column {field.name!r} of type {field.type}, which DuckDB lacks.",
                    hint=_LEAVE_OUT,
                )
            fields.append(field.with_type(kind))
        return pa.schema(fields)

    def _read(self, reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            if reader.schema.equals(schema):
                yield from reader
                return
            for batch in reader:
                columns = [
                    self._cast(column, field) for column, field in zip(batch.columns, schema, strict=True)
                ]
                yield from pa.Table.from_arrays(columns, schema=schema).to_batches()
        except GeneratorExit:
            raise
        except BaseException as error:  # DuckDB keeps only its text; the query raises it again
            self.failure = self.failure or error
            raise

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.ChunkedArray:
        try:
            return cast_exact(column, field.type, column=field.name)
        except SchemaMismatch as error:
            raise InputError(
                f"{self._name!r} has the column {field.name!r} of type {column.type}, which DuckDB has as"
                f" {field.type}: {error.__cause__}.",
                hint=_LEAVE_OUT,
            ) from error


def _open_scan(scan: SnapshotScan) -> pa.RecordBatchReader:
    batches = scan.read_batches(threads=os.cpu_count() or 1)
    return pa.RecordBatchReader.from_batches(scan.schema, batches)


class QueryRun:
    """One run of a query on an instance of its own, as a stream; closed when it is read, or by :meth:`close`.

    Args:
        text: the query, with markers for parameters.
        tables: by name: opens the rows, as often as they are scanned; or a scan, whose files DuckDB reads by
            itself where that is exact and they stay as they are.
        params: values by marker.
        memory_bytes: the limit beyond which DuckDB works on disk.

    Raises:
        InputError: DuckDB refuses the query, such as for a column that is not there.
        DamagedTable: a page of a file is not as it was written.
    """

    def __init__(
        self,
        text: str,
        tables: Mapping[str, SnapshotScan | Callable[[], pa.RecordBatchReader]],
        *,
        params: Mapping[str, Any],
        memory_bytes: int | None = None,
    ) -> None:
        self._stack = ExitStack()
        self._inputs: list[_Rescannable] = []
        self._types: dict[str, pa.DataType] = {}
        try:
            self._session = Session(memory_bytes=memory_bytes)
            self._stack.callback(self._session.close)
            sql = f"{self._select_tables(tables)}SELECT * FROM ({text}\n)"
            self._session.restrict()
            given = dict(params) or None
            try:
                self._reader = self._session.open_reader(sql, BATCH_ROWS, params=given, project=self._project)
            except IntarsiaError as error:
                self._raise_failure(error, self._find_line(error, sql, given))
                raise
        except BaseException:
            self.close()
            self._raise_input_failure()
            raise

    def _select_tables(self, tables: Mapping[str, SnapshotScan | Callable[[], pa.RecordBatchReader]]) -> str:
        """The tables as SQL, on one line: more would shift the lines of the query that errors name."""
        ctes = []
        for name, rows in tables.items():
            selected = (
                self._select_scan(name, rows) if isinstance(rows, SnapshotScan) else self._add(name, rows)
            )
            ctes.append(f"{quote(name)} AS ({selected})")
        return f"WITH {', '.join(ctes)} " if ctes else ""

    def _add(self, name: str, make: Callable[[], pa.RecordBatchReader]) -> str:
        """SQL for rows that are opened anew by each scan."""
        rows = _Rescannable(name, make)
        self._inputs.append(rows)
        return f"SELECT * FROM {self._stack.enter_context(self._session.register_view(rows))}"

    def _select_scan(self, name: str, scan: SnapshotScan) -> str:
        """SQL for the rows of a scan: DuckDB reads the files that it reads exactly, the kernel the others."""
        own, others = split_files(scan)
        parts = [select_files(self._session, scan, own)] if own else []
        if others or not own:
            rest = replace(scan, snapshot=scan.snapshot.with_files(others))
            parts.append(self._add(name, lambda: _open_scan(rest)))
        return " UNION ALL ".join(parts)

    def open_stream(self) -> pa.RecordBatchReader:
        """The rows; they can be read once."""
        schema = self._reader.schema
        for name, kind in self._types.items():
            schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
        return pa.RecordBatchReader.from_batches(schema, self._read(schema))

    def _project(self, kinds: Mapping[str, str]) -> str | None:
        """What to select of a result, whose types Arrow would not get as they are; None is all of it.

        UUIDs would be texts, and intervals three numbers that Parquet has no type for.
        """
        self._types = {name: _RESULTS[kind] for name, kind in kinds.items() if kind in _RESULTS}
        if not self._types:
            return None
        return ", ".join(
            f"{_select_value(quote(name), kind)} AS {quote(name)}" for name, kind in kinds.items()
        )

    def close(self) -> None:
        """Close the instance. Idempotent."""
        self._stack.close()

    def _read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._session.iterate_reader(self._reader):
                yield batch if batch.schema.equals(schema) else _restore_types(batch, schema)
        except IntarsiaError as error:
            self._raise_failure(error, _LINE.search(str(error.__cause__)))
            raise
        finally:
            self.close()

    def _find_line(
        self, error: BaseException, sql: str, params: dict[str, Any] | None
    ) -> re.Match[str] | None:
        """Where DuckDB says that the mistake is; it is asked again where its error does not say so."""
        found = _LINE.search(str(error.__cause__))
        if found is None:
            try:
                self._session.explain(sql, params)
            except IntarsiaError as again:
                return _LINE.search(str(again.__cause__))
        return found

    def _raise_failure(self, error: BaseException, line: re.Match[str] | None) -> None:
        """Raise the error of an input, where that is what failed; else DuckDB's as one of the query."""
        self._raise_input_failure()
        if isinstance(error, (DamagedTable, NotSupported)):
            said = " ".join((error.message.partition(": ")[2] or error.message).split())
            where = f"line {line[1]}: " if line else ""
            raise InputError(f"{where}DuckDB refuses the query: {said}") from error

    def _raise_input_failure(self) -> None:
        for rows in self._inputs:
            if rows.failure is not None:
                raise rows.failure


_RESULTS = {"UUID": pa.uuid(), "INTERVAL": pa.duration("us")}
"""The Arrow types of results by those of DuckDB, where Arrow is given others."""


def _select_value(value: str, kind: str) -> str:
    if kind == "UUID":
        return f"from_hex(replace(CAST({value} AS VARCHAR), '-', ''))"
    if kind == "INTERVAL":
        months = f"datepart('year', {value}) <> 0 OR datepart('month', {value}) <> 0"
        said = "a result has an interval of months, which are not of one length: cast it to VARCHAR"
        return f"CASE WHEN {months} THEN CAST(error('{said}') AS BIGINT) ELSE epoch_us({value}) END"
    return value


def _restore_types(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """UUIDs of their bytes, and durations of microseconds."""
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        if isinstance(field.type, pa.UuidType):
            column = pa.ExtensionArray.from_storage(field.type, column.cast(field.type.storage_type))
        columns.append(column.cast(field.type) if column.type != field.type else column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
