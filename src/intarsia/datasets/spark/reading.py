"""What :meth:`SparkDatasetIO.read_parquet` gives back; how executors read is in ``frames``."""

from __future__ import annotations

from typing import Any

from intarsia.datasets.reading import Reading, Task, state_of
from intarsia.frames import frame_of
from intarsia.tables.parquet import ParquetTable


def dataset_frame(spark: Any, table: ParquetTable, wanted: Reading, *, tasks: int = 0) -> Any:
    """The rows asked for, of the state that the table has now; nothing but footers is read yet.

    Raises as :func:`intarsia.datasets.reading.read_dataset` does.
    """
    return frame_of(spark, Task.of(state_of(table), wanted), tasks=tasks)
