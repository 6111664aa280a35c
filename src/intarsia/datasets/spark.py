"""Parquet datasets on Spark, through a session that is the caller's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from intarsia.common.log import get_logger, operation_log
from intarsia.datasets.io import DatasetIO
from intarsia.datasets.options import DatasetPath, Filters
from intarsia.datasets.reading import DatasetScan, ReadRequest, read_snapshot
from intarsia.engine_choice import SessionLike
from intarsia.errors import InputError
from intarsia.options import Columns, IOOptions
from intarsia.request import show_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SparkDatasetIO"]

log = get_logger(__name__)


class SparkDatasetIO(DatasetIO):
    """Parquet datasets on the executors of a Spark session, classic or Connect.

    The methods, results and errors are those of the other engines; only :meth:`read_parquet` gives a
    Spark DataFrame. The session stays the caller's: it is neither stopped nor changed.

    Args:
        spark: the session.
        filesystem: the pyarrow or fsspec file system that all paths are on; None for local paths and
            URLs. Executors must reach it as well.
        options: for every call, such as ``tasks``, ``broadcast_bytes`` or ``spool_dir``; a call's own
            options win.

    Raises:
        InputError: this is no session, or an option of another engine.

    Example:
        >>> import pyarrow as pa
        >>> from intarsia.datasets.spark import SparkDatasetIO
        >>> from intarsia.spark import local_session
        >>> io = SparkDatasetIO(local_session())
        >>> io.merge(pa.table({"id": [3], "n": ["c"]}), "lake/orders", "upsert", ["id"]).inserted
        1
    """

    engine = "spark"
    backend = "spark"

    def __init__(self, spark: SessionLike, filesystem: Any = None, **options: Unpack[IOOptions]) -> None:
        if not hasattr(spark, "createDataFrame"):
            raise InputError(
                f"SparkDatasetIO needs a SparkSession, not {type(spark).__name__}.",
                hint="pass the session, such as intarsia.spark.local_session().",
            )
        super().__init__(filesystem, **options)
        self.spark = spark
        self._options["engine"] = spark

    def read_parquet(
        self,
        path: DatasetPath,
        *,
        columns: Columns | None = None,
        filters: Filters | None = None,
        include_file_path: bool = False,
        use_threads: bool = True,
        batch_rows: int | None = None,
        dialect: str | None = None,
    ) -> DataFrame:
        """One consistent state of a dataset, or a single file, as a Spark DataFrame.

        The state is that of the call. Spark reads it whenever the DataFrame is evaluated, and refuses
        once a file has been replaced since, rather than mix two states. Files are read by executors
        as the other engines read them: partition columns have the type they were written with, a
        file's narrower types become the dataset's, and what the filter rules out is not read.

        Types that Spark lacks become the next ones that hold every value: unsigned integers the next
        wider, nanoseconds microseconds (where no value loses any), times of day a number of microseconds
        unless ``spark.sql.timeType.enabled``.

        Args:
            path: path or URL of a dataset or a file.
            columns: the columns to return, in this order; all by default. Others are not read.
            filters: SQL text, tuples as ``pyarrow.parquet`` takes them, or a ``pyarrow.compute``
                expression.
            include_file_path: add ``file_path``, a string column with the path each row is from.
            use_threads: of no effect here.
            batch_rows: read so many rows at once; a row group by default.
            dialect: of SQL text.

        Raises:
            NothingMatched: there is no such path.
            ColumnNotFound: a column that is named is not there.

        Example:
            >>> from intarsia.datasets.spark import SparkDatasetIO
            >>> from intarsia.spark import local_session
            >>> io = SparkDatasetIO(local_session())
            >>> io.read_parquet("lake/orders", columns=["id"], filters="n = 'b'").count()
            1
        """
        from intarsia.frames import make_frame  # needs pyspark

        with operation_log(log, "read_parquet", show_target(path)):
            wanted = ReadRequest(columns, filters, include_file_path, use_threads, batch_rows, dialect)
            scan = DatasetScan.of(read_snapshot(self.table(path)), wanted)
            return make_frame(self.spark, scan, tasks=self._options.get("tasks") or 0)
