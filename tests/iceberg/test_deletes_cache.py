"""The cache of decoded delete files."""

from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from intarsia.tables.iceberg.file_io import DeleteCache


def test_the_oldest_go_when_there_is_no_room() -> None:
    cache = DeleteCache(10)
    loaded: list[str] = []

    def get(key: str, size: int = 4) -> str:
        def load() -> tuple[str, int]:
            loaded.append(key)
            return key.upper(), size

        return cache.get(key, load)

    assert [get("a"), get("b"), get("a"), get("c")] == ["A", "B", "A", "C"]
    assert loaded == ["a", "b", "c"]
    assert cache.size == 8
    get("a")
    assert loaded == ["a", "b", "c"]
    get("b")
    assert loaded == ["a", "b", "c", "b"]
    assert get("large", 11) == "LARGE"
    assert cache.size == 8


def test_threads_that_ask_at_once_wait_for_one() -> None:
    cache = DeleteCache()
    loads = []
    begin = threading.Barrier(8)

    def load() -> tuple[int, int]:
        loads.append(1)
        time.sleep(0.05)
        return 7, 1

    def ask() -> int:
        begin.wait()
        return cache.get("key", load)

    with ThreadPoolExecutor(8) as pool:
        assert [f.result() for f in [pool.submit(ask) for _ in range(8)]] == [7] * 8
    assert len(loads) == 1
    assert cache.size == 1


def test_a_failure_is_not_kept() -> None:
    cache = DeleteCache()

    def fail() -> tuple[int, int]:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        cache.get("key", fail)
    assert cache.get("key", lambda: (3, 1)) == 3


def test_a_cache_pickles_as_an_empty_one() -> None:
    cache = DeleteCache(99)
    cache.get("key", lambda: (3, 1))
    again = pickle.loads(pickle.dumps(cache))
    assert (again.limit, again.size) == (99, 0)
