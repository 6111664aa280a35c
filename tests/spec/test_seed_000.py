"""Incremental merge planning: what is pruned, what is not, and what a match does."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it


def _candidates(plan: it.Plan) -> set[str]:
    """The files that might be rewritten, before their keys were read."""
    return {
        item.file.path
        for item in plan.files
        if (item.scanned or item.action != "keep") and not item.is_move_check
    }


def _reasons(plan: it.Plan) -> dict[str, str]:
    return {item.file.path: item.reason for item in plan.files}


def test_scenario_partition_pruning_reduces_candidate_files(tmp_path, make_dataset, reads):
    data = pa.table({"id": [1, 2, 3, 4], "day": ["2025-01-01", "2025-01-02"] * 2})
    path = make_dataset(tmp_path / "ds", data, partition="day")
    source = pa.table({"id": [1, 4], "day": ["2025-01-01", "2025-01-01"]})
    with pytest.raises(ValueError, match="partition columns cannot change"):  # 4 is in another partition
        it.plan("merge", source, path, on="id")
    plan = it.plan("merge", source.slice(0, 1), path, on="id")
    assert _candidates(plan) == {"day=2025-01-01/part-00000.parquet"}
    # With the partition in the key, the other partition is not even looked into.
    reads.clear()
    plan = it.plan("merge", source, path, on=["id", "day"])
    assert _candidates(plan) == {"day=2025-01-01/part-00000.parquet"}
    assert reads.paths == {"day=2025-01-01/part-00000.parquet"}


def test_scenario_partition_pruning_reduces_candidate_files__but_not_those_of_unknown_partition(
    tmp_path, make_dataset
):
    data = pa.table({"id": [1, 2, 3, 4], "day": ["a", "b"] * 2})
    path = make_dataset(tmp_path / "ds", data, partition="day")
    pq.write_table(pa.table({"id": [1, 7]}), path / "stray.parquet")
    plan = it.plan("merge", pa.table({"id": [3], "day": ["a"]}), path, on="id")
    assert _candidates(plan) == {"day=a/part-00000.parquet", "stray.parquet"}


def test_scenario_statistics_pruning_excludes_non_overlapping_files(tmp_path, make_dataset, reads):
    path = make_dataset(tmp_path / "ds", pa.table({"id": list(range(200))}), files=2)
    plan = it.plan("merge", pa.table({"id": [5, 99]}), path, on="id")
    assert _candidates(plan) == {"part-00000.parquet"}
    assert "bounds" in _reasons(plan)["part-00001.parquet"]
    assert reads.paths == {"part-00000.parquet"}


@pytest.mark.parametrize("kind", ["missing", "inexact"])
def test_scenario_missing_or_inexact_stats_treated_as_unknown_membership(tmp_path, make_dataset, kind):
    if kind == "missing":
        keys, key = ["a", "b"], "x"
        writer = {"write_statistics": False}
    else:  # longer than some writers keep, so that the bound may have been cut off
        keys, key = ["a" * 40, "b" * 40], "x"
        writer = {}
    path = make_dataset(tmp_path / "ds", pa.table({"k": keys}), **writer)
    plan = it.plan("merge", pa.table({"k": [key]}), path, on="k")
    assert _candidates(plan) == {"part-00000.parquet"}


def test_scenario_update_replaces_full_rows(tmp_path, make_dataset, rows):
    path = make_dataset(tmp_path / "ds", pa.table({"id": [1, 2], "a": ["x", "y"], "b": [1.0, 2.0]}))
    source = pa.table({"id": [1], "a": pa.array([None], pa.string()), "b": [9.5]})
    it.merge(source, path, on="id", strategy="update")
    assert rows(path) == rows([{"id": 1, "a": None, "b": 9.5}, {"id": 2, "a": "y", "b": 2.0}])


def test_scenario_reject_partition_movement_on_update(tmp_path: Path, make_dataset, unchanged):
    data = pa.table({"id": [1, 2], "day": ["2025-01-01", "2025-01-02"], "v": [1, 2]})
    path = make_dataset(tmp_path / "ds", data, partition="day")
    source = pa.table({"id": [1], "day": ["2025-01-02"], "v": [9]})
    with (
        unchanged(path),
        pytest.raises(ValueError, match="partition columns cannot change for existing keys") as caught,
    ):
        it.merge(source, path, on=["id"], partition_by=["day"])
    assert "2025-01-01" in str(caught.value)
    assert "2025-01-02" in str(caught.value)
