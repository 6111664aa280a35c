"""Commits at the edges: interrupted after they took effect, found late, judged over two steps, cached."""

from __future__ import annotations

import datetime
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake import NAME, SCHEMA, Lake
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform

from intarsia.core.change import Change, PositionDeletes, StagedFile
from intarsia.errors import CommitConflict, CommitUnknown, InputError, NotSupported, StorageError
from intarsia.tables.iceberg import commit as committing
from intarsia.tables.iceberg._pyiceberg import find_next_row_id
from intarsia.tables.iceberg.batches import find_last_batch
from intarsia.tables.iceberg.commit import Validation
from intarsia.tables.iceberg.maintenance import expire_snapshots, remove_orphans
from intarsia.tables.iceberg.manifests import ContentFile, DataFileContent
from intarsia.tables.iceberg.snapshot_producer import FileChange, ManifestMergeOptions
from intarsia.tables.iceberg.state import ManifestCache
from intarsia.tables.iceberg.table import IcebergTable


def soon() -> datetime.datetime:
    """After everything that the test has done."""
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=5)


def opened(lake: Lake, **options: Any) -> IcebergTable:
    return IcebergTable.of(NAME, lake.catalog, **options)


def written(tx: Any, ids: Sequence[int]) -> StagedFile:
    table = pa.table({"id": ids, "region": ["eu"] * len(ids)}).cast(tx.snapshot.schema)
    ((part, _),) = tx.snapshot.partitioner.partition_rows(table)
    path = tx.new_file_path(part.values, "part", ids[0])
    location = tx.filesystem_path(path)
    pq.write_table(table, location)
    return StagedFile(location, path, len(ids), os.path.getsize(location), part.values, part.tag)


def append(table: IcebergTable, ids: Sequence[int], **change: Any) -> None:
    with table.transaction("append") as tx:
        tx.commit(Change("append", added=(written(tx, ids),), exclusive=False, **change))


# --- a commit that is in effect stays in effect -------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the store's client failed")])
@pytest.mark.parametrize("moment", ["remove_old_metadata", "clean"])
def test_trouble_after_a_commit_removes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, moment: str
) -> None:
    lake = Lake.at(tmp_path)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    if moment == "clean":
        monkeypatch.setattr(committing.SnapshotProducer, "clean", fail)
    else:
        monkeypatch.setattr(committing, "remove_old_metadata", fail)
    with pytest.raises(type(error)):
        append(opened(lake), [1, 2])
    monkeypatch.undo()
    assert lake.ids() == [1, 2]


def test_a_store_that_fails_to_remove_old_metadata_does_not_fail_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.at(
        tmp_path,
        properties={
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "1",
        },
    )
    lake.append([1])
    lake.append([2])

    def fail(*_: Any) -> None:
        raise RuntimeError("the store's client failed")

    monkeypatch.setattr(type(lake.table().io), "delete", fail)
    append(opened(lake), [3])
    monkeypatch.undo()
    assert lake.ids() == [1, 2, 3]


def test_rows_that_cannot_be_counted_after_a_commit_do_not_fail_it(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake)
    with table.transaction("append") as tx:
        change = Change("append", added=(written(tx, [2]),), exclusive=False)
        lake.append([1])

        def gone() -> Any:
            raise StorageError("the catalog is away")

        table.snapshot = gone  # type: ignore[method-assign]
        assert tx.commit(change).rows is None
    assert lake.ids() == [1, 2]


def test_of_several_tries_the_list_of_the_one_in_effect_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try is said to have failed, and is only seen to be in effect after the second."""
    lake = Lake.at(tmp_path)
    lake.append([1])
    stale = lake.table()
    begun = lake.begin(FileChange(added_data=[lake.data_file([2])]))
    really, load = lake.catalog.commit_table, begun._target.load
    calls: list[int] = []

    def commit_table(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            really(*arguments)
        raise CommitFailedException("said to have failed")

    object.__setattr__(begun._target, "load", lambda: load() if len(calls) > 1 else stale)
    monkeypatch.setattr(lake.catalog, "commit_table", commit_table)
    receipt = begun.run()
    assert len(calls) == 2
    assert lake.table().metadata.current_snapshot_id == receipt.snapshot_id
    assert lake.ids() == [1, 2]


# --- what happened since the state was read -----------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_new_rows_that_a_compaction_has_moved_since_are_still_new(tmp_path: Path, version: int) -> None:
    lake = Lake.at(tmp_path, version)
    lake.append([1])
    base = lake.state()
    lake.append([2])
    (new,) = [e for e in lake.entries() if e.snapshot_id == lake.state().head_id]
    number = None if version == 1 else lake.state().head.sequence_number  # type: ignore[union-attr]
    lake.commit(
        FileChange(
            added_data=[lake.data_file([2])], removed_data=[new], rewrites=True, data_sequence_number=number
        )
    )
    with pytest.raises(CommitConflict, match="added 1 data file"):
        lake.append([2], base=base, validation=Validation(exclusive=True))


def equality_delete(lake: Lake, spec_id: int, partition: tuple[Any, ...]) -> ContentFile:
    data = lake.data_file([1], spec_id=spec_id, partition=partition)
    return replace(data, content=DataFileContent.EQUALITY_DELETES, equality_ids=(1,), sort_order_id=None)


def compacted(tx: Any) -> Change:
    ids = list(range(1, 1 + sum(file.rows for file in tx.snapshot.files)))
    return Change("compact", added=(written(tx, ids),), removed=tx.snapshot.files, exclusive=False)


def test_equality_deletes_of_another_spec_do_not_spare_what_is_rewritten(tmp_path: Path) -> None:
    """They go by partition: after the rewrite they would apply to nothing."""
    lake = Lake.at(tmp_path)
    lake.append([1, 2])
    with lake.table().update_spec() as update:
        update.add_field("id", IdentityTransform(), "id_again")
    table = opened(lake)
    with table.transaction("compact") as tx:
        rows = pa.table({"id": [1], "region": ["eu"]}).cast(tx.snapshot.schema)
        ((part, _),) = tx.snapshot.partitioner.partition_rows(rows)
        path = tx.new_file_path(part.values, "part", 1)
        pq.write_table(rows, tx.filesystem_path(path))
        size = os.path.getsize(tx.filesystem_path(path))
        new = StagedFile(tx.filesystem_path(path), path, 1, size, part.values, part.tag)
        change = Change("compact", added=(new,), removed=tx.snapshot.files, exclusive=False)
        lake.commit(FileChange(added_deletes=[equality_delete(lake, 0, ("eu",))]))
        with pytest.raises(CommitConflict, match="added deletes of 1 data file"):
            tx.commit(change)


def test_equality_deletes_of_the_same_partition_go_on_after_a_rewrite(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1, 2])
    table = opened(lake)
    with table.transaction("compact") as tx:
        change = compacted(tx)
        lake.commit(FileChange(added_deletes=[equality_delete(lake, 0, ("eu",))]))
        tx.commit(change)
    (file,) = opened(lake).snapshot().files
    assert file.scan_task is not None
    assert file.scan_task.has_deletes


def test_deletes_that_were_rolled_back_are_not_brought_back_by_another_delete(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake, mode="merge-on-read")
    append(table, [1, 2, 3])
    before = lake.state().head_id
    assert before is not None

    def delete(position: int, meanwhile: Any = None) -> None:
        with table.transaction("delete") as tx:
            (file,) = tx.snapshot.files
            deletes = PositionDeletes(file, pa.array([position], pa.int64()))
            if meanwhile is not None:
                meanwhile()
            tx.commit(Change("delete", position_deletes=(deletes,), planned=(file,)))

    delete(0)
    with pytest.raises(CommitConflict, match="removed deletes"):
        delete(1, lambda: lake.table().manage_snapshots().set_current_snapshot(before).commit())
    assert lake.ids() == [1, 2, 3]


# --- version 3 ----------------------------------------------------------------------------------------


def test_row_ids_given_after_an_upgrade_are_seen_by_a_handle_that_was_open(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.commit(FileChange(added_data=[lake.data_file([1, 2]), lake.data_file([3])]))
    lake.upgrade(3)
    table = opened(lake)
    assert {file.tag.file.first_row_id for file in table.snapshot().files} == {None}
    append(table, [4])
    fresh = {file.path: file.tag.file.first_row_id for file in opened(lake).snapshot().files}
    assert None not in fresh.values()
    assert {file.path: file.tag.file.first_row_id for file in table.snapshot().files} == fresh
    with table.transaction("delete") as tx:  # writes the manifest of the other old file anew
        (gone,) = (file for file in tx.snapshot.files if file.tag.file.record_count == 2)
        tx.commit(Change("delete", removed=(gone,), planned=(gone,)))
    kept = {file.path: file.tag.file.first_row_id for file in opened(lake).snapshot().files}
    assert kept == {path: number for path, number in fresh.items() if path != gone.path}


def test_row_ids_given_by_another_writer_between_two_tries_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.at(tmp_path)
    lake.commit(FileChange(added_data=[lake.data_file([1, 2]), lake.data_file([3])]))
    lake.upgrade(3)
    gone = next(entry for entry in lake.entries() if entry.file.record_count == 2)
    begun = lake.begin(FileChange(removed_data=[gone]))
    really = lake.catalog.commit_table
    other = FileChange(added_data=[lake.data_file([4])])
    calls: list[int] = []

    def commit_table(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            monkeypatch.setattr(lake.catalog, "commit_table", really)
            Lake(lake.directory, lake.catalog, 100).commit(other)
            monkeypatch.setattr(lake.catalog, "commit_table", commit_table)
        return really(*arguments)

    monkeypatch.setattr(lake.catalog, "commit_table", commit_table)
    begun.run()
    table = lake.table()
    first = {}
    for snapshot in table.metadata.snapshots[-2:]:
        cache = ManifestCache(table.io)
        for manifest in cache.read_manifests(snapshot.manifest_list):
            for entry in cache.read_entries(manifest):
                first.setdefault(entry.file.file_path, set()).add(entry.file.first_row_id)
    assert all(len(numbers) == 1 for numbers in first.values()), first


def test_the_row_ids_of_a_first_snapshot_count(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path, 3)
    metadata = lake.table().metadata
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": 1,
            "sequence-number": 1,
            "timestamp-ms": 1,
            "manifest-list": "x",
            "first-row-id": 0,
            "added-rows": 7,
        }
    )
    assert isinstance(metadata, TableMetadataV3)
    assert find_next_row_id(metadata.model_copy(update={"snapshots": [snapshot], "next_row_id": None})) == 7


@pytest.mark.parametrize("version", [2, 3])
def test_no_two_branches_get_the_same_sequence_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    lake = Lake.at(tmp_path, version)
    lake.append([1, 2])
    head = lake.state().head_id
    assert head is not None
    lake.table().manage_snapshots().create_branch(head, "b").commit()
    (entry,) = lake.entries(branch="b")
    deletes = lake.write_deletes((entry, [0]))  # adds no rows, so that row ids do not tell
    begun = lake.begin(FileChange(added_data=[lake.data_file([3])]))
    really = lake.catalog.commit_table
    calls: list[int] = []

    def commit_table(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            lake.commit(FileChange(added_deletes=deletes), branch="b")
        return really(*arguments)

    monkeypatch.setattr(lake.catalog, "commit_table", commit_table)
    begun.run()
    metadata = lake.table().metadata
    numbers = [snapshot.sequence_number for snapshot in metadata.snapshots]
    assert numbers == [1, 2, 3]
    assert metadata.last_sequence_number == 3


# --- caches and threads -------------------------------------------------------------------------------


class _Swapping(dict[Any, Any]):
    """Another thread tidies the cache as soon as something was put there."""

    def __init__(self, cache: ManifestCache) -> None:
        super().__init__()
        self.cache = cache

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.cache._entries = {}
        self.cache._lists = {}


def test_a_cache_that_another_thread_tidies_still_answers(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1])
    state = lake.state()
    assert state.head is not None
    cache = ManifestCache(lake.table().io)
    cache._lists = _Swapping(cache)
    (manifest,) = cache.read_manifests(state.head.manifest_list)
    cache._entries = _Swapping(cache)
    assert len(cache.read_entries(manifest)) == 1


def test_a_handle_serves_several_threads(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake)
    append(table, [0])
    failures: list[Exception] = []
    done = threading.Event()

    def read() -> None:
        seen = 0
        while not done.is_set():
            try:
                rows = table.snapshot().rows
                assert rows >= seen
                seen = rows
            except Exception as error:  # noqa: BLE001 - reported below
                failures.append(error)
                return

    threads = [threading.Thread(target=read) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for number in range(1, 6):
            append(opened(lake), [number])
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert not failures, failures[0]


def test_credentials_that_a_catalog_hands_out_anew_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1])
    table = opened(lake)
    first = table.read_state()
    load, tokens = lake.catalog.load_table, iter(("t1", "t1", "t2"))

    def load_table(identifier: Any) -> Any:
        found = load(identifier)
        found.io.properties = {**found.io.properties, "s3.session-token": next(tokens)}
        return found

    monkeypatch.setattr(lake.catalog, "load_table", load_table)
    second = table.read_state()
    assert second is not first
    assert table.read_state() is second
    assert table.read_state() is not second
    assert table._cache.io.properties["s3.session-token"] == "t2"


def test_batches_are_found_in_a_long_history_without_walking_it_again_for_each_step(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1], properties={"app_id": "a", "batch_id": "7"})
    state = lake.state()
    assert state.head is not None
    history = [state.head]
    for number in range(1, 20_000):
        before = history[-1].snapshot_id
        history.append(
            state.head.model_copy(
                update={"snapshot_id": number, "parent_snapshot_id": before, "summary": None}
            )
        )
    metadata = state.metadata.model_copy(update={"snapshots": history})
    begun = time.process_time()
    assert find_last_batch(replace(state, metadata=metadata, head=history[-1]), "a") == 7
    assert time.process_time() - begun < 2


# --- upkeep -------------------------------------------------------------------------------------------


def test_files_of_tables_that_share_a_data_path_are_no_orphans(tmp_path: Path) -> None:
    shared = {"write.data.path": f"file://{tmp_path}/shared"}
    lake = Lake.at(tmp_path, properties=shared)
    other = lake.catalog.create_table("db.other", SCHEMA, properties=shared)
    other.append(pa.table({"id": [1], "region": ["eu"]}))
    append(opened(lake), [1])
    remove_orphans(opened(lake), older_than=soon(), dry_run=False)
    assert lake.catalog.load_table("db.other").scan().to_arrow().num_rows == 1
    assert lake.ids() == [1]


def test_a_young_table_inside_the_table_is_not_taken_for_orphans(tmp_path: Path) -> None:
    """Its data may be old where its metadata files are all new."""
    lake = Lake.at(tmp_path)
    lake.append([1])
    inner = lake.catalog.create_table("db.inner", SCHEMA, location=f"{lake.table().location()}/inner")
    inner.append(pa.table({"id": [1], "region": ["eu"]}))
    (data,) = (tmp_path / "db" / "t" / "inner" / "data").rglob("*.parquet")
    os.utime(data, (1, 1))
    cutoff = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    with pytest.raises(NotSupported, match="another table"):
        remove_orphans(opened(lake), older_than=cutoff, dry_run=False)
    assert data.exists()


def test_a_table_that_is_reached_by_two_names_loses_nothing(tmp_path: Path) -> None:
    """Its files are recorded by one name, and listed by the other."""
    real, link = tmp_path / "real", tmp_path / "link"
    lake = Lake.at(real)
    link.symlink_to(real)
    lake.append([1])
    table = lake.table()
    with table.transaction() as change:
        change._apply((set_location(f"file://{link}/db/t"),))
    with pytest.raises(NotSupported, match="another name"):
        remove_orphans(opened(lake), older_than=soon(), dry_run=False)
    assert lake.ids() == [1]


def set_location(location: str) -> Any:
    from pyiceberg.table.update import SetLocationUpdate

    return SetLocationUpdate(location=location)


@pytest.fixture
def aged(tmp_path: Path) -> Lake:
    """Two snapshots, the second of which has replaced the file of the first."""
    lake = Lake.at(tmp_path)
    lake.append([1])
    lake.commit(FileChange(added_data=[lake.data_file([10])], removed_data=lake.entries()))
    return lake


def test_a_branch_begun_while_snapshots_expire_keeps_its_files(
    aged: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, really = aged, aged.catalog.commit_table
    old = lake.table().metadata.snapshots[0].snapshot_id

    def commit_table(*arguments: Any) -> Any:
        monkeypatch.setattr(lake.catalog, "commit_table", really)
        lake.table().manage_snapshots().create_branch(old, "b").commit()
        lake.append([2], branch="b")
        return really(*arguments)

    monkeypatch.setattr(lake.catalog, "commit_table", commit_table)
    expire_snapshots(opened(lake), older_than=soon(), dry_run=False)
    assert lake.ids("b") == [1, 2]


def test_snapshots_that_another_process_has_expired_are_a_conflict(
    aged: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, really = aged, aged.catalog.commit_table

    def commit_table(*arguments: Any) -> Any:
        monkeypatch.setattr(lake.catalog, "commit_table", really)
        expire_snapshots(opened(lake), older_than=soon(), dry_run=False)
        return really(*arguments)

    monkeypatch.setattr(lake.catalog, "commit_table", commit_table)
    with pytest.raises(CommitConflict, match="expired"):
        expire_snapshots(opened(lake), older_than=soon(), dry_run=False)
    assert lake.ids() == [10]


def test_an_expiry_without_an_answer_removes_no_file(aged: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, before = aged, aged.on_disk()

    def commit_table(*_: Any) -> Any:
        raise ConnectionError("gone")

    monkeypatch.setattr(lake.catalog, "commit_table", commit_table)
    with pytest.raises(CommitUnknown):
        expire_snapshots(opened(lake), older_than=soon(), dry_run=False)
    assert lake.on_disk() == before


def test_merged_manifests_of_an_upgraded_table_keep_row_ids(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    for number in range(3):
        lake.append([number])
    lake.upgrade(3)
    lake.append([3])
    fresh = {e.file.file_path: e.file.first_row_id for e in Lake(lake.directory, lake.catalog).entries()}
    lake.append([4], merging=ManifestMergeOptions(min_count=2))
    after = {e.file.file_path: e.file.first_row_id for e in Lake(lake.directory, lake.catalog).entries()}
    assert fresh == {path: number for path, number in after.items() if path in fresh}
    assert len(set(after.values())) == 5


@pytest.mark.parametrize("name", ["history.expire.max-snapshot-age-ms", "history.expire.max-ref-age-ms"])
def test_a_property_that_says_nothing_sensible_is_named(tmp_path: Path, name: str) -> None:
    lake = Lake.at(tmp_path, properties={name: "soon"})
    lake.append([1])
    with pytest.raises(InputError, match=name):
        expire_snapshots(opened(lake))
