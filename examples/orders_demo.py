"""Some days of orders through the pipeline ``orders.toml``, with every operation there is.

Files land as CSV and JSON, are merged into a partitioned dataset, changed late, appended twice, deleted,
deduplicated, compacted and z-ordered. Then an Iceberg table whose partition spec has changed is set right by
``visits.toml``. Every count is checked against a model that knows nothing of intarsia.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import iceberg_demo
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.dataset as ds

import intarsia as it
from intarsia import pipeline
from intarsia.pipeline.reports.report import StepReport
from intarsia.pipeline.submit import format_step
from intarsia.show import text

FILE = Path(__file__).with_name("orders.toml")
FIRST_DAY = date(2025, 3, 1)
PRODUCTS = [f"{wood} {thing}" for wood in ("oak", "ash", "maple", "walnut", "cherry", "pine")
            for thing in ("chair", "table", "shelf", "stool", "bench")]  # fmt: skip
COUNTRIES = ["at", "ch", "de", "es", "fr", "it", "nl", "pl", "pt", "se"]
BLOCK = 10_000_000
"""Ids of a day start at its number times this; those of the till are odd, the others even."""


# The data


def numbers(count: int) -> pa.Array:
    """0, 1, 2, ... without a loop."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), 1)


def pick(choices: list[str], count: int, seed: int) -> pa.Array:
    at = pc.floor(pc.multiply(pc.random(count, initializer=seed), len(choices))).cast(pa.int32())
    return pa.array(choices).take(at)


def orders(day: int, count: int, *, odd: bool, seed: int) -> pa.Table:
    """The orders of a day, spread over its hours, in the order of their time."""
    number = numbers(count)
    midnight = pa.scalar(datetime.combine(FIRST_DAY + timedelta(days=day), datetime.min.time()))
    seconds = pc.divide(pc.multiply(number, 86_399), max(count, 1))
    placed = pc.add(midnight, pc.multiply(seconds, 1_000_000).cast(pa.duration("us")))
    customer = pc.power(pc.random(count, initializer=seed), 3.0)  # a few buy much, many buy little
    cents = pc.floor(pc.multiply(pc.random(count, initializer=seed + 1), 90_000)).cast(pa.int64())
    return pa.table({
        "order_id": pc.add(pc.multiply(number, 2), day * BLOCK + odd),
        "customer_id": pc.floor(pc.multiply(customer, 50_000)).cast(pa.int32()),
        "product": pick(PRODUCTS, count, seed + 2),
        "country": pick(COUNTRIES, count, seed + 3),
        "status": pick(["open", "paid", "shipped"], count, seed + 4),
        "quantity": pc.ceil(pc.multiply(pc.random(count, initializer=seed + 5), 5)).cast(pa.int32()),
        "amount": pc.divide(pc.add(cents, 999).cast(pa.float64()), 100.0).cast(pa.decimal128(10, 2)),
        "placed_at": placed,
        "changed_at": placed,
    })  # fmt: skip


@dataclass
class Shop:
    """The files that land, and what must be in the lake because of them."""

    landing: Path
    rows_per_day: int
    lake: dict[int, str] = field(default_factory=dict)
    """The status of every order by its id: the model that the lake is compared with."""
    told: dict[int, pa.Table] = field(default_factory=dict)
    dice: random.Random = field(default_factory=lambda: random.Random(7))

    def orders_land(self, day: int) -> int:
        table = orders(day, self.rows_per_day, odd=False, seed=100 + day)
        directory = self.landing / "orders" / f"{FIRST_DAY + timedelta(days=day)}"
        directory.mkdir(parents=True)
        third = -(-len(table) // 3)
        for part in range(3):
            pacsv.write_csv(table.slice(part * third, third), directory / f"orders-{part}.csv")
        self.told[day] = table
        self.lake |= dict(zip(table["order_id"].to_pylist(), table["status"].to_pylist(), strict=True))
        return len(table)

    def changes_land(self, day: int) -> int:
        """Changes of this day's orders and of earlier ones; some orders change twice. Returns the orders."""
        rows: list[dict[str, Any]] = []
        for then, share in ((day, 0.02), (day - 1, 0.06), (day - 2, 0.01)):
            if then in self.told:
                rows += self._changed(self.told[then], share, day)
        self.dice.shuffle(rows)
        path = self.landing / "changes" / f"{FIRST_DAY + timedelta(days=day)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows), encoding="utf-8")
        return len({row["order_id"] for row in rows})

    def _changed(self, table: pa.Table, share: float, day: int) -> list[dict[str, Any]]:
        some = table.filter(pc.less(pc.random(len(table), initializer=900 + day), share))
        found = []
        for row in some.to_pylist():
            if row["order_id"] not in self.lake:  # cancelled before
                continue
            for hour in range(self.dice.choice((1, 1, 1, 2))):
                status = self.dice.choice(("shipped", "shipped", "cancelled", "returned"))
                at = datetime.combine(FIRST_DAY + timedelta(days=day + 1), datetime.min.time())
                change = {"status": status, "changed_at": at + timedelta(hours=hour)}
                found.append(row | change | {"amount": float(row["amount"])})
                self.lake[row["order_id"]] = status
        return found

    def till_lands(self, day: int) -> int:
        """A file of the till; the last tenth of it comes again in the next. Returns the repetitions."""
        table = orders(day, self.rows_per_day // 20, odd=True, seed=500 + day)
        again = table.slice(len(table) * 9 // 10)
        path = self.landing / "till" / f"till-{day}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        pacsv.write_csv(pa.concat_tables([table, again]), path)
        self.lake |= dict(zip(table["order_id"].to_pylist(), table["status"].to_pylist(), strict=True))
        return len(again)

    def cancel(self) -> int:
        gone = [order for order, status in self.lake.items() if status == "cancelled"]
        for order in gone:
            del self.lake[order]
        return len(gone)


# The run


def compare(target: Path, shop: Shop) -> int:
    """Count with a reader that only lists the directory; every order must have the status it should have."""
    found = ds.dataset(target, partitioning="hive").to_table(columns=["order_id", "status"])
    there = dict(zip(found["order_id"].to_pylist(), found["status"].to_pylist(), strict=True))
    assert found.num_rows == len(shop.lake), f"{found.num_rows:,} rows instead of {len(shop.lake):,}"
    assert there == shop.lake, "the lake and the model differ"
    return found.num_rows


def told(step: StepReport) -> None:
    print(f"   {format_step(step)}", flush=True)


def one_day(day: int, shop: Shop, output: Path, options: dict[str, Any]) -> pipeline.PipelineReport:
    params = {"data": str(output.resolve()), "day": str(FIRST_DAY + timedelta(days=day))}
    new, changed, twice = shop.orders_land(day), shop.changes_land(day), shop.till_lands(day)
    gone = shop.cancel()
    report = pipeline.run_file(FILE, params=params, on_step=told, **options).check()
    counted = {step.name: step.result for step in report.steps if step.result is not None}
    assert counted["new orders"].inserted == new
    assert counted["changes"].updated == changed
    assert counted["sent twice"].deleted == twice
    assert counted["cancelled"].deleted == gone
    rows = compare(output / "lake" / "orders", shop)
    print(f"   {rows:,} orders, each as the model has it; {report.seconds:.1f} s\n", flush=True)
    return report


def again(day: int, shop: Shop, output: Path, options: dict[str, Any]) -> None:
    params = {"data": str(output.resolve()), "day": str(FIRST_DAY + timedelta(days=day))}
    report = pipeline.run_file(FILE, params=params, report_dir=output / "again", **options).check()
    assert {step.status for step in report.steps} == {"unchanged"}
    compare(output / "lake" / "orders", shop)
    print(f"   {len(report.steps)} steps unchanged, {report.seconds:.2f} s\n", flush=True)


@contextlib.contextmanager
def running_on(engine: str) -> Iterator[dict[str, Any]]:
    """One session for all days: opening it takes longer than a day."""
    if engine == "arrow":
        yield {"engine": "arrow"}
        return
    from intarsia.spark.session import session_on

    with session_on("local[*]", app="orders", config={"spark.sql.shuffle.partitions": 4}) as session:
        print(f"Spark {session.version} is up\n", flush=True)
        yield {"session": session}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Some days of orders through a pipeline on local Spark.")
    parser.add_argument("--days", type=int, default=4)
    parser.add_argument("--rows", type=int, default=480_000, help="orders in all")
    parser.add_argument("--engine", choices=("spark", "arrow"), default="spark")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="made anew on each run")
    asked = parser.parse_args(arguments)
    begun = time.perf_counter()
    shutil.rmtree(asked.output, ignore_errors=True)
    shop = Shop(asked.output / "landing", max(asked.rows // asked.days, 100))
    report = None
    with running_on(asked.engine) as options:
        for day in range(asked.days):
            print(f"== {FIRST_DAY + timedelta(days=day)} ==", flush=True)
            report = one_day(day, shop, asked.output, options)
        print("== the last day again ==", flush=True)
        again(asked.days - 1, shop, asked.output, options)
        print("== an Iceberg table, across its partition specs ==", flush=True)
        iceberg_demo.run(asked.output, options)
    assert report is not None
    assert report.html_path is not None
    width = min(shutil.get_terminal_size().columns, 96)
    print(text.layout(it.inspect(asked.output / "lake" / "orders"), width=width), end="\n\n")
    print(f"All counts checked, {time.perf_counter() - begun:.1f} s in all.")
    print(f"The report of the last day: {Path(report.html_path).resolve().as_uri()}")


if __name__ == "__main__":
    sys.exit(main())
