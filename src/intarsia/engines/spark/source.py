"""A source that stays on storage: a DataFrame's rows are written there once, by executors, ours by us."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema

from intarsia.common.arrow import IngestedSource
from intarsia.common.exact import to_utc_schema, with_zones
from intarsia.common.locks import remove_lock, try_lock, unlock
from intarsia.common.log import cleanup, get_logger, redact
from intarsia.common.paths import with_time_limit
from intarsia.common.rows import tidy, tidy_schema
from intarsia.common.scratch import (
    Mark,
    make_lease,
    make_private_base,
    mark,
    remove_directory,
    sweep,
)
from intarsia.common.system import to_slashes
from intarsia.core.snapshot import Snapshot
from intarsia.core.spark_metadata import to_stored_schema
from intarsia.engines.spark.tasks import TaskRunner, make_unreachable_error, write_error
from intarsia.engines.spark.types import cast_to_months, make_spark_note
from intarsia.errors import InputError, SchemaMismatch, StorageError

log = get_logger(__name__)


def name_columns(count: int) -> list[str]:
    """What columns are called on their way: PySpark takes no name with a dot or a backtick for one."""
    return [f"__c{number}" for number in range(count)]


@dataclass(frozen=True, slots=True)
class SpoolPart:
    """One file of a spool."""

    location: str
    rows: int
    size: int
    """In memory, as Arrow."""
    columns: tuple[int, ...] = ()
    """The same, column by column, where it was looked at."""


@dataclass(frozen=True, slots=True)
class PartSlice:
    """Rows of one file of a spool, from ``start`` to before ``stop``."""

    location: str
    start: int
    stop: int

    def read_batches(self, filesystem: pafs.FileSystem) -> Iterator[pa.RecordBatch]:
        """The rows in their order; runs on an executor. Memory: a row group."""
        with pq.ParquetFile(self.location, filesystem=filesystem) as file:
            at = 0
            for group in range(file.num_row_groups):
                end = at + file.metadata.row_group(group).num_rows
                if self.start < end and at < self.stop:
                    for batch in file.iter_batches(1 << 16, [group], use_threads=False):
                        low, high = max(self.start - at, 0), min(self.stop - at, batch.num_rows)
                        if low < high:
                            yield batch.slice(low, high - low)
                        at += batch.num_rows
                at = end


@dataclass(frozen=True, slots=True)
class Spool:
    """Rows of a source on storage that driver and executors share; swept once the driver is dead."""

    filesystem: pafs.FileSystem
    directory: str
    mark: Mark
    schema: pa.Schema
    parts: tuple[SpoolPart, ...] = ()
    parents: tuple[str, ...] = ()
    """Local directories made for scratch, innermost first, which go when they are empty."""

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def find_rows(self, start: int, stop: int) -> list[PartSlice]:
        """Where the rows from one number to before another are, all parts counted through."""
        slices = []
        for part in self.parts:
            low, high = max(start, 0), min(stop, part.rows)
            if low < high:
                slices.append(PartSlice(part.location, low, high))
            start, stop = start - part.rows, stop - part.rows
        return slices

    def read(self) -> pa.Table:
        """All of it, into the driver."""
        tables = [pq.read_table(part.location, filesystem=self.filesystem) for part in self.parts]
        return pa.concat_tables([pa.Table.from_batches([], self.schema), *tables])

    def remove(self) -> None:
        """Remove the files; a refusal is logged, and leaves them to a sweep after this process."""
        cleanup(log, (f"remove {self.directory}", self._remove_all))

    def _remove_all(self) -> None:
        if not remove_directory(self.filesystem, self.directory):
            raise StorageError(f"{self.directory} is not empty.", path=self.directory)
        self.mark.release()
        for parent in self.parents:
            with suppress(OSError):  # in use by others
                if parent == os.path.dirname(self.parents[0]):
                    _remove_idle_lock(parent)
                os.rmdir(parent)


def _remove_idle_lock(control: str) -> None:
    """Remove the lock of an operation that has made nothing: it could not tidy up around this spool."""
    if os.listdir(control) != ["lock"]:
        return
    lock = os.path.join(control, "lock")
    descriptor = try_lock(lock)
    if descriptor is None:  # somebody is at work
        return
    try:
        alone = os.listdir(control) == ["lock"]
    except OSError:
        unlock(descriptor)
        raise
    if alone:
        remove_lock(descriptor, lock)
    else:
        unlock(descriptor)


class SparkSource(IngestedSource):
    """A source whose rows stay on executors; ``table`` brings them to the driver."""

    __slots__ = ("ordered", "spool", "year_months")

    def __init__(
        self,
        spool: Spool,
        *,
        origin: str,
        ordered: bool = False,
        year_months: Mapping[str, Any] | None = None,
    ) -> None:
        """``ordered`` where the rows have an order, so that one of them is the last.

        ``year_months`` are columns that have such intervals in Spark, and come as numbers of months.
        """
        super().__init__(pa.Table.from_batches([], spool.schema), origin=origin)
        self.spool = spool
        self.ordered = ordered
        self.year_months = year_months or {}
        self.rows = spool.rows

    @property
    def table(self) -> pa.Table:
        return self.spool.read()

    def close(self) -> None:
        super().close()
        self.spool.remove()
        pa.default_memory_pool().release_unused()


SpoolLocation = tuple[pafs.FileSystem, str, str]
"""Room beside a dataset: on which file system, in which directory, of which dataset."""


def find_spool_location(snapshot: Snapshot) -> SpoolLocation | None:
    """A place next to the files, which all of Spark can reach."""
    if not snapshot.files:
        return None
    file = snapshot.files[0]
    if not snapshot.replaces_in_place:  # whose files may lie anywhere; what is hidden is nobody's data
        directory = file.location.rpartition("/")[0]
        return snapshot.filesystem, f"{directory}/.intarsia/spools", directory
    root = file.location.removesuffix(f"/{file.path}")
    parent, _, name = root.rpartition("/")
    return snapshot.filesystem, f"{parent}/.{name}.intarsia/spools", root


def create_spool(spark: Any, shared: SpoolLocation | None, asked: str | None) -> Spool:
    """An empty spool: where it was asked for, on this machine where all of Spark is, else beside the table.

    What dead drivers have left there is swept first. Raises StorageError.
    """
    dataset: str | None = None
    parents: tuple[str, ...] = ()
    if asked is not None:
        filesystem, parent = _open_directory(os.fspath(asked))
    elif shared is None or _is_local(spark):
        filesystem, parent = pafs.LocalFileSystem(), make_private_base()
    else:
        filesystem, parent, dataset = shared
        parents = _find_parents(filesystem, parent)
    return _make_spool(filesystem, parent, dataset, parents=parents)


def create_shared_spool(shared: SpoolLocation, asked: str | None, name: str) -> Spool:
    """An empty spool where it was asked for, else beside the table; other processes may take it over.

    Its mark is a lease, since none of them stays to the end. ``name`` is 32 hexadecimal digits.
    """
    if asked is not None:
        filesystem, parent = _open_directory(os.fspath(asked))
        return _make_spool(filesystem, parent, None, name=name, make_mark=make_lease)
    filesystem, parent, dataset = shared
    parents = _find_parents(filesystem, parent)
    if len(parents) == 1:  # the control directory may have been made for this spool, by another process
        parents = (*parents, os.path.dirname(parent))
    return _make_spool(filesystem, parent, dataset, parents=parents, name=name, make_mark=make_lease)


def _make_spool(
    filesystem: pafs.FileSystem,
    parent: str,
    dataset: str | None,
    *,
    parents: tuple[str, ...] = (),
    name: str = "",
    make_mark: Callable[[pafs.FileSystem, str], Mark] = mark,
) -> Spool:
    sweep(filesystem, parent)
    directory = f"{parent.rstrip('/')}/{name or uuid.uuid4().hex}"
    alive = make_mark(filesystem, directory)
    place = Spool(filesystem, directory, alive, pa.schema([]), parents=parents)
    try:
        filesystem.create_dir(directory, recursive=True)
        if dataset is not None and isinstance(filesystem, pafs.LocalFileSystem) and os.path.isdir(dataset):
            os.chmod(directory, stat.S_IMODE(os.stat(dataset).st_mode))  # as private as the data
    except OSError as error:
        place.remove()
        raise write_error(error, "create", directory) from error
    return place


def _find_parents(filesystem: pafs.FileSystem, spools: str) -> tuple[str, ...]:
    """The directory for spools, and those above it that have to be made, from the control directory on."""
    if not isinstance(filesystem, pafs.LocalFileSystem):
        return ()
    found, above = [spools], os.path.dirname(spools)
    while not os.path.isdir(above):
        found.append(above)
        above = os.path.dirname(above)
    return tuple(found)


def _open_directory(where: str) -> tuple[pafs.FileSystem, str]:
    if "://" not in where:
        return pafs.LocalFileSystem(), to_slashes(os.path.abspath(where))
    try:
        filesystem, path = pafs.FileSystem.from_uri(with_time_limit(where))
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"spool_dir= {redact(where)} cannot be opened: {error}",
            hint="name a directory, or a URL of a file system that pyarrow knows.",
        ) from error
    return filesystem, path


def _is_local(spark: Any) -> bool:
    """Whether executors are in this process's own JVM; behind Spark Connect they are anywhere."""
    local = str(spark.conf.get("spark.master", "")).startswith("local")
    return local and not type(spark).__module__.startswith("pyspark.sql.connect")


def open_spool_writer(location: str, schema: pa.Schema, filesystem: pafs.FileSystem) -> pq.ParquetWriter:
    """For rows that are read once or twice, soon: quick rather than small."""
    return pq.ParquetWriter(
        location,
        schema,
        filesystem=filesystem,
        compression="lz4",
        use_dictionary=False,
        write_statistics=False,
    )


GROUP_BYTES = 16 << 20
"""In memory; so much becomes a row group."""
PART_BYTES = 64 << 20
"""In memory; so much of a source of ours becomes one file of its spool."""


def spool_table(table: pa.Table, place: Spool, *, tasks: int) -> Spool:
    """Write rows that this process has, in their order, for executors to go on with.

    Memory: what is being encoded. Raises SchemaMismatch for a type that no Parquet file can hold.
    """
    count = max(1, min(table.num_rows, max(tasks, table.nbytes // PART_BYTES)))
    edges = [table.num_rows * number // count for number in range(count + 1)]

    def write_part(number: int) -> SpoolPart:
        piece = table.slice(edges[number], edges[number + 1] - edges[number])
        location = f"{place.directory}/{number:06d}.parquet"
        with open_spool_writer(location, piece.schema, place.filesystem) as writer:
            writer.write_table(piece)
        return SpoolPart(location, piece.num_rows, piece.nbytes, tuple(c.nbytes for c in piece.columns))

    try:
        with ThreadPoolExecutor(min(4, count), "intarsia-spool") as pool:
            parts = tuple(pool.map(write_part, range(count)))
    except OSError as error:
        raise write_error(error, "write to", place.directory) from error
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise SchemaMismatch(
            f"The source cannot be written as Parquet: {error}",
            hint='cast its columns to types that Parquet has, or use engine="arrow".',
        ) from error
    return replace(place, schema=table.schema, parts=parts)


def spool_dataframe(
    runner: TaskRunner,
    frame: Any,
    place: Spool,
    *,
    utc_for: pa.Schema | None = None,
    target: Callable[[], Snapshot] | None = None,
) -> Spool:
    """Write a DataFrame's rows, evaluating it once; only files of attempts that succeeded count.

    Timestamps without a zone are taken for UTC with the target's columns in ``utc_for``. Intervals are
    numbers where the ``target``, which is asked for only then, stores them so.
    """
    note = make_spark_note(frame.schema)
    frame = cast_to_months(frame)
    schema = tidy_schema(_read_arrow_schema(frame))
    schema = pa.schema([field.with_type(relax(field.type)) for field in schema], schema.metadata)
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise SchemaMismatch(
            f"The source DataFrame has more than one column {', '.join(map(repr, twice))}.",
            hint="rename or drop the others",
        )
    zoned = schema if utc_for is None else to_utc_schema(schema, utc_for)
    if note and target is not None:
        zoned = to_stored_schema(zoned, target())
    writing = PartWriter(place.filesystem, place.directory, schema, None if zoned.equals(schema) else zoned)
    plain = frame.toDF(*name_columns(len(schema)))
    parts = [part for part in runner.run_over(plain, writing.write_parts) if part.rows]
    if note:
        zoned = zoned.with_metadata({**(zoned.metadata or {}), **note})
    return replace(place, schema=zoned, parts=tuple(sorted(parts, key=lambda part: part.location)))


def relax(kind: pa.DataType) -> pa.DataType:
    """A nested type whose fields may be NULL, as they are in a struct that is NULL.

    Times are microseconds, as Spark writes them: it reads no files with nanoseconds, which ``toArrow`` gives.
    """
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(relax(field.type)).with_nullable(True) for field in kind.fields])
    if pa.types.is_map(kind):
        return pa.map_(relax(kind.key_type), relax(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(relax(kind.value_type)).with_nullable(True))
    return kind


def _read_arrow_schema(frame: Any) -> pa.Schema:
    """The Arrow types that ``frame.toArrow()`` would give, without a job."""
    large = frame.sparkSession.conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false")
    return to_arrow_schema(
        frame.schema,
        error_on_duplicated_field_names_in_struct=True,
        prefers_large_types=str(large).lower() == "true",
    )


@dataclass(frozen=True, slots=True)
class PartWriter:
    """Writes what a task is given as one Parquet file, whose name sorts as the DataFrame's partitions do."""

    filesystem: pafs.FileSystem
    directory: str
    schema: pa.Schema | None = None
    """What the rows are brought to; None writes them as they come."""
    zoned: pa.Schema | None = None
    """The same with the zones that timestamps are taken for."""

    def write_parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[SpoolPart]:
        """Runs on an executor; memory: a row group."""
        location = f"{self.directory}/{_get_partition_number():06d}-{uuid.uuid4().hex}.parquet"
        rows = held = 0
        sizes: list[int] = []
        waiting: list[pa.RecordBatch] = []
        writer: pq.ParquetWriter | None = None
        try:
            for batch in batches:
                schema = self.zoned or self.schema or batch.schema
                if writer is None:
                    writer = open_spool_writer(location, schema, self.filesystem)
                    sizes = [0] * len(schema)
                for piece in tidy(batch, self.schema or batch.schema):
                    piece = piece if self.zoned is None else with_zones(piece, self.zoned)
                    waiting.append(piece)
                    rows += piece.num_rows
                    sizes = [size + one.nbytes for size, one in zip(sizes, piece.columns, strict=True)]
                    held += piece.nbytes
                if held >= GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(waiting, schema))
                    waiting, held = [], 0
            if writer is not None and waiting:
                writer.write_table(pa.Table.from_batches(waiting))
        finally:
            if writer is not None:
                writer.close()
        if writer is not None:
            yield SpoolPart(location, rows, sum(sizes), tuple(sizes))


def _get_partition_number() -> int:
    """The partition that a task has of its DataFrame, by which parts have the order of rows."""
    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def check_exists(spool: Spool) -> None:
    """Raise StorageError where the storage that executors wrote to is not the driver's."""
    for part in spool.parts[:1]:
        if spool.filesystem.get_file_info(part.location).type == pafs.FileType.NotFound:
            raise make_unreachable_error(
                part.location, f"Executors wrote {part.location}, but the driver does not see it."
            )
