"""Polars: frames are merged and written by ``df.intarsia``, and :func:`scan` gives a table as a LazyFrame."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from intarsia import reading
from intarsia.core.validation import check_exists
from intarsia.errors import NotSupported, SchemaMismatch
from intarsia.integrations.frames import FrameMethods
from intarsia.integrations.polars_predicate import translate_predicate
from intarsia.options import InspectOptions, TableTarget
from intarsia.request import show_target

__all__ = ["DataFrameNamespace", "LazyFrameNamespace", "open_reader", "scan"]


def scan(
    target: TableTarget, *, threads: int | None = None, **options: Unpack[InspectOptions]
) -> pl.LazyFrame:
    """Scan a dataset or an Iceberg table as a LazyFrame of Polars; rows are read when it is collected.

    Each scan of a query reads one consistent state, that of when it is collected; deletes of an Iceberg
    table are applied. Only the columns that the query needs are read. Its filters prune files and row groups
    where they compare a column with a value, and Polars applies them to what is read. Memory: a row group
    per thread, and what the query holds.

    Args:
        target: as in :func:`merge`.
        threads: for files; cores without it.
        options: see :class:`intarsia.options.InspectOptions`.

    Raises:
        NothingMatched: there is no such dataset.
        NotSupported: Polars is not installed, or lacks the type of a column.
        InputError: an option that can have no effect.
        SchemaMismatch: when collected, the columns are no longer those that were scanned.

    Example:
        >>> import intarsia as it, polars as pl
        >>> it.scan("lake/orders").filter(pl.col("id") < 2).select("n").collect().to_series().to_list()
        ['a']
    """
    found = reading.snapshot(target, **options)
    check_exists(found, "scan")
    scanned = found.schema

    def read_frames(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        wanted = scanned.names if columns is None else columns
        needed = [*wanted, *(() if predicate is None else predicate.meta.root_names())]
        reader = reading.read(
            target,
            columns=list(dict.fromkeys(needed)) or scanned.names[:1],  # a query may want to count alone
            where=None if predicate is None else translate_predicate(predicate, scanned),
            threads=threads,
            **options,
        )
        _check_schema(reader.schema, scanned, target)
        left = rows
        with reader:
            for batch in reader:
                frame = pl.DataFrame(batch)
                frame = frame if predicate is None else frame.filter(predicate)
                frame = frame if left is None else frame.head(left)
                yield frame.select(wanted) if wanted else pl.DataFrame(height=frame.height)
                left = None if left is None else left - frame.height
                if left == 0:
                    return

    return register_io_source(
        read_frames,
        schema=_to_polars_schema(scanned),
        validate_schema=True,
        is_pure=True,
        explain_name="intarsia",
        explain_detail=show_target(target),
    )


def _check_schema(now: pa.Schema, scanned: pa.Schema, target: TableTarget) -> None:
    other = [field.name for field in now if not field.equals(scanned.field(field.name))]
    if other:
        raise SchemaMismatch(
            f"{', '.join(map(repr, other))} had another type when the table was scanned.",
            path=show_target(target),
            hint="scan it again.",
        )


def _to_polars_schema(schema: pa.Schema) -> pl.Schema:
    found: dict[str, pl.DataType] = {}
    for field in schema:
        try:
            found |= pl.DataFrame(pa.schema([field]).empty_table()).schema
        except pl.exceptions.PolarsError as error:
            raise NotSupported(
                f"Polars has no type for the column {field.name!r}, which is {field.type}.",
                hint="read the other columns: pl.from_arrow(intarsia.read(target, columns=[...])).",
            ) from error
    return pl.Schema(found)


@pl.api.register_dataframe_namespace("intarsia")
class DataFrameNamespace(FrameMethods):
    """What ``df.intarsia`` has: a DataFrame as the source of a merge or a write.

    Example:
        >>> import polars as pl, intarsia.integrations.polars
        >>> changes = pl.DataFrame({"id": [2, 3], "n": ["b2", "c"]})
        >>> changes.intarsia.merge_into("lake/orders", on="id").updated
        1
    """


@pl.api.register_lazyframe_namespace("intarsia")
class LazyFrameNamespace(FrameMethods):
    """What ``lf.intarsia`` has: a query as the source of a merge or a write.

    It is evaluated once, in batches, before anything is written.

    Example:
        >>> import polars as pl, intarsia.integrations.polars
        >>> changes = pl.scan_csv("changes.csv").filter(pl.col("id") > 0)
        >>> changes.intarsia.merge_into("lake/orders", on="id").inserted
        1
    """

    def _open_source(self) -> pa.RecordBatchReader:
        return open_reader(self._frame)


def open_reader(frame: pl.LazyFrame) -> pa.RecordBatchReader:
    """The rows of a query as a stream; it runs while the stream is read."""
    schema = frame.collect_schema().to_frame().to_arrow().schema
    batches = (
        batch
        for chunk in frame.collect_batches(lazy=True)
        for batch in chunk.to_arrow().cast(schema).to_batches()
    )
    return pa.RecordBatchReader.from_batches(schema, batches)
