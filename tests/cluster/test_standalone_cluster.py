"""Merges on a real standalone cluster and in local mode, while workers, tasks and drivers die.

Not part of the usual run, since it takes minutes and much memory: ``make cluster``.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cluster_processes import Cluster, driver, end, wait_until

import intarsia as it

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not os.environ.get("INTARSIA_CLUSTER"), reason="make cluster runs it"),
    pytest.mark.skipif(sys.platform != "linux", reason="the workers are on two addresses of Linux' loopback"),
]

FILES, FILE_ROWS = 8, 500
WAYS = ["small", "routed", "large"]
"""The source goes to every task, or its rows to the files through storage, or Spark joins it."""
every_way = pytest.mark.parametrize("way", WAYS)


@dataclass(frozen=True)
class Case:
    """A dataset, a source that changes every file, and what must become of it."""

    path: Path
    source: Path
    old: pa.Table
    new: pa.Table

    def merge(self, way: str) -> dict[str, str]:
        return {"path": str(self.path), "source": str(self.source), "way": way}


@pytest.fixture
def case(tmp_path: Path, make_dataset: Callable[..., Path]) -> Callable[[str], Case]:
    def table(ids: range, note: str) -> pa.Table:
        return pa.table({"id": pa.array(ids, pa.int64()), "note": [f"{note} {key}" for key in ids]})

    count = FILES * FILE_ROWS
    old = table(range(count), "old")
    changed, added = table(range(0, count, 7), "changed"), table(range(count, count + 300), "new")
    kept = old.filter(pa.array([key % 7 != 0 for key in range(count)]))

    def make(name: str = "orders") -> Case:
        place = tmp_path / name
        path = make_dataset(place / "data", old, files=FILES)
        (place / "source").mkdir()
        for number, part in enumerate((changed, added)):
            pq.write_table(part, place / "source" / f"{number}.parquet")
        return Case(path, place / "source", old, pa.concat_tables([kept, changed, added]))

    return make


@pytest.fixture
def check(tmp_path: Path, rows: Any, leftovers: Any) -> Callable[..., None]:
    """The rows are exact, no file is there that the result does not name, nothing is left anywhere."""

    def check(case: Case, expected: pa.Table, new_files: list[str]) -> None:
        assert rows(case.path) == rows(expected)
        named = {f"part-{number:05d}.parquet" for number in range(FILES)}
        named |= {os.path.basename(file) for file in new_files}
        assert {name.name for name in case.path.iterdir()} == named
        assert leftovers(case.path) == []
        assert {name.name for name in case.path.parent.iterdir()} <= {"data", "source", ".data.intarsia"}
        assert list(tmp_path.glob("tmp/intarsia-*/*")) == []

    return check


def test_a_cluster_merges_sources_of_every_way_exactly(
    cluster: Cluster, case: Any, check: Any, tmp_path: Path
) -> None:
    cases = [case(way) for way in WAYS]
    merges = [one.merge(way) for one, way in zip(cases, WAYS, strict=True)]
    with driver(tmp_path, merges, master=cluster.url) as work:
        results = work.results()
    for one, result in zip(cases, results, strict=True):
        assert (result["updated"], result["inserted"]) == (572, 300)
        assert len(result["rewritten"]) == FILES
        assert result["staged"] == result["named"]
        check(one, one.new, result["new"])


@every_way
def test_a_worker_killed_in_the_middle_of_a_merge_changes_nothing_about_the_result(
    cluster: Cluster, case: Any, check: Any, tmp_path: Path, way: str
) -> None:
    one = case()
    with driver(tmp_path, [one.merge(way)], master=cluster.url, fault="wait") as work:
        # An executor has one core, so two tasks that have staged their files are on both workers.
        wait_until(lambda: len(work.markers("waiting-*")) >= 2, "two tasks at work")
        end(cluster.workers[0].process)
        Path(work.place, "go").touch()
        (result,) = work.results()
    assert result["staged"] > result["named"]  # the dead worker's files were there, and did not count
    check(one, one.new, result["new"])


@pytest.mark.parametrize("step", ["probe_files", "route_part"])
def test_a_worker_killed_while_rows_are_on_their_way_changes_nothing_about_the_result(
    cluster: Cluster, case: Any, check: Any, tmp_path: Path, step: str
) -> None:
    one = case()
    with driver(tmp_path, [one.merge("routed")], master=cluster.url, fault="wait", step=step) as work:
        wait_until(lambda: len(work.markers("waiting-*")) >= 2, "two tasks at work")
        end(cluster.workers[0].process)
        Path(work.place, "go").touch()
        (result,) = work.results()
        assert len(list(work.place.glob("waiting-*"))) > 2  # the dead worker's task was repeated
    assert result["staged"] == result["named"]
    check(one, one.new, result["new"])


@pytest.mark.parametrize("way", ["small", "routed"])
def test_a_task_overtaken_by_its_speculative_copy_counts_once(
    cluster: Cluster, case: Any, check: Any, tmp_path: Path, way: str
) -> None:
    eager = {
        "spark.speculation": True,
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": 1.1,
        "spark.speculation.quantile": 0.5,
    }
    one = case()
    with driver(tmp_path, [one.merge(way)], master=cluster.url, fault="straggle", config=eager) as work:
        (result,) = work.results()  # the straggler waits for ever: only its copy can end the merge
        assert Path(work.place, "straggler").exists()
    assert result["staged"] > result["named"]
    check(one, one.new, result["new"])


@every_way
def test_tasks_that_fail_after_writing_are_repeated_and_count_once(
    case: Any, check: Any, tmp_path: Path, way: str
) -> None:
    one = case()
    with driver(tmp_path, [one.merge(way)], master="local[2,3]", fault="fail") as work:
        (result,) = work.results()
        assert Path(work.place, "raised").exists()
        assert Path(work.place, "exited").exists()
    assert result["staged"] > result["named"]
    check(one, one.new, result["new"])


@pytest.mark.parametrize(
    ("point", "way", "by"),
    [
        ("commit", "small", "recover"),
        ("commit", "large", "the next merge"),
        ("commit", "routed", "recover"),
        ("publish", "large", "recover"),
        ("publish", "small", "the next merge"),
        ("publish", "routed", "the next merge"),
        ("clean", "small", "recover"),
    ],
)
def test_a_driver_killed_around_the_commit_leaves_the_old_or_the_new_state(
    case: Any,
    leftovers: Any,
    check: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    way: str,
    by: str,
) -> None:
    one = case()
    die = f"die at {point}"
    with driver(tmp_path, [one.merge(way)], master="local[2]", fault=die) as work:
        assert work.ended() == -signal.SIGKILL, work.errors()
    assert leftovers(one.path), "the driver was killed with everything staged"
    assert list(tmp_path.glob("tmp/intarsia-*/*/*.parquet")), "and with its copy of the source"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    _recovered(one, check, new=point != "commit", by=by)


@pytest.mark.parametrize("way", ["routed", "large"])
def test_a_driver_of_a_cluster_killed_before_the_commit_leaves_the_old_state(
    cluster: Cluster, case: Any, leftovers: Any, check: Any, tmp_path: Path, way: str
) -> None:
    one = case()
    with driver(tmp_path, [one.merge(way)], master=cluster.url, fault="die at commit") as work:
        assert work.ended() == -signal.SIGKILL, work.errors()
    assert any("/spools/" in name for name in leftovers(one.path)), "its copy of the source is there"
    _recovered(one, check, new=False, by="recover")


def _recovered(one: Case, check: Any, *, new: bool, by: str) -> None:
    """Recover in one of the two ways; afterwards nothing tells of the crash."""
    expected = one.new if new else one.old
    assert sum(file.rows for file in it.snapshot(one.path).files) == expected.num_rows  # seen before, too
    if by == "recover":
        assert it.recover(one.path)
        assert it.recover(one.path) == ()
    else:
        it.merge(one.new.slice(0, 1), one.path, on="id", strategy="update")  # a row that is as it was
    inserted = sorted(file.name for file in one.path.iterdir() if not file.name.startswith("part-"))
    assert bool(inserted) == new
    check(one, expected, inserted)
