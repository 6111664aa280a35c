"""A directory of Parquet files as a table: lists them, and swaps them in journaled commits."""

from __future__ import annotations

import errno
import itertools
import os
import posixpath
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

import intarsia
from intarsia.common.log import get_logger
from intarsia.common.paths import redact_path
from intarsia.common.requests import Requests, count_upload_parts
from intarsia.core.change import Change, Committed, StagedFile, Staging, make_transaction_id
from intarsia.core.file_table import find_unknown
from intarsia.core.history import CommitInfo, History
from intarsia.core.partitioner import PartitionDirectories
from intarsia.core.ports import Distribute
from intarsia.core.restoration import Restoration
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.errors import CommitConflict, DamagedTable, InputError, NotSupported, StorageError
from intarsia.storage import FileEntry, ObjectStorage, Storage, open_storage
from intarsia.tables.parquet.checks import (
    check_change,
    check_directory_names,
    check_written,
    is_recorded,
    read_written,
)
from intarsia.tables.parquet.control import Control, is_slot
from intarsia.tables.parquet.entries import EntryTable, Located
from intarsia.tables.parquet.footers import Footer
from intarsia.tables.parquet.journal import Journal, Lock
from intarsia.tables.parquet.links import HardLinkSnapshot, link_files
from intarsia.tables.parquet.listing import (
    list_data_files,
    list_outdated,
    make_removal_notes,
    stat_side_files,
)
from intarsia.tables.parquet.output_location import ParquetOutputLocation, Places
from intarsia.tables.parquet.record import (
    DatasetMetadata,
    FileAdd,
    FileRemove,
    Record,
    has_files_after,
    make_metadata_after,
)
from intarsia.tables.parquet.restore import commit_restoration, find_restoration, make_history
from intarsia.tables.parquet.retained import FileKey, find_retained
from intarsia.tables.parquet.slot_journal import SlotJournal, read_store_note
from intarsia.tables.parquet.snapshot import Footers, take_snapshot, take_state

log = get_logger(__name__)
_LINK_ATTEMPTS = 20
_ATTEMPTS_WITHOUT_LOCK = 30
"""One of those who commit at once wins each time, and the others plan again."""
_STATS_PER_FILE = 4
"""For a changed file, its checksum and those of summaries above it."""
_LISTED_LOCALLY, _LISTED_AT_ONCE = 2, 1000
"""Files that are listed in the time of one stat: on a local disk, and in one request to a store."""


class ParquetTable:
    """A plain directory of Parquet files, partitioned or not.

    Every commit is all or nothing, also across a crash or a power cut; writers of ours take turns.
    The journal lives in a control directory beside the root, ``.<name>.intarsia``.

    Args:
        target: path or URL of the directory; it need not exist.
        filesystem: a pyarrow or fsspec file system that ``target`` is a path on.
        storage_options: for opening a URL through fsspec.
        control_path: where the journal is kept instead: a directory of its own, on the same device.
        single_writer: the caller vouches that nobody else writes. Lets a store replace and remove files
            that has neither an atomic rename nor conditional requests that hold.
        lock_timeout: seconds to wait for another writer.
        lock: makes a lock that every writer shares, for file systems whose own cannot be trusted.
        retain: keep the files replaced by this many last commits, in the control directory.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        control_path: str | os.PathLike[str] | None = None,
        single_writer: bool = False,
        lock_timeout: float = 60.0,
        lock: Lock | None = None,
        retain: int | None = None,
    ) -> None:
        if retain is not None and retain < 0:
            raise InputError(f"retain= must not be negative, it is {retain}.")
        self.storage, self._path = open_storage(
            target, filesystem=filesystem, storage_options=storage_options
        )
        self.root = redact_path(target)
        control = None
        if control_path is not None:
            _, control = open_storage(control_path, filesystem=filesystem, storage_options=storage_options)
            _check_control(self._path, control)
        self.control = Control(self.storage, self._path, directory=control)
        self.single_writer = single_writer
        self.retain = retain
        self._lock_timeout, self._lock = lock_timeout, lock
        self._journal: Journal | None = None
        self._has_note = False
        self._footers = Footers(self.control)

    @property
    def appends_only(self) -> bool:
        """True when the store cannot replace or remove files safely, so that only adding is allowed.

        An object store is tried for that, unless that is known already.
        """
        return not (self.storage.atomic or self.single_writer or self.try_store() is None)

    @property
    def commit_attempts(self) -> int | None:
        """How often an operation is planned again when another writer came first; None for as usual."""
        return _ATTEMPTS_WITHOUT_LOCK if self.storage.conditional else None

    @property
    def requests(self) -> Requests | None:
        return self.storage.requests

    def try_store(self) -> str | None:
        """Why writers cannot be kept from one another's way on this store; None where they can.

        The first time in a process, a store is tried: small objects are written to the control directory,
        and removed.
        """
        if self.storage.atomic:
            return None
        if not isinstance(self.storage, ObjectStorage):
            return _describe_missing(self.storage)
        if self.storage.trial is None:
            scratch = self.control.make_staging_path(uuid.uuid4().hex)
            known = read_store_note(self.control)
            self.storage.try_conditions(scratch, known)
            self._has_note = known == self.storage.trial
        failure = self.storage.trial.failure if self.storage.trial is not None else None
        return None if failure is None else f"Its conditional requests cannot be relied on: {failure}."

    @property
    def journal(self) -> Journal:
        """The commits: by a lock, or by conditional requests where the store has these and no lock."""
        if self._journal is None:
            failure = self.try_store()
            if isinstance(self.storage, ObjectStorage) and failure is None:
                self._journal = SlotJournal(self.control, self.storage, known=self._has_note, lock=self._lock)
            else:
                exclusive = self.storage.atomic or self.single_writer
                if not exclusive:
                    self._refuse_slots(failure)
                self._journal = Journal(
                    self.control, exclusive=exclusive, lock_timeout=self._lock_timeout, lock=self._lock
                )
        return self._journal

    def _refuse_slots(self, failure: str | None) -> None:
        """Refuse to add to a dataset whose writers exclude one another by means that we do not have."""
        if any(map(is_slot, self.storage.names(self.control.log))):
            raise NotSupported(
                f"Other writers of {self._path} go by conditional requests, which are not possible here."
                f" {failure}",
                path=self._path,
                hint="install the extra of the store (s3, gcs, azure), and open it in one way everywhere",
            )

    @property
    def workspace(self) -> tuple[pafs.FileSystem, str, str]:
        """Room for scratch that every process which reads the dataset can reach, and the dataset's path."""
        return self.storage.filesystem, self.control.spools, self._path

    def snapshot(self) -> Snapshot:
        """The current state, also of a dataset whose last writer crashed. Writes nothing."""
        return take_snapshot(self.control, self.root, self._footers)

    def read_footers_with(self, distribute: Distribute | None) -> None:
        """Have an engine's executors read footers where many are to be read; None: this process reads all."""
        self._footers.distribute = distribute

    def complete_schema(self, found: Snapshot) -> Snapshot:
        """A state of the directory as it is read: in the schema of its files, where no catalog has one."""
        return found

    def read_footers(self, files: Sequence[Located]) -> list[Footer]:
        """The footers of files of a snapshot, which are known where they have not changed since."""
        return self._footers.read_each(self.storage, files)

    def save_footers(self, change: Change) -> None:
        """Keep the footers of the last snapshot that a change leaves in place, where that pays."""
        gone = {item.old.path for item in change.replaced} | {file.path for file in change.removed}
        self._footers.save(gone)

    def check(self) -> None:
        """Nothing: what may be done to a dataset depends on the change, and on permissions."""

    def check_change(self, snapshot: Snapshot, change: Change, staging: Staging | None = None) -> None:
        """Refuse what no commit of a change to this state could do; writes nothing.

        With ``staging``, where the change's files are, these are read as well. Every commit asks this.

        Raises:
            InputError: half an idempotency key, or files that are named twice or not safely.
            NotSupported: the store can only append.
            DamagedTable: a file of the change is not what it was said to be.
        """
        failure = None
        if (change.replaced or change.removed) and not self.single_writer:
            failure = self._find_store_error()
        check_change(change, snapshot, root=self.control.root, store_error=failure)
        if staging is not None:
            check_written(change, read_written(staging.filesystem, change.written))

    def _find_store_error(self) -> str | None:
        """As :meth:`try_store`, but to plan, reading is enough: who may not write has not tried the store."""
        try:
            return self.try_store()
        except StorageError as error:
            if error.errno != errno.EACCES:
                raise
            log.info("%s: the store was not tried: %s", self._path, error)
            return None

    def prepare_commit(self, snapshot: Snapshot, change: Change) -> None:
        """Nothing: called before each commit, for a table that a catalog has to know of first."""

    @contextmanager
    def transaction(self, operation: str) -> Iterator[ParquetTransaction]:
        """Begin a change: take the lock, finish or undo what a crash left, hand out a fresh snapshot.

        Leaving the block without a commit removes everything that was staged.
        """
        if not self.storage.can_move(self.control.directory, self._path):
            raise NotSupported(
                f"{self.control.directory} is on another device than {self._path}: no file can be renamed.",
                path=self._path,
                hint="name a control directory on the same device with control_path=",
            )
        journal = self.journal
        with journal.hold() as sentences:
            if sentences:
                self._footers.drop()
            transaction = ParquetTransaction(self, journal, self._take_settled(journal), operation)
            try:
                yield transaction
            finally:
                transaction.close()

    def _take_settled(self, journal: Journal) -> Snapshot:
        """A snapshot to plan on. Without a lock others commit meanwhile: what they have is finished first,
        so that every file that is planned on is in its place."""
        if not isinstance(journal, SlotJournal):
            return self.snapshot()
        for _ in range(_ATTEMPTS_WITHOUT_LOCK):
            state = take_state(self.control, self.root, self._footers)
            if not state.log.undone:
                journal.remove_resurrected(state.resurrected)
                return state.snapshot
            journal.help(state.log)
        raise CommitConflict(f"{self._path} kept changing while it was read.", path=self._path)

    def recover(self, *, run_id: str | None = None) -> tuple[str, ...]:
        """Finish or undo what a crash left; the sentences say what was done. Idempotent.

        On a store without a lock that is what a run which is gone, ``run_id``, has committed, and no more.
        """
        if not self.control.exists():
            self.control.sweep()
            return ()
        if self.appends_only and run_id is not None:
            return self.journal.finish(run_id)
        if self.appends_only:
            raise NotSupported(
                f"The store of {self._path} has no lock, so a writer at work cannot be told from a dead one.",
                path=self._path,
                hint="open it with single_writer=True when nobody else is writing",
            )
        with self.journal.hold() as sentences:
            if sentences:
                self._footers.drop()
            if isinstance(self.journal, SlotJournal):
                self.journal.sweep_uploads()
            return sentences

    def last_batch(self, app_id: str) -> int | None:
        """The highest ``batch_id`` that was committed with this ``app_id``, or None."""
        return self.control.find_last_batch(app_id)

    def highest_batch(self, app_id: str) -> int | None:
        """As :meth:`last_batch`: commits to a dataset are not rolled back."""
        return self.last_batch(app_id)

    def last_commits(self) -> Mapping[str, Mapping[str, str]]:
        """By ``app_id``: the properties of its commit with the highest ``batch_id``."""
        return self.control.find_last_commits()

    def knows_commits_since(self, version: int) -> bool:
        """Whether the log goes on from a version and was not lost: a commit that it lacks was not made."""
        return self.control.read_log().version >= version or not self.snapshot().exists

    def list_commits_since(self, version: int) -> Sequence[Mapping[str, str]]:
        """The properties of each commit after a version."""
        return self.control.list_properties_since(version)

    def history(self) -> History:
        """The commits that the log knows, newest first. Writes nothing."""
        return make_history(self.control, self.root)

    def plan_restore(self, version: int) -> Restoration:
        """What a restore of a version would do; writes nothing. Raises RestoreError where it cannot be."""
        return find_restoration(self.control, self.snapshot(), version).value

    def restore(self, version: int, properties: Mapping[str, str]) -> tuple[Restoration, Committed | None]:
        """Bring back the state after a version, in one commit; None where there was nothing to do."""
        with self.transaction("restore") as transaction:
            found = find_restoration(self.control, transaction.snapshot, version)
            if found.value.is_empty:
                return found.value, None
            if self.retain is None:  # what is kept stays, so that the restore can be undone, too
                transaction.retain = len(self.storage.names(self.control.retained)) + 1
            return commit_restoration(transaction, found, properties)

    def find_retained(self, now: Snapshot, wanted: Collection[FileKey]) -> Snapshot | None:
        """Files that later commits have replaced or removed, as they were; None unless all are kept."""
        return find_retained(self.control, now, wanted)

    @contextmanager
    def materialise(self) -> Iterator[HardLinkSnapshot]:
        """The current state as a directory of hard links that no later commit changes.

        For engines that read directories by themselves. Needs a writable control directory.
        """
        for _ in range(_LINK_ATTEMPTS):
            with link_files(self.control, self.snapshot()) as linked:
                if linked is not None:
                    yield linked
                    return
        raise CommitConflict(f"{self._path} kept changing while it was linked.", path=self._path)


class ParquetTransaction:
    """One attempt to change a dataset, under its lock."""

    def __init__(self, table: ParquetTable, journal: Journal, snapshot: Snapshot, operation: str) -> None:
        self.txid = make_transaction_id(snapshot.files)
        self.snapshot = snapshot
        self._table = table
        self._journal = journal
        self._operation = operation
        self.storage: Storage = table.storage
        self._root = table.control.root
        self._directory = table.control.make_staging_path(self.txid)
        self._places = Places(
            self.txid, self._root, snapshot.partition_columns, PartitionDirectories.of(snapshot.files)
        )
        self.retain: int | None = None
        """As that of the table, for this commit."""
        self.former_metadata: DatasetMetadata | None = None
        """What a restore brings back where no file is left."""
        self._record: Record | None = None
        self._finished = False
        self._staged = False

    @property
    def staging(self) -> Staging:
        """Where to write; created on first use."""
        new = f"{self._directory}/new"
        self._staged = True
        self.storage.make_directories(new)
        return Staging(filesystem=self.storage.filesystem, directory=new, txid=self.txid)

    def new_file_path(
        self, partition: Mapping[str, Any], prefix: str, ordinal: int, *, beside: DataFile | None = None
    ) -> str:
        """The table path of a new file: in its partition's directory, or in that of the file ``beside``."""
        return self._places.new_file_path(partition, prefix, ordinal, beside=beside)

    def filesystem_path(self, path: str) -> str:
        """Where a file of the dataset lies."""
        return self._places.filesystem_path(path)

    def output(self) -> ParquetOutputLocation:
        """Where to write and what to call files, as a value for another process."""
        return ParquetOutputLocation(self._places, self.staging)

    def last_batch(self, app_id: str) -> int | None:
        """The highest batch an application has committed; under the lock, so nobody else commits one."""
        return self._table.last_batch(app_id)

    def commit(self, change: Change) -> Committed:
        """Put the change into effect, all of it or nothing.

        An empty change records its batch, if it has one, where there is a dataset.

        Raises:
            CommitConflict: a planned file is no longer what it was, or, for an exclusive change, a
                data file has appeared; nothing changed.
            NotSupported: the store can only append; nothing changed.
            DamagedTable: a staged file is not what it was said to be; nothing changed.
            CommitUnknown: committed, but not known to be published.
        """
        if self._finished:
            raise InputError(f"Transaction {self.txid} was committed already.", txid=self.txid)
        self._table.check_change(self.snapshot, change)
        if not is_recorded(change, self.snapshot):
            self.close()
            self._finished = True
            return Committed(self.txid, self.snapshot.version)
        self._check_staged(change)
        check_written(change, self._read_staged(change))
        record = self._make_record(change)
        try:
            record.check()  # as whoever recovers it will
        except ValueError as error:
            raise InputError(f"This change cannot be recorded: {error}.", path=self._root) from error
        self._table.prepare_commit(self.snapshot, change)
        self._record, self._staged = record, True
        self._journal.commit(record, lambda: self._check_unchanged(change))
        self._finished = True
        self._table.save_footers(change)
        notes = make_removal_notes(item.path for item in record.side_files)
        return Committed(self.txid, record.seq, notes=notes)

    def close(self) -> None:
        """Remove what was staged, unless the commit point was passed."""
        if self._finished or (self._record is not None and self._journal.is_recorded(self._record)):
            return
        if self._staged:
            self._journal.discard(self._directory)

    def _check_staged(self, change: Change) -> None:
        """Refuse files that were staged by somebody else, or for two places."""
        locations = [file.location for file in change.written]
        if len(set(locations)) != len(locations):
            raise InputError("A change names one file twice.", path=self._root, txid=self.txid)
        for location in locations:
            if posixpath.dirname(location) != f"{self._directory}/new":
                raise InputError(f"{location} was not staged by this transaction.", path=location)

    def _read_staged(self, change: Change) -> list[pq.FileMetaData]:
        try:
            footers = read_written(self.storage.filesystem, change.written)
        except FileNotFoundError as error:
            raise DamagedTable(
                f"A staged file is gone: {error}", path=self._directory, txid=self.txid
            ) from error
        count_upload_parts(self.storage.filesystem, [file.size for file in change.written])
        return footers

    def _make_record(self, change: Change) -> Record:
        names = (f"{number:05d}.part" for number in itertools.count())
        replaced = (
            replace(self._make_add(item.new), was=item.old.fingerprint, kept=next(names))
            for item in change.replaced
        )
        added = (self._make_add(file) for file in change.added)
        return Record(
            seq=self.snapshot.version + 1,
            txid=self.txid,
            operation=change.operation,
            root=self._root,
            adds=(*replaced, *added),
            removes=tuple(FileRemove(file.path, file.fingerprint, next(names)) for file in change.removed),
            properties=dict(change.properties),
            retain=self._table.retain if self.retain is None else self.retain,
            fresh=not self.snapshot.exists,
            metadata=self._make_metadata(change),
            info=self._make_info(change),
            side_files=tuple(
                FileRemove(entry.path, entry.fingerprint, next(names))
                for entry in list_outdated(_list_touched(change), self.snapshot.side_files)
            ),
        )

    def _make_add(self, staged: StagedFile) -> FileAdd:
        made: tuple[Any, ...] = (staged.size, 0, None)
        if self.storage.atomic and (entry := self.storage.stat(staged.location)) is not None:
            made = entry.fingerprint  # the file keeps it when it gets its name
        return FileAdd(staged.path, posixpath.basename(staged.location), made=made)

    def _make_metadata(self, change: Change) -> DatasetMetadata | None:
        if self.former_metadata is not None and not has_files_after(change, self.snapshot):
            return self.former_metadata
        return make_metadata_after(change, self.snapshot)

    def _make_info(self, change: Change) -> CommitInfo:
        counts, before = change.counts, self.snapshot
        rows = None if counts is None else before.rows + counts.inserted - counts.deleted
        files = len(before.files) + len(change.added) - len(change.removed)
        gone = (*(item.old for item in change.replaced), *change.removed)
        written = sum(file.size for file in change.written)
        return CommitInfo.now(
            intarsia.__version__,
            counts,
            engine=change.engine,
            bytes_written=written,
            rows_after=rows,
            files_after=files,
            bytes_after=before.size + written - sum(file.size for file in gone),
        )

    def _check_unchanged(self, change: Change) -> None:
        """J5: what was planned on is still there, and nothing is in the way."""
        planned = (*change.planned, *(item.old for item in change.replaced), *change.removed)
        touched = _list_touched(change)
        found, side_files, all_known = self._find_files({file.path for file in planned}, touched)
        for file in planned:
            entry = found.get(file.path)
            if entry is None or entry.fingerprint != file.fingerprint:
                what = "was removed" if entry is None else "was changed"
                raise self._make_conflict(
                    f"{self.snapshot.show_path(file)} {what} by another writer since it was read."
                )
        if list_outdated(touched, self.snapshot.side_files) != list_outdated(touched, side_files):
            raise self._make_conflict(f"Another writer has described the files of {self.snapshot.root} anew.")
        for staged in change.added:
            if self.storage.stat(f"{self._root}/{staged.path}") is not None:
                raise self._make_conflict(f"{self.snapshot.show_path(staged.path)} exists already.")
        if change.exclusive:
            names = list(found) if all_known else self._list_names()
            appeared = find_unknown(names, self.snapshot.files)
            if appeared:
                raise self._make_conflict(
                    f"Another writer has added {len(appeared)} file(s) to {self.snapshot.root}, "
                    f"such as {appeared[0]}, since it was read."
                )
        check_directory_names(self._table.control, [file.path for file in change.added])
        for directory in {posixpath.dirname(f"{self._root}/{path}") for path in touched}:
            self.storage.check_writable(directory)
            if not self.storage.can_move(directory, self._directory):
                raise NotSupported(f"{directory} is on another device than the dataset.", path=directory)

    def _list_names(self) -> Sequence[str] | pa.StringArray:
        entries = list_data_files(self.storage, self._root, names_only=True).entries
        return entries.paths if isinstance(entries, EntryTable) else [entry.path for entry in entries]

    def _find_files(
        self, planned: Collection[str], touched: Collection[str]
    ) -> tuple[Mapping[str, FileEntry], Mapping[str, FileEntry], bool]:
        """Data files that were planned on, and side files that matter, as they are now; True: so are all.

        A listing tells of all files; of few among many it takes less to ask for each.
        """
        storage, root = self.storage, self._root
        requests = len(planned) + _STATS_PER_FILE * len(touched)
        each = _LISTED_LOCALLY if storage.atomic else _LISTED_AT_ONCE
        if requests * each > len(self.snapshot.files):
            listing = list_data_files(storage, root)
            return {entry.path: entry for entry in listing.entries}, listing.side_files, True
        entries = {path: storage.stat(f"{root}/{path}") for path in planned}
        found = {path: entry for path, entry in entries.items() if entry is not None}
        return found, stat_side_files(storage, root, touched), False

    def _make_conflict(self, message: str) -> CommitConflict:
        return CommitConflict(
            message, path=self._root, txid=self.txid, hint="nothing was changed; run the operation again"
        )


_EXTRAS = {pafs.S3FileSystem: "s3", pafs.AzureFileSystem: "azure", pafs.GcsFileSystem: "gcs"}
"""What brings the client for conditional requests of a file system of PyArrow."""


def _describe_missing(storage: Storage) -> str:
    extra = _EXTRAS.get(type(storage.filesystem))
    if extra is not None:
        return f"Conditional requests to it need a client (pip install 'intarsia[{extra}]')."
    return "It has no atomic rename, and no conditional requests that are known here."


def _check_control(root: str, directory: str) -> None:
    if f"{directory}/".startswith(f"{root}/") or f"{root}/".startswith(f"{directory}/"):
        raise InputError(
            f"control_path= {directory} and the dataset {root} must not lie inside one another.",
            path=directory,
            hint="name a directory of its own, beside the dataset",
        )


def _list_touched(change: Change) -> list[str]:
    return [*(file.path for file in change.written), *(file.path for file in change.removed)]
