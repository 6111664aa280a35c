"""Merges of small sources, DELETE, UPDATE, overwrite: one stage finds the rows that are hit and writes files.

A small source is sent to every task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.change import Hits, Matches, Staged, StagedFile
from intarsia.core.intent import DeleteIntent, MergeIntent, UpdateIntent, WriteIntent
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import Execution, OutputLocation
from intarsia.core.rule import Action, Assign, Drop
from intarsia.engines.spark.copies import copy_files, group_by_partition, sort_by_plan, with_copies
from intarsia.engines.spark.staging import (
    AttemptOutput,
    open_shared_directory,
    rewrite_one,
    run_over_files,
    without_files,
)
from intarsia.engines.spark.tasks import TaskRunner
from intarsia.kernel.match import FileMatch, MergeMatcher, SourceIndex, find_predicate_hits, resolve_hits
from intarsia.kernel.rewrite import Rewrite, rewrite


@dataclass(frozen=True, slots=True)
class MergeWork:
    """A merge whose source is sent with the tasks; without an output location files are only probed."""

    matcher: MergeMatcher
    output: OutputLocation | None


def merge_files(work: MergeWork, files: Sequence[FilePlan]) -> list[tuple[FileMatch, StagedFile | None]]:
    """Probe some files together, and rewrite those that are hit."""
    matcher = work.matcher
    found = matcher.scan(files)
    refused = any(match.nulls or match.several or match.moved is not None for match in found)
    if work.output is None or refused:
        return [(match, None) for match in found]
    tx = AttemptOutput.at(work.output)
    result: list[tuple[FileMatch, StagedFile | None]] = []
    for number, match in enumerate(found):
        staged = None
        if (len(match.hits) or match.plan.forced) and not matcher.drops_all_rows(match):
            label = f"rewrite-{number:05d}"
            task = Rewrite.of(
                match.plan.file, match.hits, matcher.plan, tx, actions=matcher.actions, label=label
            )
            staged = rewrite(task, matcher.source.table)
        result.append((match, staged))
    return result


@dataclass(frozen=True, slots=True)
class MergeProbe:
    """Looks for the keys of a merge."""

    matcher: MergeMatcher

    @property
    def plan(self) -> Plan:
        return self.matcher.plan

    @property
    def actions(self) -> tuple[Action, ...]:
        return self.matcher.actions

    @property
    def source(self) -> pa.Table:
        return self.matcher.source.table

    def match(self, files: Sequence[FilePlan]) -> list[FileMatch]:
        matcher = self.matcher
        found = [match for batch in matcher.iterate_batches(files) for match in matcher.scan(batch)]
        for match in found:  # together: a slice would travel with all the rest
            asked = match.matched if matcher.rule.inserts else []
            match.matched = [pc.unique(pa.concat_arrays(asked))] if asked else []
        return found


def merge_into_copies(runner: TaskRunner, execution: Execution, *, spool_dir: str | None = None) -> Matches:
    """A merge whose source travels to every task; without a transaction only probed."""
    plan, prepared, output = execution.plan, execution.prepared, execution.output
    matcher = _make_matcher(execution)
    scans = group_by_partition(plan)
    with open_shared_directory(
        runner.spark, plan, prepared.table, output=output, spool_dir=spool_dir
    ) as room:
        shares = copy_files(runner, MergeProbe(matcher), scans, output, execution.progress, room=room)
    matches = replace(matcher, plan=plan).resolve(sort_by_plan(plan, scans, shares))
    return with_copies(matches, scans, shares)


def match_merge(runner: TaskRunner, execution: Execution, *, spool_dir: str | None) -> Matches:
    """Match a merge whose source is sent to every task; with a transaction, write the files that are hit."""
    if not execution.plan.snapshot.replaces_in_place:
        return merge_into_copies(runner, execution, spool_dir=spool_dir)
    plan, prepared, output = execution.plan, execution.prepared, execution.output
    matcher = _make_matcher(execution)
    scans, work, table = plan.select("scan"), MergeWork(matcher, output), prepared.table
    with open_shared_directory(runner.spark, plan, table, output=output, spool_dir=spool_dir) as room:
        found = run_over_files(
            runner, merge_files, scans, shared=work, progress=execution.progress, room=room
        )
    matches = replace(matcher, plan=plan).resolve([match for match, _ in found])
    rewritten = {match.plan.file.path: file for match, file in found if file is not None}
    return replace(matches, staged=Staged(rewritten))


def _make_matcher(execution: Execution) -> MergeMatcher:
    plan, prepared = execution.plan, execution.prepared
    assert isinstance(plan.intent, MergeIntent)
    assert prepared.index is not None
    index = SourceIndex.of(prepared.table, prepared.index, plan.snapshot.partition_columns)
    return MergeMatcher(without_files(plan), plan.intent, index)


@dataclass(frozen=True, slots=True)
class PredicateWork:
    """A DELETE or UPDATE; without an output location files are only probed."""

    plan: Plan
    output: OutputLocation | None
    actions: tuple[Action, ...]


def rewrite_predicate_files(
    work: PredicateWork, files: Sequence[FilePlan]
) -> list[tuple[Hits, StagedFile | None]]:
    """Find the rows for which the predicate is TRUE, and rewrite the files that have some."""
    plan = work.plan
    intent = plan.intent
    assert isinstance(intent, (DeleteIntent, UpdateIntent, WriteIntent))
    tx = None if work.output is None else AttemptOutput.at(work.output)
    result: list[tuple[Hits, StagedFile | None]] = []
    for number, item in enumerate(files):
        hits = find_predicate_hits(item, intent.where, plan.snapshot, intent.options.batch_rows)
        emptied = not isinstance(intent, UpdateIntent) and len(hits) == item.file.rows
        staged = None
        if tx is not None and len(hits) and not emptied:
            staged = rewrite_one(item, hits, plan, tx, actions=work.actions, number=number, source=None)
        result.append((hits, staged))
    return result


@dataclass(frozen=True, slots=True)
class PredicateProbe:
    """Looks for rows that make the predicate of a DELETE, UPDATE or overwrite TRUE."""

    plan: Plan
    actions: tuple[Action, ...]
    source: pa.Table | None = None

    def match(self, files: Sequence[FilePlan]) -> list[FileMatch]:
        intent = self.plan.intent
        assert isinstance(intent, (DeleteIntent, UpdateIntent, WriteIntent))
        snapshot, rows = self.plan.snapshot, intent.options.batch_rows
        return [FileMatch(item, find_predicate_hits(item, intent.where, snapshot, rows)) for item in files]


def filter_into_copies(runner: TaskRunner, execution: Execution) -> Matches:
    """A DELETE, UPDATE or overwrite; without a transaction only probed."""
    plan, intent = execution.plan, execution.plan.intent
    action = Assign(intent.assignments) if isinstance(intent, UpdateIntent) else Drop()
    scans = group_by_partition(plan)
    probe = PredicateProbe(without_files(plan), (action,))
    shares = copy_files(runner, probe, scans, execution.output, execution.progress)
    found = sort_by_plan(plan, scans, shares)
    matches = resolve_hits(plan, plan.select("scan"), [match.hits for match in found])
    return with_copies(matches, scans, shares)


def match_predicate(runner: TaskRunner, execution: Execution) -> Matches:
    """Match a DELETE, UPDATE or overwrite; with a transaction, write the files that are hit."""
    plan, intent = execution.plan, execution.plan.intent
    if not plan.snapshot.replaces_in_place:
        return filter_into_copies(runner, execution)
    action = Assign(intent.assignments) if isinstance(intent, UpdateIntent) else Drop()
    scans = plan.select("scan")
    work = PredicateWork(without_files(plan), execution.output, (action,))
    found = run_over_files(runner, rewrite_predicate_files, scans, shared=work, progress=execution.progress)
    rewritten = {
        item.file.path: file for item, (_, file) in zip(scans, found, strict=True) if file is not None
    }
    matches = resolve_hits(plan, scans, [hits for hits, _ in found])
    return replace(matches, staged=Staged(rewritten))
