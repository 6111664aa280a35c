"""A pipeline of everything on a real standalone cluster, while workers, executors and drivers are killed.

Not part of the usual run, since it takes minutes and much memory: ``make cluster``.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import shop_project as shop
from cluster_processes import Cluster, Driver, Worker, end, start_driver, wait_until

import intarsia as it

pytest.importorskip("pyiceberg")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not os.environ.get("INTARSIA_CLUSTER"), reason="make cluster runs it"),
    pytest.mark.skipif(sys.platform != "linux", reason="the workers are on two addresses of Linux' loopback"),
]

KILLED = range(len(shop.STEPS)) if os.environ.get("INTARSIA_CRASH") == "full" else (0, 3, 5)
"""The steps in which a driver is killed; each takes a new one."""
MOMENTS: list[tuple[str, str, dict[str, int]]] = [
    ("orders are sound", "committed", {"bad": 1}),
    ("orders", "staged", {}),
    ("orders", "half", {"orders": 1}),
    ("revenue", "over", {"revenue": 1}),
    ("clicks", "committed", {"scores": 1, "clicks": 1}),
    ("visits", "staged", {"clicks": 1}),
    ("visits", "committed", {"visits": 1}),
    ("surcharge", "committed", {"visits": 1, "orders": 1}),
]
"""Where drivers are killed, one after the other, and how many commits each has added to which tables."""
Start = Callable[..., AbstractContextManager[Driver]]


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Start:
    """``start(steps, runs=1, die=(), config={})``: a driver of the pipeline; tasks of these steps wait."""
    shop.make(tmp_path / "shop")
    count = itertools.count()

    def run(
        steps: Sequence[str] = (),
        *,
        runs: int = 1,
        die: Sequence[str] = (),
        config: dict[str, Any] | None = None,
    ) -> AbstractContextManager[Driver]:
        file = str(tmp_path / "shop" / "shop.toml")
        job = {"file": file, "master": cluster.url, "steps": list(steps), "runs": runs, "die": die}
        return start_driver(tmp_path, "pipeline_driver.py", job, markers=f"run-{next(count)}", config=config)

    return run


@pytest.fixture
def check(tmp_path: Path, leftovers: Any) -> Callable[[int], None]:
    """Every row is there once after so many days, and nothing is left."""

    def check(days: int) -> None:
        root = tmp_path / "shop"
        assert shop.read_tables(root) == shop.expect_tables(days)
        for name in shop.PARQUET:
            it.recover(root / "lake" / name)  # links of readers that were killed
            assert leftovers(root / "lake" / name) == []

    return check


def find_worker(cluster: Cluster, work: Driver, number: int) -> Worker:
    """The worker on which a task of a step waits."""
    (marker,) = wait_until(lambda: work.markers(f"{number}-0"), f"a task of step {shop.STEPS[number]!r}")
    session = wait_until(lambda: marker.read_text(), "what the task says")
    return next(worker for worker in cluster.workers if worker.process.pid == int(session))


def kill_executor(worker: Worker) -> None:
    """Kill the JVM that a worker has started for tasks, and leave the worker alone."""
    killed = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
            belongs = os.getsid(int(entry.name)) == worker.process.pid
        except (ProcessLookupError, FileNotFoundError):
            continue
        if belongs and b"CoarseGrainedExecutorBackend" in words:
            os.kill(int(entry.name), signal.SIGKILL)
            killed += 1
    assert killed == 1


@pytest.mark.parametrize("victim", ["worker", "executor"])
def test_a_process_of_the_cluster_killed_in_every_step_changes_nothing_about_the_result(
    cluster: Cluster, start: Start, check: Any, tmp_path: Path, victim: str
) -> None:
    with start(shop.STEPS) as work:
        for number in range(len(shop.STEPS)):
            worker = find_worker(cluster, work, number)
            if victim == "worker":
                end(worker.process)
                cluster.make_whole()
            else:
                kill_executor(worker)
            Path(work.place, f"go-{number}").touch()
        assert work.results() == ["done"]
    check(1)
    (report,) = shop.read_reports(tmp_path / "shop")
    assert {step["status"] for step in report["steps"]} == {"done"}
    assert [step["input"]["batches"] for step in report["steps"]] == [None] * 4 + [2, 2] + [None] * 2


def test_runs_that_a_killed_executor_has_failed_are_finished_by_the_next(
    cluster: Cluster, start: Start, check: Any, tmp_path: Path
) -> None:
    """In each step once; Spark is told to repeat no task."""
    with start(shop.STEPS, runs=len(shop.STEPS) + 2, config={"spark.task.maxFailures": 1}) as work:
        for number in range(len(shop.STEPS)):
            kill_executor(find_worker(cluster, work, number))
            Path(work.place, f"go-{number}").touch()
        assert work.results() == [*shop.STEPS, "done"]
    check(1)


def test_a_driver_killed_within_a_step_leaves_nothing_half_and_the_next_run_finishes(
    cluster: Cluster, start: Start, check: Any, tmp_path: Path
) -> None:
    """The tasks of one that is dead go on while the next one works."""
    for run, number in enumerate(KILLED):
        with start(shop.STEPS) as work:
            for done in range(number):
                Path(work.place, f"go-{done}").touch()
            find_worker(cluster, work, number)
            end(work.process)
        for earlier in range(run):
            (tmp_path / f"run-{earlier}" / f"go-{KILLED[earlier]}").touch()
    with start() as work:
        assert work.results() == ["done"]
    check(1)
    shop.land(tmp_path / "shop", 1)
    with start() as work:
        assert work.results() == ["done"]
    check(2)


def test_drivers_killed_around_commits_and_between_steps_leave_one_state_and_the_next_goes_on_from_it(
    start: Start, check: Any, tmp_path: Path
) -> None:
    with start() as work:
        assert work.results() == ["done"]
    check(1)
    root, states = tmp_path / "shop", shop.expect_states(2)
    done = {name: len(commits) // 2 - 1 for name, commits in states.items()}
    shop.land(root, 1)
    for step, moment, added in MOMENTS:
        with start(die=(step, moment)) as work:
            assert work.ended() == -signal.SIGKILL, work.errors()
        done = {name: at + added.get(name, 0) for name, at in done.items()}
        found = shop.read_states(root)
        assert found == {name: states[name][at] for name, at in done.items()}, (step, moment)
    with start() as work:
        assert work.results() == ["done"]
    check(2)
