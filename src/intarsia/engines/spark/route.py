"""Merges of sources that stay on storage: decided by the few columns that are indexed, rows routed to files.

The driver reads those columns and no others. Tasks look for the keys in the files, sort the source's rows by
the file they go to, and write the files. Rows pass through storage, never through Spark's own shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.common.arrow import Source
from intarsia.common.rows import combine
from intarsia.common.schema import conform_table, is_nested
from intarsia.core.change import Hits, Matches, Staged, StagedFile
from intarsia.core.expr import columns as columns_of
from intarsia.core.intent import Merge
from intarsia.core.keys import arange, flat
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import Execution, Transaction
from intarsia.core.prepare import MergeTerms, Prepared, prepare_rows, resolve_merge
from intarsia.core.rule import Insert
from intarsia.core.snapshot import Snapshot
from intarsia.engines.spark.copies import TASK_ROWS, cut_shares, group_by_partition, group_new_rows
from intarsia.engines.spark.outcome import FileOutcome, matches_of
from intarsia.engines.spark.route_tasks import (
    ArrowStore,
    CastWork,
    FileBatch,
    FileHits,
    ProbeResult,
    ProbeWork,
    RouteWork,
    SortedPart,
    WriteWork,
    batch_files,
    cast_rows,
    copy_file_batches,
    probe_files,
    route_part,
    route_rows,
    write_file_batch,
    write_routes,
)
from intarsia.engines.spark.source import SparkSource, Spool
from intarsia.engines.spark.staging import with_one_file, without_files
from intarsia.engines.spark.tasks import TaskRunner
from intarsia.kernel.match import FileMatch, MergeMatcher, SourceIndex
from intarsia.kernel.partitioned_writer import NewFile, NewRowWriter
from intarsia.kernel.threads import in_line

ROUTED_BYTES = 64 << 20
"""Up to so much a source is quicker in every task's hands."""


@dataclass(frozen=True, slots=True)
class RoutedRows:
    """A source on shared storage, in the dataset's types."""

    spool: Spool
    wanted: pa.Schema
    numbers: pa.Array | None = field(repr=False)
    """Which of its rows the index is over; None: all of them."""

    @property
    def row_bytes(self) -> float:
        return self.spool.size / max(self.spool.rows, 1)

    @property
    def size(self) -> int:
        """Of the rows that the index is over, in memory."""
        return self.spool.size if self.numbers is None else int(self.row_bytes * len(self.numbers))

    @property
    def store(self) -> ArrowStore:
        return ArrowStore(self.spool.filesystem, self.spool.directory)

    @property
    def starts(self) -> pa.Array:
        """The row with which each part begins."""
        ends = pc.cumulative_sum(pa.array([0, *(part.rows for part in self.spool.parts)], pa.int64()))
        return ends.slice(0, len(self.spool.parts))


def resolve_routed(
    intent: Merge, snapshot: Snapshot, source: SparkSource, *, limit: int
) -> MergeTerms | None:
    """The settled merge, where the columns that decide it may come to the driver; raises as settling does."""
    spool = source.spool
    if spool.size <= min(ROUTED_BYTES, limit) or not all(part.columns for part in spool.parts):
        return None
    terms = resolve_merge(intent, snapshot, source.schema)
    if any(_is_special(kind) for kind in _decode_dictionaries(terms.wanted).types):
        return None
    deciding = set(_deciding_columns(terms, snapshot))
    places = [number for number, name in enumerate(spool.schema.names) if name in deciding]
    size = sum(part.columns[number] for part in spool.parts for number in places)
    index = 2 * size + 16 * spool.rows  # in the order of rows and of keys, and their numbers
    return terms if index <= limit else None


def prepare_routed(
    runner: TaskRunner, terms: MergeTerms, snapshot: Snapshot, source: SparkSource
) -> Prepared:
    """Cast the source where it is, and index the columns by which the merge is decided."""
    operation, path = terms.intent.rule.name, snapshot.root
    spool, plain = source.spool, _decode_dictionaries(terms.wanted)
    if not _fits(spool.schema, plain):
        work = CastWork(ArrowStore(spool.filesystem, spool.directory), plain, operation, path)
        weights = [part.size for part in spool.parts]
        parts = runner.each(cast_rows, spool.parts, shared=work, weights=weights)
        spool = replace(spool, schema=plain, parts=tuple(parts))
    names = _deciding_columns(terms, snapshot)
    table = _read_columns(spool, [name for name in names if name in spool.schema.names])
    wanted = pa.schema([terms.wanted.field(name) for name in names], terms.wanted.metadata)
    table = conform_table(table, wanted, operation=operation, path=path)
    counted = table
    if operation == "deduplicate":
        counted = table.append_column(_unused_name(table), arange(table.num_rows))
    prepared = prepare_rows(terms, Source(counted, origin=source.origin), path=path, rows=source.rows)
    numbers = None
    if operation == "deduplicate":
        *_, last = prepared.table.columns
        numbers = flat(last) if len(last) < table.num_rows else None
        prepared = replace(prepared, table=prepared.table.select(names))
    return replace(prepared, remote=RoutedRows(spool, terms.wanted, numbers))


def _unused_name(table: pa.Table) -> str:
    """A name that no column has."""
    return "_".join(["row", *table.column_names])


def _read_columns(spool: Spool, names: list[str]) -> pa.Table:
    """Some columns, into the driver; in the types that their files give them back in."""
    tables = []
    for part in spool.parts:
        with pq.ParquetFile(part.location, filesystem=spool.filesystem) as file:
            tables.append(file.read(columns=names).select(names))
    return combine(pa.concat_tables(tables))


def _fits(source: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether no value can fail to be one of the dataset's; columns may have another order, or be missing."""
    mine = {field.name: field for field in source}
    return all(
        (field.name not in mine or mine[field.name].type == field.type)
        and (field.nullable or (field.name in mine and not mine[field.name].nullable))
        for field in wanted
    ) and set(mine) <= set(wanted.names)


def _decode_dictionaries(schema: pa.Schema) -> pa.Schema:
    """Values of dictionaries as themselves, which every batch may have its own of."""
    fields = [
        one.with_type(one.type.value_type) if pa.types.is_dictionary(one.type) else one for one in schema
    ]
    return pa.schema(fields, schema.metadata)


def _is_special(kind: pa.DataType) -> bool:
    """Types that would not come back from a file as they were."""
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        return True
    return is_nested(kind) and any(_is_special(kind.field(n).type) for n in range(kind.num_fields))


def _deciding_columns(terms: MergeTerms, snapshot: Snapshot) -> list[str]:
    """The source's columns by which it is decided what becomes of which row."""
    intent = terms.intent
    used = {
        *intent.source_keys,
        *intent.dedup_order_by,
        *terms.partition_columns,
        *snapshot.partition_columns,
    }
    if intent.residual is not None:
        used |= {path[0] for side, path in columns_of(intent.residual) if side == "source"}
    for clause in intent.rule.clauses:
        alone = clause.side == "source_only"
        if clause.condition is not None:
            used |= {path[0] for side, path in columns_of(clause.condition) if alone or side == "source"}
        if isinstance(clause.action, Insert):
            used |= _partition_sources(clause.action, terms, snapshot)
    return [name for name in terms.wanted.names if name in used]


def _partition_sources(action: Insert, terms: MergeTerms, snapshot: Snapshot) -> set[str]:
    """The source's columns by which it is decided where a new row goes, beside the partition columns."""
    partitioner = snapshot.partitioner.columns if snapshot.format.owns_schema else ()
    if action.values is None:
        return set(partitioner)
    if not (terms.partition_columns or partitioner):
        return set()
    return {path[0] for _, value in action.values for _, path in columns_of(value)}


def merge_routed(runner: TaskRunner, execution: Execution) -> Matches:
    """Probe, route, write; without a transaction only count."""
    plan, prepared, tx, progress = execution.plan, execution.prepared, execution.tx, execution.progress
    intent, remote = plan.intent, prepared.remote
    assert isinstance(intent, Merge)
    assert isinstance(remote, RoutedRows)
    assert prepared.index is not None
    scans = plan.select("scan") if plan.snapshot.replaces_in_place else tuple(group_by_partition(plan))
    index = SourceIndex.of(prepared.table, prepared.index, plan.snapshot.partition_columns)
    matcher = MergeMatcher(plan, intent, index)
    progress("probe files" if tx is None else "probe and write files", 0, len(scans))
    probed = _probe(runner, replace(matcher, plan=without_files(plan)), remote, scans, note=tx is not None)
    found = sorted((one for task in probed for one in task.files), key=lambda one: one.number)
    order = {item.file.path: number for number, item in enumerate(plan.select("scan"))}
    found_matches = sorted(
        (_make_match(one, scans[one.number]) for one in found), key=lambda m: order[m.plan.file.path]
    )
    matcher.refuse(found_matches)
    inserts = matcher.inserts_of(prepared.table, _find_unmatched(matcher, probed))
    inserted = sum(len(rows) for _, rows in inserts)
    staged, added = dict[str, StagedFile](), list[StagedFile]()
    if tx is not None:
        new = _plan_new_files(plan, prepared, inserts, tx)
        staged, added = _write(runner, matcher, prepared, tx, (scans, probed, found), new)
    progress("probe files" if tx is None else "write files", len(scans), len(scans))
    if added:
        progress("write files", len(added), len(added))
    outcomes = [_make_outcome(one, scans[one.number]) for one in found]
    return replace(matches_of(plan, outcomes, inserted), staged=Staged(staged, tuple(added)))


def _probe(
    runner: TaskRunner, matcher: MergeMatcher, remote: RoutedRows, scans: Sequence[FilePlan], *, note: bool
) -> list[ProbeResult]:
    work = ProbeWork(matcher, remote.starts, remote.numbers, remote.store if note else None)
    weights = [item.file.size for item in scans]
    shares = runner.shares(weights) if scans else []
    return runner.each(
        probe_files,
        [[(number, scans[number]) for number in share] for share in shares],
        shared=work,
        weights=[sum(weights[number] for number in share) for share in shares],
        room=remote.store,
    )


def _make_outcome(one: FileHits, item: FilePlan) -> FileOutcome:
    return FileOutcome(item.file.path, one.hits, one.drops, one.emptied, None, positions=one.positions)


def _make_match(one: FileHits, item: FilePlan) -> FileMatch:
    """What there is to refuse."""
    return FileMatch(item, Hits.empty(), nulls=dict(one.nulls), moved=one.moved, several=one.several)


def _find_unmatched(matcher: MergeMatcher, probed: Sequence[ProbeResult]) -> pa.Array:
    """The indexed rows that found no match; none where nothing is inserted."""
    rows = matcher.source.table.num_rows
    if not matcher.rule.inserts or not rows:
        return arange(0)
    known: pa.Array | None = None
    for task in probed:
        if task.matched is not None:
            known = task.matched if known is None else pc.or_(known, task.matched)
    return arange(rows) if known is None else pc.indices_nonzero(pc.invert(known)).cast(pa.int64())


def _new_row_writer(plan: Plan, prepared: Prepared) -> NewRowWriter:
    return NewRowWriter(
        with_one_file(plan.snapshot),
        plan.schema,
        prepared.partition_columns,
        plan.intent.options,
        plan.operation,
    )


def _plan_new_files(
    plan: Plan, prepared: Prepared, inserts: Sequence[tuple[Insert, pa.Array]], tx: Transaction
) -> list[NewFile]:
    """The files that new rows become; or shares of rows, where the table has a partition spec."""
    if plan.snapshot.replaces_in_place:
        return _new_row_writer(plan, prepared).files(inserts, prepared.table, tx, prefix="insert")
    return [
        NewFile(rows, action, {}, "", "")
        for share in cut_shares(group_new_rows(plan, inserts, prepared.table), TASK_ROWS)
        for action, rows in share
    ]


def _write(
    runner: TaskRunner,
    matcher: MergeMatcher,
    prepared: Prepared,
    tx: Transaction,
    known: tuple[Sequence[FilePlan], Sequence[ProbeResult], Sequence[FileHits]],
    new: Sequence[NewFile],
) -> tuple[dict[str, StagedFile], list[StagedFile]]:
    """Bring the source's rows to the files that need them, and write those."""
    scans, probed, found = known
    plan, remote = matcher.plan, prepared.remote
    notes = {task.routes for task in probed} | {one.noted[0] for one in found if one.noted is not None}
    row_bytes, numbered = remote.row_bytes, list(enumerate(new, len(scans)))
    alone = [
        FileBatch(((one.number, scans[one.number], one.noted),), (), one.needed)
        for one in found
        if one.noted is not None
    ]
    alone += [
        FileBatch((), ((number, replace(file, rows=arange(0)), len(file.rows)),), len(file.rows))
        for number, file in numbered
    ]
    file_batches = list(batch_files(alone, row_bytes=row_bytes, tasks=runner.tasks))
    routed = _route(runner, matcher, remote, probed, numbered, file_batches)
    weights = [file_batch.weight(row_bytes) for file_batch in file_batches]
    file_batches = [
        replace(file_batch, rows=tuple((one.location, one.batches[n]) for one in routed if n in one.batches))
        for n, file_batch in enumerate(file_batches)
    ]
    work = WriteWork(
        without_files(plan),
        tx.output(),
        matcher.actions,
        _new_row_writer(plan, prepared),
        remote.wanted,
        remote.store,
        matcher.rule.name,
    )
    try:
        if not plan.snapshot.replaces_in_place:
            return {}, _copy_batches(runner, work, file_batches, weights)
        done = runner.each(write_file_batch, file_batches, shared=work, weights=weights)
    finally:
        _remove(remote, {*notes, *(one.location for one in routed)})
    staged: dict[str, StagedFile] = {}
    added: list[StagedFile] = []
    for file_batch, written in zip(file_batches, done, strict=True):
        count = len(file_batch.files)
        staged |= {
            item.file.path: file for (_, item, _), file in zip(file_batch.files, written, strict=False)
        }
        added += written[count:]
    return staged, added


def _copy_batches(
    runner: TaskRunner, work: WriteWork, file_batches: Sequence[FileBatch], weights: Sequence[int]
) -> list[StagedFile]:
    """Write all batches of files; neighbours go to one task, so that each partition gets few new files."""
    numbers = in_line(range(len(file_batches)), weights, len(runner.shares(weights))) if file_batches else []
    shares = [[file_batches[number] for number in share] for share in numbers]
    shared = [sum(weights[number] for number in share) for share in numbers]
    done = runner.each(copy_file_batches, shares, shared=work, weights=shared)
    return [file for files in done for file in files]


def _route(
    runner: TaskRunner,
    matcher: MergeMatcher,
    remote: RoutedRows,
    probed: Sequence[ProbeResult],
    new: Sequence[tuple[int, NewFile]],
    file_batches: Sequence[FileBatch],
) -> list[SortedPart]:
    if not any(file_batch.needed for file_batch in file_batches):
        return []
    numbers = remote.numbers
    routes = [task.routes for task in probed if task.routes is not None]
    if new:
        rows = [file.rows if numbers is None else numbers.take(file.rows) for _, file in new]
        routes_of_new = [route_rows(number, mine) for (number, _), mine in zip(new, rows, strict=True)]
        routes.append(write_routes(remote.store, routes_of_new, remote.starts))
    work = RouteWork(
        remote.store,
        _decode_dictionaries(remote.wanted),
        tuple(routes),
        tuple(file_batch.first for file_batch in file_batches),
        matcher.rule.name,
        matcher.plan.snapshot.root,
    )
    parts = remote.spool.parts
    weights = [part.size for part in parts]
    done = runner.each(route_part, list(enumerate(parts)), shared=work, weights=weights)
    return [one for one in done if one is not None]


def _remove(remote: RoutedRows, locations: set[str | None]) -> None:
    """Remove temporary files of routing; what cannot be removed goes with the spool."""
    for location in locations:
        if location is not None:
            with suppress(OSError):
                remote.spool.filesystem.delete_file(location)
