"""Counts are rows that were really counted, and the total is what a reader then finds."""

from __future__ import annotations

import pyarrow as pa
import pytest

STRATEGIES = ["insert", "update", "upsert", "full_merge", "deduplicate"]
EXPECTED = {  # of 10 rows 0..9, with a source of 6..13
    "insert": (4, 0, 0),
    "update": (0, 4, 0),
    "upsert": (4, 4, 0),
    "full_merge": (4, 4, 6),
    "deduplicate": (4, 4, 0),
}


def _table(start: int, stop: int) -> pa.Table:
    return pa.table({"id": range(start, stop), "v": [f"{n}" for n in range(start, stop)]})


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_counts_are_exact_and_add_up(lake, strategy, files):
    lake.create(_table(0, 10), files=files)
    result = lake.merge(_table(6, 14), on="id", strategy=strategy)
    assert (result.inserted, result.updated, result.deleted) == EXPECTED[strategy]
    assert result.total == 10 + result.inserted - result.deleted == len(lake.rows())
    assert (result.target_count_before, result.target_count_after) == (10, result.total)
    assert result.source_count == 8


def test_a_row_replaced_by_an_equal_row_counts_as_updated(lake):
    result = lake.create(_table(0, 3)).merge(_table(0, 3), on="id")
    assert (result.inserted, result.updated, result.deleted) == (0, 3, 0)


def test_source_count_is_the_source_as_it_was_given(lake):
    lake.create(_table(0, 3))
    source = pa.concat_tables([_table(0, 5), _table(0, 5)])
    result = lake.merge(source, on="id", strategy="deduplicate")
    assert (result.source_count, result.inserted, result.updated) == (10, 2, 3)


def test_every_row_of_a_key_that_repeats_in_the_target_counts(lake):
    lake.create(pa.table({"id": [1, 1, 2], "v": ["a", "b", "c"]}), files=[1, 2])
    result = lake.merge(pa.table({"id": [1], "v": ["x"]}), on="id")
    assert dict(result) == {"inserted": 0, "updated": 2, "deleted": 0, "total": 3}
    assert lake.values("id", "v") == [(1, "x"), (1, "x"), (2, "c")]


def test_update_and_full_merge_treat_keys_that_repeat_in_the_target_alike(lake):
    lake.create(pa.table({"id": [1, 1, 2, 3, 3], "v": list("abcde")}))
    result = lake.merge(pa.table({"id": [1], "v": ["x"]}), on="id", strategy="update")
    assert dict(result) == {"inserted": 0, "updated": 2, "deleted": 0, "total": 5}
    result = lake.merge(pa.table({"id": [3], "v": ["y"]}), on="id", strategy="full_merge")
    assert dict(result) == {"inserted": 0, "updated": 2, "deleted": 3, "total": 2}
    assert lake.values("id", "v") == [(3, "y"), (3, "y")]


def test_counts_of_other_operations_are_exact_too(lake):
    lake.create(_table(0, 10), files=3)
    assert dict(lake.delete("id < 2")) == {"inserted": 0, "updated": 0, "deleted": 2, "total": 8}
    updated = lake.update({"v": "'x'"}, "id >= 8")
    assert dict(updated) == {"inserted": 0, "updated": 2, "deleted": 0, "total": 8}
    assert dict(lake.write(_table(20, 23))) == {"inserted": 3, "updated": 0, "deleted": 0, "total": 11}
    overwritten = lake.write(_table(0, 1), mode="overwrite")
    assert dict(overwritten) == {"inserted": 1, "updated": 0, "deleted": 11, "total": 1}
