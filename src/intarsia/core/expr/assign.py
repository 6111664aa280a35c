"""Assigning values to a column (SPEC S27): a value that would lose something is refused, and counted.

Decimals are rounded to the column's scale, half away from zero, and floats narrowed to 32 bits, as in SQL.
A fraction into an integer column and an instant finer than the column's unit are refused: only the author
knows whether ``round``, ``floor`` or a cast is meant.
"""

from __future__ import annotations

from math import inf
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.core.expr.casts import cast, to_local, to_utc, try_cast
from intarsia.core.expr.nodes import Expr, Literal, to_sql
from intarsia.core.expr.types import NANOS, is_number, name_type
from intarsia.core.refusals import Refusal, ValuesRefused
from intarsia.errors import SchemaMismatch

_SAMPLES = 3
_UNITS = {"s": "second", "ms": "millisecond", "us": "microsecond"}


def assign(value: Any, target: pa.DataType, expr: Expr, rows: int) -> Any:
    """The values of ``expr``, which has ``rows`` rows, cast to the type of the column they are assigned to.

    Raises:
        ValuesRefused: some do not fit; it says how many, and shows a few.
        SchemaMismatch: a constant does not.
    """
    lossy = _find_lossy(value, target)
    mask = None if lossy is None else pc.fill_null(lossy, False)
    if mask is None or not _has_any(mask):
        try:
            return cast(value, target)
        except pa.ArrowInvalid as error:
            raise _make_refusal(value, target, expr, rows, None) from error
    raise _make_refusal(value, target, expr, rows, mask)


def _make_refusal(
    value: Any, target: pa.DataType, expr: Expr, rows: int, lossy: Any | None
) -> SchemaMismatch:
    """The error for all values that do not fit; ``lossy`` marks those that would lose a part."""
    wanted, expression = name_type(target), to_sql(expr)
    misfit = _find_misfits(value, target)
    parts = [(misfit, f"leave such rows out by a condition; try_cast(... as {wanted}) gives NULL for them")]
    if lossy is not None:
        parts = [(lossy, _make_hint(value.type, target)), (pc.and_not(misfit, lossy), parts[0][1])]
    if isinstance(expr, Literal):
        hint = next(hint for mask, hint in parts if _has_any(mask))
        return SchemaMismatch(f"{expression} is no {wanted}", hint=hint)
    found = [
        Refusal(expression, wanted, _count(mask, rows), _take_samples(value, mask), hint)
        for mask, hint in parts
        if _has_any(mask)
    ]
    if not found:  # more values than the dictionary's index type can number
        return SchemaMismatch(f"{expression} gives values that no {wanted} can hold")
    return ValuesRefused.of(found, rows)


def _has_any(mask: Any) -> bool:
    return bool((mask if isinstance(mask, pa.Scalar) else pc.any(mask, min_count=0)).as_py())


def _count(mask: Any, rows: int) -> int:
    return rows if isinstance(mask, pa.Scalar) else pc.sum(mask).as_py()


def _find_lossy(value: Any, target: pa.DataType) -> Any | None:
    """A mask of values that would lose a fraction or a part of an instant; None where none can."""
    source = value.type
    target = target.value_type if pt.is_dictionary(target) else target
    if pt.is_integer(target):
        if pt.is_floating(source):
            return pc.not_equal(pc.trunc(value), value)  # NaN, too
        if pt.is_decimal(source) and source.scale > 0:
            return pc.not_equal(pc.trunc(value), value)
    if not pt.is_timestamp(source):
        return None
    unit = _UNITS.get(target.unit) if pt.is_timestamp(target) else "day" if pt.is_date(target) else None
    if unit is None or (unit != "day" and NANOS[target.unit] <= NANOS[source.unit]):
        return None
    plain = to_local(value) if unit == "day" else to_utc(value)
    return pc.not_equal(pc.floor_temporal(plain, unit=unit), plain)


def _find_misfits(value: Any, target: pa.DataType) -> Any:
    """A mask of the values that the type cannot hold."""
    plain = target.value_type if pt.is_dictionary(target) else target
    return pc.and_(pc.is_valid(value), pc.is_null(try_cast(value, plain)))


def _take_samples(value: Any, mask: Any) -> tuple[tuple[Any, str], ...]:
    """The smallest few values, each as a sort key and as text."""
    some = pc.unique(pa.repeat(value, 1) if isinstance(value, pa.Scalar) else value.filter(mask))
    if pt.is_timestamp(some.type) and some.type.tz:
        some = some.cast(pa.timestamp(some.type.unit, "UTC"))
    some = some.take(pc.array_sort_indices(some).slice(0, _SAMPLES))
    if pt.is_floating(some.type):
        return tuple((inf if number != number else number, repr(number)) for number in some.to_pylist())
    if pt.is_timestamp(some.type):
        keys = [number * NANOS[some.type.unit] for number in some.cast(pa.int64()).to_pylist()]
    else:
        keys = some.to_pylist()
    return tuple(zip(keys, some.cast(pa.string()).to_pylist(), strict=True))


def _make_hint(source: pa.DataType, target: pa.DataType) -> str:
    wanted = name_type(target)
    if is_number(source):
        return f"say what becomes of the fraction: round(...), floor(...) or cast(... as {wanted})"
    if pt.is_date(target):
        return "say that the time of day is cut off: cast(... as date)"
    return f"say that it is cut off: date_trunc('{_UNITS[target.unit]}', ...)"
