"""``spark.read.format("intarsia")``: the rows, types and states of ``it.read``, no ``register``."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import datasource

import intarsia as it
from intarsia.errors import IntarsiaError
from intarsia.kernel.read import FileReader
from intarsia.tables.iceberg import embedded_catalog
from pyspark_intarsia import DefaultSource
from pyspark_intarsia.filters import convert_filters
from pyspark_intarsia.reading import open_reader

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
ORDERS = pa.table(
    {
        "id": range(12),
        "day": [dt.date(2025, 1, 1 + n % 3) for n in range(12)],
        "n": [f"n{n}" for n in range(12)],
        "x": [float("nan") if n == 5 else n / 2 for n in range(12)],
    }
)


@pytest.fixture
def orders(tmp_path):
    path = str(tmp_path / "orders")
    it.write(ORDERS, path, partition_by="day", row_group_size=2, engine="arrow")
    return path


@pytest.fixture
def load(spark):
    def load(path: Any, **options: Any) -> Any:
        return spark.read.format("intarsia").options(**options).load(str(path))

    return load


@pytest.fixture
def setting(spark):
    """Sets settings of the session, and sets them back."""
    before: dict[str, str | None] = {}

    def choose(name: str, value: str) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield choose
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def test_a_dataset_has_the_rows_and_types_of_read(load, orders, rows):
    frame = load(orders)
    assert frame.schema.simpleString() == "struct<id:bigint,n:string,x:double,day:date>"
    assert rows(frame.toArrow()) == rows(it.read(orders).read_all())


def test_columns_and_where_are_read_alone(load, spark, orders):
    frame = load(orders, columns="n, id", where="id > 3 and day = date '2025-01-02'")
    assert sorted(map(tuple, frame.collect())) == [("n10", 10), ("n4", 4), ("n7", 7)]
    some = spark.read.format("intarsia").schema("id long").load(orders)
    assert some.columns == ["id"]
    assert some.count() == 12


CONDITIONS = [
    "id = 3",
    "id in (1, 4, null) and n <=> 'n4'",
    "id > 2 and not (id > 8) and n <> 'n4'",
    "day = date '2025-01-03' and n like 'n1%'",
    "day > '2025-01-01' or id = 0",
    "x > 3",
    "x = double('nan')",
    "not (n <=> 'n7')",
    "id + 1 = 5 and id < 99999999999999999999",
]


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_filters_of_spark_give_what_they_give_without_the_format(
    spark, load, orders, rows, setting, pushdown
):
    setting(PUSHDOWN, pushdown)
    plain = spark.createDataFrame(it.read(orders).read_all())
    for condition in CONDITIONS if pushdown == "true" else CONDITIONS[:2]:
        found, expected = load(orders).where(condition), plain.where(condition)
        assert rows(found.toArrow()) == rows(expected.toArrow()), condition


def test_pushed_filters_choose_files_and_row_groups(orders):
    reader = open_reader({"path": orders}, DefaultSource({"path": orders}).schema())
    every = reader.partitions()
    claimed = reader.pushFilters([datasource.EqualTo(("day",), dt.date(2025, 1, 2))])
    assert len(claimed) == 1  # Spark applies them all again
    assert len(every) > len(reader.partitions()) == 1
    reader.pushFilters([datasource.GreaterThan(("id",), 9)])
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["id"] for row in found] == [10]


def test_filters_that_spark_understands_otherwise_are_left_to_it():
    schema = pa.schema(
        [("x", pa.float64()), ("u", pa.uint64()), ("s", pa.struct([("a", pa.int64())])), ("i", pa.int64())]
    )
    assert convert_filters([datasource.GreaterThan(("x",), 1.0)], schema) is None
    assert convert_filters([datasource.EqualTo(("u",), 1)], schema) is None
    assert convert_filters([datasource.EqualTo(("s", "a"), 1)], schema) is None
    assert convert_filters([datasource.EqualTo(("i",), "1")], schema) is None
    assert convert_filters([datasource.Not(datasource.EqualNullSafe(("i",), 1))], schema) is None
    assert convert_filters([datasource.Not(datasource.In(("i",), (1, None)))], schema) is None
    assert convert_filters([datasource.EqualTo(("i",), 1)], schema) is not None


def test_an_iceberg_table_has_its_deletes_applied(load, tmp_path):
    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("db")
    catalog.create_table("db.t", schema=ORDERS.schema, properties={"format-version": "2"})
    target = it.iceberg("db.t", catalog=catalog, mode="merge-on-read")
    it.write(ORDERS, target, engine="arrow")
    it.delete(target, "id < 10", engine="arrow")
    frame = load("db.t", catalog=str(tmp_path / "warehouse"), columns="id")
    assert sorted(row.id for row in frame.collect()) == [10, 11]


TYPES = pa.table(
    {
        "small": pa.array([1, None], pa.uint8()),
        "big": pa.array([2**64 - 1, None], pa.uint64()),
        "cents": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "naive": pa.array([dt.datetime(2025, 7, 1, 12), None], pa.timestamp("us")),
        "zoned": pa.array([dt.datetime(2025, 7, 1, 12), None], pa.timestamp("us", "Asia/Tokyo")),
        "fine": pa.array([1_000, None], pa.timestamp("ns", "UTC")),
        "nest": pa.array(
            [[{"a": 1, "b": ["x"]}], None],
            pa.list_(pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
        ),
        "pairs": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "clock": pa.array([dt.time(1), None], pa.time64("us")),
    }
)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_types_and_instants_are_those_of_the_files_in_any_zone(spark, load, tmp_path, setting, zone):
    setting("spark.sql.session.timeZone", zone)
    path = str(tmp_path / "types")
    it.write(TYPES, path, engine="arrow")
    frame = load(path)
    assert [field.dataType.simpleString() for field in frame.schema] == [
        "smallint",
        "decimal(20,0)",
        "decimal(10,2)",
        "timestamp_ntz",
        "timestamp",
        "timestamp",
        "array<struct<a:int,b:array<string>>>",
        "map<string,bigint>",
        "bigint",
    ]
    said = frame.where("small = 1").selectExpr(
        "cast(big as string) big",
        "cast(naive as string) naive",
        "unix_micros(zoned) z",
        "unix_micros(fine) f",
        "nest[0].b[0] b",
        "clock",
    )
    assert [tuple(row) for row in said.collect()] == [
        ("18446744073709551615", "2025-07-01 12:00:00", 1_751_371_200_000_000, 1, "x", 3_600_000_000)
    ]
    assert frame.where("big is null and nest is null").count() == 1


def test_int96_of_sparks_own_files_is_the_instant_that_spark_reads(spark, load, tmp_path, setting):
    setting("spark.sql.session.timeZone", "America/New_York")
    path = str(tmp_path / "events")
    spark.sql("select timestamp '2025-07-01 12:00:00' as at, 1 as id").write.parquet(path)
    assert pq.read_schema(next((tmp_path / "events").glob("*.parquet"))).field("at").type.unit == "ns"
    assert load(path).collect() == spark.read.parquet(path).collect()
    setting(PUSHDOWN, "true")
    assert load(path).where("at = timestamp '2025-07-01 12:00:00'").count() == 1
    assert load(path).where("at > timestamp '2025-07-01 12:00:00'").count() == 0


def test_a_type_that_spark_lacks_is_refused_by_its_column(load, tmp_path):
    path = str(tmp_path / "wide")
    wide = pa.array([Decimal(1)], pa.decimal256(60, 0))
    it.write(pa.table({"id": [1], "sum": wide}), path, engine="arrow")
    with pytest.raises(
        Exception, match=r"intarsia.errors.NotSupported: Spark has no type for the column 'sum'"
    ):
        load(path)
    assert load(path, columns="id").count() == 1


def test_a_query_planned_before_a_file_was_replaced_fails_rather_than_mix_states(load, orders):
    reader = open_reader({"path": orders}, DefaultSource({"path": orders}).schema())
    parts = reader.partitions()
    it.update(orders, {"n": "'new'"}, engine="arrow")
    with pytest.raises(Exception, match="was replaced or removed since the query was planned"):
        [list(reader.read(part)) for part in parts]
    assert {row.n for row in load(orders).collect()} == {"new"}


def test_only_columns_that_are_asked_for_are_read(orders, monkeypatch):
    read: set[str] = set()
    inner = FileReader.read_live_pieces

    def spy(self: Any, columns: Any, *args: Any, **more: Any) -> Any:
        read.update(columns)
        return inner(self, columns, *args, **more)

    monkeypatch.setattr(FileReader, "read_live_pieces", spy)
    source = DefaultSource({"path": orders, "columns": "id"})
    reader = source.reader(source.schema())
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 12
    assert read == {"id"}


def test_a_table_of_sparks_catalog_of_this_format_is_refused_since_spark_tells_no_path(spark, orders):
    spark.sql(f"create table of_format using intarsia options (path '{orders}')")
    try:
        with pytest.raises(Exception, match=r"a path is needed.*USING intarsia"):
            spark.table("of_format").count()
    finally:
        spark.sql("drop table of_format")
    spark.read.format("intarsia").load(orders).createOrReplaceTempView("view_of_format")
    assert spark.sql("select count(*) from view_of_format").first()[0] == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "id"}, "InputError: there is no option 'column' for reading .*did you mean columns"),
        ({"columns": "idd"}, "ColumnNotFound: .*'idd'"),
        ({"where": "id >"}, "InputError: "),
        ({"branch": "b"}, "InputError: the option branch goes with an Iceberg table"),
        ({"tasks": "many"}, "InputError: tasks must be a number"),
        ({"storage_options": "x"}, "InputError: storage_options must be JSON"),
        ({"path": ""}, "InputError: a path is needed"),
        ({"paths": "[]"}, "InputError: one path is needed"),
        ({"path": "nothing/here"}, "NothingMatched: .*there is no dataset"),
    ],
    ids=str,
)
def test_wrong_options_are_told_when_the_table_is_loaded(orders, options, message):
    with pytest.raises(IntarsiaError) as caught:
        DefaultSource({"path": orders, **options}).schema()
    assert re.search(message, f"{type(caught.value).__name__}: {caught.value}")


def test_spark_raises_the_text_of_the_error_among_its_first_lines(load, orders):
    with pytest.raises(Exception, match=r"intarsia\.errors\.InputError: .*did you mean columns") as caught:
        load(orders, column="id")
    assert str(caught.value).partition("intarsia.errors.")[0].count("\n") < 8


def test_other_types_than_the_table_has_are_refused(spark, orders):
    with pytest.raises(Exception, match="SchemaMismatch: the column 'id' is bigint in the table"):
        spark.read.format("intarsia").schema("id string").load(orders).collect()
