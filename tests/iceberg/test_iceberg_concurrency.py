"""Operations at once on one table, through the whole library: one order or another, and no litter."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from lake import Lake
from pyiceberg.transforms import BucketTransform

import intarsia as it
from intarsia.errors import CommitConflict
from intarsia.tables.iceberg.catalog import embedded_catalog
from intarsia.tables.iceberg.maintenance import remove_orphans
from intarsia.tables.iceberg.table import IcebergTable


def no_litter(lake: Lake) -> None:
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=5)
    assert remove_orphans(IcebergTable.of("db.t", lake.catalog), older_than=later).files == ()


def rows(*ids: int, region: str = "eu") -> pa.Table:
    return pa.table({"id": list(ids), "region": [region] * len(ids)})


@pytest.mark.parametrize(
    ("version", "mode"),
    [(1, "copy-on-write"), (2, "merge-on-read"), (3, "copy-on-write"), (3, "merge-on-read")],
)
def test_merges_of_the_same_keys_leave_each_key_once(tmp_path: Path, version: int, mode: Any) -> None:
    lake = Lake.at(tmp_path, version, {"commit.retry.num-retries": "8"})
    lake.append([1, 2])

    def merge(number: int) -> None:
        target = it.iceberg("db.t", catalog=embedded_catalog(tmp_path), mode=mode)
        for _ in range(10):  # the library itself plans again a few times
            try:
                it.merge(rows(2, 3, 10 + number), target, on="id", engine="arrow")
            except CommitConflict:
                continue
            return
        pytest.fail("no getting through")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(merge, range(3)))
    assert lake.ids() == [1, 2, 3, 10, 11, 12]
    no_litter(lake)


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_a_merge_overtaken_by_a_new_spec_and_new_rows_plans_again(
    tmp_path: Path, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1, 2])
    real = lake.catalog.commit_table

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(lake.catalog, "commit_table", real)
        with lake.table().update_spec() as update:
            update.remove_field("region")
            update.add_field("id", BucketTransform(8), "b")
        it.write(rows(3), IcebergTable.of("db.t", lake.catalog), mode="append")
        return real(*args)

    target = it.iceberg("db.t", catalog=lake.catalog, mode=mode)
    monkeypatch.setattr(lake.catalog, "commit_table", overtaken)
    result = it.merge(rows(2, 3, 4), target, on="id", engine="arrow")
    assert result.attempts == 2
    assert (result.inserted, result.updated) == (1, 2)
    assert lake.ids() == [1, 2, 3, 4]
    no_litter(lake)


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_a_merge_overtaken_by_an_upgrade_plans_again(
    tmp_path: Path, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1, 2])
    real = lake.catalog.commit_table

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(lake.catalog, "commit_table", real)
        lake.upgrade(3)
        return real(*args)

    target = it.iceberg("db.t", catalog=lake.catalog, mode=mode)
    monkeypatch.setattr(lake.catalog, "commit_table", overtaken)
    it.merge(rows(2, 3), target, on="id", engine="arrow")
    assert lake.ids() == [1, 2, 3]
    assert all(entry.file.is_vector for entry in lake.entries(deletes=True))
    assert lake.table().metadata.format_version == 3


def row_ids(lake: Lake) -> dict[int, int]:
    """The row id of every row by its key, as readers work it out."""
    found = {}
    for file in IcebergTable.of("db.t", lake.catalog).snapshot().files:
        table = pq.read_table(file.location, partitioning=None)
        stored = table["_row_id"].to_pylist() if "_row_id" in table.column_names else [None] * len(table)
        found_deletes = file.scan_task.read_deleted(pq.ParquetFile(file.location), pafs.LocalFileSystem())
        deleted = set() if found_deletes is None else set(found_deletes.to_pylist())
        for place, (key, own) in enumerate(zip(table["id"].to_pylist(), stored, strict=True)):
            if place not in deleted:
                found[key] = file.tag.file.first_row_id + place if own is None else own
    return found


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
@pytest.mark.parametrize("operation", ["update", "compact"])
def test_row_ids_that_another_writer_gives_meanwhile_stay_with_their_rows(
    tmp_path: Path, mode: Any, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commit after an upgrade to version 3 gives row ids to all files, also those being copied."""
    lake = Lake.at(tmp_path, properties={"write.update.isolation-level": "snapshot"})
    lake.append([1, 2, 3])
    lake.append([4])
    lake.upgrade(3)
    real = lake.catalog.commit_table
    given: dict[int, int] = {}

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(lake.catalog, "commit_table", real)
        lake.append([10], "us")
        given.update(row_ids(lake))
        return real(*args)

    target = it.iceberg("db.t", catalog=lake.catalog, mode=mode)
    monkeypatch.setattr(lake.catalog, "commit_table", overtaken)
    if operation == "update":
        it.update(target, {"region": "'eu '"}, where="id = 2", engine="arrow")
    else:
        it.compact(target, engine="arrow")
    assert lake.ids() == [1, 2, 3, 4, 10]
    assert row_ids(lake) == given


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
@pytest.mark.parametrize("concerns", [True, False])
def test_an_overwrite_by_a_condition_is_one_snapshot_and_sees_rows_that_came_meanwhile(
    tmp_path: Path, mode: Any, concerns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1, 2, 8])
    real = lake.catalog.commit_table

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(lake.catalog, "commit_table", real)
        it.write(rows(3 if concerns else 9), IcebergTable.of("db.t", lake.catalog), mode="append")
        return real(*args)

    monkeypatch.setattr(lake.catalog, "commit_table", overtaken)
    target = IcebergTable.of("db.t", lake.catalog, mode=mode)
    result = it.write(rows(4), target, mode="overwrite", where="id < 5", engine="arrow")
    assert lake.ids() == ([4, 8] if concerns else [4, 8, 9])
    assert result.attempts == (2 if concerns else 1)
    table = lake.catalog.load_table("db.t")
    assert [str(one.summary.operation.value) for one in table.metadata.snapshots][-1] == "overwrite"
    assert len(table.metadata.snapshots) == 3
    no_litter(lake)
