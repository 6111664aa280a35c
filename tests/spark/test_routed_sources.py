"""DataFrames whose rows are routed to files through storage: the same results and errors as in process."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

import intarsia as it
from intarsia.core.plan import FilePlan
from intarsia.core.snapshot import DataFile
from intarsia.engines.spark import route, route_tasks
from intarsia.engines.spark import source as spark_source
from intarsia.engines.spark.large_source import ArrowStore, CastWork, cast_rows, route_rows, write_routes
from intarsia.engines.spark.route_tasks import FileBatch, RouteWork, route_part
from intarsia.engines.spark.source import SpoolPart
from intarsia.errors import KeyColumnError, PartitionMoveError, SchemaMismatch, StorageError

N = 300
TARGET = pa.table(
    {
        "id": range(N),
        "p": [n % 3 for n in range(N)],
        "s": [f"s{n}" for n in range(N)],
        "v": [n / 3 for n in range(N)],
    }
)
_IDS = [*range(N + 49, N - 51, -1)]
SOURCE = pa.table(
    {
        "id": _IDS,
        "p": [n % 3 for n in _IDS],
        "s": [None if n % 7 == 0 else f"new {n}" for n in _IDS],
        "v": [float(n) for n in _IDS],
    }
)

READ = spark_source.Spool.read


@pytest.fixture(autouse=True)
def every_dataframe_is_routed(tmp_path, monkeypatch):
    """None is read as a whole, and nothing of it is left where it waits."""

    def refused(*_: Any) -> Any:
        raise AssertionError("the source was collected, or joined by Spark")

    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setattr(route, "ROUTED_BYTES", 0)
    monkeypatch.setattr(route_tasks, "FILE_BATCH_BYTES", 1 << 10)
    monkeypatch.setattr(spark_source.Spool, "read", refused)
    monkeypatch.setattr(route, "prepare_joined", refused)
    yield
    assert list(place.glob("*/*")) == []


@pytest.fixture
def both(spark, tmp_path, make_dataset, rows, leftovers):
    """One merge in process and routed on Spark, dry and in earnest: everything told has to be the same."""

    def run(
        source: pa.Table, target: pa.Table, *, partition: Any = (), **options: Any
    ) -> list[dict[str, Any]]:
        frame = spark.createDataFrame(source).coalesce(2)
        paths = [make_dataset(tmp_path / name, target, files=3, partition=partition) for name in ("a", "s")]
        told = [it.merge(source, paths[0], **options)]
        told += [it.merge(frame, paths[1], engine=spark, dry_run=dry, **options) for dry in (True, False)]
        assert dict(told[0]) == dict(told[1]) == dict(told[2])
        assert [len(one.rewritten_files) for one in told] == [len(told[0].rewritten_files)] * 3
        found = rows(paths[1])
        assert found == rows(paths[0])
        assert leftovers(paths[1]) == []
        return found

    return run


@pytest.fixture
def both_refuse(spark, tmp_path, make_dataset, unchanged):
    """One merge in process and routed on Spark: the same error, before anything is written."""

    def run(source: pa.Table, target: pa.Table, kind: Any, *, partition: Any = (), **options: Any) -> None:
        path = make_dataset(tmp_path / "t", target, files=2, partition=partition)
        with pytest.raises(kind) as here:
            it.merge(source, path, **options)
        frame = spark.createDataFrame(source).coalesce(2)
        for dry in (True, False):
            with unchanged(path), pytest.raises(kind) as there:
                it.merge(frame, path, engine=spark, dry_run=dry, **options)
            assert str(there.value) == str(here.value)

    return run


@pytest.mark.parametrize("partition", [(), "p"], ids=["plain", "partitioned"])
@pytest.mark.parametrize("strategy", ["upsert", "full_merge", "deduplicate"])
def test_a_strategy_gives_what_it_gives_in_process(both, strategy, partition):
    source, options = SOURCE, dict[str, Any](on="id", strategy=strategy)
    if strategy == "deduplicate":
        again = SOURCE.slice(0, 70).set_column(3, "v", pa.array([-1.0 if n % 2 else 1e6 for n in range(70)]))
        source, options["dedup_order_by"] = pa.concat_tables([SOURCE, again]), ["v"]
    both(source, TARGET, partition=partition, **options)


def test_a_row_goes_to_every_file_that_has_its_key(both):
    found = both(SOURCE, pa.concat_tables([TARGET, TARGET, TARGET]), on="id", strategy="update")
    assert sum(row["v"] == float(N - 1) for row in found) == 3


def test_keys_of_several_columns_and_null_keys_are_met(both):
    source = SOURCE.append_column("k", pa.array([None if n % 5 == 0 else f"k{n % 2}" for n in _IDS]))
    target = TARGET.append_column("k", pa.array([None if n % 5 == 0 else f"k{n % 2}" for n in range(N)]))
    both(source, target, on=["id", "k"], null_keys="match")


CLAUSES = {
    "assign": [
        it.when_matched("source.v > 270").update({"s": "source.s || target.s", "v": "target.v + 1"}),
        it.when_matched("target.id = 255").delete(),
        it.when_not_matched("source.p > 0").insert({"id": "id", "p": "p", "s": "'made of ' || v"}),
        it.when_not_matched_by_source("id < 20").update({"s": "'alone'"}),
    ],
    "drop": [it.when_matched().delete(), it.when_not_matched_by_source("p = 0").delete()],
    "no value of the source": [
        it.when_matched("source.v > 290").update({"s": "source.s"}),
        it.when_matched("target.id = 280").delete(),
        it.when_matched().update({"v": "target.v + 1"}),
    ],
}


@pytest.mark.parametrize("clauses", CLAUSES)
def test_clauses_and_conditions_decide_as_in_process(both, clauses):
    on = "target.id = source.id and source.v > target.v + 150 and source.s is not null"
    both(SOURCE, TARGET, partition="p", on=on, clauses=CLAUSES[clauses])


def test_a_merge_that_takes_no_value_of_the_source_brings_none_to_the_files(both, monkeypatch):
    monkeypatch.setattr(route, "route_part", None)
    found = both(SOURCE, TARGET, on="id", clauses=[it.when_matched().update({"s": "'seen'"})])
    assert sum(row["s"] == "seen" for row in found) == 50


def test_columns_may_have_any_name(both):
    names = ["__row__", "file", "row_id", "a.b"]
    again = pa.concat_tables([SOURCE, SOURCE.slice(0, 70)]).rename_columns(names)
    options = {"on": "__row__", "strategy": "deduplicate", "dedup_order_by": ["a.b"]}
    both(again, TARGET.rename_columns(names), **options)


def test_a_source_is_cast_where_it_is(both):
    kinds = {"id": pa.int32(), "s": pa.dictionary(pa.int32(), pa.string()), "v": pa.float32()}
    target = TARGET.select(["s", "id", "v", "p"])
    schema = pa.schema([field.with_type(kinds.get(field.name, field.type)) for field in target.schema])
    both(SOURCE.drop_columns(["p"]), target.cast(schema), on="id", missing="null")


def test_a_file_that_is_not_hit_is_widened_with_the_others(both):
    target = TARGET.set_column(3, "v", pa.array([n % 100 for n in range(N)], pa.int8()))
    source = SOURCE.set_column(3, "v", pa.array([n << 20 for n in _IDS])).select(["v", "id", "p", "s"])
    both(source, target, on="id", schema_evolution="widen")


def test_what_does_not_fit_is_told_of_the_whole_source(both_refuse, monkeypatch):
    monkeypatch.setattr(spark_source.Spool, "read", READ)  # then it may be read as a whole
    target = TARGET.set_column(0, "id", TARGET["id"].cast(pa.int16()))
    source = SOURCE.set_column(0, "id", pa.array([1 << 20, *_IDS[1:]]))
    both_refuse(source, target, SchemaMismatch, on="id")
    strict = TARGET.cast(pa.schema([f.with_nullable(f.name != "s") for f in TARGET.schema]))
    both_refuse(SOURCE, strict, SchemaMismatch, on="id")


def test_keys_that_cannot_be_are_refused_before_anything_is_written(both_refuse):
    both_refuse(pa.concat_tables([SOURCE, SOURCE.slice(5, 9)]), TARGET, KeyColumnError, on="id")
    nulls = SOURCE.set_column(0, "id", pa.array([None if n % 9 == 0 else n for n in _IDS]))
    both_refuse(nulls, TARGET, KeyColumnError, on="id")
    twice = pa.concat_tables([SOURCE, SOURCE.slice(50, 9)])
    both_refuse(twice, TARGET, KeyColumnError, on="id", clauses=[it.when_matched().update_all()])
    moved = SOURCE.set_column(1, "p", pa.array([n % 2 for n in _IDS]))
    both_refuse(moved, TARGET, PartitionMoveError, on="id", partition="p")


@pytest.mark.spark
def test_a_new_dataset_is_made_of_rows_that_were_routed(spark, tmp_path, rows):
    frame = spark.createDataFrame(SOURCE)
    assert it.merge(frame, tmp_path / "t", on="id", partition_by="p").inserted == len(_IDS)
    assert [row["v"] for row in rows(tmp_path / "t")] == sorted(SOURCE["v"].to_pylist())


def test_an_arrow_table_too_large_to_travel_is_routed_by_keys_of_any_type(spark, tmp_path, rows):
    times = {"k": pa.array(range(400), pa.timestamp("s")), "d": pa.array([0] * 400, pa.date64())}
    source = pa.table({**times, "v": ["x" * 200] * 400})
    paths = [tmp_path / name for name in ("a", "s")]
    it.merge(source, paths[0], on=["k", "d"])
    done = it.merge(source, paths[1], on=["k", "d"], engine=spark, broadcast_bytes=source.nbytes // 2)
    assert done.inserted == 400
    assert rows(paths[1]) == rows(paths[0])


@pytest.mark.parametrize("mapped", [True, False])
def test_batches_of_a_store_come_back_one_by_one(tmp_path, mapped):
    local = pafs.LocalFileSystem()
    store = (
        ArrowStore(local, str(tmp_path))
        if mapped
        else ArrowStore(pafs.SubTreeFileSystem(str(tmp_path), local), "")
    )
    batches = [pa.record_batch({"a": [n] * n}) for n in range(1, 4)]
    location = store.put(batches[0].schema, batches)
    assert store.get(location, [2, 0]) == [batches[2], batches[0]]
    os.remove(tmp_path / os.path.basename(location))
    with pytest.raises(StorageError, match="does not see"):
        store.get(location, [0])
    with pytest.raises(StorageError, match="Could not write"):
        ArrowStore(local, str(tmp_path / "nowhere")).put(batches[0].schema, batches)


def test_a_part_that_an_executor_does_not_see_is_told_as_that(tmp_path):
    store = ArrowStore(pafs.LocalFileSystem(), str(tmp_path))
    ways = write_routes(store, [route_rows(0, pa.array([0, 1]))], pa.array([0]))
    schema = pa.schema([("a", pa.int64())])
    gone = SpoolPart(str(tmp_path / "gone.parquet"), 2, 16)
    route = RouteWork(store, schema, (ways,), (0,), "upsert", "/t")
    with pytest.raises(StorageError, match=r"does not see .*gone\.parquet"):
        route_part(route, (0, gone, ()))
    with pytest.raises(StorageError, match=r"does not see .*gone\.parquet"):
        cast_rows(CastWork(store, schema, "upsert", "/t"), gone)
    unreachable = CastWork(ArrowStore(store.filesystem, str(tmp_path / "nowhere")), schema, "upsert", "/t")
    with pytest.raises(StorageError, match="Could not write"):
        cast_rows(unreachable, gone)


def _alone(number: int, *, size: int, needed: int) -> FileBatch:
    item = FilePlan(DataFile(f"{number}.parquet", f"/{number}.parquet", size, 10), "scan", "")
    return FileBatch(((number, item, ("noted", number)),), (), needed)


def test_files_for_which_few_rows_wait_are_many_tasks_work_all_the_same():
    alone = [_alone(number, size=1 << 20, needed=0) for number in range(40)]
    made = list(route_tasks.batch_files(alone, row_bytes=8.0, tasks=4))
    assert [bundle.first for bundle in made] == sorted(bundle.first for bundle in made)
    assert [len(bundle.files) for bundle in made] == [3] * 13 + [1]


def test_rows_that_wait_for_a_bundle_are_no_more_than_it_may_hold():
    alone = [_alone(number, size=1 << 20, needed=50) for number in range(40)]
    made = list(route_tasks.batch_files(alone, row_bytes=8.0, tasks=1))
    assert [bundle.needed for bundle in made] == [150] * 13 + [50]  # 1 KiB is asked for above
