"""Tables read by Spark's data source API: the state is pinned when a query is planned, executors read it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from intarsia.core.expr import And
from intarsia.core.intent import Predicate
from intarsia.engines.spark.tasks import balance, deserialize, serialize
from intarsia.errors import NotSupported, SchemaMismatch
from intarsia.frames import make_readable_type, read_file, split_files, weigh_item
from intarsia.kernel.read import SnapshotScan
from intarsia.request import make_request
from pyspark_intarsia.errors import shorten_errors, shorten_errors_of_rows
from pyspark_intarsia.filters import convert_filters
from pyspark_intarsia.options import ReadCall, parse_read_options

__all__ = ["PinnedReader", "infer_schema", "open_reader"]

PARTITION_BYTES = 32 << 20
"""About how much one task reads, where files are many."""
_SINCE = "the query was planned"


def infer_schema(options: Mapping[str, str]) -> StructType:
    """The columns of the table in Spark's types. Raises NotSupported for a type that Spark has not."""
    call = parse_read_options(options)
    return _show_schema(_make_scan(call, call.columns))


def open_reader(options: Mapping[str, str], schema: StructType) -> PinnedReader:
    """A reader of the table's current state; ``schema`` may name some of its columns."""
    call = parse_read_options(options)
    scan = _make_scan(call, tuple(schema.names))
    _check_types(schema, _show_schema(scan), path=scan.snapshot.root)
    return PinnedReader(scan, call.tasks)


def _make_scan(call: ReadCall, columns: tuple[str, ...]) -> SnapshotScan:
    request = make_request("read", "arrow", call.target, call.options, sql=(call.where,))
    return request.make_scan(columns, call.where)


def _show_schema(scan: SnapshotScan) -> StructType:
    fields: list[StructField] = []
    for one in scan.schema:
        try:
            shown = make_readable_type(one.type, pa.int64())
            fields += from_arrow_schema(pa.schema([(one.name, shown)]), prefer_timestamp_ntz=True).fields
        except (NotSupported, PySparkException) as error:
            raise NotSupported(
                f"Spark has no type for the column {one.name!r}, which is {one.type}.",
                path=scan.snapshot.root,
                hint='name the other columns: option("columns", ...).',
            ) from error
    return StructType(fields)


def _check_types(asked: StructType, found: StructType, *, path: str) -> None:
    """Raise SchemaMismatch where a query was made for other types than the table has."""
    for mine, theirs in zip(asked.fields, found.fields, strict=True):
        if (
            mine.dataType != theirs.dataType
            and mine.dataType.simpleString() != theirs.dataType.simpleString()
        ):
            raise SchemaMismatch(
                f"the column {mine.name!r} is {theirs.dataType.simpleString()} in the table, and the query"
                f" takes it for {mine.dataType.simpleString()}.",
                path=path,
                hint="load the table again, without a schema of your own; cast its columns afterwards.",
            )


@dataclass(frozen=True, slots=True)
class _Pushed:
    """``pushFilters`` of a reader.

    A reader whose class has that method is refused by Spark unless the session has
    ``spark.sql.python.filterPushdown.enabled``; Spark asks by ``__func__``. This one works with and without.
    """

    reader: PinnedReader
    __func__: Any = DataSourceReader.pushFilters

    @shorten_errors
    def __call__(self, filters: Sequence[Filter]) -> list[Filter]:
        self.reader.take_filters(filters)
        return list(filters)


class PinnedReader(DataSourceReader):
    """Reads one state of a table: the files and row groups that may have rows for the filters."""

    def __init__(self, scan: SnapshotScan, tasks: int) -> None:
        self._scan = scan
        self._tasks = tasks

    def __getstate__(self) -> dict[str, Any]:
        """Without the list of files, of which each task gets its own by :meth:`partitions`."""
        snapshot = self._scan.snapshot.with_files()
        return {"_scan": replace(self._scan, snapshot=snapshot), "_tasks": self._tasks}

    @property
    def pushFilters(self) -> Callable[[Sequence[Filter]], list[Filter]]:
        """Prunes by the filters, and claims none: Spark applies all of them to the rows that are left."""
        return _Pushed(self)

    def take_filters(self, filters: Sequence[Filter]) -> None:
        """Leave out rows for which one of the filters cannot be TRUE."""
        more = convert_filters(filters, self._scan.snapshot.schema)
        where: Predicate = self._scan.where
        if more is not None:
            # The option where= is SQL text, never an expression of Arrow, so the two combine.
            self._scan = replace(self._scan, where=more if where is None else And(where, more))

    @shorten_errors
    def partitions(self) -> Sequence[InputPartition]:
        """Shares of files and row groups, of about equal size."""
        items = split_files(self._scan.list_files())
        weights = [weigh_item(item) for item in items]
        wanted = self._tasks or max(2 * (os.cpu_count() or 1), sum(weights) // PARTITION_BYTES)
        shares = balance(weights, wanted) if items else []
        return [InputPartition(serialize([items[number] for number in share])) for share in shares]

    @shorten_errors_of_rows
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of a share as Arrow batches, none of no share; memory: a piece of one file."""
        scan = self._scan
        exact, sent = (
            pa.schema([(one.name, make_readable_type(one.type, time)) for one in scan.schema])
            for time in (pa.time64("us"), pa.int64())
        )
        for item in () if partition is None else deserialize(partition.value):
            yield from read_file(scan, item, exact, sent, _SINCE)
