"""A plugin that makes collecting cheaper: every worker of ``make test`` collects all tests.

Half of that was to compile the tests, which the workers did side by side, and to look for garbage.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def pytest_collection() -> None:
    """Of what is made here nearly all stays, and the collector would go through it again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was collected stays to the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Each worker begins with another folder: most files are compiled by one and read by the others."""
    report = yield
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    if number and collector.path == TESTS and isinstance(collector, pytest.Directory):
        report.result = rotate(report.result, number / int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Other plugins find the same order in every worker, which xdist asks for."""
    items.sort(key=lambda item: item.path)
    return (yield)


def rotate(folders: list[pytest.Collector], share: float) -> list[pytest.Collector]:
    """The folders from the one on that has ``share`` of all files before it."""
    sizes = [sum(1 for _ in folder.path.rglob("*.py")) for folder in folders]
    first = sum(files < share * sum(sizes) for files in accumulate(sizes))
    return [*folders[first:], *folders[:first]]
