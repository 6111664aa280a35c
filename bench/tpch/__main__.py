"""``python -m bench.tpch [workload ...]``: every contender on TPC-H's tables, as ratios in one run."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.follow import Measured, line, measure
from bench.show import table
from bench.tpch.contenders import IN_PROCESS
from bench.tpch.data import WRITERS, Tables, make_workloads
from bench.tpch.on_spark import ON_SPARK

CONTENDERS = (*IN_PROCESS, *ON_SPARK)


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    directory = Path(options.dir or tempfile.gettempdir()).resolve() / "intarsia-bench"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # children are ended on the way out
    known = make_workloads(options.scale)
    peers = [name for name in CONTENDERS if name in options.peers]
    best: dict[tuple[str, str], Measured] = {}
    rows: list[tuple[str, int]] = []
    try:
        tables = Tables(directory, options.scale, options.writer).make()
        for name in options.workloads:
            workload = known[name]
            for step in workload.steps:  # made here, so that no child is measured with it
                tables.source(workload, step)
                tables.expected(workload, step)
            rows.append((name, tables.count_rows("lineitem")))
            print(f"{name}  {workload.title}: scale {options.scale:g}", flush=True)
            for contender in peers:
                one = measure(_job(name, contender, directory, options), "bench.tpch.child")
                best[name, contender] = one
                print(line(one, best.get((name, "intarsia"))), flush=True)
        print(f"\n{table(rows, best, peers)}")
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
    return int(any(not one.right for one in best.values()))


def _job(workload: str, contender: str, directory: Path, options: argparse.Namespace) -> dict[str, object]:
    return {
        "contender": contender,
        "workload": workload,
        "scale": options.scale,
        "writer": options.writer,
        "directory": str(directory),
        "room": str(directory / "room"),
        "heap": options.heap,
        "jars": options.jars,
        "warm": options.warm,
        "passes": options.passes,
        "limit": options.limit,
    }


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    known = make_workloads(1)
    parser = argparse.ArgumentParser(
        prog="python -m bench.tpch",
        description="Measure TPC-H's refresh functions (RF1 inserts, RF2 deletes a thousandth of the orders"
        " and their lineitems) and merges of a share of lineitem in the manner of LHBench, on data by dbgen."
        " Wall and CPU seconds and memory of all processes of a contender, the bytes it wrote, and for the"
        " merges what it costs to read the table before and after; every result is checked.",
        epilog="; ".join(f"{one.name}: {one.title}" for one in known.values()),
    )
    parser.add_argument("workloads", nargs="*", choices=[[], *known], help="default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="TPC-H's scale factor (default 1)")
    parser.add_argument(
        "--peers", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="who takes part"
    )
    parser.add_argument(
        "--writer", choices=WRITERS, default="pyarrow", help="who wrote the tables' files (default: pyarrow)"
    )
    parser.add_argument("--warm", type=int, default=1, help="passes that do not count (default 1)")
    parser.add_argument("--passes", type=int, default=2, help="passes of which the least counts (default 2)")
    parser.add_argument("--heap", default="4g", help="of the JVM, for all on Spark (default 4g)")
    parser.add_argument("--jars", help="a directory with the peers' jars (default: Spark fetches them)")
    parser.add_argument("--limit", type=int, default=3600, help="seconds a contender may take (default 3600)")
    parser.add_argument("--dir", help="where to make the data (default: the system's temporary directory)")
    parser.add_argument("--keep", action="store_true", help="leave the data there for the next run")
    options = parser.parse_args(argv)
    options.workloads = options.workloads or list(known)
    return options


if __name__ == "__main__":
    sys.exit(main())
