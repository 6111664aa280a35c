"""A pipeline that is given what is new in its own tables since its last run, for crash_pipeline.py.

It has run once before. No step is idempotent: a new row that was given twice, or never, is seen.
"""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from crash_engines import calm_options

from intarsia import pipeline
from intarsia.tables.iceberg import embedded_catalog

ROWS = pa.schema([("id", pa.int64()), ("v", pa.int64())])
ADD = (
    "when matched then update set v = target.v + source.v"
    " when not matched then insert (id, v) values (source.id, source.v)"
)
AFTER = {
    "fees": [(1, 1), (2, 3 + 4), (3, 6)],
    "orders": [(1, 1), (2, 4), (3, 6)],
    "sums": [(1, 1), (2, 3 + 7), (3, 6)],
}
"""By table: what is there after every step took effect once in both runs."""


def make(root: str, engine: str) -> None:
    os.makedirs(f"{root}/landing")
    catalog = embedded_catalog(f"{root}/warehouse")
    catalog.create_namespace("db")
    properties = {"commit.retry.num-retries": "1", "commit.retry.min-wait-ms": "1"}
    catalog.create_table("db.fees", ROWS, properties=properties)
    _land(root, "a", [1, 2], [1, 2])


def prepare(engine: str, root: str) -> None:
    """The run before."""
    pipeline.run(declare(engine, root), progress=False).check()
    _land(root, "b", [3], [5])


def _land(root: str, name: str, ids: list[int], values: list[int]) -> None:
    pq.write_table(pa.table({"id": ids, "v": values}, ROWS), f"{root}/landing/{name}.parquet")


def declare(engine: str, root: str) -> pipeline.Pipeline:
    calm: Any = calm_options(engine, root)
    steps = (
        pipeline.Write(name="append", source="landing", target="orders", options=calm),
        pipeline.Update(name="plus one", target="orders", set={"v": "v + 1"}, where="id <> 1", options=calm),
        pipeline.Merge(name="fees", source="new orders", target="fees", on="id", when=ADD, options=calm),
        pipeline.Merge(name="sums", source="new fees", target="sums", on="id", when=ADD, options=calm),
    )
    return pipeline.Pipeline(
        name="p",
        engine=engine,  # type: ignore[arg-type]
        sources={
            "landing": pipeline.Source(f"{root}/landing/*.parquet"),
            "new orders": pipeline.Source(target="orders", since="last run"),
            "new fees": pipeline.Source(target="fees", since="last run"),
        },
        targets={
            "orders": pipeline.Target(f"{root}/orders", options={"retain": 9}),
            "fees": pipeline.Target("db.fees", kind="iceberg", catalog=f"{root}/warehouse"),
            "sums": pipeline.Target(f"{root}/sums"),
        },
        steps=steps,
        reports=f"{root}/reports",
    )


def read_state(root: str) -> dict[str, list[tuple[int, int]]]:
    found = {"fees": embedded_catalog(f"{root}/warehouse").load_table("db.fees").scan().to_arrow()}
    for name in ("orders", "sums"):
        found[name] = pq.read_table(f"{root}/{name}")
    return {
        name: sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
        for name, rows in sorted(found.items())
    }
