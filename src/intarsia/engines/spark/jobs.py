"""What a task does with its files: probe and rewrite, group, place; the Arrow kernel on an executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from intarsia.core.change import Change, StagedFile
from intarsia.core.files import Snapshot
from intarsia.core.intent import Delete, Update, Write
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import FileGroup, FilePlan, Plan
from intarsia.core.ports import Workplace
from intarsia.core.rule import Action
from intarsia.core.run import silent
from intarsia.engines.arrow.compact import compact_dealt, compact_group
from intarsia.engines.arrow.matching import FileMatch, MergeMatcher
from intarsia.engines.arrow.optimize import stage_optimize
from intarsia.engines.arrow.placing import NewFile, Placing
from intarsia.engines.arrow.predicates import predicate_hits
from intarsia.engines.arrow.rewrite import Rewrite, rewrite
from intarsia.engines.spark.attempts import attempt_at
from intarsia.engines.spark.crew import Attempt


def light(plan: Plan) -> Plan:
    """The plan without its files, which travel with the jobs."""
    return replace(plan, files=(), groups=(), snapshot=replace(plan.snapshot, files=()))


def with_one_file(snapshot: Snapshot) -> Snapshot:
    """Enough of a snapshot to lay new files out as its own are."""
    return replace(snapshot, files=snapshot.files[:1])


@dataclass(frozen=True, slots=True)
class MergeWork:
    """A merge whose source travels with the work; without a workplace files are only probed."""

    matcher: MergeMatcher
    workplace: Workplace | None


def merge_files(work: MergeWork, files: Sequence[FilePlan]) -> list[tuple[FileMatch, StagedFile | None]]:
    """Probe some files together, and write anew those that are hit."""
    matcher = work.matcher
    found = matcher.scan(files)
    refused = any(match.nulls or match.several or match.moved is not None for match in found)
    if work.workplace is None or refused:
        return [(match, None) for match in found]
    tx = Attempt.at(work.workplace)
    result: list[tuple[FileMatch, StagedFile | None]] = []
    for number, match in enumerate(found):
        staged = None
        if (len(match.hits) or match.plan.forced) and not matcher.empties(match):
            label = f"rewrite-{number:05d}"
            task = Rewrite.of(
                match.plan.file, match.hits, matcher.plan, tx, actions=matcher.actions, label=label
            )
            staged = rewrite(task, matcher.source.table)
        result.append((match, staged))
    return result


@dataclass(frozen=True, slots=True)
class PredicateWork:
    """A DELETE or UPDATE; without a workplace files are only probed."""

    plan: Plan
    workplace: Workplace | None
    actions: tuple[Action, ...]


def predicate_files(work: PredicateWork, files: Sequence[FilePlan]) -> list[tuple[Hits, StagedFile | None]]:
    """Find the rows for which the predicate is TRUE, and write anew the files that have some."""
    plan = work.plan
    intent = plan.intent
    assert isinstance(intent, (Delete, Update, Write))
    tx = None if work.workplace is None else Attempt.at(work.workplace)
    result: list[tuple[Hits, StagedFile | None]] = []
    for number, item in enumerate(files):
        hits = predicate_hits(item, intent.where, plan.snapshot, intent.options.batch_rows)
        emptied = not isinstance(intent, Update) and len(hits) == item.file.rows
        staged = None
        if tx is not None and len(hits) and not emptied:
            staged = _rewritten(item, hits, plan, tx, actions=work.actions, number=number, source=None)
        result.append((hits, staged))
    return result


@dataclass(frozen=True, slots=True)
class RewriteWork:
    """Files whose hits are known."""

    plan: Plan
    workplace: Workplace
    actions: tuple[Action, ...]
    source: pa.Table | None = None


def rewrite_files(work: RewriteWork, files: Sequence[tuple[FilePlan, Hits]]) -> list[StagedFile]:
    """Write files anew by hits that the driver has."""
    tx = Attempt.at(work.workplace)
    return [
        _rewritten(item, hits, work.plan, tx, actions=work.actions, number=number, source=work.source)
        for number, (item, hits) in enumerate(files)
    ]


def _rewritten(
    item: FilePlan,
    hits: Hits,
    plan: Plan,
    tx: Workplace,
    *,
    actions: tuple[Action, ...],
    number: int,
    source: pa.Table | None,
) -> StagedFile:
    task = Rewrite.of(item.file, hits, plan, tx, actions=actions, label=f"rewrite-{number:05d}")
    return rewrite(task, source)


@dataclass(frozen=True, slots=True)
class PlaceWork:
    """New rows that travel with the work."""

    placing: Placing
    source: pa.Table
    workplace: Workplace


def place_files(work: PlaceWork, files: Sequence[NewFile]) -> list[StagedFile]:
    """Write some new files."""
    tx = Attempt.at(work.workplace)
    return [work.placing.write(file, work.source, tx) for file in files]


@dataclass(frozen=True, slots=True)
class GroupWork:
    """A plan whose groups are independent of each other."""

    plan: Plan
    workplace: Workplace
    memory_bytes: int


def compact_files(work: GroupWork, job: tuple[int, FileGroup]) -> list[StagedFile]:
    """Write one group as one file, or as one per partition where the table deals rows out by itself."""
    number, group = job
    plan = work.plan
    with attempt_at(work.workplace, plan.snapshot) as tx:
        if plan.snapshot.spread is not None:
            return compact_dealt(group, plan, tx, number=number)
        return [compact_group(group, plan, tx, number=number)]


def optimize_files(work: GroupWork, job: tuple[Plan, Matches]) -> Change:
    """Write one group, the only one of the plan given, in the order of its curve, less what is dropped."""
    plan, drops = job
    with attempt_at(work.workplace, plan.snapshot) as tx:
        return stage_optimize(
            plan, tx, threads=1, memory_bytes=work.memory_bytes, progress=silent, drops=drops
        )
