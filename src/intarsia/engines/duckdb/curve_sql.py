"""Positions on a curve as SQL: a binary search among boundaries, then lookups in small lists.

The lists stand in a table of one row, so that DuckDB holds them once and not with every row. CurveCodes are
exactly those of :func:`intarsia.core.curve.curve_codes`; a Python function would take twice the time and
the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.curve import bits_for, gray_flips, spread_bits, step_ranks
from intarsia.engines.duckdb.scan import is_float
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.sql import quote
from intarsia.engines.duckdb.types import sql_type
from intarsia.kernel.sort import Order

__all__ = ["CurveCodes"]


@dataclass(frozen=True, slots=True)
class CurveCodes:
    """Gives rows of a query their places on a measured curve."""

    order: Order
    schema: pa.Schema
    """The types of the query's columns."""
    table: str
    """The lists that are looked into, as SQL."""
    own: str
    """What names of columns begin with that are only there on the way."""

    @staticmethod
    def of(session: Session, order: Order, schema: pa.Schema, *, table: str) -> CurveCodes:
        """Writes the lists into a table of the session."""
        codes = CurveCodes(order, schema, session.table(table), _find_unused_prefix(schema.names))
        lists = pa.table({known: _make_list(values) for known, values in codes._lists()})
        with session.view(lists) as view:
            session.run(f"CREATE OR REPLACE TABLE {codes.table} AS SELECT {codes._typed()} FROM {view}")
        return codes

    @property
    def column(self) -> str:
        """The name that the code has in :meth:`sql`."""
        return self._name("code")

    def sql(self, rows: str) -> str:
        """The rows of a query with their codes beside them; its names are the schema's, or of ours."""
        width = range(len(self.order.by))
        own = ", ".join(quote(known) for known, _ in self._lists())
        left = ", ".join([own, *(self._at(n) for n in width)])
        sql = f"SELECT r.*, l.*, {', '.join(f'0::BIGINT AS {self._at(n)}' for n in width)}"
        sql = f"{sql} FROM ({rows}) r, {self.table} l"
        for step in self._search():
            sql = _replace_columns(sql, step)
        if self.order.curve == "hilbert":
            sql = _replace_columns(sql, [f"{self._rank(n)}::BIGINT AS {self._at(n)}" for n in width])
            for step in self._transform():
                sql = _replace_columns(sql, step)
        return f"SELECT * EXCLUDE ({left}), {self._code()} AS {quote(self.column)} FROM ({sql})"

    @property
    def _boundaries(self) -> tuple[pa.Array, ...]:
        assert self.order.boundaries is not None
        return self.order.boundaries

    @property
    def _bits(self) -> int:
        return bits_for(len(self.order.by))

    def _name(self, what: str) -> str:
        return f"{self.own}{what}"

    def _at(self, number: int) -> str:
        """How many boundaries a value lies above; later, where it is on its axis."""
        return quote(self._name(f"at{number}"))

    def _lists(self) -> Iterator[tuple[str, pa.Array]]:
        bits, width = self._bits, len(self.order.by)
        interleaved = spread_bits(bits, width)
        for number, limits in enumerate(self._boundaries):
            ranks = pa.concat_arrays([step_ranks(len(limits), bits), _rank_nan(bits)])
            if self.order.curve == "zorder":  # where ranks stay as they are, their bits can be spread here
                ranks = pc.shift_left(interleaved.take(ranks), pa.scalar(width - 1 - number, pa.uint64()))
            yield self._name(f"limits{number}"), limits
            yield self._name(f"ranks{number}"), ranks
        if self.order.curve == "hilbert":
            yield self._name("flips"), gray_flips(bits)
            yield self._name("spread"), interleaved

    def _typed(self) -> str:
        limits = {self._name(f"limits{n}"): self._sql_type(n) for n in range(len(self.order.by))}
        return ", ".join(
            f"CAST({quote(known)} AS {limits[known]}[]) AS {quote(known)}"
            if known in limits
            else quote(known)
            for known, _ in self._lists()
        )

    def _kind(self, number: int) -> pa.DataType:
        return self.schema.field(self.order.by[number]).type

    def _sql_type(self, number: int) -> str:
        kind = str(sql_type(self._kind(number)))
        return "UTINYINT" if kind == "BOOLEAN" else kind

    def _value(self, number: int) -> str:
        value = quote(self.order.by[number])
        return f"{value}::UTINYINT" if str(sql_type(self._kind(number))) == "BOOLEAN" else value

    def _search(self) -> Iterator[list[str]]:
        """Step by step, half as far each time; beyond the end of a list is NULL, which nothing is above."""
        reach = [1 << (len(limits).bit_length() - 1) if len(limits) else 0 for limits in self._boundaries]
        while any(reach):
            yield [
                f"CASE WHEN {self._value(n)} >= {quote(self._name(f'limits{n}'))}[{self._at(n)} + {far}]"
                f" THEN {self._at(n)} + {far} ELSE {self._at(n)} END AS {self._at(n)}"
                for n, far in enumerate(reach)
                if far
            ]
            reach = [far >> 1 for far in reach]

    def _rank(self, number: int) -> str:
        ranks = quote(self._name(f"ranks{number}"))
        index = f"{self._at(number)} + 1"
        if is_float(self._kind(number)):
            index = f"CASE WHEN isnan({self._value(number)}) THEN len({ranks}) ELSE {index} END"
        return f"{ranks}[{index}]"

    def _transform(self) -> Iterator[list[str]]:
        """Hilbert's curve as :mod:`intarsia.core.curve` has it: low bits inverted, or exchanged."""
        first = self._at(0)
        for q in range(self._bits - 1, 0, -1):
            below = (1 << q) - 1
            for number in range(len(self.order.by)):
                x = self._at(number)
                invert = f"((({x} >> {q}) & 1) * {below})"
                if number == 0:
                    yield [f"xor({x}, {invert}) AS {x}"]
                    continue
                swap = f"(xor({first}, {x}) & xor({invert}, {below}))"
                yield [f"xor({x}, {swap}) AS {x}", f"xor({first}, xor({swap}, {invert})) AS {first}"]
        for number in range(1, len(self.order.by)):
            yield [f"xor({self._at(number)}, {self._at(number - 1)}) AS {self._at(number)}"]
        flips = f"{quote(self._name('flips'))}[{self._at(len(self.order.by) - 1)} + 1]"
        yield [f"xor({self._at(n)}, {flips}::BIGINT) AS {self._at(n)}" for n in range(len(self.order.by))]

    def _code(self) -> str:
        """Bits of all axes, and above them one per column that is NULL, the first column's the highest."""
        width, parts = len(self.order.by), []
        for number, column in enumerate(self.order.by):
            if self.order.curve == "hilbert":
                interleaved = f"{quote(self._name('spread'))}[{self._at(number)} + 1]"
                parts.append(f"({interleaved} << {width - 1 - number}::UBIGINT)")
            else:
                parts.append(self._rank(number))
            bit = 1 << (self._bits * width + width - 1 - number)
            parts.append(f"CASE WHEN {quote(column)} IS NULL THEN {bit}::UBIGINT ELSE 0::UBIGINT END")
        return " | ".join(parts)


def _replace_columns(sql: str, columns: Sequence[str]) -> str:
    """One more step, in a query around the one before: what a step uses twice is worked out once."""
    return f"SELECT * REPLACE ({', '.join(columns)}) FROM ({sql})"


def _make_list(values: pa.Array) -> pa.Array:
    """All values as one list."""
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)


def _rank_nan(bits: int) -> pa.Array:
    return pa.array([(1 << bits) - 1], pa.uint16())


def _find_unused_prefix(names: Sequence[str]) -> str:
    own = "~"
    while any(each.lower().startswith(own) for each in names):
        own += "~"
    return own
