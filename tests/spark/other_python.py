"""A merge on a session whose executors run the Python of PYSPARK_PYTHON; prints the error that it ends in."""

from __future__ import annotations

import sys

import pyarrow as pa

import intarsia as it
from intarsia.errors import IntarsiaError
from intarsia.spark import local_session


def main(path: str) -> None:
    it.write(pa.table({"id": [1, 2], "v": ["a", "b"]}), path)
    spark = local_session(master="local[1]", config={"spark.driver.memory": "512m"})
    try:
        it.merge(spark.range(3).selectExpr("id", "'c' v"), path, on="id")
    except IntarsiaError as error:
        print(type(error).__name__, error.changed, type(error.__cause__).__name__, error, sep="|")


if __name__ == "__main__":
    main(sys.argv[1])
