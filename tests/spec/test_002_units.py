"""Partition evolution: files and entries by spec, and which specs are accepted."""

from __future__ import annotations

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField

from intarsia.errors import InputError
from intarsia.tables.iceberg.manifest_writer import (
    group_entries_by_spec,
    group_files_by_spec,
    validate_added_data_files,
)
from intarsia.tables.iceberg.manifests import ContentFile, DataFileContent, ManifestEntry, ManifestEntryStatus


def data_file_with_spec(spec_id: int, path: str = "data/a.parquet") -> ContentFile:
    return ContentFile(DataFileContent.DATA, path, "PARQUET", spec_id, (), 1, 1)


def data_file_without_spec() -> ContentFile:
    return ContentFile(DataFileContent.DATA, "data/old.parquet", "PARQUET", None, (), 1, 1)  # type: ignore[arg-type]


def entry_with_spec(spec_id: int, path: str = "data/a.parquet") -> ManifestEntry:
    return ManifestEntry(ManifestEntryStatus.EXISTING, 1, data_file_with_spec(spec_id, path), 1, 1)


def table_with_specs(*spec_ids: int) -> TableMetadata:
    def fields(spec_id: int) -> tuple[PartitionField, ...]:
        return (PartitionField(1, 1000 + spec_id, BucketTransform(2 + spec_id), f"b{spec_id}"),)

    return TableMetadataUtil.parse_obj(
        {
            "format-version": 2,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": "memory://lake/t",
            "last-updated-ms": 0,
            "last-sequence-number": 0,
            "last-column-id": 1,
            "schemas": [Schema(NestedField(1, "id", LongType(), required=False)).model_dump(mode="json")],
            "current-schema-id": 0,
            "partition-specs": [
                PartitionSpec(*fields(spec_id), spec_id=spec_id).model_dump(mode="json")
                for spec_id in spec_ids
            ],
            "default-spec-id": spec_ids[-1],
            "last-partition-id": 1000 + spec_ids[-1],
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
        }
    )


def test_group_files_by_spec_empty() -> None:
    assert group_files_by_spec([]) == {}


def test_group_files_by_spec_single_spec() -> None:
    groups = group_files_by_spec([data_file_with_spec(0), data_file_with_spec(0)])
    assert list(groups) == [0]
    assert len(groups[0]) == 2


def test_group_files_by_spec_multiple_specs() -> None:
    files = [data_file_with_spec(2, "a"), data_file_with_spec(0, "b"), data_file_with_spec(2, "c")]
    groups = group_files_by_spec(files)
    assert list(groups) == [0, 2]
    assert [file.file_path for file in groups[2]] == ["a", "c"]
    assert [file.file_path for file in groups[0]] == ["b"]


def test_group_files_by_spec_v1_defaults_to_zero() -> None:
    groups = group_files_by_spec([data_file_without_spec(), data_file_with_spec(0)])
    assert list(groups) == [0]
    assert len(groups[0]) == 2


def test_group_entries_by_spec_empty() -> None:
    assert group_entries_by_spec([]) == {}


def test_group_entries_by_spec_single_spec() -> None:
    groups = group_entries_by_spec([entry_with_spec(1), entry_with_spec(1)])
    assert list(groups) == [1]
    assert len(groups[1]) == 2


def test_group_entries_by_spec_multiple_specs() -> None:
    groups = group_entries_by_spec(
        [entry_with_spec(9, "a"), entry_with_spec(1, "b"), entry_with_spec(9, "c")]
    )
    assert list(groups) == [1, 9]
    assert [entry.file.file_path for entry in groups[9]] == ["a", "c"]


@pytest.mark.parametrize("spec_id", [0, 1, 2])
def test_validate_accepts_any_valid_spec(spec_id: int) -> None:
    validate_added_data_files(table_with_specs(0, 1, 2), [data_file_with_spec(spec_id)])


def test_validate_accepts_a_v1_file_without_spec() -> None:
    validate_added_data_files(table_with_specs(0, 1), [data_file_without_spec()])


def test_validate_rejects_unknown_spec() -> None:
    with pytest.raises(InputError):
        validate_added_data_files(table_with_specs(0, 1), [data_file_with_spec(1), data_file_with_spec(99)])


def test_validate_rejects_unknown_spec_with_clear_message() -> None:
    with pytest.raises(InputError, match="references unknown partition spec: 99") as caught:
        validate_added_data_files(table_with_specs(0, 1), [data_file_with_spec(99)])
    assert "data/a.parquet" in caught.value.message
    assert "0, 1" in str(caught.value)
