"""Columns and types of the source against those of the table: what fits, what is added, what is refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from intarsia.errors import SchemaMismatch

TARGET = pa.table({"id": pa.array([1, 2], pa.int64()), "n": pa.array([10, 20], pa.int32()), "s": ["a", "b"]})


def test_a_column_missing_from_the_source_is_refused_and_named(lake):
    lake.create(TARGET)
    with lake.unchanged(), pytest.raises(SchemaMismatch, match="'s'") as caught:
        lake.merge(TARGET.drop_columns(["s"]), on="id")
    assert 'missing="null"' in str(caught.value)
    assert isinstance(caught.value, (ValueError, TypeError))


def test_a_missing_column_is_null_when_asked(lake):
    lake.create(TARGET)
    lake.merge(pa.table({"id": [2, 3], "n": pa.array([2, 3], pa.int32())}), on="id", missing="null")
    assert lake.values("id", "n", "s") == [(1, 10, "a"), (2, 2, None), (3, 3, None)]


def test_a_new_column_is_refused_and_named(lake):
    lake.create(TARGET)
    source = TARGET.append_column("extra", pa.array([1, 2]))
    with lake.unchanged(), pytest.raises(SchemaMismatch, match="'extra'") as caught:
        lake.merge(source, on="id")
    assert lake.table.new_columns_by in str(caught.value)


def test_a_new_column_is_added_when_asked_and_old_files_read_it_as_null(parquet_lake):
    parquet_lake.create(TARGET, files=2)
    source = pa.table({"id": [2, 3], "extra": ["x", "y"], "s": ["B", "C"], "n": pa.array([2, 3], pa.int32())})
    result = parquet_lake.merge(source, on="id", schema_evolution="add")
    assert (result.updated, result.inserted) == (1, 1)
    assert parquet_lake.values("id", "s", "extra") == [(1, "a", None), (2, "B", "x"), (3, "C", "y")]
    assert parquet_lake.file("part-00001.parquet").column_names == ["id", "n", "s", "extra"]
    assert "extra" in parquet_lake.snapshot().schema.names


def test_a_narrower_type_is_cast_up(lake):
    source = pa.table({"id": pa.array([2], pa.int8()), "n": pa.array([7], pa.int16()), "s": ["B"]})
    lake.create(TARGET).merge(source, on="id")
    assert lake.values("id", "n") == [(1, 10), (2, 7)]


def test_a_wider_type_keeps_the_tables_type_while_every_value_fits(parquet_lake):
    source = pa.table({"id": [2, 3], "n": pa.array([2**31 - 1, None], pa.int64()), "s": ["B", "C"]})
    parquet_lake.create(TARGET).merge(source, on="id")
    assert parquet_lake.values("id", "n") == [(1, 10), (2, 2**31 - 1), (3, None)]
    assert {parquet_lake.file(name).schema.field("n").type for name in parquet_lake.files} == {pa.int32()}


NOT_EXACT = {
    "too large": (pa.int32(), [2**31], pa.int64()),
    "a fraction": (pa.int32(), [1.5], pa.float64()),
    "nanoseconds": (pa.timestamp("us"), [1], pa.timestamp("ns")),
    "digits": (pa.decimal128(5, 2), [Decimal("1.001")], pa.decimal128(6, 3)),
    "an integer that a float cannot hold": (pa.float64(), [2**53 + 1], pa.int64()),
    "a negative number": (pa.uint32(), [-1], pa.int32()),
}


@pytest.mark.parametrize("name", NOT_EXACT)
def test_a_value_that_does_not_fit_is_refused_before_anything_is_written(lake, name):
    kind, values, source_type = NOT_EXACT[name]
    lake.create(pa.table({"id": [1], "n": pa.nulls(1, kind)}))
    source = pa.table({"id": [1], "n": pa.array(values).cast(source_type)})
    with lake.unchanged(), pytest.raises(SchemaMismatch, match="'n'"):
        lake.merge(source, on="id")


def test_widen_promotes_the_column_in_every_file_and_the_plan_says_so(parquet_lake):
    parquet_lake.create(TARGET, files=2)
    source = pa.table({"id": [2, 3], "n": [2**40, 3], "s": ["B", "C"]})
    plan = parquet_lake.plan("merge", source, on="id", schema_evolution="widen")
    assert [item.action for item in plan.files] == ["rewrite", "rewrite"]
    assert "widened" in plan.files[0].reason
    parquet_lake.merge(source, on="id", schema_evolution="widen")
    assert parquet_lake.values("id", "n") == [(1, 10), (2, 2**40), (3, 3)]
    assert {parquet_lake.file(name).schema.field("n").type for name in parquet_lake.files} == {pa.int64()}


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        (pa.int32(), pa.float64(), [0.5]),
        (pa.float32(), pa.float64(), [0.1]),
        (pa.decimal128(4, 1), pa.decimal128(12, 4), [Decimal("12345678.1234")]),
        (pa.timestamp("ms"), pa.timestamp("us"), [dt.datetime(2024, 1, 1, 12, 0, 0, 1)]),
    ],
    ids=str,
)
def test_after_a_widening_every_reader_sees_one_schema(parquet_lake, old, new, values):
    parquet_lake.create(pa.table({"id": [1, 2], "n": pa.nulls(2, old)}), files=2)
    source = pa.table({"id": [1, 3], "n": pa.array(values * 2, new)})
    parquet_lake.merge(source, on="id", schema_evolution="widen")
    assert ds.dataset(parquet_lake.root).to_table().num_rows == 3
    assert duckdb.sql(f"select count(n) from '{parquet_lake.root}/*.parquet'").fetchall() == [(2,)]
    assert polars.read_parquet(parquet_lake.root).height == 3


def test_types_that_never_meet_are_refused_with_both_named(lake):
    source = pa.table({"id": [1], "n": ["ten"], "s": ["x"]})
    with pytest.raises(SchemaMismatch, match=r"'n'.*int32.*string|'n'.*string.*int32"):
        lake.create(TARGET).merge(source, on="id", schema_evolution=["add", "widen"])


def test_a_file_that_lacks_a_column_gets_the_value_of_the_source(parquet_lake, make_dataset):
    parquet_lake.create(TARGET)
    make_dataset(parquet_lake.root / "old", pa.table({"id": [7, 8], "n": pa.array([70, 80], pa.int32())}))
    source = pa.table({"id": [8], "n": pa.array([8], pa.int32()), "s": ["new"]})
    parquet_lake.merge(source, on="id")
    assert parquet_lake.values("id", "s") == [(1, "a"), (2, "b"), (7, None), (8, "new")]


def test_null_for_a_column_that_cannot_be_null_is_refused(parquet_lake, unchanged):
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)]
    )
    parquet_lake.create(pa.table({"id": [1], "n": [1]}, schema=schema))
    with unchanged(parquet_lake.root), pytest.raises(SchemaMismatch, match="'n'"):
        parquet_lake.merge(pa.table({"id": [1], "n": pa.nulls(1, pa.int64())}), on="id")
    parquet_lake.merge(pa.table({"id": [1], "n": [5]}), on="id")
    assert not parquet_lake.file().schema.field("n").nullable


def test_columns_that_differ_only_by_case_are_refused_in_a_new_table(lake):
    with pytest.raises(SchemaMismatch, match="differ only by case"):
        lake.merge(pa.table({"id": [1], "ID": [1]}), on="id")
