"""The partitions of a Dagster asset as a condition on the rows of its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time
from functools import reduce
from typing import Any

import dagster as dg
import pyarrow as pa

from intarsia.common.names import suggest_names
from intarsia.core.expr import FALSE, And, Column, Compare, Expr, In, Or, make_literal
from intarsia.errors import ColumnNotFound, InputError

__all__ = ["choose_directories", "make_condition"]

PartitionColumns = str | Mapping[str, str]
"""``partition_expr``: the column of the partitions, or by dimension."""


def make_condition(
    context: dg.InputContext | dg.OutputContext, columns: PartitionColumns | None, schema: pa.Schema
) -> Expr | None:
    """The condition that is TRUE for the rows of the partitions at hand; None where all rows are meant.

    Raises:
        ColumnNotFound: ``partition_expr`` names a column that is not there.
        InputError: the keys, or windows, of the partitions are no values of the column.
    """
    if columns is None or not context.has_asset_partitions:
        return None
    definition, keys = context.asset_partitions_def, list(context.asset_partition_keys)
    if not keys:
        return FALSE
    if not isinstance(definition, dg.MultiPartitionsDefinition):
        if not isinstance(columns, str):
            raise InputError("partition_expr is one column, for the asset has one dimension of partitions.")
        return _select_keys(columns, definition, keys, schema)
    if isinstance(columns, str) or set(columns) != set(definition.partition_dimension_names):
        names = ", ".join(definition.partition_dimension_names)
        raise InputError(f"partition_expr is a dict with a column for each of the dimensions {names}.")
    dimensions = {part.name: part.partitions_def for part in definition.partitions_defs}
    chosen = []
    for key in keys:
        by_dimension = definition.get_partition_key_from_str(key).keys_by_dimension
        parts = [
            _select_keys(columns[name], dimensions[name], [one], schema) for name, one in by_dimension.items()
        ]
        chosen.append(reduce(And, parts))
    return reduce(Or, chosen)


def choose_directories(columns: PartitionColumns | None, schema: pa.Schema) -> tuple[str, ...] | None:
    """The columns whose values become directories of a new dataset: those of the partitions, but no times.

    None where no column would be left in the files.
    """
    named = () if columns is None else (columns,) if isinstance(columns, str) else tuple(columns.values())
    kept = [name for name in named if not pa.types.is_timestamp(_find_type(name, schema))]
    return tuple(kept) if kept and len(kept) < len(schema) else None


def _select_keys(
    column: str, definition: dg.PartitionsDefinition[Any], keys: Sequence[str], schema: pa.Schema
) -> Expr:
    data_type, place = _find_type(column, schema), Column((column,), exact=True)
    if pa.types.is_temporal(data_type) and isinstance(definition, dg.TimeWindowPartitionsDefinition):
        windows = [definition.time_window_for_partition_key(key) for key in keys]
        parts: list[Expr] = [
            And(
                Compare(">=", place, make_literal(_convert_time(start, data_type, column))),
                Compare("<", place, make_literal(_convert_time(end, data_type, column))),
            )
            for start, end in _join_windows(windows)
        ]
        return reduce(Or, parts)
    try:
        return In(place, tuple(map(make_literal, pa.array(keys, pa.string()).cast(data_type))))
    except pa.ArrowException as error:
        raise InputError(
            f"the partitions {', '.join(keys[:3])} are no values of {column!r}, which is {data_type}."
        ) from error


def _join_windows(windows: Sequence[dg.TimeWindow]) -> list[tuple[datetime, datetime]]:
    """Windows that follow one another as one."""
    joined: list[tuple[datetime, datetime]] = []
    for window in sorted(windows, key=lambda one: one.start):
        if joined and window.start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], window.end))
        else:
            joined.append((window.start, window.end))
    return joined


def _convert_time(instant: datetime, data_type: pa.DataType, column: str) -> pa.Scalar:
    """The end of a window as a value of the column; without a zone, the clock's of the partitions' zone."""
    if pa.types.is_timestamp(data_type):
        return pa.scalar(instant if data_type.tz else instant.replace(tzinfo=None), data_type)
    if pa.types.is_date(data_type) and instant.time() == time.min:
        return pa.scalar(instant.date(), data_type)
    raise InputError(
        f"partitions begin at {instant}, and {column!r} is {data_type}.",
        hint="partition_expr names a column of times." if pa.types.is_date(data_type) else None,
    )


def _find_type(column: str, schema: pa.Schema) -> pa.DataType:
    if column not in schema.names:
        raise ColumnNotFound(
            f"partition_expr: there is no column {column!r}.", hint=suggest_names([column], schema.names)
        )
    return schema.field(column).type
