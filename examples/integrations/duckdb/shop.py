"""DuckDB on a lake: a query is merged into a table, which is a view of the next query. Run it twice."""

import duckdb

import intarsia as it
from intarsia.integrations.duckdb import list_files, relation

FEED = (
    "select range as order_id, range // 100 as day, (range % 50)::decimal(10, 2) as amount from range(1000)"
)


def run() -> list[tuple[object, ...]]:
    """Merge a query, and sum up the days of what is there."""
    with duckdb.connect() as connection:
        result = it.merge(connection.sql(FEED), "lake/orders", on="order_id", partition_by="day")
        list_files(result, connection).aggregate("operation, count(*) as files").show()
        relation("lake/orders", connection, where="day < 3").create_view("orders")
        return connection.sql("select day, sum(amount) from orders group by day order by day").fetchall()


if __name__ == "__main__":
    print(run())
