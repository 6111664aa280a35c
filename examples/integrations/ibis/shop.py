"""ibis on a lake: an expression over a table is merged into it again, in constant memory. Run it twice."""

import duckdb
import ibis

import intarsia as it
from intarsia.integrations.duckdb import relation

FEED = (
    "select range as order_id, range // 100 as day, (range % 50)::decimal(10, 2) as amount from range(1000)"
)


def run() -> list[dict[str, object]]:
    """Write orders, double those of two days by an expression, and sum up the days of what is there."""
    with duckdb.connect() as connection:
        it.merge(connection.sql(FEED), "lake/orders", on="order_id", partition_by="day")
        relation("lake/orders", connection).create_view("orders")
        orders = ibis.duckdb.from_connection(connection).table("orders")

        changes = orders.filter(orders.day < 2).mutate(amount=(orders.amount * 2).cast("decimal(10, 2)"))
        result = it.merge(changes.to_pyarrow_batches(), "lake/orders", on="order_id")
        print(f"{result.updated} updated, {len(result.rewritten_files)} files rewritten")

        days = orders.group_by("day").agg(amount=orders.amount.sum()).order_by("day").limit(3)
        return days.to_pyarrow().to_pylist()


if __name__ == "__main__":
    print(run())
