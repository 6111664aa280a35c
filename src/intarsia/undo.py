"""The public functions that look back: the commits of a table, and bringing back the state after one."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Unpack, cast

import intarsia.show  # noqa: F401  values learn to show themselves
from intarsia import telemetry
from intarsia.common.log import get_logger, operation_log
from intarsia.core.history import History
from intarsia.core.intent import RestoreIntent
from intarsia.core.observe import describe_operation, observe
from intarsia.core.ports import Table
from intarsia.core.report import MergeResult
from intarsia.core.restoration import Restorable, check_version, report_restore
from intarsia.core.run import ATTEMPTS, count_since
from intarsia.core.validation import check_exists
from intarsia.errors import CommitConflict, NotSupported
from intarsia.options import InspectOptions, RestoreOptions, TableTarget
from intarsia.request import Request, make_request, refresh_spark, show_target, sync_catalog

log = get_logger(__name__)


def history(target: TableTarget, **options: Unpack[InspectOptions]) -> History:
    """List the commits of a table, newest first: who, when, what, and how much.

    Of a Parquet dataset these are the commits that its log knows, about a thousand; of an Iceberg table the
    snapshots of a branch, and those of ``main`` that were rolled back. Writes nothing.

    Args:
        target: as in :func:`merge`.
        options: see :class:`intarsia.options.InspectOptions`.

    Raises:
        NothingMatched: there is no such table.
        StorageError, DamagedTable: the log or the metadata cannot be read.

    Example:
        >>> import intarsia as it
        >>> deleted = it.delete("lake/orders", "id = 1")
        >>> [(commit.version, commit.operation, commit.deleted) for commit in it.history("lake/orders")]
        [(1, 'delete', 1)]
    """
    with operation_log(log, "history", show_target(target)):
        table = make_request("history", "auto", target, options).table
        found = _as_restorable(table).history()
        if not found.commits:
            check_exists(table.snapshot(), "history")
        return found


def restore(
    target: TableTarget, version: int, *, dry_run: bool = False, **options: Unpack[RestoreOptions]
) -> MergeResult:
    """Bring back the state after a version, in one commit.

    Atomic and idempotent. Of a Parquet dataset the files come back that ``retain=`` has kept, and files that
    came since are removed; the restore is a commit of its own, and can be undone like one. Of an Iceberg
    table the branch is set back to the snapshot: the schema stays, newer snapshots stay in the table until
    they expire, and other branches and tags are not touched. Files of writers that do not know the log of a
    dataset are never removed.

    Args:
        target: as in :func:`merge`.
        version: as :func:`history` lists it; of an Iceberg table the id of a snapshot, too.
        dry_run: plan and count, write nothing.
        options: see :class:`intarsia.options.RestoreOptions`. Without ``retain=``, a restore keeps what it
            replaces and all that was kept before.

    Raises:
        RestoreError: the version is unknown, not retained, or others have changed its files since;
            ``error.versions`` are those that can be restored.
        InputError: the version is no number, or is negative.
        CommitConflict: another writer has committed meanwhile; nothing was changed.

    Example:
        >>> import intarsia as it
        >>> deleted = it.delete("lake/orders", "id = 1", retain=2)
        >>> emptied = it.delete("lake/orders", "true", retain=2)
        >>> it.restore("lake/orders", 1).total
        1
    """
    with operation_log(log, "restore", show_target(target)):
        begun = time.perf_counter()
        request = make_request("restore", "auto", target, options, dry_run=dry_run)
        intent = RestoreIntent(check_version(version), properties=request.properties)
        table = _as_restorable(request.table)
        telemetry.follow()
        facts = describe_operation("restore", table, dry_run=dry_run)
        with observe("operation", "restore", facts) as observation:
            result = _plan(table, intent, begun) if dry_run else _restore(table, request, intent, begun)
            result = _with_requests(result, request)
            observation.end(result)
            return result


def _restore(table: Restorable, request: Request, intent: RestoreIntent, begun: float) -> MergeResult:
    # Not tried again after a conflict: what others have committed meanwhile nobody has asked to undo.
    found, committed = table.restore(intent.version, intent.properties)
    result = report_restore(found, intent, begun=begun, committed=committed)
    notes = sync_catalog(request.table, changed=result.txid is not None)
    if result.txid is not None:
        notes = (*notes, *refresh_spark(request.table))
    return replace(result, notes=(*result.notes, *notes)) if notes else result


def _with_requests(result: MergeResult, request: Request) -> MergeResult:
    sent = count_since(request.table, request.sent_before)
    plan = None if result.plan is None else replace(result.plan, requests=sent)
    return replace(result, requests=sent, plan=plan)


def _plan(table: Restorable, intent: RestoreIntent, begun: float) -> MergeResult:
    for attempt in range(ATTEMPTS):
        try:
            found = table.plan_restore(intent.version)
        except CommitConflict:  # a commit came while its records were read
            if attempt + 1 == ATTEMPTS:
                raise
            continue
        return report_restore(found, intent, begun=begun, dry_run=True)
    raise AssertionError("unreachable")


def _as_restorable(table: Table) -> Restorable:
    if not hasattr(table, "plan_restore"):
        raise NotSupported(f"A {type(table).__name__} keeps no history of its commits.")
    return cast(Restorable, table)
