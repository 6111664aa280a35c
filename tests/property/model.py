"""A table as a plain list of rows, and every operation as the shortest Python that could be right."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from decimal import Decimal
from typing import Any

Row = dict[str, Any]


def canonical(value: Any) -> Any:
    """Equal exactly when two values are the same key."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, Decimal):
        return value.normalize()
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC)
    if isinstance(value, dict):
        return tuple(sorted((name, canonical(item)) for name, item in value.items()))
    if isinstance(value, list):
        return tuple(canonical(item) for item in value)
    return value


def key_of(row: Row, keys: list[str]) -> tuple[Any, ...]:
    return tuple(canonical(row[name]) for name in keys)


def bag(rows: list[Row]) -> Counter[Any]:
    """Rows as a multiset, order forgotten."""
    return Counter(
        tuple(
            sorted(
                (name, type(value).__name__ if value is None else repr(canonical(value)))
                for name, value in row.items()
            )
        )
        for row in rows
    )


def merge(
    target: list[Row], source: list[Row], keys: list[str], strategy: str
) -> tuple[list[Row], dict[str, int]]:
    """The target after a merge, and the counts; source keys are unique."""
    new = {key_of(row, keys): row for row in source}
    present = {key_of(row, keys) for row in target}
    inserted = updated = deleted = 0
    result: list[Row] = []
    for row in target:
        key = key_of(row, keys)
        if key in new and strategy != "insert":
            result.append(new[key])
            updated += 1
        elif key not in new and strategy == "full_merge":
            deleted += 1
        else:
            result.append(row)
    if strategy != "update":
        for row in source:
            if key_of(row, keys) not in present:
                result.append(row)
                inserted += 1
    counts = {"inserted": inserted, "updated": updated, "deleted": deleted, "total": len(result)}
    return result, counts


def deduplicated_source(source: list[Row], keys: list[str], order_by: str | None) -> list[Row]:
    """One row per key: the highest order wins, NULL loses, the last of equals wins."""
    best: dict[Any, Row] = {}
    for row in source:
        key = key_of(row, keys)
        if key not in best or order_by is None or not _less(row[order_by], best[key][order_by]):
            best[key] = row
    return list(best.values())


def _less(left: Any, right: Any) -> bool:
    """Whether left loses against right."""
    if right is None:
        return False
    if left is None:
        return True
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left):
            return False
        if math.isnan(right):
            return True
    return bool(left < right)
