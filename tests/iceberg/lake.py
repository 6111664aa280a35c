"""A small lake in a directory: a catalog, tables, and data files written by hand."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from intarsia.tables.iceberg.catalog import embedded_catalog, load_table
from intarsia.tables.iceberg.commit import CommitReceipt, CommitTarget, SnapshotCommit, Validation
from intarsia.tables.iceberg.deletion_vectors import write_vectors
from intarsia.tables.iceberg.file_io import LocationProvider
from intarsia.tables.iceberg.manifests import ContentFile, DataFileContent, ManifestEntry
from intarsia.tables.iceberg.position_deletes import write_position_deletes
from intarsia.tables.iceberg.properties import RetryPolicy
from intarsia.tables.iceberg.snapshot_producer import FileChange, ManifestMergeOptions, SnapshotOptions
from intarsia.tables.iceberg.state import BranchState, ManifestCache

NAME = "db.t"
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "region", StringType()))
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), True, {"PARQUET:field_id": "1"}),
        pa.field("region", pa.string(), True, {"PARQUET:field_id": "2"}),
    ]
)
NOTHING = Validation()
QUICK = RetryPolicy(4, 1, 10, 60_000)


@dataclass
class Lake:
    """One table ``db.t`` of ids and regions, partitioned by region."""

    directory: Path
    catalog: Catalog
    files: int = 0
    cache: ManifestCache = field(init=False)

    def __post_init__(self) -> None:
        self.cache = ManifestCache(self.table().io)

    @staticmethod
    def at(
        directory: Path,
        version: int = 2,
        properties: dict[str, str] | None = None,
        catalog: Callable[[Path], Catalog] = embedded_catalog,
        spec: PartitionSpec = BY_REGION,
    ) -> Lake:
        made = catalog(directory)
        made.create_namespace("db")
        quick = {"commit.retry.min-wait-ms": "1", "commit.status-check.min-wait-ms": "1"}  # for IcebergTable
        made.create_table(
            NAME,
            SCHEMA,
            partition_spec=spec,
            properties={"format-version": str(version), **quick, **(properties or {})},
        )
        return Lake(directory, made)

    def table(self) -> Table:
        return load_table(self.catalog, NAME)

    def state(self, branch: str | None = None) -> BranchState:
        return BranchState.of(self.table(), branch, self.cache)

    def upgrade(self, version: int) -> None:
        """As another writer would; PyIceberg's own door stops at version 2."""
        table = self.table()
        fields = {**dict(table.metadata), "format_version": version, "next_row_id": 0}
        location = table.metadata_location.replace(".metadata.json", "-up.metadata.json")
        upgraded = TableMetadataV3.model_construct(**fields)
        self.catalog._write_metadata(upgraded, table.io, location)
        with closing(sqlite3.connect(self.directory / "catalog.db")) as connection, connection:
            connection.execute("UPDATE iceberg_tables SET metadata_location = ?", (location,))

    def data_file(
        self, ids: Sequence[int], region: str | None = "eu", *, spec_id: int = 0, partition: Any = None
    ) -> ContentFile:
        """A data file that is not yet part of the table."""
        self.files += 1
        location = f"{self.directory}/db/t/data/f{self.files}.parquet"
        os.makedirs(os.path.dirname(location), exist_ok=True)
        regions = pa.array([region] * len(ids), pa.string())
        pq.write_table(pa.table([pa.array(ids, pa.int64()), regions], schema=ARROW), location)
        return ContentFile(
            DataFileContent.DATA,
            f"file://{location}",
            "PARQUET",
            spec_id,
            (region,) if partition is None else partition,
            len(ids),
            os.path.getsize(location),
            sort_order_id=0,
        )

    def write_deletes(self, *targets: tuple[ManifestEntry, Sequence[int]]) -> list[ContentFile]:
        """Delete files of the table's version for some positions."""
        vectors = self.table().metadata.format_version >= 3
        write = write_vectors if vectors else write_position_deletes
        return write(
            [(entry, pa.array(positions, pa.int64())) for entry, positions in targets],
            place=self._place,
            filesystem=pafs.LocalFileSystem(),
        )

    def _place(self, spec_id: int, partition: Any, suffix: str) -> tuple[str, str]:
        self.files += 1
        location = f"{self.directory}/db/t/data/d{self.files}.{suffix}"
        return f"file://{location}", location

    def begin(
        self,
        change: FileChange,
        validation: Validation = NOTHING,
        *,
        base: BranchState | None = None,
        branch: str | None = None,
        properties: dict[str, str] | None = None,
        merging: ManifestMergeOptions | None = None,
        stage_only: bool = False,
        partition_limit: int = 0,
    ) -> SnapshotCommit:
        locations = LocationProvider.of(self.table().metadata)
        target = CommitTarget(
            self.table, base or self.state(branch), locations, "tx", properties or {}, stage_only
        )
        options = SnapshotOptions(merging or ManifestMergeOptions(), partition_limit=partition_limit)
        return SnapshotCommit(target, change, validation, options, retry=QUICK, status=QUICK)

    def commit(self, change: FileChange, validation: Validation = NOTHING, **options: Any) -> CommitReceipt:
        return self.begin(change, validation, **options).run()

    def append(self, ids: Sequence[int], region: str = "eu", **options: Any) -> CommitReceipt:
        return self.commit(FileChange(added_data=[self.data_file(ids, region)]), **options)

    def entries(self, *, deletes: bool = False, branch: str | None = None) -> list[ManifestEntry]:
        return list(self.state(branch).iterate_entries(deletes=deletes))

    def ids(self, branch: str | None = None) -> list[int]:
        """What PyIceberg reads."""
        table = self.table()
        scan = table.scan() if branch is None else table.scan().use_ref(branch)
        return sorted(scan.to_arrow()["id"].to_pylist())

    def on_disk(self) -> set[str]:
        """The names of all files of the table."""
        return {path.name for path in (self.directory / "db").rglob("*") if path.is_file()}

    def avro(self, uri: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
        """Header and records of a metadata file, by an independent reader."""
        reader = fastavro.reader(BytesIO(Path(uri.removeprefix("file://")).read_bytes()))
        return dict(reader.metadata), list(reader)

    def manifests(self, branch: str | None = None) -> list[dict[str, Any]]:
        """The records of the head's manifest list, by an independent reader."""
        head = self.state(branch).head
        assert head is not None
        return self.avro(head.manifest_list)[1]

    def records(self, branch: str | None = None) -> list[dict[str, Any]]:
        """All records of all manifests of the head, by an independent reader."""
        return [r for m in self.manifests(branch) for r in self.avro(m["manifest_path"])[1]]
