"""Decoded delete files that several data files of one operation share, bounded in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

DEFAULT_LIMIT = 128 << 20


class DeleteCache:
    """Keeps what was decoded last; several threads may use it, each thing is decoded once.

    Delete files never change, so that a path stands for its content. What is larger than the limit is
    handed out and not kept. Pickles as an empty cache of the same limit.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._gates: dict[Hashable, threading.Lock] = {}
        self._bytes = 0

    def get(self, key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
        """What is kept under a key, else what ``load`` gives, with its size in bytes."""
        with self._lock:
            if key in self._kept:
                return self._found(key)
            gate = self._gates.setdefault(key, threading.Lock())
        with gate:
            with self._lock:
                if key in self._kept:  # by another thread, meanwhile
                    return self._found(key)
            try:
                value, size = load()
                with self._lock:
                    self._keep(key, value, size)
            finally:
                with self._lock:
                    self._gates.pop(key, None)
        return value

    @property
    def size(self) -> int:
        """Bytes kept."""
        return self._bytes

    def _found(self, key: Hashable) -> Any:
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def _keep(self, key: Hashable, value: Any, size: int) -> None:
        if size > self.limit or key in self._kept:
            return
        self._kept[key] = (value, size)
        self._bytes += size
        while self._bytes > self.limit:
            _, (_, gone) = self._kept.popitem(last=False)
            self._bytes -= gone

    def __reduce__(self) -> tuple[type[DeleteCache], tuple[int]]:
        return DeleteCache, (self.limit,)
