"""``intarsia.spark.read`` by Spark's own Parquet reader: where it is exact, and what commits change."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import os
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.errors import CommitConflict
from intarsia.spark import read
from intarsia.tables.iceberg import embedded_catalog

UTC = dt.UTC
OLD = dt.date(1500, 3, 1)
PLAIN = pa.table(
    {
        "id": pa.array([1, 2, 3, None], pa.int64()),
        "small": pa.array([1, -2, 3, None], pa.int16()),
        "text": pa.array(["a", "ü", "", None]),
        "flag": pa.array([True, False, None, True]),
        "day": pa.array([OLD, dt.date(2025, 3, 30), dt.date(9999, 12, 31), None]),
        "at": pa.array(
            [
                dt.datetime(1500, 3, 1, 12, tzinfo=UTC),
                dt.datetime(2025, 3, 30, 1, 30, tzinfo=UTC),
                dt.datetime(2025, 10, 26, 0, 30, tzinfo=UTC),
                None,
            ],
            pa.timestamp("us", "UTC"),
        ),
        "wall": pa.array([dt.datetime(2025, 3, 30, 2, 30), dt.datetime(1, 1, 1), None, None]),
        "price": pa.array([Decimal("1.25"), Decimal("-99999999.99"), None, Decimal("0.00")]),
        "ratio": pa.array([1.5, float("nan"), -0.0, None]),
        "raw": pa.array([b"\0", b"", None, b"x"]),
    }
)
ODD = {
    "unsigned": pa.array([1, 2**63, 0, None], pa.uint64()),
    "fine": pa.array([0, 1000, -1000, None], pa.timestamp("ns")),
    "time": pa.array([dt.time(1, 2, 3), None, dt.time(23, 59), dt.time(0)], pa.time64("us")),
    "nested": pa.array([[1], [], None, [2, 3]], pa.list_(pa.int32())),
    "half": pa.array([1, 2, None, 4], pa.duration("us")),
}


def plan(frame):
    """The physical plan, also on Connect."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        frame.explain()
    return shown.getvalue()


def is_native(frame):
    found = plan(frame)
    return "MapInArrow" not in found and "FileScan parquet" in found


def same(frame, expected):
    """Whether the rows of a DataFrame are those of a table."""
    found = frame.toArrow()
    assert found.column_names == expected.column_names
    names = expected.column_names
    key = [repr(row) for row in found.cast(expected.schema).select(names).to_pylist()]
    return sorted(key) == sorted(repr(row) for row in expected.to_pylist())


@pytest.fixture
def plain(tmp_path):
    path = str(tmp_path / "plain")
    it.write(PLAIN, path, engine="arrow")
    return path


@pytest.fixture
def orders(tmp_path):
    path = str(tmp_path / "orders")
    days = pa.array([dt.date(2025, 1, 1 + n % 3) for n in range(12)])
    it.write(
        pa.table({"id": range(12), "n": range(12), "day": days}), path, partition_by="day", engine="arrow"
    )
    return path


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_spark_reads_plain_types_by_itself_in_every_zone(spark, plain, zone):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = read(spark, plain)
        assert is_native(frame)
        assert same(frame, PLAIN)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize("odd", ODD)
def test_columns_of_other_types_are_read_by_the_kernel_where_they_are_asked_for(spark, tmp_path, odd):
    path = str(tmp_path / "odd")
    it.write(pa.table({"id": PLAIN["id"], odd: ODD[odd]}), path, engine="arrow")
    assert is_native(read(spark, path, columns="id"))
    frame = read(spark, path)
    assert not is_native(frame)
    assert sorted(map(str, frame.select("id").collect())) == sorted(
        map(str, read(spark, path, columns="id").collect())
    )


def test_filters_and_columns_of_spark_reach_the_files(spark, orders):
    found = plan(read(spark, orders).where("id = 4 and day = date '2025-01-02'").select("n"))
    assert "ReadSchema: struct<id:bigint,n:bigint>" in found
    assert "EqualTo(id,4)" in found
    assert "PartitionFilters: [isnotnull(day" in found


WHERES = [
    "id > 1",
    "id in (1, 3)",
    "id not in (1, 3)",
    "small <= -2 or small is null",
    "text = 'ü'",
    "not (text < 'b')",
    "flag",
    "not flag",
    "day = date '1500-03-01'",
    "day > '2025-01-01' and id is not null",
    "at >= timestamp '2025-03-30 01:30:00'",
    "price = 1.25",
    "price between -99999999.99 and 0",
]


@pytest.mark.parametrize("where", WHERES)
def test_conditions_on_plain_columns_are_sparks_with_the_rows_of_read(spark, plain, where):
    frame = read(spark, plain, where=where, columns=["id", "ratio"])
    assert (
        is_native(frame)
        or "10000000000000000000" in where
        or not it.read(plain, where=where).read_all().num_rows
    )
    assert same(frame, it.read(plain, where=where, columns=["id", "ratio"]).read_all())


@pytest.mark.parametrize(
    "where",
    [
        "ratio > 1",
        "text like 'a%'",
        "id + 1 > 2",
        "id in (1, null)",
        "wall < timestamp '2020-01-01 00:00:00'",
        pc.field("id") < 3,
    ],
    ids=str,
)
def test_other_conditions_are_the_kernels(spark, plain, where):
    frame = read(spark, plain, where=where, columns=["id"])
    assert not is_native(frame)
    assert same(frame, it.read(plain, where=where, columns=["id"]).read_all())


def test_a_frame_gives_the_state_of_the_call_after_a_commit(spark, orders):
    frame = read(spark, orders)
    assert is_native(frame)
    it.update(orders, {"n": "n + 100"}, engine="arrow")
    it.delete(orders, "id < 6", engine="arrow")
    assert sorted(row.n for row in frame.collect()) == list(range(12))
    later = read(spark, orders)
    assert sorted(row.n for row in later.collect()) == [n + 100 for n in range(6, 12)]
    assert later.exceptAll(frame).count() == 6


def test_a_frame_of_a_state_that_is_given_up_fails(spark, orders, tmp_path):
    frames = []
    for _ in range(3):
        frames.append(read(spark, orders))
        it.update(orders, {"n": "n + 1"}, engine="arrow")
    assert [frame.agg({"n": "sum"}).collect()[0][0] for frame in frames[1:]] == [78, 90]
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|PATH_NOT_FOUND"):  # the latter on Connect
        frames[0].collect()
    with pytest.raises(CommitConflict, match="the state of a dataset that it reads is gone"):
        it.write(frames[0], str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_files_that_somebody_may_overwrite_in_place_are_read_by_the_kernel(spark, tmp_path):
    """A hard link follows such a write, so that Spark would read new rows."""
    path = tmp_path / "t"
    path.mkdir()
    pq.write_table(pa.table({"id": [1, 2], "n": [0, 0]}), path / "part-0.parquet")
    it.merge(pa.table({"id": [2, 3], "n": [1, 1]}), path, on="id", engine="arrow")
    frame = read(spark, path)
    assert "MapInArrow" in plan(frame)
    assert "FileScan parquet" in plan(frame)  # of the new file, whose name is its own
    assert frame.count() == 3
    pq.write_table(pa.table({"id": [9], "n": [9]}), path / "part-0.parquet")
    with pytest.raises(Exception, match="replaced or removed since it was read"):
        frame.collect()


def test_files_of_spark_and_of_other_schemas_are_read_as_one_dataset(spark, tmp_path):
    path = str(tmp_path / "t")
    query = "select id, timestamp '1500-01-01 00:00:00 UTC' as at, 'x' as s from values (1L), (null) as t(id)"
    spark.sql(query).selectExpr("id", "if(id = 1, at, null) as at", "nullif(s, '') as s").write.parquet(path)
    more = pa.table({"id": [2], "s": ["y"], "extra": [1.5]})
    it.write(more, path, missing="null", schema_evolution="add", engine="arrow")
    frame, expected = read(spark, path), it.read(path).read_all()
    assert same(frame.select("id", "s", "extra"), expected.select(["id", "s", "extra"]))
    assert [row["at"] for row in frame.orderBy("id").collect()] == [
        row["at"] for row in spark.read.parquet(path).orderBy("id").collect()
    ]


def test_nothing_is_made_beside_what_others_have_written(spark, tmp_path, unchanged):
    path = str(tmp_path / "t")
    spark.range(3).write.parquet(path)
    with unchanged(tmp_path):
        frame = read(spark, path)
        assert frame.count() == 3
    assert not is_native(frame)


def test_reading_a_state_again_makes_no_more_links(spark, orders):
    for _ in range(3):
        assert read(spark, orders, where="id > 3").count() == 8
    snapshots = Path(orders).with_name(".orders.intarsia") / "snap"
    assert len([name for name in os.listdir(snapshots) if not name.endswith(".lock")]) == 1


def test_files_of_an_iceberg_table_without_deletes_are_sparks_also_with_a_condition(spark, tmp_path):
    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("db")
    catalog.create_table("db.t", schema=pa.schema([("id", pa.int64()), ("n", pa.string())]))
    table = it.iceberg("db.t", catalog=catalog)
    it.write(pa.table({"id": range(5), "n": list("abcde")}), table, engine="arrow")
    frame = read(spark, table, where="id > 2", columns=["n"])
    assert is_native(frame)
    it.delete(table, "id = 4", engine="arrow")
    assert sorted(row.n for row in frame.collect()) == ["d", "e"]
    assert [row.n for row in read(spark, table, where="id > 2").collect()] == ["d"]
