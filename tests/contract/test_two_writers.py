"""Writers at once: one order or the other, never a mix; what others put there is looked at and kept."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.errors import CommitConflict

KEYS = list(range(60))


def _version(version: int) -> pa.Table:
    """All keys, and some that only this version has seen."""
    return pa.table({"id": KEYS, "version": [version] * len(KEYS)})


def _upsert_repeatedly(path: str, engine: str, versions: list[int]) -> int:
    for version in versions:
        it.merge(_version(version), path, on="id", engine=engine)
    return len(versions)


def _whole(lake) -> set[int]:
    """The versions there are, once it is sure that every key is there exactly once."""
    found = lake.rows()
    assert sorted(row["id"] for row in found) == KEYS
    return {row["version"] for row in found}


def test_threads_that_upsert_the_same_keys_end_in_one_order_or_the_other(lake):
    lake.create(_version(0), files=3)
    before = lake.snapshot().version
    start = threading.Barrier(3)

    def run(version: int) -> it.MergeResult:
        start.wait()
        return lake.merge(_version(version), on="id")

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(run, [1, 2, 3]))
    assert len(_whole(lake)) == 1
    assert sorted(result.version for result in results) == [before + 1, before + 2, before + 3]
    assert all(result.updated == len(KEYS) for result in results)
    last = max(results, key=lambda result: result.version)
    assert _whole(lake) == {results.index(last) + 1}


def test_threads_that_insert_the_same_new_keys_insert_each_once(parquet_lake, leftovers):
    start = threading.Barrier(3)

    def run(version: int) -> int:
        start.wait()
        return parquet_lake.merge(_version(version), on="id", strategy="insert").inserted

    with ThreadPoolExecutor(3) as pool:
        inserted = list(pool.map(run, [1, 2, 3]))
    assert sorted(inserted) == [0, 0, len(KEYS)]
    assert len(_whole(parquet_lake)) == 1
    assert leftovers(parquet_lake.root) == []


def test_processes_that_upsert_the_same_keys_never_mix(parquet_lake, leftovers):
    parquet_lake.create(_version(0), files=3)
    context = multiprocessing.get_context("spawn")
    target = (str(parquet_lake.root), parquet_lake.engine)
    with context.Pool(2) as pool:
        work = [
            pool.apply_async(_upsert_repeatedly, (*target, list(range(base, base + 5)))) for base in (10, 20)
        ]
        assert [one.get(120) for one in work] == [5, 5]
    assert _whole(parquet_lake) in ({14}, {24})
    assert parquet_lake.snapshot().version == 10
    assert leftovers(parquet_lake.root) == []


def test_different_operations_at_once_all_take_effect(lake):
    lake.create(pa.table({"id": range(90), "version": [0] * 90}), files=3)
    work = [
        lambda: lake.delete("id between 80 and 89"),
        lambda: lake.update({"version": "version + 1"}, "id < 10"),
        lambda: lake.merge(pa.table({"id": [100], "version": [7]}), on="id"),
        lambda: lake.compact(),
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda operation: operation(), work))
    expected = [(n, 1) for n in range(10)] + [(n, 0) for n in range(10, 80)] + [(100, 7)]
    assert lake.values("id", "version") == expected


def _intruder(lake, table, times):
    """A writer that does not know intarsia, between the plan and the commit."""
    done = []

    def progress(step: str, _done: int, _total: int) -> None:
        if step == "write files" and len(done) < times:
            lake.table.intrude(table, len(done))
            done.append(step)

    return progress


@pytest.mark.parametrize("strategy", ["insert", "upsert", "full_merge"])
def test_a_file_that_appears_between_plan_and_commit_is_looked_at_and_kept(lake, strategy):
    lake.create(pa.table({"id": [1, 2], "version": [0, 0]}))
    foreign = pa.table({"id": [3, 9], "version": [5, 5]})
    source = pa.table({"id": [2, 3], "version": [1, 1]})
    result = lake.merge(source, on="id", strategy=strategy, progress=_intruder(lake, foreign, 1))
    assert result.attempts == 2
    assert (
        lake.values("id", "version")
        == {
            "insert": [(1, 0), (2, 0), (3, 5), (9, 5)],
            "upsert": [(1, 0), (2, 1), (3, 1), (9, 5)],
            "full_merge": [(2, 1), (3, 1)],
        }[strategy]
    )
    assert result.total == len(lake.rows())


def test_a_source_that_can_be_read_once_serves_a_second_attempt(lake):
    lake.create(_version(0))
    foreign = pa.table({"id": [1000], "version": [5]})
    result = lake.merge(_version(1).to_reader(), on="id", progress=_intruder(lake, foreign, 2))
    assert (result.attempts, result.updated) == (3, len(KEYS))


def test_a_writer_that_never_stops_makes_a_conflict_and_loses_nothing(parquet_lake, leftovers):
    parquet_lake.create(_version(0))
    before = parquet_lake.identity("part-00000.parquet")
    foreign = pa.table({"id": [1000], "version": [5]})
    with pytest.raises(CommitConflict, match="foreign") as caught:
        parquet_lake.merge(_version(1), on="id", progress=_intruder(parquet_lake, foreign, 100))
    assert caught.value.changed is False
    assert parquet_lake.identity("part-00000.parquet") == before
    assert len(parquet_lake.files) == 1 + 4  # four attempts
    assert leftovers(parquet_lake.root) == []


def test_an_append_does_not_mind_a_file_that_appears(lake):
    lake.create(_version(0))
    foreign = pa.table({"id": [1000], "version": [5]})
    result = lake.write(pa.table({"id": [2000], "version": [1]}), progress=_intruder(lake, foreign, 1))
    assert result.attempts == 1
    assert lake.values("id")[-2:] == [1000, 2000]


def test_a_planned_file_that_is_replaced_meanwhile_is_planned_again(parquet_lake):
    parquet_lake.create(pa.table({"id": [1, 2], "version": [0, 0]}))
    done = []

    def progress(step: str, _done: int, _total: int) -> None:
        if step == "write files" and not done:
            done.append(step)
            pq.write_table(pa.table({"id": [1, 2, 3], "version": [7, 7, 7]}), parquet_lake.root / "new.tmp")
            (parquet_lake.root / "new.tmp").rename(parquet_lake.root / "part-00000.parquet")

    result = parquet_lake.merge(pa.table({"id": [1], "version": [1]}), on="id", progress=progress)
    assert result.attempts == 2
    assert parquet_lake.values("id", "version") == [(1, 1), (2, 7), (3, 7)]
