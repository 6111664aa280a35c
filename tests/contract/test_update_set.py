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


LOST = {
    "a fraction into an integer": ({"n": "n * 1.1"}, "in 3 of 3 rows"),
    "a fraction into a nested integer": ({"p.amt": "p.amt / 2"}, "in 1 of 3 rows"),
    "a constant with a fraction": ({"n": "1.5"}, "1.5 is no INTEGER"),
    "NaN into an integer": ({"n": "cast('nan' as double) * n"}, "in 3 of 3 rows"),
    "more digits than the decimal has": ({"price": "price * 500000"}, "in 2 of 3 rows"),
}


@pytest.mark.parametrize("name", LOST)
def test_s27_an_assignment_that_would_lose_something_is_refused(lake, name):
    assignments, told = LOST[name]
    lake.create(TARGET)
    with lake.unchanged(), pytest.raises(SchemaMismatch) as caught:
        lake.update(assignments, "id <> 3")
    assert told in str(caught.value)
    assert repr(next(iter(assignments))) in str(caught.value)


def test_s27_instants_are_not_cut(parquet_lake):
    seconds = pa.array([1_000, 2_000], pa.timestamp("ms"))
    parquet_lake.create(pa.table({"id": [1, 2], "at": seconds, "day": pa.array([1, 2], pa.date32())}))
    late = "at + interval '1 microsecond'"
    for name, value in (("at", late), ("day", "at")):
        with parquet_lake.unchanged(), pytest.raises(SchemaMismatch, match="in 2 of 2 rows"):
            parquet_lake.update({name: value})
    parquet_lake.update({"at": f"date_trunc('millisecond', {late})", "day": "cast(at as date)"})
    assert parquet_lake.values("at", "day") == [
        (dt.datetime(1970, 1, 1, 0, 0, n), dt.date(1970, 1, 1)) for n in (1, 2)
    ]


def test_s27_decimals_are_rounded_half_up_and_what_is_said_is_done(lake):
    lake.create(TARGET).update(
        {"price": "1.005 * id", "n": "cast(id * 2.5 as int)", "p.amt": "floor(id * 1.9)"}
    )
    assert lake.values("price", "n") == [
        (Decimal("1.01"), 3), (Decimal("2.01"), 5), (Decimal("3.02"), 8), (Decimal("4.02"), 10)
    ]  # fmt: skip
    assert [row["amt"] for row in lake.values("p")] == [1, 3, 5, 7]


def test_functions_mean_the_same_on_every_engine(lake):
    lake.create(TARGET).update(
        {
            "s": "concat_ws('/', lpad(left(s, 1), 3, 'xy'), strftime(at, '%Y-%m'), left(md5(s), 4))",
            "n": "date_diff('day', date '2023-12-31', at)",
            "price": "greatest(price, 2.005)",
            "p.tag": "regexp_replace(p.tag, '[x-z]', '<\\0>')",
        },
        "regexp_matches(coalesce(s, ''), '^[abc]?$') and date_trunc('month', at) = date '2024-01-01'",
    )
    assert lake.values("n", "price", "s") == [
        (1, Decimal("2.01"), "xya/2024-01/0cc1"),
        (2, Decimal("2.20"), "xyb/2024-01/92eb"),
        (3, Decimal("2.01"), "2024-01"),
        (4, Decimal("4.40"), "d"),
    ]
    tags = [row and row["tag"] for _, row in lake.values("id", "p")]
    assert tags == ["<x>", None, "<z>", "w"]


def test_nested_values_are_made_assigned_and_compared(lake):
    table = pa.table(
        {
            "id": [1, 2, 3],
            "tags": pa.array([["a"], None, ["b", None]], pa.list_(pa.string())),
            "p": [{"amt": 1, "tag": "x"}, None, {"amt": None, "tag": "z"}],
            "m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        }
    )
    lake.create(table, files=2)
    assert (
        lake.update({"tags": "array['n', cast(id as varchar)]"}, "tags is distinct from ['a']").updated == 2
    )
    assert lake.update({"p": "{'tag': p.tag, 'amt': id * 10}"}, "p <> {'amt': 1, 'tag': 'x'}").updated == 1
    assert lake.update({"m": "map {'k': 1, 'n': id}"}, "m = map {} or m is null").updated == 2
    assert lake.values("id", "tags", "p", "m") == [
        (1, ["a"], {"amt": 1, "tag": "x"}, [("k", 1)]),
        (2, ["n", "2"], None, [("k", 1), ("n", 2)]),
        (3, ["n", "3"], {"amt": 30, "tag": "z"}, [("k", 1), ("n", 3)]),
    ]
    source = pa.table({"id": [1, 4]})
    clauses = (
        "when matched then update set tags = [] "
        "when not matched then insert (id, tags, p) values (source.id, ['x'], {'amt': 4, 'tag': null})"
    )
    lake.merge(source, on="id", clauses=clauses)
    assert lake.values("id", "tags", "p")[0][1] == []
    assert lake.values("id", "tags", "p")[3] == (4, ["x"], {"amt": 4, "tag": None})
    with lake.unchanged(), pytest.raises(SchemaMismatch, match="'tags' cannot be set"):
        lake.update({"tags": "[1]"})
