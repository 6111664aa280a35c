"""Iceberg tables: the names for users; each is loaded when it is first used, and PyIceberg with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.common.lazy import lazily as _lazily

if TYPE_CHECKING:
    from intarsia.tables.iceberg.catalogs import embedded_catalog
    from intarsia.tables.iceberg.maintenance import Expired, Orphans, expire_snapshots, remove_orphans
    from intarsia.tables.iceberg.table import IcebergTable

_HOMES = {
    "Expired": "intarsia.tables.iceberg.maintenance",
    "IcebergTable": "intarsia.tables.iceberg.table",
    "Orphans": "intarsia.tables.iceberg.maintenance",
    "embedded_catalog": "intarsia.tables.iceberg.catalogs",
    "expire_snapshots": "intarsia.tables.iceberg.maintenance",
    "remove_orphans": "intarsia.tables.iceberg.maintenance",
}

__all__ = ["Expired", "IcebergTable", "Orphans", "embedded_catalog", "expire_snapshots", "remove_orphans"]

__getattr__, __dir__ = _lazily(__name__, _HOMES)
