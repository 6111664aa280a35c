"""Work on executors: jobs travel as bytes, results come back as rows, our errors as themselves.

One stage per call, a few tasks with several jobs each. DataFrame API only, so that Spark Connect works.
"""

from __future__ import annotations

import heapq
import pickle
import sys
import uuid
import zipimport
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import cloudpickle

from intarsia.core.ports import Workplace
from intarsia.engines.spark.apart import Apart, Room, set_apart
from intarsia.errors import IntarsiaError
from intarsia.spark.collecting import collected

J = TypeVar("J")
R = TypeVar("R")

LITTLE_BYTES = 256 << 20
"""So much for one task is over before another could help."""

RESULT = "job long, ok boolean, payload binary"
_SCHEMA = pa.schema([("job", pa.int64()), ("ok", pa.bool_()), ("payload", pa.binary())])


def packed(value: Any) -> bytes:
    """A value, or a function made on the spot, as bytes that a task can open."""
    data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data


def opened(data: bytes) -> Any:
    """What was packed; only ever bytes that went between our own driver and tasks."""
    return pickle.loads(data)


def work_of(data: bytes | Apart) -> Any:
    """What a task is to do; runs in its Python worker."""
    _forget_archives()
    return data.opened() if isinstance(data, Apart) else opened(data)


def _forget_archives() -> None:
    """Let go of importers of zip archives, which come back by themselves when they are needed.

    Before every task Spark's worker has all importers look for new modules, and those of pyspark's own
    archive read its directory anew each time: more than a tenth of a second of a task that may need less.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            sys.path_importer_cache.pop(path, None)


@dataclass(frozen=True, slots=True)
class Crew:
    """The executors of a session."""

    spark: Any
    tasks: int
    """How many tasks a stage gets at most; more than run at once, so that a slow one is no straggler."""
    cores: int = 0
    """How many run at once: enough for little work. 0 leaves it at ``tasks``."""

    def shares(self, weights: Sequence[int]) -> list[list[int]]:
        """Numbers of the weights (bytes), one list per task."""
        little = self.cores and sum(weights) <= self.cores * LITTLE_BYTES
        return balanced(weights, self.cores if little else self.tasks)

    def each(
        self,
        work: Callable[[Any, J], R],
        jobs: Sequence[J],
        *,
        shared: Any,
        weights: Sequence[int],
        room: Room | None = None,
    ) -> list[R]:
        """``work(shared, job)`` for every job, results in the jobs' order.

        ``weights`` (bytes, say) spread the jobs evenly. Arrow data of ``shared`` goes through a file in
        the ``room``, where there is one, instead of through the driver's JVM and into every task. The
        first error of ours is raised as it was; results of attempts that failed or were overtaken never
        reach the driver.
        """
        if not jobs:
            return []
        shares = self.shares(weights)
        parcel = Parcel(
            packed((work, shared)) if room is None else set_apart((work, shared), room),
            tuple(packed([(number, jobs[number]) for number in share]) for share in shares),
        )
        rows = self.spark.range(0, len(shares), 1, len(shares)).mapInArrow(parcel.unpack, RESULT)
        return _in_order(collected(rows), len(jobs))

    def over(self, frame: Any, work: Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]) -> list[Any]:
        """``work`` over the rows of each partition of a DataFrame; what it yields, in no order."""
        rows = frame.mapInArrow(Stream(packed(work)).unpack, RESULT)
        return [opened(payload) for payload in _checked(collected(rows))["payload"].to_pylist()]

    def groups(self, frame: Any, column: str, work: Callable[[pa.Table], Any]) -> list[Any]:
        """``work`` over the rows that share a value of one column; what it returns, in no order."""
        rows = frame.groupBy(column).applyInArrow(_grouped(packed(work)), RESULT)
        return [opened(payload) for payload in _checked(collected(rows))["payload"].to_pylist()]


@dataclass(frozen=True, slots=True)
class Parcel:
    """All jobs of a stage; a task opens its own share only."""

    common: bytes | Apart
    shares: tuple[bytes, ...]

    def unpack(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs in the Python worker of a task."""
        for batch in batches:
            for share in batch.column(0).to_pylist():
                yield from self._done(share)
        _give_back()

    def _done(self, share: int) -> Iterator[pa.RecordBatch]:
        work, shared = work_of(self.common)
        for number, job in opened(self.shares[share]):
            yield _row(number, lambda: work(shared, job))  # noqa: B023  called at once


@dataclass(frozen=True, slots=True)
class Stream:
    """A function over a partition's batches."""

    work: bytes

    def unpack(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs in the Python worker of a task."""
        work = work_of(self.work)
        try:
            for result in work(batches):
                yield _result(0, True, result)
        except IntarsiaError as error:
            yield _result(0, False, error)
        _give_back()


def _give_back() -> None:
    """Let go of memory that Arrow keeps for later: this worker may be idle while others need some."""
    pa.default_memory_pool().release_unused()


def _grouped(work: bytes) -> Callable[[pa.Table], pa.Table]:
    """A function over the rows of a group; of one argument, which Spark counts."""

    def unpack(rows: pa.Table) -> pa.Table:
        call = work_of(work)
        return pa.Table.from_batches([_row(0, lambda: call(rows))])

    return unpack


def _row(number: int, call: Callable[[], Any]) -> pa.RecordBatch:
    try:
        return _result(number, True, call())
    except IntarsiaError as error:
        return _result(number, False, error)


def _result(number: int, ok: bool, value: Any) -> pa.RecordBatch:
    payload = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return pa.RecordBatch.from_arrays(
        [pa.array([number], pa.int64()), pa.array([ok]), pa.array([payload], pa.binary())], schema=_SCHEMA
    )


def _checked(rows: pa.Table) -> pa.Table:
    """The rows, unless one of them is an error."""
    failed = [(job, payload) for job, ok, payload in zip(*rows.to_pydict().values(), strict=True) if not ok]
    if failed:
        raise opened(min(failed)[1])
    return rows


def _in_order(rows: pa.Table, count: int) -> list[Any]:
    done = _checked(rows).to_pydict()
    results = dict(zip(done["job"], done["payload"], strict=True))
    if len(done["job"]) != count or len(results) != count:
        raise RuntimeError(f"Spark gave {len(done['job'])} results of {count} jobs")
    return [opened(results[number]) for number in range(count)]


def balanced(weights: Sequence[int], shares: int) -> list[list[int]]:
    """Numbers of the weights in at most so many shares of about equal weight, none of them empty."""
    count = max(1, min(shares, len(weights)))
    heap = [(0, number) for number in range(count)]
    result: list[list[int]] = [[] for _ in range(count)]
    for number in sorted(range(len(weights)), key=lambda n: -weights[n]):
        load, share = heapq.heappop(heap)
        result[share].append(number)
        heapq.heappush(heap, (load + weights[number] + 1, share))
    return [sorted(share) for share in result]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A workplace whose staged names no other attempt at the same work can have."""

    place_of: Workplace
    attempt: str

    @staticmethod
    def at(workplace: Workplace) -> Attempt:
        return Attempt(workplace, f"-{uuid.uuid4().hex}")

    @property
    def txid(self) -> str:
        return self.place_of.txid

    @property
    def staging(self) -> Any:
        return replace(self.place_of.staging, attempt=self.attempt)

    def place(self, partition: Any, prefix: str, ordinal: int, *, beside: Any = None) -> str:
        return self.place_of.place(partition, prefix, ordinal, beside=beside)

    def locate(self, path: str) -> str:
        return self.place_of.locate(path)
