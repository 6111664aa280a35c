"""Overwrite by a condition: rows that match go and new ones come, in one commit."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from intarsia.errors import ColumnNotFound, InputError, SchemaMismatch

MON, TUE, WED = (dt.date(2025, 3, day) for day in (1, 2, 3))
TARGET = pa.table({"id": [1, 2, 3, 4, 5], "day": [MON, MON, TUE, TUE, WED], "n": [1, 2, 3, 4, None]})
NEW = pa.table({"id": [20, 21], "day": [TUE, TUE], "n": [200, 210]})
WHERE = "day = date '2025-03-02'"


@pytest.mark.parametrize("files", [1, 5, [2, 2, 1]])
def test_rows_that_match_go_and_new_ones_come(lake, files):
    lake.create(TARGET, files=files)
    before = lake.snapshot().version
    result = lake.write(NEW, mode="overwrite", where=WHERE)
    assert lake.values("id", "n") == [(1, 1), (2, 2), (5, None), (20, 200), (21, 210)]
    assert (result.inserted, result.deleted, result.updated, result.total) == (2, 2, 0, 5)
    assert result.operation == "overwrite"
    assert lake.snapshot().version != before


def test_rows_for_which_the_condition_is_null_stay(lake):
    lake.create(TARGET)
    lake.write(pa.table({"id": [9], "day": [WED], "n": [9]}), mode="overwrite", where="n > 3")
    assert lake.values("id") == [1, 2, 3, 5, 9]


def test_rows_that_the_condition_does_not_cover_are_refused_before_anything_is_written(lake):
    lake.create(TARGET)
    bad = pa.table({"id": [20, 21, 22], "day": [TUE, WED, None], "n": [1, 2, 3]})
    with lake.unchanged(), pytest.raises(InputError, match="2 of 3 rows") as caught:
        lake.write(bad, mode="overwrite", where=WHERE)
    assert "2025, 3, 3" in caught.value.message
    assert caught.value.changed is False


def test_a_dry_run_counts_and_changes_nothing(lake):
    lake.create(TARGET, files=2)
    with lake.unchanged():
        result = lake.write(NEW, mode="overwrite", where=WHERE, dry_run=True)
    assert (result.inserted, result.deleted, result.total) == (2, 2, 5)


def test_no_rows_delete_and_no_match_adds(lake):
    lake.create(TARGET)
    lake.write(NEW.slice(0, 0), mode="overwrite", where=WHERE)
    assert lake.values("id") == [1, 2, 5]
    result = lake.write(NEW, mode="overwrite", where=WHERE)
    assert (result.deleted, lake.values("id")) == (0, [1, 2, 5, 20, 21])


def test_an_expression_of_arrow_is_a_condition_too(lake):
    lake.create(TARGET)
    lake.write(NEW, mode="overwrite", where=pc.field("day") == pa.scalar(TUE))
    assert lake.values("id") == [1, 2, 5, 20, 21]


def test_the_schema_stays_and_is_asked_for(lake):
    lake.create(TARGET)
    with pytest.raises(SchemaMismatch, match="'n'"):
        lake.write(NEW.drop(["n"]), mode="overwrite", where=WHERE)
    with pytest.raises(ColumnNotFound, match="'dai'"):
        lake.write(NEW, mode="overwrite", where="dai = 1")
    with pytest.raises(InputError, match="where= goes with"):
        lake.write(NEW, mode="append", where=WHERE)
    lake.write(NEW.drop(["n"]), mode="overwrite", where=WHERE, missing="null")
    assert lake.values("id", "n")[-2:] == [(20, None), (21, None)]


def test_partitions_that_match_are_removed_without_being_read(lake):
    lake.create(TARGET, partition_by="day")
    plan = lake.plan("write", NEW, mode="overwrite", where=WHERE)
    lake.write(NEW, mode="overwrite", where=WHERE)
    assert lake.values("id") == [1, 2, 5, 20, 21]
    if not lake.table.__class__.__name__.startswith("Evolved"):
        assert plan.bytes_to_scan == 0


@pytest.mark.only(lambda lake: lake[0] == "spark", "a source that is too large to travel")
@pytest.mark.parametrize("uncovered", [False, True])
def test_rows_that_stay_on_spark_overwrite_too(lake, uncovered):
    session = pytest.importorskip("pyspark.sql").SparkSession.getActiveSession()
    lake.create(TARGET, files=[2, 2, 1])
    frame = session.createDataFrame(
        [(20, TUE, 200), (21, WED if uncovered else TUE, 210)], "id long, day date, n long"
    )
    if uncovered:
        with lake.unchanged(), pytest.raises(InputError, match="1 of 2 rows"):
            lake.write(
                frame, mode="overwrite", where="day >= date '2025-03-02' and n <> 210", broadcast_bytes=1
            )
        return
    for dry_run in (True, False):
        result = lake.write(
            frame,
            mode="overwrite",
            where="day >= date '2025-03-02' and id > 3",
            broadcast_bytes=1,
            dry_run=dry_run,
        )
        assert (result.inserted, result.deleted) == (2, 2)
    assert lake.values("id") == [1, 2, 3, 20, 21]
