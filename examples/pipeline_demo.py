"""Some days of a shop through the pipeline ``shop/shop.toml`` on local Spark: run by ``make demo``.

Raw orders, customers and visits land as CSV and JSON; they are cleaned, joined and aggregated by queries and
a function, merged and overwritten; bad rows are quarantined. Every table is compared with a model.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.transforms import DayTransform
from shop_data import FIRST_DAY, Shop

from intarsia import pipeline
from intarsia.pipeline.reports.report import StepReport
from intarsia.pipeline.submit import format_step
from intarsia.spark.session import session_on
from intarsia.tables.iceberg import embedded_catalog

FILE = Path(__file__).parent / "shop" / "shop.toml"


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a dataset, by a reader that only lists the directory."""
    rows: list[dict[str, Any]] = ds.dataset(path, partitioning="hive").to_table().to_pylist()
    return rows


def compare(lake: Path, shop: Shop) -> None:
    """Every table of the lake must be what the model says."""
    orders = {row["order_id"]: row["status"] for row in read(lake / "orders")}
    assert orders == {number: row["status"] for number, row in shop.orders.items()}, "orders differ"
    bad = [row["_reason"] for row in read(lake / "bad_orders")]
    assert len(bad) == shop.rejected, "what is in quarantine differs"
    assert set(bad) == {"customer_id is not NULL", "amount > 0"}, set(bad)
    facts = {row["order_id"]: row["country"] for row in read(lake / "facts")}
    assert facts == {n: shop.countries[row["customer_id"]] for n, row in shop.orders.items()}, "facts differ"
    daily = {
        (str(row["day"]), row["country"]): (row["orders"], row["revenue"]) for row in read(lake / "daily")
    }
    assert daily == shop.count_daily(), "the daily aggregate differs"
    visits = embedded_catalog(lake.parent / "warehouse").load_table("web.visits").scan().to_arrow()
    assert sorted(visits["visit_id"].to_pylist()) == sorted(shop.visits), "visits differ"
    spent = {row["customer_id"]: row["spent"] for row in read(lake / "segments")}
    assert spent == shop.sum_by_customer(), "what customers spent differs"


def make_visits_table(warehouse: Path) -> None:
    """The Iceberg table, partitioned by day, as whoever owns the catalog makes it."""
    columns = [("visit_id", pa.int64()), ("customer_id", pa.int64()), ("page", pa.string())]
    schema = pa.schema([*columns, ("at", pa.timestamp("us"))])
    catalog = embedded_catalog(warehouse)
    catalog.create_namespace("web")
    with catalog.create_table("web.visits", schema).update_spec() as spec:
        spec.add_field("at", DayTransform(), "at_day")


def tell(step: StepReport) -> None:
    print(f"   {format_step(step)}", flush=True)


def run_day(day: int, output: Path, **options: Any) -> pipeline.PipelineReport:
    params = {"data": str(output.resolve()), "day": str(FIRST_DAY + timedelta(days=day))}
    return pipeline.run_file(FILE, params=params, on_step=tell, **options).check()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Some days of a shop through a pipeline on local Spark.")
    parser.add_argument("--days", type=int, default=3)
    parser.add_argument("--rows", type=int, default=120_000, help="orders in all")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="made anew on each run")
    asked = parser.parse_args(arguments)
    begun = time.perf_counter()
    shutil.rmtree(asked.output, ignore_errors=True)
    shop = Shop(asked.output / "landing", max(asked.rows // asked.days, 100))
    make_visits_table(asked.output / "warehouse")
    config = {"spark.sql.shuffle.partitions": 4}
    with session_on("local[*]", app="shop", config=config) as session:
        print(f"Spark {session.version} is up\n", flush=True)
        for day in range(asked.days):
            print(f"== {FIRST_DAY + timedelta(days=day)} ==", flush=True)
            shop.land(day)
            report = run_day(day, asked.output, session=session)
            compare(asked.output / "lake", shop)
            print(
                f"   {shop.rejected:,} rows in quarantine, {len(shop.orders):,} orders,"
                f" every table as the model has it; {report.seconds:.1f} s\n"
            )
        print("== the last day again ==", flush=True)
        again = run_day(asked.days - 1, asked.output, session=session)
        assert {step.status for step in again.steps} == {"unchanged"}
        print(f"   {len(again.steps)} steps unchanged, {again.seconds:.2f} s\n", flush=True)
    assert report.html_path is not None
    print(pipeline.draw(pipeline.load(FILE, params={"data": str(asked.output.resolve())}), "text"))
    print(f"All tables checked, {time.perf_counter() - begun:.1f} s in all.")
    print(f"The report of the last day: {Path(report.html_path).resolve().as_uri()}")


if __name__ == "__main__":
    sys.exit(main())
