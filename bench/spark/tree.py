"""CPU seconds and memory of a process and everything below it: a driver, its JVM, its Python workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Resident:
    """What one process has in memory, in MB; what several share, by fork or by mapping, counts once."""

    name: str
    own: float
    """Anonymous: heaps."""
    mapped: float
    """Pages of files."""

    @property
    def mb(self) -> float:
        return self.own + self.mapped

    def __str__(self) -> str:
        return f"{self.name} {self.own:.0f}+{self.mapped:.0f}"


def resident(root: int) -> list[Resident]:
    """Of every process of the tree."""
    found = []
    for process in processes(root):
        try:
            name = "driver" if process.pid == root else process.name()
            with open(f"/proc/{process.pid}/smaps_rollup") as rollup:
                sizes = {line.split(":")[0]: line.split()[1] for line in rollup if line.startswith("Pss")}
        except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError, ProcessLookupError):
            continue
        own = int(sizes.get("Pss_Anon", 0)) * 1024 / 1e6
        found.append(Resident(name, own, int(sizes.get("Pss", 0)) * 1024 / 1e6 - own))
    return found


class Peak:
    """Looks at a tree's memory every tenth of a second, from the outside."""

    def __init__(self, root: int) -> None:
        self.root, self.mb = root, 0.0
        self.processes: list[Resident] = []
        """Of the moment at which it was most."""
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
            now = resident(self.root)
            if (most := sum(one.mb for one in now)) > self.mb:
                self.mb, self.processes = most, now
