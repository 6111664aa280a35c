"""Partitioned tables: where rows go, what is inferred, what is pruned and what must not move."""

from __future__ import annotations

import datetime as dt
import urllib.parse

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from intarsia import when_matched
from intarsia.errors import InputError, PartitionMoveError, SchemaMismatch

TARGET = pa.table({"id": [1, 2, 3, 4], "region": ["eu", "eu", "us", None], "v": list("abcd")})


def _row(id_, region, v="x"):
    kind = pa.string() if region is None or isinstance(region, str) else None
    return pa.table({"id": [id_], "region": pa.array([region], kind), "v": [v]})


def test_new_rows_go_to_their_partition_without_being_told(parquet_lake):
    parquet_lake.create(TARGET, partition_by="region")
    parquet_lake.merge(pa.concat_tables([_row(5, "us"), _row(6, "ap")]), on="id")
    assert {name.split("/")[0] for name in parquet_lake.files} == {
        "region=eu", "region=us", "region=ap", "region=__HIVE_DEFAULT_PARTITION__"
    }  # fmt: skip
    assert parquet_lake.values("id", "region")[-2:] == [(5, "us"), (6, "ap")]
    new = [name for name in parquet_lake.files if "insert-" in name]
    assert all("region" not in parquet_lake.file(name).column_names for name in new)


def test_null_is_a_partition_of_its_own(lake):
    lake.create(TARGET, partition_by="region")
    result = lake.merge(pa.concat_tables([_row(4, None, "D"), _row(7, None)]), on="id")
    assert (result.updated, result.inserted) == (1, 1)
    assert [row for row in lake.values("id", "region", "v") if row[1] is None] == [
        (4, None, "D"), (7, None, "x")
    ]  # fmt: skip


@pytest.mark.parametrize("strategy", ["update", "upsert", "full_merge", "deduplicate"])
def test_a_key_must_not_move_to_another_partition(parquet_lake, unchanged, strategy):
    parquet_lake.create(TARGET, partition_by="region")
    with unchanged(parquet_lake.root), pytest.raises(PartitionMoveError) as caught:
        parquet_lake.merge(_row(3, "eu"), on="id", strategy=strategy)
    assert "id=3 is in region=us, the source says region=eu" in str(caught.value)


@pytest.mark.parametrize("region", ["xx", None])
def test_a_key_must_not_move_to_a_partition_that_is_new(lake, region):
    lake.create(TARGET, partition_by="region")
    with pytest.raises(PartitionMoveError):
        lake.merge(_row(1, region), on="id")


def test_for_insert_a_key_in_another_partition_exists_already(lake):
    lake.create(TARGET, partition_by="region")
    result = lake.merge(_row(3, "eu"), on="id", strategy="insert")
    assert (result.inserted, result.updated) == (0, 0)


def test_with_the_partition_in_the_key_the_same_id_may_be_in_two_partitions(lake):
    lake.create(TARGET, partition_by="region")
    result = lake.merge(pa.concat_tables([_row(3, "eu"), _row(1, "eu", "A")]), on=["id", "region"])
    assert (result.updated, result.inserted) == (1, 1)
    assert lake.values("id", "region").count((3, "eu")) == 1


def test_the_partition_alone_may_be_the_key(lake):
    lake.create(TARGET, partition_by="region")
    result = lake.merge(pa.table({"region": ["eu"]}), on="region", clauses=[when_matched().delete()])
    assert (result.deleted, lake.values("id")) == (2, [3, 4])


def test_full_merge_looks_at_every_partition(lake):
    lake.create(TARGET, partition_by="region")
    result = lake.merge(_row(1, "eu", "A"), on="id", strategy="full_merge")
    assert dict(result) == {"inserted": 0, "updated": 1, "deleted": 3, "total": 1}
    assert lake.values("id", "region", "v") == [(1, "eu", "A")]


ODD = ["007", "1e5", "true", "2024-01-01", "a/b", "x=y", "50 %", "ä", " lead", "", ".", "a\\b", "a:b", "'q\""]


@pytest.mark.parametrize("value", [v for v in ODD if v not in ("",)])
def test_odd_partition_values_survive_a_round_trip(parquet_lake, value):
    first = pa.table({"id": [1], "region": [value], "v": ["a"]})
    parquet_lake.merge(first, on="id", partition_by="region")
    parquet_lake.schema = first.schema
    result = parquet_lake.merge(_row(1, value, "b"), on="id")
    assert (result.updated, result.inserted) == (1, 0)
    assert parquet_lake.values("id", "region", "v") == [(1, value, "b")]
    assert len({name.split("/")[0] for name in parquet_lake.files}) == 1
    directory = parquet_lake.files[0].split("/")[0]
    assert urllib.parse.unquote(directory.removeprefix("region=")) == value
    found = ds.dataset(
        parquet_lake.root, partitioning=ds.partitioning(pa.schema([("region", pa.string())]), flavor="hive")
    )
    assert found.to_table()["region"].to_pylist() == [value]


TYPED = {
    "int": pa.array([7, -1], pa.int32()),
    "date": pa.array([dt.date(2024, 2, 29), dt.date(1969, 1, 1)]),
    "timestamp": pa.array(
        [dt.datetime(2024, 1, 1, 12, 30, 0, 5), dt.datetime(2024, 1, 2)], pa.timestamp("us")
    ),
    "bool": pa.array([True, False]),
    "text of digits": pa.array(["007", "7"]),
}


@pytest.mark.parametrize("name", TYPED)
def test_partition_columns_keep_their_type(lake, name):
    values = TYPED[name]
    lake.merge(pa.table({"id": [1, 2], "p": values}), on="id", partition_by="p")
    assert lake.snapshot().schema.field("p").type == values.type
    result = lake.merge(pa.table({"id": [2, 1], "p": values.take(pa.array([1, 0]))}), on=["id", "p"])
    assert (result.updated, result.inserted) == (2, 0)


def test_two_levels_of_partitions(parquet_lake):
    table = pa.table({"y": [1, 1, 2], "m": ["a", "b", "a"], "id": [1, 2, 3]})
    parquet_lake.create(table, partition_by=["y", "m"])
    parquet_lake.merge(pa.table({"id": [4], "m": ["b"], "y": [2]}), on="id")
    assert any(name.startswith("y=2/m=b/") for name in parquet_lake.files)
    assert parquet_lake.values("y", "m", "id") == [(1, "a", 1), (1, "b", 2), (2, "a", 3), (2, "b", 4)]


def test_a_partition_column_stored_in_the_file_too_stays_there(parquet_lake):
    for region, ids in (("eu", [1, 2]), ("us", [3])):
        directory = parquet_lake.root / f"region={region}"
        directory.mkdir(parents=True)
        table = pa.table({"id": ids, "region": [region] * len(ids), "v": ["a"] * len(ids)})
        pq.write_table(table, directory / "f.parquet")
    result = parquet_lake.merge(pa.concat_tables([_row(1, "eu"), _row(9, "us")]), on="id")
    assert (result.updated, result.inserted) == (1, 1)
    assert parquet_lake.file("region=eu/f.parquet").column_names == ["id", "region", "v"]
    assert parquet_lake.values("id", "region") == [(1, "eu"), (2, "eu"), (3, "us"), (9, "us")]


def test_a_file_that_contradicts_its_directory_is_refused(parquet_lake, unchanged):
    (parquet_lake.root / "region=eu").mkdir(parents=True)
    pq.write_table(
        pa.table({"id": [1], "region": ["us"], "v": ["a"]}), parquet_lake.root / "region=eu/f.parquet"
    )
    with unchanged(parquet_lake.root), pytest.raises(SchemaMismatch, match="partition directory"):
        parquet_lake.merge(_row(1, "eu"), on="id")


def test_other_partition_columns_than_the_tables_are_refused(lake):
    lake.create(TARGET, partition_by="region")
    with pytest.raises(InputError, match="partitioned by 'region'"):
        lake.merge(_row(1, "eu"), on="id", partition_by="v")


def test_other_partitions_are_not_read_when_the_key_holds_the_partition(parquet_lake):
    parquet_lake.create(TARGET, partition_by="region")
    (parquet_lake.root / "region=us/part-00000.parquet").chmod(0o644)
    plan = parquet_lake.plan("merge", _row(1, "eu"), on=["id", "region"])
    reasons = {item.file.path.split("/")[0]: (item.action, item.scan_bytes) for item in plan.files}
    assert reasons["region=us"] == ("keep", 0)
    assert reasons["region=eu"][0] == "rewrite"


@pytest.mark.parametrize("how", ["upsert", "insert", "append", "overwrite_partitions", "overwrite"])
def test_new_files_repeat_a_partition_column_as_those_that_are_there(parquet_lake, how):
    for region in ("eu", "us"):
        place = parquet_lake.root / f"region={region}"
        place.mkdir(parents=True)
        pq.write_table(_row(1 if region == "eu" else 2, region), place / "theirs.parquet")
    new = pa.concat_tables([_row(8, "eu"), _row(9, "ap")])
    if how in ("upsert", "insert"):
        parquet_lake.merge(new, on="id", strategy=how)
    else:
        parquet_lake.write(new, mode=how)
    names = [name for name in parquet_lake.files if "theirs" not in name]
    assert len(names) == 2
    assert all("region" in parquet_lake.file(name).column_names for name in names)
    assert {(8, "eu"), (9, "ap")} <= set(parquet_lake.values("id", "region"))
