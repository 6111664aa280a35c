"""A dataset as the steps of a dry run leave it: its own files where they are, new ones in a scratch place.

No file, lock or journal of the dataset is touched; what a commit would put there is kept in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow.fs as pafs

from intarsia.common.requests import Requests
from intarsia.core.change import Change, Committed, Staging, make_transaction_id
from intarsia.core.file_table import FileTuple
from intarsia.core.partitioner import PartitionDirectories
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.storage import FileEntry
from intarsia.storage.scratch_place import ScratchPlace
from intarsia.tables.parquet.checks import check_written, is_recorded
from intarsia.tables.parquet.entries import Located
from intarsia.tables.parquet.footers import Footer, read_footers
from intarsia.tables.parquet.listing import Listing, list_outdated, make_removal_notes
from intarsia.tables.parquet.output_location import ParquetOutputLocation, Places
from intarsia.tables.parquet.record import make_metadata_after
from intarsia.tables.parquet.retained import FileKey, find_retained
from intarsia.tables.parquet.snapshot import FooterSet, assemble_snapshot, without_files
from intarsia.tables.parquet.table import ParquetTable

__all__ = ["ScratchDataset"]


class ScratchDataset:
    """A dataset that is changed in a scratch place only; see :class:`intarsia.core.ports.Table`.

    Of one process and for one dry run: nobody else sees its commits, so that there are no conflicts. Files of
    the dataset that others replace meanwhile are noticed when they are read.
    """

    is_scratch = True

    def __init__(self, base: ParquetTable, place: ScratchPlace) -> None:
        self.root = base.root
        self._base = base
        self._place = place
        self._snapshot = replace(base.snapshot(), filesystem=place.filesystem)
        self._replaced: list[frozenset[FileKey]] = []
        """The files that each commit of the dry run has replaced or removed."""
        located = [_locate(file) for file in self._snapshot.files]
        read = base.read_footers(located)
        self._files: dict[str, tuple[Located, Footer]] = {
            entry.path: ((entry, location), footer)
            for (entry, location), footer in zip(located, read, strict=True)
        }

    @property
    def workspace(self) -> tuple[pafs.FileSystem, str, str]:
        """As of the dataset; see :attr:`ParquetTable.workspace`."""
        return self._base.workspace

    commit_attempts = None  # nobody else writes here

    @property
    def requests(self) -> Requests | None:
        return self._base.requests

    def snapshot(self) -> Snapshot:
        """The dataset's state when the dry run began, with the changes since."""
        return self._snapshot

    def find_retained(self, now: Snapshot, wanted: Collection[FileKey]) -> Snapshot | None:
        """Former files of the dataset, in the schema of now; None unless the run would keep all of them."""
        kept = self._base.retain
        last = self._replaced[-kept:] if kept else []
        lost = {key for keys in self._replaced for key in keys} - {key for keys in last for key in keys}
        if not lost.isdisjoint(wanted):
            return None
        before = None if not kept else max(kept - len(self._replaced), 0)
        return find_retained(self._base.control, now, wanted, commits=before)

    @contextmanager
    def transaction(self, operation: str) -> Iterator[ScratchTransaction]:
        """Begin a change; what was staged is removed unless it is committed."""
        transaction = ScratchTransaction(self, self._place)
        try:
            yield transaction
        finally:
            transaction.close()

    def check(self) -> None:
        """Nothing, as of the dataset."""

    def check_change(self, snapshot: Snapshot, change: Change, staging: Staging | None = None) -> None:
        """Refuse what no commit of a change to the dataset could do."""
        self._base.check_change(snapshot, change, staging)

    def last_batch(self, app_id: str) -> int | None:
        return self._base.last_batch(app_id)

    def highest_batch(self, app_id: str) -> int | None:
        return self._base.highest_batch(app_id)

    def last_commits(self) -> Mapping[str, Mapping[str, str]]:
        return self._base.last_commits()

    def knows_commits_since(self, version: int) -> bool:
        return self._base.knows_commits_since(version)

    def list_commits_since(self, version: int) -> Sequence[Mapping[str, str]]:
        return self._base.list_commits_since(version)

    def recover(self, *, run_id: str | None = None) -> tuple[str, ...]:
        """Nothing: a dry run finishes no work of others."""
        return ()

    def apply(self, change: Change, txid: str) -> Committed:
        """Make a change the current state, after the checks of a commit."""
        before = self._snapshot
        self.check_change(before, change)
        if not is_recorded(change, before):
            return Committed(txid, before.version)
        footers = read_footers(self._place.filesystem, [file.location for file in change.written])
        check_written(change, [footer.metadata for footer in footers])
        gone = [*(item.old for item in change.replaced), *change.removed]
        for file in gone:
            del self._files[file.path]
        if gone:
            self._replaced.append(frozenset((file.path, file.fingerprint) for file in gone))
        for staged, footer in zip(change.written, footers, strict=True):
            entry = FileEntry(staged.path, "file", staged.size)
            self._files[staged.path] = ((entry, staged.location), footer)
        touched = [*(file.path for file in change.written), *(file.path for file in change.removed)]
        outdated = list_outdated(touched, before.side_files)
        self._snapshot = self._assemble(change, {entry.path for entry in outdated})
        for file in gone:
            if self._place.holds(file.location):
                with suppress(FileNotFoundError):
                    self._place.filesystem.delete_file(file.location)
        notes = make_removal_notes(entry.path for entry in outdated)
        return Committed(txid, self._snapshot.version, notes=notes)

    def _assemble(self, change: Change, outdated: set[str]) -> Snapshot:
        """The state after a change, as a listing of the dataset would find it."""
        before = self._snapshot
        listing = Listing(
            (),
            exists=True,
            notes=tuple(note for note in before.notes if note.partition(" ")[0] not in outdated),
            owner_error=before.owner_error,
            side_files={path: entry for path, entry in before.side_files.items() if path not in outdated},
        )
        files = [self._files[path] for path in sorted(self._files)]
        footers = FooterSet.of([footer for _, footer in files])
        made = assemble_snapshot(self._base.control, self.root, listing, [one for one, _ in files], footers)
        # What the dry run wrote has no fingerprint: nobody else knows of it.
        data = FileTuple(
            replace(file, fingerprint=()) if self._place.holds(file.location) else file for file in made.files
        )
        made = replace(made, files=data, version=before.version + 1, filesystem=self._place.filesystem)
        if not data:
            made = without_files(made, self._base.control, make_metadata_after(change, before))
        return self._base.complete_schema(made)


class ScratchTransaction:
    """One change of a :class:`ScratchDataset`; see :class:`intarsia.core.ports.Transaction`."""

    def __init__(self, dataset: ScratchDataset, place: ScratchPlace) -> None:
        self.snapshot = dataset.snapshot()
        self.txid = make_transaction_id(self.snapshot.files)
        self._dataset = dataset
        self._place = place.make_part(self.txid)
        self._places = Places(
            self.txid,
            dataset.workspace[2],
            self.snapshot.partition_columns,
            PartitionDirectories.of(self.snapshot.files),
        )
        self._committed = False

    @property
    def staging(self) -> Staging:
        """Where to write, and where committed files stay; created on first use."""
        self._place.filesystem.create_dir(self._place.directory, recursive=True)
        return Staging(self._place.filesystem, self._place.directory, self.txid)

    def new_file_path(
        self, partition: Mapping[str, Any], prefix: str, ordinal: int, *, beside: DataFile | None = None
    ) -> str:
        """The table path of a new file, as the dataset would name it."""
        return self._places.new_file_path(partition, prefix, ordinal, beside=beside)

    def filesystem_path(self, path: str) -> str:
        return self._places.filesystem_path(path)

    def output(self) -> ParquetOutputLocation:
        """Where to write and what to call files, as a value for another process."""
        return ParquetOutputLocation(self._places, self.staging)

    def last_batch(self, app_id: str) -> int | None:
        return self._dataset.last_batch(app_id)

    def commit(self, change: Change) -> Committed:
        """Make the change the dataset's state in the dry run."""
        committed = self._dataset.apply(change, self.txid)
        self._committed = True
        return committed

    def close(self) -> None:
        """Remove what was staged and not committed."""
        if not self._committed:
            with suppress(OSError):  # else it is removed with the whole place
                self._place.filesystem.delete_dir(self._place.directory)


def _locate(file: DataFile) -> Located:
    size, changed, identity = file.fingerprint
    return FileEntry(file.path, "file", size, changed, identity), file.location
