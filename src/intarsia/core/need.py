"""How much memory the work of an operation takes where all of it is held at once; from sizes alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from intarsia.common.source import Source
from intarsia.core.files import DataFile
from intarsia.core.intent import Deduplicate, Intent, Merge, Optimize
from intarsia.core.plan import Plan

__all__ = ["INDEX_BYTES", "plan_bytes", "source_bytes"]

INDEX_BYTES = 40
"""What a row of a source takes in the index of its keys."""


def source_bytes(intent: Intent, source: Source) -> int:
    """A source's rows, in memory or in a spool, and the index of their keys where it has one."""
    index = INDEX_BYTES * source.rows if isinstance(intent, Merge) else 0
    return int(source.table.nbytes) + index


def plan_bytes(plan: Plan) -> int:
    """The rows that are ordered together, or the columns that are compared, decoded as footers tell.

    Nothing for an operation that needs no more than a piece of each file at a time.
    """
    match plan.intent:
        case Optimize():
            return max((sum(map(_decoded, group.files)) for group in plan.groups), default=0)
        case Deduplicate() as intent:
            columns = {*intent.keys, *intent.order_by} if intent.keys else None
            return sum(_decoded(item.file, columns) for item in plan.chosen("scan"))
    return 0


def _decoded(file: DataFile, columns: Collection[str] | None = None) -> int:
    footer = file.footer
    if footer is None:
        return file.size
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    if columns is None:
        return sum(group.total_byte_size for group in groups)
    leaves = _leaves(footer, columns)
    return sum(group.column(leaf).total_uncompressed_size for group in groups for leaf in leaves)


def _leaves(footer: Any, columns: Collection[str]) -> list[int]:
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    return [number for number, path in enumerate(paths) if path.split(".", 1)[0] in columns]
