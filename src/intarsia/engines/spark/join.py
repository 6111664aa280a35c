"""A merge whose source is too large to send to tasks: Spark joins its keys and routes its rows to files.

Key columns of the candidate files are written once; a join sends each source row to the files that hold
its key, grouped by file; each group then probes and rewrites its file as in a small merge, with whatever
the ON condition asks beyond equal keys. Target rows never cross a shuffle, and no row of the source comes
to the driver.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import Window
from pyspark.sql import functions as F

from intarsia.core.change import Matches, Staged, StagedFile
from intarsia.core.intent import Merge, Write
from intarsia.core.keys import KeyIndex, arange, comparable, decoded, flat
from intarsia.core.partitioner import Partitioner
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.planning import SourceFacts
from intarsia.core.ports import Execution, OutputLocation, Progress
from intarsia.core.prepare import Prepared, resolve_merge, resolve_overwrite, resolve_write
from intarsia.core.prune import KeyRange, PartitionSet
from intarsia.core.rule import STRATEGIES
from intarsia.core.snapshot import Snapshot
from intarsia.core.validation import duplicate_keys, null_source_keys, refuse_outside
from intarsia.engines.spark.copies import CopyWork, copy_matched, is_copy_on_write
from intarsia.engines.spark.join_source import (
    FILE,
    ROW,
    CastParts,
    PartProfile,
    RemoteRows,
    cast_parts,
    frame_of,
    key_names,
    partition_code,
    with_keys,
)
from intarsia.engines.spark.match import MergeProbe, MergeWork, merge_files
from intarsia.engines.spark.new_rows import write_source_rows
from intarsia.engines.spark.outcome import FileOutcome, ValidationFailure, matches_of, refuse
from intarsia.engines.spark.source import PartWriter, SparkSource, spool_writer
from intarsia.engines.spark.staging import without_files
from intarsia.engines.spark.tasks import TaskRunner
from intarsia.engines.spark.types import from_spark_types
from intarsia.kernel.match import FileMatch, MergeMatcher, SourceIndex
from intarsia.kernel.overlay import take_rows
from intarsia.kernel.read import FileReader, constant_column
from intarsia.spark.collect import collect


def prepare_joined_merge(
    runner: TaskRunner, intent: Merge, snapshot: Snapshot, source: SparkSource
) -> Prepared:
    """Cast and check the source where it is; raises as preparing a small one does."""
    terms = resolve_merge(intent, snapshot, source.schema)
    intent = terms.intent
    operation, path, keys = intent.rule.name, snapshot.root, intent.source_keys
    spool = source.spool
    casting = CastParts(terms.wanted, keys, terms.pruning, operation, path, spool.filesystem, spool.directory)
    whole_rows = intent.rule.inserts and intent.rule.replaces_rows
    partitioner = _noted(snapshot) if whole_rows else None
    if partitioner is not None and not set(partitioner.columns) <= set(terms.wanted.names):
        partitioner = None  # rows that lack what decides about their partition
    facts = cast_parts(runner, spool, replace(casting, partitioner=partitioner))
    nulls = {name: sum(fact.nulls[name] for fact in facts) for _, name in intent.never_null}
    null_source_keys(nulls, operation=operation, path=path)
    parts = tuple(fact.part for fact in facts)
    remote = RemoteRows(
        replace(spool, schema=terms.wanted, parts=parts), terms.wanted, _count_partitions(facts)
    )
    if operation == "deduplicate":
        remote = _keep_last(runner, remote, intent)
    elif operation in STRATEGIES:
        _refuse_duplicates(runner, remote, intent, path)
    ranges = {
        name: _key_range(facts, other, terms.wanted.field(other).type)
        for name, other in zip(intent.keys, keys, strict=True)
    }
    partitions = PartitionSet.of(_distinct_partitions(facts, terms.wanted, terms.pruning), terms.pruning)
    empty = pa.Table.from_batches([], terms.wanted)
    return Prepared(
        intent,
        terms.schema,
        terms.partition_columns,
        empty,
        SourceFacts(remote.spool.rows, ranges, partitions),
        source.rows,
        KeyIndex([empty[name] for name in keys], null_match=intent.matches_null),
        remote,
        terms.notes,
    )


def prepare_joined_write(
    runner: TaskRunner, intent: Write, snapshot: Snapshot, source: SparkSource
) -> Prepared:
    """Cast rows that are to be added, where they are."""
    schema, partition_columns = resolve_write(intent, snapshot, source.schema)
    apart = partition_columns if intent.mode == "overwrite_partitions" else ()
    spool = source.spool
    casting = CastParts(schema, (), apart, intent.mode, snapshot.root, spool.filesystem, spool.directory)
    intent = resolve_overwrite(intent, schema)
    casting = replace(casting, where=intent.where)
    replaces_parts = intent.mode == "overwrite_partitions" and snapshot.format.owns_schema
    partitioner = snapshot.partitioner if replaces_parts else _noted(snapshot)
    facts = cast_parts(runner, spool, replace(casting, partitioner=partitioner))
    _refuse_outside(facts, intent, source, snapshot)
    parts = tuple(fact.part for fact in facts)
    remote = RemoteRows(replace(spool, schema=schema, parts=parts), schema, _count_partitions(facts))
    places = PartitionSet.of(_distinct_partitions(facts, schema, apart), apart)
    keys = frozenset(key for fact in facts for key in fact.homes) if replaces_parts else None
    return Prepared(
        intent,
        schema,
        partition_columns,
        pa.Table.from_batches([], schema),
        SourceFacts(remote.spool.rows, {}, places, keys),
        source.rows,
        remote=remote,
    )


def _refuse_outside(
    facts: Sequence[PartProfile], intent: Write, source: SparkSource, snapshot: Snapshot
) -> None:
    """Refuse rows that the condition of an overwrite does not cover."""
    count = sum(fact.outside for fact in facts)
    some = [fact.samples for fact in facts if fact.samples is not None]
    if some:
        shown = pa.concat_tables(some)
        every = arange(shown.num_rows)
        refuse_outside(shown, every, count, intent, rows=source.rows, path=snapshot.root)


def _noted(snapshot: Snapshot) -> Partitioner | None:
    """The partitions to note beside rows, where there may be several."""
    if snapshot.replaces_in_place or not snapshot.partitioner.columns:
        return None
    return snapshot.partitioner


def _count_partitions(facts: Sequence[PartProfile]) -> dict[int, int]:
    """How many rows go to each partition, by its code."""
    homes: dict[int, int] = {}
    for fact in facts:
        for key, rows in fact.homes.items():
            homes[partition_code(key)] = homes.get(partition_code(key), 0) + rows
    return homes


def _distinct_partitions(facts: Sequence[PartProfile], wanted: pa.Schema, columns: Sequence[str]) -> pa.Table:
    return pa.concat_tables(
        [pa.Table.from_batches([], wanted).select(list(columns)), *(fact.partitions for fact in facts)]
    )


def _key_range(facts: Sequence[PartProfile], name: str, kind: pa.DataType) -> KeyRange:
    """All that is known of the source's keys: between which values they lie."""
    ends = [fact.ends[name] for fact in facts if name in fact.ends]
    values = pa.concat_arrays(ends) if ends else flat(decoded(comparable(pa.nulls(0, kind))))
    values = values.take(pc.array_sort_indices(values))
    both = pa.concat_arrays([values.slice(0, 1), values.slice(max(len(values) - 1, 0))])
    return KeyRange(
        both,
        has_null=any(fact.nulls[name] for fact in facts),
        has_nan=any(fact.nan[name] for fact in facts),
        span=True,
    )


def _refuse_duplicates(runner: TaskRunner, remote: RemoteRows, intent: Merge, path: str) -> None:
    if not remote.spool.parts:
        return
    frame = remote.frame(runner)
    counted = frame.groupBy(*key_names(len(intent.keys))).agg(
        F.count("*").alias("n"), F.first(ROW).alias(ROW)
    )
    if not intent.matches_null:
        for name in key_names(len(intent.keys)):
            counted = counted.where(F.col(name).isNotNull())  # dropna would take NaN for NULL
    many = counted.where("n > 1")
    found = collect(many.agg(F.count("*").alias("keys"), F.sum("n").alias("rows"))).to_pylist()[0]
    if not found["keys"]:
        return
    some = frame.join(many.select(ROW).limit(64), ROW, "left_semi")
    some = collect(some.select(*(remote.columns[name] for name in intent.source_keys)))
    schema = pa.schema([remote.wanted.field(name) for name in intent.source_keys])
    samples = from_spark_types(some, schema, operation=intent.rule.name, path=path)
    duplicate_keys(
        samples, intent.source_keys, found["keys"], found["rows"], operation=intent.rule.name, path=path
    )


def _keep_last(runner: TaskRunner, remote: RemoteRows, intent: Merge) -> RemoteRows:
    """One row per key: the highest order, then the last of the source's parts."""
    if not remote.spool.parts:
        return remote
    order = [F.col(remote.columns[name]).desc_nulls_last() for name in intent.dedup_order_by]
    window = Window.partitionBy(*key_names(len(intent.keys))).orderBy(*order, F.col(ROW).desc())
    first = remote.frame(runner).withColumn("__place", F.row_number().over(window)).where("__place = 1")
    writing = PartWriter(remote.spool.filesystem, remote.spool.directory)
    parts = tuple(part for part in runner.over(first.drop("__place"), writing.parts) if part.rows)
    return replace(remote, spool=replace(remote.spool, parts=parts), numbered=False)


@dataclass(frozen=True, slots=True)
class KeyWork:
    """Writes the key columns of candidate files."""

    plan: Plan
    keys: tuple[str, ...]
    filesystem: pafs.FileSystem
    directory: str


def write_keys(work: KeyWork, job: tuple[int, FilePlan]) -> str | None:
    """The keys of one file, each with the file's number; None when no row group may hold one."""
    number, item = job
    snapshot = work.plan.snapshot
    stored = [name for name in work.keys if name not in item.file.partition]
    location = f"{work.directory}/{uuid.uuid4().hex}.parquet"
    writer: pq.ParquetWriter | None = None
    with FileReader(item.file, snapshot.schema, snapshot.filesystem) as reader:
        for group in item.row_groups:
            rows = reader.footer.row_group(group).num_rows
            live = reader.live_rows(reader.start_of(group), rows)
            table = reader.read(stored, group) if stored else None
            columns = [
                flat(table[name])
                if table is not None and name in stored
                else constant_column(item.file.partition[name], snapshot.schema.field(name).type, rows)
                for name in work.keys
            ]
            sent = with_keys(pa.table({FILE: pa.repeat(pa.scalar(number, pa.int32()), rows)}), columns)
            sent = sent if live is None else take_rows(sent, live)
            if writer is None:
                writer = spool_writer(location, sent.schema, work.filesystem)
            writer.write_table(sent)
    if writer is None:
        return None
    writer.close()
    return location


@dataclass(frozen=True, slots=True)
class FileMerge:
    """Rewrites one file by the source rows that were routed to it."""

    plan: Plan
    intent: Merge
    files: tuple[FilePlan, ...] = field(repr=False)
    wanted: pa.Schema
    output: OutputLocation | None
    notes: PartWriter | None = None
    """Where the numbers of source rows that found a match are written, when equal keys do not tell."""

    def __call__(self, rows: pa.Table) -> Any:
        rows = rows.sort_by(ROW)  # Spark gives them in any order
        number = rows[FILE][0].as_py()
        source = from_spark_types(
            rows, self.wanted, operation=self.intent.rule.name, path=self.plan.snapshot.root
        )
        return self.merge_file(self.files[number], source, flat(rows[ROW]))

    def merge_file(self, item: FilePlan, source: pa.Table, numbers: pa.Array) -> FileOutcome:
        keys = KeyIndex(
            [source[name] for name in self.intent.source_keys], null_match=self.intent.matches_null
        )
        index = SourceIndex.of(source, keys, self.plan.snapshot.partition_columns)
        matcher = MergeMatcher(self.plan, self.intent, index)
        if not self.plan.snapshot.replaces_in_place:
            return self._merge_into_copies(matcher, item, numbers)
        ((match, staged),) = merge_files(MergeWork(matcher, self.output), [item])
        return FileOutcome(
            item.file.path,
            len(match.hits),
            matcher.drops(match),
            matcher.empties(match),
            staged,
            self._noted(match, numbers),
            ValidationFailure.of(match, source),
        )

    def _merge_into_copies(self, matcher: MergeMatcher, item: FilePlan, numbers: pa.Array) -> FileOutcome:
        """The same where files are never replaced: rows are copied into new ones."""
        share = copy_matched(CopyWork(MergeProbe(matcher), self.output), [item])
        match = share.seen[0].match(item)
        return FileOutcome(
            item.file.path,
            len(match.hits),
            matcher.drops(match),
            matcher.empties(match),
            None,
            self._noted(match, numbers),
            ValidationFailure.of(match, matcher.source.table),
            tuple(share.added),
            None if is_copy_on_write(self.plan) else match.hits.positions,
        )

    def _noted(self, match: FileMatch, numbers: pa.Array) -> str | None:
        if self.notes is None or not match.matched:
            return None
        found = numbers.take(pc.unique(pa.concat_arrays(match.matched)))
        batch = pa.record_batch([found], names=[ROW])
        return next((part.location for part in self.notes.parts(iter([batch]))), None)


def merge_alone(work: FileMerge, item: FilePlan) -> FileOutcome:
    """A file that no source row was routed to."""
    return work.merge_file(item, pa.Table.from_batches([], work.wanted), pa.array([], pa.int64()))


def merge_joined(runner: TaskRunner, execution: Execution) -> Matches:
    """Join, probe, rewrite, and write new rows; without a transaction only count."""
    plan, prepared, tx, progress = execution.plan, execution.prepared, execution.tx, execution.progress
    intent, remote = plan.intent, prepared.remote
    assert isinstance(intent, Merge)
    assert isinstance(remote, RemoteRows)
    scans = plan.select("scan")
    bare = without_files(plan)
    source = remote.frame(runner) if remote.spool.parts else None
    progress("probe files" if tx is None else "probe and write files", 0, len(scans))
    known = _read_target_keys(runner, KeyWork(bare, intent.keys, *_directory_of(remote)), scans)
    notes = (
        PartWriter(*_directory_of(remote)) if intent.residual is not None and intent.rule.inserts else None
    )
    group = FileMerge(bare, intent, scans, remote.wanted, None if tx is None else tx.output(), notes)
    outcomes: list[FileOutcome] = []
    if source is not None and known is not None:
        columns = [*(f"s.{name}" for name in remote.columns.values()), f"s.{ROW}", f"t.{FILE}"]
        routed = source.alias("s").join(known.alias("t"), _key_condition(intent), "inner").select(*columns)
        outcomes = runner.groups(routed, FILE, group)
    reached = {outcome.path for outcome in outcomes}
    rest = [item for item in scans if item.file.path not in reached]
    if intent.rule.touches_target_only or any(item.forced for item in rest):
        outcomes += runner.each(merge_alone, rest, shared=group, weights=[item.file.size for item in rest])
    assert prepared.index is not None
    index = SourceIndex.of(prepared.table, prepared.index, plan.snapshot.partition_columns)
    matcher = MergeMatcher(bare, intent, index)
    refuse(replace(matcher, plan=plan), scans, outcomes)
    progress("probe files" if tx is None else "write files", len(scans), len(scans))
    inserted, added = 0, list[StagedFile]()
    if source is not None and intent.rule.inserts:
        fresh = _find_unmatched(runner, prepared, source, known, outcomes)
        placed = write_source_rows(runner, fresh, plan, prepared, matcher=matcher, prefix="insert", tx=tx)
        inserted, added = placed
        _report(progress, added)
    staged = {outcome.path: outcome.staged for outcome in outcomes if outcome.staged is not None}
    added += [file for outcome in outcomes for file in outcome.added]
    done = frozenset(outcome.path for outcome in outcomes)  # also files that were rewritten without a hit
    return replace(matches_of(plan, outcomes, inserted), staged=Staged(staged, tuple(added)), done=done)


def _directory_of(remote: RemoteRows) -> tuple[pafs.FileSystem, str]:
    return remote.spool.filesystem, remote.spool.directory


def _read_target_keys(runner: TaskRunner, work: KeyWork, scans: Sequence[FilePlan]) -> Any | None:
    """Which key is in which of the candidate files, as a DataFrame; None without any."""
    jobs = list(enumerate(scans))
    written = runner.each(write_keys, jobs, shared=work, weights=[item.scan_bytes for item in scans])
    locations = [location for location in written if location is not None]
    return frame_of(runner, locations, work.filesystem).distinct() if locations else None


def _find_unmatched(
    runner: TaskRunner, prepared: Prepared, source: Any, known: Any | None, outcomes: Sequence[FileOutcome]
) -> Any | None:
    """The source rows without a match; None are all.

    By key alone, unless the ON condition asks for more: then tasks have noted which rows met it.
    """
    intent = prepared.intent
    assert isinstance(intent, Merge)
    if intent.residual is not None:
        noted = [outcome.matched for outcome in outcomes if outcome.matched is not None]
        if not noted:
            return None
        return source.join(frame_of(runner, noted, prepared.remote.spool.filesystem), ROW, "left_anti")
    if known is None:
        return None
    return source.alias("s").join(known.alias("t"), _key_condition(intent), "left_anti")


def write_joined(runner: TaskRunner, execution: Execution) -> Matches:
    """New files for all rows; without a transaction only count them."""
    plan, prepared, tx, progress = execution.plan, execution.prepared, execution.tx, execution.progress
    remote = prepared.remote
    if tx is None or not remote.spool.parts:
        return matches_of(plan, [], remote.spool.rows)
    count, added = write_source_rows(runner, None, plan, prepared, matcher=None, prefix="part", tx=tx)
    _report(progress, added)
    return replace(matches_of(plan, [], count), staged=Staged(added=tuple(added)))


def _report(progress: Progress, added: Sequence[StagedFile]) -> None:
    """How many new files there are is known when they are written."""
    if added:
        progress("write files", len(added), len(added))


def _key_condition(intent: Merge) -> list[Any]:
    """The join of source and target keys; NULL equals NULL only where that was asked for."""
    pairs = [(F.col(f"t.{name}"), F.col(f"s.{name}")) for name in key_names(len(intent.keys))]
    if intent.matches_null:
        return [there.eqNullSafe(here) for there, here in pairs]
    return [there == here for there, here in pairs]
