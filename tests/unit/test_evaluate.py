"""What expressions compute, with DuckDB as the judge where both mean the same."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from intarsia.core.evaluate import evaluate, evaluate_mask
from intarsia.core.expr import Column, Compare, resolve, to_sql
from intarsia.errors import InputError, SchemaMismatch
from intarsia.sql.parse import parse_expression as sql

NAN = float("nan")
ROWS = pa.table(
    {
        "i": pa.array([1, -7, 0, None, 2147483647, 5], pa.int32()),
        "l": pa.array([10, 2**53 + 1, -3, None, 0, 7], pa.int64()),
        "u": pa.array([1, 2, 3, None, 0, 255], pa.uint8()),
        "f": pa.array([1.5, NAN, -0.0, None, math.inf, 0.1]),
        "g": pa.array([0.1, 1.5, NAN, None, -2.5, 0.0], pa.float32()),
        "d": pa.array([Decimal(t) if t else None for t in ("1.50", "-2.25", "0", "", "99999999.99", "3.33")],
                      pa.decimal128(10, 2)),
        "s": pa.array(["abc", "ABC", " x ", None, "a%c", "äöü"]),
        "b": pa.array([True, False, True, None, False, True]),
        "day": pa.array([dt.date(2024, 1, 31), dt.date(2023, 12, 31), dt.date(2024, 2, 29), None,
                         dt.date(1969, 7, 20), dt.date(2025, 6, 15)]),
        "ts": pa.array([dt.datetime(2024, 1, 31, 10, 20, 30, 500000), dt.datetime(2023, 12, 31, 23, 59, 59),
                        dt.datetime(2024, 2, 29), None, dt.datetime(1969, 7, 20, 20, 17),
                        dt.datetime(2025, 6, 15, 1, 2, 3)], pa.timestamp("us")),
        "p": pa.array([{"amt": 1, "n": {"x": "q"}}, {"amt": None, "n": None}, None,
                       {"amt": 5, "n": {"x": "r"}}, {"amt": 7, "n": {"x": None}},
                       {"amt": 1, "n": {"x": "q"}}]),
    }
)  # fmt: skip

SAME_AS_DUCKDB = """
i < 2.5 | i = 1.5 | i <> 1.5 | i = 3000000000 | l = 9007199254740993 | 1 < i | i between 0 and 5
i not between 0 and 5 | f > 1 | f = 'nan'::double | f <> f | f <= f | f < 'nan'::double
f >= 1.5 and g < 1 | g = 0.1 | g in (0.1, 1.5) | f in (0, 1.5) | f not in (0, 1.5, null)
f in ('nan'::double) | f = 0 | f = g | d > 1.499 | d = 1.5 | d * 1.1 | d + 1 | d - 0.005 | -d | d % 1
l - u | i * l | l // 3 | l % 3 | i / 4 | d / 4 | i % 3 = -1 | 5 - i | u + i | u = 255 | u > -1 | u < 300
i = l or f = g | s || 'x' | s || i | 'a' || null | s like 'a%' | s like '%b%' | s like '%c' | s like 'a_c'
s ilike 'A%C' | s like 'a!%c' escape '!' | s like 'a\\%c' | s not like 'a%' | s like 'abc' | s like ''
s like '%' | s like 'ä__' | lower(s) | upper(s) | trim(s) | ltrim(s) | rtrim(s) | trim(s, 'ac')
length(s) | substring(s, 2) | substring(s, 0, 2) | substring(s, -2, 1) | substr(s, 1, 1)
substring(s, 2, 0) | concat(s, '-', s) | concat(s, i) | replace(s, 'b', 'zz') | starts_with(s, 'a')
ends_with(s, 'c') | contains(s, '%') | s < 'b' | s in ('abc', 'x') | abs(i) | abs(d) | round(d, 1)
round(f, 1) | round(u, -1) | floor(d) | ceil(d) | floor(g) | trunc(d) | sign(d) | sign(i) | sqrt(abs(i))
power(u, 2) | greatest(i, l, 3) | least(i, l) | greatest(f, 1.0) | least(f, g) | i + null | coalesce(i, 0)
coalesce(s, 'none') | ifnull(d, 0) | nullif(i, 1) | if(b, i, l) | case i when 1 then 'one' end
case when i > 1 then 'big' when i < 0 then 'neg' else null end | case when i <> 0 then l / i end
coalesce(nullif(i, 0), 1 + i) | case when b then d else 0.125 end
case when b then 1 when i = 0 then 2.5 end | year(day) | month(ts) | day(ts) | hour(ts)
extract(minute from ts) | extract(dow from day) | quarter(day) | date_part('second', ts) | dayofyear(day)
week(day) | isodow(day) | hour(day) | date_trunc('month', ts) | date_trunc('month', day)
date_trunc('hour', ts) | date_trunc('week', ts) | date_trunc('quarter', day) | day >= '2024-01-31'
day > timestamp '2024-01-30 12:00:00' | ts = '2024-02-29' | ts > day
ts between '2023-01-01' and '2024-02-01' | day in ('2024-01-31', '2025-06-15') | day + interval 1 month
day - interval 1 year | ts + interval 3 hour | ts - interval '1' day | ts + interval '1 month 2 days'
day + 7 | ts + interval 25 month | day - interval 14 month | day - date '2024-01-01'
ts - timestamp '2024-01-01 00:00:00' | cast(i as varchar) | cast(d as varchar) | cast(ts as varchar)
cast(day as varchar) | cast(b as varchar) | cast(g as varchar) | cast(d as int) | cast(b as int)
cast(i as boolean) | cast(d as decimal(12, 1)) | cast(' 42 ' as int) | cast('1.555' as decimal(4, 2))
cast(ts as date) | cast(day as timestamp) | cast(u as float) | try_cast(s as int)
try_cast('2024-13-01' as date) | try_cast(s as date) | try_cast(l as int) | cast('yes' as boolean)
time '10:00' < time '11:00' | cast('2.5e0' as double) | cast(i as decimal(12, 2)) | cast(2.5e0 as int) | b
not b | b is true | b is not true | b is false | b and i > 0 | b or i > 0 | b and null | b or null
i is null | i is not null | i is distinct from 1 | s is not distinct from null | i in (1, 5)
i in (1, null) | i not in (1, 5) | i in (1.5, 5) | i in (l, 1) | not (i > 0) | true | null | 1 + 1
'a' || 'b' | b = (i > 0) | p.amt + 1 | p.n.x = 'q' | p.amt is null | p is null
i > 0 and not b or s = 'abc' | s = '' | -i | - (i - 1)
"""


def plain(value: Any) -> Any:
    """Values as both engines give them, without the differences of type that SQL does not see."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float | int | Decimal):
        number = float(value)
        return "nan" if math.isnan(number) else number if math.isinf(number) else float(f"{number:.12g}")
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day)
    return value


def ours(text: str, rows: pa.Table = ROWS) -> list[Any]:
    return [plain(value) for value in evaluate(sql(text), rows).to_pylist()]


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.register("rows", ROWS)
    return connection


CASES = [
    case.strip()
    for line in SAME_AS_DUCKDB.strip().splitlines()
    for case in line.replace("||", "\0").split("|")
]


@pytest.mark.parametrize("text", [case.replace("\0", "||") for case in CASES])
def test_an_expression_means_what_it_means_in_duckdb(text: str, duck: duckdb.DuckDBPyConnection) -> None:
    def theirs(sql_text: str) -> list[Any]:
        return [plain(row[0]) for row in duck.execute(f"select ({sql_text}) from rows").fetchall()]

    assert ours(text) == theirs(text)
    assert ours(text) == theirs(to_sql(resolve(sql(text), ROWS.schema)))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("9223372036854775807 + i", "overflow"),
        ("l * 9223372036854775807", "overflow"),
        ("i / 0", "zero"),
        ("l // i", "zero"),
        ("l % i", "zero"),
        ("f / g", "zero"),
        ("sqrt(i)", "negative"),
        ("cast(s as int)", "'(abc|äöü)'"),
        ("cast(s as date)", "'(abc|äöü)'"),
        ("cast(l as int)", "9007199254740993"),
        ("cast(i as utinyint)", "-7"),
        ("cast(f as int)", "nan"),
        ("cast(d as decimal(4, 2))", "99999999.99|precision|fit"),
        ("cast(1e300 as float)", "too large"),
        ("timestamp '2026-11-02 00:00:00+00:00'", "zone offset.*timestamptz"),
    ],
)
def test_what_does_not_fit_raises_with_the_expression_and_the_reason(text: str, part: str) -> None:
    with pytest.raises(InputError, match=f"(?s)cannot compute .*({part})") as caught:
        evaluate(sql(text), ROWS)
    assert isinstance(caught.value.__cause__, pa.ArrowInvalid)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i <> 0 and l // i > 2", [True, False, False, None, False, False]),
        ("i = 0 or l // i > 2", [True, False, True, None, False, False]),
        ("case when i <> 0 then l // i else -1 end", [10, -1286742750677284, -1, -1, 0, 1]),
        ("coalesce(i, 1 // (u - u))", None),
    ],
)
def test_a_guard_keeps_the_rows_away_from_what_would_raise(text: str, expected: list[Any] | None) -> None:
    if expected is None:  # the one row that is not guarded has NULL in u, too
        expected = [1, -7, 0, None, 2147483647, 5]
    assert ours(text) == [plain(value) for value in expected]


def test_the_mask_is_true_where_the_predicate_is_true_and_never_null() -> None:
    mask = evaluate_mask(sql("i > 0"), ROWS)
    assert isinstance(mask, pa.BooleanArray)
    assert mask.to_pylist() == [True, False, False, False, True, True]
    assert evaluate_mask(sql("not (i > 0)"), ROWS).to_pylist() == [False, True, True, False, False, False]
    assert evaluate_mask(sql("null"), ROWS).to_pylist() == [False] * 6
    assert evaluate_mask(sql("true"), ROWS).to_pylist() == [True] * 6
    with pytest.raises(SchemaMismatch):
        evaluate_mask(sql("i + 1"), ROWS)


def test_a_batch_gives_an_array_and_a_table_a_chunked_array() -> None:
    batch = ROWS.to_batches()[0]
    assert isinstance(evaluate(sql("i + 1"), batch), pa.Array)
    assert isinstance(evaluate(sql("i + 1"), ROWS), pa.ChunkedArray)
    assert evaluate(sql("1"), batch).to_pylist() == [1] * 6


@pytest.mark.parametrize(
    "text", ["i > 0", "1", "case when i > 0 then s end", "i <> 0 and l // i > 0", "null"]
)
def test_no_rows_give_no_values_of_the_same_type(text: str) -> None:
    full = evaluate(sql(text), ROWS)
    empty = evaluate(sql(text), ROWS.slice(0, 0))
    assert len(empty) == 0
    assert empty.type == full.type
    assert len(evaluate(sql(text), ROWS.to_batches()[0].slice(0, 0))) == 0


def test_chunks_that_do_not_line_up_are_computed_as_one_table() -> None:
    table = pa.table(
        {"a": pa.chunked_array([[1, 2], [3], [], [4, 5]]), "b": pa.chunked_array([[1], [1, 1, 1, 1]])}
    )
    other = pa.table({"a": pa.chunked_array([[10, 20, 30, 40], [50]])})
    assert evaluate(sql("a + b"), table).to_pylist() == [2, 3, 4, 5, 6]
    paired = evaluate(sql("target.a + source.a"), table, other)
    assert paired.to_pylist() == [11, 22, 33, 44, 55]
    assert evaluate_mask(sql("source.a > 20 and b = 1"), table, other).to_pylist() == [
        False,
        False,
        True,
        True,
        True,
    ]
    batch = table.combine_chunks().to_batches()[0]
    assert evaluate(sql("target.a + source.a"), batch, other).to_pylist() == paired.to_pylist()


def test_sides_of_different_length_are_refused() -> None:
    with pytest.raises(InputError, match="6 target rows cannot be paired with 2 source rows"):
        evaluate(sql("target.i = source.i"), ROWS, ROWS.slice(0, 2))


STORED = {
    "dictionary": pa.array(["x", "y", None]).dictionary_encode(),
    "large": pa.array(["x", "y", None], pa.large_string()),
    "view": pa.array(["x", "y", None], pa.string_view()),
}


@pytest.mark.parametrize("kind", STORED)
def test_text_is_text_however_it_is_stored(kind: str) -> None:
    table = pa.table({"s": STORED[kind], "plain": ["x", "z", None]})
    assert evaluate(sql("s = 'x'"), table).to_pylist() == [True, False, None]
    assert evaluate(sql("s = plain"), table).to_pylist() == [True, False, None]
    assert evaluate(sql("upper(s) || plain"), table).to_pylist() == ["Xx", "Yz", None]
    assert evaluate(sql("s in ('y', 'q') or s like 'x%'"), table).to_pylist() == [True, True, None]
    assert evaluate(sql("case when s = 'x' then s else plain end"), table).to_pylist() == ["x", "z", None]


@pytest.mark.parametrize(
    "type",
    [
        pa.dictionary(pa.int32(), pa.string()),
        pa.string_view(),
        pa.large_string(),
        pa.int8(),
        pa.float16(),
        pa.date64(),
        pa.time32("s"),
        pa.timestamp("ns", "America/New_York"),
        pa.decimal32(5, 2),
        pa.binary(2),
        pa.struct({"x": pa.int64()}),
        pa.list_(pa.int64()),
    ],
    ids=str,
)
def test_an_assignment_has_exactly_the_type_of_its_column(type: pa.DataType) -> None:
    texts = {"date64[ms]": "'2025-01-01'", "time32[s]": "'10:00'", "fixed_size_binary[2]": "'ab'"}
    column = pa.nulls(2, type)
    table = pa.table({"c": column, "n": [1, 2]})
    constant = texts.get(str(type)) or ("'ab'" if "string" in str(type) else "1")
    constant = "'2025-01-01 00:00:00'" if "timestamp" in str(type) else constant
    nested = pa.types.is_nested(type)
    for text in ["null", "c", *([] if nested else [constant, f"case when n = 1 then {constant} end"])]:
        expr = resolve(sql(text), table.schema, expect=type)
        if text.startswith("case") and pa.types.is_fixed_size_binary(type):
            continue
        values = (
            pc.cast(evaluate(expr, table), type)
            if expr == Column(("c",), None, True)
            else evaluate(expr, table)
        )
        assert values.type == type, text


def test_a_file_with_a_narrower_type_answers_the_same() -> None:
    expr = resolve(sql("n < 2.5 and n * 2 > 1"), pa.schema({"n": pa.int64()}))
    for type in (pa.int8(), pa.int16(), pa.int32(), pa.uint8()):
        table = pa.table({"n": pa.array([0, 1, 2, 3, None], type)})
        assert evaluate_mask(expr, table).to_pylist() == [False, True, True, False, False]


def test_zoned_timestamps_are_compared_as_instants_and_shown_in_their_zone() -> None:
    noon = dt.datetime(2025, 7, 1, 23, 30, tzinfo=dt.UTC)
    table = pa.table({"t": pa.array([noon], pa.timestamp("us", "Asia/Tokyo"))})
    assert evaluate(sql("hour(t)"), table).to_pylist() == [8]
    assert evaluate(sql("cast(t as date)"), table).to_pylist() == [dt.date(2025, 7, 2)]
    assert evaluate(sql("t = '2025-07-01 23:30:00'"), table).to_pylist() == [True]
    assert evaluate(sql("t = '2025-07-02 08:30:00+09:00'"), table).to_pylist() == [True]
    assert evaluate(sql("t < timestamp '2025-07-02 00:00:00'"), table).to_pylist() == [True]
    assert evaluate(sql("cast('2025-07-01T23:30:00Z' as timestamptz) = t"), table).to_pylist() == [True]
    assert evaluate(sql("cast(t as varchar)"), table).to_pylist() == ["2025-07-01 23:30:00+00"]


def test_nanoseconds_and_far_years_are_compared_exactly() -> None:
    table = pa.table({"t": pa.array([1, 2, 3], pa.timestamp("ns"))})
    assert evaluate(sql("t > '1970-01-01 00:00:00.000000002'"), table).to_pylist() == [False, False, True]
    assert evaluate(sql("t < '9999-12-31 00:00:00'"), table).to_pylist() == [True] * 3
    assert evaluate(sql("t > '9999-12-31'"), table).to_pylist() == [False] * 3


def test_large_integers_and_decimals_are_compared_exactly() -> None:
    table = pa.table({
        "n": pa.array([2**53, 2**53 + 1]),
        "u": pa.array([2**64 - 1, 2**63], pa.uint64()),
        "w": pa.array([Decimal(10**37), Decimal(10**37 + 1)], pa.decimal128(38, 0)),
    })  # fmt: skip
    assert evaluate(sql("n = 9007199254740993"), table).to_pylist() == [False, True]
    assert evaluate(sql("n > 9007199254740992.5"), table).to_pylist() == [False, True]
    assert evaluate(sql("u = 18446744073709551615"), table).to_pylist() == [True, False]
    assert evaluate(sql("u > n"), table).to_pylist() == [True, True]
    assert evaluate(sql(f"w = {10**37 + 1}"), table).to_pylist() == [False, True]
    assert evaluate(sql("w + w > w"), table).to_pylist() == [True, True]
    assert evaluate(sql("w * 2 > w"), table).to_pylist() == [True, True]


def test_try_cast_gives_null_for_each_value_that_does_not_fit_and_keeps_the_others() -> None:
    texts = ["1", " 2 ", "x", None, "99999999999", "2.5", "", "-3"] * 50
    table = pa.table({"s": texts})
    assert (
        evaluate(sql("try_cast(s as int)"), table).to_pylist()
        == [1, 2, None, None, None, None, None, -3] * 50
    )
    days = pa.table({"s": ["2024-02-29", "2023-02-29", "2024-2-9", None, "soon"]})
    assert evaluate(sql("try_cast(s as date)"), days).to_pylist() == [dt.date(2024, 2, 29), *[None] * 4]
    numbers = pa.table({"n": [1, 300, -1, None]})
    assert evaluate(sql("try_cast(n as utinyint)"), numbers).to_pylist() == [1, None, None, None]


def test_a_null_struct_has_null_fields() -> None:
    table = pa.table({"p": pa.array([{"a": 1}, None], pa.struct({"a": pa.int64()}))})
    assert evaluate(Compare("=", Column(("p", "a")), Column(("p", "a"))), table).to_pylist() == [True, None]


def test_five_thousand_conditions_are_no_deeper_than_a_few() -> None:
    text = " or ".join(f"i = {n}" for n in range(-5000, 0))
    assert evaluate_mask(sql(text), ROWS).to_pylist() == [False, True, False, False, False, False]
