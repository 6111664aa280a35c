"""Floats as partition values, open handles, equality deletes read once, files with deletes in reports."""

from __future__ import annotations

import math
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake import Lake
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, StructType
from tests.contract.iceberg_lakes import Warehouse
from tests.iceberg.operation_tools import House

import intarsia as it
from intarsia.core.partitioner import PartitionKey
from intarsia.errors import SchemaMismatch
from intarsia.kernel import partitioned_writer
from intarsia.tables.iceberg import scan
from intarsia.tables.iceberg.manifests import ContentFile, DataFileContent
from intarsia.tables.iceberg.snapshot_producer import FileChange

FLOATS = pa.schema([("id", pa.int64()), ("x", pa.float64())])
NUMBERS = pa.schema([("id", pa.int64()), ("x", pa.int64())])


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(Warehouse(tmp_path))


def _floats(ids: list[int], values: list[float | None]) -> pa.Table:
    return pa.table({"id": ids, "x": values}, schema=FLOATS)


def _partitions(house: House) -> list[tuple[str, int]]:
    return sorted((str(file.tag.file.partition[0]), file.rows) for file in house.target.snapshot().files)


def test_the_key_of_a_partition_is_the_same_in_another_process() -> None:
    part = PartitionKey(tag=(1, (math.nan, "a", None, 0.0)))
    assert pickle.loads(pickle.dumps(part)).key == part.key
    assert PartitionKey(tag=(1, (float("nan"), "a", None, 0.0))).key == part.key
    assert PartitionKey(tag=(1, (math.nan, "a", None, -0.0))).key != part.key
    assert PartitionKey(tag=(1, (math.nan, "a", None, 1.0))).key != part.key


def test_a_partition_of_nan_is_overwritten_like_any_other(house: House) -> None:
    house.make(FLOATS, by=[("x", IdentityTransform())])
    it.write(_floats([1, 2, 3, 4], [math.nan, math.nan, 1.0, None]), house.target)
    result = it.write(_floats([5], [math.nan]), house.target, mode="overwrite_partitions")
    assert (result.deleted, result.total) == (2, 3)
    assert house.rows("id") == [3, 4, 5]


def test_files_of_a_partition_of_nan_are_compacted_together(house: House) -> None:
    house.make(FLOATS, by=[("x", IdentityTransform())])
    for number in range(3):
        it.write(_floats([number, number + 10], [math.nan, 1.0]), house.target)
    it.compact(house.target)
    assert _partitions(house) == [("1.0", 3), ("nan", 3)]
    assert not it.compact(house.target).changed


def test_both_zeros_are_partitions_of_their_own(house: House) -> None:
    house.make(FLOATS, by=[("x", IdentityTransform())])
    it.write(_floats([1, 2, 3], [0.0, -0.0, 0.0]), house.target)
    assert _partitions(house) == [("-0.0", 1), ("0.0", 2)]
    assert it.delete(house.target, "x = 0").deleted == 3


@pytest.mark.parametrize("row_group_size", [None, 1])
def test_more_partitions_than_handles_are_written(
    house: House, monkeypatch: pytest.MonkeyPatch, row_group_size: int | None
) -> None:
    house.make(NUMBERS, by=[("x", IdentityTransform())])
    monkeypatch.setattr(partitioned_writer, "BUFFERED_BYTES", 100)
    monkeypatch.setattr(partitioned_writer, "_limit_open_files", lambda: 3)
    most = 0
    opened = partitioned_writer.FileWriter._open
    closed = partitioned_writer.FileWriter.close
    begun: set[int] = set()

    def count(writer: partitioned_writer.FileWriter, sample: pa.Table) -> None:
        nonlocal most
        begun.add(id(writer))
        most = max(most, len(begun))
        opened(writer, sample)

    def close(writer: partitioned_writer.FileWriter, *args: object) -> object:
        try:
            return closed(writer, *args)  # type: ignore[arg-type]
        finally:
            begun.discard(id(writer))

    monkeypatch.setattr(partitioned_writer.FileWriter, "_open", count)
    monkeypatch.setattr(partitioned_writer.FileWriter, "close", close)
    rows = pa.table({"id": range(80), "x": [number % 20 for number in range(80)]}, schema=NUMBERS)
    result = it.write(rows, house.target, threads=1, row_group_size=row_group_size)
    assert most == 4  # one is begun before it is known to be one too many
    assert result.total == 80
    assert house.rows("id") == list(range(80))
    house.check()


def test_equality_deletes_are_looked_for_once_in_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.at(tmp_path, 2, {})
    target = it.iceberg("db.t", catalog=lake.catalog)
    rows = pa.table({"id": range(100), "region": ["eu"] * 100})
    it.write(rows, target, row_group_size=5)
    keys = pa.table(
        [range(0, 100, 10)],
        schema=pa.schema([pa.field("id", pa.int64(), True, {"PARQUET:field_id": "1"})]),
    )
    place = tmp_path / "db/t/data/equality.parquet"
    pq.write_table(keys, place)
    lake.commit(
        FileChange(
            added_deletes=[
                ContentFile(
                    DataFileContent.EQUALITY_DELETES, f"file://{place}", "PARQUET", 0, ("eu",), 10,
                    os.path.getsize(place), equality_ids=(1,),
                )
            ]
        )
    )  # fmt: skip
    calls = []
    found = scan.read_deleted_positions

    def counted(*args: object, **named: object) -> object:
        calls.append(args[1])
        return found(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(scan, "read_deleted_positions", counted)
    table = it.iceberg("db.t", catalog=lake.catalog)
    assert it.read(table).read_all().num_rows == 90
    assert len(calls) == 1
    assert it.delete(table, "id < 20", mode="merge-on-read").deleted == 18
    assert it.read(table).read_all().num_rows == 72


def test_a_result_says_which_files_have_deletes(house: House) -> None:
    house.make(NUMBERS, pa.table({"id": [1, 2, 3], "x": [1, 2, 3]}))
    result = it.delete(house.target, "id = 1", mode="merge-on-read")
    line = next(line for line in str(result).splitlines() if ".parquet" in line)
    assert "with deletes" in line
    assert "rewritten" not in line


def test_a_required_field_of_a_struct_is_not_left_null(house: House) -> None:
    inner = StructType(
        NestedField(3, "a", LongType(), required=True), NestedField(4, "b", StringType(), required=False)
    )
    house.make(Schema(NestedField(1, "id", LongType()), NestedField(2, "p", inner)))
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    rows = pa.table({"id": [0, 1], "p": pa.array([{"a": 1, "b": "x"}, None], kind)})
    it.write(rows, house.target)
    for assignments, where in (({"p.a": "null"}, "id = 0"), ({"p.b": "'q'"}, "id = 1")):
        with house.unchanged(), pytest.raises(SchemaMismatch, match="NOT NULL"):
            it.update(house.target, assignments, where)
    it.update(house.target, {"p.b": "'q'", "p.a": "5"}, "id = 1")
    assert house.rows("p") == [{"a": 1, "b": "x"}, {"a": 5, "b": "q"}]
