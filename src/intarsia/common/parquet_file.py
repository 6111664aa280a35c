"""One Parquet file read by itself, its INT96 columns as instants; knows no table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.int96 import int96_of

__all__ = ["ParquetInput", "check_instants"]

_BATCH_ROWS = 1 << 18


class ParquetInput:
    """A file that is open for reading. A context manager.

    As ``pyarrow.parquet.ParquetFile``, whose errors it lets pass; but an INT96 column is one of instants in
    UTC, and a value that its unit cannot hold raises NotSupported.
    """

    def __init__(self, location: str, filesystem: pafs.FileSystem, *, shown: str | None = None) -> None:
        self._shown = location if shown is None else shown
        self._handle = filesystem.open_input_file(location)
        self._parquet = pq.ParquetFile(self._handle)
        self.schema: pa.Schema = self._parquet.schema_arrow
        self._int96 = int96_of(self._parquet.metadata, self.schema)
        if self._int96 is not None:
            self._parquet = self._open(self._int96.unit)
            self.schema = self._int96.zoned(self._parquet.schema_arrow)

    @property
    def int96_columns(self) -> frozenset[str]:
        """The columns that are, or contain, an INT96 one."""
        return frozenset() if self._int96 is None else self._int96.columns

    def _open(self, unit: str) -> pq.ParquetFile:
        return pq.ParquetFile(self._handle, metadata=self._parquet.metadata, coerce_int96_timestamp_unit=unit)

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, in order; some columns, or all. Memory: a batch."""
        names = None if columns is None else list(columns)
        wanted = self.schema.names if names is None else names
        both = [] if self._int96 is None else self._int96.needs_both(wanted)
        fine = self._open("ns").iter_batches(rows, columns=both) if both else None
        for batch in self._parquet.iter_batches(rows, columns=names):
            if self._int96 is None:
                yield batch
                continue
            other = None if fine is None else pa.Table.from_batches([next(fine)])
            yield from self._instants(pa.Table.from_batches([batch]), other).to_batches()

    def read(self, columns: Sequence[str] | None = None, *, use_threads: bool = True) -> pa.Table:
        """The same as one table."""
        names = None if columns is None else list(columns)
        table = self._parquet.read(columns=names, use_threads=use_threads)
        if self._int96 is None:
            return table
        both = self._int96.needs_both(table.column_names)
        fine = self._open("ns").read(columns=both, use_threads=use_threads) if both else None
        return self._instants(table, fine)

    def _instants(self, table: pa.Table, fine: pa.Table | None) -> pa.Table:
        assert self._int96 is not None
        return self._int96.instants(table, fine, schema=self.schema, wanted=self.schema, path=self._shown)

    def close(self) -> None:
        self._handle.close()

    def __enter__(self) -> ParquetInput:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_instants(location: str, filesystem: pafs.FileSystem, *, shown: str) -> None:
    """Raise NotSupported where an INT96 value of a file is beyond its unit. Reads those columns only."""
    with ParquetInput(location, filesystem, shown=shown) as opened:
        for _ in opened.batches(_BATCH_ROWS, sorted(opened.int96_columns)):
            pass
