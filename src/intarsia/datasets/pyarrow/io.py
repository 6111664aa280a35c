"""The dataset IO of the in-process engine."""

from __future__ import annotations

from intarsia.datasets.io import DatasetIO


class PyarrowDatasetIO(DatasetIO):
    """Parquet datasets in this process, with PyArrow alone.

    >>> io = PyarrowDatasetIO()
    >>> result = io.merge(changes, "lake/orders", "upsert", ["order_id"])
    """

    engine = "arrow"
    backend = "pyarrow"
