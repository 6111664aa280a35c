"""Merges and writes of large sources, whose rows stay on storage until they are routed to files.

Matching finds out which source row goes to which file: by an index over the columns that decide, which the
driver makes and tasks look up, or by a join of Spark's where that would be too large. Then tasks choose the
rows that are new, sort the source's rows by the file they go to, and write the files. Rows pass through
storage, never through Spark's own shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from intarsia.common.arrow import IngestedSource
from intarsia.common.rows import combine, take_rows
from intarsia.common.schema import conform_table
from intarsia.core.change import Matches, Staged, StagedFile
from intarsia.core.intent import MergeIntent, Predicate, WriteIntent
from intarsia.core.keys import arange, to_array
from intarsia.core.partitioner import HivePartitioner, Partitioner
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.planning import SourceFacts
from intarsia.core.ports import Execution
from intarsia.core.prepare import (
    MergeTerms,
    Prepared,
    find_rows_outside,
    prepare_rows,
    resolve_merge,
    resolve_overwrite,
    resolve_write,
)
from intarsia.core.prune import PartitionSet
from intarsia.core.snapshot import Snapshot
from intarsia.core.validation import refuse_outside
from intarsia.engines.spark.copies import group_by_partition
from intarsia.engines.spark.join import prepare_joined, probe_joined
from intarsia.engines.spark.large_source import (
    ArrowStore,
    LargeSource,
    cast_spool,
    deciding_columns,
    find_distinct_rows,
    inserting_columns,
    is_special,
    read_pieces,
    restore_types,
    route_rows,
    stored_schema,
    write_routes,
)
from intarsia.engines.spark.new_rows import (
    FilePlanner,
    NewRows,
    NewRowSlice,
    NewRowWork,
    PlannedFile,
    choose_rows,
    inserting_actions,
)
from intarsia.engines.spark.probe import (
    FileHits,
    NoteWork,
    ProbeResult,
    ProbeWork,
    count_matches,
    probe_index,
    refuse,
)
from intarsia.engines.spark.route_tasks import (
    FileBatch,
    RouteWork,
    SortedPart,
    WriteWork,
    batch_files,
    copy_file_batches,
    route_part,
    write_file_batch,
)
from intarsia.engines.spark.source import SparkSource, Spool, SpoolPart
from intarsia.engines.spark.staging import with_one_file, without_files
from intarsia.engines.spark.tasks import TaskRunner
from intarsia.errors import SchemaMismatch
from intarsia.kernel.match import MergeMatcher, SourceIndex
from intarsia.kernel.partitioned_writer import NewRowWriter
from intarsia.kernel.threads import split_by_weight

ROUTED_BYTES = 64 << 20
"""Maximum bytes in memory of a source that is quicker when every task gets all of it."""
_SAMPLES = 64


# ---------------------------------------------------------------------------------------------------
# Preparing.


def prepare_large_merge(
    runner: TaskRunner, intent: MergeIntent, snapshot: Snapshot, source: SparkSource, *, limit: int
) -> Prepared | None:
    """Cast and check a source where it is; None where it is quicker to send it to every task.

    The driver has an index of up to ``limit`` bytes. Raises as preparing a small source does.
    """
    spool = source.spool
    if spool.size <= min(ROUTED_BYTES, limit):
        return None
    terms = resolve_merge(intent, snapshot, source.schema)
    if not _fits_index(terms, snapshot, spool, limit=limit):
        return prepare_joined(runner, terms, snapshot, source) if spool.size > limit else None
    try:
        return prepare_indexed(runner, terms, snapshot, source)
    except SchemaMismatch:
        if spool.size > limit:
            raise
        return None  # to be raised for the source as a whole


def _fits_index(terms: MergeTerms, snapshot: Snapshot, spool: Spool, *, limit: int) -> bool:
    """Whether the columns that decide the merge may come to the driver."""
    if any(is_special(kind) for kind in terms.wanted.types) or not all(part.columns for part in spool.parts):
        return False
    deciding = set(deciding_columns(terms, snapshot))
    places = [number for number, name in enumerate(spool.schema.names) if name in deciding]
    size = sum(part.columns[number] for part in spool.parts for number in places)
    return 2 * size + 16 * spool.rows <= limit  # in the order of rows and of keys, and their numbers


def prepare_indexed(
    runner: TaskRunner, terms: MergeTerms, snapshot: Snapshot, source: SparkSource
) -> Prepared:
    """Cast the source where it is, and index the columns by which the merge is decided."""
    operation, path = terms.intent.rule.name, snapshot.root
    spool = cast_spool(runner, source.spool, terms.wanted, operation=operation, path=path)
    names = deciding_columns(terms, snapshot)
    table = _read_columns(spool, [name for name in names if name in spool.schema.names])
    wanted = pa.schema([terms.wanted.field(name) for name in names], terms.wanted.metadata)
    table = conform_table(table, wanted, operation=operation, path=path)
    counted = table
    if operation == "deduplicate":
        counted = table.append_column(_choose_unused_name(table), arange(table.num_rows))
    prepared = prepare_rows(terms, IngestedSource(counted, origin=source.origin), path=path, rows=source.rows)
    large = LargeSource(spool, terms.wanted, tuple(inserting_columns(terms, snapshot)), rows=spool.rows)
    if operation == "deduplicate":
        *_, last = prepared.table.columns
        if len(last) < table.num_rows:
            numbers = to_array(last)
            kept = write_routes(large.store, [route_rows(0, numbers)], large.starts)
            large = replace(large, numbers=numbers, kept=(kept,), rows=len(numbers))
        prepared = replace(prepared, table=prepared.table.select(names))
    return replace(prepared, remote=large)


def _choose_unused_name(table: pa.Table) -> str:
    """A name that no column has."""
    return "_".join(["row", *table.column_names])


def _read_columns(spool: Spool, names: list[str]) -> pa.Table:
    """Some columns, into the driver; in the types that their files give them back in."""
    tables = []
    for part in spool.parts:
        with pq.ParquetFile(part.location, filesystem=spool.filesystem) as file:
            tables.append(file.read(columns=names).select(names))
    return combine(pa.concat_tables(tables))


def prepare_large_write(
    runner: TaskRunner, intent: WriteIntent, snapshot: Snapshot, source: SparkSource
) -> Prepared:
    """Cast rows that are to be added, where they are."""
    schema, partition_columns = resolve_write(intent, snapshot, source.schema)
    intent = resolve_overwrite(intent, schema)
    path, mode = snapshot.root, intent.mode
    spool = cast_spool(runner, source.spool, schema, operation=mode, path=path)
    inserting = snapshot.partitioner.columns if snapshot.format.owns_schema else partition_columns
    replaces = mode == "overwrite_partitions"
    work = WriteProfileWork(
        ArrowStore(spool.filesystem, spool.directory),
        pa.schema(
            [
                one
                for one in schema
                if intent.where is not None or one.name in {*inserting, *partition_columns}
            ]
        ),
        partition_columns if replaces else (),
        snapshot.partitioner if replaces and snapshot.format.owns_schema else None,
        intent.where,
        mode,
        path,
    )
    places, keys = _profile_rows(runner, work, spool, intent, rows=source.rows)
    large = LargeSource(spool, schema, tuple(inserting), rows=spool.rows)
    none = pa.Table.from_batches([], schema)
    facts = SourceFacts(spool.rows, {}, places, keys)
    return Prepared(intent, schema, partition_columns, none, facts, source.rows, remote=large)


@dataclass(frozen=True, slots=True)
class WriteProfileWork:
    """Looks at rows that are to be added."""

    store: ArrowStore
    schema: pa.Schema
    """The columns that are read."""
    partitions: tuple[str, ...]
    """Columns whose distinct values are asked for."""
    partitioner: Partitioner | None
    """Whose partitions are asked for."""
    where: Predicate
    """What every row has to make TRUE."""
    operation: str
    path: str


@dataclass(frozen=True, slots=True)
class WriteProfile:
    """What there is in one part."""

    partitions: pa.Table
    keys: frozenset[object]
    outside: int
    """How many rows the condition of an overwrite does not cover."""
    samples: pa.Table
    """Some of those."""


def profile_written_rows(work: WriteProfileWork, part: SpoolPart) -> WriteProfile:
    """Runs on an executor; memory: a few row groups."""
    none = pa.Table.from_batches([], work.schema)
    places, keys, outside, samples = [none.select(list(work.partitions))], set[object](), 0, none
    for piece in read_pieces(part, work.store.filesystem, work.schema.names):
        table = restore_types(piece, work.schema, operation=work.operation, path=work.path)
        places.append(find_distinct_rows(table, work.partitions))
        if work.partitioner is not None:
            deciding = table.select(list(work.partitioner.columns))
            keys |= {key.key for key, _ in work.partitioner.partition_rows(deciding)}
        if work.where is not None:
            uncovered = find_rows_outside(work.where, table)
            outside += len(uncovered)
            if samples.num_rows < _SAMPLES:
                samples = pa.concat_tables([samples, take_rows(table, uncovered.slice(0, _SAMPLES))])
    return WriteProfile(pa.concat_tables(places), frozenset(keys), outside, samples)


def _profile_rows(
    runner: TaskRunner, work: WriteProfileWork, spool: Spool, intent: WriteIntent, *, rows: int
) -> tuple[PartitionSet, frozenset[object] | None]:
    """The partitions that rows are written to; refuses rows that the condition does not cover."""
    found: list[WriteProfile] = []
    if work.partitions or work.partitioner is not None or work.where is not None:
        weights = [part.size for part in spool.parts]
        found = runner.run_each(profile_written_rows, spool.parts, shared=work, weights=weights)
    outside = sum(one.outside for one in found)
    if outside:
        shown = pa.concat_tables([one.samples for one in found])
        refuse_outside(shown, arange(shown.num_rows), outside, intent, rows=rows, path=work.path)
    none = pa.Table.from_batches([], work.schema).select(list(work.partitions))
    places = pa.concat_tables([none, *(one.partitions for one in found)])
    keys = None if work.partitioner is None else frozenset(key for one in found for key in one.keys)
    return PartitionSet.of(places, work.partitions), keys


# ---------------------------------------------------------------------------------------------------
# Matching and writing.


def merge_large(runner: TaskRunner, execution: Execution) -> Matches:
    """Match, route, write; without a transaction only count."""
    plan, prepared, tx, progress = execution.plan, execution.prepared, execution.tx, execution.progress
    intent, large = plan.intent, prepared.remote
    assert isinstance(intent, MergeIntent)
    assert isinstance(large, LargeSource)
    assert prepared.index is not None
    scans = plan.select("scan") if plan.snapshot.replaces_in_place else tuple(group_by_partition(plan))
    index = SourceIndex.of(prepared.table, prepared.index, plan.snapshot.partition_columns)
    matcher = MergeMatcher(plan, intent, index)
    progress("probe files" if tx is None else "probe and write files", 0, len(scans))
    notes = NoteWork(large.store, large.starts, hits=tx is not None)
    work = ProbeWork(replace(matcher, plan=without_files(plan)), large.numbers, notes)
    if large.key_files is None:
        probed = probe_index(runner, work, list(enumerate(scans)))
    else:
        probed = probe_joined(runner, work, large, scans)
    found = sorted((one for task in probed for one in task.files), key=lambda one: one.number)
    refuse(matcher, scans, found)
    routing = Routing(runner, execution, large, matcher)
    chosen = routing.choose_rows(_notes_of(probed)) if intent.rule.inserts else []
    staged = Staged()
    if tx is not None:
        new = routing.planner.plan_files(chosen, inserting_actions(matcher), tx)
        staged = routing.write(scans, probed, found, new)
    large.store.remove({*_notes_of(probed), *(one.noted[0] for one in found if one.noted is not None)})
    large.store.remove({one.noted[0] for one in chosen if one.noted[0]})
    progress("probe files" if tx is None else "write files", len(scans), len(scans))
    if staged.added:
        progress("write files", len(staged.added), len(staged.added))
    return replace(count_matches(plan, scans, found, sum(one.rows for one in chosen)), staged=staged)


def write_large(runner: TaskRunner, execution: Execution) -> Matches:
    """New files for all rows; without a transaction only count them."""
    plan, tx, large = execution.plan, execution.tx, execution.prepared.remote
    assert isinstance(large, LargeSource)
    matches = count_matches(plan, (), (), large.rows)
    if tx is None or not large.spool.parts:
        return matches
    routing = Routing(runner, execution, large, None)
    if large.inserting:
        new = routing.planner.plan_files(routing.choose_rows(()), inserting_actions(None), tx)
    else:
        new = routing.planner.plan_slices(tx)
    staged = routing.write((), (), (), new)
    execution.progress("write files", len(staged.added), len(staged.added))
    return replace(matches, staged=staged)


def _notes_of(probed: Sequence[ProbeResult]) -> tuple[str, ...]:
    return tuple(task.routes for task in probed if task.routes is not None)


@dataclass(frozen=True, slots=True)
class Routing:
    """Brings rows of a large source to files, and writes those."""

    runner: TaskRunner
    execution: Execution
    large: LargeSource
    matcher: MergeMatcher | None
    """Of a merge; None where all rows are new."""

    @property
    def plan(self) -> Plan:
        return self.execution.plan

    @property
    def operation(self) -> str:
        """What errors name."""
        return self.plan.operation if self.matcher is None else self.matcher.rule.name

    @property
    def planner(self) -> FilePlanner:
        return FilePlanner(
            self.plan, self.large, self.runner.tasks, "part" if self.matcher is None else "insert"
        )

    @property
    def writer(self) -> NewRowWriter:
        columns = self.execution.prepared.partition_columns
        snapshot = with_one_file(self.plan.snapshot)
        return NewRowWriter(
            snapshot, self.plan.schema, columns, self.plan.intent.options, self.plan.operation
        )

    def choose_rows(self, notes: tuple[str, ...]) -> list[NewRows]:
        """The new rows of the source, those left out that notes have found a match for."""
        large, partitioner = self.large, self.plan.snapshot.partitioner
        if self.plan.snapshot.replaces_in_place:
            partitioner = HivePartitioner(self.execution.prepared.partition_columns)
        matcher = self.matcher
        if matcher is not None:  # without the index, which only tells rows that match
            none = replace(matcher.source, table=matcher.source.table.slice(0, 0), keys=None, ordered=None)
            matcher = replace(matcher, plan=without_files(matcher.plan), source=none)
        work = NewRowWork(
            large.store,
            notes,
            large.kept,
            pa.schema([large.wanted.field(name) for name in large.inserting]),
            matcher,
            self.writer,
            None if self.execution.tx is None else partitioner,
        )
        return choose_rows(self.runner, work, large)

    def write(
        self,
        scans: Sequence[FilePlan],
        probed: Sequence[ProbeResult],
        found: Sequence[FileHits],
        new: Sequence[PlannedFile],
    ) -> Staged:
        """Bring the source's rows to the files that need them, and write those."""
        large, row_bytes = self.large, self.large.row_bytes
        if new:
            self.writer.check_columns_left()
        numbered = list(enumerate(new, len(scans)))
        alone = [
            FileBatch(((one.number, scans[one.number], one.noted),), (), one.needed)
            for one in found
            if one.noted is not None
        ]
        alone += [FileBatch((), ((number, file),), file.rows) for number, file in numbered]
        file_batches = list(batch_files(alone, row_bytes=row_bytes, tasks=self.runner.tasks))
        routed = self._route(_notes_of(probed), numbered, file_batches)
        file_batches = [
            replace(one, rows=tuple((part.location, part.batches[n]) for part in routed if n in part.batches))
            for n, one in enumerate(file_batches)
        ]
        work = WriteWork(
            without_files(self.plan),
            self.execution.transaction.output(),
            () if self.matcher is None else self.matcher.actions,
            self.writer,
            large.wanted,
            large.store,
            self.operation,
        )
        weights = [one.estimate_bytes(row_bytes) for one in file_batches]
        try:
            if not self.plan.snapshot.replaces_in_place:
                return Staged(added=tuple(_copy_batches(self.runner, work, file_batches, weights)))
            done = self.runner.run_each(write_file_batch, file_batches, shared=work, weights=weights)
        finally:
            large.store.remove(part.location for part in routed)
        staged: dict[str, StagedFile] = {}
        added: list[StagedFile] = []
        for one, written in zip(file_batches, done, strict=True):
            staged |= {item.file.path: file for (_, item, _), file in zip(one.files, written, strict=False)}
            added += written[len(one.files) :]
        return Staged(staged, tuple(added))

    def _route(
        self,
        notes: tuple[str, ...],
        new: Sequence[tuple[int, PlannedFile]],
        file_batches: Sequence[FileBatch],
    ) -> list[SortedPart]:
        """Sort the rows that files need by file; none where no file needs any, or finds them in place."""
        if not any(one.needed for one in file_batches) or any(file.slices for _, file in new):
            return []
        work = RouteWork(
            self.large.store,
            stored_schema(self.large.wanted),
            notes,
            tuple(one.first for one in file_batches),
            self.operation,
            self.plan.snapshot.root,
        )
        parts = self.large.spool.parts
        chosen: list[list[tuple[int, NewRowSlice]]] = [[] for _ in parts]
        for file, planned in new:
            for one in planned.noted:
                chosen[one.part].append((file, one))
        jobs = [(number, part, chosen[number]) for number, part in enumerate(parts)]
        done = self.runner.run_each(route_part, jobs, shared=work, weights=[part.size for part in parts])
        return [one for one in done if one is not None]


def _copy_batches(
    runner: TaskRunner, work: WriteWork, file_batches: Sequence[FileBatch], weights: Sequence[int]
) -> list[StagedFile]:
    """Write all batches of files; neighbours go to one task, so that each partition gets few new files."""
    numbers = (
        split_by_weight(range(len(file_batches)), weights, len(runner.make_shares(weights)))
        if file_batches
        else []
    )
    shares = [[file_batches[number] for number in share] for share in numbers]
    shared = [sum(weights[number] for number in share) for share in numbers]
    done = runner.run_each(copy_file_batches, shares, shared=work, weights=shared)
    return [file for files in done for file in files]
