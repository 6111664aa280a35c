"""The power goes after any call, and of what was not synced any part may be lost: the promises hold."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from crash_model import Model, Rules
from crash_operations import CONTROLS, OPERATIONS, RETAINING, UNSYNCED, Operation
from crash_power import cut_power, cut_power_and_undo
from tests.fault_points import record_point
from tests.sampling import choose_number
from tests.state_search import search

import intarsia

FULL = os.environ.get("INTARSIA_CRASH", "quick") in ("full", "every")
MOST = 1024 if FULL else choose_number(4, 8)
"""States after each call."""

pytestmark = pytest.mark.slow
OPERATION = {operation.name: operation for operation in [*OPERATIONS, *CONTROLS, UNSYNCED]}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    memory = "/dev/shm"  # the model decides what is durable, not the disk
    if not os.access(memory, os.W_OK):
        yield str(tmp_path / "cut")
        return
    made = tempfile.mkdtemp(dir=memory, prefix="intarsia-power-")
    yield f"{made}/cut"
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_power_cut_leaves_the_old_or_the_new_state(operation: Operation, directory: str) -> None:
    found = cut_power(operation, directory, MOST)
    record_point("local", "arrow", operation.name, "power cut", count=found.states)
    assert found.violations == []
    assert found.states > 30


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_power_cut_during_the_recovery_from_a_kill_leaves_the_old_or_the_new_state(
    operation: Operation, directory: str
) -> None:
    found = cut_power(operation, directory, MOST // 4, recovers=True)
    record_point("local", "arrow", operation.name, "kill, then power cut", count=found.states)
    assert found.violations == []
    assert found.states > 30


@pytest.mark.parametrize("recovers", [False, True], ids=["done", "recovered"])
@pytest.mark.parametrize("operation", RETAINING, ids=lambda operation: operation.name)
def test_what_was_acknowledged_can_be_undone_after_a_power_cut(
    operation: Operation, recovers: bool, directory: str
) -> None:
    def undo(root: str) -> None:
        intarsia.restore(root, 0 if operation.before is None else 1)

    most = MOST // 4 if recovers else MOST
    found = cut_power_and_undo(operation, directory, most, undo, recovers=recovers)
    fault = "kill, then power cut" if recovers else "power cut"
    record_point("local", "arrow", operation.name, fault, count=found.states)
    assert found.violations == []
    assert found.states > (30 if recovers else 1)


@pytest.mark.parametrize(
    ("control", "ignored"),
    [
        ("replace and add", ("sync", "sync directory")),
        ("replace and add", ("sync",)),
        ("replace and add", ("sync directory",)),
        ("consume", ()),
        ("remove first", ()),
        ("in place", ()),
        ("side files left", ()),
        ("side files unsynced", ()),
    ],
    ids=[
        "no sync",
        "no file synced",
        "no directory synced",
        "consume",
        "remove first",
        "in place",
        "side files left",
        "side files unsynced",
    ],
)
def test_the_model_catches_a_protocol_that_is_wrong(
    control: str, ignored: tuple[str, ...], directory: str
) -> None:
    found = cut_power(OPERATION[control], directory, 64, ignore=ignored, enough=1)
    assert found.violations != []


def test_the_protocol_holds_in_every_order_of_calls_kills_and_power_cuts() -> None:
    violation, states = search(Model(Rules()))
    assert violation is None
    assert states > 10_000


@pytest.mark.parametrize("rule", [rule.name for rule in fields(Rules) if rule.default is True])
def test_without_one_of_its_rules_the_protocol_does_not_hold(rule: str) -> None:
    violation, _ = search(Model(Rules(**{rule: False})))
    assert violation is not None
