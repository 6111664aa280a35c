"""Snapshots as Spark DataFrames, whose files Spark reads by itself where that is exact, else the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from intarsia.common.schema import conform_table
from intarsia.core.expr import Expr
from intarsia.core.ports import Table
from intarsia.core.prove import Verdict, list_predicate_columns
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.engines.spark import SparkEngine
from intarsia.engines.spark.tasks import balance, deserialize, load_work, serialize
from intarsia.engines.spark.types import to_spark_type
from intarsia.errors import CommitConflict, DamagedTable, IntarsiaError, StorageError
from intarsia.kernel.read import SnapshotScan
from intarsia.spark.errors import format_raised
from intarsia.spark.files import NativeFiles, has_condition, make_condition, read_native, select_column
from intarsia.storage import open_storage
from intarsia.tables.parquet.links import LINKED_STATES

__all__ = [
    "FileScan",
    "link_scan",
    "make_frame",
    "make_readable_type",
    "read_file",
    "split_files",
    "weigh_item",
]

BATCH_ROWS = 1 << 16
SPLIT_BYTES = 128 << 20
"""About how much of one file a task reads; row groups beyond it go to other tasks."""

Item = tuple[DataFile, Verdict]
"""A file, and its row groups to read."""


class FileScan(Protocol):
    """What a DataFrame reads: a frozen dataclass, such as :class:`intarsia.kernel.read.SnapshotScan`."""

    @property
    def snapshot(self) -> Snapshot: ...

    @property
    def schema(self) -> pa.Schema: ...

    def list_files(self) -> list[Item]:
        """The files that may have rows to return."""

    def read_pieces(self, item: Item) -> Iterator[pa.Table]:
        """The rows of one file, and a piece without rows where a part has none; runs in a task."""


def make_frame(
    spark: Any,
    scan: FileScan,
    *,
    tasks: int = 0,
    since: str = "read_parquet was called",
    lasting: bool = False,
) -> Any:
    """The rows of a scan as a DataFrame; until Spark evaluates it, only footers are read.

    Each file is read as it was in the scan's snapshot. Where one was replaced since, or cannot be
    read, evaluating the DataFrame raises Spark's ``USER_RAISED_EXCEPTION`` with the text of our error;
    operations of intarsia that evaluate it raise the error itself, such as CommitConflict. Partition
    columns have the types of the snapshot's schema.

    Args:
        spark: the session, classic or Connect.
        scan: the snapshot, and which rows and columns of it.
        tasks: number of tasks; 0 chooses by the session.
        since: when the snapshot was taken, in words for the error.
        lasting: whether it may be evaluated long after. Then Spark reads by itself only files whose names
            nobody writes twice, as others could write into the same file, which its links do not keep.
    """
    exact, sent = (
        pa.schema(
            [
                field.with_type(make_readable_type(field.type, time)).with_nullable(True)
                for field in scan.schema
            ]
        )
        for time in (pa.time64("us"), _choose_time_type(spark))
    )
    spark_schema = from_arrow_schema(sent, prefer_timestamp_ntz=True)
    found, native = _select_native(scan, lasting=lasting)
    files = split_files(found)
    own = None if native is None else native.read(spark, sent)
    if not files:
        return spark.createDataFrame([], spark_schema) if own is None else own
    shares = balance([weigh_item(item) for item in files], SparkEngine(spark, tasks).runner.tasks)
    light = replace(scan, snapshot=scan.snapshot.with_files())  # type: ignore[type-var]
    tasks_of_frame = FrameTasks(
        serialize((light, exact, sent, since)),
        tuple(serialize([files[number] for number in share]) for share in shares),
    )
    told = spark_schema.add(_choose_problem_name(spark_schema.names), "string")
    rows = spark.range(0, len(shares), 1, len(shares)).mapInArrow(tasks_of_frame.read_rows, told)
    others = _raise_problem(rows, told.names[-1])
    return others if own is None else own.union(others)


def link_scan(table: Table, scan: SnapshotScan) -> SnapshotScan | None:
    """The scan, of links that no commit changes where Spark then reads files by itself.

    None where it is no longer of the table's current state.
    """
    unlinked = scan.snapshot
    if unlinked.stat is None:
        return scan
    lasting = replace(scan, snapshot=replace(unlinked, stat=None))
    if _select_native(lasting, lasting=True)[1] is None:
        return scan
    linked = LINKED_STATES.link(table, unlinked)
    return None if linked is None else replace(scan, snapshot=linked)


@dataclass(frozen=True, slots=True)
class _NativeScan:
    """Files that Spark reads by itself, with what of them a scan asks for."""

    files: Sequence[DataFile]
    native: NativeFiles
    columns: tuple[str, ...]
    where: Expr | None

    def read(self, spark: Any, sent: pa.Schema) -> Any:
        SparkEngine(spark)  # refuses a session that leaves out files

        def make_schema(names: list[str]) -> Any:
            types = {field.name: field for field in sent}
            whole = self.native.snapshot.schema
            fields = [types.get(name) or whole.field(name).with_nullable(True) for name in names]
            return from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)

        rows = read_native(spark, self.files, self.native, make_schema)
        if self.where is None:
            return rows
        return rows.where(make_condition(rows, self.where)).select(
            *(select_column(rows, name) for name in self.columns)
        )


def _select_native(scan: FileScan, *, lasting: bool) -> tuple[list[Item], _NativeScan | None]:
    """The files of a scan for tasks to read, and those that Spark reads by itself with the same meaning."""
    items = scan.list_files()
    if not isinstance(scan, SnapshotScan) or not scan.columns:
        return items, None
    where, needed = scan.where, list(scan.columns)
    if where is not None:
        if isinstance(where, pc.Expression) or not has_condition(where, scan.snapshot.schema):
            return items, None
        needed = list(dict.fromkeys([*needed, *list_predicate_columns(where, scan.snapshot.schema)]))
    native = NativeFiles(scan.snapshot, needed, lasting=lasting)
    if not native.is_possible:
        return items, None
    files = [file for file, _ in items]
    known = files if scan.snapshot.footer_loader is None else scan.snapshot.footer_loader(files)
    chosen = [native.has(file) for file in known]
    own = [file for file, is_native in zip(known, chosen, strict=True) if is_native]
    others = [item for item, is_native in zip(items, chosen, strict=True) if not is_native]
    return others, _NativeScan(own, native, scan.columns, where) if own else None


def split_files(items: Sequence[Item]) -> list[Item]:
    """The items, with the row groups of large files in several."""
    split = []
    for file, verdict in items:
        groups = verdict.row_groups
        parts = 1 if file.footer is None else min(-(-weigh_item((file, verdict)) // SPLIT_BYTES), len(groups))
        edges = [len(groups) * number // max(parts, 1) for number in range(max(parts, 1) + 1)]
        split += [(file, replace(verdict, row_groups=groups[low:high])) for low, high in pairwise(edges)]
    return split


def weigh_item(item: Item) -> int:
    """About how many bytes an item reads."""
    file, verdict = item
    size = file.size or file.rows
    every = 0 if file.footer is None else file.footer.num_row_groups
    return size * len(verdict.row_groups) // every if every else size


def _choose_problem_name(names: Sequence[str]) -> str:
    """A column name that is not taken."""
    taken = {name.casefold() for name in names}
    return next(name for number in count() if (name := f"__problem{number}") not in taken)


def _raise_problem(rows: Any, problem: str) -> Any:
    """The rows without the column ``problem``; where that is not NULL, Spark raises its text."""
    from pyspark.sql import functions

    said = rows[problem]
    # Spark joins no other filter with one of a function like this, and so drops no row with an error before
    # it is raised. rand() does not do: since Spark 4.1 a comparison of it with a number is a constant.
    checked = functions.when(said.isNull(), functions.monotonically_increasing_id() >= 0).otherwise(
        functions.raise_error(said).cast("boolean")
    )
    return rows.where(checked).drop(said)


def _choose_time_type(spark: Any) -> pa.DataType:
    """The type of times of day: Spark's own where it is switched on, else microseconds as a number."""
    has_times = str(spark.conf.get("spark.sql.timeType.enabled", "false")).lower() == "true"
    return pa.time64("ns") if has_times else pa.int64()


def make_readable_type(kind: pa.DataType, time: pa.DataType) -> pa.DataType:
    """The type that users see in Spark: one with the same values, where the engine's only holds the bytes.

    ``time`` is the type for times of day.
    """
    is_ = pa.types
    if is_.is_dictionary(kind):
        return make_readable_type(kind.value_type, time)
    if isinstance(kind, pa.BaseExtensionType):
        return make_readable_type(kind.storage_type, time)
    if is_.is_uint8(kind):
        return pa.int16()
    if is_.is_uint16(kind):
        return pa.int32()
    if is_.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if is_.is_duration(kind):
        return pa.duration("us")
    if is_.is_time(kind):
        return time
    if is_.is_null(kind):
        return kind
    if is_.is_struct(kind):
        return pa.struct([field.with_type(make_readable_type(field.type, time)) for field in kind])
    if is_.is_map(kind):
        return pa.map_(make_readable_type(kind.key_type, time), make_readable_type(kind.item_type, time))
    if is_.is_nested(kind):
        return pa.list_(make_readable_type(kind.value_type, time))
    return to_spark_type(kind)


@dataclass(frozen=True, slots=True)
class FrameTasks:
    """The function of a DataFrame's tasks, with the files of each."""

    common: bytes
    shares: tuple[bytes, ...]

    def read_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs in the Python worker of a task; memory: a piece of one file."""
        scan, exact, sent, since = load_work(self.common)
        for batch in batches:
            for share in batch.column(0).to_pylist():
                for item in deserialize(self.shares[share]):
                    try:
                        for rows in read_file(scan, item, exact, sent, since):
                            yield _add_problem(rows, sent, None)
                    except IntarsiaError as error:
                        nothing = pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in sent], schema=sent)
                        yield _add_problem(nothing, sent, format_raised(error))
                        return


def _add_problem(rows: pa.RecordBatch, sent: pa.Schema, problem: str | None) -> pa.RecordBatch:
    said = pa.repeat(pa.scalar(problem, pa.string()), rows.num_rows)
    schema = sent.append(pa.field(_choose_problem_name(sent.names), pa.string()))
    return pa.RecordBatch.from_arrays([*rows.columns, said], schema=schema)


def read_file(
    scan: FileScan, item: Item, exact: pa.Schema, sent: pa.Schema, since: str
) -> Iterator[pa.RecordBatch]:
    file = item[0]
    try:
        for piece in scan.read_pieces(item):
            _check_same(scan.snapshot, file, since)  # after opening: checks the file that is read
            shown = conform_table(piece, exact, operation="read_parquet", path=file.path)
            yield from shown.cast(sent).to_batches(max_chunksize=BATCH_ROWS)
    except (DamagedTable, StorageError):
        _check_same(scan.snapshot, file, since)  # it may have been replaced
        raise


def _check_same(snapshot: Snapshot, file: DataFile, since: str) -> None:
    """Raise CommitConflict where a file is not the one of the snapshot any more."""
    if not file.fingerprint:  # a file on its own
        return
    storage, path = open_storage(file.location, filesystem=snapshot.filesystem)
    found = storage.stat(path)
    if found is None or found.fingerprint != file.fingerprint:
        raise CommitConflict(
            f"{snapshot.show_path(file)} was replaced or removed since {since}.",
            path=snapshot.root,
            hint="read it again, or keep the rows (cache, checkpoint) before the dataset changes.",
        )
