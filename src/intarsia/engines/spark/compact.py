"""Compaction on executors: each group of files is one job."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.core.change import Staged, StagedFile
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import OutputLocation, Progress
from intarsia.engines.spark.output import open_attempt
from intarsia.engines.spark.staging import without_files
from intarsia.engines.spark.tasks import TaskRunner
from intarsia.kernel.compact import compact_group, compact_partitioned


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
    done = runner.each(compact_files, jobs, shared=work, weights=[g.size for g in plan.groups])
    progress("write files", len(jobs), len(jobs))
    return Staged(added=tuple(file for files in done for file in files))
