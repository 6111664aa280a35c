"""``python -m bench.iceberg [workload ...]``: every contender on one evolved table, as ratios in one run."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.follow import Measured, line, measure
from bench.iceberg.contenders import CONTENDERS
from bench.iceberg.data import Lake, find_mode

TITLES = {
    "merge": "MERGE of 100,000 rows scattered over the table, a tenth of them new",
    "delete": "DELETE of 1 % of the rows, scattered",
    "update": "UPDATE of 1 % of the rows, scattered",
    "merge-cow": "MERGE of 100,000 rows scattered over the table, a tenth of them new",
    "update-cow": "UPDATE of 1 % of the rows, scattered",
}


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    directory = Path(options.dir or tempfile.gettempdir()).resolve() / "intarsia-bench"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # children are ended on the way out
    failed = False
    try:
        lake = Lake(directory / f"iceberg-{options.rows}", options.rows).make()
        for workload in options.workloads:
            mode = find_mode(workload)
            print(f"{TITLES[workload]}: {options.rows:,} rows, two specs, {mode}", flush=True)
            ours: Measured | None = None
            for contender in options.contenders:
                if contender == "pyiceberg" and workload != "merge":
                    continue
                one = measure(_job(lake, workload, contender, directory, options), "bench.iceberg.child")
                ours = one if contender == "intarsia" else ours
                failed = failed or not one.right
                print(line(one, ours), flush=True)
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
    return int(failed)


def _job(
    lake: Lake, workload: str, contender: str, directory: Path, options: argparse.Namespace
) -> dict[str, object]:
    slow = contender == "pyiceberg"  # minutes a pass
    return {
        "contender": contender,
        "workload": workload,
        "lake": str(lake.directory),
        "rows": lake.rows,
        "room": str(directory / "room"),
        "heap": options.heap,
        "jars": options.jars,
        "warm": 0 if slow else options.warm,
        "passes": 1 if slow else options.passes,
    }


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.iceberg",
        description="Measure MERGE, DELETE and UPDATE on an Iceberg table whose spec has evolved, merge on"
        " read and copy on write (-cow), against Iceberg's own DML on Spark (a warm session, the same table"
        " and catalog) and PyIceberg's upsert."
        " Wall and CPU seconds and memory of all processes; every result is checked.",
    )
    parser.add_argument("workloads", nargs="*", choices=[[], *TITLES], help="default: all")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--warm", type=int, default=1, help="passes that do not count (default 1)")
    parser.add_argument("--passes", type=int, default=2, help="passes of which the least counts (default 2)")
    parser.add_argument("--heap", default="4g", help="of the JVM (default 4g)")
    parser.add_argument("--jars", help="a directory with Iceberg's jars (default: Spark fetches them)")
    parser.add_argument("--dir", help="where to make the data (default: the system's temporary directory)")
    parser.add_argument("--keep", action="store_true", help="leave the data there for the next run")
    options = parser.parse_args(argv)
    options.workloads = options.workloads or list(TITLES)
    return options


if __name__ == "__main__":
    sys.exit(main())
