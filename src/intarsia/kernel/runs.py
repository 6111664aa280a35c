"""Rows spilled by the ranges of an order, in runs: files in which each range's rows are together.

Whoever reads a range later takes its batches out of every run; nothing else of a run is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.ipc as ipc

from intarsia.core.keys import flat
from intarsia.kernel.overlay import take_rows
from intarsia.kernel.sort import Cuts
from intarsia.kernel.spill import storage_errors

CONTENTS = pa.schema(
    [("range", pa.int32()), ("batch", pa.int32()), ("rows", pa.int64()), ("bytes", pa.int64())]
)


@dataclass(frozen=True, slots=True)
class SpilledRun:
    """A file of rows, and per batch of it the range, the rows and the bytes in memory."""

    location: str
    contents: pa.Table


class RunWriter:
    """Takes rows as they come and writes a run whenever ``most_bytes`` have come together.

    Memory: about three times ``most_bytes``, and what one call is given.
    """

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        location: Callable[[int], str],
        schema: pa.Schema,
        cuts: Cuts,
        *,
        most_bytes: int,
        batch_rows: int,
    ) -> None:
        """``location`` names the n-th run; ``batch_rows`` are the most in a batch, which is read whole."""
        self._filesystem = filesystem
        self._location = location
        self._schema = schema
        self._cuts = cuts
        self._most = most_bytes
        self._batch_rows = batch_rows
        self._waiting: list[pa.Table] = []
        self._numbers: list[pa.Array] = []
        self._bytes = 0
        self._runs: list[SpilledRun] = []

    def add(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._numbers.append(self._cuts.buckets(table))
        self._bytes += table.nbytes
        if self._bytes >= self._most:
            self._flush()

    def finish(self) -> list[SpilledRun]:
        """The runs, of which none is empty."""
        if self._numbers:
            self._flush()
        return self._runs

    def _flush(self) -> None:
        numbers = pa.concat_arrays(self._numbers)
        table = pa.concat_tables(self._waiting)
        self._waiting, self._numbers, self._bytes = [], [], 0
        grouped = _reorder(table, pc.array_sort_indices(numbers))  # stable; small integers are counted
        del table
        location = self._location(len(self._runs))
        with storage_errors(location):
            contents = self._write(location, grouped, numbers)
        self._runs.append(SpilledRun(location, contents))

    def _write(self, location: str, grouped: pa.Table, numbers: pa.Array) -> pa.Table:
        counts = numbers.value_counts()
        sizes = dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
        rows: list[tuple[int, int, int]] = []
        options = ipc.IpcWriteOptions(compression="lz4" if pa.Codec.is_available("lz4") else None)
        with (
            self._filesystem.open_output_stream(location) as sink,
            ipc.new_file(sink, self._schema, options=options) as writer,
        ):
            start = 0
            for number in sorted(sizes):
                for batch in grouped.slice(start, sizes[number]).to_batches(max_chunksize=self._batch_rows):
                    writer.write_batch(batch)
                    rows.append((number, batch.num_rows, batch.nbytes))
                start += sizes[number]
        ranges, lengths, weights = zip(*rows, strict=True)
        return pa.table([ranges, range(len(rows)), lengths, weights], schema=CONTENTS)


def _reorder(table: pa.Table, order: pa.Array) -> pa.Table:
    """The rows in this order, each column in one piece: batches of a file share its dictionaries."""
    columns = []
    for name in range(table.num_columns):
        one = pa.table({"column": flat(table.column(name))})
        columns.append(take_rows(one, order)["column"].combine_chunks())
    return pa.table(columns, schema=table.schema)


def read_batches(filesystem: pafs.FileSystem, location: str, batches: Sequence[int]) -> Iterator[pa.Table]:
    """Some batches of a run, one at a time."""
    with storage_errors(location), filesystem.open_input_file(location) as source:
        reader = ipc.open_file(source)
        for number in batches:
            yield pa.Table.from_batches([reader.get_batch(number)])
