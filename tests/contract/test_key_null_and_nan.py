"""NULL keys are refused, or equal each other when asked; NaN is NaN and -0.0 is 0.0."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from intarsia import when_matched, when_not_matched_by_source
from intarsia.errors import KeyColumnError

NAN = float("nan")


def _table(keys, values, kind=None):
    return pa.table({"id": pa.array(keys, kind or pa.int64()), "v": values})


@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge", "deduplicate"])
def test_null_in_a_source_key_is_refused(lake, strategy):
    lake.create(_table([1, 2], ["a", "b"]))
    with lake.unchanged(), pytest.raises(KeyColumnError, match=r"Key column 'id' has 2 NULL"):
        lake.merge(_table([1, None, None], ["x", "y", "z"]), on="id", strategy=strategy)


def test_null_in_a_target_key_is_refused_and_the_file_is_named(parquet_lake, unchanged):
    parquet_lake.create(_table([1, 2, 3, None], ["a", "b", "c", "d"]), files=2)
    with (
        unchanged(parquet_lake.root),
        pytest.raises(
            KeyColumnError, match=r"Key column 'id' has 1 NULL value in the target file .*part-00001"
        ),
    ):
        parquet_lake.merge(_table([3], ["x"]), on="id")


def test_null_in_a_file_that_need_not_be_read_does_no_harm(lake):
    lake.create(_table([1, 2, None, None], ["a", "b", "c", "d"]), files=2)
    assert lake.merge(_table([2], ["x"]), on="id").updated == 1


def test_null_matches_null_when_asked(lake):
    lake.create(_table([1, None, 3], ["a", "b", "c"]), files=3)
    result = lake.merge(_table([None, 4], ["x", "y"]), on="id", null_keys="match")
    assert (result.updated, result.inserted) == (1, 1)
    assert lake.values("id", "v") == [(1, "a"), (3, "c"), (4, "y"), (None, "x")]


def test_null_is_a_new_key_when_the_target_has_none(lake):
    lake.create(_table([1], ["a"]))
    result = lake.merge(_table([None], ["x"]), on="id", null_keys="match")
    assert (result.updated, result.inserted) == (0, 1)


def test_null_in_part_of_a_composite_key_matches_as_part_of_it(lake):
    target = pa.table({"a": pa.array([1, None, None]), "b": ["x", "x", None], "v": ["t1", "t2", "t3"]})
    source = pa.table({"a": pa.array([None, None, 1]), "b": ["x", "y", None], "v": ["s1", "s2", "s3"]})
    result = lake.create(target).merge(source, on=["a", "b"], null_keys="match")
    assert (result.updated, result.inserted) == (1, 2)
    assert lake.values("a", "b", "v") == [
        (1, "x", "t1"), (1, None, "s3"), (None, "x", "s1"), (None, "y", "s2"), (None, None, "t3")
    ]  # fmt: skip


def test_two_null_keys_in_the_source_are_duplicates_when_null_matches(lake):
    lake.create(_table([1], ["a"]))
    with pytest.raises(KeyColumnError, match="1 duplicate key"):
        lake.merge(_table([None, None], ["x", "y"]), on="id", null_keys="match")


def test_keys_of_the_type_null_match_when_asked(lake):
    lake.create(_table([1, None], ["a", "b"]))
    one = _table([None], ["x"]).set_column(0, "id", pa.nulls(1))
    assert lake.merge(one, on="id", null_keys="match").updated == 1
    with pytest.raises(KeyColumnError, match="1 duplicate key"):
        lake.merge(pa.concat_tables([one, one]), on="id", null_keys="match")


def test_full_merge_lets_rows_of_a_null_key_go_unless_the_source_has_it(lake):
    lake.create(_table([1, None, 3], ["a", "b", "c"]))
    lake.merge(_table([1], ["x"]), on="id", strategy="full_merge", null_keys="match")
    assert lake.values("id") == [1]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("files", [1, 4])
def test_nan_is_nan_and_minus_zero_is_zero(lake, kind, files):
    lake.create(_table([1.0, NAN, -0.0, 2.0], list("abcd"), kind), files=files)
    result = lake.merge(_table([NAN, 0.0, 3.0], list("xyz"), kind), on="id")
    assert (result.updated, result.inserted) == (2, 1)
    assert sorted(row["v"] for row in lake.rows()) == ["a", "d", "x", "y", "z"]


def test_nan_beside_numbers_in_a_file_is_found_whatever_the_bounds_say(lake):
    lake.create(_table([1.0, NAN, 5.0, 6.0], list("abcd"), pa.float64()), files=2)
    assert lake.merge(_table([NAN], ["x"], pa.float64()), on="id").updated == 1
    assert [row["v"] for row in lake.rows() if math.isnan(row["id"])] == ["x"]


@pytest.mark.parametrize("keys", [[NAN, NAN], [0.0, -0.0]])
def test_equal_floats_are_duplicate_keys(lake, keys):
    lake.create(_table([1.0], ["a"], pa.float64()))
    with pytest.raises(KeyColumnError, match="duplicate key"):
        lake.merge(_table(keys, ["x", "y"], pa.float64()), on="id")


def test_nan_in_a_composite_key_is_nan_too(lake):
    target = pa.table({"a": [NAN, -0.0], "b": [1, 1], "v": ["t1", "t2"]})
    source = pa.table({"a": [0.0, NAN], "b": [1, 1], "v": ["s2", "s1"]})
    assert lake.create(target).merge(source, on=["a", "b"]).updated == 2


def test_clauses_refuse_null_keys_alike(lake):
    lake.create(_table([1, None], ["a", "b"]))
    with pytest.raises(KeyColumnError, match="Key column 'id'"):
        lake.merge(_table([1], ["x"]), on="id", clauses=[when_matched().delete()])
    result = lake.merge(
        _table([1], ["x"]), on="id", null_keys="match", clauses=[when_not_matched_by_source().delete()]
    )
    assert (result.deleted, lake.values("id")) == (1, [1])
