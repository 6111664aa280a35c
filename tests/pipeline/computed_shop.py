"""A pipeline with queries, a view of a target and expectations, for tests that look at all of it."""

from __future__ import annotations

from typing import Any

COMPUTED = """
name = "shop"
engine = "duckdb"

[sources.landing]
path = "landing/*.csv"
columns = { id = "bigint", region = "varchar", amount = "double" }

[sources.rates]
path = "rates.csv"

[sources.converted]
sql = "select region, amount * rate as amount from orders join rates using (region)"

[sources.totals]
sql = "select region, sum(amount) as total from converted group by region"

[sources.large]
target = "orders"
where = "amount > 5"

[targets.orders]
path = "lake/orders"

[targets.totals_by_region]
path = "lake/totals"

[targets.large_orders]
path = "lake/large"

[[steps]]
name = "landing is sound"
operation = "expect"
source = "landing"
unique = "id"

[[steps]]
name = "upsert"
operation = "merge"
source = "landing"
target = "orders"
on = "id"

[[steps]]
name = "purge"
operation = "delete"
target = "orders"
where = "amount < 0"

[[steps]]
name = "totals"
operation = "merge"
source = "totals"
target = "totals_by_region"
on = "region"
strategy = "full_merge"

[[steps]]
name = "large ones"
operation = "write"
source = "large"
target = "large_orders"
mode = "overwrite"

[[steps]]
name = "orders are sound"
operation = "expect"
target = "orders"
unique = "id"
"""


def prepare(shop: Any, text: str = COMPUTED) -> Any:
    """The shop with this pipeline and the files that it reads: ten orders, two of them below zero."""
    shop.declare(text)
    (shop.root / "rates.csv").write_text("region,rate\neu,1.0\nap,2.0\n")
    shop.lands("a.csv", {n: ("eu" if n % 2 else "ap", float(n - 3)) for n in range(1, 11)})
    return shop
