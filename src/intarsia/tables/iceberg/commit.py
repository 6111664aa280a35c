"""The commit of one snapshot: conflict detection, retries, status checks, and removal of unused metadata.

A commit ends in one of three ways: it is in effect; it failed and its files are removed; or its outcome is
unknown and nothing is removed. Retries follow ``commit.retry.*`` and status checks ``commit.status-check.*``
as in Java's ``SnapshotProducer.commit`` and ``BaseMetastoreTableOperations.checkCommitStatus``.

Conflicts are those of Java's ``MergingSnapshotProducer.validate*``. The state that was read is compared with
the current one, not the history between them, so rollbacks and expired snapshots in between do not matter.
"""

from __future__ import annotations

import random
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
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
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from intarsia.common.log import get_logger
from intarsia.errors import CommitConflict, CommitError, CommitUnknown, NotSupported, StorageError
from intarsia.tables.iceberg._pyiceberg import record_metadata_files
from intarsia.tables.iceberg.batches import check_not_rolled_back, find_last_batch, make_batch_note
from intarsia.tables.iceberg.deletes import DeleteFileIndex, find_bound_orders, find_unpartitioned_specs
from intarsia.tables.iceberg.file_io import LocationProvider
from intarsia.tables.iceberg.manifests import DataFileContent, ManifestEntry, ManifestFile
from intarsia.tables.iceberg.properties import RetryPolicy
from intarsia.tables.iceberg.snapshot_producer import (
    CommitIdentity,
    FileChange,
    SnapshotOptions,
    SnapshotProducer,
    remove_files,
)
from intarsia.tables.iceberg.state import (
    BranchState,
    FileKey,
    has_live_files,
    iterate_ancestors,
    make_file_key,
)

log = get_logger(__name__)

CATALOG_REFUSALS = (
    BadRequestError,
    ForbiddenError,
    UnauthorizedError,
    TooManyRequestsError,
    NoSuchTableError,
    NotImplementedError,
)
"""Errors after which it is certain that nothing was committed, and that a retry will not help."""
_LOAD_ERRORS = (StorageError, NotSupported)
"""Errors of loading a table: its catalog cannot be reached, or its metadata is not supported."""


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
        retry: RetryPolicy,
        status: RetryPolicy,
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
        """Commit, and retry after commits of other writers that do not conflict.

        Raises:
            CommitConflict: another writer is in the way, or there was no getting through; nothing changed.
            CommitError: the catalog refused; nothing changed.
            CommitUnknown: the answer was lost, and the snapshot was not found.
        """
        table = self._target.load()
        known = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        identity = CommitIdentity(make_snapshot_id(known), str(uuid.uuid4()), dict(self._target.properties))
        producer = SnapshotProducer(
            self._change,
            identity,
            self._options,
            io=table.io,
            place=self._target.locations.make_metadata_location,
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
            if (done := self._find_commit(table, snapshot)) is not None:  # an earlier attempt
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
        """One attempt: the receipt, or the error after which to retry."""
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
        """What an error of the catalog means: retry (that error), raise (a CommitError), or a success."""
        if isinstance(error, (CommitFailedException, WaitingForLockException)) or is_sqlite_busy(error):
            return error
        if type(error) is ValueError:
            # PyIceberg's own checks before anything is sent, such as of a sequence number that a commit to
            # another branch has used meanwhile.
            now = self._reload_table(snapshot, error)
            if (done := self._find_commit(now, snapshot)) is not None:  # an earlier attempt
                return done
            self.in_flight = False
            return error if now.metadata_location != table.metadata_location else self._make_refusal(error)
        if isinstance(error, CATALOG_REFUSALS):
            self.in_flight = False
            return self._make_refusal(error)
        return self._check_status(error, snapshot)

    def _sweep(self, io: FileIO, metadata: TableMetadata, location: str) -> None:
        """Remove metadata files of failed attempts, unless the table refers to one after all."""
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
        note = make_batch_note(head.branch, self._target.properties, snapshot)
        noted = (SetPropertiesUpdate(updates=note),) if note else ()
        return (uuid_holds, stands), (add, move, *noted)

    def _check_status(self, error: Exception, snapshot: Snapshot) -> CommitReceipt | CommitUnknown:
        """Check whether the snapshot exists after an error that leaves the outcome open."""
        for wait in chain([0.0], iterate_waits(self._status)):
            time.sleep(wait)
            with suppress(*_LOAD_ERRORS):  # the catalog may still be unreachable
                if (done := self._find_commit(self._target.load(), snapshot)) is not None:
                    return done
        return self._make_unknown(error, snapshot)

    def _reload_table(self, snapshot: Snapshot, refusal: Exception) -> Table:
        """The table after a failed attempt; CommitUnknown if it cannot be loaded."""
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
        found = table.metadata.snapshot_by_id(snapshot.snapshot_id)  # of any attempt
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
    """Metadata files of the attempt that is in effect, by its manifest list; of all attempts if unknown."""
    snapshot = receipt.metadata.snapshot_by_id(receipt.snapshot_id)
    if snapshot is not None and snapshot.manifest_list in tried:
        return tried[snapshot.manifest_list]
    return set().union(*tried.values())


def iterate_waits(retry: RetryPolicy) -> Iterator[float]:
    """Seconds to wait before each further try, as Java's ``Tasks.Builder.exponentialBackoff`` waits.

    Ends after the last retry, or when the total time is over.
    """
    begun = time.monotonic()
    for number in range(retry.retries):
        if (time.monotonic() - begun) * 1000 > retry.total_ms:
            return
        wait = min(retry.min_wait_ms * 2**number, retry.max_wait_ms) / 1000
        yield wait * random.uniform(1.0, 1.1)


def make_snapshot_id(known: set[int]) -> int:
    """A positive number of 63 bits that no snapshot has (Iceberg spec, "Assignment of Snapshot IDs")."""
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
    """Remove metadata files that are no longer in the metadata log, if the table asks for it.

    Java's ``CatalogUtil.deleteRemovedMetadataFiles``.
    """
    properties = response.metadata.properties
    if properties.get("write.metadata.delete-after-commit.enabled", "false").lower() != "true":
        return
    kept = {entry.metadata_file for entry in response.metadata.metadata_log}
    remove_files(table.io, sorted({e.metadata_file for e in table.metadata.metadata_log} - kept))


_HINT = "nothing was changed; run the operation again"
_MAX_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Validation:
    """What must still hold when a change is committed; see :func:`validate_state`."""

    existing: Sequence[ManifestEntry] = ()
    """Data files that must still exist, and none of whose deletes may have been removed."""
    undisturbed: Sequence[ManifestEntry] = ()
    """Data files that must still exist with exactly the deletes they had."""
    exclusive: bool = False
    """Whether a new data file is a conflict (serializable isolation)."""
    may_concern: Callable[[ManifestEntry, TableMetadata], bool] | None = None
    """Whether the operation would have read a new data file; None means any."""
    equalities: bool = True
    """Whether new equality deletes are conflicts. They are not where the added files keep the old sequence
    number, since they apply to those as well."""
    specs: frozenset[int] | None = None
    """The specs of those added files: partitioned equality deletes of other specs are conflicts after all.
    None if the specs do not change."""
    position_deletes: bool = False
    """Whether position delete files are added, which version 3 forbids."""
    batch: tuple[str, int] | None = None
    """Application and batch that no other process may have committed meanwhile."""


@dataclass(frozen=True, slots=True)
class StateDifference:
    """The entries by which two states differ, for data files and delete files alike."""

    added: tuple[ManifestEntry, ...]
    removed: tuple[ManifestEntry, ...]

    def select_data(self, entries: Iterable[ManifestEntry]) -> list[ManifestEntry]:
        return [entry for entry in entries if entry.file.content is DataFileContent.DATA]

    def select_deletes(self, entries: Iterable[ManifestEntry]) -> list[ManifestEntry]:
        return [entry for entry in entries if entry.file.content is not DataFileContent.DATA]


def validate_state(validation: Validation, base: BranchState, head: BranchState) -> None:
    """Compare the state that was read with the current one.

    Raises:
        CommitConflict: the change does not hold any more; nothing was changed.
    """
    where = head.metadata.location
    if head.metadata.table_uuid != base.metadata.table_uuid:
        raise CommitConflict("The table was replaced by another one meanwhile.", path=where, hint=_HINT)
    if validation.position_deletes and head.metadata.format_version >= 3:
        raise CommitConflict(
            f"The table was upgraded to format version {head.metadata.format_version} meanwhile, which has "
            "deletion vectors instead of position delete files.",
            path=where,
            hint=_HINT,
        )
    if head.head_id == base.head_id:
        return
    _check_batch(validation, head)
    since = compare_states(base, head)
    _check_data_files_exist(validation, since, where)
    _check_no_conflicting_deletes(validation, since, head)
    _check_no_new_row_ids(validation, head)
    if validation.exclusive:
        _check_no_conflicting_data(validation, since, base, head)


def compare_states(base: BranchState, head: BranchState) -> StateDifference:
    """Entries added and removed between two states; only manifests that just one of them has are read."""
    before = {manifest.manifest_path for manifest in base.manifests}
    after = {manifest.manifest_path for manifest in head.manifests}
    old = _index_live_entries(base, (m for m in base.manifests if m.manifest_path not in after))
    new = _index_live_entries(head, (m for m in head.manifests if m.manifest_path not in before))
    return StateDifference(
        tuple(entry for key, entry in new.items() if key not in old),
        tuple(entry for key, entry in old.items() if key not in new),
    )


def _index_live_entries(
    state: BranchState, manifests: Iterable[ManifestFile]
) -> dict[FileKey, ManifestEntry]:
    return {
        make_file_key(entry): entry
        for manifest in manifests
        if has_live_files(manifest)
        for entry in state.cache.read_entries(manifest)
    }


def _check_batch(validation: Validation, head: BranchState) -> None:
    if validation.batch is None:
        return
    app, number = validation.batch
    check_not_rolled_back(head, app, number)
    last = find_last_batch(head, app)
    if last is not None and last >= number:
        raise CommitConflict(
            f"Another process has committed batch {last} of {app!r} meanwhile.",
            path=head.metadata.location,
            hint=_HINT,
        )


def _check_data_files_exist(validation: Validation, since: StateDifference, where: str) -> None:
    """Java's ``validateDataFilesExist``."""
    gone = {entry.file.file_path for entry in since.select_data(since.removed)}
    if not gone:
        return
    wanted = (*validation.existing, *validation.undisturbed)
    missing = sorted({entry.file.file_path for entry in wanted} & gone)
    if missing:
        raise CommitConflict(
            f"Another writer has removed {len(missing)} data file(s) that were read: "
            f"{_format_some(missing)}.",
            path=where,
            hint=_HINT,
        )


def _check_no_conflicting_deletes(validation: Validation, since: StateDifference, head: BranchState) -> None:
    """Java's ``validateNoNewDeletesForDataFiles`` and ``validateAddedDVs``; removed deletes conflict, too."""
    unpartitioned = find_unpartitioned_specs(head.metadata)

    def is_relevant(entry: ManifestEntry) -> bool:
        if validation.equalities or entry.file.content is not DataFileContent.EQUALITY_DELETES:
            return True
        spec_id, specs = entry.file.spec_id, validation.specs
        return specs is not None and spec_id not in specs and spec_id not in unpartitioned

    come, gone = filter(is_relevant, since.select_deletes(since.added)), since.select_deletes(since.removed)
    undisturbed, existing = validation.undisturbed, validation.existing
    for entries, verb, files in (
        (list(come), "added", undisturbed),
        (gone, "removed", (*undisturbed, *existing)),
    ):
        if not entries or not files:
            continue
        index = DeleteFileIndex.of(
            entries, unpartitioned=unpartitioned, orders=find_bound_orders(head.metadata)
        )
        hit = sorted(e.file.file_path for e in files if index.find_deletes(e))
        if hit:
            raise CommitConflict(
                f"Another writer has {verb} deletes of {len(hit)} data file(s) that were read: "
                f"{_format_some(hit)}.",
                path=head.metadata.location,
                hint=_HINT,
            )


def _check_no_new_row_ids(validation: Validation, head: BranchState) -> None:
    """Refuse copies of rows without row ids that have been given theirs meanwhile.

    The first commit after an upgrade to version 3 gives them to all files (Iceberg spec, "Row Lineage for
    Upgraded Tables"), and a row keeps its id when it is copied.
    """
    unnumbered = {e.file.file_path for e in validation.undisturbed if e.file.first_row_id is None}
    if head.metadata.format_version < 3 or not unnumbered:
        return
    numbered = sorted(
        entry.file.file_path
        for entry in head.iterate_entries(deletes=False)
        if entry.file.first_row_id is not None and entry.file.file_path in unnumbered
    )
    if numbered:
        raise CommitConflict(
            f"Another writer has given row ids to {len(numbered)} data file(s) that were read: "
            f"{_format_some(numbered)}.",
            path=head.metadata.location,
            hint=_HINT,
        )


def _check_no_conflicting_data(
    validation: Validation, since: StateDifference, base: BranchState, head: BranchState
) -> None:
    """Java's ``validateAddedDataFiles``, which passes over files that a ``replace`` snapshot has added."""
    holds_old = _make_rewrite_test(base, head)
    appeared = sorted(
        entry.file.file_path
        for entry in since.select_data(since.added)
        if not holds_old(entry.snapshot_id, entry.sequence_number)
        and (validation.may_concern is None or validation.may_concern(entry, head.metadata))
    )
    if appeared:
        raise CommitConflict(
            f"Another writer has added {len(appeared)} data file(s) whose rows may matter here: "
            f"{_format_some(appeared)}.",
            path=head.metadata.location,
            hint=f"{_HINT}; write.*.isolation-level = snapshot would let such a change pass",
        )


def _make_rewrite_test(base: BranchState, head: BranchState) -> Callable[[int | None, int | None], bool]:
    """Tells by snapshot and sequence number whether a file only holds rows that were there at the base.

    A compaction's does, unless it has moved rows that came after the base.
    """
    known = {snapshot.snapshot_id: snapshot for snapshot in head.metadata.snapshots}

    @cache
    def holds_old(snapshot_id: int | None, number: int | None) -> bool:
        snapshot = known.get(snapshot_id or 0)
        if snapshot is None or base.head is None or not _is_replace(snapshot):
            return False
        numbered = base.metadata.format_version > 1 and number is not None
        if numbered and (number or 0) < (snapshot.sequence_number or 0):  # of the state compacted
            return (number or 0) <= (base.head.sequence_number or 0)
        for before in iterate_ancestors(snapshot, head.metadata):
            if before.snapshot_id == base.head.snapshot_id:
                return True
            if not _is_replace(before):
                return False
        return False

    return holds_old


def _is_replace(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def _format_some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_MAX_SHOWN]) + (", ..." if len(paths) > _MAX_SHOWN else "")
