"""Names of columns, whose case decides only where it has to; keys that may be NULL by the ON condition."""

from __future__ import annotations

import pyarrow as pa
import pytest

from intarsia.errors import ColumnNotFound, InputError, KeyColumnError

TARGET = pa.table({"Id": [1, 2, 3], "k": ["a", None, "c"], "N": [10, 20, 30]})
SOURCE = pa.table({"Id": [2, 4], "k": [None, None], "N": [2, 4]}, schema=TARGET.schema)


@pytest.mark.parametrize("on", ["id", ["ID"], "target.ID = source.iD"])
def test_unquoted_names_of_keys_are_found_whatever_their_case(lake, on):
    lake.create(TARGET)
    result = lake.merge(SOURCE, on=on)
    assert (result.updated, result.inserted) == (1, 1)
    assert lake.values("Id", "N") == [(1, 10), (2, 2), (3, 30), (4, 4)]


def test_a_quoted_name_is_spelled_as_the_column(lake):
    lake.create(TARGET)
    with pytest.raises(KeyColumnError, match="'id' is missing from the target"):
        lake.merge(SOURCE, on='target."id" = source.id')
    lake.merge(SOURCE, on='target."Id" = source."Id"')
    assert lake.values("Id") == [1, 2, 3, 4]


def test_two_names_of_one_key_are_refused(lake):
    lake.create(TARGET)
    with pytest.raises(KeyColumnError, match="more than once"):
        lake.merge(SOURCE, on=["id", "ID"])


def test_other_columns_are_found_whatever_their_case_too(lake):
    lake.create(TARGET, files=2)
    twice = pa.table({"Id": [2, 2], "k": ["x", "y"], "N": [8, 7]})
    lake.merge(twice, on="id", strategy="deduplicate", dedup_order_by="n")
    assert lake.values("Id", "k", "N") == [(1, "a", 10), (2, "x", 8), (3, "c", 30)]
    lake.optimize(by="n")
    assert lake.deduplicate(on="ID", order_by="n").deleted == 0
    with pytest.raises(ColumnNotFound, match="'m'"):
        lake.optimize(by="m")


def test_a_partition_column_is_found_whatever_its_case(parquet_lake):
    parquet_lake.write(TARGET, partition_by="K")
    assert parquet_lake.snapshot().partition_columns == ("k",)
    parquet_lake.write(TARGET, partition_by="K")
    assert parquet_lake.snapshot().rows == 6


def test_a_name_that_could_be_either_is_refused(parquet_lake):
    both = pa.table({"id": [1], "ID": [1], "v": [1]})
    parquet_lake.create(pa.table({"k": [1], "v": [1]}))
    with pytest.raises(InputError, match="could be any of 'id', 'ID'"):
        parquet_lake.merge(both, on="target.k = source.Id", clauses="when matched then delete")


@pytest.mark.parametrize(
    "on", ["target.k is not distinct from source.k", "target.k <=> source.k", "source.k <=> target.k"]
)
def test_a_null_safe_equality_is_a_key_for_which_null_equals_null(lake, on):
    lake.create(TARGET, files=3)
    result = lake.merge(SOURCE.slice(0, 1), on=on)
    assert (result.updated, result.inserted) == (1, 0)
    assert lake.values("Id", "N") == [(1, 10), (2, 2), (3, 30)]


def test_beside_a_null_safe_key_the_others_refuse_null(lake):
    lake.create(TARGET)
    both = "target.id = source.id and target.k <=> source.k"
    result = lake.merge(SOURCE, on=both)
    assert (result.updated, result.inserted) == (1, 1)
    assert lake.values("Id", "k", "N") == [(1, "a", 10), (2, None, 2), (3, "c", 30), (4, None, 4)]
    with lake.unchanged(), pytest.raises(KeyColumnError, match="Key column 'Id' has 1 NULL") as caught:
        lake.merge(pa.table({"Id": [None], "k": [None], "N": [1]}, schema=TARGET.schema), on=both)
    assert "in the source" in caught.value.message


def test_beside_a_null_safe_key_null_in_the_target_is_refused_too(lake):
    lake.create(pa.table({"Id": [1, None], "k": ["a", None], "N": [1, 2]}))
    both = "target.id = source.id and target.k <=> source.k"
    source = pa.table({"Id": [1], "k": ["a"], "N": [5]})
    with lake.unchanged(), pytest.raises(KeyColumnError, match="Key column 'Id' has 1 NULL") as caught:
        lake.merge(source, on=both)
    assert "target file" in caught.value.message
