"""Matching a large source by a join of Spark's, where an index over its keys is too large for the driver.

Tasks write the keys of the source with the numbers of its rows, and the keys of the candidate files. Spark
joins them and brings the pairs of a file to one task, which looks the keys up in the file again and notes
what is hit, as it would with the index. The other columns of the source stay where they are, target rows
never cross a shuffle, and no row of the source comes to the driver.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from intarsia.core.intent import MergeIntent
from intarsia.core.keys import KeyIndex, arange, decode_dictionary, to_array, to_comparable
from intarsia.core.plan import FilePlan, Plan
from intarsia.core.planning import SourceFacts
from intarsia.core.prepare import MergeTerms, Prepared
from intarsia.core.prune import KeyRange, PartitionSet
from intarsia.core.rule import STRATEGIES
from intarsia.core.snapshot import Snapshot
from intarsia.core.validation import (
    refuse_duplicate_keys,
    refuse_null_source_keys,
    refuse_null_target_keys,
)
from intarsia.engines.spark.large_source import (
    ArrowStore,
    LargeSource,
    cast_spool,
    deciding_columns,
    find_distinct_rows,
    find_starts,
    inserting_columns,
    read_pieces,
    restore_types,
    route_rows,
    write_routes,
)
from intarsia.engines.spark.probe import (
    HitNotes,
    NoteWork,
    ProbeResult,
    ProbeWork,
    probe_index,
)
from intarsia.engines.spark.source import PartWriter, SparkSource, SpoolPart, name_columns, open_spool_writer
from intarsia.engines.spark.tasks import TaskRunner
from intarsia.engines.spark.types import from_spark_types, to_spark_types
from intarsia.kernel.match import MergeMatcher, SourceIndex
from intarsia.kernel.overlay import take_rows
from intarsia.kernel.read import FileReader, make_constant_column
from intarsia.spark.collect import collect

ROW = "__row"
FILE = "__file"
POSITION = "__position"


def name_keys(count: int) -> list[str]:
    """The columns of the keys in Spark."""
    return [f"__k{number}" for number in range(count)]


def with_keys(table: pa.Table, keys: Sequence[Any]) -> pa.Table:
    """The table with its key in the form that Spark compares as we do."""
    for name, column in zip(name_keys(len(keys)), keys, strict=True):
        plain = pa.table({"key": decode_dictionary(to_comparable(column))})
        table = table.append_column(name, to_spark_types(plain)["key"])
    return table


def make_frame(runner: TaskRunner, locations: Sequence[str], filesystem: pafs.FileSystem) -> Any:
    """Files of ours as a DataFrame.

    Spark reads local files by itself. Of other storage it may have another name or none, so there tasks
    read with the file system that wrote.
    """
    if isinstance(filesystem, pafs.LocalFileSystem):
        return runner.spark.read.parquet(*(f"file://{_GLOB.sub(_escape, path)}" for path in locations))
    footer = pq.read_schema(locations[0], filesystem=filesystem)
    schema = from_arrow_schema(footer, prefer_timestamp_ntz=True)
    jobs = runner.spark.range(0, len(locations), 1, len(locations))
    return jobs.mapInArrow(PartReader(filesystem, tuple(locations)).read_batches, schema)


_GLOB = re.compile(r"[\\{}\[\]*?]")


def _escape(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


@dataclass(frozen=True, slots=True)
class PartReader:
    """Reads files whose numbers a task is given."""

    filesystem: pafs.FileSystem
    locations: tuple[str, ...]

    def read_batches(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs on an executor; memory: one batch."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with pq.ParquetFile(self.locations[number], filesystem=self.filesystem) as file:
                    yield from file.iter_batches(1 << 16, use_threads=False)


# ---------------------------------------------------------------------------------------------------
# The keys of the source.


@dataclass(frozen=True, slots=True)
class KeyFileWork:
    """Writes the deciding columns of parts for Spark, and profiles them."""

    store: ArrowStore
    starts: pa.Array
    schema: pa.Schema
    keys: tuple[str, ...]
    partitions: tuple[str, ...]
    operation: str
    path: str


@dataclass(frozen=True, slots=True)
class KeyProfile:
    """The keys of one part."""

    location: str
    nulls: dict[str, int]
    ends: dict[str, pa.Array]
    """The lowest and the highest value of each key."""
    nan: dict[str, bool]
    partitions: pa.Table
    """The distinct values of the partition columns."""


def write_key_file(work: KeyFileWork, job: tuple[int, SpoolPart]) -> KeyProfile:
    """The deciding columns of one part, with the numbers of its rows; runs on an executor."""
    number, part = job
    location = f"{work.store.directory}/{uuid.uuid4().hex}.parquet"
    nulls, nan = dict.fromkeys(work.keys, 0), dict.fromkeys(work.keys, False)
    ends: dict[str, list[pa.Array]] = {name: [] for name in work.keys}
    places = [pa.Table.from_batches([], work.schema).select(list(work.partitions))]
    start = work.starts[number].as_py()
    writer: pq.ParquetWriter | None = None
    try:
        for piece in read_pieces(part, work.store.filesystem, work.schema.names):
            table = restore_types(piece, work.schema, operation=work.operation, path=work.path)
            for name in work.keys:
                nulls[name] += table[name].null_count
                known = KeyRange.of(table[name])
                nan[name] = nan[name] or known.has_nan
                ends[name] += [known.values.slice(0, 1), known.values.slice(max(len(known.values) - 1, 0))]
            places.append(find_distinct_rows(table, work.partitions))
            sent = to_spark_types(table).rename_columns(name_columns(table.num_columns))
            sent = with_keys(sent, [table[name] for name in work.keys])
            sent = sent.append_column(ROW, arange(table.num_rows, start))
            start += table.num_rows
            if writer is None:
                writer = open_spool_writer(location, sent.schema, work.store.filesystem)
            writer.write_table(sent)
    finally:
        if writer is not None:
            writer.close()
    return KeyProfile(
        location,
        nulls,
        {name: pa.concat_arrays(arrays) for name, arrays in ends.items() if arrays},
        nan,
        pa.concat_tables(places),
    )


def prepare_joined(
    runner: TaskRunner, terms: MergeTerms, snapshot: Snapshot, source: SparkSource
) -> Prepared:
    """Cast and check the source where it is; raises as preparing a small one does."""
    intent = terms.intent
    operation, path, keys = intent.rule.name, snapshot.root, intent.source_keys
    spool = cast_spool(runner, source.spool, terms.wanted, operation=operation, path=path)
    columns = deciding_columns(terms, snapshot)
    schema = pa.schema([terms.wanted.field(name) for name in columns], terms.wanted.metadata)
    store = ArrowStore(spool.filesystem, spool.directory)
    work = KeyFileWork(store, find_starts(spool), schema, keys, terms.pruning, operation, path)
    weights = [part.size for part in spool.parts]
    found = runner.run_each(write_key_file, list(enumerate(spool.parts)), shared=work, weights=weights)
    nulls = {name: sum(one.nulls[name] for one in found) for _, name in intent.never_null}
    refuse_null_source_keys(nulls, operation=operation, path=path)
    large = LargeSource(
        spool,
        terms.wanted,
        tuple(inserting_columns(terms, snapshot)),
        key_files=tuple(one.location for one in found),
        rows=spool.rows,
    )
    if operation == "deduplicate":
        large = _keep_last(runner, large, intent, schema)
    elif operation in STRATEGIES:
        _refuse_duplicates(runner, large, intent, schema, path)
    ranges = {
        name: _combine_key_ranges(found, other, schema.field(other).type)
        for name, other in zip(intent.keys, keys, strict=True)
    }
    empty = pa.Table.from_batches([], schema)
    places = pa.concat_tables([empty.select(list(terms.pruning)), *(one.partitions for one in found)])
    return Prepared(
        intent,
        terms.schema,
        terms.partition_columns,
        empty,
        SourceFacts(large.rows, ranges, PartitionSet.of(places, terms.pruning)),
        source.rows,
        KeyIndex([empty[name] for name in keys], null_match=intent.matches_null),
        large,
        terms.notes,
    )


def _combine_key_ranges(found: Sequence[KeyProfile], name: str, kind: pa.DataType) -> KeyRange:
    """All that is known of the source's keys: between which values they lie."""
    ends = [one.ends[name] for one in found if name in one.ends]
    values = pa.concat_arrays(ends) if ends else to_array(decode_dictionary(to_comparable(pa.nulls(0, kind))))
    values = values.take(pc.array_sort_indices(values))
    both = pa.concat_arrays([values.slice(0, 1), values.slice(max(len(values) - 1, 0))])
    return KeyRange(
        both,
        has_null=any(one.nulls[name] for one in found),
        has_nan=any(one.nan[name] for one in found),
        span=True,
    )


def _refuse_duplicates(
    runner: TaskRunner, large: LargeSource, intent: MergeIntent, schema: pa.Schema, path: str
) -> None:
    if not large.key_files:
        return
    frame = make_frame(runner, large.key_files, large.spool.filesystem)
    counted = frame.groupBy(*name_keys(len(intent.keys))).agg(
        F.count("*").alias("n"), F.first(ROW).alias(ROW)
    )
    if not intent.matches_null:
        for name in name_keys(len(intent.keys)):
            counted = counted.where(F.col(name).isNotNull())  # dropna would take NaN for NULL
    many = counted.where("n > 1")
    found = collect(many.agg(F.count("*").alias("keys"), F.sum("n").alias("rows"))).to_pylist()[0]
    if not found["keys"]:
        return
    columns = dict(zip(schema.names, name_columns(len(schema)), strict=True))
    some = frame.join(many.select(ROW).limit(64), ROW, "left_semi")
    some = collect(some.select(*(columns[name] for name in intent.source_keys)))
    keys = pa.schema([schema.field(name) for name in intent.source_keys])
    samples = from_spark_types(some, keys, operation=intent.rule.name, path=path)
    refuse_duplicate_keys(
        samples, intent.source_keys, found["keys"], found["rows"], operation=intent.rule.name, path=path
    )


def _keep_last(runner: TaskRunner, large: LargeSource, intent: MergeIntent, schema: pa.Schema) -> LargeSource:
    """One row per key: the highest order, then the last of the source's rows."""
    if not large.key_files:
        return large
    columns = dict(zip(schema.names, name_columns(len(schema)), strict=True))
    order = [F.col(columns[name]).desc_nulls_last() for name in intent.dedup_order_by]
    window = Window.partitionBy(*name_keys(len(intent.keys))).orderBy(*order, F.col(ROW).desc())
    frame = make_frame(runner, large.key_files, large.spool.filesystem)
    last = frame.withColumn("__place", F.row_number().over(window)).where("__place = 1").drop("__place")
    done = runner.run_over(last, KeptWriter(large.store, large.starts).write)
    return replace(
        large,
        key_files=tuple(part.location for part, _ in done),
        kept=tuple(note for _, note in done),
        rows=sum(part.rows for part, _ in done),
    )


@dataclass(frozen=True, slots=True)
class KeptWriter:
    """Writes the rows of key files that count, and notes which they are."""

    store: ArrowStore
    starts: pa.Array

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[SpoolPart, str]]:
        """Runs on an executor; memory: a row group, and eight bytes for each row."""
        numbers: list[pa.Array] = []

        def read() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                numbers.append(batch.column(ROW))
                yield batch

        for part in PartWriter(self.store.filesystem, self.store.directory).write_parts(read()):
            if part.rows:
                rows = pa.concat_arrays(numbers)
                yield part, write_routes(self.store, [route_rows(0, rows)], self.starts)


# ---------------------------------------------------------------------------------------------------
# The keys of the target, and the join.


@dataclass(frozen=True, slots=True)
class TargetKeyWork:
    """Writes the key columns of candidate files."""

    plan: Plan
    keys: tuple[str, ...]
    store: ArrowStore


@dataclass(frozen=True, slots=True)
class TargetKeys:
    """The key columns of one candidate file."""

    location: str | None
    """None where no row group may hold a key of the source."""
    nulls: dict[str, int]
    """How many live rows have NULL in a key column, where there are any."""


def write_target_keys(work: TargetKeyWork, job: tuple[int, FilePlan]) -> TargetKeys:
    """Write the keys of one file, each with the file's number; runs on an executor."""
    number, item = job
    nulls = dict.fromkeys(work.keys, 0)
    snapshot = work.plan.snapshot
    stored = [name for name in work.keys if name not in item.file.partition]
    location = f"{work.store.directory}/{uuid.uuid4().hex}.parquet"
    writer: pq.ParquetWriter | None = None
    with FileReader(item.file, snapshot.schema, snapshot.filesystem) as reader:
        for group in item.row_groups:
            rows = reader.footer.row_group(group).num_rows
            live = reader.find_live_rows(reader.get_start(group), rows)
            table = reader.read(stored, group) if stored else None
            columns = [
                to_array(table[name])
                if table is not None and name in stored
                else make_constant_column(item.file.partition[name], snapshot.schema.field(name).type, rows)
                for name in work.keys
            ]
            sent = with_keys(pa.table({FILE: pa.repeat(pa.scalar(number, pa.int32()), rows)}), columns)
            sent = sent if live is None else take_rows(sent, live)
            for name, column in zip(work.keys, name_keys(len(work.keys)), strict=True):
                nulls[name] += sent[column].null_count
            sent = sent.group_by(sent.column_names, use_threads=False).aggregate([])  # each key once
            if writer is None:
                writer = open_spool_writer(location, sent.schema, work.store.filesystem)
            writer.write_table(sent)
    if writer is not None:
        writer.close()
    found = {name: count for name, count in nulls.items() if count}
    return TargetKeys(None if writer is None else location, found)


@dataclass(frozen=True, slots=True)
class JoinedProbe:
    """Probes files by the source rows that a join has found for them."""

    plan: Plan
    intent: MergeIntent
    files: tuple[FilePlan, ...] = field(repr=False)
    schema: pa.Schema
    """The deciding columns of the source."""
    notes: NoteWork

    def probe(self, batches: Iterator[pa.RecordBatch]) -> Iterator[ProbeResult]:
        """What is hit in the files that rows were found for; runs on an executor, rows come file by file.

        Memory: the deciding columns of the rows for one file, and some bytes for each of all its rows.
        """
        notes = HitNotes(self.notes)
        for number, rows in split_by_file(batches):
            path = self.plan.snapshot.root
            source = from_spark_types(rows, self.schema, operation=self.intent.rule.name, path=path)
            keys = [source[name] for name in self.intent.source_keys]
            index = KeyIndex(keys, null_match=self.intent.matches_null)
            known = SourceIndex.of(source, index, self.plan.snapshot.partition_columns)
            matcher = MergeMatcher(self.plan, self.intent, known)
            (match,) = matcher.scan([self.files[number]])
            notes.add(number, match, matcher, to_array(rows[ROW]))
        yield notes.finish()


def split_by_file(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each file, where all rows come in the order of files and of rows; each row once."""
    held: list[pa.RecordBatch] = []
    current: int | None = None
    for batch in batches:
        runs = pc.run_end_encode(batch.column(FILE))
        begin = 0
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            if current is not None and number != current:
                yield current, _drop_repeated(pa.Table.from_batches(held))
                held = []
            current = number
            held.append(batch.slice(begin, end - begin))
            begin = end
    if current is not None:
        yield current, _drop_repeated(pa.Table.from_batches(held))


def _drop_repeated(rows: pa.Table) -> pa.Table:
    """Each row once: a key may be in several row groups of a file."""
    numbers = to_array(rows[ROW])
    distinct = pc.unique(numbers)
    return (
        rows if len(distinct) == len(numbers) else take_rows(rows, pc.index_in(distinct, value_set=numbers))
    )


def probe_joined(
    runner: TaskRunner, work: ProbeWork, large: LargeSource, scans: Sequence[FilePlan]
) -> list[ProbeResult]:
    """What is hit in the candidate files, found by a join of keys; ``work`` has a source without rows."""
    matcher, filesystem = work.matcher, large.spool.filesystem
    intent, schema = matcher.intent, matcher.source.table.schema
    assert large.key_files is not None
    keys = TargetKeyWork(matcher.plan, intent.keys, large.store)
    weights = [item.scan_bytes for item in scans]
    written = runner.run_each(write_target_keys, list(enumerate(scans)), shared=keys, weights=weights)
    _refuse_null_keys(matcher.plan.snapshot, intent, scans, written)
    locations = [one.location for one in written if one.location is not None]
    probed: list[ProbeResult] = []
    if large.key_files and locations:
        source, known = (
            make_frame(runner, large.key_files, filesystem),
            make_frame(runner, locations, filesystem),
        )
        columns = [*(f"s.{name}" for name in name_columns(len(schema))), f"s.{ROW}", f"t.{FILE}"]
        pairs = (
            source.alias("s").join(known.alias("t"), _make_key_condition(intent), "inner").select(*columns)
        )
        pairs = pairs.repartition(runner.tasks, FILE).sortWithinPartitions(FILE, ROW)
        probe = JoinedProbe(matcher.plan, intent, tuple(scans), schema, work.notes)
        probed = runner.run_over(pairs, probe.probe)
    if intent.rule.touches_target_only:
        reached = {one.number for task in probed for one in task.files}
        rest = [(number, item) for number, item in enumerate(scans) if number not in reached]
        probed += probe_index(runner, work, rest)
    return probed


def _refuse_null_keys(
    snapshot: Snapshot, intent: MergeIntent, scans: Sequence[FilePlan], written: Sequence[TargetKeys]
) -> None:
    """Refuse NULL keys in all candidate files, as in process, also in those that no source row reaches."""
    strict = {name for name, _ in intent.never_null}
    files = []
    for item, one in zip(scans, written, strict=True):
        nulls = {name: count for name, count in one.nulls.items() if name in strict}
        if nulls:
            files.append((snapshot.show_path(item.file), nulls))
    refuse_null_target_keys(files, operation=intent.rule.name, path=snapshot.root)


def _make_key_condition(intent: MergeIntent) -> list[Any]:
    """The join of source and target keys; NULL equals NULL only where that was asked for."""
    pairs = [(F.col(f"t.{name}"), F.col(f"s.{name}")) for name in name_keys(len(intent.keys))]
    if intent.matches_null:
        return [there.eqNullSafe(here) for there, here in pairs]
    return [there == here for there, here in pairs]
