"""Measures changes of an Iceberg table whose spec has evolved: ``python -m bench.iceberg --help``."""
