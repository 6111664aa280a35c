"""Every operation in threads of this process: matching and staging of a whole plan with the kernel alone.

What only sorting operations need is imported by them, so that a small merge starts sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from intarsia.core.change import Hits, Matches, Staged, StagedFile
from intarsia.core.intent import (
    CompactIntent,
    DeduplicateIntent,
    DeleteIntent,
    MergeIntent,
    OptimizeIntent,
    UpdateIntent,
    WriteIntent,
)
from intarsia.core.plan import FilePlan
from intarsia.core.ports import Execution, Progress
from intarsia.kernel.compact import stage_compact
from intarsia.kernel.copy_rows import stage_copies
from intarsia.kernel.match import MergeMatcher, SourceIndex, find_predicate_hits, resolve_hits, with_new_rows
from intarsia.kernel.partitioned_writer import NewRowWriter
from intarsia.kernel.rewrite import Rewrite, rewrite
from intarsia.kernel.threads import map_in_order, share_threads

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Resources:
    """How much of this machine an operation may take."""

    threads: int
    memory_bytes: int


def match_rows(execution: Execution, resources: Resources) -> Matches:
    """Which rows change; reads key columns (or a predicate's), writes nothing."""
    plan = execution.plan
    match plan.intent:
        case MergeIntent():
            return _match_merge(execution, resources)
        case DeleteIntent() | UpdateIntent() as intent:
            return _match_predicate(execution, intent, resources)
        case DeduplicateIntent() as intent:
            from intarsia.kernel.duplicates import match_duplicates

            return match_duplicates(
                plan,
                keys=intent.keys,
                order_by=intent.order_by,
                threads=resources.threads,
                memory_bytes=resources.memory_bytes,
                progress=execution.progress,
            )
        case WriteIntent() as intent:
            return with_new_rows(_match_predicate(execution, intent, resources), execution.prepared.table)
        case CompactIntent() | OptimizeIntent():
            return Matches()


def stage_files(execution: Execution, matches: Matches, resources: Resources) -> Staged:
    """Write the files of a resolved plan."""
    plan, tx, progress = execution.plan, execution.transaction, execution.progress
    match plan.intent:
        case CompactIntent():
            return stage_compact(plan, tx, threads=resources.threads, progress=progress)
        case OptimizeIntent():
            from intarsia.kernel.optimize import stage_optimize

            return stage_optimize(
                plan,
                tx,
                threads=resources.threads,
                memory_bytes=resources.memory_bytes,
                progress=progress,
            )
        case _ if not plan.snapshot.replaces_in_place:
            return stage_copies(execution, matches, threads=resources.threads)
        case _:
            return _stage_rows(execution, matches, resources)


def _match_merge(execution: Execution, resources: Resources) -> Matches:
    plan, prepared = execution.plan, execution.prepared
    assert isinstance(plan.intent, MergeIntent)
    assert prepared.index is not None
    source = SourceIndex.of(prepared.table, prepared.index, plan.snapshot.partition_columns)
    matcher = MergeMatcher(plan, plan.intent, source)
    batches = list(matcher.iterate_batches(plan.select("scan")))
    found = _map_each(matcher.scan, batches, resources, execution.progress, "scan keys")
    return matcher.resolve([match for batch in found for match in batch])


def _match_predicate(
    execution: Execution, intent: DeleteIntent | UpdateIntent | WriteIntent, resources: Resources
) -> Matches:
    plan = execution.plan
    scans = plan.select("scan")
    merges_on_read = plan.snapshot.format.merge_on_read.get(plan.operation, False)
    copied = merges_on_read and isinstance(intent, UpdateIntent)

    def find_hits(file: FilePlan) -> Hits:
        rows = intent.options.batch_rows
        return find_predicate_hits(file, intent.where, plan.snapshot, rows, keep=copied)

    return resolve_hits(plan, scans, _map_each(find_hits, scans, resources, execution.progress, "scan rows"))


def _stage_rows(execution: Execution, matches: Matches, resources: Resources) -> Staged:
    """Files rewritten under their names, and new files for new rows."""
    plan, prepared, tx = execution.plan, execution.prepared, execution.transaction
    source = prepared.table
    writer = NewRowWriter(
        plan.snapshot, plan.schema, prepared.partition_columns, plan.intent.options, plan.operation
    )
    prefix = "insert" if isinstance(plan.intent, MergeIntent) else "part"
    new = writer.plan_files(matches.inserts, source, tx, prefix=prefix)
    chosen = plan.select("rewrite")
    _, threads = share_threads(resources.threads, len(new) + len(chosen))
    rewrites = [
        replace(
            Rewrite.of(
                item.file,
                matches.hits.get(item.file.path, Hits.make_empty()),
                plan,
                tx,
                actions=matches.actions,
                label=f"rewrite-{number:05d}",
            ),
            threads=threads,
        )
        for number, item in enumerate(chosen)
    ]
    # New files first: they may be large, and at the end only one thread would be busy with them.
    jobs: list[Callable[[], StagedFile]] = [
        *(lambda file=file: writer.write(file, source, tx) for file in new),
        *(lambda task=task: rewrite(task, source) for task in rewrites),
    ]
    staged = _map_each(lambda job: job(), jobs, resources, execution.progress, "write files")
    return Staged(
        {task.file.path: file for task, file in zip(rewrites, staged[len(new) :], strict=True)},
        tuple(staged[: len(new)]),
    )


def _map_each(
    work: Callable[[T], R], items: Sequence[T], resources: Resources, progress: Progress, step: str
) -> list[R]:
    """Results in the order of the items; after the first error no further item is started."""
    results: list[R] = []
    threads = min(resources.threads, len(items))
    for result in map_in_order(work, items, threads=threads, ahead=len(items)):
        results.append(result)
        progress(step, len(results), len(items))
    return results
