"""DataFrames as sources: read once, whatever their size, and left nowhere; both ways of a merge."""

from __future__ import annotations

import datetime as dt
import tempfile
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.engines.spark import source
from intarsia.errors import KeyColumnError, PartitionMoveError, SchemaMismatch

BOTH = pytest.mark.parametrize("limit", [64 << 20, 1], ids=["small", "large"])
"""Whether the source travels with the tasks, or is joined by Spark."""

TARGET = pa.table({"id": range(40), "p": [f"p{n % 4}" for n in range(40)], "v": [n * 10 for n in range(40)]})
ROWS = "id long, p string, v long"
SOURCE = [(n, f"p{n % 4}", -n) for n in range(30, 50)]


@pytest.fixture
def target(tmp_path, make_dataset):
    return make_dataset(tmp_path / "t", TARGET, files=2, partition="p")


@pytest.fixture(autouse=True)
def spools(tmp_path, monkeypatch):
    """Where sources are spooled; no test leaves one behind."""
    place = tmp_path / "spools"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield
    assert list(place.glob("*/*")) == []


def _values(rows: list[dict[str, Any]]) -> dict[int, int]:
    return {row["id"]: row["v"] for row in rows}


OLD = {n: n * 10 for n in range(40)}
NEW = {n: -n for n in range(30, 50)}
AFTER = {
    "insert": NEW | OLD,
    "update": OLD | {n: -n for n in range(30, 40)},
    "upsert": OLD | NEW,
    "full_merge": NEW,
    "deduplicate": OLD | NEW,
}


@BOTH
@pytest.mark.parametrize("strategy", AFTER)
def test_a_strategy_leaves_the_rows_it_promises(spark, target, rows, leftovers, strategy, limit):
    frame = spark.createDataFrame(SOURCE, ROWS)
    order = {"dedup_order_by": "v"} if strategy == "deduplicate" else {}
    planned = it.merge(
        frame, target, on="id", strategy=strategy, broadcast_bytes=limit, dry_run=True, **order
    )
    result = it.merge(frame, target, on="id", strategy=strategy, broadcast_bytes=limit, **order)
    found = rows(target)
    assert _values(found) == AFTER[strategy]
    assert len(found) == result.total == planned.total
    assert dict(result) == dict(planned)
    assert result.source_count == 20
    assert all(row["p"] == f"p{row['id'] % 4}" for row in found)
    assert leftovers(target) == []


@BOTH
def test_a_dataset_that_does_not_exist_is_made_with_its_partitions(spark, tmp_path, rows, limit):
    frame = spark.createDataFrame(SOURCE, ROWS)
    result = it.merge(frame, tmp_path / "t", on="id", partition_by="p", broadcast_bytes=limit)
    assert result.inserted == 20
    assert _values(rows(tmp_path / "t")) == NEW
    assert sorted(child.name for child in (tmp_path / "t").iterdir()) == ["p=p0", "p=p1", "p=p2", "p=p3"]


@pytest.mark.parametrize("here", [True, False], ids=["beside this process", "anywhere"])
def test_an_update_of_a_dataset_that_does_not_exist_leaves_nothing(spark, tmp_path, monkeypatch, here):
    monkeypatch.setattr(
        source, "_is_local", lambda _: here
    )  # elsewhere, sources are spooled beside the dataset
    before = set(tmp_path.iterdir())
    result = it.merge(spark.createDataFrame(SOURCE, ROWS), tmp_path / "none", on="id", strategy="update")
    assert (result.updated, result.created) == (0, False)
    assert set(tmp_path.iterdir()) == before


@BOTH
def test_clauses_decide_in_order(spark, target, rows, limit):
    frame = spark.createDataFrame(SOURCE, ROWS)
    result = it.merge(
        frame,
        target,
        on="id",
        clauses=[
            it.when_matched("source.id < 33").delete(),
            it.when_matched().update({"v": "target.v + source.v"}),
            it.when_not_matched("source.id > 45").insert_all(),
            it.when_not_matched_by_source("target.id < 2").update({"v": "0"}),
        ],
        broadcast_bytes=limit,
    )
    expected = {n: n * 10 for n in range(2, 30)} | {0: 0, 1: 0} | {n: 9 * n for n in range(33, 40)}
    assert _values(rows(target)) == expected | {n: -n for n in range(46, 50)}
    assert dict(result) == {"inserted": 4, "updated": 9, "deleted": 3, "total": 41}


@BOTH
@pytest.mark.parametrize(
    ("source", "error", "says"),
    [
        ([(1, "p1", 0), (1, "p1", 1)], KeyColumnError, "deduplicate"),
        ([(None, "p1", 0)], KeyColumnError, "Key column 'id'"),
        ([(1, "p2", 0)], PartitionMoveError, "partition"),
    ],
    ids=["twice", "null", "moved"],
)
def test_what_cannot_be_merged_is_refused_before_anything_changes(
    spark, target, unchanged, source, error, says, limit
):
    frame = spark.createDataFrame(source, ROWS)
    with pytest.raises(error) as expected:
        it.merge(pa.Table.from_batches(frame.toArrow().to_batches()), target, on="id", engine="arrow")
    with unchanged(target), pytest.raises(error, match=says) as found:
        it.merge(frame, target, on="id", broadcast_bytes=limit)
    assert str(found.value) == str(expected.value)


@BOTH
def test_a_value_that_does_not_fit_is_refused_before_anything_changes(
    spark, tmp_path, make_dataset, unchanged, limit
):
    root = make_dataset(tmp_path / "t", pa.table({"id": [1], "v": pa.array([1], pa.int8())}))
    fits = spark.createDataFrame([(1, 100)], "id long, v long")
    assert it.merge(fits, root, on="id", broadcast_bytes=limit).updated == 1
    wide = spark.createDataFrame([(1, 1000)], "id long, v long")
    with unchanged(root), pytest.raises(SchemaMismatch, match="1000"):
        it.merge(wide, root, on="id", broadcast_bytes=limit)


@BOTH
def test_a_dataframe_is_evaluated_once(spark, tmp_path, make_dataset, rows, limit):
    """Its random values are the same in every file, and every row is counted once."""
    root = make_dataset(tmp_path / "t", pa.table({"id": range(100), "u": ["old"] * 100}), files=4)
    frame = spark.range(50, 150).selectExpr("id", "uuid() as u")
    result = it.merge(frame, root, on="id", broadcast_bytes=limit)
    assert (result.updated, result.inserted) == (50, 50)
    found = [row["u"] for row in rows(root) if row["id"] >= 50]
    assert len(set(found)) == 100


@BOTH
def test_null_keys_match_where_they_may(spark, tmp_path, make_dataset, rows, limit):
    root = make_dataset(tmp_path / "t", pa.table({"id": [1, None], "v": [1, 2]}))
    frame = spark.createDataFrame([(None, 9), (3, 3)], "id long, v long")
    result = it.merge(frame, root, on="id", null_keys="match", broadcast_bytes=limit)
    assert (result.updated, result.inserted) == (1, 1)
    assert {row["id"]: row["v"] for row in rows(root)} == {1: 1, None: 9, 3: 3}


@BOTH
def test_an_empty_dataframe_changes_nothing_but_a_full_merge_deletes_all(spark, target, unchanged, limit):
    frame = spark.createDataFrame([], ROWS)
    with unchanged(target):
        assert not it.merge(frame, target, on="id", broadcast_bytes=limit).changed
    result = it.merge(frame, target, on="id", strategy="full_merge", broadcast_bytes=limit)
    assert (result.deleted, result.total) == (40, 0)


def test_deduplicating_a_dataframe_without_an_order_warns(spark, target):
    frame = spark.createDataFrame(SOURCE, ROWS)
    for limit in (64 << 20, 1):
        with pytest.warns(UserWarning, match="not defined"):
            it.merge(frame, target, on="id", strategy="deduplicate", broadcast_bytes=limit)


NOON = dt.datetime(2025, 1, 1, 12, 30, 15, 123456)
TYPES = {
    "byte": ("tinyint", 1, -128),
    "short": ("smallint", 1, -32768),
    "int": ("int", 1, 2**31 - 1),
    "long": ("bigint", 1, -(2**63)),
    "float": ("float", 1.5, -0.25),
    "double": ("double", 1.5, 1e300),
    "boolean": ("boolean", True, False),
    "string": ("string", "a", "ä\u0000'\""),
    "binary": ("binary", b"", b"\xff\x00"),
    "date": ("date", dt.date(1969, 12, 31), dt.date(9999, 12, 31)),
    "timestamp_ntz": ("timestamp_ntz", NOON, dt.datetime(1900, 1, 1)),
    "timestamp": ("timestamp", NOON.replace(tzinfo=dt.UTC), dt.datetime(1900, 1, 1, tzinfo=dt.UTC)),
    "decimal": (
        "decimal(38,10)",
        Decimal("1.5000000000"),
        Decimal("-9999999999999999999999999999.9999999999"),
    ),
    "interval": ("interval day to second", dt.timedelta(1), dt.timedelta(-1, 5)),
    "array": ("array<int>", [1, None], []),
    "struct": ("struct<a:int,b:struct<c:string>>", {"a": 1, "b": {"c": "x"}}, {"a": None, "b": None}),
    "map": ("map<string,int>", {"k": 1}, {}),
}
KEYS = [name for name in TYPES if name not in ("array", "struct", "map")]


def _shown(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) and set(value) <= {"k"} else value


@BOTH
def test_a_column_of_any_type_arrives_as_it_is(spark, tmp_path, limit):
    schema = ", ".join(["id long", *(f"`{name}` {kind}" for name, (kind, _, _) in TYPES.items())])
    ones = [one for _, one, _ in TYPES.values()]
    others = [other for _, _, other in TYPES.values()]
    it.merge(spark.createDataFrame([(1, *ones), (2, *ones)], schema), tmp_path / "t", on="id")
    changes = spark.createDataFrame([(2, *others), (3, *[None] * len(TYPES))], schema)
    result = it.merge(changes, tmp_path / "t", on="id", broadcast_bytes=limit)
    assert (result.updated, result.inserted) == (1, 1)
    found = {row.pop("id"): row for row in it.snapshot(tmp_path / "t").dataset().to_table().to_pylist()}
    assert found[1] == {name: _shown(one) for name, (_, one, _) in TYPES.items()}
    assert found[2] == {name: _shown(other) for name, (_, _, other) in TYPES.items()}
    assert found[3] == dict.fromkeys(TYPES)


@BOTH
def test_a_key_of_all_types_is_found(spark, tmp_path, limit):
    schema = ", ".join([*(f"`{name}` {TYPES[name][0]}" for name in KEYS), "v int"])
    ones, others = ([TYPES[name][at] for name in KEYS] for at in (1, 2))
    it.merge(spark.createDataFrame([(*ones, 1)], schema), tmp_path / "t", on=KEYS)
    changes = spark.createDataFrame([(*ones, 2), (*others, 3)], schema)
    result = it.merge(changes, tmp_path / "t", on=KEYS, broadcast_bytes=limit)
    assert (result.updated, result.inserted, result.total) == (1, 1, 2)


def test_rows_of_a_dataframe_are_written_in_its_order(spark, tmp_path):
    it.write(spark.range(0, 800, 1, 8), tmp_path / "new", engine=spark)
    (file,) = (tmp_path / "new").glob("*.parquet")
    assert pq.read_table(file)["id"].to_pylist() == list(range(800))


@BOTH
@pytest.mark.parametrize("mode", ["append", "merge", "clauses"])
def test_a_dry_run_of_a_dataframe_says_what_the_run_does(spark, target, mode, limit):
    frame = spark.createDataFrame(SOURCE, ROWS).repartition(5)
    frame = frame.sortWithinPartitions("id").cache()
    calls = {
        "append": lambda **o: it.write(frame, target, broadcast_bytes=limit, **o),
        "merge": lambda **o: it.merge(frame, target, on="id", broadcast_bytes=limit, **o),
        "clauses": lambda **o: it.merge(
            frame,
            target,
            on="id",
            clauses="when matched then update set v = target.v + source.v"
            " when not matched then insert (id, p, v) values (source.id, source.p, 1)",
            broadcast_bytes=limit,
            **o,
        ),
    }
    planned = calls[mode](dry_run=True)
    done = calls[mode]()
    assert (planned.new_files, planned.new_files_exact) == (done.new_files, True)
    assert dict(planned) == dict(done)
    assert (planned.bytes_written, planned.bytes_exact) == (done.bytes_written, True)
    assert "about" not in str(planned)
    frame.unpersist()


@BOTH
def test_all_values_that_would_lose_something_are_counted(spark, target, unchanged, limit):
    frame = spark.createDataFrame(SOURCE, ROWS).repartition(3)
    merge = {"on": "id", "broadcast_bytes": limit}
    matched = "when matched then update set v = source.v / 4.0"
    inserted = "when not matched then insert (id, p, v) values (source.id, source.p, source.v / 4.0)"
    for clauses, told in ((matched, "in 8 of 10 rows"), (inserted, "in 7 of 10 rows")):
        messages = set()
        for how in ({}, {"dry_run": True}, {"dry_run": True, "measured_bytes": 0}):
            with unchanged(target), pytest.raises(SchemaMismatch, match=told) as caught:
                it.merge(frame, target, clauses=clauses, **merge, **how)
            messages.add(str(caught.value))
        assert len(messages) == 1
