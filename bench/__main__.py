"""``python -m bench [workload ...]``: makes the data, runs every contender, prints and keeps the figures."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from bench.data import WRITERS
from bench.measure import CONTENDERS, LIMITED, Arena, Measured
from bench.show import least, line, table
from bench.workloads import WORKLOADS, Setting, Workload, make_workloads

RESULTS = Path(__file__).parent / "results"


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    directory = Path(options.dir or tempfile.gettempdir()).resolve() / "intarsia-bench"
    known = LIMITED if options.memory_mb else CONTENDERS
    contenders = [name for name in known if name in options.peers]
    made = make_workloads(options.workloads, options.scale, writers=options.writers, kinds=options.changes)
    best: dict[tuple[str, str], Measured] = {}
    every: list[Measured] = []
    for workload in made:
        size = f"{workload.shape.rows:,} rows in {workload.shape.files:,} files"
        print(f"{workload.name}  {workload.title}: {size}", flush=True)
        for one in _run(workload, contenders, directory, options, every):
            best[one.workload, one.contender] = one
            print(line(one), flush=True)
    print()
    print(table([(one.name, one.shape.rows) for one in made], best, contenders))
    _keep(options, every)
    if not options.keep:
        shutil.rmtree(directory)
    return int(any(one.right is False for one in every))


def _run(
    workload: Workload,
    contenders: Sequence[str],
    directory: Path,
    options: argparse.Namespace,
    every: list[Measured],
) -> list[Measured]:
    """Passes go round the contenders, so that a busy minute does not fall on one of them."""
    arena = Arena(workload, directory, memory_bytes=int(options.memory_mb * 1e6))
    taking_part = [name for name in contenders if workload.only is None or name in workload.only]
    rounds = [[arena.measure(name) for name in taking_part] for _ in range(options.passes)]
    every += [one for found in rounds for one in found]
    return [least(found) for found in zip(*rounds, strict=True)]


def _keep(options: argparse.Namespace, every: Sequence[Measured]) -> None:
    RESULTS.mkdir(exist_ok=True)
    versions = {}
    for name in ("intarsia", "pyarrow", "polars", "duckdb", "deltalake"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    record = {
        "scale": options.scale,
        "writers": options.writers,
        "passes": options.passes,
        "memory_mb": options.memory_mb,
        "python": platform.python_version(),
        "versions": versions,
        "measured": [one.as_dict() for one in every],
    }
    path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(record, indent=1))
    print(f"\n{path}")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure intarsia, on PyArrow and on DuckDB, against the floor, Polars and DuckDB by"
        " hand, and delta-rs. CPU seconds are the figure (user and system, of the operation alone); every"
        " result is checked. A star stands for rows in which every column but the key changes.",
        epilog="; ".join(f"{name}: {make(Setting(1.0))[0].title}" for name, make in WORKLOADS.items()),
    )
    parser.add_argument("workloads", nargs="*", choices=[[], *WORKLOADS], help="default: all but MEM")
    parser.add_argument("--scale", type=float, default=0.25, help="1 means 20 million rows (default 0.25)")
    parser.add_argument(
        "--changes",
        nargs="+",
        choices=("some", "every"),
        default=["every", "some"],
        help="of a changed row four of ten columns stay, or every column but the key differs (default: both)",
    )
    parser.add_argument(
        "--writers",
        nargs="+",
        choices=WRITERS,
        default=["pyarrow"],
        help="who wrote the target's files, with its defaults (default: pyarrow)",
    )
    parser.add_argument(
        "--peers", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="who takes part"
    )
    parser.add_argument("--passes", type=int, default=3, help="the least counts (default 3)")
    parser.add_argument(
        "--memory-mb",
        type=float,
        default=0,
        help="a limit for those that can keep to one; the source is then a file, and peak memory the figure",
    )
    parser.add_argument(
        "--dir", help="where to make the data (default: a directory below the system's temporary one)"
    )
    parser.add_argument("--keep", action="store_true", help="leave the data there for the next run")
    options = parser.parse_args(argv)
    if not options.workloads:
        options.workloads = [name for name in WORKLOADS if name != "MEM"]
    return options


if __name__ == "__main__":
    sys.exit(main())
