"""This library, through its public calls with default options."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq

import intarsia

STRATEGIES = {"upsert": "upsert", "upsert_day": "upsert", "insert": "insert", "sync": "full_merge"}


def prepare(job: dict[str, Any]) -> Callable[[], Any]:
    importlib.import_module("intarsia.api")
    target, kind = job["target"], job["kind"]
    source = pq.read_table(job["source"]) if job["source"] else None
    match kind:
        case "plan":
            return lambda: _plan(job, source)
        case "compact":
            return lambda: _notes(intarsia.compact(target, target_mb_per_file=128))
        case "zorder":
            return lambda: _notes(
                intarsia.optimize(target, by=job["by"], target_rows_per_file=job["file_rows"])
            )
        case "dedup":
            return lambda: _notes(intarsia.deduplicate(target, on=job["keys"], order_by=job["by"]))
        case _:
            return lambda: _notes(intarsia.merge(source, target, on=job["keys"], strategy=STRATEGIES[kind]))


def _notes(result: Any) -> dict[str, Any]:
    return {
        "rewritten": len(result.rewritten_files),
        "inserted": result.inserted,
        "updated": result.updated,
        "deleted": result.deleted,
    }


def _plan(job: dict[str, Any], source: Any) -> Callable[[], dict[str, Any]]:
    intarsia.plan("merge", source, job["target"], on=job["keys"])
    return lambda: _footer_reads(job, source)


def _footer_reads(job: dict[str, Any], source: Any) -> dict[str, Any]:
    """How often a footer is read, and how much of the time that takes; by planning once more."""
    footers: Any = importlib.import_module("intarsia.tables.parquet.footers")
    opened, read = pq.ParquetFile.__init__, footers.read_footer
    count, seconds = 0, 0.0

    def counting(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal count
        count += kwargs.get("metadata") is None
        opened(self, *args, **kwargs)

    def timing(*args: Any, **kwargs: Any) -> Any:
        nonlocal seconds
        started = time.perf_counter()
        try:
            return read(*args, **kwargs)
        finally:
            seconds += time.perf_counter() - started

    pq.ParquetFile.__init__, footers.read_footer = counting, timing
    started = time.perf_counter()
    try:
        plan = intarsia.plan("merge", source, job["target"], on=job["keys"])
    finally:
        pq.ParquetFile.__init__, footers.read_footer = opened, read
    whole = time.perf_counter() - started
    return {"footer_reads": count, "files": len(plan.files), "footer_share": round(seconds / whole, 2)}
