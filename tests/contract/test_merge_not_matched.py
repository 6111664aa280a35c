"""WHEN NOT MATCHED: insert whole rows or made ones; WHEN NOT MATCHED BY SOURCE: update or delete."""

from __future__ import annotations

import pyarrow as pa
import pytest

from intarsia import when_matched, when_not_matched, when_not_matched_by_source
from intarsia.errors import InputError, SchemaMismatch

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


NESTED = pa.table({"id": [1], "c": [{"n1": 1, "n2": {"a": 1, "b": "x"}}]})
BESIDE = {
    "no such column": {},
    "a struct of the same name": {"c": [{"n1": 9, "n2": {"a": 9, "b": "y"}}]},
    "a number of the same name": {"c": [9]},
}


@pytest.mark.parametrize("beside", BESIDE)
def test_fields_of_a_struct_that_an_insert_does_not_name_are_null(lake, beside):
    source = pa.table({"id": [2], "v": [7], **BESIDE[beside]})
    lake.create(NESTED)
    clauses = "when not matched then insert (id, c.n1, c.n2.b) values (source.id, source.v, 'z')"
    assert lake.merge(source, on="id", clauses=clauses, dry_run=True).inserted == 1
    assert lake.merge(source, on="id", clauses=clauses).inserted == 1
    assert lake.values("id", "c")[1] == (2, {"n1": 7, "n2": {"a": None, "b": "z"}})


def test_an_insert_that_leaves_out_what_cannot_be_null_is_refused_in_a_dry_run_too(parquet_lake):
    kind = pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("c", kind)])
    parquet_lake.create(pa.table({"id": [1], "c": [{"x": 1, "y": 1}]}, schema=schema))
    source, clauses = pa.table({"id": [2]}), "when not matched then insert (id, c.x) values (source.id, 1)"
    for dry_run in (True, False):
        with parquet_lake.unchanged(), pytest.raises(SchemaMismatch, match=r"'c\.y' is NOT NULL"):
            parquet_lake.merge(source, on="id", clauses=clauses, dry_run=dry_run)


def test_s27_fractions_into_integers_are_refused_in_clauses(lake):
    source = pa.table({"id": [3, 4], "v": [1.5, 2.0], "n": [1, 1], "s": ["", ""]})
    lake.create(TARGET)
    for clauses in (
        [when_matched().update({"n": "source.v"})],
        [when_not_matched().insert({"id": "source.id", "n": "source.v / 4"})],
        [when_not_matched_by_source().update({"n": "target.id * 0.3"})],
    ):
        with lake.unchanged(), pytest.raises(SchemaMismatch, match="'n' cannot be set"):
            lake.merge(source, on="id", clauses=clauses)
    lake.merge(source, on="id", clauses=[when_matched().update({"n": "round(source.v)"})])
    assert lake.values("id", "n") == [(1, 10), (2, 20), (3, 2)]
