"""S25 with plain Spark: what it wrote keeps its types on every engine, and Spark reads it as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.elements import elements_of

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
    found = [elements_of(pq.read_metadata(path)) for path in sorted(root.glob("*.parquet"))]
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
