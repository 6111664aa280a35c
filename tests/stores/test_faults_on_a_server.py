"""Faults at requests to a real server (versitygw), of all engines and any process, Spark's workers too.

The sweep in memory (``test_commits_under_faults.py``) has every request and more kinds of faults; here the
clients are those that people have, with their own repeats. The server is built by ``make stores``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stores_bucket import Bucket, open_impatiently, s3
from stores_faults import (
    BEFORE,
    BY_NAME,
    NEXT,
    OPERATIONS,
    ROOT,
    TARGET,
    Operation,
    Outcome,
    Rows,
    make_dataset,
    orders,
)
from stores_memory import BUCKET
from stores_proxy import FAULTS, FaultyProxy, run_proxy
from tests.fault_points import record_point

import intarsia as it
from intarsia.errors import IntarsiaError
from intarsia.storage import trial

FULL = os.environ.get("INTARSIA_STORES") == "full"
ENGINES = ["arrow", "duckdb", pytest.param("spark", marks=pytest.mark.spark)]
POINTS = {"arrow": 12, "duckdb": 12, "spark": 5} if FULL else {"arrow": 3, "duckdb": 3, "spark": 2}
"""So many requests of an operation meet a fault, evenly chosen."""


@pytest.fixture(scope="module")
def proxy(gateway: int) -> Iterator[FaultyProxy]:
    with run_proxy(gateway) as running:
        yield running


@pytest.fixture(scope="module")
def store(gateway: int) -> Bucket:
    opened = s3(gateway, allow_bucket_creation=True, allow_bucket_deletion=True)
    opened.create_dir(BUCKET)
    return Bucket(gateway, BUCKET, opened)


def reset(store: Bucket, operation: Operation) -> None:
    """Three files by three commits, past the proxy."""
    for key in store.files():
        store.opened.delete_file(f"{BUCKET}/{key}")
    make_dataset(operation.partition_by, filesystem=store.opened)


def carry_out(operation: Operation, how: dict[str, Any]) -> Outcome:
    try:
        operation.run(**how)
    except IntarsiaError as error:
        return Outcome(changed=error.changed, shown=f"{type(error).__name__}: {error}")
    except OSError as error:  # of the file system itself
        return Outcome(shown=str(error))
    return Outcome(acknowledged=True)


def judge(
    store: Bucket, outcome: Outcome, operation: Operation, release: Callable[[], None] = lambda: None
) -> list[str]:
    """What is wrong: to somebody who lists, to a reader, and after the next writer; all past the proxy.

    ``release`` carries out a request that is still on its way, after the next writer and before another.
    """
    after = operation.model(BEFORE)
    wrong: list[str] = []
    listed = store.rows(ROOT, "id", "v")
    keys = [n for n, _ in listed]
    both = {n for n, _ in BEFORE} & {n for n, _ in after}
    if operation.in_place and (len(set(keys)) != len(keys) or not both <= set(keys)):
        wrong.append(f"who only lists sees {listed}")
    seen = _read(store)
    if seen not in (BEFORE, after):
        wrong.append(f"a reader sees half a transaction: {seen}")
    if (outcome.must and seen != after) or (outcome.must_not and seen != BEFORE):
        wrong.append(f"a reader sees {seen} after {outcome}")
    NEXT.run(filesystem=store.opened)
    release()
    NEXT.run(filesystem=store.opened)
    listed = store.rows(ROOT, "id", "v")
    if listed != NEXT.model(seen):
        wrong.append(f"rows were lost, doubled or taken back: {listed}, a reader saw {seen}")
    return wrong


def _read(store: Bucket) -> Rows:
    found = it.read(TARGET, filesystem=store.opened).read_all()
    return sorted(zip(*found.select(["id", "v"]).to_pydict().values(), strict=True))


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
@pytest.mark.parametrize("fault", FAULTS if FULL else ("lost", "500", "expired"))
def test_a_fault_at_a_request_of_any_process_loses_and_doubles_nothing(
    store: Bucket, proxy: FaultyProxy, operation: Operation, fault: str, engine: Any
) -> None:
    named = engine if isinstance(engine, str) else "spark"
    how = {"filesystem": open_impatiently(proxy.port), "engine": engine}
    trial.forget()
    reset(store, operation)
    proxy.arm()
    assert carry_out(operation, how).acknowledged
    assert not judge(store, Outcome(acknowledged=True), operation)
    count = len(proxy.sent)
    wrong = []
    for at in _choose_points(count, POINTS[named]):
        reset(store, operation)
        proxy.arm(at, fault)
        outcome = carry_out(operation, how)
        tried = proxy.sent[at - 1] if at <= len(proxy.sent) else ""
        proxy.arm()
        record_point("versitygw", named, operation.name, fault)
        found = judge(store, outcome, operation, proxy.release)
        wrong += [f"{fault} at {at} ({tried}): {one}" for one in found]
    assert not wrong


def _choose_points(count: int, most: int) -> list[int]:
    return sorted({1 + number * (count - 1) // max(most - 1, 1) for number in range(most)})


def test_what_is_doubled_or_half_done_would_be_found(store: Bucket) -> None:
    """The negative control: the same checks find what a store without a log would have."""
    operation = BY_NAME["merge"]
    reset(store, operation)
    assert judge(store, Outcome(acknowledged=True), operation)
    reset(store, operation)
    it.write(orders([(1, 7)]), TARGET, filesystem=store.opened)
    assert judge(store, Outcome(changed=False), operation)
