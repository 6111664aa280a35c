"""Stages for tables whose files are never replaced: probe and carry, insert; the driver's side of it.

Files of one partition go to one task as far as the work stays even, so that each partition gets few new
files. Positions of hits come to the driver, eight bytes each, where delete files are made of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa

from intarsia.common.schema import conform_table
from intarsia.core.change import Change, StagedFile
from intarsia.core.files import Snapshot
from intarsia.core.intent import Merge, Update
from intarsia.core.matches import Matches
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import Progress, Transaction, Workplace
from intarsia.core.prepare import Prepared
from intarsia.core.refusals import ValuesRefused
from intarsia.core.rule import Assign, Drop, Insert
from intarsia.engines.arrow.afresh import Carried, carried_files, change_of
from intarsia.engines.arrow.matching import MergeMatcher, SourceIndex
from intarsia.engines.arrow.placing import SLICE_ROWS, Placing
from intarsia.engines.arrow.predicates import settle_predicate
from intarsia.engines.arrow.threads import in_line
from intarsia.engines.spark.apart import Room
from intarsia.engines.spark.carrying import (
    CarryWork,
    InsertWork,
    KnownWork,
    MergeProbe,
    PredicateProbe,
    Probe,
    Share,
    carry_files,
    carry_known,
    insert_rows,
)
from intarsia.engines.spark.crew import Crew
from intarsia.engines.spark.jobs import light
from intarsia.engines.spark.staging import DRIVER_INSERT_ROWS, room_for

TASK_ROWS = 1 << 16
"""New rows that are worth a task of their own."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Written:
    """What a stage that probes files has written already."""

    matches: Matches
    done: frozenset[str] = frozenset()
    """The files that were looked after."""
    added: tuple[StagedFile, ...] = ()
    staged: dict[str, StagedFile] = field(default_factory=dict)
    """Files that were written anew under their names, by path."""


def merge_afresh(
    crew: Crew,
    plan: Plan,
    prepared: Prepared,
    tx: Transaction | None,
    progress: Progress,
    *,
    spool_dir: str | None = None,
) -> Written:
    """A merge whose source travels to every task; without a transaction only probed."""
    assert isinstance(plan.intent, Merge)
    assert prepared.index is not None
    index = SourceIndex.of(prepared.table, prepared.index, plan.snapshot.partition_columns)
    matcher = MergeMatcher(light(plan), plan.intent, index)
    scans = by_home(plan)
    workplace = None if tx is None else tx.workplace()
    with room_for(crew.spark, plan, prepared.table, workplace=workplace, spool_dir=spool_dir) as room:
        shares = _carried(crew, MergeProbe(matcher), scans, workplace, progress, room=room)
    found = _in_plan_order(plan, scans, shares)
    matches = replace(matcher, plan=plan).settle(found)
    return Written(matches, *_done(scans, shares))


def predicate_afresh(crew: Crew, plan: Plan, tx: Transaction | None, progress: Progress) -> Written:
    """A DELETE, UPDATE or overwrite; without a transaction only probed."""
    intent = plan.intent
    action = Assign(intent.assignments) if isinstance(intent, Update) else Drop()
    scans = by_home(plan)
    workplace = None if tx is None else tx.workplace()
    shares = _carried(crew, PredicateProbe(light(plan), (action,)), scans, workplace, progress)
    found = _in_plan_order(plan, scans, shares)
    matches = settle_predicate(plan, plan.chosen("scan"), [match.hits for match in found])
    return Written(matches, *_done(scans, shares))


def stage_afresh(
    crew: Crew,
    plan: Plan,
    prepared: Prepared,
    so_far: Written,
    tx: Transaction,
    progress: Progress,
) -> Change:
    """What is left to write once rows are matched, and which files and rows go; ``plan`` is settled."""
    matches = so_far.matches
    carried = carried_files(plan, matches, tx)
    rest = [one for one in carried if one.file.path not in so_far.done and (one.copies or one.changing)]
    added = [*so_far.added, *_known(crew, plan, rest, matches, prepared.table, tx, progress)]
    if matches.inserts:
        added += _inserted(crew, plan, prepared, matches, tx, progress)
    return change_of(plan, carried, added)


# ---------------------------------------------------------------------------------------------------


def by_home(plan: Plan) -> list[FilePlan]:
    """The files to scan, those of one partition one after the other."""
    spread = plan.snapshot.spread
    assert spread is not None
    homes: dict[Any, list[FilePlan]] = {}
    for item in plan.chosen("scan"):
        homes.setdefault(spread.home(item.file).key, []).append(item)
    return [item for items in homes.values() for item in items]


def _carried(
    crew: Crew,
    probe: Probe,
    scans: Sequence[FilePlan],
    workplace: Workplace | None,
    progress: Progress,
    *,
    room: Room | None = None,
) -> list[Share]:
    if not scans:
        return []
    progress("probe files" if workplace is None else "probe and write files", 0, len(scans))
    jobs = _shares(crew, scans, [item.file.size for item in scans])
    done = crew.each(
        carry_files,
        jobs,
        shared=CarryWork(probe, workplace),
        weights=[sum(item.file.size for item in job) for job in jobs],
        room=room,
    )
    progress("probe files" if workplace is None else "write files", len(scans), len(scans))
    return done


def _shares(crew: Crew, items: Sequence[T], weights: Sequence[int]) -> list[list[T]]:
    return in_line(items, weights, len(crew.shares(weights))) if items else []


def _in_plan_order(plan: Plan, scans: Sequence[FilePlan], shares: Iterable[Share]) -> list[Any]:
    """What was found in each file to scan, as the plan lists them: errors name the first."""
    seen = [one for share in shares for one in share.seen]
    found = {item.file.path: one.match(item) for item, one in zip(scans, seen, strict=True)}
    return [found[item.file.path] for item in plan.chosen("scan")]


def _done(
    scans: Sequence[FilePlan], shares: Iterable[Share]
) -> tuple[frozenset[str], tuple[StagedFile, ...]]:
    return frozenset(item.file.path for item in scans), tuple(f for share in shares for f in share.added)


def _known(
    crew: Crew,
    plan: Plan,
    carried: Sequence[Carried],
    matches: Matches,
    source: pa.Table,
    tx: Transaction,
    progress: Progress,
) -> list[StagedFile]:
    """Rows of files whose hits the driver has, carried over by a stage of their own."""
    if not carried:
        return []
    items = {item.file.path: item for item in plan.files}
    jobs = [(items[one.file.path], one.rewrite.hits) for one in carried]
    shares = _shares(crew, jobs, [item.file.size for item, _ in jobs])
    work = KnownWork(light(plan), tx.workplace(), matches.actions, source)
    progress("write files", 0, len(jobs))
    with room_for(crew.spark, plan, source, workplace=work.workplace, spool_dir=None) as room:
        done = crew.each(
            carry_known,
            shares,
            shared=work,
            weights=[sum(item.file.size for item, _ in share) for share in shares],
            room=room,
        )
    progress("write files", len(jobs), len(jobs))
    return [file for files in done for file in files]


# ---------------------------------------------------------------------------------------------------


def new_placing(plan: Plan) -> Placing:
    """How source rows become rows of the table."""
    snapshot = replace(plan.snapshot, files=())
    return Placing(snapshot, plan.schema, (), plan.intent.options, plan.operation)


def by_part(
    plan: Plan, inserts: Iterable[tuple[Any, pa.Array]], source: pa.Table
) -> list[tuple[Insert, pa.Array]]:
    """New rows, those of one partition one after the other."""
    try:
        return _by_part(plan, inserts, source)
    except ValuesRefused:  # to be counted, wherever the rows would have gone
        return list(inserts)


def _by_part(
    plan: Plan, inserts: Iterable[tuple[Any, pa.Array]], source: pa.Table
) -> list[tuple[Insert, pa.Array]]:
    placing = new_placing(plan)
    spread = plan.snapshot.spread
    assert spread is not None
    parts: dict[Any, list[tuple[Insert, pa.Array]]] = {}
    for action, rows in inserts:
        if not spread.columns:
            parts.setdefault(None, []).append((action, rows))
            continue
        for start in range(0, len(rows), SLICE_ROWS):
            piece = rows.slice(start, SLICE_ROWS)
            deciding = _deciding(placing.built(piece, action, source), plan.snapshot, plan)
            for part, mine in spread.split(deciding):
                parts.setdefault(part.key, []).append((action, piece if mine is None else piece.take(mine)))
    return [one for pieces in parts.values() for one in _joined(pieces)]


def _deciding(rows: pa.Table, snapshot: Snapshot, plan: Plan) -> pa.Table:
    """The columns that decide where rows go, in the table's types."""
    assert snapshot.spread is not None
    wanted = pa.schema([plan.schema.field(name) for name in snapshot.spread.columns])
    return conform_table(rows.select(wanted.names), wanted, operation=plan.operation, path=snapshot.root)


def _joined(pieces: Sequence[tuple[Insert, pa.Array]]) -> Iterator[tuple[Insert, pa.Array]]:
    """Rows of one action together."""
    actions = {id(action): action for action, _ in pieces}
    for mark, action in actions.items():
        yield action, pa.concat_arrays([rows for one, rows in pieces if id(one) == mark])


def cut(pieces: Iterable[tuple[Insert, pa.Array]], most: int) -> Iterator[list[tuple[Insert, pa.Array]]]:
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


def _inserted(
    crew: Crew, plan: Plan, prepared: Prepared, matches: Matches, tx: Transaction, progress: Progress
) -> list[StagedFile]:
    """New files for new rows: by the driver where they are few, else by a stage."""
    source, bare = prepared.table, light(plan)
    rows = by_part(plan, matches.inserts, source)
    if matches.inserted <= DRIVER_INSERT_ROWS:
        few = insert_rows(InsertWork(bare, new_placing(plan), source, tx), rows)
        progress("write files", len(few), len(few))
        return few
    most = max(TASK_ROWS, -(-matches.inserted // crew.tasks))
    shares = [[(action, _own(mine)) for action, mine in share] for share in cut(rows, most)]
    progress("write new files", 0, len(shares))
    workplace = tx.workplace()
    with room_for(crew.spark, plan, source, workplace=workplace, spool_dir=None) as room:
        done = crew.each(
            insert_rows,
            shares,
            shared=InsertWork(bare, new_placing(plan), source, workplace),
            weights=[sum(len(mine) for _, mine in share) for share in shares],
            room=room,
        )
    added = [file for files in done for file in files]
    progress("write files", len(added), len(added))
    return added


def _own(rows: pa.Array) -> pa.Array:
    """A slice without the rest of its array, with which it would travel."""
    return pa.concat_arrays([rows])
