"""Arrow arrays and scalars of Python values, made without pandas; no rows of tables.

``pa.array`` and ``pa.scalar`` look whether a value is an object of pandas, and import pandas for that
wherever it is installed (pyarrow/pandas-shim.pxi): a third of a small merge from a cold interpreter.
"""

from __future__ import annotations

import array
import itertools
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_NUMBERS = {
    pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q",
    pa.uint8(): "B", pa.uint16(): "H", pa.uint32(): "I", pa.uint64(): "Q",
    pa.float64(): "d",
}  # fmt: skip
"""The standard library's ``array`` of each type."""
_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}
"""What a Python value becomes where no type is named."""
_EPOCH = date(1970, 1, 1).toordinal()
_LEAST_EXPONENT = 1000


def make_array(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """As ``pa.array(values, dtype)``: the same array, and the same errors."""
    there = [value for value in values if value is not None]
    if not there:
        return pa.nulls(len(values), dtype)
    made = _make_without_nulls(there, dtype)
    if made is None:
        return pa.array(values, dtype)
    if len(there) == len(values):
        return made
    known = _make_booleans([value is not None for value in values])
    return pc.replace_with_mask(pa.nulls(len(values), dtype), known, made)


def make_scalar(value: Any, dtype: pa.DataType | None = None) -> pa.Scalar:
    """As ``pa.scalar(value, dtype)``: the same scalar, and the same errors."""
    dtype = _TYPES.get(type(value)) if dtype is None else dtype
    made = None
    if dtype is not None and not isinstance(dtype, pa.BaseExtensionType):
        made = pa.nulls(1, dtype) if value is None else _make_without_nulls([value], dtype)
    return pa.scalar(value, dtype) if made is None else made[0]


def _make_without_nulls(values: Sequence[Any], dtype: pa.DataType) -> pa.Array | None:
    """None where only PyArrow knows how, or whether, the values become the type."""
    kinds = {*map(type, values)}
    try:
        if kinds == {bool} and pa.types.is_boolean(dtype):
            return _make_booleans(values)
        if dtype in _NUMBERS and kinds == {float if pa.types.is_floating(dtype) else int}:
            numbers = pa.py_buffer(array.array(_NUMBERS[dtype], values))
            return pa.Array.from_buffers(dtype, len(values), [None, numbers])
        if pa.types.is_date32(dtype) and kinds <= {int, date}:
            return _make_dates(values)
        if kinds == {int} and pa.types.is_timestamp(dtype):
            numbers = pa.py_buffer(array.array("q", values))
            return pa.Array.from_buffers(dtype, len(values), [None, numbers])
        if kinds == {Decimal} and _is_decimal(dtype):
            return _make_decimals(values, dtype)
        if kinds == {str} and pa.types.is_string(dtype):
            return _make_binary([value.encode() for value in values], dtype)
        if kinds == {bytes} and pa.types.is_binary(dtype):
            return _make_binary(values, dtype)
    except (OverflowError, UnicodeEncodeError):
        return None
    return None


def _make_booleans(values: Sequence[bool]) -> pa.BooleanArray:
    return pa.Array.from_buffers(pa.uint8(), len(values), [None, pa.py_buffer(bytes(values))]).cast(
        pa.bool_()
    )


def _make_dates(values: Sequence[int | date]) -> pa.Array:
    days = (value.toordinal() - _EPOCH if isinstance(value, date) else value for value in values)
    return pa.Array.from_buffers(pa.date32(), len(values), [None, pa.py_buffer(array.array("i", days))])


def _is_decimal(dtype: pa.DataType) -> bool:
    return (pa.types.is_decimal128(dtype) or pa.types.is_decimal256(dtype)) and dtype.scale >= 0


def _make_decimals(values: Sequence[Decimal], dtype: pa.DataType) -> pa.Array | None:
    """None where a value does not fit: PyArrow says why."""
    numbers = []
    for value in values:
        if not value.is_finite():
            return None
        if value and value.adjusted() < -_LEAST_EXPONENT:  # PyArrow 26 dies of 1E-9999999
            raise pa.ArrowInvalid(f"The decimal {value} cannot be represented as {dtype}")
        if value and not -dtype.scale <= value.adjusted() < dtype.precision - dtype.scale:
            return None  # before 1E+9999999 becomes an integer
        numerator, denominator = value.as_integer_ratio()
        unscaled, rest = divmod(numerator * 10**dtype.scale, denominator)
        if rest or abs(unscaled) >= 10**dtype.precision:
            return None
        numbers.append(unscaled.to_bytes(dtype.byte_width, "little", signed=True))
    return pa.Array.from_buffers(dtype, len(values), [None, pa.py_buffer(b"".join(numbers))])


def _make_binary(values: Sequence[bytes], dtype: pa.DataType) -> pa.Array:
    offsets = array.array("i", itertools.accumulate(map(len, values), initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(dtype, len(values), buffers)
