"""deduplicate: one row per key stays, the right one, and files without a loser stay untouched."""

from __future__ import annotations

import pyarrow as pa
import pytest

from intarsia.errors import ColumnNotFound, IntarsiaError


def budget(lake, memory_bytes):
    """Spark compares rows by itself, and takes no budget for it."""
    return {"memory_bytes": memory_bytes} if lake.engine in ("arrow", "duckdb") else {}


TABLE = pa.table({"id": [1, 2, 1, 3, 2, 1], "n": [5, 1, None, 2, 9, 5], "v": ["a", "b", "c", "d", "e", "f"]})


@pytest.mark.parametrize("memory_bytes", [1, 1 << 30])
@pytest.mark.parametrize("files", [1, 2, 6])
def test_the_highest_order_stays_and_the_last_of_equals(lake, files, memory_bytes):
    result = lake.create(TABLE, files=files).deduplicate(on="id", order_by="n", **budget(lake, memory_bytes))
    assert lake.values("id", "v") == [(1, "f"), (2, "e"), (3, "d")]
    assert dict(result) == {"inserted": 0, "updated": 0, "deleted": 3, "total": 3}


@pytest.mark.parametrize("files", [1, 3])
def test_without_an_order_the_last_row_stays(lake, files):
    lake.create(TABLE, files=files).deduplicate(on="id")
    assert lake.values("id", "v") == [(1, "f"), (2, "e"), (3, "d")]


@pytest.mark.parametrize("memory_bytes", [1, 1 << 30])
def test_without_keys_equal_rows_count_as_one(lake, memory_bytes):
    nan = float("nan")
    table = pa.table({"a": [1.0, 1.0, nan, nan, None, None, -0.0, 0.0], "b": ["x"] * 8})
    result = lake.create(table, files=3).deduplicate(**budget(lake, memory_bytes))
    assert (result.deleted, result.total) == (4, 4)


def test_null_is_a_key_like_any_other(lake):
    table = pa.table({"id": [None, 1, None], "v": ["a", "b", "c"]})
    lake.create(table, files=3).deduplicate(on="id")
    assert lake.values("id", "v") == [(1, "b"), (None, "c")]


def test_composite_keys_match_as_a_whole(lake):
    table = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "v": [1, 2, 3]})
    assert not lake.create(table).deduplicate(on=["a", "b"]).changed


def test_only_files_that_lose_a_row_are_rewritten_and_a_second_run_does_nothing(parquet_lake, unchanged):
    parquet_lake.create(pa.table({"id": [1, 1, 2, 3, 4, 4], "v": list("abcdef")}), files=3)
    before = parquet_lake.identity("part-00001.parquet")
    result = parquet_lake.deduplicate(on="id")
    assert len(result.rewritten_files) == 2
    assert parquet_lake.identity("part-00001.parquet") == before
    with unchanged(parquet_lake.root):
        assert not parquet_lake.deduplicate(on="id").changed


def test_a_file_that_loses_every_row_is_removed(parquet_lake):
    parquet_lake.create(pa.table({"id": [1, 2, 1, 2], "v": list("abcd")}), files=2)
    result = parquet_lake.deduplicate(on="id")
    assert parquet_lake.files == ["part-00001.parquet"]
    assert (result.deleted, len(result.removed_files)) == (2, 1)


def test_without_an_order_the_row_that_was_appended_last_stays(lake):
    lake.create(TABLE.slice(0, 1))
    for value in range(6):
        lake.write(pa.table({"id": [7], "n": [value], "v": [str(value)]}))
    lake.deduplicate(on="id")
    assert lake.values("id", "v") == [(1, "a"), (7, "5")]


def test_keys_repeat_across_partitions_too(lake):
    table = pa.table({"id": [1, 1, 2], "p": ["a", "b", "b"], "n": [9, 1, 1]})
    lake.create(table, partition_by="p").deduplicate(on="id", order_by="n")
    assert lake.values("id", "p") == [(1, "a"), (2, "b")]


def test_a_filter_limits_where_duplicates_are_looked_for(lake):
    table = pa.table({"id": [1, 1, 1, 1], "p": ["a", "a", "b", "b"], "v": [1, 2, 3, 4]})
    lake.create(table, partition_by="p").deduplicate(on="id", partition_filter="p=b")
    assert lake.values("p", "v") == [("a", 1), ("a", 2), ("b", 4)]


def test_rows_stay_in_order(parquet_lake):
    parquet_lake.create(TABLE).deduplicate(on="id", order_by="n")
    assert parquet_lake.file()["v"].to_pylist() == ["d", "e", "f"]


def test_what_is_wrong_is_said(lake):
    lake.create(TABLE)
    with pytest.raises(ColumnNotFound, match="'nope'"):
        lake.deduplicate(on="nope")
    with pytest.raises(ColumnNotFound, match="'nope'"):
        lake.deduplicate(on="id", order_by="nope")


def test_a_table_that_does_not_exist_is_an_error(lake):
    with pytest.raises(IntarsiaError):
        lake.deduplicate(on="id")
