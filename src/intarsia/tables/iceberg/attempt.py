"""One attempt to change an Iceberg table: names new files, and turns a change into a commit."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq

import intarsia
from intarsia.common.log import logger
from intarsia.core.change import BEGUN, Change, Committed, StagedFile, Staging
from intarsia.core.files import DataFile
from intarsia.errors import DamagedTable, InputError, IntarsiaError, NotSupported, StorageError
from intarsia.tables.iceberg.batches import check_batch, last_batch
from intarsia.tables.iceberg.changes import Setting, added_file, file_change, validation_of
from intarsia.tables.iceberg.commit import Commit, Target
from intarsia.tables.iceberg.locations import DataLocations
from intarsia.tables.iceberg.merging import Merging
from intarsia.tables.iceberg.properties import WriteProperties
from intarsia.tables.iceberg.snapshots import Options
from intarsia.tables.iceberg.specs import partition_texts, spec_by_id
from intarsia.tables.iceberg.state import State
from intarsia.tables.iceberg.validate import check
from intarsia.tables.iceberg.workplace import IcebergWorkplace
from intarsia.tables.parquet.footers import read_footers

if TYPE_CHECKING:
    from intarsia.tables.iceberg.table import IcebergTable

log = logger(__name__)


class IcebergTransaction:
    """One attempt, begun by :meth:`IcebergTable.transaction`; nothing is locked meanwhile."""

    def __init__(self, table: IcebergTable, setting: Setting, operation: str) -> None:
        self.txid = uuid.uuid4().hex
        self.snapshot = setting.snapshot
        self.operation = operation
        self._table = table
        self._setting = setting
        self._state = setting.state
        self._store = setting.store
        self._locations = DataLocations.of(setting.state.metadata)
        root = setting.state.metadata.location.rstrip("/")
        self._directory = setting.store.locate(f"{root}/staging-{self.txid}")
        self._staged = False
        self._travelled = False
        self._placed: dict[str, str] = {}
        self._commit: Commit | None = None
        self._finished = False

    @property
    def staging(self) -> Staging:
        """Room for what is not yet a file of the table; created on first use, gone with the transaction."""
        if not self._staged:
            self._store.ready(f"{self._directory}/x")
            self._staged = True
        return Staging(filesystem=self._store.filesystem, directory=self._directory, txid=self.txid)

    def place(
        self, partition: Mapping[str, Any], prefix: str, ordinal: int, *, beside: DataFile | None = None
    ) -> str:
        """The final URI of a new data file, whose partition has these values (those of its ``Part``)."""
        path = self._workplace().place(partition, prefix, ordinal, beside=beside)
        self._placed[path] = self._store.locate(path)
        return path

    def locate(self, path: str) -> str:
        """Where on the file system a file is written that was given a place."""
        return self._store.locate(path)

    def workplace(self) -> IcebergWorkplace:
        """Where to write and what to call files, as a value for another process."""
        self._travelled = True
        _ = self.staging  # whose directory has to be there
        return self._workplace()

    def last_batch(self, app_id: str) -> int | None:
        """The highest batch that was committed with this ``app_id`` before the attempt began, or None."""
        return last_batch(self._state, app_id)

    def commit(self, change: Change) -> Committed:
        """Put the change into effect as one snapshot; one that changes nothing is only checked.

        Raises:
            CommitConflict: another writer is in the way; nothing changed.
            CommitUnknown: the catalog's answer was lost; nothing was removed.
            CommitError: the catalog refused; nothing changed.
            DamagedTable: a new file is not what it was said to be; nothing changed.
            NotSupported: delete files in a table of format version 1; nothing changed.
        """
        if self._finished:
            raise InputError(f"Transaction {self.txid} was committed already.", txid=self.txid)
        check_batch(change.properties)
        stage_only = self._is_staged_only(change)
        self._refuse(change)
        validation = validation_of(change, self._setting)
        if change.empty:
            head = State.of(self._table.load(), self._state.branch, self._state.shelf)
            check(validation, self._state, head)
            self._finished = True
            return Committed(self.txid, self.snapshot.version)
        footers = self._verified(change.added)
        self._settle(change.added)
        added = [
            added_file(f, footer, self._setting) for f, footer in zip(change.added, footers, strict=True)
        ]
        files = file_change(change, added, self._setting, self._place_deletes)
        target = Target(
            self._table.load, self._state, self._locations, self.txid, self._noted(change), stage_only
        )
        self._commit = Commit(
            target,
            files,
            validation,
            options_of(self._setting.properties),
            retry=self._setting.properties.commit_retry,
            status=self._setting.properties.status_retry,
        )
        receipt = self._commit.run()
        self._finished = True
        used = {file.file_path for file in (*files.added_data, *files.added_deletes)}
        self._remove([location for path, location in self._placed.items() if path not in used])
        self._remove(self._overtaken(change.added))
        self._table.committed(receipt.metadata, receipt.metadata_location)
        rebased = receipt.parent_id != self._state.head_id and not stage_only
        rows = self._rows_now() if rebased else None
        return Committed(self.txid, receipt.sequence_number or len(receipt.metadata.snapshots), rows)

    def close(self) -> None:
        """Remove what was written, unless it was committed or may have been."""
        if not self._finished:
            if self._commit is not None and self._commit.in_flight:
                return
            self._remove(list(self._placed.values()))
            if self._travelled:
                self._remove(self._found_elsewhere({self.txid}))
        if self._staged:
            self._remove_staging()

    def _rows_now(self) -> int | None:
        try:
            return self._table.snapshot().rows
        except IntarsiaError as error:  # the change is in effect all the same
            log.warning("%s: its rows could not be counted after the commit: %s", self.snapshot.root, error)
            return None

    def _workplace(self) -> IcebergWorkplace:
        staging = Staging(filesystem=self._store.filesystem, directory=self._directory, txid=self.txid)
        return IcebergWorkplace(self.txid, self._store, self._locations, staging)

    def _noted(self, change: Change) -> dict[str, str]:
        """What the snapshot says beside its counts."""
        ours = {
            "engine-name": "intarsia",
            "engine-version": intarsia.__version__,
            "intarsia.operation": change.operation,
            "intarsia.txid": self.txid,
        }
        return {**change.properties, **ours}

    def _is_staged_only(self, change: Change) -> bool:
        """Write-audit-publish: with ``wap.id`` the snapshot is added, and no branch moves."""
        if "wap.id" not in change.properties:
            return False
        if self._state.metadata.properties.get("write.wap.enabled", "false").lower() != "true":
            raise InputError(
                "wap.id stages a snapshot, which this table does not allow.",
                path=self.snapshot.root,
                hint="set the table property write.wap.enabled = true",
            )
        if self._table.branch is not None:
            raise InputError("wap.id and a branch do not go together.", path=self.snapshot.root)
        return True

    def _refuse(self, change: Change) -> None:
        if change.replaced:
            raise InputError(
                "Files of an Iceberg table are never replaced under their names.", path=self.snapshot.root
            )
        if change.veiled and self._state.metadata.format_version == 1:
            raise NotSupported("A table of format version 1 has no delete files.", path=self.snapshot.root)
        paths = [file.path for file in change.added]
        paths += [file.path for file in (*change.removed, *(veil.file for veil in change.veiled))]
        if len(set(paths)) != len(paths):
            raise InputError("A change names one file twice.", path=self.snapshot.root, txid=self.txid)

    def _verified(self, added: Sequence[StagedFile]) -> list[pq.FileMetaData]:
        """Every new file is opened again: a writer that failed half way leaves a file that looks whole."""
        try:
            footers = read_footers(self._store.filesystem, [file.location for file in added])
        except FileNotFoundError as error:
            raise DamagedTable(f"A new file is gone: {error}", path=self.snapshot.root) from error
        for file, footer in zip(added, footers, strict=True):
            if footer.num_rows != file.rows:
                raise DamagedTable(
                    f"The new file {file.path} has {footer.num_rows} rows instead of {file.rows}.",
                    path=file.location,
                    txid=self.txid,
                )
        return [footer.metadata for footer in footers]

    def _settle(self, added: Sequence[StagedFile]) -> None:
        """Files that were written to staging go to their places; the rest is there already."""
        for file in added:
            location = self._store.locate(file.path)
            if self.txid in file.path:  # named by a workplace of this transaction, so its to remove
                self._placed[file.path] = location
            if file.location == location:
                continue
            self._store.ready(location)
            try:
                self._store.filesystem.move(file.location, location)
            except OSError as error:
                raise StorageError(
                    f"Cannot move a new file to {file.path}: {error}", errno=error.errno, path=file.path
                ) from error

    def _place_deletes(self, spec_id: int, partition: tuple[Any, ...] | None, suffix: str) -> tuple[str, str]:
        """A name for a delete file, which lies where data files of its partition do."""
        number = len(self._placed)
        name = f"deletes-{self.txid}-{number:05d}.{suffix}"
        metadata = self._state.metadata
        texts = {}
        if partition is not None:
            texts = partition_texts(metadata, spec_by_id(metadata, spec_id), partition)
        path = self._locations.data_file(name, texts)
        location = self._store.locate(path)
        self._store.ready(location)
        self._placed[path] = location
        return path, location

    def _overtaken(self, added: Sequence[StagedFile]) -> list[str]:
        """Files of attempts in other processes that failed or were overtaken, which noted that they began."""
        if not self._travelled:
            return []
        selector = pafs.FileSelector(self._directory, allow_not_found=True)
        try:
            infos = self._store.filesystem.get_file_info(selector)
        except OSError as error:
            log.warning("%s could not be listed for failed attempts: %s", self._directory, error)
            return []
        begun = {i.base_name.removeprefix(BEGUN) for i in infos if i.base_name.startswith(BEGUN)}
        marks = {mark for mark in begun if not any(mark in file.path for file in added)}
        return self._found_elsewhere(marks) if marks else []

    def _found_elsewhere(self, marks: Set[str]) -> list[str]:
        """Files that other processes have written for this transaction, found by marks in their names."""
        root = self._store.locate(self._locations.data)
        selector = pafs.FileSelector(root, allow_not_found=True, recursive=True)
        try:
            infos = self._store.filesystem.get_file_info(selector)
        except OSError as error:
            log.warning("%s could not be listed for files of a failed attempt: %s", root, error)
            return []
        return [info.path for info in infos if info.is_file and any(m in info.base_name for m in marks)]

    def _remove(self, locations: Sequence[str]) -> None:
        for location in locations:
            try:
                self._store.filesystem.delete_file(location)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("%s is not needed and could not be removed: %s", location, error)

    def _remove_staging(self) -> None:
        try:
            self._store.filesystem.delete_dir(self._directory)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("%s is not needed and could not be removed: %s", self._directory, error)


def options_of(properties: WriteProperties) -> Options:
    """How a commit goes about it, as the table's properties say."""
    return Options(
        Merging(properties.manifest_merge, properties.manifest_target_bytes, properties.manifest_min_merge),
        properties.manifest_codec,
        properties.partition_limit,
    )
