"""An object store with conditional requests, as a store of files: listings carry entity tags, and where the
store was tried and found to heed its conditions, commits are safe among many writers."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs

from intarsia.common.requests import RequestCounter, Requests, count_filesystem
from intarsia.common.store_access import S3Access
from intarsia.errors import StorageError
from intarsia.storage import s3
from intarsia.storage.conditional import (
    STAGED_TAG,
    TRANSACTION,
    ConditionFailed,
    IfMatch,
    ObjectClient,
    StoredObject,
    create,
    is_copy,
    place,
    swap,
)
from intarsia.storage.port import FileEntry
from intarsia.storage.remote import RemoteStorage
from intarsia.storage.trial import Trial, remember, try_store

_WORKERS = 8
_RANGE = 8 << 20


@dataclass(frozen=True, slots=True)
class RangeFile:
    """An object whose size is known, read in ranges: a request for each, and none to open it."""

    client: ObjectClient
    path: str
    length: int
    tag: str | None

    def size(self) -> int:
        return self.length

    def read_at(self, size: int, start: int) -> bytes:
        """Raises FileNotFoundError also where the object has another tag."""
        if not size:
            return b""
        try:
            return self.client.get_range(self.path, start, size, self.tag)
        except ConditionFailed as error:
            raise FileNotFoundError(errno.ENOENT, "replaced since it was listed", self.path) from error
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path) from error


class ObjectStorage(RemoteStorage):
    """A bucket. There are no directories: what has objects below it counts as one.

    ``conditional`` is False until :meth:`try_conditions` has found that conditions hold here.
    """

    def __init__(
        self, filesystem: pafs.FileSystem, open_client: Callable[[RequestCounter], ObjectClient]
    ) -> None:
        self._counter = RequestCounter()
        super().__init__(count_filesystem(filesystem, self._counter))
        self._open_client = open_client
        self._client: ObjectClient | None = None
        self.trial: Trial | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    @property
    def client(self) -> ObjectClient:
        if self._client is None:
            self._client = self._open_client(self._counter)
        return self._client

    @property
    def requests(self) -> Requests:
        """What was sent to the store through this object, and through its file system, so far."""
        return self._counter.requests

    def find_access(self) -> S3Access | None:
        """How others may read files of this store; None where they could not, or where it is not S3."""
        return self.client.find_access() if isinstance(self.client, s3.S3Client) else None

    @property
    def conditional(self) -> bool:
        return self.trial is not None and self.trial.passed

    def try_conditions(self, directory: str, known: Trial | None = None) -> Trial:
        """Find out, once per endpoint and bucket, whether conditions hold; writes below ``directory``.

        ``known`` is what another process has found, of this store or another one.
        """
        if known is not None:
            remember(known)
        self.trial = try_store(self.client, directory)
        return self.trial

    # Reading.

    def _iterate_entries(self, root: str) -> Iterator[FileEntry]:
        self._forget()
        base, known = f"{root}/", set()
        for found in self.client.list_objects(base):
            inner = found.path[len(base) :]
            parts = inner.split("/")
            for depth in range(1, len(parts)):
                directory = "/".join(parts[:depth])
                if directory not in known:
                    known.add(directory)
                    yield FileEntry(directory, "directory")
            if parts[-1]:  # an object that stands for a directory ends with a slash
                yield _make_entry(inner, found)

    def names(self, directory: str) -> list[str]:
        self._forget()
        try:
            return self.client.list_names(directory)
        except StorageError as error:
            if error.errno == errno.ENOENT:  # no such bucket
                return []
            raise

    def stat(self, path: str) -> FileEntry | None:
        self._forget()
        if "/" in path.strip("/") and (found := self.client.head(path)) is not None:
            return _make_entry(path, found)
        return FileEntry(path, "directory") if self._has_objects(path) else None

    def _has_objects(self, directory: str) -> bool:
        try:
            return any(True for _ in self.client.list_objects(f"{directory}/", most=1))
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return False
            raise

    def list_objects(self, directory: str) -> list[StoredObject]:
        """Every object below a directory, with its age."""
        return list(self.client.list_objects(f"{directory}/"))

    def read(self, path: str) -> bytes:
        return self.client.get(path)

    @contextmanager
    def open_ranges(self, path: str, size: int, tag: int | str | None = None) -> Iterator[RangeFile]:
        yield RangeFile(self.client, path, size, tag if isinstance(tag, str) else None)

    def is_same(self, one: str, other: str) -> bool:
        left, right = self.client.head(one), self.client.head(other)
        if left is None or right is None or left.size != right.size:
            return False
        if self.client.tags_tell_bytes and (
            left.tag in (right.tag, right.metadata.get(STAGED_TAG))
            or left.metadata.get(STAGED_TAG) == right.tag
        ):
            return True
        return self._digest_object(left) == self._digest_object(right)

    def _digest_object(self, found: StoredObject) -> bytes:
        """Of the object that was found, by our own requests: PyArrow's error does not say that it is gone."""
        import hashlib

        digest = hashlib.sha256()
        for start in range(0, found.size, _RANGE):
            size = min(_RANGE, found.size - start)
            try:
                digest.update(self.client.get_range(found.path, start, size, found.tag))
            except ConditionFailed as error:
                raise StorageError(
                    f"{found.path} was replaced while it was compared.", errno=errno.ENOENT, path=found.path
                ) from error
        return digest.digest()

    # Writing.

    def write(self, path: str, data: bytes) -> None:
        self.client.put(path, data)

    def claim(self, source: str, target: str) -> bool:
        return self.create(target, self.read(source))

    def create(self, path: str, data: bytes) -> bool:
        """Put a small object where none is; False where another one is. Never unsure without an error."""
        return create(self.client, path, data)

    def swap(self, path: str, data: bytes, before: FileEntry | None) -> bool:
        """Put a small object in the place of the one that was seen; False where that has changed."""
        return swap(self.client, path, data, None if before is None else str(before.identity))

    def place(self, source: str, target: str, planned: str | None, txid: str) -> bool:
        """Put a staged object in the place of the planned one, or of none; whether it is there now."""
        return place(self.client, self._head(source), target, planned, txid)

    def find_writer(self, path: str) -> str | None:
        """The transaction that put an object there; None for an object of somebody else, or none."""
        found = self.client.head(path)
        return None if found is None else found.metadata.get(TRANSACTION)

    def is_placed(self, source: str, target: str, txid: str) -> bool:
        """Whether a transaction's staged object has its place already."""
        found = self.client.head(target)
        return found is not None and is_copy(found, self._head(source), txid)

    def _head(self, path: str) -> StoredObject:
        found = self.client.head(path)
        if found is None:
            raise StorageError(f"{path} is gone.", errno=errno.ENOENT, path=path)
        return found

    def make_hard_link(self, source: str, target: str) -> None:
        try:
            self.client.copy(self._head(source), target)
        except ConditionFailed as error:
            raise StorageError(
                f"{source} was replaced while it was copied.", errno=errno.ENOENT, path=source
            ) from error

    def move(self, source: str, target: str) -> None:
        found = self.client.head(source)
        moved = [(found, target)] if found is not None else []
        base = f"{source}/"
        moved += [(one, f"{target}/{one.path[len(base) :]}") for one in self.client.list_objects(base)]
        for one, path in moved:
            self.client.copy(one, path)
        for one, _ in moved:
            self.client.delete(one.path)

    def remove(self, path: str) -> bool:
        if self.client.head(path) is None:
            return False
        self.client.delete(path)
        return True

    def remove_planned(self, path: str, tag: str) -> bool:
        """Remove an object if it has this tag; False where it has another one."""
        found = self.client.head(path)
        if found is None:
            return True
        if found.tag != tag:
            return False
        try:
            self.client.delete(path, IfMatch(tag))
        except ConditionFailed:
            return self.client.head(path) is None
        except StorageError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL):
                raise
            self.client.delete(path)  # a server that knows no conditions here
        return True

    def remove_directory(self, path: str) -> bool:
        """Nothing: there are no directories."""
        return False

    def remove_tree(self, path: str) -> list[StorageError]:
        refusals: list[StorageError] = []

        def remove(found: StoredObject) -> None:
            try:
                self.client.delete(found.path)
            except StorageError as error:
                refusals.append(error)

        try:
            found = self.list_objects(path)
            with ThreadPoolExecutor(_WORKERS, "intarsia-remove") as pool:
                list(pool.map(remove, found))
        except StorageError as error:
            refusals.append(error)
        return refusals

    def abort_uploads(self, prefix: str, paths: Collection[str] | None = None, *, age: float = 0.0) -> int:
        """Give up uploads that were begun this long ago: to some paths, or to all; how many."""
        found = [one for one in self.client.list_uploads(prefix) if one.age >= age]
        chosen = [one for one in found if paths is None or one.path in paths]
        for one in chosen:
            self.client.abort_upload(one)
        return len(chosen)

    def has_uploads(self, prefix: str, *, age: float) -> bool:
        return any(one.age >= age for one in self.client.list_uploads(prefix))

    def make_directories(self, path: str) -> list[str]:
        return []

    @contextmanager
    def lock(self, path: str, timeout: float) -> Iterator[None]:
        """No lock: conditions decide, or the caller guarantees to be the only writer."""
        yield


def _make_entry(path: str, found: StoredObject) -> FileEntry:
    return FileEntry(path, "file", found.size, 0, found.tag, 0)
