"""Requests to an object store, counted by their kind: what an operation costs there.

Clients of our own count what they send. What PyArrow or fsspec sends for a file is reckoned where the file is
opened, read and written, since its bytes do not pass through Python: nothing is put into their way.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

RequestKind = Literal["LIST", "GET", "HEAD", "PUT", "COPY", "DELETE"]


@dataclass(frozen=True, slots=True)
class Requests(Mapping[str, int]):
    """How many requests of each kind were sent to a store; a mapping, ``requests["GET"]``.

    ``PUT`` has all that an upload takes: its beginning, its parts and its end. ``COPY`` is done within the
    store, as a whole or in parts; ``DELETE`` includes uploads that were given up.
    """

    LIST: int = 0
    GET: int = 0
    HEAD: int = 0
    PUT: int = 0
    COPY: int = 0
    DELETE: int = 0

    @property
    def total(self) -> int:
        return sum(self.values())

    def __getitem__(self, kind: str) -> int:
        if kind not in KINDS:
            raise KeyError(kind)
        return int(getattr(self, kind))

    def __iter__(self) -> Iterator[str]:
        return iter(KINDS)

    def __len__(self) -> int:
        return len(KINDS)

    def __add__(self, other: Requests) -> Requests:
        return Requests(**{kind: count + other[kind] for kind, count in self.items()})

    def __sub__(self, other: Requests) -> Requests:
        return Requests(**{kind: count - other[kind] for kind, count in self.items()})

    def __str__(self) -> str:
        """Those that there were, such as ``3 GET, 1 PUT``."""
        return ", ".join(f"{count:,} {kind}" for kind, count in self.items() if count) or "none"


KINDS = tuple(field.name for field in fields(Requests))


class RequestCounter:
    """Counts the requests to one store, from any thread; pickled, it counts in the other process for itself.

    What a task on an executor has counted, its result brings back: see :func:`take_counts`.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name or uuid.uuid4().hex
        self._counts: Counter[str] = Counter()
        self._guard = threading.Lock()
        self.watched: weakref.WeakSet[Any] = weakref.WeakSet()
        """The events of clients that tell it of what they send."""
        with _GUARD:
            _COUNTERS[self._name] = self

    def __reduce__(self) -> Any:
        return _find_counter, (self._name,)

    @property
    def name(self) -> str:
        return self._name

    def add(self, kind: RequestKind, count: int = 1) -> None:
        with self._guard:
            self._counts[kind] += count

    @property
    def requests(self) -> Requests:
        """What was counted so far."""
        with self._guard:
            return Requests(**self._counts)

    def _take(self) -> Counter[str]:
        with self._guard:
            taken, self._counts = self._counts, Counter()
        return taken

    def _give(self, counts: Mapping[str, int]) -> None:
        with self._guard:
            self._counts.update(counts)


_GUARD = threading.RLock()
_COUNTERS: weakref.WeakValueDictionary[str, RequestCounter] = weakref.WeakValueDictionary()
_FOREIGN: weakref.WeakSet[RequestCounter] = weakref.WeakSet()
"""Those of another process that count here, as long as a task has them."""

Counts = dict[str, dict[str, int]]


def _find_counter(name: str) -> RequestCounter:
    with _GUARD:
        found = _COUNTERS.get(name)
        if found is None:
            found = RequestCounter(name)
            _FOREIGN.add(found)
        return found


def take_counts() -> Counts:
    """What counters of another process have counted in this one since it was taken last, by their names."""
    with _GUARD:
        foreign = list(_FOREIGN)
    found = {counter._name: dict(counter._take()) for counter in foreign}
    return {name: counts for name, counts in found.items() if counts}


def give_counts(counts: Counts) -> None:
    """Add what was counted in another process to the counters of this one."""
    for name, found in counts.items():
        with _GUARD:
            counter = _COUNTERS.get(name)
        if counter is not None:
            counter._give(found)


# File systems.

PART_BYTES = 10 << 20
"""What PyArrow uploads at once."""
_UPLOADS = {"s3": 3, "abfs": 3, "gcs": 2}
"""Requests by which PyArrow writes a file of one part."""


def count_filesystem(filesystem: pafs.FileSystem, counter: RequestCounter) -> pafs.FileSystem:
    """The same file system, whose opened, listed and removed files are counted.

    Files that it opens are those of the file system itself, and threads read them as before.
    """
    handler = getattr(filesystem, "handler", None)
    if isinstance(handler, CountingHandler):
        filesystem = handler.base
    return pafs.PyFileSystem(CountingHandler(filesystem, counter))


def find_base(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    """The file system itself, where it is one that counts."""
    handler = getattr(filesystem, "handler", None)
    return handler.base if isinstance(handler, CountingHandler) else filesystem


def count_reads(filesystem: pafs.FileSystem, count: int = 1) -> None:
    """Count ranges that are read from open files of a file system, each of which is a request."""
    handler = getattr(filesystem, "handler", None)
    if isinstance(handler, CountingHandler) and not handler.fetches_by_itself:
        handler.counter.add("GET", count)


def count_requests(filesystem: pafs.FileSystem, counts: Mapping[RequestKind, int]) -> None:
    """Count what somebody else has sent for files of a file system."""
    handler = getattr(filesystem, "handler", None)
    if isinstance(handler, CountingHandler):
        for kind, count in counts.items():
            handler.counter.add(kind, count)


def count_chunk_reads(filesystem: pafs.FileSystem, footer: pq.FileMetaData, columns: Collection[str]) -> None:
    """Count what reading top-level columns of a row group takes: a request for each column chunk."""
    if isinstance(getattr(filesystem, "handler", None), CountingHandler):
        schema = footer.schema
        paths = (schema.column(number).path for number in range(len(schema)))
        count_reads(filesystem, sum(path in columns or path.partition(".")[0] in columns for path in paths))


def count_upload_parts(filesystem: pafs.FileSystem, sizes: Sequence[int]) -> None:
    """Count what files that were written took beyond a first part."""
    handler = getattr(filesystem, "handler", None)
    if isinstance(handler, CountingHandler) and handler.base.type_name in _UPLOADS:
        handler.counter.add("PUT", sum(max(0, size - 1) // PART_BYTES for size in sizes))


_BEFORE_SEND = "before-send.s3"
S3_OPERATIONS: dict[str, RequestKind] = {
    "ListObjectsV2": "LIST",
    "ListObjectVersions": "LIST",
    "ListMultipartUploads": "LIST",
    "GetObject": "GET",
    "HeadObject": "HEAD",
    "HeadBucket": "HEAD",
    "PutObject": "PUT",
    "CreateMultipartUpload": "PUT",
    "UploadPart": "PUT",
    "CompleteMultipartUpload": "PUT",
    "CopyObject": "COPY",
    "UploadPartCopy": "COPY",
    "DeleteObject": "DELETE",
    "DeleteObjects": "DELETE",
    "AbortMultipartUpload": "DELETE",
}


def watch_botocore(client: Any, counter: RequestCounter) -> None:
    """Have a client of botocore, or of aiobotocore, count all that it sends, also again. Idempotent.

    As long as the counter is there: a client may live longer, and have had many of them.
    """
    events = client.meta.events
    with _GUARD:
        if events in counter.watched:
            return
        counter.watched.add(events)
        known, name = weakref.ref(counter), f"intarsia-{counter.name}"

        def count(event_name: str, **_: Any) -> None:
            found = known()
            if found is not None:
                found.add(S3_OPERATIONS.get(event_name.rpartition(".")[2], "GET"))

        events.register(_BEFORE_SEND, count, unique_id=name)
        weakref.finalize(counter, _forget, weakref.ref(events), name).atexit = False


def _forget(events: weakref.ref[Any], name: str) -> None:
    found = events()
    if found is not None:
        found.unregister(_BEFORE_SEND, unique_id=name)


def is_s3fs(filesystem: Any) -> bool:
    """Whether it is s3fs, whose client tells of all that it sends."""
    return hasattr(filesystem, "call_s3") and hasattr(filesystem, "s3")


class CountingHandler(pafs.FileSystemHandler):
    """Passes every call on to a file system, and counts what it sends for it."""

    def __init__(self, base: pafs.FileSystem, counter: RequestCounter) -> None:
        self.base, self.counter = base, counter
        self.fs: Any = getattr(getattr(base, "handler", None), "fs", None)
        """The file system of fsspec inside, where there is one."""

    def _count(self, kind: RequestKind, count: int = 1) -> None:
        if is_s3fs(self.fs):
            watch_botocore(self.fs.s3, self.counter)
        else:
            self.counter.add(kind, count)

    @property
    def fetches_by_itself(self) -> bool:
        """Whether files have a buffer of their own, as those of fsspec, and count what it fetches."""
        return self.fs is not None

    def __reduce__(self) -> Any:
        return CountingHandler, (self.base, self.counter)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CountingHandler) and bool(self.base == other.base)

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return str(self.base.type_name)

    def normalize_path(self, path: str) -> str:
        return str(self.base.normalize_path(path))

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        self._count("HEAD", len(paths))
        return list(self.base.get_file_info(list(paths)))

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        self._count("LIST")
        return list(self.base.get_file_info(selector))

    def create_dir(self, path: str, recursive: bool) -> None:
        self._count("PUT")
        self.base.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._count("LIST")
        self._count("DELETE")
        self.base.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._count("LIST")
        self._count("DELETE")
        self.base.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise PermissionError("a whole store is never removed")

    def delete_file(self, path: str) -> None:
        self._count("HEAD")
        self._count("DELETE")
        self.base.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self._count("COPY")
        self._count("DELETE")
        self.base.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self._count("COPY")
        self.base.copy_file(src, dest)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        if not self.fetches_by_itself:
            self._count("GET")
        return self._open(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._open(path)

    def _open(self, path: str) -> pa.NativeFile:
        self._count("HEAD")
        if self.fs is None:
            return self.base.open_input_file(path)
        if not self.fs.isfile(path):
            raise FileNotFoundError(path)
        opened = self.fs.open(path, mode="rb")
        if not is_s3fs(self.fs) and not _count_fetches(opened, self.counter):
            self._count("GET")
        return pa.PythonFile(opened, mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        self._count("PUT", _UPLOADS.get(self.base.type_name, 1))
        return self.base.open_output_stream(path, metadata=metadata)

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        self._count("PUT")
        return self.base.open_append_stream(path, metadata=metadata)


def _count_fetches(file: Any, counter: RequestCounter) -> bool:
    """Have a file of fsspec count the ranges that its buffer fetches; False where it has no such buffer."""
    buffer: Any = getattr(file, "cache", None)
    fetch = getattr(buffer, "fetcher", None)
    if fetch is None:
        return False

    def fetch_and_count(*arguments: Any, **more: Any) -> Any:
        counter.add("GET")
        return fetch(*arguments, **more)

    buffer.fetcher = fetch_and_count
    return True
