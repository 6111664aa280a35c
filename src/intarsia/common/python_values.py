"""Arrow arrays and scalars of Python values, made without pandas; no rows of tables.

``pa.array`` and ``pa.scalar`` look whether a value is an object of pandas, and import pandas for that
wherever it is installed (pyarrow/pandas-shim.pxi): a third of a small merge from a cold interpreter.
"""

from __future__ import annotations

import array
import itertools
from collections.abc import Sequence
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


def _make_binary(values: Sequence[bytes], dtype: pa.DataType) -> pa.Array:
    offsets = array.array("i", itertools.accumulate(map(len, values), initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(dtype, len(values), buffers)
