from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from intarsia.pipeline.reports.diagram_svg import draw_svg
from intarsia.pipeline.reports.live import LiveRun, read_live_runs

ROWS = {1: ("eu", 1.0), 2: ("us", -2.0)}


def _watch(shop: Any, **options: Any) -> list[LiveRun]:
    """What somebody sees who looks whenever a step is over."""
    seen: list[LiveRun] = []
    shop.run(on_step=lambda _: seen.extend(read_live_runs(shop.root / "reports")), **options)
    return seen


def _write(directory: Path, **told: Any) -> Path:
    """A file as a run leaves it while it is under way."""
    step = {
        "name": "a",
        "operation": "merge",
        "status": "running",
        "seconds": 0.0,
        "outcome": "",
        "warned": False,
    }
    plain = {
        "pipeline": "shop",
        "run_id": "20250301T000000-abcdef",
        "started": "2025-03-01T00:00:00.000+00:00",
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "step_started": None,
        "steps": [step],
        "graph": None,
    }
    directory.mkdir(exist_ok=True)
    path = directory / ".shop-20250301T000000-abcdef.running.json"
    path.write_text(json.dumps(plain | told))
    return path


def test_a_run_can_be_followed_step_by_step_and_leaves_no_file(shop: Any) -> None:
    shop.lands("a.csv", ROWS)
    seen = _watch(shop)
    assert [run.done for run in seen] == [1, 2, 3]
    assert [step.status for step in seen[0].steps] == ["done", "waiting", "waiting"]
    assert seen[1].steps[1].outcome == "−1"
    assert read_live_runs(shop.root / "reports") == ()
    assert [name for name in os.listdir(shop.root / "reports") if "running" in name] == []


def test_the_graph_of_a_run_under_way_can_be_drawn(shop: Any) -> None:
    shop.lands("a.csv", ROWS)
    graph = _watch(shop)[0].graph
    assert graph is not None
    statuses = [line.status for node in graph.nodes for line in node.lines]
    assert statuses == ["done", "waiting", "waiting"]
    assert "waiting" in draw_svg(graph)


def test_a_run_with_nothing_to_do_and_a_dry_run_without_reports_have_no_file(shop: Any) -> None:
    shop.lands("a.csv", ROWS)
    shop.run(dry_run=True)
    assert not (shop.root / "reports").exists()
    shop.run()
    assert _watch(shop) == []


def test_a_run_that_fails_leaves_no_file(shop: Any) -> None:
    shop.lands("a.csv", ROWS)
    shop.declare(shop.file.read_text().replace("amount < 0", "absent < 0"))
    assert shop.run().failed is not None
    assert read_live_runs(shop.root / "reports") == ()


def test_a_run_whose_process_is_gone_is_not_under_way_and_the_next_run_removes_its_file(shop: Any) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    path = _write(shop.root / "reports", pid=gone.pid)
    other = path.with_name(".other-20250301T000000-abcdef.running.json")
    other.write_text(path.read_text().replace('"shop"', '"other"'))
    assert read_live_runs(shop.root / "reports") == ()
    shop.lands("a.csv", ROWS)
    shop.run()
    assert (path.exists(), other.exists()) == (False, True)


def test_a_run_of_another_machine_counts_for_a_day(shop: Any) -> None:
    path = _write(shop.root / "reports", host="another", pid=1)
    assert len(read_live_runs(path.parent)) == 1
    os.utime(path, (0, 0))
    assert read_live_runs(path.parent) == ()


@pytest.mark.parametrize(
    "told",
    [
        {"pid": "many"},
        {"pipeline": 3},
        {"started": "soon"},
        {"steps": [{"name": "a"}]},
        {"steps": [{"name": ["a"], "operation": "merge", "status": "done"}]},
        {"steps": 3},
        {"graph": {"pipeline": "shop", "nodes": [{"key": "a", "kind": "spoon"}], "edges": []}},
        {
            "graph": {
                "pipeline": "shop",
                "nodes": [],
                "edges": [{"start": "a", "end": "b", "line": 0, "kind": "reads"}],
            }
        },
    ],
)
def test_a_file_that_is_no_run_is_left_out(tmp_path: Path, told: dict[str, Any]) -> None:
    path = _write(tmp_path / "reports", **told)
    assert read_live_runs(path.parent) == ()
    path.write_text("{")
    assert read_live_runs(path.parent) == ()
    assert read_live_runs(tmp_path / "absent") == ()


def test_a_directory_that_cannot_be_written_any_more_does_not_fail_the_run(
    shop: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("intarsia.pipeline.reports.live.replace_file", refuse)
    shop.lands("a.csv", ROWS)
    assert shop.run().ok
    assert "could not be written" in caplog.text


def test_what_is_written_is_what_is_read(shop: Any) -> None:
    shop.lands("a.csv", ROWS)
    run = _watch(shop)[-1]
    again = _write(shop.root / "again", steps=[asdict(step) for step in run.steps], graph=asdict(run.graph))
    assert read_live_runs(again.parent)[0].graph == run.graph
