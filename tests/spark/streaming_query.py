"""A streaming query in a process of its own, which may die between its commit and Spark's."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from intarsia.spark import local_session, merge_batches


def die(spark, how: str) -> None:
    """Both this process and its JVM are killed at once, or it exits and leaves the JVM to end by itself."""
    if how == "kill":
        jvm = spark.sparkContext._gateway.proc.pid
        assert os.getpgid(jvm) == os.getpgrp() == os.getpid(), "the JVM is not in a group of our own"
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(77)


def main(place: Path, die_after: str, how: str) -> None:
    spark = local_session("stream", master="local[1]", config={"spark.driver.memory": "1g"})
    merge = merge_batches(place / "t", "id")
    calls = place / "calls"
    merged = 0

    def batch(frame, batch_id):
        nonlocal merged
        with calls.open("a") as file:
            file.write(f"{batch_id}\n")
        merge(frame, batch_id)
        merged += 1
        if str(merged) == die_after:
            die(spark, how)

    source = (
        spark.readStream.schema("id long, n long").option("maxFilesPerTrigger", 1).json(str(place / "in"))
    )
    query = source.writeStream.foreachBatch(batch).option("checkpointLocation", str(place / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
