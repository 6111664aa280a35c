"""WHEN MATCHED: update some columns, all of them, or delete; with conditions, in order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from intarsia import when_matched, when_not_matched, when_not_matched_by_source
from intarsia.errors import ColumnNotFound, InputError, PartitionMoveError

TARGET = pa.table({"id": [1, 2, 3, 4], "n": [10, 20, 30, None], "s": ["a", "b", "c", "d"]})
SOURCE = pa.table({"id": [2, 3, 4, 5], "n": [2, 3, 4, 5], "s": ["B", "C", "D", "E"]})


def test_update_sets_only_the_named_columns_from_both_sides(lake):
    clause = when_matched().update({"n": "target.n + source.n", "s": "upper(target.s)"})
    result = lake.create(TARGET).merge(SOURCE, on="id", clauses=[clause])
    assert lake.values("id", "n", "s") == [(1, 10, "a"), (2, 22, "B"), (3, 33, "C"), (4, None, "D")]
    assert (result.updated, result.inserted, result.deleted) == (3, 0, 0)


def test_every_assignment_sees_the_row_as_it_was(lake):
    target = pa.table({"id": [1], "a": [1], "b": [2]})
    clause = when_matched().update({"a": "target.b", "b": "target.a"})
    lake.create(target).merge(pa.table({"id": [1]}), on="id", clauses=[clause])
    assert lake.values("a", "b") == [(2, 1)]


def test_update_all_replaces_the_row(lake):
    lake.create(TARGET).merge(SOURCE, on="id", clauses=[when_matched().update_all()])
    assert lake.values("id", "n") == [(1, 10), (2, 2), (3, 3), (4, 4)]


def test_delete_removes_the_row(lake):
    result = lake.create(TARGET).merge(SOURCE, on="id", clauses=[when_matched().delete()])
    assert lake.values("id") == [1]
    assert (result.deleted, result.total) == (3, 1)


def test_a_condition_that_is_null_does_not_apply(lake):
    clause = when_matched("target.n < 100").delete()
    lake.create(TARGET).merge(SOURCE, on="id", clauses=[clause])
    assert lake.values("id") == [1, 4]  # 4 has n NULL


def test_the_first_clause_that_applies_decides(lake):
    clauses = [
        when_matched("target.n = 20").delete(),
        when_matched("target.n <= 30").update({"s": "'second'"}),
        when_matched().update({"s": "'third'"}),
    ]
    result = lake.create(TARGET, files=2).merge(SOURCE, on="id", clauses=clauses)
    assert lake.values("id", "s") == [(1, "a"), (3, "second"), (4, "third")]
    assert (result.updated, result.deleted) == (2, 1)


def test_two_kinds_of_delete_in_one_file_both_count(lake):
    clauses = [when_matched("target.n = 20").delete(), when_not_matched_by_source("target.n = 10").delete()]
    result = lake.create(TARGET).merge(SOURCE, on="id", clauses=clauses)
    assert lake.values("id") == [3, 4]
    assert (result.deleted, result.total) == (2, 2)


def test_a_condition_on_the_source_alone_works_where_the_key_is_the_partition(lake):
    lake.create(pa.table({"day": [1, 1, 2], "n": [1, 2, 3]}), partition_by="day")
    source = pa.table({"day": [1, 2], "bonus": [10, 0]})
    clause = when_matched("source.bonus > 0").update({"n": "target.n + source.bonus"})
    lake.merge(source, on="day", clauses=[clause])
    assert lake.values("day", "n") == [(1, 11), (1, 12), (2, 3)]


def test_nested_fields_are_read_and_assigned(lake):
    target = pa.table({"id": [1, 2], "p": [{"amt": 1, "cur": "eur"}, None]})
    clause = when_matched().update({"p.amt": "coalesce(target.p.amt, 0) + source.add"})
    lake.create(target).merge(pa.table({"id": [1], "add": [5]}), on="id", clauses=[clause])
    assert lake.values("id", "p") == [(1, {"amt": 6, "cur": "eur"}), (2, None)]


def test_a_column_that_does_not_exist_is_refused(lake):
    lake.create(TARGET)
    with pytest.raises(ColumnNotFound, match="nope"):
        lake.merge(SOURCE, on="id", clauses=[when_matched().update({"nope": "1"})])
    with pytest.raises(ColumnNotFound, match="nope"):
        lake.merge(SOURCE, on="id", clauses=[when_matched("source.nope > 1").delete()])


def test_partition_columns_cannot_be_assigned(lake):
    lake.create(TARGET, partition_by="s")
    with pytest.raises(PartitionMoveError, match="'s' is assigned"):
        lake.merge(SOURCE, on="id", clauses=[when_matched().update({"s": "source.s"})])


@pytest.mark.parametrize(
    "clauses",
    [
        "when matched and source.n = 2 then delete when matched then update set n = target.n + source.n",
        ["matched and source.n = 2 then delete", "matched then update set n = target.n + source.n"],
        ["matched and source.n = 2 then delete", when_matched().update({"n": "target.n + source.n"})],
        (when_matched("source.n = 2").delete(), "matched then update set n = target.n + source.n"),
    ],
    ids=["one text", "texts", "a text first", "a clause first"],
)
def test_clauses_may_be_sql_text_or_a_list_with_texts_in_it(lake, clauses):
    lake.create(TARGET)
    planned = lake.merge(SOURCE, on="id", clauses=clauses, dry_run=True)
    result = lake.merge(SOURCE, on="id", clauses=clauses)
    assert lake.values("id", "n") == [(1, 10), (3, 33), (4, None)]
    assert (result.deleted, result.updated, result.inserted) == (1, 2, 0)
    assert (planned.deleted, planned.updated, planned.inserted) == (1, 2, 0)


def test_a_clause_as_text_that_cannot_be_read_is_refused_before_anything_is_written(lake):
    lake.create(TARGET)
    with pytest.raises(InputError, match="'delte' stands where UPDATE or DELETE should"):
        lake.merge(SOURCE, on="id", clauses=["matched then update set *", "matched then delte"])
    assert lake.values("id") == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "clauses", [[], [when_matched()], when_matched(), 3, [None], {"matched then delete": None}]
)
def test_what_is_no_clause_is_refused(lake, clauses):
    with pytest.raises(InputError, match="clauses must be"):
        lake.create(TARGET).merge(SOURCE, on="id", clauses=clauses)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: when_matched().insert_all(),
        lambda: when_not_matched().update_all(),
        lambda: when_not_matched().delete(),
        lambda: when_not_matched_by_source().insert({"id": "1"}),
        lambda: when_matched().update({}),
    ],
)
def test_an_action_that_does_not_belong_to_its_side_is_refused(wrong):
    with pytest.raises(InputError):
        wrong()
