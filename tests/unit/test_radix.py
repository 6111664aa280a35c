"""Integers sorted by radix are in the order that PyArrow gives them."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from intarsia.common.radix import sort_integers

ROWS = 20_000


def _make_numbers(low: int, high: int, *, seed: int = 1) -> list[int]:
    source = random.Random(seed)
    return [source.randint(low, high) for _ in range(ROWS)]


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 0),
        (7, 8),
        (0, 4095),
        (0, 4096),
        (-5000, 5000),
        (10**12, 10**12 + 10**7),
        (-(2**59), 2**59 - 1),
        (-(2**59), 2**59),
        (-(2**63), 2**63 - 1),
    ],
)
def test_integers_of_any_span_are_in_order(low: int, high: int) -> None:
    numbers = pa.array([low, high, *_make_numbers(low, high), high, low], pa.int64())
    assert sort_integers(numbers).equals(pc.array_sort_indices(numbers))


@pytest.mark.parametrize(
    "dtype",
    [
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.uint8(),
        pa.uint32(),
        pa.uint64(),
        pa.date32(),
        pa.date64(),
        pa.time32("ms"),
        pa.time64("us"),
        pa.timestamp("ns", "UTC"),
        pa.duration("s"),
    ],
    ids=str,
)
def test_types_that_count_are_in_order_and_equal_ones_keep_theirs(dtype: pa.DataType) -> None:
    numbers = pa.array(_make_numbers(0, 100), pa.int8())
    wide = pa.int32() if dtype.bit_width == 32 and pa.types.is_temporal(dtype) else pa.int64()
    if pa.types.is_date64(dtype):
        values = numbers.cast(pa.int64()).cast(pa.timestamp("s")).cast(dtype)
    else:
        values = numbers.cast(wide if pa.types.is_temporal(dtype) else dtype).cast(dtype)
    assert sort_integers(values).equals(pc.array_sort_indices(values))


def test_the_far_ends_of_unsigned_integers_are_in_order() -> None:
    for low in (0, 2**64 - 1 - 10**6):
        numbers = pa.array(_make_numbers(low, low + 10**6), pa.uint64())
        assert sort_integers(numbers).equals(pc.array_sort_indices(numbers))


def test_nulls_texts_slices_and_few_values_are_as_pyarrow_sorts_them() -> None:
    numbers = _make_numbers(-100, 100)
    for values in (
        pa.array([None if number == 5 else number for number in numbers], pa.int64()),
        pa.array(map(str, numbers)),
        pa.array(map(float, numbers)),
        pa.array(numbers, pa.int64()).slice(3, 15_000),
        pa.array(numbers[:10], pa.int64()),
        pa.array([], pa.int64()),
    ):
        assert sort_integers(values).equals(pc.array_sort_indices(values))
