"""A DataFrame of a directory that Spark wrote merges back into it, for every type that Spark has."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.errors import IntarsiaError, SchemaMismatch

TYPES = {
    "day-time interval": "make_dt_interval(id, 2, 3, 4.000005 + {n})",
    "hours": "cast(make_dt_interval(0, id + {n}) as interval hour)",
    "negative interval": "-make_dt_interval(id, 2, 3, 4.000005 + {n})",
    "year-month interval": "make_ym_interval(id - 2, {n})",
    "years": "cast(make_ym_interval(id + {n}) as interval year)",
    "nested intervals": (
        "named_struct('i', make_dt_interval(id), 'l', array(make_ym_interval({n}, id), null),"
        " 'm', map('k', make_dt_interval({n})))"
    ),
    "char": "cast(concat('a', id, {n}) as char(8))",
    "varchar": "cast(concat('a', id, {n}) as varchar(9))",
    "collated": "concat('a', id, {n}) collate UNICODE_CI",
    "timestamp_ntz": "timestamp_ntz'2024-01-02 03:04:05.123456' + make_dt_interval(id, {n})",
    "timestamp": "timestamp'2024-01-02 03:04:05.123456' + make_dt_interval(id, {n})",
    "date": "date_add(date'2024-01-01', cast(id + {n} as int))",
    "binary": "cast(concat('x', id, {n}) as binary)",
    "decimal(38,0)": "cast(12345678901234567890123456789012345670 + id + {n} as decimal(38,0))",
    "decimal(5,2)": "cast(id + {n} + 0.25 as decimal(5,2))",
    "decimal(18,6)": "cast(id + {n} + 0.250001 as decimal(18,6))",
    "byte": "cast(id + {n} as byte)",
    "short": "cast(id + {n} as short)",
    "float": "cast(id + {n} + 0.5 as float)",
    "boolean": "id % 2 = {n}",
    "map of nested": "map(concat('a', id), named_struct('x', {n}, 'y', array(map(1, 'z'))))",
}
QUICK = ("day-time interval", "year-month interval", "nested intervals", "char")


def made(spark, expression, ids, n):
    text = f"id, if(id = 3, null, {expression.format(n=n)}) as c"
    return spark.range(*ids).selectExpr(*[text.partition(", ")[0], text.partition(", ")[2]])


def shown(frame):
    column = "c" if "variant" not in frame.schema["c"].dataType.simpleString() else "to_json(c)"
    return sorted(map(tuple, frame.selectExpr("id", f"cast({column} as string)").collect()))


def written(spark, expression, path):
    """A directory of two files that Spark wrote, and what it holds after the merge that is to come."""
    made(spark, expression, (0, 6, 1, 2), 0).write.parquet(str(path))
    old = shown(made(spark, expression, (0, 6), 0))
    new = shown(made(spark, expression, (2, 9), 1))
    return sorted({**dict(old), **dict(new)}.items())


@pytest.mark.parametrize("name", TYPES)
def test_it_merges_back_on_spark(spark, tmp_path, name):
    path = tmp_path / "t"
    expected = written(spark, TYPES[name], path)
    before = spark.read.parquet(str(path)).schema
    source = made(spark, TYPES[name], (2, 9), 1)
    source.write.parquet(str(tmp_path / "s"))
    result = it.merge(spark.read.parquet(str(tmp_path / "s")), str(path), on="id")
    assert (result.updated, result.inserted) == (4, 3)
    frame = spark.read.parquet(str(path))
    assert (frame.schema, shown(frame)) == (before, expected)
    for file in path.glob("*.parquet"):  # whichever Spark reads the types from
        assert spark.read.parquet(str(file)).schema == before, file


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
@pytest.mark.parametrize(
    "name", [name for name in TYPES if "year" not in name and name != "nested intervals"]
)
def test_it_merges_back_in_process(spark, tmp_path, name, engine):
    path = tmp_path / "t"
    expected = written(spark, TYPES[name], path)
    before = spark.read.parquet(str(path)).schema
    it.merge(made(spark, TYPES[name], (2, 9), 1).toArrow(), str(path), on="id", engine=engine)
    frame = spark.read.parquet(str(path))
    assert (frame.schema, shown(frame)) == (before, expected)


@pytest.mark.parametrize("engine", ["arrow", "duckdb", "spark"])
@pytest.mark.parametrize("name", QUICK)
def test_types_stay_through_other_operations(spark, tmp_path, name, engine):
    path = tmp_path / "t"
    chosen = spark if engine == "spark" else engine
    made(spark, TYPES[name], (0, 6, 1, 2), 0).write.parquet(str(path))
    before = spark.read.parquet(str(path)).schema
    it.delete(str(path), "id = 1", engine=chosen)
    it.compact(str(path), engine=chosen)
    frame = spark.read.parquet(str(path))
    kept = shown(made(spark, TYPES[name], (0, 6), 0).where("id <> 1"))
    assert (frame.schema, shown(frame)) == (before, kept)
    more = pa.table({"id": pa.array([0], pa.int64()), "more": ["x"]})
    it.merge(more, str(path), on="id", missing="null", schema_evolution="add", engine=chosen)
    assert spark.read.parquet(str(path)).schema["c"].dataType == before["c"].dataType


@pytest.mark.parametrize("name", QUICK)
def test_a_new_dataset_has_the_types_of_the_dataframe(spark, tmp_path, name):
    path = tmp_path / "t"
    frame = made(spark, TYPES[name], (0, 6), 0).selectExpr("id", "c", "id % 2 as part")
    it.write(frame, str(path), partition_by="part")
    it.merge(frame.where("id > 2"), str(path), on="id")
    found = spark.read.parquet(str(path))
    kind = frame.schema["c"].dataType.simpleString()
    assert found.schema["c"].dataType.simpleString() == kind
    assert shown(found) == shown(frame)
    it.write(frame.drop("part"), str(path), mode="overwrite", partition_by=[])
    assert spark.read.parquet(str(path)).schema["c"].dataType.simpleString() == kind


@pytest.fixture
def with_times(spark):
    """The session with the type TIME, which Spark 4.1 has behind a setting."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.timeType.enabled")


def test_spark_reads_the_times_of_a_dataset_that_was_made_of_its_dataframe(with_times, tmp_path):
    spark = with_times
    path = str(tmp_path / "t")
    times = "cast(concat('03:04:0', id, '.123456') as time(6))"
    frame = spark.range(4).selectExpr("id", f"{times} as t", f"array({times}) as l")
    it.write(frame, path)
    it.merge(frame.where("id = 2"), path, on="id")
    assert sorted(spark.read.parquet(path).collect()) == sorted(frame.collect())


@pytest.mark.parametrize("stored", ["int", "bigint", "string"])
def test_intervals_do_not_fit_columns_of_numbers_or_texts(spark, tmp_path, stored, unchanged):
    path = tmp_path / "t"
    made(spark, f"cast(id as {stored})", (0, 3), 0).write.parquet(str(path))
    for expression in ("make_ym_interval(1)", "make_dt_interval(1)"):
        with unchanged(path), pytest.raises(SchemaMismatch, match="'c'"):
            it.merge(made(spark, expression, (0, 3), 0), str(path), on="id")


def test_a_column_without_a_type_is_refused_where_it_would_have_to_have_one(spark, tmp_path):
    with pytest.raises(IntarsiaError, match="'c'"):
        it.write(spark.range(2).selectExpr("id", "null as c"), str(tmp_path / "t"))


def test_a_duration_that_is_no_whole_number_of_microseconds_is_refused(spark, tmp_path, unchanged):
    path = tmp_path / "t"
    made(spark, TYPES["day-time interval"], (0, 3), 0).write.parquet(str(path))
    rows = pa.table({"id": pa.array([1], pa.int64()), "c": pa.array([1001], pa.duration("ns"))})
    with unchanged(path), pytest.raises(SchemaMismatch, match="'c'"):
        it.merge(rows, str(path), on="id", engine="arrow")
    it.merge(rows.set_column(1, "c", pa.array([5], pa.duration("s"))), str(path), on="id", engine="arrow")
    found = spark.read.parquet(str(path)).where("id = 1").selectExpr("cast(c as string)").first()[0]
    assert found == "INTERVAL '0 00:00:05' DAY TO SECOND"
    assert all(pq.read_schema(file).field("c").type == pa.int64() for file in path.glob("*.parquet"))


VARIANT = """parse_json(concat('{{"a":', id, ',"b":[1,{{"c":"x{n}"}}]}}'))"""
OTHER = """parse_json(concat('{{"a":"t', id, '","z":{n}.5}}'))"""


@pytest.fixture
def shredding(spark):
    """``shredding(True)``: Spark writes VARIANT columns shredded, or not."""
    name = "spark.sql.variant.writeShredding.enabled"
    before = spark.conf.get(name)
    yield lambda wanted: spark.conf.set(name, str(wanted).lower())
    spark.conf.set(name, before)


@pytest.mark.parametrize("shredded", [True, False], ids=["shredded", "plain"])
@pytest.mark.parametrize("engine", ["spark", "arrow", "duckdb"])
def test_a_variant_merges_back(spark, tmp_path, engine, shredded, shredding):
    path = tmp_path / "t"
    shredding(shredded)
    made(spark, VARIANT, (0, 6, 1, 1), 0).write.parquet(str(path))
    source = made(spark, OTHER, (2, 9), 1).where("id <> 3")  # PySpark's toArrow() fails with a NULL
    it.merge(
        source if engine == "spark" else source.toArrow(),
        str(path),
        on="id",
        engine=spark if engine == "spark" else engine,
    )
    it.delete(str(path), "id = 0", engine=engine if engine != "spark" else spark)
    it.compact(str(path), engine=engine if engine != "spark" else spark)
    found = spark.read.parquet(str(path))
    assert found.schema["c"].dataType.simpleString() == "variant"
    rows = {**dict(shown(made(spark, VARIANT, (1, 6), 0))), **dict(shown(source))}
    assert shown(found) == sorted(rows.items())


def test_a_new_dataset_has_a_variant(spark, tmp_path):
    frame = made(spark, VARIANT, (0, 4), 0)
    it.write(frame, str(tmp_path / "t"))
    it.merge(made(spark, OTHER, (3, 6), 0), str(tmp_path / "t"), on="id")
    found = spark.read.parquet(str(tmp_path / "t"))
    assert found.schema["c"].dataType.simpleString() == "variant"
    assert found.count() == 6


@pytest.mark.parametrize("operation", ["delete", "compact", "merge"])
def test_files_that_are_shredded_in_different_ways_are_refused(
    spark, tmp_path, shredding, operation, unchanged
):
    path = tmp_path / "t"
    shredding(True)
    made(spark, VARIANT, (0, 3, 1, 1), 0).write.parquet(str(path))
    other = """parse_json(concat('{{"a":', id, ',"z":{n}}}'))"""
    made(spark, other, (4, 8, 1, 1), 0).write.mode("append").parquet(str(path))
    with unchanged(path), pytest.raises(SchemaMismatch, match="shredded in different ways"):
        if operation == "delete":
            it.delete(str(path), "id = 0")
        elif operation == "compact":
            it.compact(str(path))
        else:
            it.merge(made(spark, other, (0, 3), 1), str(path), on="id")
    shredding(False)
    it.write(made(spark, other, (0, 3), 1), str(path), mode="overwrite")
    assert spark.read.parquet(str(path)).schema["c"].dataType.simpleString() == "variant"
