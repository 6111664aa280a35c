"""Rows overlaid and dropped: for every type of column, what plain Python lists give."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import SchemaMismatch
from intarsia.kernel.overlay import Overlay, drop_rows, take_rows

DAYS = [dt.date(2024, 1, day) for day in range(1, 5)]
STAMPS = [dt.datetime(2024, 1, 1, hour) for hour in range(4)]
TEXTS = ["", "a", "ä" * 20, "a text of more than twelve bytes"]
NUMBERS = [Decimal("1.10"), Decimal("-2.20"), Decimal("0.00"), Decimal("9.99")]
STRUCTS = [{"x": 1, "s": "a"}, {"x": None, "s": "b"}, {"x": 3, "s": None}, {"x": 4, "s": "d"}]

TYPES = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 0, 127]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "float16": (pa.float16(), [0.5, 1.5]),
    "float32": (pa.float32(), [0.5, -1.5]),
    "float64": (pa.float64(), [0.1, float("inf")]),
    "decimal32": (pa.decimal32(5, 2), NUMBERS),
    "decimal64": (pa.decimal64(10, 2), NUMBERS),
    "decimal128": (pa.decimal128(20, 2), NUMBERS),
    "decimal256": (pa.decimal256(50, 2), NUMBERS),
    "string": (pa.string(), TEXTS),
    "large_string": (pa.large_string(), TEXTS),
    "string_view": (pa.string_view(), TEXTS),
    "binary": (pa.binary(), [b"", b"\x00", b"\xff" * 20]),
    "large_binary": (pa.large_binary(), [b"", b"\x00"]),
    "binary_view": (pa.binary_view(), [b"", b"\xff" * 20]),
    "fixed_size_binary": (pa.binary(2), [b"ab", b"\x00\xff"]),
    "date32": (pa.date32(), DAYS),
    "date64": (pa.date64(), DAYS),
    "time32": (pa.time32("s"), [dt.time(1), dt.time(2)]),
    "time64": (pa.time64("us"), [dt.time(1), dt.time(2, 3, 4, 5)]),
    "timestamp": (pa.timestamp("us"), STAMPS),
    "timestamp zone": (pa.timestamp("ms", "UTC"), [stamp.replace(tzinfo=dt.UTC) for stamp in STAMPS]),
    "duration": (pa.duration("ms"), [dt.timedelta(1), dt.timedelta(-1)]),
    "interval": (pa.month_day_nano_interval(), [pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([0, 0, 1])]),
    "null": (pa.null(), [None]),
    "list": (pa.list_(pa.int64()), [[], [1, None], [3]]),
    "large_list": (pa.large_list(pa.string()), [[], ["a", None]]),
    "fixed_size_list": (pa.list_(pa.int8(), 2), [[1, 2], [3, None]]),
    "struct": (pa.struct([("x", pa.int64()), ("s", pa.string())]), STRUCTS),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1), ("b", None)]]),
    "deep": (pa.list_(pa.struct([("d", pa.dictionary(pa.int8(), pa.string()))])), [[{"d": "x"}], []]),
    "views inside": (pa.list_(pa.string_view()), [["a"], [], ["b", None]]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "c"]),
    "ordered dictionary": (pa.dictionary(pa.int16(), pa.int64(), ordered=True), [1, 2, 3]),
    "uuid": (pa.uuid(), [uuid.UUID(int=1), uuid.UUID(int=2)]),
    "json": (pa.json_(), ['{"a": 1}', "[]"]),
    "bool8": (pa.bool8(), [True, False]),
}  # fmt: skip


def column(kind, values):
    if isinstance(kind, pa.BaseExtensionType) and kind != pa.uuid():
        storage = [int(v) if isinstance(v, bool) else v for v in values]
        return pa.ExtensionArray.from_storage(kind, pa.array(storage, kind.storage_type))
    return pa.array(values, kind)


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
@settings(max_examples=15)
def test_values_are_set_at_their_positions_and_nowhere_else(name, data):
    kind, known = TYPES[name]
    value = st.none() | st.sampled_from(known)
    old = data.draw(st.lists(value, min_size=1, max_size=8))
    at = sorted(data.draw(st.sets(st.integers(0, len(old) - 1))))
    new = data.draw(st.lists(value, min_size=len(at), max_size=len(at)))
    table = pa.table({"c": column(kind, old), "keep": range(len(old))})
    if data.draw(st.booleans()):  # an offset and several chunks
        padded = pa.concat_tables([table.slice(0, 1), table])
        table = pa.concat_tables([padded.slice(1, 1), padded.slice(2)])
    result, changed = Overlay(len(old), pa.array(at, pa.int64())).apply(table, {"c": column(kind, new)})
    expected = list(old)
    for place, one in zip(at, new, strict=True):
        expected[place] = one
    assert result["c"].to_pylist() == column(kind, expected).to_pylist()
    assert changed or table["c"].to_pylist() == column(kind, expected).to_pylist()
    assert result.schema.equals(table.schema)
    assert table["c"].to_pylist() == column(kind, old).to_pylist()  # the input is left alone
    result.validate(full=True)


@pytest.mark.parametrize("name", TYPES)
def test_rows_are_dropped_and_taken_whatever_their_type(name):
    kind, known = TYPES[name]
    values = [known[n % len(known)] for n in range(6)]
    table = pa.table({"c": column(kind, values), "n": range(6)})
    assert drop_rows(table, pa.array([0, 3], pa.int64()))["n"].to_pylist() == [1, 2, 4, 5]
    assert drop_rows(table, pa.array([], pa.int64())) is table
    assert drop_rows(table, pa.array([5, 4, 3, 2, 1, 0], pa.int64())).num_rows == 0
    taken = take_rows(table, pa.array([4, 0, 0], pa.int64()))
    assert taken["c"].to_pylist() == column(kind, [values[4], values[0], values[0]]).to_pylist()
    assert taken.schema.equals(table.schema)


def test_plain_values_set_into_an_encoded_column_grow_its_dictionary():
    old = pa.array(["a", "b", "a", None]).dictionary_encode()
    found = Overlay(4, pa.array([1, 2], pa.int64())).set(old, pa.array(["c", None]))
    assert found.to_pylist() == ["a", "c", None, None]
    assert found.type == old.type
    assert found.dictionary.to_pylist() == ["a", "b", "c"]
    whole = Overlay(4, pa.array([0, 1, 2, 3], pa.int64())).set(old, pa.array(["x", "y", "x", None]))
    assert (whole.to_pylist(), whole.type) == (["x", "y", "x", None], old.type)


def test_a_dictionary_that_is_full_lets_go_of_values_that_are_gone():
    kind = pa.dictionary(pa.int8(), pa.string())
    old = pa.array([f"a{n}" for n in range(100)]).dictionary_encode().cast(kind)
    at = pa.array(range(60), pa.int64())
    found = Overlay(100, at).set(old, pa.array([f"b{n}" for n in range(60)]))
    assert found.type == kind
    assert found.to_pylist() == [f"b{n}" for n in range(60)] + [f"a{n}" for n in range(60, 100)]


def test_more_values_than_a_dictionary_can_number_are_refused():
    kind = pa.dictionary(pa.int8(), pa.string())
    old = pa.array([f"a{n % 100}" for n in range(200)]).dictionary_encode().cast(kind)
    with pytest.raises(SchemaMismatch, match="distinct values do not fit"):
        Overlay(200, pa.array(range(80), pa.int64())).set(old, pa.array([f"b{n}" for n in range(80)]))


def test_nothing_is_set_into_nothing():
    empty = pa.table({"c": pa.array([], pa.int64())})
    result, changed = Overlay(0, pa.array([], pa.int64())).apply(empty, {"c": pa.array([], pa.int64())})
    assert (result.num_rows, changed) == (0, frozenset())


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (pa.array([1, 2, None]), pa.array([2, None]), False),
        (pa.array([1, 2, None]), pa.array([2, 0]), True),
        (pa.array(["a", "b", None]).dictionary_encode(), pa.array(["b", None]), False),
        (pa.array(["a", "b", "c"]).dictionary_encode(), pa.array(["b", "b"]), True),
        (pa.array([0.0, 0.0, 1.5]), pa.array([0.0, 1.5]), False),
        (pa.array([0.0, 0.0, 1.5]), pa.array([-0.0, 1.5]), True),
        (pa.array([0.0, float("nan"), 1.5]), pa.array([float("nan"), 1.5]), False),
        (pa.array([[0.0], [0.0], [1.5]]), pa.array([[-0.0], [1.5]]), True),
        (pa.array([{"a": 1}, {"a": 2}, None]), pa.array([{"a": 2}, None]), False),
    ],
)
def test_a_column_is_left_as_it_is_only_where_every_bit_of_the_new_values_is_there_already(old, new, changed):
    overlay = Overlay(3, pa.array([1, 2], pa.int64()))
    assert overlay.changes(old, new) is changed
