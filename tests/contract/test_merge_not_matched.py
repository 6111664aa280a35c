"""WHEN NOT MATCHED: insert whole rows or made ones; WHEN NOT MATCHED BY SOURCE: update or delete."""

from __future__ import annotations

import pyarrow as pa
import pytest

from intarsia import when_matched, when_not_matched, when_not_matched_by_source
from intarsia.errors import InputError

TARGET = pa.table({"id": [1, 2, 3], "n": [10, 20, None], "s": ["a", "b", "c"]})
SOURCE = pa.table({"id": [3, 4, 5], "n": [3, 4, None], "s": ["C", "D", "E"]})


def test_insert_all_takes_the_source_row(lake):
    result = lake.create(TARGET).merge(SOURCE, on="id", clauses=[when_not_matched().insert_all()])
    assert lake.values("id", "s") == [(1, "a"), (2, "b"), (3, "c"), (4, "D"), (5, "E")]
    assert (result.inserted, result.updated) == (2, 0)


def test_insert_makes_a_row_of_the_named_columns_and_the_rest_is_null(lake):
    source = pa.table({"id": [4], "first": ["x"], "last": ["y"]})
    clause = when_not_matched().insert({"id": "source.id", "s": "source.first || source.last"})
    lake.create(TARGET).merge(source, on="id", clauses=[clause])
    assert (4, None, "xy") in lake.values("id", "n", "s")


def test_a_bare_name_in_an_insert_is_the_sources(lake):
    clause = when_not_matched("n > 3").insert({"id": "id", "n": "n * 2"})
    lake.create(TARGET).merge(SOURCE, on="id", clauses=[clause])
    assert lake.values("id", "n") == [(1, 10), (2, 20), (3, None), (4, 8)]


def test_conditions_choose_among_inserts_and_null_is_not_true(lake):
    clauses = [
        when_not_matched("source.n >= 4").insert_all(),
        when_not_matched("source.n < 4").insert({"id": "source.id", "s": "'small'"}),
    ]
    result = lake.create(TARGET).merge(SOURCE, on="id", clauses=clauses)
    assert lake.values("id") == [1, 2, 3, 4]  # 5 has n NULL and matches neither
    assert result.inserted == 1


def test_inserted_rows_of_a_partitioned_table_go_to_their_partition(parquet_lake):
    parquet_lake.create(TARGET, partition_by="s")
    clause = when_not_matched().insert({"id": "source.id", "s": "lower(source.s)"})
    parquet_lake.merge(SOURCE, on="id", clauses=[clause])
    assert {name.split("/")[0] for name in parquet_lake.files} == {"s=a", "s=b", "s=c", "s=d", "s=e"}
    assert parquet_lake.values("id", "s")[-1] == (5, "e")


def test_the_target_cannot_be_seen_where_there_is_no_such_row(lake):
    with pytest.raises(InputError, match="cannot see the target"):
        lake.create(TARGET).merge(SOURCE, on="id", clauses=[when_not_matched("target.n > 1").insert_all()])


def test_a_table_that_does_not_exist_is_made_of_inserts(lake):
    lake.merge(SOURCE, on="id", clauses=[when_matched().update_all(), when_not_matched().insert_all()])
    assert lake.values("id") == [3, 4, 5]


def test_rows_without_a_source_row_are_updated_or_deleted(lake):
    clauses = [
        when_not_matched_by_source("target.n = 10").delete(),
        when_not_matched_by_source().update({"s": "s || '?'"}),
    ]
    result = lake.create(TARGET).merge(SOURCE, on="id", clauses=clauses)
    assert lake.values("id", "s") == [(2, "b?"), (3, "c")]
    assert (result.updated, result.deleted) == (1, 1)


def test_rows_without_a_source_row_are_found_in_files_no_key_can_be_in(lake):
    lake.create(pa.table({"id": range(40), "n": range(40)}), files=4)
    source = pa.table({"id": [0], "n": [0]})
    result = lake.merge(source, on="id", clauses=[when_not_matched_by_source("n % 10 = 5").delete()])
    assert result.deleted == 4
    assert not {5, 15, 25, 35} & set(lake.values("id"))


def test_all_three_sides_at_once_are_a_full_merge(lake):
    clauses = [
        when_matched().update_all(),
        when_not_matched().insert_all(),
        when_not_matched_by_source().delete(),
    ]
    result = lake.create(TARGET, files=3).merge(SOURCE, on="id", clauses=clauses)
    assert lake.values("id", "n", "s") == [(3, 3, "C"), (4, 4, "D"), (5, None, "E")]
    assert dict(result) == {"inserted": 2, "updated": 1, "deleted": 2, "total": 3}


def test_rows_without_a_source_row_can_go_when_the_source_is_empty(lake):
    clause = when_not_matched_by_source().delete()
    result = lake.create(TARGET).merge(SOURCE.slice(0, 0), on="id", clauses=[clause])
    assert (result.deleted, lake.rows()) == (3, [])
