"""Work on executors: a stage runs one function over its jobs, results and our errors come back as rows.

One stage per call, a few tasks with several jobs each. DataFrame API only, so that Spark Connect works. What
every task needs and what is too large for a closure lies in a file that tasks map.
"""

from __future__ import annotations

import errno
import heapq
import os
import pickle
import posixpath
import sys
import tempfile
import uuid
import zipimport
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark import cloudpickle

from intarsia.common.requests import give_counts, take_counts
from intarsia.errors import IntarsiaError, StorageError
from intarsia.spark.collect import collect
from intarsia.spark.errors import explain_refusal

J = TypeVar("J")
R = TypeVar("R")
TASK_BYTES = 256 << 20
"""Maximum bytes per task for which one task per core is enough; more bytes get more tasks than cores."""
RESULT = "job long, ok boolean, payload binary, requests binary"
_SCHEMA = pa.schema(
    [("job", pa.int64()), ("ok", pa.bool_()), ("payload", pa.binary()), ("requests", pa.binary())]
)
"""``requests`` is what was sent to a store meanwhile, so that the driver knows of it."""


def serialize(value: Any) -> bytes:
    """A value, or a function made on the spot, as bytes that a task can load."""
    data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data


def deserialize(data: bytes) -> Any:
    """The value that was serialized; only ever bytes that our own driver or tasks made."""
    return pickle.loads(data)


def load_work(data: bytes | SharedBuffers) -> Any:
    """The function and shared value of a stage; runs in a task's Python worker."""
    _forget_archives()
    leave_missing_directory()
    return data.load() if isinstance(data, SharedBuffers) else deserialize(data)


def _forget_archives() -> None:
    """Drop importers of zip archives, which come back by themselves when they are needed.

    Before every task Spark's worker has all importers look for new modules, and those of pyspark's own
    archive read its directory anew each time: more than a tenth of a second of a task that may need less.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            sys.path_importer_cache.pop(path, None)


def leave_missing_directory() -> None:
    """Go on in the temporary directory if that of this worker was removed.

    Workers begin where the session began; PyIceberg, as it is imported, asks where that is.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir(tempfile.gettempdir())


@dataclass(frozen=True, slots=True)
class TaskRunner:
    """The executors of a session."""

    spark: Any
    tasks: int
    """Maximum number of tasks of a stage; more than cores, so that a slow task is no straggler."""
    cores: int = 0
    """How many tasks run at once; a stage with few bytes has only as many. 0 is as many as ``tasks``."""

    def make_shares(self, weights: Sequence[int]) -> list[list[int]]:
        """Numbers of the weights (bytes), one list per task."""
        little = self.cores and sum(weights) <= self.cores * TASK_BYTES
        return balance(weights, self.cores if little else self.tasks)

    def run_each(
        self,
        work: Callable[[Any, J], R],
        jobs: Sequence[J],
        *,
        shared: Any,
        weights: Sequence[int],
        room: SharedDirectory | None = None,
    ) -> list[R]:
        """``work(shared, job)`` for every job, results in the jobs' order.

        ``weights`` (bytes, say) spread the jobs evenly. Arrow data of ``shared`` goes through a file in
        the ``room``, where there is one, instead of through the driver's JVM and into every task. The
        first error of ours is raised as it was; results of attempts that failed or were overtaken never
        reach the driver.
        """
        if not jobs:
            return []
        shares = self.make_shares(weights)
        payload_of_stage = TaskPayload(
            serialize((work, shared)) if room is None else share_buffers((work, shared), room),
            tuple(serialize([(number, jobs[number]) for number in share]) for share in shares),
        )
        rows = self.spark.range(0, len(shares), 1, len(shares)).mapInArrow(payload_of_stage.unpack, RESULT)
        return _order_results(collect(rows), len(jobs))

    def run_over(self, frame: Any, work: Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]) -> list[Any]:
        """``work`` over the rows of each partition of a DataFrame; what it yields, in no order."""
        rows = frame.mapInArrow(StreamPayload(serialize(work)).unpack, RESULT)
        return [deserialize(payload) for payload in _check_errors(collect(rows))["payload"].to_pylist()]


@dataclass(frozen=True, slots=True)
class TaskPayload:
    """All jobs of a stage; a task deserializes its own share only."""

    common: bytes | SharedBuffers
    shares: tuple[bytes, ...]

    def unpack(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs in the Python worker of a task."""
        for batch in batches:
            for share in batch.column(0).to_pylist():
                yield from self._run_share(share)
        _release_memory()

    def _run_share(self, share: int) -> Iterator[pa.RecordBatch]:
        work, shared = load_work(self.common)
        for number, job in deserialize(self.shares[share]):
            yield _run_job(number, lambda: work(shared, job))  # noqa: B023  called at once


@dataclass(frozen=True, slots=True)
class StreamPayload:
    """A function over a partition's batches."""

    work: bytes

    def unpack(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs in the Python worker of a task."""
        work = load_work(self.work)
        try:
            for result in work(batches):
                yield _make_result_row(0, True, result)
        except IntarsiaError as error:
            yield _make_result_row(0, False, error)
        _release_memory()


def _release_memory() -> None:
    """Release memory that Arrow's pool keeps: this worker may be idle while others need it."""
    pa.default_memory_pool().release_unused()


def _run_job(number: int, call: Callable[[], Any]) -> pa.RecordBatch:
    try:
        return _make_result_row(number, True, call())
    except IntarsiaError as error:
        return _make_result_row(number, False, error)


def _make_result_row(number: int, ok: bool, value: Any) -> pa.RecordBatch:
    payload = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    counted = take_counts()
    row = {"job": [number], "ok": [ok], "payload": [payload]}
    return pa.RecordBatch.from_pydict(
        {**row, "requests": [pickle.dumps(counted) if counted else None]}, schema=_SCHEMA
    )


def _check_errors(rows: pa.Table) -> pa.Table:
    """The rows, unless one of them is an error; what they have sent to a store is counted."""
    for counted in rows["requests"].drop_null().to_pylist():
        give_counts(deserialize(counted))
    columns = rows.select(["job", "ok", "payload"]).to_pydict().values()
    failed = [(job, payload) for job, ok, payload in zip(*columns, strict=True) if not ok]
    if failed:
        raise explain_refusal(deserialize(min(failed)[1]))
    return rows


def _order_results(rows: pa.Table, count: int) -> list[Any]:
    done = _check_errors(rows).to_pydict()
    results = dict(zip(done["job"], done["payload"], strict=True))
    if len(done["job"]) != count or len(results) != count:
        raise RuntimeError(f"Spark gave {len(done['job'])} results of {count} jobs")
    return [deserialize(results[number]) for number in range(count)]


def balance(weights: Sequence[int], shares: int) -> list[list[int]]:
    """Numbers of the weights in at most so many shares of about equal weight, none of them empty."""
    count = max(1, min(shares, len(weights)))
    heap = [(0, number) for number in range(count)]
    result: list[list[int]] = [[] for _ in range(count)]
    for number in sorted(range(len(weights)), key=lambda n: -weights[n]):
        load, share = heapq.heappop(heap)
        result[share].append(number)
        heapq.heappush(heap, (load + weights[number] + 1, share))
    return [sorted(share) for share in result]


INLINE_BYTES = 8 << 20
"""Up to so much Arrow data travels with the tasks themselves."""
_ALIGNMENT = 64


class SharedDirectory(Protocol):
    """A directory that driver and executors share, for the length of a stage."""

    @property
    def filesystem(self) -> pafs.FileSystem: ...

    @property
    def directory(self) -> str: ...


@dataclass(frozen=True, slots=True)
class SharedBuffers:
    """A packed value whose Arrow buffers lie in a file; the pickle itself never leaves the closure."""

    value: bytes
    filesystem: pafs.FileSystem
    location: str
    places: tuple[tuple[int, int], ...]
    """Where each buffer begins, and its length."""

    def load(self) -> Any:
        """The value; on one machine all tasks share the file's pages instead of holding copies."""
        try:
            whole = self._map_file()
        except FileNotFoundError as error:
            told = f"An executor does not see {self.location}, where rows of the source wait."
            raise make_unreachable_error(self.location, told) from error
        return pickle.loads(self.value, buffers=[whole.slice(*place) for place in self.places])

    def _map_file(self) -> pa.Buffer:
        if isinstance(self.filesystem, pafs.LocalFileSystem):
            with pa.memory_map(self.location) as file:
                return file.read_buffer()
        with self.filesystem.open_input_file(self.location) as file:
            return file.read_buffer()


def share_buffers(value: Any, room: SharedDirectory) -> SharedBuffers:
    """Pack a value, its buffers in a new file of the room."""
    buffers: list[pickle.PickleBuffer] = []
    data: bytes = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)  # type: ignore[no-untyped-call]
    location = f"{room.directory}/{uuid.uuid4().hex}.shared"
    places = []
    try:
        with room.filesystem.open_output_stream(location) as sink:
            for buffer in buffers:
                raw = buffer.raw()
                places.append((sink.tell(), raw.nbytes))
                sink.write(raw)
                sink.write(b"\0" * (-raw.nbytes % _ALIGNMENT))
    except OSError as error:
        raise write_error(error, "write", location) from error
    return SharedBuffers(data, room.filesystem, location, tuple(places))


_HINT = "name spool_dir= on storage that driver and executors share."


def write_error(error: OSError, action: str, path: str) -> StorageError:
    """The storage would not take rows that are to wait there."""
    return StorageError(
        f"Could not {action} {path}, where rows of the source wait: {error.strerror or error}",
        errno=error.errno,
        path=path,
        hint=_HINT,
    )


@contextmanager
def wrap_storage_errors(action: str, path: str) -> Iterator[None]:
    """What the storage refuses meanwhile is told as :func:`refused`; what was told already stays as it is."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise write_error(error, action, path) from error


def make_unreachable_error(location: str, message: str) -> StorageError:
    """A place that only one side can see."""
    return StorageError(message, errno=errno.ENOENT, path=posixpath.dirname(location), hint=_HINT)
