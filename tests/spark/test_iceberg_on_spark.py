"""Every operation on Iceberg tables by executors: the rows and counts of the in-process engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.intent import WriteIntent, WriteOptions
from intarsia.core.plan import Plan
from intarsia.engines.spark import copies, new_rows, route, route_tasks, staging
from intarsia.engines.spark.source import find_spool_location
from intarsia.errors import StorageError
from tests.spark.iceberg_twins import Twin, Twins, evolved, rows, unpartitioned

FULL = os.environ.get("INTARSIA_SPARK") == "full"
COPY, MERGE = "copy-on-write", "merge-on-read"

SOURCE = rows([*range(100, 130), *range(230, 260)], v=1000.0, name="new")
MOVED = rows([*range(50, 80), *range(150, 160)], v=1000.0, name="moved", shift=1)
TWICE = pa.concat_tables([SOURCE, rows(range(110, 120), v=5000.0, name="again")])

CLAUSES = """
when matched and source.v < 1105 then delete
when matched and target.id % 2 = 0 then update set v = target.v + source.v, name = 'both'
when matched then update set *
when not matched and source.id % 3 = 0 then insert (id, region, v) values (source.id, 'eu', -1)
when not matched then insert *
when not matched by source and target.id < 20 then delete
when not matched by source and target.id = 25 then update set name = upper(name)
"""

Operation = Callable[..., it.MergeResult]


def merging(source: pa.Table, **options: Any) -> tuple[pa.Table, Operation]:
    return source, lambda given, target, engine, **o: it.merge(
        given, target, engine=engine, on="id", **options, **o
    )


def writing(source: pa.Table, mode: str) -> tuple[pa.Table, Operation]:
    return source, lambda given, target, engine, **o: it.write(given, target, mode=mode, engine=engine, **o)


MERGES = {
    "upsert": merging(SOURCE),
    "insert": merging(SOURCE, strategy="insert"),
    "update": merging(SOURCE, strategy="update"),
    "full merge": merging(SOURCE, strategy="full_merge"),
    "deduplicate": merging(TWICE, strategy="deduplicate", dedup_order_by="v"),
    "rows move": merging(MOVED),
    "clauses": merging(SOURCE, clauses=CLAUSES),
    "condition": (
        SOURCE,
        lambda given, target, engine, **o: it.merge(
            given, target, on="target.id = source.id and target.v < 115", engine=engine, clauses="""
            when matched then update set v = source.v
            when not matched and source.id > 250 then insert *""", **o,
        ),
    ),
}  # fmt: skip
WRITES = {
    "append": writing(SOURCE, "append"),
    "overwrite": writing(SOURCE, "overwrite"),
    "partitions": writing(SOURCE, "overwrite_partitions"),
}
OTHERS: dict[str, tuple[None, Operation]] = {
    "delete": (None, lambda _, t, e: it.delete(t, "v > 90 and name != 'old 150'", engine=e)),
    "delete all": (None, lambda _, t, e: it.delete(t, "true", engine=e)),
    "update rows": (
        None,
        lambda _, t, e: it.update(t, {"v": "v * 2", "region": "'us'"}, "id between 55 and 125", engine=e),
    ),
    "compact": (None, lambda _, t, e: it.compact(t, engine=e)),
    "optimize": (None, lambda _, t, e: it.optimize(t, by=["ts", "v"], engine=e)),
    "sort out": (None, lambda _, t, e: it.optimize(t, by=["v"], deduplicate_on=["region", "ts"], engine=e)),
    "drop duplicates": (
        None,
        lambda _, t, e: it.deduplicate(t, on=["region", "ts"], order_by=["v"], engine=e),
    ),
}
OPERATIONS: dict[str, tuple[pa.Table | None, Operation]] = {**MERGES, **WRITES, **OTHERS}


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    return Twins(tmp_path_factory.mktemp("twins"))


def compared(result: it.MergeResult, again: it.MergeResult, pair: tuple[Twin, Twin]) -> None:
    """The same counts, the same files that go, the same rows."""
    assert dict(again) == dict(result)
    for name in ("source_count", "target_count_before", "target_count_after", "operation", "strategy"):
        assert getattr(again, name) == getattr(result, name), name
    for name in ("rewritten_files", "removed_files", "preserved_files"):
        assert len(getattr(again, name)) == len(getattr(result, name)), name
    assert pair[1].rows() == pair[0].rows()


def frame_of(spark: Any, table: pa.Table) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))


def run_both(pair: tuple[Twin, Twin], spark: Any, name: str, given: Any = None) -> None:
    source, operation = OPERATIONS[name]
    arrow, other = pair
    expected = operation(source, arrow.target, "arrow")
    before = other.data_files()
    compared(expected, operation(source if given is None else given, other.target, spark), pair)
    assert other.strangers(before) == set()


QUICK = {
    COPY: ("full merge", "delete", "compact"),
    MERGE: ("clauses", "rows move", "update rows", "partitions", "sort out"),
}
"""What every run looks at; ``make spark`` looks at everything."""


def cases(quick: dict[str, tuple[str, ...]], *modes: str, without: tuple[str, ...] = ()) -> list[Any]:
    return [
        pytest.param(name, mode, id=f"{name}, {mode}")
        for mode in modes
        for name in OPERATIONS
        if (FULL and name not in without) or name in quick[mode]
    ]


@pytest.mark.parametrize(("name", "mode"), cases(QUICK, COPY, MERGE))
def test_an_evolved_table_with_deleted_rows_agrees(spark: Any, twins: Twins, name: str, mode: str) -> None:
    run_both(twins(evolved, 2, mode), spark, name)


@pytest.mark.parametrize(("name", "mode"), cases({COPY: ("rows move",)}, COPY))
def test_an_evolved_table_of_version_1_agrees(spark: Any, twins: Twins, name: str, mode: str) -> None:
    run_both(twins(evolved, 1, mode), spark, name)


@pytest.mark.parametrize(
    ("name", "mode"), cases({COPY: (), MERGE: ("upsert", "drop duplicates")}, COPY, MERGE)
)
def test_an_evolved_table_of_version_3_agrees(spark: Any, twins: Twins, name: str, mode: str) -> None:
    run_both(twins(evolved, 3, mode), spark, name)


@pytest.mark.parametrize(
    ("name", "mode"), cases({COPY: (), MERGE: ("overwrite",)}, COPY, MERGE, without=("partitions",))
)
def test_a_table_without_partitions_agrees(spark: Any, twins: Twins, name: str, mode: str) -> None:
    run_both(twins(unpartitioned, 2, mode), spark, name)


FRAMES = [
    ("routed", "clauses", COPY),
    ("large", "upsert", MERGE),
    ("large", "condition", COPY),
    ("large", "partitions", COPY),
]
if FULL:
    FRAMES = [
        (way, name, mode)
        for way in ("small", "routed", "large")
        for name in (*MERGES, *WRITES)
        for mode in (COPY, MERGE)
        if way != "routed" or name in MERGES
    ]


@pytest.mark.parametrize(("way", "name", "mode"), FRAMES)
def test_dataframes_of_every_size_agree(
    spark: Any, twins: Twins, monkeypatch: pytest.MonkeyPatch, way: str, name: str, mode: str
) -> None:
    source, operation = OPERATIONS[name]
    assert source is not None
    frame = frame_of(spark, source).coalesce(2)
    arrow, other = twins(evolved, 2, mode)
    expected = operation(source, arrow.target, "arrow")
    if way == "routed":
        monkeypatch.setattr(route, "ROUTED_BYTES", 0)
        monkeypatch.setattr(route_tasks, "FILE_BATCH_BYTES", 1 << 10)
    limit = 1 if way == "large" else 64 << 20
    before = other.data_files()
    compared(expected, operation(frame, other.target, spark, broadcast_bytes=limit), (arrow, other))
    assert other.strangers(before) == set()


@pytest.mark.parametrize("mode", [COPY, MERGE])
def test_a_file_whose_keys_are_joined_but_not_hit_stays_as_it_is(spark: Any, twins: Twins, mode: str) -> None:
    """Files are done where rows of theirs were written, not where the join came by."""
    _, twin = twins(unpartitioned, 2, mode)
    first, second = sorted(file.file_path for file in _data_files(twin))
    frame = frame_of(spark, rows(range(100, 130), v=1000.0, name="new"))
    on = "target.id = source.id and target.id < 110"
    clauses = "when matched then update set v = source.v"
    done = it.merge(frame, twin.target, on=on, clauses=clauses, engine=spark, broadcast_bytes=1)
    assert (done.updated, done.inserted) == (10, 0)
    stays = {file.file_path for file in _data_files(twin)} & {first, second}
    changed = next(path for path in (first, second) if 0 in pq.read_table(_local(path))["id"].to_pylist())
    assert stays == {first, second} - ({changed} if mode == COPY else set())
    assert sum(row["v"] >= 1000 for row in twin.rows()) == 10
    assert len(twin.rows()) == 240


def _data_files(twin: Twin) -> list[Any]:
    return [task.file for task in twin.table().scan().plan_files()]


def _local(path: str) -> str:
    return path.removeprefix("file://")


MOVES = [("small", COPY), ("routed", MERGE)]
if FULL:
    MOVES = [(way, mode) for way in ("small", "routed", "large") for mode in (COPY, MERGE)]


@pytest.mark.parametrize(("way", "mode"), MOVES)
def test_rows_keep_their_identity_when_they_move(
    spark: Any, twins: Twins, monkeypatch: pytest.MonkeyPatch, mode: str, way: str
) -> None:
    _, twin = twins(evolved, 3, mode)
    before = twin.lineage()
    changed = set(MOVED["id"].to_pylist()) & before.keys()
    monkeypatch.setattr(route, "ROUTED_BYTES", 0 if way == "routed" else 64 << 20)
    limit = 1 if way == "large" else 64 << 20
    frame = frame_of(spark, MOVED)
    result = it.merge(frame, twin.target, on="id", engine=spark, broadcast_bytes=limit)
    after = twin.lineage()
    assert {key: after[key][0] for key in before} == {key: row for key, (row, _) in before.items()}
    assert {key for key in before if after[key][1] != before[key][1]} == changed
    assert {after[key][1] for key in changed} == {result.version}
    assert len({row for row, _ in after.values()}) == len(after)


def test_a_large_partition_is_ordered_range_by_range(spark: Any, twins: Twins) -> None:
    arrow, other = twins(unpartitioned, 3, MERGE)
    before = other.lineage()
    options: dict[str, Any] = {"by": ["name"], "target_rows_per_file": 40}
    expected = it.optimize(arrow.target, engine="arrow", **options)
    result = it.optimize(other.target, engine=spark, memory_bytes=1, **options)
    compared(expected, result, (arrow, other))
    assert "ranges" in " ".join(result.notes)
    assert len(result.inserted_files) > 3
    assert other.lineage() == before
    tables = [pq.read_table(path.removeprefix("file://"))["name"] for path in result.inserted_files]
    spans = sorted((pc.min(names).as_py(), pc.max(names).as_py()) for names in tables)
    assert all(first[1] <= second[0] for first, second in pairwise(spans))


@pytest.mark.parametrize("limit", [1, 64 << 20])
def test_rows_that_wait_on_storage_and_many_new_rows_agree(
    spark: Any, twins: Twins, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """New rows by a stage of their own, from a file that tasks map; a partition shared among tasks."""
    monkeypatch.setattr(staging, "INLINE_BYTES", 0)
    monkeypatch.setattr(copies, "DRIVER_INSERT_ROWS", 0)
    monkeypatch.setattr(copies, "TASK_ROWS", 7)
    monkeypatch.setattr(new_rows, "FILE_BYTES", 1 << 10)
    arrow, other = twins(evolved, 2, MERGE)
    wide = rows(range(150, 500), v=7.0)
    expected = it.merge(wide, arrow.target, on="id", engine="arrow")
    before = other.data_files()
    result = it.merge(frame_of(spark, wide), other.target, on="id", engine=spark, broadcast_bytes=limit)
    compared(expected, result, (arrow, other))
    assert other.strangers(before) == set()


def test_scratch_beside_a_table_is_hidden_from_sweeps(twins: Twins) -> None:
    _, twin = twins(evolved, 2, MERGE)
    snapshot = twin.target.snapshot()
    room = find_spool_location(snapshot)
    assert room is not None
    _, directory, dataset = room
    assert directory == f"{dataset}/.intarsia/spools"
    assert dataset == os.path.dirname(snapshot.files[0].location)


def test_a_dry_run_counts_and_writes_nothing(spark: Any, twins: Twins) -> None:
    _, twin = twins(evolved, 2, MERGE)
    before, rows_before = twin.data_files(), twin.rows()
    dry = it.merge(SOURCE, twin.target, on="id", engine=spark, dry_run=True)
    gone = it.delete(twin.target, "id < 20", engine=spark, dry_run=True)
    assert (twin.data_files(), twin.rows()) == (before, rows_before)
    assert gone.deleted == sum(row["id"] < 20 for row in rows_before)
    assert dict(it.merge(SOURCE, twin.target, on="id", engine=spark)) == dict(dry)


JOINS = {
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.mark.parametrize("making", [evolved, unpartitioned])
@pytest.mark.parametrize("mode", [COPY, MERGE])
def test_a_dry_run_knows_the_bytes_however_spark_joins(
    spark: Any, twins: Twins, monkeypatch: pytest.MonkeyPatch, making: Any, mode: str
) -> None:
    monkeypatch.setattr(new_rows, "PARTITION_BYTES", 10 << 10)  # so that several tasks write
    _, twin = twins(making, 2, mode)
    source = rows((n * 37 % 700 + 150 for n in range(700)), v=7.0, name="new")
    options = {"on": "id", "engine": spark, "broadcast_bytes": 1}
    planned = it.merge(source, twin.target, dry_run=True, **options)
    before = {name: spark.conf.get(name, None) for name in JOINS}
    for name, value in JOINS.items():
        spark.conf.set(name, value)
    try:
        done = it.merge(source, twin.target, **options)
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
    assert planned.bytes_exact
    assert (planned.new_files, planned.bytes_written) == (done.new_files, done.bytes_written)


def test_a_task_that_is_repeated_leaves_no_file(
    spark: Any, twins: Twins, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker that dies after its files were written is heard of by its note alone."""
    told = str(tmp_path / "died")
    whole = copies.copy_matched

    def dying(work: Any, files: Any) -> Any:
        share = whole(work, files)
        try:
            os.close(os.open(told, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return share
        raise RuntimeError("the first attempt is lost")

    monkeypatch.setattr(copies, "copy_matched", dying)
    arrow, other = twins(evolved, 2, COPY)
    expected = it.merge(SOURCE, arrow.target, on="id", engine="arrow")
    before = other.data_files()
    compared(expected, it.merge(SOURCE, other.target, on="id", engine=spark), (arrow, other))
    assert os.path.exists(told)
    assert other.strangers(before) == set()


def test_a_stage_that_fails_leaves_no_file(spark: Any, twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(work: Any, job: Any) -> Any:
        raise StorageError("no room is left")

    monkeypatch.setattr(copies, "insert_rows", refused)
    _, twin = twins(evolved, 2, COPY)
    before, rows_before = twin.data_files(), twin.rows()
    with pytest.raises(StorageError, match="no room is left"):
        it.merge(SOURCE, twin.target, on="id", engine=spark)
    assert (twin.data_files(), twin.rows()) == (before, rows_before)


def test_an_attempt_that_fails_takes_its_files_back(twins: Twins) -> None:
    _, twin = twins(evolved, 2, MERGE)
    before = twin.data_files()

    def new() -> set[str]:
        return {path for path in twin.data_files() - before if path.endswith(".parquet")}

    def pieces() -> Any:
        yield SOURCE
        assert new(), "nothing to take back"
        raise StorageError("the source cannot be read on")

    with twin.target.transaction("append") as tx:
        intent = WriteIntent("append", options=WriteOptions(max_rows_per_file=2))
        plan = Plan(intent, tx.snapshot, (), tx.snapshot.schema)
        with pytest.raises(StorageError, match="read on"):
            copies.write_copies(plan, tx.output(), pieces(), lineage=False)
        assert new() == set()


def test_duplicate_source_keys_are_refused_as_in_process(spark: Any, twins: Twins) -> None:
    _, twin = twins(evolved, 2, MERGE)
    clauses = "when matched then update set v = source.v"
    before = twin.data_files()
    for chosen in ("arrow", spark):
        with pytest.raises(it.IntarsiaError, match=r"more than one|several"):
            it.merge(TWICE, twin.target, on="id", clauses=clauses, engine=chosen)
    assert twin.data_files() == before


def test_rows_of_one_partition_come_to_few_files(spark: Any, twins: Twins) -> None:
    """Files of a partition go to one task, and so do new rows."""
    _, twin = twins(evolved, 2, MERGE)
    wide = rows(range(1000, 3000))
    frame = frame_of(spark, wide).repartition(8)
    result = it.write(frame, twin.target, engine=spark, tasks=8, broadcast_bytes=1)
    days = len(set(wide["ts"].cast(pa.date32()).to_pylist()))
    assert len(result.inserted_files) == 3 * days


def test_shares_in_line_are_even_and_none_is_empty() -> None:
    for weights in ([5] * 20, [100, 1, 1, 1, 100], [0, 0, 0], [1], [7, 0, 0, 0, 0, 900]):
        for count in (1, 2, 3, 7):
            shares = copies.split_by_weight(list(range(len(weights))), weights, count)
            assert [n for share in shares for n in share] == list(range(len(weights)))
            assert len(shares) <= count
            assert all(shares)
    even = copies.split_by_weight(list(range(20)), [5] * 20, 4)
    assert [len(share) for share in even] == [5, 5, 5, 5]
