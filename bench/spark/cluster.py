"""``python -m bench.spark.cluster``: many rows into many more on a standalone cluster of one and two workers.

The cluster is real (a master, workers of one core, executors, each a process of its own) and on this machine,
so the workers share its disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
from tests.cluster.cluster_processes import HOST, Cluster, environment

import intarsia as it
from bench.data import Shape, make_target, rows_sql
from bench.spark.tree import Peak, cpu_seconds
from intarsia.spark import local_session

ROWS = 100_000_000
FILE_ROWS = 1_000_000
EVERY = 5
"""One row of the target in so many is changed, and as many rows as a tenth of these are new."""
SOURCE_FILES = 8


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse_options(argv)
    if options.driver:
        return drive(json.loads(options.driver))
    directory = Path(options.dir or tempfile.gettempdir()).resolve() / "intarsia-bench-cluster"
    directory.mkdir(parents=True, exist_ok=True)
    files = max(1, int(ROWS * options.scale) // FILE_ROWS)
    shape = Shape(f"rows-{files}", files, min(FILE_ROWS, int(ROWS * options.scale)))
    try:
        target = make_target(shape, directory)
        source = make_source(shape, directory / f"source-{files}")
        walls = [measure(workers, shape, target, source, directory, options) for workers in options.workers]
        if len(walls) > 1:
            few, many = options.workers[0], options.workers[-1]
            print(f"{many} workers instead of {few}: {walls[0] / walls[-1]:.2f} x as fast")
    finally:
        shutil.rmtree(directory / "room", ignore_errors=True)
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
    return 0


def make_source(shape: Shape, path: Path) -> Path:
    """Changed rows from everywhere in the table and new ones among them, in no order of their keys."""
    if path.exists():
        return path
    draft = path.with_name(f"{path.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    changed = shape.rows // EVERY * 9 // 10
    new = shape.rows // EVERY - changed
    ids = (
        f"select 2 * ((i * {EVERY}) % {shape.rows}) as n from range({changed}) t(i)"
        f" union all select 2 * ((i * {EVERY}) % {shape.rows}) + 1 as n from range({new}) t(i)"
    )
    for number in range(SOURCE_FILES):
        part = f"select n from ({ids}) where hash(n) % {SOURCE_FILES} = {number} order by hash(n, 1)"
        duckdb.execute(f"copy ({rows_sql(part, version=1)}) to '{draft}/{number}.parquet' (format parquet)")
    draft.rename(path)
    return path


def measure(
    workers: int, shape: Shape, target: Path, source: Path, directory: Path, options: argparse.Namespace
) -> float:
    """One merge on a new cluster; its wall seconds."""
    room = directory / "room"
    shutil.rmtree(room, ignore_errors=True)
    shutil.copytree(target, room / "table")
    os.sync()  # so that the merge does not pay for writing back a copy
    hosts = [HOST, *(f"127.0.0.{number}" for number in range(2, workers + 1))]
    cluster = Cluster(room / "cluster", hosts, memory=options.memory)
    cluster.place.mkdir()
    try:
        cluster.start()
        job = {"url": cluster.url, "table": str(room / "table"), "source": str(source), "heap": options.heap}
        job |= {"memory": options.memory, "parallelism": 2 * workers}
        command = [sys.executable, "-m", "bench.spark.cluster", "--driver", json.dumps(job)]
        environ = {**environment(room / "driver", HOST), "PYSPARK_PYTHON": sys.executable}
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        before = sum(cpu_seconds(worker.process.pid) for worker in cluster.workers)
        with Peak(driver.pid) as peak:
            said, _ = driver.communicate()
        spent = sum(cpu_seconds(worker.process.pid) for worker in cluster.workers) - before
    finally:
        cluster.stop()
    if driver.returncode:
        raise SystemExit(f"the driver ended with {driver.returncode}")
    result = json.loads(said.splitlines()[-1])
    problem = find_difference(target, source, room / "table")
    print(
        f"{shape.rows // EVERY:,} rows into {shape.rows:,}, {workers} worker{'s' if workers > 1 else ''}:"
        f" {result['wall']:.1f} s wall, {spent:.1f} s CPU on executors, {result['cpu']:.1f} s in the driver,"
        f" which had {peak.mb:,.0f} MB at most ({', '.join(map(str, peak.processes))});"
        f" {result['inserted']:,} inserted, {result['updated']:,} updated;"
        f" {problem or 'the result is right'}",
        flush=True,
    )
    if problem:
        raise SystemExit(1)
    return float(result["wall"])


def drive(job: dict[str, Any]) -> int:
    """In the driver's process: a session on the cluster, one merge."""
    config = {
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.driver.memory": job["heap"],
        "spark.executor.memory": f"{int(job['memory'].rstrip('g')) - 1}g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.shuffle.partitions": str(4 * job["parallelism"]),
    }
    spark = local_session("bench-cluster", master=job["url"], config=config)
    frame = spark.read.parquet(job["source"])
    before, started = cpu_seconds(os.getpid()), time.perf_counter()
    result = it.merge(frame, job["table"], on="id", engine=spark)
    wall, cpu = time.perf_counter() - started, cpu_seconds(os.getpid()) - before
    spark.stop()
    said = {"wall": wall, "cpu": cpu, "inserted": result.inserted, "updated": result.updated}
    print(json.dumps(said), flush=True)
    return 0


def find_difference(before: Path, source: Path, after: Path) -> str | None:
    """What is wrong with the table, by a sum of hashes of all rows; None if nothing is."""
    old, new, now = (f"read_parquet('{path}/**/*.parquet')" for path in (before, source, after))

    def digest(rows: str) -> tuple[Any, ...]:
        return duckdb.execute(f"select count(*), sum(hash(t)) from {rows} t").fetchall()[0]

    kept = digest(f"(select * from {old} o anti join {new} n using (id))")
    changed = digest(f"(select * from {new})")
    found = digest(f"(select * from {now})")
    expected = tuple(one + other for one, other in zip(kept, changed, strict=True))
    return None if found == expected else f"THE RESULT IS WRONG: {found} instead of {expected}"


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark.cluster",
        description="Measure an upsert of 20 million rows into 100 million on a standalone cluster of one"
        " and of two workers with one core each, all on this machine: wall and CPU seconds, and the most"
        " memory that the driver had, its JVM included. The result is checked.",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="1 means 100 million rows (default)")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[1, 2], help="one cluster for each (default 1 2)"
    )
    parser.add_argument("--heap", default="1g", help="of the driver's JVM (default 1g)")
    parser.add_argument("--memory", default="4g", help="of a worker; its executor has a GB less (default 4g)")
    parser.add_argument("--dir", help="where to make the data (default: the system's temporary directory)")
    parser.add_argument("--keep", action="store_true", help="leave the data there for the next run")
    parser.add_argument("--driver", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
