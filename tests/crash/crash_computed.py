"""A pipeline of queries and functions for crash_pipeline.py: three tables, of which each step reads the last.

No step is idempotent: each adds to what is there, so that one which took effect twice, or never, is seen.
"""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from crash_engines import calm_options

import intarsia as it
from intarsia import pipeline
from intarsia.tables.iceberg import embedded_catalog

ROWS = pa.schema([("id", pa.int64()), ("v", pa.int64())])
ADD = (
    "when matched then update set v = target.v + source.v"
    " when not matched then insert (id, v) values (source.id, source.v)"
)
JOINED = """
select l.id, cast(sum(l.v * f.factor) as bigint) as v
from landing l join factors f on l.id = f.id
group by l.id
"""
TOTALS = "select id % 2 as id, cast(sum(v) as bigint) as v from orders group by id % 2"
ON_SPARK = """
def scores(orders, totals):
    return orders.unionByName(totals).groupBy("id").sum("v").toDF("id", "v")
"""
IN_PROCESS = """
import pyarrow as pa
import pyarrow.compute as pc


def add_up(rows):
    return rows.group_by("id").aggregate([("v", "sum")]).rename_columns(["id", "v"])


def joined(landing, factors):
    rows = landing.join(factors, "id", join_type="inner", use_threads=False)
    values = pc.multiply(rows["v"], rows["factor"])
    return add_up(pa.table({"id": rows["id"], "v": values}))


def sums(orders):
    odd = pc.bit_wise_and(orders["id"], 1)
    return add_up(pa.table({"id": odd, "v": orders["v"]}))


def scores(orders, totals):
    rows = pa.concat_tables([orders.select(["id", "v"]), totals.select(["id", "v"])])
    return add_up(rows)
"""
AFTER = {
    "orders": [(1, 11), (2, 31), (3, 1), (4, 61)],
    "totals": [(0, 1092), (1, 12)],
    "scores": [(0, 1092), (1, 23), (2, 31), (3, 1), (4, 61)],
}
"""By table: what is there after every step took effect once."""


def make(root: str, engine: str) -> None:
    os.makedirs(f"{root}/landing")
    for name, text in (("on_spark", ON_SPARK), ("in_process", IN_PROCESS)):
        with open(f"{root}/{name}.py", "w") as file:
            file.write(text)
    rows = {"a": ([1, 2], [1, 2]), "b": ([2, 4], [1, 6])}
    for name, (ids, values) in rows.items():
        pq.write_table(pa.table({"id": ids, "v": values}, ROWS), f"{root}/landing/{name}.parquet")
    factors = pa.table({"id": [1, 2, 4], "factor": [10, 10, 10]})
    pq.write_table(factors, f"{root}/factors.parquet")
    catalog = embedded_catalog(f"{root}/warehouse")
    catalog.create_namespace("db")
    properties = {"commit.retry.num-retries": "1", "commit.retry.min-wait-ms": "1"}
    catalog.create_table("db.totals", ROWS, properties=properties)
    before = {
        f"{root}/orders": ([3], [0]),
        it.iceberg("db.totals", catalog=f"{root}/warehouse"): ([0], [1000]),
    }
    for target, (ids, values) in before.items():
        rows_of = pa.table({"id": ids, "v": values}, ROWS)
        it.write(rows_of, target, engine="arrow", threads=1, progress=False)


def declare(engine: str, root: str) -> pipeline.Pipeline:
    code = f"{root}/{'on_spark' if engine == 'spark' else 'in_process'}.py"
    in_python = engine == "arrow"  # which has no SQL
    calm: Any = calm_options(engine, root)
    steps = (
        pipeline.Merge(name="join", source="joined", target="orders", on="id", when=ADD, options=calm),
        pipeline.Update(name="plus one", target="orders", set={"v": "v + 1"}, options=calm),
        pipeline.Merge(name="totals", source="sums", target="totals", on="id", when=ADD, options=calm),
        pipeline.Merge(name="scores", source="counted", target="scores", on="id", when=ADD, options=calm),
        pipeline.Expect(name="rows", target="scores", min_rows=1),
    )
    return pipeline.Pipeline(
        name="p",
        engine=engine,  # type: ignore[arg-type]
        sources={
            "landing": pipeline.Source(f"{root}/landing/*.parquet"),
            "factors": pipeline.Source(f"{root}/factors.parquet"),
            "joined": pipeline.Source(python=f"{code}:joined") if in_python else pipeline.Source(sql=JOINED),
            "sums": pipeline.Source(python=f"{code}:sums") if in_python else pipeline.Source(sql=TOTALS),
            "counted": pipeline.Source(python=f"{code}:scores"),
        },
        targets={
            "orders": pipeline.Target(f"{root}/orders"),
            "totals": pipeline.Target("db.totals", kind="iceberg", catalog=f"{root}/warehouse"),
            "scores": pipeline.Target(f"{root}/scores"),
        },
        steps=steps,
        reports=f"{root}/reports",
    )


def read_state(root: str) -> dict[str, list[tuple[int, int]]]:
    found = {"totals": embedded_catalog(f"{root}/warehouse").load_table("db.totals").scan().to_arrow()}
    for name in ("orders", "scores"):
        found[name] = pq.read_table(f"{root}/{name}")
    return {
        name: sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
        for name, rows in sorted(found.items())
    }
