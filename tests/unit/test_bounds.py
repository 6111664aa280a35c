"""Bounds from footers: they enclose every value, in the dataset's type, or are not given at all."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from intarsia.core.keys import to_comparable
from intarsia.core.prune import read_bounds
from intarsia.core.snapshot import DataFile

NOON = dt.datetime(2024, 1, 1, 12)


def data_file(table: pa.Table, **writer) -> DataFile:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **writer)
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    return DataFile("f.parquet", "f.parquet", 1, table.num_rows, footer=footer)


TYPES = {
    "int8": pa.array([-128, 3, 127], pa.int8()),
    "uint8": pa.array([0, 200, 255], pa.uint8()),
    "uint32": pa.array([0, 1, 2**32 - 1], pa.uint32()),
    "uint64": pa.array([1, 2, 2**64 - 1], pa.uint64()),
    "int64": pa.array([-(2**63), 0, 2**63 - 1], pa.int64()),
    "float32": pa.array([-1.5, 0.1, 2.5], pa.float32()),
    "float64": pa.array([-1e300, 0.1, 1e300], pa.float64()),
    "bool": pa.array([False, False, True]),
    "string": pa.array(["", "a", "ä"]),
    "large_string": pa.array(["", "a", "ä"], pa.large_string()),
    "string_view": pa.array(["", "a", "ä"], pa.string_view()),
    "binary": pa.array([b"", b"\x7f", b"\xff"]),
    "fixed_size_binary": pa.array([b"\x00\x00", b"\x7f\x00", b"\xff\xff"], pa.binary(2)),
    "date32": pa.array([dt.date(1, 1, 1), dt.date(2024, 1, 1), dt.date(9999, 12, 31)]),
    "date64": pa.array([dt.date(1969, 1, 1), dt.date(2024, 1, 1), dt.date(2025, 1, 1)], pa.date64()),
    "time32": pa.array([dt.time(0), dt.time(1), dt.time(23, 59)], pa.time32("ms")),
    "time64": pa.array([dt.time(0), dt.time(1), dt.time(23, 59)], pa.time64("ns")),
    "timestamp ms": pa.array([NOON, NOON.replace(hour=13), NOON.replace(year=2030)], pa.timestamp("ms")),
    "timestamp ns": pa.array([1, 2, 3], pa.timestamp("ns")),
    "timestamp zone": pa.array([1, 2, 3], pa.timestamp("us", "Europe/Berlin")),
    "duration": pa.array([-1, 0, 5], pa.duration("us")),
    "decimal small": pa.array([Decimal("-1.10"), Decimal("0"), Decimal("9.99")], pa.decimal128(5, 2)),
    "decimal large": pa.array([Decimal("-1.10"), Decimal("0"), Decimal("9.99")], pa.decimal128(38, 2)),
    "decimal256": pa.array([Decimal("-1.10"), Decimal("0"), Decimal("9.99")], pa.decimal256(60, 2)),
    "dictionary": pa.array(["a", "b", "c"]).dictionary_encode(),
}


@pytest.mark.parametrize("name", TYPES)
def test_bounds_are_the_least_and_the_greatest_value_of_each_row_group(name):
    values = TYPES[name]
    table = pa.table({"k": pa.chunked_array([values, pa.nulls(1, values.type)])})
    file = data_file(table, row_group_size=2)
    found = read_bounds([file], "k", values.type)
    plain = to_comparable(values)
    plain = plain.cast(plain.type.value_type) if pa.types.is_dictionary(plain.type) else plain
    assert found.lower.type == found.upper.type == plain.type
    assert found.lower.to_pylist() == [plain[0].as_py(), plain[2].as_py()]
    assert found.upper.to_pylist() == [plain[1].as_py(), plain[2].as_py()]
    assert found.null_count.to_pylist() == [0, 1]
    assert (found.file.to_pylist(), found.row_group.to_pylist()) == ([0, 0], [0, 1])
    assert found.rows.to_pylist() == [2, 2]


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (pa.int32(), pa.int64()),
        (pa.int32(), pa.float64()),
        (pa.float32(), pa.float64()),
        (pa.timestamp("ms"), pa.timestamp("ns")),
        (pa.decimal128(5, 1), pa.decimal128(10, 3)),
        (pa.string(), pa.large_string()),
        (pa.string(), pa.dictionary(pa.int32(), pa.string())),
    ],
    ids=str,
)
def test_files_of_narrower_types_give_bounds_in_the_datasets_type(stored, kind):
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    values = pa.array(["1", "2", "3"])
    if pa.types.is_decimal(stored):
        values = pa.array([Decimal(1), Decimal(2), Decimal(3)], stored)
    elif not pa.types.is_string(stored):
        values = pa.array([1, 2, 3]).cast(stored)
    both = [data_file(pa.table({"k": values})), data_file(pa.table({"k": values.cast(plain)}))]
    found = read_bounds(both, "k", kind)
    assert found.lower.to_pylist() == [values.cast(plain)[0].as_py()] * 2
    assert found.upper.to_pylist() == [values.cast(plain)[2].as_py()] * 2


def test_long_strings_have_no_bound_because_it_may_have_been_cut():
    found = read_bounds([data_file(pa.table({"k": ["a" * 31, "b" * 32]}))], "k", pa.string())
    assert (found.lower.to_pylist(), found.upper.to_pylist()) == (["a" * 31], [None])
    wide = read_bounds([data_file(pa.table({"k": ["ä" * 16, "z"]}))], "k", pa.string())
    assert wide.lower.to_pylist() in ([None], ["z"])  # 32 bytes
    assert wide.upper.to_pylist() == [None]


def test_nan_is_left_out_and_a_row_group_of_nan_alone_has_no_bounds():
    nan = float("nan")
    table = pa.table({"k": [1.0, nan, 2.0, nan, nan, nan]})
    found = read_bounds([data_file(table, row_group_size=3)], "k", pa.float64())
    assert found.lower.to_pylist() == [1.0, None]
    assert found.upper.to_pylist() == [2.0, None]


def test_a_zero_bound_is_plain_zero_whatever_its_sign():
    found = read_bounds([data_file(pa.table({"k": [-0.0, 0.0]}))], "k", pa.float64())
    assert [str(found.lower[0].as_py()), str(found.upper[0].as_py())] == ["0.0", "0.0"]


def test_a_column_that_a_file_lacks_is_null_throughout():
    found = read_bounds([data_file(pa.table({"other": [1, 2]}))], "k", pa.int64())
    assert (found.lower.to_pylist(), found.null_count.to_pylist()) == ([None], [2])


def test_of_a_nested_column_nothing_is_known():
    found = read_bounds([data_file(pa.table({"k": [{"x": 1}]}))], "k", pa.struct([("x", pa.int64())]))
    assert (found.lower.to_pylist(), found.null_count.to_pylist()) == ([None], [None])


def test_without_statistics_or_a_footer_nothing_is_known():
    bare = data_file(pa.table({"k": [1]}), write_statistics=False)
    blind = DataFile("g.parquet", "g.parquet", 1, 7)
    found = read_bounds([bare, blind], "k", pa.int64())
    assert found.lower.to_pylist() == [None, None]
    assert found.null_count.to_pylist() == [None, None]
    assert found.rows.to_pylist() == [1, 7]


def test_statistics_of_another_kind_of_column_are_not_trusted():
    text = data_file(pa.table({"k": ["5"]}))
    assert read_bounds([text], "k", pa.int64()).lower.to_pylist() == [None]
    raw = data_file(pa.table({"k": [b"5"]}))
    assert read_bounds([raw], "k", pa.string()).lower.to_pylist() == [None]
    old = data_file(
        pa.table({"k": pa.array([NOON], pa.timestamp("ns"))}), use_deprecated_int96_timestamps=True
    )
    assert read_bounds([old], "k", pa.timestamp("ns")).lower.to_pylist() == [None]


def test_a_bound_outside_of_the_datasets_type_proves_nothing():
    wide = data_file(pa.table({"k": [2**40]}))
    assert read_bounds([wide], "k", pa.int32()).upper.to_pylist() == [None]


def test_columns_stand_in_another_place_in_each_file():
    one = data_file(pa.table({"a": ["x"], "k": [1]}))
    other = data_file(pa.table({"k": [2], "s": [{"k": 9}], "a": ["x"]}))
    assert read_bounds([one, other], "k", pa.int64()).lower.to_pylist() == [1, 2]


def test_no_files_have_no_bounds():
    assert len(read_bounds([], "k", pa.int64()).lower) == 0


def test_bounds_of_files_with_different_units_are_each_read_in_their_own() -> None:
    files = []
    for number, unit in enumerate(("ms", "us", "us", "ms")):
        moment = pa.array([number * 1000], pa.timestamp("ms")).cast(pa.timestamp(unit))
        files.append(data_file(pa.table({"k": moment})))
    found = read_bounds(files, "k", pa.timestamp("us"))
    assert found.lower.cast(pa.int64()).to_pylist() == [0, 1_000_000, 2_000_000, 3_000_000]


def test_signed_and_unsigned_bounds_keep_their_order() -> None:
    signed = data_file(pa.table({"k": pa.array([-5, 7], pa.int32())}))
    unsigned = data_file(pa.table({"k": pa.array([3, 2**32 - 1], pa.uint32())}))
    found = read_bounds([signed, unsigned, signed], "k", pa.int64())
    assert found.lower.to_pylist() == [-5, 3, -5]
    assert found.upper.to_pylist() == [7, 2**32 - 1, 7]
