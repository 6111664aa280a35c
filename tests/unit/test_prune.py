"""Pruning: a row group that holds a key is never excluded, and one that cannot hold it mostly is."""

from __future__ import annotations

import bisect
import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling import choose_number

from intarsia.core.file_table import FileTuple
from intarsia.core.keys import search
from intarsia.core.prune import KeyRange, PartitionSet, count_scan_bytes, find_candidates
from intarsia.core.snapshot import DataFile, Snapshot


def data_file(table: pa.Table, rows: int) -> DataFile:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=rows)
    buffer = sink.getvalue()
    footer = pq.read_metadata(pa.BufferReader(buffer))
    return DataFile("f.parquet", "f", buffer.size, table.num_rows, footer=footer)


NAN = float("nan")
KINDS = {
    "int32": (pa.int32(), st.integers(-50, 50)),
    "uint64": (pa.uint64(), st.integers(2**64 - 40, 2**64 - 1) | st.integers(0, 20)),
    "float64": (pa.float64(), st.sampled_from([NAN, 0.0, -0.0, 1.5, -1.5, math.inf, -math.inf])),
    "float32": (pa.float32(), st.floats(width=32)),
    "string": (pa.string(), st.text(max_size=3) | st.sampled_from(["x" * 31, "x" * 32, "x" * 200])),
    "binary": (pa.binary(), st.binary(max_size=2)),
    "bool": (pa.bool_(), st.booleans()),
    "decimal128": (pa.decimal128(6, 2), st.decimals(-99, 99, places=2)),
    "date32": (pa.date32(), st.dates(dt.date(2024, 1, 1), dt.date(2024, 3, 1))),
    "timestamp": (pa.timestamp("us"), st.datetimes(dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2))),
    "time64": (pa.time64("us"), st.times()),
    "duration": (pa.duration("us"), st.timedeltas(dt.timedelta(-1), dt.timedelta(1))),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.text(max_size=2)),
    "fixed_size_binary": (pa.binary(2), st.binary(min_size=2, max_size=2)),
}


def plain(value):
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def find_row_groups(files, schema, ranges, *, null_match=False):
    """Per file the row groups that may hold a key."""
    found = find_candidates(files, schema, ranges, null_match=null_match)
    return [found.get(number, ()) for number in range(len(files))]


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data(), null_match=st.booleans())
@settings(max_examples=choose_number(15, 40))
def test_a_row_group_that_holds_a_key_is_never_excluded(name, data, null_match):
    kind, values = KINDS[name]
    stored = data.draw(st.lists(st.none() | values, min_size=1, max_size=12))
    wanted = data.draw(st.lists(st.none() | values, max_size=4))
    stored, wanted = pa.array(stored, kind), pa.array(wanted, kind)
    rows = data.draw(st.sampled_from([1, 2, 5]))
    file = data_file(pa.table({"k": stored}), rows)
    ranges = {"k": KeyRange.of(wanted)}
    (chosen,) = find_row_groups([file], pa.schema([("k", kind)]), ranges, null_match=null_match)
    keys = {plain(value) for value in wanted.to_pylist() if value is not None or null_match}
    for group in range(file.footer.num_row_groups):
        held = {plain(value) for value in stored.slice(group * rows, rows).to_pylist()}
        if keys & held:
            assert group in chosen


def test_bounds_exclude_row_groups_that_cannot_hold_a_key():
    file = data_file(pa.table({"k": [1, 5, 10, 15, None, None]}), 2)
    schema = pa.schema([("k", pa.int64())])

    def chosen(*keys, null_match=False):
        ranges = {"k": KeyRange.of(pa.array(keys, pa.int64()))}
        return find_row_groups([file], schema, ranges, null_match=null_match)[0]

    assert chosen(5) == (0,)
    assert chosen(7) == ()  # between two row groups
    assert chosen(3) == (0,)  # inside of the bounds: only the rows can tell
    assert chosen(1, 12) == (0, 1)
    assert chosen() == ()
    assert chosen(None, null_match=True) == (2,)
    assert chosen(None) == ()


def test_every_key_column_must_allow_a_row_group():
    file = data_file(pa.table({"a": [1, 1, 2, 2], "b": ["x", "y", "x", "y"]}), 2)
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    ranges = {"a": KeyRange.of(pa.array([2])), "b": KeyRange.of(pa.array(["x"]))}
    assert find_row_groups([file], schema, ranges) == [(1,)]
    ranges["b"] = KeyRange.of(pa.array(["z"]))
    assert find_row_groups([file], schema, ranges) == [()]


def test_without_key_columns_every_row_group_stays_and_without_files_there_is_none():
    file = data_file(pa.table({"k": [1, 2]}), 1)
    blind = DataFile("g", "g", 1, 1)
    assert find_row_groups([file, blind], pa.schema([("k", pa.int64())]), {}) == [(0, 1), (0,)]
    assert find_row_groups([], pa.schema([]), {}) == []


def test_a_key_of_nan_excludes_nothing():
    file = data_file(pa.table({"k": [1.0, 2.0]}), 1)
    ranges = {"k": KeyRange.of(pa.array([NAN]))}
    assert find_row_groups([file], pa.schema([("k", pa.float64())]), ranges) == [(0, 1)]


def test_a_range_is_sorted_and_without_null_nan_and_repeats():
    found = KeyRange.of(pa.chunked_array([[2.0, None, NAN], [1.0, 2.0]]))
    assert (found.values.to_pylist(), found.has_null, found.has_nan) == ([1.0, 2.0], True, True)
    for dtype in (pa.string(), pa.int64()):
        empty = KeyRange.of(pa.chunked_array([], dtype))
        assert (len(empty.values), empty.has_null) == (0, False)
    many = [number * 7919 % 10_007 for number in range(20_000)]
    found = KeyRange.of(pa.array([*many, None], pa.timestamp("us")))
    assert found.values.cast(pa.int64()).to_pylist() == sorted(set(many))
    assert found.has_null


@given(
    ordered=st.lists(st.decimals(-9, 9, places=1)).map(sorted),
    values=st.lists(st.none() | st.decimals(-9, 9, places=1)),
)
def test_a_search_among_decimals_is_a_bisection(ordered, values):
    kind = pa.decimal128(4, 1)
    left = search(pa.array(ordered, kind), pa.array(values, kind), side="left").to_pylist()
    right = search(pa.array(ordered, kind), pa.array(values, kind), side="right").to_pylist()
    assert left == [None if v is None else bisect.bisect_left(ordered, v) for v in values]
    assert right == [None if v is None else bisect.bisect_right(ordered, v) for v in values]


def test_partitions_of_the_source_are_found_among_files():
    source = pa.table({"r": ["eu", None, "us"], "y": [1, 1, 2]})
    found = PartitionSet.of(source, ["r", "y"])
    files = [
        DataFile("a", "a", 1, 1, {"r": "us", "y": 2}),
        DataFile("b", "b", 1, 1, {"r": None, "y": 1}),
        DataFile("c", "c", 1, 1, {"r": "us", "y": 1}),
        DataFile("d", "d", 1, 1, {"r": "us"}),  # y is not known: it may be any
    ]
    assert found.find_rows(files) == [2, 1, None, -1]
    assert found.find_rows([]) == []
    assert PartitionSet.of(source, []).find_rows(files) == [-1] * 4
    coded = PartitionSet.of(pa.table({"r": pa.array(["eu"]).dictionary_encode()}), ["r"])
    assert coded.find_rows([DataFile("a", "a", 1, 1, {"r": "eu"})]) == [0]
    nobody = PartitionSet.of(source.slice(0, 0), ["r"])
    assert nobody.find_rows(files[:1]) == [None]


def test_scanned_bytes_are_those_of_the_columns_and_row_groups():
    table = pa.table({"k": range(10), "p": [{"k": n, "x": "y" * n} for n in range(10)]})
    file = data_file(table, 5)
    snapshot = Snapshot("", FileTuple((file,)), table.schema, (), pafs.LocalFileSystem())
    group = file.footer.row_group(1)
    sizes = [group.column(number).total_compressed_size for number in range(3)]
    assert count_scan_bytes(snapshot, file, ["k"], [1]) == sizes[0]
    assert count_scan_bytes(snapshot, file, ["p"], [1]) == sizes[1] + sizes[2]
    assert count_scan_bytes(snapshot, file, ["k"], []) == 0
    assert count_scan_bytes(snapshot, DataFile("g", "g", 77, 1), ["k"], [0]) == 77


def test_decimal_keys_prune_too():
    kind = pa.decimal128(6, 2)
    file = data_file(pa.table({"k": pa.array([Decimal("1.10"), Decimal("9.90")], kind)}), 1)
    ranges = {"k": KeyRange.of(pa.array([Decimal("9.90")], kind))}
    assert find_row_groups([file], pa.schema([("k", kind)]), ranges) == [(1,)]
