"""Polars on a lake: a query is merged into a table, and a report is computed of a scan. Run it twice."""

from datetime import date

import polars as pl

import intarsia as it
import intarsia.integrations.polars

FEED = pl.LazyFrame({"order_id": range(1000)}).select(
    "order_id",
    day=pl.date(2025, 3, 1) + pl.duration(days=pl.col("order_id") // 100),
    amount=(pl.col("order_id") % 50).cast(pl.Decimal(10, 2)),
    state=pl.when(pl.col("order_id") % 3 == 0).then(pl.lit("open")).otherwise(pl.lit("paid")),
)


def run() -> pl.DataFrame:
    """Merge the feed, and sum up three days of what is there."""
    result = FEED.intarsia.merge_into("lake/orders", on="order_id", partition_by="day")
    print(f"{result.inserted} inserted, {result.updated} updated")
    days = pl.col("day").is_between(date(2025, 3, 2), date(2025, 3, 4))
    report = (
        it.scan("lake/orders").filter(days, pl.col("state") == "paid").group_by("day").agg(pl.sum("amount"))
    )
    return report.sort("day").collect()


if __name__ == "__main__":
    print(run())
