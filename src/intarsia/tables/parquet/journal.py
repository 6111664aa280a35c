"""The commit protocol: stage, record, publish, clean up, recover. Knows files, never rows.

The steps J0 to J10 in comments, and what a crash after each leaves:

====  ==========================================================  =================
J0    take the lock                                               nothing happened
J1    make the log durable, recover what a crash left             can be repeated
J3    outputs in ``new/``, synced, each hard-linked in ``pub/``   swept: old state
J4    removed files hard-linked in ``old/``                       swept: old state
J5    the planned files are still what they were                  swept: old state
J6    the intent, durable with everything it names                swept: old state
J7    the intent gets a name in ``log/``: **the commit point**    new state
J8    remove the side files of files that change, publish each    repeated: new state
      file, then remove those that go
J9    the touched directories are durable                         repeated: new state
J10   ``.done`` in ``log/``: acknowledged                         new state
====  ==========================================================  =================

Between J7 and J10 both versions of every touched file have a durable name in the control directory.
Publishing consumes the link in ``pub/``, never the only staged name, so it can always be repeated.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

from intarsia.common.log import get_logger
from intarsia.common.system import refuse_untried
from intarsia.errors import CommitConflict, CommitUnknown, InputError, IntarsiaError, StorageError
from intarsia.storage import Storage
from intarsia.tables.parquet.control import Control, LogState
from intarsia.tables.parquet.footers import count_workers
from intarsia.tables.parquet.listing import make_checksum_path
from intarsia.tables.parquet.record import FileAdd, FileRemove, Record

log = get_logger(__name__)

Lock = Callable[[], AbstractContextManager[object]]


class Journal:
    """A dataset's commits, one after the other."""

    def __init__(
        self,
        control: Control,
        *,
        exclusive: bool = True,
        lock_timeout: float = 60.0,
        lock: Lock | None = None,
    ) -> None:
        """``exclusive`` is False on a store without a lock, where others may be at work: then nothing
        that might belong to a running writer is finished, swept or folded.
        """
        self.control = control
        self.storage: Storage = control.storage
        self._exclusive = exclusive
        self._lock_timeout = lock_timeout
        self._lock = lock
        self._made: set[str] = set()

    @contextmanager
    def hold(self) -> Iterator[tuple[str, ...]]:
        """Hold the lock over a recovered dataset (J0, J1); yields what recovery did.

        On leaving, a control directory in which nothing was ever committed is removed again.
        """
        storage, control = self.storage, self.control
        if storage.atomic:
            refuse_untried(control.root)
        made = self._make_control()
        self._made.update(made)
        try:
            with self._take_lock():
                try:
                    storage.make_directories(control.log)
                    yield self._recover() if self._exclusive else ()
                finally:
                    self._tidy(created=control.directory in made)
        finally:
            self._remove_parents(made)

    def _remove_parents(self, made: list[str]) -> None:
        """Remove the directories made for a dataset that did not come to be."""
        try:
            for directory in reversed(made):
                if directory != self.control.directory and not self.storage.remove_directory(directory):
                    return
        except StorageError as error:
            log.warning("could not tidy up: %s", error)

    def _make_control(self) -> list[str]:
        storage, control = self.storage, self.control
        try:
            made = storage.make_directories(control.directory)
            if control.directory in made and storage.stat(control.root) is not None:
                storage.copy_mode(control.root, control.directory)  # what is staged is as private as the data
            return made
        except StorageError as error:
            error.hint = "name a writable control directory on the same device with control_path="
            raise

    def _take_lock(self) -> AbstractContextManager[object]:
        if self._lock is not None:
            made = self._lock()
            if not hasattr(made, "__enter__"):
                raise InputError(f"lock= must give a context manager, not {type(made).__name__}.")
            return made
        return self.storage.lock(self.control.lock, self._lock_timeout)

    def _tidy(self, *, created: bool) -> None:
        """Leave no empty control directory behind; still under the lock."""
        storage, control = self.storage, self.control
        try:
            if storage.names(control.log):
                return
            for directory in control.directories:
                storage.remove_directory(directory)
            if set(storage.names(control.directory)) <= {posixpath.basename(control.lock)}:
                storage.remove(control.lock)
                if created or not control.explicit:
                    storage.remove_directory(control.directory)
        except StorageError as error:
            log.warning("could not tidy %s: %s", control.directory, error)

    def _recover(self) -> tuple[str, ...]:
        """Roll every recorded transaction forward, remove what was never recorded."""
        control = self.control
        sentences = self._finish(control.read_log(), lambda record: True)
        for txid in control.list_staged():
            self.discard(control.make_staging_path(txid))
            sentences.append(f"Removed what transaction {txid} had staged; it was never committed.")
        swept = control.sweep()
        sentences += [f"Removed {directory}, which a process that is gone had left." for directory in swept]
        return self._log_sentences(sentences)

    def finish(self, run_id: str) -> tuple[str, ...]:
        """Publish what a run committed whose process is gone, and clean up after it; takes no lock."""
        state = self.control.read_log()
        return self._log_sentences(
            self._finish(state, lambda record: record.properties.get("run_id") == run_id)
        )

    def _finish(self, state: LogState, is_meant: Callable[[Record], bool]) -> list[str]:
        sentences: list[str] = []
        undone, unclean = (list(filter(is_meant, found)) for found in (state.undone, state.unclean))
        if undone or unclean:
            self._sync_log(state, unclean)
        for record in undone:
            skipped = self.publish(record)
            self.clean(record)
            sentences.append(
                f"Finished the {record.operation} of transaction {record.txid}, "
                f"which was committed but not published: {_describe_counts(record)}."
            )
            sentences += [f"Kept {path}: another writer has changed it since the commit." for path in skipped]
        for record in unclean:
            self.clean(record)
            sentences.append(
                f"Removed what the {record.operation} of transaction {record.txid} had left behind."
            )
        return sentences

    def _sync_log(self, state: LogState, unclean: list[Record]) -> None:
        """Make durable what is to be relied on: its writer may have died before it did.

        A slot, or the end of a commit, that a power cut takes back would leave what was done because of it.
        """
        for record in unclean:
            done = self.control.record(record.seq, record.txid, "done")
            if posixpath.basename(done) in state.names:
                self.storage.sync(done)
        self.storage.sync(self.control.log)

    def _log_sentences(self, sentences: list[str]) -> tuple[str, ...]:
        for sentence in sentences:
            log.info("%s: %s", self.control.root, sentence)
        return tuple(sentences)

    def commit(self, record: Record, check: Callable[[], None]) -> None:
        """Put a staged transaction into effect (J3 to J10).

        Args:
            record: names the staged files, which lie in ``new/`` of the transaction's directory.
            check: called when everything is in place (J5); raises to call the commit off.

        Raises:
            CommitConflict: another commit took the slot; nothing changed.
            CommitUnknown: recorded, but an error kept it from being published; the next operation
                finishes it.
            StorageError: the store refused before the commit point; nothing changed.
            KeyboardInterrupt: nothing changed, or where a note of it says so, everything did.
        """
        try:
            self._prepare(record)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                check()  # a file that another writer has removed is a conflict
            raise
        check()
        self._record_intent(record)
        claimed = False
        try:
            self._claim(record)
            claimed = True
            try:
                self.storage.sync(self.control.log)
                for path in self.publish(record):
                    log.warning(
                        "%s: kept %s, which another writer changed during the commit", record.root, path
                    )
            except (IntarsiaError, OSError) as error:
                raise _make_unknown_error(record, error) from error
            self.clean(record)
        except KeyboardInterrupt as interrupt:
            # A second one leaves the rest to the next operation, as a crash does.
            if self._finish(self.control.read_log(), lambda one: one.txid == record.txid) or claimed:
                interrupt.add_note(f"The {record.operation} of {record.root} is done ({record.txid}).")
            raise

    def _prepare(self, record: Record) -> None:
        """J3 and J4: make new files durable, link them for publishing, and link the removed files."""
        storage, base = self.storage, self.control.make_staging_path(record.txid)
        for name in ("new", "old", "pub"):
            storage.make_directories(f"{base}/{name}")

        def make_durable(item: FileAdd) -> None:
            if item.was is not None:
                storage.copy_mode(f"{self.control.root}/{item.path}", f"{base}/new/{item.staged}")
            storage.sync(f"{base}/new/{item.staged}")
            if storage.atomic:
                storage.make_hard_link(f"{base}/new/{item.staged}", f"{base}/pub/{item.staged}")

        def keep(item: FileAdd | FileRemove) -> None:
            if item.kept is not None:
                storage.make_hard_link(f"{self.control.root}/{item.path}", f"{base}/old/{item.kept}")

        # Syncing waits for the disk, so several at once; a list makes the first error surface here.
        with ThreadPoolExecutor(count_workers(), "intarsia-commit") as pool:
            list(pool.map(make_durable, record.adds))
            list(pool.map(keep, (*record.adds, *record.removes, *record.side_files)))

    def _record_intent(self, record: Record) -> None:
        """J6: after this the intent and everything it names survive a power cut."""
        storage, control = self.storage, self.control
        base = control.make_staging_path(record.txid)
        for directory in (f"{base}/new", f"{base}/old", f"{base}/pub"):
            storage.sync(directory)
        storage.write(f"{base}/intent.json", record.to_json())
        storage.sync(base)
        storage.sync(control.transactions)
        if record.seq == 1:  # nothing has made the control directory itself durable yet
            made = (posixpath.dirname(directory) for directory in self._made)
            self._sync_all({control.directory, posixpath.dirname(control.directory), *made})

    def _claim(self, record: Record) -> None:
        """J7, the commit point."""
        slot = self.control.record(record.seq, record.txid, "json")
        intent = f"{self.control.make_staging_path(record.txid)}/intent.json"
        try:
            won = self.storage.claim(intent, slot)
        except StorageError as error:
            if self.is_recorded(record):
                raise _make_unknown_error(record, error) from error
            raise
        if not won:
            raise CommitConflict(
                f"Commit {record.seq} of {self.control.root} was taken by another writer.",
                path=self.control.root,
                txid=record.txid,
                hint="make sure that every writer uses the same control directory and lock",
            )

    def is_recorded(self, record: Record) -> bool:
        """Whether the commit point was passed; True when it is unknown, so that nothing is cleaned up."""
        try:
            data = self.storage.read(self.control.record(record.seq, record.txid, "json"))
        except StorageError as error:
            return error.errno != errno.ENOENT
        return record.txid.encode() in data

    def publish(self, record: Record) -> list[str]:
        """J8 to J10. Can be repeated after a crash at any point, by anybody who holds the lock.

        Returns the paths left alone because somebody else has changed them since the commit.
        """
        storage = self.storage
        self._check_inside(record)
        touched: set[str] = set()
        skipped: list[str] = []
        self._remove_side_files(record)
        for item in sorted(record.adds, key=lambda adds: adds.was is not None):  # new names first
            directory = posixpath.dirname(f"{self.control.root}/{item.path}")
            touched.update(posixpath.dirname(made) for made in storage.make_directories(directory))
            touched.update(_list_up_to(directory, self.control.root))
            if not self._publish_one(record, item):
                skipped.append(item.path)
        if record.fresh:
            if record.metadata is not None and storage.atomic:  # no file brings its directory along
                touched.update(
                    posixpath.dirname(made) for made in storage.make_directories(self.control.root)
                )
            touched.add(posixpath.dirname(self.control.root))
        self._sync_all(touched)  # nothing goes before what replaces it is durable
        skipped += [item.path for item in record.removes if not self._remove_one(record, item)]
        self._sync_all(self._remove_empty(record))
        self.control.write_done(record)
        return skipped

    def _remove_side_files(self, record: Record) -> None:
        """What describes files as they were goes for good before any of them changes.

        Synced before the first file gets its place: after a power cut a checksum that came back beside
        a file that was replaced would make the file unreadable for Hadoop.
        """
        if not record.side_files:
            return
        replaced = {make_checksum_path(item.path): item for item in record.files if item.was is not None}
        for side in record.side_files:
            target = f"{self.control.root}/{side.path}"
            found = self.storage.stat(target)
            if found is None:
                continue
            item = replaced.get(side.path)
            if self.control.is_planned(record, side, found) or (item and self._stands(record, item)):
                self.storage.remove(target)
        directories = {posixpath.dirname(f"{self.control.root}/{side.path}") for side in record.side_files}
        self._sync_all(directories)

    def _stands(self, record: Record, item: FileAdd | FileRemove) -> bool:
        """Whether a file that the transaction replaces or removes is still the one it planned on."""
        found = self.storage.stat(f"{self.control.root}/{item.path}")
        return found is not None and self.control.is_planned(record, item, found)

    def _publish_one(self, record: Record, item: FileAdd) -> bool:
        storage, base = self.storage, self.control.make_staging_path(record.txid)
        target = f"{self.control.root}/{item.path}"
        new, spare = f"{base}/new/{item.staged}", f"{base}/pub/{item.staged}"
        found = storage.stat(target)
        if found is not None and not self.control.is_planned(record, item, found):
            if storage.is_same(target, new):
                return True
            if item.was is not None:
                return False
        storage.publish(new, spare, target)
        return True

    def _remove_one(self, record: Record, item: FileRemove) -> bool:
        storage, target = self.storage, f"{self.control.root}/{item.path}"
        found = storage.stat(target)
        if found is None:
            return True
        if not self.control.is_planned(record, item, found):
            return False
        storage.remove(target)
        return True

    def _remove_empty(self, record: Record) -> set[str]:
        """Remove partition directories that were left empty; returns the directories to sync."""
        storage = self.storage
        parents = {posixpath.dirname(f"{self.control.root}/{item.path}") for item in record.removes}
        touched = set(parents)
        for directory in parents:
            while directory != self.control.root and storage.remove_directory(directory):
                touched.discard(directory)
                directory = posixpath.dirname(directory)
                touched.add(directory)
        return touched

    def _sync_all(self, directories: set[str]) -> None:
        for directory in sorted(directories):
            if self.storage.stat(directory) is not None:
                self.storage.sync(directory)

    def _check_inside(self, record: Record) -> None:
        """A symbolic link in the way could lead a publish out of the dataset."""
        for relative in record.directories:
            for directory in _list_up_to(posixpath.join(self.control.root, relative), self.control.root)[:-1]:
                found = self.storage.stat(directory)
                if found is not None and found.kind != "directory":
                    raise StorageError(
                        f"{directory} is a {found.kind}; transaction {record.txid} needs a directory there.",
                        path=directory,
                        txid=record.txid,
                        changed=None,
                    )

    def clean(self, record: Record) -> None:
        """Remove what an acknowledged transaction staged; what is refused is left to the next operation."""
        storage, control = self.storage, self.control
        try:
            if record.retain:
                self._retain(record)
            if self.discard(control.make_staging_path(record.txid)):
                storage.remove(control.record(record.seq, record.txid, "json"))
                if self._exclusive:
                    control.fold()
        except IntarsiaError as error:
            log.warning("could not clean up transaction %s of %s: %s", record.txid, self.control.root, error)

    def _retain(self, record: Record) -> None:
        storage, control = self.storage, self.control
        base = control.make_staging_path(record.txid)
        target = f"{control.retained}/{record.seq:012d}-{record.txid}"
        # A store has no directory of a commit that has replaced nothing; its record is needed to undo it.
        if storage.stat(f"{base}/old") is not None or (
            not storage.atomic and storage.stat(f"{target}/intent.json") is None
        ):
            storage.make_directories(control.retained)
            storage.write(f"{base}/old/intent.json", record.to_json())
            storage.sync(f"{base}/old")
            storage.move(f"{base}/old", target)
        if storage.atomic:  # also of somebody who died before this; nothing goes before it is durable
            self._sync_all({control.retained, control.directory})
        for name in storage.names(control.retained)[: -(record.retain or 0)]:
            self.discard(f"{control.retained}/{name}")

    def discard(self, directory: str) -> bool:
        """Remove a directory of ours; each refusal is logged, none raised.

        A task that was cancelled or overtaken may still be writing there, and a file that it begins in a
        directory that is being emptied would keep it: so the files are moved from under it first.
        """
        try:
            if self.storage.atomic and self.storage.stat(f"{directory}/new") is not None:
                self.storage.move(f"{directory}/new", f"{directory}/gone")
        except StorageError as error:
            log.warning("could not move staged data away: %s", error)
        refusals = self.storage.remove_tree(directory)
        for refusal in refusals:
            log.warning("could not remove staged data: %s", refusal)
        return not refusals


def _make_unknown_error(record: Record, error: BaseException) -> CommitUnknown:
    return CommitUnknown(
        f"The {record.operation} of {record.root} is committed (transaction {record.txid}), "
        f"but publishing its files failed: {error}",
        path=record.root,
        txid=record.txid,
        changed=True,
        hint="the next operation that writes, or recover(), finishes it; do not repeat the operation",
    )


def _list_up_to(directory: str, root: str) -> list[str]:
    """A directory and those above it, up to and including the root."""
    found = [directory]
    while directory != root:
        directory = posixpath.dirname(directory)
        found.append(directory)
    return found


def _describe_counts(record: Record) -> str:
    replaced = sum(item.was is not None for item in record.adds)
    return f"{replaced} replaced, {len(record.adds) - replaced} added, {len(record.removes)} removed"
