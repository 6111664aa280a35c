"""A pipeline over a stream in a process of its own, which is killed with its JVM where it is told.

    python stream_driver.py <directory> <step> <batch> before|after

``before``: the batch was computed and is about to be committed; ``after``: it is committed, and Spark has not
noted that in its checkpoint. Without a step it runs to its end.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from intarsia import pipeline
from intarsia.core.run import ignore_progress
from intarsia.pipeline.streams import batches as stream_batches
from intarsia.spark import local_session
from intarsia.tables.iceberg.transaction import IcebergTransaction
from intarsia.tables.parquet.table import ParquetTransaction

ADDS = """when matched then update set n = target.n + source.n
when not matched then insert (id, n) values (source.id, source.n)"""


def declare(root: str) -> pipeline.Pipeline:
    """No step is idempotent: a batch that took effect twice, or never, is seen."""
    stream = pipeline.Stream("json", f"{root}/in", options={"maxFilesPerTrigger": 1})
    return pipeline.Pipeline(
        name="p",
        sources={"in": pipeline.Source(stream=stream, columns={"id": "bigint", "n": "bigint"})},
        targets={
            "parquet": pipeline.Target(f"{root}/t"),
            "iceberg": pipeline.Target("db.t", kind="iceberg", catalog=f"{root}/warehouse"),
        },
        steps=(
            pipeline.Merge(name="add parquet", source="in", target="parquet", on="id", when=ADDS),
            pipeline.Merge(name="add iceberg", source="in", target="iceberg", on="id", when=ADDS),
            pipeline.Write(name="append parquet", source="in", target="parquet"),
            pipeline.Write(name="append iceberg", source="in", target="iceberg"),
        ),
        reports=f"{root}/reports",
    )


def die(session: Any) -> None:
    """Kill this process and its JVM at once."""
    jvm = session.sparkContext._gateway.proc.pid
    assert os.getpgid(jvm) == os.getpgrp() == os.getpid(), "the JVM is not in a group of our own"
    os.killpg(os.getpgrp(), signal.SIGKILL)


def arm(session: Any, step: str, batch: int, when: str) -> None:
    """Die around the commit of one batch of one step."""
    original = stream_batches.StepBatch.__call__

    def commit_and_die(self: Any, frame: Any, batch_id: int) -> None:
        if f"/{step}/" not in self.app_id or batch_id != batch:
            original(self, frame, batch_id)
            return
        if when == "before":
            for kind in (ParquetTransaction, IcebergTransaction):
                kind.commit = lambda *_: die(session)  # type: ignore[method-assign,assignment]
        original(self, frame, batch_id)
        die(session)

    stream_batches.StepBatch.__call__ = commit_and_die  # type: ignore[method-assign]


def main(root: str, *armed: str) -> None:
    session = local_session("stream", master="local[1]", config={"spark.driver.memory": "1g"})
    if armed:
        step, batch, when = armed
        arm(session, step, int(batch), when)
    pipeline.run(declare(root), session=session, progress=ignore_progress).check()


if __name__ == "__main__":
    main(*sys.argv[1:])
