"""Rows that depend on nothing but their id, for any schema; and rows as plain values that compare exactly."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
Values = Callable[[int], Any]

START = dt.datetime(2023, 12, 30, 1, tzinfo=dt.UTC)
REGIONS = ("eu", "us", "asia", None)


def moment(number: int) -> dt.datetime:
    return START + dt.timedelta(days=number % 3, hours=(number % 2) * 22, microseconds=number)


BY_NAME: Mapping[str, Values] = {
    "id": lambda n: n,
    "region": lambda n: REGIONS[n % 4],
    "area": lambda n: REGIONS[n % 4],
    "ts": moment,
    "amount": lambda n: n * 3 - 20,
    "note": lambda n: None if n % 6 == 0 else f"note {n}",
    "k": lambda n: n % 8 - 3,
}


def sample(schema: pa.Schema, ids: Iterable[int], values: Mapping[str, Values] | None = None) -> pa.Table:
    """One row per id; ``values`` overrides what a column holds."""
    chosen = {**BY_NAME, **(values or {})}
    numbers = list(ids)
    columns = [
        pa.array([chosen[f.name](n) if f.name in chosen else _of_type(f.type, n) for n in numbers], f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema([f.remove_metadata() for f in schema]))


def _of_type(kind: pa.DataType, n: int) -> Any:
    if pa.types.is_struct(kind):
        return {f.name: _of_type(f.type, n + place) for place, f in enumerate(kind)}
    if pa.types.is_map(kind):
        return [(_of_type(kind.key_type, n + i), _of_type(kind.item_type, n + i)) for i in range(n % 3)]
    if pa.types.is_list(kind):
        return None if n % 7 == 0 else [_of_type(kind.value_type, n + i) for i in range(n % 3)]
    if n % 11 == 5:
        return None if not pa.types.is_string(kind) else ""
    if pa.types.is_boolean(kind):
        return n % 2 == 0
    if pa.types.is_integer(kind):
        return (n * 7) % 23 - 9
    if pa.types.is_floating(kind):
        return math.nan if n % 9 == 4 else (n % 5) * 0.5 - 1
    if pa.types.is_decimal(kind):
        return decimal.Decimal(n % 4 * 75 - 110).scaleb(-kind.scale)
    if pa.types.is_date(kind):
        return moment(n).date()
    if pa.types.is_timestamp(kind):
        return moment(n) if kind.tz else moment(n).replace(tzinfo=None)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return bytes([n % 4, 255])
    if pa.types.is_fixed_size_binary(kind):
        return uuid.UUID(int=n).bytes[: kind.byte_width]
    return f"v{n % 13}"


def rows_of(table: pa.Table) -> list[Row]:
    """Rows as dicts in a fixed order; NaN equals NaN, and an instant is in UTC."""
    return ordered(table.to_pylist())


def ordered(rows: Iterable[Row]) -> list[Row]:
    return sorted((comparable(row) for row in rows), key=_order)


def _order(row: Row) -> tuple[Any, ...]:
    return (row.get("id") is None, row.get("id"), repr(sorted(row.items(), key=lambda pair: pair[0])))


def comparable(value: Any) -> Any:
    match value:
        case float() if math.isnan(value):
            return math.nan  # one object: containers compare by identity first
        case dict() if set(value) == {"key", "value"}:  # polars has no maps
            return (comparable(value["key"]), comparable(value["value"]))
        case dict():
            return {name: comparable(item) for name, item in value.items()}
        case list() | tuple():
            items = [comparable(item) for item in value]
            return tuple(items) if isinstance(value, tuple) else items
        case dt.datetime() if value.tzinfo is not None:
            return value.astimezone(dt.UTC)
        case uuid.UUID():
            return value.bytes
        case _:
            return value


def difference(found: Sequence[Row], wanted: Sequence[Row], limit: int = 6) -> str:
    """What is too much and what is missing, shortened; empty when the rows are the same."""
    if list(found) == list(wanted):
        return ""
    remaining = list(wanted)
    extra = []
    for row in found:
        if row in remaining:
            remaining.remove(row)
        else:
            extra.append(row)
    lines = [f"{len(found)} rows found, {len(wanted)} wanted"]
    lines += [f"  too much: {row}" for row in extra[:limit]]
    lines += [f"  missing:  {row}" for row in remaining[:limit]]
    return "\n".join(lines)
