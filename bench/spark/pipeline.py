"""``python -m bench.spark.pipeline``: a pipeline against the same by hand in PySpark, in turns.

Three sources, two joins, one aggregation and three merges: orders and customers are merged into their tables,
and the revenue per country and category of all orders into a third.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

import intarsia as it
from bench.spark.contenders import MASTER
from bench.spark.tree import cpu_seconds
from intarsia import pipeline
from intarsia.spark import local_session

ROWS = 20_000_000
FILE_ROWS = 500_000
CUSTOMERS, PRODUCTS = 100_000, 10_000
CHANGED = 20
"""One order in so many is changed, and one customer."""
JOINED = """
select o.quantity, o.amount, c.country, p.category
from orders o join customers c on o.customer = c.customer join products p on o.product = p.product
where o.status <> 'lost'
"""
REVENUE = """
select country, category, count(*) as orders, cast(sum(quantity) as bigint) as pieces,
       cast(sum(amount) as decimal(30, 2)) as revenue
from joined group by country, category
"""


@dataclass(frozen=True, slots=True)
class Lake:
    """The directories of one pass."""

    made: Path
    root: Path

    def path(self, name: str) -> str:
        return str(self.root / name)

    def landing(self, name: str) -> str:
        return str(self.made / "landing" / name)

    def reset(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.made / "lake", self.root)
        os.sync()  # so that nobody pays for writing back a copy


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse_options(argv)
    directory = Path(options.dir or tempfile.gettempdir()).resolve() / "intarsia-bench-pipeline"
    made = directory / f"{options.scale}"
    try:
        make_data(made, int(ROWS * options.scale))
        spark = local_session("bench", master=MASTER, config={"spark.driver.memory": options.heap})
        try:
            return compare(spark, Lake(made, directory / "room"), options)
        finally:
            spark.stop()
    finally:
        shutil.rmtree(directory / "room", ignore_errors=True)
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)


def compare(spark: Any, lake: Lake, options: argparse.Namespace) -> int:
    """Run both in turns; the least of the passes of each counts."""
    ways: dict[str, Callable[[Any, Lake], None]] = {"by hand": run_by_hand, "pipeline": run_pipeline}
    walls: dict[str, list[float]] = {name: [] for name in ways}
    cpus: dict[str, list[float]] = {name: [] for name in ways}
    results: dict[str, Any] = {}
    for number in range(options.warm + options.passes):
        for name, run in ways.items():
            lake.reset()
            before, started = cpu_seconds(os.getpid()), time.perf_counter()
            run(spark, lake)
            wall, cpu = time.perf_counter() - started, cpu_seconds(os.getpid()) - before
            results[name] = read_results(lake)
            if number >= options.warm:
                walls[name].append(wall)
                cpus[name].append(cpu)
                print(f"    {name:10} {wall:7.2f} s wall {cpu:7.2f} s CPU", flush=True)
    same = results["by hand"] == results["pipeline"]
    print(
        f"{int(ROWS * options.scale):,} orders, {len(results['pipeline'])} tables, least of {options.passes}:"
    )
    for name in ways:
        wall, cpu = min(walls[name]), min(cpus[name])
        ratio = f"{wall / min(walls['by hand']):.2f} x wall, {cpu / min(cpus['by hand']):.2f} x CPU"
        print(f"  {name:10} {wall:7.2f} s wall {cpu:7.2f} s CPU   {ratio}")
    print("  results are the same" if same else "  RESULTS DIFFER")
    return int(not same)


def make_data(made: Path, rows: int) -> None:
    """The tables and what is merged into them, made by DuckDB from row numbers: always the same."""
    if (made / "landing").exists():
        return
    draft = made.with_name(f"{made.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    for name in ("lake/orders", "lake/customers", "landing"):
        (draft / name).mkdir(parents=True)
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        _copy(
            _select_orders(start, min(start + FILE_ROWS, rows)), draft / f"lake/orders/{number:05d}.parquet"
        )
    some = f"select * from ({_select_orders(0, rows, 1)}) where id % {CHANGED} = 0"
    _copy(some, draft / "landing/orders.parquet")
    _copy(_select_customers(0), draft / "lake/customers/0.parquet")
    _copy(
        f"select * from ({_select_customers(1)}) where customer % {CHANGED} = 0",
        draft / "landing/customers.parquet",
    )
    _copy(
        f"select i::bigint product, 'category-' || (hash(i, 9) % 25) category from range({PRODUCTS}) t(i)",
        draft / "landing/products.parquet",
    )
    draft.rename(made)


def _copy(query: str, path: Path) -> None:
    duckdb.execute(f"copy ({query}) to '{path}' (format parquet, compression snappy)")


def _select_orders(start: int, stop: int, version: int = 0) -> str:
    return f"""
        select i::bigint id, (hash(i, 1) % {CUSTOMERS})::bigint customer,
               (hash(i, 2) % {PRODUCTS})::bigint product, (1 + hash(i, 3, {version}) % 50)::int quantity,
               ((hash(i, 4, {version}) % 100000) / 100)::decimal(12, 2) amount,
               ['new', 'paid', 'packed', 'shipped', 'lost'][1 + (hash(i, 5, {version}) % 5)::int] status,
               timestamp '2025-01-01' + interval (i % 31536000) second placed_at,
               'note ' || (hash(i, 6) % 1000000) note, (hash(i, 7) % 1000) / 10 as score,
               'channel-' || (hash(i, 8) % 12) channel
        from range({start}, {stop}) t(i)"""


def _select_customers(version: int) -> str:
    return f"""
        select i::bigint customer, 'country-' || (hash(i, 5, {version}) % 40) country, 'customer ' || i name
        from range({CUSTOMERS}) t(i)"""


def run_by_hand(spark: Any, lake: Lake) -> None:
    """What one would write without a pipeline."""
    it.merge(spark.read.parquet(lake.landing("orders.parquet")), lake.path("orders"), on="id", engine=spark)
    customers = spark.read.parquet(lake.landing("customers.parquet"))
    it.merge(customers, lake.path("customers"), on="customer", engine=spark)
    for name in ("orders", "customers"):
        spark.read.parquet(lake.path(name)).createOrReplaceTempView(name)
    spark.read.parquet(lake.landing("products.parquet")).createOrReplaceTempView("products")
    spark.sql(JOINED).createOrReplaceTempView("joined")
    it.merge(spark.sql(REVENUE), lake.path("revenue"), on=["country", "category"], engine=spark)


def run_pipeline(spark: Any, lake: Lake) -> None:
    """The same as a pipeline, with its state and its report."""
    merge = pipeline.Merge
    made = pipeline.Pipeline(
        name="bench",
        sources={
            "new_orders": pipeline.Source(lake.landing("orders.parquet")),
            "new_customers": pipeline.Source(lake.landing("customers.parquet")),
            "products": pipeline.Source(lake.landing("products.parquet")),
            "joined": pipeline.Source(sql=JOINED),
            "by_country": pipeline.Source(sql=REVENUE),
        },
        targets={name: pipeline.Target(lake.path(name)) for name in ("orders", "customers", "revenue")},
        steps=(
            merge(name="orders", source="new_orders", target="orders", on="id"),
            merge(name="customers", source="new_customers", target="customers", on="customer"),
            merge(name="revenue", source="by_country", target="revenue", on=("country", "category")),
        ),
        reports=str(lake.root / "reports"),
    )
    pipeline.run(made, session=spark, progress=False).check()


def read_results(lake: Lake) -> dict[str, Any]:
    """Each table without regard to the order of its rows."""
    return {
        name: duckdb.execute(
            f"select count(*), sum(hash(t)) from read_parquet('{lake.path(name)}/**/*.parquet') t"
        ).fetchall()
        for name in ("orders", "customers", "revenue")
    }


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark.pipeline",
        description="Measure a pipeline of three sources, two joins, an aggregation and three merges against"
        " the same by hand in PySpark with intarsia.merge: wall and CPU seconds of driver, JVM and workers,"
        " in turns on one warm session. Results are compared.",
    )
    parser.add_argument("--scale", type=float, default=0.25, help="1 means 20 million orders (default 0.25)")
    parser.add_argument("--warm", type=int, default=1, help="passes that do not count (default 1)")
    parser.add_argument("--passes", type=int, default=3, help="passes of which the least counts (default 3)")
    parser.add_argument("--heap", default="4g", help="of the JVM (default 4g)")
    parser.add_argument("--dir", help="where to make the data (default: the system's temporary directory)")
    parser.add_argument("--keep", action="store_true", help="leave the data there for the next run")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
