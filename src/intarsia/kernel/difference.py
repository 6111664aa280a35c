"""The rows of one table that another one does not have, each counted as often as it is there."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.python_values import make_scalar
from intarsia.common.rows import take_rows
from intarsia.common.schema import is_nested
from intarsia.core.keys import arange, decode_dictionary, to_array, to_comparable

__all__ = ["find_incomparable", "subtract_rows"]


def find_incomparable(schema: pa.Schema) -> str | None:
    """A column whose values are not compared: of a nested type; None where all are."""
    return next((field.name for field in schema if is_nested(field.type)), None)


def subtract_rows(table: pa.Table, other: pa.Table) -> pa.Table:
    """The rows of ``table`` in their order, without those of ``other``.

    A row that is there three times and once in ``other`` stays twice. NULL equals NULL, NaN equals NaN and
    -0.0 equals 0.0. Memory: both tables, and some integers per row.

    Args:
        table: without nested columns.
        other: with the same columns.
    """
    if not other.num_rows or not table.num_rows:
        return table
    codes = _number_rows(table, other)
    own, others = codes.slice(0, table.num_rows), codes.slice(table.num_rows)
    counts = pc.value_counts(others)
    order = pc.array_sort_indices(own)
    ordered = own.take(order)
    first = pc.subtract(pc.rank(ordered, sort_keys="ascending", tiebreaker="min").cast(pa.int64()), 1)
    occurrence = pc.subtract(arange(len(ordered)), first)
    known = pc.index_in(ordered, value_set=counts.field("values"))
    removed = pc.fill_null(counts.field("counts").take(known), 0)
    kept = order.filter(pc.greater_equal(occurrence, removed))
    return take_rows(table, kept.take(pc.array_sort_indices(kept)))


def _number_rows(table: pa.Table, other: pa.Table) -> pa.Array:
    """A number for each row of both tables; equal rows have the same."""
    codes: pa.Array = pa.repeat(make_scalar(0, pa.int64()), table.num_rows + other.num_rows)
    for name in table.column_names:
        if pa.types.is_null(table.schema.field(name).type):
            continue
        digits = _encode(pa.concat_arrays([_flatten(table[name]), _flatten(other[name])]))
        width = pc.max(digits).as_py() + 1
        # Dense codes stay below 2^31, so their product fits 64 bits.
        codes = _encode(pc.add(pc.multiply(codes, width), digits))
    return codes


def _flatten(column: Any) -> pa.Array:
    return to_array(decode_dictionary(to_comparable(column)))


def _encode(values: pa.Array) -> pa.Array:
    return values.dictionary_encode(null_encoding="encode").indices.cast(pa.int64())
