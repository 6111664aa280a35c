"""UPDATE: columns of the rows for which the predicate is TRUE get new values, from the row as it was."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from intarsia.errors import (
    ColumnNotFound,
    InputError,
    IntarsiaError,
    NothingMatched,
    PartitionMoveError,
    SchemaMismatch,
)

TARGET = pa.table(
    {
        "id": [1, 2, 3, 4],
        "n": pa.array([1, 2, None, 4], pa.int32()),
        "price": pa.array([Decimal("1.10"), Decimal("2.20"), None, Decimal("4.40")], pa.decimal128(8, 2)),
        "s": ["a", "b", None, "d"],
        "at": pa.array([dt.datetime(2024, 1, day) for day in range(1, 5)], pa.timestamp("us")),
        "p": [{"amt": 1, "tag": "x"}, None, {"amt": None, "tag": "z"}, {"amt": 4, "tag": "w"}],
    }
)


def test_values_are_sql_over_the_row_as_it_was(lake):
    result = lake.create(TARGET, files=2).update(
        {"n": "n * 10", "s": "upper(s) || cast(n as varchar)"}, "id <> 1"
    )
    assert lake.values("id", "n", "s") == [(1, 1, "a"), (2, 20, "B2"), (3, None, None), (4, 40, "D4")]
    assert (result.updated, result.total) == (3, 4)


def test_every_row_is_updated_without_a_predicate(lake):
    assert lake.create(TARGET, files=2).update({"s": "'x'"}).updated == 4
    assert lake.values("s") == ["x"] * 4


def test_a_predicate_that_is_null_updates_nothing(lake):
    assert lake.create(TARGET).update({"s": "'x'"}, "n < 3").updated == 2
    assert lake.values("id", "s") == [(1, "x"), (2, "x"), (3, None), (4, "d")]


def test_a_pyarrow_expression_may_be_the_predicate(lake):
    lake.create(TARGET).update({"n": "0"}, pc.field("id") >= 3)
    assert lake.values("id", "n") == [(1, 1), (2, 2), (3, 0), (4, 0)]


def test_nulls_numbers_and_times_are_assigned_in_the_columns_type(parquet_lake):
    parquet_lake.create(TARGET)
    parquet_lake.update(
        {"n": "null", "price": "price * 1.1", "at": "timestamp '2025-01-01 00:00:00'"}, "id = 2"
    )
    assert parquet_lake.values("id", "n", "price", "at")[1] == (
        2, None, Decimal("2.42"), dt.datetime(2025, 1, 1)
    )  # fmt: skip
    assert parquet_lake.file().schema.equals(TARGET.schema)


def test_nested_fields_are_assigned_alone(lake):
    lake.create(TARGET).update({"p.amt": "coalesce(p.amt, 0) + 100"}, "p is not null")
    assert lake.values("id", "p") == [
        (1, {"amt": 101, "tag": "x"}), (2, None), (3, {"amt": 100, "tag": "z"}), (4, {"amt": 104, "tag": "w"})
    ]  # fmt: skip


def test_a_field_of_a_struct_that_is_null_makes_it_one(lake):
    lake.create(TARGET).update({"p.amt": "7"}, "id = 2")
    assert lake.values("id", "p")[1] == (2, {"amt": 7, "tag": None})


def test_two_fields_of_one_struct_are_assigned_together(lake):
    lake.create(TARGET).update({"p.amt": "0", "p.tag": "upper(p.tag)"}, "id = 1")
    assert lake.values("id", "p")[0] == (1, {"amt": 0, "tag": "X"})


def test_columns_may_swap_their_values(lake):
    lake.create(pa.table({"a": [1, 2], "b": [3, 4]})).update({"a": "b", "b": "a"})
    assert lake.values("a", "b") == [(3, 1), (4, 2)]


def test_partition_columns_can_be_read_but_not_assigned(parquet_lake, unchanged):
    parquet_lake.create(TARGET.select(["id", "n", "s"]), partition_by="s")
    parquet_lake.update({"n": "length(s) + id"}, "s in ('a', 'b')")
    assert parquet_lake.values("id", "n") == [(1, 2), (2, 3), (3, None), (4, 4)]
    with unchanged(parquet_lake.root), pytest.raises(PartitionMoveError, match="'s' is assigned"):
        parquet_lake.update({"s": "'x'"})


def test_only_files_with_a_row_to_change_are_rewritten(parquet_lake):
    parquet_lake.create(TARGET, files=4)
    result = parquet_lake.update({"n": "0"}, "id = 3")
    assert result.rewritten_files == [str(parquet_lake.root / "part-00002.parquet")]
    assert len(result.preserved_files) == 3


def test_a_column_that_a_file_lacks_can_be_assigned(parquet_lake, make_dataset):
    parquet_lake.create(TARGET.select(["id", "s"]))
    make_dataset(parquet_lake.root / "old", pa.table({"id": [8, 9]}))
    parquet_lake.update({"s": "'new'"}, "id > 3")
    assert parquet_lake.values("id", "s") == [
        (1, "a"),
        (2, "b"),
        (3, None),
        (4, "new"),
        (8, "new"),
        (9, "new"),
    ]


WRONG = {
    "a column that is not there": ({"nope": "1"}, None, ColumnNotFound),
    "a type that does not fit": ({"n": "'text'"}, None, IntarsiaError),
    "a number that is too large": ({"n": "3000000000"}, None, IntarsiaError),
    "an overflow": ({"n": "n * 1000000000"}, None, IntarsiaError),
    "no assignment": ({}, None, InputError),
    "one column twice": ({"p.amt": "1", "p": "null"}, None, InputError),
    "a struct field that is not there": ({"p.nope": "1"}, None, ColumnNotFound),
    "a predicate that is no condition": ({"n": "1"}, "id + 1", InputError),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_update_is_refused_and_changes_nothing(lake, name):
    assignments, where, error = WRONG[name]
    lake.create(TARGET)
    with lake.unchanged(), pytest.raises(error):
        lake.update(assignments, where)


def test_null_for_a_column_that_cannot_be_null_is_refused(lake):
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64(), nullable=False)])
    lake.create(pa.table({"id": [1], "n": [1]}, schema=schema))
    with lake.unchanged(), pytest.raises(SchemaMismatch, match="'n'"):
        lake.update({"n": "null"})


def test_a_table_that_does_not_exist_has_no_rows_to_update(parquet_lake):
    with pytest.raises(NothingMatched, match="update: there is no dataset at"):
        parquet_lake.update({"n": "1"})
    assert not parquet_lake.root.exists()


def test_a_dot_may_be_part_of_a_name(lake):
    lake.create(pa.table({"id": [1], "a.b": ["x"], "a": [{"c": "y"}]}))
    lake.update({"a.b": "'z'", "a.c": "'w'"})
    assert lake.values("a.b", "a") == [("z", {"c": "w"})]
