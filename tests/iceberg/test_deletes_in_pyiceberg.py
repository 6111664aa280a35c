"""Our delete files, planned and applied by PyIceberg's own scan of a table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delete_samples import LOCAL, Places, entry
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from intarsia.tables.iceberg.deletion_vectors import write_vectors
from intarsia.tables.iceberg.manifests import ContentFile
from intarsia.tables.iceberg.position_deletes import DeleteGranularity, write_position_deletes

SCHEMA = Schema(NestedField(1, "x", LongType(), required=False))


def theirs(file: ContentFile) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent(int(file.content)),
        file_path=file.file_path,
        file_format=FileFormat[file.file_format],
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
    )


@pytest.mark.parametrize("kind", ["file", "partition", "vector"])
def test_pyiceberg_scans_the_rows_that_are_left(tmp_path: Path, kind: str) -> None:
    paths = [f"file://{tmp_path}/{n}.parquet" for n in range(2)]
    table = pa.table(
        [range(1000)], schema=pa.schema([pa.field("x", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    )
    for n in range(2):
        pq.write_table(table, tmp_path / f"{n}.parquet", row_group_size=100)
    targets = [
        (entry(paths[0]), pa.array([999, 0, 100, 500], pa.int64())),
        (entry(paths[1]), pa.array(range(1, 1000), pa.int64())),
    ]
    if kind == "vector":
        deletes = write_vectors(targets, place=Places(tmp_path), filesystem=LOCAL)
    else:
        deletes = write_position_deletes(
            targets, place=Places(tmp_path), filesystem=LOCAL, granularity=DeleteGranularity(kind)
        )
    tasks = [
        FileScanTask(
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=path,
                file_format=FileFormat.PARQUET,
                record_count=1000,
                file_size_in_bytes=1,
            ),
            delete_files={theirs(file) for file in deletes},
        )
        for path in paths
    ]
    for task in tasks:
        task.file.spec_id = 0
    metadata = new_table_metadata(
        SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, f"file://{tmp_path}"
    )
    scan = ArrowScan(metadata, PyArrowFileIO(), metadata.schema(), AlwaysTrue())
    rows = scan.to_table(tasks)["x"].to_pylist()
    left = [n for n in range(1000) if n not in (999, 0, 100, 500)]
    assert rows == [*left, 0]
