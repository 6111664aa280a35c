"""One contender, one workload, one process: reads a job from its input, prints what it cost."""

from __future__ import annotations

import gc
import importlib
import json
import resource
import sys
import threading
import time
from typing import Any


def main() -> None:
    job: dict[str, Any] = json.load(sys.stdin)
    contender = importlib.import_module(f"bench.contenders.{job['contender']}")
    act = contender.prepare(job)
    gc.collect()
    watch = _Anonymous() if job["memory_bytes"] else None
    before = _peak_mb()
    (user, system), wall = own_cpu_seconds(), time.perf_counter()
    notes = act()
    wall = time.perf_counter() - wall
    user, system = (after - begun for after, begun in zip(own_cpu_seconds(), (user, system), strict=True))
    peak = _peak_mb()
    notes = notes if isinstance(notes, dict) else {}
    if watch is not None:
        notes["anon_mb"] = round(watch.stop())
    figures = {"cpu": user + system, "system": system, "wall": wall, "peak_mb": peak, "before_mb": before}
    json.dump({**figures, "notes": notes}, sys.stdout)


class _Anonymous:
    """Looks now and then how much memory is the program's own, which no file backs."""

    def __init__(self) -> None:
        self._most = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(0.05):
            self._most = max(self._most, _status_mb("RssAnon:"))

    def stop(self) -> float:
        """The most there was, in megabytes; 0 where the system does not tell."""
        self._done.set()
        self._thread.join()
        return self._most


def own_cpu_seconds() -> tuple[float, float]:
    """User and system seconds of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime for u in used), sum(u.ru_stime for u in used)


def _peak_mb() -> float:
    """The most this program had in memory; ``ru_maxrss`` would count the parent it was forked from."""
    return _status_mb("VmHWM:") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _status_mb(what: str) -> float:
    """A figure of the kernel's about this process; 0 where it has none."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith(what))
    except (FileNotFoundError, StopIteration):
        return 0.0


if __name__ == "__main__":
    main()
