"""Which cases of a test ``make test`` runs: few, and such that they show many values of its parameters.

A test of five operations and four types has twenty cases, of which five show every operation and every type;
the contract multiplies that by its lakes. ``INTARSIA_TESTS=all`` (``make test-all``) runs all cases; a call
of pytest that names a case (``tests/unit/test_x.py::test_y[z]``) runs what it names.
"""

from __future__ import annotations

import inspect
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import pytest

EVERYTHING = os.environ.get("INTARSIA_TESTS") == "all"

if EVERYTHING:
    os.environ.setdefault("INTARSIA_SPARK", "full")
    os.environ.setdefault("INTARSIA_CRASH", "sample")

WHOLE = ("tests/unit/", "tests/spec/", "tests/docs/", "tests/cluster/", "tests/kafka/")
"""Every case of these is run: they take milliseconds, or are few, or have targets of their own."""
MOST = {
    "tests/bad_input/": 4,
    "tests/crash/": 3,
    "tests/cross/": 3,
    "tests/duckdb/": 4,
    "tests/iceberg/": 4,
    "tests/pipeline/": 4,
    "tests/spark/": 2,
    "tests/stores/": 4,
}
"""So many cases of a test at most, where one takes long. Elsewhere every value of a parameter is shown."""
SPARK_COSTS = 10
"""A case on Spark takes as long as so many others; what these show is left to them."""

Value = tuple[str, Hashable]


def is_case(item: pytest.Item) -> bool:
    """Whether the marks ``only(condition, reason)`` have it; the condition is given the parameters it names.

    A test that skips itself would be a case that was chosen, and shows nothing.
    """
    parts = getattr(item, "callspec", None)
    for mark in item.iter_markers("only"):
        condition, _ = mark.args
        if not condition(**{name: parts.params[name] for name in inspect.signature(condition).parameters}):
            return False
    return True


def sample(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The items to run, in their order, and those that are left for ``make test-all``."""
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    chosen = {case.nodeid for name, cases in tests.items() for case in _choose(name, cases)}
    run = [item for item in items if item.nodeid in chosen]
    return run, [item for item in items if item.nodeid not in chosen]


def _choose(name: str, cases: list[pytest.Item]) -> list[pytest.Item]:
    """The same cases each time, whatever the order they come in."""
    if len(cases) == 1 or name.startswith(WHOLE):
        return cases
    most = next((most for folder, most in MOST.items() if name.startswith(folder)), len(cases))
    return list(_cover(cases, most))


def _cover(cases: list[pytest.Item], most: int) -> Iterator[pytest.Item]:
    """Few cases, and cheap ones, that have every value of every parameter, or many where ``most`` ends it."""
    left = sorted(cases, key=lambda case: zlib.crc32(case.nodeid.encode()))
    values = {case: _get_values(case) for case in left}
    missing = {value for case in left for value in values[case]}
    shown: Counter[Value] = Counter()

    def rate(case: pytest.Item) -> tuple[float, int]:
        new = len(missing.intersection(values[case]))
        seen = sum(shown[value] for value in values[case])
        return new / (SPARK_COSTS if _is_on_spark(case) else 1), -seen

    while missing and most:
        best = max(left, key=rate)
        left.remove(best)
        missing.difference_update(values[best])
        shown.update(values[best])
        most -= 1
        yield best


def _get_values(case: pytest.Item) -> list[Value]:
    parts = getattr(case, "callspec", None)
    return [] if parts is None else [(name, _identify(value)) for name, value in parts.params.items()]


def _identify(value: Any) -> Hashable:
    """What tells a value from others of its parameter; pytest keeps no such thing. Lakes are few kinds."""
    match value:
        case ("spark", str()):
            return "spark"
        case (str(engine), str(table)) if table.startswith("iceberg-"):
            return engine, "iceberg"
    return id(value)


def _is_on_spark(case: pytest.Item) -> bool:
    return case.get_closest_marker("spark") is not None
