"""Parquet datasets on Spark, through a session that is the caller's own."""

from __future__ import annotations

from intarsia.datasets.spark.io import SparkDatasetIO

__all__ = ["SparkDatasetIO"]
