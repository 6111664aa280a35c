"""Whether an equality delete file can match rows of a data file at all, by what manifests say of both."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    DateType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
)

from intarsia.tables.iceberg.entries import ContentFile


class Order(Enum):
    """How bounds of a column are compared."""

    NUMBER = "number"
    """Whole numbers of four or eight bytes, which mean the same."""
    INSTANT = "instant"
    """Numbers of one length: a date that became a timestamp counts in another unit."""
    TEXT = "text"
    """Bytes of UTF-8; bounds that were cut short still bound."""


_ORDERS: Mapping[type[IcebergType], Order] = {
    IntegerType: Order.NUMBER,
    LongType: Order.NUMBER,
    DateType: Order.INSTANT,
    TimeType: Order.INSTANT,
    TimestampType: Order.INSTANT,
    TimestamptzType: Order.INSTANT,
    TimestampNanoType: Order.INSTANT,
    TimestamptzNanoType: Order.INSTANT,
    StringType: Order.TEXT,
}


def orders_of(metadata: TableMetadata) -> dict[int, Order]:
    """How bounds are compared, by field id, for the fields of all schemas that have such an order."""
    found: dict[int, Order] = {}
    for schema in metadata.schemas:
        found.update(_orders(schema))
    return found


def may_match(data: ContentFile, delete: ContentFile, orders: Mapping[int, Order]) -> bool:
    """Whether some row of a data file may equal one of a delete file; True where it is not known.

    Java's rule: a column of which one file has NULLs only and the other none, or whose bounds do not
    meet, excludes a match, unless both files may have NULLs there.
    """
    for number in delete.equality_ids or ():
        order = orders.get(number)
        if order is None or (_may_have_null(data, number) and _may_have_null(delete, number)):
            continue
        if _only_null(data, number) or _only_null(delete, number):
            return False
        if _apart(data, delete, number, order):
            return False
    return True


def _orders(schema: Schema) -> dict[int, Order]:
    return {
        number: _ORDERS[type(field.field_type)]
        for number, field in index_by_id(schema).items()
        if type(field.field_type) in _ORDERS
    }


def _may_have_null(file: ContentFile, number: int) -> bool:
    return (file.null_value_counts or {}).get(number, 1) > 0


def _only_null(file: ContentFile, number: int) -> bool:
    nulls = (file.null_value_counts or {}).get(number)
    return nulls is not None and nulls == (file.value_counts or {}).get(number)


def _apart(data: ContentFile, delete: ContentFile, number: int, order: Order) -> bool:
    bounds = [
        (bounds or {}).get(number)
        for bounds in (data.lower_bounds, data.upper_bounds, delete.lower_bounds, delete.upper_bounds)
    ]
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return False
    if order is Order.TEXT:
        low, high, delete_low, delete_high = known
        return delete_low > high or low > delete_high
    if order is Order.INSTANT and len({len(bound) for bound in known}) > 1:
        return False
    first, last, delete_first, delete_last = (int.from_bytes(bound, "little", signed=True) for bound in known)
    return delete_first > last or first > delete_last
