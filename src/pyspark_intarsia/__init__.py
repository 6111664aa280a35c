"""The format "intarsia" of Spark: ``spark.read.format("intarsia")``, ``df.write`` and ``df.writeStream``.

Spark imports every module named ``pyspark_*`` that it finds and registers its ``DefaultSource``; so this one
imports little until the format is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyspark_intarsia.errors import shorten_errors

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Parquet datasets and Iceberg tables as a format of Spark.

    Found by itself where this package is installed beside the driver's pyspark; elsewhere
    ``spark.dataSource.register(pyspark_intarsia.DefaultSource)`` names it. Reading gives one consistent state
    of the table. Writing with the option ``on`` merges, without it appends or overwrites: tasks stage the
    rows, and the driver commits all of them once, or none. A stream is written exactly once.

    Args:
        options: what ``option(...)`` was given, and the path; Spark passes them.

    Raises:
        InputError: no path, an unknown option, or one that does not go with the mode.
        NotSupported: a type that Spark lacks, or more rows than ``max_bytes``, for which there is
            :func:`intarsia.merge`.
        IntarsiaError: as of :func:`intarsia.read`, :func:`intarsia.merge` and :func:`intarsia.write`. Spark
            raises exceptions of its own, whose text ends with the error's.

    Example:
        >>> import os
        >>> from intarsia.spark import local_session
        >>> spark, path = local_session(), os.path.abspath("lake/orders")
        >>> changes = spark.createDataFrame([(2, "b2")], "id long, n string")
        >>> changes.write.format("intarsia").option("on", "id").mode("append").save(path)
        >>> spark.read.format("intarsia").load(path).where("id = 2").collect()
        [Row(id=2, n='b2')]
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "intarsia"

    @shorten_errors
    def schema(self) -> StructType:
        """The columns of the table, in Spark's types; asked once per ``load``."""
        from pyspark_intarsia.reading import infer_schema

        return infer_schema(self.options)

    @shorten_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the state that the table has when a query is planned."""
        from pyspark_intarsia.reading import open_reader

        return open_reader(self.options, schema)

    @shorten_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writes a DataFrame in one commit; refuses what does not fit before rows are computed."""
        from pyspark_intarsia.writing import open_writer

        return open_writer(self.options, schema, overwrite=overwrite)

    @shorten_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Writes a micro-batch in one commit, which records its number."""
        from pyspark_intarsia.writing import open_stream_writer

        return open_stream_writer(self.options, schema, overwrite=overwrite)
