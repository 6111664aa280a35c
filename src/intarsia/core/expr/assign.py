"""Values on their way into a column (SPEC S27): what would be lost is refused, and its rows are counted.

Decimals are rounded to the column's scale, half away from zero, and floats narrowed to 32 bits, as in SQL.
A fraction into an integer column and an instant finer than the column's unit are refused: only the author
knows whether ``round``, ``floor`` or a cast is meant.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.core.expr.casts import cast
from intarsia.core.expr.nodes import Expr, Literal
from intarsia.core.expr.text import to_sql
from intarsia.core.expr.types import NANOS, is_number, type_name
from intarsia.core.expr.zones import in_utc, local
from intarsia.errors import SchemaMismatch

_MOST_COUNTED = 1000
"""Values that do not fit are looked for one by one up to this number."""
_UNITS = {"s": "second", "ms": "millisecond", "us": "microsecond"}


def assign(value: Any, target: pa.DataType, expr: Expr) -> Any:
    """The values of ``expr`` in the type of the column that they are assigned to.

    Raises:
        SchemaMismatch: some do not fit; it says how many, and shows one.
    """
    lossy = _lossy(value, target)
    if lossy is not None:
        mask = pc.fill_null(lossy, False)
        if (mask if isinstance(mask, pa.Scalar) else pc.any(mask, min_count=0)).as_py():
            raise _refusal(expr, target, *_counted(value, mask), _length(value), _hint(value.type, target))
    try:
        return cast(value, target)
    except pa.ArrowInvalid as error:
        found: list[Any] = []
        _misfits(value, target, found)
        count = f"{len(found):,}" if len(found) < _MOST_COUNTED else f"at least {len(found):,}"
        hint = f"leave such rows out by a condition; try_cast(... as {type_name(target)}) gives NULL for them"
        raise _refusal(expr, target, count, found[0], _length(value), hint) from error


def _length(value: Any) -> int:
    return 1 if isinstance(value, pa.Scalar) else len(value)


def _lossy(value: Any, target: pa.DataType) -> Any | None:
    """Where a fraction or a part of an instant would be lost; None where the types rule that out."""
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
    plain = local(value) if unit == "day" else in_utc(value)
    return pc.not_equal(pc.floor_temporal(plain, unit=unit), plain)


def _counted(value: Any, mask: Any) -> tuple[str, Any]:
    if isinstance(value, pa.Scalar):
        return "1", value
    return f"{pc.sum(mask).as_py():,}", value.filter(mask)[0]


def _misfits(value: Any, target: pa.DataType, found: list[Any]) -> None:
    if len(found) >= _MOST_COUNTED:
        return
    try:
        cast(value, target)
    except pa.ArrowInvalid:
        if isinstance(value, pa.Scalar) or len(value) == 1:
            found.append(value if isinstance(value, pa.Scalar) else value[0])
            return
        middle = len(value) // 2
        _misfits(value.slice(0, middle), target, found)
        _misfits(value.slice(middle), target, found)


def _refusal(
    expr: Expr, target: pa.DataType, count: str, example: pa.Scalar, rows: int, hint: str
) -> SchemaMismatch:
    if pt.is_timestamp(example.type) and example.type.tz:
        example = example.cast(pa.timestamp(example.type.unit, "UTC"))
    shown = repr(example.as_py()) if pt.is_floating(example.type) else example.cast(pa.string()).as_py()
    wanted = type_name(target)
    if isinstance(expr, Literal):
        return SchemaMismatch(f"{to_sql(expr)} is no {wanted}", hint=hint)
    return SchemaMismatch(
        f"{to_sql(expr)} gives {shown}, which is no {wanted}, in {count} of {rows:,} rows", hint=hint
    )


def _hint(source: pa.DataType, target: pa.DataType) -> str:
    wanted = type_name(target)
    if is_number(source):
        return f"say what becomes of the fraction: round(...), floor(...) or cast(... as {wanted})"
    if pt.is_date(target):
        return "say that the time of day is cut off: cast(... as date)"
    return f"say that it is cut off: date_trunc('{_UNITS[target.unit]}', ...)"
