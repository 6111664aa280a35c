"""ON: equalities are the keys, the rest is tested on the pairs; a target row is changed once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from intarsia import when_matched, when_not_matched, when_not_matched_by_source
from intarsia.errors import InputError, IntarsiaError, KeyColumnError

TARGET = pa.table({"id": [1, 2, 3], "region": ["eu", "ap", "us"], "n": [1, 2, 3]})
SOURCE = pa.table({"id": [1, 2, 4], "region": ["eu", "ap", "us"], "n": [10, 20, 40]})
UPSERT = [when_matched().update_all(), when_not_matched().insert_all()]


def test_what_the_condition_asks_beside_the_keys_is_tested_on_the_pairs(lake):
    on = "target.id = source.id and target.region <> 'ap'"
    result = lake.create(TARGET).merge(SOURCE, on=on, clauses=UPSERT)
    # The row of 2 does not match, so it is new: that is what MERGE says.
    assert lake.values("id", "n") == [(1, 10), (2, 2), (2, 20), (3, 3), (4, 40)]
    assert (result.updated, result.inserted) == (1, 2)


def test_the_condition_may_compare_columns_of_both_sides(lake):
    on = "target.id = source.id and source.n > target.n + 15"
    lake.create(TARGET).merge(SOURCE, on=on, clauses=[when_matched().update({"n": "source.n"})])
    assert lake.values("id", "n") == [(1, 1), (2, 20), (3, 3)]


def test_a_row_whose_pair_fails_the_condition_is_not_matched_by_the_source(lake):
    on = "target.id = source.id and source.n > 15"
    lake.create(TARGET).merge(SOURCE, on=on, clauses=[when_not_matched_by_source().delete()])
    assert lake.values("id") == [2]


def test_key_columns_may_have_other_names_in_the_source(lake):
    source = pa.table({"key": [1, 3], "place": ["eu", "xx"], "add": [5, 5]})
    on = "target.id = source.key and source.place = target.region"
    result = lake.create(TARGET).merge(
        source, on=on, clauses=[when_matched().update({"n": "n + source.add"})]
    )
    assert lake.values("id", "n") == [(1, 6), (2, 2), (3, 3)]
    assert result.updated == 1


def test_a_source_column_of_the_partitions_name_that_is_not_the_key_prunes_nothing(lake):
    lake.create(TARGET, partition_by="region")
    source = pa.table({"id": [1], "real": ["eu"], "region": ["us"]})
    on = "target.id = source.id and target.region = source.real"
    result = lake.merge(source, on=on, clauses=[when_matched().delete()])
    assert (result.deleted, lake.values("id")) == (1, [2, 3])


def test_a_strategy_takes_a_condition_of_equalities_too(lake):
    lake.create(TARGET).merge(SOURCE, on="target.id = source.id and target.region = source.region")
    assert lake.values("id", "n") == [(1, 10), (2, 20), (3, 3), (4, 40)]


@pytest.mark.parametrize(
    "clause", [when_matched().update({"n": "source.n"}), when_matched("target.n > 0").delete()]
)
def test_a_target_row_matched_twice_is_an_error(lake, clause):
    lake.create(TARGET)
    source = pa.table({"id": [1, 1], "n": [5, 6]})
    with lake.unchanged(), pytest.raises(KeyColumnError, match="more than one source row"):
        lake.merge(source, on="id", clauses=[clause])


def test_a_target_row_matched_twice_may_be_deleted(lake):
    result = lake.create(TARGET).merge(
        pa.table({"id": [1, 1, 3]}), on="id", clauses=[when_matched().delete()]
    )
    assert (result.deleted, lake.values("id")) == (2, [2])


def test_source_rows_of_one_key_are_fine_when_the_condition_leaves_one(lake):
    source = pa.table({"id": [1, 1], "n": [5, 60]})
    lake.create(TARGET).merge(
        source,
        on="target.id = source.id and source.n > 50",
        clauses=[when_matched().update({"n": "source.n"})],
    )
    assert lake.values("id", "n") == [(1, 60), (2, 2), (3, 3)]


def test_new_source_rows_of_one_key_are_all_inserted_by_a_clause(lake):
    source = pa.table({"id": [9, 9], "region": ["eu", "eu"], "n": [1, 2]})
    result = lake.create(TARGET).merge(source, on="id", clauses=[when_not_matched().insert_all()])
    assert (result.inserted, lake.values("id")) == (2, [1, 2, 3, 9, 9])


@pytest.mark.parametrize("on", ["target.id > source.id", "target.id = 1", "target.region <> 'eu'"])
def test_a_condition_without_an_equality_between_the_sides_is_refused(lake, on):
    with pytest.raises(IntarsiaError):
        lake.create(TARGET).merge(SOURCE, on=on, clauses=UPSERT)


def test_a_condition_that_is_no_sql_is_refused(lake):
    with pytest.raises(InputError):
        lake.create(TARGET).merge(SOURCE, on="target.id = = source.id", clauses=UPSERT)
