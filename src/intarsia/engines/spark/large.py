"""A merge whose source is too large to travel: Spark joins its keys with the files' and routes its rows.

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

from intarsia.core.change import StagedFile
from intarsia.core.files import Snapshot
from intarsia.core.intent import Merge, Write
from intarsia.core.keys import KeyIndex, arange, comparable, decoded, flat
from intarsia.core.matches import Matches
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.planning import SourceFacts
from intarsia.core.ports import Progress, Transaction, Workplace
from intarsia.core.prepare import Prepared, resolve_overwrite, settle_merge, settle_write
from intarsia.core.problems import duplicate_keys, null_source_keys, refuse_outside
from intarsia.core.prune import KeyRange, PartitionSet
from intarsia.core.rule import STRATEGIES
from intarsia.core.spread import Spread
from intarsia.engines.arrow.matching import FileMatch, MergeMatcher, SourceIndex
from intarsia.engines.arrow.overlay import take_rows
from intarsia.engines.arrow.reading import FileReader, constant_column
from intarsia.engines.spark.carry import restored
from intarsia.engines.spark.carrying import CarryWork, MergeProbe, carry_files, copies
from intarsia.engines.spark.crew import Crew
from intarsia.engines.spark.jobs import MergeWork, light, merge_files
from intarsia.engines.spark.new_rows import place_rows
from intarsia.engines.spark.outcome import Outcome, Trouble, matches_of, refuse
from intarsia.engines.spark.remote import (
    FILE,
    ROW,
    Casting,
    PartFacts,
    RemoteRows,
    cast_parts,
    frame_of,
    key_names,
    part_code,
    with_keys,
)
from intarsia.engines.spark.source import SparkSource, Writing, spool_writer
from intarsia.spark.collecting import collected


def prepare_merge(crew: Crew, intent: Merge, snapshot: Snapshot, source: SparkSource) -> Prepared:
    """Cast and check the source where it is; raises as preparing a small one does."""
    terms = settle_merge(intent, snapshot, source.schema)
    intent = terms.intent
    operation, path, keys = intent.rule.name, snapshot.root, intent.source_keys
    spool = source.spool
    casting = Casting(terms.wanted, keys, terms.pruning, operation, path, spool.filesystem, spool.directory)
    whole_rows = intent.rule.inserts and intent.rule.replaces_rows
    spread = _noted(snapshot) if whole_rows else None
    if spread is not None and not set(spread.columns) <= set(terms.wanted.names):
        spread = None  # rows that lack what decides about their partition
    facts = cast_parts(crew, spool, replace(casting, spread=spread))
    nulls = {name: sum(fact.nulls[name] for fact in facts) for _, name in intent.never_null}
    null_source_keys(nulls, operation=operation, path=path)
    parts = tuple(fact.part for fact in facts)
    remote = RemoteRows(replace(spool, schema=terms.wanted, parts=parts), terms.wanted, _homes(facts))
    if operation == "deduplicate":
        remote = _winners(crew, remote, intent)
    elif operation in STRATEGIES:
        _refuse_duplicates(crew, remote, intent, path)
    ranges = {
        name: _range(facts, other, terms.wanted.field(other).type)
        for name, other in zip(intent.keys, keys, strict=True)
    }
    partitions = PartitionSet.of(_places(facts, terms.wanted, terms.pruning), terms.pruning)
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
        shuffled=True,
    )


def prepare_write(crew: Crew, intent: Write, snapshot: Snapshot, source: SparkSource) -> Prepared:
    """Cast rows that are to be added, where they are."""
    schema, partition_columns = settle_write(intent, snapshot, source.schema)
    apart = partition_columns if intent.mode == "overwrite_partitions" else ()
    spool = source.spool
    casting = Casting(schema, (), apart, intent.mode, snapshot.root, spool.filesystem, spool.directory)
    intent = resolve_overwrite(intent, schema)
    casting = replace(casting, where=intent.where)
    replaces_parts = intent.mode == "overwrite_partitions" and snapshot.spread is not None
    spread = snapshot.spread if replaces_parts else _noted(snapshot)
    facts = cast_parts(crew, spool, replace(casting, spread=spread))
    _refuse_outside(facts, intent, source, snapshot)
    parts = tuple(fact.part for fact in facts)
    remote = RemoteRows(replace(spool, schema=schema, parts=parts), schema, _homes(facts))
    places = PartitionSet.of(_places(facts, schema, apart), apart)
    keys = frozenset(key for fact in facts for key in fact.homes) if replaces_parts else None
    return Prepared(
        intent,
        schema,
        partition_columns,
        pa.Table.from_batches([], schema),
        SourceFacts(remote.spool.rows, {}, places, keys),
        source.rows,
        remote=remote,
        shuffled=True,
    )


def _refuse_outside(
    facts: Sequence[PartFacts], intent: Write, source: SparkSource, snapshot: Snapshot
) -> None:
    """Refuse rows that the condition of an overwrite does not cover."""
    count = sum(fact.outside for fact in facts)
    some = [fact.samples for fact in facts if fact.samples is not None]
    if some:
        shown = pa.concat_tables(some)
        every = arange(shown.num_rows)
        refuse_outside(shown, every, count, intent, rows=source.rows, path=snapshot.root)


def _noted(snapshot: Snapshot) -> Spread | None:
    """The partitions to note beside rows, where there may be several."""
    spread = snapshot.spread
    return spread if spread is not None and spread.columns else None


def _homes(facts: Sequence[PartFacts]) -> dict[int, int]:
    """How many rows go to each partition, by its code."""
    homes: dict[int, int] = {}
    for fact in facts:
        for key, rows in fact.homes.items():
            homes[part_code(key)] = homes.get(part_code(key), 0) + rows
    return homes


def _places(facts: Sequence[PartFacts], wanted: pa.Schema, columns: Sequence[str]) -> pa.Table:
    return pa.concat_tables(
        [pa.Table.from_batches([], wanted).select(list(columns)), *(fact.partitions for fact in facts)]
    )


def _range(facts: Sequence[PartFacts], name: str, kind: pa.DataType) -> KeyRange:
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


def _refuse_duplicates(crew: Crew, remote: RemoteRows, intent: Merge, path: str) -> None:
    if not remote.spool.parts:
        return
    frame = remote.frame(crew)
    counted = frame.groupBy(*key_names(len(intent.keys))).agg(
        F.count("*").alias("n"), F.first(ROW).alias(ROW)
    )
    if not intent.matches_null:
        for name in key_names(len(intent.keys)):
            counted = counted.where(F.col(name).isNotNull())  # dropna would take NaN for NULL
    many = counted.where("n > 1")
    found = collected(many.agg(F.count("*").alias("keys"), F.sum("n").alias("rows"))).to_pylist()[0]
    if not found["keys"]:
        return
    some = frame.join(many.select(ROW).limit(64), ROW, "left_semi")
    some = collected(some.select(*(remote.columns[name] for name in intent.source_keys)))
    schema = pa.schema([remote.wanted.field(name) for name in intent.source_keys])
    samples = restored(some, schema, operation=intent.rule.name, path=path)
    duplicate_keys(
        samples, intent.source_keys, found["keys"], found["rows"], operation=intent.rule.name, path=path
    )


def _winners(crew: Crew, remote: RemoteRows, intent: Merge) -> RemoteRows:
    """One row per key: the highest order, then the last of the source's parts."""
    if not remote.spool.parts:
        return remote
    order = [F.col(remote.columns[name]).desc_nulls_last() for name in intent.dedup_order_by]
    window = Window.partitionBy(*key_names(len(intent.keys))).orderBy(*order, F.col(ROW).desc())
    first = remote.frame(crew).withColumn("__place", F.row_number().over(window)).where("__place = 1")
    writing = Writing(remote.spool.filesystem, remote.spool.directory)
    parts = tuple(part for part in crew.over(first.drop("__place"), writing.parts) if part.rows)
    return replace(remote, spool=replace(remote.spool, parts=parts))


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
            live = reader.alive(reader.start_of(group), rows)
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
class GroupMerge:
    """Rewrites one file by the source rows that were routed to it."""

    plan: Plan
    intent: Merge
    files: tuple[FilePlan, ...] = field(repr=False)
    wanted: pa.Schema
    workplace: Workplace | None
    notes: Writing | None = None
    """Where the numbers of source rows that found a match are written, when equal keys do not tell."""

    def __call__(self, rows: pa.Table) -> Any:
        number = rows[FILE][0].as_py()
        source = restored(rows, self.wanted, operation=self.intent.rule.name, path=self.plan.snapshot.root)
        return self.merged(self.files[number], source, flat(rows[ROW]))

    def merged(self, item: FilePlan, source: pa.Table, numbers: pa.Array) -> Outcome:
        keys = KeyIndex(
            [source[name] for name in self.intent.source_keys], null_match=self.intent.matches_null
        )
        index = SourceIndex.of(source, keys, self.plan.snapshot.partition_columns)
        matcher = MergeMatcher(self.plan, self.intent, index)
        if self.plan.snapshot.spread is not None:
            return self._carried(matcher, item, numbers)
        ((match, staged),) = merge_files(MergeWork(matcher, self.workplace), [item])
        return Outcome(
            item.file.path,
            len(match.hits),
            matcher.drops(match),
            matcher.empties(match),
            staged,
            self._noted(match, numbers),
            Trouble.of(match, source),
        )

    def _carried(self, matcher: MergeMatcher, item: FilePlan, numbers: pa.Array) -> Outcome:
        """The same where files are never replaced: rows are carried into new ones."""
        share = carry_files(CarryWork(MergeProbe(matcher), self.workplace), [item])
        match = share.seen[0].match(item)
        return Outcome(
            item.file.path,
            len(match.hits),
            matcher.drops(match),
            matcher.empties(match),
            None,
            self._noted(match, numbers),
            Trouble.of(match, matcher.source.table),
            tuple(share.added),
            None if copies(self.plan) else match.hits.positions,
        )

    def _noted(self, match: FileMatch, numbers: pa.Array) -> str | None:
        if self.notes is None or not match.matched:
            return None
        found = numbers.take(pc.unique(pa.concat_arrays(match.matched)))
        batch = pa.record_batch([found], names=[ROW])
        return next((part.location for part in self.notes.parts(iter([batch]))), None)


def merge_alone(work: GroupMerge, item: FilePlan) -> Outcome:
    """A file that no source row was routed to."""
    return work.merged(item, pa.Table.from_batches([], work.wanted), pa.array([], pa.int64()))


def merge_large(
    crew: Crew, plan: Plan, prepared: Prepared, tx: Transaction | None, progress: Progress
) -> tuple[Matches, dict[str, StagedFile], list[StagedFile]]:
    """Route, probe, rewrite, and place what is new; without a transaction only count."""
    intent, remote = plan.intent, prepared.remote
    assert isinstance(intent, Merge)
    assert isinstance(remote, RemoteRows)
    scans = plan.chosen("scan")
    bare = light(plan)
    source = remote.frame(crew) if remote.spool.parts else None
    progress("probe files" if tx is None else "probe and write files", 0, len(scans))
    known = _known_keys(crew, KeyWork(bare, intent.keys, *_where(remote)), scans)
    notes = Writing(*_where(remote)) if intent.residual is not None and intent.rule.inserts else None
    group = GroupMerge(bare, intent, scans, remote.wanted, None if tx is None else tx.workplace(), notes)
    outcomes: list[Outcome] = []
    if source is not None and known is not None:
        columns = [*(f"s.{name}" for name in remote.columns.values()), f"s.{ROW}", f"t.{FILE}"]
        routed = source.alias("s").join(known.alias("t"), _same_key(intent), "inner").select(*columns)
        outcomes = crew.groups(routed, FILE, group)
    reached = {outcome.path for outcome in outcomes}
    rest = [item for item in scans if item.file.path not in reached]
    if intent.rule.touches_target_only or any(item.forced for item in rest):
        outcomes += crew.each(merge_alone, rest, shared=group, weights=[item.file.size for item in rest])
    assert prepared.index is not None
    index = SourceIndex.of(prepared.table, prepared.index, plan.snapshot.partition_columns)
    matcher = MergeMatcher(bare, intent, index)
    refuse(replace(matcher, plan=plan), scans, outcomes)
    progress("probe files" if tx is None else "write files", len(scans), len(scans))
    inserted, added = 0, list[StagedFile]()
    if source is not None and intent.rule.inserts:
        fresh = _unmatched(crew, prepared, source, known, outcomes)
        placed = place_rows(crew, fresh, plan, prepared, matcher=matcher, prefix="insert", tx=tx)
        inserted, added = placed
        _tell(progress, added)
    staged = {outcome.path: outcome.staged for outcome in outcomes if outcome.staged is not None}
    added += [file for outcome in outcomes for file in outcome.added]
    return matches_of(plan, outcomes, inserted), staged, added


def _where(remote: RemoteRows) -> tuple[pafs.FileSystem, str]:
    return remote.spool.filesystem, remote.spool.directory


def _known_keys(crew: Crew, work: KeyWork, scans: Sequence[FilePlan]) -> Any | None:
    """Which key is in which of the candidate files, as a DataFrame; None without any."""
    jobs = list(enumerate(scans))
    written = crew.each(write_keys, jobs, shared=work, weights=[item.scan_bytes for item in scans])
    locations = [location for location in written if location is not None]
    return frame_of(crew, locations, work.filesystem).distinct() if locations else None


def _unmatched(
    crew: Crew, prepared: Prepared, source: Any, known: Any | None, outcomes: Sequence[Outcome]
) -> Any:
    """The source rows without a match.

    By key alone, unless the ON condition asks for more: then tasks have noted which rows met it.
    """
    intent = prepared.intent
    assert isinstance(intent, Merge)
    if intent.residual is not None:
        noted = [outcome.matched for outcome in outcomes if outcome.matched is not None]
        if not noted:
            return source
        return source.join(frame_of(crew, noted, prepared.remote.spool.filesystem), ROW, "left_anti")
    if known is None:
        return source
    return source.alias("s").join(known.alias("t"), _same_key(intent), "left_anti")


def write_large(
    crew: Crew, plan: Plan, prepared: Prepared, tx: Transaction | None, progress: Progress
) -> tuple[Matches, dict[str, StagedFile], list[StagedFile]]:
    """New files for all rows; without a transaction only count them."""
    remote = prepared.remote
    if tx is None or not remote.spool.parts:
        return matches_of(plan, [], remote.spool.rows), {}, []
    rows = remote.frame(crew)
    count, added = place_rows(crew, rows, plan, prepared, matcher=None, prefix="part", tx=tx)
    _tell(progress, added)
    return matches_of(plan, [], count), {}, added


def _tell(progress: Progress, added: Sequence[StagedFile]) -> None:
    """How many new files there are is known when they are written."""
    if added:
        progress("write files", len(added), len(added))


def _same_key(intent: Merge) -> list[Any]:
    """The join of source and target keys; NULL equals NULL only where that was asked for."""
    pairs = [(F.col(f"t.{name}"), F.col(f"s.{name}")) for name in key_names(len(intent.keys))]
    if intent.matches_null:
        return [there.eqNullSafe(here) for there, here in pairs]
    return [there == here for there, here in pairs]
