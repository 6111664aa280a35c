"""Equality deletes as Flink writes them, committed through Iceberg's Java API: Spark never makes any."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.cross.lake import Lake, local


def add_equality_deletes(
    lake: Lake,
    table: str,
    keys: pa.Table,
    *,
    partition: str | None = None,
    spec_id: int | None = None,
    all_partitions: bool = False,
) -> None:
    """Delete the older rows that equal one of ``keys`` in its columns.

    Under the default spec unless ``spec_id`` names one, in one ``partition`` (a path such as
    ``region=us``), or once in each partition that has files of the spec.
    """
    java = lake.java_table(table)
    spec = java.spec() if spec_id is None else java.specs().get(spec_id)
    ids = [java.schema().findField(name).fieldId() for name in keys.column_names]
    delta = java.newRowDelta()
    for tuple_ in _tuples(lake, java, spec) if all_partitions else [partition]:
        delta = delta.addDeletes(_delete_file(lake, java, spec, keys, ids, tuple_))
    delta.commit()


def _delete_file(lake: Lake, java: Any, spec: Any, keys: pa.Table, ids: list[int], partition: Any) -> Any:
    location = f"{java.location()}/data/{uuid.uuid4()}-equality.parquet"
    path = local(location)
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = [
        field.with_metadata({"PARQUET:field_id": str(number)})
        for field, number in zip(keys.schema, ids, strict=True)
    ]
    pq.write_table(keys.cast(pa.schema(fields)), path)
    jvm = lake.spark._jvm
    columns = lake.spark._sc._gateway.new_array(jvm.int, len(ids))
    for place, number in enumerate(ids):
        columns[place] = number
    builder = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(spec).ofEqualityDeletes(columns)
    builder = builder.withPath(location).withFormat("PARQUET").withFileSizeInBytes(path.stat().st_size)
    builder = builder.withRecordCount(keys.num_rows)
    if isinstance(partition, str):
        builder = builder.withPartitionPath(partition)
    elif partition is not None:
        builder = builder.withPartition(partition)
    return builder.build()


def _tuples(lake: Lake, java: Any, spec: Any) -> list[Any]:
    """The distinct partition tuples of the live data files of a spec."""
    found = {}
    tasks = java.newScan().planFiles()
    files = tasks.iterator()
    while files.hasNext():
        task = files.next()
        if task.spec().specId() == spec.specId():
            found[spec.partitionToPath(task.file().partition())] = task.file().partition()
    tasks.close()
    return list(found.values())
