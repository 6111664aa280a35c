"""delta-rs: the same operation on a Delta table made of the same files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake


def prepare(job: dict[str, Any]) -> Callable[[], Any]:
    source: Any = pq.read_table(job["source"]) if job["source"] else None
    target = job["target"]
    predicate = " and ".join(f"t.{key} = s.{key}" for key in job["keys"])
    if job["kind"] == "upsert_day":  # named outright, so that other partitions are not read
        days = ", ".join(f"'{day}'" for day in source["day"].unique().to_pylist())
        predicate += f" and t.day in ({days})"
    match job["kind"]:
        case "compact":
            return lambda: _quiet(DeltaTable(target).optimize.compact(target_size=128 << 20))
        case "zorder":
            return lambda: _quiet(DeltaTable(target).optimize.z_order(job["by"]))
        case "append":
            return lambda: write_deltalake(DeltaTable(target), source, mode="append")
        case "delete":
            return lambda: _quiet(
                DeltaTable(target)
                .merge(source, predicate, source_alias="s", target_alias="t")
                .when_matched_delete()
                .execute()
            )

    def merge() -> None:
        merger = DeltaTable(target).merge(source, predicate, source_alias="s", target_alias="t")
        if job["kind"] != "insert":
            merger = merger.when_matched_update_all()
        merger = merger.when_not_matched_insert_all()
        if job["kind"] == "sync":
            merger = merger.when_not_matched_by_source_delete()
        merger.execute()

    return merge


def _quiet(_: Any) -> None:
    return None
