"""What the requirements left open or contradicted, as it was settled: one test or more per answer."""

from __future__ import annotations

import datetime as dt
import decimal
import inspect
import io as stdlib_io
import json
import os
from pathlib import Path

import duckdb
import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from spec_tables import bytes_of, pairs_of, table_of

import intarsia as it
from intarsia.core import incremental
from intarsia.core.merge import MergeStrategy
from intarsia.core.report import WriteDatasetResult
from intarsia.datasets.pyarrow import (
    PyarrowDatasetIO,
    compact_parquet_dataset_pyarrow,
    deduplicate_parquet_dataset_pyarrow,
    merge_parquet_dataset_pyarrow,
    optimize_parquet_dataset_pyarrow,
)
from intarsia.engines.arrow import ArrowEngine
from intarsia.engines.duckdb import DuckDBEngine
from intarsia.engines.duckdb.scan import Scan
from intarsia.errors import (
    IntarsiaError,
    KeyColumnError,
    NothingMatched,
    PartitionMoveError,
    SchemaMismatch,
    UnsafePath,
)
from intarsia.kernel.read import FileReader
from intarsia.storage import PosixStorage

# --- S1: mode beside strategy ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_s01_strategy_decides_and_mode_beside_it_is_ignored_with_a_warning(
    tmp_path, make_dataset, rows, io, mode
):
    path = make_dataset(tmp_path / "ds", table_of([1, 2]))
    with pytest.warns(UserWarning, match="takes precedence"):
        io.write_parquet_dataset(table_of([2], "new"), path, strategy="upsert", key_columns="id", mode=mode)
    assert pairs_of(path, rows) == [(1, "old"), (2, "new")]
    io.write_parquet_dataset(table_of([3], "new"), path, strategy="upsert", key_columns="id")  # no warning


@pytest.mark.parametrize("strategy", ["insert", "upsert", "update", "full_merge", "deduplicate"])
def test_s01_a_strategy_without_keys_is_refused(tmp_path, io, strategy):
    with pytest.raises(ValueError, match="key_columns"):
        io.write_parquet_dataset(table_of([1]), tmp_path / "ds", strategy=strategy)
    if strategy != "insert":
        with pytest.raises(ValueError, match=r"append.* is not supported"):
            io.write_parquet_dataset(table_of([1]), tmp_path / "ds", strategy=strategy, mode="append")
    assert list(tmp_path.iterdir()) == []


def test_s01_insert_and_append_writes_only_new_keys_and_rewrites_nothing(tmp_path, make_dataset, io):
    path = make_dataset(tmp_path / "ds", table_of([1]))
    before = bytes_of(path)
    with pytest.warns(UserWarning, match="takes precedence"):
        result = io.write_parquet_dataset(
            table_of([1, 2]), path, strategy="insert", key_columns=["id"], mode="append"
        )
    assert before.items() <= bytes_of(path).items()
    assert (result.inserted, result.rewritten_files) == (1, [])


@pytest.mark.parametrize(
    "options", [{"mode": "sideways"}, {"rewrite_mode": "partly"}, {"key_columns": ["id"]}]
)
def test_s01_what_makes_no_sense_is_refused_before_anything_is_done(tmp_path, io, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        io.write_parquet_dataset(table_of([1]), tmp_path / "ds", **options)
    assert list(tmp_path.iterdir()) == []


# --- S2: one class for a schema that does not fit ------------------------------------------------------


def test_s02_a_schema_mismatch_is_every_error_that_was_asked_for(tmp_path, make_dataset, io):
    path = make_dataset(tmp_path / "ds", table_of([1]))
    with pytest.raises(SchemaMismatch) as caught:
        io.merge(pa.table({"id": [1], "v": [5]}), path, "upsert", ["id"])
    error = caught.value
    for kind in (ValueError, TypeError, pa.ArrowInvalid, pa.ArrowTypeError, IntarsiaError):
        assert isinstance(error, kind)
    for part in ("upsert", str(path), "'v'", "string", "int64", "Hint"):
        assert part in str(error)
    assert error.changed is False


# --- S3: pruning against partition moves ---------------------------------------------------------------


@pytest.fixture
def days(tmp_path, make_dataset):
    """Three partitions whose ids overlap, so that bounds alone tell nothing."""
    data = pa.table({"id": [1, 9, 2, 8, 3, 7], "v": ["old"] * 6, "day": ["a", "a", "b", "b", "c", "c"]})
    return make_dataset(tmp_path / "ds", data, partition="day")


def test_s03_a_key_in_another_partition_is_found_there_and_refused(days, unchanged):
    source = pa.table({"id": [2], "v": ["new"], "day": ["a"]})
    with unchanged(days), pytest.raises(PartitionMoveError, match="id=2 is in day=b, the source says day=a"):
        it.merge(source, days, on="id")
    assert issubclass(PartitionMoveError, ValueError)


def test_s03_for_insert_such_a_key_exists_already_and_is_ignored(days):
    source = pa.table({"id": [2, 5], "v": ["new"] * 2, "day": ["a", "a"]})
    assert dict(it.merge(source, days, on="id", strategy="insert")) == {
        "inserted": 1,
        "updated": 0,
        "deleted": 0,
        "total": 7,
    }


def test_s03_other_partitions_are_probed_by_key_columns_only_and_never_rewritten(days, reads):
    result = it.merge(pa.table({"id": [1, 5], "v": ["new"] * 2, "day": ["a", "a"]}), days, on="id")
    assert result.rewritten_files == [f"{days}/day=a/part-00000.parquet"]
    assert reads.columns_of("day=b/part-00000.parquet") == {"id"}
    assert reads.columns_of("day=a/part-00000.parquet") == {"id", "v"}


def test_s03_other_partitions_are_probed_by_their_statistics_first(days, reads):
    it.merge(pa.table({"id": [1, 9], "v": ["new"] * 2, "day": ["a", "a"]}), days, on="id")
    assert reads.paths == {"day=a/part-00000.parquet"}  # 1 and 9 are outside of the bounds of the others


def test_s03_with_the_partition_in_the_key_no_other_partition_is_read(days, reads):
    result = it.merge(pa.table({"id": [1, 2], "v": ["new"] * 2, "day": ["a", "a"]}), days, on=["id", "day"])
    assert dict(result) == {"inserted": 1, "updated": 1, "deleted": 0, "total": 7}
    assert reads.paths == {"day=a/part-00000.parquet"}


# --- S4: dict or result --------------------------------------------------------------------------------


def test_s04_a_result_answers_like_a_dict_and_the_functions_return_plain_ones(tmp_path, make_dataset, io):
    path = make_dataset(tmp_path / "ds", table_of([1, 2]), files=2)
    for merge in (io.merge, incremental.merge):
        result = merge(table_of([1, 5]), path, "upsert", ["id"])
        assert isinstance(result, it.MergeResult)
        assert dict(result) == {key: result[key] for key in ("inserted", "updated", "deleted", "total")}
        assert result["total"] == result.target_count_after
        with pytest.raises(KeyError):
            result["path"]
    plain = [
        merge_parquet_dataset_pyarrow(table_of([1]), path, "id", "upsert"),
        compact_parquet_dataset_pyarrow(path, target_rows_per_file=10),
        optimize_parquet_dataset_pyarrow(path, "id"),
        deduplicate_parquet_dataset_pyarrow(path, "id"),
    ]
    assert all(type(stats) is dict for stats in plain)
    json.dumps(plain)
    wanted = {
        "before_file_count",
        "after_file_count",
        "before_total_bytes",
        "after_total_bytes",
        "compacted_file_count",
        "rewritten_bytes",
        "compression_codec",
        "dry_run",
        "planned_groups",
    }
    assert all(wanted <= set(stats) for stats in plain[1:])


# --- S5: five strategies -------------------------------------------------------------------------------


def test_s05_there_are_five_strategies_and_an_unknown_one_is_told_them(tmp_path, io):
    five = ["insert", "update", "upsert", "full_merge", "deduplicate"]
    assert [str(strategy) for strategy in MergeStrategy] == five
    for strategy in five:
        io.merge(table_of([1]), tmp_path / strategy, strategy, "id")
    with pytest.raises(ValueError, match="replace") as caught:
        io.merge(table_of([1]), tmp_path / "ds", "replace", "id")
    assert all(strategy in str(caught.value) for strategy in five)


# --- S6, S7: nothing on one side -----------------------------------------------------------------------


def test_s06_full_merge_with_an_empty_source_deletes_every_row_and_leaves_other_files(
    tmp_path, make_dataset, io
):
    path = make_dataset(tmp_path / "ds", table_of(range(10)), files=3)
    (path / "README.txt").write_text("stays")
    (path / "_SUCCESS").write_text("")
    result = io.merge(table_of([]), path, "full_merge", "id")
    assert (result.deleted, result.total) == (10, 0)
    assert sorted(entry.name for entry in path.iterdir()) == ["README.txt", "_SUCCESS"]
    assert io.read_parquet(path).num_rows == 0


def test_s07_update_of_a_target_that_does_not_exist_creates_nothing(tmp_path, io):
    result = io.merge(table_of([1]), tmp_path / "a" / "ds", "update", "id")
    assert dict(result) == {"inserted": 0, "updated": 0, "deleted": 0, "total": 0}
    assert list(tmp_path.iterdir()) == []


# --- S8, S9, S10: keys ---------------------------------------------------------------------------------


def test_s08_null_keys_are_refused_on_both_sides_unless_they_may_match(
    tmp_path, make_dataset, rows, unchanged, io
):
    path = make_dataset(tmp_path / "ds", pa.table({"id": [1, None, None], "v": ["old"] * 3}))
    with (
        unchanged(path),
        pytest.raises(KeyColumnError, match="Key column 'id' has 1 NULL value in the source"),
    ):
        io.merge(
            pa.table({"id": [None, 1], "v": ["n"] * 2}, schema=table_of([]).schema), path, "upsert", "id"
        )
    with (
        unchanged(path),
        pytest.raises(KeyColumnError, match=r"Key column 'id' has 2 NULL.*part-00000\.parquet"),
    ):
        io.merge(table_of([1], "new"), path, "upsert", "id")
    source = pa.table({"id": [None, 5], "v": ["new"] * 2}, schema=table_of([]).schema)
    result = io.merge(source, path, "upsert", "id", null_keys="match")
    assert dict(result) == {"inserted": 1, "updated": 2, "deleted": 0, "total": 4}
    assert sorted(row["v"] for row in rows(path)) == ["new", "new", "new", "old"]


def test_s08_only_files_that_the_merge_reads_are_checked(tmp_path, make_dataset, io):
    path = make_dataset(tmp_path / "ds", pa.table({"id": [1, 2, 50, None], "v": ["old"] * 4}), files=2)
    assert io.merge(table_of([1], "new"), path, "upsert", "id").updated == 1


def test_s09_nan_equals_nan_and_minus_zero_equals_zero(tmp_path, make_dataset, io):
    nan = float("nan")
    path = make_dataset(tmp_path / "ds", pa.table({"k": [nan, 0.0, 1.0], "v": ["old"] * 3}))
    result = io.merge(pa.table({"k": [nan, -0.0, 2.0], "v": ["new"] * 3}), path, "upsert", "k")
    assert dict(result) == {"inserted": 1, "updated": 2, "deleted": 0, "total": 4}
    with pytest.raises(KeyColumnError, match="duplicate"):
        io.merge(pa.table({"k": [nan, nan], "v": ["new"] * 2}), path, "upsert", "k")


_D = decimal.Decimal
_NOON = dt.datetime(2025, 1, 1, 12, 0, 0, 5)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [1, 2, 3]),
        (pa.int16(), [1, -2, 3]),
        (pa.uint64(), [1, 2**64 - 1, 3]),
        (pa.float32(), [1.5, 2.5, 3.5]),
        (pa.decimal128(20, 3), [_D("1.5"), _D("2.5"), _D("3.5")]),
        (pa.decimal256(40, 2), [_D("1.5"), _D("-2"), _D("3")]),
        (pa.string(), ["a", "b", "ä"]),
        (pa.large_string(), ["a", "b", "c"]),
        (pa.string_view(), ["a", "b", "c"]),
        (pa.binary(), [b"a", b"\x00", b"\xff"]),
        (pa.large_binary(), [b"a", b"\x00", b"\xff"]),
        (pa.binary_view(), [b"a", b"\x00", b"\xff"]),
        (pa.binary(2), [b"aa", b"\x00\x00", b"\xff\xff"]),
        (pa.bool_(), [True, False]),
        (pa.date32(), [dt.date(2025, 1, day) for day in (1, 2, 3)]),
        (pa.date64(), [dt.date(2025, 1, day) for day in (1, 2, 3)]),
        (pa.time32("s"), [dt.time(1), dt.time(2), dt.time(3)]),
        (pa.time64("us"), [dt.time(1), dt.time(2), dt.time(3)]),
        (pa.timestamp("us"), [_NOON, _NOON.replace(year=3000), _NOON.replace(year=1)]),
        (pa.timestamp("ms", "Europe/Berlin"), [1, 2, 3]),
        (pa.duration("us"), [dt.timedelta(1), dt.timedelta(2), dt.timedelta(3)]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "c"]),
    ],
    ids=str,
)
def test_s10_any_orderable_type_can_be_a_key(tmp_path, io, kind, values):
    keys = pa.array(values, kind) if not pa.types.is_dictionary(kind) else pa.array(values).cast(kind)
    table = pa.table({"k": keys, "n": list(range(len(values)))})
    io.write_dataset(table.slice(0, len(values) - 1), tmp_path / "ds")
    result = io.merge(table, tmp_path / "ds", "upsert", "k")
    assert dict(result) == {"inserted": 1, "updated": len(values) - 1, "deleted": 0, "total": len(values)}


@pytest.mark.parametrize(
    ("ours", "theirs", "values"),
    [
        (pa.int32(), pa.int64(), [1, 2]),
        (pa.timestamp("us"), pa.timestamp("ns"), [_NOON, _NOON.replace(day=2)]),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "America/New_York"), [_NOON, _NOON.replace(day=2)]),
        (pa.string(), pa.large_string(), ["a", "b"]),
        (pa.string(), pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
        (pa.decimal128(10, 2), pa.decimal128(20, 4), [_D("1.25"), _D("2.50")]),
    ],
    ids=str,
)
@pytest.mark.parametrize("swap", [False, True])
def test_s10_equal_values_of_kindred_types_are_the_same_key(tmp_path, io, ours, theirs, values, swap):
    if swap:
        ours, theirs = theirs, ours
    source, target = (pa.table({"k": pa.array(values).cast(kind), "n": [1, 2]}) for kind in (ours, theirs))
    io.write_dataset(target, tmp_path / "ds")
    assert io.merge(source, tmp_path / "ds", "upsert", "k").updated == 2


@pytest.mark.parametrize(("key", "kind"), [({"a": 1}, "struct"), ([1], "list")])
def test_s10_a_nested_key_is_refused_by_name(tmp_path, io, key, kind):
    with pytest.raises(KeyColumnError, match=f"'k'.*{kind}"):
        io.merge(pa.table({"k": [key]}), tmp_path / "ds", "upsert", "k")
    assert list(tmp_path.iterdir()) == []


# --- S11, S12: duplicate keys --------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge"])
def test_s11_duplicate_source_keys_are_refused_with_samples_and_a_way_out(
    tmp_path, make_dataset, unchanged, io, strategy
):
    path = make_dataset(tmp_path / "ds", table_of([1]))
    source = table_of([1, 1, 2, 2, 3, 3, 4, 4, 5])
    with unchanged(path), pytest.raises(KeyColumnError, match="4 duplicate keys in id") as caught:
        io.merge(source, path, strategy, "id")
    message = str(caught.value)
    assert [f"id={n}" in message for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert 'strategy="deduplicate"' in message


def test_s11_deduplicate_takes_the_highest_order_and_the_last_on_ties(tmp_path, io, rows):
    source = pa.table({"id": [1, 1, 1, 2, 2], "o": [1, 3, 3, None, 0], "v": ["a", "b", "c", "d", "e"]})
    io.merge(source, tmp_path / "ordered", "deduplicate", "id", dedup_order_by="o")
    assert sorted(row["v"] for row in rows(tmp_path / "ordered")) == ["c", "e"]
    io.merge(source, tmp_path / "last", "deduplicate", "id")
    assert sorted(row["v"] for row in rows(tmp_path / "last")) == ["c", "e"]


def test_s12_every_target_row_with_the_key_is_replaced(tmp_path, make_dataset, rows, io):
    path = make_dataset(tmp_path / "ds", table_of([1, 1, 2, 1]), files=2)
    for strategy in ("update", "upsert", "full_merge"):
        result = io.merge(table_of([1, 2], strategy), path, strategy, "id")
        assert dict(result) == {"inserted": 0, "updated": 4, "deleted": 0, "total": 4}
        assert pairs_of(path, rows) == [(1, strategy)] * 3 + [(2, strategy)]


# --- S13, S14: columns and types -----------------------------------------------------------------------


def test_s13_a_missing_column_is_refused_or_null(tmp_path, make_dataset, rows, unchanged, io):
    path = make_dataset(tmp_path / "ds", pa.table({"id": [1], "a": ["x"], "b": [1]}))
    source = pa.table({"b": [2], "id": [1]})
    with unchanged(path), pytest.raises(SchemaMismatch, match=r"'a'.*missing"):
        io.merge(source, path, "upsert", "id")
    io.merge(source, path, "upsert", "id", missing="null")
    assert rows(path) == rows([{"id": 1, "a": None, "b": 2}])
    assert pq.read_schema(path / "part-00000.parquet").names == ["id", "a", "b"]


def test_s13_a_new_column_is_refused_or_added_and_null_elsewhere(tmp_path, make_dataset, rows, unchanged, io):
    path = make_dataset(tmp_path / "ds", table_of([1, 2]), files=2)
    source = table_of([1, 3], "new").append_column("extra", pa.array([7, 8]))
    with unchanged(path), pytest.raises(SchemaMismatch, match="'extra'"):
        io.merge(source, path, "upsert", "id")
    io.merge(source, path, "upsert", "id", schema_evolution="add")
    found = io.read_parquet(path).sort_by("id").to_pylist()
    assert [(row["id"], row["v"], row["extra"]) for row in found] == [
        (1, "new", 7),
        (2, "old", None),
        (3, "new", 8),
    ]


def test_s13_a_file_that_lacks_a_column_gets_the_sources_value(tmp_path, make_dataset, io):
    path = make_dataset(tmp_path / "ds", pa.table({"id": [1, 2]}))
    pq.write_table(pa.table({"id": [9], "late": ["x"]}), path / "later.parquet")
    io.merge(pa.table({"id": [1], "late": ["y"]}), path, "update", "id")
    found = io.read_parquet(path).sort_by("id")
    assert found.to_pydict() == {"id": [1, 2, 9], "late": ["y", None, "x"]}


def _as_everyone_reads(path: Path) -> list[list[tuple]]:
    """The rows, sorted by id, as readers that know nothing of us give them, without any option."""
    arrow = ds.dataset(path, partitioning="hive").to_table().sort_by("id")
    duck = duckdb.sql(f"from read_parquet('{path}/**/*.parquet') order by id").to_arrow_table()
    polars = pl.read_parquet(path).sort("id").to_arrow()
    assert arrow.column_names == duck.column_names == polars.column_names
    return [[tuple(row.values()) for row in table.to_pylist()] for table in (arrow, duck, polars)]


def test_s14_a_narrower_type_is_cast_up_and_a_wider_one_down_where_every_value_fits(
    tmp_path, make_dataset, io
):
    path = make_dataset(tmp_path / "ds", pa.table({"id": [1, 2], "n": pa.array([1, 2], pa.int32())}), files=2)
    io.merge(pa.table({"id": [1], "n": pa.array([10], pa.int8())}), path, "upsert", "id")
    io.merge(pa.table({"id": [2, 3], "n": pa.array([20, 30], pa.int64())}), path, "upsert", "id")
    assert {pq.read_schema(file).field("n").type for file in path.glob("*.parquet")} == {pa.int32()}
    assert _as_everyone_reads(path) == [[(1, 10), (2, 20), (3, 30)]] * 3


def test_s14_a_value_that_does_not_fit_is_named_and_widening_rewrites_every_narrow_file(
    tmp_path, make_dataset, unchanged, io
):
    path = make_dataset(tmp_path / "ds", pa.table({"id": [1, 2], "n": pa.array([1, 2], pa.int32())}), files=2)
    wide = pa.table({"id": [1], "n": [2**40]})
    with unchanged(path), pytest.raises(SchemaMismatch, match=str(2**40)) as caught:
        io.merge(wide, path, "upsert", "id")
    assert "'n'" in str(caught.value)
    assert 'schema_evolution="widen"' in str(caught.value)
    plan = it.plan("merge", wide, path, on="id", schema_evolution="widen")
    assert plan.count("rewrite") == 2
    assert any("widened" in item.reason for item in plan.files)
    io.merge(wide, path, "upsert", "id", schema_evolution="widen")
    assert {pq.read_schema(file).field("n").type for file in path.glob("*.parquet")} == {pa.int64()}
    assert _as_everyone_reads(path) == [[(1, 2**40), (2, 2)]] * 3


@pytest.mark.parametrize(
    ("target", "source"),
    [
        (pa.array([1], pa.int32()), pa.array([1.5])),
        (pa.array([1.5], pa.float32()), pa.array([0.1])),
        (pa.array([0], pa.timestamp("us")), pa.array([1], pa.timestamp("ns"))),
        (pa.array([_D("1.10")], pa.decimal128(5, 2)), pa.array([_D("1.111")], pa.decimal128(5, 3))),
        (pa.array([1.0]), pa.array([2**53 + 1])),
    ],
    ids=["fraction", "precision", "nanoseconds", "scale", "large integer"],
)
def test_s14_no_cast_loses_data(tmp_path, make_dataset, unchanged, io, target, source):
    path = make_dataset(tmp_path / "ds", pa.table({"id": [1], "n": target}))
    with unchanged(path), pytest.raises(SchemaMismatch, match="'n'"):
        io.merge(pa.table({"id": [1], "n": source}), path, "upsert", "id")


# --- S15, S16, S17: partitions and files ---------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        ["007", "1e5", "true", "2025-01-01", "a/b", "x=y", "50 %", "ä", None],
        [dt.date(2025, 1, 1), None],
        [1, -2, None],
        [dt.datetime(2025, 1, 1, 12, 30), dt.datetime(2025, 1, 1)],
        [True, False],
        [_D("1.50"), _D("2.00")],
    ],
    ids=["text", "date", "int", "timestamp", "bool", "decimal"],
)
def test_s15_partition_values_survive_a_round_trip_with_their_type(tmp_path, io, values):
    table = pa.table({"id": list(range(len(values))), "p": values})
    io.write_dataset(table, tmp_path / "ds", partition_by="p")
    found = io.read_parquet(tmp_path / "ds").sort_by("id")
    assert found.schema.field("p").type == table.schema.field("p").type
    assert found["p"].to_pylist() == values
    result = io.merge(table, tmp_path / "ds", "upsert", "id")
    assert (result.updated, result.inserted) == (len(values), 0)
    texts = {entry.name for entry in (tmp_path / "ds").iterdir()}
    assert all(incremental.parse_hive_partition_path(f"{text}/f.parquet").keys() == {"p"} for text in texts)


@pytest.mark.parametrize(
    ("directories", "kind"),
    [
        (["p=1", "p=-20"], pa.int64()),
        (["p=2025-01-01", "p=2025-12-31"], pa.date32()),
        (["p=2025-01-01 10%3A00%3A00"], pa.timestamp("us")),
        (["p=007", "p=8"], pa.string()),
        (["p=1e5"], pa.string()),
        (["p=__HIVE_DEFAULT_PARTITION__", "p=3"], pa.int64()),
    ],
)
def test_s15_types_of_foreign_directories_are_those_that_read_back(tmp_path, io, directories, kind):
    for number, directory in enumerate(directories):
        (tmp_path / "p=ignored" / "ds" / directory).mkdir(parents=True)  # above the root: no partition
        pq.write_table(pa.table({"id": [number]}), tmp_path / "p=ignored" / "ds" / directory / "f.parquet")
    table = io.read_parquet(tmp_path / "p=ignored" / "ds")
    assert table.schema.field("p").type == kind
    assert ("p=__HIVE" in directories[0]) == (None in table["p"].to_pylist())


def test_s15_rows_that_come_with_text_settle_what_a_foreign_directory_only_suggests(
    tmp_path, make_dataset, io
):
    data = pa.table({"id": [1, 2], "day": ["2025-01-01", "2025-01-02"]})
    path = make_dataset(tmp_path / "ds", data, partition="day")
    assert io.read_parquet(path).schema.field("day").type == pa.date32()
    io.merge(pa.table({"id": [2, 3], "day": ["2025-01-02", "2025-01-03"]}), path, "upsert", "id")
    table = io.read_parquet(path).sort_by("id")
    assert table["day"].to_pylist() == ["2025-01-01", "2025-01-02", "2025-01-03"]


def test_s16_which_files_are_data(tmp_path, io):
    path = tmp_path / "ds"
    data = ["a.parquet", "b.PARQUET", "c.parq", "sub/d.parquet", "_p=1/e.parquet"]
    other = [
        ".h.parquet",
        "_i.parquet",
        ".dir/j.parquet",
        "_temporary/0/k.parquet",
        "l.parquet.crc",
        "notes.txt",
    ]
    for number, name in enumerate([*data, *other]):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [number]}), path / name)
    assert incremental.list_dataset_files(path) == sorted(f"{path}/{name}" for name in data)
    assert sorted(io.read_parquet(path)["id"].to_pylist()) == list(range(len(data)))
    plan = it.plan("delete", path, "id = 1")
    assert any("Another writer seems to be active" in note for note in plan.notes)
    io.delete(path, "id = 1")
    assert all((path / name).exists() for name in other)


def test_s16_writing_a_partition_that_readers_would_not_see_is_refused(tmp_path, io):
    for name in ("_p", ".p"):
        with pytest.raises(UnsafePath, match=f"'{name}'"):
            io.write_dataset(pa.table({"id": [1], name: [1]}), tmp_path / "ds", partition_by=name)
    assert list(tmp_path.iterdir()) == []


def test_s17_inserted_rows_go_to_their_partition_without_being_told(tmp_path, make_dataset, io, rows):
    data = pa.table({"id": [1, 2], "y": [2024, 2025], "m": ["a", "b"]})
    path = make_dataset(tmp_path / "ds", data, partition=["y", "m"])
    io.merge(pa.table({"id": [3, 4], "y": [2024, 2026], "m": ["a", "z"]}), path, "upsert", "id")
    directories = {str(file.parent.relative_to(path)) for file in path.rglob("*.parquet")}
    assert directories == {"y=2024/m=a", "y=2025/m=b", "y=2026/m=z"}
    for file in path.rglob("*.parquet"):
        assert pq.read_schema(file).names == ["id"]
    assert [(row["id"], row["y"]) for row in sorted(rows(path), key=lambda row: row["id"])][2:] == [
        (3, "2024"),
        (4, "2026"),
    ]


# --- S18: what a rewrite keeps -------------------------------------------------------------------------


def test_s18_a_rewrite_keeps_the_layout_of_the_file_it_replaces(tmp_path, io):
    path = tmp_path / "ds"
    path.mkdir()
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("v", pa.string(), metadata={"note": "mine"}),
        ],
        metadata={"owner": "somebody"},
    )
    table = pa.table({"id": range(100), "v": [f"x{n}" for n in range(100)]}, schema=schema)
    pq.write_table(
        table,
        path / "f.parquet",
        compression="zstd",
        row_group_size=30,
        sorting_columns=[pq.SortingColumn(0)],
        write_page_index=True,
        bloom_filter_options={"v": {"ndv": 100}},
    )
    io.merge(pa.table({"id": [50], "v": ["new"]}), path, "upsert", "id")
    with pq.ParquetFile(path / "f.parquet") as file:
        meta, stored = file.metadata, file.schema_arrow
        groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
        assert file.read()["v"].to_pylist() == [f"x{n}" if n != 50 else "new" for n in range(100)]
    assert {group.column(0).compression for group in groups} == {"ZSTD"}
    assert stored.metadata[b"owner"] == b"somebody"
    assert stored.field("v").metadata[b"note"] == b"mine"
    assert not stored.field("id").nullable
    assert [group.num_rows for group in groups] == [30, 30, 30, 10]
    assert all(len(group.sorting_columns) == 1 for group in groups)
    assert all(group.column(0).has_offset_index for group in groups)
    assert all(group.column(1).bloom_filter_offset is not None for group in groups)
    io.merge(pa.table({"id": [50], "v": ["x"]}), path, "upsert", "id", compression="gzip", row_group_size=60)
    meta = pq.read_metadata(path / "f.parquet")
    assert (meta.row_group(0).column(0).compression, meta.row_group(0).num_rows) == ("GZIP", 60)


def test_s18_the_defaults_of_the_core_merge_are_only_for_new_datasets(tmp_path, make_dataset):
    path = make_dataset(tmp_path / "ds", table_of(range(10)), compression="zstd")
    incremental.merge(table_of([1], "new"), path, "upsert", ["id"])
    assert pq.read_metadata(path / "part-00000.parquet").row_group(0).column(0).compression == "ZSTD"
    incremental.merge(table_of([1], "new"), path, "upsert", ["id"], compression="snappy")
    assert pq.read_metadata(path / "part-00000.parquet").row_group(0).column(0).compression == "SNAPPY"
    result = incremental.merge(table_of([1]), tmp_path / "new", "upsert", ["id"])
    assert pq.read_metadata(result.inserted_files[0]).row_group(0).column(0).compression == "SNAPPY"


# --- S19: how things are called ------------------------------------------------------------------------


def test_s19_the_positional_order_and_the_other_spellings(tmp_path, rows):
    for call, wanted in {
        PyarrowDatasetIO().merge: ["data", "path", "strategy", "key_columns"],
        incremental.merge: ["data", "path", "strategy", "key_columns"],
        merge_parquet_dataset_pyarrow: ["source", "target_path", "key_columns", "strategy"],
    }.items():
        parameters = inspect.signature(call).parameters.values()
        assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == wanted
    data = pa.table({"id": [1, 2], "p": ["a", "b"]})
    paths = [tmp_path / "path", str(tmp_path / "text"), (tmp_path / "url").as_uri()]
    for target, spelling in zip(paths, ("partition_by", "partition_columns", "partition_by"), strict=True):
        incremental.merge(data, target, "upsert", "id", **{spelling: "p"})
    for name in ("path", "text", "url"):
        assert [row["p"] for row in rows(tmp_path / name)] == ["a", "b"]
    with pytest.raises(ValueError, match="say different things"):
        incremental.merge(data, tmp_path / "x", "upsert", "id", partition_by="p", partition_columns="id")


@pytest.mark.parametrize("kind", ["fsspec memory", "fsspec local", "pyarrow subtree"])
def test_s19_a_file_system_object_goes_with_any_path(tmp_path, kind):
    memory = fsspec.filesystem("memory")
    filesystem, path = {
        "fsspec memory": (memory, f"/{tmp_path.name}/ds"),
        "fsspec local": (fsspec.filesystem("file"), str(tmp_path / "ds")),
        "pyarrow subtree": (pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "ds"),
    }[kind]
    data = pa.table({"id": [1, 2], "p": ["a", "b"]})
    changes = pa.table({"id": [2, 3], "p": ["b", "b"]})
    on = PyarrowDatasetIO(filesystem, single_writer=kind == "fsspec memory")
    on.write_dataset(data, path, partition_by="p")
    assert dict(on.merge(changes, path, "upsert", "id"))["total"] == 3
    table = on.read_parquet(path, include_file_path=True)
    assert sorted(table["id"].to_pylist()) == [1, 2, 3]
    files = incremental.list_dataset_files(path, filesystem)
    assert sorted(set(table["file_path"].to_pylist())) == files
    assert len(incremental.confirm_affected_files(files, "id", [3], filesystem)) == 1
    assert on.read_parquet(files[0])["id"].to_pylist() == [1]
    assert incremental.plan_incremental_rewrite(path, [2], "id", filesystem).affected_rows == 1
    if kind == "fsspec memory":
        memory.rm(f"/{tmp_path.name}", recursive=True)


# --- S20, S21, S22 -------------------------------------------------------------------------------------


def test_s20_overwrite_brings_the_new_files_before_the_old_ones_go(
    tmp_path, make_dataset, io, rows, monkeypatch
):
    path = make_dataset(tmp_path / "ds", table_of([1, 2]), files=2)
    (path / "notes.txt").write_text("stays")
    remove, seen = PosixStorage.remove, []

    def spy(self, target):
        if target.startswith(f"{path}/"):
            seen.append(sorted(row["id"] for row in rows(path)))
        return remove(self, target)

    monkeypatch.setattr(PosixStorage, "remove", spy)
    io.write_dataset(table_of([8, 9]), path, mode="overwrite")
    assert seen == [[1, 2, 8, 9], [2, 8, 9]]
    assert [row["id"] for row in rows(path)] == [8, 9]
    assert (path / "notes.txt").exists()


def test_s21_counts_are_real_rows(tmp_path, make_dataset, rows, io):
    path = make_dataset(tmp_path / "ds", table_of([*range(50), 7, 7]), files=5)
    total = 52
    for number, strategy in enumerate(MergeStrategy):
        result = io.merge(table_of([7, 100 + number, 3], strategy), path, strategy, "id")
        assert result.target_count_before == total
        total += result.inserted - result.deleted
        assert result.total == result.target_count_after == total == len(rows(path))
    deleted = io.delete(path, "id = 7")
    assert deleted.total == total - deleted.deleted == len(rows(path))


@pytest.mark.parametrize("curve", ["zorder", "hilbert", "linear"])
def test_s22_optimize_orders_rows_along_a_curve_with_nulls_last(tmp_path, make_dataset, rows, curve):
    grid = [(x, y) for x in range(16) for y in range(16)]
    shuffled = [grid[n * 101 % 256] for n in range(256)]
    data = pa.table({"x": [None] + [x for x, _ in shuffled], "y": [None] + [y for _, y in shuffled]})
    path = make_dataset(tmp_path / "ds", data, files=3)
    it.optimize(path, by=["x", "y"], curve=curve, target_rows_per_file=65)
    files = sorted(path.glob("*.parquet"))
    assert len(files) == 4
    assert all(file.name.startswith("optimized-") for file in files)
    tables = [pq.ParquetFile(file).read() for file in files]
    assert rows(pa.concat_tables(tables)) == rows(data)
    assert tables[-1].to_pylist()[-1] == {"x": None, "y": None}
    spans = [pc.min_max(table["y"].slice(0, 64)).as_py() for table in tables[:3]]
    width = max(span["max"] - span["min"] for span in spans)
    if curve == "linear":
        whole = pa.concat_tables(tables)
        order = pc.sort_indices(whole, sort_keys=[("x", "ascending", "at_end"), ("y", "ascending", "at_end")])
        assert whole.take(order).equals(whole)
    else:  # a quarter of the grid has about half of the range of each column
        assert width < 12


def test_s22_one_column_is_a_sort(tmp_path, make_dataset):
    path = make_dataset(tmp_path / "ds", pa.table({"x": [3, None, 1, 2]}), files=2)
    it.optimize(path, by="x")
    (file,) = path.glob("optimized-*.parquet")
    assert pq.ParquetFile(file).read()["x"].to_pylist() == [1, 2, 3, None]


# --- S23: sources --------------------------------------------------------------------------------------


def _source_path(tmp_path: Path, kind: str, table: pa.Table) -> Path:
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / f"source.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "csv":
        path.write_text("id,v\n" + "".join(f"{row['id']},{row['v']}\n" for row in table.to_pylist()))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return path


_SOURCES = {
    "Table": lambda table, _: table,
    "RecordBatch": lambda table, _: table.to_batches()[0],
    "RecordBatchReader": lambda table, _: table.to_reader(max_chunksize=1),
    "Dataset": lambda table, _: ds.dataset(table),
    "polars": lambda table, _: pl.from_arrow(table),
    "duckdb": lambda table, _: duckdb.from_arrow(table),
    "parquet": lambda table, tmp: _source_path(tmp, "parquet", table),
    "csv": lambda table, tmp: str(_source_path(tmp, "csv", table)),
    "json": lambda table, tmp: _source_path(tmp, "json", table).as_uri(),
    "directory": lambda table, tmp: (
        ds.write_dataset(table, tmp / "source", format="parquet") or tmp / "source"
    ),
    "pandas": lambda table, _: pytest.importorskip("pandas").DataFrame(table.to_pydict()),
    "list": lambda table, tmp: [table.slice(0, 1), _source_path(tmp, "parquet", table.slice(1))],
}


@pytest.mark.parametrize("kind", _SOURCES)
def test_s23_a_source_may_be_of_many_kinds(tmp_path, make_dataset, rows, io, kind):
    path = make_dataset(tmp_path / "ds", table_of([1, 2]))
    result = io.merge(_SOURCES[kind](table_of([2, 3], "new"), tmp_path), path, "upsert", "id")
    assert (result.source_count, result.updated, result.inserted) == (2, 1, 1)
    assert pairs_of(path, rows) == [(1, "old"), (2, "new"), (3, "new")]


def test_s23_a_one_shot_source_is_seen_again_after_a_conflict(tmp_path, make_dataset, rows, io, monkeypatch):
    path = make_dataset(tmp_path / "ds", table_of([1, 2]))
    engine = {"pyarrow": ArrowEngine, "duckdb": DuckDBEngine}[io.backend]
    stage, calls = engine.stage, []

    def interrupted(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 1:  # another writer comes in between
            pq.write_table(table_of([3], "foreign"), path / "foreign.parquet")
        return stage(self, *args, **kwargs)

    monkeypatch.setattr(engine, "stage", interrupted)
    source = (batch for batch in table_of([2, 3], "new").to_batches())
    result = io.merge(source, path, "upsert", "id")
    assert (result.attempts, len(calls)) == (2, 2)
    assert pairs_of(path, rows) == [(1, "old"), (2, "new"), (3, "new")]


# --- S24: results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["absolute", "relative", "trailing slash", "url"])
def test_s24_paths_in_results_have_the_form_of_the_path_given(tmp_path, io, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "ds"
    given = {"absolute": str(path), "relative": "ds", "trailing slash": f"{path}/", "url": path.as_uri()}[
        form
    ]
    written = io.write_dataset(table_of([1, 2]), given)
    assert isinstance(written, WriteDatasetResult)
    assert (written.total_rows, written.mode, written.backend) == (2, "append", io.backend)
    (file,) = written.files
    assert file.path.startswith(given.rstrip("/") + "/")
    local = Path(file.path.removeprefix("file://"))
    assert (file.row_count, file.size_bytes) == (2, local.stat().st_size)
    result = io.merge(table_of([2, 3], "new"), given, "upsert", "id")
    assert result.rewritten_files == [file.path]
    assert all(name.startswith(given.rstrip("/") + "/") for name in result.inserted_files)


def test_s24_source_count_is_that_of_the_source_as_given(tmp_path, io):
    result = io.merge(table_of([1, 1, 1, 2]), tmp_path / "ds", "deduplicate", "id")
    assert (result.source_count, result.inserted) == (4, 2)


# --- Reading -------------------------------------------------------------------------------------------


@pytest.fixture
def events(tmp_path, io):
    data = pa.table(
        {
            "id": list(range(8)),
            "day": [dt.date(2025, 1, 1 + n // 4) for n in range(8)],
            "v": ["a", "b", None, "d"] * 2,
        }
    )
    io.write_dataset(data, tmp_path / "ds", partition_by="day", row_group_size=2)
    return tmp_path / "ds"


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ("day = date '2025-01-01' and id > 1", [2, 3]),
        ("v is null", [2, 6]),
        ([("day", "=", "2025-01-02"), ("id", "<=", 5)], [4, 5]),
        ([[("id", "in", [0, 7])], [("v", "==", "b")]], [0, 1, 5, 7]),
        ([("v", "not in", ["a", "b"])], [3, 7]),
        (pc.field("id") == 3, [3]),
        (pc.field("day") == dt.date(2025, 1, 2), [4, 5, 6, 7]),
        ((pc.field("day") == dt.date(2025, 1, 2)) & (pc.field("v") == "a"), [4]),
        (pc.field(0) < 2, [0, 1]),
    ],
)
def test_reading_takes_filters_of_three_kinds(events, io, filters, ids):
    table = io.read_parquet(events, columns=["id"], filters=filters)
    assert table.column_names == ["id"]
    assert sorted(table["id"].to_pylist()) == ids


def test_reading_skips_files_and_row_groups_that_the_filter_rules_out(events, io, reads):
    io.read_parquet(events, columns=["v"], filters="day = date '2025-01-02' and id = 7")
    assert {read.path.split("/")[0] for read in reads.all} == {"day=2025-01-02"}
    assert sum(read.rows for read in reads.all) == (2 if io.backend == "pyarrow" else 0)
    reads.clear()
    io.read_parquet(events, filters=pc.field("day") == dt.date(2025, 1, 1))
    assert {read.path.split("/")[0] for read in reads.all} == {"day=2025-01-01"}
    reads.clear()
    io.read_parquet(events, columns=["id"], filters=pc.field("id") > 0)
    assert reads.columns == {"id"}


def test_reading_what_is_not_there_is_told(tmp_path, events, io):
    with pytest.raises(NothingMatched):
        io.read_parquet(tmp_path / "nothing")
    for filters in ("nope = 1", [("nope", "=", 1)], pc.field("nope") == 1):
        with pytest.raises(pa.ArrowKeyError, match="nope"):
            io.read_parquet(events, filters=filters)
    for filters in ([("id", "~", 1)], [], [("id", "=")], [("day", "=", "someday")]):
        with pytest.raises(ValueError, match="ilter"):
            io.read_parquet(events, filters=filters)
    with pytest.raises(SchemaMismatch, match="filter"):
        io.read_parquet(events, filters=pc.field("day") == "2025-01-01")


def test_reading_gives_the_columns_in_the_order_asked_and_a_single_file_too(events, io):
    assert io.read_parquet(events, columns=["v", "id"]).column_names == ["v", "id"]
    file = incremental.list_dataset_files(events)[0]
    table = io.read_parquet(file, include_file_path=True)
    assert table["id"].to_pylist() == [0, 1, 2, 3]
    assert set(table["file_path"].to_pylist()) == {file}
    assert io.read_parquet(events, columns="id").column_names == ["id"]


def test_reading_while_a_writer_replaces_files_gives_one_state(tmp_path, make_dataset, io, monkeypatch):
    path = make_dataset(tmp_path / "ds", table_of(range(10)), files=5)
    reader, name = {"pyarrow": (FileReader, "__init__"), "duckdb": (Scan, "_write_constants")}[io.backend]
    begin, done = getattr(reader, name), []

    def replaced_meanwhile(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        if not done:
            done.append(1)
            PyarrowDatasetIO().merge(table_of(range(10), "new"), path, "update", "id")

    monkeypatch.setattr(reader, name, replaced_meanwhile)
    table = io.read_parquet(path, use_threads=False)
    assert set(table["v"].to_pylist()) == {"new"}
    assert sorted(table["id"].to_pylist()) == list(range(10))
    assert not (tmp_path / ".ds.intarsia" / "snap").exists() or not os.listdir(
        tmp_path / ".ds.intarsia" / "snap"
    )


def test_results_show_themselves_as_text(tmp_path, io):
    result = io.merge(table_of([1, 2]), tmp_path / "ds", "upsert", "id")
    out = stdlib_io.StringIO()
    print(result, file=out)
    assert "2 inserted" in out.getvalue()
    assert "<" in result._repr_html_()


def test_s30_a_star_passes_over_source_columns_that_the_target_lacks(tmp_path):
    path = tmp_path / "lake"
    it.write(pa.table({"id": [1, 2], "v": [1, 2]}), path)
    feed = pa.table({"id": [1, 2, 3], "v": [9, None, 3], "op": ["u", "d", "i"]})
    clauses = (
        "when matched and source.op = 'd' then delete when matched then update set *"
        " when not matched then insert *"
    )
    it.merge(feed, path, on="id", clauses=clauses)
    assert it.snapshot(path).dataset().to_table().sort_by("id").to_pydict() == {"id": [1, 3], "v": [9, 3]}
    with pytest.raises(SchemaMismatch, match="'op'"):
        it.merge(feed, path, on="id")
