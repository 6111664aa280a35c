"""Rows that come in pieces, put together to row groups of one size; writes through a Sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.keys import arange, comparable, decoded
from intarsia.core.layout import Layout
from intarsia.engines.arrow.overlay import take_rows
from intarsia.engines.arrow.reading import PIECE_BYTES


class Sink(Protocol):
    """What takes row groups, such as a FileWriter."""

    schema: pa.Schema

    def write(self, table: pa.Table) -> None: ...


class RowGroups:
    """Puts rows that come in pieces of any size together to row groups of one size.

    A row group also closes at ``PIECE_BYTES`` of memory. Rows are brought into the order that the
    layout declares, row group by row group. Memory: one row group.
    """

    def __init__(self, writer: Sink, layout: Layout) -> None:
        self._writer = writer
        self._rows = layout.row_group_rows
        self._order = layout.sort_keys(writer.schema)
        self._waiting: list[pa.Table] = []
        self._count = 0
        self._bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """The rows that wait for their row group to fill."""
        return self._bytes

    @property
    def waiting_rows(self) -> int:
        return self._count

    def add(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._count += table.num_rows
        self._bytes += table.nbytes
        if self._count < self._rows and self._bytes < PIECE_BYTES:
            return
        whole = self._taken()
        rest = whole.num_rows % self._rows if whole.num_rows >= self._rows else 0
        full = whole.num_rows - rest
        for start in range(0, full, self._rows):
            self._write(whole.slice(start, min(self._rows, full - start)))
        if rest:
            self.add(whole.slice(full))

    def finish(self) -> None:
        """Write what is left as the last row group."""
        if self._count:
            self._write(self._taken())

    def _taken(self) -> pa.Table:
        whole = pa.concat_tables(self._waiting)
        self._waiting, self._count, self._bytes = [], 0, 0
        return whole

    def _write(self, table: pa.Table) -> None:
        self._writer.write(in_declared_order(table, self._order))


def in_declared_order(table: pa.Table, keys: Sequence[tuple[str, str, str]]) -> pa.Table:
    """The rows sorted by the keys; as they are without any."""
    if not keys or table.num_rows < 2:
        return table
    # Some types have no kernel for sorting, such as dictionaries; their comparable form has one.
    columns = {name: decoded(comparable(table[name])) for name, *_ in keys}
    order = pc.sort_indices(pa.table(columns), sort_keys=list(keys))
    if order.equals(arange(table.num_rows).cast(order.type)):
        return table
    return take_rows(table, order)
