"""What an operation reads of the files that it changes: no row, column or row group that it does not need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import StringType
from tests.contract.iceberg_lakes import Warehouse
from tests.iceberg.operation_tools import House

import intarsia as it
from intarsia.core.ports import LAST_UPDATED, ROW_ID, with_lineage
from intarsia.errors import SchemaMismatch
from intarsia.kernel import chunk_copy, match
from intarsia.kernel.chunk_copy import ChunkCopy
from intarsia.kernel.read import FileReader

ROWS = 4000
TABLE = pa.table({
    "id": range(ROWS),
    "region": ["eu", "us", "ap", None] * (ROWS // 4),
    "code": [f"code {n}" for n in range(ROWS)],
    "v": pa.array(range(ROWS), pa.int32()),
})  # fmt: skip


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    warehouse = Warehouse(tmp_path)
    yield House(warehouse)
    warehouse.catalog.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Row group and name of every column that is decoded."""
    seen: list[tuple[int, str]] = []
    before = FileReader._read_group

    def read_group(self: FileReader, parquet: Any, row_group: int, physical: list[str]) -> pa.Table:
        seen.extend((row_group, name) for name in physical)
        return before(self, parquet, row_group, physical)

    monkeypatch.setattr(FileReader, "_read_group", read_group)
    return seen


@pytest.mark.parametrize("version", [2, 3])
def test_an_update_reads_rows_of_row_groups_that_are_hit_and_no_column_that_it_sets(
    house: House, read: list[tuple[int, str]], version: int
) -> None:
    limits = {"write.parquet.row-group-limit": "1000"}
    house.make(TABLE.schema, TABLE, version=version, mode="merge-on-read", properties=limits)
    it.update(house.target, {"v": -1, "code": "region || '!'"}, where="id in (5, 7, 2100)", progress=False)
    assert {each for each in read if each[1] != "id"} == {(0, "region"), (2, "region")}
    changed = [
        {**row, "v": -1, "code": f"{row['region']}!" if row["region"] else None}
        if row["id"] in (5, 7, 2100)
        else row
        for row in TABLE.to_pylist()
    ]
    assert house.rows("id", "region", "code", "v") == [tuple(row.values()) for row in changed]


@pytest.mark.parametrize(("version", "kept", "times"), [(2, 32, 1), (3, 32, 1), (2, 4, 2)])
def test_an_update_decodes_the_columns_of_its_condition_once_where_they_are_small(
    house: House,
    read: list[tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    kept: int,
    times: int,
) -> None:
    monkeypatch.setattr(match, "KEPT_BYTES", kept)
    limits = {"write.parquet.row-group-limit": "1000"}
    house.make(TABLE.schema, TABLE, version=version, mode="merge-on-read", properties=limits)
    it.delete(house.target, where="id % 7 = 0", progress=False)
    read.clear()
    it.update(house.target, {"v": "v + id"}, where="id % 5 = 0 and v >= 10", progress=False)
    assert sorted(each for each in read if each[1] in ("id", "v")) == [
        (group, name) for group in range(4) for name in ("id", "v") for _ in range(times)
    ]
    it.update(house.target, {"v": "-v"}, where="code < 'code 1'", progress=False)
    changed = [
        (id, region, code, -v if code < "code 1" else v + id if id % 5 == 0 and v >= 10 else v)
        for id, region, code, v in (tuple(row.values()) for row in TABLE.to_pylist())
        if id % 7
    ]
    assert sorted(house.rows("id", "region", "code", "v")) == sorted(changed)


COW = "copy-on-write"
LIMITS = {"write.parquet.row-group-limit": "1000", "write.parquet.compression-codec": "zstd"}


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The columns of each row group that are encoded in a file with copied chunks, however small they are."""
    seen: list[list[str]] = []
    add, close = ChunkCopy.add, ChunkCopy.close

    def watched(self: ChunkCopy, group: int, table: pa.Table) -> None:
        seen.append(table.column_names)
        add(self, group, table)

    def closed(self: ChunkCopy, path: str, partition: Any) -> Any:
        seen.append(["closed"])
        return close(self, path, partition)

    monkeypatch.setattr(chunk_copy, "CHUNK_BYTES", 0)
    monkeypatch.setattr(ChunkCopy, "add", watched)
    monkeypatch.setattr(ChunkCopy, "close", closed)
    return seen


def as_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def row_ids(house: House) -> dict[int, int | None]:
    """By id the row id of every live row, as other readers find it."""
    found: dict[int, int | None] = {}
    for file in house.target.snapshot().files:
        with FileReader(file, with_lineage(house.target.snapshot().schema), LocalFileSystem()) as reader:
            for group in range(reader.footer.num_row_groups):
                for piece in reader.read_live_pieces(["id", ROW_ID], group):
                    found |= dict(zip(piece["id"].to_pylist(), piece[ROW_ID].to_pylist(), strict=True))
    return found


@pytest.mark.parametrize("version", [2, 3])
def test_copy_on_write_encodes_assigned_columns_of_row_groups_that_are_hit(
    house: House, encoded: list[list[str]], version: int
) -> None:
    by = [("region", IdentityTransform())]
    rows = TABLE.set_column(1, "region", pa.repeat("eu", ROWS))
    house.make(TABLE.schema, rows, version=version, mode=COW, properties=LIMITS, by=by)
    it.update(house.target, {"v": "v + 1"}, where="id = 0", progress=False)  # row ids begin with a commit
    before = row_ids(house)
    encoded.clear()
    it.update(house.target, {"v": "-v"}, where="id in (5, 7, 2100)", progress=False)
    lineage = [] if version == 2 else [ROW_ID, LAST_UPDATED]
    assert encoded == [["v", *lineage], lineage, ["v", *lineage], lineage, ["closed"]]
    house.check()
    changed = [1, *(-n if n in (5, 7, 2100) else n for n in range(1, ROWS))]
    assert house.rows() == as_rows(rows.set_column(3, "v", pa.array(changed, pa.int32())))
    assert row_ids(house) == before
    assert len(house.table.inspect.files()) == 1


@pytest.mark.parametrize("version", [2, 3])
def test_rows_that_were_deleted_before_stay_deleted_when_chunks_are_copied(
    house: House, encoded: list[list[str]], version: int
) -> None:
    house.make(TABLE.schema, TABLE, version=version, mode="merge-on-read", properties=LIMITS)
    it.delete(house.target, where="id in (1001, 1999)", progress=False)
    before = row_ids(house)
    target = it.iceberg(house.name, catalog=house.catalog, mode=COW)
    source = pa.table({"id": [5, 1001, 2999], "region": ["x"] * 3, "code": ["y"] * 3, "v": [0] * 3})
    it.merge(source, target, on="id", strategy="update", progress=False)
    names = list(TABLE.column_names)
    lineage = [] if version == 2 else [ROW_ID, LAST_UPDATED]
    fresh = [[*names[1:], *lineage], [*names, *lineage], [*names[1:], *lineage], lineage]
    assert encoded == [*fresh, ["closed"]]
    house.check()
    expected = [
        (n, "x", "y", 0) if n in (5, 2999) else (n, *(TABLE[name][n].as_py() for name in names[1:]))
        for n in range(ROWS)
        if n not in (1001, 1999)
    ]
    assert sorted(house.rows(*names), key=lambda row: row[0]) == expected
    assert row_ids(house) == before


def test_a_row_that_changes_its_partition_leaves_its_file(house: House, encoded: list[list[str]]) -> None:
    rows = TABLE.set_column(1, "region", pa.repeat("eu", ROWS))
    house.make(TABLE.schema, rows, mode=COW, properties=LIMITS, by=[("region", IdentityTransform())])
    it.update(
        house.target, {"region": "case when v = 7 then 'us' else 'eu' end"}, where="id < 10", progress=False
    )
    assert ["closed"] not in encoded
    house.check()
    assert house.rows("id", "region")[6:9] == [(6, "eu"), (7, "us"), (8, "eu")]
    assert sorted(house.table.inspect.files()["record_count"].to_pylist()) == [1, ROWS - 1]
    assert not house.orphans()
    encoded.clear()
    it.update(house.target, {"region": "upper(region)"}, where="id = 7", progress=False)
    it.update(house.target, {"region": "lower(region)"}, where="id < 10", progress=False)
    house.check()
    assert house.rows("id", "region")[6:9] == [(6, "eu"), (7, "us"), (8, "eu")]


def test_files_of_another_spec_or_with_other_columns_are_not_copied(
    house: House, encoded: list[list[str]]
) -> None:
    house.make(TABLE.schema, TABLE, mode=COW, properties=LIMITS)
    with house.table.update_schema() as schema:
        schema.delete_column("code")
    with house.table.update_schema() as schema:
        schema.add_column("code", StringType())
    it.update(house.target, {"v": "-v"}, where="id = 5", progress=False)
    assert not encoded
    assert set(house.rows("code")) == {None}
    encoded.clear()
    it.update(house.target, {"v": "-v"}, where="id = 5", progress=False)
    assert encoded[-1] == ["closed"]
    house.evolve(("id", BucketTransform(2)))
    encoded.clear()
    it.update(house.target, {"v": "-v"}, where="id = 5", progress=False)
    assert not encoded
    house.check()
    assert sorted(house.rows("id", "v"))[4:7] == [(4, 4), (5, -5), (6, 6)]


def test_values_that_are_refused_are_counted_as_when_rows_are_decoded(
    house: House, encoded: list[list[str]]
) -> None:
    house.make(TABLE.schema, TABLE, mode=COW, properties=LIMITS)
    with house.unchanged(), pytest.raises(SchemaMismatch, match="in 2 of 2 rows"):
        it.update(house.target, {"v": "id * 3000000000"}, where="id in (5, 2100)", progress=False)
