"""The in-process engine: every operation with PyArrow, files in parallel threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from intarsia.common.arrow import adopt
from intarsia.common.source import Source
from intarsia.core.change import Change, StagedFile, Staging
from intarsia.core.files import Snapshot
from intarsia.core.intent import Compact, Deduplicate, Delete, Intent, Merge, Optimize, Update, Write
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import Progress, Transaction
from intarsia.core.prepare import Prepared, prepare
from intarsia.core.rehearsal import nowhere
from intarsia.core.run import settled
from intarsia.engines.arrow.afresh import stage_afresh
from intarsia.engines.arrow.compact import stage_compact
from intarsia.engines.arrow.duplicates import match_duplicates
from intarsia.engines.arrow.matching import MergeMatcher, SourceIndex
from intarsia.engines.arrow.optimize import stage_optimize
from intarsia.engines.arrow.predicates import predicate_hits, settle_predicate, with_new_rows
from intarsia.engines.arrow.rewrite import rewrite
from intarsia.engines.arrow.row_files import RowFiles
from intarsia.engines.arrow.threads import in_order

T = TypeVar("T")
R = TypeVar("R")

MEMORY_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class ArrowEngine:
    """Moves rows with PyArrow in this process.

    Memory: the source (memory-mapped when it was spooled), its keys, and a row group per thread;
    sorts and deduplications spill beyond ``memory_bytes``.
    """

    threads: int = 0
    memory_bytes: int = MEMORY_BYTES
    name: str = "arrow"

    @property
    def _threads(self) -> int:
        return self.threads or os.cpu_count() or 1

    def adopt(self, source: Any, **options: Any) -> Source:
        """Any Arrow data, or paths; see :func:`intarsia.common.arrow.adopt`."""
        return adopt(source, **options)

    def prepare(self, intent: Intent, snapshot: Snapshot, source: Source | None) -> Prepared:
        """The source in the target's types, checked, its keys indexed."""
        return prepare(intent, snapshot, source)

    def execute(
        self, plan: Plan, prepared: Prepared, tx: Transaction, progress: Progress
    ) -> tuple[Plan, Change]:
        """Match, then stage."""
        matches = self.match(plan, prepared, progress)
        plan = settled(plan, prepared, matches)
        return plan, self.stage(plan, matches, prepared, tx, progress)

    def measuring(self, _plan: Plan) -> AbstractContextManager[Staging | None]:
        """Nowhere: files are encoded and their bytes counted."""
        return nullcontext(nowhere())

    def match(self, plan: Plan, prepared: Prepared, progress: Progress) -> Matches:
        """Which rows change; reads key columns (or a predicate's), writes nothing."""
        match plan.intent:
            case Merge() as intent:
                return self._match_merge(plan, intent, prepared, progress)
            case Delete() | Update() as intent:
                return self._match_predicate(plan, intent, progress)
            case Deduplicate() as intent:
                return match_duplicates(
                    plan,
                    keys=intent.keys,
                    order_by=intent.order_by,
                    threads=self._threads,
                    memory_bytes=self.memory_bytes,
                    progress=progress,
                )
            case Write() as intent:
                return with_new_rows(self._match_predicate(plan, intent, progress), prepared.table)
            case Compact() | Optimize():
                return Matches()

    def stage(
        self, plan: Plan, matches: Matches, prepared: Prepared, tx: Transaction, progress: Progress
    ) -> Change:
        """Write the new files to staging and say what takes whose place."""
        match plan.intent:
            case Compact():
                return stage_compact(plan, tx, threads=self._threads, progress=progress)
            case Optimize():
                return stage_optimize(
                    plan, tx, threads=self._threads, memory_bytes=self.memory_bytes, progress=progress
                )
            case _ if plan.snapshot.spread is not None:
                return stage_afresh(plan, matches, prepared, tx, threads=self._threads, progress=progress)
            case _:
                return self._stage_rows(plan, matches, prepared, tx, progress)

    def _match_merge(self, plan: Plan, intent: Merge, prepared: Prepared, progress: Progress) -> Matches:
        assert prepared.index is not None
        source = SourceIndex.of(prepared.table, prepared.index, plan.snapshot.partition_columns)
        matcher = MergeMatcher(plan, intent, source)
        batches = list(matcher.batches(plan.chosen("scan")))
        found = self._each(matcher.scan, batches, progress, "scan keys")
        return matcher.settle([match for batch in found for match in batch])

    def _match_predicate(self, plan: Plan, intent: Delete | Update | Write, progress: Progress) -> Matches:
        scans = plan.chosen("scan")

        def hit(file: FilePlan) -> Hits:
            return predicate_hits(file, intent.where, plan.snapshot, intent.options.batch_rows)

        return settle_predicate(plan, scans, self._each(hit, scans, progress, "scan rows"))

    def _stage_rows(
        self, plan: Plan, matches: Matches, prepared: Prepared, tx: Transaction, progress: Progress
    ) -> Change:
        """Files rewritten under their names, and new files for new rows."""
        files = RowFiles.of(plan, matches, prepared, tx)
        jobs: list[Callable[[], StagedFile]] = [
            *(lambda task=task: rewrite(task, prepared.table) for task in files.rewrites),
            *(lambda file=file: files.placing.write(file, prepared.table, tx) for file in files.new),
        ]
        return files.change(self._each(lambda job: job(), jobs, progress, "write files"))

    def _each(self, work: Callable[[T], R], items: Sequence[T], progress: Progress, step: str) -> list[R]:
        """Results in the order of the items; the first error ends the rest."""
        results: list[R] = []
        for result in in_order(work, items, threads=min(self._threads, len(items))):
            results.append(result)
            progress(step, len(results), len(items))
        return results
