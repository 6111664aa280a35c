"""Tables whose files are never replaced: rows are copied into new files of their partitions.

Files of one partition go to one task as far as the work stays even, so that each partition gets few new
files. Positions of hits come to the driver, eight bytes each, where delete files are made of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from intarsia.common.schema import conform_table
from intarsia.core.change import Hits, Matches, Staged, StagedFile
from intarsia.core.partitioner import Partitioner, PartitionKey
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import Execution, OutputLocation, Progress
from intarsia.core.refusals import ValuesRefused
from intarsia.core.rule import Action, Drop, Insert
from intarsia.engines.spark.staging import (
    DRIVER_INSERT_ROWS,
    open_attempt,
    open_shared_directory,
    without_files,
)
from intarsia.engines.spark.tasks import SharedDirectory, TaskRunner
from intarsia.kernel.copy_rows import CopyTask, choose_prefix, make_copy_tasks
from intarsia.kernel.match import FileMatch
from intarsia.kernel.output_format import OutputFormat
from intarsia.kernel.partitioned_writer import SLICE_ROWS, NewRowWriter, Piece, write_partitioned
from intarsia.kernel.rewrite import Rewrite
from intarsia.kernel.threads import split_by_weight

TASK_ROWS = 1 << 16
"""New rows that are worth a task of their own."""
T = TypeVar("T")


def is_copy_on_write(plan: Plan) -> bool:
    """Whether unchanged rows of a file that is hit are copied, too, since the file is removed."""
    return not plan.snapshot.format.merge_on_read.get(plan.operation)


def write_copies(
    plan: Plan, output: OutputLocation, pieces: Iterable[Piece], *, lineage: bool
) -> list[StagedFile]:
    """Write rows into new files of their partitions; ``lineage`` where they are copied from old files.

    Runs on an executor. What an attempt that fails has begun is gone. Memory: a row group per partition,
    within the bounds of :class:`PartitionedWriter`.
    """
    with open_attempt(output, plan.snapshot) as tx:
        return write_partitioned(OutputFormat.of(plan, tx, lineage=lineage), tx, choose_prefix(plan), pieces)


def make_replacement_rows(
    item: FilePlan,
    hits: Hits,
    plan: Plan,
    output: OutputLocation,
    *,
    actions: tuple[Action, ...],
    source: pa.Table | None,
) -> Iterator[Piece]:
    """The rows that replace those of one file; all of them where it is rewritten without a hit."""
    task = Rewrite.of(item.file, hits, plan, output, actions=actions, label="")
    copied = CopyTask(task, copies=is_copy_on_write(plan) or not len(hits))
    return copied.make_pieces(source, OutputFormat.of(plan, output, lineage=True))


class Probe(Protocol):
    """Finds the rows of files that are hit. Serializable."""

    @property
    def plan(self) -> Plan: ...

    @property
    def actions(self) -> tuple[Action, ...]: ...

    @property
    def source(self) -> pa.Table | None:
        """The rows that hits take their values from."""

    def match(self, files: Sequence[FilePlan]) -> list[FileMatch]:
        """What is found in each file, in their order."""


@dataclass(frozen=True, slots=True)
class CopyWork:
    """Files to be probed; without an output location nothing is written."""

    probe: Probe
    output: OutputLocation | None


@dataclass(frozen=True, slots=True)
class MatchSummary:
    """What was found in one file, without the file itself and without what only writing needs."""

    hits: Hits
    matched: list[pa.Array]
    nulls: dict[str, int]
    several: int

    @staticmethod
    def of(match: FileMatch) -> MatchSummary:
        return MatchSummary(replace(match.hits, sources=None), match.matched, match.nulls, match.several)

    def match(self, item: FilePlan) -> FileMatch:
        return FileMatch(item, self.hits, self.matched, self.nulls, None, self.several)


@dataclass(frozen=True, slots=True)
class CopiedFiles:
    """What one task found in its files, and the new files it wrote."""

    seen: list[MatchSummary]
    added: list[StagedFile] = field(default_factory=list)


def copy_matched(work: CopyWork, files: Sequence[FilePlan]) -> CopiedFiles:
    """Probe some files, and write the rows that replace theirs into new files, all of them together.

    A file that loses every row has nothing to copy, and nothing is written where a row makes the
    operation impossible.
    """
    probe = work.probe
    found = probe.match(files)
    seen = [MatchSummary.of(match) for match in found]
    refused = any(match.nulls or match.several for match in found)
    if work.output is None or refused:
        return CopiedFiles(seen)
    output = work.output

    def make_pieces() -> Iterator[Piece]:
        for match in found:
            item, hits = match.plan, match.hits
            if (len(hits) or item.forced) and not _is_emptied(match, probe.actions):
                yield from make_replacement_rows(
                    item, hits, probe.plan, output, actions=probe.actions, source=probe.source
                )

    return CopiedFiles(seen, write_copies(probe.plan, output, make_pieces(), lineage=True))


def _is_emptied(match: FileMatch, actions: Sequence[Action]) -> bool:
    drops = [number for number, action in enumerate(actions) if isinstance(action, Drop)]
    return 0 < match.plan.file.rows == sum(len(match.hits.select_action(number)) for number in drops)


@dataclass(frozen=True, slots=True)
class KnownHitsWork:
    """Files whose hits the driver knows."""

    plan: Plan
    output: OutputLocation
    actions: tuple[Action, ...]
    source: pa.Table | None


def copy_known(work: KnownHitsWork, jobs: Sequence[tuple[FilePlan, Hits]]) -> list[StagedFile]:
    """Copy rows of some files into new ones."""
    plan, output = work.plan, work.output
    pieces = (
        piece
        for item, hits in jobs
        for piece in make_replacement_rows(item, hits, plan, output, actions=work.actions, source=work.source)
    )
    return write_copies(plan, output, pieces, lineage=True)


@dataclass(frozen=True, slots=True)
class InsertWork:
    """New rows that are sent with the tasks."""

    plan: Plan
    placing: NewRowWriter
    source: pa.Table
    output: OutputLocation


def insert_rows(work: InsertWork, job: Sequence[tuple[Insert, pa.Array]]) -> list[StagedFile]:
    """Write some source rows into new files."""
    pieces = (
        piece
        for action, rows in job
        for piece in work.placing.make_pieces(action, rows, work.source, work.output)
    )
    return write_copies(work.plan, work.output, pieces, lineage=False)


def stage_copies(runner: TaskRunner, execution: Execution, matches: Matches) -> Staged:
    """What is left to write once rows are matched; the execution's plan is resolved."""
    plan, tx = execution.plan, execution.transaction
    copied = make_copy_tasks(plan, matches, tx)
    rest = [one for one in copied if one.file.path not in matches.done and (one.copies or one.changing)]
    added = [*matches.staged.added, *_copy_known_files(runner, execution, rest, matches)]
    if matches.inserts:
        added += _insert_new_rows(runner, execution, matches)
    return Staged(added=tuple(added))


def group_by_partition(plan: Plan) -> list[FilePlan]:
    """The files to scan, those of one partition one after the other."""
    partitioner = plan.snapshot.partitioner
    homes: dict[Any, list[FilePlan]] = {}
    for item in plan.select("scan"):
        homes.setdefault(partitioner.partition_of(item.file).key, []).append(item)
    return [item for items in homes.values() for item in items]


def copy_files(
    runner: TaskRunner,
    probe: Probe,
    scans: Sequence[FilePlan],
    output: OutputLocation | None,
    progress: Progress,
    *,
    room: SharedDirectory | None = None,
) -> list[CopiedFiles]:
    if not scans:
        return []
    progress("probe files" if output is None else "probe and write files", 0, len(scans))
    jobs = _split_shares(runner, scans, [item.file.size for item in scans])
    done = runner.run_each(
        copy_matched,
        jobs,
        shared=CopyWork(probe, output),
        weights=[sum(item.file.size for item in job) for job in jobs],
        room=room,
    )
    progress("probe files" if output is None else "write files", len(scans), len(scans))
    return done


def _split_shares(runner: TaskRunner, items: Sequence[T], weights: Sequence[int]) -> list[list[T]]:
    return split_by_weight(items, weights, len(runner.make_shares(weights))) if items else []


def sort_by_plan(plan: Plan, scans: Sequence[FilePlan], shares: Iterable[CopiedFiles]) -> list[Any]:
    """What was found in each file to scan, as the plan lists them: errors name the first."""
    seen = [one for share in shares for one in share.seen]
    found = {item.file.path: one.match(item) for item, one in zip(scans, seen, strict=True)}
    return [found[item.file.path] for item in plan.select("scan")]


def with_copies(matches: Matches, scans: Sequence[FilePlan], shares: Iterable[CopiedFiles]) -> Matches:
    """The matches, with what was written for them."""
    staged = Staged(added=tuple(file for share in shares for file in share.added))
    return replace(matches, staged=staged, done=frozenset(item.file.path for item in scans))


def _copy_known_files(
    runner: TaskRunner, execution: Execution, copied: Sequence[CopyTask], matches: Matches
) -> list[StagedFile]:
    """Copy rows of files whose hits the driver knows, by a stage of its own."""
    if not copied:
        return []
    plan, source, progress = execution.plan, execution.prepared.table, execution.progress
    items = {item.file.path: item for item in plan.touched}
    jobs = [(items[one.file.path], one.rewrite.hits) for one in copied]
    shares = _split_shares(runner, jobs, [item.file.size for item, _ in jobs])
    work = KnownHitsWork(without_files(plan), execution.transaction.output(), matches.actions, source)
    progress("write files", 0, len(jobs))
    with open_shared_directory(runner.spark, plan, source, output=work.output, spool_dir=None) as room:
        done = runner.run_each(
            copy_known,
            shares,
            shared=work,
            weights=[sum(item.file.size for item, _ in share) for share in shares],
            room=room,
        )
    progress("write files", len(jobs), len(jobs))
    return [file for files in done for file in files]


def make_new_row_writer(plan: Plan) -> NewRowWriter:
    """How source rows become rows of the table."""
    snapshot = plan.snapshot.with_files()
    return NewRowWriter(snapshot, plan.schema, (), plan.intent.options, plan.operation)


def group_new_rows(
    plan: Plan, inserts: Iterable[tuple[Any, pa.Array]], source: pa.Table
) -> list[tuple[Insert, pa.Array]]:
    """New rows, those of one partition one after the other."""
    writer, partitioner = make_new_row_writer(plan), plan.snapshot.partitioner
    parts: dict[Any, list[tuple[Insert, pa.Array]]] = {}
    try:
        for action, rows in inserts:
            for part, mine in split_new_rows(writer, partitioner, action, rows, source):
                parts.setdefault(part.key, []).append((action, mine))
    except ValuesRefused:  # to be counted, wherever the rows would have gone
        return list(inserts)
    return [one for pieces in parts.values() for one in _join_actions(pieces)]


def split_new_rows(
    writer: NewRowWriter, partitioner: Partitioner, action: Insert, rows: pa.Array, source: pa.Table
) -> Iterator[tuple[PartitionKey, pa.Array]]:
    """The partitions that new rows go to, each with some of its rows; raises ValuesRefused."""
    if not partitioner.columns:
        yield PartitionKey(), rows
        return
    wanted = pa.schema([writer.schema.field(name) for name in partitioner.columns])
    for start in range(0, len(rows), SLICE_ROWS):
        piece = rows.slice(start, SLICE_ROWS)
        made = writer.build(piece, action, source).select(wanted.names)
        deciding = conform_table(made, wanted, operation=writer.operation, path=writer.snapshot.root)
        for part, mine in partitioner.partition_rows(deciding):
            yield part, piece if mine is None else piece.take(mine)


def _join_actions(pieces: Sequence[tuple[Insert, pa.Array]]) -> Iterator[tuple[Insert, pa.Array]]:
    """Rows of one action together."""
    actions = {id(action): action for action, _ in pieces}
    for mark, action in actions.items():
        yield action, pa.concat_arrays([rows for one, rows in pieces if id(one) == mark])


def cut_shares(
    pieces: Iterable[tuple[Insert, pa.Array]], most: int
) -> Iterator[list[tuple[Insert, pa.Array]]]:
    """Neighbouring rows in shares of so many, the last one of fewer."""
    share: list[tuple[Insert, pa.Array]] = []
    room = most
    for action, rows in pieces:
        while len(rows):
            mine = rows.slice(0, room)
            share.append((action, mine))
            room -= len(mine)
            rows = rows.slice(len(mine))
            if not room:
                yield share
                share, room = [], most
    if share:
        yield share


def _insert_new_rows(runner: TaskRunner, execution: Execution, matches: Matches) -> list[StagedFile]:
    """Write new files for new rows: by the driver where they are few, else by a stage."""
    plan, tx, progress = execution.plan, execution.transaction, execution.progress
    source, bare = execution.prepared.table, without_files(plan)
    rows = group_new_rows(plan, matches.inserts, source)
    if matches.inserted <= DRIVER_INSERT_ROWS:
        few = insert_rows(InsertWork(bare, make_new_row_writer(plan), source, tx), rows)
        progress("write files", len(few), len(few))
        return few
    most = max(TASK_ROWS, -(-matches.inserted // runner.tasks))
    shares = [[(action, _compact_array(mine)) for action, mine in share] for share in cut_shares(rows, most)]
    progress("write new files", 0, len(shares))
    output = tx.output()
    with open_shared_directory(runner.spark, plan, source, output=output, spool_dir=None) as room:
        done = runner.run_each(
            insert_rows,
            shares,
            shared=InsertWork(bare, make_new_row_writer(plan), source, output),
            weights=[sum(len(mine) for _, mine in share) for share in shares],
            room=room,
        )
    added = [file for files in done for file in files]
    progress("write files", len(added), len(added))
    return added


def _compact_array(rows: pa.Array) -> pa.Array:
    """Copy a slice, which would be serialized with the rest of its array."""
    return pa.concat_arrays([rows])
