"""What only the commit of a run would refuse, its dry run refuses in the same words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from fsspec.implementations.local import LocalFileSystem

import intarsia as it
from intarsia.errors import DamagedTable, InputError, NotSupported
from intarsia.tables.parquet import checks

TABLE = pa.table({"id": range(40), "region": ["eu", "us"] * 20, "v": ["x" * 50] * 40})
SOURCE = pa.table({"id": [12, 100], "region": ["eu", "eu"], "v": ["y", "z"]})

REWRITES = {
    "merge": lambda target, **k: it.merge(SOURCE, target, on="id", **k),
    "delete some": lambda target, **k: it.delete(target, "id = 3", **k),
    "delete all of a file": lambda target, **k: it.delete(target, "region = 'eu'", **k),
    "update": lambda target, **k: it.update(target, {"v": "'w'"}, "id = 3", **k),
    "overwrite": lambda target, **k: it.write(SOURCE, target, mode="overwrite", **k),
    "compact": lambda target, **k: it.compact(target, **k),
    "optimize": lambda target, **k: it.optimize(target, by="id", **k),
    "deduplicate": lambda target, **k: it.deduplicate(target, on="region", **k),
}

MEASURED = pytest.mark.parametrize("measured", [{}, {"measured_bytes": 0}], ids=["measured", "estimated"])


def refuse_alike(call: Any, kind: type[Exception], match: str, measured: dict[str, Any]) -> None:
    """Both a dry run and the run raise the same error."""
    with pytest.raises(kind, match=match) as told:
        call(dry_run=True, **measured)
    with pytest.raises(kind, match=match) as done:
        call()
    assert str(told.value) == str(done.value)
    assert type(told.value) is type(done.value)
    assert told.value.changed is False


def store_without_rename() -> Any:
    """This machine's files by a protocol that nobody knows to have an atomic rename."""
    store = LocalFileSystem(skip_instance_cache=True)
    store.protocol = "elsewhere"
    return store


@MEASURED
@pytest.mark.parametrize("name", REWRITES)
def test_a_store_that_can_only_append_refuses_rewrites(parquet_lake, name, measured):
    parquet_lake.create(TABLE, files=2, partition_by="region")
    root = parquet_lake.root
    store = store_without_rename()
    options = {"filesystem": store, "engine": parquet_lake.engine}
    with parquet_lake.unchanged():
        refuse_alike(
            lambda **more: REWRITES[name](str(root), **options, **more),
            NotSupported,
            "single_writer=True",
            measured,
        )
    assert it.write(SOURCE, str(root), dry_run=True, **options, **measured).inserted == 2
    told = REWRITES[name](str(root), dry_run=True, single_writer=True, **options, **measured)
    assert told.changed


def test_a_plan_refuses_what_a_dry_run_does(parquet_lake):
    parquet_lake.create(TABLE)
    root = parquet_lake.root
    store = store_without_rename()
    with pytest.raises(NotSupported, match="single_writer=True"):
        it.plan("delete", str(root), "id = 3", filesystem=store, engine=parquet_lake.engine)


def test_a_file_with_other_columns_than_the_one_it_replaces_is_refused(parquet_lake, monkeypatch):
    real = checks.read_elements

    def misread(footer: Any) -> Any:
        found = real(footer)
        if b"intarsia.txid" not in (footer.metadata or {}):
            return found
        return replace(found, columns={**found.columns, "v": found.columns["id"]})

    parquet_lake.create(TABLE, files=2)
    monkeypatch.setattr(checks, "read_elements", misread)
    with pytest.raises(DamagedTable, match="stores 'v' otherwise"), parquet_lake.unchanged():
        parquet_lake.update({"v": "'w'"}, "id = 3", dry_run=True)
    with pytest.raises(DamagedTable, match="stores 'v' otherwise"):
        parquet_lake.update({"v": "'w'"}, "id = 3")


@MEASURED
@pytest.mark.parametrize("properties", [{"app_id": "a"}, {"batch_id": "1"}, {"app_id": "a", "batch_id": "x"}])
def test_half_an_idempotency_key_is_refused(lake, properties, measured):
    lake.create(TABLE, files=2)

    def call(**more: Any) -> Any:
        return lake.merge(SOURCE, on="id", properties=properties, **more)

    refuse_alike(call, InputError, "go together", measured)


def test_a_batch_that_was_committed_before_does_nothing(lake):
    lake.create(TABLE, files=2)
    batch = {"on": "id", "app_id": "loader", "batch_id": 7}
    lake.merge(SOURCE, **batch)
    with lake.unchanged():
        told = lake.merge(SOURCE, dry_run=True, **batch)
        done = lake.merge(SOURCE, **batch)
        plan = lake.plan("merge", SOURCE, **batch)
    assert not told.changed
    assert dict(told) == dict(done)
    assert told.notes == done.notes == plan.notes
    assert sorted(told.preserved_files) == sorted(done.preserved_files)
    assert (told.bytes_read, told.bytes_written, told.new_files, told.bytes_exact) == (0, 0, 0, True)
    assert (plan.count("keep"), plan.updated) == (len(plan.files), 0)
    assert lake.merge(SOURCE, dry_run=True, **{**batch, "batch_id": 8}).updated == 2


PROPERTIES = {
    "write.location-provider.impl": "org.example.Places",
    "write.format.default": "orc",
    "write.parquet.compression-codec": "lz77",
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_of_an_iceberg_table_that_cannot_be_followed_are_refused(iceberg_lake, name):
    iceberg_lake.create(TABLE, files=2)
    with iceberg_lake.table.table.transaction() as change:
        change.set_properties({name: PROPERTIES[name]})
    refuse_alike(lambda **more: iceberg_lake.delete("id = 3", **more), NotSupported, name, {})


@MEASURED
def test_a_snapshot_that_an_iceberg_table_does_not_stage_is_refused(iceberg_lake, measured):
    iceberg_lake.create(TABLE, files=2)
    staged = {"properties": {"wap.id": "audit-1"}}
    refuse_alike(
        lambda **more: iceberg_lake.delete("id = 3", **staged, **more), InputError, "wap.enabled", measured
    )
    with iceberg_lake.table.table.transaction() as change:
        change.set_properties({"write.wap.enabled": "true"})
    assert iceberg_lake.delete("id = 3", dry_run=True, **staged, **measured).deleted == 1
