"""A merge whose source is too large to travel: Spark joins its keys with the files' and routes its rows.

Key columns of the candidate files are written once; a join sends each source row to the files that hold
its key, grouped by file; each group then probes and rewrites its file as in a small merge. Target rows
never cross a shuffle, and no row of the source comes to the driver.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.partitions import split_by_partition
from intarsia.common.schema import conform_table
from intarsia.core.change import StagedFile
from intarsia.core.files import Snapshot
from intarsia.core.intent import Merge
from intarsia.core.keys import KeyIndex, arange, comparable, decoded, flat
from intarsia.core.matches import Matches
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.planning import SourceFacts
from intarsia.core.ports import Transaction, Workplace
from intarsia.core.prepare import MergeTerms, Prepared, settle_merge
from intarsia.core.problems import duplicate_keys, null_source_keys
from intarsia.core.prune import KeyRange, PartitionSet
from intarsia.core.rule import STRATEGIES
from intarsia.engines.arrow.matching import MergeMatcher, SourceIndex
from intarsia.engines.arrow.placing import Placing
from intarsia.engines.arrow.reading import FileReader, constant_column
from intarsia.engines.spark.carry import carried, restored
from intarsia.engines.spark.crew import Attempt, Crew
from intarsia.engines.spark.jobs import MergeWork, merge_files
from intarsia.engines.spark.source import Part, SparkSource, Spool
from intarsia.errors import NotSupported

ROW = "__row"
FILE = "__file"
RESULT = "job long, ok boolean, payload binary"


def _key(number: int) -> str:
    return f"__k{number}"


@dataclass(frozen=True, slots=True)
class RemoteRows:
    """The source in the dataset's types, on shared storage."""

    spool: Spool
    wanted: pa.Schema
    distinct: bool = True
    """False when only the winner of each key counts."""

    @property
    def size(self) -> int:
        return self.spool.size


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What the cast of one part found out."""

    part: Part
    nulls: dict[str, int]
    ends: dict[str, pa.Array]
    nan: dict[str, bool]
    partitions: pa.Table


@dataclass(frozen=True, slots=True)
class Casting:
    """Casts parts of a source and looks at their keys."""

    terms: MergeTerms
    filesystem: pafs.FileSystem
    directory: str
    path: str


def cast_part(work: Casting, job: tuple[int, Part]) -> PartFacts:
    """One part of the source in the dataset's types, with its keys beside it; runs on an executor."""
    number, part = job
    terms = work.terms
    keys = terms.intent.source_keys
    location = f"{work.directory}/{uuid.uuid4().hex}.parquet"
    rows = size = 0
    nulls = dict.fromkeys(keys, 0)
    ends: dict[str, list[pa.Array]] = {name: [] for name in keys}
    nan = dict.fromkeys(keys, False)
    partitions: list[pa.Table] = []
    writer: pq.ParquetWriter | None = None
    reader = pq.ParquetFile(part.location, filesystem=work.filesystem)
    try:
        for batch in reader.iter_batches(1 << 18, use_threads=False):
            table = conform_table(
                pa.Table.from_batches([batch]), terms.wanted, operation=terms.intent.rule.name, path=work.path
            )
            for name in keys:
                nulls[name] += table[name].null_count
                known = KeyRange.of(table[name])
                nan[name] = nan[name] or known.has_nan
                ends[name] += [known.values.slice(0, 1), known.values.slice(max(len(known.values) - 1, 0))]
            partitions += [_distinct(table, terms.pruning)]
            sent = with_keys(carried(table), [table[name] for name in keys])
            sent = sent.append_column(ROW, arange(table.num_rows, (number << 40) + rows))
            if writer is None:
                writer = pq.ParquetWriter(location, sent.schema, filesystem=work.filesystem)
            writer.write_table(sent)
            rows += table.num_rows
            size += table.nbytes
    finally:
        if writer is not None:
            writer.close()
    whole = (
        pa.concat_tables(partitions) if partitions else terms.wanted.empty_table().select(list(terms.pruning))
    )
    return PartFacts(
        Part(location, rows, size),
        nulls,
        {name: pa.concat_arrays(arrays) for name, arrays in ends.items() if arrays},
        nan,
        _distinct(whole, terms.pruning),
    )


def with_keys(table: pa.Table, keys: Sequence[Any]) -> pa.Table:
    """The table with its key in the form that Spark compares as we do."""
    for number, column in enumerate(keys):
        plain = pa.table({"key": decoded(comparable(column))})
        table = table.append_column(_key(number), carried(plain)["key"])
    return table


def _distinct(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    if not columns:
        return table.select([])
    parts = split_by_partition(table.select(list(columns)), list(columns))
    return pa.concat_tables([part.slice(0, 1) for _, part in parts]) if parts else table.select(list(columns))


def prepare_large(crew: Crew, intent: Merge, snapshot: Snapshot, source: SparkSource) -> Prepared:
    """Cast and check the source where it is; raises as preparing a small one does."""
    terms = settle_merge(intent, snapshot, source.schema)
    intent = terms.intent
    operation, path, keys = intent.rule.name, snapshot.root, intent.source_keys
    if intent.residual is not None:
        raise NotSupported(
            f"{operation}: an ON condition beyond equalities needs a source of at most broadcast_bytes.",
            path=path,
            hint="raise broadcast_bytes=, or bring the condition into the clauses.",
        )
    spool = source.spool
    work = Casting(terms, spool.filesystem, spool.directory, path)
    jobs = list(enumerate(spool.parts))
    facts = crew.each(cast_part, jobs, shared=work, weights=[part.size for part in spool.parts])
    if intent.null_keys != "match":
        nulls = {name: sum(fact.nulls[name] for fact in facts) for name in keys}
        null_source_keys(nulls, operation=operation, path=path)
    cast = replace(spool, schema=terms.wanted, parts=tuple(fact.part for fact in facts))
    remote = RemoteRows(cast, terms.wanted, distinct=operation != "deduplicate")
    if operation == "deduplicate":
        remote, rows = _winners(crew, remote, intent, snapshot)
    else:
        rows = cast.rows
        if operation in STRATEGIES:
            _refuse_duplicates(crew, remote, intent, path)
    ranges = {
        name: _range(
            [fact.ends[other] for fact in facts if other in fact.ends],
            null=any(fact.nulls[other] for fact in facts),
            nan=any(fact.nan[other] for fact in facts),
            kind=terms.wanted.field(other).type,
        )
        for name, other in zip(intent.keys, keys, strict=True)
    }
    places = pa.concat_tables(
        [terms.wanted.empty_table().select(list(terms.pruning)), *(fact.partitions for fact in facts)]
    )
    partitions = PartitionSet.of(places, terms.pruning)
    empty = terms.wanted.empty_table()
    index = KeyIndex([empty[name] for name in keys], null_match=intent.null_keys == "match")
    return Prepared(
        intent,
        terms.schema,
        terms.partition_columns,
        empty,
        SourceFacts(rows, ranges, partitions),
        source.rows,
        index,
        remote,
    )


def _range(ends: list[pa.Array], *, null: bool, nan: bool, kind: pa.DataType) -> KeyRange:
    values = pa.concat_arrays(ends) if ends else flat(decoded(comparable(pa.nulls(0, kind))))
    values = values.take(pc.array_sort_indices(values))
    both = pa.concat_arrays([values.slice(0, 1), values.slice(max(len(values) - 1, 0))])
    return KeyRange(both, has_null=null, has_nan=nan, span=True)


def source_frame(crew: Crew, remote: RemoteRows) -> Any:
    """The cast source as a DataFrame."""
    return _frame(crew, [part.location for part in remote.spool.parts])


def _frame(crew: Crew, locations: Sequence[str]) -> Any:
    return crew.spark.read.parquet(*locations)


def _keys(intent: Merge) -> list[str]:
    return [_key(number) for number in range(len(intent.keys))]


def _refuse_duplicates(crew: Crew, remote: RemoteRows, intent: Merge, path: str) -> None:
    from pyspark.sql import functions as F

    if not remote.spool.parts:
        return
    frame = source_frame(crew, remote)
    counted = frame.groupBy(*_keys(intent)).agg(F.count("*").alias("n"), F.first(ROW).alias(ROW))
    if intent.null_keys != "match":
        counted = counted.dropna(subset=_keys(intent))
    many = counted.where("n > 1")
    found = many.agg(F.count("*").alias("keys"), F.sum("n").alias("rows")).toArrow().to_pylist()[0]
    if not found["keys"]:
        return
    some = frame.join(many.select(ROW).limit(64), ROW, "left_semi").select(*intent.source_keys).toArrow()
    schema = pa.schema([remote.wanted.field(name) for name in intent.source_keys])
    samples = restored(some, schema, operation=intent.rule.name, path=path)
    duplicate_keys(
        samples, intent.source_keys, found["keys"], found["rows"], operation=intent.rule.name, path=path
    )


def _winners(crew: Crew, remote: RemoteRows, intent: Merge, snapshot: Snapshot) -> tuple[RemoteRows, int]:
    """One row per key: the highest order, then the last of the source's parts."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not intent.dedup_order_by:
        warnings.warn(
            "deduplicate without dedup_order_by: which row of a DataFrame is the last is not defined.",
            UserWarning,
            stacklevel=2,
        )
    if not remote.spool.parts:
        return remote, 0
    order = [F.col(_quoted(name)).desc_nulls_last() for name in intent.dedup_order_by]
    window = Window.partitionBy(*_keys(intent)).orderBy(*order, F.col(ROW).desc())
    frame = source_frame(crew, remote).withColumn("__place", F.row_number().over(window)).where("__place = 1")
    writing = Keeping(remote.spool.filesystem, remote.spool.directory)
    parts = tuple(part for part in crew.over(frame.drop("__place"), writing.parts) if part.rows)
    kept = replace(remote, spool=replace(remote.spool, parts=parts))
    return kept, kept.spool.rows


def _quoted(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


@dataclass(frozen=True, slots=True)
class Keeping:
    """Writes rows as they come; runs on an executor."""

    filesystem: pafs.FileSystem
    directory: str

    def parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Part]:
        location = f"{self.directory}/{uuid.uuid4().hex}.parquet"
        rows = size = 0
        writer: pq.ParquetWriter | None = None
        try:
            for batch in batches:
                if writer is None:
                    writer = pq.ParquetWriter(location, batch.schema, filesystem=self.filesystem)
                writer.write_batch(batch)
                rows += batch.num_rows
                size += batch.nbytes
        finally:
            if writer is not None:
                writer.close()
        if writer is not None:
            yield Part(location, rows, size)


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
            table = reader.read(stored, group) if stored else None
            columns = [
                flat(table[name])
                if table is not None and name in stored
                else constant_column(item.file.partition[name], snapshot.schema.field(name).type, rows)
                for name in work.keys
            ]
            sent = with_keys(pa.table({FILE: pa.repeat(pa.scalar(number, pa.int32()), rows)}), columns)
            if writer is None:
                writer = pq.ParquetWriter(location, sent.schema, filesystem=work.filesystem)
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

    def __call__(self, rows: pa.Table) -> Any:
        number = rows[FILE][0].as_py()
        source = restored(rows, self.wanted, operation=self.intent.rule.name, path=self.plan.snapshot.root)
        return self.merged(self.files[number], source)

    def merged(self, item: FilePlan, source: pa.Table) -> Outcome:
        keys = KeyIndex(
            [source[name] for name in self.intent.source_keys], null_match=self.intent.null_keys == "match"
        )
        index = SourceIndex.of(source, keys, self.plan.snapshot.partition_columns)
        matcher = MergeMatcher(self.plan, self.intent, index)
        ((match, staged),) = merge_files(MergeWork(matcher, self.workplace), [item])
        matcher.refuse([match])
        return Outcome(item.file.path, len(match.hits), matcher.drops(match), matcher.empties(match), staged)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one file."""

    path: str
    hits: int
    drops: int
    emptied: bool
    staged: StagedFile | None


def merge_alone(work: GroupMerge, item: FilePlan) -> Outcome:
    """A file that no source row was routed to."""
    return work.merged(item, work.wanted.empty_table())


def merge_large(
    crew: Crew, plan: Plan, prepared: Prepared, tx: Transaction | None
) -> tuple[Matches, dict[str, StagedFile], list[StagedFile]]:
    """Route, probe, rewrite, and place what is new; without a transaction only count."""
    from pyspark.sql import functions as F

    intent, remote = plan.intent, prepared.remote
    assert isinstance(intent, Merge)
    assert isinstance(remote, RemoteRows)
    scans = plan.chosen("scan")
    light = replace(plan, files=(), groups=(), snapshot=replace(plan.snapshot, files=()))
    work = KeyWork(light, intent.keys, remote.spool.filesystem, remote.spool.directory)
    written = crew.each(
        write_keys, list(enumerate(scans)), shared=work, weights=[item.scan_bytes for item in scans]
    )
    locations = [location for location in written if location is not None]
    group = GroupMerge(light, intent, scans, remote.wanted, None if tx is None else tx.workplace())
    source = source_frame(crew, remote) if remote.spool.parts else None
    names = _keys(intent)
    outcomes: list[Outcome] = []
    known = None
    if source is not None and locations:
        known = _frame(crew, locations).distinct()
        sides = known.alias("t"), source.alias("s")
        safe = intent.null_keys == "match"
        condition = [
            F.col(f"t.{name}").eqNullSafe(F.col(f"s.{name}"))
            if safe
            else F.col(f"t.{name}") == F.col(f"s.{name}")
            for name in names
        ]
        columns = [f"t.{FILE}", *(f"s.{_quoted(name)}" for name in remote.wanted.names)]
        routed = sides[1].join(sides[0], condition, "inner").select(*columns)
        outcomes = crew.groups(routed, FILE, group)
    reached = {outcome.path for outcome in outcomes}
    rest = [item for item in scans if item.file.path not in reached]
    if intent.rule.touches_target_only or any(item.forced for item in rest):
        outcomes += crew.each(merge_alone, rest, shared=group, weights=[item.file.size for item in rest])
    inserted, added = 0, list[StagedFile]()
    if source is not None and intent.rule.inserts:
        inserted, added = _placed(crew, plan, prepared, source, known, tx)
    return _matches(plan, outcomes, inserted), _staged(outcomes), added


def _staged(outcomes: Sequence[Outcome]) -> dict[str, StagedFile]:
    return {outcome.path: outcome.staged for outcome in outcomes if outcome.staged is not None}


def _matches(plan: Plan, outcomes: Sequence[Outcome], inserted: int) -> Matches:
    removed = plan.chosen("remove")
    dropped = {item.file.path for item in removed} | {o.path for o in outcomes if o.emptied}
    return Matches(
        counts={o.path: o.hits for o in outcomes if o.hits and not o.emptied},
        dropped=frozenset(dropped),
        inserted=inserted,
        updated=sum(o.hits - o.drops for o in outcomes),
        deleted=sum(o.drops for o in outcomes) + sum(item.file.rows for item in removed),
        scanned_bytes=plan.bytes_to_scan,
    )


PLACE_BYTES = 256 << 20


def _gathered(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.Table]:
    """Batches put together up to about so many bytes."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= most:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if any(batch.num_rows for batch in held):
        yield pa.Table.from_batches(held)


@dataclass(frozen=True, slots=True)
class PlaceRows:
    """Writes rows as new files of the table; runs on an executor."""

    placing: Placing
    wanted: pa.Schema
    matcher: MergeMatcher
    workplace: Workplace | None

    def placed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[StagedFile]]]:
        """How many rows are new, and the files they became; memory: so many rows as fill a file or two."""
        for rows in _gathered(batches, PLACE_BYTES):
            source = restored(
                rows, self.wanted, operation=self.placing.operation, path=self.placing.snapshot.root
            )
            inserts = self.matcher.inserts_of(source, arange(source.num_rows))
            count = sum(len(taken) for _, taken in inserts)
            if self.workplace is None:
                yield count, []
                continue
            tx = Named(Attempt.at(self.workplace), uuid.uuid4().hex[:8])
            files = self.placing.files(inserts, source, tx, prefix="insert")
            yield count, [self.placing.write(file, source, tx) for file in files]


@dataclass(frozen=True, slots=True)
class Named:
    """A workplace whose table paths carry a task's own mark, so that no two tasks meet."""

    place_of: Workplace
    mark: str

    @property
    def txid(self) -> str:
        return self.place_of.txid

    @property
    def staging(self) -> Any:
        return self.place_of.staging

    def place(self, partition: Any, prefix: str, ordinal: int, *, beside: Any = None) -> str:
        return self.place_of.place(partition, f"{prefix}-{self.mark}", ordinal, beside=beside)


def _placed(
    crew: Crew, plan: Plan, prepared: Prepared, source: Any, known: Any, tx: Transaction | None
) -> tuple[int, list[StagedFile]]:
    """Source rows whose key no file holds."""
    from pyspark.sql import functions as F

    intent, remote = plan.intent, prepared.remote
    assert isinstance(intent, Merge)
    names = _keys(intent)
    fresh = source
    if known is not None:
        safe = intent.null_keys == "match"
        sides = source.alias("s"), known.alias("t")
        condition = [
            F.col(f"t.{name}").eqNullSafe(F.col(f"s.{name}"))
            if safe
            else F.col(f"t.{name}") == F.col(f"s.{name}")
            for name in names
        ]
        fresh = sides[0].join(sides[1], condition, "left_anti")
    apart = [F.col(_quoted(name)) for name in prepared.partition_columns if name in remote.wanted.names]
    fresh = fresh.repartition(crew.tasks, *apart) if apart else fresh.coalesce(crew.tasks)
    snapshot = replace(plan.snapshot, files=plan.snapshot.files[:1])
    placing = Placing(snapshot, plan.schema, prepared.partition_columns, intent.options, plan.operation)
    light = replace(plan, files=(), groups=(), snapshot=replace(plan.snapshot, files=()))
    empty = SourceIndex.of(prepared.table, prepared.index, plan.snapshot.partition_columns)  # type: ignore[arg-type]
    work = PlaceRows(
        placing, remote.wanted, MergeMatcher(light, intent, empty), None if tx is None else tx.workplace()
    )
    rows = fresh.select(*(_quoted(name) for name in remote.wanted.names))
    done = crew.over(rows, work.placed)
    return sum(count for count, _ in done), [file for _, files in done for file in files]
