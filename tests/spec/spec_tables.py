"""Small tables with a key and a value, and what became of them, for the tests of the seeds' scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa


def table_of(ids: Iterable[int], value: str = "old") -> pa.Table:
    ids = list(ids)
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([value] * len(ids), pa.string())})


def pairs_of(path: Path, rows: Callable[..., Any]) -> list[tuple[int, str]]:
    return [(row["id"], row["v"]) for row in rows(path)]


def bytes_of(path: Path) -> dict[str, bytes]:
    """Every data file and what is in it."""
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*.parquet"))}
