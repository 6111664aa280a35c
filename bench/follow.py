"""Follows contenders that warm up and run passes in a process group of their own; no workload is in here."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.spark.tree import Peak, Resident, cpu_seconds

LIMIT = 900


@dataclass(frozen=True, slots=True)
class Measured:
    """The best of the passes of one contender on one workload."""

    contender: str
    wall: float = 0.0
    cpu: float = 0.0
    peak_mb: float = 0.0
    processes: tuple[Resident, ...] = ()
    """What each had when it was most."""
    right: bool = False
    error: str = ""
    passes: tuple[tuple[float, float], ...] = ()
    """Wall and CPU seconds of each, the first of a session before those that find it warm."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What else the child told with its verdict."""


def measure(job: dict[str, Any], module: str) -> Measured:
    """One contender in a process group of its own, on a room that is emptied before and after."""
    room = Path(job["room"])
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir(parents=True)
    errors = room.with_name("stderr")
    with open(errors, "w") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
    seconds = job.get("limit", LIMIT)
    limit = threading.Timer(seconds, _kill, [child])
    limit.start()
    try:
        with Peak(child.pid) as peak:
            found = _followed(job, child, peak, errors)
        if found.error and limit.finished.is_set():
            return replace(found, error=f"not done after {seconds} s, and ended")
        return found
    finally:
        limit.cancel()
        _kill(child)
        child.communicate()
        shutil.rmtree(room, ignore_errors=True)


def _followed(job: dict[str, Any], child: subprocess.Popen[str], peak: Peak, errors: Path) -> Measured:
    """Look at the child whenever a pass begins and ends; the least of the passes counts."""
    assert child.stdin is not None
    assert child.stdout is not None
    _tell(child, json.dumps(job))
    walls: list[float] = []
    cpus: list[float] = []
    counts = right = has_verdict = False
    notes: dict[str, Any] = {}
    before = most = 0.0
    processes: tuple[Resident, ...] = ()
    for line in child.stdout:
        said = json.loads(line)
        if "begin" in said:
            counts, before = said["begin"], cpu_seconds(child.pid)
        elif "wall" in said and counts:
            walls.append(said["wall"])
            # A process without others below it knows more than the kernel's ticks of 10 ms.
            cpus.append(said.get("cpu") or cpu_seconds(child.pid) - before)
            most, processes = peak.mb, tuple(peak.processes)
        elif "right" in said:
            has_verdict, right, notes = True, said["right"], said.get("notes", {})
        _tell(child, "")
    if len(walls) < job["passes"] or not has_verdict:
        lines = [line for line in errors.read_text().splitlines() if line.strip()]
        reasons = [line for line in lines if "Exception" in line or "Error" in line] or lines or ["no word"]
        return Measured(job["contender"], error=reasons[-1][:200])
    least, passes = (min(walls), min(cpus)), tuple(zip(walls, cpus, strict=True))
    return Measured(job["contender"], *least, most, processes, right, passes=passes, notes=notes)


def _tell(child: subprocess.Popen[str], words: str) -> None:
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(words + "\n")
        child.stdin.flush()


def _kill(child: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def line(one: Measured, ours: Measured | None) -> str:
    """The figures of one contender, and what they are of ours."""
    name = f"  {one.contender:16}"
    if one.error:
        return f"{name} failed: {one.error}"
    figures = f"{name}{one.wall:8.2f} s {one.cpu:8.2f} CPU s {one.peak_mb:7.0f} MB  "
    figures += "  ".join(["right" if one.right else "WRONG", *(f"{k} {v}" for k, v in one.notes.items())])
    if ours is None or one is ours or ours.error:
        return figures
    ratios = (one.wall / ours.wall, one.cpu / ours.cpu, one.peak_mb / ours.peak_mb)
    return figures + "  x intarsia: {:.1f} wall, {:.1f} CPU, {:.1f} memory".format(*ratios)
