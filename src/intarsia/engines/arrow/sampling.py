"""A few rows of many files, spread evenly: what cuts a column into equal parts is guessed from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.files import DataFile
from intarsia.core.keys import arange
from intarsia.core.plan import Plan
from intarsia.engines.arrow.overlay import take_rows
from intarsia.engines.arrow.reading import FileReader
from intarsia.engines.arrow.threads import in_order

MOST_GROUPS = 256
SAMPLE_ROWS = 1 << 16


def sample_rows(
    files: Sequence[DataFile],
    columns: Sequence[str],
    plan: Plan,
    *,
    rows: int = SAMPLE_ROWS,
    groups: int = MOST_GROUPS,
    threads: int = 1,
) -> pa.Table:
    """About ``rows`` rows of some columns, from up to ``groups`` row groups spread over the files.

    Decodes those columns of those row groups. Memory: the sample, and a row group's columns per thread.
    """
    chosen = _spread(_row_groups(files), groups)
    total = sum(count for _, _, count in chosen)
    schema = pa.schema([plan.schema.field(name).with_nullable(True) for name in columns])

    def one(item: tuple[DataFile, int, int]) -> pa.Table:
        file, group, _ = item
        with FileReader(file, plan.schema, plan.snapshot.filesystem) as reader:
            pieces = [
                spread_rows(piece, -(-rows * piece.num_rows // total))
                for piece in reader.pieces(columns, group)
            ]
        return pa.concat_tables(pa.table(piece.columns, schema=schema) for piece in pieces)

    return pa.concat_tables([schema.empty_table(), *in_order(one, chosen, threads=threads)])


def spread_rows(table: pa.Table, count: int) -> pa.Table:
    """So many rows of a table, evenly spread."""
    if table.num_rows <= count:
        return table
    return take_rows(table, pc.divide(pc.multiply(arange(count), table.num_rows), count))


def _row_groups(files: Sequence[DataFile]) -> Iterator[tuple[DataFile, int, int]]:
    for file in files:
        if file.footer is None:
            continue
        for number in range(file.footer.num_row_groups):
            count = file.footer.row_group(number).num_rows
            if count:
                yield file, number, count


def _spread(items: Iterator[tuple[DataFile, int, int]], most: int) -> list[tuple[DataFile, int, int]]:
    every = list(items)
    if len(every) <= most:
        return every
    return [every[(2 * number + 1) * len(every) // (2 * most)] for number in range(most)]
