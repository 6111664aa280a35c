"""Rows judged by expectations: those that pass, and those that do not with the reason; as Arrow or on Spark.

A row passes or it does not: both sides are computed by the same judge, of conditions and of sets of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.rows import filter_rows
from intarsia.core.evaluate import evaluate_mask
from intarsia.core.expr import Expr
from intarsia.pipeline.quality.references import choose_key_type, level_floats, quote_name

REASON = "__intarsia_reason"
"""The column that says which expectations a row violates; a name that no source has."""
SEPARATOR = "; "


@dataclass(frozen=True, slots=True)
class BadKeys:
    """The keys whose rows all violate an expectation, each with its number of rows."""

    expectation: str
    columns: tuple[str, ...]
    keys: Any
    """An Arrow table, or a DataFrame; the key columns, and ``ROWS``."""
    failing: int
    """How many rows have one of the keys."""


@dataclass(frozen=True, slots=True)
class RowJudge:
    """Expectations on single rows, and the keys whose rows violate the others."""

    conditions: tuple[tuple[str, Expr], ...]
    """The text of each expectation, and a condition that is TRUE for a row that violates it."""
    keys: tuple[BadKeys, ...] = field(default=())

    # Arrow

    def pass_streams(self, streams: list[pa.RecordBatchReader]) -> list[pa.RecordBatchReader]:
        """The rows that violate nothing."""
        return [_map_stream(one, one.schema, self._select_passing) for one in streams]

    def reject_streams(self, streams: list[pa.RecordBatchReader]) -> list[pa.RecordBatchReader]:
        """The rows that violate something, with the reason as last column."""
        return [
            _map_stream(one, one.schema.append(pa.field(REASON, pa.string())), self._select_failing)
            for one in streams
        ]

    def _find_violations(self, batch: pa.RecordBatch) -> list[tuple[str, pa.BooleanArray]]:
        found = [(text, evaluate_mask(condition, batch)) for text, condition in self.conditions]
        return found + [(one.expectation, find_members(batch, one)) for one in self.keys]

    def _select_passing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        masks = [mask for _, mask in self._find_violations(batch)]
        return filter_rows(batch, pc.invert(reduce(pc.or_, masks))) if masks else batch

    def _select_failing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        marked = self.add_reasons(batch)
        return filter_rows(marked, pc.is_valid(marked.column(marked.num_columns - 1)))

    def add_reasons(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the reason as last column, which is NULL where a row violates nothing."""
        found = self._find_violations(batch)
        nothing = pa.nulls(batch.num_rows, pa.string())
        if not found:
            return batch.append_column(REASON, nothing)
        # Each text with its separator: of rows without any, null_handling="skip" gives no element at all.
        texts = [pc.if_else(mask, f"{text}{SEPARATOR}", "") for text, mask in found]
        joined = pc.binary_join_element_wise(*texts, "")
        reasons = pc.utf8_slice_codeunits(joined, 0, -len(SEPARATOR))
        bad = reduce(pc.or_, [mask for _, mask in found])
        return batch.append_column(REASON, pc.if_else(bad, reasons, nothing))

    # Spark

    def mark_frame(self, frame: Any) -> Any:
        """A DataFrame with the reason as last column, which is NULL where a row violates nothing."""
        from pyspark.sql import functions, types

        rows = RowJudge(self.conditions)

        def mark_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield rows.add_reasons(batch)

        schema = types.StructType([*frame.schema.fields, types.StructField(REASON, types.StringType())])
        marked = frame.mapInArrow(mark_rows, schema)
        for number, one in enumerate(self.keys):
            names = [f"__bad{number}_{at}" for at in range(len(one.columns))]
            bad = one.keys.select(
                *[
                    functions.col(quote_name(column)).alias(name)
                    for column, name in zip(one.columns, names, strict=True)
                ],
                functions.lit(one.expectation).alias(f"__bad{number}"),
            )
            same = [
                marked[quote_name(column)].eqNullSafe(bad[name])
                for column, name in zip(one.columns, names, strict=True)
            ]
            both = marked.join(bad, same, "left")
            joined = functions.concat_ws(SEPARATOR, both[REASON], both[f"__bad{number}"])
            reason = functions.when(joined != "", joined)
            columns = [functions.col(quote_name(name)) for name in frame.columns]
            marked = both.select(*columns, reason.alias(REASON))
        return marked

    def pass_frame(self, frame: Any) -> Any:
        """The rows of a DataFrame that violate nothing."""
        marked = self.mark_frame(frame)
        return marked.where(marked[REASON].isNull()).drop(REASON)

    def reject_frame(self, frame: Any) -> Any:
        """The rows of a DataFrame that violate something, with the reason as last column."""
        marked = self.mark_frame(frame)
        return marked.where(marked[REASON].isNotNull())

    # Both

    def pass_rows(self, rows: Any) -> Any:
        return self.pass_streams(rows) if isinstance(rows, list) else self.pass_frame(rows)

    def reject_rows(self, rows: Any) -> Any:
        return self.reject_streams(rows) if isinstance(rows, list) else self.reject_frame(rows)

    def count_rejected(self, rows: Any) -> int:
        """How many rows violate something; each counts once."""
        if isinstance(rows, list):
            return sum(batch.num_rows for stream in self.reject_streams(rows) for batch in stream)
        from intarsia.spark.collect import run_interruptible

        return int(run_interruptible(rows.sparkSession, self.reject_frame(rows).count))


def _map_stream(
    stream: pa.RecordBatchReader,
    schema: pa.Schema,
    change: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> pa.RecordBatchReader:
    def read() -> Iterator[pa.RecordBatch]:
        for batch in stream:
            changed = change(batch)
            if changed.num_rows:
                yield changed.cast(schema)

    return pa.RecordBatchReader.from_batches(schema, read())


_ROW, _BAD = "__row", "__bad"


def find_members(batch: pa.RecordBatch, bad: BadKeys) -> pa.BooleanArray:
    """Which rows have one of the keys; NULLs are equal."""
    if not bad.keys.num_rows or not batch.num_rows:
        return pa.repeat(pa.scalar(False), batch.num_rows)
    names = [f"k{number}" for number in range(len(bad.columns))]
    own = pa.table([_decode(batch.column(name)) for name in bad.columns], names=names)
    own = own.append_column(_ROW, pa.arange(0, batch.num_rows))
    own = own.append_column(_BAD, pa.repeat(0, batch.num_rows))
    keys = pa.table([_decode(bad.keys.column(name)) for name in bad.columns], names=names)
    keys = keys.append_column(_ROW, pa.nulls(keys.num_rows, pa.int64()))
    keys = keys.append_column(_BAD, pa.repeat(1, keys.num_rows))
    whole = pa.concat_tables(map(level_floats, (own, keys)), promote_options="permissive")
    groups = whole.group_by(names).aggregate([(_ROW, "list"), (_BAD, "max")])
    members = groups.filter(pc.equal(groups[f"{_BAD}_max"], 1))[f"{_ROW}_list"]
    rows = pc.drop_null(pc.list_flatten(members))
    return pc.is_in(pa.arange(0, batch.num_rows), value_set=rows.combine_chunks())


def _decode(column: Any) -> Any:
    plain = choose_key_type(column.type)
    return column if column.type == plain else column.cast(plain)
