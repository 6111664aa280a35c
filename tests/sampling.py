"""Which cases of a test are run: few, and such that they show many values of its parameters.

A test of five operations and four types has twenty cases, of which five show every operation and every type;
the contract multiplies that by its lakes. ``INTARSIA_TESTS`` says how many: ``few`` (``make test``), ``more``
(what a change is checked with before it lands), ``all`` (``make test-all``). Each has every test, but for
those marked ``more``. A call that names a case (``pytest tests/unit/test_x.py::test_y[z]``) runs it.
"""

from __future__ import annotations

import inspect
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import pytest

LEVELS = ("few", "more", "all")
LEVEL = os.environ.get("INTARSIA_TESTS") or "few"
if LEVEL not in LEVELS:
    raise pytest.UsageError(f"INTARSIA_TESTS is {LEVEL!r}; it can be {', '.join(LEVELS)}")
FEW, EVERYTHING = LEVEL == "few", LEVEL == "all"

if EVERYTHING:
    os.environ.setdefault("INTARSIA_SPARK", "full")
    os.environ.setdefault("INTARSIA_CRASH", "sample")

WHOLE = ("tests/unit/", "tests/spec/", "tests/docs/", "tests/cluster/", "tests/kafka/")
"""Every case of these is run: they take milliseconds, or are few, or have targets of their own."""
ON_ONE_ENGINE = ("tests/unit/", "tests/spec/")
"""Of these a row of a table of cases is run with one engine each, where few are run."""
ENGINES = ("engine", "io")
"""Parameters that are one."""
MOST = {
    # What must be found: each has a rule of a protocol left out.
    "tests/crash/test_kill_sweep.py::test_the_sweep_catches": {"few": 2, "more": 5},
    "tests/crash/test_power_loss.py::test_the_model_catches": {"few": 2, "more": 8},
    "tests/crash/test_power_loss.py::test_without": {"few": 10, "more": 10},
    "tests/stores/test_commit_model.py::test_without": {"few": 1, "more": 9},
    "tests/bad_input/": {"few": 2, "more": 4},
    "tests/crash/": {"few": 2, "more": 3},
    "tests/cross/": {"few": 1, "more": 3},
    "tests/duckdb/": {"few": 2, "more": 4},
    "tests/iceberg/": {"few": 2, "more": 4},
    "tests/pipeline/": {"few": 1, "more": 4},
    "tests/spark/": {"few": 1, "more": 2},
    "tests/stores/": {"few": 1, "more": 4},
}
"""So many cases of a test at most, where one takes long. Elsewhere every value of a parameter is shown."""
SPARK_COSTS = 10
"""A case on Spark takes as long as so many others; what these show is left to them."""

Value = tuple[str, Hashable]


def choose_number(few: int, more: int) -> int:
    """How many examples or points a test takes that has a sweep within."""
    return few if FEW else more


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


def sample(items: Sequence[pytest.Item], level: str = LEVEL) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The items to run, in their order, and those that are left for other levels."""
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if level != "few" or item.get_closest_marker("more") is None:
            tests[_get_test(item)].append(item)
    lakes = _choose_lakes(items) if level == "few" else None
    chosen = {case.nodeid for name, cases in tests.items() for case in _choose(name, cases, level, lakes)}
    if level == "more":  # what is checked so is no surprise in make test
        chosen.update(item.nodeid for item in sample(items, "few")[0])
    run = [item for item in items if item.nodeid in chosen]
    return run, [item for item in items if item.nodeid not in chosen]


def _choose(
    name: str, cases: list[pytest.Item], level: str, lakes: set[tuple[str, str, str]] | None
) -> list[pytest.Item]:
    """The same cases each time, whatever the order they come in."""
    if level == "few" and name.startswith(ON_ONE_ENGINE):
        cases = list(_choose_engines(cases))
    if len(cases) == 1 or name.startswith(WHOLE):
        return cases
    most = next((most[level] for folder, most in MOST.items() if name.startswith(folder)), len(cases))
    values = {case: _get_values(case, lakes) for case in _sort(cases)}
    return list(_cover(values, most))


def _choose_engines(cases: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Of cases that differ by their engine alone, one: sometimes this engine, sometimes that."""
    seen = set()
    for case in _sort(cases):
        params = getattr(case, "callspec", None)
        row = frozenset((n, id(v)) for n, v in params.params.items() if n not in ENGINES) if params else case
        if row not in seen:
            seen.add(row)
            yield case


def _choose_lakes(items: Sequence[pytest.Item]) -> set[tuple[str, str, str]]:
    """Tests that have to show an engine with a kind of table where few are run: of a file one for each."""
    chosen: dict[tuple[str, str, str], str] = {}
    for item in _sort(items):
        for engine, kind in _get_lakes(item):
            chosen.setdefault((item.nodeid.partition("::")[0], engine, kind), _get_test(item))
    return {(test, engine, kind) for (_, engine, kind), test in chosen.items()}


def _get_lakes(case: pytest.Item) -> list[tuple[str, str]]:
    parts = getattr(case, "callspec", None)
    values = () if parts is None else parts.params.values()
    return [(value[0], _get_kind(value[1])) for value in values if _is_lake(value)]


def _cover(values: dict[pytest.Item, list[Value]], most: int) -> Iterator[pytest.Item]:
    """Few cases, and cheap ones, that have every value of every parameter, or many where ``most`` ends it."""
    left = list(values)
    missing = {value for case in left for value in values[case]}
    shown: Counter[Value] = Counter()

    def rate(case: pytest.Item) -> tuple[float, int]:
        new = len(missing.intersection(values[case]))
        seen = sum(shown[value] for value in values[case])
        return new / (SPARK_COSTS if _is_on_spark(case) else 1), -seen

    if not missing:
        yield min(left, key=_is_on_spark)
    while missing and most:
        best = max(left, key=rate)
        left.remove(best)
        missing.difference_update(values[best])
        shown.update(values[best])
        most -= 1
        yield best


def _get_values(case: pytest.Item, lakes: set[tuple[str, str, str]] | None) -> list[Value]:
    parts = getattr(case, "callspec", None)
    if parts is None:
        return []
    if lakes is None:
        return [(name, _identify(value)) for name, value in parts.params.items()]
    return [
        found for name, value in parts.params.items() for found in _identify_few(case, name, value, lakes)
    ]


def _identify(value: Any) -> Hashable:
    """What tells a value from others of its parameter; pytest keeps no such thing. Lakes are few kinds."""
    match value:
        case ("spark", str()):
            return "spark"
        case (str(engine), str(table)) if table.startswith("iceberg-"):
            return engine, "iceberg"
    return id(value)


def _identify_few(
    case: pytest.Item, name: str, value: Any, lakes: set[tuple[str, str, str]]
) -> Iterator[Value]:
    """As above; of lakes every engine but Spark and every kind of table, and those that were chosen."""
    if not _is_lake(value):
        yield name, _identify(value)
        return
    engine, kind = value[0], _get_kind(value[1])
    if engine != "spark":
        yield f"engine of {name}", engine
        yield f"table of {name}", kind
    if (_get_test(case), engine, kind) in lakes:
        yield name, (engine, kind)


def _is_lake(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and value[0] in ("arrow", "duckdb", "spark")


def _get_kind(table: str) -> str:
    return table.partition("-")[0]


def _get_test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _sort(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    """In an order that is none, and the same each time."""
    return sorted(cases, key=lambda case: zlib.crc32(case.nodeid.encode()))


def _is_on_spark(case: pytest.Item) -> bool:
    return case.get_closest_marker("spark") is not None
