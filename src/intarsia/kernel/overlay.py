"""Rows of a table in memory replaced or dropped by their positions; makes a new table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.python_values import make_array, make_scalar
from intarsia.common.rows import take, take_rows, tidy_schema
from intarsia.common.types import get_value_type
from intarsia.core.keys import arange, decode_dictionary, find_places, mark_numbers, to_array
from intarsia.errors import SchemaMismatch

__all__ = ["Overlay", "count_dictionary_room", "drop_rows", "select_positions", "take_rows"]


def select_positions(positions: pa.Int64Array, start: int, stop: int) -> pa.Int64Array:
    """Those of some ascending positions that are in a range."""
    low, high = pc.search_sorted(positions, make_array([start, stop], pa.int64())).to_pylist()
    return positions.slice(low, high - low)


_FEW = 64
"""Values that are compared before all others."""


class Overlay:
    """Replaces the values of given rows in columns of one length.

    Values of fixed width are replaced through a mask, others are gathered; the input is not changed.
    """

    def __init__(self, rows: int, positions: pa.Int64Array) -> None:
        self.rows = rows
        self._positions = positions
        self._whole = len(positions) == rows
        if self._whole:
            return
        self._slots = to_array(find_places(positions, rows))
        self._mask = pc.is_valid(self._slots)
        self._gather: pa.Array | None = None

    def set(self, column: Any, values: Any) -> pa.Array:
        """The column with ``values`` at the positions, in their order."""
        old, new = to_array(column), to_array(values)
        if pa.types.is_dictionary(old.type):
            plain = new.cast(new.type.value_type) if pa.types.is_dictionary(new.type) else new
            return self._set_encoded(old, plain)
        if self._whole:
            return new
        if _is_maskable(old.type):
            return pc.replace_with_mask(old, self._mask, new)
        if self._gather is None:
            self._gather = pc.if_else(
                self._mask, pc.add(self._slots, make_scalar(self.rows, pa.int64())), arange(self.rows)
            )
        return take(pa.concat_arrays([old, new]), self._gather)

    def _set_encoded(self, old: pa.DictionaryArray, new: pa.Array) -> pa.Array:
        """Values set into a dictionary column: its dictionary grows by those it lacks."""
        if self._whole:
            return _encode_as(new, old.type)
        codes = pc.index_in(new, value_set=old.dictionary)
        absent = pc.unique(new.filter(pc.is_null(codes))).drop_null()
        dictionary = pa.concat_arrays([old.dictionary, absent]) if len(absent) else old.dictionary
        if len(dictionary) > count_dictionary_room(
            old.type
        ):  # some of the old values may not be used any more
            return _encode_as(self.set(old.cast(new.type), new), old.type)
        if len(absent):
            codes = pc.index_in(new, value_set=dictionary)
        indices = pc.replace_with_mask(old.indices, self._mask, codes.cast(old.indices.type))
        return pa.DictionaryArray.from_arrays(indices, dictionary, ordered=old.type.ordered)

    def changes(self, column: Any, values: Any) -> bool:
        """Whether setting the values would change the column; False only where that is certain."""
        old, new = to_array(column), to_array(values)
        if get_value_type(old.type) != get_value_type(new.type):
            return True
        few = min(_FEW, len(new))  # mostly they tell, and the others need not be gathered
        return self._differ(old, new, 0, few) or self._differ(old, new, few, len(new))

    def _differ(self, old: pa.Array, new: pa.Array, start: int, stop: int) -> bool:
        """Whether some of the new values are not what is there; True also where that cannot be told."""
        count = stop - start
        there = old.slice(start, count) if self._whole else take(old, self._positions.slice(start, count))
        there, given = decode_dictionary(there), decode_dictionary(new.slice(start, count))
        if _holds_floats_within(there.type):
            return True
        if pa.types.is_floating(there.type):  # 0.0 equals -0.0, but they are not the same
            bits = pa.int64() if there.type.bit_width == 64 else pa.int32()
            bits = pa.int16() if there.type.bit_width == 16 else bits
            there, given = there.view(bits), given.view(bits)
        return not there.equals(given)

    def apply(self, table: pa.Table, values: Mapping[str, Any]) -> tuple[pa.Table, frozenset[str]]:
        """The table with new values in some columns, and the names of the columns that differ."""
        changed = frozenset(
            name for name in table.column_names if name in values and self.changes(table[name], values[name])
        )
        columns = [
            self.set(table[name], values[name]) if name in changed else table[name]
            for name in table.column_names
        ]
        return pa.table(columns, schema=table.schema), changed


def drop_rows(table: pa.Table, positions: pa.Int64Array) -> pa.Table:
    """The table less some rows."""
    if len(positions) == 0:
        return table
    kept = pc.invert(mark_numbers(positions, table.num_rows))
    if tidy_schema(table.schema).equals(table.schema):
        return table.filter(kept)
    return take_rows(table, pc.indices_nonzero(kept))  # PyArrow cannot filter some types


def count_dictionary_room(dtype: pa.DictionaryType) -> int:
    """How many values a dictionary of this type can number."""
    signed = pa.types.is_signed_integer(dtype.index_type)
    return int(2 ** (dtype.index_type.bit_width - signed))


def _encode_as(values: pa.Array, dtype: pa.DictionaryType) -> pa.Array:
    encoded = values.dictionary_encode()
    if len(encoded.dictionary) > count_dictionary_room(dtype):
        raise SchemaMismatch(
            f"{len(encoded.dictionary):,} distinct values do not fit a column of type {dtype}.",
            hint="make the column one of plain values, or of wider indices, in every file.",
        )
    indices = encoded.indices.cast(dtype.index_type)
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=dtype.ordered)


def _holds_floats_within(dtype: pa.DataType) -> bool:
    if isinstance(dtype, pa.BaseExtensionType):
        return True  # how it compares is not known
    children = [dtype.field(number).type for number in range(dtype.num_fields)]
    return any(pa.types.is_floating(child) or _holds_floats_within(child) for child in children)


def _is_maskable(dtype: pa.DataType) -> bool:
    return (
        pa.types.is_integer(dtype)
        or pa.types.is_float32(dtype)
        or pa.types.is_float64(dtype)
        or pa.types.is_timestamp(dtype)
        or pa.types.is_date(dtype)
        or pa.types.is_time(dtype)
        or pa.types.is_decimal128(dtype)
    )
