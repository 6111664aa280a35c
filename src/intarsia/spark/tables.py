"""Tables for those who live in Spark: as lazy DataFrames, and by their name in a session's catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from intarsia.arguments import Predicate, list_columns
from intarsia.common.lazy import import_optional
from intarsia.common.log import get_logger, operation_log
from intarsia.core.ports import Table
from intarsia.engine_choice import SessionLike
from intarsia.errors import InputError
from intarsia.options import Columns, FrameOptions, SparkTableOptions, TableTarget
from intarsia.request import make_request, show_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["read", "spark_table"]

log = get_logger(__name__)

_ATTEMPTS = 20


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
    from intarsia.frames import link_scan, make_frame  # needs pyspark

    with operation_log(log, "read", show_target(target)):
        if not hasattr(spark, "createDataFrame"):
            raise InputError(
                f"a SparkSession is needed, not {type(spark).__name__}.",
                hint="pass the session first, such as intarsia.spark.local_session(), then the target.",
            )
        request = make_request("read", spark, target, options, sql=(where,))
        names, tasks = list_columns(columns, "columns"), options.get("tasks") or 0
        for _ in range(_ATTEMPTS):
            scan = link_scan(request.table, request.make_scan(names, where))
            if scan is not None:
                return make_frame(spark, scan, tasks=tasks, since="it was read", lasting=True)
        # It keeps changing: tasks read it, and refuse a file that is not the one of the state.
        return make_frame(spark, request.make_scan(names, where), tasks=tasks, since="it was read")


def spark_table(
    name: str, *, session: SessionLike | None = None, **options: Unpack[SparkTableOptions]
) -> Table:
    """Open a table of a Spark session's catalog as a target for the other functions.

    Of the session's own catalog that is a Parquet table, managed or external, partitioned or not: operations
    run on its directory, on any engine, and are atomic there. Afterwards new partitions are registered in
    the catalog, those that are gone dropped, and so are statistics that no longer hold; columns of
    ``schema_evolution="add"`` are added to the catalog's table first. Where a process ends before that, the
    next operation on the table does it. Of a catalog of Iceberg (``spark.sql.catalog.<name>``, of type
    ``rest``, or ``jdbc`` on SQLite) it is what :func:`intarsia.iceberg` opens.

    Args:
        name: such as ``"orders"``, ``"lake.orders"`` or ``"catalog.lake.orders"``.
        session: the SparkSession, classic or Connect; the active one, else a new one, if None.
        options: see :class:`intarsia.options.SparkTableOptions`.

    Raises:
        NothingMatched, InputError: there is no such table, or this is no name.
        NotSupported: a view, another format, buckets, partitions with locations outside of the table's
            directory, or a catalog that cannot be opened here; pyspark is not installed.
        SchemaMismatch: raised by operations where files and the catalog declare types that do not fit.

    Example:
        >>> import intarsia as it
        >>> from intarsia.spark import local_session
        >>> session = local_session()
        >>> created = session.sql("create or replace temporary view seen as select 1L as id")
        >>> it.spark_table("seen", session=session)
        Traceback (most recent call last):
        ...
        intarsia.errors.NotSupported: ...seen is a temporary view, which cannot be changed here...
    """
    with operation_log(log, "spark_table", str(name)):
        opened: Table = import_optional("intarsia.catalog_tables").open_spark_table(name, session, **options)
        return opened
