"""Commits by conditional requests with a fault at every request, on every kind of store in memory.

``make test`` takes a sample of the requests, ``make stores`` (INTARSIA_STORES=full) takes all.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from stores_faces import KINDS, open_memory
from stores_faults import (
    BEFORE,
    BY_NAME,
    NEXT,
    OPERATIONS,
    ROOT,
    TARGET,
    Operation,
    carry_out,
    count_requests,
    examine,
    find_leftovers,
    lay_out,
    make_how,
    make_server,
    orders,
    prepared,
    read,
)
from stores_memory import COPIES, FAULTS, MemoryStore, Process
from tests import sampling
from tests.fault_points import make_table, record_point, uncounted

import intarsia as it
from intarsia.errors import CommitConflict
from intarsia.storage import conditional
from intarsia.tables.parquet.control import Control

FULL = os.environ.get("INTARSIA_STORES") == "full"
OFFSETS = itertools.count()
WAYS = [
    (kind, fault)
    for kind in KINDS
    for fault in (FAULTS if FULL or kind == "s3" else ("kill after", "lost", "late"))
]
EVERYWHERE = pytest.mark.parametrize("server", KINDS, indirect=True)
"""On every kind of store, also where only a sample is taken."""


def sample(count: int, every: int, server: MemoryStore, *, every_in_full: int = 1) -> range:
    """The numbers of the requests to try: all, or every so many, from another one each time."""
    every *= sampling.choose_number(3, 1)
    step = every_in_full if FULL else every if server.kind == "s3" else 3 * every
    return range(1 + next(OFFSETS) % step, count + 1, step)


@pytest.fixture(scope="module", params=KINDS if FULL else ["s3"])
def server(request: pytest.FixtureRequest) -> MemoryStore:
    with prepared():  # for the time of this alone: it outlives the tests
        return make_server(request.param)


@pytest.fixture
def patched(server: MemoryStore) -> Iterator[pytest.MonkeyPatch]:
    with prepared() as found:
        yield found


@pytest.fixture
def control(patched: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with uncounted():
        yield patched


@pytest.fixture
def large(server: MemoryStore) -> Iterator[pytest.MonkeyPatch]:
    with prepared(large=True) as found:
        yield found


@pytest.mark.parametrize(("server", "fault"), WAYS, indirect=["server"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
@pytest.mark.usefixtures("patched")
def test_a_fault_at_a_request_loses_and_doubles_nothing(
    server: MemoryStore, operation: Operation, fault: str
) -> None:
    server = lay_out(server, operation)
    assert server.rows(ROOT, "id", "v") == BEFORE
    count = count_requests(server, operation)
    wrong = [one for at in sample(count, 12, server) for one in examine(server, operation, fault, at)]
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize(("server", "fault"), WAYS, indirect=["server"])
@pytest.mark.parametrize("name", ["merge", "delete", "compact"])
@pytest.mark.usefixtures("large")
def test_a_fault_at_a_request_of_large_files_loses_and_doubles_nothing(
    server: MemoryStore, name: str, fault: str
) -> None:
    operation = BY_NAME[name]
    count = count_requests(server, operation)
    wrong = [one for at in sample(count, 16, server) for one in examine(server, operation, fault, at)]
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize("name", BY_NAME if FULL else ["merge", "delete", "compact"])
@pytest.mark.usefixtures("patched")
def test_the_same_on_duckdb(server: MemoryStore, name: str) -> None:
    operation = BY_NAME[name]
    server = lay_out(server, operation)
    count = count_requests(server, operation, "duckdb")
    wrong = [
        one
        for fault in (FAULTS if FULL else ("kill after", "lost", "late"))
        for at in sample(count, 24, server)
        for one in examine(server, operation, fault, at, "duckdb")
    ]
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize("name", ["append", "merge", "delete", "compact"])
@pytest.mark.usefixtures("patched")
def test_a_recovery_that_is_killed_as_well_loses_and_doubles_nothing(server: MemoryStore, name: str) -> None:
    operation = BY_NAME[name]
    wrong: list[str] = []
    count = count_requests(server, operation)
    for at in sample(count, 8, server):
        crashed = server.copy()
        first = carry_out(operation, Process(crashed, at=at, fault="kill after"))
        again = Process(crashed.copy())
        carry_out(NEXT, again)
        for second in sample(len(again.sent), 16, server, every_in_full=4):
            twice = crashed.copy()
            outcome = carry_out(NEXT, Process(twice, at=second, fault="kill after"))
            record_point(server.kind, "arrow", name, "kill twice")
            NEXT.run(**make_how(Process(twice)))
            listed = twice.rows(ROOT, "id", "v")
            expected = [NEXT.model(operation.model(BEFORE)), NEXT.model(BEFORE)]
            if listed not in expected or (first.must and listed != expected[0]):
                wrong.append(f"{name} killed at {at}, recovery at {second}: {listed} {outcome}")
            wrong += [f"{at} {second} {one}" for one in find_leftovers(twice, listed)]
    assert not wrong, "\n".join(wrong[:5])


PAIRS = [
    ("merge", "merge"),
    ("update", "update"),
    ("append", "compact"),
    ("compact", "append"),
    ("compact", "merge"),
    ("delete", "merge"),
    ("merge", "optimize"),
    ("overwrite", "update"),
]


def _find_lost_updates(server: MemoryStore, first: Operation, second: Operation, at: int) -> list[str]:
    """One writer carries out a whole operation between two requests of another, or while it copies."""
    wrong, tried = _meet(server, first, second, at, "meanwhile")
    if tried.startswith(COPIES):
        wrong += _meet(server, first, second, at, "meanwhile, begun")[0]
    return wrong


def _meet(
    server: MemoryStore, first: Operation, second: Operation, at: int, fault: str
) -> tuple[list[str], str]:
    """What is wrong, and the request at which the two have met."""
    mine = server.copy()
    other: list[Any] = []
    process = Process(mine, at=at, fault=fault, then=lambda: other.append(carry_out(second, Process(mine))))
    outcome = carry_out(first, process)
    listed = mine.rows(ROOT, "id", "v")
    tried = process.sent[at - 1]
    record_point(server.kind, "arrow", f"{first.name} and {second.name}", fault)
    where = f"{first.name} with {second.name} at {at} ({fault}: {tried})"
    if not (outcome.acknowledged and other[0].acknowledged):
        return [f"{where}: {outcome}, {other}"], tried
    legal = (second.model(first.model(BEFORE)), first.model(second.model(BEFORE)))
    wrong = [] if listed in legal else [f"{where}: {listed}"]
    return wrong + find_leftovers(mine, listed), tried


@EVERYWHERE
@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.usefixtures("patched")
def test_two_writers_are_as_one_after_the_other(server: MemoryStore, one: str, other: str) -> None:
    first, second = BY_NAME[one], BY_NAME[other]
    count = count_requests(server, first)
    wrong = [
        text for at in sample(count, 3, server) for text in _find_lost_updates(server, first, second, at)
    ]
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize("other", ["merge", "delete", "compact", "overwrite"])
@pytest.mark.usefixtures("patched")
def test_a_reader_sees_one_state_whatever_is_written_meanwhile(server: MemoryStore, other: str) -> None:
    operation = BY_NAME[other]
    process = Process(server.copy())
    it.read(TARGET, filesystem=open_memory(process)).read_all()
    conflicts = 0
    for at in range(1, len(process.sent) + 1):
        mine = server.copy()
        reader = Process(
            mine, at=at, fault="meanwhile", then=lambda mine=mine: carry_out(operation, Process(mine))
        )
        try:
            found = it.read(TARGET, filesystem=open_memory(reader)).read_all()
        except CommitConflict:
            conflicts += 1
            continue
        rows = sorted(zip(*found.select(["id", "v"]).to_pydict().values(), strict=True))
        assert rows in (BEFORE, operation.model(BEFORE)), (at, reader.sent[at - 1])
    assert conflicts < len(process.sent) / 2, "a reader that has given no row yet begins again"


@pytest.mark.parametrize("other", ["merge", "delete", "compact"])
@pytest.mark.usefixtures("patched")
def test_a_reader_sees_one_state_after_a_writer_died_at_any_request(server: MemoryStore, other: str) -> None:
    operation = BY_NAME[other]
    seen = []
    for at in range(count_requests(server, operation), 0, -sampling.choose_number(3, 1)):
        mine = server.copy()
        carry_out(operation, Process(mine, at=at, fault="kill after"))
        seen.append(read(mine))
        assert seen[-1] in (BEFORE, operation.model(BEFORE)), at
        assert it.snapshot(TARGET, filesystem=open_memory(Process(mine))).rows == len(seen[-1])
    assert seen[-1] == BEFORE
    assert seen[0] == operation.model(BEFORE)


# Requests that are carried out long after they were sent.


def _find_resurrected(server: MemoryStore) -> Iterator[str]:
    """An added file is compacted away, and the request that added it comes late, for each request."""
    operation = BY_NAME["append"]
    for at in range(1, count_requests(server, operation) + 1):
        mine = server.copy()
        process = Process(mine, at=at, fault="late")
        outcome = carry_out(operation, process)
        NEXT.run(**make_how(Process(mine)))
        it.compact(TARGET, **make_how(Process(mine)))
        process.arrive()
        expected = [NEXT.model(operation.model(BEFORE)), NEXT.model(BEFORE)]
        if read(mine) not in expected:
            yield f"late {process.sent[at - 1]}: a reader sees {read(mine)}"
        NEXT.run(**make_how(Process(mine)))
        listed = mine.rows(ROOT, "id", "v")
        if listed not in expected or (outcome.must and listed != expected[0]):
            yield f"late {process.sent[at - 1]}: {listed}"


@pytest.mark.usefixtures("patched")
def test_a_file_that_a_late_request_brings_back_is_not_seen_and_is_removed_again(server: MemoryStore) -> None:
    assert not list(_find_resurrected(server))


def test_points_are_counted_by_store_engine_operation_and_fault() -> None:
    lines = ['["s3", "arrow", "merge", "lost", 3]', '["gcs", "arrow", "merge", "503", 1200]']
    table = make_table(lines)
    assert "| arrow | merge | 1,200 | 3 |" in table
    assert "1,203 points: 503 1,200, lost 3" in table


# Negative controls: without one of the rules, the same checks must find something. The first is enough.


def test_without_if_match_the_checks_find_lost_updates(
    server: MemoryStore, control: pytest.MonkeyPatch
) -> None:
    server = replace(server.copy(), ignores=frozenset({"IfMatch"}))
    merge, update = BY_NAME["merge"], BY_NAME["update"]
    count = count_requests(server, merge)
    assert any(_find_lost_updates(server, merge, update, at) for at in range(count, 0, -1))


def test_without_if_none_match_on_slots_the_checks_find_lost_updates(
    server: MemoryStore, control: pytest.MonkeyPatch
) -> None:
    server = replace(server.copy(), ignores=frozenset({"IfNoneMatch"}))
    merge, update = BY_NAME["merge"], BY_NAME["update"]
    count = count_requests(server, merge)
    assert any(_find_lost_updates(server, merge, update, at) for at in range(count, 0, -1))


def test_where_no_answer_counts_as_failed_the_checks_find_doubled_rows(
    server: MemoryStore, control: pytest.MonkeyPatch
) -> None:
    def send_once(send: Callable[[], None], _look: Any, _path: str) -> bool:
        try:
            send()
        except (conditional.ConditionFailed, conditional.Unanswered):
            return False
        return True

    control.setattr(conditional, "_resolve", send_once)
    append = BY_NAME["append"]
    count = count_requests(server, append)
    assert any(examine(server, append, "lost", at) for at in range(count, 0, -1))


def test_without_tombstones_the_checks_find_rows_that_come_back(
    server: MemoryStore, control: pytest.MonkeyPatch
) -> None:
    control.setattr(Control, "read_tombstones", lambda *_: frozenset())
    assert next(_find_resurrected(server), None)


def test_without_finishing_what_others_committed_the_checks_find_it(
    server: MemoryStore, control: pytest.MonkeyPatch
) -> None:
    from intarsia.tables.parquet.slot_journal import SlotJournal

    control.setattr(SlotJournal, "help", lambda *_: [])
    merge = BY_NAME["merge"]
    count = count_requests(server, merge)

    def is_found(at: int) -> bool:
        try:
            return bool(examine(server, merge, "kill after", at))
        except CommitConflict:
            return True

    assert any(is_found(at) for at in range(count, 0, -1))


def test_inserts_of_one_new_key_by_two_writers_make_one_row(
    server: MemoryStore, patched: pytest.MonkeyPatch
) -> None:
    insert = Operation(
        "insert",
        lambda **how: it.merge(orders([(77, 1)]), TARGET, on="id", strategy="insert", **how),
        lambda rows: sorted({**dict(rows), 77: dict(rows).get(77, 1)}.items()),
    )
    for at in range(1, count_requests(server, insert) + 1):
        assert not _find_lost_updates(server, insert, insert, at)
