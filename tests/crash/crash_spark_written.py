"""Runs under the preloaded shim: kills every operation on a directory that plain Spark wrote, and reads it.

    python crash_spark_written.py
        '{"operation": "merge on duckdb", "directory": "...", "faults": [["kill", 0, 0]], "read": 10}'

As crash_sweep.py. ``read`` asks for real Spark: it writes the directory, and reads it before and after
recovery at every so-manieth point. Without it, and on every other point, what Hadoop's checksum file system
would compare is compared here.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from crash_engines import ENGINES, calm_options, engine_named, spark_session, stop_spark
from crash_operations import (
    CHANGED,
    FILES,
    OLD,
    OVERWRITTEN,
    UPSERTED,
    Operation,
    State,
    api_recover,
    read_rows,
    source,
)
from crash_side_files import checksum_file, checksums, data_files, orphans
from crash_sweep import Outcome, Sweep

import intarsia as it

Call = Callable[[str, dict[str, Any]], None]


def merge(root: str, on: dict[str, Any]) -> None:
    it.merge(source((p, k, 1) for p, k in [*CHANGED, (1, 9), (2, 9)]), root, on=["p", "k"], **on)


def update(root: str, on: dict[str, Any]) -> None:
    it.update(root, {"v": "v + 1"}, "k in (1, 5)", **on)


def delete(root: str, on: dict[str, Any]) -> None:
    it.delete(root, "k in (1, 5, 6)", **on)


def append(root: str, on: dict[str, Any]) -> None:
    it.write(source([(1, 9, 1), (2, 9, 1)]), root, **on)


def overwrite(root: str, on: dict[str, Any]) -> None:
    it.write(source((p, k, v) for (p, k), v in OVERWRITTEN.items()), root, mode="overwrite", **on)


def overwrite_where(root: str, on: dict[str, Any]) -> None:
    rows = source([(0, 1, 2), (1, 9, 2)])
    it.write(rows, root, mode="overwrite", where="p = 1 or k = 1", **on)


def compact(root: str, on: dict[str, Any]) -> None:
    it.compact(root, **on)


def optimize(root: str, on: dict[str, Any]) -> None:
    it.optimize(root, by=["v", "k"], **on)


def deduplicate(root: str, on: dict[str, Any]) -> None:
    it.deduplicate(root, on=["v"], order_by=["k"], **on)


ADDED: State = {(1, 9): 1, (2, 9): 1}
DONE: dict[Call, State] = {
    merge: UPSERTED,
    update: OLD | {(0, 1): 1, (1, 5): 1},
    delete: {key: v for key, v in OLD.items() if key[1] not in (1, 5, 6)},
    append: OLD | ADDED,
    overwrite: OVERWRITTEN,
    overwrite_where: {(0, 1): 2, (0, 2): 0, (0, 3): 0, (0, 4): 0, (1, 9): 2},
    compact: OLD,
    optimize: OLD,
    deduplicate: {(1, 8): 0},
}
MOVES = (overwrite, overwrite_where, compact, optimize)
"""Rows come to other files than they were in, so that a reader who lists may see them twice for a moment."""


def named(call: Call, engine: str) -> str:
    return f"{call.__name__.replace('_', ' ')} on {engine}"


def operation_named(name: str) -> Operation:
    call, engine = next((call, engine) for call in DONE for engine in ENGINES if named(call, engine) == name)

    def run(root: str) -> None:
        options = calm_options(engine, os.path.dirname(root))
        call(root, {"engine": engine_named(engine), "progress": False} | options)

    return Operation(
        name,
        run,
        DONE[call],
        OLD,
        in_place=call not in MOVES,
        recover=api_recover,
        files=2 if call in (compact, optimize) else None,
        side_files=True,
    )


def written_by_spark(root: str) -> None:
    """The rows of FILES, two files in each partition, and Hadoop's checksums."""
    session = spark_session()
    for paths in (("p=0/a.parquet", "p=1/c.parquet"), ("p=0/b.parquet", "p=1/d.parquet")):
        rows = [(k, v, p) for path in paths for p, k, v in FILES[path]]
        frame = session.createDataFrame(rows, "k long, v long, p int").coalesce(1)
        frame.write.mode("append").partitionBy("p").parquet(root)
    for path in data_files(root):
        with open(checksum_file(path), "rb") as file:
            assert file.read() == checksums(path), "Hadoop's checksums are not what is taken for them here"


class SparkWrittenSweep(Sweep):
    """One operation on what Spark wrote, read by Spark at every so-manieth point."""

    def __init__(self, operation: Operation, directory: str, read: int) -> None:
        super().__init__(operation, directory)
        self.read, self.checks = read, 0
        if read:
            shutil.rmtree(f"{self.template}/data")
            written_by_spark(f"{self.template}/data")

    def _check(self, outcome: Outcome, where: str) -> None:
        self.checks += 1
        reads = bool(self.read) and self.checks % self.read == 0
        found = [f"before recovery, left without its file: {path}" for path in orphans(self.root)]
        found += spark_problems(self.root) if reads else []
        super()._check(outcome, where)
        found += spark_problems(self.root) if reads else []
        self.result.violations += [f"{where} ({outcome.said or 'killed'}): {one}" for one in found]
        self.result.read += reads


def spark_problems(root: str) -> list[str]:
    """What plain Spark cannot read, or reads otherwise than the files say."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        rows = spark_session().read.parquet(root).select("p", "k", "v").collect()
    except (PySparkException, Py4JError) as error:
        return [f"Spark cannot read it: {error}"]
    seen, there = sorted(tuple(row) for row in rows), sorted(read_rows(root))
    return [] if seen == there else [f"Spark reads {seen}, and there is {there}"]


def main() -> None:
    order = json.loads(sys.argv[1])
    if order.get("read") or order["operation"].endswith(" on spark"):
        spark_session()  # before any fork
    found = []
    try:
        for name in order["operation"].split(", "):
            sweep = SparkWrittenSweep(operation_named(name), order["directory"], order.get("read", 0))
            found += [sweep.run(fault, points, again) for fault, points, again in order["faults"]]
    finally:
        for suffix in ("", ".template", ".crashed"):
            shutil.rmtree(order["directory"] + suffix, ignore_errors=True)
        stop_spark()
    print(json.dumps([asdict(result) for result in found]))


if __name__ == "__main__":
    main()
