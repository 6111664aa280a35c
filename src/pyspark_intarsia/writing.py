"""DataFrames and streams written by Spark's data source API: tasks stage rows, the driver commits them once.

The commit runs in a Python process of the driver that has no Spark session, so it runs on PyArrow or DuckDB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import NullType, StructType, YearMonthIntervalType

from intarsia.common.log import get_logger
from intarsia.common.names import join_names
from intarsia.engines.spark.source import relax
from intarsia.engines.spark.types import has_type, make_spark_note
from intarsia.errors import InputError, NotSupported, SchemaMismatch
from intarsia.options import TABLE_OPTIONS
from intarsia.request import make_request
from intarsia.show import units
from intarsia.storage import open_storage
from pyspark_intarsia.errors import shorten_errors
from pyspark_intarsia.options import WriteCall, parse_write_options
from pyspark_intarsia.staging import StagedRows, StagingArea, create_staging, make_stream_directory

__all__ = ["StreamWriter", "TableWriter", "open_stream_writer", "open_writer"]

log = get_logger(__name__)

_CHECKPOINT = "checkpointlocation"
Messages = Sequence[WriterCommitMessage | None]


def open_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> TableWriter:
    """A writer of one DataFrame.

    Raises what a merge or write of no rows with these columns raises; nothing was computed or written then.
    """
    call = parse_write_options(options, overwrite=overwrite)
    _check_schema(schema)
    empty = _make_empty(schema)
    call.run(empty, dry_run=True, measured_bytes=0)
    return TableWriter(_Write(call, _open_staging(call, empty.schema)))


def open_stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StreamWriter:
    """A writer of one micro-batch. Spark makes one for its tasks, and another for its commit."""
    call = parse_write_options(options, overwrite=overwrite)
    if "batch_id" in call.arguments:
        raise InputError("the option batch_id is not for streams, whose batches Spark counts.")
    app_id = call.arguments.get("app_id") or _read_query_id(options)
    call = replace(call, arguments={**call.arguments, "app_id": app_id})
    _check_schema(schema)
    branch = call.arguments.get("branch") or ""
    name = make_stream_directory(app_id, call.path, call.catalog or "", branch)
    return StreamWriter(_Write(call, _open_staging(call, _make_empty(schema).schema, name=name)))


def _read_query_id(options: Mapping[str, str]) -> str:
    """The id of a query from its checkpoint, which has it as long as it lives."""
    hint = (
        'pass option("app_id", ...), a name of your own that stays the same when the query is started again.'
    )
    place = options.get(_CHECKPOINT)
    if place is None:
        raise InputError("a stream needs the option app_id or checkpointLocation.", hint=hint)
    try:
        storage, path = open_storage(place.replace("file:/", "/") if place.startswith("file:/") else place)
        with storage.filesystem.open_input_stream(f"{path}/metadata") as file:
            return str(json.loads(file.read())["id"])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"the id of the query cannot be read from its checkpoint {place}: {error}.", hint=hint
        ) from error


def _open_staging(call: WriteCall, schema: pa.Schema, *, name: str = "") -> StagingArea:
    known = {name: call.arguments[name] for name in TABLE_OPTIONS if name in call.arguments}
    table: Any = make_request("snapshot", "auto", call.open_target(), _select_address(known)).table
    return create_staging(table.workspace, schema, spool_dir=call.spool_dir, name=name)


def _select_address(known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: known[name] for name in ("storage_options", "control_path") if name in known}


def _make_empty(schema: StructType) -> pa.Table:
    """A table of no rows that has the columns of a DataFrame, and says what Parquet cannot of their types."""
    fields = [pa.field(one.name, relax(one.type)) for one in to_arrow_schema(schema)]
    return pa.schema(fields, make_spark_note(schema) or None).empty_table()


def _check_schema(schema: StructType) -> None:
    """Raise for columns of types that do not come through Arrow, or that no file holds."""
    months = [one.name for one in schema.fields if has_type(one.dataType, YearMonthIntervalType)]
    if months:
        raise NotSupported(
            f"{join_names(months)} has year-month intervals, which Spark 4.1 hands to no Python writer.",
            hint="cast them to numbers of months, such as cast(cast(c as interval month) as int), or use"
            " intarsia.merge(df, target, on=...).",
        )
    void = [one.name for one in schema.fields if has_type(one.dataType, NullType)]
    if void:
        raise SchemaMismatch(
            f"{join_names(void)} is void in the source.", hint="give it a type, such as cast(null as string)."
        )


@dataclass(frozen=True, slots=True)
class _Write:
    """One write: what both kinds of writers do."""

    call: WriteCall
    staging: StagingArea

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedRows:
        return self.staging.write(batches, self.call.max_bytes)

    def commit(self, messages: Messages, **more: Any) -> None:
        """Merge or write what was staged, once; the staged files are gone afterwards."""
        with ExitStack() as stack:
            stack.callback(self.staging.remove)
            source = self.staging.open(messages)
            if source.size > self.call.max_bytes or not source.is_complete:
                raise self._refuse_size(source.size)
            result = self.call.run(source.make_reader(stack), **more)
            log.info("format intarsia %s: %s", self.call.path, dict(result))

    def _refuse_size(self, size: int) -> NotSupported:
        most = units.format_size(self.call.max_bytes)
        named = "intarsia.merge(df, target, on=...)" if self.call.merges else "intarsia.write(df, target)"
        return NotSupported(
            f"{units.format_size(size)} of rows or more, and the driver commits at most {most} (max_bytes).",
            path=self.call.path,
            hint=f"{named} does the same on executors, of any size; or raise the option max_bytes.",
        )


class TableWriter(DataSourceArrowWriter):
    """Writes a DataFrame in one commit."""

    def __init__(self, write: _Write) -> None:
        self._write = write

    @shorten_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task; runs on an executor."""
        return self._write.stage(iterator)

    @shorten_errors
    def commit(self, messages: Messages) -> None:
        """Merge or write the staged rows; runs on the driver when every task has succeeded."""
        self._write.commit(messages)

    @shorten_errors
    def abort(self, messages: Messages) -> None:
        """Remove the staged rows; the table is as it was, unless the commit itself was done."""
        self._write.staging.remove()


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a micro-batch in one commit that records its number, so that it is written once."""

    def __init__(self, write: _Write) -> None:
        self._write = write

    @shorten_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task; runs on an executor."""
        return self._write.stage(iterator)

    @shorten_errors
    def commit(self, messages: Messages, batchId: int) -> None:
        """Merge or write the staged rows, unless the table has this batch already."""
        self._write.commit(messages, batch_id=batchId)

    @shorten_errors
    def abort(self, messages: Messages, batchId: int) -> None:
        """Remove the staged rows of the batch, which Spark may repeat."""
        self._write.staging.remove()
