"""Puts a change into effect through the catalog: tries again, finds out what became of a lost answer, tidies.

A commit ends in one of three ways: it is in effect, it is known to have failed and nothing it wrote is
left, or nobody knows and nothing is removed.
"""

from __future__ import annotations

import random
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    TooManyRequestsError,
    UnauthorizedError,
    WaitingForLockException,
)
from pyiceberg.io import FileIO
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from intarsia.common.log import logger
from intarsia.errors import CommitConflict, CommitError, CommitUnknown, StorageError
from intarsia.tables.iceberg._pyiceberg import metadata_files
from intarsia.tables.iceberg.locations import DataLocations
from intarsia.tables.iceberg.properties import Retry
from intarsia.tables.iceberg.snapshots import FileChange, Identity, Options, Producer, remove_files
from intarsia.tables.iceberg.state import State
from intarsia.tables.iceberg.validate import Validation, check

log = logger(__name__)

REFUSALS = (
    BadRequestError,
    ForbiddenError,
    UnauthorizedError,
    TooManyRequestsError,
    NoSuchTableError,
    NotImplementedError,
)
"""Answers after which it is certain that nothing was committed, and that asking again will not help."""


RETRY = Retry(4, 100, 60_000, 1_800_000)
STATUS_CHECK = Retry(3, 1000, 60_000, 1_800_000)


@dataclass(frozen=True, slots=True)
class Receipt:
    """A commit that is in effect."""

    snapshot_id: int
    sequence_number: int
    metadata: TableMetadata = field(repr=False)
    metadata_location: str
    parent_id: int | None = None
    """The snapshot it was built on, which need not be the one it was planned on."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a change is committed to."""

    load: Callable[[], Table]
    """Loads the table afresh; raises StorageError where the catalog cannot be reached."""
    base: State
    """The state that the change was planned on."""
    locations: DataLocations
    """Where metadata files go."""
    txid: str
    properties: Mapping[str, str] = field(default_factory=dict)
    """Noted in the snapshot's summary."""
    stage_only: bool = False
    """Add the snapshot without moving the branch (write-audit-publish)."""


class Commit:
    """One commit. ``in_flight`` says whether it may be in effect: then nothing of it may be removed."""

    def __init__(
        self,
        target: Target,
        change: FileChange,
        validation: Validation,
        options: Options,
        *,
        retry: Retry = RETRY,
        status: Retry = STATUS_CHECK,
    ) -> None:
        self.in_flight = False
        self._target = target
        self._change = change
        self._validation = validation
        self._options = options
        self._retry = retry
        self._status = status
        self._where = target.base.metadata.location
        self._strays: list[str] = []

    def run(self) -> Receipt:
        """Commit, trying again when another writer came first and is not in the way.

        Raises:
            CommitConflict: another writer is in the way, or there was no getting through; nothing changed.
            CommitError: the catalog refused; nothing changed.
            CommitUnknown: the answer was lost, and the snapshot was not found.
        """
        table = self._target.load()
        known = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        identity = Identity(new_snapshot_id(known), str(uuid.uuid4()), dict(self._target.properties))
        producer = Producer(
            self._change,
            identity,
            self._options,
            io=table.io,
            place=self._target.locations.metadata_file,
        )
        try:
            receipt, used = self._tries(table, producer)
        except BaseException:
            if not self.in_flight:
                producer.clean()
                if self._strays:
                    with suppress(StorageError):
                        table = self._target.load()
                        self._sweep(table.io, table.metadata, table.metadata_location)
            raise
        producer.clean(keep=used)
        self._sweep(table.io, receipt.metadata, receipt.metadata_location)
        return receipt

    def _tries(self, table: Table, producer: Producer) -> tuple[Receipt, set[str]]:
        waits = waits_of(self._retry)
        tried: dict[str, set[str]] = {}
        while True:
            head = State.of(table, self._target.base.branch, self._target.base.shelf)
            check(self._validation, self._target.base, head)
            snapshot, manifests = producer.produce(head)
            used = {snapshot.manifest_list, *(manifest.manifest_path for manifest in manifests)}
            tried[snapshot.manifest_list] = used
            refusal = self._try(table, head, snapshot)
            if isinstance(refusal, Receipt):
                return refusal, _in_use(refusal, tried)
            wait = next(waits, None)
            time.sleep(wait or 0)
            table = self._looked_at(snapshot, refusal)
            if (done := self._found(table, snapshot)) is not None:  # a try that was said to have failed
                return done, _in_use(done, tried)
            self.in_flight = False
            if wait is None:
                raise CommitConflict(
                    f"Other writers came first each time in {self._retry.retries + 1} tries: {refusal}",
                    path=self._where,
                    txid=self._target.txid,
                    hint="nothing was changed; run the operation again, or raise commit.retry.num-retries",
                ) from refusal
            log.info("%s: trying again to commit: %s", self._where, refusal)

    def _try(self, table: Table, head: State, snapshot: Snapshot) -> Receipt | Exception:
        """One try: the receipt, or why the catalog wants another one."""
        requirements, updates = self._request(head, snapshot)
        with metadata_files() as written:
            self.in_flight = True
            try:
                response = table.catalog.commit_table(table, requirements, updates)
            except Exception as error:  # a catalog may raise anything, and may have committed all the same
                self._strays += written
                outcome = self._judged(error, table, snapshot)
                if isinstance(outcome, CommitError):
                    raise outcome from error
                return outcome
            remove_old_metadata(table, response)
            return self._receipt(snapshot, response.metadata, response.metadata_location)

    def _judged(self, error: Exception, table: Table, snapshot: Snapshot) -> Receipt | Exception:
        """What an error of the catalog means: to be tried again (the error), to be raised, or a success."""
        if isinstance(error, (CommitFailedException, WaitingForLockException)) or is_busy(error):
            return error
        if type(error) is ValueError:
            # PyIceberg's own checks, before anything is sent; such as that of a sequence number which a
            # commit to another branch has taken meanwhile.
            now = self._looked_at(snapshot, error)
            if (
                done := self._found(now, snapshot)
            ) is not None:  # an earlier try that was said to have failed
                return done
            self.in_flight = False
            return error if now.metadata_location != table.metadata_location else self._refused(error)
        if isinstance(error, REFUSALS):
            self.in_flight = False
            return self._refused(error)
        return self._after_silence(error, snapshot)

    def _sweep(self, io: FileIO, metadata: TableMetadata, location: str) -> None:
        """Remove metadata files of tries that failed; not on an error's word: one might be the table's."""
        used = {location, *(entry.metadata_file for entry in metadata.metadata_log)}
        remove_files(io, [path for path in self._strays if path not in used])
        self._strays.clear()

    def _request(
        self, head: State, snapshot: Snapshot
    ) -> tuple[tuple[TableRequirement, ...], tuple[TableUpdate, ...]]:
        uuid_holds = AssertTableUUID(uuid=head.metadata.table_uuid)
        add = AddSnapshotUpdate(snapshot=snapshot)
        if self._target.stage_only:
            return (uuid_holds,), (add,)
        ref = head.metadata.refs.get(head.branch)
        retention = {} if ref is None else ref.model_dump(by_alias=True, exclude={"snapshot_id", "type"})
        move = SetSnapshotRefUpdate.model_validate(
            {
                **retention,
                "ref-name": head.branch,
                "type": SnapshotRefType.BRANCH,
                "snapshot-id": snapshot.snapshot_id,
            }
        )
        stands = AssertRefSnapshotId.model_validate({"ref": head.branch, "snapshot-id": head.head_id})
        return (uuid_holds, stands), (add, move)

    def _after_silence(self, error: Exception, snapshot: Snapshot) -> Receipt | CommitUnknown:
        """The catalog gave no answer that settles it: look whether the snapshot is there."""
        for wait in chain([0.0], waits_of(self._status)):
            time.sleep(wait)
            with suppress(StorageError):  # the catalog may still be away
                if (done := self._found(self._target.load(), snapshot)) is not None:
                    return done
        return self._unknown(error, snapshot)

    def _looked_at(self, snapshot: Snapshot, refusal: Exception) -> Table:
        """The table after a try that failed; without a look at it, not even a refusal is certain."""
        try:
            return self._target.load()
        except StorageError as error:
            raise self._unknown(refusal, snapshot) from error

    def _unknown(self, error: Exception, snapshot: Snapshot) -> CommitUnknown:
        number = snapshot.snapshot_id
        return CommitUnknown(
            f"The catalog's answer was lost ({type(error).__name__}: {error}), and snapshot {number} was not "
            "found so far.",
            path=self._where,
            txid=self._target.txid,
            changed=None,
            hint=f"look at the table's snapshots later: if {number} is among them, the change is in effect; "
            "if not, run the operation again. No file was removed: an orphan sweep finds those of a commit "
            "that did not come through",
        )

    def _found(self, table: Table, snapshot: Snapshot) -> Receipt | None:
        found = table.metadata.snapshot_by_id(snapshot.snapshot_id)  # by whichever try it came
        return None if found is None else self._receipt(found, table.metadata, table.metadata_location)

    def _receipt(self, snapshot: Snapshot, metadata: TableMetadata, location: str) -> Receipt:
        number = snapshot.sequence_number or 0
        return Receipt(snapshot.snapshot_id, number, metadata, location, snapshot.parent_snapshot_id)

    def _refused(self, error: Exception) -> CommitError:
        return CommitError(
            f"The catalog refused the commit: {type(error).__name__}: {error}",
            path=self._where,
            txid=self._target.txid,
            hint="nothing was changed",
        )


def _in_use(receipt: Receipt, tried: Mapping[str, set[str]]) -> set[str]:
    """The files of the try that is in effect, by its manifest list; of all where that is not told."""
    snapshot = receipt.metadata.snapshot_by_id(receipt.snapshot_id)
    if snapshot is not None and snapshot.manifest_list in tried:
        return tried[snapshot.manifest_list]
    return set().union(*tried.values())


def waits_of(retry: Retry) -> Iterator[float]:
    """Seconds to wait before each further try; ends when there is no patience left."""
    begun = time.monotonic()
    for number in range(retry.retries):
        if (time.monotonic() - begun) * 1000 > retry.total_ms:
            return
        wait = min(retry.min_wait_ms * 2**number, retry.max_wait_ms) / 1000
        yield wait * random.uniform(1.0, 1.1)  # so that two writers do not meet again and again


def new_snapshot_id(known: set[int]) -> int:
    """A positive number of 63 bits that no snapshot of the table has."""
    while True:
        number = uuid.uuid4().int >> 65
        if number and number not in known:
            return number


def is_busy(error: BaseException | None) -> bool:
    """Whether SQLite gave up waiting for another process: then it has committed nothing."""
    while error is not None:
        inner = getattr(error, "orig", None) or error
        if isinstance(inner, sqlite3.OperationalError) and "locked" in str(inner):
            return True
        error = error.__cause__
    return False


def remove_old_metadata(table: Table, response: CommitTableResponse) -> None:
    """Remove metadata files that fell out of the log, where the table asks for it."""
    properties = response.metadata.properties
    if properties.get("write.metadata.delete-after-commit.enabled", "false").lower() != "true":
        return
    kept = {entry.metadata_file for entry in response.metadata.metadata_log}
    remove_files(table.io, sorted({e.metadata_file for e in table.metadata.metadata_log} - kept))
