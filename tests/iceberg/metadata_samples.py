"""Table metadata and files made by hand, for tests that need no catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from intarsia.tables.iceberg.manifests import (
    ContentFile,
    DataFileContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)

IO = PyArrowFileIO()


def spec(spec_id: int, *fields: PartitionField) -> PartitionSpec:
    return PartitionSpec(*fields, spec_id=spec_id)


def metadata(
    location: Path | str,
    schemas: Sequence[Schema],
    specs: Sequence[PartitionSpec],
    *,
    format_version: int = 2,
    default_spec: int | None = None,
    properties: dict[str, str] | None = None,
) -> TableMetadata:
    """Metadata whose last schema is current, and whose last spec is the default."""
    field_ids = [field.field_id for one in specs for field in one.fields]
    raw: dict[str, Any] = {
        "format-version": format_version,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": str(location),
        "last-updated-ms": 0,
        "last-column-id": max(field_id for schema in schemas for field_id in schema.field_ids),
        "schemas": [schema.model_dump(mode="json") for schema in schemas],
        "current-schema-id": schemas[-1].schema_id,
        "partition-specs": [one.model_dump(mode="json") for one in specs],
        "default-spec-id": specs[-1].spec_id if default_spec is None else default_spec,
        "last-partition-id": max(field_ids, default=999),
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": properties or {},
    }
    if format_version > 1:
        raw["last-sequence-number"] = 0
    else:
        raw["schema"] = raw["schemas"][-1]
        raw["partition-spec"] = raw["partition-specs"][-1]["fields"]
    if format_version > 2:
        raw["next-row-id"] = 0
    return TableMetadataUtil.parse_obj(raw)


def file(
    path: str = "data/a.parquet", spec_id: int | None = 0, partition: tuple[Any, ...] = (), **more: Any
) -> ContentFile:
    given: dict[str, Any] = {"content": DataFileContent.DATA, "file_format": "PARQUET", "record_count": 10}
    given |= {"file_size_in_bytes": 1000} | more
    return ContentFile(file_path=path, spec_id=spec_id, partition=partition, **given)  # type: ignore[arg-type]


def full_file(path: str, spec_id: int, partition: tuple[Any, ...], *, format_version: int = 2) -> ContentFile:
    """A data file with every field that its version has."""
    return file(
        path,
        spec_id,
        partition,
        record_count=2**40,
        file_size_in_bytes=2**41 + 1,
        column_sizes={1: 64, 2: -1, 2**31 - 1: 2**62},
        value_counts={1: 0, 2: 63, 3: 8192},
        null_value_counts={},
        nan_value_counts={3: 1},
        lower_bounds={1: b"", 2: bytes(200), 70: b"\x00\x80\xff"},
        upper_bounds={1: b"\xff" * 20},
        key_metadata=b"key",
        split_offsets=(4, 2**33),
        sort_order_id=3,
        **({"first_row_id": 77} if format_version > 2 else {}),
    )


def entry(
    content_file: ContentFile, status: ManifestEntryStatus = ManifestEntryStatus.ADDED, **more: Any
) -> ManifestEntry:
    return ManifestEntry(status, more.pop("snapshot_id", None), content_file, **more)


def committed(manifest: ManifestFile, sequence_number: int) -> ManifestFile:
    """A manifest as the list of the commit that adds it has it."""
    least = manifest.min_sequence_number
    return replace(
        manifest,
        sequence_number=sequence_number,
        min_sequence_number=sequence_number if least is None else least,
    )
