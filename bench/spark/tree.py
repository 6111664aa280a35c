"""CPU seconds and memory of a process and everything below it: a driver, its JVM, its Python workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psutil

EVERY = 0.1


def processes(root: int) -> Iterator[psutil.Process]:
    try:
        parent = psutil.Process(root)
        yield parent
        yield from parent.children(recursive=True)
    except psutil.NoSuchProcess:
        return


def cpu_seconds(root: int) -> float:
    """Of all that live, and of those below them that have ended."""
    total = 0.0
    for process in processes(root):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def memory_mb(root: int) -> float:
    """Resident, all together; what several processes share, by fork or by mapping, counts once."""
    total = 0
    for process in processes(root):
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
            continue
    return total / 1e6


class Peak:
    """Looks at a tree's memory every tenth of a second, from the outside."""

    def __init__(self, root: int) -> None:
        self.root, self.mb = root, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(EVERY):
            self.mb = max(self.mb, memory_mb(self.root))
