"""One contender, one workload, one process: warms up, then says when a pass begins and ends."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.iceberg.contenders import CONTENDERS, rolled_back
from bench.iceberg.data import Lake, expected, find_mode, found
from bench.spark.child import say


def main() -> None:
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    lake = Lake(Path(job["lake"]), job["rows"])
    rolled_back(lake, lake.snapshot)  # whatever a run that was ended has left
    lake.set_mode(find_mode(job["workload"]))
    session, made = CONTENDERS[job["contender"]]
    spark = None if session is None else session(lake, job["heap"], job["jars"])
    contender = made(lake, spark)
    contender.set_up()
    right = True
    try:
        for number in range(job["warm"] + job["passes"]):
            os.sync()
            say(begin=number >= job["warm"])
            started = time.perf_counter()
            getattr(contender, job["workload"].removesuffix("-cow"))()
            say(wall=time.perf_counter() - started)
            if number == 0:
                right = found(lake) == expected(lake, job["workload"])
            contender.reset(lake.snapshot)
        say(right=right)
    finally:
        if spark is not None:
            spark.stop()


if __name__ == "__main__":
    main()
