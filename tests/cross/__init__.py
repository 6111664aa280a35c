"""Iceberg tables between this library, Spark with Iceberg's runtime, PyIceberg and Polars: ``make cross``."""
