"""A pipeline over a topic in a process of its own, which is killed with its JVM where it is told.

    python -m tests.kafka.kafka_driver <directory> <servers> <step> <batch> before|after

Without a step it runs to its end. As tests/pipeline/stream_driver.py, which is over files.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from intarsia import pipeline
from intarsia.core.run import ignore_progress
from intarsia.spark import local_session
from tests.cross.jars import fetched
from tests.kafka.broker import SPARK_JARS
from tests.pipeline.stream_driver import arm, declare

QUERY = """select c.id as id, c.n as n
from (select from_json(cast(value as string), 'id bigint, n bigint') as c from messages)"""


def main(root: str, servers: str, *armed: str) -> None:
    jars = ",".join(map(str, fetched(SPARK_JARS)))
    config = {"spark.driver.memory": "512m", "spark.jars": jars}
    session = local_session("kafka", master="local[1]", config=config)
    if armed:
        step, batch, when = armed
        arm(session, step, int(batch), when)
    options = {"kafka.bootstrap.servers": servers, "subscribe": "killed", "maxOffsetsPerTrigger": 2}
    messages = pipeline.Source(stream=pipeline.Stream("kafka", options=options))
    declared = declare(root)
    declared = replace(
        declared,
        sources={"messages": messages, "in": pipeline.Source(sql=QUERY)},
        steps=tuple(step for step in declared.steps if step.name.startswith("add")),
    )
    pipeline.run(declared, session=session, progress=ignore_progress).check()


if __name__ == "__main__":
    main(*sys.argv[1:])
