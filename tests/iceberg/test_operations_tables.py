"""Operations on tables of every kind: specs and schemas that changed, odd values, files of other writers."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake import Lake
from operation_tools import EU_US, House
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
)
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType
from tests.contract.iceberg_lakes import COW, MOR, Warehouse
from tests.cross import content
from tests.cross.checks import deleted_positions

import intarsia as it
from intarsia.errors import InputError, NotSupported, SchemaMismatch
from intarsia.tables.iceberg.manifests import ContentFile, DataFileContent
from intarsia.tables.iceberg.snapshot_producer import FileChange

VERSIONS = [(2, COW), (2, MOR), (3, MOR)]
TIMES = [dt.datetime(2024, 1, day, hour) for day, hour in ((1, 0), (1, 7), (2, 7), (31, 23))]
EVENTS = pa.table(
    {
        "id": range(8),
        "ts": pa.array(TIMES * 2, pa.timestamp("us")),
        "region": ["eu", "us", None, "eu"] * 2,
        "amount": pa.array(range(8), pa.int32()),
    }
)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    warehouse = Warehouse(tmp_path)
    yield House(warehouse)
    warehouse.catalog.close()


def grown(house: House, version: int, mode: str, first: list[Any], second: list[Any]) -> House:
    """Half of the events under the first fields, the others under the second ones as well."""
    house.make(EVENTS.schema, EVENTS.slice(0, 4), mode=mode, by=first)
    house.evolve(*second)
    if {column for column, _ in first} & {column for column, _ in second}:  # which PyIceberg cannot write
        it.write(EVENTS.slice(4), house.target)
    else:
        house.table.append(EVENTS.slice(4))
    if version == 3:
        house.warehouse.upgrade(house.name)
    return house


def turned(house: House, amount: str = "amount") -> None:
    """A delete, an update and a merge that each hit files of both specs."""
    assert it.delete(house.target, "id in (0, 7)").deleted == 2
    assert it.update(house.target, {amount: f"{amount} + 100"}, "id in (1, 6)").updated == 2
    rows = house.read()
    assert sorted(rows["id"].to_pylist()) == [1, 2, 3, 4, 5, 6]
    source = rows.filter(pa.compute.field("id") == 3)
    source = pa.concat_tables([source, source.set_column(0, rows.schema.field(0), pa.array([50]))])
    result = it.merge(source, house.target, on="id")
    assert (result.updated, result.inserted) == (1, 1)
    assert house.rows("id", amount) == [(1, 101), (2, 2), (3, 3), (4, 4), (5, 5), (6, 106), (50, 3)]
    house.check()
    assert it.compact(house.target).total == 7
    assert {file.spec_id for file in house.decoded().data} == {house.table.spec().spec_id}
    assert house.rows("id") == [1, 2, 3, 4, 5, 6, 50]
    house.check()


@pytest.mark.parametrize(("version", "mode"), VERSIONS)
def test_a_spec_that_grew(house: House, version: int, mode: str) -> None:
    turned(grown(house, version, mode, [("ts", DayTransform())], [("region", IdentityTransform())]))


@pytest.mark.parametrize(("version", "mode"), VERSIONS)
def test_a_source_that_was_dropped(house: House, version: int, mode: str) -> None:
    grown(house, 2, mode, [("region", IdentityTransform()), ("ts", DayTransform())], [])
    with house.table.update_spec() as evolution:
        evolution.remove_field("region_identity")
    with house.table.update_schema() as schema:
        schema.delete_column("region")
    if version == 3:
        house.warehouse.upgrade(house.name)
    old = {file.path: file.tuple for file in house.decoded().data}
    assert it.delete(house.target, "id = 99 or amount = 99").deleted == 0
    it.delete(house.target, "id = 2", mode=MOR)
    kept = {file.path: file.tuple for file in house.decoded().data}
    assert kept.items() <= old.items()
    assert {values[0] for values in kept.values()} == {"eu", "us", None} & {v[0] for v in kept.values()}
    it.write(pa.table({"id": [2], "ts": TIMES[:1], "amount": pa.array([2], pa.int32())}), house.target)
    turned(house)


@pytest.mark.parametrize(("version", "mode"), VERSIONS)
def test_a_source_that_was_renamed_and_promoted(house: House, version: int, mode: str) -> None:
    grown(house, 2, mode, [("amount", TruncateTransform(3))], [("amount", BucketTransform(4))])
    with house.table.update_schema() as schema:
        schema.rename_column("amount", "total")
    with house.table.update_schema() as schema:
        schema.update_column("total", LongType())
    if version == 3:
        house.warehouse.upgrade(house.name)
    it.update(house.target, {"total": "total + 5000000000"}, "id = 4")
    assert house.rows("id", "total")[4] == (4, 5_000_000_004)
    it.update(house.target, {"total": "total - 5000000000"}, "id = 4")
    turned(house, "total")


@pytest.mark.parametrize(("version", "mode"), VERSIONS)
def test_two_fields_on_one_column_which_pyiceberg_cannot_write(house: House, version: int, mode: str) -> None:
    house.make(EVENTS.schema, EVENTS.slice(0, 4), mode=mode, by=[("ts", MonthTransform())])
    house.evolve(
        ("region", TruncateTransform(1)), ("region", IdentityTransform()), ("id", BucketTransform(2))
    )
    if version == 3:
        house.warehouse.upgrade(house.name)
    it.write(EVENTS.slice(4), house.target)
    turned(house)


@pytest.mark.parametrize(("version", "mode"), VERSIONS)
def test_a_source_inside_of_a_struct(house: House, version: int, mode: str) -> None:
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(
            2, "p", StructType(NestedField(3, "d", StringType()), NestedField(4, "amt", IntegerType()))
        ),
    )
    structs = [{"d": "x", "amt": n} for n in range(6)] + [{"d": None, "amt": None}, None]
    rows = pa.table(
        {"id": range(8), "p": pa.array(structs, pa.struct([("d", pa.string()), ("amt", pa.int32())]))}
    )
    house.make(schema, rows.slice(0, 4), mode=mode)
    house.evolve(("p.d", IdentityTransform()))
    if version == 3:
        house.warehouse.upgrade(house.name)
    it.write(rows.slice(4), house.target)
    house.evolve(("p.amt", BucketTransform(2)))
    assert it.update(house.target, {"p.amt": "p.amt * 10"}, "p.d = 'x' and id > 2").updated == 3
    assert it.delete(house.target, "p is null or p.amt = 2").deleted == 2
    assert it.merge(rows.slice(0, 1), house.target, on="id").updated == 1
    assert house.rows("id", "p") == [
        (0, {"d": "x", "amt": 0}), (1, {"d": "x", "amt": 1}), (3, {"d": "x", "amt": 30}),
        (4, {"d": "x", "amt": 40}), (5, {"d": "x", "amt": 50}), (6, {"d": None, "amt": None}),
    ]  # fmt: skip
    house.check()
    it.compact(house.target)
    house.check()


ODD = [
    "",
    "a/b c=d",
    "ä ö",
    "50 %",
    "null",
    "x=y",
    ".",
    "..",
    "a\\b",
    "'q\"",
    "__HIVE_DEFAULT_PARTITION__",
    None,
]


@pytest.mark.parametrize(("version", "mode"), VERSIONS)
def test_odd_and_missing_partition_values(house: House, version: int, mode: str) -> None:
    rows = pa.table({"id": range(len(ODD)), "region": ODD})
    house.make(rows.schema, mode=mode, by=[("region", IdentityTransform())], version=version)
    it.write(rows, house.target)
    assert len(house.decoded().data) == len(ODD)
    again = rows.set_column(0, "id", pa.array([n + 100 for n in range(len(ODD))], pa.int64()))
    assert it.write(again, house.target, mode="overwrite_partitions").deleted == len(ODD)
    assert it.merge(again.slice(0, 6), house.target, on=["id", "region"], null_keys="match").updated == 6
    assert it.delete(house.target, "region is null").deleted == 1
    assert it.delete(house.target, "region = 'a/b c=d'").deleted == 1
    assert house.rows("region") == sorted(value for value in ODD if value not in (None, "a/b c=d"))
    house.check()


def test_partitions_of_any_transform_are_overwritten(house: House) -> None:
    house.make(EVENTS.schema, by=[("ts", DayTransform()), ("id", BucketTransform(2))])
    it.write(EVENTS, house.target)
    new = pa.table({"id": [0], "ts": TIMES[:1], "region": ["new"], "amount": pa.array([1], pa.int32())})
    twins = {row["id"] for row in EVENTS.to_pylist() if row["ts"].day == 1}
    before = {file.path: file.tuple for file in house.decoded().data}
    it.write(new, house.target, mode="overwrite_partitions")
    gone = {before[path] for path in before.keys() - {file.path for file in house.decoded().data}}
    assert len(gone) == 1
    left = set(house.rows("id"))
    assert {2, 3, 6, 7, 0} <= left <= {0, 2, 3, 6, 7} | twins
    assert house.rows("id", "region")[0] == (0, "new")
    house.check()


def test_rows_move_to_the_partition_of_their_new_values(house: House) -> None:
    grown(house, 2, MOR, [("region", IdentityTransform())], [("ts", HourTransform())])
    moved = {"region": "'ap'", "ts": "timestamp '2030-01-01 00:00:00'"}
    it.update(house.target, moved, "id in (0, 4)", threads=1)
    current = house.table.spec().spec_id
    added = [file for file in house.decoded().data if file.tuple[0] == "ap"]
    assert [(file.spec_id, file.rows) for file in added] == [(current, 2)]
    source = EVENTS.slice(1, 1).set_column(2, "region", pa.array(["xx"]))
    assert it.merge(source, house.target, on="id").updated == 1
    assert house.rows("id", "region")[:2] == [(0, "ap"), (1, "xx")]
    house.check()


def test_version_1_with_a_field_that_became_void(house: House) -> None:
    house.make(EVENTS.schema, EVENTS.slice(0, 4), version=1, by=[("region", IdentityTransform())])
    with house.table.update_spec() as evolution:
        evolution.remove_field("region_identity")
        evolution.add_field("ts", DayTransform(), "day")
    house.table.append(EVENTS.slice(4))
    assert house.table.metadata.format_version == 1
    with pytest.raises(NotSupported, match="version 1"):
        it.delete(house.target, "id = 1", mode=MOR)
    turned(house)
    assert house.table.metadata.format_version == 1


@pytest.mark.parametrize("mode", [COW, MOR])
def test_deletes_of_before_an_upgrade_are_taken_over(house: House, mode: str) -> None:
    grown(house, 2, mode, [("ts", DayTransform())], [("region", IdentityTransform())])
    it.delete(house.target, "id in (1, 5)", mode=MOR)
    house.warehouse.upgrade(house.name)
    assert house.rows("id") == [0, 2, 3, 4, 6, 7]
    it.write(EVENTS.filter(pa.compute.is_in(EVENTS["id"], pa.array([1, 5]))), house.target)
    turned(house)


def test_row_ids_stay_with_their_rows(house: House) -> None:
    grown(house, 3, MOR, [("ts", DayTransform())], [("region", IdentityTransform())])
    it.write(EVENTS.set_column(0, "id", pa.array(range(10, 18))), house.target)

    def ids() -> dict[int, int]:
        state, found = house.decoded(), {}
        for file in state.data:
            held, deleted = content.read(file.path).columns, deleted_positions(state).get(file.path, ())
            stored = held.get(content.ROW_ID, [None] * file.rows)
            assert file.first_row_id is not None
            for place, (key, own) in enumerate(zip(held[1], stored, strict=True)):
                if place not in deleted:
                    found[key] = file.first_row_id + place if own is None else own
        return found

    before = ids()
    assert len(set(before.values())) == 16
    it.update(house.target, {"amount": "0"}, "id in (3, 12)")
    it.delete(house.target, "id = 11", mode=COW)
    it.compact(house.target)
    after = ids()
    assert after == {key: number for key, number in before.items() if key != 11}
    house.check()


def test_files_that_were_added_without_ids_are_read_by_the_name_mapping(house: House, tmp_path: Path) -> None:
    house.make(EVENTS.schema, EVENTS.slice(0, 4), mode=MOR)
    pq.write_table(EVENTS.slice(4), tmp_path / "foreign.parquet")
    house.table.add_files([f"file://{tmp_path}/foreign.parquet"])
    with house.table.update_schema() as schema:
        schema.rename_column("amount", "total")
    it.delete(house.target, "total = 5")
    it.update(house.target, {"total": "total * 2"}, "id >= 6")
    assert house.rows("id", "total") == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (6, 12), (7, 14)]
    it.compact(house.target)
    assert house.rows("id", "total")[-1] == (7, 14)
    house.check()


def test_required_columns_stay_filled(house: House) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True), NestedField(2, "v", StringType(), required=True)
    )
    rows = pa.table(
        {"id": [1, 2], "v": ["a", "b"]},
        schema=pa.schema(
            [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string(), nullable=False)]
        ),
    )
    house.make(schema, rows, mode=MOR)
    with house.unchanged():
        with pytest.raises(SchemaMismatch, match="'v'"):
            it.update(house.target, {"v": "null"}, "id = 1")
        with pytest.raises(SchemaMismatch, match="'v'"):
            it.merge(pa.table({"id": [1], "v": pa.nulls(1, pa.string())}), house.target, on="id")
    it.merge(pa.table({"id": [1, 3], "v": ["A", "C"]}), house.target, on="id")
    assert house.rows() == [(1, "A"), (2, "b"), (3, "C")]
    files = [pq.read_schema(file.path.removeprefix("file://")) for file in house.decoded().data]
    assert all(not field.nullable for found in files for field in found if field.name in ("id", "v"))


def test_a_column_with_an_initial_default_has_it_in_older_rows(house: House) -> None:
    grown(house, 3, MOR, [("ts", DayTransform())], [("region", IdentityTransform())])
    with house.table.update_schema() as schema:
        schema.add_column("note", StringType(), default_value="old")
    assert set(house.read()["note"].to_pylist()) == {"old"}
    assert it.update(house.target, {"note": "'new'"}, "note = 'old' and id < 2").updated == 2
    assert it.delete(house.target, "note = 'old' and id > 5").deleted == 2
    new = house.read().slice(0, 1)
    it.write(new.set_column(4, "note", pa.nulls(1, pa.string())), house.target)
    expected = ["new", "new", "old", "old", "old", "old", None]
    assert sorted(house.read()["note"].to_pylist(), key=lambda v: (v is None, v)) == expected
    it.compact(house.target)
    assert sorted(house.read()["note"].to_pylist(), key=lambda v: (v is None, v)) == expected


@pytest.mark.parametrize("mode", [COW, MOR])
@pytest.mark.parametrize("version", [2, 3])
def test_rows_that_equality_deletes_took_do_not_come_back(tmp_path: Path, version: int, mode: str) -> None:
    lake = Lake.at(tmp_path, version, {f"write.{word}.mode": mode for word in ("delete", "update", "merge")})
    lake.append([1, 2, 3], "eu")
    lake.append([1, 4], "us")
    keys = pa.table([[1]], schema=pa.schema([pa.field("id", pa.int64(), True, {"PARQUET:field_id": "1"})]))
    place = tmp_path / "db/t/data/equality.parquet"
    pq.write_table(keys, place)
    lake.commit(
        FileChange(
            added_deletes=[
                ContentFile(
                    DataFileContent.EQUALITY_DELETES, f"file://{place}", "PARQUET", 0, ("eu",), 1,
                    os.path.getsize(place), equality_ids=(1,),
                )
            ]
        )
    )  # fmt: skip
    lake.append([5], "eu")
    target = it.iceberg("db.t", catalog=lake.catalog)

    def found() -> list[tuple[Any, ...]]:
        rows = it.read(target).read_all().to_pylist()
        return sorted((row["id"], row["region"]) for row in rows)

    assert found() == [(1, "us"), (2, "eu"), (3, "eu"), (4, "us"), (5, "eu")]
    assert it.delete(target, "id in (1, 2)").deleted == 2
    assert found() == [(3, "eu"), (4, "us"), (5, "eu")]
    assert it.merge(pa.table({"id": [1, 3], "region": ["eu", "us"]}), target, on="id").inserted == 1
    assert found() == [(1, "eu"), (3, "us"), (4, "us"), (5, "eu")]
    it.update(target, {"id": "id + 10"}, "region = 'eu'")
    assert it.compact(target).total == 4
    assert found() == [(3, "us"), (4, "us"), (11, "eu"), (15, "eu")]


def test_a_table_of_pyiceberg_without_any_file_takes_every_operation(house: House) -> None:
    house.make(EU_US.schema, mode=MOR, by=[("region", IdentityTransform())])
    assert not it.delete(house.target, "id = 1").changed
    assert not it.update(house.target, {"v": "'x'"}).changed
    assert not it.merge(EU_US, house.target, on="id", strategy="update").changed
    assert house.read().num_rows == 0
    assert it.merge(EU_US, house.target, on="id").inserted == 8
    assert it.delete(house.target, "true").deleted == 8
    assert house.rows("id") == []
    assert it.merge(EU_US, house.target, on="id").inserted == 8
    house.check()


def test_an_unpartitioned_table_has_no_partitions_to_overwrite(house: House) -> None:
    house.make(EU_US.schema, EU_US)
    with house.unchanged(), pytest.raises(InputError, match="partitioned"):
        it.write(EU_US, house.target, mode="overwrite_partitions")
