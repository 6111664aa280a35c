"""Keys of every type: equal values are one key, whatever type each side stores them in."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from intarsia.errors import KeyColumnError, SchemaMismatch

UTC = dt.UTC
DAY = dt.date(2024, 1, 1)
CODED = pa.dictionary(pa.int32(), pa.string())
NOON = dt.datetime(2024, 1, 1, 12, 0, 0, 1)

KEYS = {  # three keys in the target, then two in the source: the last of the target's, and a new one
    "int8": (pa.int8(), [-128, 0, 1], [1, 127]),
    "uint64": (pa.uint64(), [0, 1, 2**63 + 1], [2**63 + 1, 2**64 - 1]),
    "int64": (pa.int64(), [-(2**63), 0, 2**53 + 1], [2**53 + 1, 2**53]),
    "float32": (pa.float32(), [-1.5, 0.0, 1.5], [1.5, 2.5]),
    "float64": (pa.float64(), [-1e300, 0.1, float("inf")], [float("inf"), 0.2]),
    "decimal128": (pa.decimal128(20, 2), [Decimal("-1.10"), Decimal("0.00"), Decimal("2.20")],
                   [Decimal("2.2"), Decimal("2.21")]),
    "decimal256": (pa.decimal256(40, 2), [Decimal("-1.10"), Decimal("0.00"), Decimal("2.20")],
                   [Decimal("2.2"), Decimal("2.21")]),
    "string": (pa.string(), ["", "a", "ä" * 50], ["ä" * 50, "ä" * 50 + "b"]),
    "large_string": (pa.large_string(), ["", "a", "b"], ["b", "c"]),
    "string_view": (pa.string_view(), ["", "a", "a string longer than twelve"],
                    ["a string longer than twelve", "c"]),
    "binary": (pa.binary(), [b"", b"\x00", b"\xff"], [b"\xff", b"\xff\xff"]),
    "fixed_size_binary": (pa.binary(2), [b"\x00\x00", b"\x7f\xff", b"\x80\x00"], [b"\x80\x00", b"\xff\xff"]),
    "bool": (pa.bool_(), [True, True, True], [True, False]),
    "date32": (pa.date32(), [dt.date(1969, 12, 31), DAY, dt.date(9999, 12, 31)],
               [dt.date(9999, 12, 31), dt.date(1, 1, 1)]),
    "date64": (pa.date64(), [DAY, dt.date(2024, 1, 2), dt.date(2024, 1, 3)],
               [dt.date(2024, 1, 3), dt.date(2024, 1, 4)]),
    "time32": (pa.time32("ms"), [dt.time(0), dt.time(1), dt.time(23, 59)], [dt.time(23, 59), dt.time(2)]),
    "time64": (pa.time64("us"), [dt.time(0), dt.time(1), dt.time(23, 59)], [dt.time(23, 59), dt.time(2)]),
    "timestamp": (pa.timestamp("us"), [NOON, NOON.replace(hour=1), NOON.replace(year=1900)],
                  [NOON.replace(year=1900), NOON.replace(hour=2)]),
    "timestamp_zone": (pa.timestamp("us", "Europe/Berlin"),
                       [NOON.replace(tzinfo=UTC), NOON.replace(hour=1, tzinfo=UTC),
                        NOON.replace(hour=2, tzinfo=UTC)],
                       [NOON.replace(hour=2, tzinfo=UTC), NOON.replace(hour=3, tzinfo=UTC)]),
    "duration": (pa.duration("us"), [dt.timedelta(0), dt.timedelta(1), dt.timedelta(2)],
                 [dt.timedelta(2), dt.timedelta(3)]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "c"], ["c", "d"]),
}  # fmt: skip


def _table(kind, keys, values):
    return pa.table({"k": pa.array(keys, kind), "v": values})


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_any_type_is_found_or_new(lake, name, files):
    kind, target, source = KEYS[name]
    lake.create(_table(kind, target, ["t1", "t2", "t3"]), files=files)
    result = lake.merge(_table(kind, source, ["s1", "s2"]), on="k")
    hits = target.count(source[0])
    assert (result.updated, result.inserted) == (hits, 1)
    assert lake.values("v") == sorted(["t1", "t2", "t3"][: 3 - hits] + ["s1"] * hits + ["s2"])


ALIKE = {
    "int32 and int64": (pa.int32(), pa.int64(), [1, 2, 3], [3, 4]),
    "int64 and uint8": (pa.int64(), pa.uint8(), [1, 2, 3], [3, 4]),
    "float64 and float32": (pa.float64(), pa.float32(), [0.5, 1.5, 2.5], [2.5, 3.5]),
    "ns and us": (pa.timestamp("ns"), pa.timestamp("us"), [NOON, NOON.replace(hour=1), NOON.replace(hour=2)],
                  [NOON.replace(hour=2), NOON.replace(hour=3)]),
    "us and ns": (pa.timestamp("us"), pa.timestamp("ns"), [NOON, NOON.replace(hour=1), NOON.replace(hour=2)],
                  [NOON.replace(hour=2), NOON.replace(hour=3)]),
    "string and large_string": (pa.string(), pa.large_string(), ["a", "b", "c"], ["c", "d"]),
    "string and dictionary": (pa.string(), CODED, ["a", "b", "c"], ["c", "d"]),
    "dictionary and string": (CODED, pa.string(), ["a", "b", "c"], ["c", "d"]),
    "string and string_view": (pa.string(), pa.string_view(), ["a", "b", "c"], ["c", "d"]),
    "decimals of two scales": (pa.decimal128(10, 3), pa.decimal128(10, 1),
                               [Decimal("1.000"), Decimal("2.000"), Decimal("3.500")],
                               [Decimal("3.5"), Decimal("4.5")]),
    "zones": (pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo"),
              [NOON.replace(tzinfo=UTC), NOON.replace(hour=1, tzinfo=UTC), NOON.replace(hour=2, tzinfo=UTC)],
              [NOON.replace(hour=2, tzinfo=UTC), NOON.replace(hour=3, tzinfo=UTC)]),
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_types_that_hold_the_same_values_make_the_same_key(lake, name):
    target_type, source_type, target, source = ALIKE[name]
    lake.create(_table(target_type, target, ["t1", "t2", "t3"]), files=2)
    result = lake.merge(_table(source_type, source, ["s1", "s2"]), on="k")
    assert (result.updated, result.inserted) == (1, 1)
    assert lake.values("v") == ["s1", "s2", "t1", "t2"]


def test_files_of_one_table_may_store_a_key_in_two_types(parquet_lake, make_dataset):
    parquet_lake.create(_table(pa.int32(), [1, 2], ["a", "b"]))
    make_dataset(parquet_lake.root / "sub", _table(pa.int64(), [3, 2**40], ["c", "d"]))
    result = parquet_lake.merge(_table(pa.int64(), [2, 2**40, 5], ["x", "y", "z"]), on="k")
    assert (result.updated, result.inserted) == (2, 1)
    assert parquet_lake.values("k", "v") == [(1, "a"), (2, "x"), (3, "c"), (5, "z"), (2**40, "y")]


def test_a_composite_key_matches_only_as_a_whole(lake):
    target = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "c": [DAY] * 3, "v": ["t1", "t2", "t3"]})
    source = pa.table({"c": [DAY] * 3, "b": ["y", "y", "x"], "a": [1, 2, 3], "v": ["s1", "s2", "s3"]})
    result = lake.create(target, files=2).merge(source, on=["a", "b", "c"])
    assert (result.updated, result.inserted) == (1, 2)
    assert lake.values("a", "b", "v") == [
        (1, "x", "t1"), (1, "y", "s1"), (2, "x", "t3"), (2, "y", "s2"), (3, "x", "s3")
    ]  # fmt: skip


def test_a_composite_key_of_many_wide_columns_stays_exact(lake):
    columns = {f"k{n}": [(7 * row + n) % 97 * (n + 1) for row in range(300)] for n in range(12)}
    lake.create(pa.table({**columns, "v": range(300)}), files=3)
    distinct = len(set(zip(*columns.values(), strict=True)))
    source = pa.table({**columns, "v": [-1] * 300}).slice(0, 97)
    result = lake.merge(source, on=list(columns))
    assert (distinct, result.inserted, result.updated) == (97, 0, 300)
    assert set(lake.values("v")) == {-1}


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("x", pa.int64())])])
def test_a_nested_key_is_refused(lake, kind):
    value = [1] if pa.types.is_list(kind) else {"x": 1}
    lake.create(_table(kind, [value], ["t"]))
    with pytest.raises(KeyColumnError, match="'k'"):
        lake.merge(_table(kind, [value], ["s"]), on="k")


def test_keys_that_cannot_be_compared_are_refused(lake):
    lake.create(_table(pa.int64(), [1], ["t"]))
    with pytest.raises(SchemaMismatch, match="'k'"):
        lake.merge(_table(pa.string(), ["one"], ["s"]), on="k")


def test_a_key_column_that_is_missing_is_named(lake):
    lake.create(_table(pa.int64(), [1], ["t"]))
    with pytest.raises(KeyColumnError, match="'id' is missing from the source"):
        lake.merge(_table(pa.int64(), [1], ["s"]), on="id")
    source = pa.table({"id": [1], "k": [1], "v": ["s"]})
    with pytest.raises(KeyColumnError, match="'id' is missing from the target"):
        lake.merge(source, on="id")
