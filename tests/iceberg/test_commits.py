"""Commits on a quiet table: manifests, sequence numbers, summaries, specs, branches, row ids."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from lake import Lake
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform, IdentityTransform

from intarsia.errors import CommitConflict, InputError
from intarsia.tables.iceberg.manifests import ManifestEntryStatus
from intarsia.tables.iceberg.snapshot_producer import FileChange, ManifestMergeOptions

VERSIONS = (1, 2, 3)


@pytest.mark.parametrize("version", VERSIONS)
def test_appended_files_are_read_back(tmp_path: Path, version: int) -> None:
    lake = Lake.at(tmp_path, version)
    lake.append([1, 2, 3])
    receipt = lake.append([4], "us")
    assert lake.ids() == [1, 2, 3, 4]
    assert lake.table().metadata.current_snapshot_id == receipt.snapshot_id
    assert [m["added_files_count"] for m in lake.manifests()] == [1, 1]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_removed_file_leaves_the_others_as_they_were(tmp_path: Path, version: int) -> None:
    lake = Lake.at(tmp_path, version)
    first = lake.commit(FileChange(added_data=[lake.data_file([1]), lake.data_file([2], "us")]))
    gone, stays = lake.entries()
    receipt = lake.commit(FileChange(added_data=[lake.data_file([9])], removed_data=[gone]))
    assert lake.ids() == [2, 9]
    by_status = {record["status"]: record for record in lake.records()}
    assert by_status[ManifestEntryStatus.DELETED]["snapshot_id"] == receipt.snapshot_id
    assert by_status[ManifestEntryStatus.DELETED]["data_file"]["file_path"] == gone.file.file_path
    assert by_status[ManifestEntryStatus.EXISTING]["snapshot_id"] == first.snapshot_id
    assert by_status[ManifestEntryStatus.EXISTING]["data_file"]["file_path"] == stays.file.file_path
    if version > 1:
        assert by_status[ManifestEntryStatus.EXISTING]["sequence_number"] == 1
        assert by_status[ManifestEntryStatus.ADDED]["sequence_number"] is None
    kept = next(entry for entry in lake.entries() if entry.file.file_path == stays.file.file_path)
    assert kept.file == stays.file
    assert (kept.sequence_number, kept.snapshot_id) == (stays.sequence_number, first.snapshot_id)


@pytest.mark.parametrize("version", [2, 3])
def test_deleted_rows_are_gone_and_the_delete_file_has_the_spec_and_tuple_of_its_file(
    tmp_path: Path, version: int
) -> None:
    lake = Lake.at(tmp_path, version)
    lake.commit(FileChange(added_data=[lake.data_file([1, 2, 3]), lake.data_file([4, 5], "us")]))
    eu, us = lake.entries()
    lake.commit(FileChange(added_deletes=lake.write_deletes((eu, [1]), (us, [0]))))
    assert lake.ids() == [1, 3, 5]
    for entry in lake.entries(deletes=True):
        data = eu if entry.file.referenced_data_file == eu.file.file_path else us
        assert (entry.file.spec_id, entry.file.partition) == (data.file.spec_id, data.file.partition)
    contents = Counter(manifest["content"] for manifest in lake.manifests())
    assert contents == {0: 1, 1: 1}


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_go_with_the_only_file_they_are_about(tmp_path: Path, version: int) -> None:
    lake = Lake.at(tmp_path, version)
    lake.commit(FileChange(added_data=[lake.data_file([1, 2, 3]), lake.data_file([4, 5], "us")]))
    eu, us = lake.entries()
    lake.commit(FileChange(added_deletes=lake.write_deletes((eu, [1]), (us, [0]))))
    lake.commit(FileChange(removed_data=[eu]))
    assert lake.ids() == [5]
    assert [entry.file.referenced_data_file for entry in lake.entries(deletes=True)] == [us.file.file_path]
    summary = lake.table().metadata.current_snapshot().summary
    assert summary["removed-position-deletes"] == "1"
    assert summary.operation is Operation.DELETE


def test_deletes_older_than_all_data_go(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.commit(FileChange(added_data=[lake.data_file([1, 2]), lake.data_file([3, 4])]))
    one, two = lake.entries()
    lake.commit(FileChange(added_deletes=lake.write_deletes((one, [0]), (two, [0]))))
    assert lake.entries(deletes=True)[0].file.referenced_data_file is None
    lake.commit(FileChange(added_data=[lake.data_file([7])], removed_data=[one, two]))
    lake.append([8])
    assert lake.ids() == [7, 8]
    assert lake.entries(deletes=True) == []


def test_a_summary_has_the_fields_that_java_writes(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    files = [lake.data_file([1, 2, 3]), lake.data_file([4, 5], "us")]
    lake.commit(FileChange(added_data=files), properties={"app_id": "x", "total-records": "7"})
    size = sum(file.file_size_in_bytes for file in files)
    assert lake.table().metadata.current_snapshot().summary.additional_properties == {
        "app_id": "x",
        "added-data-files": "2",
        "added-files-size": str(size),
        "added-records": "5",
        "changed-partition-count": "2",
        "manifests-created": "1",
        "manifests-kept": "0",
        "manifests-replaced": "0",
        "total-data-files": "2",
        "total-delete-files": "0",
        "total-equality-deletes": "0",
        "total-files-size": str(size),
        "total-position-deletes": "0",
        "total-records": "5",
    }
    eu, us = lake.entries()
    deletes = lake.write_deletes((us, [1]))
    new = lake.data_file([1, 3])
    lake.commit(FileChange(added_data=[new], added_deletes=deletes, removed_data=[eu]))
    summary = lake.table().metadata.current_snapshot().summary
    assert summary.operation is Operation.OVERWRITE
    size += new.file_size_in_bytes + deletes[0].file_size_in_bytes - eu.file.file_size_in_bytes
    assert summary.additional_properties == {
        "added-data-files": "1",
        "added-delete-files": "1",
        "added-files-size": str(new.file_size_in_bytes + deletes[0].file_size_in_bytes),
        "added-position-delete-files": "1",
        "added-position-deletes": "1",
        "added-records": "2",
        "changed-partition-count": "2",
        "deleted-data-files": "1",
        "deleted-records": "3",
        "manifests-created": "3",
        "manifests-kept": "0",
        "manifests-replaced": "1",
        "removed-files-size": str(eu.file.file_size_in_bytes),
        "total-data-files": "2",
        "total-delete-files": "1",
        "total-equality-deletes": "0",
        "total-files-size": str(size),
        "total-position-deletes": "1",
        "total-records": "4",
    }


def test_a_vector_counts_as_one_with_its_own_size(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path, 3)
    lake.append([1, 2, 3])
    (vector,) = lake.write_deletes((lake.entries()[0], [0, 2]))
    lake.commit(FileChange(added_deletes=[vector]))
    summary = lake.table().metadata.current_snapshot().summary
    assert summary["added-dvs"] == "1"
    assert summary["added-position-deletes"] == "2"
    assert summary["added-files-size"] == str(vector.content_size_in_bytes)
    assert summary["added-position-delete-files"] is None


def test_changed_partitions_are_told_up_to_the_limit(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1], "a b", partition_limit=1)
    summary = lake.table().metadata.current_snapshot().summary
    assert summary["partition-summaries-included"] == "true"
    assert summary["partitions.region=a+b"].endswith("added-data-files=1,added-records=1")


def test_files_of_several_specs_come_in_a_manifest_for_each(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1])
    with lake.table().update_spec() as update:
        update.remove_field("region")
        update.add_field("id", BucketTransform(4), "id_bucket")
    old, new = lake.data_file([2], "us"), lake.data_file([3], "us", spec_id=1, partition=(2,))
    lake.commit(FileChange(added_data=[new, old]))
    assert lake.ids() == [1, 2, 3]
    headers = [lake.avro(m["manifest_path"])[0] for m in lake.manifests()]
    assert [header["partition-spec-id"] for header in headers] == ["1", "0", "0"]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_spec_is_refused_by_its_id_and_nothing_is_left(tmp_path: Path, version: int) -> None:
    lake = Lake.at(tmp_path, version)
    lake.append([1])
    file = lake.data_file([2], spec_id=99)
    before = lake.on_disk()
    with pytest.raises(InputError, match="99"):
        lake.commit(FileChange(added_data=[file]))
    assert lake.on_disk() == before


def test_two_fields_on_one_source_are_committed(tmp_path: Path) -> None:
    spec = PartitionSpec(
        PartitionField(1, 1000, BucketTransform(4), "b"), PartitionField(1, 1001, IdentityTransform(), "i")
    )
    lake = Lake.at(tmp_path, spec=spec)
    lake.commit(FileChange(added_data=[lake.data_file([5], partition=(1, 5))]))
    assert lake.ids() == [5]


def test_manifests_of_one_spec_are_merged_once_there_are_enough(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    merging = ManifestMergeOptions(min_count=3)
    for number in range(2):
        lake.append([number], merging=merging)
    assert len(lake.manifests()) == 2
    before = {entry.file.file_path: entry for entry in lake.entries()}
    lake.append([2], merging=merging)
    (manifest,) = lake.manifests()
    assert (manifest["added_files_count"], manifest["existing_files_count"]) == (1, 2)
    assert lake.ids() == [0, 1, 2]
    summary = lake.table().metadata.current_snapshot().summary
    assert (summary["manifests-created"], summary["manifests-replaced"]) == ("1", "2")
    for entry in lake.entries():
        if entry.file.file_path in before:
            old = before[entry.file.file_path]
            assert (entry.file, entry.snapshot_id) == (old.file, old.snapshot_id)
            assert entry.sequence_number == old.sequence_number
    # The manifest that was written first is not needed any more, and gone.
    used = {Path(m["manifest_path"]).name for m in lake.manifests()}
    latest = lake.table().metadata.current_snapshot()
    uuid = latest.manifest_list.rsplit("-", 5)[1:]
    assert {name for name in lake.on_disk() if name.startswith(uuid[0])} == used


def test_manifests_of_different_specs_are_never_merged(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    merging = ManifestMergeOptions(min_count=2)
    lake.append([1], merging=merging)
    with lake.table().update_spec() as update:
        update.remove_field("region")
    lake.commit(FileChange(added_data=[lake.data_file([2], spec_id=1, partition=())]), merging=merging)
    assert sorted(m["partition_spec_id"] for m in lake.manifests()) == [0, 1]
    assert lake.ids() == [1, 2]


def test_rows_of_version_3_have_ids_that_stay(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path, 3)
    lake.commit(FileChange(added_data=[lake.data_file([1, 2]), lake.data_file([3])]))
    assert [entry.file.first_row_id for entry in lake.entries()] == [0, 2]
    assert lake.table().metadata.next_row_id == 3
    gone, stays = lake.entries()
    lake.commit(FileChange(added_data=[lake.data_file([8, 9])], removed_data=[gone]))
    found = {entry.file.file_path: entry.file.first_row_id for entry in lake.entries()}
    assert found.pop(stays.file.file_path) == 2
    assert list(found.values()) == [3]
    snapshot = lake.table().metadata.current_snapshot()
    assert snapshot.first_row_id == 3
    assert lake.table().metadata.next_row_id == snapshot.first_row_id + snapshot.added_rows


def test_a_table_upgraded_to_version_3_begins_row_ids(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1, 2])
    lake.upgrade(3)
    lake.append([3])
    assert lake.ids() == [1, 2, 3]
    assert sorted(entry.file.first_row_id for entry in lake.entries()) == [0, 1]
    assert lake.table().metadata.next_row_id == 3


def test_a_compaction_keeps_the_sequence_number_it_read_at(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1])
    lake.append([2])
    one, two = lake.entries()
    lake.commit(
        FileChange(
            added_data=[lake.data_file([1, 2])],
            removed_data=[one, two],
            rewrites=True,
            data_sequence_number=2,
        )
    )
    (entry,) = lake.entries()
    assert (entry.sequence_number, entry.file_sequence_number) == (2, 3)
    assert lake.table().metadata.current_snapshot().summary.operation is Operation.REPLACE


def test_a_branch_moves_alone_and_keeps_its_retention(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    first = lake.append([1])
    with lake.table().manage_snapshots() as refs:
        refs.create_branch(first.snapshot_id, "audit", min_snapshots_to_keep=7)
    lake.append([2], branch="audit")
    assert (lake.ids(), lake.ids("audit")) == ([1], [1, 2])
    lake.append([3])
    assert (lake.ids(), lake.ids("audit")) == ([1, 3], [1, 2])
    metadata = lake.table().metadata
    assert metadata.refs["audit"].min_snapshots_to_keep == 7
    assert metadata.snapshot_by_id(metadata.refs["audit"].snapshot_id).parent_snapshot_id == first.snapshot_id


def test_a_missing_branch_is_named_with_those_there_are(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    first = lake.append([1])
    with lake.table().manage_snapshots() as refs:
        refs.create_branch(first.snapshot_id, "audit").create_tag(first.snapshot_id, "v1")
    with pytest.raises(InputError, match=r"no branch 'adit'; the branches are audit, main"):
        lake.append([2], branch="adit")
    with pytest.raises(InputError, match="'v1' is a tag"):
        lake.append([2], branch="v1")


def test_a_staged_snapshot_moves_no_branch(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1])
    receipt = lake.append([2], stage_only=True, properties={"wap.id": "w"})
    assert lake.ids() == [1]
    assert lake.table().metadata.snapshot_by_id(receipt.snapshot_id).summary["wap.id"] == "w"


def test_a_file_that_is_not_there_cannot_be_removed(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1])
    (entry,) = lake.entries()
    lake.commit(FileChange(removed_data=[entry]))
    before = lake.on_disk()
    with pytest.raises(CommitConflict, match="not in the table any more"):
        lake.commit(FileChange(removed_data=[entry]))
    assert lake.on_disk() == before


def test_only_manifests_that_hold_a_removed_file_are_written_anew(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    for number in range(3):
        lake.append([number])
    before = [m["manifest_path"] for m in lake.manifests()]
    entry = next(e for e in lake.entries() if e.sequence_number == 2)
    lake.commit(FileChange(removed_data=[entry]))
    after = [m["manifest_path"] for m in lake.manifests()]
    assert len(set(before) & set(after)) == 2
    summary = lake.table().metadata.current_snapshot().summary
    assert (summary["manifests-kept"], summary["manifests-replaced"]) == ("2", "1")
    # What was removed before is not repeated in the next snapshot.
    lake.append([9])
    assert len(lake.manifests()) == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_an_old_spec_whose_source_was_dropped_keeps_its_values(tmp_path: Path, version: int) -> None:
    lake = Lake.at(tmp_path, version)
    lake.commit(FileChange(added_data=[lake.data_file([1, 2]), lake.data_file([3], "us")]))
    with lake.table().update_spec() as update:
        update.remove_field("region")
    with lake.table().update_schema() as schema:
        schema.delete_column("region")
    eu, us = lake.entries()
    assert (eu.file.spec_id, eu.file.partition) == (0, ("eu",))
    if version > 1:
        deletes = lake.write_deletes((eu, [0]))
        assert [(file.spec_id, file.partition) for file in deletes] == [(0, ("eu",))]
        lake.commit(FileChange(added_deletes=deletes))
        assert lake.ids() == [2, 3]
    lake.commit(FileChange(removed_data=[us]))
    files = {r["data_file"]["file_path"]: r for r in lake.records()}
    kept, gone = files[eu.file.file_path], files[us.file.file_path]
    assert (kept["status"], kept["data_file"]["partition"]) == (
        ManifestEntryStatus.EXISTING,
        {"region": "eu"},
    )
    assert (gone["status"], gone["data_file"]["partition"]) == (ManifestEntryStatus.DELETED, {"region": "us"})
    summary = lake.table().metadata.current_snapshot().summary
    assert summary["changed-partition-count"] == "1"


def test_a_renamed_source_changes_nothing_for_old_files(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.append([1, 2])
    with lake.table().update_schema() as schema:
        schema.rename_column("region", "area")
    (entry,) = lake.entries()
    lake.commit(FileChange(added_deletes=lake.write_deletes((entry, [0]))))
    lake.commit(FileChange(added_data=[lake.data_file([5])]))
    assert lake.ids() == [2, 5]


def test_version_1_with_a_field_that_became_void(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path, 1)
    lake.append([1])
    with lake.table().update_spec() as update:
        update.remove_field("region")
    spec = lake.table().spec()
    assert len(spec.fields) == 1
    (old,) = lake.entries()
    new = lake.data_file([7, 8], spec_id=spec.spec_id, partition=(None,))
    lake.commit(FileChange(added_data=[new], removed_data=[old]))
    assert lake.ids() == [7, 8]
    headers = [lake.avro(m["manifest_path"])[0]["partition-spec-id"] for m in lake.manifests()]
    assert sorted(headers) == ["0", str(spec.spec_id)]
