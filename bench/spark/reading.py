"""``python -m bench.spark.reading``: ``intarsia.spark.read`` by Spark's reader and by the kernel.

Queries over a dataset of some millions of rows, in one session of ``local[2]``, each once before it is
measured: CPU seconds of the whole tree, and wall time. The kernel reads where no links can be made.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import intarsia as it
from bench.spark.tree import cpu_seconds

QUERIES: dict[str, Any] = {
    "all columns, written to noop": lambda frame: frame.write.format("noop").mode("overwrite").save(),
    "sum of one column": lambda frame: frame.agg({"amount": "sum"}).collect(),
    "a range of 41 keys": lambda frame: frame.where("id between 700 and 740").collect(),
    "groups of a text": lambda frame: frame.groupBy("state").count().collect(),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.reading", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    options = parser.parse_args(argv)
    from intarsia.spark import local_session, read

    spark = local_session(master="local[2]", config={"spark.driver.memory": "2g"})
    with tempfile.TemporaryDirectory(prefix="intarsia-reading-") as directory:
        path, plain = str(Path(directory, "orders")), str(Path(directory, "plain"))
        it.write(_make_rows(options.rows), path, max_rows_per_file=options.rows // 8, engine="arrow")
        shutil.copytree(path, plain)  # which intarsia has never written to, so that it makes no links there
        print(f"{'query':<32} {'way':<8} {'CPU s':>7} {'wall s':>7}", flush=True)
        for name, query in QUERIES.items():
            for way, place in (("kernel", plain), ("Spark", path)):
                frame = read(spark, place)
                query(frame)
                cpu, wall = cpu_seconds(os.getpid()), time.perf_counter()
                query(frame)
                cpu, wall = cpu_seconds(os.getpid()) - cpu, time.perf_counter() - wall
                print(f"{name:<32} {way:<8} {cpu:7.1f} {wall:7.1f}", flush=True)
    spark.stop()
    return 0


def _make_rows(rows: int) -> pa.Table:
    ids = pa.array(range(rows), pa.int64())
    text = pc.cast(ids, pa.string())
    return pa.table(
        {
            "id": ids,
            "customer": pc.bit_wise_and(ids, 0xFFFF),
            "amount": pc.divide(pc.cast(ids, pa.float64()), 7.0),
            "state": pc.choose(pc.cast(pc.bit_wise_and(ids, 3), pa.int32()), "open", "paid", "sent", "gone"),
            "note": pc.binary_join_element_wise("note ", text, ""),
        }
    )


if __name__ == "__main__":
    raise SystemExit(main())
