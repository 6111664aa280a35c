"""The Spark engine: executors read, probe and stage files with the Arrow kernel, the driver commits."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, assert_never

import pyarrow as pa

from intarsia.common.arrow import Source, adopt
from intarsia.core.change import Change, Replacement, StagedFile
from intarsia.core.files import DataFile, Snapshot
from intarsia.core.intent import Compact, Deduplicate, Delete, Intent, Merge, Optimize, Update, Write
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import FileGroup, FilePlan, Plan
from intarsia.core.ports import Progress, Transaction, Workplace
from intarsia.core.prepare import Prepared, prepare
from intarsia.core.rule import Assign, Drop, Insert
from intarsia.core.run import settled
from intarsia.engines.arrow.matching import MergeMatcher, SourceIndex
from intarsia.engines.arrow.placing import Placing, all_rows
from intarsia.engines.arrow.predicates import settle_predicate
from intarsia.engines.spark.apart import INLINE_BYTES, Room
from intarsia.engines.spark.crew import Crew, balanced
from intarsia.engines.spark.duplicates import spark_duplicates
from intarsia.engines.spark.jobs import (
    GroupWork,
    MergeWork,
    PlaceWork,
    PredicateWork,
    RewriteWork,
    compact_files,
    merge_files,
    optimize_files,
    place_files,
    predicate_files,
    rewrite_files,
)
from intarsia.engines.spark.large import merge_large, prepare_merge, prepare_write, write_large
from intarsia.engines.spark.ranges import optimize_ranges, planned_ranges, range_note
from intarsia.engines.spark.routed import ROUTED_BYTES, RoutedRows, merge_routed, prepare_routed, routable
from intarsia.engines.spark.source import (
    Shared,
    SparkSource,
    Spool,
    check_exists,
    give_back_heap,
    spooled,
    spooled_table,
    workspace,
)
from intarsia.errors import NotSupported, SchemaMismatch

MEMORY_BYTES = 512 << 20
BROADCAST_BYTES = 512 << 20
DRIVER_INSERT_ROWS = 20_000
"""So few new rows are written by the driver rather than by a stage of their own."""

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

    def adopt(self, source: Any, *, shared: Shared | None = None, **options: Any) -> Source:
        """A DataFrame is evaluated once, by executors; anything else as the in-process engine does.

        What is too large to travel waits in a spool that executors read; see ``broadcast_bytes``.
        """
        asked = options.get("spool_dir")
        if hasattr(source, "sparkSession"):
            place = workspace(self.spark, shared, asked)
            with _removed_on_error(place):
                spool = spooled(self.crew, source, place)
                check_exists(spool)
            if spool.size > ROUTED_BYTES:
                give_back_heap(self.spark)
            return SparkSource(spool, origin="DataFrame")
        if "://" in str(asked):
            del options["spool_dir"]  # shared storage, where no file can be mapped
        taken = adopt(source, **options)
        if taken.table.nbytes <= self.broadcast_bytes:
            return taken
        place = workspace(self.spark, shared, asked)
        with taken, _removed_on_error(place):
            spool = spooled_table(taken.table, place, tasks=self.crew.tasks)
        return SparkSource(spool, origin=taken.origin, ordered=True)

    def prepare(self, intent: Intent, snapshot: Snapshot, source: Source | None) -> Prepared:
        """As in process where the source may travel to every task; see ``broadcast_bytes``."""
        if isinstance(source, SparkSource):
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

    def match(self, plan: Plan, prepared: Prepared, progress: Progress) -> Matches:
        """Which rows change; executors read key columns, or a predicate's, and write nothing."""
        if prepared.remote is not None:
            return self._remote(plan, prepared)(self.crew, plan, prepared, None, progress)[0]
        match plan.intent:
            case Merge():
                return self._merge(plan, prepared, None, progress)[0]
            case Delete() | Update():
                return self._predicate(plan, None, progress)[0]
            case Deduplicate() as intent:
                return self._duplicates(plan, intent)
            case Write():
                return _written(plan, prepared)
            case Optimize():
                return Matches(notes=range_note(self._ranges(plan)))
            case Compact():
                return Matches()

    def execute(
        self, plan: Plan, prepared: Prepared, tx: Transaction, progress: Progress
    ) -> tuple[Plan, Change]:
        """One stage probes and rewrites; new rows follow in another, where they are many."""
        if prepared.remote is not None:
            return self._large(plan, prepared, tx, progress)
        match plan.intent:
            case Merge():
                found = self._merge(plan, prepared, tx.workplace(), progress)
            case Delete() | Update():
                found = self._predicate(plan, tx.workplace(), progress)
            case Deduplicate() as intent:
                found = self._duplicates(plan, intent), {}
            case Write():
                found = _written(plan, prepared), {}
            case Compact():
                return plan, self._compacted(plan, tx.workplace(), progress)
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
            replaced += self._rewritten(
                replace(plan, files=rest), matches, tx.workplace(), progress, source=prepared.table
            )
        added = self._placed(plan, prepared, matches, tx, progress)
        return plan, plan.change(replaced=replaced, added=added)

    def _large(
        self, plan: Plan, prepared: Prepared, tx: Transaction, progress: Progress
    ) -> tuple[Plan, Change]:
        """A merge or write whose source stays on executors."""
        matches, staged, added = self._remote(plan, prepared)(self.crew, plan, prepared, tx, progress)
        plan = settled(plan, prepared, matches)
        rest = tuple(item for item in plan.chosen("rewrite") if item.file.path not in staged)
        assert not any(item.file.path in matches.counts for item in rest), "a file that was hit is not staged"
        replaced = _replaced(plan, staged)
        if rest:  # not hit, and yet to be written anew, such as in wider types
            replaced += self._rewritten(replace(plan, files=rest), matches, tx.workplace(), progress)
        return plan, plan.change(replaced=replaced, added=added)

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
        matcher = MergeMatcher(_light(plan), plan.intent, index)
        with self._room(plan, prepared.table, workplace) as room:
            work = MergeWork(matcher, workplace)
            found = self._files(merge_files, plan.chosen("scan"), work, progress, room)
        whole = replace(matcher, plan=plan)
        matches = whole.settle([match for match, _ in found])
        return matches, {match.plan.file.path: file for match, file in found if file is not None}

    def _predicate(
        self, plan: Plan, workplace: Workplace | None, progress: Progress
    ) -> tuple[Matches, dict[str, StagedFile]]:
        intent = plan.intent
        action = Assign(intent.assignments) if isinstance(intent, Update) else Drop()
        scans = plan.chosen("scan")
        work = PredicateWork(_light(plan), workplace, (action,))
        found = self._files(predicate_files, scans, work, progress)
        staged = {
            item.file.path: file for item, (_, file) in zip(scans, found, strict=True) if file is not None
        }
        return settle_predicate(plan, scans, [hits for hits, _ in found]), staged

    @contextmanager
    def _room(self, plan: Plan, table: pa.Table | None, workplace: Workplace | None) -> Iterator[Room | None]:
        """Where rows that every task needs wait while a stage runs; None where they are few."""
        if table is None or table.nbytes <= INLINE_BYTES:
            yield None
            return
        if workplace is not None:
            yield workplace.staging  # what lies there goes with the transaction
            return
        place = workspace(self.spark, _beside(plan.snapshot), self.spool_dir)
        try:
            yield place
        finally:
            place.remove()

    def _files(
        self,
        work: Any,
        files: Sequence[FilePlan],
        shared: Any,
        progress: Progress,
        room: Room | None = None,
    ) -> list[Any]:
        """A function over shares of files; its results in the order of the files."""
        if not files:
            return []
        crew = self.crew
        weights = [item.file.size for item in files]
        shares = crew.shares(weights)
        jobs = [[files[number] for number in share] for share in shares]
        writing = shared.workplace is not None
        progress("probe and write files" if writing else "probe files", 0, len(files))
        sizes = [sum(weights[number] for number in share) for share in shares]
        done = crew.each(work, jobs, shared=shared, weights=sizes, room=room)
        progress("write files" if writing else "probe files", len(files), len(files))
        result: dict[int, Any] = {}
        for share, answers in zip(shares, done, strict=True):
            result |= dict(zip(share, answers, strict=True))
        return [result[number] for number in range(len(files))]

    def _rewritten(
        self,
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
        work = RewriteWork(_light(plan), workplace, matches.actions, source)
        weights = [item.file.size for item in items]
        shares = self.crew.shares(weights) if items else []
        progress("write files", 0, len(items))
        with self._room(plan, source, workplace) as room:
            done = self.crew.each(
                rewrite_files,
                [[jobs[number] for number in share] for share in shares],
                shared=work,
                weights=[sum(weights[number] for number in share) for share in shares],
                room=room,
            )
        progress("write files", len(items), len(items))
        staged = {
            number: file
            for share, files in zip(shares, done, strict=True)
            for number, file in zip(share, files, strict=True)
        }
        return [Replacement(item.file, staged[number]) for number, item in enumerate(items)]

    def _placed(
        self, plan: Plan, prepared: Prepared, matches: Matches, tx: Transaction, progress: Progress
    ) -> list[StagedFile]:
        """New files for new rows."""
        placing = Placing(
            _with_one_file(plan.snapshot),
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
        shares = balanced(weights, self.crew.tasks)
        progress("write new files", 0, len(new))
        with self._room(plan, prepared.table, tx.workplace()) as room:
            done = self.crew.each(
                place_files,
                [[new[number] for number in share] for share in shares],
                shared=PlaceWork(placing, prepared.table, tx.workplace()),
                weights=[sum(weights[number] for number in share) for share in shares],
                room=room,
            )
        progress("write files", len(new), len(new))
        return [file for files in done for file in files]

    def _duplicates(self, plan: Plan, intent: Deduplicate) -> Matches:
        files = [item.file for item in plan.chosen("scan")]
        return self._losing(plan, files, intent.keys, intent.order_by)

    def _losing(
        self, plan: Plan, files: Sequence[DataFile], keys: tuple[str, ...], order_by: tuple[str, ...]
    ) -> Matches:
        """Rows that lose against a duplicate; their keys wait in a spool while Spark compares them."""
        place = workspace(self.spark, _beside(plan.snapshot), self.spool_dir)
        try:
            return spark_duplicates(self.crew, plan, place, files=files, keys=keys, order_by=order_by)
        finally:
            place.remove()

    def _compacted(self, plan: Plan, workplace: Workplace, progress: Progress) -> Change:
        work = GroupWork(_light(plan), workplace, self.memory_bytes)
        jobs = list(enumerate(plan.groups))
        progress("write files", 0, len(jobs))
        added = self.crew.each(compact_files, jobs, shared=work, weights=[g.size for g in plan.groups])
        progress("write files", len(jobs), len(jobs))
        return _regrouped(plan, added, exclusive=False)

    def _ranges(self, plan: Plan) -> dict[int, int]:
        return planned_ranges(plan, memory_bytes=self.memory_bytes, cores=self._cores())

    def _optimized(self, plan: Plan, workplace: Workplace, progress: Progress) -> tuple[Plan, Change]:
        """A large group is built by many tasks, range by range; any other is one task's work."""
        intent = plan.intent
        assert isinstance(intent, Optimize)
        ranges = self._ranges(plan)
        drops = Matches()
        deduplicate = intent.deduplicate or bool(intent.deduplicate_keys)
        if deduplicate:
            files = [file for group in plan.groups for file in group.files]
            drops = self._losing(plan, files, intent.deduplicate_keys, intent.dedup_order_by)
        work = GroupWork(_light(plan), workplace, self.memory_bytes)
        groups = [group for number, group in enumerate(plan.groups) if number not in ranges]
        jobs = [(replace(_light(plan), groups=(group,)), _of_group(drops, group)) for group in groups]
        progress("write files", 0, len(jobs))
        changes = self.crew.each(optimize_files, jobs, shared=work, weights=[g.size for g in groups])
        progress("write files", len(jobs), len(jobs))
        added = [file for change in changes for file in change.added]
        added += optimize_ranges(
            self.crew,
            plan,
            workplace,
            ranges,
            drops=drops,
            memory_bytes=self.memory_bytes,
            progress=progress,
        )
        plan = replace(plan, notes=(*plan.notes, *range_note(ranges)))
        return plan, _regrouped(plan, added, exclusive=deduplicate)


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


def _beside(snapshot: Snapshot) -> Shared | None:
    """A place next to the files, which all of Spark can reach."""
    if not snapshot.files:
        return None
    file = snapshot.files[0]
    root = file.location.removesuffix(f"/{file.path}")
    parent, _, name = root.rpartition("/")
    return snapshot.filesystem, f"{parent}/.{name}.intarsia/spools", root


def _of_group(drops: Matches, group: FileGroup) -> Matches:
    """What is dropped of one group's files."""
    paths = {file.path for file in group.files}
    hits = {path: mine for path, mine in drops.hits.items() if path in paths}
    return Matches(drops.actions, hits, drops.dropped & paths)


def _warn_of_ties(intent: Intent) -> None:
    if isinstance(intent, Merge) and intent.rule.name == "deduplicate" and not intent.dedup_order_by:
        warnings.warn(
            "deduplicate without dedup_order_by: which row of a DataFrame is the last is not defined.",
            UserWarning,
            stacklevel=2,
        )


def _light(plan: Plan) -> Plan:
    """The plan without its files, which travel with the jobs."""
    return replace(plan, files=(), groups=(), snapshot=replace(plan.snapshot, files=()))


def _with_one_file(snapshot: Snapshot) -> Snapshot:
    """Enough of a snapshot to lay new files out as its own are."""
    return replace(snapshot, files=snapshot.files[:1])


def _written(plan: Plan, prepared: Prepared) -> Matches:
    removed = plan.chosen("remove")
    inserts: list[tuple[Insert, pa.Array]] = all_rows(prepared.table)
    return Matches(
        inserts=tuple(inserts),
        inserted=prepared.table.num_rows,
        deleted=sum(item.file.rows for item in removed),
        dropped=frozenset(item.file.path for item in removed),
    )


def _regrouped(plan: Plan, added: Sequence[StagedFile], *, exclusive: bool) -> Change:
    files: tuple[DataFile, ...] = tuple(file for group in plan.groups for file in group.files)
    return Change(
        plan.operation,
        added=tuple(added),
        removed=files,
        planned=files,
        exclusive=exclusive,
        properties=plan.intent.properties,
    )
