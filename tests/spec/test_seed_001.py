"""Merging, writing and maintaining Parquet datasets with PyArrow."""

from __future__ import annotations

import ast
import errno
import hashlib
import importlib.util
import json
import logging
import operator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from spec_tables import bytes_of, pairs_of, table_of

import intarsia.datasets.pyarrow as facade
from intarsia.common import partitions, schema
from intarsia.common.log import cleanup, get_logger
from intarsia.core import ext, incremental
from intarsia.core.merge import MergeStrategy, normalize_keys
from intarsia.datasets.pyarrow import (
    PyarrowDatasetIO,
    compact_parquet_dataset_pyarrow,
    deduplicate_parquet_dataset_pyarrow,
    merge_parquet_dataset_pyarrow,
    optimize_parquet_dataset_pyarrow,
)
from intarsia.engines.arrow import ArrowEngine
from intarsia.engines.duckdb import DuckDBEngine
from intarsia.engines.duckdb.session import Session

# ---------------------------------------------------------------------------------------------------
# Merge: strategies, statistics, validation.


def test_scenario_upsert_with_single_key_column(tmp_path, make_dataset, rows, io):
    path = make_dataset(tmp_path / "ds", table_of([1, 2, 7, 8]), files=2)
    io.merge(table_of([1, 2, 3], "new"), path, key_columns=["id"], strategy="upsert")
    assert pairs_of(path, rows) == [(1, "new"), (2, "new"), (3, "new"), (7, "old"), (8, "old")]


def test_scenario_stats_reflect_merge_operations(tmp_path, make_dataset, rows):
    path = make_dataset(tmp_path / "ds", table_of(range(13)), files=3)
    source = table_of([*range(10), *range(100, 105)], "new")
    stats = merge_parquet_dataset_pyarrow(source, path, ["id"], "full_merge")
    assert stats == {"inserted": 5, "updated": 10, "deleted": 3, "total": 15}
    assert stats["total"] == 13 + stats["inserted"] - stats["deleted"] == len(rows(path))


@pytest.mark.parametrize(
    ("source", "target", "keys", "named"),
    [
        ({"x": [1]}, {"id": [1]}, ["id"], "'id'.*source"),
        ({"id": [1]}, {"x": [1]}, ["id"], "'id'.*target"),
        ({"id": [1, None]}, {"id": [1]}, ["id"], "Key column 'id' has 1 NULL.*source"),
        ({"id": [1]}, {"id": [1, None]}, ["id"], r"Key column 'id' has 1 NULL.*part-00000\.parquet"),
        ({"id": [1], "b": ["x"]}, {"id": [1, 1], "b": ["x", None]}, ["id", "b"], "Key column 'b'"),
    ],
)
def test_scenario_missing_key_columns_or_null_keys(
    tmp_path, make_dataset, unchanged, source, target, keys, named
):
    path = make_dataset(tmp_path / "ds", pa.table(target))
    with unchanged(path), pytest.raises(ValueError, match=named):
        merge_parquet_dataset_pyarrow(pa.table(source), path, keys, "upsert")


def test_scenario_schema_incompatibility(tmp_path, make_dataset, unchanged):
    path = make_dataset(tmp_path / "ds", pa.table({"id": [1], "v": [1.5]}))
    with unchanged(path), pytest.raises(TypeError, match="'v'"):
        merge_parquet_dataset_pyarrow(pa.table({"id": [1], "v": [[1]]}), path, ["id"], "upsert")


def test_scenario_schema_incompatibility__names_columns_and_says_what_to_do(
    tmp_path, make_dataset, unchanged
):
    path = make_dataset(tmp_path / "ds", pa.table({"id": [1], "v": [1], "w": ["x"]}))
    source = pa.table({"id": [1], "v": ["one"], "w": [2]})
    with unchanged(path), pytest.raises(ValueError, match="upsert") as caught:
        merge_parquet_dataset_pyarrow(source, path, ["id"], "upsert")
    message = str(caught.value)
    assert "'v' is int64 in the target and string in the source" in message
    assert "'w' is string in the target and int64 in the source" in message
    assert str(path) in message
    assert "Hint" in message


# ---------------------------------------------------------------------------------------------------
# Filtered, batch-oriented execution.


def test_scenario_key_filtered_scanning_on_large_target(tmp_path, make_dataset, reads, rows):
    path = make_dataset(tmp_path / "ds", table_of(range(4000)), files=4, row_group_size=100)
    reads.clear()
    source = table_of([1210, 1211, 9000], "new")
    stats = merge_parquet_dataset_pyarrow(source, path, ["id"], "upsert", batch_rows=50)
    assert stats == {"inserted": 1, "updated": 2, "deleted": 0, "total": 4001}
    # Keys are read of the one row group that may hold them, all columns of the one file that does.
    keys_only = [read for read in reads.all if read.columns == ("id",)]
    assert sum(read.rows for read in keys_only) == 100
    assert reads.paths == {"part-00001.parquet"}
    assert reads.largest <= 50


def test_scenario_partition_limited_merge(tmp_path, make_dataset, reads, rows):
    data = pa.table({"id": [1, 2, 3, 4], "v": ["old"] * 4, "date": ["2025-11-14", "2025-11-15"] * 2})
    path = make_dataset(tmp_path / "ds", data, partition="date")
    updates = tmp_path / "staging" / "updates" / "date=2025-11-15"
    make_dataset(updates, table_of([2, 6], "new"))
    reads.clear()
    stats = merge_parquet_dataset_pyarrow(str(updates), path, ["id", "date"], "upsert")
    assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 5}
    assert {read.path for read in reads.all if read.path != "?"} == {"date=2025-11-15/part-00000.parquet"}
    found = [(row["id"], row["v"], row["date"]) for row in rows(path)]
    assert sorted(found) == [
        (1, "old", "2025-11-14"),
        (2, "new", "2025-11-15"),
        (3, "old", "2025-11-14"),
        (4, "old", "2025-11-15"),
        (6, "new", "2025-11-15"),
    ]


# ---------------------------------------------------------------------------------------------------
# Compaction and ordering.


@pytest.mark.parametrize("threshold", ["mb", "rows"])
def test_scenario_compaction_by_target_file_size_and_rows(tmp_path, make_dataset, rows, threshold):
    path = make_dataset(tmp_path / "ds", table_of(range(1000)), files=10)
    before, kept = rows(path), pq.read_schema(next(path.glob("*.parquet")))
    if threshold == "mb":
        stats = compact_parquet_dataset_pyarrow(path, target_mb_per_file=128)
        assert stats["after_file_count"] == 1
    else:
        stats = compact_parquet_dataset_pyarrow(path, target_rows_per_file=250)
        counts = [pq.read_metadata(file).num_rows for file in path.glob("*.parquet")]
        assert all(100 < count <= 250 for count in counts)
        assert stats["after_file_count"] == len(counts) == 5
    assert (stats["before_file_count"], stats["compacted_file_count"]) == (10, 10)
    assert rows(path) == before
    assert all(pq.read_schema(file).equals(kept) for file in path.glob("*.parquet"))


def test_scenario_dry_run_plan(tmp_path, make_dataset, unchanged):
    path = make_dataset(tmp_path / "ds", table_of(range(40)), files=4, compression="zstd")
    sizes = sum(file.stat().st_size for file in path.glob("*.parquet"))
    with unchanged(path):
        stats = compact_parquet_dataset_pyarrow(path, target_rows_per_file=20, dry_run=True)
    names = [f"{path}/part-{number:05d}.parquet" for number in range(4)]
    assert {key: stats[key] for key in stats if key != "after_total_bytes" and key != "total_rows"} == {
        "before_file_count": 4,
        "after_file_count": 2,
        "before_total_bytes": sizes,
        "compacted_file_count": 4,
        "rewritten_bytes": sizes,
        "compression_codec": "zstd",
        "dry_run": True,
        "planned_groups": [names[:2], names[2:]],
    }
    assert stats["after_total_bytes"] > 0
    assert not (tmp_path / ".ds.intarsia").exists()


def test_scenario_optimize_with_clustering_and_compaction(tmp_path, make_dataset, rows, reads):
    users = [5, 1, None, 3, 1, 2, None, 4] * 25
    data = pa.table({"user_id": users, "event_date": [n * 7 % 31 for n in range(200)], "n": list(range(200))})
    path = make_dataset(tmp_path / "ds", data, files=8)
    before = rows(path)
    columns = ["user_id", "event_date"]
    reads.clear()
    stats = optimize_parquet_dataset_pyarrow(path, zorder_columns=columns, target_mb_per_file=256)
    assert max(read.rows for read in reads.all) <= 200 // 8  # file by file, never the whole
    assert {k: stats[k] for k in ("before_file_count", "after_file_count", "zorder_columns", "dry_run")} == {
        "before_file_count": 8,
        "after_file_count": 1,
        "zorder_columns": columns,
        "dry_run": False,
    }
    assert (stats["compacted_file_count"], stats["compression_codec"]) == (8, "snappy")
    (file,) = path.glob("*.parquet")
    assert file.name.startswith("optimized-")
    assert rows(path) == before
    # The plain order of the columns, NULLs last, in files of about the size asked for.
    optimize_parquet_dataset_pyarrow(path, columns, curve="linear", target_rows_per_file=50)
    files = sorted(path.glob("optimized-*.parquet"))
    assert [pq.read_metadata(file).num_rows for file in files] == [50] * 4
    for file in files:
        table = pq.ParquetFile(file).read(columns)
        order = [(name, "ascending", "at_end") for name in columns]
        assert table.take(pc.sort_indices(table, sort_keys=order)).equals(table)
    assert rows(path) == before


@pytest.fixture(scope="module")
def incompressible():
    """About seven megabytes in rows that are all alike in size."""
    text = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(100_000)]
    return pa.table({"id": list(range(100_000)), "v": text})


def _megabytes(path: Path) -> list[float]:
    return [file.stat().st_size / (1 << 20) for file in sorted(path.glob("*.parquet"))]


def test_scenario_compaction_by_target_file_size_and_rows__in_several_files(
    tmp_path, make_dataset, incompressible
):
    path = make_dataset(tmp_path / "ds", incompressible, files=20, compression="none")
    stats = compact_parquet_dataset_pyarrow(path, target_mb_per_file=2)
    sizes = _megabytes(path)
    assert stats["after_file_count"] == len(sizes) == len(stats["planned_groups"]) == 4
    assert all(1.5 < size <= 2 for size in sizes)
    assert pq.read_table(path).num_rows == incompressible.num_rows


def test_scenario_optimize_with_clustering_and_compaction__in_several_files(
    tmp_path, make_dataset, incompressible
):
    path = make_dataset(tmp_path / "ds", incompressible, files=3, compression="none")
    stats = optimize_parquet_dataset_pyarrow(path, zorder_columns=["v"], target_mb_per_file=1)
    sizes = _megabytes(path)
    assert stats["after_file_count"] == len(sizes) > 5
    assert all(0.7 < size <= 1.1 for size in sizes)
    assert pq.read_table(path)["v"].to_pylist() == sorted(incompressible["v"].to_pylist())


@pytest.mark.parametrize(
    "threshold",
    [
        {"target_mb_per_file": 0},
        {"target_mb_per_file": -1},
        {"target_rows_per_file": 0},
        {"target_rows_per_file": -5},
    ],
)
@pytest.mark.parametrize("helper", [compact_parquet_dataset_pyarrow, optimize_parquet_dataset_pyarrow])
def test_scenario_invalid_thresholds(tmp_path, helper, threshold):
    extra = {"zorder_columns": ["id"]} if helper is optimize_parquet_dataset_pyarrow else {}
    (name,) = threshold
    # The path does not exist: had anything been read, that would be the error.
    with pytest.raises(ValueError, match=f"{name} must be greater than zero"):
        helper(tmp_path / "nothing", **extra, **threshold)


@pytest.mark.parametrize("where", ["no path", "no file", "no partition"])
def test_scenario_non_existent_path_or_no_files_matching_filter(tmp_path, make_dataset, where):
    path = tmp_path / "ds"
    if where == "no file":
        path.mkdir()
        (path / "README.txt").write_text("not data")
    if where == "no partition":
        make_dataset(path, pa.table({"id": [1], "p": ["a"]}), partition="p")
    options = {"partition_filter": "p=b"} if where == "no partition" else {}
    calls = (
        lambda: compact_parquet_dataset_pyarrow(path, **options),
        lambda: optimize_parquet_dataset_pyarrow(path, ["id"], **options),
        lambda: deduplicate_parquet_dataset_pyarrow(path, ["id"], **options),
    )
    for call in calls:
        with pytest.raises(FileNotFoundError, match="No matching Parquet files") as caught:
            call()
        assert str(path) in str(caught.value)


def test_scenario_streaming_per_group_processing(tmp_path, make_dataset, reads):
    path = make_dataset(tmp_path / "ds", table_of(range(400)), files=8, row_group_size=10)
    stats = compact_parquet_dataset_pyarrow(path, target_rows_per_file=100, threads=1)
    assert len(stats["planned_groups"]) == 4
    groups = [{Path(name).name for name in group} for group in stats["planned_groups"]]
    belongs = [
        next(number for number, group in enumerate(groups) if read.path in group) for read in reads.all
    ]
    assert belongs == sorted(belongs), "files of one group were read while another was at work"
    assert reads.largest <= 10
    reads.clear()
    optimize_parquet_dataset_pyarrow(path, ["id"], target_rows_per_file=100)
    assert reads.largest <= 100


def test_scenario_partition_limited_maintenance(tmp_path, make_dataset, rows):
    data = pa.table({"id": [3, 1, 2, 4] * 2, "date": ["2025-11-04"] * 4 + ["2025-11-05"] * 4})
    path = make_dataset(tmp_path / "ds", data, partition="date", files=2)
    other = bytes_of(path / "date=2025-11-05")
    stats = compact_parquet_dataset_pyarrow(
        path, target_rows_per_file=100, partition_filter="date=2025-11-04"
    )
    assert (stats["before_file_count"], stats["after_file_count"]) == (2, 1)
    optimize_parquet_dataset_pyarrow(path, ["id"], partition_filter="date=2025-11-04")
    (file,) = (path / "date=2025-11-04").glob("*.parquet")
    assert pq.ParquetFile(file).read(["id"])["id"].to_pylist() == [1, 2, 3, 4]
    assert bytes_of(path / "date=2025-11-05") == other


# ---------------------------------------------------------------------------------------------------
# The shared core.


@pytest.fixture
def shared_calls(monkeypatch):
    """Which of the shared helpers were called, with what and what they gave back."""
    calls = {}
    for name in ("normalize_keys", "validate_keys_and_schema", "compute_merge_stats"):
        real = getattr(facade, name)

        def spy(*args, name=name, real=real, **kwargs):
            calls[name] = (args, real(*args, **kwargs))
            return calls[name][1]

        monkeypatch.setattr(facade, name, spy)
    return calls


def test_scenario_backend_neutral_validation_usage(tmp_path, make_dataset, shared_calls):
    path = make_dataset(tmp_path / "ds", table_of([1]))
    stats = merge_parquet_dataset_pyarrow(table_of([1, 2]), path, "id", "upsert")
    assert set(shared_calls) == {"normalize_keys", "validate_keys_and_schema", "compute_merge_stats"}
    assert shared_calls["compute_merge_stats"][1] == stats


def test_scenario_key_normalization(tmp_path, make_dataset, shared_calls, rows):
    assert normalize_keys("id") == normalize_keys(["id"]) == normalize_keys(("id",)) == ["id"]
    path = make_dataset(tmp_path / "ds", table_of([1]))
    for given in ("id", ["id"]):
        merge_parquet_dataset_pyarrow(table_of([1], "new"), path, given, "upsert")
        assert shared_calls["normalize_keys"] == ((given,), ["id"])
    assert pairs_of(path, rows) == [(1, "new")]
    with pytest.raises(ValueError, match="at least one key column"):
        merge_parquet_dataset_pyarrow(table_of([1]), path, [], "upsert")


def test_scenario_key_existence_validation(tmp_path, make_dataset, unchanged):
    path = make_dataset(tmp_path / "ds", table_of([1]))
    with unchanged(path), pytest.raises(ValueError, match="key column 'k' is missing from the source"):
        merge_parquet_dataset_pyarrow(table_of([1]), path, ["id", "k"], "upsert")
    source = table_of([1]).append_column("k", pa.array([1]))
    with unchanged(path), pytest.raises(ValueError, match="key column 'k' is missing from the target"):
        merge_parquet_dataset_pyarrow(source, path, ["id", "k"], "upsert")


def test_scenario_null_key_detection_with_filtered_scanners(tmp_path, make_dataset, unchanged, reads):
    keys = pa.table({"id": [*range(50), None, *range(51, 100)], "v": list(range(100))})
    path = make_dataset(tmp_path / "ds", keys, files=2)
    reads.clear()
    with unchanged(path), pytest.raises(ValueError, match=r"Key column 'id' has 1 NULL.*part-00001"):
        merge_parquet_dataset_pyarrow(pa.table({"id": [60], "v": [1]}), path, ["id"], "upsert")
    assert reads.columns == {"id"}
    assert reads.paths == {"part-00001.parquet"}


# ---------------------------------------------------------------------------------------------------
# Canonical strategies.


@pytest.fixture
def merged(tmp_path, make_dataset, rows, io):
    """Merge ``source`` into the keys 1 and 2; the result and the rows that are there then."""

    def run(strategy, source, **options):
        path = make_dataset(tmp_path / "ds", table_of([1, 2]), files=2)
        result = io.merge(source, path, strategy, ["id"], **options)
        return dict(result), pairs_of(path, rows)

    return run


def test_scenario_upsert_strategy_behavior(merged):
    stats, found = merged("upsert", table_of([2], "new"))
    assert found == [(1, "old"), (2, "new")]
    assert stats == {"inserted": 0, "updated": 1, "deleted": 0, "total": 2}


def test_scenario_upsert_strategy_new_keys(merged):
    stats, found = merged("upsert", table_of([3], "new"))
    assert found == [(1, "old"), (2, "old"), (3, "new")]
    assert stats == {"inserted": 1, "updated": 0, "deleted": 0, "total": 3}


def test_scenario_insert_strategy_behavior(merged):
    stats, found = merged("insert", table_of([2], "new"))
    assert found == [(1, "old"), (2, "old")]
    assert stats == {"inserted": 0, "updated": 0, "deleted": 0, "total": 2}


def test_scenario_insert_strategy_new_keys(merged):
    stats, found = merged("insert", table_of([2, 3], "new"))
    assert found == [(1, "old"), (2, "old"), (3, "new")]
    assert stats == {"inserted": 1, "updated": 0, "deleted": 0, "total": 3}


def test_scenario_update_strategy_behavior(merged):
    stats, found = merged("update", table_of([1], "new"))
    assert found == [(1, "new"), (2, "old")]
    assert stats == {"inserted": 0, "updated": 1, "deleted": 0, "total": 2}


def test_scenario_update_strategy_new_keys(merged):
    stats, found = merged("update", table_of([3], "new"))
    assert found == [(1, "old"), (2, "old")]
    assert stats == {"inserted": 0, "updated": 0, "deleted": 0, "total": 2}


def test_scenario_full_merge_strategy_behavior(merged):
    stats, found = merged("full_merge", table_of([2, 3], "new"))
    assert found == [(2, "new"), (3, "new")]
    assert stats == {"inserted": 1, "updated": 1, "deleted": 1, "total": 2}


def test_scenario_full_merge_empty_source(merged):
    stats, found = merged("full_merge", table_of([]))
    assert found == []
    assert stats == {"inserted": 0, "updated": 0, "deleted": 2, "total": 0}


def test_scenario_deduplicate_strategy_behavior(merged):
    source = pa.concat_tables([table_of([2, 3], "b"), table_of([2, 3], "c"), table_of([2], "a")])
    stats, found = merged("deduplicate", source, dedup_order_by=["v"])
    assert found == [(1, "old"), (2, "c"), (3, "c")]
    assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 3}


# ---------------------------------------------------------------------------------------------------
# Streaming.


def test_scenario_key_based_filtered_scanning(tmp_path, make_dataset, reads):
    path = make_dataset(tmp_path / "ds", table_of(range(1000)), row_group_size=100)
    reads.clear()
    merge_parquet_dataset_pyarrow(table_of([250, 5000], "new"), path, ["id"], "insert")
    assert [(read.columns, read.rows) for read in reads.all] == [(("id",), 100)]


def test_scenario_batch_streaming_processing(tmp_path, make_dataset, reads, rows):
    path = make_dataset(tmp_path / "ds", table_of(range(1000)))
    reads.clear()
    merge_parquet_dataset_pyarrow(table_of([0, 999], "new"), path, ["id"], "update", batch_rows=64)
    assert reads.largest <= 64
    assert sum(read.rows for read in reads.all if "v" in read.columns) == 1000
    assert [row["id"] for row in rows(path) if row["v"] == "new"] == [0, 999]


def test_scenario_avoid_full_dataset_materialization(tmp_path, make_dataset, reads):
    path = make_dataset(tmp_path / "ds", table_of(range(1000)), files=5, row_group_size=50)
    for strategy in MergeStrategy:
        reads.clear()  # which also refuses every way to open the dataset as a whole
        merge_parquet_dataset_pyarrow(
            table_of(range(0, 1000, 3), "new"), path, ["id"], strategy, batch_rows=32
        )
        assert reads.largest <= 32


def test_scenario_batch_row_processing(tmp_path, make_dataset, rows):
    path = make_dataset(tmp_path / "ds", table_of(range(100)), files=3)
    source = table_of([*range(0, 100, 2), *range(200, 210)], "new")
    stats = merge_parquet_dataset_pyarrow(source, path, ["id"], "full_merge", batch_rows=7)
    assert stats == {"inserted": 10, "updated": 50, "deleted": 50, "total": 60}
    assert pairs_of(path, rows) == [(n, "new") for n in [*range(0, 100, 2), *range(200, 210)]]


def test_scenario_batch_size_control(tmp_path, make_dataset, reads, rows):
    results = []
    for number, batch_rows in enumerate((None, 1, 13, 1000)):
        path = make_dataset(tmp_path / f"ds{number}", table_of(range(100)), row_group_size=40)
        reads.clear()
        stats = merge_parquet_dataset_pyarrow(
            table_of([3, 39, 40, 99, 500], "new"), path, ["id"], "upsert", batch_rows=batch_rows
        )
        assert reads.largest <= min(batch_rows or 40, 40)
        results.append((stats, rows(path)))
    assert all(result == results[0] for result in results)


def test_scenario_source_row_handling(tmp_path, make_dataset, rows):
    path = make_dataset(tmp_path / "ds", table_of(range(10)), files=2)
    source = table_of([-5, 3, 12, 500], "new")
    stats = merge_parquet_dataset_pyarrow(source, path, ["id"], "upsert", batch_rows=2)
    assert stats == {"inserted": 3, "updated": 1, "deleted": 0, "total": 13}
    assert [row["id"] for row in rows(path) if row["v"] == "new"] == [-5, 3, 12, 500]


# ---------------------------------------------------------------------------------------------------
# Schemas and statistics.


def test_scenario_schema_unification(tmp_path, make_dataset, io):
    path = make_dataset(tmp_path / "ds", pa.table({"id": pa.array([1], pa.int32()), "v": ["a"]}))
    pq.write_table(pa.table({"id": pa.array([2**40], pa.int64()), "v": ["b"]}), path / "wide.parquet")
    source = pa.table({"id": pa.array([1], pa.int16()), "v": pa.array(["new"], pa.large_string())})
    assert merge_parquet_dataset_pyarrow(source, path, ["id"], "update")["updated"] == 1
    table = io.read_parquet(path)
    expected = schema.unify_schemas(
        [
            pa.schema([("id", pa.int32()), ("v", pa.string())]),
            pa.schema([("id", pa.int64()), ("v", pa.string())]),
        ]
    )
    assert table.schema.equals(expected)
    assert sorted(table.to_pylist(), key=operator.itemgetter("id")) == [
        {"id": 1, "v": "new"},
        {"id": 2**40, "v": "b"},
    ]


def test_scenario_type_promotion(tmp_path, make_dataset, unchanged, rows):
    path = make_dataset(tmp_path / "ds", pa.table({"id": [1], "n": pa.array([1], pa.int32())}))
    fits = pa.table({"id": pa.array([1], pa.int32()), "n": pa.array([7], pa.int64())})
    merge_parquet_dataset_pyarrow(fits, path, ["id"], "upsert")
    assert rows(path) == [{"id": 1, "n": 7}]
    wide = pa.table({"id": [1], "n": [2**40]})
    with unchanged(path), pytest.raises(ValueError, match=str(2**40)):
        merge_parquet_dataset_pyarrow(wide, path, ["id"], "upsert")
    merge_parquet_dataset_pyarrow(wide, path, ["id"], "upsert", schema_evolution="widen")
    assert rows(path) == [{"id": 1, "n": 2**40}]
    assert pq.read_schema(next(path.glob("*.parquet"))).field("n").type == pa.int64()


def test_scenario_statistics_format(tmp_path, make_dataset, rows):
    path = make_dataset(tmp_path / "ds", table_of(range(5)))
    for strategy in MergeStrategy:
        stats = merge_parquet_dataset_pyarrow(table_of([1, 77]), path, ["id"], strategy)
        assert list(stats) == ["inserted", "updated", "deleted", "total"]
        assert type(stats) is dict
        assert all(type(value) is int and value >= 0 for value in stats.values())
        assert stats["total"] == len(rows(path))


def test_scenario_statistics_calculation(tmp_path, make_dataset, rows):
    path = make_dataset(tmp_path / "ds", table_of([*range(20), 3, 3]), files=4)  # 3 is there three times
    total = 22
    for strategy in MergeStrategy:
        before = rows(path)
        stats = merge_parquet_dataset_pyarrow(
            table_of([3, 90], strategy), path, ["id"], strategy, batch_rows=2
        )
        after = rows(path)
        total += stats["inserted"] - stats["deleted"]
        assert stats["total"] == total == len(after)
        written = sum(row["v"] == strategy for row in after)
        assert written == stats["inserted"] + stats["updated"]
        assert len(before) + stats["inserted"] - stats["deleted"] == len(after)


def test_scenario_empty_source_statistics(tmp_path, make_dataset):
    path = make_dataset(tmp_path / "ds", table_of(range(9)), files=3)
    for strategy in ("insert", "update", "upsert", "deduplicate"):
        stats = merge_parquet_dataset_pyarrow(table_of([]), path, ["id"], strategy)
        assert stats == {"inserted": 0, "updated": 0, "deleted": 0, "total": 9}
    stats = merge_parquet_dataset_pyarrow(table_of([]), path, ["id"], "full_merge")
    assert stats == {"inserted": 0, "updated": 0, "deleted": 9, "total": 0}
    assert list(path.rglob("*.parquet")) == []


@pytest.mark.parametrize("strategy", ["upsert", "insert"])
def test_scenario_empty_target_upsert_insert(tmp_path, rows, strategy):
    path = tmp_path / "new"
    stats = merge_parquet_dataset_pyarrow(table_of([1, 2, 3]), path, ["id"], strategy)
    assert stats == {"inserted": 3, "updated": 0, "deleted": 0, "total": 3}
    assert pairs_of(path, rows) == [(1, "old"), (2, "old"), (3, "old")]


def test_scenario_empty_target_update(tmp_path):
    stats = merge_parquet_dataset_pyarrow(table_of([1, 2]), tmp_path / "new", ["id"], "update")
    assert stats == {"inserted": 0, "updated": 0, "deleted": 0, "total": 0}
    assert list(tmp_path.iterdir()) == []


def test_scenario_filtered_scanner_null_key_detection(tmp_path, make_dataset, unchanged, reads):
    data = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"], "payload": ["p"] * 3})
    path = make_dataset(tmp_path / "ds", data)
    reads.clear()
    with unchanged(path), pytest.raises(ValueError, match="Key column 'b' has 1 NULL"):
        merge_parquet_dataset_pyarrow(data.slice(0, 1), path, ["a", "b"], "upsert")
    assert "payload" not in reads.columns


def test_scenario_deduplication_ordering(tmp_path, make_dataset, rows):
    path = make_dataset(tmp_path / "ds", pa.table({"id": [1], "day": [0], "n": [0], "v": ["old"]}))
    source = pa.table(
        {
            "id": [1, 1, 1, 2, 2, 3, 3],
            "day": [5, 5, 4, None, 1, 1, 1],
            "n": [1, 2, 9, 9, 1, 1, 1],
            "v": ["a", "b", "c", "d", "e", "f", "g"],
        }
    )
    merge_parquet_dataset_pyarrow(source, path, ["id"], "deduplicate", dedup_order_by=["day", "n"])
    # The highest day, then the highest n; NULL loses; on ties the last row wins.
    assert [(row["id"], row["v"]) for row in sorted(rows(path), key=operator.itemgetter("id"))] == [
        (1, "b"),
        (2, "e"),
        (3, "g"),
    ]


# ---------------------------------------------------------------------------------------------------
# Shared schema and partition logic.


def test_scenario_local_schema_implementation():
    # Removed: there is no implementation of its own any more.
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("intarsia.datasets.pyarrow.schema")


def test_scenario_schema_unification_uses_shared_helper(tmp_path, monkeypatch, make_dataset, io):
    from intarsia.tables.parquet import snapshot as snapshots

    assert snapshots.unify_schemas is schema.unify_schemas
    path = make_dataset(tmp_path / "ds", pa.table({"a": [1]}))
    pq.write_table(pa.table({"b": ["x"]}), path / "other.parquet")
    calls = []

    def spy(schemas, **kwargs):
        calls.append(list(schemas))
        return schema.unify_schemas(calls[-1], **kwargs)

    monkeypatch.setattr(snapshots, "unify_schemas", spy)
    assert io.read_parquet(path).schema.names == ["b", "a"]
    assert any(len(schemas) == 2 for schemas in calls)
    defined = [
        node.name
        for file in Path(facade.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and ("unify" in node.name or "cast_schema" in node.name)
    ]
    assert defined == []


def test_scenario_partition_handling_uses_shared_helper(tmp_path, io):
    assert incremental.parse_hive_partition_path is partitions.parse_hive_partition_path
    values = ["a/b", "x=y", "50 %", "ä"]
    io.write_dataset(pa.table({"id": [1, 2, 3, 4], "p": values}), tmp_path / "ds", partition_by="p")
    directories = {entry.name for entry in (tmp_path / "ds").iterdir()}
    assert directories == {partitions.hive_path({"p": value}) for value in values}
    table = io.read_parquet(tmp_path / "ds", include_file_path=True)
    for row in table.to_pylist():
        assert partitions.parse_hive_partition_path(row["file_path"], ["p"]) == {"p": row["p"]}


# ---------------------------------------------------------------------------------------------------
# Deduplication of a dataset.


def test_scenario_deduplicate_by_key_columns(tmp_path, make_dataset, rows, io):
    data = pa.table({"id": [1, 2, 1, 3, 2, 1], "n": [1, 2, 3, 4, 5, 0]})
    path = make_dataset(tmp_path / "ds", data, files=3)
    stats = io.deduplicate_parquet_dataset(path, key_columns=["id"], dedup_order_by=["n"])
    assert rows(path) == [{"id": 1, "n": 3}, {"id": 2, "n": 5}, {"id": 3, "n": 4}]
    assert (stats["deduplicated_rows"], stats["before_row_count"], stats["after_row_count"]) == (3, 6, 3)
    assert rows(io.read_parquet(path)) == rows(path)


def test_scenario_dry_run_returns_plan_only(tmp_path, make_dataset, unchanged, io):
    path = make_dataset(tmp_path / "ds", table_of([1, 2, 1, 3]), files=2)
    with unchanged(path):
        stats = io.deduplicate_parquet_dataset(path, key_columns=["id"], dry_run=True)
    assert (stats["before_file_count"], stats["after_file_count"], stats["dry_run"]) == (2, 2, True)
    assert stats["deduplicated_rows"] == 1


def test_scenario_optimize_performs_deduplication_when_requested(tmp_path, make_dataset, rows, io):
    path = make_dataset(tmp_path / "ds", table_of([3, 1, 2, 1, 3]), files=2)
    stats = io.optimize_parquet_dataset(path, deduplicate_key_columns=["id"])
    assert [row["id"] for row in rows(path)] == [1, 2, 3]
    assert stats["deduplicated"] is True
    assert stats["deduplicated_rows"] == 2
    assert io.optimize_parquet_dataset(path, zorder_columns=["id"])["deduplicated"] is False


# ---------------------------------------------------------------------------------------------------
# write_parquet_dataset: modes, strategies, rewriting.


def test_scenario_incremental_upsert_preserves_unaffected_parquet_files(tmp_path, make_dataset, rows, io):
    path = make_dataset(tmp_path / "ds", table_of(range(50)), files=10)
    before = bytes_of(path)
    source = table_of([7, 100], "new")
    result = io.write_parquet_dataset(
        source, path, strategy="upsert", key_columns=["id"], rewrite_mode="incremental"
    )
    after = bytes_of(path)
    changed = [name for name in before if after.get(name) != before[name]]
    assert changed == result.rewritten_files == [f"{path}/part-00001.parquet"]
    assert set(after) - set(before) == set(result.inserted_files)
    assert [row["id"] for row in rows(path) if row["v"] == "new"] == [7, 100]
    assert len(rows(path)) == 51


def test_scenario_unknown_file_membership_treated_as_affected(tmp_path, make_dataset, rows, io, reads):
    path = make_dataset(tmp_path / "ds", table_of(range(20)), files=2, write_statistics=False)
    reads.clear()
    io.write_parquet_dataset(
        table_of([15], "new"), path, strategy="update", key_columns=["id"], rewrite_mode="incremental"
    )
    assert reads.paths == {"part-00000.parquet", "part-00001.parquet"}
    assert [row["id"] for row in rows(path) if row["v"] == "new"] == [15]


def test_scenario_reject_incremental_full_merge(tmp_path, make_dataset, unchanged, io):
    path = make_dataset(tmp_path / "ds", table_of([1]))
    with unchanged(path), pytest.raises(ValueError, match="not supported for full_merge"):
        io.write_parquet_dataset(table_of([2]), path, strategy="full_merge", rewrite_mode="incremental")


def test_scenario_mode_append_does_not_affect_upsert(tmp_path, make_dataset, rows, io):
    path = make_dataset(tmp_path / "ds", table_of([1, 2]))
    with pytest.warns(UserWarning, match="takes precedence"):
        io.write_parquet_dataset(
            table_of([2, 3], "new"), path, strategy="upsert", key_columns=["id"], mode="append"
        )
    assert pairs_of(path, rows) == [(1, "old"), (2, "new"), (3, "new")]


def test_scenario_default_append_creates_additional_files(tmp_path, rows, io):
    path = tmp_path / "ds"
    io.write_parquet_dataset(table_of([1]), path)
    before = bytes_of(path)
    io.write_parquet_dataset(table_of([2]), path)
    after = bytes_of(path)
    assert before.items() < after.items()
    assert len(after) == 2
    assert sorted(io.read_parquet(path)["id"].to_pylist()) == [1, 2]


def test_scenario_overwrite_deletes_parquet_files_only(tmp_path, make_dataset, rows, io):
    path = make_dataset(tmp_path / "ds", table_of([1, 2]), files=2)
    (path / "README.txt").write_text("keep me")
    before = set(bytes_of(path))
    io.write_parquet_dataset(table_of([9]), path, mode="overwrite")
    assert pairs_of(path, rows) == [(9, "old")]
    assert before.isdisjoint(bytes_of(path))
    assert (path / "README.txt").read_text() == "keep me"


@pytest.mark.parametrize("strategy", ["upsert", "update", "full_merge", "deduplicate"])
def test_scenario_reject_append_with_rewrite_strategies(tmp_path, make_dataset, unchanged, io, strategy):
    path = make_dataset(tmp_path / "ds", table_of([1]))
    with unchanged(path), pytest.raises(ValueError, match='mode="append" is not supported') as caught:
        io.write_parquet_dataset(table_of([2]), path, mode="append", strategy=strategy)
    assert strategy in str(caught.value)


def test_scenario_insert_append_writes_only_new_keys(tmp_path, make_dataset, rows, io):
    path = make_dataset(tmp_path / "ds", table_of([1]))
    before = bytes_of(path)
    with pytest.warns(UserWarning, match="takes precedence"):
        result = io.write_parquet_dataset(
            table_of([1, 2], "new"), path, strategy="insert", key_columns=["id"], mode="append"
        )
    assert before.items() < bytes_of(path).items()
    (written,) = result.inserted_files
    assert pq.ParquetFile(written).read()["id"].to_pylist() == [2]


# ---------------------------------------------------------------------------------------------------
# Schema helpers, tables, errors.


def test_scenario_schema_utilities_moved_to_common():
    for name in ("cast_schema", "opt_dtype", "unify_schemas", "convert_large_types_to_normal"):
        assert getattr(facade, name) is getattr(schema, name)
        assert name in facade.__all__


def test_scenario_core_modules_use_common_schema_utilities():
    from intarsia.core.ext import gather, parquet

    assert parquet.unify_schemas is gather.unify_schemas is schema.unify_schemas
    core = Path(ext.__file__).parent.parent
    imported = [
        node.module or ""
        for file in core.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom)
    ]
    assert [name for name in imported if name.startswith("intarsia.datasets")] == []


@pytest.mark.parametrize("reader", ["io", "ext"])
def test_scenario_parquet_include_file_path_uses_a_pyarrow_string_array(tmp_path, make_dataset, reader):
    path = make_dataset(tmp_path / "ds", table_of(range(10)), files=2)
    read = PyarrowDatasetIO().read_parquet if reader == "io" else ext.read_parquet
    table = read(path, include_file_path=True)
    assert isinstance(table, pa.Table)
    assert table.schema.field("file_path").type == pa.string()
    assert len(table["file_path"]) == table.num_rows == 10
    assert set(table["file_path"].to_pylist()) == {f"{path}/part-{n:05d}.parquet" for n in range(2)}
    assert "file_path" not in read(path).column_names


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_scenario_threading_parameter_does_not_change_semantics(tmp_path, make_dataset, kind):
    path = tmp_path / "ds"
    path.mkdir()
    for number in range(4):
        rows = [{"id": number * 10 + n, "v": f"x{n}"} for n in range(10)]
        if kind == "csv":
            text = "id,v\n" + "".join(f"{row['id']},{row['v']}\n" for row in rows)
            (path / f"{number}.csv").write_text(text)
        elif kind == "json":
            (path / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            pq.write_table(pa.Table.from_pylist(rows), path / f"{number}.parquet")
    read = {"csv": ext.read_csv, "json": ext.read_json, "parquet": PyarrowDatasetIO().read_parquet}[kind]
    one, many = read(path, use_threads=False), read(path, use_threads=True)
    assert one.equals(many)
    assert one.num_rows == 40


def test_scenario_invalid_schema_uses_arrowinvalid(tmp_path, make_dataset, io):
    path = make_dataset(tmp_path / "ds", table_of([1]))
    for source in (pa.table({"id": [1], "v": [2]}), pa.table({"id": [1]})):
        with pytest.raises(pa.ArrowInvalid, match="'v'") as caught:
            io.merge(source, path, "upsert", ["id"])
        assert "upsert" in str(caught.value)
        assert str(path) in str(caught.value)
    pq.write_table(pa.table({"id": [2], "v": [2.5]}), path / "other.parquet")
    for call in (
        lambda: io.compact_parquet_dataset(path),
        lambda: io.optimize_parquet_dataset(path, ["id"]),
    ):
        with pytest.raises(pa.ArrowInvalid, match="'v'") as caught:
            call()
        assert str(path) in str(caught.value)


def test_scenario_i_o_failures_use_arrowioerror(tmp_path, make_dataset, unchanged, io, monkeypatch):
    path = make_dataset(tmp_path / "ds", table_of([1]))
    (tmp_path / ".ds.intarsia").write_text("in the way")  # nothing can be staged
    with pytest.raises(pa.ArrowIOError, match="intarsia") as caught:
        io.merge(table_of([1]), path, "upsert", ["id"])
    assert caught.value.errno in (errno.EEXIST, errno.ENOTDIR)
    (tmp_path / ".ds.intarsia").unlink()

    def broken(*_args, **_kwargs):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", broken)
    monkeypatch.setattr(Session, "quote_location", lambda *_: "'/none/part-00000.parquet'")
    said = {"pyarrow": r"part-00000\.parquet.*Input/output error", "duckdb": r"part-00000\.parquet"}
    with unchanged(path), pytest.raises(pa.ArrowIOError, match=said[io.backend]):
        io.merge(table_of([1]), path, "upsert", ["id"])


def test_scenario_type_and_indexing_errors_use_typed_exceptions(tmp_path, make_dataset, io):
    path = make_dataset(tmp_path / "ds", table_of([1]))
    with pytest.raises(pa.ArrowTypeError, match="'v'"):
        io.merge(pa.table({"id": [1], "v": [2]}), path, "upsert", ["id"])
    with pytest.raises(pa.ArrowKeyError, match="'nope'"):
        io.read_parquet(path, columns=["nope"])
    with pytest.raises(pa.ArrowKeyError, match="'nope'"):
        io.optimize_parquet_dataset(path, ["nope"])
    with pytest.raises(pa.ArrowKeyError, match="'nope'"):
        io.merge(table_of([1]), path, "deduplicate", ["id"], dedup_order_by=["nope"])


def test_scenario_unexpected_errors_are_logged_and_re_raised(
    tmp_path, make_dataset, unchanged, io, caplog, monkeypatch
):
    path = make_dataset(tmp_path / "ds", table_of([1]))

    def surprise(*_args, **_kwargs):
        raise ZeroDivisionError("a mistake in the program")

    monkeypatch.setattr(ArrowEngine, "match", surprise)
    monkeypatch.setattr(DuckDBEngine, "_match", surprise)
    calls = {
        "upsert": lambda: io.merge(table_of([1]), path, "upsert", ["id"]),
        "compact": lambda: io.compact_parquet_dataset(path),
    }
    for operation, call in calls.items():
        caplog.clear()
        with (
            caplog.at_level(logging.ERROR, logger="intarsia"),
            unchanged(path),
            pytest.raises(ZeroDivisionError),
        ):
            call()
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.name.startswith("intarsia.")
        assert operation in record.getMessage()
        assert str(path) in record.getMessage()
        assert "a mistake in the program" in record.getMessage()


def test_scenario_cleanup_helpers_log_individual_failures(caplog):
    done = []

    def fails(name):
        raise OSError(errno.EBUSY, f"{name} is busy")

    with caplog.at_level(logging.WARNING, logger="intarsia"):
        failed = cleanup(
            get_logger("intarsia.test"),
            ("scanner", lambda: done.append("scanner")),
            ("first file", lambda: fails("first")),
            ("dataset", lambda: done.append("dataset")),
            ("second file", lambda: fails("second")),
        )
    assert failed == 2
    assert done == ["scanner", "dataset"]
    messages = [record.getMessage() for record in caplog.records]
    assert ["first file" in messages[0], "second file" in messages[1]] == [True, True]


def test_row_groups_stay_in_order_when_batches_are_small(tmp_path, make_dataset):
    path = make_dataset(tmp_path / "ds", table_of(range(100)), row_group_size=25)
    merge_parquet_dataset_pyarrow(table_of([50], "new"), path, ["id"], "update", batch_rows=4)
    ids = pq.ParquetFile(path / "part-00000.parquet").read()["id"].to_pylist()
    assert all(left < right for left, right in pairwise(ids))
