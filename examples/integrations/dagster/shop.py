"""A shop in Dagster: orders by day, customers by key, what each day brought; with checks.

``python shop.py`` materializes three days, in process; ``dagster dev -f shop.py`` shows it, with the package
dagster-webserver.
"""

from datetime import date
from decimal import Decimal

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from intarsia.integrations.dagster import IntarsiaIOManager, build_asset_check
from intarsia.pipeline import Expect

DAYS = dg.DailyPartitionsDefinition("2025-03-01", end_date="2025-03-04")


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
def orders(context: dg.AssetExecutionContext) -> pa.Table:
    """The orders of a day, which take the place of those that were there."""
    day = date.fromisoformat(context.partition_key)
    numbers = range(day.day * 100, day.day * 100 + 100)
    return pa.table(
        {
            "order_id": list(numbers),
            "customer_id": [number % 7 for number in numbers],
            "amount": [Decimal(number % 50) / 4 for number in numbers],
            "day": [day] * 100,
        }
    )


@dg.asset(partitions_def=DAYS, metadata={"on": "customer_id"})
def customers(orders: pa.Table) -> pa.Table:
    """Who has ordered, and when last: merged by key, whichever day it is."""
    return (
        orders.group_by("customer_id")
        .aggregate([("day", "max")])
        .rename_columns(["customer_id", "last_order"])
    )


@dg.asset(partitions_def=DAYS, metadata={"on": "day"})
def revenue(orders: pa.Table) -> pa.Table:
    """One row a day."""
    return pa.table({"day": orders["day"][:1], "amount": [pc.sum(orders["amount"])]})


orders_are_sound = build_asset_check(
    orders, Expect(name="orders_are_sound", not_null="customer_id", unique="order_id", holds="amount >= 0")
)
customers_are_known = build_asset_check(
    orders,
    Expect(name="customers_are_known", references={"customer_id": "customers.customer_id"}, action="warn"),
    tables={"customers": customers},
)

defs = dg.Definitions(
    assets=[orders, customers, revenue],
    asset_checks=[orders_are_sound, customers_are_known],
    resources={"io_manager": IntarsiaIOManager(root="lake")},
)


def run(instance: dg.DagsterInstance | None = None) -> None:
    """Materialize every day once more; run again, the tables hold the same rows."""
    for day in DAYS.get_partition_keys():
        dg.materialize(
            [orders, customers, revenue, orders_are_sound],
            partition_key=day,
            resources=dict(defs.resources or {}),
            instance=instance,
        )


if __name__ == "__main__":
    run()
