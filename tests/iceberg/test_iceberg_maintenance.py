"""Expired snapshots and orphan files: what goes, what stays, and nothing without being told to."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest
from lake import Lake

from intarsia.errors import CommitConflict, InputError, NotSupported
from intarsia.tables.iceberg.maintenance import expire_snapshots, remove_orphans
from intarsia.tables.iceberg.snapshot_producer import FileChange
from intarsia.tables.iceberg.table import IcebergTable


def soon() -> datetime.datetime:
    """After everything that the test has done."""
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=5)


def opened(lake: Lake) -> IcebergTable:
    return IcebergTable.of("db.t", lake.catalog)


def grown(tmp_path: Path, **options: Any) -> Lake:
    """Three snapshots, the last of which has replaced the file of the first."""
    lake = Lake.at(tmp_path, **options)
    lake.append([1])
    lake.append([2], "us")
    old = next(entry for entry in lake.entries() if entry.file.partition == ("eu",))
    lake.commit(FileChange(added_data=[lake.data_file([10])], removed_data=[old]))
    return lake


@pytest.mark.parametrize("version", [1, 2, 3])
def test_nothing_expires_unless_told_to(tmp_path: Path, version: int) -> None:
    lake = grown(tmp_path, version=version)
    before = lake.on_disk()
    first, second, _ = (s.snapshot_id for s in lake.table().metadata.snapshots)
    found = expire_snapshots(opened(lake), older_than=soon())
    assert found.dry_run
    assert set(found.snapshots) == {first, second}
    assert len([path for path in found.files if path.endswith(".parquet")]) == 1
    assert lake.on_disk() == before


@pytest.mark.parametrize("version", [1, 2, 3])
def test_expired_snapshots_take_along_what_only_they_needed(tmp_path: Path, version: int) -> None:
    lake = grown(tmp_path, version=version)
    before = lake.on_disk()
    done = expire_snapshots(opened(lake), older_than=soon(), dry_run=False)
    assert len(lake.table().metadata.snapshots) == 1
    assert {os.path.basename(path) for path in done.files} == before - lake.on_disk()
    assert lake.ids() == [2, 10]
    assert expire_snapshots(opened(lake), older_than=soon(), dry_run=False).snapshots == ()
    lake.append([3])
    assert lake.ids() == [2, 3, 10]


def test_young_snapshots_and_the_last_ones_stay(tmp_path: Path) -> None:
    lake = grown(tmp_path)
    assert expire_snapshots(opened(lake)).snapshots == ()
    assert len(expire_snapshots(opened(lake), older_than=soon(), retain_last=2).snapshots) == 1
    with pytest.raises(InputError, match="retain_last"):
        expire_snapshots(opened(lake), retain_last=0)


def test_the_properties_of_the_table_say_how_old_and_how_many(tmp_path: Path) -> None:
    lake = grown(
        tmp_path,
        properties={
            "history.expire.max-snapshot-age-ms": "0",
            "history.expire.min-snapshots-to-keep": "2",
        },
    )
    assert len(expire_snapshots(opened(lake)).snapshots) == 1


def test_branches_and_tags_hold_what_they_name(tmp_path: Path) -> None:
    lake = grown(tmp_path)
    first, second, _ = (s.snapshot_id for s in lake.table().metadata.snapshots)
    with lake.table().manage_snapshots() as refs:
        refs.create_tag(first, "v1").create_branch(second, "audit", min_snapshots_to_keep=1)
    assert expire_snapshots(opened(lake), older_than=soon()).snapshots == ()
    expire_snapshots(opened(lake), older_than=soon(), dry_run=False)
    assert lake.ids("audit") == [1, 2]


def test_a_tag_may_outlive_itself(tmp_path: Path) -> None:
    lake = grown(tmp_path)
    first = lake.table().metadata.snapshots[0].snapshot_id
    with lake.table().manage_snapshots() as refs:
        refs.create_tag(first, "v1", max_ref_age_ms=1)
    done = expire_snapshots(opened(lake), older_than=soon(), dry_run=False)
    assert done.refs == ("v1",)
    assert "v1" not in lake.table().metadata.refs
    assert first in done.snapshots


def test_a_snapshot_that_was_rolled_back_goes_by_its_age(tmp_path: Path) -> None:
    lake = grown(tmp_path)
    second = lake.table().metadata.snapshots[1].snapshot_id
    with lake.table().manage_snapshots() as refs:
        refs.set_current_snapshot(second)
    expire_snapshots(opened(lake), older_than=soon(), dry_run=False)
    assert [s.snapshot_id for s in lake.table().metadata.snapshots] == [second]
    assert lake.ids() == [1, 2]


def test_an_expiry_leaves_no_metadata_file_that_fell_out_of_the_log(tmp_path: Path) -> None:
    lake = grown(
        tmp_path,
        properties={
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "1",
        },
    )
    expire_snapshots(opened(lake), older_than=soon(), dry_run=False)
    table = lake.table()
    known = [table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)]
    found = (tmp_path / "db" / "t" / "metadata").glob("*.metadata.json")
    assert sorted(path.name for path in found) == sorted(path.rpartition("/")[2] for path in known)


def test_a_branch_that_moves_meanwhile_stops_the_expiry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = grown(tmp_path)
    real = lake.catalog.commit_table

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(lake.catalog, "commit_table", real)
        lake.append([3])
        return real(*args)

    monkeypatch.setattr(lake.catalog, "commit_table", overtaken)
    with pytest.raises(CommitConflict, match="moved"):
        expire_snapshots(opened(lake), older_than=soon(), dry_run=False)
    assert lake.ids() == [2, 3, 10]
    assert len(lake.table().metadata.snapshots) == 4


@pytest.mark.parametrize("act", [expire_snapshots, remove_orphans])
def test_shared_files_are_left_alone(tmp_path: Path, act: Any) -> None:
    lake = Lake.at(tmp_path, properties={"gc.enabled": "false"})
    with pytest.raises(NotSupported, match=r"gc\.enabled") as caught:
        act(opened(lake))
    assert caught.value.path == opened(lake).root, "one table has one name in messages"


def test_orphans_are_found_and_removed_only_when_told_to(tmp_path: Path) -> None:
    lake = grown(tmp_path)
    orphan = Path(lake.data_file([5]).file_path.removeprefix("file://"))
    hidden = tmp_path / "db" / "t" / "data" / "_temporary" / "x.parquet"
    hidden.parent.mkdir()
    hidden.write_bytes(b"x")
    before = lake.on_disk()
    assert remove_orphans(opened(lake)).files == ()  # too young
    found = remove_orphans(opened(lake), older_than=soon())
    assert found.files == (str(orphan),)
    assert found.size == orphan.stat().st_size
    assert lake.on_disk() == before
    remove_orphans(opened(lake), older_than=soon(), dry_run=False)
    assert lake.on_disk() == before - {orphan.name}
    assert lake.ids() == [2, 10]
    assert hidden.exists()


@pytest.mark.parametrize("version", [2, 3])
def test_files_of_every_snapshot_and_branch_are_in_use(tmp_path: Path, version: int) -> None:
    lake = grown(tmp_path, version=version)
    with lake.table().manage_snapshots() as refs:
        refs.create_branch(lake.table().metadata.current_snapshot_id, "audit")
    lake.commit(FileChange(added_deletes=lake.write_deletes((lake.entries()[0], [0]))), branch="audit")
    assert remove_orphans(opened(lake), older_than=soon(), dry_run=False).files == ()
    assert len(lake.ids("audit")) == 1


def test_a_time_without_a_zone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="time zone"):
        remove_orphans(opened(Lake.at(tmp_path)), older_than=datetime.datetime(2030, 1, 1))


def test_a_table_inside_the_table_is_not_taken_for_orphans(tmp_path: Path) -> None:
    lake = grown(tmp_path)
    lake.catalog.create_table("db.inner", lake.table().schema(), location=f"file://{tmp_path}/db/t/inner")
    with pytest.raises(NotSupported, match="another table"):
        remove_orphans(opened(lake), older_than=soon(), dry_run=False)
