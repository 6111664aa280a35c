"""Plans, results and inspections as plain JSON types, for ``--json``."""

from __future__ import annotations

from typing import Any

from intarsia.common.log import redact
from intarsia.core.inspection import Inspection, PartitionFacts
from intarsia.core.plan import Plan
from intarsia.core.report import MergeResult, as_json

__all__ = ["inspection_to_json", "plan_to_json", "result_to_json"]


def result_to_json(result: MergeResult) -> dict[str, Any]:
    return {**as_json(result), "total": result.total, "changed": result.changed}


def plan_to_json(plan: Plan) -> dict[str, Any]:
    return {
        "operation": plan.operation,
        "path": redact(plan.snapshot.root),
        "engine": plan.engine,
        "version": plan.snapshot.version,
        "source_rows": plan.source_rows,
        "inserted": plan.inserted,
        "updated": plan.updated,
        "deleted": plan.deleted,
        "bytes_to_scan": plan.bytes_to_scan,
        "bytes_to_read": plan.bytes_to_read,
        "bytes_to_write": plan.bytes_to_write,
        "bytes_exact": plan.bytes_exact,
        "new_files": plan.new_files,
        "new_files_exact": plan.new_files_exact,
        "files": [
            {
                "path": plan.snapshot.show_path(entry.file),
                "action": entry.action,
                "reason": entry.reason,
                "rows": entry.file.rows,
                "size_bytes": entry.file.size,
                "hits": entry.hits,
            }
            for entry in plan.files
        ],
        "groups": [
            {
                "files": [plan.snapshot.show_path(file) for file in group.files],
                "rows": group.rows,
                "size_bytes": group.size,
                "outputs": group.outputs,
            }
            for group in plan.groups
        ],
        "notes": list(plan.notes),
    }


def inspection_to_json(inspection: Inspection) -> dict[str, Any]:
    return {
        "path": redact(inspection.root),
        "version": inspection.snapshot.version,
        "files": inspection.files,
        "rows": inspection.rows,
        "size_bytes": inspection.size,
        "average_bytes": inspection.average_size,
        "row_groups": inspection.row_groups,
        "small_files": inspection.small_files,
        "small_bytes": inspection.small_bytes,
        "partition_columns": list(inspection.snapshot.partition_columns),
        "partitions": inspection.partitions,
        "biggest": _partition_to_json(inspection.biggest),
        "smallest": _partition_to_json(inspection.smallest),
        "codecs": list(inspection.codecs),
        "sorting": [{"order": order, "files": files} for order, files in inspection.sorting],
        "columns": [
            {
                "name": column.name,
                "type": str(column.type),
                "size_bytes": column.size,
                "null_fraction": column.null_fraction,
                "codecs": list(column.codecs),
                "int96_files": column.int96_files,
            }
            for column in inspection.columns
        ],
        "details": {word: list(said) for word, said in inspection.snapshot.details},
        "notes": list(inspection.notes),
    }


def _partition_to_json(facts: PartitionFacts | None) -> dict[str, Any] | None:
    if facts is None:
        return None
    values = {name: None if value is None else str(value) for name, value in facts.partition.items()}
    return {"partition": values, "files": facts.files, "rows": facts.rows, "size_bytes": facts.size}
