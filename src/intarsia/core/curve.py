"""Row order along a space-filling curve (z-order, Hilbert) or plain; it orders rows and moves none.

A column becomes a rank among boundaries taken from a sample, so that every column spreads evenly over
the same number of bits whatever its type and distribution. The bits of the ranks are interleaved
(Morton's z-order), after Skilling's transform for Hilbert's curve (J. Skilling, "Programming the Hilbert
curve", AIP 707, 2004). Ranks go through small tables where bits are spread, so a row costs one lookup.

NULL is no point of the curve: above the interleaved bits, one bit per column says whether it is NULL. So
rows without NULL come first, whatever the curve, and those with NULL in the first column last.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.names import check_columns
from intarsia.common.python_values import make_scalar
from intarsia.common.radix import view_integers
from intarsia.common.schema import is_nested
from intarsia.core.keys import arange, decode_dictionary, search, to_array, to_comparable
from intarsia.errors import InputError

Curve = Literal["zorder", "hilbert", "linear"]
CURVES = ("zorder", "hilbert", "linear")

_MOST_BITS = 15
_CODE_BITS = 62
_LEAST_BITS = 2  # one boundary, and a rank for NaN above it
_MOST_COLUMNS = _CODE_BITS // (_LEAST_BITS + 1)
_SAMPLE_PER_BOUNDARY = 2
_MOST_ENTRIES = 1 << 20  # of a table of ranks, which stays in the cache
_BLOCK = 1 << 16  # rows; what a step works on stays in the cache


def choose_bits(columns: int) -> int:
    """How many bits of the code each of so many columns gets.

    Raises:
        InputError: more columns than a code has room for.
    """
    if not 1 <= columns <= _MOST_COLUMNS:
        raise InputError(
            f"A curve goes through 1 to {_MOST_COLUMNS} columns, not {columns}.",
            hint="choose the two to four columns that queries filter on most",
        )
    return min(_MOST_BITS, _CODE_BITS // columns - 1)  # one is for NULL


def sample_boundaries(column_sample: Any, bits: int) -> pa.Array:
    """The values that cut a sample into up to 2**bits - 1 parts of about equal size.

    Distinct, ascending, in the comparable form of the column's type (a dictionary is decoded, a
    boolean becomes 0 or 1); without NULL and NaN, and empty where the sample has no other values.
    """
    values = _to_orderable(column_sample).drop_null()
    if pa.types.is_floating(values.type):
        values = values.filter(pc.invert(pc.is_nan(values)))
    limit = _get_top_rank(bits)
    ordered = values.take(pc.array_sort_indices(values))
    distinct = pc.unique(ordered)
    if len(distinct) <= limit:
        return distinct
    # The middle of each of limit + 1 equal parts would be as good; their ends are simpler.
    cuts = pc.divide(pc.multiply(arange(limit, 1), make_scalar(len(ordered))), make_scalar(limit + 1))
    return pc.unique(ordered.take(cuts))


def compute_curve_codes(
    columns: Sequence[Any], *, curve: Literal["zorder", "hilbert"], boundaries: Sequence[pa.Array]
) -> pa.Array:
    """Each row's position on the curve, as uint64 below 2**62; equal boundaries give comparable codes.

    NULLs come last: rows that have one follow those that have none, NULL in the first column being the
    last of all. NaN ranks above every other value. Memory: one integer per row beside the columns in
    their comparable form. Blocks of rows are worked on in parallel.

    Args:
        columns: The clustering columns, of equal length; the first is the most significant one.
        curve: ``"zorder"`` or ``"hilbert"``.
        boundaries: What :func:`sample_boundaries` gave for each column, with :func:`choose_bits` bits.

    Raises:
        InputError: a nested column, an unknown curve, or too many columns.
    """
    if curve not in ("zorder", "hilbert"):
        raise InputError(f"curve={curve!r} has no codes", hint='use "zorder" or "hilbert"')
    if len(columns) != len(boundaries):
        raise InputError(f"{len(columns)} columns were given with boundaries for {len(boundaries)}")
    bits = choose_bits(len(columns))
    values = [_to_orderable(column) for column in columns]
    for column, limits in zip(values, boundaries, strict=True):
        if column.type != limits.type:
            raise InputError(
                f"Boundaries of type {limits.type} were given for a column of type {column.type}."
            )

    rankings = [_Ranking.of(column, limits, bits) for column, limits in zip(values, boundaries, strict=True)]

    def compute_codes(start: int) -> pa.Array:
        block = [column.slice(start, _BLOCK) for column in values]
        ranks = [ranking.compute(column) for ranking, column in zip(rankings, block, strict=True)]
        codes = _interleave(_transpose_to_hilbert(ranks, bits) if curve == "hilbert" else ranks, bits)
        return _with_nulls(codes, block, bits)

    with ThreadPoolExecutor(pa.cpu_count()) as pool:
        return pa.concat_arrays(pool.map(compute_codes, range(0, max(len(values[0]), 1), _BLOCK)))


def compute_order_indices(
    table: pa.Table,
    by: Sequence[str],
    *,
    curve: Curve = "zorder",
    boundaries: Sequence[pa.Array] | None = None,
) -> pa.Array:
    """The row numbers of the table in the order of :func:`compute_curve_codes`, rows with NULL last.

    ``"linear"``, and any curve through one column, is the lexicographic order, NULLs last. Rows at the same
    place of the curve follow the columns themselves, and equal rows keep their order (stable). Without
    boundaries they are taken from an evenly spread sample of the table. Memory: the clustering
    columns once more, and a few integers per row.

    Raises:
        ColumnNotFound: the table has no such column.
        InputError: no column, a nested one, an unknown curve, or too many columns.
    """
    if curve not in CURVES:
        raise InputError(f"curve={curve!r} is not known", hint=f"use one of {', '.join(map(repr, CURVES))}")
    if not by:
        raise InputError("An order needs at least one column.")
    check_columns(by, table.column_names)
    columns = [_to_orderable(table[name], name) for name in by]
    keys = columns
    if curve != "linear" and len(columns) > 1:
        bits = choose_bits(len(columns))
        if boundaries is None:
            boundaries = [sample_boundaries(_spread_sample(column, bits), bits) for column in columns]
        keys = [compute_curve_codes(columns, curve=curve, boundaries=boundaries), *columns]
    if len(keys) == 1:
        return pc.array_sort_indices(keys[0])
    names = [str(number) for number in range(len(keys))]
    return pc.sort_indices(pa.table(keys, names=names), sort_keys=[(name, "ascending") for name in names])


def _to_orderable(values: Any, name: str | None = None) -> pa.Array:
    """The values as one array of a type that can be sorted and searched."""
    column = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    shown = f"Column {name!r}" if name else "A column"
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if is_nested(column.type) or pa.types.is_interval(column.type):
        raise InputError(
            f"{shown} of type {column.type} has no order to cluster by.",
            hint="name columns of plain types",
        )
    plain = to_array(decode_dictionary(to_comparable(column)))
    if pa.types.is_boolean(plain.type) or pa.types.is_null(plain.type):
        plain = plain.cast(pa.uint8())
    return plain


def _spread_sample(column: pa.Array, bits: int) -> pa.Array:
    size = _SAMPLE_PER_BOUNDARY << bits
    if len(column) <= size:
        return column
    return column.take(pc.divide(pc.multiply(arange(size), len(column)), size))


def _get_top_rank(bits: int) -> int:
    """The highest rank of a value; NaN has the one above."""
    return (1 << bits) - 2


def compute_step_ranks(count: int, bits: int) -> pa.UInt16Array:
    """The ranks of values that lie above 0, 1 ... ``count`` boundaries, spread over all bits.

    Were a column of few values to use only low bits, the curve would hardly follow it. The highest rank of
    so many bits is left to NaN.
    """
    scaled = pc.multiply(arange(count + 1), make_scalar(_get_top_rank(bits)))
    return pc.divide(scaled, make_scalar(max(count, 1))).cast(pa.uint16())


@dataclass(frozen=True, slots=True)
class _Ranking:
    """Gives the values of a column their ranks."""

    boundaries: pa.Array
    bits: int
    low: int = 0
    table: pa.Array | None = None
    """The ranks of the integers from ``low`` on; None where each value is searched for."""

    @staticmethod
    def of(column: pa.Array, boundaries: pa.Array, bits: int) -> _Ranking:
        """With a table where the integers or times of a column are many and close together."""
        searching = _Ranking(boundaries, bits)
        numbers, limits = view_integers(column), view_integers(boundaries)
        if numbers is None or limits is None or numbers.type != pa.int64():
            return searching
        ends = pc.min_max(numbers)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        if low is None or high - low >= min(_MOST_ENTRIES, len(column) // 4):
            return searching
        return replace(searching, low=low, table=_compute_ranks(arange(high - low + 1, low), limits, bits))

    def compute(self, values: pa.Array) -> pa.Array:
        """Ranks as uint16, as :func:`_compute_ranks` gives them."""
        if self.table is None:
            return _compute_ranks(values, self.boundaries, self.bits)
        ranks = self.table.take(pc.subtract(view_integers(values), make_scalar(self.low)))
        return pc.fill_null(ranks, make_scalar(0, pa.uint16()))


def _compute_ranks(values: pa.Array, boundaries: pa.Array, bits: int) -> pa.Array:
    """Ranks as uint16; NaN has one of its own, NULL the lowest."""
    ranks = compute_step_ranks(len(boundaries), bits).take(search(boundaries, values, side="right"))
    if pa.types.is_floating(values.type):
        ranks = pc.if_else(pc.is_nan(values), make_scalar(_get_top_rank(bits) + 1, pa.uint16()), ranks)
    # Along an edge of the square either curve follows the other column.
    return pc.if_else(pc.is_null(values), make_scalar(0, pa.uint16()), ranks)


def _with_nulls(codes: pa.Array, columns: Sequence[pa.Array], bits: int) -> pa.Array:
    """The codes with a bit per column that is NULL above them, the first column's the highest."""
    width = len(columns)
    for number, column in enumerate(columns):
        if column.null_count:
            bit = make_scalar(1 << (bits * width + width - 1 - number), pa.uint64())
            codes = pc.if_else(pc.is_null(column), pc.bit_wise_or(codes, bit), codes)
    return codes


def _make_uint16(value: int) -> pa.Scalar:
    return make_scalar(value, pa.uint16())


def _transpose_to_hilbert(ranks: list[pa.Array], bits: int) -> list[pa.Array]:
    """Skilling's AxesToTranspose: the Hilbert index, its bits distributed over the axes."""
    x = list(ranks)
    for q in range(bits - 1, 0, -1):
        below = _make_uint16((1 << q) - 1)
        for i in range(len(x)):
            # Where bit q is set, invert the low bits of x[0]; elsewhere exchange those of x[0] and x[i].
            invert = pc.multiply(
                pc.bit_wise_and(pc.shift_right(x[i], _make_uint16(q)), _make_uint16(1)), below
            )
            swap = pc.bit_wise_and(pc.bit_wise_xor(x[0], x[i]), pc.bit_wise_xor(invert, below))
            x[i] = pc.bit_wise_xor(x[i], swap)
            x[0] = pc.bit_wise_xor(x[0], pc.bit_wise_xor(swap, invert))
    for i in range(1, len(x)):
        x[i] = pc.bit_wise_xor(x[i], x[i - 1])
    flips = compute_gray_flips(bits).take(x[-1])
    return [pc.bit_wise_xor(axis, flips) for axis in x]


@lru_cache(maxsize=8)
def compute_gray_flips(bits: int) -> pa.Array:
    """For each value of the last axis what the Gray code flips on all of them."""
    values = arange(1 << bits).cast(pa.uint16())
    flips = pc.bit_wise_xor(values, values)
    for q in range(bits - 1, 0, -1):
        bit = pc.bit_wise_and(pc.shift_right(values, _make_uint16(q)), _make_uint16(1))
        flips = pc.bit_wise_xor(flips, pc.multiply(bit, _make_uint16((1 << q) - 1)))
    return flips


def _interleave(ranks: Sequence[pa.Array], bits: int) -> pa.Array:
    width = len(ranks)
    table = spread_bits(bits, width)
    codes: pa.Array | None = None
    for number, rank in enumerate(ranks):
        part = pc.shift_left(table.take(rank), make_scalar(width - 1 - number, pa.uint64()))
        codes = part if codes is None else pc.bit_wise_or(codes, part)
    return codes


@lru_cache(maxsize=8)
def spread_bits(bits: int, width: int) -> pa.Array:
    """For each value of so many bits the value with its bits ``width`` places apart."""
    values = arange(1 << bits).cast(pa.uint64())
    widened = pc.bit_wise_xor(values, values)
    for q in range(bits):
        bit = pc.bit_wise_and(
            pc.shift_right(values, make_scalar(q, pa.uint64())), make_scalar(1, pa.uint64())
        )
        widened = pc.bit_wise_or(widened, pc.shift_left(bit, make_scalar(q * width, pa.uint64())))
    return widened
