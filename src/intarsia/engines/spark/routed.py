"""Merges of sources that stay on storage: decided by the few columns that are indexed, rows routed to files.

The driver reads those columns and no others. Tasks look for the keys in the files, sort the source's rows by
the file they go to, and write the files; rows are on their way through storage, never through Spark itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.common.arrow import Source
from intarsia.common.schema import conform_table, is_nested
from intarsia.common.spool import combined
from intarsia.core.change import StagedFile
from intarsia.core.expr import columns as columns_of
from intarsia.core.files import Snapshot
from intarsia.core.intent import Merge
from intarsia.core.keys import arange, flat
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.ports import Progress, Transaction
from intarsia.core.prepare import MergeTerms, Prepared, prepared_merge, settle_merge
from intarsia.core.rule import Insert
from intarsia.engines.arrow.matching import FileMatch, MergeMatcher, SourceIndex
from intarsia.engines.arrow.placing import NewFile, Placing
from intarsia.engines.arrow.threads import in_line
from intarsia.engines.spark.afresh import TASK_ROWS, by_home, by_part, cut
from intarsia.engines.spark.bundles import Bundle, WriteWork, bundled, carry_bundles, write_bundle
from intarsia.engines.spark.crew import Crew
from intarsia.engines.spark.jobs import light, with_one_file
from intarsia.engines.spark.outcome import Outcome, matches_of
from intarsia.engines.spark.routing import (
    CastWork,
    Found,
    Probed,
    ProbeWork,
    Routed,
    RouteWork,
    Shelf,
    cast_rows,
    probe_files,
    put_ways,
    route_part,
    way,
)
from intarsia.engines.spark.source import SparkSource, Spool

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
    def shelf(self) -> Shelf:
        return Shelf(self.spool.filesystem, self.spool.directory)

    @property
    def starts(self) -> pa.Array:
        """The row with which each part begins."""
        ends = pc.cumulative_sum(pa.array([0, *(part.rows for part in self.spool.parts)], pa.int64()))
        return ends.slice(0, len(self.spool.parts))


def routable(intent: Merge, snapshot: Snapshot, source: SparkSource, *, limit: int) -> MergeTerms | None:
    """The settled merge, where the columns that decide it may come to the driver; raises as settling does."""
    spool = source.spool
    if spool.size <= min(ROUTED_BYTES, limit) or not all(part.columns for part in spool.parts):
        return None
    terms = settle_merge(intent, snapshot, source.schema)
    if any(_special(kind) for kind in _plain(terms.wanted).types):
        return None
    deciding = set(_deciding(terms, snapshot))
    places = [number for number, name in enumerate(spool.schema.names) if name in deciding]
    size = sum(part.columns[number] for part in spool.parts for number in places)
    index = 2 * size + 16 * spool.rows  # in the order of rows and of keys, and their numbers
    return terms if index <= limit else None


def prepare_routed(crew: Crew, terms: MergeTerms, snapshot: Snapshot, source: SparkSource) -> Prepared:
    """Cast the source where it is, and index the columns by which the merge is decided."""
    operation, path = terms.intent.rule.name, snapshot.root
    spool, plain = source.spool, _plain(terms.wanted)
    if not _fits(spool.schema, plain):
        work = CastWork(Shelf(spool.filesystem, spool.directory), plain, operation, path)
        weights = [part.size for part in spool.parts]
        parts = crew.each(cast_rows, spool.parts, shared=work, weights=weights)
        spool = replace(spool, schema=plain, parts=tuple(parts))
    names = _deciding(terms, snapshot)
    table = _read(spool, [name for name in names if name in spool.schema.names])
    wanted = pa.schema([terms.wanted.field(name) for name in names], terms.wanted.metadata)
    table = conform_table(table, wanted, operation=operation, path=path)
    counted = table
    if operation == "deduplicate":
        counted = table.append_column(_new_name(table), arange(table.num_rows))
    prepared = prepared_merge(terms, Source(counted, origin=source.origin), path=path, rows=source.rows)
    numbers = None
    if operation == "deduplicate":
        *_, last = prepared.table.columns
        numbers = flat(last) if len(last) < table.num_rows else None
        prepared = replace(prepared, table=prepared.table.select(names))
    return replace(prepared, remote=RoutedRows(spool, terms.wanted, numbers))


def _new_name(table: pa.Table) -> str:
    """A name that no column has."""
    return "_".join(["row", *table.column_names])


def _read(spool: Spool, names: list[str]) -> pa.Table:
    """Some columns, into the driver; in the types that their files give them back in."""
    tables = []
    for part in spool.parts:
        with pq.ParquetFile(part.location, filesystem=spool.filesystem) as file:
            tables.append(file.read(columns=names).select(names))
    return combined(pa.concat_tables(tables))


def _fits(source: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether no value can fail to be one of the dataset's; columns may have another order, or be missing."""
    mine = {field.name: field for field in source}
    return all(
        (field.name not in mine or mine[field.name].type == field.type)
        and (field.nullable or (field.name in mine and not mine[field.name].nullable))
        for field in wanted
    ) and set(mine) <= set(wanted.names)


def _plain(schema: pa.Schema) -> pa.Schema:
    """Values of dictionaries as themselves, which every batch may have its own of."""
    fields = [
        one.with_type(one.type.value_type) if pa.types.is_dictionary(one.type) else one for one in schema
    ]
    return pa.schema(fields, schema.metadata)


def _special(kind: pa.DataType) -> bool:
    """Types that would not come back from a file as they were."""
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        return True
    return is_nested(kind) and any(_special(kind.field(n).type) for n in range(kind.num_fields))


def _deciding(terms: MergeTerms, snapshot: Snapshot) -> list[str]:
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
            used |= _placing_columns(clause.action, terms, snapshot)
    return [name for name in terms.wanted.names if name in used]


def _placing_columns(action: Insert, terms: MergeTerms, snapshot: Snapshot) -> set[str]:
    """The source's columns by which it is decided where a new row goes, beside the partition columns."""
    spread = () if snapshot.spread is None else snapshot.spread.columns
    if action.values is None:
        return set(spread)
    if not (terms.partition_columns or spread):
        return set()
    return {path[0] for _, value in action.values for _, path in columns_of(value)}


def merge_routed(
    crew: Crew, plan: Plan, prepared: Prepared, tx: Transaction | None, progress: Progress
) -> tuple[Matches, dict[str, StagedFile], list[StagedFile]]:
    """Probe, route, write; without a transaction only count."""
    intent, remote = plan.intent, prepared.remote
    assert isinstance(intent, Merge)
    assert isinstance(remote, RoutedRows)
    assert prepared.index is not None
    scans = plan.chosen("scan") if plan.snapshot.spread is None else tuple(by_home(plan))
    index = SourceIndex.of(prepared.table, prepared.index, plan.snapshot.partition_columns)
    matcher = MergeMatcher(plan, intent, index)
    progress("probe files" if tx is None else "probe and write files", 0, len(scans))
    probed = _probe(crew, replace(matcher, plan=light(plan)), remote, scans, note=tx is not None)
    found = sorted((one for task in probed for one in task.files), key=lambda one: one.number)
    order = {item.file.path: number for number, item in enumerate(plan.chosen("scan"))}
    told = sorted((_as_match(one, scans[one.number]) for one in found), key=lambda m: order[m.plan.file.path])
    matcher.refuse(told)
    inserts = matcher.inserts_of(prepared.table, _unmatched(matcher, probed))
    inserted = sum(len(rows) for _, rows in inserts)
    staged, added = dict[str, StagedFile](), list[StagedFile]()
    if tx is not None:
        new = _new_files(plan, prepared, inserts, tx)
        staged, added = _write(crew, matcher, prepared, tx, (scans, probed, found), new)
    progress("probe files" if tx is None else "write files", len(scans), len(scans))
    if added:
        progress("write files", len(added), len(added))
    outcomes = [_outcome(one, scans[one.number]) for one in found]
    return matches_of(plan, outcomes, inserted), staged, added


def _probe(
    crew: Crew, matcher: MergeMatcher, remote: RoutedRows, scans: Sequence[FilePlan], *, note: bool
) -> list[Probed]:
    work = ProbeWork(matcher, remote.starts, remote.numbers, remote.shelf if note else None)
    weights = [item.file.size for item in scans]
    shares = crew.shares(weights) if scans else []
    return crew.each(
        probe_files,
        [[(number, scans[number]) for number in share] for share in shares],
        shared=work,
        weights=[sum(weights[number] for number in share) for share in shares],
        room=remote.shelf,
    )


def _outcome(one: Found, item: FilePlan) -> Outcome:
    return Outcome(item.file.path, one.hits, one.drops, one.emptied, None, positions=one.positions)


def _as_match(one: Found, item: FilePlan) -> FileMatch:
    """What there is to refuse."""
    return FileMatch(item, Hits.empty(), nulls=dict(one.nulls), moved=one.moved, several=one.several)


def _unmatched(matcher: MergeMatcher, probed: Sequence[Probed]) -> pa.Array:
    """The indexed rows that found no match; none where nothing is inserted."""
    rows = matcher.source.table.num_rows
    if not matcher.rule.inserts or not rows:
        return arange(0)
    known: pa.Array | None = None
    for task in probed:
        if task.matched is not None:
            known = task.matched if known is None else pc.or_(known, task.matched)
    return arange(rows) if known is None else pc.indices_nonzero(pc.invert(known)).cast(pa.int64())


def _placing(plan: Plan, prepared: Prepared) -> Placing:
    return Placing(
        with_one_file(plan.snapshot),
        plan.schema,
        prepared.partition_columns,
        plan.intent.options,
        plan.operation,
    )


def _new_files(
    plan: Plan, prepared: Prepared, inserts: Sequence[tuple[Insert, pa.Array]], tx: Transaction
) -> list[NewFile]:
    """The files that new rows become; or shares of rows, where the table deals them out by itself."""
    if plan.snapshot.spread is None:
        return _placing(plan, prepared).files(inserts, prepared.table, tx, prefix="insert")
    return [
        NewFile(rows, action, {}, "", "")
        for share in cut(by_part(plan, inserts, prepared.table), TASK_ROWS)
        for action, rows in share
    ]


def _write(
    crew: Crew,
    matcher: MergeMatcher,
    prepared: Prepared,
    tx: Transaction,
    known: tuple[Sequence[FilePlan], Sequence[Probed], Sequence[Found]],
    new: Sequence[NewFile],
) -> tuple[dict[str, StagedFile], list[StagedFile]]:
    """Bring the source's rows to the files that need them, and write those."""
    scans, probed, found = known
    plan, remote = matcher.plan, prepared.remote
    notes = {task.ways for task in probed} | {one.noted[0] for one in found if one.noted is not None}
    row_bytes, numbered = remote.row_bytes, list(enumerate(new, len(scans)))
    alone = [
        Bundle(((one.number, scans[one.number], one.noted),), (), one.needed)
        for one in found
        if one.noted is not None
    ]
    alone += [
        Bundle((), ((number, replace(file, rows=arange(0)), len(file.rows)),), len(file.rows))
        for number, file in numbered
    ]
    bundles = list(bundled(alone, row_bytes=row_bytes, tasks=crew.tasks))
    routed = _route(crew, matcher, remote, probed, numbered, bundles)
    weights = [bundle.weight(row_bytes) for bundle in bundles]
    bundles = [
        replace(bundle, rows=tuple((one.location, one.batches[n]) for one in routed if n in one.batches))
        for n, bundle in enumerate(bundles)
    ]
    work = WriteWork(
        light(plan),
        tx.workplace(),
        matcher.actions,
        _placing(plan, prepared),
        remote.wanted,
        remote.shelf,
        matcher.rule.name,
    )
    try:
        if plan.snapshot.spread is not None:
            return {}, _carried(crew, work, bundles, weights)
        done = crew.each(write_bundle, bundles, shared=work, weights=weights)
    finally:
        _remove(remote, {*notes, *(one.location for one in routed)})
    staged: dict[str, StagedFile] = {}
    added: list[StagedFile] = []
    for bundle, written in zip(bundles, done, strict=True):
        count = len(bundle.files)
        staged |= {item.file.path: file for (_, item, _), file in zip(bundle.files, written, strict=False)}
        added += written[count:]
    return staged, added


def _carried(
    crew: Crew, work: WriteWork, bundles: Sequence[Bundle], weights: Sequence[int]
) -> list[StagedFile]:
    """New files for all rows of all bundles; neighbours go to one task, so that partitions get few."""
    numbers = in_line(range(len(bundles)), weights, len(crew.shares(weights))) if bundles else []
    shares = [[bundles[number] for number in share] for share in numbers]
    shared = [sum(weights[number] for number in share) for share in numbers]
    done = crew.each(carry_bundles, shares, shared=work, weights=shared)
    return [file for files in done for file in files]


def _route(
    crew: Crew,
    matcher: MergeMatcher,
    remote: RoutedRows,
    probed: Sequence[Probed],
    new: Sequence[tuple[int, NewFile]],
    bundles: Sequence[Bundle],
) -> list[Routed]:
    if not any(bundle.needed for bundle in bundles):
        return []
    numbers = remote.numbers
    ways = [task.ways for task in probed if task.ways is not None]
    if new:
        rows = [file.rows if numbers is None else numbers.take(file.rows) for _, file in new]
        ways_of_new = [way(number, mine) for (number, _), mine in zip(new, rows, strict=True)]
        ways.append(put_ways(remote.shelf, ways_of_new, remote.starts))
    work = RouteWork(
        remote.shelf,
        _plain(remote.wanted),
        tuple(ways),
        tuple(bundle.first for bundle in bundles),
        matcher.rule.name,
        matcher.plan.snapshot.root,
    )
    parts = remote.spool.parts
    weights = [part.size for part in parts]
    done = crew.each(route_part, list(enumerate(parts)), shared=work, weights=weights)
    return [one for one in done if one is not None]


def _remove(remote: RoutedRows, locations: set[str | None]) -> None:
    """What was on its way has arrived; what cannot be removed goes with the spool."""
    for location in locations:
        if location is not None:
            with suppress(OSError):
                remote.spool.filesystem.delete_file(location)
