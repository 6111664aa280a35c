"""Integers and times as numbers, and their row numbers in order, by radix; knows no other types."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.python_values import make_scalar

_LEAST_ROWS = 1 << 13
"""Below this a few more kernel calls cost more than comparisons."""
_DIGIT_BITS = 12
"""PyArrow sorts integers by counting where the least and the largest are at most 4096 apart."""
_MOST_BITS = 5 * _DIGIT_BITS


def sort_integers(values: pa.Array) -> pa.UInt64Array:
    """As ``pc.array_sort_indices``: the row numbers by ascending value, equal ones as they stand, NULLs last.

    Many integers or times that are not too far apart are sorted digit by digit, which takes a fraction of the
    time; all else as PyArrow does.
    """
    numbers = view_integers(values)
    if numbers is None or len(numbers) < _LEAST_ROWS or numbers.null_count:
        return pc.array_sort_indices(values)
    ends = pc.min_max(numbers)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    bits = (high - low).bit_length()
    if bits > _MOST_BITS:
        return pc.array_sort_indices(values)
    digits = max(1, -(-bits // _DIGIT_BITS))
    width = -(-bits // digits)
    dtype = numbers.type
    rest = pc.subtract(numbers, make_scalar(low, dtype))
    mask = make_scalar((1 << width) - 1, dtype)
    order: pa.Array | None = None
    for number in range(digits):
        digit = pc.bit_wise_and(rest, mask).cast(pa.uint16())
        order = (
            pc.array_sort_indices(digit)
            if order is None
            else order.take(pc.array_sort_indices(digit.take(order)))
        )
        if number + 1 < digits:
            rest = pc.shift_right(rest, make_scalar(width, dtype))
    return order


def view_integers(values: pa.Array) -> pa.Array | None:
    """The values as integers of 64 bits in the same order; None where they are no numbers of that kind."""
    dtype = values.type
    if pa.types.is_uint64(dtype):
        return values
    if pa.types.is_integer(dtype):
        return values.cast(pa.int64())
    if pa.types.is_temporal(dtype) and not pa.types.is_interval(dtype):
        return values.view(pa.int32() if dtype.bit_width == 32 else pa.int64()).cast(pa.int64())
    return None
