"""A driver and its JVM are killed around the commits of a stream's batches: every batch takes effect once.

A few points in the quick suite; every batch of every step, before and after its commit, with
INTARSIA_CRASH=full (``make crash``). Kills at single system calls are in tests/crash.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyiceberg")

DRIVER = Path(__file__).with_name("stream_driver.py")
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
BATCHES = 3
QUICK = [("add parquet", 1, "after"), ("add iceberg", 1, "after")]
ALL = [
    (f"{step} {kind}", batch, when)
    for step in ("add", "append")
    for kind in ("parquet", "iceberg")
    for batch in range(BATCHES)
    for when in ("before", "after")
]
POINTS = ALL if os.environ.get("INTARSIA_CRASH") == "full" else QUICK
AFTER = sorted(
    [(0, 1 + 10 + 100), *((number, 1) for number in range(1, BATCHES + 1))]
    + [(0, 10**number) for number in range(BATCHES)]
    + [(number, 1) for number in range(1, BATCHES + 1)]
)


def make(root: Path) -> None:
    """One file is one batch: it adds its power of ten to one key, and brings a key of its own."""
    from intarsia.tables.iceberg import embedded_catalog

    (root / "in").mkdir()
    for batch in range(BATCHES):
        land(root, batch)
    catalog = embedded_catalog(root / "warehouse")
    catalog.create_namespace("db")
    catalog.create_table("db.t", SCHEMA)


def land(root: Path, batch: int) -> None:
    found = [{"id": 0, "n": 10**batch}, {"id": batch + 1, "n": 1}]
    draft = root / "in" / f".{batch}.part"
    draft.write_text("\n".join(json.dumps(row) for row in found))
    os.utime(draft, (1_700_000_000 + batch,) * 2)  # Spark takes the oldest first
    draft.rename(root / "in" / f"{batch}.json")


def run(root: Path, *armed: object) -> None:
    command = [sys.executable, str(DRIVER), str(root), *map(str, armed)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=400, check=False, start_new_session=True
    )
    assert done.returncode == (-signal.SIGKILL if armed else 0), (armed, done.stderr[-3000:])


def rows(table: pa.Table) -> list[tuple[int, int]]:
    return sorted(zip(table["id"].to_pylist(), table["n"].to_pylist(), strict=True))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.more  # a JVM for each kill; tests/spark/test_streaming.py kills a query after its commits
@pytest.mark.timeout(7200)
def test_a_stream_whose_driver_is_killed_around_its_commits_has_every_batch_once(tmp_path: Path) -> None:
    from intarsia.tables.iceberg import embedded_catalog

    make(tmp_path)
    for point in POINTS:
        run(tmp_path, *point)
    run(tmp_path)
    assert rows(pq.read_table(tmp_path / "t")) == AFTER
    assert rows(embedded_catalog(tmp_path / "warehouse").load_table("db.t").scan().to_arrow()) == AFTER


STAYS = """
name = "web"

[sources.clicks]
stream = { format = "json", path = "in" }
columns = { id = "bigint", n = "bigint" }

[targets.t]
path = "t"

[spark]
master = "local[1]"

[spark.config]
"spark.driver.memory" = "1g"

[[steps]]
name = "append"
operation = "write"
source = "clicks"
target = "t"

[[steps]]
name = "tidy"
operation = "compact"
target = "t"
"""


def wait_for(what: Callable[[], bool], program: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 300
    while not what():
        assert program.poll() is None, program.communicate()
        assert time.monotonic() < until, "it has not come"
        time.sleep(0.2)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_stays_takes_what_lands_and_ends_cleanly_on_a_signal(tmp_path: Path, number: int) -> None:
    pytest.importorskip("click", reason="click is not installed")
    if number == signal.SIGINT and POINTS is QUICK:
        pytest.skip("another JVM: INTARSIA_CRASH=full")
    (tmp_path / "web.toml").write_text(STAYS)
    (tmp_path / "in").mkdir()
    land(tmp_path, 0)
    command = [sys.executable, "-m", "intarsia", "run", "web.toml", "--continuous", "--interval", "0.2"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        wait_for(lambda: count_rows(tmp_path) == 2, program)
        land(tmp_path, 1)
        wait_for(lambda: count_rows(tmp_path) == 4, program)
        program.send_signal(number)
        told, complained = program.communicate(timeout=300)
    assert program.returncode == 0, complained[-3000:]
    assert "web: done" in told + complained
    assert rows(pq.read_table(tmp_path / "t")) == [(0, 1), (0, 10), (1, 1), (2, 1)]
    reports = [json.loads(file.read_text()) for file in sorted((tmp_path / "reports").glob("web-*.json"))]
    assert sum(one["steps"][0]["input"]["batches"] for one in reports) == 2
    assert all(one["ok"] for one in reports)


def count_rows(root: Path) -> int:
    try:
        return pq.read_table(root / "t").num_rows if (root / "t").exists() else 0
    except FileNotFoundError:  # being compacted
        return 0
