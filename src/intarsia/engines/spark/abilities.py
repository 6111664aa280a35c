"""What the Spark engine says of itself."""

from __future__ import annotations

from intarsia.core.abilities import Abilities

__all__ = ["ABILITIES"]

ABILITIES = Abilities(
    engine="spark",
    title="Spark",
    install="`pip install 'intarsia[spark]'`",
    named=('"spark"', "a SparkSession"),
    door="intarsia.datasets.spark.SparkDatasetIO",
    runs="on the executors of a session, classic or Connect",
    unit="a file per task; of optimize, a range",
    source="sent to every task where it is small; of a larger one the columns that decide, and its rows"
    " through storage; beyond `broadcast_bytes` of those, joined by Spark",
    memory="as the Arrow engine, per task",
    beyond_memory="more tasks and more executors",
    options=("tasks", "broadcast_bytes", "memory_bytes", "spool_dir"),
)
