"""Measures intarsia on Spark against Delta Lake and Iceberg on Spark: ``python -m bench.spark --help``."""
