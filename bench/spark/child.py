"""One contender, one workload, one process and its JVM: warms up, then says when a pass begins and ends."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.spark.contenders import CONTENDERS, session

COLUMNS = ("id", "customer", "quantity", "amount", "score", "country", "status", "code", "ts", "price")


def main() -> None:
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    contender = CONTENDERS[job["contender"]](job)
    spark = session(contender, heap=job["heap"], jars=job["jars"], stock=job["stock"])
    try:
        contender.set_up(spark)
        for number in range(job["warm"] + job["passes"]):
            if number:
                contender.reset(spark)
            os.sync()  # so that nobody pays for writing back a copy
            say(begin=number >= job["warm"])
            started = time.perf_counter()
            contender.merge(spark)
            say(wall=time.perf_counter() - started)
        say(right=digest(contender.result(spark), job) == expected(spark, job))
    finally:
        spark.stop()


def say(**figures: Any) -> None:
    """A line for the parent, which answers when it has looked."""
    print(json.dumps(figures), flush=True)
    sys.stdin.readline()


def digest(frame: Any, job: dict[str, Any]) -> list[str]:
    """A table without regard to the order of its rows."""
    columns = ", ".join([*COLUMNS, *(["day"] if job["daily"] else [])])
    summed = frame.selectExpr(
        "count(*) rows", "sum(id) ids", f"sum(cast(xxhash64({columns}) as decimal(38, 0))) checks"
    )
    return [str(value) for value in summed.toArrow().to_pylist()[0].values()]


def expected(spark: Any, job: dict[str, Any]) -> list[str]:
    """The same of the right result, worked out once by whoever comes first."""
    kept = Path(job["expected"]).with_suffix(".json")
    if not kept.exists():
        kept.write_text(json.dumps(digest(spark.read.parquet(job["expected"]), job)))
    values: list[str] = json.loads(kept.read_text())
    return values


if __name__ == "__main__":
    main()
