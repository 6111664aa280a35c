"""Uses of private names of PyIceberg; no other module has any."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic import ValidationError as ModelError
from pyiceberg.catalog import Catalog, MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor, ToOutputFile
from pyiceberg.table import StagedTable, Table, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3, new_table_metadata
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import IcebergBaseModel
from pyiceberg.types import NestedField

METADATA_ERRORS = (ValidationError, ModelError)
"""Errors of PyIceberg for unknown metadata: its own, or pydantic's for a REST catalog."""
_written: ContextVar[list[str] | None] = ContextVar("written", default=None)


def prepare_catalog(catalog: Catalog) -> Catalog:
    """Let a catalog whose client writes the metadata file write version 3, and say what it has written.

    Only this one object is changed. Catalogs behind a server need nothing.
    """
    if isinstance(catalog, MetastoreCatalog) and "_write_metadata" not in vars(catalog):
        vars(catalog)["_write_metadata"] = _write_metadata
    return catalog


def stage_new_table(
    catalog: MetastoreCatalog,
    key: tuple[tuple[str, ...], str],
    schema: Any,
    location: str | None,
    **made: Any,
) -> tuple[TableMetadata, FileIO, str]:
    """The metadata of a table that is to be created, and where it is to be written; nothing is written."""
    properties = made.get("properties") or {}
    version = int(properties.get(TableProperties.FORMAT_VERSION, TableProperties.DEFAULT_FORMAT_VERSION))
    converted = catalog._convert_schema_if_needed(schema, version)  # type: ignore[arg-type]
    where = catalog._resolve_table_location(location, ".".join(key[0]), key[1])
    metadata = new_table_metadata(location=where, schema=converted, **made)
    path = load_location_provider(where, properties).new_table_metadata_file_location()
    return metadata, catalog._load_file_io(properties, path), path


def stage_update(
    catalog: MetastoreCatalog,
    current: Table | None,
    identifier: tuple[str, ...],
    requirements: tuple[TableRequirement, ...],
    updates: tuple[TableUpdate, ...],
) -> StagedTable:
    """The table after updates, whose requirements are checked; nothing is written."""
    return catalog._update_and_stage_table(current, identifier, requirements, updates)


def write_metadata(catalog: MetastoreCatalog, metadata: TableMetadata, io: FileIO, path: str) -> None:
    """Write a metadata file as the catalog does."""
    catalog._write_metadata(metadata, io, path)


def load_table_io(catalog: Catalog, metadata: TableMetadata, location: str) -> FileIO:
    """How the files of a table are reached."""
    return catalog._load_file_io(metadata.properties, location)


def update_namespace(
    catalog: MetastoreCatalog, said: dict[str, str], removals: set[str] | None, updates: dict[str, Any]
) -> tuple[PropertiesUpdateSummary, dict[str, str]]:
    """The properties of a namespace after an update, and what that did."""
    return catalog._get_updated_props_and_update_summary(
        current_properties=said, removals=removals, updates=updates
    )


@contextmanager
def record_metadata_files() -> Iterator[list[str]]:
    """The metadata files that prepared catalogs write inside the block, by this thread.

    A catalog that loses the race for its own pointer leaves behind the file it had written.
    """
    paths: list[str] = []
    token = _written.set(paths)
    try:
        yield paths
    finally:
        _written.reset(token)


def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
    paths = _written.get()
    if paths is not None:
        _check_sequence(metadata)
        paths.append(metadata_path)
    if not isinstance(metadata, TableMetadataV3):
        ToOutputFile.table_metadata(metadata, io.new_output(metadata_path))
        return
    # PyIceberg refuses to serialize version 3, though its model is complete.
    text = IcebergBaseModel.model_dump_json(with_next_row_id(metadata))
    data = Compressor.get_compressor(metadata_path).bytes_compressor()(text.encode())
    with io.new_output(metadata_path).create() as stream:
        stream.write(data)


def with_next_row_id(metadata: TableMetadata) -> TableMetadata:
    """The metadata with the next row id, where its version has one."""
    if not isinstance(metadata, TableMetadataV3):
        return metadata
    return metadata.model_copy(update={"next_row_id": find_next_row_id(metadata)})


def _check_sequence(metadata: TableMetadata) -> None:
    """Refuse a sequence number that a commit to another branch has used; PyIceberg checks version 2 only."""
    if metadata.format_version < 3 or not metadata.snapshots:
        return
    *before, new = (snapshot.sequence_number or 0 for snapshot in metadata.snapshots)
    if before and new <= max(before):
        raise CommitFailedException(f"Sequence number {new} was taken by a commit to another branch")


def find_next_row_id(metadata: TableMetadata) -> int:
    """The next row id to assign; the metadata of a new or upgraded table may lack it."""
    known = getattr(metadata, "next_row_id", None)
    if known is not None:
        return int(known)
    return max(
        (s.first_row_id + (s.added_rows or 0) for s in metadata.snapshots if s.first_row_id is not None),
        default=0,
    )


def find_unsupported_column(error: BaseException) -> tuple[str, str] | None:
    """The first column of a type, or with a default, that PyIceberg cannot load, and which it is.

    PyIceberg's error has the type at best, and the catalog hands out no metadata that it could not load: the
    text is the one that the parser was called with. Columns of the current schema come first.
    """
    metadata = _find_refused_metadata(error)
    schemas = metadata.get("schemas") or [metadata.get("schema")]
    current = metadata.get("current-schema-id")
    found = [schema for schema in schemas if isinstance(schema, dict)]
    for schema in sorted(found, key=lambda schema: schema.get("schema-id") != current):
        for path, field in _iterate_leaves(schema, ""):
            if not _is_field({"type": field["type"]}):
                return path, str(field["type"])
            for default in ("initial-default", "write-default"):
                if not _is_field({"type": field["type"], default: field.get(default)}):
                    return path, f"{field['type']} with the {default} {field[default]!r}"
    return None


def _find_refused_metadata(error: BaseException) -> dict[str, Any]:
    while error.__cause__ is not None:
        error = error.__cause__
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "model_validate_json":
            try:
                said = json.loads(frame.f_locals.get("json_data", ""))
            except (TypeError, ValueError):
                continue
            if isinstance(said, dict):
                metadata = said.get("metadata", said)  # a REST catalog has it inside its answer
                return metadata if isinstance(metadata, dict) else {}
    return {}


def _iterate_leaves(field: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The fields of a schema in JSON that have no fields inside, with their paths."""
    # A schema and a field that holds a container differ in where the container's fields are.
    match field if isinstance(field["type"], str) else field["type"]:
        case {"type": "struct", "fields": [*fields]}:
            inner = [(f"{path}.{one['name']}".removeprefix("."), one) for one in fields]
        case {"type": "list", "element": element}:
            inner = [(f"{path}.element", {"type": element})]
        case {"type": "map", "key": key, "value": value}:
            inner = [(f"{path}.key", {"type": key}), (f"{path}.value", {"type": value})]
        case {"type": str(name)}:
            yield path, {**field, "type": name}
            return
        case _:
            return
    for place, one in inner:
        yield from _iterate_leaves(one, place)


def _is_field(attributes: dict[str, Any]) -> bool:
    try:
        NestedField.model_validate({"id": 1, "name": "column", "required": False, **attributes})
    except (*METADATA_ERRORS, TypeError, ValueError):
        return False
    return True
