"""Draws ``docs/layout.svg``, the picture in the README: the plan of a real upsert, from real files."""

from __future__ import annotations

import sys
import tempfile
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import intarsia as it
from intarsia.show import svg

PICTURE = Path(__file__).parent.parent / "docs" / "layout.svg"
ROWS = 4_000
"""Of a file; there are eight files to each of twelve days, and their ids are even and ascending."""


def orders(first: int, count: int) -> pa.Table:
    number = pc.add(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), first - 1)
    amount = pc.round(pc.multiply(pc.random(count, initializer=first), 900.0), 2)
    return pa.table({"order_id": pc.multiply(number, 2), "amount": amount})


def write_orders(root: Path, *, days: int = 12, files: int = 8) -> None:
    for day in range(days):
        directory = root / f"day={date(2025, 3, 1) + timedelta(days=day)}"
        directory.mkdir(parents=True)
        for file in range(files):
            number = day * files + file
            rows = ROWS if (number * 7) % 5 else ROWS * 2 // 3
            pq.write_table(orders(number * ROWS, rows), directory / f"part-{file}.parquet")


def changes() -> pa.Table:
    """Some rows of two days, new rows of a third that lie between others, and a new day."""
    parts = [
        (11, orders(89 * ROWS, 900)),
        (11, orders(91 * ROWS, 300)),
        (11, orders(94 * ROWS, 1_200)),
        (9, orders(77 * ROWS, 50)),
        (12, orders(96 * ROWS, 5_000)),
    ]
    late = orders(42 * ROWS, 20)
    parts.append((5, late.set_column(0, "order_id", pc.add(late["order_id"], 1))))
    dated = [
        table.append_column("day", pa.repeat(pa.scalar(date(2025, 3, 1) + timedelta(days=day)), len(table)))
        for day, table in parts
    ]
    return pa.concat_tables(dated)


def draw() -> str:
    """The picture as SVG; the same text on every run."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "orders"
        write_orders(root)
        plan = it.plan("merge", changes(), root, on="order_id")
        return svg.layout(plan, heading=False) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    sys.stdout.write(f"{PICTURE} drawn\n")
