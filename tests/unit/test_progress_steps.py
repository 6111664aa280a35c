"""Progress from the first second: steps for a callable, a line on a terminal, and nothing left of it."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_a_callable_is_told_of_every_step(tmp_path: Path, engine: str) -> None:
    told: list[tuple[str, int, int]] = []

    def slow() -> Iterator[pa.RecordBatch]:
        for batch in ROWS.to_batches(max_chunksize=1):
            time.sleep(0.25)
            yield batch

    it.write(ROWS, tmp_path / "t", progress=False)
    it.merge(slow(), tmp_path / "t", on="id", engine=engine, progress=lambda *step: told.append(step))
    steps = list(dict.fromkeys(step for step, _, _ in told))
    assert told[0] == ("read source", 0, 0)
    assert ("read source", 3, 0) in told
    assert steps[:3] == ["read source", "list target", "plan"]
    assert steps[-2:] == ["write files", "commit"]


def test_operations_without_a_source_begin_with_the_target(tmp_path: Path) -> None:
    told: list[str] = []
    it.write(ROWS, tmp_path / "t")
    it.delete(tmp_path / "t", "id = 2", progress=lambda step, *_: told.append(step))
    assert (told[0], told[-1]) == ("list target", "commit")


PROGRAM = """
import sys, time, pyarrow as pa, intarsia as it
def slow():
    print("begun", flush=True)
    yield pa.record_batch({"id": [5]})
    time.sleep(float(sys.argv[2]))
    if sys.argv[3] == "error":
        raise ValueError("no more")
    yield pa.record_batch({"id": [6]})
try:
    it.merge(slow(), sys.argv[1], on="id", **({"progress": False} if sys.argv[3] == "silent" else {}))
except (KeyboardInterrupt, ValueError) as error:
    print(type(error).__name__, flush=True)
"""


@pytest.mark.parametrize("ending", ["success", "error", "interrupt", "silent"])
def test_a_terminal_shows_a_slow_source_at_once_and_is_wiped(tmp_path: Path, ending: str) -> None:
    it.write(ROWS, tmp_path / "orders", progress=False)
    ours, theirs = pty.openpty()
    environ: dict[str, Any] = {**os.environ, "TERM": "xterm", "CI": "", "COLUMNS": "80"}
    seconds = "60" if ending == "interrupt" else "3"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path / "orders", seconds, ending],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environ,
        text=True,
    )
    os.close(theirs)
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    drawn, wiped = b"", b"\r\x1b[K"
    ready, _, _ = select.select([ours], [], [], 2.5)  # while the source sleeps
    if ending != "silent":
        assert ready
        drawn += os.read(ours, 4096)
        assert b"merge orders: read source" in drawn
    if ending == "interrupt":
        program.send_signal(signal.SIGINT)
    out, _ = program.communicate(timeout=60)
    while select.select([ours], [], [], 0.2)[0]:
        try:
            more = os.read(ours, 4096)
        except OSError:  # Linux tells so that the other side is closed
            break
        drawn += more
    os.close(ours)
    assert out == {"error": "ValueError\n", "interrupt": "KeyboardInterrupt\n"}.get(ending, "")
    if ending == "silent":
        assert drawn == b""
    else:
        assert drawn.endswith(wiped)
