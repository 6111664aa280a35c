"""Dates and parts of random instants in random zones, against DuckDB in that zone and Python's zoneinfo."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.core.evaluate import evaluate
from intarsia.sql.parse import parse_expression

NAMES = [
    "America/New_York",
    "Europe/Berlin",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "UTC",
    "Pacific/Apia",  # skipped a whole day (2011-12-30)
    "America/Sao_Paulo",  # skipped midnight when clocks were set
]
instants = st.datetimes(dt.datetime(1975, 1, 1), dt.datetime(2035, 1, 1)).map(
    lambda t: t.replace(tzinfo=dt.UTC)
)
near = st.builds(  # the weeks in which clocks are set
    lambda year, start, minutes: dt.datetime(year, *start, tzinfo=dt.UTC) + dt.timedelta(minutes=minutes),
    st.integers(2000, 2024),
    st.sampled_from([(3, 8), (3, 25), (10, 14), (10, 25), (11, 1), (2, 15), (12, 29)]),
    st.integers(0, 9 * 1440),
)
PARTS = """
cast(t as date) | cast(t as timestamp) | year(t) | quarter(t) | month(t) | week(t) | isoyear(t) | day(t)
hour(t) | minute(t) | dayofyear(t) | isodow(t) | dayname(t) | monthname(t) | last_day(t)
strftime(t, '%Y-%m-%d %H:%M:%S') | floor(epoch(t)) | t < u | greatest(t, u) = t
"""
DIFFERENCES = [f"date_diff('{unit}', {{t}}, {{u}})" for unit in ("day", "month", "quarter", "year")]
"""Against DuckDB's difference of the dates: of instants it measures from the start of the day or month, which
is not midnight where clocks were set then, so that its answer depends on which of the two comes first (in
Lord Howe, March 1981 began at 00:30, and of that month it counts one month less to any later one)."""


@lru_cache(maxsize=1)
def duck() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(NAMES), st.lists(instants | near, min_size=2, max_size=40))
def test_parts_are_those_of_duckdb_in_a_session_of_the_zone(zone: str, moments: list[dt.datetime]) -> None:
    try:
        duck().execute(f"set timezone = '{zone}'")
    except duckdb.Error as error:
        pytest.skip(f"DuckDB without zones: {error}")
    kind = pa.timestamp("us", zone)
    columns = [pa.array(each, pa.timestamp("us", "UTC")).cast(kind) for each in (moments, moments[::-1])]
    rows = pa.table(columns, names=["t", "u"])
    texts = {text.strip(): text for line in PARTS.strip().splitlines() for text in line.split("|")}
    for text in DIFFERENCES:
        texts[text.format(t="t", u="u")] = text.format(t="cast(t as date)", u="cast(u as date)")
    found = duck().sql(f"select {', '.join(texts.values())} from rows").fetchall()
    for number, text in enumerate(texts):
        assert evaluate(parse_expression(text), rows).to_pylist() == [row[number] for row in found], text


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(NAMES), st.lists(instants | near, min_size=1, max_size=40))
def test_days_are_cut_and_moved_on_the_calendar_of_the_zone(zone: str, moments: list[dt.datetime]) -> None:
    rows = pa.table({"t": pa.array(moments, pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone))})
    shown = ZoneInfo(zone)
    cut = evaluate(parse_expression("date_trunc('day', t)"), rows).to_pylist()
    later = evaluate(parse_expression("t + interval 1 day"), rows).to_pylist()
    for moment, start, after in zip(moments, cut, later, strict=True):
        local = moment.astimezone(shown)
        assert start.astimezone(shown).date() == local.date()
        assert (start.astimezone(dt.UTC) - dt.timedelta(microseconds=1)).astimezone(
            shown
        ).date() < local.date()
        wall = (local.replace(tzinfo=None) + dt.timedelta(days=1)).replace(tzinfo=shown)
        allowed = {wall.replace(fold=fold).astimezone(dt.UTC) for fold in (0, 1)}
        assert after.astimezone(dt.UTC) in allowed
