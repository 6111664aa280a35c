"""What maintenance did, as the plain dictionaries that the facades return."""

from __future__ import annotations

from collections import Counter
from typing import Any

from intarsia.core.intent import CompactIntent, DeduplicateIntent, OptimizeIntent
from intarsia.core.layout import Layout, read_layout
from intarsia.core.plan import Plan
from intarsia.core.planning import select_files
from intarsia.core.report import MergeResult
from intarsia.core.snapshot import DataFile

Statistics = dict[str, Any]


def make_maintenance_statistics(result: MergeResult) -> Statistics:
    """Files and bytes before and after, counted over the files that ``partition_filter`` selects.

    In a dry run, the numbers after are estimates. ``planned_groups`` lists the files that are (or would be)
    rewritten together.
    """
    plan = result.plan
    assert plan is not None
    assert isinstance(plan.intent, (CompactIntent, OptimizeIntent, DeduplicateIntent))
    chosen = select_files(plan.snapshot, plan.intent.partition_filter)
    touched = [item.file for item in plan.touched if item.action != "keep"]
    files, size = len(chosen), sum(file.size for file in chosen)
    gone, gone_size = len(touched), sum(file.size for file in touched)
    if result.dry_run:
        come = sum(group.outputs for group in plan.groups) + plan.count("rewrite")
        come_size = gone_size
    else:
        new = [entry for entry in result.files if entry.operation in ("inserted", "rewritten")]
        come, come_size = len(new), sum(entry.size_bytes or 0 for entry in new)
    return {
        "before_file_count": files,
        "after_file_count": files - gone + come,
        "before_total_bytes": size,
        "after_total_bytes": size - gone_size + come_size,
        "compacted_file_count": gone,
        "rewritten_bytes": gone_size,
        "compression_codec": plan.intent.options.compression or _find_codec(touched or list(chosen)),
        "dry_run": result.dry_run,
        "planned_groups": _list_groups(plan),
        "total_rows": result.target_count_after,
    }


def _list_groups(plan: Plan) -> list[list[str]]:
    shown = plan.snapshot.show_path
    if plan.groups:
        return [[shown(file) for file in group.files] for group in plan.groups]
    return [[shown(item.file)] for item in plan.touched if item.action != "keep"]


def _find_codec(files: list[DataFile]) -> str:
    """The codec that most of the files have."""
    codecs = [read_layout(file.footer).compression for file in files if file.footer is not None]
    return Counter(codecs).most_common(1)[0][0] if codecs else Layout().compression


def make_optimize_statistics(result: MergeResult) -> Statistics:
    """As :func:`make_maintenance_statistics`, with the sort columns and the number of deduplicated rows."""
    intent = result.plan.intent if result.plan is not None else None
    assert isinstance(intent, OptimizeIntent)
    return {
        **make_maintenance_statistics(result),
        "zorder_columns": list(intent.by),
        "curve": intent.curve,
        "deduplicated": intent.deduplicate,
        "deduplicate_key_columns": list(intent.deduplicate_keys),
        "deduplicated_rows": result.deleted,
    }


def make_deduplicate_statistics(result: MergeResult) -> Statistics:
    """As :func:`make_maintenance_statistics`, with the keys and the number of deduplicated rows."""
    intent = result.plan.intent if result.plan is not None else None
    assert isinstance(intent, DeduplicateIntent)
    return {
        **make_maintenance_statistics(result),
        "key_columns": list(intent.keys),
        "dedup_order_by": list(intent.order_by),
        "deduplicated": True,
        "deduplicated_rows": result.deleted,
        "before_row_count": result.target_count_before,
        "after_row_count": result.target_count_after,
    }
