"""Scratch directories: swept once their owner is dead, by whoever comes next, and never while it lives."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

import intarsia as it
from intarsia.common import scratch
from intarsia.common.scratch import make_lease, make_private_base, mark, renew_lease, sweep, sweep_private
from intarsia.core.incremental import IncrementalFileManager
from intarsia.errors import StorageError
from intarsia.tables.parquet import ParquetTable

NAME = "0a" * 16
LOCAL = pafs.LocalFileSystem()
ROWS = pa.table({"id": [1, 2], "v": [1, 2]})


REMOTE = pafs.SubTreeFileSystem("/", LOCAL)
"""For all that can be told, one without locks."""
both_kinds = pytest.mark.parametrize("filesystem", [LOCAL, REMOTE], ids=["lock", "lease"])


def _occupied(place: Path) -> Path:
    directory = place / NAME
    directory.mkdir(parents=True)
    (directory / "rows.parquet").write_bytes(b"rows")
    return directory


@both_kinds
def test_scratch_is_kept_while_its_owner_lives_and_left_to_it_when_released(tmp_path, filesystem):
    directory = _occupied(tmp_path)
    alive = mark(filesystem, str(directory))
    assert sweep(filesystem, str(tmp_path)) == []
    assert (directory / "rows.parquet").exists()
    alive.release()
    alive.release()
    assert sweep(filesystem, str(tmp_path)) == []
    assert os.listdir(tmp_path) == [NAME]


def _die(occupy: Callable[..., Any], *arguments: Any) -> None:
    _kept = occupy(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)


def _killed(occupy: Callable[..., Any], *arguments: Any) -> None:
    """Let a process occupy something and be killed."""
    process = multiprocessing.get_context("spawn").Process(target=_die, args=(occupy, *arguments))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def _occupy(place: str) -> Any:
    alive = mark(LOCAL, f"{place}/{NAME}")
    _occupied(Path(place))
    return alive


def test_the_scratch_of_a_killed_process_is_swept_once(tmp_path):
    place = tmp_path / "place"
    _killed(_occupy, str(place))
    assert sorted(os.listdir(place)) == [NAME, f"{NAME}.lock"]
    assert sweep(LOCAL, str(place)) == [f"{place}/{NAME}"]
    assert os.listdir(place) == []
    assert sweep(LOCAL, str(place)) == []


def test_a_lease_that_ran_out_is_given_up_and_a_torn_one_begins_anew(tmp_path):
    directory, lease = _occupied(tmp_path), tmp_path / f"{NAME}.lease"
    lease.write_text("")  # as a crash leaves it
    assert sweep(REMOTE, str(tmp_path)) == []
    assert float(lease.read_text()) > time.time()
    lease.write_text(f"{time.time() - 1:.0f}\n")
    assert sweep(REMOTE, str(tmp_path)) == [str(directory)]
    assert os.listdir(tmp_path) == []


def test_a_lease_is_renewed_for_as_long_as_its_owner_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "RENEW_SECONDS", 0.01)
    lease = tmp_path / f"{NAME}.lease"
    alive = mark(REMOTE, f"{tmp_path}/{NAME}")
    lease.write_text("0\n")
    deadline = time.monotonic() + 10
    while lease.read_text() in ("", "0\n"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    alive.release()
    assert os.listdir(tmp_path) == []


def test_a_directory_waits_a_day_for_its_first_worker_and_an_hour_after_each(tmp_path, monkeypatch):
    """Stages of a Spark job before the first task that writes may take longer than an hour."""
    directory, now = _occupied(tmp_path), time.time()
    make_lease(LOCAL, str(directory))
    monkeypatch.setattr(scratch.time, "time", lambda: now + 5 * 3600)
    assert sweep(LOCAL, str(tmp_path)) == []
    with renew_lease(LOCAL, str(directory)):
        pass
    assert sweep(LOCAL, str(tmp_path)) == []
    monkeypatch.setattr(scratch.time, "time", lambda: now + 7 * 3600)
    assert sweep(LOCAL, str(tmp_path)) == [str(directory)]


def test_locks_are_not_relied_on_where_the_file_system_is_on_a_network(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "find_filesystem_type", lambda path: "nfs4")
    alive = mark(LOCAL, f"{tmp_path}/{NAME}")
    assert os.listdir(tmp_path) == [f"{NAME}.lease"]
    alive.release()


def test_what_bears_no_mark_of_ours_and_what_a_link_leads_to_stays(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(b"x")
    place = tmp_path / "place"
    _occupied(place).rename(place / ("1b" * 16))
    (place / NAME).symlink_to(precious)
    for name in (f"{NAME}.lock", "lock", "notes.lock"):
        (place / name).touch()
    before = sorted(os.listdir(place))
    assert sweep(LOCAL, str(place)) == []
    assert sorted(os.listdir(place)) == before
    assert (precious / "file").exists()


def test_a_mark_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="in use"):
        mark(LOCAL, f"{tmp_path}/file/{NAME}")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_the_private_directory_is_this_users_alone_or_not_used(temporary):
    base = Path(make_private_base())
    assert base.parent == temporary
    assert stat.S_IMODE(base.stat().st_mode) == 0o700
    base.chmod(0o755)
    with pytest.raises(StorageError, match="spool_dir="):
        make_private_base()
    (base / f"{NAME}.lock").touch()
    _occupied(base)
    assert sweep_private() == []
    base.chmod(0o700)
    assert sweep_private() == [f"{base}/{NAME}"]
    assert os.listdir(base) == []


def _stage(path: str) -> Any:
    manager = IncrementalFileManager()
    staging = manager.create_staging_directory(path)
    Path(staging, "a.part").write_bytes(b"x")
    return manager


def _spool(path: str) -> Any:
    filesystem, place, _ = ParquetTable(path).workspace
    alive = mark(filesystem, f"{place}/{NAME}")
    _occupied(Path(place))
    return alive


def _look(path: str) -> Any:
    view = ParquetTable(path).materialise()
    view.__enter__()
    return view


def _next_merge(path: Path) -> tuple[str, ...]:
    assert it.merge(ROWS, path, on="id").updated == 2
    return ()


def _recover(path: Path) -> tuple[str, ...]:
    return it.recover(path)


@pytest.mark.parametrize("by", [_recover, _next_merge], ids=["recover", "the next merge"])
@pytest.mark.parametrize("occupy", [_spool, _stage, _look], ids=["spool", "staging", "view"])
def test_what_a_killed_process_left_beside_a_dataset_goes_and_what_lives_stays(
    tmp_path, make_dataset, leftovers, occupy, by
):
    path = make_dataset(tmp_path / "ds", ROWS)
    _killed(occupy, str(path))
    left = leftovers(path)
    assert left
    manager = IncrementalFileManager()
    living = Path(manager.create_staging_directory(path))
    told = by(path)
    assert living.is_dir()
    if by is _recover:
        assert len(told) == 1
        assert "a process that is gone" in told[0]
        assert it.recover(path) == ()
    assert [name for name in leftovers(path) if living.name not in name] == []
    manager.cleanup_staging_files()
    assert leftovers(path) == []


@pytest.mark.parametrize("by", [_recover, _next_merge], ids=["recover", "the next merge"])
def test_the_temporary_directory_is_swept_too(tmp_path, make_dataset, temporary, by):
    path = make_dataset(tmp_path / "ds", ROWS)
    _killed(_occupy, make_private_base())
    alive = mark(LOCAL, f"{make_private_base()}/{'1b' * 16}")
    assert by(path) == ()  # what is swept there was no dataset's
    assert os.listdir(make_private_base()) == [f"{'1b' * 16}.lock"]
    alive.release()


@pytest.mark.parametrize("renamed", [False, True])
def test_what_a_sweep_was_killed_in_is_swept_by_the_next(tmp_path, renamed):
    directory = _occupied(tmp_path)
    (tmp_path / f"{NAME}.lock").touch()
    if renamed:
        directory.rename(f"{directory}.gone")
    assert sweep(LOCAL, str(tmp_path)) == [str(directory)]
    assert os.listdir(tmp_path) == []
