"""The dataset IO of the Spark engine."""

from __future__ import annotations

from typing import Any

from intarsia.common.log import logger, operation_log
from intarsia.datasets.io import Columns, DatasetIO, Path
from intarsia.datasets.reading import ReadRequest
from intarsia.errors import InputError
from intarsia.request import show_target

log = logger(__name__)


class SparkDatasetIO(DatasetIO):
    """Parquet datasets on the executors of a Spark session, classic or Connect.

    The methods, results and errors are those of the other engines; only :meth:`read_parquet` gives a
    Spark DataFrame. The session stays the caller's: it is neither stopped nor changed.

    >>> io = SparkDatasetIO(spark)
    >>> result = io.merge(spark.table("changes"), "lake/orders", "upsert", ["order_id"])

    Args:
        spark: the session.
        filesystem: the pyarrow or fsspec file system that all paths are on; None for local paths and
            URLs. Executors must reach it as well.
        options: for every call, such as ``tasks``, ``broadcast_bytes`` or ``spool_dir``; a call's own
            options win.
    """

    engine = "spark"
    backend = "spark"

    def __init__(self, spark: Any, filesystem: Any = None, **options: Any) -> None:
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
        path: Path,
        *,
        columns: Columns | None = None,
        filters: Any = None,
        include_file_path: bool = False,
        use_threads: bool = True,
        batch_rows: int | None = None,
        dialect: str | None = None,
    ) -> Any:
        """One consistent state of a dataset, or a single file, as a Spark DataFrame.

        The state is that of the call. Spark reads it whenever the DataFrame is evaluated, and refuses
        once a file has been replaced since, rather than mix two states. Files are read by executors
        as the other engines read them: partition columns have the type they were written with, a
        file's narrower types become the dataset's, and what the filter rules out is not read.

        Types that Spark lacks become the next ones that hold every value: unsigned integers the next
        wider, nanoseconds microseconds (where no value loses any), times of day a number of microseconds
        unless ``spark.sql.timeType.enabled``. ``use_threads`` has no meaning here.

        Args and errors as of :meth:`intarsia.datasets.pyarrow.PyarrowDatasetIO.read_parquet`.
        """
        from intarsia.datasets.spark.reading import dataset_frame  # needs pyspark

        with operation_log(log, "read_parquet", show_target(path)):
            wanted = ReadRequest(columns, filters, include_file_path, use_threads, batch_rows, dialect)
            return dataset_frame(self.spark, self.table(path), wanted, tasks=self._options.get("tasks") or 0)
