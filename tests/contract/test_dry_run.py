"""plan and dry_run: what would happen to each file and why, in exact counts, and not one byte written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from intarsia import when_not_matched_by_source
from intarsia.errors import InputError

TABLE = pa.table({"id": range(40), "region": ["eu", "us"] * 20, "v": ["x" * 50] * 40})
SOURCE = pa.table({"id": [12, 100], "region": ["eu", "eu"], "v": ["y", "z"]})

OPERATIONS = {
    "merge": lambda lake, **k: lake.merge(SOURCE, on="id", **k),
    "full_merge": lambda lake, **k: lake.merge(SOURCE, on="id", strategy="full_merge", **k),
    "insert": lambda lake, **k: lake.merge(SOURCE, on="id", strategy="insert", **k),
    "clauses": lambda lake, **k: lake.merge(
        SOURCE, on="id", clauses=[when_not_matched_by_source("target.id < 5").delete()], **k
    ),
    "delete": lambda lake, **k: lake.delete("id between 5 and 15", **k),
    "update": lambda lake, **k: lake.update({"v": "'w'"}, "id = 3", **k),
    "append": lambda lake, **k: lake.write(SOURCE, **k),
    "overwrite": lambda lake, **k: lake.write(SOURCE, mode="overwrite", **k),
    "overwrite_partitions": lambda lake, **k: lake.write(SOURCE, mode="overwrite_partitions", **k),
    "compact": lambda lake, **k: lake.compact(**k),
    "optimize": lambda lake, **k: lake.optimize(by="id", **k),
    "deduplicate": lambda lake, **k: lake.deduplicate(on="region", **k),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_dry_run_tells_what_the_run_then_does_and_writes_nothing(parquet_lake, tree_digest, name):
    operation = OPERATIONS[name]
    parquet_lake.create(TABLE, files=2, partition_by="region")
    before = tree_digest(parquet_lake.root)
    told = operation(parquet_lake, dry_run=True)
    assert tree_digest(parquet_lake.root) == before  # the control directory included
    assert told.dry_run
    assert told.changed
    done = operation(parquet_lake)
    assert dict(told) == dict(done)
    assert sorted(told.rewritten_files) == sorted(done.rewritten_files)
    assert sorted(told.removed_files) == sorted(done.removed_files)
    assert sorted(told.preserved_files) == sorted(done.preserved_files)
    assert told.bytes_read == done.bytes_read
    assert (told.version, told.txid) == (None, None)


def test_a_dry_run_on_a_table_that_does_not_exist_makes_none(parquet_lake, tmp_path):
    told = parquet_lake.merge(SOURCE, on="id", dry_run=True)
    assert (told.inserted, told.total) == (2, 2)
    assert list(tmp_path.iterdir()) == []


def test_each_file_has_its_reason(parquet_lake):
    parquet_lake.create(TABLE, files=2, partition_by="region")
    plan = parquet_lake.plan("merge", SOURCE, on=["id", "region"])
    found = {item.file.path: (item.action, item.reason, item.hits) for item in plan.files}
    assert found == {
        "region=eu/part-00000.parquet": ("rewrite", "key scan: rows hit", 1),
        "region=eu/part-00001.parquet": ("keep", "bounds exclude every key", 0),
        "region=us/part-00000.parquet": ("keep", "partition: not in the source", 0),
        "region=us/part-00001.parquet": ("keep", "partition: not in the source", 0),
    }
    assert (plan.inserted, plan.updated, plan.deleted, plan.source_rows) == (1, 1, 0, 2)


def test_a_key_that_the_bounds_allow_but_the_file_lacks_is_told_apart(lake):
    lake.create(pa.table({"id": [1, 5, 9]}))
    plan = lake.plan("merge", pa.table({"id": [4]}), on="id")
    assert [(item.action, item.reason, item.scanned) for item in plan.files] == [
        ("keep", "key scan: no row hit", True)
    ]


def test_bytes_say_what_is_read_and_written(parquet_lake):
    parquet_lake.create(TABLE, files=4)
    plan = parquet_lake.plan("merge", SOURCE, on="id")
    (rewritten,) = plan.select("rewrite")
    assert 0 < plan.bytes_to_scan < rewritten.file.size
    assert plan.bytes_to_read == plan.bytes_to_scan + rewritten.file.size
    assert plan.bytes_to_write >= rewritten.file.size
    nothing = parquet_lake.plan("merge", SOURCE.slice(0, 0), on="id")
    assert (nothing.bytes_to_read, nothing.bytes_to_write) == (0, 0)


def test_deletes_by_bounds_and_partition_have_reasons(parquet_lake):
    parquet_lake.create(TABLE, files=2, partition_by="region")
    plan = parquet_lake.plan("delete", "region = 'eu' and id < 10")
    reasons = {item.file.path: (item.action, item.reason) for item in plan.files}
    assert reasons["region=us/part-00000.parquet"] == ("keep", "partition values exclude every row")
    assert reasons["region=eu/part-00001.parquet"] == ("keep", "bounds exclude every row")
    assert reasons["region=eu/part-00000.parquet"][0] == "rewrite"


def test_moves_that_let_rows_be_seen_twice_are_noted(lake):
    lake.create(TABLE, files=3)
    for plan in (lake.plan("compact"), lake.plan("write", SOURCE, mode="overwrite")):
        assert any("twice for a moment" in note for note in plan.notes)
    assert not any("twice" in note for note in lake.plan("merge", SOURCE, on="id").notes)


def test_two_plans_of_one_state_are_equal(lake):
    lake.create(TABLE, files=3)
    one, other = (lake.plan("merge", SOURCE, on="id") for _ in range(2))
    assert [(f.file, f.action, f.reason, f.hits) for f in one.files] == [
        (f.file, f.action, f.reason, f.hits) for f in other.files
    ]
    assert str(one)
    assert "<" in one._repr_html_()


def test_a_plan_that_cannot_be_carried_out_is_an_error_already(lake):
    lake.create(TABLE)
    with pytest.raises(ValueError, match="duplicate key"):
        lake.plan("merge", pa.concat_tables([SOURCE, SOURCE]), on="id")
    with pytest.raises(InputError, match="no operation"):
        lake.plan("vacuum")
