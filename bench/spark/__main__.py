"""``python -m bench.spark [workload ...]``: every contender in local mode on a warm session, as ratios."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from bench.check import data_files, scan
from bench.data import make_source, make_target
from bench.follow import Measured, line, measure
from bench.spark.contenders import CONTENDERS
from bench.workloads import WORKLOADS, Setting, Workload, expected_sql

NAMES = ("W1", "W2", "W3", "W7")


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    directory = Path(options.dir or tempfile.gettempdir()).resolve() / "intarsia-bench"
    failed = False
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # children are ended on the way out
    try:
        for name in options.workloads:
            (workload,) = WORKLOADS[name](Setting(options.scale))
            print(f"{workload.name}  {workload.title}: {workload.shape.rows:,} rows", flush=True)
            job = _job(workload, directory, options)
            ours: Measured | None = None
            for contender in options.contenders:
                one = measure({**job, "contender": contender}, "bench.spark.child")
                ours = one if contender == "intarsia" else ours
                failed = failed or not one.right
                print(line(one, ours), flush=True)
                if options.each and one.passes:
                    each = ", ".join(f"{wall:.2f} s {cpu:.2f} CPU s" for wall, cpu in one.passes)
                    print(f"    {'':12}{each}", flush=True)
                if options.processes and one.processes:
                    print(f"    {'':12}{', '.join(map(str, one.processes))} MB", flush=True)
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
    return int(failed)


def _job(workload: Workload, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Make the data, and the right result beside it."""
    target = make_target(workload.shape, directory)
    assert workload.source is not None
    source = make_source(workload.source_name, workload.source, directory)
    right = directory / f"right-{workload.source_name}.parquet"
    daily = workload.shape.daily
    if not right.exists():
        rows = expected_sql(workload, scan(data_files(target), daily=daily), f"read_parquet('{source}')")
        duckdb.execute(f"copy ({rows}) to '{right}.draft' (format parquet)")
        os.rename(f"{right}.draft", right)
    days = duckdb.execute(f"select distinct day::varchar from read_parquet('{source}')") if daily else None
    return {
        "target": str(target),
        "source": str(source),
        "expected": str(right),
        "room": str(directory / "room"),
        "keys": list(workload.keys),
        "daily": daily,
        "days": [row[0] for row in days.fetchall()] if days else [],
        "heap": options.heap,
        "jars": options.jars,
        "stock": options.stock,
        "name_days": options.name_days,
        "warm": options.warm,
        "passes": options.passes,
    }


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark",
        description="Measure upserts on Spark's local mode against Delta Lake with deletion vectors and"
        " Iceberg, merge-on-read and copy-on-write. Wall and CPU seconds of a merge on a warm session, and"
        " the most memory that the driver, its JVM and its Python workers had; every result is checked.",
    )
    parser.add_argument("workloads", nargs="*", choices=[[], *NAMES], help="default: all")
    parser.add_argument("--scale", type=float, default=0.25, help="1 means 20 million rows (default 0.25)")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--warm", type=int, default=1, help="passes that do not count (default 1)")
    parser.add_argument("--passes", type=int, default=2, help="passes of which the least counts (default 2)")
    parser.add_argument("--heap", default="4g", help="of the JVM, for every contender (default 4g)")
    parser.add_argument("--jars", help="a directory with the peers' jars (default: Spark fetches them)")
    parser.add_argument(
        "--stock", action="store_true", help="200 shuffle partitions, as Spark has it, for every contender"
    )
    parser.add_argument(
        "--name-days", action="store_true", help="name W3's day in the peers' ON by hand, as an expert would"
    )
    parser.add_argument(
        "--processes", action="store_true", help="tell the peak by process: anonymous + mapped memory"
    )
    parser.add_argument(
        "--each", action="store_true", help="tell every pass (--warm 0: from the first merge of a session on)"
    )
    parser.add_argument("--dir", help="where to make the data (default: the system's temporary directory)")
    parser.add_argument("--keep", action="store_true", help="leave the data there for the next run")
    options = parser.parse_args(argv)
    options.workloads = options.workloads or list(NAMES)
    return options


if __name__ == "__main__":
    sys.exit(main())
