"""``python -m bench.spark.ways [MB ...]``: one upsert by each way that a source reaches the files on Spark.

A table of 5 million rows gets scattered upserts (four of five keys are there) of sources of several sizes.
Each run has a process and a JVM of its own, local[2]; measured are CPU seconds of the whole tree, wall time,
and the most memory that the tree has.
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

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.spark.tree import Peak, cpu_seconds

ROWS = 5_000_000
FILES = 20
SIZES = (16, 64, 256, 1000)
WAYS = ("broadcast", "routed", "join")
_UNLIMITED = 1 << 40


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.ways", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES, help="of the source, in MB")
    parser.add_argument("--way", action="append", dest="ways", choices=WAYS)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        _run(json.loads(options.child))
        return 0
    with tempfile.TemporaryDirectory(prefix="intarsia-ways-") as directory:
        base = Path(directory)
        _write(base / "target", np.arange(options.rows, dtype="int64"), FILES, seed=1)
        print(f"{'MB':>6} {'way':<10} {'CPU s':>7} {'wall s':>7} {'peak MB':>8}", flush=True)
        for size in options.sizes:
            source = base / f"source-{size}"
            _write(source, _source_keys(size, options.rows), 8, seed=size)
            for way in options.ways or WAYS:
                _measure(base, source, size, way)
            shutil.rmtree(source)
    return 0


def _row_bytes() -> float:
    return _rows(np.arange(1000, dtype="int64"), 0).nbytes / 1000


def _source_keys(size: int, rows: int) -> Any:
    """Distinct keys in no order, four of five of them in the target."""
    count = int(size * 1e6 / _row_bytes())
    picked = np.random.default_rng(size)
    there = picked.choice(rows, min(count * 4 // 5, rows), replace=False)
    keys = np.concatenate([there, rows + np.arange(count - len(there), dtype="int64")])
    picked.shuffle(keys)
    return keys


def _rows(ids: Any, seed: int) -> pa.Table:
    """About 190 bytes a row, most of them text."""
    draw = np.random.default_rng(seed)
    count = len(ids)
    words = pa.array([f"{number:032x}" * 4 for number in range(5000)])
    return pa.table(
        {
            "id": ids,
            "customer": draw.integers(0, 1_000_000, count),
            "amount": draw.random(count),
            "ts": pa.array(draw.integers(0, 2**48, count)).cast(pa.timestamp("us", "UTC")),
            "country": pa.array(["de", "fr", "us", "in"]).take(pa.array(draw.integers(0, 4, count))),
            "note": words.take(pa.array(draw.integers(0, 5000, count))),
        }
    )


def _write(directory: Path, ids: Any, files: int, *, seed: int) -> None:
    directory.mkdir()
    for number, mine in enumerate(np.array_split(ids, files)):
        table = _rows(mine, seed * 1000 + number)
        pq.write_table(table, directory / f"part-{number:03d}.parquet", row_group_size=1 << 17)


def _measure(base: Path, source: Path, size: int, way: str) -> None:
    target = base / "work"
    shutil.copytree(base / "target", target)
    job = json.dumps({"source": str(source), "target": str(target), "way": way})
    command = [sys.executable, "-m", "bench.spark.ways", "--child", job]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()  # the session is warm
        before, started = cpu_seconds(child.pid), time.perf_counter()
        with Peak(child.pid) as peak:
            child.stdin.write("go\n")
            child.stdin.flush()
            said = child.stdout.readline().strip()
            wall = time.perf_counter() - started
            cpu = cpu_seconds(child.pid) - before
        child.stdin.write("end\n")
        child.stdin.flush()
    shutil.rmtree(target)
    print(f"{size:>6} {way:<10} {cpu:>7.1f} {wall:>7.1f} {peak.mb:>8.0f}  {said}", flush=True)


def _run(job: dict[str, str]) -> None:
    """In the child: warm up, wait for the word, merge."""
    import intarsia as it
    from intarsia.engines.spark import route
    from intarsia.spark import local_session

    spark = local_session(master="local[2]")
    limits = {"broadcast": _UNLIMITED, "routed": _UNLIMITED, "join": 1}
    route.ROUTED_BYTES = _UNLIMITED if job["way"] == "broadcast" else 0
    options = {"engine": spark, "on": "id", "broadcast_bytes": limits[job["way"]]}
    with tempfile.TemporaryDirectory() as small:
        path = os.path.join(small, "t")
        it.write(_rows(np.arange(1000, dtype="int64"), 0), path)
        warm = spark.createDataFrame(_rows(np.arange(500, 1500, dtype="int64"), 1).to_pandas())
        it.merge(warm, path, **options)
    print("warm", flush=True)
    sys.stdin.readline()
    result = it.merge(spark.read.parquet(job["source"]), job["target"], **options)
    print(dict(result), flush=True)
    sys.stdin.readline()
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
