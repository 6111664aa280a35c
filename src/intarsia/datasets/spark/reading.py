"""What :meth:`SparkDatasetIO.read_parquet` gives back; how executors read is in ``frames``."""

from __future__ import annotations

from typing import Any

from intarsia.datasets.reading import DatasetScan, ReadRequest, read_snapshot
from intarsia.frames import make_frame
from intarsia.tables.parquet import ParquetTable


def dataset_frame(spark: Any, table: ParquetTable, wanted: ReadRequest, *, tasks: int = 0) -> Any:
    """The rows asked for, of the state that the table has now; nothing but footers is read yet.

    Raises as :func:`intarsia.datasets.reading.read_dataset` does.
    """
    return make_frame(spark, DatasetScan.of(read_snapshot(table), wanted), tasks=tasks)
