"""The floor: decode and encode exactly the affected files, with a dictionary only where it pays."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.data import LOW_CARDINALITY

THREADS = 2


def prepare(job: dict[str, Any]) -> Callable[[], Any]:
    target = Path(job["target"])
    files = [target / name for name in job["affected"]]
    out = target.with_name(target.name + "-floor")
    out.mkdir()
    match job["kind"]:
        case "plan":
            every = [str(path) for path in sorted(target.rglob("*.parquet"))]
            return lambda: _footers(every)
        case "insert":
            every = [str(path) for path in sorted(target.rglob("*.parquet"))]
            new = pq.read_table(job["source"])
            return lambda: _insert(every, new.slice(0, new.num_rows // 2), job["keys"], out)
        case _:
            return lambda: _copy(files, out)


def _footers(files: list[str]) -> None:
    for file in files:
        pq.read_metadata(file)


def _insert(files: list[str], new: Any, keys: list[str], out: Path) -> None:
    """Every key of the target is read, and half of the source is written."""
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda file: pq.ParquetFile(file).read(columns=keys, use_threads=False), files))
    pq.write_table(new, out / "new.parquet", compression="snappy", use_dictionary=list(LOW_CARDINALITY))


def _copy(files: list[Path], out: Path) -> None:
    def one(numbered: tuple[int, Path]) -> None:
        number, file = numbered
        table = pq.ParquetFile(file).read(use_threads=False)
        pq.write_table(
            table,
            os.path.join(out, f"{number}.parquet"),
            compression="snappy",
            use_dictionary=list(LOW_CARDINALITY),
            row_group_size=max(table.num_rows, 1),
        )

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, enumerate(files)))
