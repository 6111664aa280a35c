"""The five strategies: what each does with rows of both sides, of the source alone, of the target alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

TARGET = pa.table({"id": [1, 2, 3, 4], "v": ["a", "b", "c", "d"]})
SOURCE = pa.table({"id": [3, 4, 5], "v": ["C", "D", "E"]})

OLD = [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
AFTER = {
    "insert": [*OLD, (5, "E")],
    "update": [(1, "a"), (2, "b"), (3, "C"), (4, "D")],
    "upsert": [(1, "a"), (2, "b"), (3, "C"), (4, "D"), (5, "E")],
    "full_merge": [(3, "C"), (4, "D"), (5, "E")],
    "deduplicate": [(1, "a"), (2, "b"), (3, "C"), (4, "D"), (5, "E")],
}


@pytest.mark.parametrize("files", [1, 2, 4])
@pytest.mark.parametrize("strategy", AFTER)
def test_a_strategy_leaves_the_rows_it_promises(lake, strategy, files):
    lake.create(TARGET, files=files).merge(SOURCE, on="id", strategy=strategy)
    assert lake.values("id", "v") == AFTER[strategy]


@pytest.mark.parametrize("strategy", AFTER)
def test_a_strategy_is_idempotent(lake, strategy):
    lake.create(TARGET, files=2).merge(SOURCE, on="id", strategy=strategy)
    once = lake.rows()
    again = lake.merge(SOURCE, on="id", strategy=strategy)
    assert lake.rows() == once
    assert (again.inserted, again.deleted) == (0, 0)


@pytest.mark.parametrize("strategy", ["insert", "upsert", "full_merge", "deduplicate"])
def test_a_table_that_does_not_exist_is_made(lake, strategy):
    result = lake.merge(SOURCE, on="id", strategy=strategy)
    assert lake.values("id", "v") == [(3, "C"), (4, "D"), (5, "E")]
    assert (result.inserted, result.total) == (3, 3)


def test_update_of_a_table_that_does_not_exist_makes_nothing(parquet_lake):
    result = parquet_lake.merge(SOURCE, on="id", strategy="update")
    assert dict(result) == {"inserted": 0, "updated": 0, "deleted": 0, "total": 0}
    assert not parquet_lake.root.exists()


@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "deduplicate"])
def test_an_empty_source_changes_nothing(lake, strategy):
    lake.create(TARGET, files=2)
    with lake.unchanged():
        result = lake.merge(SOURCE.slice(0, 0), on="id", strategy=strategy)
    assert dict(result) == {"inserted": 0, "updated": 0, "deleted": 0, "total": 4}
    assert not result.changed


def test_full_merge_with_an_empty_source_deletes_every_row(parquet_lake):
    parquet_lake.create(TARGET, files=2)
    (parquet_lake.root / "README.txt").write_text("stays")
    result = parquet_lake.merge(SOURCE.slice(0, 0), on="id", strategy="full_merge")
    assert dict(result) == {"inserted": 0, "updated": 0, "deleted": 4, "total": 0}
    assert parquet_lake.files == []
    assert (parquet_lake.root / "README.txt").read_text() == "stays"


@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge", "deduplicate"])
def test_only_files_that_are_hit_are_rewritten_and_under_their_names(parquet_lake, strategy):
    parquet_lake.create(pa.table({"id": range(40), "v": range(40)}), files=4)
    before = {name: parquet_lake.identity(name) for name in parquet_lake.files}
    source = pa.table({"id": [12, 13], "v": [0, 0]})
    result = parquet_lake.merge(source, on="id", strategy=strategy)
    after = {name: parquet_lake.identity(name) for name in parquet_lake.files}
    hit = "part-00001.parquet"
    changed = {name for name in before if after.get(name) != before[name]}
    expected = {"insert": set(), "full_merge": set(before)}.get(strategy, {hit})
    assert changed == expected
    if strategy == "full_merge":
        assert sorted(result.removed_files) == [str(parquet_lake.root / n) for n in before if n != hit]
    assert set(after) == ({hit} if strategy == "full_merge" else set(before))


def test_a_strategy_that_is_none_is_refused_with_the_names_of_the_five(lake):
    lake.create(TARGET)
    with pytest.raises(ValueError, match="insert, update, upsert, full_merge, deduplicate"):
        lake.merge(SOURCE, on="id", strategy="replace")


def test_the_order_of_columns_in_the_source_does_not_matter_and_that_of_the_target_stays(parquet_lake):
    parquet_lake.create(TARGET)
    parquet_lake.merge(SOURCE.select(["v", "id"]), on="id")
    assert parquet_lake.values("id", "v") == AFTER["upsert"]
    assert all(parquet_lake.file(name).column_names == ["id", "v"] for name in parquet_lake.files)
