"""The snapshots of a branch as a history, and setting a branch back to one of them.

As Java's ``SnapshotManager.rollbackTo``, for any branch: only its reference moves, no snapshot is made or
removed. What the branch had since stays in the table until it expires.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyiceberg.exceptions import CommitFailedException, WaitingForLockException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
)

import intarsia
from intarsia.common.log import get_logger
from intarsia.core.change import Committed
from intarsia.core.history import Commit, CommitInfo, History, RowCounts, parse_count
from intarsia.core.restoration import Restoration, ReturningFile
from intarsia.errors import CommitConflict, CommitError, CommitUnknown, RestoreError, StorageError
from intarsia.tables.iceberg.commit import CATALOG_REFUSALS, is_sqlite_busy, remove_old_metadata
from intarsia.tables.iceberg.state import BranchState, iterate_ancestors

if TYPE_CHECKING:
    from intarsia.tables.iceberg.table import IcebergTable

__all__ = ["make_branch_history", "make_summary_info", "plan_rollback", "roll_back"]

log = get_logger(__name__)

_PREFIX = "intarsia."
_LAST_RESTORE = "intarsia.last-restore"
_OWN = {"user", "program", "engine", "rows-inserted", "rows-updated", "rows-deleted", "operation", "txid"}


def make_summary_info(counts: RowCounts | None, engine: str | None) -> dict[str, str]:
    """What the summary of a snapshot says of who made it, and of rows; no decision depends on it."""
    info = CommitInfo.now(intarsia.__version__, counts, engine=engine)
    found: dict[str, Any] = {"user": info.user, "program": info.program, "engine": engine}
    if counts is not None:
        found |= {f"rows-{name}": getattr(counts, name) for name in ("inserted", "updated", "deleted")}
    return {f"{_PREFIX}{name}": str(value) for name, value in found.items() if value is not None}


# History


def make_branch_history(state: BranchState, root: str) -> History:
    """The snapshots of a branch, newest first; of ``main`` also those that it was set back behind."""
    metadata = state.metadata
    line = list(iterate_ancestors(state.head, metadata))
    commits = [_make_commit(one, metadata, rolled_back=False) for one in line]
    known = {one.snapshot_id for one in line}
    behind = [one for one in _list_rolled_back(state) if one.snapshot_id not in known]
    commits += [_make_commit(one, metadata, rolled_back=True) for one in behind]
    commits.sort(key=lambda commit: (commit.time is not None, commit.time, commit.version), reverse=True)
    notes = []
    if line and (line[-1].parent_snapshot_id is not None or (line[-1].sequence_number or 0) > 1):
        first = _make_version(line[-1], metadata)
        notes.append(f"Snapshots before version {first} have expired, or are of other branches.")
    if (said := _read_last_restore(state)) is not None:
        notes.append(said)
    version = _make_version(state.head, metadata) if state.head is not None else 0
    restorable = tuple(commit.version for commit in commits)
    return History(root, tuple(commits), version, state.branch, tuple(notes), restorable)


def _list_rolled_back(state: BranchState) -> list[Snapshot]:
    """Snapshots that ``main`` was at once; of other branches nothing is recorded."""
    if state.branch != MAIN_BRANCH:
        return []
    found = {entry.snapshot_id for entry in state.metadata.snapshot_log}
    return [one for one in state.metadata.snapshots if one.snapshot_id in found]


def _make_version(snapshot: Snapshot, metadata: TableMetadata) -> int:
    """The number of a commit; snapshots of format version 1 have no sequence number that tells them apart."""
    return snapshot.snapshot_id if metadata.format_version == 1 else snapshot.sequence_number or 0


def _make_commit(snapshot: Snapshot, metadata: TableMetadata, *, rolled_back: bool) -> Commit:
    said = {} if snapshot.summary is None else dict(snapshot.summary.additional_properties)
    kind = "" if snapshot.summary is None else str(snapshot.summary.operation.value)
    own = {name: said.get(f"{_PREFIX}{name}") for name in _OWN}
    deletes = parse_count(said.get("total-position-deletes")) or parse_count(
        said.get("total-equality-deletes")
    )
    engine = own["engine"] or said.get("engine-name")
    rest = {key: value for key, value in said.items() if key not in ("app_id", "batch_id")}
    return Commit(
        version=_make_version(snapshot, metadata),
        operation=own["operation"] or kind,
        time=dt.datetime.fromtimestamp(snapshot.timestamp_ms / 1000, dt.UTC),
        user=own["user"],
        program=own["program"],
        engine=engine,
        inserted=parse_count(own["rows-inserted"]),
        updated=parse_count(own["rows-updated"]),
        deleted=parse_count(own["rows-deleted"]),
        files_added=_sum_numbers(said, "added-data-files", "added-delete-files"),
        files_replaced=0,
        files_removed=_sum_numbers(said, "deleted-data-files", "removed-delete-files"),
        bytes_written=parse_count(said.get("added-files-size", "0")),
        rows_after=None if deletes else parse_count(said.get("total-records")),
        bytes_after=parse_count(said.get("total-files-size")),
        app_id=said.get("app_id"),
        batch_id=parse_count(said.get("batch_id")),
        txid=own["txid"],
        snapshot_id=snapshot.snapshot_id,
        restorable=True,
        rolled_back=rolled_back,
        properties={key: value for key, value in rest.items() if not key.startswith(_PREFIX)},
    )


def _sum_numbers(said: Mapping[str, str], *names: str) -> int:
    return sum(parse_count(said.get(name)) or 0 for name in names)


# Restoring


def plan_rollback(table: IcebergTable, version: int) -> Restoration:
    """What setting the branch back would do; writes nothing."""
    _, state = table.load_state()
    return _plan(table, state, version)


def _plan(table: IcebergTable, state: BranchState, version: int) -> Restoration:
    target = _find_snapshot(state, table.root, version)
    now = table.snapshot()
    if state.head is not None and target.snapshot_id == state.head.snapshot_id:
        return Restoration(version, now, is_empty=True)
    then = table.snapshot_at(target.snapshot_id)
    if then is None:
        raise _make_error(state, table.root, version, "its snapshot has expired")
    before, after = ({(file.path, file.rows): file for file in one.files} for one in (now, then))
    new = [file for key, file in after.items() if key not in before]
    gone = [file for key, file in before.items() if key not in after]
    held = {file.path: file for file in gone}
    returning = tuple(
        ReturningFile(file.path, file.rows, file.size, held.pop(file.path, None)) for file in new
    )
    return Restoration(
        version, now, returning, tuple(held.values()), notes=_note_newer(state, target.snapshot_id)
    )


def _find_snapshot(state: BranchState, root: str, version: int) -> Snapshot:
    """A snapshot that the branch is or was at, by its version or its id."""
    metadata = state.metadata
    known = [*iterate_ancestors(state.head, metadata), *_list_rolled_back(state)]
    for one in known:
        if version in (one.snapshot_id, _make_version(one, metadata)):
            return one
    if any(version in (one.snapshot_id, _make_version(one, metadata)) for one in metadata.snapshots):
        raise _make_error(state, root, version, f"it was never a state of branch {state.branch!r}")
    newest = 0 if state.head is None else _make_version(state.head, metadata)
    if metadata.format_version > 1 and 0 < version < newest:
        raise _make_error(state, root, version, "its snapshot has expired, or was of another branch")
    raise _make_error(state, root, version, "there is no such snapshot")


def _make_error(state: BranchState, root: str, version: int, why: str) -> RestoreError:
    versions = make_branch_history(state, root).restorable
    shown = ", ".join(map(str, versions[:5])) + (" and older ones" if len(versions) > 5 else "")
    can = f"versions {shown} can be restored" if versions else "none can be restored"
    return RestoreError(
        f"version {version} of {root} cannot be restored: {why}; {can}.",
        path=root,
        hint="history() lists the versions.",
        versions=versions,
    )


def _note_newer(state: BranchState, snapshot_id: int) -> tuple[str, ...]:
    line = [one.snapshot_id for one in iterate_ancestors(state.head, state.metadata)]
    newer = line.index(snapshot_id) if snapshot_id in line else 0
    if not newer:
        return ("The schema, partition spec and properties of the table stay as they are.",)
    are = "1 newer snapshot is" if newer == 1 else f"{newer:,} newer snapshots are"
    return (
        f"{are} no longer part of branch {state.branch!r}, and stay in the table, with their files, until"
        " they expire; until then version numbers of history() bring them back on main.",
        "The schema, partition spec and properties of the table stay as they are.",
    )


def roll_back(
    table: IcebergTable, version: int, properties: Mapping[str, str]
) -> tuple[Restoration, Committed | None]:
    """Set the branch to a snapshot if nobody has moved it meanwhile; None where it is there already.

    Raises:
        CommitConflict: another writer has committed to the branch; nothing was changed.
        CommitUnknown: the catalog's answer was lost, and the branch is not known to have moved.
    """
    opened, state = table.load_state()
    found = _plan(table, state, version)
    if found.is_empty:
        return found, None
    target = _find_snapshot(state, table.root, version)
    done = _commit(opened, state, target.snapshot_id, properties, table.load)
    table.refresh(done.metadata, done.metadata_location)
    log.info("%s: branch %s was set back to snapshot %d", table.root, state.branch, target.snapshot_id)
    txid = str(target.snapshot_id)
    return found, Committed(txid, _make_version(target, state.metadata))


def _commit(
    table: Table, state: BranchState, target: int, properties: Mapping[str, str], load: Callable[[], Table]
) -> Table | CommitTableResponse:
    metadata, branch = state.metadata, state.branch
    ref = metadata.refs.get(branch)
    retention = {} if ref is None else ref.model_dump(by_alias=True, exclude={"snapshot_id", "type"})
    move = SetSnapshotRefUpdate.model_validate(
        {**retention, "ref-name": branch, "type": SnapshotRefType.BRANCH, "snapshot-id": target}
    )
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": branch, "snapshot-id": state.head_id}),
    )
    note = SetPropertiesUpdate(updates=_make_note(state, target, properties))
    try:
        response = table.catalog.commit_table(table, requirements, (move, note))
    except Exception as error:  # a catalog may raise anything, and may have committed all the same
        outcome = _judge_error(error, state, target, load)
        if isinstance(outcome, CommitError):
            raise outcome from error
        return outcome
    remove_old_metadata(table, response)
    return response


def _judge_error(
    error: Exception, state: BranchState, target: int, load: Callable[[], Table]
) -> Table | CommitError:
    """What an error of the catalog means: the branch as it is now tells."""
    where, branch = state.metadata.location, state.branch
    now: Table | None = None
    with suppress(StorageError):
        now = load()
    ref = None if now is None else now.metadata.refs.get(branch)
    if now is not None and ref is not None and ref.snapshot_id == target:
        return now  # as asked, by this request or by somebody else's
    busy = isinstance(error, (CommitFailedException, WaitingForLockException)) or is_sqlite_busy(error)
    if busy or type(error) is ValueError:  # PyIceberg's own checks, before anything is sent
        return CommitConflict(
            f"Branch {branch!r} was changed meanwhile: {error}",
            path=where,
            hint="nothing was changed; look at history(), and run it again",
        )
    shown = f"{type(error).__name__}: {error}"
    if isinstance(error, CATALOG_REFUSALS):
        return CommitError(
            f"The catalog refused to set branch {branch!r} back: {shown}",
            path=where,
            hint="nothing was changed",
        )
    return CommitUnknown(
        f"The catalog's answer was lost ({shown}), and branch {branch!r} was not found at snapshot {target}"
        " so far.",
        path=where,
        changed=None,
        hint="look at history() later; running it again does no harm",
    )


def _make_note(state: BranchState, target: int, properties: Mapping[str, str]) -> dict[str, str]:
    info = CommitInfo.now(intarsia.__version__)
    said = {
        "time": info.time,
        "user": info.user,
        "from": state.head_id,
        "to": target,
        "properties": dict(properties),
    }
    return {f"{_LAST_RESTORE}/{quote(state.branch, safe='')}": json.dumps(said)}


def _read_last_restore(state: BranchState) -> str | None:
    text = state.metadata.properties.get(f"{_LAST_RESTORE}/{quote(state.branch, safe='')}")
    try:
        raw = json.loads(text or "null")
        return (
            f"Branch {state.branch} was last set back from snapshot {int(raw['from'])} to {int(raw['to'])}"
            f" by {raw['user']} at {raw['time']}."
        )
    except (ValueError, TypeError, KeyError):
        return None
