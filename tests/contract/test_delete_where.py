"""DELETE: the rows for which the predicate is TRUE go, by SQL text or a pyarrow expression."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from intarsia.errors import ColumnNotFound, InputError, IntarsiaError, NothingMatched

TARGET = pa.table(
    {
        "id": range(6),
        "n": [1, 2, None, 4, 5, None],
        "s": ["a", "b", "a", None, "B", "c%"],
        "f": [0.5, float("nan"), None, -0.0, 1e300, 2.0],
        "day": [dt.date(2024, 1, day) for day in range(1, 7)],
        "p": [{"amt": k, "in": {"x": k % 2}} if k != 3 else None for k in range(6)],
    }
)

CASES = {
    "n > 2": {3, 4},
    "not (n > 2)": {0, 1},  # NULL is neither
    "n > 2 or n is null": {2, 3, 4, 5},
    "n in (1, 5)": {0, 4},
    "n not in (1, 5)": {1, 3},
    "n not in (1, null)": set(),  # never TRUE
    "n between 2 and 4": {1, 3},
    "s = 'a' and n is not null": {0},
    "lower(s) = 'b'": {1, 4},
    "s like '_\\%' escape '\\'": {5},
    "s is null": {3},
    "n = null": set(),
    "n is not distinct from null": {2, 5},
    "coalesce(n, 0) = 0": {2, 5},
    "day >= date '2024-01-05'": {4, 5},
    "p.amt = 4": {4},
    "p.in.x = 1": {1, 5},
    "p is null": {3},
    "f > 1.5": {1, 4, 5},  # NaN is greater than every number
    "f = 0.0": {3},
    "case when n > 3 then true else s = 'a' end": {0, 2, 3, 4},
    "true": set(range(6)),
    "false": set(),
    "id % 2 = 0": {0, 2, 4},
    "ID = 3": {3},  # names do not care for case
}


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("where", CASES)
def test_sql_text_decides_by_three_valued_logic(lake, where, files):
    result = lake.create(TARGET, files=files).delete(where)
    assert set(lake.values("id")) == set(range(6)) - CASES[where]
    assert (result.deleted, result.total) == (len(CASES[where]), 6 - len(CASES[where]))


@pytest.mark.parametrize(
    ("where", "gone"),
    [
        (pc.field("n") > 2, {3, 4}),
        (~(pc.field("n") > 2), {0, 1}),
        (pc.field("s").isin(["a", "b"]), {0, 1, 2}),
        (pc.field("n").is_null(), {2, 5}),
        (pc.field("p", "amt") == 4, {4}),
        (pc.field("n") > 100, set()),
    ],
    ids=str,
)
def test_a_pyarrow_expression_means_the_same(lake, where, gone):
    result = lake.create(TARGET, files=2).delete(where)
    assert set(lake.values("id")) == set(range(6)) - gone
    assert result.deleted == len(gone)


def test_columns_named_as_the_engine_might_name_its_own_do_no_harm(lake):
    table = pa.table({"__row__": [1, 2], "__rows__": ["a", "b"], "v": [1, 2]})
    assert lake.create(table).delete(pc.field("v") == 1).deleted == 1
    assert lake.values("__row__") == [2]


def test_a_file_that_loses_every_row_is_removed_and_others_stay_untouched(parquet_lake):
    parquet_lake.create(TARGET, files=3)
    before = parquet_lake.identity("part-00000.parquet")
    result = parquet_lake.delete("id in (2, 3, 4)")
    assert parquet_lake.files == ["part-00000.parquet", "part-00002.parquet"]
    assert result.removed_files == [str(parquet_lake.root / "part-00001.parquet")]
    assert result.rewritten_files == [str(parquet_lake.root / "part-00002.parquet")]
    assert parquet_lake.identity("part-00000.parquet") == before


def test_nothing_is_written_when_no_row_goes(lake):
    lake.create(TARGET, files=2)
    with lake.unchanged():
        assert not lake.delete("n > 100").changed


PARTITIONED = {
    "region = 'eu'": {1, 2},
    "region is null": {4},
    "region <> 'eu'": {3},
    "region = 'eu' and id = 1": {1},
    "region = 'eu' or id = 4": {1, 2, 4},
    "upper(region) = 'US'": {3},
}


@pytest.mark.parametrize("where", PARTITIONED)
def test_partition_columns_are_columns_like_any_other(lake, where):
    table = pa.table({"id": [1, 2, 3, 4], "region": ["eu", "eu", "us", None]})
    result = lake.create(table, partition_by="region").delete(where)
    assert set(lake.values("id")) == {1, 2, 3, 4} - PARTITIONED[where]
    assert result.deleted == len(PARTITIONED[where])


def test_a_predicate_on_the_partition_alone_reads_nothing(lake):
    table = pa.table({"id": [1, 2, 3], "region": ["eu", "eu", "us"]})
    plan = lake.create(table, partition_by="region").plan("delete", "region = 'eu'")
    assert [(item.action, item.scan_bytes) for item in plan.files] == [("remove", 0), ("keep", 0)]
    assert plan.deleted == 2


def test_what_is_wrong_with_a_predicate_is_said(lake):
    lake.create(TARGET)
    with pytest.raises(ColumnNotFound, match="nope"):
        lake.delete("nope = 1")
    with pytest.raises(ColumnNotFound, match="nope"):
        lake.delete(pc.field("nope") == 1)
    with pytest.raises(IntarsiaError):
        lake.delete("id = = 1")
    with pytest.raises(InputError, match="not a condition"):
        lake.delete("id + 1")
    with pytest.raises(InputError):
        lake.delete(None)
    with pytest.raises(InputError):
        lake.delete(lambda row: True)
    with pytest.raises(InputError, match="takes every row"):
        lake.delete("id" != 5)
    assert len(lake.rows()) == 6


def test_division_by_zero_fails_and_changes_nothing(lake):
    lake.create(TARGET)
    with lake.unchanged(), pytest.raises(InputError):
        lake.delete("10 / (n - 2) > 1")


def test_a_table_that_does_not_exist_has_no_rows_to_delete(parquet_lake):
    with pytest.raises(NothingMatched, match="delete: there is no dataset at"):
        parquet_lake.delete("id = 1")
    assert not parquet_lake.root.exists()
