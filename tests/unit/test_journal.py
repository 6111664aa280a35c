"""The journal: what it leaves at each end, what it repairs, what it refuses to touch."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from intarsia.core.change import Change, Committed, Replacement, StagedFile
from intarsia.errors import (
    CommitConflict,
    CommitUnknown,
    DamagedTable,
    InputError,
    NotSupported,
    StorageError,
)
from intarsia.storage import PosixStorage
from intarsia.storage import posix as posix_module
from intarsia.tables.parquet import ParquetTable, ParquetTransaction
from intarsia.tables.parquet import control as control_module
from intarsia.tables.parquet.journal import Journal
from intarsia.tables.parquet.record import FileAdd, FileRemove, Record

pytestmark = pytest.mark.on_disk  # inodes are used again there, and times are those of a disk

Rows = Callable[..., list[dict[str, Any]]]
Leftovers = Callable[[Path], list[str]]


class Crash(BaseException):
    """Stands for the process going away: nothing on the way up may take it for an error."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two files of two rows."""
    root = tmp_path / "data"
    root.mkdir()
    for number, keys in enumerate(([1, 2], [3, 4])):
        pq.write_table(pa.table({"k": keys, "v": [0, 0]}), root / f"f{number}.parquet")
    return root


def control(root: Path) -> Path:
    return root.parent / f".{root.name}.intarsia"


def stage(tx: ParquetTransaction, label: str, keys: list[int], path: str, *, value: int = 1) -> StagedFile:
    location = tx.staging.make_location(label)
    pq.write_table(pa.table({"k": keys, "v": [value] * len(keys)}), location)
    return StagedFile(location, path, len(keys), os.path.getsize(location))


def upsert(root: Path, properties: dict[str, str] | None = None, **options: Any) -> Committed:
    """Replace the first file, add a third, remove the second."""
    with ParquetTable(root, **options).transaction("upsert") as tx:
        first, second = tx.snapshot.files
        change = Change(
            "upsert",
            replaced=(Replacement(first, stage(tx, "r", [1, 2], first.path)),),
            added=(stage(tx, "a", [3, 5], tx.new_file_path({}, "part", 0)),),
            removed=(second,),
            planned=tx.snapshot.files,
            properties=properties or {},
        )
        return tx.commit(change)


def append(root: Path, key: int, properties: dict[str, str] | None = None, **options: Any) -> Committed:
    with ParquetTable(root, **options).transaction("append") as tx:
        added = (stage(tx, "a", [key], tx.new_file_path({}, "part", 0)),)
        return tx.commit(Change("append", added=added, exclusive=False, properties=properties or {}))


OLD = [{"k": k, "v": 0} for k in (1, 2, 3, 4)]
NEW = [{"k": k, "v": 1} for k in (1, 2, 3, 5)]


@contextlib.contextmanager
def crashing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: int = 0) -> Iterator[None]:
    """Crash at a call, after so many that went through."""
    honest, left = getattr(owner, name), after

    def crash(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash
        return honest(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, crash)
        with pytest.raises(Crash):
            yield


def failing(
    monkeypatch: pytest.MonkeyPatch, name: str, when: Callable[[str], bool], number: int
) -> list[str]:
    """Make a call of the operating system fail for some paths; returns the paths it failed for."""
    honest, hits = getattr(os, name), []

    def fail(path: Any, *rest: Any) -> Any:
        shown = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
        if when(shown):
            hits.append(shown)
            raise OSError(number, os.strerror(number), shown)
        return honest(path, *rest)

    monkeypatch.setattr(posix_module.os, name, fail)
    return hits


def test_a_commit_leaves_small_records_only(root: Path, rows: Rows, leftovers: Leftovers) -> None:
    committed = upsert(root)
    assert committed.version == 1
    assert rows(root) == NEW
    assert leftovers(root) == []
    assert sorted(os.listdir(control(root) / "log")) == ["000000000001.done"]
    assert os.listdir(control(root) / "tx") == []


def test_what_is_staged_is_no_parquet_file_by_name_and_outside_of_the_dataset(root: Path) -> None:
    with ParquetTable(root).transaction("x") as tx:
        location = tx.staging.make_location("label")
        assert location.endswith(".part")
        assert f".staging_{tx.txid}" in location
        assert not location.startswith(f"{root}/")


def test_a_transaction_without_a_commit_leaves_nothing(root: Path, unchanged: Any) -> None:
    with unchanged(root), ParquetTable(root).transaction("x") as tx:
        stage(tx, "a", [1], "a.parquet")
    assert not control(root).exists()


def test_an_error_in_the_block_leaves_nothing(root: Path, unchanged: Any) -> None:
    with unchanged(root), pytest.raises(ZeroDivisionError), ParquetTable(root).transaction("x") as tx:
        stage(tx, "a", [1], "a.parquet")
        raise ZeroDivisionError
    assert not control(root).exists()


@pytest.fixture
def write_on() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Begins a process that makes files in a directory, one after the other, for as long as it is there."""
    with contextlib.ExitStack() as stack:

        def begin(directory: str) -> subprocess.Popen[bytes]:
            command = ["sh", "-c", 'n=0; while : > "$0/late-$n.part"; do n=$((n+1)); done', directory]
            process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            stack.callback(process.kill)
            return process

        yield begin


def test_a_task_that_goes_on_writing_leaves_nothing_behind(
    root: Path, unchanged: Any, write_on: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    """As tasks of Spark do for a moment after their job was cancelled."""
    for _ in range(3):
        with unchanged(root), pytest.raises(ZeroDivisionError), ParquetTable(root).transaction("test") as tx:
            task = write_on(tx.staging.directory)
            while len(os.listdir(tx.staging.directory)) < 1_000:
                time.sleep(0.01)
            raise ZeroDivisionError
        assert task.wait(10) != 0
        assert not control(root).exists()
        assert ParquetTable(root).recover() == ()


def test_a_failed_creation_leaves_no_directory_that_was_not_there(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), ParquetTable(tmp_path / "a" / "b" / "data").transaction("x") as tx:
        assert not tx.snapshot.exists
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_an_empty_change_writes_nothing(root: Path, unchanged: Any) -> None:
    with unchanged(root), ParquetTable(root).transaction("x") as tx:
        assert tx.commit(Change("x", planned=tx.snapshot.files)).version == 0
    assert not control(root).exists()


def test_after_a_first_commit_the_control_directory_stays_through_failures(root: Path) -> None:
    upsert(root)
    with pytest.raises(ZeroDivisionError), ParquetTable(root).transaction("x"):
        raise ZeroDivisionError
    assert append(root, 9).version == 2


@pytest.mark.parametrize("published", [0, 1])
def test_a_crash_after_the_commit_point_is_seen_as_committed_and_finished_by_recovery(
    root: Path, rows: Rows, leftovers: Leftovers, monkeypatch: pytest.MonkeyPatch, published: int
) -> None:
    with crashing(monkeypatch, PosixStorage, "publish", after=published):
        upsert(root)
    snapshot = ParquetTable(root).snapshot()
    seen = pa.concat_tables(pq.read_table(file.location) for file in snapshot.files)
    assert rows(seen) == NEW
    assert snapshot.version == 1
    sentences = ParquetTable(root).recover()
    assert len(sentences) == 1
    assert "Finished the upsert" in sentences[0]
    assert rows(root) == NEW
    assert leftovers(root) == []
    assert ParquetTable(root).recover() == ()


def test_the_next_writer_finishes_what_a_crash_left(
    root: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    with crashing(monkeypatch, PosixStorage, "publish"):
        upsert(root)
    assert append(root, 9).version == 2
    assert rows(root) == [*NEW, {"k": 9, "v": 1}]


@pytest.mark.parametrize("verb", ["claim", "make_hard_link"])
def test_a_crash_before_the_commit_point_is_swept(
    root: Path, unchanged: Any, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    with unchanged(root):
        with monkeypatch.context() as patched, crashing(monkeypatch, PosixStorage, verb):
            patched.setattr(Journal, "discard", lambda *_: False)  # the dead clean up nothing
            upsert(root)
        assert os.listdir(control(root) / "tx") != []
        (sentence,) = ParquetTable(root).recover()
        assert "never committed" in sentence
    assert not control(root).exists()


def test_a_crash_between_the_acknowledgement_and_the_clean_up_is_cleaned_up(
    root: Path, rows: Rows, leftovers: Leftovers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with crashing(monkeypatch, Journal, "clean"):
        upsert(root)
    (sentence,) = ParquetTable(root).recover()
    assert "left behind" in sentence
    assert rows(root) == NEW
    assert leftovers(root) == []


def test_a_record_of_the_end_that_a_crash_tore_counts_as_not_written(
    root: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    with crashing(monkeypatch, Journal, "clean"):
        upsert(root)
    done = control(root) / "log" / "000000000001.done"
    done.write_bytes(done.read_bytes()[:10])
    (sentence,) = ParquetTable(root).recover()
    assert "Finished" in sentence
    assert rows(root) == NEW
    assert json.loads(done.read_bytes())["seq"] == 1


_VERBS = [
    "claim",
    "make_directories",
    "move",
    "names",
    "publish",
    "remove",
    "remove_directory",
    "stat",
    "sync",
    "make_hard_link",
    "write",
]


def test_an_interrupt_at_any_step_leaves_the_old_or_the_new_state(
    root: Path, tmp_path: Path, rows: Rows, leftovers: Leftovers, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, committed = 0, 0
    while True:
        copy = tmp_path / "copies" / str(step)
        shutil.copytree(root, copy)
        left = step

        def counted(honest: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                nonlocal left
                left -= 1
                if left == -1:
                    raise KeyboardInterrupt
                return honest(*args)

            return call

        with monkeypatch.context() as patched:
            for verb in _VERBS:
                patched.setattr(PosixStorage, verb, counted(getattr(PosixStorage, verb)))
            try:
                upsert(copy)
            except KeyboardInterrupt as interrupt:
                told = bool(getattr(interrupt, "__notes__", ()))
            else:
                break
        assert rows(copy) in (OLD, NEW), step  # nothing was recovered: Ctrl-C leaves nothing to do
        assert leftovers(copy) == [], step
        assert not told or rows(copy) == NEW, step
        assert ParquetTable(copy, lock_timeout=0.1).recover() == (), step
        committed += rows(copy) == NEW
        step += 1
    assert step > 60
    assert 10 < committed < step


def test_recovering_a_dataset_that_has_no_journal_writes_nothing(root: Path, unchanged: Any) -> None:
    with unchanged(root):
        assert ParquetTable(root).recover() == ()
    assert not control(root).exists()


def test_an_error_after_the_commit_point_says_that_it_is_committed(
    root: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        failing(patched, "replace", lambda path: "/pub/" in path, errno.ENOSPC)
        with pytest.raises(CommitUnknown, match="is committed") as caught:
            upsert(root)
    assert caught.value.changed is True
    assert caught.value.txid
    assert "do not repeat" in str(caught.value)
    assert ParquetTable(root).recover() != ()
    assert rows(root) == NEW


def test_an_fsync_that_fails_calls_the_commit_off_and_is_not_tried_again(
    root: Path, unchanged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unchanged(root), monkeypatch.context() as patched:
        hits = failing(patched, "fsync", lambda path: path.endswith("/new/r.part"), errno.EIO)
        with pytest.raises(StorageError) as caught:
            upsert(root)
    assert caught.value.errno == errno.EIO
    assert caught.value.changed is False
    assert len(hits) == 1
    assert not control(root).exists()


def test_a_full_disk_before_the_commit_point_changes_nothing(
    root: Path, unchanged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unchanged(root), monkeypatch.context() as patched:
        failing(patched, "write", lambda path: path.endswith("intent.json"), errno.ENOSPC)
        with pytest.raises(StorageError) as caught:
            upsert(root)
    assert caught.value.errno == errno.ENOSPC


def test_a_full_disk_at_the_acknowledgement_is_finished_later(
    root: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        failing(patched, "write", lambda path: path.endswith(".done"), errno.ENOSPC)
        with pytest.raises(CommitUnknown):
            upsert(root)
    ParquetTable(root).recover()
    assert rows(root) == NEW


def test_a_clean_up_that_fails_is_logged_and_the_commit_stands(
    root: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched, caplog.at_level("WARNING", logger="intarsia"):
        hits = failing(patched, "unlink", lambda path: "/old/" in path, errno.EACCES)
        assert upsert(root).version == 1
    assert len(hits) == 2
    assert len([r for r in caplog.records if "could not remove staged data" in r.message]) >= 2
    assert rows(root) == NEW
    ParquetTable(root).recover()
    assert os.listdir(control(root) / "tx") == []


def test_a_failing_clean_up_does_not_hide_the_first_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "unlink", lambda path: "/new/" in path, errno.EACCES)
    with pytest.raises(ZeroDivisionError), ParquetTable(root).transaction("x") as tx:
        stage(tx, "a", [1], "a.parquet")
        raise ZeroDivisionError


def test_a_slot_that_another_writer_took_is_a_conflict(
    root: Path, unchanged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PosixStorage, "claim", lambda *_: False)
    with unchanged(root), pytest.raises(CommitConflict, match="taken by another writer") as caught:
        upsert(root)
    assert caught.value.changed is False


def test_a_file_that_another_writer_changed_after_the_commit_is_kept(
    root: Path, rows: Rows, leftovers: Leftovers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with crashing(monkeypatch, PosixStorage, "publish"):
        upsert(root)
    pq.write_table(pa.table({"k": [7], "v": [7]}), root / "f0.parquet")
    pq.write_table(pa.table({"k": [8], "v": [8]}), root / "f1.parquet")
    assert {file.path: file.rows for file in ParquetTable(root).snapshot().files if file.path[0] == "f"} == {
        "f0.parquet": 1,
        "f1.parquet": 1,
    }
    sentences = ParquetTable(root).recover()
    assert sum("another writer" in sentence for sentence in sentences) == 2
    assert rows(root) == [{"k": 3, "v": 1}, {"k": 5, "v": 1}, {"k": 7, "v": 7}, {"k": 8, "v": 8}]
    assert leftovers(root) == []


def test_a_replaced_file_that_somebody_removed_after_the_commit_comes_back_new(
    root: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    with crashing(monkeypatch, PosixStorage, "publish"):
        upsert(root)
    (root / "f0.parquet").unlink()
    ParquetTable(root).recover()
    assert rows(root) == NEW


def test_a_copy_of_a_dataset_and_its_journal_recovers_in_its_new_place(
    root: Path, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy has other inodes and times; the bytes tell that the files are the planned ones."""
    with crashing(monkeypatch, PosixStorage, "publish"):
        upsert(root)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(root, elsewhere / "data", copy_function=shutil.copyfile)
    shutil.copytree(control(root), control(elsewhere / "data"), copy_function=shutil.copyfile)
    copy = elsewhere / "data"
    seen = pa.concat_tables(pq.read_table(file.location) for file in ParquetTable(copy).snapshot().files)
    assert rows(seen) == NEW
    ParquetTable(copy).recover()
    assert rows(copy) == NEW
    assert rows(root) == OLD


def test_a_partition_that_loses_its_files_loses_its_directory_and_no_other(tmp_path: Path) -> None:
    root = tmp_path / "data"
    for path in ("p=1/q=1/a.parquet", "p=1/q=2/b.parquet", "p=2/q=1/c.parquet"):
        (root / path).parent.mkdir(parents=True)
        pq.write_table(pa.table({"k": [1]}), root / path)
    (root / "p=1" / "q=2" / "README").write_text("stays")
    (root / "_SUCCESS").touch()
    with ParquetTable(root).transaction("delete") as tx:
        tx.commit(Change("delete", removed=tx.snapshot.files, planned=tx.snapshot.files))
    left = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    assert left == ["_SUCCESS", "p=1", "p=1/q=2", "p=1/q=2/README"]
    assert ParquetTable(root).snapshot().exists


def test_the_log_stays_short_and_remembers_every_application(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "_FOLD_ABOVE", 4)
    monkeypatch.setattr(control_module, "_FOLD_KEEPS", 2)
    for batch in (1, 2):
        append(root, batch, {"app_id": "early", "batch_id": str(batch)})
    for number in range(10):
        assert append(root, number, {"app_id": "late", "batch_id": str(number)}).version == number + 3
    table = ParquetTable(root)
    assert sum(not name.startswith("history") for name in os.listdir(control(root) / "log")) <= 5
    assert table.last_batch("early") == 2
    assert table.last_batch("late") == 9
    assert table.last_batch("nobody") is None
    assert table.snapshot().version == 12


def test_a_batch_that_is_committed_and_not_published_counts(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with crashing(monkeypatch, PosixStorage, "publish"):
        append(root, 9, {"app_id": "stream", "batch_id": "7"})
    assert ParquetTable(root).last_batch("stream") == 7


def test_the_last_batch_is_found_while_its_record_is_cleaned_up(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with crashing(monkeypatch, PosixStorage, "publish"):
        append(root, 9, {"app_id": "stream", "batch_id": "7"})
    table, honest, listed = ParquetTable(root), PosixStorage.names, []

    def names(self: PosixStorage, directory: str) -> list[str]:
        found = honest(self, directory)
        if directory == table.control.log and not listed:
            listed.append(found)
            ParquetTable(root).recover()
        return found

    monkeypatch.setattr(PosixStorage, "names", names)
    assert table.last_batch("stream") == 7
    assert listed == [["000000000001.json"]]


@pytest.mark.parametrize(
    "properties",
    [{"app_id": "a"}, {"batch_id": "1"}, {"app_id": "a", "batch_id": "x"}, {"app_id": "a", "batch_id": "-1"}],
)
def test_a_batch_that_cannot_be_told_is_refused(
    root: Path, unchanged: Any, properties: dict[str, str]
) -> None:
    with unchanged(root), pytest.raises(InputError, match="batch_id"):
        append(root, 9, properties)


def test_a_damaged_summary_is_not_taken_for_an_empty_one(root: Path) -> None:
    append(root, 9)
    (control(root) / "log" / "summary.json").write_text("{")
    with pytest.raises(DamagedTable, match="summary"):
        ParquetTable(root).last_batch("app")


def test_replaced_files_are_kept_on_request(root: Path, rows: Rows) -> None:
    upsert(root, retain=2)
    kept = control(root) / "retained"
    (directory,) = os.listdir(kept)
    held = [rows(pq.read_table(kept / directory / name)) for name in sorted(os.listdir(kept / directory))[:2]]
    assert held == [OLD[:2], OLD[2:]]
    assert json.loads((kept / directory / "intent.json").read_bytes())["operation"] == "upsert"
    for key in (11, 12, 13):
        append(root, key, retain=2)
    assert len(os.listdir(kept)) == 2
    assert not any(name.startswith("000000000001") for name in os.listdir(kept))


def test_a_negative_retention_is_refused(root: Path) -> None:
    with pytest.raises(InputError, match="retain"):
        ParquetTable(root, retain=-1)


def test_recovery_removes_nothing_that_is_not_its_own(root: Path) -> None:
    upsert(root)
    for path in ("tx/precious.txt", "snap/precious.txt", "log/precious.txt", "precious.txt"):
        (control(root) / path).parent.mkdir(exist_ok=True)
        (control(root) / path).write_text("mine")
    assert ParquetTable(root).recover() == ()
    append(root, 9)
    for path in ("tx/precious.txt", "snap/precious.txt", "log/precious.txt", "precious.txt"):
        assert (control(root) / path).read_text() == "mine"


@pytest.fixture
def undone(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset with a committed transaction that is not published; returns its log record."""
    with crashing(monkeypatch, PosixStorage, "publish"):
        upsert(root)
    return control(root) / "log" / "000000000001.json"


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record.update(version=2),
        lambda record: record.update(txid="../../../../etc"),
        lambda record: record["adds"][0].update(path="../evil.parquet"),
        lambda record: record["adds"][0].update(path="/etc/evil.parquet"),
        lambda record: record["adds"][0].update(path="a/../../evil.parquet"),
        lambda record: record["adds"][0].update(path="a//evil.parquet"),
        lambda record: record["adds"][0].update(path=".hidden/evil.parquet"),
        lambda record: record["adds"][0].update(path="evil.sh"),
        lambda record: record["adds"][0].update(path="a\0.parquet"),
        lambda record: record["adds"][0].update(staged="../../../../f1.parquet"),
        lambda record: record["adds"][0].update(staged="..part/x"),
        lambda record: record["removes"][0].update(path="../precious.parquet"),
        lambda record: record["removes"][0].update(kept="../../x.part"),
        lambda record: record["removes"][0].pop("was"),
        lambda record: record.update(adds="everything"),
        lambda record: record.update(extra=1),
        lambda record: record.update(operation=7),
        lambda record: record.pop("root"),
        lambda record: record.update(seq=2),
        lambda record: record.update(seq=0),
    ],
)
def test_a_record_that_was_tampered_with_is_refused_and_nothing_is_done(
    root: Path, undone: Path, damage: Callable[[dict[str, Any]], None], tree_digest: Any
) -> None:
    record = json.loads(undone.read_bytes())
    damage(record)
    undone.write_text(json.dumps(record))
    (root.parent / "precious.parquet").write_bytes(b"mine")
    before = tree_digest(root, control=False)
    for action in (ParquetTable(root).recover, ParquetTable(root).snapshot, lambda: append(root, 9)):
        with pytest.raises(DamagedTable, match="record"):
            action()
    assert tree_digest(root, control=False) == before
    assert (root.parent / "precious.parquet").read_bytes() == b"mine"


def test_a_record_that_was_cut_off_is_refused(root: Path, undone: Path) -> None:
    undone.write_bytes(undone.read_bytes()[:-20])
    with pytest.raises(DamagedTable, match=str(undone)):
        ParquetTable(root).recover()


def test_a_link_put_in_the_way_does_not_lead_recovery_out_of_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (tmp_path / "elsewhere").mkdir()
    with crashing(monkeypatch, PosixStorage, "publish"), ParquetTable(root).transaction("append") as tx:
        tx.commit(Change("append", added=(stage(tx, "a", [1], tx.new_file_path({"p": 1}, "part", 0)),)))
    shutil.rmtree(root / "p=1", ignore_errors=True)
    (root / "p=1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="symlink"):
        ParquetTable(root).recover()
    assert os.listdir(tmp_path / "elsewhere") == []


def test_staged_files_that_are_gone_are_damage_and_not_a_busy_writer(root: Path, undone: Path) -> None:
    shutil.rmtree(control(root) / "tx")
    with pytest.raises(DamagedTable, match="is not there"):
        ParquetTable(root).snapshot()
    with pytest.raises(StorageError):
        ParquetTable(root).recover()


def test_a_record_reads_back_as_it_was_written() -> None:
    record = Record(
        seq=3,
        txid="0" * 32,
        operation="upsert",
        root="/data/ä",
        adds=(FileAdd("p=1/a.parquet", "x.part", (1, 2, 3), "00000.part"), FileAdd("b.parquet", "y.part")),
        removes=(FileRemove("c.parquet", (4, 5, "etag"), "00001.part"),),
        properties={"app_id": "s", "batch_id": "1"},
        retain=2,
        fresh=True,
    )
    assert Record.from_json(record.to_json(), "here") == record
    assert record.directories == ("", "p=1")


def test_two_writers_take_turns(root: Path) -> None:
    with ParquetTable(root).transaction("first"):
        with pytest.raises(CommitConflict, match="lock") as caught:
            append(root, 9, lock_timeout=0.05)
        assert "lock_timeout=" in str(caught.value)
        assert caught.value.changed is False
    assert append(root, 9, lock_timeout=0.05).version == 1


def test_a_lock_of_the_callers_own_is_used_instead(root: Path) -> None:
    held: list[str] = []

    @contextlib.contextmanager
    def lock() -> Iterator[None]:
        held.append("taken")
        yield
        held.append("released")

    append(root, 9, lock=lock)
    assert held == ["taken", "released"]
    assert not (control(root) / "lock").exists()


def test_a_network_file_system_is_refused_unless_a_lock_is_given(
    root: Path, unchanged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posix_module, "find_filesystem_type", lambda path: "nfs4")
    with unchanged(root), pytest.raises(NotSupported, match="nfs4"):
        append(root, 9)
    assert append(root, 9, lock=contextlib.nullcontext).version == 1


def test_the_control_directory_can_be_elsewhere(root: Path, tmp_path: Path, rows: Rows) -> None:
    upsert(root, control_path=tmp_path / "journals" / "data")
    assert not control(root).exists()
    assert rows(root) == NEW
    assert ParquetTable(root, control_path=tmp_path / "journals" / "data").snapshot().version == 1


def test_a_control_directory_that_the_caller_made_is_not_removed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with ParquetTable(root, control_path=tmp_path / "journal").transaction("x"):
        pass
    assert os.listdir(tmp_path / "journal") == []


@pytest.mark.parametrize("where", ["data/inside", "data", "."])
def test_a_control_directory_in_the_dataset_or_around_it_is_refused(
    root: Path, tmp_path: Path, where: str
) -> None:
    with pytest.raises(InputError, match="inside one another"):
        ParquetTable(root, control_path=tmp_path / where)


def test_a_control_directory_of_another_dataset_is_not_used(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchanged: Any
) -> None:
    other = tmp_path / "other"
    shutil.copytree(root, other)
    with crashing(monkeypatch, PosixStorage, "publish"):
        upsert(root, control_path=tmp_path / "journal")
    with unchanged(other), pytest.raises(InputError, match="serves another dataset"):
        append(other, 9, control_path=tmp_path / "journal")


def test_a_root_without_a_parent_asks_for_a_control_directory() -> None:
    with pytest.raises(InputError, match="control_path="):
        ParquetTable("/")
    with pytest.raises(InputError, match="control_path="):
        ParquetTable("memory://")


def test_a_parent_that_cannot_be_written_asks_for_a_control_directory(
    root: Path, unchanged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "mkdir", lambda path: path.endswith(".intarsia"), errno.EACCES)
    with unchanged(root), pytest.raises(StorageError, match="control_path=") as caught:
        append(root, 9)
    assert caught.value.errno == errno.EACCES


def test_another_device_asks_for_a_control_directory(
    root: Path, unchanged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PosixStorage, "can_move", lambda *_: False)
    with unchanged(root), pytest.raises(NotSupported, match="control_path="):
        append(root, 9)
    assert not control(root).exists()


def test_a_directory_that_cannot_be_written_is_refused_before_the_commit_point(
    root: Path, unchanged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = os.access
    monkeypatch.setattr(
        posix_module.os, "access", lambda path, mode: path != str(root) and access(path, mode)
    )
    with unchanged(root), pytest.raises(StorageError) as caught:
        upsert(root)
    assert caught.value.errno == errno.EACCES
    assert caught.value.changed is False
