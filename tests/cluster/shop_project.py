"""A pipeline of everything: files, a query, a function and its module, a quarantine, streams, merges.

No step is idempotent: each adds to what is there, so that a row that took effect twice, or never, is seen.
What must be in its tables is computed here without intarsia and without Spark.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Set
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

import intarsia as it
from intarsia.tables.iceberg import embedded_catalog

STEPS = ("orders are sound", "orders", "revenue", "scores", "clicks", "visits", "surcharge")
"""The steps that run tasks, in their order."""
FILE = """
name = "shop"

[sources.landing]
path = "landing/*.csv"
columns = { id = "bigint", customer = "varchar", amount = "decimal(10, 2)", at = "timestamp" }
derive = { day = "cast(at as date)" }

[sources.customers]
path = "customers.csv"
columns = { customer = "varchar", country = "varchar" }

[sources.money]
sql = \"\"\"
select country, cast(sum(amount) as decimal(18, 2)) as amount, count(*) as n
from orders join customers using (customer)
group by country
\"\"\"

[sources.points]
python = "transforms.py:score"

[sources.clicks]
stream = { format = "json", path = "clicks", options = { maxFilesPerTrigger = 1 } }
columns = { id = "bigint", n = "bigint" }

[targets.orders]
path = "lake/orders"
partition_by = "day"

[targets.bad]
path = "lake/bad"

[targets.revenue]
path = "lake/revenue"

[targets.scores]
path = "lake/scores"

[targets.clicks_seen]
path = "lake/clicks"

[targets.visits]
kind = "iceberg"
path = "web.visits"
catalog = "./warehouse"

[[steps]]
name = "orders are sound"
operation = "expect"
source = "landing"
holds = "amount > 0"
unique = ["id", "customer", "at"]
action = "quarantine"
quarantine = "bad"

[[steps]]
name = "orders"
operation = "merge"
source = "landing"
target = "orders"
on = "id"
when = \"\"\"
when matched then update set amount = target.amount + source.amount
when not matched then insert *
\"\"\"

[[steps]]
name = "revenue"
operation = "merge"
source = "money"
target = "revenue"
on = "country"
when = \"\"\"
when matched then update set amount = target.amount + source.amount, n = target.n + source.n
when not matched then insert *
\"\"\"

[[steps]]
name = "scores"
operation = "merge"
source = "points"
target = "scores"
on = "customer"
when = \"\"\"
when matched then update set points = target.points + source.points
when not matched then insert *
\"\"\"

[[steps]]
name = "clicks"
operation = "write"
source = "clicks"
target = "clicks_seen"

[[steps]]
name = "visits"
operation = "merge"
source = "clicks"
target = "visits"
on = "id"
when = \"\"\"
when matched then update set n = target.n + source.n
when not matched then insert *
\"\"\"

[[steps]]
name = "surcharge"
operation = "update"
target = "orders"
set = { amount = "amount + 1" }
where = "id % 7 = 0"

[[steps]]
name = "scores are there"
operation = "expect"
target = "scores"
min_rows = 1
unique = "customer"
"""
TRANSFORMS = """
import rules
from pyspark.sql import functions as F
from pyspark.sql.types import LongType


def score(spark, orders):
    def weigh(customer, number):
        import late_rules

        return rules.FACTOR * number + late_rules.EXTRA[customer]

    counted = orders.groupBy("customer").agg(F.count("*").alias("n"))
    return counted.select("customer", F.udf(weigh, LongType())("customer", "n").alias("points"))
"""
FACTOR, EXTRA = 10, {"ann": 1, "bob": 2, "eve": 3}
CUSTOMERS = {"ann": "France", "bob": "Peru", "eve": "Peru"}
ORDERS, CLICKS = 60, 30
"""How many rows a file has."""

PARQUET = ("orders", "bad", "revenue", "scores", "clicks")
BAD = ["id", "customer", "amount", "at"]
"""What is compared of the rows in quarantine."""

Rows = list[tuple[Any, ...]]


def make(root: Path) -> None:
    """The project with what has landed on its first day."""
    root.mkdir(exist_ok=True)
    (root / "shop.toml").write_text(FILE)
    (root / "transforms.py").write_text(TRANSFORMS)
    (root / "rules.py").write_text(f"FACTOR = {FACTOR}\n")
    (root / "late_rules.py").write_text(f"EXTRA = {EXTRA!r}\n")
    people = "".join(f"{name},{country}\n" for name, country in CUSTOMERS.items())
    (root / "customers.csv").write_text(f"customer,country\n{people}")
    for name in ("landing", "clicks"):
        (root / name).mkdir()
    catalog = embedded_catalog(root / "warehouse")
    catalog.create_namespace("web")
    catalog.create_table("web.visits", pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    land(root, 0)


def make_orders(day: int) -> Rows:
    """The orders of a day: some are of the day before again, some are bad, and one comes twice."""
    names = list(CUSTOMERS)
    found: Rows = [
        (
            key,
            names[key % 3],
            Decimal(key % 17 - 2) + Decimal("0.25"),
            datetime(2025, 3, 1 + day + key % 2, key % 24, 30),
        )
        for key in range(day * ORDERS // 2, day * ORDERS // 2 + ORDERS)
    ]
    return [*found, found[7]]


def make_clicks(day: int, batch: int) -> Rows:
    start = (2 * day + batch) * CLICKS // 2
    return [(key, 1 + key % 5) for key in range(start, start + CLICKS)]


def land(root: Path, day: int) -> None:
    """The files of a day: two of orders, two of clicks."""
    orders = make_orders(day)
    for part in range(2):
        lines = [f"{key},{who},{amount},{at}" for key, who, amount, at in orders[part::2]]
        text = "\n".join(["id,customer,amount,at", *lines, ""])
        (root / "landing" / f"{day}-{part}.csv").write_text(text)
        rows = [json.dumps({"id": key, "n": n}) for key, n in make_clicks(day, part)]
        draft = root / "clicks" / f".{day}-{part}.part"
        draft.write_text("\n".join(rows))
        os.utime(draft, (1_700_000_000 + 2 * day + part,) * 2)  # Spark takes the oldest first
        draft.rename(root / "clicks" / f"{day}-{part}.json")


def expect_tables(days: int) -> dict[str, Rows]:
    """What must be in the tables after so many days, each of which was one run."""
    return {name: states[-1] for name, states in expect_states(days).items()}


def expect_states(days: int) -> dict[str, list[Rows]]:
    """What each table has after each of its commits, from the first day to the last."""
    orders: dict[int, list[Any]] = {}
    bad: Rows = []
    revenue: dict[str, list[Any]] = {}
    scores: Counter[str] = Counter()
    clicks: Rows = []
    visits: Counter[int] = Counter()
    states: dict[str, list[Rows]] = {name: [] for name in (*PARQUET, "visits")}

    def commit(name: str, rows: Iterable[tuple[Any, ...]]) -> None:
        states[name].append(sorted(rows))

    for day in range(days):
        landed = make_orders(day)
        counts = Counter(landed)
        for row in landed:
            if row[2] <= 0 or counts[row] > 1:
                bad.append(row)
            elif row[0] in orders:
                orders[row[0]][2] += row[2]
            else:
                orders[row[0]] = list(row)
        commit("bad", bad)
        commit("orders", ((*row, row[3].date()) for row in orders.values()))
        for _, who, amount, _ in orders.values():
            sums = revenue.setdefault(CUSTOMERS[who], [Decimal(0), 0])
            sums[0], sums[1] = sums[0] + amount, sums[1] + 1
        commit("revenue", ((country, *sums) for country, sums in revenue.items()))
        numbers = Counter(who for _, who, _, _ in orders.values())
        scores.update({who: FACTOR * number + EXTRA[who] for who, number in numbers.items()})
        commit("scores", scores.items())
        for batch in range(2):
            rows = make_clicks(day, batch)
            clicks += rows
            visits.update(dict(rows))
            commit("clicks", clicks)
            commit("visits", visits.items())
        for key in orders:
            orders[key][2] += key % 7 == 0
        commit("orders", ((*row, row[3].date()) for row in orders.values()))
    return states


def read_tables(root: Path) -> dict[str, Rows]:
    """What is in the tables, read by pyarrow and PyIceberg."""
    days = pa.schema([("day", pa.date32())])
    partitioned = pads.partitioning(days, flavor="hive")
    found = {
        "orders": pq.read_table(root / "lake" / "orders", partitioning=partitioned),
        "bad": pq.read_table(root / "lake" / "bad", columns=BAD),
        **{name: pq.read_table(root / "lake" / name) for name in ("revenue", "scores", "clicks")},
        "visits": embedded_catalog(root / "warehouse").load_table("web.visits").scan().to_arrow(),
    }
    return {name: sorted(_make_rows(table)) for name, table in found.items()}


def read_states(root: Path) -> dict[str, Rows]:
    """What is committed to the tables, while files may still be on their way to their places."""
    places: dict[str, Any] = {name: root / "lake" / name for name in PARQUET}
    places["visits"] = it.iceberg("web.visits", catalog=str(root / "warehouse"))
    found = {
        name: it.read(place, columns=BAD if name == "bad" else None).read_all()
        for name, place in places.items()
    }
    return {name: sorted(_make_rows(table)) for name, table in found.items()}


def _make_rows(table: pa.Table) -> Iterable[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


TIMES = {"run_id", "started", "seconds", "session", "resumes", "version"}
"""What of a report may differ from one run to another."""
SIZES = {"bytes", "size_bytes", "bytes_written", "bytes_to_write"}
STAMPED = {"orders are sound", "bad"}
"""The step and the target whose sizes may differ, too: rows in quarantine bear the run's id and time."""


def read_reports(root: Path) -> list[dict[str, Any]]:
    """The reports of all runs in their order, without times and paths."""
    files = sorted((root / "reports").glob("shop-*.json"), key=lambda file: file.stat().st_mtime_ns)
    return [simplify(json.loads(file.read_text()), str(root)) for file in files]


def simplify(report: Any, root: str, *, without: Set[str] = TIMES) -> Any:
    """A part of a report without times and ids, and with paths as they are relative to the project."""
    if isinstance(report, dict):
        without = without | SIZES if report.get("name") in STAMPED else without
        return {
            name: simplify(value, root, without=without)
            for name, value in report.items()
            if name not in without
        }
    if isinstance(report, list):
        return [simplify(value, root, without=without) for value in report]
    return re.sub("[0-9a-f]{32}", "...", report.replace(root, "")) if isinstance(report, str) else report
