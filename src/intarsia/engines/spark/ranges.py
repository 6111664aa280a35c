"""The order of a large group of files, built by many tasks: sampled, cut into ranges, written range by range.

Executors sample the clustering columns, and the driver cuts the order into ranges of about equal rows.
Executors deal all rows out to the ranges, in runs on the staging storage; each range is then sorted and
written by itself, so that the files of the group follow each other in the order. Rows stay Arrow all the
way: a type that Spark lacks loses nothing. Names of runs and files are of one attempt, and only those that
a successful task returns are read or committed; whatever else there is goes with the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from intarsia.core.change import StagedFile
from intarsia.core.matches import Matches
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import Progress, Workplace
from intarsia.engines.arrow.optimize import order_of, stored_bytes
from intarsia.engines.arrow.regroup import check_rows
from intarsia.engines.spark.crew import Crew
from intarsia.engines.spark.jobs import light
from intarsia.engines.spark.range_files import range_jobs, write_range
from intarsia.engines.spark.range_runs import dealt
from intarsia.engines.spark.range_terms import LEAST_MEMORY, RANGES_PER_FILE, Ranged, RangeWork, cut

RANGE_BYTES = 128 << 20
"""A group that fits in memory is built by ranges only above this size, where cores would be idle."""
_CORES_THAT_PAY = 3
"""Rows are written and read once more on the way, so two cores would gain nothing over one."""
MOST_RANGES = 2048


def planned_ranges(plan: Plan, *, memory_bytes: int, cores: int) -> dict[int, int]:
    """The groups that are built by ranges, by their number in the plan, and how many ranges at most.

    A group that becomes one file is one task's work, and so is one that fits in memory while other groups
    keep the cores busy.
    """
    if not order_of(plan).by:
        return {}
    sizes = [stored_bytes(group.files) for group in plan.groups]
    total = sum(sizes)
    found: dict[int, int] = {}
    for number, (group, size) in enumerate(zip(plan.groups, sizes, strict=True)):
        long = size > RANGE_BYTES and size * cores > _CORES_THAT_PAY * total
        known = all(file.footer is not None for file in group.files)
        if known and group.outputs > 1 and group.rows > 1 and (size > memory_bytes or long):
            wanted = max(RANGES_PER_FILE * group.outputs, -(-4 * size // max(memory_bytes, LEAST_MEMORY)))
            found[number] = min(wanted, group.rows, MOST_RANGES)
    return found


def range_note(ranges: Mapping[int, int]) -> tuple[str, ...]:
    """What a plan says of the groups that are built by ranges."""
    if not ranges:
        return ()
    where = "one directory" if len(ranges) == 1 else f"{len(ranges):,} directories"
    return (f"The order of {where} is cut into up to {sum(ranges.values()):,} ranges, sorted independently.",)


def optimize_ranges(
    crew: Crew,
    plan: Plan,
    workplace: Workplace,
    ranges: Mapping[int, int],
    *,
    drops: Matches,
    memory_bytes: int,
    progress: Progress,
) -> list[StagedFile]:
    """Write the groups that :func:`planned_ranges` names, in order over all files of a group.

    Memory: a task needs a few times ``memory_bytes``; the driver a sample of the clustering columns and
    some bytes per run and range. Storage: the rows once more until the transaction ends.
    """
    work = RangeWork(light(plan), workplace, memory_bytes)
    groups = [Ranged(plan.groups[number], count) for number, count in ranges.items()]
    if not groups:
        return []
    size = sum(group.size for group in groups)
    crew = replace(crew, tasks=max(crew.tasks, -(-size // (8 * max(memory_bytes, LEAST_MEMORY)))))
    steps = len(groups)
    progress("sample rows", 0, steps)
    terms = cut(crew, work, order_of(plan), groups)
    progress("deal out rows", 0, steps)
    runs = dealt(crew, work, terms, groups, drops)
    jobs = [
        job
        for group, one, mine in zip(groups, terms, runs, strict=True)
        for job in range_jobs(group, one, mine)
    ]
    progress("write files", 0, len(jobs))
    written = crew.each(write_range, jobs, shared=work, weights=[job.size for job in jobs])
    progress("write files", len(jobs), len(jobs))
    for number, group in enumerate(groups):
        mine = [
            file
            for job, files in zip(jobs, written, strict=True)
            if job.terms is terms[number]
            for file in files
        ]
        check_rows(mine, _rows_left(group.group, drops), group.group)
    return [file for files in written for file in files]


def _rows_left(group: FileGroup, drops: Matches) -> int:
    kept = [file for file in group.files if file.path not in drops.dropped]
    return sum(file.rows - len(drops.hits.get(file.path, ())) for file in kept)
