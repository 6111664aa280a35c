"""Predicates and assignments as they were settled: S27 and S28."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.evaluate import evaluate
from intarsia.core.expr import resolve
from intarsia.datasets.pyarrow import PyarrowDatasetIO
from intarsia.errors import InputError, SchemaMismatch
from intarsia.sql.parse import parse_expression

NO_PREDICATES = [True, False, "id" != 5, 5, 1.5, [1], ["id = 5"], {"id": 5}, ("id", "=", 5), b"id = 5"]


@pytest.fixture
def path(tmp_path):
    pq.write_table(pa.table({"id": [1, 2, 5], "n": [1, 2, 3]}), tmp_path / "a.parquet")
    return tmp_path


@pytest.mark.parametrize("where", NO_PREDICATES, ids=repr)
def test_s28_what_is_no_predicate_is_refused(path, where, unchanged):
    clause = it.when_matched(where).delete()
    source = pa.table({"id": [1], "n": [9]})
    io = PyarrowDatasetIO()
    with unchanged(path):
        for call in (
            lambda: it.delete(path, where),
            lambda: it.update(path, {"n": "1"}, where),
            lambda: it.merge(source, path, on="id", clauses=[clause]),
            lambda: io.delete(path, where),
        ):
            with pytest.raises(InputError, match="SQL text"):
                call()
        if not isinstance(where, (list, tuple)):  # lists of (column, operator, value) are filters of reads
            with pytest.raises(InputError, match="SQL text"):
                io.read_parquet(path, filters=where)


@pytest.mark.parametrize("where", [True, False])
def test_s28_a_python_bool_is_told_how_every_row_is_meant(path, where):
    with pytest.raises(InputError, match='"true" takes every row'):
        it.delete(path, where)
    assert it.delete(path, "true").deleted == 3


def test_s28_a_pyarrow_expression_that_is_no_condition_is_refused(path, unchanged):
    with unchanged(path):
        with pytest.raises(SchemaMismatch, match="not a condition"):
            it.delete(path, pc.scalar(5))
        with pytest.raises(SchemaMismatch, match="bool"):
            PyarrowDatasetIO().read_parquet(path, filters=pc.scalar(5))
        with pytest.raises(InputError, match="the condition of a clause is SQL text"):
            clause = it.when_matched(pc.field("id") == 1).delete()
            it.merge(pa.table({"id": [1], "n": [9]}), path, on="id", clauses=[clause])


ROWS = pa.table(
    {
        "i": pa.array([1, 2, None, 10], pa.int32()),
        "f": [1.0, 2.5, None, math.nan],
        "big": [1e19, 2.0, None, math.inf],
        "d": pa.array([Decimal("1.255"), Decimal("-1.255"), None, Decimal("2.000")], pa.decimal128(7, 3)),
        "us": pa.array([0, 1_000_000, None, 1], pa.timestamp("us")),
        "tz": pa.array([0, 86_400_000_000, None, 1_000], pa.timestamp("us", "UTC")),
        "clock": pa.array([0, 1, None, 2], pa.time64("us")),
    }
)


def assign(text, kind):
    return evaluate(resolve(parse_expression(text), ROWS.schema, expect=kind), ROWS).to_pylist()


REFUSED = [
    ("i * 1.1", pa.int32(), "1.1 and 2.2, which are no INTEGER, in 2 of 4 rows"),
    ("i * 1.1", pa.uint8(), "in 2 of 4 rows"),
    ("i / 2", pa.int64(), "in 1 of 4 rows"),
    ("f", pa.int64(), "in 2 of 4 rows"),
    ("big", pa.int64(), "in 2 of 4 rows"),
    ("i * 1000000000", pa.int32(), "10000000000, which is no INTEGER, in 1 of 4 rows"),
    ("i * -1", pa.uint32(), "in 3 of 4 rows"),
    ("d", pa.int8(), "in 2 of 4 rows"),
    ("1.5", pa.int64(), "1.5 is no BIGINT"),
    ("us", pa.timestamp("s"), "in 1 of 4 rows"),
    ("us", pa.timestamp("ms", "UTC"), "in 1 of 4 rows"),
    ("tz", pa.date32(), "in 1 of 4 rows"),
    ("tz", pa.timestamp("s", "Europe/Berlin"), "in 1 of 4 rows"),
    ("timestamp '2025-01-01 00:00:00.5'", pa.timestamp("s"), "is no TIMESTAMP_S"),
    ("clock", pa.time32("s"), "in 2 of 4 rows"),
    ("i * 1000", pa.decimal128(5, 2), "in 3 of 4 rows"),
    ("f", pa.decimal128(5, 2), "in 1 of 4 rows"),
    ("big * 1e200", pa.float32(), "in 2 of 4 rows"),
    ("i * 100000", pa.float16(), "in 3 of 4 rows"),
]


@pytest.mark.parametrize(("text", "kind", "told"), REFUSED)
def test_s27_what_would_be_lost_is_refused_with_its_rows(text, kind, told):
    with pytest.raises(SchemaMismatch) as caught:
        assign(text, kind)
    assert told in str(caught.value)


ASSIGNED = [
    ("i * 1.0", pa.int32(), [1, 2, None, 10]),
    ("round(i * 1.1)", pa.int32(), [1, 2, None, 11]),
    ("floor(i * 1.9)", pa.int32(), [1, 3, None, 19]),
    ("cast(i * 1.25 as int)", pa.int32(), [1, 3, None, 13]),
    ("cast(i / 2 as int)", pa.int32(), [0, 1, None, 5]),
    ("d", pa.decimal128(5, 2), [Decimal("1.26"), Decimal("-1.26"), None, Decimal("2.00")]),
    ("1.005", pa.decimal128(5, 2), [Decimal("1.01")] * 4),
    ("cast(us as timestamp_s)", pa.timestamp("s"), [dt.datetime(1970, 1, 1, 0, 0, n) for n in (0, 1)]),
    ("date_trunc('second', us)", pa.timestamp("s"), [dt.datetime(1970, 1, 1, 0, 0, n) for n in (0, 1)]),
    ("cast(tz as date)", pa.date32(), [dt.date(1970, 1, 1), dt.date(1970, 1, 2), None, dt.date(1970, 1, 1)]),
    ("f * 0.1", pa.float32(), [0.10000000149011612, 0.25]),
    ("try_cast(big as bigint)", pa.int64(), [None, 2, None, None]),
]


@pytest.mark.parametrize(("text", "kind", "values"), ASSIGNED)
def test_s27_what_is_said_is_done_and_decimals_and_floats_are_rounded_as_in_sql(text, kind, values):
    assert assign(text, kind)[: len(values)] == values


def test_s27_the_clock_is_read_in_the_unit_of_the_column():
    for unit in ("s", "ms", "us"):
        (*_, found) = assign("current_timestamp", pa.timestamp(unit, "UTC"))
        assert found.tzinfo is not None
