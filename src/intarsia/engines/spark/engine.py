"""The Spark engine: executors read, probe and stage files with the Arrow kernel, the driver commits."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, assert_never

from intarsia.common.arrow import Source, adopt
from intarsia.core.change import Change, Replacement, StagedFile, Staging
from intarsia.core.files import DataFile, Snapshot
from intarsia.core.intent import Compact, Deduplicate, Delete, Intent, Merge, Optimize, Update, Write
from intarsia.core.matches import Matches
from intarsia.core.plan import Plan
from intarsia.core.ports import Progress, Transaction, Workplace
from intarsia.core.prepare import Prepared, prepare
from intarsia.core.rehearsal import nowhere
from intarsia.core.rule import Assign, Drop
from intarsia.core.run import settled
from intarsia.engines.arrow.matching import MergeMatcher, SourceIndex
from intarsia.engines.arrow.predicates import settle_predicate, with_new_rows
from intarsia.engines.spark.afresh import Written, merge_afresh, predicate_afresh, stage_afresh
from intarsia.engines.spark.crew import Crew
from intarsia.engines.spark.duplicates import spark_duplicates
from intarsia.engines.spark.jobs import MergeWork, PredicateWork, light, merge_files, predicate_files
from intarsia.engines.spark.large import merge_large, prepare_merge, prepare_write, write_large
from intarsia.engines.spark.ranges import planned_ranges, range_note
from intarsia.engines.spark.regroup import stage_compact, stage_optimize
from intarsia.engines.spark.routed import ROUTED_BYTES, RoutedRows, merge_routed, prepare_routed, routable
from intarsia.engines.spark.source import (
    Shared,
    SparkSource,
    Spool,
    beside,
    check_exists,
    give_back_heap,
    spooled,
    spooled_table,
    workspace,
)
from intarsia.engines.spark.spark_types import check_types, year_months
from intarsia.engines.spark.staging import over_files, placed, rewritten, room_for
from intarsia.errors import NotSupported, SchemaMismatch
from intarsia.spark.failures import spark_errors

MEMORY_BYTES = 512 << 20
BROADCAST_BYTES = 512 << 20

_UNSAFE = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Moves rows on the executors of a Spark session, which is the caller's own.

    The file is the unit of work: target rows never cross a shuffle in a merge. A task that is repeated
    or overtaken leaves staged files that no commit names; they go with the transaction.
    """

    spark: Any
    tasks: int = 0
    memory_bytes: int = MEMORY_BYTES
    broadcast_bytes: int = BROADCAST_BYTES
    spool_dir: str | None = None
    """Storage that driver and executors share, for rows that wait; local Spark uses its own machine's."""
    name: str = "spark"

    @spark_errors()
    def __post_init__(self) -> None:
        for setting in _UNSAFE:
            if str(self.spark.conf.get(setting, "false")).lower() == "true":
                raise NotSupported(
                    f"{setting} is true: Spark would leave out files that it cannot read.",
                    hint=f'set spark.conf.set("{setting}", "false").',
                )

    @property
    def crew(self) -> Crew:
        cores = self._cores()
        return Crew(self.spark, self.tasks) if self.tasks else Crew(self.spark, 2 * cores, cores)

    def _cores(self) -> int:
        """How many tasks run at once, as far as the session tells."""
        asked = self.spark.conf.get("spark.sql.leafNodeDefaultParallelism", None)
        if asked is not None:
            return int(asked)
        context = getattr(self.spark, "_sc", None)  # a Connect session has none
        return int(context.defaultParallelism) if context is not None else os.cpu_count() or 4

    @spark_errors(source=True)
    def adopt(self, source: Any, *, shared: Shared | None = None, **options: Any) -> Source:
        """A DataFrame is evaluated once, by executors; anything else as the in-process engine does.

        What is too large to travel waits in a spool that executors read; see ``broadcast_bytes``.
        """
        asked = options.get("spool_dir")
        target = options.pop("target", None)
        if hasattr(source, "sparkSession"):
            place = workspace(self.spark, shared, asked)
            with _removed_on_error(place):
                spool = spooled(self.crew, source, place, utc_for=options.get("utc_for"), target=target)
                check_exists(spool)
            if spool.size > ROUTED_BYTES:
                give_back_heap(self.spark)
            return SparkSource(spool, origin="DataFrame", year_months=year_months(source))
        if "://" in str(asked):
            del options["spool_dir"]  # shared storage, where no file can be mapped
        taken = adopt(source, **options)
        if taken.table.nbytes <= self.broadcast_bytes:
            return taken
        place = workspace(self.spark, shared, asked)
        with taken, _removed_on_error(place):
            spool = spooled_table(taken.table, place, tasks=self.crew.tasks)
        return SparkSource(spool, origin=taken.origin, ordered=True)

    @spark_errors()
    def prepare(self, intent: Intent, snapshot: Snapshot, source: Source | None) -> Prepared:
        """As in process where the source may travel to every task; see ``broadcast_bytes``."""
        if isinstance(source, SparkSource):
            check_types(source, intent, snapshot)
            rows = source.rows
            if not source.ordered:
                _warn_of_ties(intent)
            if isinstance(intent, Merge) and (routed := self._routed(intent, snapshot, source)) is not None:
                return routed
            if source.spool.size > self.broadcast_bytes:
                if isinstance(intent, Merge):
                    return prepare_merge(self.crew, intent, snapshot, source)
                if isinstance(intent, Write):
                    return prepare_write(self.crew, intent, snapshot, source)
            source = Source(source.table, origin=source.origin)
            return replace(prepare(intent, snapshot, source), source_rows=rows)
        return prepare(intent, snapshot, source)

    def _routed(self, intent: Merge, snapshot: Snapshot, source: SparkSource) -> Prepared | None:
        """A merge decided by columns that come to the driver; None where there is a better way."""
        terms = routable(intent, snapshot, source, limit=self.broadcast_bytes)
        if terms is None:
            return None
        try:
            return prepare_routed(self.crew, terms, snapshot, source)
        except SchemaMismatch:
            if source.spool.size > self.broadcast_bytes:
                raise
            return None  # to be told of the source as a whole

    @spark_errors()
    def match(self, plan: Plan, prepared: Prepared, progress: Progress) -> Matches:
        """Which rows change; executors read key columns, or a predicate's, and write nothing."""
        if prepared.remote is not None:
            return self._stayed(plan, prepared, None, progress).matches
        match plan.intent:
            case Merge() | Delete() | Update() | Write() if plan.snapshot.spread is not None:
                return self._afresh(plan, prepared, None, progress).matches
            case Merge():
                return self._merge(plan, prepared, None, progress)[0]
            case Delete() | Update():
                return self._predicate(plan, None, progress)[0]
            case Deduplicate() as intent:
                return self._duplicates(plan, intent)
            case Write():
                return self._overwritten(plan, prepared, None, progress)[0]
            case Optimize():
                return Matches(notes=range_note(self._ranges(plan)))
            case Compact():
                return Matches()

    def measuring(self, plan: Plan) -> AbstractContextManager[Staging | None]:
        """Nowhere: executors encode files and count their bytes; but ranges wait on storage."""
        if isinstance(plan.intent, Optimize) and self._ranges(plan):
            return nullcontext(None)
        return nullcontext(nowhere())

    @spark_errors()
    def execute(
        self, plan: Plan, prepared: Prepared, tx: Transaction, progress: Progress
    ) -> tuple[Plan, Change]:
        """One stage probes and rewrites; new rows follow in another, where they are many."""
        if prepared.remote is not None:
            return self._large(plan, prepared, tx, progress)
        match plan.intent:
            case Merge() | Delete() | Update() | Deduplicate() | Write() if plan.snapshot.spread is not None:
                so_far = self._afresh(plan, prepared, tx, progress)
                plan = settled(plan, prepared, so_far.matches)
                return plan, stage_afresh(self.crew, plan, prepared, so_far, tx, progress)
            case Merge():
                found = self._merge(plan, prepared, tx.workplace(), progress)
            case Delete() | Update():
                found = self._predicate(plan, tx.workplace(), progress)
            case Deduplicate() as intent:
                found = self._duplicates(plan, intent), {}
            case Write():
                found = self._overwritten(plan, prepared, tx.workplace(), progress)
            case Compact():
                limit = self.memory_bytes
                return plan, stage_compact(
                    self.crew, plan, tx.workplace(), memory_bytes=limit, progress=progress
                )
            case Optimize():
                return self._optimized(plan, tx.workplace(), progress)
            case never:
                assert_never(never)
        return self._staged(plan, prepared, found, tx, progress)

    def _staged(
        self,
        plan: Plan,
        prepared: Prepared,
        found: tuple[Matches, dict[str, StagedFile]],
        tx: Transaction,
        progress: Progress,
    ) -> tuple[Plan, Change]:
        """What is left to write once rows are matched: files not rewritten with the scan, and new rows."""
        matches, staged = found
        plan = settled(plan, prepared, matches)
        rest = tuple(item for item in plan.chosen("rewrite") if item.file.path not in staged)
        replaced = _replaced(plan, staged)
        if rest:
            again = replace(plan, files=rest)
            source = prepared.table
            replaced += rewritten(self.crew, again, matches, tx.workplace(), progress, source=source)
        added = placed(self.crew, plan, prepared, matches, tx, progress)
        return plan, plan.change(replaced=replaced, added=added)

    def _large(
        self, plan: Plan, prepared: Prepared, tx: Transaction, progress: Progress
    ) -> tuple[Plan, Change]:
        """A merge or write whose source stays on executors."""
        so_far = self._stayed(plan, prepared, tx, progress)
        matches, staged, added = so_far.matches, so_far.staged, so_far.added
        plan = settled(plan, prepared, matches)
        if plan.snapshot.spread is not None:
            return plan, stage_afresh(self.crew, plan, prepared, so_far, tx, progress)
        rest = tuple(item for item in plan.chosen("rewrite") if item.file.path not in staged)
        assert not any(item.file.path in matches.counts for item in rest), "a file that was hit is not staged"
        replaced = _replaced(plan, staged)
        if rest:  # not hit, and yet to be written anew, such as in wider types
            again = replace(plan, files=rest)
            replaced += rewritten(self.crew, again, matches, tx.workplace(), progress)
        return plan, plan.change(replaced=replaced, added=added)

    def _stayed(self, plan: Plan, prepared: Prepared, tx: Transaction | None, progress: Progress) -> Written:
        """What became of a source that stays on executors, and of the rows that it overwrites."""
        matches, staged, added = self._remote(plan, prepared)(self.crew, plan, prepared, tx, progress)
        done = frozenset(matches.hits) | frozenset(matches.counts)
        if isinstance(plan.intent, Write) and plan.chosen("scan"):
            if plan.snapshot.spread is not None:
                gone = predicate_afresh(self.crew, plan, tx, progress)
                done, added = done | gone.done, [*added, *gone.added]
                matches = replace(gone.matches, inserted=matches.inserted)
            else:
                workplace = None if tx is None else tx.workplace()
                found, rewritten_files = self._predicate(plan, workplace, progress)
                matches, staged = replace(found, inserted=matches.inserted), staged | rewritten_files
        return Written(matches, done, tuple(added), staged)

    def _overwritten(
        self, plan: Plan, prepared: Prepared, workplace: Workplace | None, progress: Progress
    ) -> tuple[Matches, dict[str, StagedFile]]:
        """The rows that an overwrite removes, and all of the source as new ones."""
        found, staged = self._predicate(plan, workplace, progress)
        return with_new_rows(found, prepared.table), staged

    def _afresh(self, plan: Plan, prepared: Prepared, tx: Transaction | None, progress: Progress) -> Written:
        """What is hit in a table whose files are never replaced, and what was written on the way."""
        match plan.intent:
            case Merge():
                where = self.spool_dir
                return merge_afresh(self.crew, plan, prepared, tx, progress, spool_dir=where)
            case Deduplicate() as intent:
                return Written(self._duplicates(plan, intent))
            case Write():
                gone = predicate_afresh(self.crew, plan, tx, progress)
                return replace(gone, matches=with_new_rows(gone.matches, prepared.table))
            case _:
                return predicate_afresh(self.crew, plan, tx, progress)

    def _remote(self, plan: Plan, prepared: Prepared) -> Any:
        if isinstance(prepared.remote, RoutedRows):
            return merge_routed
        return merge_large if isinstance(plan.intent, Merge) else write_large

    def _merge(
        self, plan: Plan, prepared: Prepared, workplace: Workplace | None, progress: Progress
    ) -> tuple[Matches, dict[str, StagedFile]]:
        assert isinstance(plan.intent, Merge)
        assert prepared.index is not None
        index = SourceIndex.of(prepared.table, prepared.index, plan.snapshot.partition_columns)
        matcher = MergeMatcher(light(plan), plan.intent, index)
        scans, work = plan.chosen("scan"), MergeWork(matcher, workplace)
        table, where = prepared.table, self.spool_dir
        with room_for(self.spark, plan, table, workplace=workplace, spool_dir=where) as room:
            found = over_files(self.crew, merge_files, scans, shared=work, progress=progress, room=room)
        whole = replace(matcher, plan=plan)
        matches = whole.settle([match for match, _ in found])
        return matches, {match.plan.file.path: file for match, file in found if file is not None}

    def _predicate(
        self, plan: Plan, workplace: Workplace | None, progress: Progress
    ) -> tuple[Matches, dict[str, StagedFile]]:
        intent = plan.intent
        action = Assign(intent.assignments) if isinstance(intent, Update) else Drop()
        scans = plan.chosen("scan")
        work = PredicateWork(light(plan), workplace, (action,))
        found = over_files(self.crew, predicate_files, scans, shared=work, progress=progress)
        staged = {
            item.file.path: file for item, (_, file) in zip(scans, found, strict=True) if file is not None
        }
        return settle_predicate(plan, scans, [hits for hits, _ in found]), staged

    def _duplicates(self, plan: Plan, intent: Deduplicate) -> Matches:
        files = [item.file for item in plan.chosen("scan")]
        return self._losing(plan, files, intent.keys, intent.order_by)

    def _losing(
        self, plan: Plan, files: Sequence[DataFile], keys: tuple[str, ...], order_by: tuple[str, ...]
    ) -> Matches:
        """Rows that lose against a duplicate; their keys wait in a spool while Spark compares them."""
        place = workspace(self.spark, beside(plan.snapshot), self.spool_dir)
        try:
            return spark_duplicates(self.crew, plan, place, files=files, keys=keys, order_by=order_by)
        finally:
            place.remove()

    def _ranges(self, plan: Plan) -> dict[int, int]:
        return planned_ranges(plan, memory_bytes=self.memory_bytes, cores=self._cores())

    def _optimized(self, plan: Plan, workplace: Workplace, progress: Progress) -> tuple[Plan, Change]:
        intent = plan.intent
        assert isinstance(intent, Optimize)
        drops = None
        if intent.deduplicate or intent.deduplicate_keys:
            files = [file for group in plan.groups for file in group.files]
            drops = self._losing(plan, files, intent.deduplicate_keys, intent.dedup_order_by)
        return stage_optimize(
            self.crew,
            plan,
            workplace,
            ranges=self._ranges(plan),
            drops=drops,
            memory_bytes=self.memory_bytes,
            progress=progress,
        )


def _replaced(plan: Plan, staged: dict[str, StagedFile]) -> list[Replacement]:
    """The files of a settled plan that were written anew already."""
    items = plan.chosen("rewrite")
    return [Replacement(item.file, staged[item.file.path]) for item in items if item.file.path in staged]


@contextmanager
def _removed_on_error(place: Spool) -> Iterator[None]:
    try:
        yield
    except BaseException:
        place.remove()
        raise


def _warn_of_ties(intent: Intent) -> None:
    if isinstance(intent, Merge) and intent.rule.name == "deduplicate" and not intent.dedup_order_by:
        warnings.warn(
            "deduplicate without dedup_order_by: which row of a DataFrame is the last is not defined.",
            UserWarning,
            stacklevel=2,
        )
