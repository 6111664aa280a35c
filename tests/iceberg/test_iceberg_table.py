"""The Iceberg table as the core sees it: snapshots, transactions, modes, branches, what is refused."""

from __future__ import annotations

import gc
import json
import os
import pickle
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake import Lake
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table import StaticTable
from pyiceberg.transforms import BucketTransform

import intarsia as it
from intarsia.core.change import Change, PositionDeletes, StagedFile
from intarsia.core.expr import resolve
from intarsia.core.ports import OutputLocation
from intarsia.core.snapshot import DataFile
from intarsia.errors import (
    CommitConflict,
    CommitUnknown,
    DamagedTable,
    InputError,
    NotSupported,
    StorageError,
)
from intarsia.sql.parse import parse_expression
from intarsia.tables.iceberg.catalog import open_catalog
from intarsia.tables.iceberg.snapshot_producer import FileChange
from intarsia.tables.iceberg.table import IcebergTable


def opened(lake: Lake, **options: Any) -> IcebergTable:
    return IcebergTable.of("db.t", lake.catalog, **options)


def written(
    tx: Any, ids: Sequence[int], region: str | None = "eu", at: OutputLocation | None = None
) -> StagedFile:
    """Write a file of rows as an engine does."""
    place = at or tx
    table = pa.table({"id": ids, "region": pa.array([region] * len(ids), pa.string())})
    table = table.cast(tx.snapshot.schema)
    ((part, rows),) = tx.snapshot.partitioner.partition_rows(table)
    assert rows is None
    path = place.new_file_path(part.values, "part", ids[0])
    location = place.filesystem_path(path)
    pq.write_table(table, location)
    return StagedFile(location, path, len(ids), os.path.getsize(location), part.values, part.tag)


def append(table: IcebergTable, ids: Sequence[int], region: str | None = "eu", **change: Any) -> None:
    with table.transaction("append") as tx:
        tx.commit(Change("append", added=(written(tx, ids, region),), exclusive=False, **change))


def delete_rows(file: DataFile, *positions: int) -> PositionDeletes:
    return PositionDeletes(file, pa.array(positions, pa.int64()))


def delete(table: IcebergTable, *positions: int, **change: Any) -> None:
    with table.transaction("delete") as tx:
        (file,) = tx.snapshot.files
        tx.commit(
            Change("delete", position_deletes=(delete_rows(file, *positions),), planned=(file,), **change)
        )


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_snapshot_is_the_table(tmp_path: Path, version: int) -> None:
    lake = Lake.at(tmp_path, version)
    table = opened(lake)
    empty = table.snapshot()
    assert (empty.files, empty.rows, empty.version, empty.exists) == ((), 0, 0, True)
    append(table, [1, 2, 3])
    append(table, [4], None)
    snapshot = table.snapshot()
    assert snapshot.root == "local.db.t"
    assert sorted(file.rows for file in snapshot.files) == [1, 3]
    assert snapshot.schema.field("id").metadata == {b"PARQUET:field_id": b"1"}
    assert (snapshot.version, snapshot.partition_columns, snapshot.format.keeps_row_ids) == (
        2,
        (),
        version == 3,
    )
    assert snapshot.format.merge_on_read == dict.fromkeys(
        ("delete", "update", "merge", "deduplicate", "overwrite"), False
    )
    assert snapshot.partitioner is not None
    assert snapshot.partitioner.columns == ("region",)
    assert all(os.path.exists(file.location) for file in snapshot.files)
    assert table.snapshot() is snapshot
    again = pickle.loads(pickle.dumps(snapshot))
    assert [file.path for file in again.files] == [file.path for file in snapshot.files]
    assert lake.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize("version", [2, 3])
def test_an_update_is_one_snapshot(tmp_path: Path, version: int) -> None:
    lake = Lake.at(tmp_path, version)
    table = opened(lake, mode="merge-on-read")
    append(table, [1, 2, 3])
    with table.transaction("update") as tx:
        (file,) = tx.snapshot.files
        new = written(tx, [20])
        committed = tx.commit(
            Change("update", added=(new,), position_deletes=(delete_rows(file, 1),), planned=(file,))
        )
    assert committed.version == 2
    assert lake.ids() == [1, 3, 20]
    assert len(lake.table().metadata.snapshots) == 2
    snapshot = table.snapshot()
    assert snapshot.with_footers(snapshot.files).rows == 3
    old = next(f for f in snapshot.files if f.record_count == 3)
    assert old.scan_task is not None
    assert old.scan_task.has_deletes
    assert old.rows == 2  # the deletes of this file alone are counted in its manifest
    entry = lake.entries(deletes=True)[0]
    assert (entry.file.spec_id, entry.file.partition) == (0, ("eu",))
    assert lake.table().metadata.current_snapshot().summary["intarsia.txid"] == committed.txid


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_copy_takes_the_place_of_its_file(tmp_path: Path, version: int) -> None:
    lake = Lake.at(tmp_path, version)
    table = opened(lake)
    append(table, [1, 2, 3])
    with table.transaction("delete") as tx:
        (file,) = tx.snapshot.files
        tx.commit(Change("delete", added=(written(tx, [1, 3]),), removed=(file,), planned=(file,)))
    assert lake.ids() == [1, 3]
    assert table.snapshot().rows == 2


def test_metrics_of_new_files_prune_reads(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    append(opened(lake), [1, 2, 3])
    file = lake.entries()[0].file
    assert file.lower_bounds is not None
    assert file.lower_bounds[1] == (1).to_bytes(8, "little")
    assert file.value_counts == {1: 3, 2: 3}
    assert lake.table().scan("id = 9").to_arrow().num_rows == 0
    assert list(lake.table().scan("id = 9").plan_files()) == []


def test_the_table_that_was_given_is_brought_up_to_date(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    given = lake.table()
    append(IcebergTable.of(given), [1, 2])
    assert sorted(given.scan().to_arrow()["id"].to_pylist()) == [1, 2]


def test_vectors_take_over_what_was_deleted_before(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path, 3)
    table = opened(lake, mode="merge-on-read")
    append(table, [1, 2, 3, 4])
    delete(table, 0)
    delete(table, 2)
    assert lake.ids() == [2, 4]
    (vector,) = lake.entries(deletes=True)
    assert vector.file.record_count == 2
    summary = lake.table().metadata.current_snapshot().summary
    assert (summary["added-dvs"], summary["removed-dvs"], summary["total-delete-files"]) == ("1", "1", "1")


def test_a_vector_takes_over_position_deletes_of_before_the_upgrade(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake, mode="merge-on-read")
    append(table, [1, 2, 3, 4])
    delete(table, 0)
    lake.upgrade(3)
    delete(table, 2)
    assert lake.ids() == [2, 4]
    (vector,) = lake.entries(deletes=True)
    assert vector.file.is_vector
    assert vector.file.record_count == 2


@pytest.mark.parametrize(("granularity", "files"), [("file", 1), ("partition", 2)])
def test_position_deletes_of_one_file_are_merged_where_each_file_has_its_own(
    tmp_path: Path, granularity: str, files: int
) -> None:
    lake = Lake.at(tmp_path, properties={"write.delete.granularity": granularity})
    table = opened(lake, mode="merge-on-read")
    append(table, [1, 2, 3, 4])
    delete(table, 0)
    delete(table, 2)
    assert lake.ids() == [2, 4]
    assert len(lake.entries(deletes=True)) == files


def test_files_of_another_spec_keep_it_and_new_ones_have_the_default(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake, mode="merge-on-read")
    append(table, [1, 2])
    with lake.table().update_spec() as update:
        update.remove_field("region")
        update.add_field("id", BucketTransform(4), "b")
    with table.transaction("update") as tx:
        (file,) = tx.snapshot.files
        tx.commit(
            Change(
                "update",
                added=(written(tx, [20]),),
                position_deletes=(delete_rows(file, 1),),
                planned=(file,),
            )
        )
    assert lake.ids() == [1, 20]
    assert [e.file.spec_id for e in lake.entries(deletes=True)] == [0]
    assert sorted(e.file.spec_id for e in lake.entries()) == [0, 1]


def test_a_change_of_nothing_commits_nothing(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake)
    append(table, [1])
    before = lake.on_disk()
    with table.transaction("delete") as tx:
        assert tx.commit(Change("delete")).version == 1
    assert lake.on_disk() == before


def test_a_change_of_nothing_is_still_validated(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake)
    append(table, [1])
    with pytest.raises(CommitConflict, match="added 1 data file"), table.transaction("delete") as tx:
        lake.append([2])
        tx.commit(Change("delete", planned=tx.snapshot.files))


def test_leaving_without_a_commit_removes_what_was_written(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake)
    append(table, [1])
    before = lake.on_disk()
    with pytest.raises(ZeroDivisionError), table.transaction("append") as tx:
        written(tx, [2])
        elsewhere = pickle.loads(pickle.dumps(tx.output()))
        written(tx, [3], "us", at=elsewhere)
        Path(tx.staging.make_location("spill")).write_bytes(b"x")
        assert len(lake.on_disk()) == len(before) + 3
        raise ZeroDivisionError
    assert lake.on_disk() == before
    assert not list((tmp_path / "db" / "t").glob("staging-*"))


def test_a_task_that_outlives_its_transaction_begins_no_other_file(tmp_path: Path) -> None:
    output = pytest.importorskip("intarsia.engines.spark.staging", reason="pyspark is not installed")
    lake = Lake.at(tmp_path)
    table = opened(lake)
    append(table, [1])
    before = lake.on_disk()
    with pytest.raises(StorageError, match="has ended"):
        with pytest.raises(ZeroDivisionError), table.transaction("append") as tx:
            attempt = output.open_attempt(tx.output(), tx.snapshot)
            task = attempt.__enter__()
            written(tx, [2], at=task)
            raise ZeroDivisionError
        written(tx, [3], at=task)
    assert lake.on_disk() == before
    assert not list((tmp_path / "db" / "t").glob("staging-*"))


def test_a_file_that_was_given_a_place_and_not_committed_goes(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake)
    with table.transaction("append") as tx:
        used, unused = written(tx, [1]), written(tx, [2])
        tx.commit(Change("append", added=(used,), exclusive=False))
    assert os.path.exists(used.location)
    assert not os.path.exists(unused.location)


def test_a_file_written_to_staging_is_moved_to_its_place(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake)
    with table.transaction("append") as tx:
        file = written(tx, [1])
        elsewhere = tx.staging.make_location("part")
        os.rename(file.location, elsewhere)
        tx.commit(Change("append", added=(replace(file, location=elsewhere),), exclusive=False))
    assert lake.ids() == [1]
    assert os.path.exists(file.location)
    assert not list((tmp_path / "db" / "t").glob("staging-*"))


def test_a_conflict_removes_new_files_and_delete_files(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake, mode="merge-on-read")
    append(table, [1, 2])
    with pytest.raises(CommitConflict), table.transaction("update") as tx:
        (file,) = tx.snapshot.files
        new = written(tx, [20])
        delete(opened(lake, mode="merge-on-read"), 0)
        before = lake.on_disk() - {os.path.basename(new.location)}
        tx.commit(Change("update", added=(new,), position_deletes=(delete_rows(file, 1),), planned=(file,)))
    assert lake.on_disk() == before
    assert lake.ids() == [2]


def test_an_unknown_outcome_removes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake)
    append(table, [1])

    def lost(*_: Any) -> Any:
        raise CommitStateUnknownException("504")

    monkeypatch.setattr(lake.catalog, "commit_table", lost)
    with pytest.raises(CommitUnknown), table.transaction("append") as tx:
        file = written(tx, [2])
        tx.commit(Change("append", added=(file,), exclusive=False))
    assert os.path.exists(file.location)


def test_a_file_with_other_rows_than_said_is_refused(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    before = lake.on_disk()
    with pytest.raises(DamagedTable, match="1 rows instead of 2"), opened(lake).transaction("append") as tx:
        tx.commit(Change("append", added=(replace(written(tx, [1]), rows=2),), exclusive=False))
    assert lake.on_disk() == before


def test_deleting_twice_does_no_harm_in_version_2_but_a_vector_has_to_hold_all(tmp_path: Path) -> None:
    for version in (2, 3):
        lake = Lake.at(tmp_path / str(version), version)
        table = opened(lake, mode="merge-on-read")
        append(table, [1, 2, 3])
        with table.transaction("delete") as tx:
            (file,) = tx.snapshot.files
            delete(opened(lake, mode="merge-on-read"), 0)
            change = Change("delete", position_deletes=(delete_rows(file, 1),), planned=(file,))
            if version == 2:
                tx.commit(change)
            else:
                with pytest.raises(CommitConflict, match="deletes"):
                    tx.commit(change)
        assert lake.ids() == ([3] if version == 2 else [2, 3])


@pytest.mark.parametrize("operation", ["update", "merge", "deduplicate", "delete"])
@pytest.mark.parametrize("level", ["serializable", "snapshot"])
def test_the_isolation_level_of_an_operation_decides_on_new_files(
    tmp_path: Path, operation: str, level: str
) -> None:
    name = "delete" if operation == "deduplicate" else operation
    lake = Lake.at(tmp_path, properties={f"write.{name}.isolation-level": level})
    table = opened(lake)
    append(table, [1])
    with table.transaction(operation) as tx:
        (file,) = tx.snapshot.files
        change = Change(operation, added=(written(tx, [10]),), removed=(file,), planned=(file,))
        lake.append([2])
        if level == "snapshot":
            tx.commit(change)
        else:
            with pytest.raises(CommitConflict):
                tx.commit(change)
    assert lake.ids() == ([2, 10] if level == "snapshot" else [1, 2])


def test_new_files_that_the_condition_excludes_are_no_conflict(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake)
    append(table, [1])
    schema = table.snapshot().schema
    reads = resolve(parse_expression("id < 5 and region = 'eu'"), schema)
    for ids, region, passes in (([50], "eu", True), ([2], "us", True), ([2], "eu", False)):
        with table.transaction("delete") as tx:
            append(opened(lake), ids, region)
            change = Change("delete", planned=tx.snapshot.files, reads=reads)
            if passes:
                tx.commit(change)
            else:
                with pytest.raises(CommitConflict):
                    tx.commit(change)


def test_a_new_spec_meanwhile_does_not_hide_new_files(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake)
    append(table, [1])
    reads = resolve(parse_expression("id < 5"), table.snapshot().schema)
    with pytest.raises(CommitConflict), table.transaction("delete") as tx:
        with lake.table().update_spec() as update:
            update.add_field("id", BucketTransform(4), "b")
        append(opened(lake), [2])
        tx.commit(Change("delete", planned=tx.snapshot.files, reads=reads))


def test_a_compaction_passes_by_appends_but_not_by_deletes(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake)
    append(table, [1])
    append(table, [2])
    with table.transaction("compact") as tx:
        change = Change("compact", added=(written(tx, [1, 2]),), removed=tx.snapshot.files, exclusive=False)
        append(opened(lake), [3], "us")
        tx.commit(change)
    assert lake.ids() == [1, 2, 3]
    assert sorted(entry.sequence_number or 0 for entry in lake.entries()) == [2, 3]
    with pytest.raises(CommitConflict), table.transaction("compact") as tx:
        old = next(file for file in tx.snapshot.files if file.rows == 2)
        change = Change("compact", added=(written(tx, [1, 2]),), removed=(old,), exclusive=False)
        lake.commit(FileChange(added_deletes=lake.write_deletes((old.tag, [0]))))
        tx.commit(change)


def test_batches_are_remembered_by_their_snapshots(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake)
    assert table.last_batch("stream") is None
    for batch in ("9", "10"):
        append(table, [int(batch)], properties={"app_id": "stream", "batch_id": batch})
    append(table, [1])
    with table.transaction("append") as tx:
        assert tx.last_batch("stream") == 10
        assert tx.last_batch("other") is None
        with pytest.raises(InputError, match="go together"):
            tx.commit(Change("append", properties={"app_id": "stream"}))


def test_a_transaction_is_committed_once(tmp_path: Path) -> None:
    with opened(Lake.at(tmp_path)).transaction("append") as tx:
        tx.commit(Change("append"))
        with pytest.raises(InputError, match="committed already"):
            tx.commit(Change("append"))


def test_wap_stages_where_the_table_allows_it(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    with pytest.raises(InputError, match=r"write\.wap\.enabled"):
        append(opened(lake), [1], properties={"wap.id": "w"})
    with lake.table().transaction() as tx:
        tx.set_properties({"write.wap.enabled": "true"})
    append(opened(lake), [1], properties={"wap.id": "w"})
    assert lake.ids() == []
    assert lake.table().metadata.snapshots[0].summary["wap.id"] == "w"


def test_a_branch_is_read_and_changed_alone(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    first = lake.append([1])
    with lake.table().manage_snapshots() as refs:
        refs.create_branch(first.snapshot_id, "audit")
    table = opened(lake, branch="audit")
    append(table, [2])
    assert (table.snapshot().rows, opened(lake).snapshot().rows) == (2, 1)
    assert (lake.ids(), lake.ids("audit")) == ([1], [1, 2])
    assert opened(lake).with_choice(branch="audit").snapshot().rows == 2
    with pytest.raises(InputError, match="no branch 'x'"):
        opened(lake, branch="x")


def test_modes_come_from_the_argument_then_the_properties(tmp_path: Path) -> None:
    lake = Lake.at(
        tmp_path, properties={"write.delete.mode": "merge-on-read", "write.merge.mode": "Merge-On-Read"}
    )
    merge_on_read = opened(lake).snapshot().format.merge_on_read
    assert merge_on_read == {
        "delete": True,
        "update": False,
        "merge": True,
        "deduplicate": True,
        "overwrite": True,
    }
    assert not any(opened(lake, mode="copy-on-write").snapshot().format.merge_on_read.values())
    assert all(opened(lake).with_choice(mode="merge-on-read").snapshot().format.merge_on_read.values())
    with pytest.raises(InputError, match="mode= must be"):
        opened(lake, mode="merge")


def test_version_1_has_copies_only(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path, 1, properties={"write.delete.mode": "merge-on-read"})
    table = opened(lake)
    assert not any(table.snapshot().format.merge_on_read.values())
    with pytest.raises(NotSupported, match="format version 1"):
        opened(lake, mode="merge-on-read")
    append(table, [1, 2])
    before = lake.on_disk()
    with pytest.raises(NotSupported, match="no delete files"):
        delete(table, 0)
    assert lake.on_disk() == before


def test_new_files_go_where_the_table_says(tmp_path: Path) -> None:
    other = f"file://{tmp_path}/elsewhere"
    lake = Lake.at(tmp_path, properties={"write.data.path": other, "write.object-storage.enabled": "true"})
    append(opened(lake), [1])
    (entry,) = lake.entries()
    assert entry.file.file_path.startswith(other)
    assert lake.ids() == [1]


def test_files_of_other_formats_are_refused_only_when_they_are_read(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lake.commit(FileChange(added_data=[replace(lake.data_file([1]), file_format="ORC")]))
    table = opened(lake)
    append(table, [2])
    snapshot = table.snapshot()
    assert snapshot.rows == 2
    with pytest.raises(NotSupported, match="format ORC"):
        snapshot.with_footers(snapshot.files)


def test_a_data_file_that_is_gone_is_named(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    table = opened(lake)
    append(table, [1])
    (file,) = table.snapshot().files
    os.remove(file.location)
    with pytest.raises(DamagedTable, match="not there"):
        table.snapshot().with_footers([file])


def rewritten_metadata(lake: Lake, change: Any) -> None:
    path = Path(lake.table().metadata_location.removeprefix("file://"))
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


def test_a_newer_format_version_is_refused(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    rewritten_metadata(lake, lambda said: said.update({"format-version": 4}))
    with pytest.raises(NotSupported, match="not understood"):
        opened(lake)


def test_an_encrypted_table_is_refused(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path, properties={"encryption.key-id": "k1"})
    with pytest.raises(NotSupported, match="encrypt"):
        opened(lake)


def test_an_unknown_transform_is_refused_by_its_name(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)

    def unknown(said: dict[str, Any]) -> None:
        said["partition-specs"][0]["fields"][0]["transform"] = "zorder[3]"

    rewritten_metadata(lake, unknown)
    with pytest.raises(NotSupported, match="zorder"):
        opened(lake).snapshot()


def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path, properties={"write.format.default": "orc"})
    table = opened(lake)
    assert table.snapshot().rows == 0
    with pytest.raises(NotSupported, match=r"write\.format\.default"), table.transaction("append"):
        pytest.fail("begun")


def test_tables_that_are_not_there_are_named(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    with pytest.raises(InputError, match=r"no table db\.x"):
        IcebergTable.of("db.x", lake.catalog)
    with pytest.raises(InputError, match="without a catalog"):
        IcebergTable.of("db.t")
    with pytest.raises(InputError, match="no usable catalog 'nowhere'"):
        IcebergTable.of("db.t", "nowhere")
    with pytest.raises(InputError, match="not int"):
        IcebergTable.of(3)
    static = StaticTable.from_metadata(lake.table().metadata_location)
    with pytest.raises(NotSupported, match="StaticTable"):
        IcebergTable.of(static)


def test_the_embedded_catalog_has_the_form_that_java_shares(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    assert IcebergTable.of("db.t", tmp_path).snapshot().rows == 0
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as connection:
        columns = [row[1] for row in connection.execute("pragma table_info(iceberg_tables)")]
        kinds = connection.execute("select catalog_name, iceberg_type from iceberg_tables").fetchall()
    assert "iceberg_type" in columns
    assert kinds == [("local", "TABLE")]
    assert lake.catalog.name == "local"


def test_files_that_are_no_files_of_the_table_are_refused(tmp_path: Path) -> None:
    table = opened(Lake.at(tmp_path))
    with pytest.raises(InputError, match="not a file of an"), table.transaction("delete") as tx:
        tx.commit(Change("delete", removed=(DataFile("a", "a", 1, 1),)))


@pytest.mark.parametrize("name", ["operation", "self"])
def test_a_property_that_a_summary_cannot_have_is_refused(tmp_path: Path, name: str) -> None:
    """PyIceberg cannot load a table again whose summaries have a property ``self``."""
    lake = Lake.at(tmp_path)
    lake.append([1])
    before = lake.on_disk()
    target = it.iceberg("db.t", catalog=lake.catalog)
    with pytest.raises(InputError, match=name):
        it.write(pa.table({"id": [2], "region": ["eu"]}), target, mode="append", properties={name: "x"})
    assert lake.on_disk() == before
    assert lake.ids() == [1]


def test_a_catalog_that_was_opened_here_gives_back_its_connections(tmp_path: Path) -> None:
    catalog: Any = open_catalog(tmp_path)
    catalog.list_namespaces()
    pool = catalog.engine.pool
    assert pool.checkedin() == 1
    del catalog
    gc.collect()
    assert pool.checkedin() == 0
