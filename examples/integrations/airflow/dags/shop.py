"""A shop's day in Airflow: the files of the day are merged, and what reads the table runs after it."""

import os
from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, Asset, task

from intarsia.integrations.airflow import IntarsiaOperator

SHOP = Path(os.environ["SHOP"])
orders = Asset("orders", uri=(SHOP / "lake" / "orders").as_uri())

with DAG("shop", schedule="@daily", start_date=datetime(2025, 3, 1, tzinfo=UTC), catchup=False):
    IntarsiaOperator(
        task_id="merge_orders",
        operation="merge",
        source=f"{SHOP}/landing/{{{{ ds }}}}.csv",
        target=f"{SHOP}/lake/orders",
        arguments={"on": "order_id", "columns": {"order_id": "bigint", "amount": "decimal(10, 2)"}},
        outlets=[orders],
        retries=2,
    )

with DAG("revenue", schedule=[orders], start_date=datetime(2025, 3, 1, tzinfo=UTC), catchup=False):

    @task
    def tell(triggering_asset_events=None) -> dict:
        """What the merge did is in the event of its asset."""
        events = (triggering_asset_events or {}).get(orders, [])
        return {"inserted": sum(event.extra["inserted"] for event in events)}

    tell()
