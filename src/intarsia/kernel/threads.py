"""Work in a few threads, with results in order; PyArrow releases the GIL while it works."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_in_order(
    work: Callable[[T], R], items: Iterable[T], *, threads: int, ahead: int | None = None
) -> Generator[R, None, None]:
    """``map`` in some threads; at most one result per thread, or ``ahead`` results, are made in advance.

    Memory: these results. After an error, or if the caller stops iterating, no further item is started.
    """
    if threads <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > (threads if ahead is None else ahead):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def split_by_weight(items: Sequence[T], weights: Sequence[int], count: int) -> list[list[T]]:
    """Consecutive items in at most ``count`` lists of about equal weight, none of them empty."""
    target = max(sum(weights) / max(count, 1), 1)
    found: list[list[T]] = []
    reached = -1
    passed = 0.0
    for item, weight in zip(items, weights, strict=True):
        number = min(int((passed + weight / 2) / target), count - 1)
        if number > reached:
            found.append([])
            reached = number
        found[-1].append(item)
        passed += weight
    return found


def share_threads(threads: int, tasks: int) -> tuple[int, int]:
    """How many tasks run at once, and how many threads each of them may use."""
    outer = max(1, min(threads, tasks))
    return outer, max(1, threads // outer)
