"""One state of a Parquet dataset as a Spark DataFrame: executors read the files with the Arrow kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from intarsia.common.schema import conform_table
from intarsia.core.files import DataFile
from intarsia.datasets.reading import Reading, Task, state_of
from intarsia.engines.spark import SparkEngine
from intarsia.engines.spark.carry import carrier
from intarsia.engines.spark.crew import balanced, opened, packed
from intarsia.errors import CommitConflict, DamagedTable, StorageError
from intarsia.storage import open_storage
from intarsia.tables.parquet import ParquetTable

BATCH_ROWS = 1 << 16


def dataset_frame(spark: Any, table: ParquetTable, wanted: Reading, *, tasks: int = 0) -> Any:
    """The rows asked for, of the state that the table has now; nothing but footers is read yet.

    Raises as :func:`intarsia.datasets.reading.read_dataset` does.
    """
    task = Task.of(state_of(table), wanted)
    exact, sent = (
        pa.schema([field.with_type(shown_as(field.type, time)).with_nullable(True) for field in task.schema])
        for time in (pa.time64("us"), _time_of_day(spark))
    )
    spark_schema = from_arrow_schema(sent, prefer_timestamp_ntz=True)
    files = task.files()
    if not files:
        return spark.createDataFrame([], spark_schema)
    shares = balanced([file.size or file.rows for file, _ in files], SparkEngine(spark, tasks).crew.tasks)
    light = replace(task, snapshot=replace(task.snapshot, files=()))
    parcel = Shelf(
        packed((light, exact, sent)),
        tuple(packed([files[number] for number in share]) for share in shares),
    )
    return spark.range(0, len(shares), 1, len(shares)).mapInArrow(parcel.rows, spark_schema)


def _time_of_day(spark: Any) -> pa.DataType:
    """What times of day travel as: Spark's own type, where it is switched on, else microseconds."""
    has_times = str(spark.conf.get("spark.sql.timeType.enabled", "false")).lower() == "true"
    return pa.time64("ns") if has_times else pa.int64()


def shown_as(kind: pa.DataType, time: pa.DataType) -> pa.DataType:
    """The type that Spark shows a column in: what it stands for, where the engine's need only carry it.

    ``time`` stands for times of day, which Spark has to the microsecond, and not everywhere.
    """
    is_ = pa.types
    if is_.is_dictionary(kind):
        return shown_as(kind.value_type, time)
    if isinstance(kind, pa.BaseExtensionType):
        return shown_as(kind.storage_type, time)
    if is_.is_uint8(kind):
        return pa.int16()
    if is_.is_uint16(kind):
        return pa.int32()
    if is_.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if is_.is_duration(kind):
        return pa.duration("us")
    if is_.is_time(kind):
        return time
    if is_.is_null(kind):
        return kind
    if is_.is_struct(kind):
        return pa.struct([field.with_type(shown_as(field.type, time)) for field in kind])
    if is_.is_map(kind):
        return pa.map_(shown_as(kind.key_type, time), shown_as(kind.item_type, time))
    if is_.is_nested(kind):
        return pa.list_(shown_as(kind.value_type, time))
    return carrier(kind)


@dataclass(frozen=True, slots=True)
class Shelf:
    """All files of a reading; a Spark task opens its own share only."""

    common: bytes
    shares: tuple[bytes, ...]

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs in the Python worker of a task; memory: a piece of one file."""
        task, exact, sent = opened(self.common)
        for batch in batches:
            for share in batch.column(0).to_pylist():
                for item in opened(self.shares[share]):
                    yield from _file_rows(task, item, exact, sent)


def _file_rows(task: Task, item: Any, exact: pa.Schema, sent: pa.Schema) -> Iterator[pa.RecordBatch]:
    file: DataFile = item[0]
    try:
        for piece in task.pieces(item):
            _check_same(task, file)  # after opening: what is open is then what was planned on
            shown = conform_table(piece, exact, operation="read_parquet", path=file.path)
            yield from shown.cast(sent).to_batches(max_chunksize=BATCH_ROWS)
    except (DamagedTable, StorageError):
        _check_same(task, file)  # unreadable, or merely replaced?
        raise


def _check_same(task: Task, file: DataFile) -> None:
    """Raise CommitConflict once another file has taken the place of the one that is to be read."""
    if not file.fingerprint:  # a file on its own
        return
    storage, path = open_storage(file.location, filesystem=task.snapshot.filesystem)
    found = storage.stat(path)
    if found is None or found.fingerprint != file.fingerprint:
        raise CommitConflict(
            f"{task.snapshot.shown(file)} was replaced or removed since read_parquet was called.",
            path=task.snapshot.root,
            hint="call read_parquet again, or keep the rows (cache, checkpoint) before the dataset changes.",
        )
