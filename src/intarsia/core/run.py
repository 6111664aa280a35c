"""The way of every operation: snapshot, prepare, plan, match, stage, commit, report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from intarsia.common.log import logger
from intarsia.common.source import Source
from intarsia.core.change import Change, Committed, Staging
from intarsia.core.effects import check_write_options
from intarsia.core.files import Snapshot
from intarsia.core.intent import Compact, Deduplicate, Delete, Intent, Merge, Optimize, Update, Write
from intarsia.core.matches import Matches
from intarsia.core.notes import check_geometries
from intarsia.core.outputs import count_new_files, estimate_new_bytes
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.planning import (
    plan_compact,
    plan_deduplicate,
    plan_merge,
    plan_optimize,
    plan_predicate,
    plan_write,
)
from intarsia.core.ports import Engine, Progress, Table, Transaction
from intarsia.core.prepare import Prepared, prepare
from intarsia.core.refusals import refuse
from intarsia.core.rehearsal import MEASURED_BYTES, Rehearsal, nowhere
from intarsia.core.report import MergeFileMetadata, MergeResult
from intarsia.core.retype import with_microseconds, with_types_of
from intarsia.core.rule import Action, Assign, Insert
from intarsia.core.spark_note import check_variants
from intarsia.errors import CommitConflict, DamagedTable, InputError, StorageError

log = logger(__name__)

ATTEMPTS = 4


def silent(_step: str, _done: int, _total: int) -> None:
    """Progress that nobody watches."""


def make_plan(prepared: Prepared, snapshot: Snapshot) -> Plan:
    """What the operation will look at; pure."""
    match prepared.intent:
        case Merge() as intent:
            return plan_merge(intent, snapshot, prepared.facts, schema=prepared.schema)
        case Write() as intent:
            return plan_write(intent, snapshot, prepared.facts, schema=prepared.schema)
        case Delete() | Update() as intent:
            return plan_predicate(intent, snapshot)
        case Compact() as intent:
            return plan_compact(intent, snapshot)
        case Optimize() as intent:
            return plan_optimize(intent, snapshot)
        case Deduplicate() as intent:
            return plan_deduplicate(intent, snapshot)


def _planned(
    prepared: Prepared, snapshot: Snapshot, engine: Engine, *, reason: str, progress: Progress
) -> Plan:
    plan = _closer(make_plan(prepared, snapshot), prepared, progress)
    notes = (*plan.notes, *prepared.notes)
    return replace(plan, engine=engine.name, engine_reason=reason, notes=notes)


def _closer(plan: Plan, prepared: Prepared, progress: Progress) -> Plan:
    """The plan again, with what the footers of the files it has to look into say."""
    if plan.snapshot.closer is None:
        return plan
    # What is found out may bring other files in, such as those that exact row counts leave room for.
    while unknown := [item.file for item in plan.files if _needs_footer(item)]:
        progress("read footers", 0, len(unknown))
        plan = make_plan(prepared, plan.snapshot.looked_into(unknown))
    return plan


def _needs_footer(item: FilePlan) -> bool:
    file = item.file
    if item.action == "remove":  # only its rows are to be counted
        return file.footer is None and file.lens is not None and not file.lens.counted
    return item.action != "keep" and file.footer is None


def look(intent: Intent, table: Table) -> Plan:
    """What an intent without a source will look at, before any row is read and whatever the engine.

    Raises what names, types and the table's state alone make impossible.
    """
    snapshot = _own(table.snapshot(), intent)
    return make_plan(prepare(intent, snapshot, None), snapshot)


def _own(snapshot: Snapshot, intent: Intent) -> Snapshot:
    """The snapshot; raises InputError where its files have a journal and a lock under another root, and
    for options that could have no effect on them."""
    check_write_options(intent, snapshot)
    if snapshot.others is not None:
        raise InputError(
            f"{snapshot.root} {snapshot.others}.",
            path=snapshot.root,
            hint="name the dataset that is meant; a condition on its partition columns chooses a part of it",
        )
    return snapshot


def explain(
    intent: Intent,
    table: Table,
    engine: Engine,
    source: Source | None = None,
    *,
    measured_bytes: int = MEASURED_BYTES,
    progress: Progress = silent,
    reason: str = "",
) -> Plan:
    """The settled plan of an operation: exact counts, no lock taken, nothing left behind.

    Up to ``measured_bytes`` of what the operation would write are encoded, as the run does it, to know the
    new files and their size; beyond that these are estimates, and say so. What the run would refuse is
    refused in any case.
    """
    return _rehearsed(intent, table, engine, source, measured_bytes, progress=progress, reason=reason)[0]


def _rehearsed(
    intent: Intent,
    table: Table,
    engine: Engine,
    source: Source | None,
    most: int,
    *,
    progress: Progress,
    reason: str,
) -> tuple[Plan, Change | None]:
    """The plan, and what it would do to files; None where they are too large to be encoded for that."""
    progress("list target", 0, 0)
    snapshot = _typed(_own(table.snapshot(), intent), source, intent)
    progress("plan", 0, 0)
    prepared = engine.prepare(intent, snapshot, source)
    plan = _planned(prepared, snapshot, engine, reason=reason, progress=progress)
    scanned = sum(item.file.size for item in plan.chosen("scan"))
    if 0 < most >= plan.bytes_to_write + scanned + prepared.source_bytes:
        measured = _measured(plan, prepared, engine, progress)
        if measured is not None:
            return measured
    matches = engine.match(plan, prepared, progress)
    estimated = settled(plan, prepared, matches)
    if 0 < most >= estimated.bytes_to_write:
        measured = _measured(plan, prepared, engine, progress)
        if measured is not None:
            return measured
    if _assigns(prepared.intent):
        _executed(plan, prepared, engine, nowhere(writes=False), progress)
    new = count_new_files(estimated, prepared, matches)
    estimated = replace(
        estimated,
        insert_bytes=estimate_new_bytes(estimated, prepared, matches, files=new.count),
        new_files=new.count,
        new_files_exact=new.exact,
        notes=(*estimated.notes, *new.notes),
    )
    return estimated, None


def _measured(
    plan: Plan, prepared: Prepared, engine: Engine, progress: Progress
) -> tuple[Plan, Change] | None:
    """What a run would do, found out by doing it, short of the commit."""
    with engine.measuring(plan) as staging:
        return None if staging is None else _executed(plan, prepared, engine, staging, progress)


def _executed(
    plan: Plan, prepared: Prepared, engine: Engine, staging: Staging, progress: Progress
) -> tuple[Plan, Change]:
    doing = "measure" if staging.writes else "check"

    def told(step: str, done: int, total: int) -> None:
        progress(step.replace("write", doing), done, total)

    plan, change = engine.execute(plan, prepared, Rehearsal.at(plan.snapshot, staging), told)
    return _accounted(replace(plan, bytes_vary=prepared.shuffled), change), change


def _accounted(plan: Plan, change: Change) -> Plan:
    """The plan with what came of it; raises where values cannot be written."""
    refuse(
        (one for file in change.written for one in file.refused),
        list(_assigned_columns(plan.intent)),
        updated=plan.updated,
        inserted=plan.inserted,
        path=plan.snapshot.root,
    )
    deleted = plan.deleted
    if isinstance(plan.intent, (Compact, Optimize)):
        deleted = sum(f.rows for f in change.removed) - sum(f.rows for f in change.added)
    return replace(
        plan,
        deleted=deleted,
        new_files=len(change.added),
        new_files_exact=True,
        insert_bytes=0 if plan.groups else sum(file.size for file in change.added),
        measured_bytes=sum(file.size for file in change.written),
    )


def _assigns(intent: Intent) -> bool:
    """Whether the operation computes values, rather than taking them as they are."""
    return any(True for _ in _assigned_columns(intent))


def _assigned_columns(intent: Intent) -> Iterator[str]:
    """The columns that are set by expressions, in their order."""
    actions: list[Action] = [Assign(intent.assignments)] if isinstance(intent, Update) else []
    if isinstance(intent, Merge):
        actions = [clause.action for clause in intent.rule.clauses]
    for action in actions:
        if isinstance(action, (Assign, Insert)):
            yield from (".".join(column) for column, _ in action.values or ())


def run(
    intent: Intent,
    table: Table,
    engine: Engine,
    source: Source | None = None,
    *,
    dry_run: bool = False,
    measured_bytes: int = MEASURED_BYTES,
    attempts: int = ATTEMPTS,
    progress: Progress = silent,
    reason: str = "",
) -> MergeResult:
    """Carry out an operation, planning again (a few times) when another writer came in between.

    All or nothing: an error leaves the table as it was, and says so in ``.changed``. An intent with
    ``app_id`` and ``batch_id`` takes effect once: a batch that is not above the application's last one
    does nothing, which the result's notes say. ``reason`` is why it is this engine, for the plan.
    """
    begun = time.perf_counter()
    if dry_run:
        plan, rehearsed = _rehearsed(
            intent, table, engine, source, measured_bytes, progress=progress, reason=reason
        )
        return _report(plan, engine, begun, source=source, change=rehearsed, dry_run=True)
    seen: Snapshot | None = None
    for attempt in range(1, attempts + 1):
        progress("list target", 0, 0)
        try:
            with table.transaction(intent.operation) as tx:
                seen = _own(tx.snapshot, intent)
                if (note := _done_before(intent, tx)) is not None:
                    log.info("%s %s: %s", intent.operation, seen.root, note)
                    return _skipped(intent, seen, engine, begun, source=source, note=note)
                snapshot = _typed(tx.snapshot, source, intent)
                progress("plan", 0, 0)
                prepared = engine.prepare(intent, snapshot, source)
                plan = _planned(prepared, snapshot, engine, reason=reason, progress=progress)
                plan, change = engine.execute(plan, prepared, tx, progress)
                plan = _accounted(plan, change)
                progress("commit", 0, 0)
                committed = tx.commit(_with_schema(change, prepared, snapshot))
        except (DamagedTable, StorageError) as error:
            # Unreadable, or merely replaced by a foreign writer while it was read?
            if seen is None or not _has_changed(seen, table):
                raise
            if attempt == attempts:
                raise _kept_changing(seen, attempts) from error
            log.info("%s %s: planning again, files have changed: %s", intent.operation, error.path, error)
            continue
        except CommitConflict as conflict:
            if attempt == attempts:
                raise
            log.info("%s %s: planning again after a conflict: %s", intent.operation, conflict.path, conflict)
            continue
        result = _report(plan, engine, begun, source=source, change=change, committed=committed)
        if result.created:
            log.info("%s %s: there was no dataset, it was made", intent.operation, result.path)
        log.info("%s %s: %s", intent.operation, result.path, dict(result))
        return replace(result, attempts=attempt)
    raise AssertionError("unreachable")


def _with_schema(change: Change, prepared: Prepared, snapshot: Snapshot) -> Change:
    """The change with the schema and partition columns that it gives the table, where it decides them."""
    match prepared.intent:
        case Merge() as intent:
            decides = intent.rule.inserts or snapshot.settled
        case intent:
            decides = isinstance(intent, Write)
    if not decides:
        return change
    return replace(change, schema=prepared.schema, partition_columns=prepared.partition_columns)


def _done_before(intent: Intent, tx: Transaction) -> str | None:
    """A sentence when the intent's batch was committed before; asked and answered under one lock."""
    app, batch = intent.properties.get("app_id"), intent.properties.get("batch_id", "")
    if app is None or not batch.isdecimal():
        return None  # the commit refuses the one without the other
    last = tx.last_batch(app)
    if last is None or int(batch) > last:
        return None
    return f"Batch {batch} of {app!r} was committed before (the last one is {last}); nothing was done."


def _skipped(
    intent: Intent, snapshot: Snapshot, engine: Engine, begun: float, *, source: Source | None, note: str
) -> MergeResult:
    """What an operation gives that finds itself done."""
    files = [MergeFileMetadata(snapshot.shown(f), f.rows, "preserved", f.size) for f in snapshot.files]
    return MergeResult(
        strategy=intent.rule.name if isinstance(intent, Merge) else intent.operation,
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


def _typed(snapshot: Snapshot, source: Source | None, intent: Intent) -> Snapshot:
    if intent.operation != "overwrite":
        check_variants(snapshot)
        if source is not None:
            check_geometries(source.schema, snapshot.schema, snapshot.root)
    if intent.options.int96 == "convert":
        snapshot = with_microseconds(snapshot)
    return snapshot if source is None else with_types_of(source.schema, snapshot)


def _has_changed(before: Snapshot, table: Table) -> bool:
    """Whether some file of a snapshot is no longer what it was."""
    now = {file.path: file.fingerprint for file in table.snapshot().files}
    return any(now.get(file.path) != file.fingerprint for file in before.files)


def _kept_changing(snapshot: Snapshot, attempts: int) -> CommitConflict:
    return CommitConflict(
        f"Files of {snapshot.root} were replaced by another writer while they were read, {attempts} times.",
        path=snapshot.root,
        hint="nothing was changed; run the operation again when the other writer is done",
    )


def settled(plan: Plan, prepared: Prepared, matches: Matches) -> Plan:
    """The plan with what matching found: every file kept, rewritten or removed, and exact counts."""
    return plan.refined(matches, insert_bytes=estimate_new_bytes(plan, prepared, matches, files=0))


def _report(
    plan: Plan,
    engine: Engine,
    begun: float,
    *,
    source: Source | None,
    change: Change | None = None,
    committed: Committed | None = None,
    dry_run: bool = False,
) -> MergeResult:
    snapshot = plan.snapshot
    files = _file_entries(plan, change)
    if dry_run:  # new files have no name yet
        files = [entry for entry in files if entry.operation != "inserted"]
    paths: Mapping[str, list[str]] = {
        kind: [entry.path for entry in files if entry.operation == kind]
        for kind in ("rewritten", "veiled", "inserted", "preserved", "removed")
    }
    before = snapshot.rows
    inserted, updated, deleted = plan.inserted, plan.updated, plan.deleted
    after = before + inserted - deleted
    if committed is not None and committed.rows is not None:  # of the others' commits nothing else is known
        before, after = before + committed.rows - after, committed.rows
    intent = plan.intent
    strategy = intent.rule.name if isinstance(intent, Merge) else intent.operation
    makes = inserted > 0 if change is None else not change.empty
    created = _created(snapshot, makes=makes, dry_run=dry_run)
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
        veiled_files=paths["veiled"],
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


def _created(snapshot: Snapshot, *, makes: bool, dry_run: bool) -> tuple[str, ...]:
    """A sentence where the operation makes a dataset that was not there."""
    if snapshot.exists or not makes:
        return ()
    done = "would be made" if dry_run else "was made"
    return (f"There was no dataset at {snapshot.root}: it {done}.",)


def _file_entries(plan: Plan, change: Change | None) -> list[MergeFileMetadata]:
    shown = plan.snapshot.shown
    staged = {r.new.path: r.new for r in change.replaced} if change is not None else {}
    entries = []
    for item in plan.files:
        file = item.file
        new = staged.get(file.path)
        match item.action:
            case "rewrite":
                rows, size = (new.rows, new.size) if new is not None else (file.rows, file.size)
                entries.append(MergeFileMetadata(shown(file), rows, "rewritten", size))
            case "veil":
                entries.append(MergeFileMetadata(shown(file), file.rows - item.hits, "veiled", file.size))
            case "remove" | "regroup":
                entries.append(MergeFileMetadata(shown(file), file.rows, "removed", file.size))
            case _:
                entries.append(MergeFileMetadata(shown(file), file.rows, "preserved", file.size))
    if change is not None:
        entries += [MergeFileMetadata(shown(f.path), f.rows, "inserted", f.size) for f in change.added]
    return entries
