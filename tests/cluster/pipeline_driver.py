"""A driver that runs a pipeline file; the first tasks of the steps it is told wait for what becomes of them.

    {"file": ..., "master": ..., "config": {...}, "steps": ["orders"], "runs": 1, "die": [], "place": ...}

on standard input. It ends after the first run that is right, or after so many; with ``die``, a step and a
moment of it, it is killed there, and its JVM with it.

A task that has done its work leaves a marker, ``<number of the step>-<task>``, with the session of processes
that it is part of, and waits until there is ``go-<number>``. Run as a script, so that cloudpickle sends
what is defined here to executors by value.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.classic.dataframe import DataFrame

from intarsia import pipeline
from intarsia.pipeline.step_runner import StepRunner
from intarsia.spark import open_session, stop_session
from intarsia.tables.iceberg.transaction import IcebergTransaction
from intarsia.tables.parquet.journal import Journal
from intarsia.tables.parquet.table import ParquetTransaction

PATIENCE = 200.0
"""Seconds until a task that waits gives up, so that none outlives its test."""
UNDER_WAY = [""]
"""The step."""


def hinder(func: Any, place: str, number: int) -> Any:
    """The work of tasks, of which the first two wait when it is done."""

    def hindered(batches: Iterator[Any]) -> Iterator[Any]:
        yield from func(batches)
        for task in range(2):
            try:
                marker = os.open(f"{place}/{number}-{task}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                continue
            os.write(marker, b"%d" % os.getsid(0))
            os.close(marker)
            deadline = time.monotonic() + PATIENCE
            while not os.path.exists(f"{place}/go-{number}"):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nobody says go to step {number}")
                time.sleep(0.05)
            return

    return hindered


def hinder_executors(place: str, steps: list[str]) -> None:
    original, run_one = DataFrame.mapInArrow, StepRunner._run_one

    def map_hindered(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        step = UNDER_WAY[-1]
        work = hinder(func, place, steps.index(step)) if step in steps else func
        return original(self, work, *args, **kwargs)

    def run_noted(self: Any, step: Any, number: int) -> Any:
        UNDER_WAY.append(step.name)
        return run_one(self, step, number)

    DataFrame.mapInArrow = map_hindered  # type: ignore[method-assign]
    StepRunner._run_one = run_noted  # type: ignore[method-assign]


def die_at(step: str, moment: str) -> None:
    """Be killed when a commit of a step is staged, half in its place or done, or when the step is over."""

    def meet(name: str) -> None:
        if UNDER_WAY[-1] == step and moment == name:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    def arm(owner: Any, method: str, before: str, after: str) -> None:
        original = getattr(owner, method)

        def armed(*args: Any) -> Any:
            meet(before)
            result = original(*args)
            meet(after)
            return result

        setattr(owner, method, armed)

    for transaction in (ParquetTransaction, IcebergTransaction):
        arm(transaction, "commit", "staged", "committed")
    arm(Journal, "_publish_one", "", "half")
    arm(StepRunner, "_run_one", "", "over")


def main() -> None:
    job = json.load(sys.stdin)
    hinder_executors(job["place"], job["steps"])
    if job["die"]:
        die_at(*job["die"])
    spark = open_session(job["master"], app="cluster test", config=job["config"])
    try:
        outcomes: list[str] = []
        while len(outcomes) < job["runs"] and "done" not in outcomes:
            report = pipeline.run_file(Path(job["file"]), session=spark, progress=False)
            outcomes.append("done" if report.ok else report.failed.name if report.failed else "stopped")
        print(json.dumps(outcomes))
    finally:
        stop_session(spark)


if __name__ == "__main__":
    main()
