"""An Iceberg table: its files as the core sees them, and changes of them as snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from intarsia.core.files import DataFile, Snapshot
from intarsia.errors import InputError, NotSupported
from intarsia.tables.iceberg.attempt import IcebergTransaction
from intarsia.tables.iceberg.batches import last_batch, last_commits, reaches_back
from intarsia.tables.iceberg.catalogs import load, open_table
from intarsia.tables.iceberg.changes import WRITES_AS, Setting
from intarsia.tables.iceberg.deletes import DeleteIndex, unpartitioned_specs
from intarsia.tables.iceberg.details import details_of
from intarsia.tables.iceberg.entries import Entry
from intarsia.tables.iceberg.file_system import Store, store_of
from intarsia.tables.iceberg.flags import word
from intarsia.tables.iceberg.footers import Closer
from intarsia.tables.iceberg.lens import TableLens
from intarsia.tables.iceberg.overlap import orders_of
from intarsia.tables.iceberg.properties import COPY_ON_WRITE, MERGE_ON_READ, WriteProperties
from intarsia.tables.iceberg.schemas import arrow_schema, refuse_unwritable
from intarsia.tables.iceberg.specs import SpecSpread
from intarsia.tables.iceberg.state import Shelf, State


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was read last, as long as the catalog names the same metadata file."""

    location: str
    access: Mapping[str, str]
    """What the catalog gave to reach the files with; credentials among it expire."""
    state: State
    store: Store
    snapshot: Snapshot


class IcebergTable:
    """A table in a catalog of PyIceberg, on one of its branches.

    Every commit is one snapshot, all of it or nothing. Whoever else writes, with whatever engine, is
    respected: a change that no longer holds is planned again. The handle may be used for many
    operations; it remembers the manifests it has read.

    Args:
        target: a table of PyIceberg, which is brought up to date by every commit made here, or its name.
        catalog: with a name: a catalog of PyIceberg, the name of a configured one, or a warehouse
            directory, see :func:`intarsia.tables.iceberg.catalogs.embedded_catalog`.
        branch: the branch to read and change; ``main`` if None.
        mode: ``copy-on-write`` or ``merge-on-read`` for every operation, instead of what the table's
            properties say of each.

    Raises:
        InputError: there is no such table, catalog or branch, or the branch is a tag.
        NotSupported: the table cannot be changed: a newer format version, encryption, no catalog, or
            ``merge-on-read`` asked of format version 1.
    """

    def __init__(
        self, target: Any, catalog: Any = None, *, branch: str | None = None, mode: str | None = None
    ) -> None:
        given: Any = mode
        if given is not None and str(given) not in (COPY_ON_WRITE, MERGE_ON_READ):
            raise InputError(f"mode= must be {COPY_ON_WRITE!r} or {MERGE_ON_READ!r}, it is {mode!r}.")
        self._table: Table = open_table(target, catalog)
        self.branch = branch
        self.mode = mode
        self.root = ".".join((self._table.catalog.name, *self._table.name()))
        self._shelf = Shelf(self._table.io)
        self._seen: _Seen | None = None
        check_mode(self._table.metadata, mode)
        State.of(self._table, branch, self._shelf)

    @staticmethod
    def of(
        target: Any, catalog: Any = None, branch: str | None = None, mode: str | None = None
    ) -> IcebergTable:
        """The table of a PyIceberg table or a name; see the class."""
        return IcebergTable(target, catalog, branch=branch, mode=mode)

    def choosing(self, *, branch: str | None = None, mode: str | None = None) -> IcebergTable:
        """The same table on another branch or in another mode."""
        return IcebergTable(self._table, branch=branch or self.branch, mode=mode or self.mode)

    @property
    def identifier(self) -> tuple[str, ...]:
        """The table's name in its catalog, namespaces first."""
        return tuple(self._table.name())

    @property
    def location(self) -> str:
        """The table's directory, by which errors below name it."""
        return str(self._table.location())

    @property
    def workspace(self) -> tuple[pafs.FileSystem, str, str]:
        """Room for scratch that every process which reads the table can reach, and the table's path."""
        store = store_of(self._table.io, self._table.location())
        root = store.locate(self._table.location()).rstrip("/")
        return store.filesystem, f"{root}/.intarsia/spools", root

    def load(self) -> Table:
        """The table as the catalog has it now; raises StorageError where that cannot be reached."""
        return load(self._table.catalog, self._table.name())

    def state(self) -> State:
        """What the branch is now."""
        return self._read().state

    def snapshot(self) -> Snapshot:
        """The current state. Reads manifests, no data file, and writes nothing."""
        return self._read().snapshot

    @contextmanager
    def transaction(self, operation: str) -> Iterator[IcebergTransaction]:
        """Begin a change on a fresh snapshot.

        Leaving the block without a commit removes every file that was written, unless nobody knows
        whether it was committed.

        Raises:
            NotSupported: a property of the table asks for what cannot be done, or a column is of a type
                that no data file can hold.
        """
        seen = self._read()
        refuse_unwritable(seen.state.metadata.schema())
        setting = Setting(seen.state, seen.snapshot, seen.store, WriteProperties.of(seen.state.metadata))
        transaction = IcebergTransaction(self, setting, operation)
        try:
            yield transaction
        finally:
            transaction.close()

    def recover(self, *, run_id: str | None = None) -> tuple[str, ...]:
        """Nothing: a commit that did not come through has changed nothing."""
        return ()

    def last_batch(self, app_id: str) -> int | None:
        """The highest ``batch_id`` that a snapshot still known has with this ``app_id``, or None."""
        return last_batch(self.state(), app_id)

    def last_commits(self) -> Mapping[str, Mapping[str, str]]:
        """By ``app_id``: the summary of the snapshot still known with its highest ``batch_id``."""
        return last_commits(self.state())

    def knows_commits_since(self, version: int) -> bool:
        """Whether no snapshot after a version has expired, so that a commit not found was not made."""
        return reaches_back(self.state(), version)

    def committed(self, metadata: TableMetadata, location: str) -> None:
        """Bring the caller's table up to date after a commit."""
        self._table.metadata = metadata
        self._table.metadata_location = location

    def _read(self) -> _Seen:
        table = self.load()
        location, access = table.metadata_location, dict(table.io.properties)
        seen = self._seen  # another thread may set it meanwhile
        if seen is None or (seen.location, seen.access) != (location, access):
            check_mode(table.metadata, self.mode)
            self._shelf.io = table.io
            state = State.of(table, self.branch, self._shelf)
            store = store_of(table.io, table.metadata.location)
            seen = self._seen = _Seen(location, access, state, store, self._snapshot(state, store))
            self._shelf.keep_only(state)
        return seen

    def _snapshot(self, state: State, store: Store) -> Snapshot:
        metadata = state.metadata
        schema = arrow_schema(metadata.schema())
        index = DeleteIndex.of(
            state.entries(deletes=True),
            unpartitioned=unpartitioned_specs(metadata),
            orders=orders_of(metadata),
        )
        lens = TableLens(metadata, metadata.schema(), store)
        files = []
        guessed = 0
        for entry in oldest_first(state):
            file, deletes = entry.file, index.applying(entry)
            guessed += bool(deletes) and deletes.guessed
            files.append(
                DataFile(
                    path=file.file_path,
                    location=store.locate(file.file_path),
                    size=file.file_size_in_bytes,
                    rows=max(0, file.record_count - deletes.likely_count) if deletes else file.record_count,
                    tag=entry,
                    lens=lens.lens(entry, deletes),
                )
            )
        properties = _readable(metadata)
        return Snapshot(
            root=self.root,
            files=tuple(files),
            schema=schema,
            partition_columns=(),
            filesystem=store.filesystem,
            version=state.version,
            notes=_counted_notes(guessed),
            uniform=False,
            spread=SpecSpread.of(metadata, schema),
            veils=veils(metadata, self.mode),
            lineage=metadata.format_version >= 3,
            layout=None if properties is None else properties.layout,
            target_bytes=None if properties is None else properties.target_bytes,
            closer=Closer(store.filesystem),
            details=details_of(state, state.entries(deletes=False), state.entries(deletes=True)),
        )


def _counted_notes(guessed: int) -> tuple[str, ...]:
    """What to know of totals: rows of files that an operation looks into are counted, of others told."""
    if not guessed:
        return ()
    return (
        f"{guessed:,} files have equality deletes, or deletes shared with others: until one is looked into,"
        " its rows count as its manifest tells them. Totals may be too high; compact() makes them exact.",
    )


def oldest_first(state: State) -> list[Entry]:
    """The data files in the order they came: which of several rows is the last one follows from it."""
    ranks = {snapshot.snapshot_id: rank for rank, snapshot in enumerate(state.metadata.snapshots)}
    return sorted(
        state.entries(deletes=False),
        key=lambda entry: (entry.sequence_number or 0, ranks.get(entry.snapshot_id or 0, -1)),
    )


def _readable(metadata: TableMetadata) -> WriteProperties | None:
    """The properties, where they can be followed: a table that cannot be written can still be read."""
    try:
        return WriteProperties.of(metadata)
    except NotSupported:
        return None


def veils(metadata: TableMetadata, mode: str | None) -> Mapping[str, bool]:
    """By operation whether rows that go are veiled: as the caller says, else as the properties do."""
    among = (COPY_ON_WRITE, MERGE_ON_READ)
    return {
        operation: metadata.format_version > 1
        and (mode or word(metadata.properties, f"write.{name}.mode", COPY_ON_WRITE, among)) == MERGE_ON_READ
        for operation, name in WRITES_AS.items()
    }


def check_mode(metadata: TableMetadata, mode: str | None) -> None:
    if mode == MERGE_ON_READ and metadata.format_version == 1:
        raise NotSupported(
            "A table of format version 1 has no delete files.",
            path=metadata.location,
            hint=f"use mode={COPY_ON_WRITE!r}, or upgrade the table to version 2",
        )
