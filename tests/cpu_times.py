"""A plugin that says where the tests' CPU time goes: ``make test ARGS="-p tests.cpu_times"``.

It measures what a busy machine does not change much: CPU seconds of the test process and of all that it
started, living or ended; and the seconds that passed, by which a test that waits can be told. Each test is
a line of ``cpu-times.jsonl``; the sums by directory and by file (CPU, passed, tests) are printed at the end.
``INTARSIA_CPU_SAMPLE=5`` runs every fifth test only, by its name.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

RECORDS = Path("cpu-times.jsonl")
TICKS = os.sysconf("SC_CLK_TCK")
MOST = 40
"""As many files are listed, the most expensive first."""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        RECORDS.unlink(missing_ok=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    every = int(os.environ.get("INTARSIA_CPU_SAMPLE", "1"))
    items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % every == 0]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write down what a test took, with the fixtures that were made for it or ended after it."""
    others = _measure_others()
    own = sum(os.times()[:4])
    began = time.monotonic()
    result = yield
    wall = time.monotonic() - began
    own = sum(os.times()[:4]) - own
    record = {"test": item.nodeid, "cpu": round(own + _measure_others() - others, 3), "wall": round(wall, 3)}
    with RECORDS.open("a") as records:
        records.write(json.dumps(record) + "\n")
    return result


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not RECORDS.exists():
        return
    directories: dict[str, list[tuple[float, float]]] = defaultdict(list)
    files: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in RECORDS.read_text().splitlines():
        record = json.loads(line)
        file = record["test"].partition("::")[0]
        files[file].append((record["cpu"], record["wall"]))
        directories[str(Path(file).parent)].append((record["cpu"], record["wall"]))
    terminalreporter.section("CPU seconds")
    for sums in (directories, files):
        lines = [(*map(sum, zip(*pairs, strict=True)), len(pairs), name) for name, pairs in sums.items()]
        for cpu, wall, count, name in sorted(lines, reverse=True)[:MOST]:
            terminalreporter.write_line(f"{cpu:9.1f}  {wall:9.1f}  {count:6}  {name}")


def _measure_others() -> float:
    """CPU seconds of the processes below this one, with those below them that have ended."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                continue
            children[int(fields[1])].append(int(name))
            ticks[int(name)] = sum(map(int, fields[11:15]))
    below = list(children[os.getpid()])
    for pid in below:
        below += children[pid]
    return sum(ticks[pid] for pid in below) / TICKS
