"""Stages over files of a plan: probed, written anew, made of new rows; the driver's side of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from intarsia.core.change import Replacement, StagedFile
from intarsia.core.intent import Merge
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import Progress, Transaction, Workplace
from intarsia.core.prepare import Prepared
from intarsia.engines.arrow.placing import Placing
from intarsia.engines.spark.apart import INLINE_BYTES, Room
from intarsia.engines.spark.crew import Crew, balanced
from intarsia.engines.spark.jobs import (
    PlaceWork,
    RewriteWork,
    light,
    place_files,
    rewrite_files,
    with_one_file,
)
from intarsia.engines.spark.source import beside, workspace

DRIVER_INSERT_ROWS = 20_000
"""So few new rows are written by the driver rather than by a stage of their own."""


@contextmanager
def room_for(
    spark: Any, plan: Plan, table: pa.Table | None, *, workplace: Workplace | None, spool_dir: str | None
) -> Iterator[Room | None]:
    """Where rows that every task needs wait while a stage runs; None where they are few."""
    if table is None or table.nbytes <= INLINE_BYTES:
        yield None
        return
    if workplace is not None and not workplace.staging.discards:
        yield workplace.staging  # what lies there goes with the transaction
        return
    place = workspace(spark, beside(plan.snapshot), spool_dir)
    try:
        yield place
    finally:
        place.remove()


def over_files(
    crew: Crew,
    work: Any,
    files: Sequence[FilePlan],
    *,
    shared: Any,
    progress: Progress,
    room: Room | None = None,
) -> list[Any]:
    """A function over shares of files; its results in the order of the files."""
    if not files:
        return []
    writing = shared.workplace is not None
    progress("probe and write files" if writing else "probe files", 0, len(files))
    done = _shared_out(crew, work, files, [item.file.size for item in files], shared=shared, room=room)
    progress("write files" if writing else "probe files", len(files), len(files))
    return done


def rewritten(
    crew: Crew,
    plan: Plan,
    matches: Matches,
    workplace: Workplace,
    progress: Progress,
    *,
    source: pa.Table | None = None,
) -> list[Replacement]:
    """The files of a settled plan that are written anew by hits the driver knows."""
    items = plan.chosen("rewrite")
    jobs = [(item, matches.hits.get(item.file.path, Hits.empty())) for item in items]
    work = RewriteWork(light(plan), workplace, matches.actions, source)
    progress("write files", 0, len(items))
    with room_for(crew.spark, plan, source, workplace=workplace, spool_dir=None) as room:
        staged = _shared_out(
            crew, rewrite_files, jobs, [item.file.size for item in items], shared=work, room=room
        )
    progress("write files", len(items), len(items))
    return [Replacement(item.file, file) for item, file in zip(items, staged, strict=True)]


def _shared_out(
    crew: Crew, work: Any, jobs: Sequence[Any], weights: Sequence[int], *, shared: Any, room: Room | None
) -> list[Any]:
    """``work`` over a list of jobs for each task, which gives as many results; those in the jobs' order."""
    shares = crew.shares(weights) if jobs else []
    done = crew.each(
        work,
        [[jobs[number] for number in share] for share in shares],
        shared=shared,
        weights=[sum(weights[number] for number in share) for share in shares],
        room=room,
    )
    result: dict[int, Any] = {}
    for share, answers in zip(shares, done, strict=True):
        result |= dict(zip(share, answers, strict=True))
    return [result[number] for number in range(len(jobs))]


def placed(
    crew: Crew, plan: Plan, prepared: Prepared, matches: Matches, tx: Transaction, progress: Progress
) -> list[StagedFile]:
    """New files for new rows."""
    placing = Placing(
        with_one_file(plan.snapshot),
        plan.schema,
        prepared.partition_columns,
        plan.intent.options,
        plan.operation,
    )
    prefix = "insert" if isinstance(plan.intent, Merge) else "part"
    new = placing.files(matches.inserts, prepared.table, tx, prefix=prefix)
    if matches.inserted <= DRIVER_INSERT_ROWS:
        staged = [placing.write(file, prepared.table, tx) for file in new]
        if new:
            progress("write files", len(new), len(new))
        return staged
    weights = [len(file.rows) for file in new]
    shares = balanced(weights, crew.tasks)
    progress("write new files", 0, len(new))
    workplace = tx.workplace()
    with room_for(crew.spark, plan, prepared.table, workplace=workplace, spool_dir=None) as room:
        done = crew.each(
            place_files,
            [[new[number] for number in share] for share in shares],
            shared=PlaceWork(placing, prepared.table, workplace),
            weights=[sum(weights[number] for number in share) for share in shares],
            room=room,
        )
    progress("write files", len(new), len(new))
    return [file for files in done for file in files]
