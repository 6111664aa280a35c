"""An Iceberg table partitioned by day, then by day and region, changed across both: for orders_demo.py.

The table is made and evolved with PyIceberg alone, as ingestion would; the pipeline ``visits.toml`` changes
it, and PyIceberg reads it back.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestampType

import intarsia as it
from intarsia import pipeline
from intarsia.pipeline.submit import format_step
from intarsia.tables.iceberg.catalog import embedded_catalog

FILE = Path(__file__).with_name("visits.toml")
FIRST = datetime(2025, 3, 1)
REGIONS = ("eu", "us", "ap")
ROWS = 20_000


def visits(first: int, count: int, day: int) -> pa.Table:
    """Visits of one day; every hundredth is a robot's."""
    ids = range(first, first + count)
    return pa.table(
        {
            "visit_id": pa.array(ids, pa.int64()),
            "ts": pa.array(
                [FIRST + timedelta(days=day, seconds=n % 86_400) for n in ids], pa.timestamp("us")
            ),
            "region": [REGIONS[n % 3] for n in ids],
            "seconds": pa.array([0 if n % 100 == 99 else n % 600 + 1 for n in ids], pa.int32()),
            "page": [f"/Page/{n % 40}" for n in ids],
        }
    )


def made(warehouse: Path) -> tuple[Any, dict[int, dict[str, Any]]]:
    """The table, two days under ``day(ts)`` and two under ``day(ts), region``, and what is in it."""
    catalog = embedded_catalog(warehouse)
    catalog.create_namespace("web")
    schema = Schema(
        NestedField(1, "visit_id", LongType()),
        NestedField(2, "ts", TimestampType()),
        NestedField(3, "region", StringType()),
        NestedField(4, "seconds", IntegerType()),
        NestedField(5, "page", StringType()),
    )
    table = catalog.create_table("web.visits", schema)
    model: dict[int, dict[str, Any]] = {}
    with table.update_spec() as update:
        update.add_field("ts", DayTransform(), "ts_day")
    for day in range(4):
        if day == 2:
            with table.update_spec() as update:
                update.add_identity("region")
        rows = visits(day * ROWS, ROWS, day)
        table.append(rows)
        model |= {row["visit_id"]: row for row in rows.to_pylist()}
    return catalog, model


def corrections_land(landing: Path, model: dict[int, dict[str, Any]]) -> None:
    """Every fiftieth visit of all days, and a few that nobody knew of."""
    known = [{**row, "seconds": row["seconds"] + 1000} for number, row in model.items() if number % 50 == 7]
    new = visits(4 * ROWS, 200, 3).to_pylist()
    landing.mkdir(parents=True)
    text = "".join(json.dumps(row, default=str) + "\n" for row in known + new)
    (landing / "corrections.json").write_text(text, encoding="utf-8")
    model |= {row["visit_id"]: row for row in known + new}


def run(output: Path, options: dict[str, Any]) -> None:
    """Make the table, change it by the pipeline, and compare it with the model."""
    catalog, model = made(output / "warehouse")
    print(it.inspect(catalog.load_table("web.visits")), end="\n\n")
    corrections_land(output / "landing" / "corrections", model)
    params = {"data": str(output.resolve())}
    pipeline.run_file(
        FILE, params=params, on_step=lambda step: print(f"   {format_step(step)}"), **options
    ).check()
    expected = {
        number: {**row, "page": row["page"].lower() if row["region"] == "us" else row["page"]}
        for number, row in model.items()
        if row["seconds"]
    }
    found = catalog.load_table("web.visits").scan().to_arrow().to_pylist()
    assert {row["visit_id"]: row for row in found} == expected, "the table and the model differ"
    assert len(found) == len(expected)
    print(f"   {len(found):,} visits, each as the model has it\n")
    print(it.inspect(catalog.load_table("web.visits")), end="\n\n")
