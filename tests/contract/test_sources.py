"""Everything that can be a source gives the same merge; one that can be read once is kept for a retry."""

from __future__ import annotations

import json

import duckdb
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from intarsia.errors import IntarsiaError

TARGET = pa.table({"id": [1, 2, 3], "s": ["a", "b", "c"]})
SOURCE = pa.table({"id": [3, 4], "s": ["C", "D"]})
AFTER = [(1, "a"), (2, "b"), (3, "C"), (4, "D")]


class Capsule:
    """Nothing but the Arrow stream protocol."""

    def __arrow_c_stream__(self, requested_schema=None):
        return SOURCE.__arrow_c_stream__(requested_schema)


def _parquet(tmp):
    pq.write_table(SOURCE, tmp / "source.parquet")
    return tmp / "source.parquet"


def _parquet_directory(tmp):
    (tmp / "source").mkdir()
    for number in range(2):
        pq.write_table(SOURCE.slice(number, 1), tmp / "source" / f"{number}.parquet")
    return tmp / "source"


def _csv(tmp):
    pa.csv.write_csv(SOURCE, tmp / "source.csv")
    return tmp / "source.csv"


def _json(tmp):
    text = "".join(json.dumps(row) + "\n" for row in SOURCE.to_pylist())
    (tmp / "source.jsonl").write_text(text)
    return tmp / "source.jsonl"


def _relation(_):
    connection = duckdb.connect()
    return connection.sql("select * from (values (3::bigint, 'C'), (4, 'D')) as t(id, s)")


SOURCES = {
    "table": lambda _: SOURCE,
    "batch": lambda _: SOURCE.to_batches()[0],
    "reader": lambda _: SOURCE.to_reader(),
    "dataset": lambda tmp: ds.dataset(_parquet(tmp)),
    "scanner": lambda tmp: ds.dataset(_parquet(tmp)).scanner(),
    "capsule": lambda _: Capsule(),
    "polars": lambda _: polars.from_arrow(SOURCE),
    "pandas": lambda _: pytest.importorskip("pandas") and SOURCE.to_pandas(),
    "duckdb": _relation,
    "parquet path": _parquet,
    "parquet text path": lambda tmp: str(_parquet(tmp)),
    "parquet url": lambda tmp: f"file://{_parquet(tmp)}",
    "parquet directory": _parquet_directory,
    "csv": _csv,
    "json": _json,
    "list of tables": lambda _: [SOURCE.slice(0, 1), SOURCE.slice(1)],
    "list of batches": lambda _: SOURCE.to_batches(max_chunksize=1),
    "generator of batches": lambda _: iter(SOURCE.to_batches(max_chunksize=1)),
    "list of paths": lambda tmp: [str(file) for file in sorted(_parquet_directory(tmp).iterdir())],
    "list of kinds": lambda tmp: [SOURCE.slice(0, 0), polars.from_arrow(SOURCE), SOURCE.slice(2)],
    "several chunks": lambda _: pa.concat_tables([SOURCE.slice(0, 1), SOURCE.slice(0, 0), SOURCE.slice(1)]),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", SOURCES)
def test_any_source_gives_the_same_merge(lake, tmp_path, kind):
    (tmp_path / "in").mkdir()
    lake.create(TARGET, files=2)
    result = lake.merge(SOURCES[kind](tmp_path / "in"), on="id")
    assert lake.values("id", "s") == AFTER
    assert (result.source_count, result.updated, result.inserted) == (2, 1, 1)


@pytest.mark.parametrize("kind", ["reader", "capsule", "generator of batches", "parquet directory", "csv"])
def test_a_source_kept_on_disk_gives_the_same_merge(lake, tmp_path, kind):
    (tmp_path / "in").mkdir()
    lake.create(TARGET)
    result = lake.merge(SOURCES[kind](tmp_path / "in"), on="id", spool_bytes=1, spool_dir=tmp_path / "in")
    assert lake.values("id", "s") == AFTER
    assert (result.source_count, result.updated, result.inserted) == (2, 1, 1)
    left = {path.name for path in (tmp_path / "in").iterdir()}
    assert not {name for name in left if name.startswith("intarsia-")}


@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge", "deduplicate"])
def test_a_large_source_kept_on_disk_gives_what_one_in_memory_gives(parquet_lake, tmp_path, strategy):
    target = pa.table({"id": range(3000), "s": [f"{n}" for n in range(3000)]})
    source = pa.table({"id": range(1500, 4500), "s": [f"new {n}" for n in range(3000)]})
    parquet_lake.create(target, files=3)
    reader = pa.RecordBatchReader.from_batches(source.schema, source.to_batches(max_chunksize=100))
    spooled = parquet_lake.merge(reader, on="id", strategy=strategy, spool_bytes=5000)
    found = parquet_lake.rows()
    parquet_lake.write(target, mode="overwrite")
    held = parquet_lake.merge(source, on="id", strategy=strategy)
    assert dict(spooled) == dict(held)
    assert found == parquet_lake.rows()


def test_a_source_of_text_takes_the_tables_types(lake, tmp_path):
    lake.create(pa.table({"id": ["007", "008"], "n": pa.array([1, 2], pa.int16())}))
    (tmp_path / "in.csv").write_text("id,n\n007,5\n009,6\n")
    lake.merge(tmp_path / "in.csv", on="id")
    assert lake.values("id", "n") == [("007", 5), ("008", 2), ("009", 6)]


def test_writes_and_clauses_take_any_source_too(lake):
    lake.write(SOURCE.to_reader())
    lake.write(polars.from_arrow(TARGET), mode="append")
    assert lake.values("id") == [1, 2, 3, 3, 4]


@pytest.mark.parametrize("wrong", [None, 42, object(), [], "nowhere.parquet", {"id"}])
def test_what_is_no_source_is_refused(lake, wrong):
    lake.create(TARGET)
    with pytest.raises(IntarsiaError):
        lake.merge(wrong, on="id")
    assert lake.values("id") == [1, 2, 3]


def test_the_table_itself_may_be_the_source(parquet_lake):
    parquet_lake.create(TARGET, files=2)
    result = parquet_lake.merge(parquet_lake.root, on="id")
    assert (result.updated, result.inserted) == (3, 0)
    assert parquet_lake.values("id", "s") == [(1, "a"), (2, "b"), (3, "c")]
