"""Dates and parts of instants are those of their column's zone; Python's zoneinfo is the judge."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
import pytest

from intarsia.core.evaluate import evaluate, evaluate_mask
from intarsia.core.expr import find_type, resolve
from intarsia.core.prove import Facts, is_always_true, is_never_true
from intarsia.engines.duckdb.predicate import compile_condition
from intarsia.errors import NotSupported, SchemaMismatch
from intarsia.sql.parse import parse_expression as sql

NEW_YORK = "America/New_York"
ZONES = [NEW_YORK, "Asia/Kolkata", "Australia/Lord_Howe", "America/Havana", "America/Sao_Paulo", "+05:30"]
UTC = dt.UTC


def moment(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=UTC)


def rows(*moments: dt.datetime | None, zone: str = NEW_YORK, unit: str = "us") -> pa.Table:
    return pa.table({"t": pa.array(moments, pa.timestamp(unit, "UTC")).cast(pa.timestamp(unit, zone))})


def computed(text: str, table: pa.Table) -> list[Any]:
    return evaluate(sql(text), table).to_pylist()


def instants(text: str, table: pa.Table) -> list[dt.datetime]:
    found = evaluate(sql(text), table)
    assert found.type.tz == table["t"].type.tz
    return found.cast(pa.timestamp(found.type.unit, "UTC")).to_pylist()


def zone_of(name: str) -> dt.tzinfo:
    return dt.timezone(dt.timedelta(hours=5, minutes=30)) if name == "+05:30" else ZoneInfo(name)


def many() -> list[dt.datetime]:
    """Every 30 minutes and a bit around the days on which clocks are set in one of the zones."""
    starts = [(2025, 3, 8), (2025, 11, 1), (2024, 4, 6), (2024, 10, 5), (2016, 10, 15), (2016, 2, 20)]
    starts += [(2025, 12, 31), (1883, 11, 17), (1969, 12, 31)]
    step = dt.timedelta(minutes=30, microseconds=1)
    return [moment(*start) + n * step for start in starts for n in range(120)]


PARTS = {
    "cast(t as date)": lambda t: t.date(),
    "cast(t as time)": lambda t: t.time(),
    "cast(t as timestamp)": lambda t: t.replace(tzinfo=None),
    "year(t)": lambda t: t.year,
    "quarter(t)": lambda t: (t.month + 2) // 3,
    "month(t)": lambda t: t.month,
    "week(t)": lambda t: t.isocalendar().week,
    "isoyear(t)": lambda t: t.isocalendar().year,
    "extract(day from t)": lambda t: t.day,
    "dayofyear(t)": lambda t: t.timetuple().tm_yday,
    "isodow(t)": lambda t: t.isoweekday(),
    "dayofweek(t)": lambda t: t.isoweekday() % 7,
    "hour(t)": lambda t: t.hour,
    "date_part('minute', t)": lambda t: t.minute,
    "microsecond(t)": lambda t: t.second * 1_000_000 + t.microsecond,
    "dayname(t)": lambda t: t.strftime("%A"),
    "monthname(t)": lambda t: t.strftime("%B"),
    "strftime(t, '%Y-%m-%d %H:%M:%S.%f %a %j')": lambda t: t.strftime("%Y-%m-%d %H:%M:%S.%f %a %j"),
    "date_diff('day', date '2016-01-01', t)": lambda t: (t.date() - dt.date(2016, 1, 1)).days,
}


@pytest.mark.parametrize("zone", ZONES)
def test_dates_and_parts_are_those_of_the_zone(zone: str) -> None:
    moments = many()
    local = [each.astimezone(zone_of(zone)) for each in moments]
    table = rows(*moments, zone=zone)
    for text, part in PARTS.items():
        assert computed(text, table) == [part(each) for each in local], text


@pytest.mark.parametrize("zone", ["UTC", "Z", "+00:00", "Etc/UTC", NEW_YORK])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_every_unit_and_name_of_a_zone(zone: str, unit: str) -> None:
    table = rows(moment(2025, 7, 1, 2, 30), None, zone=zone, unit=unit)
    day, hour = (30, 22) if zone == NEW_YORK else (1, 2)
    assert computed("day(t)", table) == [day, None]
    assert computed("hour(t)", table) == [hour, None]
    start = moment(2025, 6, 30, 4) if zone == NEW_YORK else moment(2025, 7, 1)
    assert evaluate(sql("date_trunc('day', t)"), table).cast(pa.int64()).to_pylist() == (
        pa.array([start, None], pa.timestamp(unit, "UTC")).cast(pa.int64()).to_pylist()
    )


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", ["year", "month", "week", "day", "hour", "minute"])
def test_a_period_starts_at_the_first_instant_that_clocks_show_it(zone: str, unit: str) -> None:
    moments = many()
    known = zone_of(zone)
    table = rows(*moments, zone=zone)
    for each, start in zip(moments, instants(f"date_trunc('{unit}', t)", table), strict=True):
        assert start <= each
        before = (start - dt.timedelta(microseconds=1)).astimezone(known)
        assert period(unit, start.astimezone(known)) == period(unit, each.astimezone(known))
        # Just before it was another period, or the same hour or minute for the first time.
        again = unit in ("hour", "minute") and before.utcoffset() != start.astimezone(known).utcoffset()
        assert period(unit, before) != period(unit, each.astimezone(known)) or again


def period(unit: str, local: dt.datetime) -> Any:
    if unit == "week":
        return local.isocalendar()[:2]
    names = ("year", "month", "day", "hour", "minute")
    return tuple(getattr(local, name) for name in names[: names.index(unit) + 1])


def test_starts_that_clocks_skip_or_show_twice() -> None:
    skipped = rows(moment(2016, 10, 16, 12), zone="America/Sao_Paulo")  # the day began at 01:00
    assert instants("date_trunc('day', t)", skipped) == [moment(2016, 10, 16, 3)]
    twice = rows(moment(2025, 11, 2, 4, 30), moment(2025, 11, 2, 5, 30), zone="America/Havana")
    assert instants("date_trunc('day', t)", twice) == [moment(2025, 11, 2, 4)] * 2  # 00:00, the first time
    assert instants("date_trunc('hour', t)", twice) == [moment(2025, 11, 2, 4), moment(2025, 11, 2, 5)]
    half = rows(moment(2024, 4, 6, 15, 15), moment(2024, 10, 5, 15, 45), zone="Australia/Lord_Howe")
    assert instants("date_trunc('hour', t)", half) == [moment(2024, 4, 6, 14), moment(2024, 10, 5, 15, 30)]


@pytest.mark.parametrize(
    ("start", "text", "end"),
    [
        ((2025, 3, 8, 17), "t + interval 1 day", (2025, 3, 9, 16)),  # noon and noon: 23 hours
        ((2025, 3, 8, 17), "t + interval 24 hour", (2025, 3, 9, 17)),
        ((2025, 11, 1, 16), "t + interval 1 day", (2025, 11, 2, 17)),  # 25 hours
        ((2025, 3, 8, 7, 30), "t + interval 1 day", (2025, 3, 9, 7, 30)),  # 02:30 is skipped: 03:30
        ((2025, 3, 10, 6, 30), "t - interval 1 day", (2025, 3, 9, 7, 30)),
        ((2025, 11, 1, 5, 30), "t + interval 1 day", (2025, 11, 2, 5, 30)),  # 01:30, the first
        ((2025, 11, 3, 6, 30), "t - interval 1 day", (2025, 11, 2, 6, 30)),  # 01:30 of its offset: the second
        ((2025, 11, 2, 6, 30), "t + interval 0 day", (2025, 11, 2, 6, 30)),
        ((2025, 2, 1, 4, 30), "t + interval 1 month", (2025, 3, 1, 4, 30)),  # of January 31: February 28
        ((2025, 2, 9, 17), "t + interval '1 month 1 hour'", (2025, 3, 9, 17)),
    ],
)
def test_days_and_months_are_added_on_the_calendar_of_the_zone(start: Any, text: str, end: Any) -> None:
    assert instants(text, rows(moment(*start))) == [moment(*end)]


def test_differences() -> None:
    table = rows(moment(2025, 3, 9, 4, 59)).append_column(
        "u", pa.array([moment(2025, 3, 9, 8)], pa.timestamp("ms", "UTC")).cast(pa.timestamp("ms", NEW_YORK))
    )
    assert computed("date_diff('day', t, u)", table) == [1]  # 23:59 and 04:00
    assert computed("date_diff('hour', t, u)", table) == [4]  # one of the five on clocks did not pass
    assert computed("date_diff('hour', date '2025-03-09', date_trunc('hour', u))", table) == [3]
    assert computed("date_diff('month', t, date '2025-04-01')", table) == [1]
    assert computed("date_diff('day', t, timestamp '2025-03-09 04:59:00')", table) == [0]  # which is UTC
    assert computed("date_diff('day', t, cast(u as timestamptz))", table) == [0]  # two zones: UTC
    assert computed("date_diff('day', t, timestamptz '2025-03-09 08:00:00+00')", table) == [1]
    assert computed("date_diff('day', timestamptz '2025-03-09 08:00:00+00', t)", table) == [-1]
    assert computed("last_day(t)", rows(moment(2025, 3, 1, 4))) == [dt.date(2025, 2, 28)]
    assert computed("epoch(t)", table) == [moment(2025, 3, 9, 4, 59).timestamp()]


def test_instants_stay_what_they_are() -> None:
    table = rows(moment(2025, 7, 1, 2, 30))
    for text in (
        "t = '2025-07-01 02:30:00'",
        "t = timestamp '2025-07-01 02:30:00'",
        "t = timestamptz '2025-06-30 22:30:00-04:00'",
        "t >= date '2025-07-01'",
        "t in ('2025-07-01 02:30:00', '2020-01-01')",
        "t - timestamptz '2025-07-01 00:00:00+00' = interval 150 minute",
        "cast(t as varchar) = '2025-07-01 02:30:00+00'",
        "cast(cast(t as varchar) as timestamptz) = t",
        "cast(t as date) = date '2025-06-30'",
        "cast(t as timestamp) = timestamp '2025-06-30 22:30:00'",
    ):
        assert evaluate_mask(sql(text), table).to_pylist() == [True], text


def test_the_zone_travels_where_all_share_it() -> None:
    schema = pa.schema(
        {
            "a": pa.timestamp("us", NEW_YORK),
            "b": pa.timestamp("ms", NEW_YORK),
            "c": pa.timestamp("us", "Asia/Tokyo"),
            "n": pa.timestamp("us"),
        }
    )
    for text, zone in {
        "coalesce(a, b)": NEW_YORK,
        "coalesce(b, n)": NEW_YORK,
        "coalesce(a, timestamptz '2025-01-01 00:00:00+09:00')": NEW_YORK,
        "case when a > c then a else b end": NEW_YORK,
        "greatest(a, c)": "UTC",
        "greatest(b, timestamptz '2025-01-01 00:00:00.000001+00')": NEW_YORK,
        "date_trunc('month', a + interval 1 month) - interval 5 minute": NEW_YORK,
        "cast(a as timestamptz)": "UTC",
        "nullif(c, a)": "Asia/Tokyo",
    }.items():
        assert find_type(sql(text), schema).tz == zone, text
        resolved = resolve(sql(text), schema)
        assert resolve(resolved, schema) == resolved


def test_two_zones_are_computed_in_utc() -> None:
    at = moment(2025, 7, 1, 2, 30)
    tokyo = pa.array([at], pa.timestamp("us", "UTC")).cast(pa.timestamp("us", "Asia/Tokyo"))
    table = rows(at).append_column("u", tokyo)
    assert computed("t = u", table) == [True]
    assert computed("hour(greatest(t, u))", table) == [2]
    assert computed("[hour(t), hour(u)]", table) == [[22, 11]]


def test_a_zone_that_nobody_knows_is_refused_where_it_matters() -> None:
    schema = pa.schema({"t": pa.timestamp("us", "Nowhere/City"), "day": pa.date32()})
    for text in (
        "cast(t as date)",
        "try_cast(t as date)",
        "cast(t as timestamp)",
        "hour(t)",
        "date_trunc('day', t)",
        "t + interval 1 day",
        "strftime(t, '%H')",
        "date_diff('day', t, day)",
    ):
        with pytest.raises(NotSupported, match="'Nowhere/City'") as caught:
            resolve(sql(text), schema)
        assert "tzdata" in str(caught.value)
    with pytest.raises(NotSupported):
        resolve(sql("t"), schema, expect=pa.date32())
    table = schema.empty_table()
    table = pa.table({"t": pa.array([0], schema.field("t").type), "day": pa.array([None], pa.date32())})
    for text in ("t = '1970-01-01'", "epoch(t) = 0", "cast(t as varchar) = '1970-01-01 00:00:00+00'"):
        assert evaluate_mask(sql(text), table).to_pylist() == [True]
    assert evaluate_mask(sql("t < current_timestamp - interval 1 hour"), table).to_pylist() == [True]


def test_a_time_of_day_that_an_assignment_would_lose_is_that_of_the_zone() -> None:
    table = rows(moment(2025, 7, 1, 4))  # midnight there
    to_date = resolve(sql("t"), table.schema, expect=pa.date32())
    assert evaluate(to_date, table).to_pylist() == [dt.date(2025, 7, 1)]
    table = rows(moment(2025, 7, 1))
    with pytest.raises(SchemaMismatch, match="which is no DATE"):
        evaluate(resolve(sql("t"), table.schema, expect=pa.date32()), table)


def test_nanoseconds_at_the_end_of_their_range_do_not_wrap() -> None:
    table = pa.table({"t": pa.array([2**63 - 1], pa.timestamp("ns", "Asia/Tokyo"))})
    with pytest.raises(ValueError, match="overflows"):
        computed("hour(t)", table)
    assert computed("try_cast(t as date)", table) == [None]


def test_bounds_prove_instants_and_nothing_of_the_calendar() -> None:
    kind = pa.timestamp("us", NEW_YORK)
    schema = pa.schema({"t": kind})
    lower, upper = (pa.scalar(each, kind) for each in (moment(2025, 7, 1, 1), moment(2025, 7, 1, 3)))
    bounds = {("t",): Facts(lower, upper, null_count=0, rows=9, type=kind)}  # all of it on June 30 there
    for text in ("cast(t as date) = '2025-06-30'", "cast(t as timestamp) < '2025-07-01'", "day(t) = 30"):
        expr = resolve(sql(text), schema)
        assert not is_never_true(expr, bounds), text
        assert compile_condition(expr, schema) is None  # DuckDB has no zone for it
    wall = resolve(sql("cast(t as timestamp) >= '2025-07-01'"), schema)
    assert not is_always_true(wall, bounds)
    assert is_never_true(resolve(sql("t > '2025-07-01 03:00:00'"), schema), bounds)
    assert is_always_true(resolve(sql("t >= timestamptz '2025-06-30 21:00:00-04'"), schema), bounds)
    assert compile_condition(resolve(sql("t > '2025-07-01'"), schema), schema) is not None


@pytest.mark.parametrize("zone", ZONES[:-1])
def test_duckdb_in_a_session_of_the_zone_says_the_same(zone: str) -> None:
    connection = duckdb.connect()
    try:
        connection.execute(f"set timezone = '{zone}'")
    except duckdb.Error as error:
        pytest.skip(f"DuckDB without zones: {error}")
    shown = rows(*sorted(each for each in many() if each.year > 1900), zone=zone)
    for text in (
        "cast(t as date)",
        "hour(t)",
        "dayofyear(t)",
        "strftime(t, '%d %H:%M')",
        "cast(t as timestamp)",
    ):
        found = connection.sql(f"select {text} as found from shown order by t").fetchall()
        assert computed(text, shown) == [each for (each,) in found], text


def test_fields_of_structs_and_dictionaries_have_their_zone() -> None:
    at = rows(moment(2025, 7, 1, 2, 30), None)["t"].chunk(0)
    table = pa.table({"p": pa.StructArray.from_arrays([at], names=["at"]), "d": at.dictionary_encode()})
    assert computed("hour(p.at)", table) == [22, None]
    assert computed("cast(d as date)", table) == [dt.date(2025, 6, 30), None]
    assert find_type(sql("array[p.at]"), table.schema).value_type.tz == NEW_YORK
