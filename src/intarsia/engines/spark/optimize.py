"""Compacting, sorting and z-ordering on executors: a group of files is one job, or many ranges of its order.

Executors sample the clustering columns, and the driver cuts the order into ranges of about equal rows.
Executors write all rows as runs, divided into the ranges, on storage that they share; each range is then
sorted and written by itself, so that the files of the group follow each other in the order. Rows stay Arrow
all the way: a type that Spark lacks loses nothing. Names of runs and files are of one
attempt, and only those that a successful task returns are read or committed; the rest is removed with the
transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from intarsia.core.change import Matches, Staged, StagedFile, Staging
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import OutputLocation, Progress
from intarsia.core.run import ignore_progress
from intarsia.engines.spark.ranges import (
    LEAST_MEMORY,
    RANGES_PER_FILE,
    RangedGroup,
    RangeWork,
    cut_ranges,
    make_range_jobs,
    write_range,
    write_runs,
)
from intarsia.engines.spark.staging import open_attempt, without_files
from intarsia.engines.spark.tasks import TaskRunner
from intarsia.kernel.compact import check_rows, compact_group, compact_partitioned
from intarsia.kernel.optimize import count_stored_bytes, make_order
from intarsia.kernel.optimize import stage_optimize as stage_groups


@dataclass(frozen=True, slots=True)
class GroupWork:
    """A plan whose groups are independent of each other."""

    plan: Plan
    output: OutputLocation
    memory_bytes: int


def compact_files(work: GroupWork, job: tuple[int, FileGroup]) -> list[StagedFile]:
    """Write one group as one file, or as one per partition where the table has a partition spec."""
    number, group = job
    plan = work.plan
    with open_attempt(work.output, plan.snapshot) as tx:
        if not plan.snapshot.replaces_in_place:
            return compact_partitioned(group, plan, tx, number=number)
        return [compact_group(group, plan, tx, number=number)]


def stage_compact(
    runner: TaskRunner, plan: Plan, output: OutputLocation, *, memory_bytes: int, progress: Progress
) -> Staged:
    """Write each group as one file, or as one per partition where the table has a partition spec."""
    work = GroupWork(without_files(plan), output, memory_bytes)
    jobs = list(enumerate(plan.groups))
    progress("write files", 0, len(jobs))
    done = runner.run_each(compact_files, jobs, shared=work, weights=[g.size for g in plan.groups])
    progress("write files", len(jobs), len(jobs))
    return Staged(added=tuple(file for files in done for file in files))


RANGE_BYTES = 128 << 20
"""A group that fits in memory is built by ranges only above this size, where cores would be idle."""
_CORES_THAT_PAY = 3
"""Rows are written and read once more on the way, so two cores would gain nothing over one."""
MOST_RANGES = 2048


def optimize_files(work: GroupWork, job: tuple[Plan, Matches]) -> Staged:
    """Write one group, the only one of the plan given, in the order of its curve, less what is dropped."""
    plan, drops = job
    with open_attempt(work.output, plan.snapshot) as tx:
        return stage_groups(
            plan, tx, threads=1, memory_bytes=work.memory_bytes, progress=ignore_progress, drops=drops
        )


def stage_optimize(
    runner: TaskRunner,
    plan: Plan,
    output: OutputLocation,
    *,
    ranges: dict[int, int],
    drops: Matches | None,
    memory_bytes: int,
    progress: Progress,
    runs_at: Staging | None = None,
) -> Staged:
    """Write each group in its order: a large one range by range by many tasks, any other by one task.

    ``ranges`` is the number of ranges of the large groups; ``drops`` the duplicates to delete; ``runs_at``
    where runs are written, by default the staging directory of the transaction.
    """
    gone = Matches() if drops is None else drops
    work = GroupWork(without_files(plan), output, memory_bytes)
    groups = [group for number, group in enumerate(plan.groups) if number not in ranges]
    jobs = [(replace(without_files(plan), groups=(group,)), _select_group(gone, group)) for group in groups]
    progress("write files", 0, len(jobs))
    staged = runner.run_each(optimize_files, jobs, shared=work, weights=[g.size for g in groups])
    progress("write files", len(jobs), len(jobs))
    added = [file for one in staged for file in one.added]
    added += optimize_ranges(
        runner,
        plan,
        output,
        ranges,
        drops=gone,
        memory_bytes=memory_bytes,
        progress=progress,
        runs_at=runs_at,
    )
    return Staged(added=tuple(added))


def _select_group(drops: Matches, group: FileGroup) -> Matches:
    """What is dropped of one group's files."""
    paths = {file.path for file in group.files}
    hits = {path: mine for path, mine in drops.hits.items() if path in paths}
    return Matches(drops.actions, hits, drops.dropped & paths)


def plan_ranges(plan: Plan, *, memory_bytes: int, cores: int) -> dict[int, int]:
    """The groups that are built by ranges, by their number in the plan, and how many ranges at most.

    A group that becomes one file is one task's work, and so is one that fits in memory while other groups
    keep the cores busy.
    """
    if not make_order(plan).by:
        return {}
    sizes = [count_stored_bytes(group.files) for group in plan.groups]
    total = sum(sizes)
    found: dict[int, int] = {}
    for number, (group, size) in enumerate(zip(plan.groups, sizes, strict=True)):
        long = size > RANGE_BYTES and size * cores > _CORES_THAT_PAY * total
        known = all(file.footer is not None for file in group.files)
        if known and group.outputs > 1 and group.rows > 1 and (size > memory_bytes or long):
            wanted = max(RANGES_PER_FILE * group.outputs, -(-4 * size // max(memory_bytes, LEAST_MEMORY)))
            found[number] = min(wanted, group.rows, MOST_RANGES)
    return found


def describe_ranges(ranges: Mapping[int, int]) -> tuple[str, ...]:
    """What a plan says of the groups that are built by ranges."""
    if not ranges:
        return ()
    where = "one directory" if len(ranges) == 1 else f"{len(ranges):,} directories"
    return (f"The order of {where} is cut into up to {sum(ranges.values()):,} ranges, sorted independently.",)


def optimize_ranges(
    runner: TaskRunner,
    plan: Plan,
    output: OutputLocation,
    ranges: Mapping[int, int],
    *,
    drops: Matches,
    memory_bytes: int,
    progress: Progress,
    runs_at: Staging | None = None,
) -> list[StagedFile]:
    """Write the groups that :func:`plan_ranges` names, in order over all files of a group.

    Rows wait in ``runs_at``, or with the files that come. Memory: a task needs a few times
    ``memory_bytes``; the driver a sample of the clustering columns and some bytes per run and range.
    Storage: the rows once more until the transaction ends.
    """
    work = RangeWork(without_files(plan), output, memory_bytes, runs_at or output.staging)
    groups = [RangedGroup(plan.groups[number], count) for number, count in ranges.items()]
    if not groups:
        return []
    size = sum(group.size for group in groups)
    runner = replace(runner, tasks=max(runner.tasks, -(-size // (8 * max(memory_bytes, LEAST_MEMORY)))))
    steps = len(groups)
    progress("sample rows", 0, steps)
    terms = cut_ranges(runner, work, make_order(plan), groups)
    progress("deal out rows", 0, steps)
    runs = write_runs(runner, work, terms, groups, drops)
    jobs = [
        job
        for group, one, mine in zip(groups, terms, runs, strict=True)
        for job in make_range_jobs(group, one, mine)
    ]
    progress("write files", 0, len(jobs))
    written = runner.run_each(write_range, jobs, shared=work, weights=[job.size for job in jobs])
    progress("write files", len(jobs), len(jobs))
    for number, group in enumerate(groups):
        mine = [
            file
            for job, files in zip(jobs, written, strict=True)
            if job.terms is terms[number]
            for file in files
        ]
        check_rows(mine, _count_rows_left(group.group, drops), group.group)
    return [file for files in written for file in files]


def _count_rows_left(group: FileGroup, drops: Matches) -> int:
    kept = [file for file in group.files if file.path not in drops.dropped]
    return sum(file.rows - len(drops.hits.get(file.path, ())) for file in kept)
