"""The functions of expressions at their edges: NULL, nothing, below zero, beyond the end, other scripts."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from intarsia.core.evaluate import evaluate
from intarsia.core.expr import resolve, to_sql
from intarsia.core.expr.functions import (
    ANY_FUNCTIONS,
    FUNCTIONS,
    NUMBER_FUNCTIONS,
    TEXT_FUNCTIONS,
    TIME_FUNCTIONS,
)
from intarsia.errors import InputError, NotSupported
from intarsia.sql.parse import parse_expression

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
ROWS = pa.table(
    {
        "s": ["hello", "", None, "aé😀x", "a,b,,c", "x\ny"],
        "n": [-2, 0, 1, None, 3, 99],
        "f": [1.5, float("nan"), float("inf"), None, -0.0, 100.0],
        "day": pa.array([0, -1, None, 19_782, 19_783, 2_932_000], pa.date32()),
        "ts": pa.array([0, -1, None, 1_709_210_096_789_000, 86_399_999_999, 1], pa.timestamp("us")),
        "tz": pa.array([0, -1, None, 1_709_210_096_789_000, 86_399_999_999, 1], pa.timestamp("us", "UTC")),
    }
)
UNITS = ("year", "quarter", "month", "day", "hour", "minute", "second", "millisecond", "microsecond")
SPANS = ("day, date '2024-02-29'", "ts, timestamp '1969-12-31 22:30:00'", "tz, ts")
READ = {
    "%Y-%m-%d": ("2024-1-2", " 2024-01-02 "),
    "%y %m": ("99 1", "68 12"),
    "%I %p": ("12 am", "12 PM", "1 pm"),
    "%B %d %Y": ("JANUARY 5 2024",),
    "%b %d %Y": ("jan 5 2024",),
    "%Y-%j": ("2024-366",),
    "%Y%m%d": ("20240102",),
    "%H:%M:%S.%f": ("1:2:3.5",),
}
UNREAD = {"%Y-%m-%d": "2024-02-30", "%Y": "x", "%H": "24", "%m": "13", "%I": "0", "%d": "-1", "%S": "60"}
LISTED = r"""
lpad(s, cast(n as int), 'ab') | repeat(s, n) | repeat(s, 2) | concat_ws('-', s, n, day)
concat_ws(s, 'a', 'b') | concat_ws(null, s) | concat_ws('x', null, null) | strpos(s, 'l') | strpos(s, '😀')
strpos(s, '') | strpos(s, '.') | instr(s, ',') | position('x' in s) | regexp_matches(s, 'x.y')
regexp_matches(s, 'x.y', 's') | regexp_matches(s, 'HE', 'i') | regexp_matches(s, null) | regexp_matches(s, '')
regexp_full_match(s, 'h.*o') | regexp_replace(s, 'l', 'L') | regexp_replace(s, 'l', 'L', 'g')
regexp_replace(s, '(.)(.)', '\2\1', 'g') | regexp_replace(s, '', '-', 'g') | regexp_replace(s, '.', 'x', 'l')
regexp_extract(s, 'l+') | regexp_extract(s, '(h)(e)?', 2) | regexp_extract(s, '(h)(z)?', 2)
regexp_extract(s, 'h', 3) | regexp_extract(s, 'L+', 0, 'i') | regexp_extract(s, '^.*?(lx?)', 1)
md5(s) | sha1(s) | sha256(s) | md5('x'::blob) | isnan(f) | isinf(f) | isfinite(f) | isnan(n) | exp(n / 10)
ln(abs(n) + 1) | log10(abs(n) + 1) | log2(abs(n) + 1) | log(abs(n) + 1) | log(3, abs(n) + 1)
datediff('day', day, date '2000-01-01') | date_trunc('month', tz) | date_part('hour', tz) | cast(tz as date)
last_day(day) | last_day(ts) | dayname(day) | monthname(tz) | epoch(day) | epoch(ts) | epoch(tz)
extract(epoch from ts) | epoch(time '01:00:00') | date_part('millisecond', ts) | date_part('microsecond', ts)
isoyear(day) | make_date(2024, 2, 29) | make_date(null, 1, 1) | make_date(n + 2000, 1, 1) | date(ts)
make_timestamp(2024, 1, 2, 3, 4, 5.678) | strftime(day, '%H x') | strftime(ts, '%Y-%m-%d %H:%M:%S.%f %g')
strftime(ts, '%y %j %b %B %a %A %p %I %-d %-m %-H %-I %% %G %V %u %w') | greatest(n, null, 2)
least(s, 'b') | greatest(f, 1.0) | nullif(n, 1) | coalesce(n, f) | ifnull(s, '-')
"""
SAME_AS_DUCKDB = [
    *(case.strip() for line in LISTED.strip().splitlines() for case in line.split(" | ")),
    *(f"{name}(s, {n})" for name in ("left", "right") for n in ("-9", "-2", "0", "2", "9", "n", "null")),
    *(f"substring(s, {start}, {n})" for start in ("1", "2", "-2", "n") for n in ("0", "2", "9")),
    *(f"split_part(s, ',', {n})" for n in ("-9", "-1", "0", "1", "3", "9", "n", "null")),
    *(f"split_part(s, '', {n})" for n in ("1", "-1", "9")),
    *(f"lpad(s, {n}, {fill})" for n in ("-1", "0", "3", "8") for fill in ("'é'", "'xyz'", "null")),
    *(f"rpad(s, {n}, {fill})" for n in ("-1", "0", "3", "8") for fill in ("'é'", "'xyz'", "null")),
    *(f"date_diff('{unit}', {span})" for unit in UNITS for span in SPANS),
    *(f"strptime('{text}', '{format}')" for format, texts in READ.items() for text in texts),
    *(f"try_strptime('{text}', '{format}')" for format, text in UNREAD.items()),
]


def computed(text: str, dialect: str | None = None) -> list[Any]:
    resolved = resolve(parse_expression(text, dialect=dialect), ROWS.schema)
    return evaluate(resolved, ROWS).to_pylist()


def plain(value: Any) -> Any:
    """Values without the differences of type that SQL does not see."""
    if isinstance(value, float):
        return float(f"{value:.12g}") if value == value else "nan"
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    return dt.datetime(value.year, value.month, value.day) if isinstance(value, dt.date) else value


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.register("rows", ROWS)
    return connection


@pytest.mark.parametrize("text", SAME_AS_DUCKDB)
def test_functions_mean_what_duckdb_means(duck: duckdb.DuckDBPyConnection, text: str) -> None:
    written = to_sql(resolve(parse_expression(text), ROWS.schema))
    for asked in (text, written):
        theirs = duck.sql(f"select ({asked}) from rows").to_arrow_table().column(0).to_pylist()
        assert [plain(value) for value in computed(text)] == [plain(value) for value in theirs]


def test_what_only_one_engine_would_mean_is_ours() -> None:
    assert computed("date_diff('week', date '2024-01-07', day)")[3:5] == [7, 7]  # whole weeks
    assert computed("sha512(s)")[0] == hashlib.sha512(b"hello").hexdigest()
    assert computed("to_timestamp(n + 0.5)")[0] == dt.datetime(1969, 12, 31, 23, 59, 58, 500000, dt.UTC)
    assert computed("lpad(s, 7)")[0] == "  hello"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lpad(s, 9, '')", "nothing to fill"),
        ("substring(s, 1, -1)", "negative length"),
        ("make_date(2024, 2, n)", "no such day in 3 rows"),
        ("make_timestamp(2024, 1, 1, 24, 0, 0)", "no such day or time"),
        ("strptime(s, '%Y')", "'hello' is not of the format '%Y' \\(5 rows\\)"),
        ("strptime(s, '%Q')", "%Q"),
        ("strftime(ts, '%')", "is not known in the format"),
        ("regexp_matches(s, '(')", "missing"),
        ("regexp_matches(s, 'a', 'z')", "no option 'z'"),
        ("regexp_extract(s, 'a', 9)", "no group 9"),
        ("date_diff('eon', ts, ts)", "there is no unit 'eon'"),
        ("ln(n)", "logarithm"),
        ("sqrt(-1)", "square root"),
    ],
)
def test_what_has_no_answer_is_said(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        computed(text)


@pytest.mark.parametrize("text", ["regexp_matches(s, s)", "replace(s, s, 'x')", "strftime(ts, s)"])
def test_patterns_and_formats_are_constants(text: str) -> None:
    with pytest.raises(NotSupported, match="must be a constant"):
        computed(text)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("lft(s, 1)", "left"),
        ("regex_replace(s, 'a', 'b')", "regexp_replace"),
        ("datedif('day', ts, ts)", "date_diff"),
        ("hash(s)", "md5, sha1, sha256 and sha512"),
        ("levenshtein(s, s)", "docs/sql.md"),
    ],
)
def test_an_unknown_function_is_told_near_ones(text: str, near: str) -> None:
    with pytest.raises(NotSupported, match=re.escape(near)):
        computed(text)


@pytest.mark.parametrize(
    ("spark", "duckdb_"),
    [
        ("s rlike 'l+'", "regexp_matches(s, 'l+')"),
        ("regexp_replace(s, '(l)', '<$1>')", r"regexp_replace(s, '(l)', '<\1>', 'g')"),
        ("regexp_extract(s, '(l)(l)')", "regexp_extract(s, '(l)(l)', 1)"),
        ("datediff(day, date '2024-01-01')", "date_diff('day', date '2024-01-01', day)"),
        ("date_add(day, 3)", "day + 3"),
        ("date_sub(ts, 3)", "cast(ts as date) - 3"),
        ("add_months(date '2024-01-31', 1)", "date '2024-01-31' + interval 1 month"),
        ("date_format(ts, 'yyyy-MM-dd HH:mm')", "strftime(ts, '%Y-%m-%d %H:%M')"),
        ("to_date('2024-01-02', 'yyyy-MM-dd')", "cast(strptime('2024-01-02', '%Y-%m-%d') as date)"),
        ("to_timestamp('02.01.2024', 'dd.MM.yyyy')", "strptime('02.01.2024', '%d.%m.%Y')"),
        ("sha2(s, 256)", "sha256(s)"),
        ("sha2(s, 0)", "sha256(s)"),
        ("locate('l', s)", "strpos(s, 'l')"),
        ("lpad(s, 7)", "lpad(s, 7, ' ')"),
        ("log(abs(n) + 1)", "ln(abs(n) + 1)"),
        ("make_date(2024, 1, 2)", "make_date(2024, 1, 2)"),
        ("last_day(day)", "last_day(day)"),
        ("left(s, 2)", "left(s, 2)"),
    ],
)
def test_spark_spells_them_otherwise(spark: str, duckdb_: str) -> None:
    assert computed(spark, "spark") == computed(duckdb_)


def _table(functions: dict[str, Any]) -> list[str]:
    return [f"| `{name}({f.takes})` | {f.about} |" for name, f in functions.items()]


@pytest.mark.parametrize("functions", [TEXT_FUNCTIONS, NUMBER_FUNCTIONS, TIME_FUNCTIONS, ANY_FUNCTIONS])
def test_the_page_lists_every_function_as_it_is(functions: dict[str, Any]) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    missing = [line for line in _table(functions) if line not in lines]
    assert not missing, "docs/sql.md lacks\n" + "\n".join(missing)


def test_the_page_lists_no_other_function() -> None:
    listed = re.findall(r"^\| `(\w+)\(", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(FUNCTIONS)


def test_texts_that_no_column_can_hold_are_refused() -> None:
    with pytest.raises(InputError, match="more than 2 GiB"):
        evaluate(resolve(parse_expression("repeat('x', 10000000000)"), ROWS.schema), ROWS)
