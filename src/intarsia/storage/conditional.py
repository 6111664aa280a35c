"""The port of an object store's conditional requests, and how an answer that is not sure is made sure.

No store is in here. A request that was refused or not answered says nothing by itself: a client repeats
requests on its own, so the refusal may be of the repetition of one that was carried out. What the store holds
afterwards decides.
"""

from __future__ import annotations

import datetime as dt
import errno
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow.fs as pafs

from intarsia.errors import StorageError

TRANSACTION = "intarsia-txid"
"""Metadata of a published object: the transaction that put it there."""
STAGED_TAG = "intarsia-staged"
"""Metadata of a published object: the entity tag of the staged object that it is a copy of."""
_ATTEMPTS = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Only where no object has the name."""


@dataclass(frozen=True, slots=True)
class IfMatch:
    """Only where the object has this entity tag."""

    tag: str


Condition = IfAbsent | IfMatch | None


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as a listing or a HEAD request tells of it; a listing has no metadata."""

    path: str
    size: int
    tag: str
    age: float = 0.0
    """Seconds since it was written, by the store's own clock."""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in parts that was begun."""

    path: str
    id: str
    age: float


class ConditionFailed(Exception):
    """The store refused a request for its condition: which may be a repetition of one it has carried out."""


class Unanswered(StorageError):
    """No answer, or that of a server in trouble: the request may have been carried out, or may be yet."""


class ObjectClient(Protocol):
    """The requests that commits are made of. Paths are ``bucket/key``.

    Every method may raise StorageError (ENOENT where there is no such object or bucket) and
    :class:`Unanswered`; those with a condition :class:`ConditionFailed`, too.
    """

    @property
    def endpoint(self) -> str:
        """The server, without credentials."""

    @property
    def tags_tell_bytes(self) -> bool:
        """Whether two objects with one tag hold the same bytes; else a tag tells versions of one object."""

    def head(self, path: str) -> StoredObject | None: ...

    def get(self, path: str) -> bytes: ...

    def get_range(self, path: str, start: int, size: int, tag: str | None) -> bytes:
        """Some bytes of an object, in one request; with ``tag``, only if it has that."""

    def list_objects(self, prefix: str, *, most: int | None = None) -> Iterable[StoredObject]:
        """Every object whose path starts with the prefix, in the order of paths."""

    def list_names(self, directory: str) -> list[str]:
        """The names right below a directory, of objects and of what has objects below it."""

    def put(self, path: str, data: bytes, condition: Condition = None) -> None: ...

    def copy(
        self,
        source: StoredObject,
        target: str,
        condition: Condition = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Copy an object within the store; large ones without moving their bytes through this process."""

    def complete_large_copy(
        self, source: StoredObject, target: str, condition: Condition, metadata: Mapping[str, str]
    ) -> None:
        """Copy as large objects are copied, whatever the size."""

    def delete(self, path: str, condition: IfMatch | None = None) -> None:
        """Delete an object; nothing where there is none. Stores may ignore the condition."""

    def list_uploads(self, prefix: str) -> list[Upload]:
        """The uploads to paths with a prefix that were begun and not completed."""

    def abort_upload(self, upload: Upload) -> None:
        """Give up an upload; nothing where it is gone."""


def create(client: ObjectClient, path: str, data: bytes) -> bool:
    """Put an object where none is; False where there is one with other bytes.

    Raises:
        Unanswered: whether it is there could not be found out.
        StorageError: the store refused; it is not there.
    """

    def look() -> bool | None:
        found = read_if_there(client, path)
        return None if found is None else found == data

    return _resolve(lambda: client.put(path, data, IfAbsent()), look, path)


def place(client: ObjectClient, source: StoredObject, target: str, planned: str | None, txid: str) -> bool:
    """Put a copy of a staged object where the one with the planned tag is, or where none is.

    Returns whether the target holds the copy; where it does not, something else is there that was not
    planned on, or, where something was, nothing any more.

    Raises:
        Unanswered, StorageError: as :func:`create` does; ENOENT where the staged object is gone.
    """
    condition = IfAbsent() if planned is None else IfMatch(planned)
    metadata = {TRANSACTION: txid, STAGED_TAG: source.tag}

    def send() -> None:
        try:
            client.copy(source, target, condition, metadata)
        except StorageError as error:
            if error.errno == errno.ENOENT and client.head(source.path) is not None:
                raise ConditionFailed(str(error)) from error  # the target is gone, or the upload
            raise

    def look() -> bool | None:
        found = client.head(target)
        if found is None:
            return None if planned is None else False
        if is_copy(found, source, txid):
            return True
        return None if found.tag == planned else False

    return _resolve(send, look, target)


def is_copy(found: StoredObject, staged: StoredObject, txid: str) -> bool:
    """Whether an object is what a transaction has made of a staged one; ``found`` is of a HEAD request."""
    return found.metadata.get(TRANSACTION) == txid and found.metadata.get(STAGED_TAG) == staged.tag


def swap(client: ObjectClient, path: str, data: bytes, tag: str | None) -> bool:
    """Put an object in the place of the one with a tag (None: of none), once; False where that is gone.

    Only for what is right in either case: no answer counts as not done.
    """
    try:
        client.put(path, data, IfAbsent() if tag is None else IfMatch(tag))
    except (ConditionFailed, Unanswered):
        return False
    return True


def read_if_there(client: ObjectClient, path: str) -> bytes | None:
    try:
        return client.get(path)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


def find_inner_protocols(filesystem: pafs.FileSystem) -> tuple[Any, set[str]]:
    """The file system of fsspec inside one of PyArrow, and its schemes; none where there is none."""
    inner = getattr(getattr(filesystem, "handler", None), "fs", None)
    protocol = getattr(inner, "protocol", ())
    return inner, {protocol} if isinstance(protocol, str) else set(protocol)


def split_path(path: str) -> tuple[str, str]:
    """The bucket and the key."""
    bucket, _, key = path.lstrip("/").partition("/")
    return bucket, key


def find_now(date: str | None) -> dt.datetime:
    """The server's clock by the date of an answer, by which ages are told; ours where it has none."""
    from email.utils import parsedate_to_datetime  # 7 ms, which no local dataset should pay

    try:
        return parsedate_to_datetime(date) if date else dt.datetime.now(dt.UTC)
    except ValueError:
        return dt.datetime.now(dt.UTC)


def find_age(modified: dt.datetime, now: dt.datetime) -> float:
    """Seconds between two times of a server."""
    if modified.tzinfo is None:
        modified = modified.replace(tzinfo=dt.UTC)
    return max(0.0, (now - modified).total_seconds())


def _resolve(send: Callable[[], None], look: Callable[[], bool | None], path: str) -> bool:
    """Send a conditional request until the store says, by what it holds, whether it was carried out.

    ``look`` returns None where it was not, and may be sent again.
    """
    pause, last = _FIRST_PAUSE, None
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)
        try:
            send()
            return True
        except (ConditionFailed, Unanswered) as error:
            last = error
        try:
            found = look()
        except Unanswered as error:
            last = error
            continue
        if found is not None:
            return found
    raise Unanswered(
        f"The store has not said in {_ATTEMPTS} attempts whether {path} was written: {last}",
        path=path,
        changed=None,
    ) from last


def replace_object(
    client: ObjectClient, path: str, data: bytes, tag: str | None, is_done: Callable[[bytes], bool]
) -> bool:
    """Put an object in the place of the one with a tag (None: of none); False where that is gone for good.

    For objects that remember who has written them: ``is_done`` tells from the bytes that are there now
    whether ``data`` has been there, though others may have written since. No tag may come back.

    Raises:
        Unanswered, StorageError: as :func:`create` does.
    """

    unsure = False

    def send() -> None:
        nonlocal unsure
        try:
            client.put(path, data, IfAbsent() if tag is None else IfMatch(tag))
        except (ConditionFailed, Unanswered):
            unsure = True
            raise
        except StorageError as error:
            if error.errno == errno.ENOENT and tag is not None:
                raise ConditionFailed(str(error)) from error  # the object is gone
            raise

    def look() -> bool | None:
        # In this order: what is read is never older than the tag.
        found = client.head(path)
        now = read_if_there(client, path)
        if now is not None and is_done(now):
            return True
        same = (None if found is None else found.tag) == tag
        return None if same else False

    try:
        return _resolve(send, look, path)
    except Unanswered:
        raise
    except StorageError as error:
        if not unsure:
            raise
        raise Unanswered(
            f"Whether {path} was written could not be found out: {error}", path=path, changed=None
        ) from error
