"""The Spark engine, through PySpark's DataFrame API."""

from intarsia.engines.spark.engine import SparkEngine

__all__ = ["SparkEngine"]
