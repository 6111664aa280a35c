"""Files that commits have replaced or removed and that ``retain=`` keeps, as a snapshot to read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pyarrow as pa

from intarsia.common.types import find_common_type
from intarsia.core.snapshot import Snapshot, retype
from intarsia.errors import DamagedTable, SchemaMismatch, StorageError
from intarsia.tables.parquet.control import Control
from intarsia.tables.parquet.entries import Located
from intarsia.tables.parquet.footers import read_footers
from intarsia.tables.parquet.listing import Listing
from intarsia.tables.parquet.record import Record
from intarsia.tables.parquet.snapshot import FooterSet, assemble_snapshot

__all__ = ["FileKey", "find_retained"]

FileKey = tuple[str, tuple[Any, ...]]
"""A file as it was: its path and its fingerprint."""


def find_retained(
    control: Control, now: Snapshot, wanted: Collection[FileKey], *, commits: int | None = None
) -> Snapshot | None:
    """Former files in the schema that the dataset has now.

    None where one of them is not kept any more, or has values that the types of now may not hold.

    Args:
        control: the dataset's control directory.
        now: the current state.
        wanted: the files, as they were.
        commits: how many of the last commits count that keep files; None for all.
    """
    try:
        kept = _list_kept(control, commits)
        # A dry run may have replaced a file that is still there.
        files = [
            _locate(control, key, kept.get(key)) or _locate(control, key, f"{control.root}/{key[0]}")
            for key in sorted(wanted)
        ]
        found = [file for file in files if file is not None]
        if len(found) < len(wanted):
            return None
        footers = FooterSet.of(read_footers(control.storage.filesystem, [location for _, location in found]))
        listing = Listing(tuple(entry for entry, _ in found), exists=True)
        made = assemble_snapshot(control, now.root, listing, found, footers)
        known = retype(replace(made, partition_columns=now.partition_columns), now.schema)
    except (DamagedTable, SchemaMismatch, StorageError, FileNotFoundError):
        return None  # removed by a commit meanwhile, or of other types
    return replace(known, schema=now.schema) if _is_held(known.schema, now.schema) else None


def _is_held(former: pa.Schema, schema: pa.Schema) -> bool:
    """Whether the types of a schema hold every value of former columns, as far as it has them."""
    known = set(former.names)
    names = [name for name in schema.names if name in known]
    pairs = [(schema.field(name).type, former.field(name).type) for name in names]
    return all(find_common_type(now, before) == now for now, before in pairs)


def _list_kept(control: Control, commits: int | None) -> dict[FileKey, str]:
    """The location of every file that is kept, of some last commits."""
    found: dict[FileKey, str] = {}
    names = sorted(control.storage.names(control.retained))
    for name in names if commits is None else names[len(names) - min(commits, len(names)) :]:
        directory = f"{control.retained}/{name}"
        where = f"{directory}/intent.json"
        found |= _list_files(Record.from_json(control.storage.read(where), where), directory)
    for record in control.read_log().unclean:  # kept, once somebody can clean up after it
        if record.retain:
            found |= _list_files(record, f"{control.make_staging_path(record.txid)}/old")
    return found


def _list_files(record: Record, directory: str) -> dict[FileKey, str]:
    return {
        (item.path, item.was): f"{directory}/{item.kept}"
        for item in record.files
        if item.was is not None and item.kept is not None
    }


def _locate(control: Control, key: FileKey, location: str | None) -> Located | None:
    entry = None if location is None else control.storage.stat(location)
    if entry is None or location is None or entry.fingerprint != key[1]:
        return None
    return replace(entry, path=key[0]), location
