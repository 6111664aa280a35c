"""Tries whether a store heeds the conditions of requests, also when many clients send them at once.

Stores exist that know the headers and let two clients win under load (seaweedfs#8800, rustfs#1659), so that
documentation and version numbers do not count.
"""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from intarsia.common.log import get_logger
from intarsia.errors import StorageError
from intarsia.storage.conditional import (
    Condition,
    ConditionFailed,
    IfAbsent,
    IfMatch,
    ObjectClient,
    StoredObject,
    Unanswered,
)

log = get_logger(__name__)

CLIENTS = 20
ROUNDS = 3
_KNOWN: dict[tuple[str, str], Trial] = {}
_GUARD = threading.Lock()
_REFUSALS = (errno.ENOTSUP, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Trial:
    """What was found of a store; ``failure`` is the condition that does not hold, None where all do."""

    endpoint: str
    bucket: str
    failure: str | None = None

    @property
    def passed(self) -> bool:
        return self.failure is None


def try_store(client: ObjectClient, directory: str) -> Trial:
    """Whether conditions hold, tried with small objects below ``directory``, all of which are removed.

    What was found is kept for the endpoint and the bucket as long as this process lives.

    Raises:
        StorageError: the store could not be tried: no answer, or no permission.
    """
    key = (client.endpoint, directory.lstrip("/").partition("/")[0])
    with _GUARD:
        if key not in _KNOWN:
            _KNOWN[key] = Trial(*key, failure=_find_failure(client, directory))
            log.info("%s %s: conditional requests %s", *key, _KNOWN[key].failure or "hold")
        return _KNOWN[key]


def remember(trial: Trial) -> None:
    """Take a trial of another process as found."""
    with _GUARD:
        _KNOWN.setdefault((trial.endpoint, trial.bucket), trial)


def forget() -> None:
    """Try every store again."""
    with _GUARD:
        _KNOWN.clear()


def _find_failure(client: ObjectClient, directory: str) -> str | None:
    base = f"{directory}/{uuid.uuid4().hex}"
    try:
        return (
            _try_create(client, f"{base}-create")
            or _try_swap(client, f"{base}-swap")
            or _try_large(client, f"{base}-large")
            or _race(client, f"{base}-race-create", lambda: IfAbsent(), "creations")
            or _try_swap_race(client, f"{base}-race-swap")
        )
    except ConditionFailed as error:
        return f"a request without a condition is refused as if it had one ({error})"
    except StorageError as error:
        if error.errno not in _REFUSALS:
            raise
        return f"the store refuses conditional requests ({error})"
    finally:
        for found in list(client.list_objects(base)):
            client.delete(found.path)


def _try_create(client: ObjectClient, path: str) -> str | None:
    if not _is_done(lambda: client.put(path, b"1", IfAbsent())):
        return "an object that does not exist cannot be created under If-None-Match"
    if [found.path for found in client.list_objects(path)] != [path]:
        return "a listing lacks an object that was written before"
    if _is_done(lambda: client.put(path, b"2", IfAbsent())) or client.get(path) != b"1":
        return "If-None-Match is ignored: an object that exists is created again"
    return None


def _try_swap(client: ObjectClient, path: str) -> str | None:
    client.put(path, b"1")
    stale = _find(client, path).tag
    if not _is_done(lambda: client.put(path, b"2", IfMatch(stale))):
        return "an object cannot be replaced under the If-Match of its own tag"
    if _is_done(lambda: client.put(path, b"3", IfMatch(stale))) or client.get(path) != b"2":
        return "If-Match is ignored: an object that has changed is replaced"
    return None


def _try_large(client: ObjectClient, path: str) -> str | None:
    """The way of large files: a copy within the store that is completed under a condition."""
    client.put(f"{path}-source", b"new")
    client.put(path, b"1")
    source, stale = _find(client, f"{path}-source"), _find(client, path).tag
    client.put(path, b"2")

    def complete(target: str, condition: Condition) -> bool:
        return _is_done(lambda: client.complete_large_copy(source, target, condition, {"tried": "1"}))

    if complete(path, IfMatch(stale)) or client.get(path) != b"2":
        return "If-Match is ignored where a large object is copied"
    if complete(path, IfAbsent()) or client.get(path) != b"2":
        return "If-None-Match is ignored where a large object is copied"
    if not complete(path, IfMatch(_find(client, path).tag)) or client.get(path) != b"new":
        return "a large object cannot be copied under a condition that is met"
    if _find(client, path).metadata.get("tried") != "1":
        return "the metadata of a large object are lost"
    return None


def _try_swap_race(client: ObjectClient, path: str) -> str | None:
    client.put(path, b"start")
    return _race(client, path, lambda: IfMatch(_find(client, path).tag), "replacements")


def _race(client: ObjectClient, path: str, make: Callable[[], Condition], what: str) -> str | None:
    """Many clients send the same conditional request at once: one may win, and what it wrote is there."""
    for number in range(ROUNDS):
        condition = make()
        target = f"{path}-{number}" if isinstance(condition, IfAbsent) else path
        start = threading.Barrier(CLIENTS)

        def compete(
            one: int,
            target: str = target,
            condition: Condition = condition,
            start: threading.Barrier = start,
            number: int = number,
        ) -> bool:
            start.wait()
            try:
                return _is_done(lambda: client.put(target, f"{number} {one}".encode(), condition))
            except Unanswered:
                return False

        with ThreadPoolExecutor(CLIENTS, "intarsia-trial") as pool:
            won = [one for one, done in enumerate(pool.map(compete, range(CLIENTS))) if done]
        if len(won) > 1:
            return f"{len(won)} of {CLIENTS} {what} at once succeeded, where one may"
        if won and client.get(target) != f"{number} {won[0]}".encode():
            return f"of {CLIENTS} {what} at once, one that was refused is in effect"
    return None


def _is_done(send: Callable[[], None]) -> bool:
    """Whether the store says that it did it."""
    try:
        send()
    except ConditionFailed:
        return False
    return True


def _find(client: ObjectClient, path: str) -> StoredObject:
    found = client.head(path)
    if found is None:
        raise StorageError(f"{path} was written and is not there.", path=path)
    return found
