"""Set new rows into the Parquet datasets and Iceberg tables you already have.

    >>> import intarsia as it
    >>> it.merge(changes, "lake/orders", on="order_id")

Names are loaded when they are first used: importing the package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.common.lazy import make_lazy_names as _lazily

if TYPE_CHECKING:
    from intarsia.api import (
        compact,
        deduplicate,
        delete,
        iceberg,
        merge,
        optimize,
        plan,
        recover,
        update,
        write,
    )
    from intarsia.core.plan import Plan
    from intarsia.core.report import MergeResult
    from intarsia.core.rule import when_matched, when_not_matched, when_not_matched_by_source
    from intarsia.errors import IntarsiaError
    from intarsia.integrations.polars import scan
    from intarsia.reading import inspect, read, snapshot
    from intarsia.spark.tables import spark_table
    from intarsia.undo import history, restore

__version__ = "0.1.0"

_HOMES = {
    "IntarsiaError": "intarsia.errors",
    "MergeResult": "intarsia.core.report",
    "Plan": "intarsia.core.plan",
    "compact": "intarsia.api",
    "deduplicate": "intarsia.api",
    "delete": "intarsia.api",
    "history": "intarsia.undo",
    "iceberg": "intarsia.api",
    "inspect": "intarsia.reading",
    "merge": "intarsia.api",
    "optimize": "intarsia.api",
    "plan": "intarsia.api",
    "read": "intarsia.reading",
    "recover": "intarsia.api",
    "restore": "intarsia.undo",
    "scan": "intarsia.integrations.polars",
    "snapshot": "intarsia.reading",
    "spark_table": "intarsia.spark.tables",
    "update": "intarsia.api",
    "when_matched": "intarsia.core.rule",
    "when_not_matched": "intarsia.core.rule",
    "when_not_matched_by_source": "intarsia.core.rule",
    "write": "intarsia.api",
}

__all__ = [
    "IntarsiaError",
    "MergeResult",
    "Plan",
    "compact",
    "deduplicate",
    "delete",
    "history",
    "iceberg",
    "inspect",
    "merge",
    "optimize",
    "plan",
    "read",
    "recover",
    "restore",
    "scan",
    "snapshot",
    "spark_table",
    "update",
    "when_matched",
    "when_not_matched",
    "when_not_matched_by_source",
    "write",
]

__getattr__, __dir__ = _lazily(__name__, _HOMES)
