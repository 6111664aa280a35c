"""Functions of the shop's pipeline: their parameters name the sources and targets that they read."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def segment(facts: DataFrame) -> DataFrame:
    """What each customer has spent, the rank by country, and a segment of it."""
    spent = facts.groupBy("customer_id", "country").agg(
        F.sum("revenue").cast("decimal(18, 2)").alias("spent"), F.count("*").alias("orders")
    )
    rank = F.rank().over(Window.partitionBy("country").orderBy(F.desc("spent")))
    level = F.when(F.col("rank") <= 10, "gold").when(F.col("spent") > 0, "silver").otherwise("new")
    return spent.withColumn("rank", rank).withColumn("segment", level)
