"""Keys compared exactly and in bulk: lookups, duplicates and winners; no files, no plans.

A key of several columns becomes one integer: each column's values get codes (their rank among the
distinct values of the indexed side), and the codes are combined by mixed radix, made dense again
before they could outgrow 63 bits. Nothing here is probabilistic and nothing loops over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.python_values import make_array, make_scalar
from intarsia.common.radix import sort_integers, view_integers
from intarsia.common.rows import take_rows

Column = Any
"""A pa.Array or pa.ChunkedArray."""

_CODE_LIMIT = 1 << 62


def to_comparable(values: Column) -> pa.ChunkedArray:
    """The values in the form in which equal keys are equal bits (NaN is NaN, -0.0 is 0.0).

    Dictionary-encoded values stay encoded when their dictionary needs no change.
    """
    column = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    dtype = column.type
    if isinstance(dtype, pa.BaseExtensionType):
        dtype = dtype.storage_type
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], dtype)
    if pa.types.is_dictionary(dtype):
        if _choose_plain_type(dtype.value_type) == dtype.value_type and not pa.types.is_floating(
            dtype.value_type
        ):
            return column
        column = column.cast(dtype.value_type)
        dtype = column.type
    plain = _choose_plain_type(dtype)
    if plain != dtype:
        column = column.cast(plain)
    if pa.types.is_floating(plain):
        nan = make_scalar(float("nan"), plain)
        column = pc.if_else(pc.is_nan(column), nan, pc.add(column, make_scalar(0.0, plain)))
    return column


def _choose_plain_type(dtype: pa.DataType) -> pa.DataType:
    """A type of the same values on which every kernel used here is implemented."""
    if pa.types.is_string_view(dtype):
        return pa.string()
    if pa.types.is_binary_view(dtype) or pa.types.is_fixed_size_binary(dtype):
        return pa.binary()
    if pa.types.is_float16(dtype):
        return pa.float32()
    if pa.types.is_duration(dtype):
        return pa.int64()
    if pa.types.is_decimal32(dtype) or pa.types.is_decimal64(dtype):
        return pa.decimal128(dtype.precision, dtype.scale)
    return dtype


def find(values: Column, *, among: pa.Array, null_match: bool = False) -> pa.ChunkedArray:
    """For each value its position in ``among`` (int32), NULL where it is not there."""
    column = to_comparable(values)
    if pa.types.is_dictionary(column.type):
        chunks = [
            _find_plain(_cast_to(chunk.dictionary, among.type), among, null_match).take(chunk.indices)
            if not (null_match and chunk.null_count)
            else _find_plain(_cast_to(chunk.dictionary_decode(), among.type), among, null_match)
            for chunk in column.chunks
        ]
        return pa.chunked_array(chunks, pa.int32())
    found = _find_plain(_cast_to(column, among.type), among, null_match)
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])


def _cast_to(values: Column, dtype: pa.DataType) -> Column:
    """The values in the type of the other side, which may be the wider one."""
    return values if values.type == dtype else values.cast(dtype)


def _find_plain(values: Column, among: pa.Array, null_match: bool) -> Column:
    return pc.index_in(values, value_set=among, skip_nulls=not null_match)


@dataclass(frozen=True, slots=True)
class _Digit:
    """One column of a composite key: its distinct values, and the factor of its code."""

    values: pa.Array
    radix: int
    dense: pa.Array | None
    """Codes of the columns before this one, when they had to be made dense first."""


class KeyIndex:
    """An index over the key columns of one side; answers which row holds a key.

    Memory: the key columns and one integer per row. With duplicate keys the first row answers, and
    :meth:`find_pairs` gives all of them.
    """

    def __init__(self, columns: Sequence[Column], *, null_match: bool = False) -> None:
        if not columns:
            raise ValueError("a key needs at least one column")
        self._null_match = null_match
        self._digits: list[_Digit] = []
        self._ordered: OrderedKeys | None = None
        self.rows = len(columns[0])
        if len(columns) == 1:
            self.codes = to_array(decode_dictionary(to_comparable(columns[0])))
            return
        self.codes = self._encode(columns)

    def _encode(self, columns: Sequence[Column]) -> pa.Array:
        codes: pa.Array | None = None
        top = 1
        for column in columns:
            values = to_array(decode_dictionary(to_comparable(column)))
            encoded = values.dictionary_encode("encode" if self._null_match else "mask")
            radix, digit = max(len(encoded.dictionary), 1), encoded.indices.cast(pa.int64())
            dense: pa.Array | None = None
            if codes is None:
                codes, top = digit, radix
            else:
                if top * radix >= _CODE_LIMIT:
                    folded = codes.dictionary_encode()
                    dense, codes, top = (
                        folded.dictionary,
                        folded.indices.cast(pa.int64()),
                        len(folded.dictionary),
                    )
                codes = pc.add(pc.multiply(codes, make_scalar(radix, pa.int64())), digit)
                top *= radix
            self._digits.append(_Digit(encoded.dictionary, radix, dense))
        assert codes is not None
        return codes

    def encode(self, columns: Sequence[Column]) -> pa.ChunkedArray:
        """The codes of another side's keys, NULL where a part of the key is unknown here."""
        if not self._digits:
            column = to_comparable(columns[0])
            return column
        codes: pa.ChunkedArray | None = None
        for digit, column in zip(self._digits, columns, strict=True):
            part = find(column, among=digit.values, null_match=self._null_match).cast(pa.int64())
            if codes is None:
                codes = part
                continue
            if digit.dense is not None:
                codes = find(codes, among=digit.dense).cast(pa.int64())
            codes = pc.add(pc.multiply(codes, make_scalar(digit.radix, pa.int64())), part)
        assert codes is not None
        return codes

    def lookup(self, columns: Sequence[Column]) -> pa.ChunkedArray:
        """For each key of the other side the (first) row here that has it, as int32, or NULL."""
        codes = self.encode(columns)
        single_null = self._null_match and not self._digits
        return find(codes, among=self.codes, null_match=single_null)

    def match(self, columns: Sequence[Column]) -> tuple[pa.Array, pa.Array]:
        """Every row there with a key that is here, ascending, and the (first) row here that has it.

        Of a key of several columns the one that tells most apart is looked up first, the others only
        where it is found.
        """
        rows: pa.Array | None = None
        if self._digits:
            lead = max(range(len(columns)), key=lambda number: self._digits[number].radix)
            known = find(columns[lead], among=self._digits[lead].values, null_match=self._null_match)
            rows = pc.indices_nonzero(pc.is_valid(known)).cast(pa.int64())
            if len(rows) == len(known):
                rows = None
            else:
                names = [str(number) for number in range(len(columns))]
                columns = take_rows(pa.table(list(columns), names), rows).columns
        first = self.lookup(columns)
        there = pc.indices_nonzero(pc.is_valid(first)).cast(pa.int64())
        return there if rows is None else rows.take(there), to_array(first).drop_null().cast(pa.int64())

    def find_duplicated(self) -> pa.Array:
        """The distinct codes that more than one row has (NULL keys left out unless they match)."""
        counts = self.codes.value_counts()
        many = pc.greater(counts.field("counts"), make_scalar(1))
        codes = counts.field("values").filter(many)
        return codes if self._null_match else codes.drop_null()

    def find_rows(self, codes: pa.Array) -> pa.Array:
        """All row numbers whose code is among ``codes``, ascending."""
        hit = pc.is_in(self.codes, value_set=codes)
        return pc.indices_nonzero(hit).cast(pa.int64())

    @property
    def single(self) -> bool:
        """Whether the key is one column, whose values are then the codes."""
        return not self._digits

    def list_distinct(self, column: int) -> pa.Array:
        """The values of one key column, each at least once, in comparable form."""
        return self._digits[column].values if self._digits else self.codes

    def sort(self) -> OrderedKeys | None:
        """The codes in order, sorted once; None where they have no order that can be searched."""
        if self._ordered is None:
            self._ordered = OrderedKeys.of(self.codes)
        return self._ordered

    def is_unique(self) -> bool:
        """True when no two rows share a key."""
        ordered = self.sort()
        if ordered is not None:
            return ordered.is_unique()
        if pa.types.is_null(self.codes.type):  # no kernel counts those
            return not self._null_match or len(self.codes) < 2
        mode = "all" if self._null_match else "only_valid"
        valid = len(self.codes) if self._null_match else len(self.codes) - self.codes.null_count
        return bool(pc.count_distinct(self.codes, mode=mode).as_py() == valid)

    def find_pairs(self, columns: Sequence[Column]) -> tuple[pa.Array, pa.Array]:
        """Every (row there, row here) with equal keys; for sides where a key may repeat."""
        there, wanted = self.match(columns)
        leaders = find(self.codes, among=self.codes, null_match=self._null_match)
        order = pc.sort_indices(
            pa.table({"leader": leaders, "row": arange(self.rows)}),
            sort_keys=[("leader", "ascending"), ("row", "ascending")],
        )
        grouped = to_array(leaders).take(order).cast(pa.int64())
        begin = pc.search_sorted(grouped.drop_null(), wanted, side="left").cast(pa.int64())
        end = pc.search_sorted(grouped.drop_null(), wanted, side="right").cast(pa.int64())
        partitioner, offset = explode(pc.subtract(end, begin))
        here = order.cast(pa.int64()).take(pc.add(begin.take(partitioner), offset))
        return there.take(partitioner), here


@dataclass(frozen=True, slots=True)
class OrderedKeys:
    """Keys in order, each with its row, for lookups in data that is sorted by them.

    In a sorted file it is far less work to look for the fewer side among the other than to hash both.
    """

    values: pa.Array
    rows: pa.Array

    @staticmethod
    def of(column: Column) -> OrderedKeys | None:
        """None where the type has no total order that can be searched."""
        values = to_array(decode_dictionary(to_comparable(column)))
        if not _is_searchable(values.type) or values.null_count:
            return None
        order = sort_integers(values)
        return OrderedKeys(values.take(order), order.view(pa.int64()))  # no row number is that large

    def is_unique(self) -> bool:
        """True when no key stands twice."""
        count = len(self.values)
        same = pc.equal(self.values.slice(0, max(count - 1, 0)), self.values.slice(1))
        return not pc.any(same, min_count=0).as_py()

    def find_pairs(self, column: Column) -> tuple[pa.Array, pa.Array] | None:
        """Every (row there, row here) with equal keys; None where the column is not in order.

        For unique keys here; there a key may repeat.
        """
        there = to_array(column)
        if there.type != self.values.type or len(there) < 2 or not _is_ascending(there):
            return None
        low = pc.search_sorted(self.values, there[0], side="left").as_py()
        high = pc.search_sorted(self.values, there[len(there) - 1], side="right").as_py()
        wanted, rows = self.values.slice(low, high - low), self.rows.slice(low, high - low)
        if len(wanted) <= len(there):
            many = len(wanted) >= len(there) // 64
            alone = many and _is_ascending(there, strictly=True)  # at most one row each
            places = _find_in_dense(there, wanted) if alone else None
            if places is not None:
                return places.drop_null().cast(pa.int64()), rows.filter(pc.is_valid(places))
            begin = pc.search_sorted(there, wanted, side="left").cast(pa.int64())
            if alone:  # one search tells
                inside = pc.min_element_wise(begin, make_scalar(len(there) - 1, pa.int64()))
                found = pc.equal(there.take(inside), wanted)
                return begin.filter(found), rows.filter(found)
            end = pc.search_sorted(there, wanted, side="right").cast(pa.int64())
            partitioner, offset = explode(pc.subtract(end, begin))
            return pc.add(begin.take(partitioner), offset), rows.take(partitioner)
        place = pc.search_sorted(wanted, there, side="left").cast(pa.int64())
        inside = pc.min_element_wise(place, make_scalar(len(wanted) - 1, pa.int64()))
        hit = pc.indices_nonzero(pc.equal(wanted.take(inside), there)).cast(pa.int64())
        return hit, rows.take(place.take(hit))


_MOST_SPAN = 4
"""Times the number of values that they may span to be looked up in a table."""


def _find_in_dense(there: pa.Array, wanted: pa.Array) -> pa.Array | None:
    """The position of each wanted value among strictly ascending ones, NULL if it has none.

    Only where all are integers or times within the span of those there, and that is narrow; else None.
    """
    numbers, others = view_integers(there), view_integers(wanted)
    if numbers is None or others is None:
        return None
    first, last = numbers[0], numbers[len(numbers) - 1]
    span = last.as_py() - first.as_py() + 1
    if span > _MOST_SPAN * len(numbers):
        return None
    places = find_places(pc.subtract(numbers, first).cast(pa.int64()), span)
    return places.take(pc.subtract(others, first))


def _is_searchable(dtype: pa.DataType) -> bool:
    return pa.types.is_integer(dtype) or pa.types.is_temporal(dtype) or pa.types.is_string(dtype)


def _is_ascending(values: pa.Array, *, strictly: bool = False) -> bool:
    if values.null_count:
        return False
    compare = pc.less if strictly else pc.less_equal
    steps = compare(values.slice(0, len(values) - 1), values.slice(1))
    return bool(pc.all(steps).as_py())


def search(ordered: pa.Array, values: pa.Array, *, side: str) -> pa.Array:
    """The position at which each value would be inserted into ``ordered``; any type that sorts."""
    if not (pa.types.is_decimal(ordered.type) or pa.types.is_fixed_size_binary(ordered.type)):
        return pc.search_sorted(ordered, values, side=side).cast(pa.int64())
    # No kernel for decimals: sort both together; ties put the values first ("left") or last.
    mark = 1 if side == "left" else -1
    both = pa.table(
        {
            "value": pa.concat_arrays([ordered, values]),
            "tie": make_array([mark] * len(ordered) + [0] * len(values), pa.int8()),
        }
    )
    order = pc.sort_indices(both, sort_keys=[("value", "ascending"), ("tie", "ascending")])
    is_value = pc.greater_equal(order, len(ordered))
    before = pc.cumulative_sum(pc.invert(is_value).cast(pa.int64()))
    result = (
        pc.scatter(
            before.filter(is_value),
            pc.subtract(order.filter(is_value).cast(pa.int64()), len(ordered)),
            max_index=len(values) - 1,
        )
        if len(values)
        else pa.nulls(0, pa.int64())
    )
    return pc.if_else(pc.is_valid(values), result, make_scalar(None, pa.int64()))


def explode(counts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Row i repeated ``counts[i]`` times, and the number of each repetition from 0."""
    total = pc.sum(counts).as_py() or 0
    if (pc.max(counts).as_py() or 0) <= 1:
        return pc.indices_nonzero(counts).cast(pa.int64()), pa.repeat(make_scalar(0, pa.int64()), total)
    ends = pc.cumulative_sum(counts)
    every = arange(total)
    row = pc.search_sorted(ends, every, side="right").cast(pa.int64())
    start = pc.subtract(ends, counts)
    return row, pc.subtract(every, start.take(row))


def arange(count: int, start: int = 0) -> pa.Array:
    """The integers from ``start`` on, as int64."""
    return pa.arange(start, start + count, 1).cast(pa.int64())


def mark_numbers(numbers: Column, count: int) -> pa.BooleanArray:
    """A mask of ``count`` entries that is TRUE at the given numbers."""
    return pc.is_valid(to_array(find_places(numbers, count)))


def find_places(numbers: Column, count: int) -> Column:
    """For each number below ``count`` its position among ``numbers``; NULL where it is not among them."""
    narrow = pa.int32() if len(numbers) < 1 << 31 else pa.int64()
    return pc.inverse_permutation(numbers, max_index=count - 1, output_type=narrow)


def find_winners(keys: Sequence[Column], order_by: Sequence[Column], *, null_match: bool = True) -> pa.Array:
    """The rows to keep, ascending, when one row per key is kept.

    The row with the highest ``order_by`` wins, column by column; NULL loses against any value, NaN is
    the highest number; on ties, and without an order, the last row wins.
    """
    codes = KeyIndex(keys, null_match=null_match)
    dense = find(codes.codes, among=codes.codes, null_match=null_match)
    columns: dict[str, Any] = {"key": dense}
    for number, column in enumerate(order_by):
        ranked = decode_dictionary(to_comparable(column))
        if pa.types.is_floating(ranked.type):
            columns[f"nan{number}"] = pc.is_nan(ranked)
        columns[f"order{number}"] = ranked
    columns["row"] = arange(codes.rows)
    table = pa.table(columns)
    order = pc.sort_indices(table, sort_keys=[(name, "ascending", "at_start") for name in table.column_names])
    sorted_keys = to_array(table["key"]).take(order)
    following = sorted_keys.slice(1)
    last = pc.invert(pc.fill_null(pc.equal(sorted_keys.slice(0, len(following)), following), False))
    last = pa.concat_arrays([to_array(last), make_array([True] * min(1, codes.rows), pa.bool_())])
    kept = order.filter(last).cast(pa.int64())
    return kept.take(sort_integers(kept))


def decode_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def to_array(column: Column) -> pa.Array:
    """One contiguous array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 0:
        return pa.nulls(0, column.type)
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks)
