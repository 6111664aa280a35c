"""Expressions computed on batches and tables, with SQL's meaning and pyarrow's kernels."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.python_values import make_scalar
from intarsia.common.rows import tidy_table
from intarsia.core.expr import Cast, Expr, find_columns, find_type, resolve
from intarsia.core.expr.casts import cast
from intarsia.core.expr.run import ExprRows, broadcast, run
from intarsia.core.keys import arange, to_array
from intarsia.core.refusals import Refusal, ValuesRefused, sum_refusals
from intarsia.errors import ColumnNotFound, InputError, SchemaMismatch

Batch: TypeAlias = pa.RecordBatch | pa.Table
_ROW = "__row__"


def evaluate(expr: Expr, batch: Batch, source: Batch | None = None) -> pa.Array | pa.ChunkedArray:
    """The value in every row: an array for a batch, a chunked array for a table.

    Pure. With ``source``, row i of both are one pair. The expression may be resolved or not: it is
    resolved against the batch's own schema, so a file that stores a narrower type gives the same
    answer. Only an expression resolved before has one ``current_timestamp`` for all batches.

    Raises:
        InputError: a value overflows, does not fit a cast, or is divided by zero.
        ColumnNotFound, SchemaMismatch, NotSupported: as :func:`intarsia.core.expr.resolve`.
    """
    return _evaluate(expr, batch, source, None)


def evaluate_mask(expr: Expr, batch: Batch, source: Batch | None = None) -> pa.BooleanArray:
    """Where the predicate is TRUE; FALSE and NULL are both False, and there are no NULLs in it."""
    value = _evaluate(expr, batch, source, pa.bool_())
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    return pc.fill_null(value, make_scalar(False)) if value.null_count else value


def _evaluate(
    expr: Expr, batch: Batch, source: Batch | None, expect: pa.DataType | None
) -> pa.Array | pa.ChunkedArray:
    if source is not None and source.num_rows != batch.num_rows:
        raise InputError(f"{batch.num_rows} target rows cannot be paired with {source.num_rows} source rows")
    other = None if source is None else source.schema
    resolved = resolve(expr, batch.schema, source=other, expect=expect)
    if isinstance(batch, pa.RecordBatch) and not isinstance(source, pa.Table):
        return _evaluate_values(resolved, ExprRows.of(resolved, batch, source, length=batch.num_rows))
    type = expect or find_type(resolved, batch.schema, source=other)
    return pa.chunked_array(
        [_evaluate_values(resolved, rows) for rows in _split_pieces(resolved, batch, source)], type
    )


def find_refused_values(expr: Expr, batch: Batch, source: Batch | None = None) -> tuple[Refusal, ...]:
    """The values of all rows that the column they are assigned to cannot take.

    Raises as :func:`evaluate` does for any other reason.
    """
    resolved = resolve(expr, batch.schema, source=None if source is None else source.schema)
    found: list[Refusal] = []
    for rows in _split_pieces(resolved, batch, source):
        try:
            _evaluate_values(resolved, rows)
        except ValuesRefused as error:
            found += error.refusals
    return sum_refusals(found)


def _evaluate_values(expr: Expr, rows: ExprRows) -> pa.Array:
    values = broadcast(run(expr, rows), rows.length)
    # A constant gets its dictionary type only when it is repeated for every row.
    return cast(values, expr.type) if isinstance(expr, Cast) else values


def _split_pieces(expr: Expr, batch: Batch, source: Batch | None) -> list[ExprRows]:
    """The rows of both sides in pieces that need no copy, with the columns that are read."""
    reads = find_columns(expr)
    target_columns = _select_columns(batch, {path[0] for side, path in reads if side != "source"})
    source_columns = _select_columns(source, {path[0] for side, path in reads if side == "source"})
    if not reads:
        return [ExprRows({}, batch.num_rows)]
    ends = sorted({batch.num_rows, *_ends(target_columns), *_ends(source_columns)} - {0})
    return [
        ExprRows.of(
            expr,
            _slice(target_columns, start, end),
            _slice(source_columns, start, end),
            length=end - start,
        )
        for start, end in zip([0, *ends], ends, strict=False)
    ]


def _select_columns(side: Batch | None, names: set[str]) -> dict[str, pa.ChunkedArray]:
    if side is None:
        return {}
    found = {name: side.column(name) for name in sorted(names)}
    return {name: pa.chunked_array([c]) if isinstance(c, pa.Array) else c for name, c in found.items()}


def _ends(side: dict[str, pa.ChunkedArray]) -> set[int]:
    return {end for column in side.values() for end in accumulate(map(len, column.chunks))}


def _slice(side: dict[str, pa.ChunkedArray], start: int, end: int) -> pa.RecordBatch:
    arrays = [_combine_chunks(column.slice(start, end - start)) for column in side.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(side))


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    return chunks[0] if len(chunks) == 1 else column.combine_chunks()


def find_hit_positions(where: Any, table: pa.Table) -> pa.Array:
    """The rows of a table, ascending, where the predicate is TRUE."""
    if not isinstance(where, pc.Expression):
        return pc.indices_nonzero(evaluate_mask(where, table)).cast(pa.int64())
    table = tidy_table(table)
    row = _ROW
    while row in table.column_names:
        row += "_"
    try:
        kept = table.append_column(row, arange(table.num_rows)).filter(where)
    except pa.ArrowInvalid as error:
        if "No match for FieldRef" in str(error):
            raise ColumnNotFound(
                f"The predicate {where} names a column that is not there;"
                f" there is {', '.join(map(repr, table.column_names))}."
            ) from error
        raise InputError(f"The predicate cannot be evaluated: {error}") from error
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        if "must evaluate to bool" in str(error):
            raise SchemaMismatch(
                f"{where} is a value, not a condition.", hint="compare it with something."
            ) from error
        raise SchemaMismatch(
            f"The types in the predicate {where} do not go together: {error}",
            hint="cast the constant to the column's type.",
        ) from error
    return to_array(kept[row])
