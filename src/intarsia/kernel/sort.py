"""The order that rows are brought into, and cuts through it; computes orders, moves no rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.curve import bits_for, curve_codes, order_indices, sample_boundaries
from intarsia.core.keys import arange, search
from intarsia.kernel.overlay import take_rows
from intarsia.kernel.repeats import key_form
from intarsia.kernel.sample import SAMPLE_ROWS, spread_rows
from intarsia.kernel.spill import Bucket, Spill
from intarsia.kernel.threads import in_order

_RANK_BITS = 12
"""Thousands of steps per column tell row groups apart; more would only cost time."""
_DIGIT_BITS = 11
_MOST_DIGITS = 3
_RADIX_FROM_ROWS = 1 << 17
_CODE_BITS = 61


@dataclass(frozen=True, slots=True)
class Order:
    """An order of rows by some columns: along a curve, or plainly column by column. NULLs come last.

    ``boundaries`` are what positions on the curve are measured by: None takes them from the rows.
    """

    by: tuple[str, ...]
    curve: Any = "zorder"
    boundaries: tuple[pa.Array, ...] | None = None

    @property
    def plain(self) -> bool:
        return self.curve == "linear" or len(self.by) < 2

    def measured(self, sample: pa.Table) -> Order:
        """The same order with boundaries from a sample, so that codes of different tables compare."""
        if self.plain:
            return self
        bits = min(bits_for(len(self.by)), _RANK_BITS)
        found = tuple(sample_boundaries(sample[name], bits) for name in self.by)
        return Order(self.by, self.curve, found)

    def codes(self, table: pa.Table) -> pa.UInt64Array:
        """Positions on the curve."""
        assert self.boundaries is not None
        return curve_codes([table[name] for name in self.by], curve=self.curve, boundaries=self.boundaries)

    def indices(self, table: pa.Table) -> pa.Array:
        """The row numbers in order; rows at the same place keep theirs."""
        if not self.by:
            return arange(table.num_rows)
        if self.plain:
            return order_indices(table, self.by, curve="linear")
        order = self if self.boundaries is not None else self.measured(_spread(table.select(self.by)))
        return sort_codes(order.codes(table))


def _spread(table: pa.Table, rows: int = 1 << 15) -> pa.Table:
    if table.num_rows <= rows:
        return table
    return take_rows(table, pc.divide(pc.multiply(arange(rows), table.num_rows), rows))


def sort_codes(codes: pa.UInt64Array) -> pa.Array:
    """The row numbers by ascending code, stable.

    Many short codes are sorted digit by digit (small integers are counted, not compared): that takes
    half the time.
    """
    top = pc.max(codes).as_py() or 0
    digits = -(-top.bit_length() // _DIGIT_BITS)
    if len(codes) < _RADIX_FROM_ROWS or not 1 <= digits <= _MOST_DIGITS:
        return pc.array_sort_indices(codes)
    order: pa.Array | None = None
    mask = pa.scalar((1 << _DIGIT_BITS) - 1, pa.uint64())
    for number in range(digits):
        shifted = pc.shift_right(codes, pa.scalar(number * _DIGIT_BITS, pa.uint64()))
        digit = pc.bit_wise_and(shifted, mask).cast(pa.uint16())
        if order is None:
            order = pc.array_sort_indices(digit)
        else:
            order = order.take(pc.array_sort_indices(digit.take(order)))
    return order


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where an order is cut into consecutive buckets."""

    order: Order
    ladder: Ladder | None
    edges: pa.UInt64Array
    """In doubled codes: 2c begins a bucket with code c, 2c + 1 begins one right after it."""
    even: tuple[bool, ...]
    """Per bucket: whether all of its rows have the same place in the order."""

    @staticmethod
    def of(sample: pa.Table, order: Order, *, parts: int) -> Cuts:
        """Cuts into about so many equal parts; a place that fills a part alone has its own bucket."""
        rows = sample.num_rows
        parts = max(1, min(parts, rows))
        picks = pc.divide(pc.multiply(arange(parts - 1, 1), rows), parts)
        ordered = take_rows(sample.select(order.by), order.indices(sample).take(picks))
        ladder = Ladder.of(ordered) if order.plain else None
        codes = order.codes(ordered) if ladder is None else ladder.codes(ordered)
        every = order.codes(sample) if ladder is None else ladder.codes(sample)
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
        return Cuts(order, ladder, pa.array(edges, pa.uint64()), tuple(even))

    def buckets(self, table: pa.Table) -> pa.UInt16Array:
        """The number of the bucket of each row."""
        codes = self.order.codes(table) if self.ladder is None else self.ladder.codes(table)
        doubled = pc.shift_left(codes, pa.scalar(1, pa.uint64()))
        return pc.search_sorted(self.edges, doubled, side="right").cast(pa.uint16())


@dataclass(frozen=True, slots=True)
class Ladder:
    """Tells where a row stands relative to some given rows, in the plain order of their columns.

    Each column's values are numbered by the given values: odd for equal to one of them, even for
    between two. So the codes of a row and of a given row compare as the rows do.
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
            values = _steps(given[name])
            bits += (2 * len(values) + 3).bit_length()
            if columns and bits > _CODE_BITS:
                return Ladder(tuple(columns), tuple(steps), exact=False)
            columns.append(name)
            steps.append(values)
        return Ladder(tuple(columns), tuple(steps), exact=True)

    def codes(self, table: pa.Table) -> pa.UInt64Array:
        result: pa.Array | None = None
        for name, steps in zip(self.columns, self.steps, strict=True):
            digit = _digit(_sortable(table[name]), steps)
            if result is not None:
                radix = pa.scalar(2 * len(steps) + 3, pa.int64())
                digit = pc.add(pc.multiply(result, radix), digit)
            result = digit
        assert result is not None
        return result.cast(pa.uint64())


def _sortable(column: Any) -> pa.Array:
    values = key_form(column)
    if pa.types.is_boolean(values.type) or pa.types.is_null(values.type):
        values = values.cast(pa.uint8())
    return values


def _steps(column: Any) -> pa.Array:
    values = _sortable(column).drop_null()
    if pa.types.is_floating(values.type):
        values = values.filter(pc.invert(pc.is_nan(values)))
    values = pc.unique(values)
    return values.take(pc.array_sort_indices(values))


def _digit(values: pa.Array, steps: pa.Array) -> pa.Int64Array:
    digit = pc.add(search(steps, values, side="left"), search(steps, values, side="right"))
    top = 2 * len(steps)
    if pa.types.is_floating(values.type):
        digit = pc.if_else(pc.is_nan(values), pa.scalar(top + 1, pa.int64()), digit)
    return pc.if_else(pc.is_null(values), pa.scalar(top + 2, pa.int64()), digit)


_MOST_PORTIONS = 128
_OFF_TARGET = 0.25
"""By how much of a file a cut may miss, to save sorting a portion for two files."""

Rows = Callable[[], Iterator[pa.Table]]


@dataclass(frozen=True, slots=True)
class Portion:
    """Some rows that follow each other in an order; of an ``even`` one all have the same place in it."""

    rows: int
    bytes: int
    """In memory."""
    even: bool
    read: Rows
    """The rows in pieces, in no order."""
    discard: Callable[[], None] | None = None
    """Frees the space of a portion that is done with."""


@dataclass(frozen=True, slots=True)
class Span:
    """Some rows of a portion, counted in its order."""

    portion: Portion
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Sorter:
    """Brings portions into order, one at a time. Memory: a few times ``share`` bytes per thread."""

    order: Order
    """Measured, so that portions are ordered alike."""
    share: int
    """The most bytes of a portion that is sorted in memory."""
    threads: int = 1

    def parts(self, size: int, *, least: int = 2) -> int:
        """Into how many portions to split so many bytes."""
        return max(2, min(max(least, -(-2 * size // self.share)), _MOST_PORTIONS))

    def deal(self, spill: Spill, cuts: Cuts, sources: Sequence[Rows]) -> list[Portion]:
        """All rows of the sources in portions on disk, in order."""
        deal = spill.deal(cuts.even, most_bytes=self.share)

        def one(source: Rows) -> None:
            for piece in source():
                deal.add(piece, cuts.buckets(piece))

        try:
            for _ in in_order(one, sources, threads=self.threads):
                pass
            return [_portion(spill, bucket) for bucket in deal.finish()]
        finally:
            deal.abandon()

    def fits(self, portion: Portion) -> bool:
        """Whether a portion can be brought into order as it is."""
        return portion.even or portion.bytes <= self.share

    def split(self, spill: Spill, portion: Portion) -> list[Portion]:
        """A portion that is too large to be sorted in memory, as smaller ones."""
        if self.fits(portion):
            return [portion]
        share = SAMPLE_ROWS / portion.rows
        sample = pa.concat_tables(
            spread_rows(piece.select(self.order.by), int(piece.num_rows * share) + 1)
            for piece in portion.read()
        )
        cuts = Cuts.of(sample, self.order, parts=self.parts(portion.bytes))
        smaller = self.deal(spill, cuts, [portion.read])
        if portion.discard is not None:
            portion.discard()
        if len(smaller) == 1:  # no cut was found
            return smaller
        return [leaf for small in smaller for leaf in self.split(spill, small)]

    def pieces(self, span: Span, rows: int) -> Iterator[pa.Table]:
        """The rows of a span in order, at most so many at once; those of an even portion as they come."""
        portion = span.portion
        if portion.even:
            start = 0
            for piece in portion.read():
                low, high = max(span.start - start, 0), min(span.stop - start, piece.num_rows)
                start += piece.num_rows
                if low < high:
                    yield piece.slice(low, high - low)
            return
        table, indices = with_order(list(portion.read()), self.order)
        indices = indices.slice(span.start, span.stop - span.start)
        for start in range(0, len(indices), rows):
            yield take_rows(table, indices.slice(start, rows))


def _portion(spill: Spill, bucket: Bucket) -> Portion:
    read, discard = partial(spill.read, bucket), partial(spill.remove, bucket)
    return Portion(bucket.rows, bucket.bytes, bucket.even, read, discard)


def with_order(tables: list[pa.Table], order: Order) -> tuple[pa.Table, pa.Array]:
    """All rows, and their numbers in order. Empties the list, so that memory holds each column once.

    Columns are in one piece, where their type allows: gathering rows is then many times faster.
    """
    table = pa.concat_tables(tables)
    tables.clear()
    indices = order.indices(table)
    schema, columns = table.schema, table.columns
    del table
    for number, column in enumerate(columns):
        columns[number] = column.combine_chunks()
        del column
    return pa.table(columns, schema=schema), indices


def spans(portions: Sequence[Portion], outputs: int) -> list[list[Span]]:
    """Portions assigned to files of about equal rows, cut between portions where that comes close."""
    ends = [0]
    for portion in portions:
        ends.append(ends[-1] + portion.rows)
    total = ends[-1]
    target = total / max(outputs, 1)
    cuts = {0, total}
    for number in range(1, outputs):
        ideal = round(number * target)
        edge = min(ends, key=lambda end: abs(end - ideal))
        cuts.add(edge if abs(edge - ideal) <= target * _OFF_TARGET else ideal)
    result = []
    for low, high in pairwise(sorted(cuts)):
        mine = [
            Span(portion, max(low - begin, 0), min(high - begin, portion.rows))
            for portion, begin in zip(portions, ends, strict=False)
            if begin < high and begin + portion.rows > low
        ]
        result.append(mine)
    return result
