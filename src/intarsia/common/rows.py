"""Rows of tables without needless copies: taken by number, in few chunks, in types every kernel knows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.exact import cast_exact
from intarsia.common.python_values import make_array, make_scalar
from intarsia.common.types import is_nested

__all__ = ["combine", "filter_rows", "take", "take_rows", "tidy", "tidy_schema", "tidy_table"]

_PARALLEL_BYTES = 64 << 20
"""Minimum bytes of a table whose columns are combined in parallel."""


def combine(table: pa.Table) -> pa.Table:
    """The table in as few chunks as its types allow (32-bit offsets end at 2 GiB)."""
    if table.num_columns < 2 or table.nbytes < _PARALLEL_BYTES:
        return _combine(table)
    with ThreadPoolExecutor(pa.cpu_count(), "intarsia-combine") as pool:
        each = list(pool.map(lambda n: _combine(table.select([n])), range(table.num_columns)))
    return pa.Table.from_arrays([one.column(0) for one in each], schema=table.schema)


def _combine(table: pa.Table) -> pa.Table:
    try:
        return table.combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowCapacityError):  # nested values of more than 2 GiB
        return table


# Rows by number.


def take_rows(table: pa.Table, rows: Any) -> pa.Table:
    """The rows with these numbers, in this order; a NULL gives a row of NULLs.

    ``table.take`` would first put each column of several chunks together, which for a spooled table is all
    of it. Here only the chunks that are hit are read; memory is that of the result, twice.
    """
    numbers = rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows
    numbers = numbers.cast(pa.int64())
    plans: dict[tuple[int, ...], _Gather] = {}
    columns = []
    for column in table.columns:
        if column.num_chunks == 1 or not len(numbers):
            columns.append(column.slice(0, 0) if not len(numbers) else take(column, numbers))
            continue
        lengths = tuple(len(chunk) for chunk in column.chunks)
        if lengths not in plans:  # the columns of a table nearly always share their chunks
            plans[lengths] = _gather(lengths, numbers)
        columns.append(plans[lengths].take(column))
    return pa.Table.from_arrays(columns, schema=table.schema)


def take(values: Any, rows: pa.Array) -> Any:
    """``take`` for every type, also those without a kernel of their own, such as views."""
    plain = _tidy_type(values.type)
    return values.take(rows) if plain == values.type else _cast(_cast(values, plain).take(rows), values.type)


def filter_rows(batch: pa.RecordBatch, mask: Any) -> pa.RecordBatch:
    """The rows of a batch for which a mask is TRUE, of every type, as :func:`take`."""
    whole = pa.Table.from_batches([batch])
    plain = tidy_table(whole)
    if plain is whole:
        return batch.filter(mask)
    arrays = [column.combine_chunks() for column in plain.columns]
    kept = pa.RecordBatch.from_arrays(arrays, schema=plain.schema).filter(mask)
    return pa.RecordBatch.from_arrays([*map(_cast, kept.columns, batch.schema.types)], schema=batch.schema)


def _cast(values: Any, to: pa.DataType) -> Any:
    """Values in their plain type, or back. PyArrow 26 makes no list views, and makes wrong lists of those."""
    if not (_has_list_view(values.type) or _has_list_view(to)):
        return values.cast(to)
    cast = cast_exact(values, to, column="", operation="take")
    return cast if isinstance(values, pa.ChunkedArray) else cast.combine_chunks()


def _has_list_view(dtype: pa.DataType) -> bool:
    if pa.types.is_list_view(dtype) or pa.types.is_large_list_view(dtype):
        return True
    return any(_has_list_view(dtype.field(number).type) for number in range(dtype.num_fields))


@dataclass(frozen=True, slots=True)
class _Gather:
    """Rows by chunk: what to take from each, and the position of each row in the result (None: in order)."""

    takes: list[tuple[int | None, pa.Array]]
    places: pa.Array | None

    def take(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        pieces = [
            pa.nulls(len(local), column.type) if chunk is None else take(column.chunk(chunk), local)
            for chunk, local in self.takes
        ]
        gathered = pa.chunked_array(pieces, column.type)
        return gathered if self.places is None else take(gathered, self.places)


def _gather(lengths: tuple[int, ...], rows: pa.Array) -> _Gather:
    ends = pc.cumulative_sum(make_array(lengths, pa.int64()))
    starts = pc.subtract(ends, make_array(lengths, pa.int64()))
    if pc.any(
        pc.or_(pc.less(rows, make_scalar(0)), pc.greater_equal(rows, make_scalar(sum(lengths)))), min_count=0
    ).as_py():
        raise pa.ArrowIndexError(f"a row number is not within the {sum(lengths)} rows")
    chunk_of = pc.search_sorted(ends, rows, side="right").cast(pa.int64())
    order = pc.array_sort_indices(chunk_of).cast(pa.int64())  # stable
    grouped = rows.take(order)
    counts = chunk_of.take(order).value_counts()
    takes, begin = [], 0
    for chunk, count in zip(
        counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True
    ):
        part = grouped.slice(begin, count)
        takes.append((chunk, part if chunk is None else pc.subtract(part, starts[chunk])))
        begin += count
    in_order = order.equals(pa.arange(0, len(rows), 1))
    return _Gather(takes, None if in_order else pc.inverse_permutation(order))


# Types that every kernel can work on.


def tidy_schema(schema: pa.Schema) -> pa.Schema:
    """The schema without views, narrow decimals and run-end encoding; extension types stay."""
    return pa.schema([one.with_type(_tidy_type(one.type)) for one in schema], schema.metadata)


def _tidy_type(data_type: pa.DataType) -> pa.DataType:
    is_ = pa.types
    if is_.is_string_view(data_type):
        return pa.string()
    if is_.is_binary_view(data_type):
        return pa.binary()
    if is_.is_decimal32(data_type) or is_.is_decimal64(data_type):
        return pa.decimal128(data_type.precision, data_type.scale)
    if is_.is_run_end_encoded(data_type):
        return _tidy_type(data_type.value_type)
    if is_.is_dictionary(data_type):
        return pa.dictionary(data_type.index_type, _tidy_type(data_type.value_type), data_type.ordered)
    return _tidy_nested(data_type) if is_nested(data_type) else data_type


def _tidy_nested(data_type: pa.DataType) -> pa.DataType:
    is_ = pa.types

    def tidy_field(one: pa.Field) -> pa.Field:
        return one.with_type(_tidy_type(one.type))

    if is_.is_struct(data_type):
        return pa.struct([tidy_field(one) for one in data_type.fields])
    if is_.is_map(data_type):
        key, item = tidy_field(data_type.key_field), tidy_field(data_type.item_field)
        return pa.map_(key, item, keys_sorted=data_type.keys_sorted)
    if is_.is_fixed_size_list(data_type):
        return pa.list_(tidy_field(data_type.value_field), data_type.list_size)
    if is_.is_large_list(data_type) or is_.is_large_list_view(data_type):
        return pa.large_list(tidy_field(data_type.value_field))
    if is_.is_list(data_type) or is_.is_list_view(data_type):
        return pa.list_(tidy_field(data_type.value_field))
    return data_type


def tidy_table(table: pa.Table) -> pa.Table:
    """The table in the types of its tidy schema; itself where it has them."""
    plain = tidy_schema(table.schema)
    if plain.equals(table.schema):
        return table
    return pa.Table.from_arrays([*map(_cast, table.columns, plain.types)], schema=plain)


def tidy(batch: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
    """A batch in the types of a tidy schema: itself, or several where it is too large for one."""
    if batch.schema.equals(schema, check_metadata=True):
        return [batch]
    columns = [
        cast_exact(batch.column(number), one.type, column=one.name, operation="ingest")
        for number, one in enumerate(schema)
    ]
    return pa.Table.from_arrays(columns, schema=schema).to_batches()
