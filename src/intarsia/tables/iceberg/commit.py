"""The commit loop of one snapshot: retries, the check after a lost answer, and removal of unused metadata.

A commit ends in one of three ways: it is in effect; it failed and its files are removed; or its outcome is
unknown and nothing is removed. Retries follow ``commit.retry.*`` and status checks ``commit.status-check.*``
as in Java's ``SnapshotProducer.commit`` and ``BaseMetastoreTableOperations.checkCommitStatus``.
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
from intarsia.errors import CommitConflict, CommitError, CommitUnknown, NotSupported, StorageError
from intarsia.tables.iceberg._pyiceberg import record_metadata_files
from intarsia.tables.iceberg.file_io import LocationProvider
from intarsia.tables.iceberg.properties import RetryPolicy
from intarsia.tables.iceberg.snapshot_producer import (
    CommitIdentity,
    FileChange,
    SnapshotOptions,
    SnapshotProducer,
    remove_files,
)
from intarsia.tables.iceberg.state import BranchState
from intarsia.tables.iceberg.validation import Validation, validate_state

log = logger(__name__)

CATALOG_REFUSALS = (
    BadRequestError,
    ForbiddenError,
    UnauthorizedError,
    TooManyRequestsError,
    NoSuchTableError,
    NotImplementedError,
)
"""Answers after which it is certain that nothing was committed, and that asking again will not help."""
_LOAD_ERRORS = (StorageError, NotSupported)
"""Why a table cannot be looked at: its catalog is away, or it has become one that cannot be loaded here."""


COMMIT_RETRY = RetryPolicy(4, 100, 60_000, 1_800_000)
STATUS_CHECK = RetryPolicy(3, 1000, 60_000, 1_800_000)


@dataclass(frozen=True, slots=True)
class CommitReceipt:
    """A commit that is in effect."""

    snapshot_id: int
    sequence_number: int
    metadata: TableMetadata = field(repr=False)
    metadata_location: str
    parent_id: int | None = None
    """The snapshot it was built on, which need not be the one it was planned on."""


@dataclass(frozen=True, slots=True)
class CommitTarget:
    """Where a change is committed to."""

    load: Callable[[], Table]
    """Loads the table again; raises StorageError where the catalog cannot be reached."""
    base: BranchState
    """The state that the change was planned on."""
    locations: LocationProvider
    """Where metadata files go."""
    txid: str
    properties: Mapping[str, str] = field(default_factory=dict)
    """Noted in the snapshot's summary."""
    stage_only: bool = False
    """Add the snapshot without moving the branch (write-audit-publish)."""


class SnapshotCommit:
    """One commit. ``in_flight`` says whether it may be in effect: then nothing of it may be removed."""

    def __init__(
        self,
        target: CommitTarget,
        change: FileChange,
        validation: Validation,
        options: SnapshotOptions,
        *,
        retry: RetryPolicy = COMMIT_RETRY,
        status: RetryPolicy = STATUS_CHECK,
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

    def run(self) -> CommitReceipt:
        """SnapshotCommit, trying again when another writer came first and is not in the way.

        Raises:
            CommitConflict: another writer is in the way, or there was no getting through; nothing changed.
            CommitError: the catalog refused; nothing changed.
            CommitUnknown: the answer was lost, and the snapshot was not found.
        """
        table = self._target.load()
        known = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        identity = CommitIdentity(new_snapshot_id(known), str(uuid.uuid4()), dict(self._target.properties))
        producer = SnapshotProducer(
            self._change,
            identity,
            self._options,
            io=table.io,
            place=self._target.locations.new_metadata_location,
        )
        try:
            receipt, used = self._commit_with_retries(table, producer)
        except BaseException:
            if not self.in_flight:
                producer.clean()
                if self._strays:
                    with suppress(*_LOAD_ERRORS):
                        table = self._target.load()
                        self._sweep(table.io, table.metadata, table.metadata_location)
            raise
        producer.clean(keep=used)
        self._sweep(table.io, receipt.metadata, receipt.metadata_location)
        return receipt

    def _commit_with_retries(
        self, table: Table, producer: SnapshotProducer
    ) -> tuple[CommitReceipt, set[str]]:
        waits = iterate_waits(self._retry)
        tried: dict[str, set[str]] = {}
        while True:
            head = BranchState.of(table, self._target.base.branch, self._target.base.cache)
            validate_state(self._validation, self._target.base, head)
            snapshot, manifests = producer.produce(head)
            used = {snapshot.manifest_list, *(manifest.manifest_path for manifest in manifests)}
            tried[snapshot.manifest_list] = used
            refusal = self._commit_once(table, head, snapshot)
            if isinstance(refusal, CommitReceipt):
                return refusal, _find_files_in_use(refusal, tried)
            wait = next(waits, None)
            time.sleep(wait or 0)
            table = self._reload_table(snapshot, refusal)
            if (done := self._find_commit(table, snapshot)) is not None:  # a try that was said to have failed
                return done, _find_files_in_use(done, tried)
            self.in_flight = False
            if wait is None:
                raise CommitConflict(
                    f"Other writers came first each time in {self._retry.retries + 1} tries: {refusal}",
                    path=self._where,
                    txid=self._target.txid,
                    hint="nothing was changed; run the operation again, or raise commit.retry.num-retries",
                ) from refusal
            log.info("%s: trying again to commit: %s", self._where, refusal)

    def _commit_once(self, table: Table, head: BranchState, snapshot: Snapshot) -> CommitReceipt | Exception:
        """One try: the receipt, or why the catalog wants another one."""
        requirements, updates = self._make_request(head, snapshot)
        with record_metadata_files() as written:
            self.in_flight = True
            try:
                response = table.catalog.commit_table(table, requirements, updates)
            except Exception as error:  # a catalog may raise anything, and may have committed all the same
                self._strays += written
                outcome = self._judge_error(error, table, snapshot)
                if isinstance(outcome, CommitError):
                    raise outcome from error
                return outcome
            remove_old_metadata(table, response)
            return self._make_receipt(snapshot, response.metadata, response.metadata_location)

    def _judge_error(self, error: Exception, table: Table, snapshot: Snapshot) -> CommitReceipt | Exception:
        """What an error of the catalog means: to be tried again (the error), to be raised, or a success."""
        if isinstance(error, (CommitFailedException, WaitingForLockException)) or is_sqlite_busy(error):
            return error
        if type(error) is ValueError:
            # PyIceberg's own checks, before anything is sent; such as that of a sequence number which a
            # commit to another branch has taken meanwhile.
            now = self._reload_table(snapshot, error)
            if (
                done := self._find_commit(now, snapshot)
            ) is not None:  # an earlier try that was said to have failed
                return done
            self.in_flight = False
            return error if now.metadata_location != table.metadata_location else self._make_refusal(error)
        if isinstance(error, CATALOG_REFUSALS):
            self.in_flight = False
            return self._make_refusal(error)
        return self._check_status(error, snapshot)

    def _sweep(self, io: FileIO, metadata: TableMetadata, location: str) -> None:
        """Remove metadata files of tries that failed; not on an error's word: one might be the table's."""
        used = {location, *(entry.metadata_file for entry in metadata.metadata_log)}
        remove_files(io, [path for path in self._strays if path not in used])
        self._strays.clear()

    def _make_request(
        self, head: BranchState, snapshot: Snapshot
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

    def _check_status(self, error: Exception, snapshot: Snapshot) -> CommitReceipt | CommitUnknown:
        """Check whether the snapshot exists after an answer that leaves the outcome open."""
        for wait in chain([0.0], iterate_waits(self._status)):
            time.sleep(wait)
            with suppress(*_LOAD_ERRORS):  # the catalog may still be away
                if (done := self._find_commit(self._target.load(), snapshot)) is not None:
                    return done
        return self._make_unknown(error, snapshot)

    def _reload_table(self, snapshot: Snapshot, refusal: Exception) -> Table:
        """The table after a try that failed; without a look at it, not even a refusal is certain."""
        try:
            return self._target.load()
        except _LOAD_ERRORS as error:
            raise self._make_unknown(refusal, snapshot) from error

    def _make_unknown(self, error: Exception, snapshot: Snapshot) -> CommitUnknown:
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

    def _find_commit(self, table: Table, snapshot: Snapshot) -> CommitReceipt | None:
        found = table.metadata.snapshot_by_id(snapshot.snapshot_id)  # by whichever try it came
        return None if found is None else self._make_receipt(found, table.metadata, table.metadata_location)

    def _make_receipt(self, snapshot: Snapshot, metadata: TableMetadata, location: str) -> CommitReceipt:
        number = snapshot.sequence_number or 0
        return CommitReceipt(snapshot.snapshot_id, number, metadata, location, snapshot.parent_snapshot_id)

    def _make_refusal(self, error: Exception) -> CommitError:
        return CommitError(
            f"The catalog refused the commit: {type(error).__name__}: {error}",
            path=self._where,
            txid=self._target.txid,
            hint="nothing was changed",
        )


def _find_files_in_use(receipt: CommitReceipt, tried: Mapping[str, set[str]]) -> set[str]:
    """The files of the attempt that is in effect, by its manifest list; of all where it is unknown."""
    snapshot = receipt.metadata.snapshot_by_id(receipt.snapshot_id)
    if snapshot is not None and snapshot.manifest_list in tried:
        return tried[snapshot.manifest_list]
    return set().union(*tried.values())


def iterate_waits(retry: RetryPolicy) -> Iterator[float]:
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


def is_sqlite_busy(error: BaseException | None) -> bool:
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
