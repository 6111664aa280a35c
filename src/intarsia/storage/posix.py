"""Files on a local disk: hard links, atomic rename, fsync and locks; no protocol is in here."""

from __future__ import annotations

import errno
import itertools
import os
import stat as stat_mode
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import pyarrow.fs as pafs

from intarsia.common import locks, system
from intarsia.common.system import find_existing_parent, find_filesystem_type, is_network
from intarsia.errors import CommitConflict, NotSupported, StorageError
from intarsia.storage.port import FileEntry, Kind, RandomAccess, as_storage_error, translate_storage_errors

_COMPARE_CHUNK = 1 << 20
_REMOVALS = 8
_SCANNED = 4096
_NO_LINKS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_POLL_SECONDS = (0.005, 0.25)


class PosixStorage:
    """A local disk. Everything :class:`~intarsia.storage.port.Storage` asks of an atomic store holds."""

    atomic = True
    conditional = False
    requests = None

    @property
    def filesystem(self) -> pafs.FileSystem:
        return pafs.LocalFileSystem()

    def walk(
        self, root: str, descend: Callable[[str], bool], *, names_only: bool = False
    ) -> Iterator[FileEntry]:
        pending = [("", root)]
        while pending:
            prefix, directory = pending.pop()
            with translate_storage_errors("list", directory):
                for item in _iterate_directory(directory):
                    path = prefix + item.name
                    if item.is_symlink():
                        yield FileEntry(path, "symlink", identity=_classify_link(item))
                    elif item.is_dir(follow_symlinks=False):
                        yield FileEntry(path, "directory")
                        if descend(item.name):
                            pending.append((f"{path}/", f"{directory}/{item.name}"))
                    elif names_only:
                        yield FileEntry(path, "file" if item.is_file(follow_symlinks=False) else "other")
                    else:
                        try:
                            status = _stat_item(item)
                        except FileNotFoundError:  # gone between scandir and stat
                            continue
                        yield _make_entry(path, status)

    def names(self, directory: str) -> list[str]:
        with translate_storage_errors("list", directory):
            try:
                return sorted(os.listdir(directory))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def stat(self, path: str) -> FileEntry | None:
        with translate_storage_errors("look at", path):
            try:
                return _make_entry(path, os.lstat(path))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read(self, path: str) -> bytes:
        with translate_storage_errors("read", path), open(path, "rb") as file:
            return file.read()

    def open_ranges(
        self, path: str, size: int, tag: int | str | None = None
    ) -> AbstractContextManager[RandomAccess]:
        return self.filesystem.open_input_file(path)

    def write(self, path: str, data: bytes) -> None:
        with translate_storage_errors("write", path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | system.BINARY, 0o666)
            try:
                left = memoryview(data)
                while left:
                    left = left[os.write(descriptor, left) :]
                system.sync_descriptor(descriptor)
            finally:
                os.close(descriptor)

    def claim(self, source: str, target: str) -> bool:
        with translate_storage_errors("take", target):
            try:
                os.link(source, target)
            except FileExistsError:
                return False
            return True

    def make_hard_link(self, source: str, target: str) -> None:
        with translate_storage_errors("link", source, hint=_make_link_hint(source)):
            try:
                os.link(source, target)
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise NotSupported(
                        f"The file system of {source} has no hard links, which a safe replacement needs.",
                        path=source,
                        hint="keep the dataset on a local file system such as ext4, xfs, btrfs or apfs",
                    ) from error
                raise

    def publish(self, source: str, spare: str, target: str) -> None:
        with translate_storage_errors("publish", target):
            if not os.path.lexists(spare):
                os.link(source, spare)
            system.replace_file(spare, target)

    def move(self, source: str, target: str) -> None:
        with translate_storage_errors("rename", source):
            system.replace_file(source, target)

    def is_same(self, one: str, other: str) -> bool:
        with translate_storage_errors("compare", one):
            left_status, right_status = os.stat(one), os.stat(other)
            if system.is_same_entry(left_status, right_status):
                return True
            if left_status.st_size != right_status.st_size:
                return False
            with open(one, "rb") as left, open(other, "rb") as right:
                while chunk := left.read(_COMPARE_CHUNK):
                    if chunk != right.read(_COMPARE_CHUNK):
                        return False
            return True

    def remove(self, path: str) -> bool:
        with translate_storage_errors("remove", path):
            try:
                system.remove_file(path)
            except FileNotFoundError:
                return False
            return True

    def remove_directory(self, path: str) -> bool:
        with translate_storage_errors("remove", path):
            try:
                os.rmdir(path)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    return False
                raise
            return True

    def remove_tree(self, path: str) -> list[StorageError]:
        """Another process may have looked the directory up and make a file in it after we listed it.

        So what is still there without a refusal is listed again, a few times: whoever goes on making
        files for longer than that keeps his directory.
        """
        refusals: list[StorageError] = []
        for _ in range(_REMOVALS):
            for directory, subdirectories, files in os.walk(path, topdown=False):
                links = [name for name in subdirectories if os.path.islink(f"{directory}/{name}")]
                for name in (*files, *links):
                    self._collect(refusals, self.remove, f"{directory}/{name}")
                self._collect(refusals, self.remove_directory, directory)
            if refusals or not os.path.lexists(path):
                break
        return refusals

    @staticmethod
    def _collect(refusals: list[StorageError], remove: Callable[[str], bool], path: str) -> None:
        try:
            remove(path)
        except StorageError as refusal:
            refusals.append(refusal)

    def make_directories(self, path: str) -> list[str]:
        made: list[str] = []
        with translate_storage_errors("create", path):
            missing = []
            while not os.path.isdir(path):
                missing.append(path)
                path = os.path.dirname(path)
            for directory in reversed(missing):
                try:
                    os.mkdir(directory)
                except FileExistsError:
                    if not os.path.isdir(directory):
                        raise
                else:
                    made.append(directory)
        return made

    def sync(self, path: str) -> None:
        with translate_storage_errors("sync", path):
            system.sync_path(path)

    def copy_mode(self, model: str, path: str) -> None:
        with translate_storage_errors("set the permissions of", path):
            wanted, found = os.stat(model), os.stat(path)
            if (wanted.st_uid, wanted.st_gid) != (found.st_uid, found.st_gid):
                with suppress(PermissionError):  # only root may give files away
                    os.chown(path, wanted.st_uid, wanted.st_gid)
            mode = stat_mode.S_IMODE(wanted.st_mode)
            if stat_mode.S_ISDIR(found.st_mode):
                mode |= stat_mode.S_IRWXU  # else its own maker could not use or remove it
            if mode != stat_mode.S_IMODE(found.st_mode):
                os.chmod(path, mode)

    def check_writable(self, directory: str) -> None:
        there = find_existing_parent(directory)
        if not os.path.isdir(there):
            refusal: OSError = NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            raise as_storage_error(refusal, "write to", there)
        if not os.access(there, os.W_OK | os.X_OK):
            refusal = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            raise as_storage_error(refusal, "write to", there)

    def can_move(self, one: str, other: str) -> bool:
        with translate_storage_errors("look at", one):
            return os.stat(find_existing_parent(one)).st_dev == os.stat(find_existing_parent(other)).st_dev

    @contextmanager
    def lock(self, path: str, timeout: float) -> Iterator[None]:
        """The kernel releases it when the holder dies, and no other process can break it."""
        _refuse_network(path)
        descriptor = self._wait_for_lock(path, time.monotonic() + timeout, timeout)
        try:
            yield
        finally:
            locks.unlock(descriptor)

    def _wait_for_lock(self, path: str, deadline: float, timeout: float) -> int:
        pause, longest = _POLL_SECONDS
        while True:
            descriptor = self._try_lock(path)
            if descriptor is not None:
                return descriptor
            if time.monotonic() >= deadline:
                raise CommitConflict(
                    f"Another operation has held the lock {path} for {timeout:g} seconds.",
                    path=path,
                    hint="wait for it to end, or give more time with lock_timeout=",
                )
            time.sleep(pause)
            pause = min(pause * 2, longest)

    def _try_lock(self, path: str) -> int | None:
        self.make_directories(os.path.dirname(path))
        with translate_storage_errors("lock", path):
            return locks.try_lock(path)


def _iterate_directory(directory: str) -> Iterator[os.DirEntry[str]]:
    """What is in a directory; of a few thousand at a time there are objects."""
    with os.scandir(directory) as found:
        while entries := list(itertools.islice(found, _SCANNED)):
            yield from entries


def _make_entry(path: str, status: os.stat_result) -> FileEntry:
    return FileEntry(
        path,
        _classify_mode(status.st_mode),
        status.st_size,
        status.st_mtime_ns,
        status.st_ino or None,  # a file system without inodes has 0 for all
        None if system.WINDOWS else status.st_ctime_ns,  # when it was made, there
    )


def _stat_item(item: os.DirEntry[str]) -> os.stat_result:
    # Windows lists files without their identity, and with the size that another hard link once had.
    return os.lstat(item.path) if system.WINDOWS else item.stat(follow_symlinks=False)


def _classify_mode(mode: int) -> Kind:
    if stat_mode.S_ISREG(mode):
        return "file"
    if stat_mode.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat_mode.S_ISLNK(mode) else "other"


def _classify_link(item: os.DirEntry[str]) -> str:
    """The kind that a symlink points to; "directory" for a loop as well, "missing" where nothing is there."""
    try:
        if item.is_dir():
            return "directory"
    except OSError:
        return "directory"
    return "file" if os.path.exists(item.path) else "missing"


def _make_link_hint(source: str) -> str | None:
    """A hint on Linux's refusal of hard links to files of other users that cannot be written."""
    try:
        others = os.stat(source).st_uid != os.geteuid()
    except (OSError, AttributeError):
        return None
    return "the file belongs to another user; replacing it needs write permission on it" if others else None


def _refuse_network(path: str) -> None:
    kind = find_filesystem_type(os.path.dirname(path))
    if is_network(kind):
        raise NotSupported(
            f"{path} is on a network file system ({kind}), whose locks cannot be relied on.",
            path=path,
            hint="pass lock= with a lock that every writer shares, or move the dataset to a local disk",
        )
