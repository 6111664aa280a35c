"""A Spark driver in a process of its own: does the merges it is told to, with the fault it is told to have.

Run as a script, so that cloudpickle sends what is defined here to executors by value.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import intarsia as it
from intarsia.spark import open_session, stop_session

FAULT = ""
PLACE = ""
PATIENCE = 100.0
"""Seconds until a task that waits gives up, so that none outlives its test."""


def after_staging() -> None:
    """What befalls a task that has written its files and not yet said so; runs on an executor."""
    place = Path(PLACE)
    match FAULT:
        case "wait":  # every task, until the test says go
            Path(place, f"waiting-{uuid.uuid4().hex}").touch()
            wait_for(place / "go")
        case "straggle":  # the first task alone, and the test never says go
            if first(place / "straggler"):
                wait_for(place / "go")
        case "fail":  # one task raises, another takes its process down
            if first(place / "raised"):
                raise RuntimeError("a task fails after it has written its files")
            if first(place / "exited"):
                os._exit(9)


def first(marker: Path) -> bool:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def wait_for(marker: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not marker.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{marker} did not come")
        time.sleep(0.05)


def hindered(work: Any) -> Any:
    """The work of a task, which then meets the fault."""

    def done(shared: Any, job: Any) -> Any:
        result = work(shared, job)
        after_staging()
        return result

    return done


def hinder_executors(step: str) -> None:
    """Let every kind of merge meet the fault; one whose rows are routed, in one of its steps."""
    match: Any = importlib.import_module("intarsia.engines.spark.match")
    module = "probe" if step == "probe_files" else "route"
    routed: Any = importlib.import_module(f"intarsia.engines.spark.{module}")
    match.merge_files = hindered(match.merge_files)
    setattr(routed, step, hindered(getattr(routed, step)))


def options_of(way: str) -> dict[str, int]:
    """What sends a source to every task, or routes it to files, its keys found by an index or by a join."""
    routed: Any = importlib.import_module("intarsia.engines.spark.route")
    routed.ROUTED_BYTES = 0 if way == "routed" else 64 << 20
    return {"broadcast_bytes": 1 if way == "large" else 64 << 20}


def watch_commits(staged: list[tuple[int, int]]) -> None:
    """Note how many files are staged at each commit, and how many of them it names."""
    table: Any = importlib.import_module("intarsia.tables.parquet.table")
    commit = table.ParquetTransaction.commit

    def watched(self: Any, change: Any) -> Any:
        there = len(os.listdir(self.staging.directory))
        staged.append((there, len(change.replaced) + len(change.added)))
        return commit(self, change)

    table.ParquetTransaction.commit = watched


def die_at(point: str) -> None:
    """This process is killed when it comes to a step of the commit."""
    table: Any = importlib.import_module("intarsia.tables.parquet.table")
    journal: Any = importlib.import_module("intarsia.tables.parquet.journal")
    owner = table.ParquetTransaction if point == "commit" else journal.Journal

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, point, die)


def main() -> None:
    global FAULT, PLACE
    job = json.load(sys.stdin)
    FAULT, PLACE = job["fault"], job["place"]
    staged: list[tuple[int, int]] = []
    watch_commits(staged)
    hinder_executors(job["step"])
    if FAULT.startswith("die at "):
        die_at(FAULT.removeprefix("die at "))
    spark = open_session(job["master"], app="cluster test", config=job["config"])
    try:
        done = []
        for merge in job["merges"]:
            source = spark.read.parquet(merge["source"])
            result = it.merge(source, merge["path"], on="id", engine=spark, **options_of(merge["way"]))
            done.append({**dict(result), "new": result.inserted_files, "rewritten": result.rewritten_files})
        for one, (there, named) in zip(done, staged, strict=True):
            one |= {"staged": there, "named": named}
        print(json.dumps(done))
    finally:
        stop_session(spark)


if __name__ == "__main__":
    main()
