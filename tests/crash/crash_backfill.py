"""A backfill of three days into a dataset and an Iceberg table, for crash_pipeline.py.

No step is idempotent: a day that took effect twice, or never, is seen.
"""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq

from intarsia import pipeline
from intarsia.tables.iceberg import embedded_catalog

ROWS = pa.schema([("id", pa.int64()), ("v", pa.int64())])
FILE = """
name = "p"

[params]
day = 1

[sources.landing]
path = "landing/${day}.parquet"

[targets.orders]
path = "orders"

[targets.sums]
kind = "iceberg"
path = "db.sums"
catalog = "./warehouse"

[[steps]]
name = "append"
operation = "write"
source = "landing"
target = "orders"

[[steps]]
name = "double"
operation = "update"
target = "orders"
set = { v = "v * 2" }
where = "id = ${day}"

[[steps]]
name = "add"
operation = "merge"
source = "landing"
target = "sums"
on = "id"
when = \"\"\"
when matched then update set v = target.v + source.v
when not matched then insert (id, v) values (source.id, source.v)
\"\"\"
"""
DAYS = range(1, 4)
AFTER = {
    "orders": [(0, 1), (0, 2), (0, 3), *((day, 2 * day) for day in DAYS)],
    "sums": [(0, 1 + 2 + 3), *((day, day) for day in DAYS)],
}
"""By table: what is there after every day took effect once."""


def make(root: str, engine: str) -> None:
    os.makedirs(f"{root}/landing")
    for day in DAYS:
        pq.write_table(pa.table({"id": [0, day], "v": [day, day]}, ROWS), f"{root}/landing/{day}.parquet")
    with open(f"{root}/p.toml", "w") as file:
        file.write(FILE)
    catalog = embedded_catalog(f"{root}/warehouse")
    catalog.create_namespace("db")
    properties = {"commit.retry.num-retries": "1", "commit.retry.min-wait-ms": "1"}
    catalog.create_table("db.sums", ROWS, properties=properties)


def run(engine: str, root: str) -> None:
    over = {"day": f"{DAYS[0]}..{DAYS[-1]}"}
    options = {"engine": engine, "progress": False}
    pipeline.run_backfill(f"{root}/p.toml", over=over, **options).check()  # type: ignore[arg-type]


def read_state(root: str) -> dict[str, list[tuple[int, int]]]:
    found = {
        "orders": pq.read_table(f"{root}/orders"),
        "sums": embedded_catalog(f"{root}/warehouse").load_table("db.sums").scan().to_arrow(),
    }
    return {
        name: sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
        for name, rows in found.items()
    }
