"""S25 with plain Spark: what it wrote keeps its types on every engine, and Spark reads it as before."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.layout import read_elements
from intarsia.errors import InputError, KeyColumnError, NotSupported

TYPES = {
    "v": "parse_json('{\"a\": ' || id || '}')",
    "ym": "make_ym_interval(1, int(id))",
    "dt": "make_dt_interval(1, int(id))",
    "ntz": "timestamp_ntz '2024-01-01 10:00:00'",
    "ts": "timestamp '2024-01-01 10:00:00'",
    "d7": "cast(id as decimal(7, 2))",
    "d15": "cast(id as decimal(15, 2))",
    "d30": "cast(id as decimal(30, 2))",
    "l": "array(id, null)",
    "m": "map('a', id)",
    "s": "struct(id as x, cast(id as decimal(9, 1)) as y)",
    "b": "cast(id % 100 as byte)",
    "bin": "cast('x' as binary)",
}
NO_VARIANTS = tuple(name for name in TYPES if name not in ("v", "ym", "dt"))


def _schemas(root: Path) -> list[Any]:
    found = [read_elements(pq.read_metadata(path)) for path in sorted(root.glob("*.parquet"))]
    return [[one.root, *one.columns.items()] for one in found if one is not None]


@pytest.mark.parametrize("engine", ["arrow", "duckdb", "spark"])
@pytest.mark.parametrize("legacy", [False, True], ids=["standard", "legacy"])
def test_s25_types_of_spark_stay_what_they_are(spark: Any, tmp_path: Path, engine: str, legacy: bool) -> None:
    root = tmp_path / "lake"
    names = NO_VARIANTS if legacy else tuple(TYPES)
    before = spark.conf.get("spark.sql.parquet.writeLegacyFormat")
    spark.conf.set("spark.sql.parquet.writeLegacyFormat", str(legacy).lower())
    try:
        frame = spark.range(200).coalesce(1).selectExpr("id", *[f"{TYPES[name]} as {name}" for name in names])
        frame.write.parquet(str(root))
    finally:
        spark.conf.set("spark.sql.parquet.writeLegacyFormat", before)
    shown = {"v": "to_json(v) as v", "ym": "string(ym) as ym", "dt": "string(dt) as dt"}
    texts = [shown.get(name, name) for name in names]
    rows = frame.where("id <> 7").selectExpr("id", *texts).orderBy("id").collect()
    schemas, types = _schemas(root), spark.read.parquet(str(root)).schema
    it.delete(str(root), "id = 7", engine=engine)
    it.update(str(root), {"b": "b"}, "id = 8", engine=engine)
    assert _schemas(root) == schemas
    it.compact(str(root), engine=engine)
    it.optimize(str(root), by="id", engine=engine)
    assert _schemas(root)[:1] == schemas[:1]
    found = spark.read.parquet(str(root))
    assert found.schema == types
    assert found.selectExpr("id", *texts).orderBy("id").collect() == rows


DECLARED = """
    id bigint comment 'the key', c char(5) comment 'five', v varchar(9), co string collate UTF8_LCASE,
    n timestamp_ntz default timestamp_ntz'2020-01-01 00:00:00', t timestamp, ym interval year to month,
    dt interval day to second, d decimal(9, 2) default 1.50,
    s struct<a: char(3) comment 'in', i: interval day to second>, l array<varchar(4)>,
    m map<string, decimal(20, 3)>
"""
VALUES = """
    id, 'c' || id, 'v' || id, 'Co' || id, timestamp_ntz'2024-03-31 02:30:00', timestamp'2024-03-31 01:30:00',
    make_ym_interval(1, int(id)), make_dt_interval(1, int(id)), cast(id as decimal(9, 2)),
    named_struct('a', 'a' || id, 'i', make_dt_interval(int(id))), array('x'),
    map('k', cast(id as decimal(20, 3)))
"""
SHOWN = "id, c, v, co, n, t, string(ym), string(dt), d, s.a, string(s.i), l, m"


@pytest.mark.parametrize("engine", ["arrow", "duckdb", "spark"])
def test_s25_what_a_table_of_spark_declares_stays(spark: Any, tmp_path: Path, engine: str) -> None:
    """Lengths, collations, comments and defaults, in a session whose zone is not UTC."""
    root = tmp_path / "lake"
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark.sql(f"create table declared ({DECLARED}) using parquet location '{root}'")
    try:
        for first in (0, 10):
            spark.sql(f"insert into declared select {VALUES} from range({first}, {first + 10}, 1, 1)")
        table, seen = spark.table("declared").schema, spark.read.parquet(str(root)).schema
        rows = spark.sql(f"select {SHOWN} from declared where id not in (3, 12) order by id").collect()
        [before, *_] = _schemas(root)
        source = it.snapshot(str(root)).dataset().to_table()
        it.delete(str(root), "id in (3, 12)", engine=engine)
        it.update(str(root), {"v": "v"}, "id = 4", engine=engine)
        it.merge(source.slice(0, 2).replace_schema_metadata(None), str(root), on="id", engine=engine)
        it.write(source.slice(0, 2), str(root), engine=engine)
        for path in root.glob("*.parquet"):
            assert spark.read.parquet(str(path)).schema.json() == seen.json(), path.name
        it.deduplicate(str(root), on=["c", "v", "co", "n", "t", "ym", "dt", "d"], engine=engine)
        it.compact(str(root), engine=engine)
        it.optimize(str(root), by=["c", "id"], engine=engine)
        spark.sql("refresh table declared")
        assert all(found == before for found in _schemas(root))
        assert spark.read.parquet(str(root)).schema.json() == seen.json()
        assert spark.table("declared").schema == table
        assert spark.sql(f"select {SHOWN} from declared order by id").collect() == rows
    finally:
        spark.sql("drop table declared")
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_s25_nested_keys_are_refused_as_on_the_other_engines(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    it.write(pa.table({"id": [1, 1], "c": [{"a": 1}, {"a": 2}]}), root)
    for engine in ("arrow", spark):
        with pytest.raises(InputError, match="nested columns have no order: 'c'"):
            it.deduplicate(root, on="id", order_by="c", engine=engine)
        with pytest.raises(KeyColumnError, match="types that cannot be a key: 'c'"):
            it.optimize(root, by="id", deduplicate_on="c", engine=engine)


@pytest.mark.parametrize("engine", ["arrow", "duckdb", "spark"])
def test_s25_user_defined_types_of_spark_stay_what_they_are(spark: Any, tmp_path: Path, engine: str) -> None:
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

    from tests.spark.point_type import Point, PointUDT

    root = tmp_path / "lake"
    kinds = {
        "id": LongType(),
        "v": VectorUDT(),
        "p": PointUDT(),
        "l": ArrayType(PointUDT()),
        "s": StringType(),
    }
    schema = StructType([StructField(name, kind) for name, kind in kinds.items()])
    vectors = [Vectors.dense([1.5, 2.5]), Vectors.sparse(4, [1], [3.5]), None]
    rows = [(n, vectors[n % 3], Point(n + 0.5, 0.0), [Point(0.5, float(n))], f"s{n}") for n in range(6)]
    spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(root))
    before = {row.id: row for row in spark.read.parquet(str(root)).collect()}
    [elements] = _schemas(root)
    it.delete(root, "id = 1", engine=engine)
    assert _schemas(root) == [elements]
    it.update(root, {"s": "s"}, "id = 2", engine=engine)
    source = it.snapshot(str(root)).dataset().to_table()
    it.merge(source.slice(0, 2), root, on="id", engine=engine)
    it.write(source.slice(0, 2), root, engine=engine)
    it.deduplicate(root, on="id", engine=engine)
    for path in root.glob("*.parquet"):
        assert spark.read.parquet(str(path)).schema == schema, path.name
    it.compact(root, engine=engine)
    found = spark.read.parquet(str(root))
    assert found.schema == schema
    assert sorted(found.collect()) == [before[number] for number in (0, 2, 3, 4, 5)]


@pytest.mark.parametrize("times", ["INT96", "TIMESTAMP_MICROS"])
@pytest.mark.parametrize("engine", ["arrow", "duckdb", "spark"])
def test_s25_dates_of_the_old_calendar_are_read_as_before(
    spark: Any, tmp_path: Path, engine: str, times: str
) -> None:
    root = tmp_path / "lake"
    names = ("datetimeRebaseModeInWrite", "int96RebaseModeInWrite", "outputTimestampType")
    settings = [f"spark.sql.parquet.{name}" for name in names]
    before = [spark.conf.get(name) for name in settings]
    try:
        for name, value in zip(settings, ("LEGACY", "LEGACY", times), strict=True):
            spark.conf.set(name, value)
        dates = "case when id = 0 then date '1400-01-01' else date '2000-01-01' end as d"
        moments = "timestamp '2000-01-01 00:00:00' as at"
        spark.range(4).selectExpr("id", dates, moments, "'s' as s").coalesce(1).write.parquet(str(root))
    finally:
        for name, value in zip(settings, before, strict=True):
            spark.conf.set(name, value)
    rows = {row.id: row for row in spark.read.parquet(str(root)).collect()}
    it.delete(root, "id = 1", engine=engine)
    it.update(root, {"s": "s"}, "id = 0", engine=engine)
    now = pa.array([0], pa.timestamp("us", "UTC"))
    source = pa.table({"id": [2], "d": [dt.date(1500, 1, 1)], "at": now, "s": ["s"]})
    for dry_run in (True, False):
        with pytest.raises(NotSupported, match="1 new value of column 'd'"):
            it.update(root, {"d": "DATE '1500-01-01'"}, "id = 2", engine=engine, dry_run=dry_run)
        with pytest.raises(NotSupported, match="1 new value of column 'd'"):
            it.merge(source, root, on="id", engine=engine, dry_run=dry_run)
    found = spark.read.parquet(str(root)).orderBy("id").collect()
    assert found == [rows[number] for number in (0, 2, 3)]
