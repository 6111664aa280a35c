"""A merge on a session whose executors run the Python of PYSPARK_PYTHON; prints the error that it ends in.

With "own" the session is not one of ours, and Spark takes the python3 of the search path where none is named.
"""

from __future__ import annotations

import sys

import pyarrow as pa
from pyspark.sql import SparkSession

import intarsia as it
from intarsia.errors import IntarsiaError
from intarsia.spark import local_session


def main(path: str, *, own: bool) -> None:
    it.write(pa.table({"id": [1, 2], "v": ["a", "b"]}), path)
    if own:
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    else:
        spark = local_session(master="local[1]", config={"spark.driver.memory": "512m"})
    try:
        it.merge(spark.range(3).selectExpr("id", "'c' v"), path, on="id")
    except IntarsiaError as error:
        print(type(error).__name__, error.changed, type(error.__cause__).__name__, error, sep="|")
    else:
        print(it.read(path).read_all().num_rows, "rows")


if __name__ == "__main__":
    main(sys.argv[1], own="own" in sys.argv)
