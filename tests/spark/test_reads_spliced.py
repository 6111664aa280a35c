"""Spark's own reader, which uses page indexes and Bloom filters, on files that were rewritten."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.kernel import chunk_copy

N = 20_000
TABLE = pa.table(
    {
        "id": range(N),
        "u": [f"{number * 7919 % N:08d}" for number in range(N)],
        "x": [number / 7 for number in range(N)],
        "l": [list(range(number % 4)) for number in range(N)],
    }
)


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_spark_finds_each_row_by_filters_on_copied_and_on_new_columns(
    spark, tmp_path, monkeypatch, checksums, version
):
    monkeypatch.setattr(chunk_copy, "CHUNK_BYTES", 0)
    path = tmp_path / "t"
    path.mkdir()
    pq.write_table(
        TABLE,
        path / "f.parquet",
        row_group_size=8000,
        data_page_size=2000,
        write_batch_size=200,
        data_page_version=version,
        write_page_index=True,
        write_page_checksum=checksums,
        bloom_filter_options={"u": {"ndv": N, "fpp": 0.01}},
    )
    it.update(path, {"x": "x + 100000"}, "id % 1000 = 5")
    frame = spark.read.parquet(str(path))
    assert frame.where("id between 7990 and 8010").count() == 21
    for number in (0, 7999, 8000, N - 1):
        (row,) = frame.where(f"u = '{number * 7919 % N:08d}'").collect()
        assert (row.id, row.l) == (number, list(range(number % 4)))
    changed = frame.where("x >= 100000").select("id").toArrow()["id"].to_pylist()
    assert sorted(changed) == list(range(5, N, 1000))
    assert frame.where("id = 1004 and x < 100000").count() == 1


@pytest.mark.parametrize("chunk_bytes", [0, chunk_copy.CHUNK_BYTES], ids=["copied", "encoded"])
@pytest.mark.parametrize("engine", ["arrow", "duckdb", "spark"])
def test_files_with_bloom_filters_of_every_column_are_rewritten(
    spark, tmp_path, monkeypatch, engine, chunk_bytes
):
    monkeypatch.setattr(chunk_copy, "CHUNK_BYTES", chunk_bytes)
    path = tmp_path / "t"
    inner = ("named_struct('yes', id % 3 = 0, 'n', id) as s", "array(id > 5) as l")
    frame = spark.range(0, 1000, 1, 2).selectExpr("id", "id % 2 = 0 as flag", *inner)
    frame.write.option("parquet.bloom.filter.enabled", "true").parquet(str(path))
    leaves = {"id", "flag", "s.yes", "s.n", "l.list.element"}
    assert _list_filtered(path) == leaves
    on = spark if engine == "spark" else engine
    it.update(path, {"flag": "not flag"}, "id % 100 = 7", engine=on)
    it.delete(path, "id % 100 = 8", engine=on)
    it.optimize(path, by="id", engine=on)
    assert _list_filtered(path) == {"id", "s.n"}
    found = spark.read.parquet(str(path))
    assert found.count() == 990
    assert found.where("flag and id % 2 = 1").count() == 10
    assert [row.id for row in found.where("s.n = 901").collect()] == [901]


def _list_filtered(path):
    """The leaves that have a Bloom filter in all files."""
    found = []
    for file in path.glob("*.parquet"):
        group = pq.read_metadata(file).row_group(0)
        chunks = (group.column(number) for number in range(group.num_columns))
        found.append({chunk.path_in_schema for chunk in chunks if chunk.bloom_filter_offset is not None})
    return set.intersection(*found)
