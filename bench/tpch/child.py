"""One contender, one workload, one process: warms up, then says when a pass begins and ends."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.check import digest_rows
from bench.child import own_cpu_seconds
from bench.spark.child import say
from bench.spark.tree import cpu_seconds
from bench.tpch.contenders import IN_PROCESS, Room
from bench.tpch.data import VALUES, Tables, make_workloads
from bench.tpch.on_spark import ON_SPARK, OnSpark, open_session

SUMS = "sum(l_orderkey); sum(l_extendedprice); sum(length(l_comment))"
"""What is read of the table, as LHBench does: every row, three of the columns."""
READS = 2


def main() -> None:
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    workload = make_workloads(job["scale"])[job["workload"]]
    room = Room(Path(job["room"]), Tables(Path(job["directory"]), job["scale"], job["writer"]), workload)
    spark, name = None, job["contender"]
    if name in IN_PROCESS:
        contender: Any = IN_PROCESS[name](room)
    else:
        spark = open_session(name, room, heap=job["heap"], jars=job["jars"])
        contender = ON_SPARK[name](room, spark)
    try:
        contender.set_up()
        contender.reset()
        reads = [_read(contender)] if workload.reads else []
        written = _run_passes(contender, room, job)
        reads += [_read(contender)] if workload.reads else []
        right = all(_is_right(contender, room, step) for step in workload.steps)
        say(right=right, notes={"written MB": f"{written / 1e6:.1f}", **_show_reads(reads)})
    finally:
        if spark is not None:
            spark.stop()


def _run_passes(contender: Any, room: Room, job: dict[str, Any]) -> int:
    """The bytes that the last pass has written."""
    written = 0
    for number in range(job["warm"] + job["passes"]):
        if number:
            contender.reset()
        contender.prepare()
        before = _list_files(room.path)
        gc.collect()
        os.sync()  # so that nobody pays for writing back a copy
        say(begin=number >= job["warm"])
        started, used = time.perf_counter(), sum(own_cpu_seconds())
        contender.run()
        wall, used = time.perf_counter() - started, sum(own_cpu_seconds()) - used
        say(wall=wall, cpu=used if job["contender"] in IN_PROCESS else None)
        after = _list_files(room.path)
        written = sum(size for file, size in after.items() if file not in before)
    return written


def _list_files(directory: Path) -> dict[tuple[int, int], int]:
    """The files below a directory with their sizes; one that was linked or moved is the same file."""
    found = [path.stat() for path in directory.rglob("*") if path.is_file()]
    return {(one.st_ino, one.st_mtime_ns): one.st_size for one in found}


def _read(contender: Any) -> float:
    """CPU seconds of reading the table as the contender's users would; the least of a few."""
    seconds = []
    for _ in range(READS):
        before = cpu_seconds(os.getpid())
        if isinstance(contender, OnSpark):
            contender.read("lineitem", SUMS)
        else:
            connection, rows = contender.rows("lineitem")
            connection.execute(f"select {SUMS.replace(';', ',')} from ({rows})").fetchall()
        seconds.append(cpu_seconds(os.getpid()) - before)
    return min(seconds)


def _show_reads(reads: list[float]) -> dict[str, str]:
    return {"read CPU s": " -> ".join(f"{seconds:.2f}" for seconds in reads)} if reads else {}


def _is_right(contender: Any, room: Room, step: Any) -> bool:
    connection, rows = contender.rows(step.table)
    found = digest_rows(rows, step.keys[0], VALUES[step.table], connection)
    return found == room.tables.expected(room.workload, step)


if __name__ == "__main__":
    main()
