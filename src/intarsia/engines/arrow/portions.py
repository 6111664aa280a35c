"""Rows in portions along an order: dealt out, cut smaller where memory is short, sorted one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pyarrow as pa

from intarsia.engines.arrow.ordering import Cuts, Order
from intarsia.engines.arrow.overlay import take_rows
from intarsia.engines.arrow.sampling import SAMPLE_ROWS, spread_rows
from intarsia.engines.arrow.spill import Bucket, Spill
from intarsia.engines.arrow.threads import in_order

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
        """Into how many portions to deal out so many bytes."""
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
    """Portions dealt out to files of about equal rows, cut between portions where that comes close."""
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
