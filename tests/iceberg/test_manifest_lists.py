"""ManifestFile lists: numbers and row ids are given out, everything else survives, other readers agree."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from metadata_samples import IO, entry, file, metadata, spec
from pyiceberg.manifest import ManifestContent
from pyiceberg.manifest import read_manifest_list as read_with_pyiceberg
from pyiceberg.manifest import write_manifest_list as write_with_pyiceberg
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from intarsia.errors import DamagedTable, InputError
from intarsia.tables.iceberg import avro
from intarsia.tables.iceberg.avro_schemas import make_list_schema
from intarsia.tables.iceberg.manifest_writer import ManifestOutput, write_manifests
from intarsia.tables.iceberg.manifests import (
    DataFileContent,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    read_manifest_list,
    write_manifest_list,
)


def _manifest(path: str = "m0.avro", **more: Any) -> ManifestFile:
    given: dict[str, Any] = {
        "manifest_length": 2**33,
        "partition_spec_id": 2,
        "content": DataFileContent.DATA,
        "sequence_number": 4,
        "min_sequence_number": 3,
        "added_snapshot_id": 11,
        "added_files_count": 1,
        "existing_files_count": 2,
        "deleted_files_count": 3,
        "added_rows_count": 10,
        "existing_rows_count": 20,
        "deleted_rows_count": 30,
        "partitions": (
            PartitionFieldSummary(False, None, b"a", b"z"),
            PartitionFieldSummary(True, True),
            PartitionFieldSummary(True, False, b"", None),
        ),
        "key_metadata": b"key",
    }
    return ManifestFile(path, **given | more)


def _write(tmp_path: Path, manifests: list[ManifestFile], format_version: int = 2, **more: Any) -> int | None:
    given: dict[str, Any] = {"snapshot_id": 7, "parent_snapshot_id": None, "sequence_number": 5}
    if format_version > 2:
        given["first_row_id"] = 1000
    return write_manifest_list(
        IO, f"{tmp_path}/snap.avro", manifests, format_version=format_version, **given | more
    )


def _read(tmp_path: Path) -> list[ManifestFile]:
    return read_manifest_list(IO, f"{tmp_path}/snap.avro")


def _header(tmp_path: Path) -> dict[str, str]:
    with (tmp_path / "snap.avro").open("rb") as stream:
        found = fastavro.reader(stream).metadata
    return {key: value for key, value in found.items() if not key.startswith("avro.")}


@pytest.mark.parametrize("format_version", [2, 3])
def test_every_field_survives(tmp_path: Path, format_version: int) -> None:
    manifests = [
        _manifest("data", **({"first_row_id": 8} if format_version > 2 else {})),
        _manifest("deletes", content=DataFileContent.POSITION_DELETES, partitions=(), key_metadata=None),
        _manifest("bare", content=DataFileContent.POSITION_DELETES, partitions=None),
    ]
    _write(tmp_path, manifests, format_version)
    assert _read(tmp_path) == manifests


def test_version_1_has_no_numbers(tmp_path: Path) -> None:
    _write(tmp_path, [_manifest()], 1)
    assert _read(tmp_path) == [_manifest(sequence_number=0, min_sequence_number=0)]


def test_version_1_lists_may_lack_counts(tmp_path: Path) -> None:
    names = [
        f"{word}_{what}_count" for word in ("added", "existing", "deleted") for what in ("files", "rows")
    ]
    bare = _manifest(sequence_number=0, min_sequence_number=0, **dict.fromkeys(names))
    _write(tmp_path, [bare], 1)
    assert _read(tmp_path) == [bare]


def test_manifests_of_the_commit_take_its_sequence_number(tmp_path: Path) -> None:
    new = _manifest("new", sequence_number=None, min_sequence_number=None, added_snapshot_id=7)
    rewritten = _manifest("rewritten", sequence_number=None, min_sequence_number=2, added_snapshot_id=7)
    _write(tmp_path, [new, rewritten, _manifest("old")])
    numbers = [(one.sequence_number, one.min_sequence_number) for one in _read(tmp_path)]
    assert numbers == [(5, 5), (5, 2), (4, 3)]


def test_a_manifest_of_another_commit_needs_its_number(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="of snapshot 11, not of 7"):
        _write(tmp_path, [_manifest(sequence_number=None)])
    assert not (tmp_path / "snap.avro").exists()


def test_row_ids_are_given_to_data_manifests_without_one(tmp_path: Path) -> None:
    manifests = [
        _manifest("first", added_rows_count=10, existing_rows_count=20),
        _manifest("deletes", content=DataFileContent.POSITION_DELETES),
        _manifest("has one", first_row_id=3),
        _manifest("second", added_rows_count=1, existing_rows_count=0),
    ]
    assert _write(tmp_path, manifests, 3) == 1031
    assert [one.first_row_id for one in _read(tmp_path)] == [1000, None, 3, 1030]


def test_before_version_3_there_are_no_row_ids(tmp_path: Path) -> None:
    assert _write(tmp_path, [_manifest()]) is None
    assert _read(tmp_path)[0].first_row_id is None


def test_version_3_needs_the_next_row_id(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without first_row_id"):
        _write(tmp_path, [_manifest()], 3, first_row_id=None)


def test_version_1_has_no_delete_manifests(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="delete files in a table of format version 1"):
        _write(tmp_path, [_manifest(content=DataFileContent.POSITION_DELETES)], 1)


@pytest.mark.parametrize(
    ("format_version", "more"),
    [(1, {}), (2, {"sequence-number": "5"}), (3, {"sequence-number": "5", "first-row-id": "1000"})],
)
def test_the_header_says_which_snapshot_it_is(
    tmp_path: Path, format_version: int, more: dict[str, str]
) -> None:
    _write(tmp_path, [_manifest()], format_version)
    fixed = {"snapshot-id": "7", "parent-snapshot-id": "null", "format-version": str(format_version)}
    assert _header(tmp_path) == fixed | more
    _write(tmp_path, [_manifest()], format_version, parent_snapshot_id=6)
    assert _header(tmp_path)["parent-snapshot-id"] == "6"


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_pyiceberg_reads_it(tmp_path: Path, format_version: int) -> None:
    _write(tmp_path, [_manifest()], format_version)
    (found,) = read_with_pyiceberg(IO.new_input(f"{tmp_path}/snap.avro"))
    assert (found.manifest_path, found.manifest_length, found.content) == (
        "m0.avro",
        2**33,
        ManifestContent.DATA,
    )
    assert found.sequence_number == (0 if format_version == 1 else 4)
    assert (found.added_files_count, found.deleted_rows_count) == (1, 30)
    assert found.partitions is not None
    assert (found.partitions[0].lower_bound, found.partitions[1].contains_nan) == (b"a", True)


@pytest.mark.parametrize("format_version", [1, 2])
def test_what_pyiceberg_wrote_is_read(tmp_path: Path, format_version: int) -> None:
    _write(tmp_path, [_manifest()], 2)
    theirs = list(read_with_pyiceberg(IO.new_input(f"{tmp_path}/snap.avro")))
    output = IO.new_output(f"{tmp_path}/theirs.avro")
    with write_with_pyiceberg(format_version, output, 7, None, 5, "deflate") as writer:
        writer.add_manifests(theirs)
    numbers = {} if format_version > 1 else {"sequence_number": 0, "min_sequence_number": 0}
    assert read_manifest_list(IO, f"{tmp_path}/theirs.avro") == [_manifest(**numbers)]


def test_old_names_of_the_counts_are_known_by_their_ids(tmp_path: Path) -> None:
    text = json.dumps(make_list_schema(1)).replace("_files_count", "_data_files_count")
    record = {
        "manifest_path": "m",
        "manifest_length": 1,
        "partition_spec_id": 0,
        "added_snapshot_id": 3,
        "added_data_files_count": 9,
    }
    out = io.BytesIO()
    fastavro.writer(out, json.loads(text), [record])
    (tmp_path / "snap.avro").write_bytes(out.getvalue())
    assert _read(tmp_path)[0].added_files_count == 9


def test_fields_of_later_versions_are_kept(tmp_path: Path) -> None:
    schema = make_list_schema(2)
    kind = {"type": "record", "name": "r600", "fields": [{"name": "a", "type": "long", "field-id": 601}]}
    schema["fields"].append({"name": "later", "type": kind, "field-id": 600})
    encoder = avro.AvroFileWriter(schema, {}, "gzip")
    _write(tmp_path, [_manifest()])
    record = dict(next(avro.parse_avro((tmp_path / "snap.avro").read_bytes(), "").read_records()))
    encoder.append(record | {"later": {"a": 5}})
    (tmp_path / "snap.avro").write_bytes(encoder.finish())

    kept = _read(tmp_path)
    _write(tmp_path, [*kept, _manifest("new")])
    with (tmp_path / "snap.avro").open("rb") as stream:
        reader = fastavro.reader(stream)
        assert [one["later"] for one in reader] == [{"a": 5}, None]
        assert reader.writer_schema["fields"][-1]["field-id"] == 600
    assert [replace(one, extra={}) for one in _read(tmp_path)] == [_manifest(), _manifest("new")]


class TestWithoutCounts:
    """Snapshots of version 1 that name their manifests themselves, or do not count their files."""

    def _site(self, tmp_path: Path, format_version: int) -> ManifestOutput:
        schema = Schema(NestedField(1, "id", LongType(), required=False))
        by_id = spec(0, PartitionField(1, 1000, IdentityTransform(), "id"))
        meta = metadata(tmp_path, [schema], [by_id], format_version=format_version)
        return ManifestOutput(meta, IO, 3)

    def _manifests(self, tmp_path: Path) -> list[ManifestFile]:
        (tmp_path / "metadata").mkdir()
        entries = [
            entry(file("a", 0, (1,), record_count=5)),
            entry(file("b", 0, (2,), record_count=7), ManifestEntryStatus.EXISTING, snapshot_id=2),
            entry(file("c", 0, (2,), record_count=9), ManifestEntryStatus.DELETED, snapshot_id=2),
        ]
        return write_manifests(self._site(tmp_path, 1), entries, DataFileContent.DATA)

    def test_counts_that_later_versions_need_are_made_up_for(self, tmp_path: Path) -> None:
        (written,) = self._manifests(tmp_path)
        bare = replace(
            written,
            sequence_number=0,
            min_sequence_number=0,
            added_files_count=None,
            existing_rows_count=None,
            added_rows_count=None,
        )
        assert _write(tmp_path, [bare], 3) == 1012
        assert (_read(tmp_path)[0].added_files_count, _read(tmp_path)[0].added_rows_count) == (1, 5)


def test_a_missing_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(DamagedTable, match="the manifest list is named by the table but does not exist"):
        _read(tmp_path)


def test_a_manifest_in_place_of_a_list_is_named(tmp_path: Path) -> None:
    TestWithoutCounts()._manifests(tmp_path)
    (path,) = (tmp_path / "metadata").glob("*.avro")
    with pytest.raises(DamagedTable, match="KeyError"):
        read_manifest_list(IO, str(path))
