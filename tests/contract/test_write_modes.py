"""append, overwrite and overwrite_partitions: what comes, what goes, and what is nobody's business."""

from __future__ import annotations

import pyarrow as pa
import pytest

from intarsia.errors import InputError, SchemaMismatch

TARGET = pa.table({"id": [1, 2, 3], "region": ["eu", "us", "us"]})
MORE = pa.table({"id": [4, 5], "region": ["us", "ap"]})


def test_append_only_adds(parquet_lake):
    parquet_lake.create(TARGET)
    before = parquet_lake.identity("part-00000.parquet")
    result = parquet_lake.write(MORE)
    assert parquet_lake.values("id") == [1, 2, 3, 4, 5]
    assert parquet_lake.identity("part-00000.parquet") == before
    assert (result.inserted, len(result.inserted_files)) == (2, 1)


def test_append_makes_a_table_that_does_not_exist(parquet_lake):
    parquet_lake.write(TARGET, partition_by="region")
    assert {name.split("/")[0] for name in parquet_lake.files} == {"region=eu", "region=us"}
    assert parquet_lake.values("id", "region") == [(1, "eu"), (2, "us"), (3, "us")]


def test_append_follows_the_layout_there_is(parquet_lake):
    parquet_lake.create(TARGET, partition_by="region").write(MORE)
    assert "region=ap" in {name.split("/")[0] for name in parquet_lake.files}


def test_overwrite_puts_the_rows_in_the_place_of_all_rows(parquet_lake):
    parquet_lake.create(TARGET, files=3)
    (parquet_lake.root / "notes.txt").write_text("stays")
    (parquet_lake.root / "_SUCCESS").touch()
    before = set(parquet_lake.files)
    result = parquet_lake.write(MORE, mode="overwrite")
    assert parquet_lake.values("id") == [4, 5]
    assert dict(result) == {"inserted": 2, "updated": 0, "deleted": 3, "total": 2}
    assert (parquet_lake.root / "notes.txt").read_text() == "stays"
    assert (parquet_lake.root / "_SUCCESS").exists()
    assert before.isdisjoint(parquet_lake.files)


def test_overwrite_keeps_the_partitions_unless_told_otherwise(parquet_lake):
    parquet_lake.create(TARGET, partition_by="region").write(MORE, mode="overwrite")
    assert {name.split("/")[0] for name in parquet_lake.files} == {"region=us", "region=ap"}
    parquet_lake.write(MORE, mode="overwrite", partition_by=[])
    assert len(parquet_lake.files) == 1
    assert "/" not in parquet_lake.files[0]


def test_overwrite_may_change_the_schema(lake):
    lake.create(TARGET).write(pa.table({"other": ["x"]}), mode="overwrite")
    assert lake.rows() == [{"other": "x"}]


def test_overwrite_with_no_rows_leaves_an_empty_table(lake):
    result = lake.create(TARGET).write(TARGET.slice(0, 0), mode="overwrite")
    assert (result.deleted, result.total, lake.rows()) == (3, 0, [])


def test_overwrite_partitions_replaces_only_the_partitions_it_writes(parquet_lake):
    parquet_lake.create(TARGET, partition_by="region")
    before = parquet_lake.identity("region=eu/part-00000.parquet")
    result = parquet_lake.write(MORE, mode="overwrite_partitions")
    assert parquet_lake.values("id", "region") == [(1, "eu"), (4, "us"), (5, "ap")]
    assert dict(result) == {"inserted": 2, "updated": 0, "deleted": 2, "total": 3}
    assert parquet_lake.identity("region=eu/part-00000.parquet") == before


def test_overwrite_partitions_knows_the_null_partition(lake):
    table = pa.table({"id": [1, 2], "region": ["eu", None]})
    new = pa.table({"id": [3], "region": pa.array([None], pa.string())})
    lake.create(table, partition_by="region").write(new, mode="overwrite_partitions")
    assert lake.values("id", "region") == [(1, "eu"), (3, None)]


def test_overwrite_partitions_with_no_rows_changes_nothing(lake):
    lake.create(TARGET, partition_by="region")
    with lake.unchanged():
        lake.write(TARGET.slice(0, 0), mode="overwrite_partitions")


def test_overwrite_partitions_needs_partitions(lake):
    with pytest.raises(InputError, match="partitioned"):
        lake.create(TARGET).write(MORE, mode="overwrite_partitions")


def test_schemas_must_meet_unless_everything_is_overwritten(parquet_lake, unchanged):
    parquet_lake.create(TARGET)
    with unchanged(parquet_lake.root), pytest.raises(SchemaMismatch, match="'extra'"):
        parquet_lake.write(MORE.append_column("extra", pa.array([1, 2])))
    with unchanged(parquet_lake.root), pytest.raises(SchemaMismatch, match="'region'"):
        parquet_lake.write(MORE.drop_columns(["region"]))
    parquet_lake.write(MORE.append_column("extra", pa.array([1, 2])), schema_evolution="add")
    assert parquet_lake.values("id", "extra") == [(1, None), (2, None), (3, None), (4, 1), (5, 2)]


def test_append_may_widen_a_column_and_rewrites_the_files_for_it(parquet_lake):
    parquet_lake.create(pa.table({"id": pa.array([1, 2], pa.int32())}), files=2)
    parquet_lake.write(pa.table({"id": [2**40]}), schema_evolution="widen")
    assert parquet_lake.values("id") == [1, 2, 2**40]
    assert {parquet_lake.file(name).schema.field("id").type for name in parquet_lake.files} == {pa.int64()}


def test_large_writes_are_cut_into_files_and_row_groups(parquet_lake):
    table = pa.table({"id": range(1000)})
    parquet_lake.write(table, max_rows_per_file=400, row_group_size=150)
    counts = sorted(parquet_lake.footer(name).num_rows for name in parquet_lake.files)
    assert counts == [200, 400, 400]
    footers = [parquet_lake.footer(name) for name in parquet_lake.files]
    groups = [[f.row_group(g).num_rows for g in range(f.num_row_groups)] for f in footers]
    assert sorted(groups) == [[150, 50], [150, 150, 100], [150, 150, 100]]
    assert parquet_lake.values("id") == list(range(1000))


def test_an_unknown_mode_is_refused(lake):
    with pytest.raises(InputError, match="mode must be one of"):
        lake.create(TARGET).write(MORE, mode="replace")
