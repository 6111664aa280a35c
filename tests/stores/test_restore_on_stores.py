"""Bringing back versions of a dataset on S3 in memory: every version, with faults, with others in between."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest
from stores_faults import (
    CONTROL,
    HOURS,
    NEXT,
    ROOT,
    SAME_FOR_READS,
    TARGET,
    Rows,
    make_how,
    orders,
    prepared,
    read,
)
from stores_memory import FAULTS, Killed, MemoryFileSystem, MemoryStore, Process
from tests.fault_points import record_point

import intarsia as it
from intarsia.errors import CommitConflict, IntarsiaError, RestoreError
from intarsia.tables.parquet import ParquetTable

FULL = os.environ.get("INTARSIA_STORES") == "full"


def make_server() -> tuple[MemoryStore, dict[int, Rows]]:
    """A dataset with commits of every kind, all retained; the rows after each version."""
    server = MemoryStore()
    how: dict[str, Any] = {**make_how(Process(server)), "retain": 20}
    states: dict[int, Rows] = {}
    for step in (
        lambda: it.write(orders([(1, 0), (2, 0)]), TARGET, **how),
        lambda: it.write(orders([(3, 0), (4, 0)]), TARGET, **how),
        lambda: it.merge(orders([(2, 7), (5, 7)]), TARGET, on="id", **how),
        lambda: it.compact(TARGET, **how),
        lambda: it.delete(TARGET, "id < 3", **how),
        lambda: it.delete(TARGET, "true", **how),
        lambda: it.write(orders([(9, 9)]), TARGET, **how),
    ):
        result = step()
        assert result.version is not None
        states[result.version] = read(server)
    return server, states


@pytest.fixture
def retained() -> Iterator[tuple[MemoryStore, dict[int, Rows]]]:
    with prepared():
        yield make_server()


def place(server: MemoryStore, **more: Any) -> dict[str, Any]:
    return {"filesystem": MemoryFileSystem(Process(server, **more))}


def test_every_version_comes_back_under_names_that_nobody_had(
    retained: tuple[MemoryStore, dict[int, Rows]],
) -> None:
    server, states = retained
    for version in (1, 5, 3, 6, 2, 7, 4):
        known = {key for key in server.objects if key.startswith(f"{ROOT}/")}
        told = it.restore(TARGET, version, dry_run=True, **place(server))
        done = it.restore(TARGET, version, **place(server))
        assert read(server) == states[version] == server.rows(ROOT, "id", "v"), version
        assert told.total == done.total == len(states[version])
        assert not known & {path.removeprefix("bucket/") for path in done.inserted_files}
        again = it.restore(TARGET, version, **place(server))
        assert again.changed is False
    it.write(orders([(50, 1)]), TARGET, **make_how(Process(server)))
    assert [one.operation for one in it.history(TARGET, **place(server))][:2] == ["append", "restore"]


def examine(server: MemoryStore, states: dict[int, Rows], version: int, fault: str, at: int) -> list[str]:
    mine = server.copy()
    process = Process(mine, at=at, fault=fault)
    changed: bool | None = None
    done = False
    try:
        it.restore(TARGET, version, filesystem=MemoryFileSystem(process))
        done = True
    except Killed:
        pass
    except IntarsiaError as error:
        changed = error.changed
    except OSError:
        pass
    tried = process.sent[at - 1] if at <= len(process.sent) else ""
    if fault in SAME_FOR_READS and tried.startswith(("head", "get", "list")):
        return []
    record_point(server.kind, "arrow", "restore", fault)
    before, after = states[max(states)], states[version]
    where = f"{fault} at {at} ({tried}), done {done}, changed {changed}"
    seen = read(mine)
    wrong = [] if seen in (before, after) else [f"{where}: a reader sees {seen}"]
    if ((done or changed) and seen != after) or (changed is False and seen != before):
        wrong.append(f"{where}: a reader sees {seen}")
    NEXT.run(**make_how(Process(mine)))
    process.arrive()
    NEXT.run(**make_how(Process(mine)))
    last = mine.rows(ROOT, "id", "v")
    if last not in (NEXT.model(before), NEXT.model(after)) or last != NEXT.model(seen):
        wrong.append(f"{where}: rows were lost or doubled, {last} after {seen}")
    mine.clock += HOURS
    ParquetTable(TARGET, **place(mine)).recover()
    kept = (f"{ROOT}/", f"{CONTROL}/log/", f"{CONTROL}/store.json", f"{CONTROL}/retained/")
    wrong += [f"{where}: left {key}" for key in mine.objects if not key.startswith(kept)]
    return wrong


@pytest.mark.parametrize("version", [3, 6])
def test_a_fault_at_any_request_leaves_the_old_or_the_new_state(
    version: int, retained: tuple[MemoryStore, dict[int, Rows]]
) -> None:
    server, states = retained
    probe = Process(server.copy())
    it.restore(TARGET, version, filesystem=MemoryFileSystem(probe))
    count = len(probe.sent)
    writing = [n for n, one in enumerate(probe.sent, 1) if not one.startswith(("head", "get", "list"))]
    wrong: list[str] = []
    for number, fault in enumerate(FAULTS):
        points = range(1, count + 1) if FULL else {*writing[number % 8 :: 8], 1 + 7 * number % count}
        for at in sorted(points):
            wrong += examine(server, states, version, fault, at)
    assert wrong == []


def test_a_commit_in_between_is_a_conflict(retained: tuple[MemoryStore, dict[int, Rows]]) -> None:
    server, _ = retained
    probe = Process(server.copy())
    it.restore(TARGET, 3, filesystem=MemoryFileSystem(probe))
    at = probe.sent.index(f"put_object {CONTROL}/log/000000000008.json") + 1

    def append() -> None:
        it.write(orders([(60, 6)]), TARGET, **make_how(Process(server)))

    with pytest.raises(CommitConflict):
        it.restore(TARGET, 3, **place(server, at=at, fault="meanwhile", then=append))
    assert read(server) == [(9, 9), (60, 6)]


def test_objects_of_others_are_neither_removed_nor_overwritten(
    retained: tuple[MemoryStore, dict[int, Rows]],
) -> None:
    server, states = retained
    theirs = MemoryFileSystem(Process(server))
    with theirs.open(f"{TARGET}/theirs.parquet", "wb") as sink:
        pq.write_table(orders([(70, 7)]), sink)
    result = it.restore(TARGET, 3, **place(server))
    assert read(server) == sorted([*states[3], (70, 7)])
    assert any("stay as they are" in note for note in result.notes)
    mine = next(key for key in server.objects if key.startswith(f"{ROOT}/part"))
    with theirs.open(f"bucket/{mine}", "wb") as sink:
        pq.write_table(orders([(80, 8)]), sink)
    before = dict(server.objects)
    with pytest.raises(RestoreError, match="another writer has changed"):
        it.restore(TARGET, 1, **place(server))
    assert {key: one.tag for key, one in server.objects.items()} == {
        key: one.tag for key, one in before.items()
    }
