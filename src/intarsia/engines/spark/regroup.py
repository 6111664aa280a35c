"""Compacting and optimizing on executors: groups of files that are tasks of their own."""

from __future__ import annotations

from dataclasses import replace

from intarsia.core.change import Change
from intarsia.core.matches import Matches
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import Progress, Workplace
from intarsia.engines.arrow.regroup import regrouped
from intarsia.engines.spark.crew import Crew
from intarsia.engines.spark.jobs import GroupWork, compact_files, light, optimize_files
from intarsia.engines.spark.ranges import optimize_ranges, range_note


def stage_compact(
    crew: Crew, plan: Plan, workplace: Workplace, *, memory_bytes: int, progress: Progress
) -> Change:
    """Write each group as one file, or as one per partition where the table deals rows out by itself."""
    work = GroupWork(light(plan), workplace, memory_bytes)
    jobs = list(enumerate(plan.groups))
    progress("write files", 0, len(jobs))
    done = crew.each(compact_files, jobs, shared=work, weights=[g.size for g in plan.groups])
    progress("write files", len(jobs), len(jobs))
    return regrouped(plan, [file for files in done for file in files], exclusive=False)


def stage_optimize(
    crew: Crew,
    plan: Plan,
    workplace: Workplace,
    *,
    ranges: dict[int, int],
    drops: Matches | None,
    memory_bytes: int,
    progress: Progress,
) -> tuple[Plan, Change]:
    """A large group is built by many tasks, range by range; any other is one task's work.

    ``ranges`` says of how many ranges the large ones are; ``drops`` what goes where duplicates do.
    """
    gone = Matches() if drops is None else drops
    work = GroupWork(light(plan), workplace, memory_bytes)
    groups = [group for number, group in enumerate(plan.groups) if number not in ranges]
    jobs = [(replace(light(plan), groups=(group,)), _of_group(gone, group)) for group in groups]
    progress("write files", 0, len(jobs))
    changes = crew.each(optimize_files, jobs, shared=work, weights=[g.size for g in groups])
    progress("write files", len(jobs), len(jobs))
    added = [file for change in changes for file in change.added]
    added += optimize_ranges(
        crew, plan, workplace, ranges, drops=gone, memory_bytes=memory_bytes, progress=progress
    )
    plan = replace(plan, notes=(*plan.notes, *range_note(ranges)))
    return plan, regrouped(plan, added, exclusive=drops is not None)


def _of_group(drops: Matches, group: FileGroup) -> Matches:
    """What is dropped of one group's files."""
    paths = {file.path for file in group.files}
    hits = {path: mine for path, mine in drops.hits.items() if path in paths}
    return Matches(drops.actions, hits, drops.dropped & paths)
