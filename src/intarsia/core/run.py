"""The way of every operation: snapshot, prepare, plan, match, stage, commit, report."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace

import pyarrow as pa

from intarsia.common.log import get_logger
from intarsia.common.requests import Requests
from intarsia.common.source import IngestedSource
from intarsia.core.change import Change, Committed, Matches, Staged, StagedFile, Staging
from intarsia.core.dry_run import PLAN_BYTES, DryRun, count_new_files, discard_output, estimate_new_bytes
from intarsia.core.effects import check_write_options
from intarsia.core.history import RowCounts
from intarsia.core.intent import (
    CompactIntent,
    DeduplicateIntent,
    DeleteIntent,
    Intent,
    MergeIntent,
    OptimizeIntent,
    UpdateIntent,
    WriteIntent,
)
from intarsia.core.key_value_metadata import check_geometries, find_exact_columns
from intarsia.core.observe import Observation, describe_operation, observe
from intarsia.core.plan import FilePlan, Plan, SparsePlans, keep_all
from intarsia.core.planning import (
    plan_compact,
    plan_deduplicate,
    plan_merge,
    plan_optimize,
    plan_predicate,
    plan_write,
)
from intarsia.core.ports import Engine, Execution, Progress, Table, Transaction
from intarsia.core.prepare import Prepared, prepare
from intarsia.core.refusals import refuse
from intarsia.core.report import MergeFileMetadata, MergeResult
from intarsia.core.rule import Action, Assign, Insert
from intarsia.core.snapshot import Snapshot, with_microseconds, with_target_types
from intarsia.core.spark_metadata import check_variants
from intarsia.errors import CommitConflict, DamagedTable, InputError, NotSupported, StorageError

log = get_logger(__name__)

ATTEMPTS = 4
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0


def ignore_progress(_step: str, _done: int, _total: int) -> None:
    """Progress that nobody watches."""


def make_plan(prepared: Prepared, snapshot: Snapshot) -> Plan:
    """Which files the operation will read; pure."""
    match prepared.intent:
        case MergeIntent() as intent:
            return plan_merge(intent, snapshot, prepared.facts, schema=prepared.schema)
        case WriteIntent() as intent:
            return plan_write(intent, snapshot, prepared.facts, schema=prepared.schema)
        case DeleteIntent() | UpdateIntent() as intent:
            return plan_predicate(intent, snapshot)
        case CompactIntent() as intent:
            return plan_compact(intent, snapshot)
        case OptimizeIntent() as intent:
            return plan_optimize(intent, snapshot)
        case DeduplicateIntent() as intent:
            return plan_deduplicate(intent, snapshot)


def _make_engine_plan(
    prepared: Prepared, snapshot: Snapshot, engine: Engine, *, reason: str, progress: Progress
) -> Plan:
    plan = _load_footers(make_plan(prepared, snapshot), prepared, progress)
    notes = (*plan.notes, *prepared.notes)
    return replace(plan, engine=engine.name, engine_reason=reason, notes=notes)


def _load_footers(plan: Plan, prepared: Prepared, progress: Progress) -> Plan:
    """The plan again, with the footers of the files that it has to scan."""
    if plan.snapshot.footer_loader is None:
        return plan
    # Exact row counts may add other files to the plan, and these need footers, too.
    while unknown := [item.file for item in plan.touched if _needs_footer(item)]:
        progress("read footers", 0, len(unknown))
        plan = make_plan(prepared, plan.snapshot.with_footers(unknown))
    return plan


def _needs_footer(item: FilePlan) -> bool:
    file = item.file
    if item.action == "remove":  # only its number of rows is needed
        return file.footer is None and file.scan_task is not None and not file.scan_task.has_exact_count
    return item.action != "keep" and file.footer is None


def preview_plan(intent: Intent, table: Table) -> Plan:
    """The plan of an intent without a source, before any row is read, for any engine.

    Raises for names and types that do not exist and for a table that cannot be changed.
    """
    snapshot = _check_writable(table.snapshot(), intent)
    return make_plan(prepare(intent, snapshot, None), snapshot)


def _check_writable(snapshot: Snapshot, intent: Intent) -> Snapshot:
    """The snapshot with the columns that files hold; raises why it cannot be changed, and InputError where
    its files have a journal and a lock under another root, and for options that could have no effect."""
    if snapshot.unwritable is not None:
        raise copy(snapshot.unwritable)  # a copy, since each operation adds its name to it
    check_write_options(intent, snapshot)
    if snapshot.owner_error is not None:
        raise InputError(
            f"{snapshot.root} {snapshot.owner_error}.",
            path=snapshot.root,
            hint="name the dataset that is meant; a condition on its partition columns chooses a part of it",
        )
    if not snapshot.unstored:
        return snapshot
    stored = [field for field in snapshot.schema if field.name not in snapshot.unstored]
    return replace(snapshot, schema=pa.schema(stored, snapshot.schema.metadata))


def explain(
    intent: Intent,
    table: Table,
    engine: Engine,
    source: IngestedSource | None = None,
    *,
    measured_bytes: int | None = PLAN_BYTES,
    progress: Progress = ignore_progress,
    reason: str = "",
) -> Plan:
    """The resolved plan of an operation: exact counts, no lock taken, nothing left behind.

    Up to ``measured_bytes`` of what the operation would write (None: all) are encoded, as the run does it, to
    know the new files and their size; beyond that these are estimates, and say so. What the run would refuse
    is refused in any case.
    """
    before = table.requests
    plan, _ = _run_dry(intent, table, engine, source, measured_bytes, progress=progress, reason=reason)
    return replace(plan, requests=count_since(table, before))


def _run_dry(
    intent: Intent,
    table: Table,
    engine: Engine,
    source: IngestedSource | None,
    most: int | None,
    *,
    progress: Progress,
    reason: str,
) -> tuple[Plan, Change | None]:
    """The plan, and what it would do to files; None where they are too large to be encoded for that."""
    progress("list target", 0, 0)
    snapshot = _check_writable(table.snapshot(), intent)
    table.check()
    if (note := _find_committed_batch(intent, table)) is not None:
        return _make_skipped_plan(intent, snapshot, engine, note=note, reason=reason), None
    snapshot = _with_source_types(snapshot, source, intent)
    progress("plan", 0, 0)
    prepared = engine.prepare(intent, snapshot, source)
    plan = _make_engine_plan(prepared, snapshot, engine, reason=reason, progress=progress)
    scanned = sum(item.file.size for item in plan.select("scan"))
    if most is None or 0 < most >= plan.bytes_to_write + scanned + prepared.source_bytes:
        return _measure(plan, prepared, table, engine, progress)
    matches = engine.match(Execution(plan, prepared, None, progress))
    estimated = resolve_plan(plan, prepared, matches)
    if 0 < most >= estimated.bytes_to_write:
        return _measure(plan, prepared, table, engine, progress)
    table.check_change(snapshot, _with_schema(_make_unwritten_change(estimated, matches), prepared, snapshot))
    if _assigns(prepared.intent) or _meets_old_calendar(prepared.intent, snapshot):
        _execute_dry(plan, prepared, engine, discard_output(writes=False), progress)
    new = count_new_files(estimated, prepared, matches)
    estimated = replace(
        estimated,
        insert_bytes=estimate_new_bytes(estimated, prepared, matches, files=new.count),
        new_files=new.count,
        new_files_exact=new.exact,
        notes=(*estimated.notes, *new.notes),
    )
    return estimated, None


def _make_unwritten_change(plan: Plan, matches: Matches) -> Change:
    """What a resolved plan does to the files that are there, as long as none is written."""
    unwritten = {item.file.path: StagedFile("", item.file.path, 0, 0) for item in plan.select("rewrite")}
    return plan.make_change(matches, Staged(unwritten))


def _measure(
    plan: Plan, prepared: Prepared, table: Table, engine: Engine, progress: Progress
) -> tuple[Plan, Change]:
    """What a run would do, found out by doing it, short of the commit; what that refuses is refused."""
    staging = discard_output()
    plan, change = _execute_dry(plan, prepared, engine, staging, progress)
    snapshot = plan.snapshot
    table.check_change(snapshot, _with_schema(change, prepared, snapshot), staging)
    return plan, change


def _execute_dry(
    plan: Plan, prepared: Prepared, engine: Engine, staging: Staging, progress: Progress
) -> tuple[Plan, Change]:
    """What a run would do, found out by doing it, short of the commit."""
    doing = "measure" if staging.writes else "check"

    def report(step: str, done: int, total: int) -> None:
        progress(step.replace("write", doing), done, total)

    execution = Execution(plan, prepared, DryRun.at(plan.snapshot, staging), report)
    return _execute(execution, engine)


def _execute(execution: Execution, engine: Engine) -> tuple[Plan, Change]:
    """Match rows, resolve the plan with what was found, and write the files: all but the commit."""
    matches = engine.match(execution)
    plan = resolve_plan(execution.plan, execution.prepared, matches)
    change = plan.make_change(matches, engine.stage(execution.with_plan(plan), matches))
    plan = _finish_plan(plan, change)
    counts = RowCounts(plan.inserted, plan.updated, plan.deleted)
    return plan, replace(change, counts=counts, engine=engine.name)


def _finish_plan(plan: Plan, change: Change) -> Plan:
    """The plan with the numbers of the change; raises where values cannot be written."""
    refuse(
        (one for file in change.written for one in file.refused),
        list(_iterate_assigned_columns(plan.intent)),
        updated=plan.updated,
        inserted=plan.inserted,
        path=plan.snapshot.root,
    )
    deleted = plan.deleted
    if isinstance(plan.intent, (CompactIntent, OptimizeIntent)):
        deleted = sum(f.rows for f in change.removed) - sum(f.rows for f in change.added)
    return replace(
        plan,
        deleted=deleted,
        new_files=len(change.added),
        new_files_exact=True,
        insert_bytes=0 if plan.groups else sum(file.size for file in change.added),
        measured_bytes=sum(file.size for file in change.written),
    )


def _meets_old_calendar(intent: Intent, snapshot: Snapshot) -> bool:
    """Whether source rows may be written to files whose old calendar Spark applies to their dates."""
    return isinstance(intent, MergeIntent) and any(
        find_exact_columns(file) is not None for file in snapshot.files.list_kinds()
    )


def _assigns(intent: Intent) -> bool:
    """Whether the operation computes values, rather than taking them as they are."""
    return any(True for _ in _iterate_assigned_columns(intent))


def _iterate_assigned_columns(intent: Intent) -> Iterator[str]:
    """The columns that are set by expressions, in their order."""
    actions: list[Action] = [Assign(intent.assignments)] if isinstance(intent, UpdateIntent) else []
    if isinstance(intent, MergeIntent):
        actions = [clause.action for clause in intent.rule.clauses]
    for action in actions:
        if isinstance(action, (Assign, Insert)):
            yield from (".".join(column) for column, _ in action.values or ())


def run(
    intent: Intent,
    table: Table,
    engine: Engine,
    source: IngestedSource | None = None,
    *,
    dry_run: bool = False,
    measured_bytes: int | None = None,
    attempts: int = ATTEMPTS,
    progress: Progress = ignore_progress,
    reason: str = "",
    sent_before: Requests | None = None,
) -> MergeResult:
    """Carry out an operation, planning again (a few times) when another writer came in between.

    All or nothing: an error leaves the table as it was, and says so in ``.changed``. An intent with
    ``app_id`` and ``batch_id`` takes effect once: a batch that is not above the application's last one
    does nothing, which the result's notes say. ``reason`` is why it is this engine, for the plan.

    A dry run encodes everything that the run would write, to nowhere, so that its numbers are the run's; with
    ``measured_bytes`` only up to that size, and estimates beyond.

    ``sent_before`` is what the table had sent to its store when the operation began; None for nothing.
    """
    facts = describe_operation(intent.operation, table, dry_run=dry_run, engine=engine.name)
    with observe("operation", intent.operation, facts) as observation:
        result = _carry_out(
            intent,
            table,
            engine,
            source,
            dry_run=dry_run,
            measured_bytes=measured_bytes,
            attempts=attempts,
            progress=progress,
            reason=reason,
            sent_before=sent_before,
            observation=observation,
        )
        observation.end(result)
        return result


def _carry_out(
    intent: Intent,
    table: Table,
    engine: Engine,
    source: IngestedSource | None,
    *,
    dry_run: bool,
    measured_bytes: int | None,
    attempts: int,
    progress: Progress,
    reason: str,
    sent_before: Requests | None,
    observation: Observation,
) -> MergeResult:
    begun = time.perf_counter()
    if dry_run:
        plan, rehearsed = _run_dry(
            intent, table, engine, source, measured_bytes, progress=progress, reason=reason
        )
        plan = replace(plan, requests=count_since(table, sent_before))
        result = _report(plan, engine, begun, source=source, change=rehearsed, dry_run=True)
        return replace(result, requests=count_since(table, sent_before))
    seen: Snapshot | None = None
    attempt = 0
    while True:
        attempt += 1
        progress("list target", 0, 0)
        try:
            with table.transaction(intent.operation) as tx:
                seen = _check_writable(tx.snapshot, intent)
                if (note := _find_committed_batch(intent, tx)) is not None:
                    log.info("%s %s: %s", intent.operation, seen.root, note)
                    skipped = _report_skipped(intent, seen, engine, begun, source=source, note=note)
                    return replace(skipped, requests=count_since(table, sent_before))
                snapshot = _with_source_types(seen, source, intent)
                progress("plan", 0, 0)
                prepared = engine.prepare(intent, snapshot, source)
                plan = _make_engine_plan(prepared, snapshot, engine, reason=reason, progress=progress)
                plan = replace(plan, requests=count_since(table, sent_before))
                plan, change = _execute(Execution(plan, prepared, tx, progress), engine)
                progress("commit", 0, 0)
                committed = tx.commit(_with_schema(change, prepared, snapshot))
        except (DamagedTable, StorageError) as error:
            # Unreadable, or merely replaced by another writer while it was read?
            if seen is None or not _has_changed(seen, table):
                raise
            if not _may_plan_again(table, attempt, attempts):
                raise _make_conflict(seen, attempt) from error
            log.info("%s %s: planning again, files have changed: %s", intent.operation, error.path, error)
            observation.retry(error)
            continue
        except CommitConflict as conflict:
            if not _may_plan_again(table, attempt, attempts):
                raise
            log.info("%s %s: planning again after a conflict: %s", intent.operation, conflict.path, conflict)
            observation.retry(conflict)
            continue
        result = _report(plan, engine, begun, source=source, change=change, committed=committed)
        if result.created:
            log.info("%s %s: there was no dataset, it was made", intent.operation, result.path)
        log.info("%s %s: %s", intent.operation, result.path, dict(result))
        return replace(result, attempts=attempt, requests=count_since(table, sent_before))


def count_since(table: Table, before: Requests | None) -> Requests | None:
    """What was sent to the store of a table after ``before``: all of it, also for what came to nothing."""
    sent = table.requests
    return sent if sent is None or before is None else sent - before


def _may_plan_again(table: Table, attempt: int, attempts: int) -> bool:
    """Whether an operation is planned again after this attempt.

    Where writers have no lock to wait at, more often, and after a moment that differs between them.
    """
    if table.commit_attempts is None:
        return attempt < attempts
    time.sleep(random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt)))
    return attempt < max(attempts, table.commit_attempts)


def _with_schema(change: Change, prepared: Prepared, snapshot: Snapshot) -> Change:
    """The change with the schema and partition columns that it gives the table, where it decides them."""
    match prepared.intent:
        case MergeIntent() as intent:
            decides = intent.rule.inserts or snapshot.has_schema
        case intent:
            decides = isinstance(intent, WriteIntent)
    if not decides:
        return change
    return replace(change, schema=prepared.schema, partition_columns=prepared.partition_columns)


def _find_committed_batch(intent: Intent, tx: Transaction | Table) -> str | None:
    """A sentence when the intent's batch was committed before, else None."""
    app, batch = intent.properties.get("app_id"), intent.properties.get("batch_id", "")
    if app is None or not batch.isdecimal():
        return None  # the commit refuses one without the other
    last = tx.last_batch(app)
    if last is None or int(batch) > last:
        return None
    return f"Batch {batch} of {app!r} was committed before (the last one is {last}); nothing was done."


def _make_skipped_plan(intent: Intent, snapshot: Snapshot, engine: Engine, *, note: str, reason: str) -> Plan:
    """The plan of an operation that was committed before."""
    return Plan(
        intent,
        snapshot,
        keep_all(snapshot.files, "batch committed before"),
        snapshot.schema,
        engine=engine.name,
        engine_reason=reason,
        notes=(note,),
        matched=True,
        new_files_exact=True,
        measured_bytes=0,
    )


def _report_skipped(
    intent: Intent,
    snapshot: Snapshot,
    engine: Engine,
    begun: float,
    *,
    source: IngestedSource | None,
    note: str,
) -> MergeResult:
    """The result of an operation that was committed before."""
    files = [MergeFileMetadata(snapshot.show_path(f), f.rows, "preserved", f.size) for f in snapshot.files]
    return MergeResult(
        strategy=intent.rule.name if isinstance(intent, MergeIntent) else intent.operation,
        source_count=source.rows if source is not None else 0,
        target_count_before=snapshot.rows,
        target_count_after=snapshot.rows,
        inserted=0,
        updated=0,
        deleted=0,
        files=files,
        preserved_files=[entry.path for entry in files],
        operation=intent.operation,
        path=snapshot.root,
        engine=engine.name,
        seconds=time.perf_counter() - begun,
        version=snapshot.version,
        notes=(note,),
    )


def _with_source_types(snapshot: Snapshot, source: IngestedSource | None, intent: Intent) -> Snapshot:
    if source is not None and (given := set(snapshot.unstored).intersection(source.schema.names)):
        raise NotSupported(
            f"Column {min(given)!r} of the target has no type, so that no file can hold values of it.",
            path=snapshot.root,
            hint="leave it out of the source: it is NULL in every row.",
        )
    if intent.operation != "overwrite":
        check_variants(snapshot)
        if source is not None:
            check_geometries(source.schema, snapshot.schema, snapshot.root)
    if intent.options.int96 == "convert":
        snapshot = with_microseconds(snapshot)
    return snapshot if source is None else with_target_types(source.schema, snapshot)


def _has_changed(before: Snapshot, table: Table) -> bool:
    """Whether some file of a snapshot is no longer what it was."""
    now = {file.path: file.fingerprint for file in table.snapshot().files}
    return any(now.get(file.path) != file.fingerprint for file in before.files)


def _make_conflict(snapshot: Snapshot, attempts: int) -> CommitConflict:
    return CommitConflict(
        f"Files of {snapshot.root} were replaced by another writer while they were read, {attempts} times.",
        path=snapshot.root,
        hint="nothing was changed; run the operation again when the other writer is done",
    )


def resolve_plan(plan: Plan, prepared: Prepared, matches: Matches) -> Plan:
    """The plan with what matching found: every file kept, rewritten or removed, and exact counts."""
    return plan.with_matches(matches, insert_bytes=estimate_new_bytes(plan, prepared, matches, files=0))


def _report(
    plan: Plan,
    engine: Engine,
    begun: float,
    *,
    source: IngestedSource | None,
    change: Change | None = None,
    committed: Committed | None = None,
    dry_run: bool = False,
) -> MergeResult:
    snapshot = plan.snapshot
    files = _list_file_entries(plan, change)
    if dry_run:  # new files have no name yet
        files = [entry for entry in files if entry.operation != "inserted"]
    paths: Mapping[str, list[str]] = {
        kind: [entry.path for entry in files if entry.operation == kind]
        for kind in ("rewritten", "with_deletes", "inserted", "preserved", "removed")
    }
    before = snapshot.rows
    inserted, updated, deleted = plan.inserted, plan.updated, plan.deleted
    after = before + inserted - deleted
    if committed is not None and committed.rows is not None:  # others have committed, too
        before, after = before + committed.rows - after, committed.rows
    intent = plan.intent
    strategy = intent.rule.name if isinstance(intent, MergeIntent) else intent.operation
    makes = inserted > 0 if change is None else not change.empty
    created = _note_creation(snapshot, makes=makes, dry_run=dry_run)
    return MergeResult(
        strategy=strategy,
        source_count=source.rows if source is not None else 0,
        target_count_before=before,
        target_count_after=after,
        inserted=inserted,
        updated=updated,
        deleted=deleted,
        files=files,
        rewritten_files=paths["rewritten"],
        inserted_files=paths["inserted"],
        preserved_files=paths["preserved"],
        removed_files=paths["removed"],
        files_with_deletes=paths["with_deletes"],
        new_files=plan.new_files,
        new_files_exact=plan.new_files_exact,
        operation=intent.operation,
        path=snapshot.root,
        engine=engine.name,
        dry_run=dry_run,
        bytes_read=plan.bytes_to_read,
        bytes_written=plan.bytes_to_write,
        bytes_exact=plan.bytes_exact or not dry_run,
        seconds=time.perf_counter() - begun,
        version=committed.version if committed is not None else None,
        txid=committed.txid if committed is not None and change is not None and not change.empty else None,
        notes=(*plan.notes, *(committed.notes if committed is not None else ()), *created),
        created=bool(created),
        plan=plan,
    )


def _note_creation(snapshot: Snapshot, *, makes: bool, dry_run: bool) -> tuple[str, ...]:
    """A sentence where the operation makes a dataset that was not there."""
    if snapshot.exists or not makes:
        return ()
    done = "would be made" if dry_run else "was made"
    return (f"There was no dataset at {snapshot.root}: it {done}.",)


def _list_file_entries(plan: Plan, change: Change | None) -> list[MergeFileMetadata]:
    shown = plan.snapshot.show_path
    staged = {r.new.path: r.new for r in change.replaced} if change is not None else {}
    plans = plan.files
    if isinstance(plans, SparsePlans):  # most are kept: their columns tell all of them
        columns = (plans.files.paths, plans.files.rows, plans.files.sizes)
        kept = zip(*(column.to_pylist() for column in columns), strict=True)
        entries = [MergeFileMetadata(shown(path), rows, "preserved", size) for path, rows, size in kept]
        for number, item in plans.changed.items():
            entries[number] = _make_file_entry(item, shown(item.file), staged.get(item.file.path))
    else:
        entries = [_make_file_entry(item, shown(item.file), staged.get(item.file.path)) for item in plans]
    if change is not None:
        entries += [MergeFileMetadata(shown(f.path), f.rows, "inserted", f.size) for f in change.added]
    return entries


def _make_file_entry(item: FilePlan, path: str, new: StagedFile | None) -> MergeFileMetadata:
    """What was done to a file; ``new`` has taken its place."""
    file = item.file
    match item.action:
        case "rewrite":
            rows, size = (new.rows, new.size) if new is not None else (file.rows, file.size)
            return MergeFileMetadata(path, rows, "rewritten", size)
        case "add_deletes":
            return MergeFileMetadata(path, file.rows - item.hits, "with_deletes", file.size)
        case "remove" | "regroup":
            return MergeFileMetadata(path, file.rows, "removed", file.size)
        case _:
            return MergeFileMetadata(path, file.rows, "preserved", file.size)
