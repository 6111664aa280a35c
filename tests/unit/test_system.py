"""What operating systems do in their own ways: Windows and macOS by stand-ins, Linux by the real calls."""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia import doctor
from intarsia.common import locks, partition_values, partitions, scratch, system
from intarsia.errors import CommitConflict, CommitUnknown, NotSupported, StorageError, UnsafePath
from intarsia.pipeline.state.state_file import hold_lock, write_atomically
from intarsia.storage import PosixStorage, open_storage
from intarsia.tables.parquet import ParquetTable

ROWS = pa.table({"id": [1, 2], "v": [1, 2]})


class FakeMsvcrt(types.ModuleType):
    """Locks one byte for one open file, as msvcrt does: another one is refused, also in the same process."""

    LK_UNLCK, LK_LOCK, LK_NBLCK = 0, 1, 2

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self.held: dict[tuple[int, int, int], int] = {}

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        status = os.fstat(descriptor)
        key = (status.st_dev, status.st_ino, os.lseek(descriptor, 0, os.SEEK_CUR))
        assert count == 1
        if mode == self.LK_UNLCK:
            if self.held.get(key) != descriptor:
                raise PermissionError(errno.EACCES, "Permission denied")
            del self.held[key]
        elif mode == self.LK_NBLCK:
            if key in self.held:
                raise PermissionError(errno.EACCES, "Permission denied")
            self.held[key] = descriptor
        else:
            raise AssertionError("nothing here may wait")


def _fill_memory_status(status: Any) -> int:
    assert struct.unpack_from("<I", status, 0) == (64,)
    struct.pack_into("<Q", status, 8, 16 << 30)
    return 1


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> FakeMsvcrt:
    """Our Windows branches, on this machine: its locks are a stand-in, and open files cannot be removed."""
    held = FakeMsvcrt()
    # These locks do not see those of other processes, whose scratch directories would be swept.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("windows")))
    monkeypatch.setitem(sys.modules, "msvcrt", held)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setattr(system, "WINDOWS", True)
    kernel = types.SimpleNamespace(GetDriveTypeW=lambda drive: 3, GlobalMemoryStatusEx=_fill_memory_status)
    monkeypatch.setattr(ctypes, "windll", types.SimpleNamespace(kernel32=kernel), raising=False)
    real = os.unlink

    def unlink(path: Any, **given: Any) -> None:
        status = os.lstat(path)
        if any(key[:2] == (status.st_dev, status.st_ino) for key in held.held):
            raise PermissionError(errno.EACCES, "The process cannot access the file")
        real(path, **given)

    monkeypatch.setattr(os, "unlink", unlink)
    return held


@pytest.fixture
def allowed(windows: FakeMsvcrt, monkeypatch: pytest.MonkeyPatch) -> FakeMsvcrt:
    monkeypatch.setenv(system.UNTRIED, "1")
    return windows


# Imports.

IMPORT_ALL = """
import importlib, pkgutil, sys

def import_all():
    import intarsia
    names = [module.name for module in pkgutil.walk_packages(intarsia.__path__, "intarsia.")]
    for name in names:
        if name not in ("intarsia.__main__", "intarsia.spark.daemon"):  # which run when they are imported
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                # Each has a package of its own, which the environment of "make doors" has.
                if not name.startswith("intarsia.integrations.") or error.name in sys.modules:
                    raise
    return len(names)

import_all()  # so that all other packages are loaded, which look at the platform themselves
for platform in ("win32", "darwin"):
    for name in [name for name in sys.modules if name.partition(".")[0] == "intarsia"]:
        del sys.modules[name]
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[name] = None
    sys.platform = platform
    print(import_all())
"""


@pytest.mark.slow
def test_every_module_imports_where_nothing_of_unix_is() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert [int(count) > 200 for count in done.stdout.split()] == [True, True]


# Paths.


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (r"C:\lake\orders", "C:/lake/orders"),
        (r"\\server\share\lake", "//server/share/lake"),
        (r"\\?\C:\lake", "C:/lake"),
        (r"\\?\UNC\server\share", "//server/share"),
        ("C:/lake", "C:/lake"),
    ],
)
def test_paths_of_windows_have_slashes(windows: FakeMsvcrt, given: str, wanted: str) -> None:
    assert system.to_slashes(given) == wanted


def test_a_backslash_is_a_letter_elsewhere(tmp_path: Path) -> None:
    assert system.to_slashes(r"a\b") == r"a\b"
    it.write(ROWS, f"{tmp_path}/a\\b")
    assert sorted(os.listdir(tmp_path)) == [".a\\b.intarsia", "a\\b"]
    assert it.read(f"{tmp_path}/a\\b").read_all().num_rows == 2


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("file:///C:/lake/a%20b", "C:/lake/a b"),
        ("file://localhost/C:/lake", "C:/lake"),
        ("file://C:/lake", "C:/lake"),
        ("file://server/share/lake", "//server/share/lake"),
        ("file:///lake", "/lake"),
    ],
)
def test_file_urls_of_windows(windows: FakeMsvcrt, url: str, wanted: str) -> None:
    assert system.parse_file_url(url) == wanted


def test_file_urls_elsewhere() -> None:
    assert system.parse_file_url("file:///C:/lake") == "/C:/lake"
    assert system.parse_file_url("file:///lake/a%20b") == "/lake/a b"


def test_a_drive_that_is_not_there_ends_the_search_for_a_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    import ntpath

    monkeypatch.setattr(os.path, "lexists", lambda path: False)
    monkeypatch.setattr(os.path, "dirname", ntpath.dirname)
    assert system.find_existing_parent("Z:/lake/orders") == "Z:/"


@pytest.mark.parametrize(
    ("value", "directory"),
    [
        ("a<b>c|d", "a%3Cb%3Ec%7Cd"),
        ("ends.", "ends%2E"),
        ("ends ", "ends%20"),
        ("a.b c", "a.b c"),
        ("C:\\x", "C%3A%5Cx"),
        ("CON", "CON"),
    ],
)
def test_partition_directories_of_windows_have_names_that_it_keeps(
    windows: FakeMsvcrt, value: str, directory: str
) -> None:
    path = partitions.hive_path({"city": value})
    assert path == f"city={directory}"
    assert partition_values.unescape(directory) == value


def test_partition_directories_elsewhere_stay_as_spark_has_them() -> None:
    assert partitions.hive_path({"city": "a<b>c|d."}) == "city=a<b>c|d."


class _Folding:
    """Makes :meth:`PosixStorage.stat` heed no case, as the disks of macOS and Windows do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = PosixStorage.stat

        def stat(storage: PosixStorage, path: str) -> Any:
            parent, _, name = path.rpartition("/")
            there = [found for found in storage.names(parent) if found.casefold() == name.casefold()]
            return real(storage, f"{parent}/{there[0]}" if there else path)

        monkeypatch.setattr(PosixStorage, "stat", stat)


@pytest.mark.parametrize("second", ["BONN", "bonn"])
def test_partitions_that_a_disk_takes_for_one_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchanged: Any, second: str
) -> None:
    lake = str(tmp_path / "lake")
    it.write(pa.table({"id": [1], "city": ["Bonn"]}), lake, partition_by=["city"])
    _Folding(monkeypatch)
    with unchanged(lake), pytest.raises(UnsafePath, match="for one") as raised:
        it.merge(pa.table({"id": [2], "city": [second]}), lake, on="id")
    assert f"city={second}" in str(raised.value)
    it.merge(pa.table({"id": [3, 4], "city": ["Bonn", "Köln"]}), lake, on="id")
    assert sorted(it.read(lake).read_all()["city"].to_pylist()) == ["Bonn", "Bonn", "Köln"]


def test_two_new_partitions_that_a_disk_takes_for_one_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Folding(monkeypatch)
    lake = str(tmp_path / "lake")
    rows = pa.table({"id": [1, 2], "city": ["Köln", "Ko\u0308ln"]})  # one letter, and two
    with pytest.raises(UnsafePath, match="for one"):
        it.write(rows, lake, partition_by=["city"])
    assert os.listdir(tmp_path) == []


def test_partitions_that_differ_in_case_are_two_where_the_disk_heeds_it(tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    it.write(pa.table({"id": [1, 2], "city": ["Bonn", "BONN"]}), lake, partition_by=["city"])
    assert sorted(it.read(lake).read_all()["city"].to_pylist()) == ["BONN", "Bonn"]


# What is refused on Windows.


def test_a_commit_to_local_files_is_refused_on_windows(
    windows: FakeMsvcrt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchanged: Any
) -> None:
    lake = str(tmp_path / "lake")
    monkeypatch.setenv(system.UNTRIED, "1")
    it.write(ROWS, lake)
    monkeypatch.delenv(system.UNTRIED)
    with unchanged(lake):
        for change in (
            lambda: it.merge(ROWS, lake, on="id"),
            lambda: it.write(ROWS, lake),
            lambda: it.delete(lake, "id = 1"),
            lambda: it.recover(lake),
        ):
            with pytest.raises(NotSupported, match="local disk of Windows") as raised:
                change()
            assert system.UNTRIED in (raised.value.hint or "")
        assert it.read(lake).read_all().num_rows == 2
        assert it.merge(ROWS, lake, on="id", dry_run=True) is not None
    found = {finding.subject: finding for finding in doctor._check_local_store(ParquetTable(lake))}
    assert found["Platform"].state == "problem"


def test_an_embedded_catalog_is_refused_on_windows(windows: FakeMsvcrt, tmp_path: Path) -> None:
    from intarsia.tables.iceberg.catalog import embedded_catalog

    with pytest.raises(NotSupported, match="local disk of Windows"):
        embedded_catalog(tmp_path / "warehouse")
    assert os.listdir(tmp_path) == []


def test_operations_run_on_the_branches_of_windows(allowed: FakeMsvcrt, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    it.write(ROWS, lake)
    it.merge(pa.table({"id": [2, 3], "v": [20, 30]}), lake, on="id")
    it.compact(lake)
    it.delete(lake, "id = 1")
    assert it.read(lake).read_all().sort_by("id").to_pydict() == {"id": [2, 3], "v": [20, 30]}
    assert allowed.held == {}
    assert it.recover(lake) == it.recover(lake)


# Locks.


@pytest.fixture(params=["unix", "windows"])
def any_lock(request: pytest.FixtureRequest) -> str:
    if request.param == "windows":
        request.getfixturevalue("windows")
    return str(request.param)


def test_a_lock_has_one_holder(any_lock: str, tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    held = locks.try_lock(path)
    assert held is not None
    assert locks.try_lock(path) is None
    assert locks.is_locked(path)
    locks.unlock(held)
    assert not locks.is_locked(path)
    again = locks.try_lock(path)
    assert again is not None
    locks.remove_lock(again, path)
    assert os.listdir(tmp_path) == []


def test_a_lock_in_a_directory_that_is_gone_is_not_taken(any_lock: str, tmp_path: Path) -> None:
    assert locks.try_lock(str(tmp_path / "gone" / "lock")) is None


def test_descriptors_of_locks_that_were_refused_are_closed(any_lock: str, tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    held = locks.try_lock(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        assert locks.try_lock(path) is None
        assert locks.is_locked(path)
    assert len(os.listdir("/proc/self/fd")) == before
    assert held is not None
    locks.unlock(held)


def test_another_error_of_a_lock_is_raised_and_leaks_nothing(
    windows: FakeMsvcrt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EBADF, "no")

    monkeypatch.setattr(windows, "locking", fail)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no"):
        locks.try_lock(str(tmp_path / "lock"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lock_that_somebody_has_taken_meanwhile_stays_on_windows(
    windows: FakeMsvcrt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "lock")
    held = locks.try_lock(path)
    assert held is not None
    real, others = locks.unlock, []

    def unlock_and_lose(descriptor: int) -> None:
        real(descriptor)
        others.append(locks.try_lock(path))

    monkeypatch.setattr(locks, "unlock", unlock_and_lose)
    locks.remove_lock(held, path)
    assert os.path.exists(path)
    assert others != [None]
    real(others[0])


def test_scratch_is_swept_by_its_lock(any_lock: str, tmp_path: Path) -> None:
    import pyarrow.fs as pafs

    local = pafs.LocalFileSystem()
    directory = tmp_path / ("0a" * 16)
    alive = scratch.mark(local, str(directory))
    directory.mkdir()
    assert scratch.sweep(local, str(tmp_path)) == []
    held = alive._descriptor  # type: ignore[attr-defined]
    locks.unlock(held)  # as the death of its holder does
    assert scratch.sweep(local, str(tmp_path)) == [str(directory)]
    assert os.listdir(tmp_path) == []


def test_a_second_writer_waits_and_gives_up(any_lock: str, tmp_path: Path) -> None:
    storage, path = PosixStorage(), str(tmp_path / "lock")
    with storage.lock(path, 1.0), pytest.raises(CommitConflict), storage.lock(path, 0.05):
        raise AssertionError("two holders")
    with storage.lock(path, 1.0):
        pass


def test_a_second_run_of_a_pipeline_is_refused(any_lock: str, tmp_path: Path) -> None:
    state = tmp_path / "state" / "orders.json"
    with hold_lock(state), pytest.raises(CommitConflict), hold_lock(state):
        raise AssertionError("two runs")
    with hold_lock(state):
        write_atomically(state, b"{}\n")
    assert state.read_bytes() == b"{}\n"


def _hold(path: str, ready: Any) -> None:
    locks.try_lock(path)
    ready.set()
    time.sleep(60)


def test_the_kernel_frees_the_lock_of_a_process_that_is_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path, ready = str(tmp_path / "lock"), context.Event()
    process = context.Process(target=_hold, args=(path, ready))
    process.start()
    assert ready.wait(30)
    assert locks.try_lock(path) is None
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    held = locks.try_lock(path)
    assert held is not None
    locks.unlock(held)


# Durability.


def test_macos_syncs_through_the_cache_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    calls: list[str] = []
    answer: list[OSError] = []

    def control(descriptor: int, command: int) -> int:
        calls.append("full" if command == 51 else "other")
        if answer:
            raise answer[0]
        return 0

    monkeypatch.setattr(system, "MACOS", True)
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append("fsync"))
    storage = PosixStorage()
    storage.write(f"{tmp_path}/one", b"1")
    storage.sync(str(tmp_path))
    assert calls == ["full", "full"]
    answer.append(OSError(errno.ENOTSUP, "no"))  # as on a disk in FAT
    storage.sync(f"{tmp_path}/one")
    assert calls[2:] == ["full", "fsync"]
    answer[0] = OSError(errno.EIO, "broken")
    with pytest.raises(StorageError, match="broken"):
        storage.sync(f"{tmp_path}/one")


def test_windows_syncs_files_that_it_may_write_and_no_directories(
    windows: FakeMsvcrt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def sync(descriptor: int) -> None:
        assert os.write(descriptor, b"") == 0  # refused by a descriptor that only reads
        synced.append(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    PosixStorage().write(f"{tmp_path}/one", b"1")
    PosixStorage().sync(f"{tmp_path}/one")
    PosixStorage().sync(str(tmp_path))
    assert len(synced) == 2


def test_linux_syncs_files_and_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    PosixStorage().write(f"{tmp_path}/one", b"1")
    PosixStorage().sync(f"{tmp_path}/one")
    PosixStorage().sync(str(tmp_path))
    assert len(synced) == 3


# Files that are open.


class SharingViolation(PermissionError):
    winerror = 32


def test_a_file_that_is_open_for_a_moment_is_replaced_on_windows(
    windows: FakeMsvcrt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refusals = os.replace, iter([SharingViolation(errno.EACCES, "open")] * 3)

    def replace(source: str, target: str) -> None:
        for refusal in refusals:
            raise refusal
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(system.time, "sleep", lambda seconds: None)
    (tmp_path / "one").write_bytes(b"1")
    PosixStorage().move(f"{tmp_path}/one", f"{tmp_path}/two")
    assert os.listdir(tmp_path) == ["two"]


def test_a_file_that_stays_open_leaves_a_commit_to_the_next_writer(
    allowed: FakeMsvcrt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every commit that was recorded and not published: readers through intarsia see it."""
    lake = str(tmp_path / "lake")
    it.write(ROWS, lake)
    real = os.replace

    def replace(source: str, target: str) -> None:
        if "/lake/" in target:
            raise SharingViolation(errno.EACCES, "open")
        real(source, target)

    monkeypatch.setattr(system, "_SHARING_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(CommitUnknown) as raised:
            it.merge(pa.table({"id": [2], "v": [20]}), lake, on="id")
        assert raised.value.changed is True
        assert it.read(lake).read_all().sort_by("id")["v"].to_pylist() == [1, 20]
    it.merge(pa.table({"id": [3], "v": [30]}), lake, on="id")
    assert it.read(lake).read_all().sort_by("id")["v"].to_pylist() == [1, 20, 30]


def test_elsewhere_nothing_is_tried_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def replace(source: str, target: str) -> None:
        calls.append(source)
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(StorageError):
        PosixStorage().move("one", "two")
    assert calls == ["one"]


# Identity of files.


def test_files_have_their_identity_on_windows_although_a_listing_has_none(
    windows: FakeMsvcrt, tmp_path: Path
) -> None:
    storage = PosixStorage()
    storage.write(f"{tmp_path}/one", b"1")
    (listed,) = storage.walk(str(tmp_path), lambda name: True)
    found = storage.stat(f"{tmp_path}/one")
    assert found is not None
    assert listed.fingerprint == found.fingerprint
    assert listed.changed_ns is None  # which there is when it was made


def test_files_without_an_inode_are_compared_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1")
    other.write_bytes(b"2")
    real = os.stat

    def stat(path: Any, **given: Any) -> os.stat_result:
        found = list(real(path, **given))
        found[1] = 0
        return os.stat_result(found)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "lstat", stat)
    assert not PosixStorage().is_same(str(one), str(other))
    assert PosixStorage().is_same(str(one), str(one))
    found = PosixStorage().stat(str(one))
    assert found is not None
    assert found.identity is None


# Types of file systems.


def _make_statfs(kind: bytes, flags: int) -> bytes:
    raw = bytearray(2168)
    raw[64:68] = struct.pack("=I", flags)
    raw[72 : 72 + len(kind)] = kind
    return bytes(raw)


@pytest.mark.parametrize(
    ("kind", "flags", "network"),
    [(b"apfs", 0x1000, False), (b"smbfs", 0, True), (b"nfs", 0, True), (b"macfuse", 0, True)],
)
def test_macos_tells_network_file_systems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: bytes, flags: int, network: bool
) -> None:
    monkeypatch.setattr(system.sys, "platform", "darwin")
    monkeypatch.setattr(system, "MACOS", True)
    monkeypatch.setattr(system, "_call_statfs", lambda path: _make_statfs(kind, flags))
    found = system.find_filesystem_type(str(tmp_path))
    assert found is not None
    assert kind.decode() in found
    assert system.is_network(found) is network


def test_windows_tells_network_drives(windows: FakeMsvcrt, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def get_drive_type(drive: str) -> int:
        asked.append(drive)
        return {"Z:\\": 4}.get(drive, 3)

    monkeypatch.setattr(ctypes.windll.kernel32, "GetDriveTypeW", get_drive_type)
    assert system._find_drive_type("C:/lake") is None
    assert system._find_drive_type("Z:/lake") == "network"
    assert system._find_drive_type("//server/share/lake") == "network"
    assert asked == ["C:\\", "Z:\\"]


def test_windows_tells_its_memory(windows: FakeMsvcrt) -> None:
    assert system.read_physical_memory() == 16 << 30


def test_a_dataset_on_a_network_drive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from intarsia.storage import posix

    monkeypatch.setattr(posix, "find_filesystem_type", lambda path: "network (macfuse)")
    with pytest.raises(NotSupported, match="network file system"):
        it.write(ROWS, str(tmp_path / "lake"))


def test_the_storage_of_a_path_and_of_its_url_is_one(tmp_path: Path) -> None:
    assert open_storage(str(tmp_path))[1] == open_storage(tmp_path.as_uri())[1]
    assert ParquetTable(str(tmp_path / "x")).control.root == str(tmp_path / "x")
