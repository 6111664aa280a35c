"""A streaming query in a process of its own, which may die between its commit and Spark's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from intarsia.spark import local_session, merge_batches


def main(place: Path, die_after: str, strategy: str) -> None:
    spark = local_session("stream", master="local[1]", config={"spark.driver.memory": "1g"})
    merge = merge_batches(place / "t", "id", strategy=strategy)
    calls = place / "calls"
    merged = 0

    def batch(frame, batch_id):
        nonlocal merged
        with calls.open("a") as file:
            file.write(f"{batch_id}\n")
        merge(frame, batch_id)
        merged += 1
        if str(merged) == die_after:
            os._exit(77)

    source = (
        spark.readStream.schema("id long, n long").option("maxFilesPerTrigger", 1).json(str(place / "in"))
    )
    query = source.writeStream.foreachBatch(batch).option("checkpointLocation", str(place / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
