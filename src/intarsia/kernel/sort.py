"""The order that rows are brought into, the sample it is measured by, and cuts through it.

Computes orders; rows that do not fit in memory are spilled by :mod:`intarsia.kernel.spill`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.python_values import make_array, make_scalar
from intarsia.common.radix import sort_integers
from intarsia.core.curve import choose_bits, compute_curve_codes, compute_order_indices, sample_boundaries
from intarsia.core.keys import arange, search
from intarsia.core.plan import Plan
from intarsia.core.snapshot import DataFile
from intarsia.kernel.equal_keys import to_key_form
from intarsia.kernel.overlay import take_rows
from intarsia.kernel.read import FileReader
from intarsia.kernel.threads import map_in_order
from intarsia.kernel.write import widen, widen_schema

MOST_GROUPS = 256
SAMPLE_ROWS = 1 << 16
_MEASURED_ROWS = 1 << 15
"""Rows of a table that boundaries of a curve are taken from."""
_RANK_BITS = 12
"""Bits per column of a position on a curve: thousands of steps are enough to separate row groups."""
_CODE_BITS = 61


@dataclass(frozen=True, slots=True)
class Order:
    """An order of rows by some columns: along a curve, or column by column. NULLs are last.

    ``boundaries`` define the steps of each column on the curve; None takes them from the sorted rows.
    """

    by: tuple[str, ...]
    curve: Any = "zorder"
    boundaries: tuple[pa.Array, ...] | None = None

    @property
    def plain(self) -> bool:
        return self.curve == "linear" or len(self.by) < 2

    def with_boundaries(self, sample: pa.Table) -> Order:
        """The same order with boundaries from a sample, so that codes of different tables compare."""
        if self.plain:
            return self
        bits = min(choose_bits(len(self.by)), _RANK_BITS)
        found = tuple(sample_boundaries(sample[name], bits) for name in self.by)
        return Order(self.by, self.curve, found)

    def compute_codes(self, table: pa.Table) -> pa.UInt64Array:
        """Positions on the curve."""
        assert self.boundaries is not None
        return compute_curve_codes(
            [table[name] for name in self.by], curve=self.curve, boundaries=self.boundaries
        )

    def compute_indices(self, table: pa.Table) -> pa.Array:
        """The row numbers in order; the sort is stable."""
        if not self.by:
            return arange(table.num_rows)
        if self.plain:
            return compute_order_indices(table, self.by, curve="linear")
        order = (
            self
            if self.boundaries is not None
            else self.with_boundaries(spread_rows(table.select(self.by), _MEASURED_ROWS))
        )
        return sort_integers(order.compute_codes(table))


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where an order is cut into consecutive buckets."""

    order: Order
    ladder: Ladder | None
    edges: pa.UInt64Array
    """In doubled codes: a bucket from 2c on starts with code c, one from 2c + 1 on right after it."""
    even: tuple[bool, ...]
    """Per bucket: whether all of its rows are equal in the order."""

    @staticmethod
    def of(sample: pa.Table, order: Order, *, parts: int) -> Cuts:
        """Cuts into about ``parts`` equal buckets; a value that would fill one has a bucket of its own."""
        rows = sample.num_rows
        parts = max(1, min(parts, rows))
        picks = pc.divide(pc.multiply(arange(parts - 1, 1), make_scalar(rows)), make_scalar(parts))
        ordered = take_rows(sample.select(order.by), order.compute_indices(sample).take(picks))
        ladder = Ladder.of(ordered) if order.plain else None
        codes = order.compute_codes(ordered) if ladder is None else ladder.compute_codes(ordered)
        every = order.compute_codes(sample) if ladder is None else ladder.compute_codes(sample)
        counts = every.filter(pc.is_in(every, value_set=codes)).value_counts().to_pylist()
        exact = ladder is None or ladder.exact
        heavy = {item["values"] for item in counts if exact and item["counts"] * parts >= rows}
        edges: list[int] = []
        even = [False]
        for code in sorted(set(codes.to_pylist())):
            edges.append(2 * code)
            even.append(code in heavy)
            if code in heavy:
                edges.append(2 * code + 1)
                even.append(False)
        return Cuts(order, ladder, make_array(edges, pa.uint64()), tuple(even))

    def assign_buckets(self, table: pa.Table) -> pa.UInt16Array:
        """The number of the bucket of each row."""
        codes = self.order.compute_codes(table) if self.ladder is None else self.ladder.compute_codes(table)
        doubled = pc.shift_left(codes, make_scalar(1, pa.uint64()))
        return pc.search_sorted(self.edges, doubled, side="right").cast(pa.uint16())


@dataclass(frozen=True, slots=True)
class Ladder:
    """Compares rows with some given rows, in the plain order of their columns.

    Each value of a column gets a number by the given values of that column: odd if it equals one of them,
    even if it is between two. The codes of a row and of a given row then compare as the rows do.
    """

    columns: tuple[str, ...]
    steps: tuple[pa.Array, ...]
    exact: bool
    """Whether rows of the same odd code are equal in all columns of the order."""

    @staticmethod
    def of(given: pa.Table) -> Ladder:
        columns: list[str] = []
        steps: list[pa.Array] = []
        bits = 0.0
        for name in given.column_names:
            values = _sort_distinct(given[name])
            bits += (2 * len(values) + 3).bit_length()
            if columns and bits > _CODE_BITS:
                return Ladder(tuple(columns), tuple(steps), exact=False)
            columns.append(name)
            steps.append(values)
        return Ladder(tuple(columns), tuple(steps), exact=True)

    def compute_codes(self, table: pa.Table) -> pa.UInt64Array:
        result: pa.Array | None = None
        for name, steps in zip(self.columns, self.steps, strict=True):
            digit = _rank_values(_to_sortable(table[name]), steps)
            if result is not None:
                radix = make_scalar(2 * len(steps) + 3, pa.int64())
                digit = pc.add(pc.multiply(result, radix), digit)
            result = digit
        assert result is not None
        return result.cast(pa.uint64())


def _to_sortable(column: Any) -> pa.Array:
    values = to_key_form(column)
    if pa.types.is_boolean(values.type) or pa.types.is_null(values.type):
        values = values.cast(pa.uint8())
    return values


def _sort_distinct(column: Any) -> pa.Array:
    values = _to_sortable(column).drop_null()
    if pa.types.is_floating(values.type):
        values = values.filter(pc.invert(pc.is_nan(values)))
    values = pc.unique(values)
    return values.take(pc.array_sort_indices(values))


def _rank_values(values: pa.Array, steps: pa.Array) -> pa.Int64Array:
    digit = pc.add(search(steps, values, side="left"), search(steps, values, side="right"))
    top = 2 * len(steps)
    if pa.types.is_floating(values.type):
        digit = pc.if_else(pc.is_nan(values), make_scalar(top + 1, pa.int64()), digit)
    return pc.if_else(pc.is_null(values), make_scalar(top + 2, pa.int64()), digit)


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

    Memory: the sample, and these columns of a row group per thread.
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
    """At most ``most`` row groups with rows, spread evenly over the files. Reads no file."""
    every = list(_iterate_row_groups(files))
    if len(every) <= most:
        return every
    return [every[(2 * number + 1) * len(every) // (2 * most)] for number in range(most)]


def sample_row_groups(
    chosen: Sequence[RowGroup], columns: Sequence[str], plan: Plan, *, share: float, threads: int = 1
) -> pa.Table:
    """This share of the rows of some row groups, at least one of each, evenly spread.

    The indices of dictionaries are wide enough for the values of all files.
    """
    stored = pa.schema([plan.schema.field(name).with_nullable(True) for name in columns])
    schema = widen_schema(stored)

    def sample_row_group(item: RowGroup) -> pa.Table:
        with FileReader(item.file, plan.schema, plan.snapshot.filesystem) as reader:
            pieces = [
                spread_rows(
                    widen(pa.table(piece.columns, schema=stored), schema), math.ceil(share * piece.num_rows)
                )
                for piece in reader.read_pieces(columns, item.number)
            ]
        return pa.concat_tables([pa.Table.from_batches([], schema), *pieces])

    return pa.concat_tables(
        [pa.Table.from_batches([], schema), *map_in_order(sample_row_group, chosen, threads=threads)]
    )


def spread_rows(table: pa.Table, count: int) -> pa.Table:
    """``count`` rows of a table, evenly spread."""
    if table.num_rows <= count:
        return table
    spread = pc.multiply(arange(count), make_scalar(table.num_rows))
    return take_rows(table, pc.divide(spread, make_scalar(count)))


def _iterate_row_groups(files: Sequence[DataFile]) -> Iterator[RowGroup]:
    for file in files:
        if file.footer is None:
            continue
        for number in range(file.footer.num_row_groups):
            count = file.footer.row_group(number).num_rows
            if count:
                yield RowGroup(file, number, count)
