"""Space-filling curves against plain Python, over every orderable type, and what they are for: locality."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import math
import random
import time

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from intarsia.core.curve import (
    CURVES,
    _Ranking,
    choose_bits,
    compute_curve_codes,
    compute_order_indices,
    sample_boundaries,
)
from intarsia.errors import ColumnNotFound, InputError


def _morton(point, bits):
    code = 0
    for bit in reversed(range(bits)):
        for axis in point:
            code = code << 1 | axis >> bit & 1
    return code


def _hilbert(point, bits):
    """Skilling's AxesToTranspose, as printed, then the transposed bits read off."""
    x = list(point)
    n = len(x)
    q = 1 << (bits - 1)
    while q > 1:
        p = q - 1
        for i in range(n):
            if x[i] & q:
                x[0] ^= p
            else:
                t = (x[0] ^ x[i]) & p
                x[0] ^= t
                x[i] ^= t
        q >>= 1
    for i in range(1, n):
        x[i] ^= x[i - 1]
    t = 0
    q = 1 << (bits - 1)
    while q > 1:
        if x[n - 1] & q:
            t ^= q - 1
        q >>= 1
    return _morton([axis ^ t for axis in x], bits)


def _rank(value, boundaries, bits):
    top = 2**bits - 2
    if value is None:
        return 0
    if isinstance(value, float) and math.isnan(value):
        return top + 1
    return sum(1 for boundary in boundaries if boundary <= value) * top // max(len(boundaries), 1)


@pytest.mark.parametrize(("curve", "reference"), [("zorder", _morton), ("hilbert", _hilbert)])
@pytest.mark.parametrize("width", [2, 3, 5, 20])
def test_codes_equal_those_of_a_plain_implementation(curve, reference, width):
    chance = random.Random(width)
    columns = [[chance.choice([None, math.nan, *range(200)]) for _ in range(300)] for _ in range(width)]
    columns = [pa.array(column, pa.float64()) for column in columns]
    bits = choose_bits(width)
    boundaries = [sample_boundaries(column, bits) for column in columns]
    codes = compute_curve_codes(columns, curve=curve, boundaries=boundaries).to_pylist()
    limits = [array.to_pylist() for array in boundaries]
    expected = [
        reference([_rank(value, limit, bits) for value, limit in zip(point, limits, strict=True)], bits)
        + (int("".join("01"[value is None] for value in point), 2) << bits * width)
        for point in zip(*(column.to_pylist() for column in columns), strict=True)
    ]
    assert codes == expected
    assert max(codes) < 1 << 62


def test_neighbours_on_the_hilbert_curve_are_neighbours_in_the_plane():
    side = 16
    points = sorted(((x, y) for x in range(side) for y in range(side)), key=lambda p: _hilbert(p, 4))
    table = pa.table({"x": [p[0] for p in points], "y": [p[1] for p in points]})
    shuffled = table.take(pa.array(random.Random(1).sample(range(side * side), side * side)))
    # With 17 ranks stretched over 16 bits the grid is not regular, so ask for near, not for adjacent.
    walked = shuffled.take(compute_order_indices(shuffled, ["x", "y"], curve="hilbert")).to_pylist()
    steps = [abs(a["x"] - b["x"]) + abs(a["y"] - b["y"]) for a, b in itertools.pairwise(walked)]
    assert sum(steps) / len(steps) < 2
    assert _hilbert((0, 0), 4) == 0


def test_few_boundaries_are_stretched_over_all_bits():
    day = pa.array([0, 1, 2, 3] * 64)
    user = pa.array(range(256))
    table = pa.table({"user": user, "day": day})
    ordered = table.take(compute_order_indices(table, ["user", "day"]))
    blocks = [set(ordered["day"].slice(start, 32).to_pylist()) for start in range(0, 256, 32)]
    assert sum(map(len, blocks)) / len(blocks) <= 2


@pytest.mark.parametrize(
    ("curve", "names"), [*((c, ["f"]) for c in CURVES), ("zorder", ["f", "i"]), ("linear", ["f", "i"])]
)
def test_nulls_come_last_and_nan_just_before(curve, names):
    table = pa.table({"f": [None, 1.0, math.nan, -1.0], "i": [1, 1, 1, 1]})
    order = compute_order_indices(table, names, curve=curve).to_pylist()
    assert order == [3, 1, 2, 0]


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("width", [1, 2, 3])
def test_rows_with_null_come_after_those_without(curve, width):
    chance = random.Random(width)
    names = "abc"[:width]
    columns = {name: [chance.choice([None, *range(50)]) for _ in range(2000)] for name in names}
    table = pa.table(columns)
    rows = table.take(compute_order_indices(table, list(names), curve=curve)).to_pylist()
    first = [row["a"] is None for row in rows]
    assert first == sorted(first)
    if curve != "linear":
        patterns = [tuple(row[name] is None for name in names) for row in rows]
        assert patterns == sorted(patterns)


@pytest.mark.parametrize("curve", ["zorder", "hilbert"])
@pytest.mark.parametrize(("other", "name"), [("a", "b"), ("b", "a")])
def test_rows_with_null_in_one_of_two_columns_follow_the_other(curve, other, name):
    numbers = random.Random(1).sample(range(1000), 1000)
    table = pa.table({name: pa.array(numbers), other: pa.nulls(1000, pa.int64())})
    found = table.take(compute_order_indices(table, ["a", "b"], curve=curve))[name].to_pylist()
    assert found == sorted(numbers)


@pytest.mark.parametrize("by", [["a"], ["b", "a"]])
def test_linear_is_the_lexicographic_order(by):
    table = pa.table({"a": [3, 1, None, 2, 1], "b": ["x", "y", "x", None, "x"]})
    rows = table.to_pylist()
    empty = {"a": 0, "b": ""}
    expected = sorted(range(5), key=lambda i: [(rows[i][n] is None, rows[i][n] or empty[n]) for n in by])
    assert compute_order_indices(table, by, curve="linear").to_pylist() == expected


@pytest.mark.parametrize("curve", CURVES)
def test_equal_rows_keep_their_order(curve):
    table = pa.table({"a": [1, 0] * 500, "b": ["x"] * 1000})
    order = compute_order_indices(table, ["a", "b"], curve=curve).to_pylist()
    assert order == [*range(1, 1000, 2), *range(0, 1000, 2)]


def test_rows_in_one_cell_follow_the_columns():
    table = pa.table({"a": [9, 7, 8, 1], "b": [1, 1, 1, 1]})
    limits = [pa.array([5]), pa.array([0])]
    assert compute_order_indices(table, ["a", "b"], boundaries=limits).to_pylist() == [3, 1, 2, 0]


D = decimal.Decimal
TYPES = {
    "int8": pa.array([3, 1, 2, None], pa.int8()),
    "uint64": pa.array([2**64 - 1, 1, 2**63, None], pa.uint64()),
    "float16": pa.array([3.0, 1.0, 2.0, None], pa.float32()).cast(pa.float16()),
    "float32": pa.array([3.0, 1.0, 2.0, None], pa.float32()),
    "decimal128": pa.array([D("3.10"), D("-1.00"), D("2.00"), None], pa.decimal128(9, 2)),
    "decimal256": pa.array([D("3.10"), D("-1.00"), D("2.00"), None], pa.decimal256(60, 2)),
    "bool": pa.array([True, False, True, None]),
    "string": pa.array(["c", "a", "b", None]),
    "large_string": pa.array(["c", "a", "b", None], pa.large_string()),
    "string_view": pa.array(["c", "a", "b", None], pa.string_view()),
    "binary": pa.array([b"c", b"a", b"b", None]),
    "fixed_size_binary": pa.array([b"cc", b"aa", b"bb", None], pa.binary(2)),
    "date": pa.array([dt.date(2025, 1, 3), dt.date(2025, 1, 1), dt.date(2025, 1, 2), None]),
    "time": pa.array([dt.time(3), dt.time(1), dt.time(2), None]),
    "timestamp": pa.array([3, 1, 2, None], pa.timestamp("ns", "UTC")),
    "duration": pa.array([3, 1, 2, None], pa.duration("s")),
    "dictionary": pa.array(["c", "a", "b", None]).dictionary_encode(),
    "uuid": pa.array([b"c" * 16, b"a" * 16, b"b" * 16, None], pa.uuid()),
    "null": pa.nulls(4),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("curve", CURVES)
def test_every_orderable_type_can_be_clustered_by(name, curve):
    table = pa.table({"v": TYPES[name], "w": pa.array([0, 0, 0, 0])})
    order = compute_order_indices(table, ["v", "w"], curve=curve).to_pylist()
    expected = {"bool": [1, 0, 2, 3], "null": [0, 1, 2, 3]}.get(name, [1, 2, 0, 3])
    assert order == expected


def test_chunked_and_empty_columns_work():
    table = pa.concat_tables([pa.table({"a": [2], "b": ["x"]}), pa.table({"a": [1], "b": ["x"]})])
    assert compute_order_indices(table, ["a", "b"]).to_pylist() == [1, 0]
    assert compute_order_indices(table.slice(0, 0), ["a", "b"]).to_pylist() == []


@pytest.mark.parametrize(
    "data", [pa.array([[1]]), pa.array([{"x": 1}]), pa.nulls(1, pa.month_day_nano_interval())]
)
def test_a_type_without_order_is_refused_by_name(data):
    with pytest.raises(InputError, match="'bad'"):
        compute_order_indices(pa.table({"bad": data, "a": [1]}), ["a", "bad"])


def test_bad_arguments_are_refused():
    table = pa.table({"a": [1], "b": [2]})
    with pytest.raises(ColumnNotFound, match="'c'"):
        compute_order_indices(table, ["a", "c"])
    with pytest.raises(InputError, match="'peano'"):
        compute_order_indices(table, ["a", "b"], curve="peano")
    with pytest.raises(InputError, match="at least one"):
        compute_order_indices(table, [])
    with pytest.raises(InputError, match="columns, not 21"):
        compute_order_indices(pa.table({str(i): [1] for i in range(21)}), [str(i) for i in range(21)])
    with pytest.raises(InputError, match="has no codes"):
        compute_curve_codes(
            [table["a"], table["b"]], curve="linear", boundaries=[pa.array([1]), pa.array([1])]
        )
    with pytest.raises(InputError, match="boundaries for 1"):
        compute_curve_codes([table["a"], table["b"]], curve="zorder", boundaries=[pa.array([1])])
    with pytest.raises(InputError, match="Boundaries of type string"):
        compute_curve_codes([table["a"]], curve="zorder", boundaries=[pa.array(["x"])])


def test_boundaries_cut_a_skewed_sample_into_equal_parts():
    values = pa.array([number * number for number in range(1000)])
    cuts = sample_boundaries(values, 4)
    assert len(cuts) == 14
    between = pc.search_sorted(cuts, values, side="right").value_counts().field("counts").to_pylist()
    assert max(between) - min(between) <= 2


def test_boundaries_of_few_values_are_all_of_them():
    assert sample_boundaries(pa.array([3, 1, None, 3, 2]), 8).to_pylist() == [1, 2, 3]
    assert sample_boundaries(pa.array([math.nan, None]), 8).to_pylist() == []


def _share_touched(table, name, blocks):
    """The mean share of blocks whose bounds meet a range of one per cent of the values."""
    size = table.num_rows // blocks
    bounds = [pc.min_max(table[name].slice(start, size)).as_py() for start in range(0, table.num_rows, size)]
    ranges = [(low, low + 10_000) for low in range(0, 1_000_000, 50_000)]
    hits = [sum(b["min"] <= high and low <= b["max"] for b in bounds) / blocks for low, high in ranges]
    return sum(hits) / len(hits)


@pytest.mark.parametrize("curve", ["zorder", "hilbert"])
def test_a_curve_skips_most_blocks_on_every_column(curve):
    chance = random.Random(5)
    table = pa.table({name: [chance.randrange(1_000_000) for _ in range(40_960)] for name in "ab"})
    linear = table.take(compute_order_indices(table, ["a", "b"], curve="linear"))
    curved = table.take(compute_order_indices(table, ["a", "b"], curve=curve))
    assert _share_touched(linear, "b", 64) > 0.95
    assert _share_touched(curved, "a", 64) < 0.25
    assert _share_touched(curved, "b", 64) < 0.25


def test_a_million_rows_are_ordered_in_moments():
    rows = 1_000_000
    table = pa.table({"a": pc.random(rows), "b": pc.random(rows)})
    began = time.perf_counter()
    compute_order_indices(table, ["a", "b"])
    assert time.perf_counter() - began < 5  # 0.4 s on two idle cores


@pytest.mark.parametrize(
    "dtype", [pa.int8(), pa.int64(), pa.uint16(), pa.uint64(), pa.date32(), pa.duration("s")]
)
def test_ranks_from_a_table_are_those_that_a_search_finds(dtype):
    draw = random.Random(5)
    least = 0 if pa.types.is_unsigned_integer(dtype) else -60
    numbers = pa.array([draw.randint(least, 60) if draw.random() < 0.9 else None for _ in range(2000)])
    values = numbers.cast(pa.int32() if dtype.bit_width == 32 else pa.int64()).cast(dtype)
    other = pa.array([draw.random() for _ in range(2000)])
    # Boundaries within the values and beyond them.
    boundaries = [sample_boundaries(column.slice(0, 200), 4) for column in (values, other)]
    whole = compute_curve_codes([values, other], curve="zorder", boundaries=boundaries)
    few = [
        compute_curve_codes(
            [values.slice(start, 20), other.slice(start, 20)], curve="zorder", boundaries=boundaries
        )
        for start in range(0, 2000, 20)
    ]
    assert _Ranking.of(values, boundaries[0], 4).table is not None or pa.types.is_uint64(dtype)
    assert _Ranking.of(values.slice(0, 20), boundaries[0], 4).table is None
    assert whole.equals(pa.concat_arrays(few))
