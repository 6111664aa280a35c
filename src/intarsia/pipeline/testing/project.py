"""Writes a small project that runs: a pipeline with a query and a function, its tests and some rows."""

from __future__ import annotations

import importlib.util
import os
from importlib.resources import files
from pathlib import Path
from typing import Literal

from intarsia.errors import InputError, StorageError

__all__ = ["init_project", "list_missing_extras"]

_FILES = {
    "orders.toml": "orders.toml",
    "orders.test.toml": "orders.test.toml",
    "revenue.sql": "revenue.sql",
    "transforms.py": "transforms_@ENGINE@.py.txt",
    "landing/customers.csv": "landing/customers.csv",
    "landing/orders-2025-03-01.csv": "landing/orders-2025-03-01.csv",
    "landing/orders-2025-03-02.csv": "landing/orders-2025-03-02.csv",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
}
"""The files of a project, and those of the package that they are made of."""


def init_project(
    directory: str | os.PathLike[str] = ".", *, engine: Literal["spark", "duckdb"] | None = None
) -> tuple[str, ...]:
    """Write a small project that runs and whose tests pass: ``orders.toml`` and what it reads.

    Nothing is overwritten: where one of the files is there, none is written.

    Args:
        directory: where; it is made if it does not exist.
        engine: what the pipeline runs on; Spark where pyspark is installed, else DuckDB.

    Returns:
        The paths that were written.

    Raises:
        InputError: one of the files is there already.
        StorageError: the directory cannot be written.

    Example:
        >>> from intarsia import pipeline
        >>> pipeline.init_project("shop", engine="duckdb")[0]
        'shop/orders.toml'
        >>> pipeline.run_file("shop/orders.toml", progress=False).ok
        True
    """
    chosen = engine or _choose_engine()
    root = Path(directory)
    there = [name for name in _FILES if os.path.lexists(root / name)]
    if there:
        raise InputError(
            f"{root} has {', '.join(there)} already; nothing was written.",
            path=str(root),
            hint="name another directory.",
        )
    template = files("intarsia.pipeline").joinpath("template")
    try:
        for name, source in _FILES.items():
            text = template.joinpath(source.replace("@ENGINE@", chosen)).read_text(encoding="utf-8")
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            with open(root / name, "x", encoding="utf-8") as file:
                file.write(text.replace("@ENGINE@", chosen))
    except OSError as error:
        raise StorageError(
            f"{root} cannot be written: {error.strerror}", errno=error.errno, path=str(root)
        ) from error
    return tuple(str(root / name) for name in _FILES)


def list_missing_extras(engine: Literal["spark", "duckdb"] | None = None) -> tuple[str, ...]:
    """The extras of intarsia that a new project needs to run and that are not installed."""
    packages = {"pyspark": "spark", "duckdb": "duckdb"}
    needed = {name: extra for name, extra in packages.items() if extra == (engine or _choose_engine())}
    found = {**needed, "sqlglot": "sql"}
    return tuple(extra for name, extra in found.items() if importlib.util.find_spec(name) is None)


def _choose_engine() -> Literal["spark", "duckdb"]:
    return "duckdb" if importlib.util.find_spec("pyspark") is None else "spark"
