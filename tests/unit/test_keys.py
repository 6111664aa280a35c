"""Keys in bulk: the same answers as a dict of Python values gives."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.core import keys
from intarsia.core.keys import (
    KeyIndex,
    OrderedKeys,
    arange,
    explode,
    find,
    find_places,
    find_winners,
    mark_numbers,
    to_array,
    to_comparable,
)

NAN = float("nan")


def plain(value):
    """A value in the form in which equal keys are equal Python values."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


COLUMNS = {
    "int": (pa.int64(), st.integers(-3, 3)),
    "float": (pa.float64(), st.sampled_from([NAN, -NAN, 0.0, -0.0, 1.5, math.inf])),
    "text": (pa.string(), st.sampled_from(["", "a", "ä", "aa"])),
    "view": (pa.string_view(), st.sampled_from(["", "a", "a text of more than twelve"])),
    "coded": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b", "c"])),
    "coded float": (pa.dictionary(pa.int8(), pa.float64()), st.sampled_from([NAN, 0.0, -0.0])),
    "bool": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates(dt.date(2024, 1, 1), dt.date(2024, 1, 3))),
    "decimal": (pa.decimal128(5, 2), st.sampled_from([Decimal("1.10"), Decimal("0"), Decimal("-1")])),
    "narrow decimal": (pa.decimal32(5, 2), st.sampled_from([Decimal("1.10"), Decimal("0")])),
    "duration": (pa.duration("us"), st.timedeltas(dt.timedelta(0), dt.timedelta(microseconds=2))),
    "fixed": (pa.binary(2), st.sampled_from([b"\x00\x00", b"\xff\x00"])),
}


@st.composite
def sides(draw, null: bool):
    """Two sides of one to three key columns each, as lists of Python rows, with their types."""
    kinds = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3))
    values = [COLUMNS[kind][1] for kind in kinds]
    row = st.tuples(*(st.none() | value if null else value for value in values))
    here, there = draw(st.lists(row, max_size=12)), draw(st.lists(row, max_size=12))
    return [COLUMNS[kind][0] for kind in kinds], here, there


def columns(types, rows, chunks: int = 1):
    arrays = [[row[place] for row in rows] for place in range(len(types))]
    if chunks == 1:
        return [pa.array(values, kind) for values, kind in zip(arrays, types, strict=True)]
    half = len(rows) // 2
    return [
        pa.chunked_array([pa.array(values[:half], kind), pa.array(values[half:], kind)], kind)
        for values, kind in zip(arrays, types, strict=True)
    ]


@pytest.mark.parametrize("limit", [1 << 62, 4])
@given(data=st.data(), null_match=st.booleans(), chunks=st.sampled_from([1, 2]))
def test_an_index_answers_as_a_dict_does(limit, data, null_match, chunks):
    types, here, there = data.draw(sides(null=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "_CODE_LIMIT", limit)  # a small one makes codes dense again and again
        index = KeyIndex(columns(types, here), null_match=null_match)
        found = index.lookup(columns(types, there, chunks)).to_pylist()
        pairs = tuple(side.to_pylist() for side in index.find_pairs(columns(types, there, chunks)))
    rows = [tuple(map(plain, row)) for row in here]
    known = [row for row in rows if null_match or None not in row]
    for row, position in zip(there, found, strict=True):
        key = tuple(map(plain, row))
        assert position == (rows.index(key) if key in known else None)
    expected = [
        (one, other)
        for one, row in enumerate(there)
        for other, mine in enumerate(rows)
        if mine == tuple(map(plain, row)) and (null_match or None not in mine)
    ]
    assert list(zip(*pairs, strict=True)) == expected
    repeated = {row for row in known if known.count(row) > 1}
    assert index.is_unique() == (not repeated)
    assert len(index.find_duplicated()) == len(repeated)
    assert index.find_rows(index.find_duplicated()).to_pylist() == [
        number for number, row in enumerate(rows) if row in repeated
    ]


@given(
    here=st.lists(st.integers(-20, 20), unique=True, max_size=10),
    there=st.lists(st.integers(-20, 20), min_size=2, max_size=200).map(sorted),
    kind=st.sampled_from([pa.int64(), pa.timestamp("us"), pa.date32(), pa.string()]),
)
def test_ordered_keys_agree_with_an_index(here, there, kind):
    def column(values):
        if pa.types.is_string(kind):
            return pa.array(sorted(f"{value:+03d}" for value in values) if values is there else
                            [f"{value:+03d}" for value in values], kind)  # fmt: skip
        width = pa.int32() if kind == pa.date32() else pa.int64()
        return pa.array(values, width).cast(kind)

    ordered = OrderedKeys.of(column(here))
    assert ordered is not None
    answer = ordered.find_pairs(column(there))
    if answer is not None:
        expected = KeyIndex([column(here)]).find_pairs([column(there)])
        assert [side.to_pylist() for side in answer] == [side.to_pylist() for side in expected]


@given(
    here=st.lists(st.integers(0, 60), unique=True, max_size=20),
    there=st.lists(st.integers(0, 60), min_size=2, max_size=60, unique=True).map(sorted),
    step=st.sampled_from([1, 2, 1000]),
    low=st.sampled_from([-30, 0, 2**62, 2**63]),
    kind=st.sampled_from([pa.int64(), pa.uint64(), pa.timestamp("ns", "UTC"), pa.date64()]),
)
def test_ordered_keys_agree_with_an_index_where_no_key_repeats(here, there, step, low, kind):
    if pa.types.is_date64(kind):
        step *= 86_400_000
    fits = low >= 0 if kind == pa.uint64() else low < 2**63
    low = low if fits else 0

    def column(values):
        numbers = [low + step * value for value in values]
        return pa.array(numbers, kind if pa.types.is_integer(kind) else pa.int64()).cast(kind)

    answer = OrderedKeys.of(column(here)).find_pairs(column(there))
    expected = KeyIndex([column(here)]).find_pairs([column(there)])
    assert answer is not None
    assert [side.to_pylist() for side in answer] == [side.to_pylist() for side in expected]


def test_ordered_keys_step_back_where_they_cannot_answer():
    ordered = OrderedKeys.of(pa.array([5, 1, 3]))
    assert ordered.find_pairs(pa.array([3, 1])) is None  # not in order
    assert ordered.find_pairs(pa.array([1])) is None  # too short to be worth it
    assert ordered.find_pairs(pa.array([1, 2, 3], pa.int32())) is None  # another type
    assert ordered.find_pairs(pa.array([1, None, 3])) is None
    there, here = ordered.find_pairs(pa.array(sorted([3] * 2 + list(range(10, 60)))))
    assert (there.to_pylist(), here.to_pylist()) == ([0, 1], [2, 2])
    assert OrderedKeys.of(pa.array([1.5])) is None
    assert OrderedKeys.of(pa.array([1, None])) is None


@given(data=st.data())
def test_winners_are_those_of_the_plain_rule(data):
    types, rows, _ = data.draw(sides(null=True))
    order = [data.draw(st.none() | st.sampled_from([NAN, -1.0, 0.0, -0.0, 2.0])) for _ in rows]
    kept = find_winners(columns(types, rows), [pa.array(order, pa.float64())]).to_pylist()
    best = {}
    for number, (row, value) in enumerate(zip(rows, order, strict=True)):
        rank = (
            value is not None,
            value is not None and math.isnan(value),
            0 if plain(value) == "nan" else value or 0,
        )
        key = tuple(map(plain, row))
        if key not in best or rank >= best[key][0]:
            best[key] = (rank, number)
    assert kept == sorted(number for _, number in best.values())


def test_without_an_order_the_last_row_wins_and_null_keys_may_each_stay():
    column = pa.array([1, 2, 1, None, None])
    assert find_winners([column], []).to_pylist() == [1, 2, 4]
    assert find_winners([column], [], null_match=False).to_pylist() == [1, 2, 3, 4]
    assert find_winners([pa.array([], pa.int64())], []).to_pylist() == []


@pytest.mark.parametrize("kind", [kind for kind, _ in COLUMNS.values()], ids=str)
def test_nothing_is_found_in_nothing(kind):
    empty = pa.chunked_array([], kind)
    index = KeyIndex([empty])
    assert len(to_comparable(empty)) == 0
    assert index.lookup([empty]).to_pylist() == []
    assert index.lookup([pa.nulls(2, kind)]).to_pylist() == [None, None]
    assert index.is_unique()
    assert [len(side) for side in index.find_pairs([empty])] == [0, 0]
    two = KeyIndex([empty, empty], null_match=True)
    assert two.lookup([pa.nulls(2, kind), pa.nulls(2, kind)]).to_pylist() == [None, None]


def test_an_index_needs_a_column():
    with pytest.raises(ValueError, match="at least one column"):
        KeyIndex([])


def test_dictionaries_are_looked_up_without_being_decoded():
    coded = pa.chunked_array(
        [pa.array(["a", "b", None]).dictionary_encode(), pa.array(["c"]).dictionary_encode()]
    )
    assert pa.types.is_dictionary(to_comparable(coded).type)
    assert find(coded, among=pa.array(["c", "a"])).to_pylist() == [1, None, None, 0]
    assert find(coded, among=pa.array(["c", None]), null_match=True).to_pylist() == [None, None, 1, 0]


def test_counts_are_spread_over_rows():
    row, number = explode(pa.array([2, 0, 3, 0], pa.int64()))
    assert (row.to_pylist(), number.to_pylist()) == ([0, 0, 2, 2, 2], [0, 1, 0, 1, 2])
    assert [len(side) for side in explode(pa.array([], pa.int64()))] == [0, 0]


def test_arrays_are_made_flat():
    assert to_array(pa.chunked_array([], pa.int8())).type == pa.int8()
    assert to_array(pa.chunked_array([[1], [], [2]])).to_pylist() == [1, 2]
    assert arange(3, 5).to_pylist() == [5, 6, 7]
    assert arange(0).to_pylist() == []


@given(st.lists(st.integers(0, 9), unique=True), st.integers(0, 10))
def test_places_and_marks_of_numbers(numbers, cut):
    for given_numbers in (
        pa.array(numbers, pa.int64()),
        pa.chunked_array([numbers[:cut], numbers[cut:]], pa.int64()),
    ):
        expected = [numbers.index(n) if n in numbers else None for n in range(10)]
        assert to_array(find_places(given_numbers, 10)).to_pylist() == expected
        assert mark_numbers(given_numbers, 10).to_pylist() == [n in numbers for n in range(10)]
