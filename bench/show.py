"""The figures as a table of text: CPU seconds, and everybody else as a multiple of intarsia."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from bench.measure import Measured

NAMES = {
    "floor": "floor",
    "polars": "Polars",
    "duckdb": "DuckDB",
    "deltars": "delta-rs",
    "intarsia": "intarsia",
    "intarsia-duckdb": "on DuckDB",
}


class Figures(Protocol):
    """What a table shows of one contender."""

    @property
    def cpu(self) -> float: ...
    @property
    def right(self) -> bool | None: ...
    @property
    def error(self) -> str: ...


def least(passes: Sequence[Measured]) -> Measured:
    """The pass with the least CPU time; one that went wrong counts before all others."""
    wrong = [one for one in passes if one.error or one.right is False]
    return wrong[0] if wrong else min(passes, key=lambda one: one.cpu)


def line(one: Measured) -> str:
    """One contender's figures."""
    name = f"  {NAMES[one.contender]:9}"
    if one.error:
        return f"{name} failed: {one.error}"
    verdict = {True: "right", False: "WRONG", None: ""}[one.right]
    notes = "  ".join(f"{key} {value}" for key, value in one.notes.items())
    return (
        f"{name}{one.cpu:8.2f} CPU s ({one.system:.2f} system) {one.wall:8.2f} s {one.peak_mb:7.0f} MB"
        f" (+{one.peak_mb - one.before_mb:.0f})  {verdict:5}  {notes}"
    )


def table(
    workloads: Sequence[tuple[str, int]], best: Mapping[tuple[str, str], Figures], contenders: Sequence[str]
) -> str:
    """All workloads, with the rows of each: CPU seconds of each contender and, in brackets, its ratio to
    intarsia."""
    others = [name for name in contenders if name != "intarsia"]
    shown = ["intarsia", *others] if "intarsia" in contenders else others
    head = f"{'CPU s (ratio to intarsia)':32}" + "".join(f"{NAMES.get(name, name):>16}" for name in shown)
    lines = [head, "-" * len(head)]
    for workload, rows in workloads:
        ours = best.get((workload, "intarsia"))
        cells = [_cell(best.get((workload, name)), ours) for name in shown]
        lines.append(f"{workload:14}{rows:>12,} rows{'':1}" + "".join(f"{c:>16}" for c in cells))
    return "\n".join(lines)


def _cell(one: Figures | None, ours: Figures | None) -> str:
    if one is None:
        return "-"
    if one.error or one.right is False:
        return "failed" if one.error else "WRONG"
    if one is ours or ours is None or not ours.cpu or ours.error:
        return f"{one.cpu:.2f}"
    return f"{one.cpu:.2f} ({one.cpu / ours.cpu:.2f})"
