"""The rows of one state of a target that another one does not have, on each engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from intarsia.common.lazy import import_optional
from intarsia.core.snapshot import Snapshot
from intarsia.engine_choice import MEMORY_SHARE, read_memory_total
from intarsia.kernel.difference import subtract_rows
from intarsia.kernel.read import SnapshotScan
from intarsia.pipeline.inputs import make_transform, read_snapshot_frame, transform_frame
from intarsia.pipeline.model import Source
from intarsia.pipeline.references import quote_name

__all__ = ["read_difference"]

_QUERY = "SELECT * FROM now EXCEPT ALL SELECT * FROM former"


def read_difference(source: Source, now: Snapshot, before: Snapshot, engine: str, session: Any) -> Any:
    """The transformed rows of ``now`` that are not in ``before``, each as often as there are more of it.

    A DataFrame on Spark, else a list of one stream. Memory: of DuckDB its limit; in process, also where a
    column is of a type that DuckDB does not have, both states.
    """
    names = tuple(now.schema.names)
    if session is not None:
        own, other = (read_snapshot_frame(Source(), state, session, names) for state in (now, before))
        return transform_frame(_subtract_frames(own, other, now.schema), make_transform(source, "parquet"))
    scans = {"now": SnapshotScan(now, names), "former": SnapshotScan(before, names)}
    if engine == "duckdb" and _is_comparable(now.schema):
        run = import_optional("intarsia.engines.duckdb.query").QueryRun
        found = run(_QUERY, scans, params={}, memory_bytes=read_memory_total() // MEMORY_SHARE).open_stream()
        schema = scans["now"].schema
        rows = pa.RecordBatchReader.from_batches(schema, _restore_types(found, schema))
    else:
        rows = subtract_rows(*(_read_table(scan) for scan in scans.values())).to_reader()
    shape = make_transform(source, "parquet")
    made = shape.make_schema(rows.schema)
    return [pa.RecordBatchReader.from_batches(made, shape.transform_batches(rows.schema, rows))]


def _subtract_frames(now: Any, before: Any, schema: pa.Schema) -> Any:
    """The rows of a DataFrame that another one does not have, counted, with their own values.

    ``exceptAll`` gives 0.0 for -0.0, so rows with floats are numbered among their equals and joined instead.
    """
    if not any(pa.types.is_floating(field.type) for field in schema):
        return now.exceptAll(before)
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    number = "__number"
    while number in schema.names:
        number += "_"
    columns = [quote_name(name) for name in schema.names]
    alike = Window.partitionBy(*columns).orderBy(F.lit(0))
    own, other = (
        frame.withColumn(number, F.row_number().over(alike)).alias(alias)
        for frame, alias in ((now, "own"), (before, "other"))
    )
    keys = [F.col(f"own.{name}").eqNullSafe(F.col(f"other.{name}")) for name in (*columns, number)]
    return own.join(other, keys, "left_anti").drop(number)


def _is_comparable(schema: pa.Schema) -> bool:
    """Whether DuckDB compares all columns exactly."""
    is_comparable = import_optional("intarsia.engines.duckdb.sql").is_comparable
    return all(pa.types.is_null(field.type) or is_comparable(field.type) for field in schema)


def _restore_types(rows: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows in the types of the target: DuckDB has one type for several of Arrow's."""
    for batch in rows:
        yield from pa.Table.from_batches([batch]).cast(schema).to_batches()


def _read_table(scan: SnapshotScan) -> pa.Table:
    return pa.Table.from_batches(scan.read_batches(threads=os.cpu_count() or 1), scan.schema)
