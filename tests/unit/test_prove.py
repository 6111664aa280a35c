"""What bounds prove about a predicate, and what they do not."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from intarsia.core.expr import Expr, resolve
from intarsia.core.prove import Facts, is_always_true, is_never_true
from intarsia.sql.parse import parse_expression

SCHEMA = pa.schema(
    {
        "n": pa.int32(),
        "f": pa.float64(),
        "g": pa.float32(),
        "d": pa.decimal128(10, 2),
        "s": pa.string(),
        "b": pa.bool_(),
        "day": pa.date32(),
        "ts": pa.timestamp("ms", "UTC"),
        "p": pa.struct({"x": pa.int64()}),
        "other": pa.int64(),
    }
)
TIMES = dt.datetime(2025, 1, 1, tzinfo=dt.UTC), dt.datetime(2025, 1, 31, tzinfo=dt.UTC)
BOUNDS = {
    ("n",): Facts(10, 20, 0, 100, type=pa.int32()),
    ("f",): Facts(1.0, 2.0, 0, 100, maybe_nan=False),
    ("g",): Facts(1.0, 2.0, 0, 100, maybe_nan=True, type=pa.float32()),
    ("d",): Facts(Decimal("1.00"), Decimal("2.00"), 0, 100),
    ("s",): Facts("apple", "apricot", 0, 100),
    ("b",): Facts(True, True, 0, 100),
    ("day",): Facts(dt.date(2025, 1, 1), dt.date(2025, 1, 31), 0, 100),
    ("ts",): Facts(*TIMES, 0, 100),
    ("p", "x"): Facts(5, 5, 0, 100),
}


def read(text: str) -> Expr:
    return resolve(parse_expression(text), SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "n < 10",
        "n <= 9.99",
        "n > 20",
        "25 <= n",
        "n = 5",
        "n = 15.5",
        "n > 3000000000",
        "n in (15.5, 16.5)",
        "n in (1, 2, 30)",
        "n between 21 and 30",
        "n between 1 and 9",
        "n is null",
        "n = null",
        "n > 20 and other > 0",
        "n > 20 or n < 10",
        "not (n >= 10)",
        "not n between 10 and 20",
        "f > 2",
        "f = 3",
        "g < 1",
        "g = 3",
        "g in (0, 5)",
        "d < 0.999",
        "d = 2.005",
        "s < 'a'",
        "s = 'banana'",
        "s like 'b%'",
        "s like 'az%x'",
        "s like 'abc'",
        "not b",
        "b = false",
        "day >= '2025-02-01'",
        "day in ('2024-12-31', '2025-02-01')",
        "ts < '2025-01-01 00:00:00'",
        "ts > '2025-02-01'",
        "p.x <> 5",
        "p.x not in (5, 6)",
        "n > other and n < 0",
        "false",
        "null",
        "n > day - day and false",
        "n > p.x * 0 and n > 50",
        "n < p.x",
        "case when b then true end and n > 20",
    ],
)
def test_bounds_prove_that_a_predicate_is_never_true(text: str) -> None:
    assert is_never_true(read(text), BOUNDS)
    assert not is_always_true(read(text), BOUNDS)


@pytest.mark.parametrize(
    "text",
    [
        "n >= 10",
        "n < 20.5",
        "n <> 5",
        "n <> 15.5",
        "n < 3000000000",
        "n between 10 and 20",
        "n is not null",
        "not (n > 20)",
        "n >= 10 and f <= 2",
        "n >= 10 or other > 5",
        "f < 3",
        "g >= 1",
        "g <> 0.5",
        "d <= 2",
        "s like 'ap%'",
        "s >= 'apple'",
        "b",
        "b is true",
        "day >= '2025-01-01' and day < '2025-02-01'",
        "ts <= '2025-01-31'",
        "p.x = 5",
        "p.x in (1, 5)",
        "n not in (1, 2)",
        "n > p.x",
        "true",
    ],
)
def test_bounds_prove_that_a_predicate_is_always_true(text: str) -> None:
    assert is_always_true(read(text), BOUNDS)
    assert not is_never_true(read(text), BOUNDS)


@pytest.mark.parametrize(
    "text",
    [
        "n = 15",
        "n > 15",
        "n in (15, 30)",
        "n + 1 > 100",
        "other = 1",
        "other is null",
        "g > 2",
        "g < 3",
        "s like '%z'",
        "s like '_pple'",
        "s like 'ap%e'",
        "s ilike 'B%'",
        "lower(s) = 'b'",
        "n > other",
        "case when b then n else 0 end = 1",
    ],
)
def test_what_is_not_proven_is_not_claimed(text: str) -> None:
    assert not is_never_true(read(text), BOUNDS)
    assert not is_always_true(read(text), BOUNDS)


def test_nulls_keep_a_predicate_from_being_always_true() -> None:
    for nulls in (None, 1):
        bounds = {("n",): Facts(10, 20, nulls, 100)}
        assert not is_always_true(read("n >= 10"), bounds)
        assert is_never_true(read("n < 10"), bounds)
        assert not is_never_true(read("n is null"), bounds)


def test_a_column_of_nothing_but_nulls_is_never_true_of_anything_but_null() -> None:
    bounds = {("n",): Facts(None, None, 100, 100)}
    assert is_never_true(read("n > 0"), bounds)
    assert is_never_true(read("not (n > 0)"), bounds)
    assert is_never_true(read("n not in (1, 2)"), bounds)
    assert is_always_true(read("n is null"), bounds)


def test_no_rows_are_never_true() -> None:
    assert is_never_true(read("n > 0"), {("n",): Facts(None, None, 0, 0)})


@pytest.mark.parametrize("facts", [Facts(), Facts(rows=5), Facts(lower=1), Facts(upper=1, null_count=0)])
def test_unknown_bounds_prove_nothing_beyond_what_is_known(facts: Facts) -> None:
    bounds = {("n",): facts}
    assert not is_never_true(read("n = 1"), bounds)
    assert not is_always_true(read("n = 1"), bounds)


def test_a_nan_is_above_every_bound() -> None:
    maybe = {("f",): Facts(1.0, 2.0, 0, 10, maybe_nan=True)}
    assert not is_never_true(read("f > 100"), maybe)
    assert not is_always_true(read("f < 100"), maybe)
    assert not is_never_true(read("f = 'nan'::double"), maybe)
    assert is_never_true(read("f < 1"), maybe)
    assert is_never_true(read("f = 3"), maybe)


def test_a_nan_in_the_bounds_makes_them_worthless() -> None:
    for lower, upper in [(float("nan"), float("nan")), (0.0, float("nan")), (float("nan"), 1.0)]:
        bounds = {("f",): Facts(lower, upper, 0, 10, maybe_nan=False)}
        assert not is_never_true(read("f = 50"), bounds)
        assert not is_never_true(read("f < -50"), bounds)


@pytest.mark.parametrize(
    ("name", "text", "facts"),
    [
        ("n", "n > 5", Facts("1", "2", 0, 10)),
        ("s", "s = 'b'", Facts(b"c", b"d", 0, 10)),
        ("b", "b", Facts(0, 0, 0, 10)),
        ("day", "day > '2025-01-01'", Facts("2024-01-01", "2024-01-02", 0, 10)),
    ],
)
def test_bounds_of_another_kind_prove_nothing(name: str, text: str, facts: Facts) -> None:
    assert not is_never_true(read(text), {(name,): facts})
    assert not is_always_true(read(text), {(name,): facts})


@pytest.mark.parametrize(
    ("name", "lower", "upper", "text"),
    [
        ("n", pa.scalar(1, pa.int64()), pa.scalar(2, pa.int64()), "n > 2"),
        (
            "ts",
            pa.scalar(0, pa.timestamp("ns", "UTC")),
            pa.scalar(10, pa.timestamp("ns", "UTC")),
            "ts > '1970-01-02'",
        ),
        ("day", pa.scalar(0, pa.date32()), pa.scalar(1, pa.date32()), "day > '1970-01-02'"),
        ("s", pa.scalar("a"), pa.scalar("b"), "s > 'c'"),
        ("d", pa.scalar(Decimal("1.5")), pa.scalar(Decimal("2.5")), "d > 3"),
        ("f", pa.scalar(1.0), pa.scalar(2.0), "f < 1"),
    ],
)
def test_bounds_may_be_pyarrow_scalars(name: str, lower: Any, upper: Any, text: str) -> None:
    assert is_never_true(read(text), {(name,): Facts(lower, upper, 0, 10)})
    assert is_always_true(read(f"not ({text})"), {(name,): Facts(lower, upper, 0, 10, maybe_nan=False)})


def test_a_partition_value_decides_for_every_row() -> None:
    bounds = {("s",): Facts.from_constant("eu"), ("n",): Facts.from_constant(None)}
    assert is_always_true(read("s = 'eu'"), bounds)
    assert is_never_true(read("s in ('us', 'ap')"), bounds)
    assert is_always_true(read("n is null and s like 'e%'"), bounds)
    assert is_never_true(read("n = 1 or s <> 'eu'"), bounds)


def test_a_cast_that_keeps_order_and_values_is_seen_through_and_others_are_not() -> None:
    bounds = {
        ("n",): Facts(10, 20, 0, 10, type=pa.int32()),
        ("other",): Facts(2**53 + 1, 2**53 + 1, 0, 10, type=pa.int64()),
    }
    schema = pa.schema({"n": pa.int32(), "other": pa.int64(), "f": pa.float64()})
    assert is_never_true(resolve(parse_expression("n > other"), schema), bounds)
    assert is_never_true(resolve(parse_expression("cast(n as double) > 20"), schema), bounds)
    rounded = resolve(parse_expression("cast(other as double) = 9007199254740992e0"), schema)
    assert not is_never_true(rounded, bounds)
    assert not is_never_true(resolve(parse_expression("cast(n as varchar) = '3'"), schema), bounds)


def test_source_columns_are_unknown() -> None:
    both = resolve(parse_expression("source.n > 100"), SCHEMA, source=SCHEMA)
    assert not is_never_true(both, BOUNDS)
    assert is_never_true(resolve(parse_expression("target.n > 100"), SCHEMA, source=SCHEMA), BOUNDS)
