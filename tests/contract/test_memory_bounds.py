"""What is read at once is bounded: by ``batch_rows`` where it is given, and never the whole table."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

N = 4000
TABLE = pa.table({"id": range(N), "s": [f"s{n % 9}" for n in range(N)], "n": [n % 100 for n in range(N)]})
IDS = list(range(0, N + 100, 7))
SOURCE = pa.table({"id": IDS, "s": ["x"] * len(IDS), "n": [0] * len(IDS)})


@pytest.fixture
def largest_read(monkeypatch):
    """The most rows that any one call gave back, in a list that the test may look at."""
    found = [0]

    def watched(method):
        def call(self, *args, **kwargs):
            table = method(self, *args, **kwargs)
            found[0] = max(found[0], table.num_rows)
            return table

        return call

    def watched_batches(method):
        def call(self, *args, **kwargs):
            for batch in method(self, *args, **kwargs):
                found[0] = max(found[0], batch.num_rows)
                yield batch

        return call

    def refused(*_args, **_kwargs):
        raise AssertionError("the whole table was read")

    for name in ("read", "read_row_group", "read_row_groups"):
        monkeypatch.setattr(pq.ParquetFile, name, watched(getattr(pq.ParquetFile, name)))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched_batches(pq.ParquetFile.iter_batches))
    monkeypatch.setattr(pq, "read_table", refused)
    monkeypatch.setattr(ds, "dataset", refused)
    return found


OPERATIONS = {
    "upsert": lambda lake, **k: lake.merge(SOURCE, on="id", **k),
    "full_merge": lambda lake, **k: lake.merge(SOURCE, on="id", strategy="full_merge", **k),
    "composite": lambda lake, **k: lake.merge(SOURCE, on=["id", "n"], **k),
    "delete": lambda lake, **k: lake.delete("n = 5", **k),
    "update": lambda lake, **k: lake.update({"s": "'y'"}, "n > 50", **k),
    "compact": lambda lake, **k: lake.compact(**k),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_call_reads_more_rows_than_asked_for(lake, largest_read, operation):
    lake.create(TABLE, files=2)
    OPERATIONS[operation](lake, batch_rows=64)
    assert 0 < largest_read[0] <= 64


@pytest.mark.parametrize("operation", ["upsert", "full_merge", "delete", "update", "composite"])
def test_small_batches_give_the_same_rows(lake, operation):
    lake.create(TABLE, files=2)
    whole = OPERATIONS[operation](lake)
    expected = lake.rows()
    lake.write(TABLE, mode="overwrite", max_rows_per_file=N // 2)
    pieces = OPERATIONS[operation](lake, batch_rows=7)
    assert lake.rows() == expected
    assert dict(pieces) == dict(whole)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_without_a_limit_a_row_group_is_the_most(lake, largest_read, operation):
    lake.create(TABLE, files=2, row_group_size=300)
    OPERATIONS[operation](lake)
    assert 0 < largest_read[0] <= 300


def test_only_key_columns_of_files_that_are_not_hit_are_read(parquet_lake, monkeypatch):
    parquet_lake.create(pa.table({"id": [1, 9, 2, 8], "s": list("abcd")}), files=2)
    read = []
    method = pq.ParquetFile.read_row_group

    def watched(self, number, columns=None, **kwargs):
        read.append(tuple(columns))
        return method(self, number, columns=columns, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    parquet_lake.merge(pa.table({"id": [5], "s": ["x"]}), on="id")
    assert set(read) == {("id",)}
