"""Equality deletes that cannot match by what manifests say."""

from __future__ import annotations

from typing import Any

import pytest
from delete_samples import entry
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, StructType

from intarsia.tables.iceberg.deletes import BoundOrder, DeleteFileIndex, find_bound_orders, may_match_rows
from intarsia.tables.iceberg.manifests import DataFileContent, ManifestEntry

ORDERS = {1: BoundOrder.NUMBER, 2: BoundOrder.TEXT, 3: BoundOrder.INSTANT}


def four(value: int) -> bytes:
    return value.to_bytes(4, "little", signed=True)


def eight(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def file(
    low: bytes | None, high: bytes | None, *, number: int = 1, nulls: int | None = 0, rows: int = 5
) -> ManifestEntry:
    fields: dict[str, Any] = {
        "lower_bounds": None if low is None else {number: low},
        "upper_bounds": None if high is None else {number: high},
        "null_value_counts": None if nulls is None else {number: nulls},
        "value_counts": {number: rows},
    }
    return entry("e", content=DataFileContent.EQUALITY_DELETES, sequence=2, equality_ids=(number,), **fields)


def match(data: ManifestEntry, delete: ManifestEntry) -> bool:
    return may_match_rows(data.file, delete.file, ORDERS)


@pytest.mark.parametrize(
    ("data", "delete", "expected"),
    [
        (file(eight(5), eight(9)), file(eight(9), eight(12)), True),
        (file(eight(5), eight(9)), file(eight(10), eight(12)), False),
        (file(eight(5), eight(9)), file(eight(-3), eight(4)), False),
        (file(four(5), four(9)), file(eight(9), eight(12)), True),
        (file(four(-5), four(-2)), file(eight(-1), eight(12)), False),
        (file(eight(5), eight(9)), file(None, eight(4)), True),
        (file(b"b", b"c", number=2), file(b"ca", b"d", number=2), False),
        (file(b"b", b"c", number=2), file(b"c", b"d", number=2), True),
        (file(four(5), four(9), number=3), file(eight(10), eight(12), number=3), True),
        (file(eight(5), eight(9), number=3), file(eight(10), eight(12), number=3), False),
        (file(eight(5), eight(9), number=4), file(eight(10), eight(12), number=4), True),
    ],
)
def test_bounds_that_do_not_meet_exclude_a_match(
    data: ManifestEntry, delete: ManifestEntry, expected: bool
) -> None:
    assert match(data, delete) is expected


def test_nulls_meet_nulls_whatever_the_bounds_say() -> None:
    low, high = eight(5), eight(9)
    apart = file(eight(10), eight(12), nulls=1)
    assert match(file(low, high, nulls=1), apart)
    assert match(file(low, high, nulls=None), apart)
    assert not match(file(low, high, nulls=0), apart)
    only = file(None, None, nulls=5)
    assert not match(only, file(low, high, nulls=0))
    assert not match(file(low, high, nulls=0), only)
    assert match(only, file(low, high, nulls=1))


@given(
    st.lists(st.integers(-4, 4) | st.none(), min_size=1), st.lists(st.integers(-4, 4) | st.none(), min_size=1)
)
def test_no_match_is_ever_excluded(data: list[int | None], deleted: list[int | None]) -> None:
    def described(values: list[int | None]) -> ManifestEntry:
        known = [value for value in values if value is not None]
        low, high = (eight(min(known)), eight(max(known))) if known else (None, None)
        return file(low, high, nulls=values.count(None), rows=len(values))

    if set(data) & set(deleted):
        assert match(described(data), described(deleted))


def test_the_index_leaves_out_what_cannot_match() -> None:
    delete = file(eight(10), eight(12))
    data = entry("a", lower_bounds={1: eight(5)}, upper_bounds={1: eight(9)}, null_value_counts={1: 0})
    assert DeleteFileIndex.of([delete], orders=ORDERS).find_deletes(data).exact_count == 0
    assert DeleteFileIndex.of([delete]).find_deletes(data).equalities == (delete,)
    assert DeleteFileIndex.of([delete], orders=ORDERS).find_deletes(entry("b")).equalities == (delete,)


def test_orders_are_those_of_all_fields_also_in_structs() -> None:
    schema = Schema(
        NestedField(1, "a", LongType(), required=False),
        NestedField(2, "f", DoubleType(), required=False),
        NestedField(3, "s", StructType(NestedField(4, "t", StringType(), required=False)), required=False),
    )
    metadata = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:/t")
    assert sorted(order.value for order in find_bound_orders(metadata).values()) == ["number", "text"]
