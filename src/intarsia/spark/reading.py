"""Parquet datasets and Iceberg tables as lazy DataFrames; how tasks read files is in intarsia.frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from intarsia.arguments import Predicate, list_columns
from intarsia.common.log import get_logger, operation_log
from intarsia.engine_choice import SessionLike
from intarsia.errors import InputError
from intarsia.options import Columns, FrameOptions, TableTarget
from intarsia.request import make_request, show_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["read"]

log = get_logger(__name__)


def read(
    spark: SessionLike,
    target: TableTarget,
    *,
    columns: Columns | None = None,
    where: Predicate | None = None,
    **options: Unpack[FrameOptions],
) -> DataFrame:
    """Read one consistent state of a Parquet dataset or an Iceberg table as a lazy Spark DataFrame.

    The state is that of the call, also while a commit is under way or after a crash that nobody has
    recovered from. Nothing is collected: executors read the files whenever the DataFrame is evaluated, as
    :func:`intarsia.read` reads them. Of an Iceberg table, deletes are applied and columns found by their
    ids. Evaluated after a file of a dataset was replaced, the DataFrame fails, rather than mix two states:
    Spark raises ``USER_RAISED_EXCEPTION`` with the text of CommitConflict, and an operation of intarsia that
    evaluates it raises CommitConflict. Memory: a row group per task.

    Args:
        spark: the session, classic or Connect.
        target: as in :func:`intarsia.merge`. A table without rows gives none, in its schema.
        columns: the columns to return, in this order; all of them if None. Others are not read.
        where: SQL text or a ``pyarrow.compute`` expression; rows for which it is TRUE. Prunes files and row
            groups, which a filter of Spark on the DataFrame cannot.
        options: see :class:`intarsia.options.FrameOptions`.

    Raises:
        NothingMatched: there is no such dataset.
        ColumnNotFound, InputError: a column or ``where`` does not fit the table.
        NotSupported: the session leaves out files that it cannot read (``spark.sql.files.ignore...``).

    Example:
        >>> from intarsia.spark import local_session, read
        >>> read(local_session(), "lake/orders", columns=["n"], where="id < 2").collect()
        [Row(n='a')]
    """
    from intarsia.frames import make_frame  # needs pyspark

    with operation_log(log, "read", show_target(target)):
        if not hasattr(spark, "createDataFrame"):
            raise InputError(
                f"a SparkSession is needed, not {type(spark).__name__}.",
                hint="pass the session first, such as intarsia.spark.local_session(), then the target.",
            )
        request = make_request("read", spark, target, options, sql=(where,))
        scan = request.make_scan(list_columns(columns, "columns"), where)
        return make_frame(spark, scan, tasks=options.get("tasks") or 0, since="it was read")
