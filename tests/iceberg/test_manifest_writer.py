"""Manifests of a commit: one per spec and content, more beyond the target size, under names of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from metadata_samples import IO, committed, entry, file, full_file, metadata, spec
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from intarsia.errors import InputError, StorageError
from intarsia.tables import iceberg
from intarsia.tables.iceberg import manifest_writer
from intarsia.tables.iceberg.manifest_writer import (
    ManifestOutput,
    write_added_manifests,
    write_delete_manifests,
    write_deleted_data_manifests,
    write_existing_data_manifests,
    write_manifests,
)
from intarsia.tables.iceberg.manifests import (
    DataFileContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest,
)

_OLD: dict[str, Any] = {"snapshot_id": 2, "sequence_number": 2, "file_sequence_number": 2}


def _evolved(tmp_path: Path, **properties: str) -> TableMetadata:
    """By region first, then by bucket, then by neither; the region was dropped meanwhile."""
    key = NestedField(1, "id", LongType(), required=False)
    region = NestedField(2, "region", StringType(), required=False)
    specs = [
        spec(0, PartitionField(2, 1000, IdentityTransform(), "region")),
        spec(1, PartitionField(1, 1001, BucketTransform(4), "b")),
        spec(2),
    ]
    schemas = [Schema(key, region, schema_id=0), Schema(key, schema_id=1)]
    (tmp_path / "metadata").mkdir(exist_ok=True)
    return metadata(tmp_path, schemas, specs, properties=properties)


def _site(tmp_path: Path, **properties: str) -> ManifestOutput:
    return ManifestOutput(_evolved(tmp_path, **properties), IO, 7, commit_id="c0ffee")


def _read(manifests: Sequence[ManifestFile]) -> list[ManifestEntry]:
    return [
        one for manifest in manifests for one in read_manifest(IO, committed(manifest, 9), live_only=False)
    ]


_FILES = [file("x", 2), file("a", 0, ("eu",)), file("b", 1, (3,)), file("c", 0, (None,))]


def test_added_files_of_several_specs_make_one_manifest_each(tmp_path: Path) -> None:
    found = write_added_manifests(_site(tmp_path), _FILES)
    assert [(one.partition_spec_id, one.added_files_count) for one in found] == [(0, 2), (1, 1), (2, 1)]
    assert [one.file for one in _read(found)] == [_FILES[1], _FILES[3], _FILES[2], _FILES[0]]


def test_manifests_are_named_after_the_commit_and_counted(tmp_path: Path) -> None:
    site = _site(tmp_path)
    found = [*write_added_manifests(site, _FILES), *write_added_manifests(site, _FILES[:1])]
    assert [one.manifest_path for one in found] == [
        f"{tmp_path}/metadata/c0ffee-m{number}.avro" for number in range(4)
    ]
    assert site.written == [one.manifest_path for one in found]


def test_one_spec_takes_the_fast_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def grouped(entries: object) -> dict[int, list[ManifestEntry]]:
        raise AssertionError("grouped")

    monkeypatch.setattr(manifest_writer, "group_entries_by_spec", grouped)
    site = _site(tmp_path)
    assert len(write_added_manifests(site, [_FILES[1], _FILES[3]])) == 1
    with pytest.raises(AssertionError, match="grouped"):
        write_added_manifests(site, _FILES)


def test_nothing_makes_no_manifest(tmp_path: Path) -> None:
    site = _site(tmp_path)
    writers = (write_added_manifests, write_delete_manifests)
    assert [write(site, []) for write in writers] == [[], []]
    assert [write(site, []) for write in (write_deleted_data_manifests, write_existing_data_manifests)] == [
        [],
        [],
    ]
    assert site.written == []


def test_delete_files_make_manifests_of_their_own_kind(tmp_path: Path) -> None:
    deletes = [
        file("d0", 0, ("eu",), content=DataFileContent.POSITION_DELETES),
        file("d1", 1, (3,), content=DataFileContent.EQUALITY_DELETES, equality_ids=(1,)),
    ]
    found = write_delete_manifests(_site(tmp_path), deletes)
    assert [(one.partition_spec_id, one.content) for one in found] == [
        (0, DataFileContent.POSITION_DELETES),
        (1, DataFileContent.POSITION_DELETES),
    ]
    assert [one.file for one in _read(found)] == deletes


def test_removed_files_are_of_this_snapshot_and_kept_ones_of_theirs(tmp_path: Path) -> None:
    entries = [entry(one, ManifestEntryStatus.ADDED, **_OLD) for one in _FILES]
    removed = _read(write_deleted_data_manifests(_site(tmp_path), entries))
    kept = _read(write_existing_data_manifests(_site(tmp_path), entries))
    assert {(one.status, one.snapshot_id, one.sequence_number) for one in removed} == {
        (ManifestEntryStatus.DELETED, 7, 2)
    }
    assert {(one.status, one.snapshot_id, one.sequence_number) for one in kept} == {
        (ManifestEntryStatus.EXISTING, 2, 2)
    }
    assert len(removed) == len(kept) == 4


def test_kept_and_removed_entries_may_share_a_manifest(tmp_path: Path) -> None:
    entries = [
        entry(file("a", 0, ("eu",)), ManifestEntryStatus.EXISTING, **_OLD),
        entry(file("b", 0, ("eu",)), ManifestEntryStatus.DELETED, **_OLD),
    ]
    (found,) = write_manifests(_site(tmp_path), entries, DataFileContent.DATA)
    assert (found.existing_files_count, found.deleted_files_count, found.min_sequence_number) == (1, 1, 2)


def test_beyond_the_target_size_there_are_more_manifests(tmp_path: Path) -> None:
    files = [full_file(f"data/{n}.parquet", 0, ("eu",)) for n in range(200)]
    site = _site(tmp_path, **{"commit.manifest.target-size-bytes": "20000"})
    found = write_added_manifests(site, files)
    assert len(found) > 2
    assert [one.file for one in _read(found)] == files
    assert len(write_added_manifests(_site(tmp_path), files)) == 1


def test_the_tables_properties_say_where_and_how(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    properties = {
        "write.metadata.path": f"{tmp_path}/elsewhere/",
        "write.manifest.compression-codec": "uncompressed",
    }
    (found,) = write_added_manifests(_site(tmp_path, **properties), _FILES[:1])
    assert found.manifest_path == f"{tmp_path}/elsewhere/c0ffee-m0.avro"
    assert b"avro.codec\x08null" in Path(found.manifest_path).read_bytes()


def test_an_unknown_spec_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    site = _site(tmp_path)
    for write in (write_added_manifests, write_delete_manifests):
        with pytest.raises(InputError, match="unknown partition spec: 99"):
            write(site, [_FILES[0], file("z", 99)])
    assert list((tmp_path / "metadata").iterdir()) == []


def test_storage_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "c0ffee-m0.avro").mkdir()
    with pytest.raises(StorageError, match="cannot write the manifest") as caught:
        write_added_manifests(_site(tmp_path), _FILES[:1])
    assert caught.value.path == f"{tmp_path}/metadata/c0ffee-m0.avro"


@pytest.mark.parametrize("name", iceberg.__all__)
def test_every_name_is_there(name: str) -> None:
    assert callable(getattr(iceberg, name))
