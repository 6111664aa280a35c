"""Storages: what each verb does on a local disk and on a store without links, and what its errors say."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from intarsia.errors import CommitConflict, InputError, NotSupported, StorageError
from intarsia.storage import ObjectStorage, PosixStorage, RemoteStorage, Storage, open_storage
from intarsia.storage import posix as posix_module


@pytest.fixture(params=["local", "memory", "pyarrow"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, str]:
    """A storage and an empty directory on it."""
    if request.param == "local":
        return open_storage(tmp_path)
    if request.param == "memory":
        storage, root = open_storage(f"memory://{uuid.uuid4().hex}")
    else:
        storage, root = open_storage("bucket/data", filesystem=pafs._MockFileSystem())
    storage.make_directories(root)
    return storage, root


@pytest.mark.parametrize(
    "target",
    ["{}/d", "file://{}/d", "{}/./x/../d", "{}//d/"],
    ids=["path", "file URL", "with dots", "with slashes"],
)
def test_a_local_target_is_an_absolute_path_on_the_local_disk(tmp_path: Path, target: str) -> None:
    storage, root = open_storage(target.format(tmp_path))
    assert isinstance(storage, PosixStorage)
    assert storage.atomic
    assert root == str(tmp_path / "d")


def test_a_relative_path_and_a_pathlib_path_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_storage("d")[1] == open_storage(Path("d"))[1] == str(tmp_path / "d")


def test_an_escaped_file_url_is_unescaped(tmp_path: Path) -> None:
    assert open_storage(f"file://{tmp_path}/a%20b")[1] == str(tmp_path / "a b")


def test_two_names_of_one_directory_give_one_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "real")
    assert open_storage(tmp_path / "other")[1] == open_storage(tmp_path / "real")[1]


def test_a_local_disk_in_any_disguise_is_a_local_disk(tmp_path: Path) -> None:
    local = fsspec.filesystem("file")
    disguises: list[tuple[Any, str]] = [
        (pafs.LocalFileSystem(), f"{tmp_path}/d"),
        (local, f"{tmp_path}/d"),
        (local, f"file://{tmp_path}/d"),
        (pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "d"),
        (pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "/d"),
        (DirFileSystem(path=str(tmp_path), fs=local), "d"),
        (pafs.PyFileSystem(pafs.FSSpecHandler(local)), f"{tmp_path}/d"),
        (pafs.PyFileSystem(pafs.FSSpecHandler(DirFileSystem(path=str(tmp_path), fs=local))), "d"),
    ]
    for filesystem, target in disguises:
        storage, root = open_storage(target, filesystem=filesystem)
        assert isinstance(storage, PosixStorage), filesystem
        assert root == str(tmp_path / "d"), filesystem


def test_other_file_systems_are_remote_and_normalised() -> None:
    for target, filesystem in [
        ("memory://a//b/./c/", None),
        ("/a/b/c", fsspec.filesystem("memory")),
        ("memory://a/b/c", fsspec.filesystem("memory")),
    ]:
        storage, root = open_storage(target, filesystem=filesystem)
        assert isinstance(storage, RemoteStorage)
        assert not storage.atomic
        assert root.strip("/") == "a/b/c"
    mock = pafs._MockFileSystem()
    assert isinstance(open_storage("x", filesystem=mock)[0], RemoteStorage)


def test_what_cannot_be_a_target_is_refused() -> None:
    for target in ("", "a\0b"):
        with pytest.raises(InputError, match="target"):
            open_storage(target)
    with pytest.raises(InputError, match="pyarrow or an fsspec"):
        open_storage("x", filesystem=object())
    with pytest.raises(InputError, match=r"\.\."):
        open_storage("memory://a/../b")
    with pytest.raises(NotSupported, match="No installed library"):
        open_storage("nosuchscheme://a/b")


def test_credentials_stay_out_of_the_message_about_a_url_that_cannot_be_opened() -> None:
    with pytest.raises(NotSupported) as caught:
        open_storage("nosuchscheme://user:hunter2@host/b", storage_options={"secret": "hunter3"})
    assert "hunter" not in str(caught.value)


def test_storage_options_open_a_url_through_fsspec() -> None:
    storage, root = open_storage("memory://options/d", storage_options={"skip_instance_cache": True})
    assert isinstance(storage, RemoteStorage)
    assert root == "/options/d"


@pytest.mark.parametrize("target", ["/tmp", "memory://x"])
def test_the_data_file_system_travels_to_another_process(target: str) -> None:
    storage, _ = open_storage(target)
    assert pickle.loads(pickle.dumps(storage.filesystem)) == storage.filesystem


def test_walk_names_everything_below_and_enters_what_it_is_told_to(place: tuple[Storage, str]) -> None:
    storage, root = place
    storage.make_directories(f"{root}/p=1/q=2")
    storage.make_directories(f"{root}/.hidden")
    for path in ("a", "p=1/b", "p=1/q=2/c", ".hidden/d"):
        storage.write(f"{root}/{path}", b"12345")
    found = {entry.path: entry for entry in storage.walk(root, lambda name: not name.startswith("."))}
    assert sorted(path for path, entry in found.items() if entry.kind == "file") == [
        "a",
        "p=1/b",
        "p=1/q=2/c",
    ]
    assert ".hidden" in found
    assert found["p=1/b"].size == 5
    assert found["p=1/q=2"].kind == "directory"


def test_a_fingerprint_changes_with_the_file(place: tuple[Storage, str]) -> None:
    storage, root = place
    storage.write(f"{root}/f", b"one")
    before = storage.stat(f"{root}/f")
    (listed,) = storage.walk(root, lambda _: True)
    assert before is not None
    assert before.fingerprint == listed.fingerprint
    time.sleep(0.01)
    storage.remove(f"{root}/f")
    storage.write(f"{root}/f", b"three")
    after = storage.stat(f"{root}/f")
    assert after is not None
    assert after.fingerprint != before.fingerprint


def test_small_files_are_written_over_and_read_back(place: tuple[Storage, str]) -> None:
    storage, root = place
    storage.write(f"{root}/f", b"a longer text")
    storage.write(f"{root}/f", b"short")
    assert storage.read(f"{root}/f") == b"short"
    assert storage.names(root) == ["f"]
    assert storage.names(f"{root}/nothing") == []
    assert storage.stat(f"{root}/nothing") is None


def test_a_name_can_be_claimed_once(place: tuple[Storage, str]) -> None:
    storage, root = place
    storage.write(f"{root}/one", b"1")
    storage.write(f"{root}/two", b"2")
    assert storage.claim(f"{root}/one", f"{root}/slot")
    assert not storage.claim(f"{root}/two", f"{root}/slot")
    assert storage.read(f"{root}/slot") == b"1"


def test_publishing_replaces_and_can_be_repeated(place: tuple[Storage, str]) -> None:
    storage, root = place
    storage.write(f"{root}/target", b"old")
    storage.write(f"{root}/source", b"new")
    storage.make_hard_link(f"{root}/source", f"{root}/spare")
    for _ in range(2):
        storage.publish(f"{root}/source", f"{root}/spare", f"{root}/target")
        assert storage.read(f"{root}/target") == b"new"
        assert storage.read(f"{root}/source") == b"new"
        assert storage.is_same(f"{root}/source", f"{root}/target")


def test_same_compares_bytes(place: tuple[Storage, str]) -> None:
    storage, root = place
    for name, data in {"a": b"xy", "b": b"xy", "c": b"xz", "d": b"xyz"}.items():
        storage.write(f"{root}/{name}", data)
    same = {name: storage.is_same(f"{root}/a", f"{root}/{name}") for name in "abcd"}
    assert same == {"a": True, "b": True, "c": False, "d": False}


def test_removing_says_whether_there_was_something(place: tuple[Storage, str]) -> None:
    storage, root = place
    storage.make_directories(f"{root}/d/e")
    storage.write(f"{root}/d/f", b"1")
    assert not storage.remove_directory(f"{root}/d")
    assert storage.remove_directory(f"{root}/d/e")
    assert storage.remove(f"{root}/d/f")
    assert not storage.remove(f"{root}/d/f")
    assert storage.remove_directory(f"{root}/d")
    assert not storage.remove_directory(f"{root}/d")


def test_a_tree_is_removed_and_removing_it_again_is_nothing(place: tuple[Storage, str]) -> None:
    storage, root = place
    storage.make_directories(f"{root}/d/e")
    storage.write(f"{root}/d/e/f", b"1")
    assert storage.remove_tree(f"{root}/d") == []
    assert storage.stat(f"{root}/d") is None
    assert storage.remove_tree(f"{root}/d") == []


def test_directories_that_are_new_are_named_outermost_first(place: tuple[Storage, str]) -> None:
    storage, root = place
    assert storage.make_directories(f"{root}/a/b") == [f"{root}/a", f"{root}/a/b"]
    assert storage.make_directories(f"{root}/a/b") == []
    assert storage.make_directories(f"{root}/a/c") == [f"{root}/a/c"]


def test_a_missing_file_is_a_storage_error_with_its_number_and_path(place: tuple[Storage, str]) -> None:
    storage, root = place
    for action in (storage.read, lambda path: storage.make_hard_link(path, f"{root}/x")):
        with pytest.raises(StorageError) as caught:
            action(f"{root}/nothing")
        assert caught.value.errno == errno.ENOENT
        assert f"{root}/nothing" in str(caught.value)


def test_a_tree_that_cannot_be_removed_wholly_is_removed_as_far_as_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "d" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "d" / name).write_bytes(b"1")
    unlink = os.unlink

    def refuse_b(path: str) -> None:
        if path.endswith("/b"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        unlink(path)

    monkeypatch.setattr(posix_module.os, "unlink", refuse_b)
    (refusal,) = PosixStorage().remove_tree(str(tmp_path / "d"))
    assert refusal.errno == errno.EACCES
    assert os.listdir(tmp_path / "d") == ["b"]


def test_links_inside_a_removed_tree_are_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(b"1")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    assert PosixStorage().remove_tree(str(tmp_path / "tree")) == []
    assert (tmp_path / "kept" / "file").exists()
    assert not (tmp_path / "tree").exists()


@pytest.mark.parametrize(("late", "left"), [(1, []), (100, ["late"])])
def test_a_file_that_is_made_while_its_directory_is_emptied_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int, left: list[str]
) -> None:
    """Its maker had found the directory before we listed it; one who never ends keeps it."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "early").touch()
    remove, calls = os.rmdir, iter(range(late))

    def make_and_remove(path: str) -> None:
        if next(calls, None) is not None:
            (tmp_path / "d" / "late").touch()
        remove(path)

    monkeypatch.setattr(os, "rmdir", make_and_remove)
    assert PosixStorage().remove_tree(str(tmp_path / "d")) == []
    assert [name for _, _, names in os.walk(tmp_path) for name in names] == left


def test_a_disk_without_hard_links_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    (tmp_path / "f").write_bytes(b"1")
    monkeypatch.setattr(posix_module.os, "link", refuse)
    with pytest.raises(NotSupported, match="no hard links"):
        PosixStorage().make_hard_link(str(tmp_path / "f"), str(tmp_path / "g"))


def test_a_lock_excludes_another_holder_until_it_is_released(tmp_path: Path) -> None:
    storage, path = PosixStorage(), str(tmp_path / "c" / "lock")
    with storage.lock(path, 1.0):
        started = time.monotonic()
        with pytest.raises(CommitConflict, match=path), storage.lock(path, 0.05):
            pass
        assert time.monotonic() - started >= 0.05
    with storage.lock(path, 0.05):
        pass


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    storage, path = PosixStorage(), str(tmp_path / "lock")
    held, order = threading.Event(), []

    def hold() -> None:
        with storage.lock(path, 1.0):
            held.set()
            time.sleep(0.1)
            order.append("first")

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(5)
    with storage.lock(path, 10.0):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_a_lock_whose_file_is_removed_by_its_holder_still_excludes(tmp_path: Path) -> None:
    """A holder that tidies its lock file away must not let two others in."""
    storage, path = PosixStorage(), str(tmp_path / "c" / "lock")
    inside, most, guard = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with storage.lock(path, 30.0):
                with guard:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.0005)
                with guard:
                    inside -= 1
                storage.remove(path)
                storage.remove_directory(str(tmp_path / "c"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def _hold_and_die(path: str) -> None:
    with PosixStorage().lock(path, 5.0):
        os._exit(0)


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    process = multiprocessing.get_context("spawn").Process(target=_hold_and_die, args=(path,))
    process.start()
    process.join()
    with PosixStorage().lock(path, 0.0):
        pass


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs"])
def test_a_network_file_system_is_refused_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(posix_module, "find_filesystem_type", lambda path: kind)
    with pytest.raises(NotSupported, match=kind) as caught, PosixStorage().lock(str(tmp_path / "lock"), 1.0):
        pass
    assert "lock=" in str(caught.value)


def test_the_type_of_a_file_system_is_told_where_linux_tells_it(tmp_path: Path) -> None:
    assert posix_module.find_filesystem_type(str(tmp_path / "not" / "there")) != "nfs"
    assert posix_module.find_filesystem_type("/proc") in ("proc", None)


def test_places_on_different_devices_are_not_together(tmp_path: Path) -> None:
    storage = PosixStorage()
    assert storage.can_move(str(tmp_path), str(tmp_path / "not" / "yet"))
    assert not storage.can_move(str(tmp_path), "/proc")


def test_a_directory_that_cannot_be_written_is_told_before_anything_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PosixStorage().check_writable(str(tmp_path / "not" / "yet"))
    monkeypatch.setattr(posix_module.os, "access", lambda path, mode: False)
    with pytest.raises(StorageError) as caught:
        PosixStorage().check_writable(str(tmp_path))
    assert caught.value.errno == errno.EACCES


def test_a_web_address_is_no_place_for_a_dataset() -> None:
    with pytest.raises(NotSupported, match=r"https://host/t is a web address") as caught:
        open_storage("https://me:secret@host/t?token=x")
    assert "secret" not in f"{caught.value} {caught.value.path}"


def test_the_services_of_s3_are_described_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing the descriptions takes longer than the requests of a small commit."""
    pytest.importorskip("botocore")
    from botocore.loaders import JSONFileLoader

    read: list[str] = []
    load = JSONFileLoader.load_file

    def load_noted(self: Any, path: str) -> Any:
        read.append(path)
        return load(self, path)

    def open_client(key: str) -> str:
        filesystem = pafs.S3FileSystem(access_key=key, secret_key="s", endpoint_override="127.0.0.1:9")
        storage, _ = open_storage("bucket/data", filesystem=filesystem)
        assert isinstance(storage, ObjectStorage)
        signer: Any = storage.client._transport._client._request_signer
        return str(signer._credentials.access_key)

    assert open_client("one") == "one"
    monkeypatch.setattr(JSONFileLoader, "load_file", load_noted)
    assert open_client("two") == "two", "credentials are not shared"
    assert read == []
