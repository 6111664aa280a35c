"""Some days of a shop for ``make demo``: the files that land, and what the lake must have because of them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

FIRST_DAY = date(2025, 3, 1)
PRODUCTS = [f"{wood} {thing}" for wood in ("oak", "ash", "maple", "walnut", "cherry", "pine")
            for thing in ("chair", "table", "shelf", "stool", "bench")]  # fmt: skip
COUNTRIES = ["at", "ch", "de", "es", "fr", "it", "nl", "pl", "pt", "se"]
PAGES = ["/", "/chairs", "/tables", "/shelves", "/basket", "/checkout"]
BLOCK = 10_000_000
"""Ids of a day start at its number times this."""
NOT_SOLD = ("cancelled", "returned")


def count_up(count: int) -> pa.Array:
    """0, 1, 2, ... without a loop."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), 1)


def pick(choices: list[str], count: int, seed: int) -> pa.Array:
    at = pc.floor(pc.multiply(pc.random(count, initializer=seed), len(choices))).cast(pa.int32())
    return pa.array(choices).take(at)


def make_orders(day: int, count: int, customers: int) -> pa.Table:
    """The orders of a day in the order of their time; their states are written as people type them."""
    number, seed = count_up(count), 100 * day
    midnight = pa.scalar(datetime.combine(FIRST_DAY + timedelta(days=day), datetime.min.time()))
    seconds = pc.divide(pc.multiply(number, 86_399), max(count, 1))
    placed = pc.add(midnight, pc.multiply(seconds, 1_000_000).cast(pa.duration("us")))
    buyer = pc.power(pc.random(count, initializer=seed), 3.0)  # a few buy much, many buy little
    cents = pc.floor(pc.multiply(pc.random(count, initializer=seed + 1), 90_000)).cast(pa.int64())
    return pa.table({
        "order_id": pc.add(number, day * BLOCK),
        "customer_id": pc.floor(pc.multiply(buyer, customers)).cast(pa.int64()),
        "product": pick(PRODUCTS, count, seed + 2),
        "status": pick(["open", " Open", "PAID", "paid", "shipped "], count, seed + 3),
        "amount": pc.divide(pc.add(cents, 999).cast(pa.float64()), 100.0).cast(pa.decimal128(10, 2)),
        "placed_at": placed,
        "changed_at": placed,
    })  # fmt: skip


@dataclass
class Shop:
    """The files that land, and a model of the lake that knows nothing of intarsia."""

    landing: Path
    rows_per_day: int
    orders: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Every sound order by its id, cleaned."""
    countries: dict[int, str] = field(default_factory=dict)
    """The country of each customer."""
    visits: set[int] = field(default_factory=set)
    rejected: int = 0
    dice: random.Random = field(default_factory=lambda: random.Random(7))

    @property
    def customers(self) -> int:
        return max(self.rows_per_day // 20, 10)

    def land(self, day: int) -> None:
        """Let a day's files land: customers, orders with changes of earlier days, and visits."""
        for name in ("customers", "orders", "visits"):
            (self.landing / name).mkdir(parents=True, exist_ok=True)
        self._land_customers(day)
        self._land_orders(day)
        self._land_visits(day)

    def _land_customers(self, day: int) -> None:
        """All customers on the first day; then those who have moved."""
        who = range(self.customers) if day == 0 else self.dice.sample(range(self.customers), 5)
        rows = [
            {"customer_id": n, "name": f"customer {n}", "country": self.dice.choice(COUNTRIES)} for n in who
        ]
        self.countries |= {row["customer_id"]: row["country"] for row in rows}
        self._write_lines("customers", day, rows)

    def _land_orders(self, day: int) -> None:
        table = make_orders(day, self.rows_per_day, self.customers)
        changes = self._change_orders(day)
        wrong = self._spoil(table.slice(0, max(self.rows_per_day // 200, 3)), day)
        self.rejected += len(wrong)
        self._take(table.to_pylist())
        self._take(changes.to_pylist())
        path = self.landing / "orders" / f"{FIRST_DAY + timedelta(days=day)}.csv"
        pacsv.write_csv(pa.concat_tables([table, changes, wrong]), path)

    def _take(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self.orders[row["order_id"]] = {**row, "status": row["status"].strip().lower()}

    def _change_orders(self, day: int) -> pa.Table:
        """Some orders of the day before, which have changed since."""
        before = [n for n in self.orders if n // BLOCK == day - 1]
        at = datetime.combine(FIRST_DAY + timedelta(days=day, hours=8), datetime.min.time())
        rows = [
            {
                **self.orders[n],
                "status": self.dice.choice(("shipped", "Shipped", *NOT_SOLD)),
                "changed_at": at,
            }
            for n in self.dice.sample(before, len(before) // 20)
        ]
        return pa.Table.from_pylist(rows, make_orders(0, 0, 1).schema)

    def _spoil(self, rows: pa.Table, day: int) -> pa.Table:
        """Rows that no shop wants: without a customer, or with an amount below zero."""
        count = len(rows)
        ids = pc.add(count_up(count), day * BLOCK + BLOCK // 2)
        odd = pc.equal(pc.bit_wise_and(count_up(count), 1), 1)
        amounts = pc.if_else(odd, pc.negate(rows["amount"]), rows["amount"])
        buyers = pc.if_else(odd, rows["customer_id"], pa.scalar(None, pa.int64()))
        spoilt = rows.set_column(0, "order_id", ids).set_column(1, "customer_id", buyers)
        at = spoilt.schema.get_field_index("amount")
        return spoilt.set_column(at, "amount", amounts.cast(pa.decimal128(10, 2)))

    def _land_visits(self, day: int) -> None:
        """Visits of pages; the last tenth of a day comes again on the next one."""
        count = self.rows_per_day // 2
        before = (day - 1) * BLOCK + count
        again = [self._make_visit(n) for n in range(before - count // 10, before)] if day else []
        new = [self._make_visit(n) for n in range(day * BLOCK, day * BLOCK + count)]
        self.visits |= {row["visit_id"] for row in new}
        self._write_lines("visits", day, again + new)

    def _make_visit(self, number: int) -> dict[str, Any]:
        at = datetime.combine(FIRST_DAY, datetime.min.time()) + timedelta(
            days=number // BLOCK, seconds=number % BLOCK % 86_400
        )
        return {
            "visit_id": number,
            "customer_id": number * 7919 % self.customers,
            "page": PAGES[number % 6],
            "at": at.isoformat(sep=" "),
        }

    def _write_lines(self, name: str, day: int, rows: list[dict[str, Any]]) -> None:
        path = self.landing / name / f"{FIRST_DAY + timedelta(days=day)}.json"
        hidden = path.with_name(f".{path.name}")  # a stream takes a file as soon as it sees it
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        hidden.rename(path)

    # What must be there

    def count_daily(self) -> dict[tuple[str, str], tuple[int, Decimal]]:
        """Orders and revenue by day and country."""
        found: dict[tuple[str, str], tuple[int, Decimal]] = {}
        for row in self.orders.values():
            key = str(row["placed_at"].date()), self.countries[row["customer_id"]]
            count, revenue = found.get(key, (0, Decimal(0)))
            sold = Decimal(0) if row["status"] in NOT_SOLD else row["amount"]
            found[key] = count + 1, revenue + sold
        return found

    def sum_by_customer(self) -> dict[int, Decimal]:
        """What each customer has spent."""
        found: dict[int, Decimal] = {}
        for row in self.orders.values():
            sold = Decimal(0) if row["status"] in NOT_SOLD else row["amount"]
            found[row["customer_id"]] = found.get(row["customer_id"], Decimal(0)) + sold
        return found
