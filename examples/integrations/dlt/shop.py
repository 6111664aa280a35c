"""A pipeline of dlt that merges orders into a Parquet dataset and an Iceberg table; run it three times.

python shop.py [directory]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dlt

import intarsia as it
from intarsia.integrations.dlt import intarsia

FEED = [
    [{"id": 1, "state": "open", "amount": 10}, {"id": 2, "state": "open", "amount": 20}],
    [{"id": 2, "state": "paid", "amount": 20}, {"id": 3, "state": "open", "amount": 30, "note": "gift"}],
    [{"id": 1, "state": "open", "amount": 10, "cancelled": True}],
]


def orders(table_format: str | None) -> Any:
    """The orders that changed since the last run, as a feed would give them."""

    @dlt.resource(
        name="orders" if table_format is None else f"orders_{table_format}",
        primary_key="id",
        write_disposition="merge",
        columns={"cancelled": {"data_type": "bool", "hard_delete": True}},
        table_format=table_format,
    )
    def changes() -> Iterator[Any]:
        state = dlt.current.resource_state()
        run = state.get("run", 0)
        state["run"] = run + 1
        yield FEED[run % len(FEED)]

    return changes


def run(directory: Path) -> None:
    lake, warehouse = directory / "lake", directory / "warehouse"
    pipeline = dlt.pipeline(
        "shop",
        destination=intarsia(str(lake), catalog=f"{warehouse}/"),
        dataset_name="shop",
        pipelines_dir=str(directory / "pipelines"),
    )
    pipeline.run([orders(None), orders("iceberg")])
    for table in (str(lake / "shop/orders"), it.iceberg("shop.orders_iceberg", catalog=f"{warehouse}/")):
        rows = it.read(table, columns=["id", "state", "amount"]).read_all().sort_by("id")
        print(rows.to_pylist())


if __name__ == "__main__":
    run(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output"))
