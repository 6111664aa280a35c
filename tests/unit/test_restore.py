"""Bringing back the state after a version of a Parquet dataset, from what ``retain=`` keeps."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.errors import CommitConflict, InputError, RestoreError
from intarsia.tables.parquet import ParquetTable

HOW: dict[str, Any] = {"retain": 20}


def orders(*ids: int, v: str = "a") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids)), "day": ["x"] * len(ids)})


def state(path: Path) -> tuple[Any, ...]:
    """What a reader finds: columns with types, partition columns, rows."""
    found = it.snapshot(path)
    rows = it.read(path).read_all().to_pylist()
    return found.schema, found.partition_columns, sorted(map(str, rows))


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*.parquet")}


def make_history(path: Path) -> dict[int, tuple[Any, ...]]:
    """Commits of every kind; the state after each version."""
    steps = [
        lambda: it.write(orders(1, 2, 3), path, partition_by="day", **HOW),
        lambda: it.merge(orders(3, 4, v="b"), path, on="id", **HOW),
        lambda: it.delete(path, "id = 1", **HOW),
        lambda: it.compact(path, **HOW),
        lambda: it.merge(
            orders(5).append_column("more", pa.array([1.5])), path, on="id", schema_evolution="add",
            missing="null", **HOW,
        ),
        lambda: it.write(orders(9).drop_columns(["day"]), path, mode="overwrite", partition_by=[], **HOW),
        lambda: it.delete(path, "true", **HOW),
        lambda: it.write(orders(7).drop_columns(["day"]), path, **HOW),
    ]  # fmt: skip
    found = {}
    for step in steps:
        result = step()
        found[result.version] = (state(path), files(path))
    return found


def test_every_version_comes_back_byte_for_byte_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    known = make_history(path)
    for version in (1, 7, 3, 5, 2, 8, 4, 6, 1):
        before = it.snapshot(path).version
        result = it.restore(path, version, retain=50)
        assert (state(path), files(path)) == known[version], version
        assert result.version == before + 1
        assert (
            result.total
            == it.snapshot(path).rows
            == result.target_count_before + result["inserted"] - (result["deleted"])
        )
    assert it.history(path)[0].properties == {"restored_version": "1"}


def test_a_restore_is_done_once_and_can_be_undone(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    it.write(orders(1, 2), path, retain=2)
    it.delete(path, "id = 1", retain=2)
    wrong = state(path)
    assert it.restore(path, 1).version == 3
    right = state(path)
    again = it.restore(path, 1)
    assert (again.version, again.changed, again.txid) == (3, False, None)
    assert "nothing to do" in again.notes[0]
    assert it.restore(path, 3).changed is False
    it.restore(path, 2)
    assert state(path) == wrong
    it.restore(path, 3)
    assert state(path) == right


def test_a_plan_and_a_dry_run_tell_what_the_restore_does_and_write_nothing(
    tmp_path: Path, tree_digest: Any
) -> None:
    path = tmp_path / "orders"
    it.write(orders(1, 2), path, **HOW)
    it.merge(orders(2, 3, v="b"), path, on="id", **HOW)
    before = tree_digest(path)
    plan = it.plan(it.restore, path, 1)
    told = it.restore(path, 1, dry_run=True)
    assert it.plan("restore", path, 1) == plan
    assert tree_digest(path) == before
    assert (plan.count("rewrite"), plan.count("remove"), plan.deleted) == (1, 1, 1)
    assert (told.dry_run, told.version, told.target_count_after) == (True, None, 2)
    done = it.restore(path, 1)
    assert (done.rewritten_files, done.removed_files) == (told.rewritten_files, told.removed_files)
    assert done["deleted"] == told["deleted"] == 1


@pytest.mark.parametrize("version", [True, False, "1", 1.0, None, -1])
def test_what_is_no_version_is_refused(version: Any, tmp_path: Path, unchanged: Any) -> None:
    it.write(orders(1), tmp_path / "orders")
    with pytest.raises(InputError, match="version must"), unchanged(tmp_path / "orders"):
        it.restore(tmp_path / "orders", version)


def test_a_version_that_is_not_retained_is_refused_with_those_that_are(
    tmp_path: Path, unchanged: Any
) -> None:
    path = tmp_path / "orders"
    it.write(orders(1), path, retain=9)
    it.write(orders(2), path)  # without retain=
    it.write(orders(3), path, retain=9)
    it.write(orders(4), path, retain=9)
    with pytest.raises(
        RestoreError, match=r"what version 2 \(operation append by .*\) has replaced"
    ) as refused:
        it.restore(path, 1)
    assert refused.value.versions == (4, 3, 2)
    assert refused.value.changed is False
    assert [one.restorable for one in it.history(path)] == [True, True, True, False]
    with pytest.raises(RestoreError, match="the last commit is version 4"):
        it.restore(path, 5)
    it.restore(path, 2)
    it.write(orders(5), path, retain=1)
    with pytest.raises(RestoreError, match="versions 5 to 6 can be restored"):
        it.restore(path, 4)
    with pytest.raises(RestoreError):
        it.restore(tmp_path / "nothing", 1)


def test_the_state_before_the_first_commit_comes_back_where_there_was_one(
    tmp_path: Path, make_dataset: Any
) -> None:
    path = make_dataset(tmp_path / "theirs", orders(1, 2, 3), files=2)
    before = files(path)
    it.delete(path, "id = 1", retain=1)
    assert it.history(path).restorable == (1, 0)
    it.restore(path, 0)
    assert files(path) == before
    it.write(orders(1), tmp_path / "ours", retain=1)
    assert it.history(tmp_path / "ours").restorable == (1,)
    with pytest.raises(RestoreError, match="there was no dataset before the first commit"):
        it.restore(tmp_path / "ours", 0)


def test_files_that_others_have_added_stay(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    it.write(orders(1, 2), path, **HOW)
    it.delete(path, "id = 1", **HOW)
    pq.write_table(orders(70), path / "theirs.parquet")
    result = it.restore(path, 1)
    assert sorted(it.read(path).read_all()["id"].to_pylist()) == [1, 2, 70]
    assert "There were 2 rows after version 1, and there will be 3" in result.notes[0]
    it.merge(orders(70, v="b"), path, on="id", **HOW)
    it.compact(path, **HOW)
    assert not (path / "theirs.parquet").exists()
    it.restore(path, 1)
    assert (path / "theirs.parquet").exists(), "their file comes back as it was"
    assert sorted(it.read(path).read_all()["id"].to_pylist()) == [1, 2, 70]


def _rewrite(file: Path) -> None:
    pq.write_table(orders(99), file)


def _write_in_place(file: Path) -> None:
    with open(file, "r+b") as opened:
        opened.write(file.read_bytes())
    os.utime(file, ns=(1, 1))


@pytest.mark.parametrize(
    ("change", "told"), [(_rewrite, "changed"), (_write_in_place, "changed"), (os.unlink, "removed")]
)
def test_a_file_that_others_have_changed_since_is_not_overwritten(
    change: Any, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "orders"
    it.write(orders(1, 2), path, **HOW)
    it.update(path, {"v": "'b'"}, "id = 1", **HOW)
    (file,) = path.rglob("*.parquet")
    change(file)
    before = files(path)
    with pytest.raises(RestoreError, match=f"another writer has {told}"):
        it.restore(path, 1)
    assert files(path) == before


def test_a_name_that_others_have_taken_since_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    it.write(orders(1), path, **HOW)
    (file,) = path.rglob("*.parquet")
    it.write(orders(2), path, mode="overwrite", **HOW)
    _rewrite(file)
    with pytest.raises(RestoreError, match="another writer has written again"):
        it.restore(path, 1)
    assert 99 in it.read(path).read_all()["id"].to_pylist()


def test_a_kept_file_that_was_damaged_is_not_put_back(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    it.write(orders(1), path, **HOW)
    it.delete(path, "true", **HOW)
    (kept,) = (tmp_path / ".orders.intarsia" / "retained").rglob("*.part")
    kept.write_bytes(b"x")
    with pytest.raises(RestoreError, match="was written to"):
        it.restore(path, 1)
    kept.unlink()
    with pytest.raises(RestoreError, match="is gone"):
        it.restore(path, 1)


def test_a_copy_of_a_dataset_with_its_control_directory_can_be_restored(tmp_path: Path) -> None:
    it.write(orders(1, 2), tmp_path / "a" / "orders", **HOW)
    it.delete(tmp_path / "a" / "orders", "id = 1", **HOW)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    it.restore(tmp_path / "b" / "orders", 1)
    assert it.snapshot(tmp_path / "b" / "orders").rows == 2
    assert it.snapshot(tmp_path / "a" / "orders").rows == 1


def test_side_files_of_files_that_change_go(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    it.write(orders(1, 2), path, **HOW)
    it.delete(path, "id = 1", **HOW)
    (file,) = path.rglob("*.parquet")
    (file.parent / f".{file.name}.crc").write_bytes(b"crc")
    it.restore(path, 1)
    assert not list(path.rglob("*.crc"))


def test_a_restore_waits_for_a_writer_and_undoes_what_it_finds(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    it.write(orders(1), path, **HOW)
    entered, leave = threading.Event(), threading.Event()

    def write() -> None:
        table = ParquetTable(path, retain=20)
        with table.transaction("append") as transaction:
            entered.set()
            leave.wait(30)
            transaction.close()
        it.write(orders(2), path, **HOW)

    writer = threading.Thread(target=write)
    writer.start()
    assert entered.wait(30)
    with pytest.raises(CommitConflict):
        it.restore(path, 1, lock_timeout=0.01)
    leave.set()
    writer.join()
    it.restore(path, 1)
    assert it.read(path).read_all()["id"].to_pylist() == [1]


def test_a_widened_column_comes_back_narrow(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    narrow = pa.table({"id": pa.array([1, 2], pa.int32()), "n": pa.array([1, 2], pa.int32())})
    it.write(narrow, path, **HOW)
    before = state(path)
    wide = pa.table({"id": pa.array([2], pa.int32()), "n": pa.array([2**40], pa.int64())})
    it.merge(wide, path, on="id", schema_evolution="widen", **HOW)
    assert state(path) != before
    it.restore(path, 1)
    assert state(path) == before


def test_batches_that_were_undone_count_as_committed(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    it.write(orders(1), path, app_id="loader", batch_id=1, **HOW)
    it.write(orders(2), path, app_id="loader", batch_id=2, **HOW)
    it.restore(path, 1)
    assert it.write(orders(2), path, app_id="loader", batch_id=2).changed is False
    assert it.write(orders(3), path, app_id="loader", batch_id=3).changed is True


def test_an_option_that_can_have_no_effect_is_refused(tmp_path: Path) -> None:
    it.write(orders(1), tmp_path / "orders")
    for name in ("compression", "app_id", "threads"):
        with pytest.raises(InputError):
            it.restore(tmp_path / "orders", 1, **{name: "zstd"})  # type: ignore[misc]
