"""Incremental rewriting under its own names, and merges and writes through the dataset IO."""

from __future__ import annotations

import datetime as dt
import inspect
import logging
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spec_tables import bytes_of

from intarsia.core import incremental
from intarsia.core.incremental import (
    ConservativeMembershipChecker,
    IncrementalFileManager,
    ParquetFileMetadata,
    ParquetMetadataAnalyzer,
    PartitionPruner,
    confirm_affected_files,
    list_dataset_files,
    merge,
    parse_hive_partition_path,
    plan_incremental_rewrite,
    validate_no_null_keys,
    validate_partition_column_immutability,
)
from intarsia.errors import StorageError


def _ids(path: Path, rows) -> list[int]:
    return [row["id"] for row in rows(path)]


def _numbers(start: int, stop: int) -> pa.Table:
    return pa.table({"id": list(range(start, stop)), "v": ["old"] * (stop - start)})


# ---------------------------------------------------------------------------------------------------
# Requirement: planning prunes by partition and by statistics, conservatively.


def test_scenario_partition_pruning_reduces_candidate_files(tmp_path, make_dataset):
    data = pa.table({"id": [1, 2, 3], "day": ["2025-01-01", "2025-01-02", "2025-01-03"]})
    path = make_dataset(tmp_path / "ds", data, partition="day")
    schema = pa.schema([("day", pa.date32())])
    metadata = ParquetMetadataAnalyzer().analyze_dataset_files(path)
    keys = [(1, dt.date(2025, 1, 1)), (9, dt.date(2025, 1, 1))]
    found = PartitionPruner().identify_candidate_files(metadata, ["id", "day"], keys, schema)
    assert found == [f"{path}/day=2025-01-01/part-00000.parquet"]
    plan = plan_incremental_rewrite(path, keys, ["id", "day"])
    assert plan.affected_files == found


@pytest.mark.parametrize("values", [None, {}, {"month": "1"}, {"day": "no date"}])
def test_scenario_partition_pruning_reduces_candidate_files__but_not_those_of_unknown_partition(values):
    known = ParquetFileMetadata("a.parquet", 1, 10, {}, {"day": "2025-01-02"})
    unknown = ParquetFileMetadata("b.parquet", 1, 10, {}, values)
    schema = pa.schema([("day", pa.date32())])
    keys = [dt.date(2025, 1, 1)]
    assert PartitionPruner().identify_candidate_files([known, unknown], ["day"], keys, schema) == [
        "b.parquet"
    ]


def test_scenario_statistics_pruning_excludes_non_overlapping_files(tmp_path, make_dataset, reads):
    path = make_dataset(tmp_path / "ds", _numbers(0, 30), files=3)
    first, second, third = ParquetMetadataAnalyzer().analyze_dataset_files(path)
    assert second.column_stats["id"] == {"min": 10, "max": 19, "null_count": 0}
    might = ConservativeMembershipChecker().file_might_contain_keys
    assert [might(file, ["id"], [15, 99]) for file in (first, second, third)] == [False, True, False]
    plan = plan_incremental_rewrite(path, [15, 99], ["id"])
    assert plan.affected_files == [second.path]
    assert plan.unaffected_files == [first.path, third.path]
    assert plan.affected_rows == 10
    assert reads.paths == {"part-00001.parquet"}


@pytest.mark.parametrize(
    "stats", [{}, {"id": {}}, {"id": {"min": None, "max": None, "null_count": None}}, {"id": {"min": 1}}]
)
def test_scenario_missing_or_inexact_stats_treated_as_unknown_membership(tmp_path, stats):
    metadata = ParquetFileMetadata("a.parquet", 1, 10, stats)
    assert ConservativeMembershipChecker().file_might_contain_keys(metadata, ["id"], [99])
    # Statistics that a writer may have cut off are left out, and so are those that are not there.
    pq.write_table(pa.table({"id": ["x" * 40]}), tmp_path / "long.parquet")
    pq.write_table(pa.table({"id": ["x"]}), tmp_path / "none.parquet", write_statistics=False)
    for file in ParquetMetadataAnalyzer().analyze_dataset_files(tmp_path):
        assert file.column_stats["id"]["min"] is None
        assert ConservativeMembershipChecker().file_might_contain_keys(file, ["id"], ["b"])


def test_scenario_update_replaces_full_rows(tmp_path, make_dataset, rows):
    path = make_dataset(tmp_path / "ds", pa.table({"id": [1, 2], "a": ["x", "y"], "b": [1, 2]}))
    source = pa.table({"b": pa.array([None], pa.int64()), "id": [1], "a": ["new"]})
    merge(source, path, "upsert", ["id"])
    assert rows(path) == rows([{"id": 1, "a": "new", "b": None}, {"id": 2, "a": "y", "b": 2}])


def test_scenario_reject_partition_movement_on_update(tmp_path, make_dataset, unchanged):
    data = pa.table({"id": [1, 2], "day": ["2025-01-01", "2025-01-02"]})
    path = make_dataset(tmp_path / "ds", data, partition="day")
    source = pa.table({"id": [1], "day": ["2025-01-02"]})
    with (
        unchanged(path),
        pytest.raises(ValueError, match="partition columns cannot change for existing keys"),
    ):
        merge(source, path, "update", ["id"], partition_by=["day"])
    with pytest.raises(ValueError, match="cannot change for existing keys"):
        validate_partition_column_immutability(source, data, ["id"], ["day"])
    validate_partition_column_immutability(data, data, ["id"], ["day"])


# ---------------------------------------------------------------------------------------------------
# Requirement: write_dataset appends and overwrites, and tells what it wrote.


def test_scenario_append_writes_new_parquet_files_only(tmp_path, make_dataset, rows, io):
    path = make_dataset(tmp_path / "ds", _numbers(0, 4), files=2)
    before = bytes_of(path)
    io.write_dataset(_numbers(4, 6), path, mode="append")
    after = bytes_of(path)
    assert before.items() <= after.items()
    assert len(after) == 3
    assert _ids(path, rows) == list(range(6))


def test_scenario_overwrite_replaces_parquet_data_files(tmp_path, make_dataset, rows, io):
    path = make_dataset(tmp_path / "ds", _numbers(0, 4), files=2)
    (path / "README.txt").write_text("keep me")
    before = set(bytes_of(path))
    io.write_dataset(_numbers(7, 9), path, mode="overwrite")
    assert _ids(path, rows) == [7, 8]
    assert before.isdisjoint(bytes_of(path))
    assert (path / "README.txt").read_text() == "keep me"


def test_scenario_append_returns_written_file_metadata(tmp_path, io):
    path = tmp_path / "ds"
    io.write_dataset(_numbers(0, 4), path)
    result = io.write_dataset(_numbers(4, 9), path, mode="append", max_rows_per_file=3)
    assert (result.mode, result.total_rows) == ("append", 5)
    assert sorted(file.row_count for file in result.files) == [2, 3]
    for file in result.files:
        assert pq.read_metadata(file.path).num_rows == file.row_count
        assert Path(file.path).stat().st_size == file.size_bytes


# ---------------------------------------------------------------------------------------------------
# Requirement: merge with insert, update and upsert, on every engine.


def test_scenario_insert_appends_only_new_keys(tmp_path, make_dataset, rows, io):
    path = make_dataset(tmp_path / "ds", _numbers(1, 2))
    before = bytes_of(path)
    source = pa.table({"id": [1, 2], "v": ["new", "new"]})
    result = io.merge(source, path, strategy="insert", key_columns=["id"])
    assert before.items() <= bytes_of(path).items()
    (written,) = result.inserted_files
    assert pq.read_table(written).to_pylist() == [{"id": 2, "v": "new"}]
    assert rows(path) == [{"id": 1, "v": "old"}, {"id": 2, "v": "new"}]


def test_scenario_update_preserves_unaffected_rows(tmp_path, make_dataset, rows, io):
    path = make_dataset(tmp_path / "ds", _numbers(1, 3))
    io.merge(pa.table({"id": [2], "v": ["new"]}), path, strategy="update", key_columns=["id"])
    assert rows(path) == [{"id": 1, "v": "old"}, {"id": 2, "v": "new"}]


def test_scenario_composite_keys_work_for_upsert(tmp_path, make_dataset, rows, io):
    target = pa.table({"id": [1, 2], "category": ["A", "B"], "v": [1, 2]})
    path = make_dataset(tmp_path / "ds", target)
    source = pa.table({"id": [1, 1, 2], "category": ["A", "B", "A"], "v": [10, 11, 12]})
    result = io.merge(source, path, strategy="upsert", key_columns=["id", "category"])
    assert (result.updated, result.inserted) == (1, 2)
    expected = [(1, "A", 10), (1, "B", 11), (2, "A", 12), (2, "B", 2)]
    assert rows(path) == rows([{"id": i, "category": c, "v": v} for i, c, v in expected])


def test_scenario_conservative_pruning_key_scan_confirmation(tmp_path, make_dataset, io, reads):
    # Even and odd ids: bounds cannot tell the first two apart, reading the keys can; the rest they can.
    table = pa.table({"id": [0, 2, 4, 1, 3, 5, 10, 12, 14, 20, 22, 24], "v": ["old"] * 12})
    path = make_dataset(tmp_path / "ds", table, files=4)
    before = bytes_of(path)
    result = io.merge(pa.table({"id": [3], "v": ["new"]}), path, strategy="update", key_columns=["id"])
    assert reads.columns_of("part-00000.parquet") == {"id"}
    assert reads.columns_of("part-00001.parquet") == {"id", "v"}
    assert reads.paths == {"part-00000.parquet", "part-00001.parquet"}
    assert result.rewritten_files == [f"{path}/part-00001.parquet"]
    changed = [name for name, content in bytes_of(path).items() if before[name] != content]
    assert changed == result.rewritten_files
    reads.clear()
    candidates = list_dataset_files(path)[:2]
    assert confirm_affected_files(candidates, ["id"], [3]) == result.rewritten_files
    assert reads.columns == {"id"}


def test_scenario_upsert_returns_metadata_for_rewritten_and_inserted_files(tmp_path, make_dataset, io):
    path = make_dataset(tmp_path / "ds", _numbers(0, 20), files=2)
    result = io.merge(
        pa.table({"id": [3, 99], "v": ["new"] * 2}), path, strategy="upsert", key_columns=["id"]
    )
    by_kind = {file.operation: file for file in result.files}
    assert by_kind["rewritten"].path == f"{path}/part-00000.parquet" == result.rewritten_files[0]
    assert by_kind["rewritten"].row_count == 10
    assert by_kind["inserted"].path == result.inserted_files[0]
    assert by_kind["inserted"].row_count == 1
    assert result.preserved_files == [f"{path}/part-00001.parquet"]
    assert (result.source_count, result.target_count_before, result.target_count_after) == (2, 20, 21)


def test_scenario_upsert_returns_metadata_for_rewritten_and_inserted_files__under_the_core_name(tmp_path):
    path = tmp_path / "ds"
    first = merge(_numbers(0, 2), path, "upsert", "id")
    assert [file.operation for file in first.files] == ["inserted"]
    second = merge(pa.table({"id": [1, 2], "v": ["new"] * 2}), path, "upsert", "id")
    assert sorted(file.operation for file in second.files) == ["inserted", "rewritten"]
    for file in second.files:
        assert pq.read_metadata(file.path).num_rows == file.row_count


def test_scenario_parquet_metadata_is_the_default_metadata_source(tmp_path, make_dataset, io):
    path = make_dataset(tmp_path / "ds", _numbers(0, 20), files=2)
    result = io.merge(
        pa.table({"id": [3, 99], "v": ["new"] * 2}), path, strategy="upsert", key_columns=["id"]
    )
    assert len(result.files) == 3
    for file in result.files:
        assert file.row_count == pq.read_metadata(file.path).num_rows
        assert file.size_bytes == Path(file.path).stat().st_size


def test_scenario_update_rewrites_only_affected_files(tmp_path, make_dataset, rows, io):
    path = make_dataset(tmp_path / "ds", _numbers(0, 50), files=10)
    before = bytes_of(path)
    source = pa.table({"id": [7, 23, 1000], "v": ["new"] * 3})
    result = io.merge(source, path, strategy="update", key_columns=["id"])
    after = bytes_of(path)
    changed = {name for name in after if before.get(name) != after[name]}
    assert (
        changed == set(result.rewritten_files) == {f"{path}/part-00001.parquet", f"{path}/part-00004.parquet"}
    )
    assert result.inserted_files == []
    assert _ids(path, rows) == list(range(50))
    assert [row["id"] for row in rows(path) if row["v"] == "new"] == [7, 23]


# ---------------------------------------------------------------------------------------------------
# The API's names, behaviour and testing requirements.


def test_the_names_and_parameters_are_those_of_the_specification():
    wanted = {
        merge: [
            "data",
            "path",
            "strategy",
            "key_columns",
            "partition_columns",
            "filesystem",
            "compression",
            "max_rows_per_file",
            "row_group_size",
        ],
        list_dataset_files: ["dataset_path", "filesystem"],
        parse_hive_partition_path: ["file_path", "partition_columns"],
        ParquetMetadataAnalyzer.analyze_dataset_files: ["dataset_path", "filesystem"],
        PartitionPruner.identify_candidate_files: [
            "file_metadata",
            "key_columns",
            "source_keys",
            "partition_schema",
        ],
        ConservativeMembershipChecker.file_might_contain_keys: [
            "file_metadata",
            "key_columns",
            "source_keys",
        ],
        confirm_affected_files: ["candidate_files", "key_columns", "source_keys", "filesystem"],
        IncrementalFileManager.create_staging_directory: ["base_path"],
        IncrementalFileManager.atomic_replace_files: ["source_files", "target_files", "filesystem"],
        IncrementalFileManager.cleanup_staging_files: [],
        validate_no_null_keys: ["source_table", "key_columns"],
        validate_partition_column_immutability: [
            "source_table",
            "target_table",
            "key_columns",
            "partition_columns",
        ],
        plan_incremental_rewrite: [
            "dataset_path",
            "source_keys",
            "key_columns",
            "filesystem",
            "partition_schema",
        ],
        incremental.MergeFileMetadata: ["path", "row_count", "operation", "size_bytes"],
        ParquetFileMetadata: ["path", "row_group_count", "total_rows", "column_stats", "partition_values"],
        incremental.IncrementalRewritePlan: [
            "affected_files",
            "unaffected_files",
            "new_files",
            "affected_rows",
        ],
    }
    for function, names in wanted.items():
        parameters = inspect.signature(function).parameters
        assert [name for name in names if name not in parameters] == [], function
    defaults = inspect.signature(merge).parameters
    assert [defaults[n].default for n in ("compression", "max_rows_per_file", "row_group_size")] == [
        "snappy",
        5_000_000,
        500_000,
    ]


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("/data/year=2024/month=12/file.parquet", {"year": "2024", "month": "12"}),
        ("year=2024/file.parquet", {"year": "2024"}),
        ("s3://bucket/t/a=x%2Fy/b=1%3D2/file.parquet", {"a": "x/y", "b": "1=2"}),
        ("/data/a=__HIVE_DEFAULT_PARTITION__/f.parquet", {"a": None}),
        ("/data/plain/f=1.parquet", {}),
    ],
)
def test_hive_paths_of_many_forms_are_parsed(path, values):
    assert parse_hive_partition_path(path) == values
    assert parse_hive_partition_path(path, ["year"]) == {k: v for k, v in values.items() if k == "year"}


def test_metadata_of_several_row_groups_is_that_of_the_file(tmp_path):
    table = pa.table({"id": [1, 2, 3, 4], "s": ["b", None, "a", "c"], "l": [[1], [2], [3], [4]]})
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=2)
    (found,) = ParquetMetadataAnalyzer().analyze_dataset_files(tmp_path)
    assert (found.row_group_count, found.total_rows, found.partition_values) == (2, 4, None)
    assert found.column_stats == {
        "id": {"min": 1, "max": 4, "null_count": 0},
        "s": {"min": "a", "max": "c", "null_count": 1},
    }


def test_partition_pruning_with_several_columns():
    files = [
        ParquetFileMetadata(f"{y}-{m}", 1, 1, {}, {"year": str(y), "month": str(m)})
        for y in (2024, 2025)
        for m in (1, 2)
    ]
    schema = pa.schema([("year", pa.int32()), ("month", pa.int32())])
    keys = [(2024, 2, "a"), (2025, 1, "b")]
    found = PartitionPruner().identify_candidate_files(files, ["year", "month", "id"], keys, schema)
    assert found == ["2024-2", "2025-1"]
    assert len(PartitionPruner().identify_candidate_files(files, ["year", "month", "id"], keys)) == 4
    assert len(PartitionPruner().identify_candidate_files(files, ["id"], ["a"], schema)) == 4
    assert PartitionPruner().identify_candidate_files(files, ["id"], [], schema) == []


@pytest.mark.parametrize(
    ("stats", "keys", "might"),
    [
        ({"min": 1, "max": 9, "null_count": 0}, [10, 20], False),
        ({"min": 1, "max": 9, "null_count": 0}, [9], True),
        ({"min": 1, "max": 9, "null_count": 0}, [1], True),
        ({"min": 1, "max": 9, "null_count": 0}, [], False),
        ({"min": 1, "max": 9, "null_count": 0}, ["5"], True),  # not to be compared
        ({"min": 1.5, "max": 2.5, "null_count": 0}, [float("nan")], True),
        ({"min": None, "max": None, "null_count": 10}, [1], False),  # NULL throughout
        (
            {"min": dt.date(2025, 1, 1), "max": dt.date(2025, 1, 3), "null_count": 0},
            [dt.date(2025, 1, 4)],
            False,
        ),
    ],
)
def test_membership_at_the_edges(stats, keys, might):
    metadata = ParquetFileMetadata("a.parquet", 1, 10, {"id": stats})
    assert ConservativeMembershipChecker().file_might_contain_keys(metadata, "id", keys) is might


def test_membership_of_a_composite_key_needs_every_column():
    stats = {"a": {"min": 1, "max": 9}, "b": {"min": "k", "max": "m"}}
    metadata = ParquetFileMetadata("a.parquet", 1, 10, stats)
    might = ConservativeMembershipChecker().file_might_contain_keys
    assert might(metadata, ["a", "b"], [(5, "l")])
    assert not might(metadata, ["a", "b"], [(5, "z")])
    with pytest.raises(ValueError, match="a, b"):
        might(metadata, ["a", "b"], [5])


def test_null_keys_are_rejected_by_name():
    with pytest.raises(ValueError, match=r"Key column 'id' has 1 NULL"):
        validate_no_null_keys(pa.table({"id": [1, None]}), ["id"])
    with pytest.raises(ValueError, match="missing"):
        validate_no_null_keys(pa.table({"x": [1]}), ["id"])
    validate_no_null_keys(pa.table({"id": [1, 2]}), "id")


def test_immutability_knows_null_and_wider_types():
    source = pa.table({"id": pa.array([1, 2], pa.int32()), "p": [None, "a"]})
    target = pa.table({"id": pa.array([1, 2, 2**40], pa.int64()), "p": [None, "a", "b"]})
    validate_partition_column_immutability(source, target, ["id"], ["p"])
    moved = target.set_column(1, "p", pa.array(["x", "a", "b"]))
    with pytest.raises(ValueError, match="1 row"):
        validate_partition_column_immutability(source, moved, ["id"], ["p"])


def test_a_staging_directory_is_beside_the_dataset_and_goes_again(tmp_path, make_dataset):
    path = make_dataset(tmp_path / "ds", _numbers(0, 2))
    with IncrementalFileManager() as manager:
        staging = Path(manager.create_staging_directory(str(path)))
        assert staging.is_dir()
        assert staging.parent == tmp_path / ".ds.intarsia"
        assert re.fullmatch(r"\.staging_[0-9a-f]{32}", staging.name)
        (staging / "left.part").write_bytes(b"x")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ds"]


def test_replacing_files_is_all_or_nothing(tmp_path, make_dataset, rows, unchanged):
    path = make_dataset(tmp_path / "ds", _numbers(0, 4), files=2)
    targets = list_dataset_files(path)
    manager = IncrementalFileManager()
    staging = Path(manager.create_staging_directory(path))
    sources = [staging / "a.part", staging / "b.part"]
    pq.write_table(_numbers(10, 12), sources[0])
    sources[1].write_bytes(b"no parquet at all")
    before = bytes_of(path)
    with pytest.raises(pa.ArrowInvalid):
        manager.atomic_replace_files(sources, targets)
    assert bytes_of(path) == before
    pq.write_table(_numbers(20, 22), sources[1])
    manager.atomic_replace_files(sources, targets)
    assert _ids(path, rows) == [10, 11, 20, 21]
    assert not any(source.exists() for source in sources)
    manager.cleanup_staging_files()
    assert not staging.exists()


def test_replacing_files_refuses_lists_that_do_not_fit(tmp_path, make_dataset):
    path = make_dataset(tmp_path / "ds", _numbers(0, 4))
    (target,) = list_dataset_files(path)
    manager = IncrementalFileManager()
    with pytest.raises(ValueError, match="2 files cannot replace 1"):
        manager.atomic_replace_files(["a", "b"], [target])
    with pytest.raises(FileNotFoundError):
        manager.atomic_replace_files([tmp_path / "nothing.parquet"], [target])


def test_a_staged_file_that_cannot_be_removed_is_logged_and_the_others_go(tmp_path, caplog, monkeypatch):
    manager = IncrementalFileManager()
    staging = Path(manager.create_staging_directory(tmp_path / "ds"))
    for name in ("a", "b"):
        (staging / name).write_bytes(b"x")
    storage = manager._staged[0][0]
    remove = type(storage).remove

    def refuse(self, path):
        if path.endswith("/a"):
            raise StorageError(f"Cannot remove {path}.", errno=13, path=path)
        return remove(self, path)

    monkeypatch.setattr(type(storage), "remove", refuse)
    with caplog.at_level(logging.WARNING, logger="intarsia"):
        manager.cleanup_staging_files()
    assert [entry.name for entry in staging.iterdir()] == ["a"]
    assert f"{staging}/a" in caplog.text
    monkeypatch.undo()
    manager.cleanup_staging_files()
    assert not staging.exists()


def test_a_missing_dataset_is_told_and_an_empty_one_is_empty(tmp_path):
    with pytest.raises(FileNotFoundError):
        list_dataset_files(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert list_dataset_files(tmp_path / "empty") == []
    assert plan_incremental_rewrite(tmp_path / "nothing", [1], "id").affected_files == []


def test_keys_of_a_partition_column_are_confirmed_from_the_path(tmp_path, make_dataset):
    data = pa.table({"id": [1, 1], "year": [2024, 2025]})
    path = make_dataset(tmp_path / "ds", data, partition="year")
    files = list_dataset_files(path)
    assert confirm_affected_files(files, ["id", "year"], [(1, 2025)]) == [
        f"{path}/year=2025/part-00000.parquet"
    ]
    text = pa.schema([("year", pa.string())])
    plan = plan_incremental_rewrite(path, [(1, "2025")], ["id", "year"], partition_schema=text)
    assert plan.affected_files == [f"{path}/year=2025/part-00000.parquet"]
