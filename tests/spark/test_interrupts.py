"""Ctrl-C while Spark works: an interrupt soon, our jobs cancelled and no others, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.spark.collect import collect

ROWS = pa.table({"id": [1, 2, 3], "a": ["x", "y", "z"]})


@pytest.fixture
def notebook() -> Iterator[None]:
    """The handler that notebooks set, which does not cancel all jobs as pyspark's does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _slow(frame: Any, begun: Path, until: Path) -> Any:
    """The frame, whose rows wait a minute for a file."""
    here, there = str(begun), str(until)

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            open(here, "w").close()
            for _ in range(600):
                if os.path.exists(there):
                    break
                time.sleep(0.1)
            yield batch

    return frame.mapInArrow(wait, frame.schema)


def _wait_for(file: Path) -> None:
    until = time.monotonic() + 120
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.05)


def _press_ctrl_c(once: Path) -> threading.Thread:
    """Press it when a task has begun; what it is sent to is this process."""

    def press() -> None:
        _wait_for(once)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    return thread


def test_ctrl_c_cancels_our_jobs_alone(
    spark: Any, tmp_path: Path, notebook: None, unchanged: Any, leftovers: Any
) -> None:
    it.write(ROWS, tmp_path / "t", engine="arrow")
    theirs: list[int] = []
    other = _slow(spark.range(0, 1, 1, 1), tmp_path / "theirs", tmp_path / "over")
    running = threading.Thread(target=lambda: theirs.append(other.count()))
    running.start()
    _wait_for(tmp_path / "theirs")
    rows = spark.createDataFrame([(2, "new")], "id long, a string").coalesce(1)
    pressed = _press_ctrl_c(tmp_path / "ours")
    with pytest.raises(KeyboardInterrupt), unchanged(tmp_path / "t"):
        it.merge(_slow(rows, tmp_path / "ours", tmp_path / "never"), tmp_path / "t", on="id", engine=spark)
    assert time.time() - os.stat(tmp_path / "ours").st_mtime < 20  # seconds; two are what it takes
    (tmp_path / "over").touch()
    pressed.join()
    running.join(120)
    assert theirs == [1]
    assert it.merge(rows, tmp_path / "t", on="id", engine=spark).updated == 1
    assert leftovers(tmp_path / "t") == []


def test_what_a_job_raises_is_raised_where_it_was_asked_for(spark: Any) -> None:
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        collect(spark.sql("select 1 / (id - id) as x from range(3)"))
    assert collect(spark.range(3)).num_rows == 3
    if hasattr(spark, "getTags"):
        assert not [tag for tag in spark.getTags() if tag.startswith("intarsia-")]


PROGRAM = """
import sys, time, intarsia as it
from intarsia.spark import open_session
def say(word): print(word, flush=True)
say("opening")
try:
    spark = open_session("local[2]", config={"spark.driver.memory": "1g"})
    rows = spark.range(0, 400_000, 1, 8).selectExpr("id * 2 as id", "cast(id as string) as a")
    say("merging")
    it.merge(rows, sys.argv[1], on="id", engine=spark, progress=lambda step, *_: say(step))
    say("done")
except KeyboardInterrupt:
    say("interrupted")
    spark = open_session("local[2]", config={"spark.driver.memory": "1g"})
    assert spark.range(7).count() == 7
    say("usable")
"""


@pytest.mark.skipif(os.environ.get("INTARSIA_SPARK") != "full", reason="make spark runs it")
@pytest.mark.parametrize(
    ("word", "seconds"),
    [("opening", 1), ("opening", 3), ("merging", 0.5), ("merging", 2), ("probe and write files", 0.5)],
)
@pytest.mark.spark
def test_ctrl_c_ends_a_program_that_merges_on_spark(
    tmp_path: Path, leftovers: Any, word: str, seconds: float
) -> None:
    ids = range(400_000)
    rows = pa.table({"id": ids, "a": [str(n) for n in ids]})
    it.write(rows, tmp_path / "t", max_rows_per_file=50_000, engine="arrow")
    before = sorted(os.listdir(tmp_path / "t"))
    # A group of its own, all of which gets the signal, as a terminal does it.
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path / "t"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        next(line for line in program.stdout if line.strip() == word)
        time.sleep(seconds)
        pressed = time.monotonic()
        os.killpg(program.pid, signal.SIGINT)
        # To the end, which every JVM that was started has to come to, too.
        told = {line.strip(): time.monotonic() - pressed for line in program.stdout}
    # Python itself ends by the signal where it came while a module was loaded.
    assert program.returncode in (0, -signal.SIGINT)
    was_done = "done" in told
    assert was_done or told["interrupted"] < 10  # seconds; two are what it takes
    assert was_done or sorted(os.listdir(tmp_path / "t")) == before
    assert it.read(tmp_path / "t").read_all().num_rows == (600_000 if was_done else 400_000)
    assert leftovers(tmp_path / "t") == []
