"""Iceberg tables: the names for users; each is loaded when it is first used, and PyIceberg with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.common.lazy import make_lazy_names as _lazily

if TYPE_CHECKING:
    from intarsia.tables.iceberg.catalog import embedded_catalog
    from intarsia.tables.iceberg.maintenance import Expired, Orphans, expire_snapshots, remove_orphans
    from intarsia.tables.iceberg.manifest_writer import (
        ManifestOutput,
        group_entries_by_spec,
        group_files_by_spec,
        new_manifest_writer_for_spec,
        validate_added_data_files,
        write_added_manifests,
        write_delete_manifests,
        write_deleted_data_manifests,
        write_existing_data_manifests,
    )
    from intarsia.tables.iceberg.single_object_catalog import ObjectCatalog, object_catalog
    from intarsia.tables.iceberg.specs import find_compatible_schema
    from intarsia.tables.iceberg.table import IcebergTable

_HOMES = {
    "Expired": "intarsia.tables.iceberg.maintenance",
    "IcebergTable": "intarsia.tables.iceberg.table",
    "ManifestOutput": "intarsia.tables.iceberg.manifest_writer",
    "ObjectCatalog": "intarsia.tables.iceberg.single_object_catalog",
    "Orphans": "intarsia.tables.iceberg.maintenance",
    "embedded_catalog": "intarsia.tables.iceberg.catalog",
    "expire_snapshots": "intarsia.tables.iceberg.maintenance",
    "find_compatible_schema": "intarsia.tables.iceberg.specs",
    "group_entries_by_spec": "intarsia.tables.iceberg.manifest_writer",
    "group_files_by_spec": "intarsia.tables.iceberg.manifest_writer",
    "new_manifest_writer_for_spec": "intarsia.tables.iceberg.manifest_writer",
    "object_catalog": "intarsia.tables.iceberg.single_object_catalog",
    "remove_orphans": "intarsia.tables.iceberg.maintenance",
    "validate_added_data_files": "intarsia.tables.iceberg.manifest_writer",
    "write_added_manifests": "intarsia.tables.iceberg.manifest_writer",
    "write_delete_manifests": "intarsia.tables.iceberg.manifest_writer",
    "write_deleted_data_manifests": "intarsia.tables.iceberg.manifest_writer",
    "write_existing_data_manifests": "intarsia.tables.iceberg.manifest_writer",
}

__all__ = [
    "Expired",
    "IcebergTable",
    "ManifestOutput",
    "ObjectCatalog",
    "Orphans",
    "embedded_catalog",
    "expire_snapshots",
    "find_compatible_schema",
    "group_entries_by_spec",
    "group_files_by_spec",
    "new_manifest_writer_for_spec",
    "object_catalog",
    "remove_orphans",
    "validate_added_data_files",
    "write_added_manifests",
    "write_delete_manifests",
    "write_deleted_data_manifests",
    "write_existing_data_manifests",
]

__getattr__, __dir__ = _lazily(__name__, _HOMES)
