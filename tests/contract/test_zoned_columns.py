"""Dates and parts of instants: those of the zone that files name for their column; Iceberg's is UTC."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq

import intarsia as it

NEW_YORK = pa.timestamp("us", "America/New_York")
UTC = dt.UTC
FIRST = dt.datetime(2025, 3, 8, 22, 30, tzinfo=UTC)
MOMENTS = [FIRST + dt.timedelta(hours=2 * n) for n in range(24)]
"""Two days across midnight here and there, and the hour that clocks skip on March 9."""
TARGET = pa.table(
    {
        "id": range(24),
        "at": pa.array(MOMENTS, pa.timestamp("us", "UTC")).cast(NEW_YORK),
        "day": pa.nulls(24, pa.date32()),
        "hour": pa.nulls(24, pa.int64()),
        "text": pa.nulls(24, pa.string()),
    }
)


def zone_of(lake):
    """Iceberg has no zones, only instants; its columns are UTC's whatever a file says."""
    return ZoneInfo("America/New_York") if type(lake.table).__name__ == "ParquetDirectory" else UTC


def instants(lake):
    return {row["id"]: row["at"].astimezone(UTC) for row in lake.rows()}


def midnight(moment, zone):
    local = moment.astimezone(zone)
    return local.replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)


def test_rows_are_deleted_by_the_dates_of_the_columns_zone(lake):
    lake.create(TARGET, files=4)
    zone = zone_of(lake)
    gone = {n for n, at in enumerate(MOMENTS) if at.astimezone(zone).date() == dt.date(2025, 3, 9)}
    result = lake.delete("cast(at as date) = date '2025-03-09' and at > '2025-03-01'")
    assert result.deleted == len(gone)
    assert set(lake.values("id")) == set(range(24)) - gone


def test_values_are_set_to_dates_and_parts_of_the_columns_zone(lake):
    lake.create(TARGET, files=2)
    zone = zone_of(lake)
    local = [at.astimezone(zone) for at in MOMENTS]
    lake.update(
        {
            "day": "cast(at as date)",
            "hour": "hour(at)",
            "text": "strftime(at, '%a %d %H:%M')",
            "at": "date_trunc('day', at)",
        },
        "hour(at) >= 5 or dayname(at) <> 'Sunday'",
    )
    changed = [n for n, at in enumerate(local) if at.hour >= 5 or at.strftime("%A") != "Sunday"]
    assert 0 < len(changed) < 24
    rows = {row["id"]: row for row in lake.rows()}
    for n, at in enumerate(local):
        found = rows[n]["day"], rows[n]["hour"], rows[n]["text"]
        assert found == ((at.date(), at.hour, at.strftime("%a %d %H:%M")) if n in changed else (None,) * 3)
    expected = {n: midnight(at, zone) if n in changed else at for n, at in enumerate(MOMENTS)}
    assert instants(lake) == expected
    lake.update({"at": "at + interval 1 day"}, "id = 0")
    moved = expected[0].astimezone(zone) + dt.timedelta(days=1)  # on the clock
    assert instants(lake)[0] == moved.astimezone(UTC)


def test_clauses_see_the_zones_of_both_sides(lake):
    lake.create(TARGET, files=2)
    zone, there = zone_of(lake), ZoneInfo("America/New_York")
    seen = [at + dt.timedelta(hours=1) for at in MOMENTS]
    source = pa.table(
        {
            "id": [*range(24), 100, 101],
            "seen": pa.array([*seen, seen[0], seen[5]], pa.timestamp("us", "UTC")).cast(NEW_YORK),
        }
    )
    clauses = [
        it.when_matched("hour(target.at) < 6 and hour(source.seen) > 6").delete(),
        it.when_matched().update({"day": "cast(source.seen as date)", "hour": "hour(target.at)"}),
        it.when_not_matched("hour(source.seen) < 12").insert(
            {"id": "source.id", "at": "date_trunc('day', source.seen)", "hour": "hour(source.seen)"}
        ),
    ]
    result = lake.merge(source, on="id", clauses=clauses)
    pairs = list(zip(MOMENTS, seen, strict=True))
    gone = {
        n for n, (a, s) in enumerate(pairs) if a.astimezone(zone).hour < 6 and s.astimezone(there).hour > 6
    }
    late = [n for n, s in ((100, seen[0]), (101, seen[5])) if s.astimezone(there).hour < 12]
    assert (result.deleted, result.updated, result.inserted) == (len(gone), 24 - len(gone), len(late))
    rows = {row["id"]: row for row in lake.rows()}
    assert set(rows) == set(range(24)) - gone | set(late)
    for n, (a, s) in enumerate(pairs):
        if n not in gone:
            assert rows[n]["day"] == s.astimezone(there).date()
            assert rows[n]["hour"] == a.astimezone(zone).hour
    for n in late:
        assert rows[n]["at"].astimezone(UTC) == midnight(seen[5], there)


def test_an_overwrite_by_the_dates_of_the_columns_zone(lake):
    lake.create(TARGET, files=2)
    zone = zone_of(lake)
    day = [n for n, at in enumerate(MOMENTS) if at.astimezone(zone).date() == dt.date(2025, 3, 9)]
    rows = TARGET.slice(day[0], 1)
    lake.write(rows, mode="overwrite", where="cast(at as date) = '2025-03-09'")
    assert set(lake.values("id")) == set(range(24)) - set(day[1:])


def test_files_of_several_zones_are_read_in_the_one_that_the_snapshot_shows(parquet_lake):
    parquet_lake.root.mkdir()
    column = TARGET["at"]
    for number, zone in enumerate(("America/New_York", "Asia/Tokyo", "UTC")):
        mine = column.slice(number * 8, 8).cast(pa.timestamp("us", zone))
        pq.write_table(
            pa.table({"id": range(number * 8, number * 8 + 8), "at": mine}),
            parquet_lake.root / f"part-{number}.parquet",
        )
    assert parquet_lake.snapshot().schema.field("at").type == NEW_YORK
    local = [at.astimezone(ZoneInfo("America/New_York")) for at in MOMENTS]
    gone = {n for n, at in enumerate(local) if at.date() == dt.date(2025, 3, 9)}
    assert parquet_lake.delete("cast(at as date) = '2025-03-09'").deleted == len(gone)
    left = [pq.read_table(file, columns=["id"]) for file in parquet_lake.root.glob("*.parquet")]
    assert set(pa.concat_tables(left)["id"].to_pylist()) == set(range(24)) - gone
