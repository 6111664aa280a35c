"""Tables and files for the tests of tasks: metadata without a catalog, Parquet with chosen field ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.types import NestedField

from intarsia.tables.iceberg.file_io import Store
from intarsia.tables.iceberg.manifests import ContentFile, DataFileContent, ManifestEntry, ManifestEntryStatus
from intarsia.tables.iceberg.scan import IcebergScanTask, TableScanContext
from intarsia.tables.iceberg.schemas import FIELD_ID, to_arrow_schema


def metadata_of(
    *schemas: Schema,
    specs: tuple[PartitionSpec, ...] = (),
    properties: dict[str, str] | None = None,
    version: int = 2,
) -> TableMetadata:
    """Metadata of a table without snapshots; the last schema is the current one."""
    specs = specs or (PartitionSpec(spec_id=0),)
    whole: dict[str, Any] = {
        "format-version": version,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": "file:///nowhere/t",
        "last-sequence-number": 0,
        "last-updated-ms": 1,
        "last-column-id": 100,
        "current-schema-id": schemas[-1].schema_id,
        "schemas": [schema.model_dump(by_alias=True) for schema in schemas],
        "default-spec-id": specs[-1].spec_id,
        "partition-specs": [spec.model_dump(by_alias=True) for spec in specs],
        "last-partition-id": 1100,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": properties or {},
    }
    if version == 3:
        whole["next-row-id"] = 0
    return TableMetadataUtil.parse_obj(whole)


def make_scan_context(
    *schemas: Schema, specs: tuple[PartitionSpec, ...] = (), properties: dict[str, str] | None = None
) -> TableScanContext:
    return TableScanContext(
        metadata_of(*schemas, specs=specs, properties=properties),
        schemas[-1],
        Store(pafs.LocalFileSystem(), "file"),
    )


def schema_of(*fields: tuple[Any, ...], schema_id: int = 0) -> Schema:
    """From (id, name, type) or (id, name, type, {option: value})."""
    made = [NestedField(*one[:3], **(one[3] if len(one) > 3 else {})) for one in fields]
    return Schema(*made, schema_id=schema_id)


def spec_of(*fields: tuple[int, str, Any], spec_id: int = 0) -> PartitionSpec:
    """From (source id, name, transform)."""
    made = [
        PartitionField(source, 1000 + n, transform, name)
        for n, (source, name, transform) in enumerate(fields)
    ]
    return PartitionSpec(*made, spec_id=spec_id)


def data_entry(rows: int = 3, **file: Any) -> ManifestEntry:
    whole: dict[str, Any] = {
        "content": DataFileContent.DATA,
        "file_path": "file:///nowhere/t/data/a.parquet",
        "file_format": "PARQUET",
        "spec_id": 0,
        "partition": (),
        "record_count": rows,
        "file_size_in_bytes": 1000,
        **file,
    }
    return ManifestEntry(ManifestEntryStatus.EXISTING, 1, ContentFile(**whole), 7, 7)


def written(path: Path, table: pa.Table, **options: Any) -> pq.ParquetFile:
    pq.write_table(table, path, **options)
    return pq.ParquetFile(path)


def identified(name: str, number: int, kind: pa.DataType, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable, {FIELD_ID: str(number).encode()})


def seen(
    scan_task: IcebergScanTask, parquet: pq.ParquetFile, columns: list[str] | None = None, *, start: int = 0
) -> pa.Table:
    """The file's rows as the table's, read the way an engine does."""
    wanted = to_arrow_schema(scan_task.table.schema)
    view = scan_task.project_columns(parquet.schema_arrow, wanted)
    columns = columns or wanted.names
    names = view.list_physical_columns(columns)
    table = parquet.read(names) if names else pa.table({"rows": pa.nulls(parquet.metadata.num_rows)})
    return view.project(table, columns, start=start)
