"""A pipeline whose bad rows are quarantined, for crash_pipeline.py: into datasets and into an Iceberg table,
as rows of a source and on their way into a target.

No step is idempotent: each row that was quarantined or taken twice, or never, is seen.
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
QUARANTINE = pa.schema(
    [
        *ROWS,
        ("_reason", pa.string()),
        ("_step", pa.string()),
        ("_run", pa.string()),
        ("_at", pa.timestamp("us", "UTC")),
    ]
)
ADD = (
    "when matched then update set v = target.v + source.v"
    " when not matched then insert (id, v) values (source.id, source.v)"
)
AFTER = {
    "large": [(5, 5)],
    "negative": [(2, -1), (6, -2)],
    "orders": [(1, 11), (5, 5)],
    "raw": [(1, 1)],
    "strange": [(3, 3), (4, 4), (4, 5)],
}
"""By table: what is there after every step took effect once."""


def make(root: str, engine: str) -> None:
    os.makedirs(f"{root}/landing")
    rows = {"a": ([1, 2, 3, 4], [1, -1, 3, 4]), "b": ([4, 5, 6], [5, 5, -2])}
    for name, (ids, values) in rows.items():
        pq.write_table(pa.table({"id": ids, "v": values}, ROWS), f"{root}/landing/{name}.parquet")
    catalog = embedded_catalog(f"{root}/warehouse")
    catalog.create_namespace("db")
    properties = {"commit.retry.num-retries": "1", "commit.retry.min-wait-ms": "1"}
    catalog.create_table("db.strange", QUARANTINE, properties=properties)
    known = pa.table({"id": [1, 2, 4, 5, 6]})
    it.write(known, f"{root}/known", engine="arrow", threads=1, progress=False)
    it.write(pa.table([[1], [10]], schema=ROWS), f"{root}/orders", engine="arrow", threads=1, progress=False)


def declare(engine: str, root: str) -> pipeline.Pipeline:
    calm: Any = calm_options(engine, root)
    steps = (
        pipeline.Expect(
            name="positive", source="landing", holds="v > 0", action="quarantine", quarantine="negative"
        ),
        pipeline.Expect(
            name="known",
            source="landing",
            unique="id",
            references={"id": "known.id"},
            action="quarantine",
            quarantine="strange",
        ),
        pipeline.Expect(name="small", target="raw", holds="v < 5", action="quarantine", quarantine="large"),
        pipeline.Merge(name="add", source="landing", target="orders", on="id", when=ADD, options=calm),
        pipeline.Write(name="append", source="landing", target="raw", options=calm),
    )
    targets = {
        name: pipeline.Target(f"{root}/{name}") for name in ("known", "orders", "raw", "negative", "large")
    }
    targets["strange"] = pipeline.Target("db.strange", kind="iceberg", catalog=f"{root}/warehouse")
    return pipeline.Pipeline(
        name="p",
        engine=engine,  # type: ignore[arg-type]
        sources={"landing": pipeline.Source(f"{root}/landing/*.parquet")},
        targets=targets,
        steps=steps,
        reports=f"{root}/reports",
    )


def read_state(root: str) -> dict[str, list[tuple[int, int]]]:
    found = {"strange": embedded_catalog(f"{root}/warehouse").load_table("db.strange").scan().to_arrow()}
    for name in ("large", "negative", "orders", "raw"):
        found[name] = pq.read_table(f"{root}/{name}")
    return {
        name: sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
        for name, rows in sorted(found.items())
    }
