"""One consistent state of a dataset, also while a commit is being published. Writes nothing."""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from intarsia.common.names import make_mismatch_error, name_problems
from intarsia.common.partitions import (
    PARTITION_SCHEMA_KEY,
    decode_partition_schema,
    infer_partition_columns,
    infer_partition_schema,
    parse_hive_partition_path,
    parse_partition,
)
from intarsia.common.schema import unify_schemas
from intarsia.core.file_table import Files, FileTuple
from intarsia.core.key_value_metadata import share_metadata
from intarsia.core.ports import Distribute
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.core.spark_metadata import join_spark_schemas
from intarsia.errors import CommitConflict, DamagedTable, StorageError
from intarsia.storage import FileEntry, ObjectStorage, StatFile, Storage
from intarsia.tables.parquet.control import Control, LogState, Tombstone, find_resurrected
from intarsia.tables.parquet.entries import EntryTable, Located, LocatedFiles
from intarsia.tables.parquet.footer_cache import drop_cache, get_least_files, load_cache, save_cache
from intarsia.tables.parquet.footer_store import ParquetFooterStore, make_file_table
from intarsia.tables.parquet.footers import Footer, collect_schemas, read_listed_footers
from intarsia.tables.parquet.listing import Listing, list_data_files
from intarsia.tables.parquet.record import DatasetMetadata, FileAdd, Record

_ATTEMPTS = 20
_OURS = b"intarsia."


@dataclass(frozen=True, slots=True)
class FooterSet:
    """The footers of the files of a snapshot."""

    models: Sequence[Footer]
    """Those that differ in schema, key-value metadata or writer, in the order of files; more may be here."""
    each: Sequence[pq.FileMetaData] = ()
    store: ParquetFooterStore | None = None
    """Has them where they are many."""

    @staticmethod
    def of(read: Sequence[Footer]) -> FooterSet:
        return FooterSet(read, [footer.metadata for footer in read])


class Footers:
    """Footers already read, so that a second snapshot reads only those of files that changed.

    Of many files most is known from the cache in the control directory, if there is one.
    """

    def __init__(self, control: Control | None = None) -> None:
        self._control = control
        self.distribute: Distribute | None = None
        """Runs functions on executors, which then read footers where these are many."""
        self._known: dict[str, tuple[FileEntry, Footer]] = {}
        self._store: ParquetFooterStore | None = None

    def of(self, storage: Storage, files: Sequence[Located], *, listed_ns: int = 0) -> FooterSet:
        """The footers of files that were listed at a time, or later."""
        if self._control is None or len(files) < get_least_files(storage):
            self._store = None
            return FooterSet.of(self._read_few(storage, files))
        before = self._store
        former = load_cache(self._control) if before is None else None
        files = LocatedFiles.of(files, self._control.root)
        store = ParquetFooterStore(
            storage,
            files,
            listed_ns=listed_ns,
            former=former,
            before=before,
            find_executors=lambda: self.distribute,
        )
        self._store = store
        return FooterSet(store.models_in_order, store=store)

    def save(self, gone: Collection[str]) -> None:
        """Put them into the cache, after a commit that has replaced or removed these files."""
        if self._control is not None and self._store is None:
            drop_cache(self._control)  # of more files than there are
        elif self._control is not None and self._store is not None:
            save_cache(self._control, self._store, gone)

    def drop(self) -> None:
        """Remove the cache: files were replaced or removed, and which is not known here."""
        if self._control is not None:
            drop_cache(self._control)

    def read_each(self, storage: Storage, files: Sequence[Located]) -> list[Footer]:
        """The footers of files of the last snapshot, or of others."""
        store = self._store
        if store is None or [entry.fingerprint for entry, _ in files] != store.fingerprints:
            return self._read_few(storage, files)
        shapes = [model.shape for model in store.models]
        each = zip(store.footers, store.kinds, strict=True)
        return [Footer(footer, shapes[kind]) for footer, kind in each]

    def _read_few(self, storage: Storage, files: Sequence[Located]) -> list[Footer]:
        wanted = [(entry, location) for entry, location in files if not self._has(entry)]
        read = read_listed_footers(storage, wanted)
        for (entry, _), footer in zip(wanted, read, strict=True):
            self._known[entry.path] = (entry, footer)
        if len(self._known) > len(files):
            self._known = {entry.path: self._known[entry.path] for entry, _ in files}
        return [self._known[entry.path][1] for entry, _ in files]

    def _has(self, entry: FileEntry) -> bool:
        known = self._known.get(entry.path)
        return known is not None and known[0].fingerprint == entry.fingerprint


@dataclass(frozen=True, slots=True)
class LoggedSnapshot:
    """A snapshot, and what the log said when it was taken."""

    snapshot: Snapshot
    log: LogState
    resurrected: tuple[Tombstone, ...] = ()
    """Files that a commit has removed and that are there again: not part of the snapshot."""


def take_snapshot(control: Control, shown: str, footers: Footers) -> Snapshot:
    """The dataset as of its last commit; see :func:`take_state`."""
    return take_state(control, shown, footers).snapshot


def take_state(control: Control, shown: str, footers: Footers) -> LoggedSnapshot:
    """The dataset as of its last commit.

    Reads the log, lists, reads footers, and reads the log again: when that is the same, no commit of
    ours came in between. A commit that is not published yet is seen as published.

    Args:
        control: the dataset's control directory, which need not exist.
        shown: the root in the caller's form.
        footers: read before; brought up to date.

    Raises:
        CommitConflict: writers were so busy that no quiet moment was found.
    """
    storage = control.storage
    gone: OSError | None = None
    before = control.read_log()
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(0.0005 * attempt)
            before = control.read_log()
        listed_ns = time.time_ns()
        listing, resurrected = _leave_out(list_data_files(storage, control.root), before.tombstones)
        try:
            files = _overlay_records(control, listing, before.undone)
            read = footers.of(storage, files, listed_ns=listed_ns)
            metadata = control.read_metadata(before) if before.version and not files else None
        except (FileNotFoundError, StorageError) as error:
            if not _is_gone(error):
                raise
            gone = error  # moved from staging to its place, or removed, while we looked
            continue
        except DamagedTable:
            # On a store a file may be replaced or removed between the requests that read it.
            if storage.atomic or control.read_log().names == before.names:
                raise
            continue
        if control.read_log().names == before.names:
            snapshot = assemble_snapshot(control, shown, listing, files, read)
            exists = listing.exists or bool(before.undone)
            snapshot = replace(snapshot, version=before.version, exists=exists)
            if before.version and not files:
                snapshot = without_files(snapshot, control, metadata)
            return LoggedSnapshot(snapshot, before, resurrected)
    if gone is not None and control.read_log().names == before.names:
        raise DamagedTable(
            f"A file that the journal of {control.root} promises is not there: {gone}",
            path=control.root,
            hint="restore it from a backup of the dataset and its control directory",
        ) from gone
    raise CommitConflict(
        f"{control.root} kept changing: no consistent state could be read in {_ATTEMPTS} attempts.",
        path=control.root,
        hint="try again when fewer writers are at work",
    )


def _leave_out(listing: Listing, removed: Collection[Tombstone]) -> tuple[Listing, tuple[Tombstone, ...]]:
    """A listing without files that were removed and came back, and these."""
    if not removed:
        return listing, ()
    found = [(entry.path, str(entry.identity)) for entry in listing.entries]
    back = find_resurrected(found, removed)
    if not back:
        return listing, ()
    kept = tuple(entry for entry, key in zip(listing.entries, found, strict=True) if key not in back)
    many = isinstance(listing.entries, EntryTable)
    return replace(listing, entries=EntryTable.of(kept) if many else kept), tuple(back)


def without_files(snapshot: Snapshot, control: Control, metadata: DatasetMetadata | None) -> Snapshot:
    """A dataset that has a log and no file: what the log remembers of it, or that others emptied it.

    Where there are directories, removing the dataset's own starts it again; else the log alone tells.
    """
    if not snapshot.exists and control.storage.atomic:
        return snapshot
    if metadata is None:
        note = (
            f"There was data after commit {snapshot.version}; another writer has removed all of it."
            " The next write decides schema and partition columns."
        )
        return replace(snapshot, notes=(*snapshot.notes, note)) if snapshot.exists else snapshot
    return replace(
        snapshot,
        exists=True,
        schema=metadata.to_arrow_schema(),
        partition_columns=metadata.partition_columns,
        model=metadata.to_file_metadata(),
    )


def _is_gone(error: OSError) -> bool:
    return isinstance(error, FileNotFoundError) or error.errno == errno.ENOENT


def _overlay_records(control: Control, listing: Listing, undone: Sequence[Record]) -> Sequence[Located]:
    """The listing as it will be once the recorded commits are published."""
    if not undone and isinstance(listing.entries, EntryTable):
        return LocatedFiles(listing.entries, control.root)
    if not undone:
        return [(entry, f"{control.root}/{entry.path}") for entry in listing.entries]
    files = {entry.path: (entry, f"{control.root}/{entry.path}") for entry in listing.entries}
    for record in undone:
        for coming in record.adds:
            location = f"{control.make_staging_path(record.txid)}/new/{coming.staged}"
            staged = control.storage.stat(location)
            if staged is None:
                raise StorageError(f"{location} is gone.", errno=errno.ENOENT, path=location)
            there = files.get(coming.path)
            if there is None or _awaits(control, record, coming, there, (staged, location)):
                files[coming.path] = (replace(staged, path=coming.path), location)
        for going in record.removes:
            there = files.get(going.path)
            if there is not None and control.is_planned(record, going, there[0]):
                del files[going.path]
    return [files[path] for path in sorted(files)]


def _awaits(control: Control, record: Record, coming: FileAdd, there: Located, staged: Located) -> bool:
    """Whether a name will hold the staged file, or does already; else another writer changed it since."""
    if there[0].fingerprint == staged[0].fingerprint or control.is_planned(record, coming, there[0]):
        return True
    return coming.was is None or control.storage.is_same(there[1], staged[1])


def assemble_snapshot(
    control: Control,
    shown: str,
    listing: Listing,
    files: Sequence[Located],
    footers: FooterSet,
) -> Snapshot:
    """The state of a dataset that has these files, each with its footer."""
    schemas, _ = collect_schemas(footers.models)
    unified = unify_schemas(schemas, operation="snapshot", path=control.root) if schemas else pa.schema([])
    data: Files
    if footers.store is None:
        paths = [entry.path for entry, _ in files]
        directories = [path.rpartition("/")[0] for path in paths]
        partitions, typed = _read_partitions(dict(zip(directories, paths, strict=True)), schemas, unified)
        data = FileTuple(
            DataFile(
                entry.path,
                location,
                entry.size,
                footer.num_rows,
                typed[directory],
                entry.fingerprint,
                footer,
            )
            for (entry, location), directory, footer in zip(files, directories, footers.each, strict=True)
        )
    else:
        table = make_file_table(footers.store)
        samples = {path.rpartition("/")[0]: path for path, _ in table.list_partitions()}
        partitions, typed = _read_partitions(samples, schemas, unified)
        data = table.map_partitions(lambda path: typed[path.rpartition("/")[0]])
    path_columns = set(partitions.names)
    stored = [field for field in unified if field.name not in path_columns]
    if problems := name_problems([pa.schema(stored), *(pa.schema([field]) for field in partitions)]):
        hint = "rename the directories, or write the files again with another name of the column"
        raise make_mismatch_error(problems, "snapshot", control.root, hint)
    return Snapshot(
        root=shown,
        files=data,
        schema=pa.schema([*stored, *partitions], _find_shared_metadata(footers.models)),
        partition_columns=tuple(partitions.names),
        filesystem=control.storage.filesystem,
        exists=listing.exists,
        notes=listing.notes,
        side_files=listing.side_files,
        owner_error=listing.owner_error,
        uniform=all(schema.equals(unified) for schema in schemas),
        stat=StatFile(control.storage),
        find_access=control.storage.find_access if isinstance(control.storage, ObjectStorage) else None,
    )


def _read_partitions(
    directories: Mapping[str, str], schemas: Sequence[pa.Schema], unified: pa.Schema
) -> tuple[pa.Schema, dict[str, dict[str, Any]]]:
    """The partition columns with their types, and the typed values of each directory.

    A column that the files hold as well has the type it has there; else the type the files declare.

    Args:
        directories: those that hold files, each with the path of one.
        schemas: the distinct schemas of the files.
        unified: the one of all.
    """
    columns = infer_partition_columns(directories.values())
    texts = {directory: parse_hive_partition_path(path) for directory, path in directories.items()}
    if not columns:
        return pa.schema([]), {directory: {} for directory in texts}
    known = {field.name: field for field in _read_declared_types(schemas)}
    known |= {name: unified.field(name) for name in columns if name in unified.names}
    inferred = infer_partition_schema(texts.values(), pa.schema(list(known.values())))
    schema = pa.schema([inferred.field(name) for name in columns])
    typed = {
        directory: parse_partition(values, schema, path=directories[directory])
        for directory, values in texts.items()
    }
    return schema, typed


def _read_declared_types(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The types of partition columns that the files declare in their metadata."""
    encoded: list[bytes | None] = [(schema.metadata or {}).get(PARTITION_SCHEMA_KEY) for schema in schemas]
    declared = [decode_partition_schema(text) for text in dict.fromkeys(encoded) if text is not None]
    return unify_schemas(declared, operation="snapshot") if declared else pa.schema([])


def _find_shared_metadata(footers: Sequence[Footer]) -> dict[bytes, bytes] | None:
    """Notes for files beside these; our own, and the schema of Arrow, each file has for itself."""
    kept = share_metadata(footer.metadata.metadata or {} for footer in footers)
    own = {key for key in kept if key.startswith(_OURS) or key == b"ARROW:schema"}
    spark, _ = join_spark_schemas(footer.metadata for footer in footers)
    return {**{key: value for key, value in kept.items() if key not in own}, **spark} or None
