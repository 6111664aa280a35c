"""This library, through its public calls, on the engine that the job names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq

import intarsia

STRATEGIES = {"upsert": "upsert", "upsert_day": "upsert", "insert": "insert", "sync": "full_merge"}


def prepare(job: dict[str, Any]) -> Callable[[], Any]:
    for name in ("intarsia.api", "pyarrow.acero"):  # what is imported when it is first needed
        importlib.import_module(name)
    target, kind, options = job["target"], job["kind"], _options(job)
    if job["engine"] == "duckdb":
        importlib.import_module("intarsia.engines.duckdb")
    source = _source(job)
    match kind:
        case "plan":
            return lambda: _plan(job, source)
        case "compact":
            return lambda: _notes(intarsia.compact(target, target_mb_per_file=128, **options))
        case "zorder":
            rows = job["file_rows"]
            return lambda: _notes(
                intarsia.optimize(target, by=job["by"], target_rows_per_file=rows, **options)
            )
        case "append":
            return lambda: _notes(intarsia.write(source, target, **options))
        case "delete":
            deletes = intarsia.when_matched().delete()
            return lambda: _notes(intarsia.merge(source, target, on=job["keys"], clauses=deletes, **options))
        case "dedup":
            return lambda: _notes(intarsia.deduplicate(target, on=job["keys"], order_by=job["by"], **options))
        case _:
            return lambda: _notes(
                intarsia.merge(source, target, on=job["keys"], strategy=STRATEGIES[kind], **options)
            )


def _options(job: dict[str, Any]) -> dict[str, Any]:
    options = {"engine": job["engine"]}
    if job["memory_bytes"]:
        sorts = job["kind"] in ("zorder", "dedup")
        if sorts or job["engine"] != "arrow":
            options["memory_bytes"] = job["memory_bytes"]
        if job["source"] or job["engine"] != "arrow":
            options["spool_dir"] = job["spool"]
    return options


def _source(job: dict[str, Any]) -> Any:
    """A table that is there already; where memory counts, a file still to be read; on Spark a DataFrame."""
    if not isinstance(job["engine"], str):
        return job["engine"].read.parquet(job["source"])
    if not job["source"] or job["memory_bytes"]:
        return job["source"]
    return pq.read_table(job["source"])


def _notes(result: Any) -> dict[str, Any]:
    return {
        "rewritten": len(result.rewritten_files),
        "inserted": result.inserted,
        "updated": result.updated,
        "deleted": result.deleted,
    }


def _plan(job: dict[str, Any], source: Any) -> dict[str, Any]:
    plan = intarsia.plan("merge", source, job["target"], on=job["keys"])
    return {"to_rewrite": plan.count("rewrite"), "files": len(plan.files)}
