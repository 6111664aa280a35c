"""Iceberg tables: snapshots of a branch for the core, transactions, and descriptions for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow.fs as pafs
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from intarsia.core.change import Change, Committed, Staging
from intarsia.core.file_table import Files, FileTuple
from intarsia.core.history import History
from intarsia.core.restoration import Restoration
from intarsia.core.snapshot import Snapshot, TableFormat
from intarsia.errors import InputError, NotSupported
from intarsia.storage.s3 import find_access
from intarsia.tables.iceberg.batches import find_highest_batch, find_last_batch, find_last_commits
from intarsia.tables.iceberg.catalog import TableReference, load_table, open_table
from intarsia.tables.iceberg.deletes import (
    NO_DELETES,
    DeleteFileIndex,
    find_bound_orders,
    find_unpartitioned_specs,
)
from intarsia.tables.iceberg.file_io import Store, open_store
from intarsia.tables.iceberg.manifests import DataFileContent, ManifestEntry
from intarsia.tables.iceberg.properties import (
    COPY_ON_WRITE,
    MERGE_ON_READ,
    WriteProperties,
    property_as_choice,
)
from intarsia.tables.iceberg.rollback import make_branch_history, plan_rollback, roll_back
from intarsia.tables.iceberg.scan import MANY_FILES, FooterLoader, ManifestEntries, TableScanContext
from intarsia.tables.iceberg.schemas import find_unstored_columns, refuse_unwritable, to_arrow_schema
from intarsia.tables.iceberg.specs import SpecPartitioner, find_compatible_schema
from intarsia.tables.iceberg.state import (
    BranchState,
    ManifestCache,
    has_commits_since,
    list_summaries_since,
)
from intarsia.tables.iceberg.transaction import ROW_LEVEL_COMMANDS, ChangeContext, IcebergTransaction


@dataclass(frozen=True, slots=True)
class _LoadedTable:
    """What was read last; valid while the catalog names the same metadata file."""

    location: str
    access: Mapping[str, str]
    """What the catalog gave to reach the files with; credentials among it expire."""
    state: BranchState
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
            directory, see :func:`intarsia.tables.iceberg.catalog.embedded_catalog`.
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
        self._cache = ManifestCache(self._table.io)
        self._seen: _LoadedTable | None = None
        check_mode(self._table.metadata, mode)
        BranchState.of(self._table, branch, self._cache)

    commit_attempts = None  # a commit tries again by itself
    requests = None  # PyIceberg sends some of them

    @staticmethod
    def of(
        target: Any, catalog: Any = None, branch: str | None = None, mode: str | None = None
    ) -> IcebergTable:
        """The table of a PyIceberg table or a name; see the class."""
        return IcebergTable(target, catalog, branch=branch, mode=mode)

    def with_choice(self, *, branch: str | None = None, mode: str | None = None) -> IcebergTable:
        """The same table on another branch or in another mode."""
        return IcebergTable(self._table, branch=branch or self.branch, mode=mode or self.mode)

    def make_reference(self) -> TableReference:
        """The table's name and its catalog's settings, for another process."""
        return TableReference.of(self._table)

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
        """A directory for scratch files that every process can reach, and the table's path."""
        store = open_store(self._table.io, self._table.location())
        root = store.filesystem_path(self._table.location()).rstrip("/")
        return store.filesystem, f"{root}/.intarsia/spools", root

    def load(self) -> Table:
        """The table as the catalog has it now; raises StorageError where that cannot be reached."""
        return load_table(self._table.catalog, self._table.name())

    def read_state(self) -> BranchState:
        """What the branch is now."""
        return self._read().state

    def snapshot(self) -> Snapshot:
        """The current state. Reads manifests, no data file, and writes nothing."""
        return self._read().snapshot

    def take_position(self) -> tuple[Snapshot, int]:
        """The current state and the id of its Iceberg snapshot; 0 for a table that has none yet."""
        seen = self._read()
        return seen.snapshot, seen.state.head_id or 0

    def snapshot_at(self, snapshot_id: int) -> Snapshot | None:
        """The state of an earlier Iceberg snapshot, in the schema of the state that was read last.

        None where it has expired.
        """
        seen = self._seen or self._read()
        if not snapshot_id:
            return seen.snapshot.with_files()
        head = seen.state.metadata.snapshot_by_id(snapshot_id)
        if head is None:
            return None
        manifests = self._cache.read_manifests(head.manifest_list)
        return self._make_snapshot(replace(seen.state, head=head, manifests=manifests), seen.store)

    @contextmanager
    def transaction(self, operation: str) -> Iterator[IcebergTransaction]:
        """Begin a change on a fresh snapshot.

        Leaving the block without a commit removes every file that was written, unless nobody knows
        whether it was committed.

        Raises:
            NotSupported: a property of the table asks for what cannot be done, or a column is of a type
                that no data file can hold.
        """
        transaction = self._begin(self._read(), operation)
        try:
            yield transaction
        finally:
            transaction.close()

    def check(self) -> None:
        """Refuse what would keep every transaction from beginning; see :meth:`transaction`."""
        self._begin(self._read(), "check")

    def check_change(self, _snapshot: Snapshot, change: Change, staging: Staging | None = None) -> None:
        """Refuse what no commit of a change to the table could do; writes nothing.

        With ``staging``, where the change's files are, these are looked into as well. Every commit asks this.

        Raises:
            InputError: half an idempotency key, a ``wap.id`` that the table does not allow, or files that
                are named twice.
            NotSupported: delete files in a table of format version 1.
            DamagedTable: a file of the change is not what it was said to be.
        """
        transaction = self._begin(self._seen or self._read(), change.operation)
        transaction.check(change)
        if staging is not None:
            transaction.check_written(change.added, staging.filesystem)

    def _begin(self, seen: _LoadedTable, operation: str) -> IcebergTransaction:
        """A transaction that has written nothing yet."""
        refuse_unwritable(seen.state.metadata.schema())
        context = ChangeContext(
            seen.state, seen.snapshot, seen.store, WriteProperties.of(seen.state.metadata)
        )
        return IcebergTransaction(self, context, operation)

    def history(self) -> History:
        """The snapshots of the branch, newest first. Writes nothing."""
        return make_branch_history(self.read_state(), self.root)

    def plan_restore(self, version: int) -> Restoration:
        """What setting the branch back would do; raises RestoreError where it cannot be. Writes nothing."""
        return plan_rollback(self, version)

    def restore(self, version: int, properties: Mapping[str, str]) -> tuple[Restoration, Committed | None]:
        """Set the branch back to a snapshot; see :func:`intarsia.tables.iceberg.rollback.roll_back`."""
        return roll_back(self, version, properties)

    def load_state(self) -> tuple[Table, BranchState]:
        """The table as the catalog has it, and its branch at that moment."""
        table = self.load()
        return table, BranchState.of(table, self.branch, self._cache)

    def recover(self, *, run_id: str | None = None) -> tuple[str, ...]:
        """Nothing: a commit that did not come through has changed nothing."""
        return ()

    def last_batch(self, app_id: str) -> int | None:
        """The highest ``batch_id`` that was committed with this ``app_id``, or None."""
        return find_last_batch(self.read_state(), app_id)

    def highest_batch(self, app_id: str) -> int | None:
        """As :meth:`last_batch`, counting also batches that were rolled back since."""
        return find_highest_batch(self.read_state(), app_id)

    def last_commits(self) -> Mapping[str, Mapping[str, str]]:
        """By ``app_id``: the summary of its highest ``batch_id``, or what the table has noted of it."""
        return find_last_commits(self.read_state())

    def knows_commits_since(self, version: int) -> bool:
        """Whether no snapshot after a version has expired, so that a commit not found was not made."""
        return has_commits_since(self.read_state(), version)

    def list_commits_since(self, version: int) -> Sequence[Mapping[str, str]]:
        """The summary of each commit after a version."""
        return list_summaries_since(self.read_state(), version)

    def refresh(self, metadata: TableMetadata, location: str) -> None:
        """Bring the caller's table up to date after a commit."""
        self._table.metadata = metadata
        self._table.metadata_location = location

    def _read(self) -> _LoadedTable:
        table = self.load()
        location, access = table.metadata_location, dict(table.io.properties)
        seen = self._seen  # another thread may set it meanwhile
        if seen is None or (seen.location, seen.access) != (location, access):
            check_mode(table.metadata, self.mode)
            self._cache.io = table.io
            state = BranchState.of(table, self.branch, self._cache)
            store = open_store(table.io, table.metadata.location)
            seen = self._seen = _LoadedTable(
                location, access, state, store, self._make_snapshot(state, store)
            )
            self._cache.keep_only(state)
        return seen

    def _make_snapshot(self, state: BranchState, store: Store) -> Snapshot:
        metadata = state.metadata
        schema = to_arrow_schema(metadata.schema())
        index = DeleteFileIndex.of(
            state.iterate_entries(deletes=True),
            unpartitioned=find_unpartitioned_specs(metadata),
            orders=find_bound_orders(metadata),
        )
        context = TableScanContext(metadata, metadata.schema(), store)
        entries = sort_by_commit(state)
        found = enumerate(map(index.find_deletes, entries)) if index else ()
        deletes = {number: one for number, one in found if one}
        guessed = sum(one.is_estimate for one in deletes.values())
        files: Files
        if len(entries) < MANY_FILES:
            pairs = enumerate(entries)
            files = FileTuple(context.make_data_file(one, deletes.get(n, NO_DELETES)) for n, one in pairs)
        else:
            files = ManifestEntries(context, entries, deletes).make_files()
        properties = _read_write_properties(metadata)
        refusal = properties if isinstance(properties, NotSupported) else None
        return Snapshot(
            root=self.root,
            files=files,
            schema=schema,
            partition_columns=(),
            filesystem=store.filesystem,
            version=state.version,
            notes=_describe_estimates(guessed),
            uniform=False,
            format=TableFormat(
                replaces_in_place=False,
                owns_schema=True,
                ordered_by_commit=True,
                keeps_row_ids=metadata.format_version >= 3,
                merge_on_read=read_merge_on_read(metadata, self.mode),
                partitioner=SpecPartitioner.of(metadata, schema),
                layout=None if isinstance(properties, NotSupported) else properties.layout,
                target_bytes=None if isinstance(properties, NotSupported) else properties.target_bytes,
            ),
            unwritable=refusal,
            unstored=find_unstored_columns(metadata.schema()),
            footer_loader=FooterLoader(store.filesystem),
            find_access=partial(find_access, store.filesystem),
            details=describe_state(
                state, state.iterate_entries(deletes=False), state.iterate_entries(deletes=True)
            ),
        )


def _describe_estimates(guessed: int) -> tuple[str, ...]:
    """A note on totals: rows of files that were not opened are counted as their manifests give them."""
    if not guessed:
        return ()
    return (
        f"{guessed:,} files have equality deletes, or deletes shared with others: until one is looked into,"
        " its rows count as its manifest tells them. Totals may be too high; compact() makes them exact.",
    )


def sort_by_commit(state: BranchState) -> list[ManifestEntry]:
    """The data files in the order of their commits, by which the last of several rows is chosen."""
    ranks = {snapshot.snapshot_id: rank for rank, snapshot in enumerate(state.metadata.snapshots)}
    return sorted(
        state.iterate_entries(deletes=False),
        key=lambda entry: (entry.sequence_number or 0, ranks.get(entry.snapshot_id or 0, -1)),
    )


def _read_write_properties(metadata: TableMetadata) -> WriteProperties | NotSupported:
    """The properties, or why they cannot be followed: a table that cannot be written can still be read."""
    try:
        refuse_unwritable(metadata.schema())
        return WriteProperties.of(metadata)
    except NotSupported as error:
        return error


def read_merge_on_read(metadata: TableMetadata, mode: str | None) -> Mapping[str, bool]:
    """Whether each operation is merge-on-read: by the mode given, else by the table's properties."""
    among = (COPY_ON_WRITE, MERGE_ON_READ)
    return {
        operation: metadata.format_version > 1
        and (mode or property_as_choice(metadata.properties, f"write.{name}.mode", COPY_ON_WRITE, among))
        == MERGE_ON_READ
        for operation, name in ROW_LEVEL_COMMANDS.items()
    }


def check_mode(metadata: TableMetadata, mode: str | None) -> None:
    if mode == MERGE_ON_READ and metadata.format_version == 1:
        raise NotSupported(
            "A table of format version 1 has no delete files.",
            path=metadata.location,
            hint=f"use mode={COPY_ON_WRITE!r}, or upgrade the table to version 2",
        )


Details = tuple[tuple[str, tuple[str, ...]], ...]


def describe_state(
    state: BranchState, data: Iterable[ManifestEntry], deletes: Iterable[ManifestEntry]
) -> Details:
    """Format, partition specs with their files, manifests by spec, and delete files; pure."""
    metadata = state.metadata
    head = "no snapshot yet" if state.head is None else f"snapshot {state.head.snapshot_id}"
    files = Counter(entry.file.spec_id for entry in data)
    found = [
        ("format", (f"version {metadata.format_version}", f"branch {state.branch}", head)),
        ("specs", tuple(_describe_spec(metadata, spec, files) for spec in metadata.partition_specs)),
        ("manifests", tuple(_describe_manifests(state))),
        ("deletes", tuple(_describe_deletes(deletes))),
    ]
    return tuple((word, said) for word, said in found if said)


def format_spec(metadata: TableMetadata, spec: PartitionSpec) -> str:
    """The fields of a spec as in ``day(ts), region``."""
    schema = find_compatible_schema(metadata, spec)
    parts = []
    for field in spec.fields:
        source = schema.find_column_name(field.source_id) or field.name
        transform = str(field.transform)
        if transform == "identity":
            parts.append(source)
        elif transform.endswith("]"):  # bucket[16], truncate[4]
            kind, _, argument = transform[:-1].partition("[")
            parts.append(f"{kind}({argument}, {source})")
        else:
            parts.append(f"{transform}({source})")
    return ", ".join(parts) or "unpartitioned"


def _describe_spec(metadata: TableMetadata, spec: PartitionSpec, files: Counter[int]) -> str:
    default = " (default)" if spec.spec_id == metadata.default_spec_id else ""
    count = _format_count(files[spec.spec_id], "file")
    return f"{spec.spec_id}{default}: {format_spec(metadata, spec)}, {count}"


def _describe_manifests(state: BranchState) -> Iterable[str]:
    kinds = Counter((m.partition_spec_id, m.content is DataFileContent.DATA) for m in state.manifests)
    for spec_id in sorted({spec for spec, _ in kinds}):
        said = [
            f"{kinds[spec_id, is_data]} of {'data' if is_data else 'deletes'}"
            for is_data in (True, False)
            if kinds[spec_id, is_data]
        ]
        yield f"spec {spec_id}: {', '.join(said)}"


def _describe_deletes(deletes: Iterable[ManifestEntry]) -> Iterable[str]:
    counts: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for entry in deletes:
        file = entry.file
        kind = "equality delete file"
        if file.content is DataFileContent.POSITION_DELETES:
            kind = "deletion vector" if file.is_vector else "position delete file"
        counts[kind] += 1
        rows[kind] += file.record_count
    for kind, count in sorted(counts.items()):
        yield f"{_format_count(count, kind)} with {_format_count(rows[kind], 'row')}"


def _format_count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
