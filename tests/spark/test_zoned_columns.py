"""Dates and parts of instants where Spark's tasks compute them: the session's zone has no say."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.datasets.spark import SparkDatasetIO

pytestmark = pytest.mark.spark

NEW_YORK, UTC = ZoneInfo("America/New_York"), dt.UTC
MOMENTS = [dt.datetime(2025, 3, 8, 22, 30, tzinfo=UTC) + dt.timedelta(hours=2 * n) for n in range(24)]


@pytest.fixture(params=["Asia/Tokyo", "America/New_York"])
def zone(spark, request):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def visits(tmp_path):
    root = tmp_path / "visits"
    root.mkdir()
    at = pa.array(MOMENTS, pa.timestamp("us", "UTC")).cast(pa.timestamp("us", "America/New_York"))
    rows = pa.table({"id": range(24), "at": at, "hour": pa.nulls(24, pa.int64())})
    for part in (0, 1):
        pq.write_table(rows.slice(part * 12, 12), root / f"part-{part}.parquet")
    return root


@pytest.mark.parametrize("limit", [1, None], ids=["routed", "driver"])
def test_a_dataframe_is_in_utc_and_the_target_in_its_own_zone(spark, zone, visits, limit):
    names = ["id", "seen"]
    frame = spark.createDataFrame([(n, at) for n, at in enumerate(MOMENTS)], names)
    clauses = [
        it.when_matched("hour(source.seen) < 4").delete(),
        it.when_matched("hour(target.at) < 12").update({"hour": "100 * hour(target.at) + hour(source.seen)"}),
    ]
    options = {} if limit is None else {"broadcast_bytes": limit}
    it.merge(frame, visits, on="id", clauses=clauses, engine="spark", **options)
    found = it.snapshot(visits).dataset().to_table().sort_by("id")
    kept = [n for n, at in enumerate(MOMENTS) if at.hour >= 4]
    local = {n: MOMENTS[n].astimezone(NEW_YORK).hour for n in kept}
    assert found["id"].to_pylist() == kept
    assert found["hour"].to_pylist() == [
        100 * local[n] + MOMENTS[n].hour if local[n] < 12 else None for n in kept
    ]


def test_filters_of_reads_see_the_zone_of_the_files(spark, zone, visits):
    frame = SparkDatasetIO(spark).read_parquet(visits, filters="cast(at as date) = '2025-03-09'")
    wanted = [n for n, at in enumerate(MOMENTS) if at.astimezone(NEW_YORK).date() == dt.date(2025, 3, 9)]
    assert sorted(row["id"] for row in frame.select("id").collect()) == wanted
