"""Stars and strategies over sources with more columns than the target, or with fewer."""

from __future__ import annotations

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.errors import ColumnNotFound, InputError, SchemaMismatch

TARGET = pa.table({"id": [1, 2, 3, 4], "n": [10, 20, 30, 40], "s": ["a", "b", "c", "d"]})
FEED = pa.table(
    {
        "id": [2, 3, 5, 6],
        "n": [2, None, 5, 6],
        "s": ["B", None, "E", "F"],
        "op": ["u", "d", "i", "d"],
        "seq": [1, 2, 3, 4],
    }
)
CLAUSES = (
    "when matched and source.op = 'd' then delete"
    " when matched then update set *"
    " when not matched and source.op <> 'd' then insert *"
)


@pytest.mark.parametrize("hit", ["few", "all"])
def test_a_star_passes_over_columns_that_the_target_lacks(lake, hit):
    lake.create(TARGET if hit == "few" else TARGET.slice(1, 2))
    result = lake.merge(FEED, on="id", clauses=CLAUSES)
    kept = [(1, 10, "a"), (4, 40, "d")] if hit == "few" else []
    assert lake.values("id", "n", "s") == sorted([*kept, (2, 2, "B"), (5, 5, "E")])
    assert (result.updated, result.inserted, result.deleted) == (1, 1, 1)
    assert any("'op', 'seq'" in note for note in result.notes)
    assert lake.own().column_names == ["id", "n", "s"]


def test_the_plan_says_which_columns_are_passed_over(lake):
    lake.create(TARGET)
    result = lake.merge(FEED, on="id", clauses=CLAUSES, dry_run=True)
    assert any("'op', 'seq'" in note for note in result.plan.notes)


def test_strategies_stay_strict_unless_columns_are_left_out_by_name(lake):
    lake.create(TARGET)
    with pytest.raises(SchemaMismatch, match="'op'") as caught:
        lake.merge(FEED.drop(["seq"]), on="id")
    assert "except_columns" in caught.value.hint
    result = lake.merge(FEED, on="id", except_columns=["op", "seq"])
    assert (result.updated, result.inserted) == (2, 2)
    assert lake.values("id", "n") == [(1, 10), (2, 2), (3, None), (4, 40), (5, 5), (6, 6)]


def test_a_column_that_is_left_out_may_decide_which_row_wins(lake):
    lake.create(TARGET)
    twice = pa.table({"id": [2, 2], "n": [7, 8], "s": ["x", "y"], "seq": [5, 4]})
    lake.merge(twice, on="id", strategy="deduplicate", dedup_order_by="seq", except_columns="seq")
    assert lake.values("id", "n") == [(1, 10), (2, 7), (3, 30), (4, 40)]


def test_columns_left_out_must_be_the_sources_and_no_key(lake):
    lake.create(TARGET)
    with pytest.raises(ColumnNotFound, match="'opp'"):
        lake.merge(FEED, on="id", clauses=CLAUSES, except_columns="opp")
    with pytest.raises(InputError, match="key column 'id'"):
        lake.merge(FEED, on="id", clauses=CLAUSES, except_columns="id")
    with pytest.raises(InputError, match="no clause takes whole rows"):
        lake.merge(FEED, on="id", clauses="when matched then delete", except_columns="op")


@pytest.mark.parametrize("strategy", ["upsert", "update", "deduplicate", "full_merge", "insert"])
def test_missing_keep_leaves_what_the_source_lacks(lake, strategy):
    lake.create(TARGET, files=2)
    part = pa.table({"id": [2, 3, 5], "s": ["B", "C", "E"]})
    result = lake.merge(part, on="id", strategy=strategy, missing="keep")
    old = [(1, 10, "a"), (4, 40, "d")]
    updated = [(2, 20, "B"), (3, 30, "C")]
    expected = {
        "upsert": [*old, *updated, (5, None, "E")],
        "update": [*old, *updated],
        "deduplicate": [*old, *updated, (5, None, "E")],
        "full_merge": [*updated, (5, None, "E")],
        "insert": [*old, (2, 20, "b"), (3, 30, "c"), (5, None, "E")],
    }
    assert sorted(lake.values("id", "n", "s")) == sorted(expected[strategy])
    assert any("'n'" in note for note in result.notes)


def test_missing_keep_in_files_of_which_every_row_is_updated(lake):
    lake.create(TARGET)
    part = pa.table({"id": [4, 3, 2, 1], "s": ["D", "C", "B", "A"]})
    lake.merge(part, on="id", missing="keep")
    assert lake.values("id", "n", "s") == [(1, 10, "A"), (2, 20, "B"), (3, 30, "C"), (4, 40, "D")]


def test_a_star_keeps_what_the_source_lacks_and_passes_over_what_it_has_more(lake):
    lake.create(TARGET)
    feed = FEED.drop(["n"])
    lake.merge(feed, on="id", clauses=CLAUSES, missing="keep")
    assert lake.values("id", "n", "s") == [(1, 10, "a"), (2, 20, "B"), (4, 40, "d"), (5, None, "E")]


def test_a_column_of_the_target_may_be_left_out_and_kept(lake):
    lake.create(TARGET)
    source = pa.table({"id": [1, 9], "n": [0, 0], "s": ["A", "Z"]})
    lake.merge(source, on="id", missing="keep", except_columns="n")
    assert lake.values("id", "n", "s") == [
        (1, 10, "A"),
        (2, 20, "b"),
        (3, 30, "c"),
        (4, 40, "d"),
        (9, None, "Z"),
    ]


def test_append_fills_what_the_source_lacks(lake):
    lake.create(TARGET)
    lake.write(pa.table({"id": [9]}), mode="append", missing="keep")
    assert lake.values("id", "n")[-1] == (9, None)


def test_missing_keep_takes_no_struct_in_part(lake):
    lake.create(pa.table({"id": [1], "p": [{"a": 1, "b": 2}]}))
    with pytest.raises(SchemaMismatch, match=r"p\.b"):
        lake.merge(pa.table({"id": [1], "p": [{"a": 9}]}), on="id", missing="keep")


def test_a_new_row_needs_columns_that_are_not_null_but_an_updated_one_keeps_them(lake):
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("n", pa.int64(), nullable=False), ("s", pa.string())]
    )
    lake.create(pa.table({"id": [1, 2], "n": [10, 20], "s": ["a", "b"]}, schema))
    part = pa.table({"id": [2, 3], "s": ["B", "C"]})
    with pytest.raises(SchemaMismatch, match="NOT NULL"):
        lake.merge(part, on="id", missing="keep")
    lake.merge(part, on="id", missing="keep", strategy="update")
    assert lake.values("id", "n", "s") == [(1, 10, "a"), (2, 20, "B")]


def test_a_row_that_only_deletes_may_lack_values(lake):
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64(), nullable=False)])
    lake.create(pa.table({"id": [1, 2, 3], "n": [10, 20, 30]}, schema))
    feed = pa.table({"id": [1, 2], "n": [None, 5], "op": ["d", "u"]})
    lake.merge(feed, on="id", clauses=CLAUSES)
    assert lake.values("id", "n") == [(2, 5), (3, 30)]
    with pytest.raises(SchemaMismatch, match="n"):
        lake.merge(pa.table({"id": [2], "n": pa.nulls(1, pa.int64()), "op": ["u"]}), on="id", clauses=CLAUSES)
    with pytest.raises(SchemaMismatch, match="n"):
        lake.merge(pa.table({"id": [7], "n": pa.nulls(1, pa.int64()), "op": ["u"]}), on="id", clauses=CLAUSES)
    assert lake.values("id", "n") == [(2, 5), (3, 30)]


def test_new_columns_are_added_but_those_left_out(parquet_lake):
    parquet_lake.create(TARGET)
    parquet_lake.merge(FEED, on="id", clauses=CLAUSES, schema_evolution="add", except_columns="op")
    assert parquet_lake.own().column_names == ["id", "n", "s", "seq"]
    assert parquet_lake.values("id", "seq") == [(1, None), (2, 1), (4, None), (5, 3)]


def test_partition_columns_may_be_kept_by_updates(parquet_lake):
    target = TARGET.append_column("day", pa.array(["mon", "mon", "tue", "wed"]))
    parquet_lake.create(target, partition_by="day")
    part = pa.table({"id": [2, 3, 9], "s": ["B", "C", "Z"]})
    with pytest.raises(SchemaMismatch, match="partition column"):
        parquet_lake.merge(part, on="id", missing="keep")
    result = parquet_lake.merge(part, on="id", missing="keep", strategy="update")
    assert result.updated == 2
    assert parquet_lake.values("id", "s", "day") == [
        (1, "a", "mon"),
        (2, "B", "mon"),
        (3, "C", "tue"),
        (4, "d", "wed"),
    ]


def test_a_feed_of_a_partitioned_dataset_still_moves_no_key(parquet_lake):
    target = TARGET.append_column("day", pa.array(["mon", "mon", "tue", "wed"]))
    parquet_lake.create(target, partition_by="day")
    feed = pa.table({"id": [2], "n": [1], "s": ["B"], "day": ["tue"], "op": ["u"]})
    with pytest.raises(it.errors.PartitionMoveError):
        parquet_lake.merge(feed, on="id", clauses=CLAUSES)


@pytest.mark.only(lambda lake: lake[0] == "spark", "a source that is too large to travel")
@pytest.mark.parametrize("limit", [1, 1 << 30], ids=["joined", "routed"])
def test_a_source_that_stays_on_spark_passes_over_and_keeps_columns_too(lake, limit, monkeypatch):
    from intarsia.engines.spark import route

    monkeypatch.setattr(route, "ROUTED_BYTES", 0)
    session = pytest.importorskip("pyspark.sql").SparkSession.getActiveSession()
    lake.create(TARGET, files=2)
    frame = session.createDataFrame(FEED.drop(["n"]).to_pylist())
    lake.merge(frame, on="id", clauses=CLAUSES, missing="keep", broadcast_bytes=limit)
    assert lake.values("id", "n", "s") == [(1, 10, "a"), (2, 20, "B"), (4, 40, "d"), (5, None, "E")]
