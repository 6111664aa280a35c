"""optimize: rows in the order of a curve, NULLs last, nothing lost; deduplicated meanwhile when asked."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from intarsia.errors import ColumnNotFound, InputError


def _grid(side):
    """The points of a square, shuffled."""
    cells = side * side
    places = [n * 2531 % cells for n in range(cells)]
    return pa.table({"x": [n % side for n in places], "y": [n // side for n in places]})


N = 64 * 64
GRID = _grid(64)
WIDE_GRID = _grid(128)
LEAST_ROW_GROUP = 2048
"""DuckDB makes none of fewer rows."""


def _column(lake, name):
    return [value for file in lake.files for value in lake.file(file)[name].to_pylist()]


def test_one_column_is_a_sort_with_nulls_last(parquet_lake):
    parquet_lake.create(pa.table({"v": [3, None, 1, 2, None, 0], "s": list("abcdef")}), files=3)
    result = parquet_lake.optimize(by="v")
    assert _column(parquet_lake, "v") == [0, 1, 2, 3, None, None]
    assert all(name.startswith("optimized-") for name in parquet_lake.files)
    assert (result.total, result.deleted) == (6, 0)


def test_linear_is_the_plain_order_of_the_columns(parquet_lake):
    parquet_lake.create(GRID, files=4).optimize(by=["y", "x"], curve="linear")
    found = list(zip(_column(parquet_lake, "y"), _column(parquet_lake, "x"), strict=True))
    assert found == sorted(found)


@pytest.mark.parametrize("curve", ["zorder", "hilbert"])
def test_a_curve_lets_a_filter_on_any_column_skip_most_row_groups(parquet_lake, curve):
    parquet_lake.create(WIDE_GRID, files=4)
    parquet_lake.optimize(by=["x", "y"], curve=curve, row_group_size=LEAST_ROW_GROUP)
    (name,) = parquet_lake.files
    footer = parquet_lake.footer(name)
    assert footer.num_row_groups == 8
    for column in (0, 1):
        stats = [footer.row_group(g).column(column).statistics for g in range(footer.num_row_groups)]
        met = sum(s.min <= 20 <= s.max for s in stats)
        assert met <= len(stats) / 2
    assert sorted(zip(_column(parquet_lake, "x"), _column(parquet_lake, "y"), strict=True)) == sorted(
        zip(WIDE_GRID["x"].to_pylist(), WIDE_GRID["y"].to_pylist(), strict=True)
    )


@pytest.mark.parametrize("curve", ["zorder", "linear"])  # Hilbert's curve ends in another corner
@pytest.mark.parametrize("memory_bytes", [1, 1 << 30])
def test_rows_of_nulls_come_last_whatever_fits_into_memory(parquet_lake, curve, memory_bytes):
    table = pa.table({"a": [1, None, 2, None] * 50, "b": ["x", "y", None, None] * 50, "n": range(200)})
    parquet_lake.create(table, files=3).optimize(by=["a", "b"], curve=curve, memory_bytes=memory_bytes)
    found = list(zip(_column(parquet_lake, "a"), _column(parquet_lake, "b"), strict=True))
    assert found[-50:] == [(None, None)] * 50
    assert parquet_lake.values("n") == list(range(200))


@pytest.mark.parametrize("memory_bytes", [1, 1 << 30])
def test_hilbert_brings_nulls_together_and_loses_none(parquet_lake, memory_bytes):
    table = pa.table({"a": [1, None, 2, None] * 50, "b": ["x", "y", None, None] * 50, "n": range(200)})
    parquet_lake.create(table, files=3).optimize(by=["a", "b"], curve="hilbert", memory_bytes=memory_bytes)
    found = list(zip(_column(parquet_lake, "a"), _column(parquet_lake, "b"), strict=True))
    assert sum(one != other for one, other in itertools.pairwise(found)) == 3
    assert parquet_lake.values("n") == list(range(200))


def test_the_number_of_files_follows_the_target(parquet_lake):
    parquet_lake.create(GRID, files=2).optimize(by="x", target_rows_per_file=1024)
    assert [parquet_lake.footer(name).num_rows for name in parquet_lake.files] == [1024] * 4
    assert _column(parquet_lake, "x") == sorted(GRID["x"].to_pylist())


def test_partitions_are_ordered_apart_and_a_filter_leaves_the_rest(parquet_lake):
    parquet_lake.create(pa.table({"p": [1, 2] * 50, "v": range(100, 0, -1)}), partition_by="p", files=2)
    parquet_lake.optimize(by="v", partition_filter="p=1")
    assert [name.split("/")[1][:5] for name in parquet_lake.files] == ["optim", "part-", "part-"]
    (first, *_) = parquet_lake.files
    values = parquet_lake.file(first)["v"].to_pylist()
    assert values == sorted(values)


@pytest.mark.parametrize("memory_bytes", [1, 1 << 30])
def test_duplicates_go_meanwhile_when_asked(lake, memory_bytes):
    table = pa.table({"id": [1, 2, 1, 3, 2], "v": [5, 1, 4, 2, 9]})
    result = lake.create(table, files=2).optimize(
        by="v", deduplicate_on="id", dedup_order_by="v", memory_bytes=memory_bytes
    )
    assert lake.values("id", "v") == [(1, 5), (2, 9), (3, 2)]
    assert (result.deleted, result.total) == (2, 3)


def test_without_keys_rows_that_are_equal_in_every_column_count_as_one(lake):
    table = pa.table({"a": [1, 1, 1, None, None], "b": ["x", "x", "y", "z", "z"]})
    lake.create(table, files=2).optimize(by="a", deduplicate_on=[])
    assert lake.values("a", "b") == [(1, "x"), (1, "y"), (None, "z")]


def test_what_is_wrong_is_said(lake):
    lake.create(GRID)
    with pytest.raises(InputError, match="by="):
        lake.optimize()
    with pytest.raises(ColumnNotFound, match="'nope'"):
        lake.optimize(by="nope")
    with pytest.raises(InputError, match="curve"):
        lake.optimize(by="x", curve="peano")
    with pytest.raises(FileNotFoundError):
        lake.optimize(by="x", partition_filter="p=1")
