"""One operation on a store in memory with a fault at one of its requests, and what has to hold afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from stores_faces import open_memory
from stores_memory import BUCKET, ENDPOINT, Killed, MemoryStore, Process
from tests.fault_points import record_point

import intarsia as it
from intarsia.errors import IntarsiaError
from intarsia.storage import azure, conditional, s3, trial
from intarsia.tables.parquet import ParquetTable

ROOT = "lake/orders"
TARGET = f"{BUCKET}/{ROOT}"
CONTROL = "lake/.orders.intarsia"
HOURS = 7200.0
SAME_FOR_READS = ("kill after", "lost", "late", "500 after", "repeat")
"""Faults that differ from ``kill``, ``timeout``, ``500`` and none only where a request changes something."""

Rows = list[tuple[int, int]]


def orders(rows: Rows) -> pa.Table:
    """``part`` is what some datasets are partitioned by: four ids each."""
    columns = {"id": [n for n, _ in rows], "v": [v for _, v in rows], "part": [n // 4 for n, _ in rows]}
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


BEFORE: Rows = [(n, n % 3) for n in range(12)]


@dataclass(frozen=True)
class Operation:
    """An operation, and the rows after it by a model that knows nothing of files."""

    name: str
    run: Callable[..., Any]
    model: Callable[[Rows], Rows]
    in_place: bool = True
    """Whether somebody who only lists sees every key exactly once at any time."""
    partition_by: str | None = None
    """How its dataset is partitioned."""


def _upsert(new: Rows) -> Callable[[Rows], Rows]:
    return lambda rows: sorted({**dict(rows), **dict(new)}.items())


OPERATIONS = [
    Operation("append", lambda **how: it.write(orders([(50, 1), (51, 1)]), TARGET, **how),
              lambda rows: sorted([*rows, (50, 1), (51, 1)])),
    Operation("merge", lambda **how: it.merge(orders([(1, 7), (5, 7), (50, 7)]), TARGET, on="id", **how),
              _upsert([(1, 7), (5, 7), (50, 7)])),
    Operation("update", lambda **how: it.update(TARGET, {"v": "v + 5"}, "id % 2 = 0", **how),
              lambda rows: [(n, v + 5 if n % 2 == 0 else v) for n, v in rows]),
    Operation("delete", lambda **how: it.delete(TARGET, "id < 6", **how),
              lambda rows: [(n, v) for n, v in rows if n >= 6]),
    Operation("compact", lambda **how: it.compact(TARGET, **how), lambda rows: rows, in_place=False),
    Operation("optimize", lambda **how: it.optimize(TARGET, by=["v", "id"], **how), lambda rows: rows,
              in_place=False),
    Operation("overwrite", lambda **how: it.write(orders([(7, 9)]), TARGET, mode="overwrite", **how),
              lambda rows: [(7, 9)], in_place=False),
    Operation("full_merge", lambda **how: it.merge(orders([(1, 7), (2, 2), (8, 7), (50, 7)]), TARGET, on="id",
                                                   strategy="full_merge", **how),
              lambda rows: [(1, 7), (2, 2), (8, 7), (50, 7)]),
    Operation("deduplicate", lambda **how: it.deduplicate(TARGET, on="v", order_by="id", **how),
              lambda rows: sorted((n, v) for v, n in {v: n for n, v in rows}.items())),
    Operation("overwrite_partitions",
              lambda **how: it.write(orders([(5, 9), (60, 9)]), TARGET, mode="overwrite_partitions", **how),
              lambda rows: sorted([(5, 9), (60, 9), *((n, v) for n, v in rows if n // 4 not in (1, 15))]),
              in_place=False, partition_by="part"),
]  # fmt: skip
BY_NAME = {operation.name: operation for operation in OPERATIONS}
NEXT = Operation(
    "next", lambda **how: it.merge(orders([(90, 9)]), TARGET, on="id", **how), _upsert([(90, 9)])
)


def make_how(process: Process, engine: str = "arrow") -> dict[str, Any]:
    return {"filesystem": open_memory(process), "engine": engine}


def make_server(kind: str = "s3", partition_by: str | None = None) -> MemoryStore:
    """A dataset of three files, made by three commits."""
    server = MemoryStore(kind)
    make_dataset(partition_by, **make_how(Process(server)))
    return server


def make_dataset(partition_by: str | None = None, **how: Any) -> None:
    for first in (0, 4, 8):
        it.write(orders(BEFORE[first : first + 4]), TARGET, partition_by=partition_by, **how)


def lay_out(server: MemoryStore, operation: Operation) -> MemoryStore:
    """The server, or one whose dataset is partitioned as the operation needs it."""
    return server if operation.partition_by is None else make_server(server.kind, operation.partition_by)


@contextmanager
def prepared(*, large: bool = False) -> Iterator[pytest.MonkeyPatch]:
    """The store counts as tried, nobody waits; with ``large``, every file is copied as large ones are."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(conditional.time, "sleep", lambda _: None)
        trial.forget()
        trial.remember(trial.Trial(ENDPOINT, BUCKET))
        if large:
            for client in (s3, azure):  # on GCS all files are alike
                patched.setattr(client, "SMALL", -1)
                patched.setattr(client, "PART", 700)
        yield patched
    trial.forget()


@dataclass(frozen=True)
class Outcome:
    """How an operation ended: acknowledged, with an error that says whether it took effect, or killed."""

    acknowledged: bool = False
    changed: bool | None = None
    shown: str = ""

    @property
    def must(self) -> bool:
        return self.acknowledged or self.changed is True

    @property
    def must_not(self) -> bool:
        return not self.acknowledged and self.changed is False


def carry_out(operation: Operation, process: Process, engine: str = "arrow") -> Outcome:
    try:
        operation.run(**make_how(process, engine))
    except Killed:
        return Outcome(shown="killed")
    except IntarsiaError as error:
        return Outcome(changed=error.changed, shown=f"{type(error).__name__}: {error}")
    except OSError as error:  # of the file system itself
        return Outcome(shown=str(error))
    return Outcome(acknowledged=True)


def read(server: MemoryStore) -> Rows:
    found = it.read(TARGET, filesystem=open_memory(Process(server))).read_all()
    return sorted(zip(*found.select(["id", "v"]).to_pydict().values(), strict=True))


def judge(
    server: MemoryStore, outcome: Outcome, operation: Operation, before: Rows, sender: Process
) -> list[str]:
    """What is wrong after an operation that a fault met, looked at by readers and by the writers after it."""
    after = operation.model(before)
    wrong: list[str] = []
    listed = server.rows(ROOT, "id", "v")
    if operation.in_place:
        keys = [n for n, _ in listed]
        if len(set(keys)) != len(keys) or not {n for n, _ in before} & {n for n, _ in after} <= set(keys):
            wrong.append(f"who only lists sees {listed}")
    if not set(listed) <= {*before, *after}:
        wrong.append(f"rows that nobody wrote: {listed}")
    seen = read(server)
    if seen not in (before, after):
        wrong.append(f"a reader sees half a transaction: {seen}")
    if (outcome.must and seen != after) or (outcome.must_not and seen != before):
        wrong.append(f"a reader sees {seen} after {outcome}")
    NEXT.run(**make_how(Process(server)))
    if sender.late:
        sender.arrive()
        NEXT.run(**make_how(Process(server)))
    committed, not_committed = NEXT.model(after), NEXT.model(before)
    listed = server.rows(ROOT, "id", "v")
    if listed not in (committed, not_committed):
        wrong.append(f"rows were lost or doubled: {listed}")
    if (outcome.must and listed != committed) or (outcome.must_not and listed != not_committed):
        wrong.append(f"there is {listed} after {outcome}")
    if after != before and seen == after and listed != committed:
        wrong.append("what a reader saw is gone")
    return [*wrong, *find_leftovers(server, listed)]


def find_leftovers(server: MemoryStore, listed: Rows) -> list[str]:
    """What is left after the grace, and a recovery."""
    server.clock += HOURS
    ParquetTable(TARGET, filesystem=open_memory(Process(server))).recover()
    wrong = [] if server.rows(ROOT, "id", "v") == listed else ["the sweep has changed rows"]
    kept = (f"{ROOT}/", f"{CONTROL}/log/", f"{CONTROL}/store.json")
    wrong += [f"left: {key}" for key in server.objects if not key.startswith(kept)]
    return wrong + [f"left: an upload to {upload['Key']}" for upload in server.uploads.values()]


def count_requests(server: MemoryStore, operation: Operation, engine: str = "arrow") -> int:
    process = Process(server.copy())
    assert carry_out(operation, process, engine).acknowledged
    return len(process.sent)


def examine(
    server: MemoryStore, operation: Operation, fault: str, at: int, engine: str = "arrow"
) -> list[str]:
    """What is wrong after a fault at one request of an operation.

    It makes no difference to the store whether a request that only reads was carried out.
    """
    mine = server.copy()
    process = Process(mine, at=at, fault=fault)
    outcome = carry_out(operation, process, engine)
    tried = process.sent[at - 1] if at <= len(process.sent) else ""
    if fault in SAME_FOR_READS and tried.startswith(("head", "get", "list")):
        return []
    record_point(server.kind, engine, operation.name, fault)
    where = f"{operation.name}, {fault} at {at} ({tried})"
    found = judge(mine, outcome, operation, BEFORE, process)
    return [f"{where}: {one}" for one in found]
