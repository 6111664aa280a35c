"""Sources too large to travel, whatever they are: spooled where executors read, their keys joined, swept."""

from __future__ import annotations

import datetime as dt
import os
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.engines.spark import engine as spark_engine
from intarsia.engines.spark import join
from intarsia.engines.spark import source as spark_source
from intarsia.errors import KeyColumnError, PartitionMoveError, SchemaMismatch, StorageError


def full_only(*cases: str) -> list[Any]:
    """Cases that only ``make spark`` runs."""
    full = os.environ.get("INTARSIA_SPARK") == "full"
    skip = pytest.mark.skipif(not full, reason="make spark runs it")
    return [pytest.param(case, marks=skip) for case in cases]


BOTH = pytest.mark.parametrize("limit", [64 << 20, 1], ids=["small", "large"])
TARGET = pa.table({"id": range(40), "p": [f"p{n % 4}" for n in range(40)], "v": [n * 10 for n in range(40)]})
SOURCE = pa.table(
    {"id": range(30, 50), "p": [f"p{n % 4}" for n in range(30, 50)], "v": [-n for n in range(30, 50)]}
)


@pytest.fixture
def target(tmp_path, make_dataset):
    return make_dataset(tmp_path / "t", TARGET, files=2, partition="p")


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Where sources wait; no test leaves anything there."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert list(place.glob("*/*")) == []


@pytest.fixture
def nothing_collected(monkeypatch):
    """No row of the source comes back to the driver, and none travels with the tasks."""

    def refused(*_: Any) -> Any:
        raise AssertionError("the source was collected, or sent along with the tasks")

    monkeypatch.setattr(spark_source.Spool, "read", refused)
    monkeypatch.setattr(spark_engine, "match_merge", refused)
    monkeypatch.setattr(spark_engine, "write_new_rows", refused)


def _written(table: pa.Table, path: Path, write: Any) -> str:
    write(table, path)
    return str(path)


SOURCES = {
    "table": lambda place: SOURCE,
    "reader": lambda place: SOURCE.to_reader(7),
    "batches": lambda place: iter(SOURCE.to_batches(max_chunksize=3)),
    "rows": lambda place: SOURCE.to_pylist(),
    "parquet": lambda place: _written(SOURCE, place / "source.parquet", pq.write_table),
    "csv": lambda place: _written(SOURCE, place / "source.csv", csv.write_csv),
    "pandas": lambda place: SOURCE.to_pandas(),
    "polars": lambda place: pytest.importorskip("polars").from_arrow(SOURCE),
}


@pytest.mark.parametrize("kind", ["reader", "csv", *full_only(*sorted(set(SOURCES) - {"reader", "csv"}))])
def test_a_source_of_any_kind_stays_out_of_the_tasks(
    spark, tmp_path, target, rows, leftovers, nothing_collected, kind
):
    source = SOURCES[kind](tmp_path)
    result = it.merge(source, target, on="id", engine=spark, broadcast_bytes=1)
    assert (result.source_count, result.updated, result.inserted) == (20, 10, 10)
    found = {row["id"]: (row["p"], row["v"]) for row in rows(target)}
    assert found == {n: (f"p{n % 4}", -n if n >= 30 else n * 10) for n in range(50)}
    assert leftovers(target) == []


def test_rows_are_added_and_written_over_without_travelling(spark, tmp_path, rows, nothing_collected):
    for mode, total in (("append", 20), ("append", 40), ("overwrite", 20)):
        result = it.write(
            SOURCE, tmp_path / "t", mode=mode, partition_by="p", engine=spark, broadcast_bytes=1
        )
        assert result.total == total
    assert rows(tmp_path / "t", schema=SOURCE.schema) == rows(SOURCE)


def test_the_last_row_of_a_table_wins_without_a_word(spark, target, rows, nothing_collected):
    """Its rows have an order, other than a DataFrame's."""
    many = pa.table({"id": [7] * 50 + [60] * 50, "p": ["p3"] * 50 + ["p0"] * 50, "v": range(100)})
    it.merge(many, target, on="id", strategy="deduplicate", engine=spark, broadcast_bytes=1, tasks=4)
    assert {row["id"]: row["v"] for row in rows(target)} == {n: n * 10 for n in range(40)} | {7: 49, 60: 99}


@BOTH
@pytest.mark.parametrize("strategy", ["upsert", "full_merge"])
def test_nan_is_one_key_and_no_null(spark, tmp_path, unchanged, strategy, limit):
    twice = pa.table({"id": [1, 1], "x": [float("nan")] * 2, "v": [0, 1]})
    path = tmp_path / "lake" / "t"
    path.parent.mkdir()
    with unchanged(path.parent), pytest.raises(KeyColumnError, match="1 duplicate key in id, x"):
        it.merge(twice, path, on=["id", "x"], strategy=strategy, engine=spark, broadcast_bytes=limit)


NOON = dt.datetime(2025, 1, 1, 12, 30, 15, 123456)
COLUMNS = {
    "uint64": pa.array([0, 2**64 - 1], pa.uint64()),
    "uint8": pa.array([0, 255], pa.uint8()),
    "half": pa.array([0.5, -0.25], pa.float16()),
    "seconds": pa.array([NOON.replace(microsecond=0)] * 2, pa.timestamp("s")),
    "nanoseconds": pa.array([1, 2**62], pa.timestamp("ns", "UTC")),
    "time32": pa.array([dt.time(1), dt.time(23, 59, 59)], pa.time32("s")),
    "time64": pa.array([1, 86_399_999_999_999], pa.time64("ns")),
    "duration": pa.array([1, -1], pa.duration("us")),
    "date64": pa.array([dt.date(1969, 12, 31), dt.date(2025, 1, 1)], pa.date64()),
    "dictionary": pa.array(["a", "b"]).dictionary_encode(),
    "fixed": pa.array([b"ab", b"cd"], pa.binary(2)),
    "decimal": pa.array([Decimal("1.50"), Decimal("-0.01")], pa.decimal128(38, 2)),
    "large list": pa.array([[1], None], pa.large_list(pa.int8())),
    "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.uint32())),
    "struct": pa.array([{"a.b": 1}, None], pa.struct([("a.b", pa.uint16())])),
    "nothing": pa.nulls(2),
    "uuid": pa.array([b"0" * 16, b"f" * 16], pa.uuid()),
}


def on_large(engine: Any) -> dict[str, Any]:
    """The engine, on Spark with a source that is too large to travel."""
    return {"engine": engine} if engine == "arrow" else {"engine": engine, "broadcast_bytes": 1}


def test_columns_of_types_that_spark_lacks_arrive_as_in_process(spark, tmp_path, make_dataset, rows):
    table = pa.table({"a.key`": pa.array([1, 2], pa.uint32()), **COLUMNS})
    changes = table.set_column(0, "a.key`", pa.array([2, 3], pa.uint32()))
    for engine in ("arrow", spark):
        path = tmp_path / f"{engine == 'arrow'}"
        it.merge(table, path, on="a.key`", **on_large(engine))
        result = it.merge(changes, path, on="a.key`", **on_large(engine))
        assert (result.updated, result.inserted) == (1, 1)
    assert rows(tmp_path / "False") == rows(tmp_path / "True")
    assert it.snapshot(tmp_path / "False").schema.equals(it.snapshot(tmp_path / "True").schema)


def test_a_type_that_no_file_can_hold_is_refused_before_anything_changes(spark, target, unchanged):
    odd = SOURCE.append_column("odd", pa.array([(1, 2, 3)] * 20, pa.month_day_nano_interval()))
    with unchanged(target), pytest.raises(SchemaMismatch):
        it.merge(odd, target, on="id", engine=spark, broadcast_bytes=1, schema_evolution="add")


def test_a_spool_that_executors_do_not_see_is_a_storage_error(spark, target, unchanged, monkeypatch):
    spooled = spark_engine.spool_table

    def elsewhere(*given: Any, **options: Any) -> Any:
        spool = spooled(*given, **options)
        for part in spool.parts:
            Path(part.location).unlink()
        return spool

    monkeypatch.setattr(spark_engine, "spool_table", elsewhere)
    with unchanged(target), pytest.raises(StorageError, match="does not see") as caught:
        it.merge(SOURCE, target, on="id", engine=spark, broadcast_bytes=1)
    assert "spool_dir=" in str(caught.value)


def test_a_spool_that_cannot_be_made_is_a_storage_error(spark, tmp_path, target, unchanged):
    (tmp_path / "file").touch()
    with unchanged(target), pytest.raises(StorageError):
        it.merge(SOURCE, target, on="id", engine=spark, broadcast_bytes=1, spool_dir=tmp_path / "file" / "x")


@pytest.mark.parametrize("filesystem", ["local", "another"])
def test_on_a_cluster_a_source_waits_beside_the_dataset(
    spark, tmp_path, make_dataset, rows, monkeypatch, filesystem
):
    """Also where Spark knows no name for the storage, and where a path looks like a pattern."""
    monkeypatch.setattr(spark_source, "_is_local", lambda spark: False)
    root = make_dataset(tmp_path / "a [b]{c}*" / "t", TARGET, files=2)
    seen: list[str] = []
    spooled = spark_engine.spool_table

    def watched(table: Any, place: Any, **options: Any) -> Any:
        seen.append(place.directory)
        return spooled(table, place, **options)

    monkeypatch.setattr(spark_engine, "spool_table", watched)
    options: dict[str, Any] = {}
    path = str(root)
    if filesystem == "another":
        options = {"filesystem": pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())}
        options["single_writer"], path = True, "a [b]{c}*/t"
    result = it.merge(SOURCE, path, on="id", engine=spark, broadcast_bytes=1, **options)
    assert (result.updated, result.inserted) == (10, 10)
    assert len(rows(root)) == 50
    assert len(seen) == 1
    assert "/.t.intarsia/spools/" in seen[0]
    assert list((root.parent / ".t.intarsia" / "spools").rglob("*")) == []


@BOTH
def test_a_file_that_is_not_hit_is_widened_with_the_others(spark, tmp_path, make_dataset, rows, limit):
    narrow = pa.table({"id": [1, 2, 3, 4], "v": pa.array([1, 2, 3, 4], pa.int8())})
    path = make_dataset(tmp_path / "t", narrow, files=2)
    source = pa.table({"id": [4, 5], "v": [4000, 5000]})
    options = {"on": "id", "schema_evolution": "widen", "engine": spark, "broadcast_bytes": limit}
    result = it.merge(source, path, **options)
    assert (result.updated, result.inserted, len(result.rewritten_files)) == (1, 1, 2)
    assert [row["v"] for row in rows(path)] == [1, 2, 3, 4000, 5000]


ON = "target.id = source.id and source.v > target.v"
PAIRS = pa.table({"id": [1, 1, 2, 3, 4, 9], "v": [50, -1, 5, None, 99, 1], "p": ["n"] * 6})
HELD = pa.table({"id": [1, 2, 3, 4, 5], "v": [10, 20, 30, None, 50], "p": ["o"] * 5})


CLAUSES = {
    "upsert": [it.when_matched().update_all(), it.when_not_matched().insert_all()],
    "insert": [it.when_not_matched("source.v > 0").insert_all()],
    "delete": [it.when_matched().delete(), it.when_not_matched_by_source().update({"p": "'alone'"})],
    "both": [it.when_matched("source.v > 50").delete(), it.when_not_matched().insert_all()],
}


@pytest.mark.parametrize("clauses", ["upsert", "delete", *full_only("insert", "both")])
def test_a_condition_beyond_equal_keys_is_met_as_in_process(
    spark, tmp_path, make_dataset, rows, nothing_collected, clauses
):
    """A NULL on either side meets nothing; a row that meets nothing is new, also when its key is there."""
    paths = {name: make_dataset(tmp_path / name, HELD, files=3) for name in ("arrow", "spark")}
    results = []
    for name, engine in (("arrow", "arrow"), ("spark", spark)):
        options = {"on": ON, "clauses": CLAUSES[clauses], **on_large(engine)}
        planned = it.merge(PAIRS, paths[name], dry_run=True, **options)
        results.append(dict(it.merge(PAIRS, paths[name], **options)))
        assert dict(planned) == results[-1]
    assert results[0] == results[1]
    assert rows(paths["spark"]) == rows(paths["arrow"])


def test_what_is_impossible_is_counted_over_all_files(spark, tmp_path, make_dataset, nothing_collected):
    """As in process, though each file is another task's."""
    twice = pa.concat_tables([SOURCE, SOURCE.slice(0, 10), SOURCE.slice(3, 2)])
    away = SOURCE.set_column(1, "p", pa.array([f"p{n % 3}" for n in range(20)]))
    update = {"clauses": [it.when_matched().update_all()]}
    nulls = TARGET.set_column(0, "id", pa.array([None if n % 7 == 0 else n for n in range(40)]))
    unreached = TARGET.set_column(0, "id", pa.array([None if n % 7 == 3 else n * 7 for n in range(40)]))
    cases: list[tuple[pa.Table, pa.Table, Any, dict[str, Any]]] = [
        (twice, TARGET.take([n * 7 % 40 for n in range(40)]), (), update),
        (away, TARGET, "p", {}),
        (SOURCE, nulls, (), {"strategy": "full_merge"}),
        (SOURCE, nulls, (), {}),
        (SOURCE.slice(0, 1), unreached, (), {}),
    ]
    for number, (source, target, partition, options) in enumerate(cases):
        path = make_dataset(tmp_path / str(number), target, files=3, partition=partition)
        told = []
        for engine in ("arrow", spark):
            with pytest.raises((KeyColumnError, PartitionMoveError)) as error:
                it.merge(source, path, on="id", **on_large(engine), **options)
            told.append(str(error.value))
        assert told[0] == told[1]


def test_only_columns_that_decide_are_joined_by_spark(spark, target, rows, monkeypatch):
    """Of the source its keys and partitions, of the target its keys; the rest stays on storage."""
    seen: list[list[str]] = []
    frames = join.make_frame

    def watched(*given: Any) -> Any:
        frame = frames(*given)
        seen.append(frame.columns)
        return frame

    monkeypatch.setattr(join, "make_frame", watched)
    assert it.merge(SOURCE, target, on="id", engine=spark, broadcast_bytes=1).updated == 10
    keys = ["__c0", "__c1", "__k0", "__row"]
    assert seen == [keys, keys, ["__file", "__k0"]]  # looked through for duplicates, then joined
    assert len(rows(target)) == 50


def test_rows_that_a_join_brings_are_taken_file_by_file_and_once():
    batches = [
        pa.record_batch({"__file": pa.array([0, 0, 2], pa.int32()), "__row": [4, 9, 1]}),
        pa.record_batch({"__file": pa.array([2, 2], pa.int32()), "__row": [1, 3]}),
        pa.record_batch({"__file": pa.array([2, 5], pa.int32()), "__row": [3, 0]}),
    ]
    found = [(number, table["__row"].to_pylist()) for number, table in join.split_by_file(iter(batches))]
    assert found == [(0, [4, 9]), (2, [1, 3]), (5, [0])]
    assert list(join.split_by_file(iter([]))) == []


@BOTH
def test_both_ways_tell_their_progress(spark, target, limit):
    told: list[tuple[str, int, int]] = []

    def progress(step: str, done: int, total: int) -> None:
        told.append((step, done, total))

    options = {"on": "id", "engine": spark, "broadcast_bytes": limit, "progress": progress}
    it.merge(SOURCE, target, dry_run=True, **options)
    assert [step for step, _, _ in told][:4] == ["read source", "read source", "list target", "plan"]
    assert told[4] == ("probe and measure files", 0, 4)
    assert told[-1][0] == "measure files"
    told.clear()
    it.merge(SOURCE, target, dry_run=True, measured_bytes=0, **options)
    assert told[4] == ("probe files", 0, 4)
    assert told[-1] == ("probe files", 4, 4)
    told.clear()
    it.merge(SOURCE, target, **options)
    assert told[4] == ("probe and write files", 0, 4)
    assert ("write files", 4, 4) in told
    assert told[-1] == ("commit", 0, 0)
    assert told[-2][0] == "write files"
    assert told[-2][1] == told[-2][2] > 0
    told.clear()
    it.write(SOURCE, target, engine=spark, broadcast_bytes=limit, progress=progress)
    assert [step for step, _, _ in told][-2:] == ["write files", "commit"]


@BOTH
def test_names_that_spark_cannot_say_are_taken_as_they_are(spark, tmp_path, rows, limit):
    names = ["a.key`", "b.c", "d`e", "p q"]
    frame = spark.createDataFrame([(1, 2, 3, "x"), (4, 5, 6, "y")], "a long, b long, c long, d string")
    options = {"on": "a.key`", "partition_by": "p q", "broadcast_bytes": limit}
    assert it.merge(frame.toDF(*names), tmp_path / "t", **options).inserted == 2
    assert it.merge(frame.toDF(*names), tmp_path / "t", **options).updated == 2
    assert rows(tmp_path / "t") == rows([dict(zip(names, row, strict=True)) for row in frame.collect()])
    twice = frame.toDF("a", "b", "b", "d")
    with pytest.raises(SchemaMismatch, match="more than one column 'b'"):
        it.merge(twice, tmp_path / "u", on="a", broadcast_bytes=limit)


MANY = 30_000
WIDE = pa.table(
    {
        "id": range(MANY),
        "p": pa.array([f"p{n % 4}" for n in range(MANY)]),
        "name": pa.array([f"name {n * 7919 % MANY}" for n in range(MANY)]),
        "code": pa.array([f"c{n * 31 % 50}" for n in range(MANY)]).dictionary_encode(),
    }
)
"""Rows that take other bytes in another order."""
HALF = MANY // 2

ORDERED = {
    "append": lambda path, **o: it.write(WIDE, path, **o),
    "upsert": lambda path, **o: it.merge(WIDE, path, on="id", **o),
    "deduplicate": lambda path, **o: it.merge(
        pa.concat_tables([WIDE, WIDE.slice(0, HALF)]), path, on="id", strategy="deduplicate", **o
    ),
    "condition": lambda path, **o: it.merge(
        WIDE,
        path,
        on="target.id = source.id and source.name > target.name",
        clauses=[it.when_matched().update_all(), it.when_not_matched().insert_all()],
        **o,
    ),
}

SETTINGS = (
    {},
    {"spark.sql.shuffle.partitions": "3", "spark.sql.autoBroadcastJoinThreshold": "-1"},
    {"spark.sql.shuffle.partitions": "7", "spark.sql.adaptive.enabled": "false"},
)
"""Ways to join that give rows to other tasks, in another order."""


@pytest.mark.parametrize("call", ORDERED)
@pytest.mark.parametrize("partition", ["p", ()], ids=["partitioned", "one directory"])
def test_the_same_source_gives_the_same_files_however_spark_joins(
    spark, tmp_path, make_dataset, monkeypatch, call, partition
):
    from intarsia.engines.spark import new_rows

    monkeypatch.setattr(new_rows, "PARTITION_BYTES", 100 << 10)  # so that several tasks write
    seen = []
    for number, settings in enumerate(SETTINGS):
        path = make_dataset(tmp_path / f"t{number}", WIDE.slice(0, HALF), files=2, partition=partition)
        options = {"engine": spark, "broadcast_bytes": 1}
        before = {name: spark.conf.get(name, None) for name in settings}
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            planned = ORDERED[call](path, dry_run=True, **options)
            done = ORDERED[call](path, **options)
        finally:
            for name, value in before.items():
                spark.conf.unset(name) if value is None else spark.conf.set(name, value)
        assert (planned.bytes_written, planned.bytes_exact) == (done.bytes_written, True)
        assert planned.new_files == done.new_files > 1
        new = [pq.read_table(path / name, partitioning=None) for name in done.inserted_files]
        seen.append(sorted(str(table.to_pydict()) for table in new))
    assert seen[0] == seen[1] == seen[2]


def test_rows_of_a_source_that_stays_on_executors_are_appended_in_its_order(spark, tmp_path, monkeypatch):
    from intarsia.engines.spark import new_rows

    monkeypatch.setattr(new_rows, "PARTITION_BYTES", 100 << 10)
    done = it.write(WIDE, tmp_path / "new", engine=spark, broadcast_bytes=1)
    files = [pq.read_table(name)["id"].to_pylist() for name in (tmp_path / "new").glob("*.parquet")]
    assert done.new_files == len(files) > 1
    assert [number for file in sorted(files) for number in file] == list(range(MANY))


def test_a_spool_of_a_dataset_that_is_not_there_leaves_no_directory_above_it(tmp_path):
    class Cluster:
        conf: ClassVar = {"spark.master": "spark://elsewhere:7077"}

    dataset = tmp_path / "lake" / "new" / "orders"
    shared = (pafs.LocalFileSystem(), f"{dataset.parent}/.orders.intarsia/spools", str(dataset))
    place = spark_source.create_spool(Cluster(), shared, None)
    assert os.path.isdir(place.directory)
    place.remove()
    assert not (tmp_path / "lake").exists()
