"""What a task does for a table whose files are never replaced: probe files, carry rows into new ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.core.change import StagedFile
from intarsia.core.intent import Delete, Update, Write
from intarsia.core.matches import Hits
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import Workplace
from intarsia.core.refusals import ValuesRefused
from intarsia.core.rule import Action, Drop, Insert
from intarsia.engines.arrow.afresh import Carried, prefix_of
from intarsia.engines.arrow.fan_out import FreshForm, dealt_out
from intarsia.engines.arrow.matching import FileMatch, MergeMatcher
from intarsia.engines.arrow.placing import Placing
from intarsia.engines.arrow.predicates import predicate_hits
from intarsia.engines.arrow.rewrite import Rewrite
from intarsia.engines.spark.attempts import attempt_at


def copies(plan: Plan) -> bool:
    """Whether rows that stay are carried over from a file that is hit, since the file goes."""
    return not plan.snapshot.veils.get(plan.operation)


def written(
    plan: Plan, workplace: Workplace, pieces: Iterable[pa.Table | ValuesRefused], *, lineage: bool
) -> list[StagedFile]:
    """Rows dealt out over new files of their partitions; ``lineage`` where they were there before.

    Runs on an executor. What an attempt that fails has begun is gone. Memory: a row group per partition,
    within the bounds of :class:`FanOut`.
    """
    with attempt_at(workplace, plan.snapshot) as tx:
        return dealt_out(FreshForm.of(plan, tx, lineage=lineage), tx, prefix_of(plan), pieces)


def carried_rows(
    item: FilePlan,
    hits: Hits,
    plan: Plan,
    workplace: Workplace,
    *,
    actions: tuple[Action, ...],
    source: pa.Table | None,
) -> Iterator[pa.Table | ValuesRefused]:
    """The rows that come in place of one file's; all of them where it is written anew without a hit."""
    task = Rewrite.of(item.file, hits, plan, workplace, actions=actions, label="")
    carried = Carried(task, copies=copies(plan) or not len(hits))
    return carried.pieces(source, FreshForm.of(plan, workplace, lineage=True).schema)


class Probe(Protocol):
    """Finds the rows of files that are hit. A value that travels."""

    @property
    def plan(self) -> Plan: ...

    @property
    def actions(self) -> tuple[Action, ...]: ...

    @property
    def source(self) -> pa.Table | None:
        """The rows that hits take their values from."""

    def matches(self, files: Sequence[FilePlan]) -> list[FileMatch]:
        """What is found in each file, in their order."""


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

    def matches(self, files: Sequence[FilePlan]) -> list[FileMatch]:
        matcher = self.matcher
        found = [match for batch in matcher.batches(files) for match in matcher.scan(batch)]
        for match in found:  # together: a slice would travel with all the rest
            asked = match.matched if matcher.rule.inserts else []
            match.matched = [pc.unique(pa.concat_arrays(asked))] if asked else []
        return found


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


@dataclass(frozen=True, slots=True)
class CarryWork:
    """Files to be probed; without a workplace nothing is written."""

    probe: Probe
    workplace: Workplace | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found in one file, without the file itself and without what only writing needs."""

    hits: Hits
    matched: list[pa.Array]
    nulls: dict[str, int]
    several: int

    @staticmethod
    def of(match: FileMatch) -> Seen:
        return Seen(replace(match.hits, sources=None), match.matched, match.nulls, match.several)

    def match(self, item: FilePlan) -> FileMatch:
        return FileMatch(item, self.hits, self.matched, self.nulls, None, self.several)


@dataclass(frozen=True, slots=True)
class Share:
    """What became of the files of one task."""

    seen: list[Seen]
    added: list[StagedFile] = field(default_factory=list)


def carry_files(work: CarryWork, files: Sequence[FilePlan]) -> Share:
    """Probe some files, and carry what comes in place of their rows into new files, all of them together.

    A file that loses every row has nothing to carry, and nothing is written where a row makes the
    operation impossible.
    """
    probe = work.probe
    found = probe.matches(files)
    seen = [Seen.of(match) for match in found]
    refused = any(match.nulls or match.several for match in found)
    if work.workplace is None or refused:
        return Share(seen)
    workplace = work.workplace

    def pieces() -> Iterator[pa.Table | ValuesRefused]:
        for match in found:
            item, hits = match.plan, match.hits
            if (len(hits) or item.forced) and not _emptied(match, probe.actions):
                yield from carried_rows(
                    item, hits, probe.plan, workplace, actions=probe.actions, source=probe.source
                )

    return Share(seen, written(probe.plan, workplace, pieces(), lineage=True))


def _emptied(match: FileMatch, actions: Sequence[Action]) -> bool:
    drops = [number for number, action in enumerate(actions) if isinstance(action, Drop)]
    return 0 < match.plan.file.rows == sum(len(match.hits.only(number)) for number in drops)


@dataclass(frozen=True, slots=True)
class KnownWork:
    """Files whose hits the driver has."""

    plan: Plan
    workplace: Workplace
    actions: tuple[Action, ...]
    source: pa.Table | None


def carry_known(work: KnownWork, jobs: Sequence[tuple[FilePlan, Hits]]) -> list[StagedFile]:
    """Carry rows of some files into new ones."""
    plan, workplace = work.plan, work.workplace
    pieces = (
        piece
        for item, hits in jobs
        for piece in carried_rows(item, hits, plan, workplace, actions=work.actions, source=work.source)
    )
    return written(plan, workplace, pieces, lineage=True)


@dataclass(frozen=True, slots=True)
class InsertWork:
    """New rows that travel with the work."""

    plan: Plan
    placing: Placing
    source: pa.Table
    workplace: Workplace


def insert_rows(work: InsertWork, job: Sequence[tuple[Insert, pa.Array]]) -> list[StagedFile]:
    """Write some source rows into new files."""
    pieces = (
        piece
        for action, rows in job
        for piece in work.placing.pieces(action, rows, work.source, work.workplace)
    )
    return written(work.plan, work.workplace, pieces, lineage=False)
