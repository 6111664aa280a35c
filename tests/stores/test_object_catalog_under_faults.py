"""The catalog that is one object with a fault at every request, with writers in between, and on versitygw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from stores_bucket import KEY, REGION, SECRET, Bucket
from stores_catalog import (
    BEFORE,
    OBJECT,
    OPERATIONS,
    ROWS,
    CatalogOperation,
    append,
    make_server,
    open_catalog,
    read_state,
)
from stores_faults import SAME_FOR_READS, prepared
from stores_memory import FAULTS, Killed, MemoryStore, Process
from tests.fault_points import record_point

from intarsia.errors import NotSupported, StorageError
from intarsia.storage import trial

FULL = os.environ.get("INTARSIA_STORES") == "full"
UNSURE = (CommitStateUnknownException, StorageError, OSError)


@pytest.fixture
def server() -> Iterator[MemoryStore]:
    with prepared():
        yield make_server()


def carry_out(operation: CatalogOperation, process: Process) -> str:
    """How it ended: done, refused (nothing was changed), unsure, or killed."""
    try:
        operation.run(open_catalog(process))
    except Killed:
        return "killed"
    except CommitFailedException:
        return "refused"
    except UNSURE:
        return "unsure"
    return "done"


def examine(server: MemoryStore, operation: CatalogOperation, fault: str, at: int) -> list[str]:
    """What is wrong after a fault at one request: a lost update, half a change, or a wrong answer."""
    mine = server.copy()
    process = Process(mine, at=at, fault=fault)
    ended = carry_out(operation, process)
    tried = process.sent[at - 1] if at <= len(process.sent) else ""
    if fault in SAME_FOR_READS and tried.startswith(("head", "get", "list")):
        return []
    record_point(server.kind, "PyIceberg", "change of the catalog's object", fault)
    where = f"{operation.name}, {fault} at {at} ({tried}), {ended}"
    seen = read_state(mine)
    wrong = [] if seen in (BEFORE, operation.after) else [f"{where}: {seen}"]
    if ended == "done" and seen != operation.after:
        wrong.append(f"{where}: done, and not in effect: {seen}")
    if ended == "refused" and seen != BEFORE:
        wrong.append(f"{where}: refused, and in effect: {seen}")
    open_catalog(Process(mine)).create_namespace("later")
    process.arrive()  # a request that was on its way all the time
    last = read_state(mine)
    if last.pop("later.", None) is None or last not in (BEFORE, operation.after):
        wrong.append(f"{where}: a later change was lost: {last}")
    if (ended == "done" or seen == operation.after) and last != operation.after:
        wrong.append(f"{where}: what was in effect is gone: {last}")
    if ended == "refused" and last != BEFORE:
        wrong.append(f"{where}: refused, and in effect later: {last}")
    return wrong


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_a_fault_at_any_request_leaves_the_old_or_the_new_catalog(
    operation: CatalogOperation, server: MemoryStore
) -> None:
    probe = Process(server.copy())
    assert carry_out(operation, probe) == "done"
    count = len(probe.sent)
    swaps = [n for n, one in enumerate(probe.sent, 1) if one == f"put_object {OBJECT}"]
    assert len(swaps) == 1, "one change is one request that changes the object"
    wrong: list[str] = []
    for place, fault in enumerate(FAULTS):
        points = range(1, count + 1) if FULL else sorted({*swaps, 1 + 5 * place % count})
        for at in points:
            wrong += examine(server, operation, fault, at)
    assert wrong == []


def test_an_answer_that_is_lost_is_found_out_by_reading(server: MemoryStore) -> None:
    operation = OPERATIONS[0]
    probe = Process(server.copy())
    carry_out(operation, probe)
    at = probe.sent.index(f"put_object {OBJECT}") + 1
    for fault in ("lost", "timeout", "500", "500 after", "503", "repeat", "late"):
        process = Process(server.copy(), at=at, fault=fault)
        assert carry_out(operation, process) == "done", fault
        assert read_state(process.server) == operation.after


@pytest.mark.parametrize("operation", OPERATIONS[:3], ids=lambda one: one.name)
def test_a_lost_answer_is_found_out_also_where_others_have_written_since(
    operation: CatalogOperation, server: MemoryStore
) -> None:
    """The put is carried out, its answer is lost, and another writer comes before the object is read."""
    probe = Process(server.copy())
    carry_out(operation, probe)
    at = probe.sent.index(f"put_object {OBJECT}") + 1

    class Overtaken(Process):
        def _fail(self, method: str, given: dict[str, Any]) -> dict[str, Any]:
            self._apply(method, given)
            for number in range(3):
                open_catalog(Process(self.server)).create_namespace(f"other{number}")
            raise TimeoutError

    process = Overtaken(server, at=at, fault="x")
    assert carry_out(operation, process) == "done"
    assert process.sent.count(f"put_object {OBJECT}") == 1, "it is not done again"
    others = {f"other{number}.": [] for number in range(3)}
    assert read_state(server) == {**operation.after, **others}


def test_a_commit_that_others_came_before_is_made_again_and_theirs_stays(server: MemoryStore) -> None:
    operation = OPERATIONS[0]
    probe = Process(server.copy())
    carry_out(operation, probe)
    at = probe.sent.index(f"put_object {OBJECT}") + 1
    process = Process(
        server, at=at, fault="meanwhile", then=lambda: append(open_catalog(Process(server)), 50)
    )
    assert carry_out(operation, process) == "done", "PyIceberg commits again, on top of it"
    assert read_state(server)["shop.orders"] == [1, 2, 3, 50]
    assert process.sent.count(f"put_object {OBJECT}") == 2
    mine = make_server()
    process = Process(
        mine, at=at, fault="meanwhile", then=lambda: open_catalog(Process(mine)).create_namespace("b")
    )
    assert carry_out(operation, process) == "done", "a change of another name is no conflict"
    assert read_state(mine) == {**operation.after, "b.": []}


def test_a_store_that_ignores_conditions_is_refused_and_the_trial_is_noted_in_the_object() -> None:
    trial.forget()
    try:
        with pytest.raises(NotSupported, match="conditional requests cannot be relied on"):
            open_catalog(Process(MemoryStore(heeds=frozenset()))).create_namespace("shop")
        trial.forget()
        server = make_server()
        assert json.loads(server.objects[OBJECT].data)["store"] is not None
        trial.forget()
        process = Process(server)
        open_catalog(process).create_namespace("more")
        assert len(process.sent) == 3, "another process's trial is in the object: head, get and put"
        assert {key.partition("/")[2].partition("/")[0] for key in server.objects} == {"catalog.json", "shop"}
    finally:
        trial.forget()


WRITER = """
import json, sys, pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
settings, first, count = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
catalog = load_catalog("lake", **settings)
for number in range(first, first + count):
    while True:
        try:
            catalog.load_table("shop.orders").append(pa.table({"id": pa.array([number], pa.int64())}))
            break
        except CommitFailedException:
            pass
"""


def test_processes_at_once_on_a_real_server_lose_no_update(lake: Bucket) -> None:
    settings = {
        "py-catalog-impl": "intarsia.tables.iceberg.ObjectCatalog",
        "warehouse": f"s3://{lake.name}/lake",
        "s3.endpoint": lake.endpoint,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.region": REGION,
    }
    catalog = load_catalog("lake", **settings)
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", schema=ROWS.schema)
    count, writers = (20, 4) if FULL else (2, 2)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, json.dumps(settings), str(100 * place), str(count)],
            stderr=subprocess.PIPE,
            env=environment,
            cwd=Path(__file__).parent,
        )
        for place in range(writers)
    ]
    said = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0] * writers, said
    found = sorted(catalog.load_table("shop.orders").scan().to_arrow()["id"].to_pylist())
    assert found == sorted(100 * place + number for place in range(writers) for number in range(count))
    assert SECRET not in json.dumps([key.decode(errors="replace") for key in lake.contents().values()])
