"""The commit protocol of object stores: many writers, no lock, only conditional requests.

The steps of the journal (see :mod:`intarsia.tables.parquet.journal`) with these differences:

====  ==========================================================  =============================
O1    nothing is locked: whatever is committed and not done is    can be repeated, by anybody
      finished first, by whoever comes
O6    the intent is put into slot ``log/<n>.json`` if it is       not answered: the slot is read;
      free: **the commit point**                                  the transaction's id decides
O7    a file is replaced if it has the planned tag, added if      repeated by anybody: the store
      its name is free, removed if it has the planned tag         refuses what was done
O9    removed names in ``log/<n>.gone``, then ``log/<n>.done``    done once
O10   records stay, so that no late request gets an old slot;     swept by any later writer
      after an hour they are folded, and orphans are swept
====  ==========================================================  =============================

A request may be carried out long after its sender gave up or died. A late commit meets a slot that is taken,
a late replacement another tag, a late addition an existing name or a tombstone, by which it is removed again.
"""

from __future__ import annotations

import errno
import json
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from itertools import takewhile

from intarsia.common.log import get_logger
from intarsia.core.change import make_transaction_id
from intarsia.errors import CommitConflict, CommitUnknown, IntarsiaError, StorageError
from intarsia.storage import FileEntry, ObjectStorage, Trial
from intarsia.tables.parquet.control import Control, LogState, Tombstone, find_resurrected, is_slot
from intarsia.tables.parquet.journal import Journal, Lock
from intarsia.tables.parquet.record import FileAdd, FileRemove, Record

log = get_logger(__name__)

GRACE = 3600.0
"""Seconds after which no request can be on its way any more: signatures of S3 hold a quarter of an hour."""
_FOLD_ABOVE = 64
_FOLD_KEEPS = 8
_SWEPT = "swept"
_WORKERS = 8
_SUMMARY = "summary.json"
_OWN_NAMES = frozenset({"log", "tx", "retained", "store.json", "footers.cache"})
"""In the control directory, beside scratch."""


def make_store_note(trial: Trial) -> bytes:
    """What the control directory keeps of a store that was tried."""
    return json.dumps(asdict(trial)).encode() + b"\n"


def read_store_note(control: Control) -> Trial | None:
    """What another process has found of the store; None where there is nothing, or nothing to rely on."""
    try:
        raw = json.loads(control.storage.read(control.store))
        return Trial(str(raw["endpoint"]), str(raw["bucket"])) if raw["failure"] is None else None
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
    except (ValueError, TypeError, KeyError):
        log.info("%s is damaged, the store is tried again", control.store)
    return None


class SlotJournal(Journal):
    """Commits to a dataset on a store whose conditional requests hold."""

    def __init__(
        self,
        control: Control,
        storage: ObjectStorage,
        *,
        known: bool = False,
        grace: float = GRACE,
        lock: Lock | None = None,
    ) -> None:
        """``known`` says that the control directory tells already that the store was tried."""
        super().__init__(control, exclusive=False, lock=lock)
        self._store = storage
        self._grace = grace
        self._note = None if known or storage.trial is None else make_store_note(storage.trial)

    @contextmanager
    def hold(self) -> Iterator[tuple[str, ...]]:
        """Finish what others have committed (O1); yields what was done. Nothing is locked."""
        with self._take_lock():
            yield self._recover()

    def _take_lock(self) -> AbstractContextManager[object]:
        return super()._take_lock() if self._lock is not None else nullcontext()

    def _recover(self) -> tuple[str, ...]:
        sentences = self.help(self.control.read_log())
        sentences += self._sweep()
        if not _OWN_NAMES.issuperset(self.storage.names(self.control.directory)):
            swept = self.control.sweep()
            sentences += [f"Removed {name}, which a process that is gone had left." for name in swept]
        return self._log_sentences(sentences)

    def help(self, state: LogState) -> list[str]:
        """Finish every commit that is not known to be published, oldest first."""
        sentences = self._finish(state, lambda record: True)
        if state.undone:
            self._abort_uploads(state.undone, age=0.0)
        return sentences

    def _abort_uploads(self, records: Iterable[Record], *, age: float) -> None:
        """Give up copies to files of finished commits that a writer has begun and not completed."""
        root = self.control.root
        paths = {f"{root}/{item.path}" for record in records for item in record.adds}
        abort = partial(self._store.abort_uploads, f"{root}/", paths, age=age)
        self._try("give up uploads to", root, abort)

    def sweep_uploads(self) -> None:
        """Give up old uploads to files of commits that are in the log; those of others are theirs."""
        if self._store.has_uploads(f"{self.control.root}/", age=self._grace):
            self._abort_uploads(self.control.read_records(), age=self._grace)

    # Committing.

    def commit(self, record: Record, check: Callable[[], None]) -> None:
        super().commit(record, check)
        if self._note is not None:
            note, self._note = self._note, None
            self._try("write", self.control.store, partial(self._store.create, self.control.store, note))

    def _record_intent(self, record: Record) -> None:
        super()._record_intent(record)
        base = self.control.make_staging_path(record.txid)
        found = {one.path for one in self._store.list_objects(base)}
        staged = {f"{base}/new/{item.staged}" for item in record.adds}
        if f"{base}/{_SWEPT}" in found or not staged <= found:
            raise CommitConflict(
                f"What transaction {record.txid} had staged for {record.root} lay untouched for so long that"
                " another writer has swept it.",
                path=record.root,
                txid=record.txid,
                hint="nothing was changed; run the operation again",
            )

    def _claim(self, record: Record) -> None:
        """O6, the commit point."""
        slot = self.control.record(record.seq, record.txid, "json")
        try:
            # Of a slot that others have filled and folded since, only the summary tells.
            won = self._store.create(slot, record.to_json()) and self.control.read_folded() < record.seq
        except StorageError as error:
            if self.is_recorded(record):
                raise CommitUnknown(
                    f"Whether the {record.operation} of {record.root} is committed (transaction"
                    f" {record.txid}) is not known: {error}",
                    path=record.root,
                    txid=record.txid,
                    changed=None,
                    hint="the next operation that writes, or recover(), finishes it if it is; look before"
                    " you repeat it",
                ) from error
            raise
        if not won:
            raise CommitConflict(
                f"Commit {record.seq} of {self.control.root} was made by another writer.",
                path=self.control.root,
                txid=record.txid,
                hint="nothing was changed; run the operation again",
            )

    def publish(self, record: Record) -> list[str]:
        """O7 to O9, many files at once. Can be repeated after a crash at any point, by anybody."""
        self._remove_side_files(record)
        added = [item for item in record.adds if item.was is None]
        replaced = [item for item in record.adds if item.was is not None]
        skipped: list[str] = []
        with ThreadPoolExecutor(_WORKERS, "intarsia-publish") as pool:
            for items in (added, replaced):  # new names first; the list makes an error surface here
                done = list(pool.map(partial(self._publish_one, record), items))
                skipped += [item.path for item, is_done in zip(items, done, strict=True) if not is_done]
            removed = list(pool.map(partial(self._remove_one, record), record.removes))
        skipped += [item.path for item, is_done in zip(record.removes, removed, strict=True) if not is_done]
        self._write_done(record)
        self._remove_late(record, added)
        return skipped

    def _remove_late(self, record: Record, added: Sequence[FileAdd]) -> None:
        names = self.storage.names(self.control.log)
        if any(is_slot(name) and int(name[:12]) > record.seq for name in names):
            # Others have finished this and gone on: what we have added may have been removed before.
            removed = self.control.read_tombstones(names)
            entries = [(item.path, self._store.stat(f"{self.control.root}/{item.path}")) for item in added]
            found = [(path, str(entry.identity)) for path, entry in entries if entry is not None]
            self.remove_resurrected(find_resurrected(found, removed))

    def _publish_one(self, record: Record, item: FileAdd) -> bool:
        """O7: replace the planned file, or add one."""
        new = f"{self.control.make_staging_path(record.txid)}/new/{item.staged}"
        target = f"{self.control.root}/{item.path}"
        try:
            if self._store.place(new, target, self._find_tag(record, item), record.txid):
                return True
        except StorageError as error:
            if error.errno != errno.ENOENT or not self._is_finished(record):
                raise
            return True  # another writer has finished this, and has cleaned up
        # Something else is there: another writer has finished this and a later commit has changed the file
        # since, or somebody who does not go by the log has.
        return self._is_finished(record)

    def _remove_one(self, record: Record, item: FileRemove) -> bool:
        tag = self._find_tag(record, item)
        target = f"{self.control.root}/{item.path}"
        removed = tag is not None and self._store.remove_planned(target, tag)
        return removed or self._is_finished(record)

    def _find_tag(self, record: Record, item: FileAdd | FileRemove) -> str | None:
        """The entity tag that was planned on; a record of a writer without tags is compared by bytes."""
        if item.was is None:
            return None
        tag = item.was[2]
        if isinstance(tag, str):
            return tag
        found = self._store.stat(f"{self.control.root}/{item.path}")
        if found is None or not self.control.is_planned(record, item, found):
            return "none"
        return str(found.identity)

    def _is_finished(self, record: Record) -> bool:
        done = posixpath.basename(self.control.record(record.seq, record.txid, "done"))
        return done in self.storage.names(self.control.log) or self.control.read_folded() >= record.seq

    def _write_done(self, record: Record) -> None:
        """O9: names that are gone for good, then that all is published."""
        if record.removes:
            removed = [[item.path, str(item.was[2])] for item in record.removes]
            gone = self.control.record(record.seq, record.txid, "gone")
            self._store.create(gone, json.dumps({"removed": removed}).encode() + b"\n")
        self._store.create(
            self.control.record(record.seq, record.txid, "done"), self.control.make_note(record)
        )

    # Cleaning up.

    def clean(self, record: Record) -> None:
        """Remove what a finished transaction staged. Its record stays: nobody may take its slot again."""
        try:
            if record.retain:
                self._retain(record)
            self.discard(self.control.make_staging_path(record.txid))
            if not is_slot(posixpath.basename(self.control.record(record.seq, record.txid, "json"))):
                self.storage.remove(self.control.record(record.seq, record.txid, "json"))
            self._fold()
        except IntarsiaError as error:
            log.warning("could not clean up transaction %s of %s: %s", record.txid, self.control.root, error)

    def remove_resurrected(self, found: Iterable[Tombstone]) -> None:
        """Remove files that a late request has brought back after a commit had removed them."""
        for path, tag in found:
            self._store.remove_planned(f"{self.control.root}/{path}", tag)
            log.info("%s: removed %s again, which a late request had brought back", self.control.root, path)

    def _sweep(self) -> list[str]:
        """Remove what transactions staged that can no longer commit, after the grace (O10)."""
        sentences = []
        base = f"{self.control.transactions}/.staging_"
        youngest: dict[str, float] = {}
        for found in self._store.list_objects(self.control.transactions):
            if found.path.startswith(base):
                txid = found.path[len(base) :].partition("/")[0]
                youngest[txid] = min(found.age, youngest.get(txid, found.age))
        for txid, age in youngest.items():
            if age >= self._grace and self._try("sweep", txid, partial(self._end, txid)):
                directory = self.control.make_staging_path(txid)
                self._try(
                    "give up uploads to", directory, partial(self._store.abort_uploads, f"{directory}/")
                )
                self._remove_swept(directory)
                sentences.append(f"Removed what transaction {txid} had left behind.")
        return sentences

    def _remove_swept(self, directory: str) -> None:
        """Remove what was staged, the mark last: a writer finds that, or that its files are gone."""
        for found in self._store.list_objects(directory):
            if not found.path.endswith(f"/{_SWEPT}"):
                self.storage.remove(found.path)
        self.discard(directory)

    def _end(self, txid: str) -> bool:
        """Make sure that a transaction is not committed and never will be, or is finished.

        One without an intent meets a mark when it has written that. One with an intent can take only the
        slot named there, so that slot is taken from it: by another commit, or by an empty one.
        """
        directory = self.control.make_staging_path(txid)
        try:
            data = self.storage.read(f"{directory}/intent.json")
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            self._store.create(f"{directory}/{_SWEPT}", b"")
            return "intent.json" not in self.storage.names(directory)
        record = Record.from_json(data, f"{directory}/intent.json")
        if record.txid != txid or record.seq > self.control.read_log().version + 1:
            return False
        fence = Record(record.seq, make_transaction_id(), "sweep", self.control.root)
        slot = self.control.record(record.seq, fence.txid, "json")
        won = record.seq > self.control.read_folded() and self._store.create(slot, fence.to_json())
        if won:
            self._write_done(fence)
        return all(one.txid != txid for one in self.control.read_log().undone)

    def _fold(self) -> None:
        """Keep the log short: records that are older than the grace become one summary."""
        names = self.storage.names(self.control.log)
        if sum(name.endswith(".done") for name in names) <= _FOLD_ABOVE:
            return
        found = {posixpath.basename(one.path): one for one in self._store.list_objects(self.control.log)}
        done = [name for name in sorted(found) if name.endswith(".done")][:-_FOLD_KEEPS]
        folded = list(takewhile(lambda name: found[name].age >= self._grace, done))
        undone = {name[:12] for name in found if is_slot(name)} - {name[:12] for name in done}
        last = self.control.read_folded()
        folded = [name for name in folded if not any(last < int(one) <= int(name[:12]) for one in undone)]
        if not folded:
            return
        self._try("sweep uploads of", self.control.root, self.sweep_uploads)
        before = found.get(_SUMMARY)
        entry = None if before is None else FileEntry(_SUMMARY, "file", before.size, 0, before.tag, 0)
        summary = self.control.make_summary(sorted(found), folded)
        archive = self.control.make_archive_path(folded)
        self._store.create(archive, self.control.make_archive(folded))
        if not self._store.swap(f"{self.control.log}/{_SUMMARY}", summary, entry):
            return  # another writer does the same
        ended = max(name[:12] for name in folded)
        old = [name for name in found if name[:12].isdecimal() and name[:12] <= ended]
        for suffix in (".json", ".gone", ".done"):  # what is left of a commit says that it was done
            for name in old:
                if name.endswith(suffix):
                    self.storage.remove(f"{self.control.log}/{name}")
        for name in self.control.list_old_archives(found):
            self.storage.remove(f"{self.control.log}/{name}")

    def _try(self, action: str, what: str, do: Callable[[], object]) -> bool:
        """Do what may be left to the next writer; whether it was done."""
        try:
            return bool(do())
        except IntarsiaError as error:
            log.warning("could not %s %s: %s", action, what, error)
            return False
