"""DELETE, UPDATE and overwrite: one stage finds the rows that meet the condition, and writes the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from intarsia.core.change import Hits, Matches, Staged, StagedFile
from intarsia.core.intent import Delete, Update, Write
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import Execution, OutputLocation
from intarsia.core.rule import Action, Assign, Drop
from intarsia.engines.spark.copies import copy_files_of, group_by_partition, in_plan_order, with_copies
from intarsia.engines.spark.output import AttemptOutput
from intarsia.engines.spark.staging import rewrite_one, run_over_files, without_files
from intarsia.engines.spark.tasks import TaskRunner
from intarsia.kernel.match import FileMatch, predicate_hits, resolve_hits


@dataclass(frozen=True, slots=True)
class PredicateWork:
    """A DELETE or UPDATE; without an output location files are only probed."""

    plan: Plan
    output: OutputLocation | None
    actions: tuple[Action, ...]


def predicate_files(work: PredicateWork, files: Sequence[FilePlan]) -> list[tuple[Hits, StagedFile | None]]:
    """Find the rows for which the predicate is TRUE, and rewrite the files that have some."""
    plan = work.plan
    intent = plan.intent
    assert isinstance(intent, (Delete, Update, Write))
    tx = None if work.output is None else AttemptOutput.at(work.output)
    result: list[tuple[Hits, StagedFile | None]] = []
    for number, item in enumerate(files):
        hits = predicate_hits(item, intent.where, plan.snapshot, intent.options.batch_rows)
        emptied = not isinstance(intent, Update) and len(hits) == item.file.rows
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

    def matches(self, files: Sequence[FilePlan]) -> list[FileMatch]:
        intent = self.plan.intent
        assert isinstance(intent, (Delete, Update, Write))
        snapshot, rows = self.plan.snapshot, intent.options.batch_rows
        return [FileMatch(item, predicate_hits(item, intent.where, snapshot, rows)) for item in files]


def filter_into_copies(runner: TaskRunner, execution: Execution) -> Matches:
    """A DELETE, UPDATE or overwrite; without a transaction only probed."""
    plan, intent = execution.plan, execution.plan.intent
    action = Assign(intent.assignments) if isinstance(intent, Update) else Drop()
    scans = group_by_partition(plan)
    probe = PredicateProbe(without_files(plan), (action,))
    shares = copy_files_of(runner, probe, scans, execution.output, execution.progress)
    found = in_plan_order(plan, scans, shares)
    matches = resolve_hits(plan, plan.select("scan"), [match.hits for match in found])
    return with_copies(matches, scans, shares)


def match_predicate(runner: TaskRunner, execution: Execution) -> Matches:
    """Match a DELETE, UPDATE or overwrite; with a transaction, write the files that are hit."""
    plan, intent = execution.plan, execution.plan.intent
    if not plan.snapshot.replaces_in_place:
        return filter_into_copies(runner, execution)
    action = Assign(intent.assignments) if isinstance(intent, Update) else Drop()
    scans = plan.select("scan")
    work = PredicateWork(without_files(plan), execution.output, (action,))
    found = run_over_files(runner, predicate_files, scans, shared=work, progress=execution.progress)
    rewritten = {
        item.file.path: file for item, (_, file) in zip(scans, found, strict=True) if file is not None
    }
    matches = resolve_hits(plan, scans, [hits for hits, _ in found])
    return replace(matches, staged=Staged(rewritten))
