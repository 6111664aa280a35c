"""A few rows of many files, spread evenly: what cuts a column into equal parts is guessed from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.keys import arange
from intarsia.core.plan import Plan
from intarsia.core.snapshot import DataFile
from intarsia.kernel.overlay import take_rows
from intarsia.kernel.read import FileReader
from intarsia.kernel.threads import in_order
from intarsia.kernel.write import widen, widen_schema

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
    chosen = spread_row_groups(files, groups)
    share = rows / max(sum(item.rows for item in chosen), 1)
    return sample_row_groups(chosen, columns, plan, share=share, threads=threads)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of a file."""

    file: DataFile
    number: int
    rows: int


def spread_row_groups(files: Sequence[DataFile], most: int) -> list[RowGroup]:
    """At most so many row groups with rows, spread evenly over the files; by their footers alone."""
    every = list(_row_groups(files))
    if len(every) <= most:
        return every
    return [every[(2 * number + 1) * len(every) // (2 * most)] for number in range(most)]


def sample_row_groups(
    chosen: Sequence[RowGroup], columns: Sequence[str], plan: Plan, *, share: float, threads: int = 1
) -> pa.Table:
    """This share of the rows of some row groups, at least one of each, evenly spread.

    Dictionaries have indices wide enough for the values of all files.
    """
    stored = pa.schema([plan.schema.field(name).with_nullable(True) for name in columns])
    schema = widen_schema(stored)

    def one(item: RowGroup) -> pa.Table:
        with FileReader(item.file, plan.schema, plan.snapshot.filesystem) as reader:
            pieces = [
                spread_rows(
                    widen(pa.table(piece.columns, schema=stored), schema), math.ceil(share * piece.num_rows)
                )
                for piece in reader.pieces(columns, item.number)
            ]
        return pa.concat_tables([pa.Table.from_batches([], schema), *pieces])

    return pa.concat_tables([pa.Table.from_batches([], schema), *in_order(one, chosen, threads=threads)])


def spread_rows(table: pa.Table, count: int) -> pa.Table:
    """So many rows of a table, evenly spread."""
    if table.num_rows <= count:
        return table
    return take_rows(table, pc.divide(pc.multiply(arange(count), table.num_rows), count))


def _row_groups(files: Sequence[DataFile]) -> Iterator[RowGroup]:
    for file in files:
        if file.footer is None:
            continue
        for number in range(file.footer.num_row_groups):
            count = file.footer.row_group(number).num_rows
            if count:
                yield RowGroup(file, number, count)
