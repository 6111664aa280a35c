"""Bin packing of small files into larger ones; sizes in, item numbers out, no file is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from intarsia.errors import InputError

FULL = 0.75
"""An item with this share of a target is large enough: rewriting it would gain little."""

LOOKBACK = 10
"""How many bins stay open while walking the items, so that neighbours end up together."""


@dataclass(slots=True)
class _Bin:
    items: list[int]
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Limit:
    bytes: float
    rows: float

    def fits(self, one: _Bin, other: _Bin) -> bool:
        return one.bytes + other.bytes <= self.bytes and one.rows + other.rows <= self.rows

    def measure_fullness(self, one: _Bin) -> float:
        return max(one.bytes / self.bytes, one.rows / self.rows)


def pack(
    items: Sequence[tuple[int, int]],
    *,
    target_bytes: int | None = None,
    target_rows: int | None = None,
    min_group: int = 2,
) -> list[list[int]]:
    """Groups of item numbers whose sums stay within the targets.

    Items at :data:`FULL` of a target or more are left alone, and so are those that would end up in
    a group of fewer than ``min_group``. Numbers ascend within a group, and groups are in the order
    of their first items.

    Two passes of first-fit. The first walks the items in the order given (files sorted by name
    are often sorted by key) and looks back at the :data:`LOOKBACK` least full bins, as Iceberg's
    bin packing does, so that a group's items were near each other. The second fits together
    whatever of those bins still go together, so no two groups, and no group and single left over,
    could have been one: packing again what came out (as if each group had become one item of its
    sums) finds nothing to do.

    Args:
        items: (bytes, rows) of each item.
        target_bytes: What a group may hold in bytes; None does not limit.
        target_rows: What a group may hold in rows; None does not limit.
        min_group: The smallest group worth a rewrite.

    Raises:
        InputError: no target, or one that is not positive.
    """
    limit = _make_limit(target_bytes, target_rows)
    small = [_Bin([number], size, rows) for number, (size, rows) in enumerate(items)]
    small = [one for one in small if limit.measure_fullness(one) < FULL]
    bins = _pack_first_fit(_pack_first_fit(small, limit, lookback=LOOKBACK), limit, lookback=None)
    groups = [sorted(one.items) for one in bins if len(one.items) >= min_group]
    return sorted(groups)


def _make_limit(target_bytes: int | None, target_rows: int | None) -> _Limit:
    if target_bytes is None and target_rows is None:
        raise InputError("pack: give target_bytes, target_rows or both")
    for name, value in (("target_bytes", target_bytes), ("target_rows", target_rows)):
        if value is not None and value <= 0:
            raise InputError(f"pack: {name} must be greater than 0, not {value}")
    return _Limit(
        float("inf") if target_bytes is None else target_bytes,
        float("inf") if target_rows is None else target_rows,
    )


def _pack_first_fit(items: list[_Bin], limit: _Limit, *, lookback: int | None) -> list[_Bin]:
    """Each item in the first open bin with room; the fullest bin closes when too many are open."""
    closed: list[_Bin] = []
    opened: list[_Bin] = []
    # A bin that has no room for the smallest item still to come is done; this keeps the walk short.
    smallest = _find_smallest_from(items)
    for number, item in enumerate(items):
        for one in opened:
            if limit.fits(one, item):
                one.items += item.items
                one.bytes += item.bytes
                one.rows += item.rows
                break
        else:
            one = _Bin(list(item.items), item.bytes, item.rows)
            opened.append(one)
        if not limit.fits(one, smallest[number + 1]):
            opened.remove(one)
            closed.append(one)
        elif lookback is not None and len(opened) > lookback:
            fullest = max(opened, key=limit.measure_fullness)
            opened.remove(fullest)
            closed.append(fullest)
    return sorted(closed + opened, key=lambda one: one.items[0])


def _find_smallest_from(items: list[_Bin]) -> list[_Bin]:
    """For each position the least bytes and the least rows of the items from there on."""
    least = _Bin([], 0, 0)
    result = [least]
    for item in reversed(items):
        known = len(result) > 1
        least = _Bin(
            [],
            min(least.bytes, item.bytes) if known else item.bytes,
            min(least.rows, item.rows) if known else item.rows,
        )
        result.append(least)
    return result[::-1]
