"""The Spark engine: executors read, probe and stage files with the Arrow kernel, the driver commits."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from intarsia.common.arrow import IngestedSource, ingest
from intarsia.core.change import Matches, Staged, Staging
from intarsia.core.intent import (
    CompactIntent,
    DeduplicateIntent,
    DeleteIntent,
    Intent,
    MergeIntent,
    OptimizeIntent,
    UpdateIntent,
    WriteIntent,
)
from intarsia.core.plan import Plan
from intarsia.core.ports import Execution, OutputLocation, Progress
from intarsia.core.prepare import Prepared, prepare
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.engines.spark.copies import stage_copies
from intarsia.engines.spark.duplicates import find_duplicates
from intarsia.engines.spark.match import match_merge, match_predicate
from intarsia.engines.spark.optimize import describe_ranges, plan_ranges, stage_compact, stage_optimize
from intarsia.engines.spark.route import merge_large, prepare_large_merge, prepare_large_write, write_large
from intarsia.engines.spark.source import (
    SparkSource,
    Spool,
    SpoolLocation,
    check_exists,
    create_spool,
    find_spool_location,
    spool_dataframe,
    spool_table,
)
from intarsia.engines.spark.staging import rewrite_known, write_new_rows
from intarsia.engines.spark.tasks import TaskRunner
from intarsia.engines.spark.types import check_types, find_year_months
from intarsia.errors import NotSupported
from intarsia.kernel.match import with_new_rows
from intarsia.spark.errors import translate_spark_errors
from intarsia.spark.session import is_connect, use_this_python

J = TypeVar("J")
R = TypeVar("R")
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

    @translate_spark_errors()
    def __post_init__(self) -> None:
        for setting in _UNSAFE:
            if str(self.spark.conf.get(setting, "false")).lower() == "true":
                raise NotSupported(
                    f"{setting} is true: Spark would leave out files that it cannot read.",
                    hint=f'set spark.conf.set("{setting}", "false").',
                )
        use_this_python(self.spark)

    @property
    def runner(self) -> TaskRunner:
        cores = self._count_cores()
        return TaskRunner(self.spark, self.tasks) if self.tasks else TaskRunner(self.spark, 2 * cores, cores)

    def _count_cores(self) -> int:
        """How many tasks run at once, as far as the session tells."""
        asked = self.spark.conf.get("spark.sql.leafNodeDefaultParallelism", None)
        if asked is not None:
            return int(asked)
        if is_connect(self.spark):  # which does not say how many cores its server has
            return os.cpu_count() or 4
        return int(self.spark.sparkContext.defaultParallelism)

    @translate_spark_errors()
    def distribute(
        self, work: Callable[[Any, J], R], jobs: Sequence[J], *, shared: Any, weights: Sequence[int]
    ) -> list[R]:
        """Run a function on executors; see :class:`intarsia.core.ports.Distribute`."""
        return self.runner.run_each(work, jobs, shared=shared, weights=weights)

    @translate_spark_errors(source=True)
    def ingest(self, source: Any, *, shared: SpoolLocation | None = None, **options: Any) -> IngestedSource:
        """A DataFrame is evaluated once, by executors; anything else as the in-process engine does.

        What is too large to travel waits in a spool that executors read; see ``broadcast_bytes``.
        """
        asked = options.get("spool_dir")
        target = options.pop("target", None)
        if hasattr(source, "sparkSession"):
            place = create_spool(self.spark, shared, asked)
            with _remove_on_error(place):
                spool = spool_dataframe(
                    self.runner, source, place, utc_for=options.get("utc_for"), target=target
                )
                check_exists(spool)
            return SparkSource(spool, origin="DataFrame", year_months=find_year_months(source))
        if "://" in str(asked):
            del options["spool_dir"]  # shared storage, where no file can be mapped
        taken = ingest(source, **options)
        if taken.table.nbytes <= self.broadcast_bytes:
            return taken
        place = create_spool(self.spark, shared, asked)
        with taken, _remove_on_error(place):
            spool = spool_table(taken.table, place, tasks=self.runner.tasks)
        return SparkSource(spool, origin=taken.origin, ordered=True)

    @translate_spark_errors()
    def prepare(self, intent: Intent, snapshot: Snapshot, source: IngestedSource | None) -> Prepared:
        """As in process where the source may travel to every task; see ``broadcast_bytes``."""
        if isinstance(source, SparkSource):
            check_types(source, intent, snapshot)
            rows = source.rows
            if not source.ordered:
                _warn_about_ties(intent)
            if isinstance(intent, MergeIntent):
                limit = self.broadcast_bytes
                large = prepare_large_merge(self.runner, intent, snapshot, source, limit=limit)
                if large is not None:
                    return large
            elif isinstance(intent, WriteIntent) and source.spool.size > self.broadcast_bytes:
                return prepare_large_write(self.runner, intent, snapshot, source)
            source = IngestedSource(source.table, origin=source.origin)
            return replace(prepare(intent, snapshot, source), source_rows=rows)
        return prepare(intent, snapshot, source)

    @translate_spark_errors()
    def match(self, execution: Execution) -> Matches:
        """Which rows change. Executors read key columns, or a predicate's.

        With a transaction, the stage that finds the hits of a file also writes what comes of it.
        """
        plan = execution.plan
        if execution.prepared.remote is not None:
            return self._match_large(execution)
        match plan.intent:
            case MergeIntent():
                return match_merge(self.runner, execution, spool_dir=self.spool_dir)
            case DeleteIntent() | UpdateIntent():
                return match_predicate(self.runner, execution)
            case DeduplicateIntent() as intent:
                return self._match_duplicates(plan, intent)
            case WriteIntent():
                return with_new_rows(match_predicate(self.runner, execution), execution.prepared.table)
            case OptimizeIntent():
                return Matches(notes=describe_ranges(self._plan_ranges(plan)))
            case CompactIntent():
                return Matches()

    @translate_spark_errors()
    def stage(self, execution: Execution, matches: Matches) -> Staged:
        """What is left to write once rows are matched: files not written with the scan, and new rows."""
        plan, output = execution.plan, execution.transaction.output()
        match plan.intent:
            case CompactIntent():
                return stage_compact(
                    self.runner, plan, output, memory_bytes=self.memory_bytes, progress=execution.progress
                )
            case OptimizeIntent() as intent:
                return self._stage_optimize(plan, intent, output, execution.progress)
            case _ if not plan.snapshot.replaces_in_place:
                return stage_copies(self.runner, execution, matches)
        rewritten, added = dict(matches.staged.rewritten), matches.staged.added
        rest = tuple(item for item in plan.select("rewrite") if item.file.path not in rewritten)
        remote = execution.prepared.remote is not None
        if rest:  # such as files that are not hit, and yet to be written in wider types
            assert not any(item.file.path in matches.counts for item in rest), (
                "a file that was hit is missing"
            )
            source = None if remote else execution.prepared.table
            again = execution.with_plan(replace(plan, files=rest))
            rewritten |= rewrite_known(self.runner, again, matches, source=source)
        if not remote:
            added += tuple(write_new_rows(self.runner, execution, matches))
        return Staged(rewritten, added)

    def _match_large(self, execution: Execution) -> Matches:
        """What became of a source that stays on storage, and of the rows that it overwrites."""
        plan = execution.plan
        if isinstance(plan.intent, MergeIntent):
            matches = merge_large(self.runner, execution)
            return replace(matches, done=frozenset(matches.counts))
        matches = write_large(self.runner, execution)
        if not plan.select("scan"):
            return matches
        found = match_predicate(self.runner, execution)
        staged = Staged(found.staged.rewritten, (*matches.staged.added, *found.staged.added))
        return replace(found, inserted=matches.inserted, staged=staged)

    def _match_duplicates(self, plan: Plan, intent: DeduplicateIntent) -> Matches:
        files = [item.file for item in plan.select("scan")]
        return self._find_losers(plan, files, intent.keys, intent.order_by)

    def _find_losers(
        self, plan: Plan, files: Sequence[DataFile], keys: tuple[str, ...], order_by: tuple[str, ...]
    ) -> Matches:
        """Rows that lose against a duplicate; their keys wait in a spool while Spark compares them."""
        place = create_spool(self.spark, find_spool_location(plan.snapshot), self.spool_dir)
        try:
            return find_duplicates(self.runner, plan, place, files=files, keys=keys, order_by=order_by)
        finally:
            place.remove()

    def _plan_ranges(self, plan: Plan) -> dict[int, int]:
        return plan_ranges(plan, memory_bytes=self.memory_bytes, cores=self._count_cores())

    def _stage_optimize(
        self, plan: Plan, intent: OptimizeIntent, output: OutputLocation, progress: Progress
    ) -> Staged:
        drops = None
        if intent.removes_duplicates:
            files = [file for group in plan.groups for file in group.files]
            drops = self._find_losers(plan, files, intent.deduplicate_keys, intent.dedup_order_by)
        ranges = self._plan_ranges(plan)
        with self._open_runs_directory(plan, output, ranges) as runs_at:
            return stage_optimize(
                self.runner,
                plan,
                output,
                ranges=ranges,
                drops=drops,
                memory_bytes=self.memory_bytes,
                progress=progress,
                runs_at=runs_at,
            )

    @contextmanager
    def _open_runs_directory(
        self, plan: Plan, output: OutputLocation, ranges: Mapping[int, int]
    ) -> Iterator[Staging | None]:
        """Where rows wait for their range in a dry run, whose files are kept nowhere; gone afterwards."""
        if not ranges or not output.staging.discards:
            yield None
            return
        place = create_spool(self.spark, find_spool_location(plan.snapshot), self.spool_dir)
        try:
            yield replace(output.staging, filesystem=place.filesystem, directory=place.directory)
        finally:
            place.remove()


@contextmanager
def _remove_on_error(place: Spool) -> Iterator[None]:
    try:
        yield
    except BaseException:
        place.remove()
        raise


def _warn_about_ties(intent: Intent) -> None:
    if isinstance(intent, MergeIntent) and intent.rule.name == "deduplicate" and not intent.dedup_order_by:
        warnings.warn(
            "deduplicate without dedup_order_by: which row of a DataFrame is the last is not defined.",
            UserWarning,
            stacklevel=2,
        )
