"""Keeps the bad-input tests complete: every case has a test of its number, or a reason to have none here."""

from __future__ import annotations

import re
from pathlib import Path

CASES = range(1, 96)

NOT_HERE = {
    80: "credentials expire at a request's time; a local disk has none",
    81: "failing and slow requests of an object store; a local disk has none, its errors are cases 67 to 71",
    82: "listings in pages, keys that need URL encoding and directory markers are an object store's",
    83: "versions and delete markers of a bucket are an object store's",
    85: "text handed to Spark; the engine of these tests is PyArrow, which takes none",
}
"""The cases that cannot arise with local Parquet files and the PyArrow engine."""


def covered() -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for module in sorted(Path(__file__).parent.glob("test_*.py")):
        for name in re.findall(r"^def (test_case_\d\d_\w+)\(", module.read_text(), re.MULTILINE):
            found.setdefault(int(name[10:12]), []).append(name)
    return found


def test_every_case_is_tested_or_has_a_reason_not_to_be() -> None:
    assert sorted([*covered(), *NOT_HERE]) == list(CASES)


def test_every_reason_is_a_sentence() -> None:
    assert all(len(reason.split()) > 4 for reason in NOT_HERE.values())


def test_no_two_tests_have_one_name() -> None:
    names = [name for of_case in covered().values() for name in of_case]
    assert len(names) == len(set(names))
