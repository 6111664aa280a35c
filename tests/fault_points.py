"""The fault points of ``make stores`` and ``make crash``, counted by place, engine, operation and fault.

Every process of the run appends what it has tried to the file that INTARSIA_POINTS names; run as a program,
this prints a table of that file.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TRIED: Counter[tuple[str, str, str, str]] = Counter()


def record_point(place: str, engine: str, operation: str, fault: str, *, count: int = 1) -> None:
    """Count faults of an operation, each at one request or call, whose consequences are looked at."""
    _TRIED[place, engine, operation, fault] += count


@contextmanager
def uncounted() -> Iterator[None]:
    """What is tried meanwhile does not count: a control that must fail."""
    before = _TRIED.copy()
    try:
        yield
    finally:
        _TRIED.clear()
        _TRIED.update(before)


def save_points() -> None:
    """Append what this process has tried, in one write."""
    name = os.environ.get("INTARSIA_POINTS")
    if name and _TRIED:
        lines = [json.dumps([*key, count]) for key, count in _TRIED.items()]
        with Path(name).open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    _TRIED.clear()


def make_table(lines: list[str]) -> str:
    """The points as a table of Markdown: a line for each engine and operation, a column for each place."""
    found: Counter[tuple[str, str, str]] = Counter()
    faults: Counter[str] = Counter()
    for place, engine, operation, fault, count in map(json.loads, lines):
        found[engine, operation, place] += count
        faults[fault] += count
    places = sorted({place for _, _, place in found})
    rows = sorted({(engine, operation) for engine, operation, _ in found})
    made = [f"| engine | operation | {' | '.join(places)} |", f"|---|---|{'---|' * len(places)}"]
    for engine, operation in rows:
        counts = (f"{found[engine, operation, place]:,}" for place in places)
        made.append(f"| {engine} | {operation} | {' | '.join(counts)} |")
    by_fault = ", ".join(f"{fault} {count:,}" for fault, count in sorted(faults.items()))
    return "\n".join([*made, "", f"{sum(faults.values()):,} points: {by_fault}"])


if __name__ == "__main__":
    print(make_table(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()))
