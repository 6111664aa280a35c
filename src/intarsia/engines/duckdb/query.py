"""A query of the caller's over Arrow streams, run by DuckDB; which tables it names is found elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa

from intarsia.engines.duckdb.query_scan import select_files, split_files
from intarsia.engines.duckdb.session import BATCH_ROWS, Session
from intarsia.engines.duckdb.sql import quote
from intarsia.errors import DamagedTable, InputError, IntarsiaError, NotSupported
from intarsia.kernel.read import SnapshotScan

__all__ = ["QueryRun"]


class _Rescannable:
    """Rows that DuckDB may read several times: each scan opens them again."""

    def __init__(self, make: Callable[[], pa.RecordBatchReader]) -> None:
        self._make = make
        self.failure: BaseException | None = None

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        try:
            reader = self._make()
        except BaseException as error:
            self.failure = self.failure or error
            raise
        return pa.RecordBatchReader.from_batches(reader.schema, self._read(reader)).__arrow_c_stream__(
            requested_schema
        )

    def _read(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except GeneratorExit:
            raise
        except BaseException as error:  # DuckDB keeps only its text; the query raises it again
            self.failure = self.failure or error
            raise


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
        try:
            self._session = Session(memory_bytes=memory_bytes)
            self._stack.callback(self._session.close)
            head = self._select_tables(tables)
            try:
                self._reader = self._session.open_reader(
                    f"{head}SELECT * FROM ({text}\n)", BATCH_ROWS, params=dict(params) or None
                )
            except IntarsiaError as error:
                self._raise_failure(error)
                raise
        except BaseException:
            self.close()
            self._raise_input_failure()
            raise

    def _select_tables(self, tables: Mapping[str, SnapshotScan | Callable[[], pa.RecordBatchReader]]) -> str:
        """The tables as SQL, on one line: more would shift the lines of the query that errors name."""
        ctes = []
        for name, rows in tables.items():
            selected = self._select_scan(rows) if isinstance(rows, SnapshotScan) else self._add(rows)
            ctes.append(f"{quote(name)} AS ({selected})")
        return f"WITH {', '.join(ctes)} " if ctes else ""

    def _add(self, make: Callable[[], pa.RecordBatchReader]) -> str:
        """SQL for rows that are opened anew by each scan."""
        rows = _Rescannable(make)
        self._inputs.append(rows)
        return f"SELECT * FROM {self._stack.enter_context(self._session.register_view(rows))}"

    def _select_scan(self, scan: SnapshotScan) -> str:
        """SQL for the rows of a scan: DuckDB reads the files that it reads exactly, the kernel the others."""
        own, others = split_files(scan)
        parts = [select_files(self._session, scan, own)] if own else []
        if others or not own:
            rest = replace(scan, snapshot=replace(scan.snapshot, files=tuple(others)))
            parts.append(self._add(lambda: _open_scan(rest)))
        return " UNION ALL ".join(parts)

    def open_stream(self) -> pa.RecordBatchReader:
        """The rows; they can be read once."""
        return pa.RecordBatchReader.from_batches(self._reader.schema, self._read())

    def close(self) -> None:
        """Close the instance. Idempotent."""
        self._stack.close()

    def _read(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._session.iterate_reader(self._reader)
        except IntarsiaError as error:
            self._raise_failure(error)
            raise
        finally:
            self.close()

    def _raise_failure(self, error: BaseException) -> None:
        """Raise the error of an input, where that is what failed; else DuckDB's as one of the query."""
        self._raise_input_failure()
        if isinstance(error, (DamagedTable, NotSupported)):
            said = " ".join((error.message.partition(": ")[2] or error.message).split())
            line = re.search(r"^LINE (\d+):", str(error.__cause__), re.MULTILINE)
            where = f", line {line[1]}" if line else ""
            raise InputError(f"DuckDB refuses the query{where}: {said}") from error

    def _raise_input_failure(self) -> None:
        for rows in self._inputs:
            if rows.failure is not None:
                raise rows.failure
