"""A Spark driver in a process of its own: replaces every row of a dataset, again and again, when told to."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import intarsia as it
from intarsia.spark import open_session, stop_session

PATIENCE = 120.0


def main(path: str, place: Path, base: int) -> None:
    config = {"spark.driver.memory": "512m", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 1}
    spark = open_session("local[1]", app=f"writer {base}", config=config)
    try:
        spark.range(1).count()
        (place / f"ready-{base}").touch()
        deadline = time.monotonic() + PATIENCE
        while not (place / "go").exists():
            assert time.monotonic() < deadline, "nobody said go"
            time.sleep(0.01)
        done = []
        for number, broadcast_bytes in enumerate((64 << 20, 1, 64 << 20)):
            rows = spark.range(60).selectExpr("id", f"{base + number}L as version")
            result = it.merge(rows, path, on="id", broadcast_bytes=broadcast_bytes)
            done.append((result.version, base + number, result.updated))
        print(json.dumps(done))
    finally:
        stop_session(spark)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
