"""Scratch directories: each has a mark while its owner runs, and is swept once the owner is gone.

The mark is a lock beside the directory, which the kernel frees when its holder dies. Where locks cannot be
relied on (network file systems, object stores) it is a lease: the owner renews it every few minutes, from
whatever machine, and one that was not renewed for an hour is taken for given up. An owner that was merely
stopped for so long finds its scratch gone and fails; it never reads another's.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import pyarrow.fs as pafs

from intarsia.common.locks import remove_lock, try_lock, unlock
from intarsia.common.log import get_logger
from intarsia.common.system import find_filesystem_type, is_network, to_slashes
from intarsia.errors import StorageError

log = get_logger(__name__)

LEASE_SECONDS = 3600.0
RENEW_SECONDS = 300.0
PLANNED_SECONDS = 24 * 3600.0
"""How long a directory waits for the first process that works on it, such as a task of a long Spark job."""
_WAIT_SECONDS = 5.0
_MARK = re.compile(r"^((?:\.staging_)?[0-9a-f]{32})\.(lock|lease)$")


class Mark(Protocol):
    """The sign that the owner of a directory is alive."""

    def release(self) -> None:
        """Remove the mark: the directory is gone, or may be removed. Idempotent."""


def mark(filesystem: pafs.FileSystem, directory: str) -> Mark:
    """Mark a directory, which need not exist yet, as this process's own until released, or until it dies.

    Raises StorageError where the mark cannot be made.
    """
    try:
        if _has_locks(filesystem, directory):
            return _Lock(f"{directory}.lock")
        return _Lease(filesystem, f"{directory}.lease")
    except OSError as error:
        raise _make_mark_error(error, directory) from error


@dataclass(frozen=True, slots=True)
class Lease:
    """The mark of a directory that several processes work on in turn, none of them to the end; pickles.

    The directory waits a day for the first of them; :func:`renew_lease` then says each time that it is in use
    for another hour.
    """

    filesystem: pafs.FileSystem
    directory: str

    def release(self) -> None:
        _remove_file(self.filesystem, f"{self.directory}.lease")


def make_lease(filesystem: pafs.FileSystem, directory: str) -> Lease:
    """Mark a directory, which need not exist yet, as in use. Raises StorageError."""
    try:
        filesystem.create_dir(directory.rpartition("/")[0], recursive=True)
        _write_lease(filesystem, f"{directory}.lease", PLANNED_SECONDS)
    except OSError as error:
        raise _make_mark_error(error, directory) from error
    return Lease(filesystem, directory)


@contextmanager
def renew_lease(filesystem: pafs.FileSystem, directory: str) -> Iterator[None]:
    """Keep a directory of :func:`make_lease` marked while the block runs; the mark stays afterwards.

    Raises StorageError where the directory is gone: the work that it was made for has ended.
    """
    if filesystem.get_file_info(directory).type == pafs.FileType.NotFound:
        raise StorageError(f"{directory} is gone.", errno=errno.ENOENT, path=directory)
    lease = _Lease(filesystem, f"{directory}.lease")
    try:
        yield
    finally:
        lease.stop()


def _make_mark_error(error: OSError, directory: str) -> StorageError:
    return StorageError(
        f"Could not mark {directory} as in use: {error.strerror or error}", errno=error.errno, path=directory
    )


def sweep(filesystem: pafs.FileSystem, parent: str) -> list[str]:
    """Remove the marked directories in ``parent`` whose owner is gone, and say which those were.

    A directory without a mark is left alone. What cannot be read or removed is
    left to the next sweep.
    """
    swept = []
    for name in _names(filesystem, parent):
        found = _MARK.match(name)
        if found is None:
            continue
        directory = f"{parent}/{found[1]}"
        take_over = _remove_if_unlocked if found[2] == "lock" else _remove_if_expired
        try:
            if take_over(filesystem, directory):
                swept.append(directory)
        except OSError as error:
            log.debug("could not sweep %s: %s", directory, error)
    return swept


def make_private_base() -> str:
    """A directory in the system's temporary one that is this user's alone; made where it is missing.

    Raises StorageError when something else has its name.
    """
    base = _find_private_base()
    with suppress(FileExistsError):
        os.mkdir(base, 0o700)
    if not _is_private(base):
        raise StorageError(
            f"{base} is not a directory of this user's alone.",
            path=base,
            hint="name another place by spool_dir= or TMPDIR",
        )
    return base


@contextmanager
def make_scratch_directory(parent: str | None = None) -> Iterator[str]:
    """An empty directory of this machine, in :func:`make_private_base` or another one; removed afterwards."""
    directory = f"{make_private_base() if parent is None else parent}/{uuid.uuid4().hex}"
    held = mark(pafs.LocalFileSystem(), directory)
    try:
        os.mkdir(directory, 0o700)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        held.release()


def sweep_private() -> list[str]:
    """Sweep the directory of :func:`make_private_base`; it stays, as others may be about to use it."""
    base = _find_private_base()
    return sweep(pafs.LocalFileSystem(), base) if _is_private(base) else []


def remove_directory(filesystem: pafs.FileSystem, directory: str) -> bool:
    """Remove a directory with all in it, links unfollowed; whether it is gone.

    It is renamed first, so that a task of Spark which was cancelled, and still writes, begins no file in it.
    """
    if isinstance(filesystem, pafs.LocalFileSystem):
        renamed = f"{directory}.gone"
        if not os.path.islink(directory):
            with suppress(OSError):
                os.rename(directory, renamed)
        for path in (directory, renamed):
            shutil.rmtree(path, ignore_errors=True)
        return not (os.path.lexists(directory) or os.path.lexists(renamed))
    with suppress(FileNotFoundError):
        filesystem.delete_dir(directory)
    return True


def _find_private_base() -> str:
    user = os.geteuid() if hasattr(os, "geteuid") else "user"
    return f"{to_slashes(tempfile.gettempdir())}/intarsia-{user}"


def _is_private(base: str) -> bool:
    """Whether a directory is this user's own and no link; other users may write to its parent."""
    try:
        found = os.lstat(base)
    except FileNotFoundError:
        return False
    ours = not hasattr(os, "geteuid") or (found.st_uid == os.geteuid() and not found.st_mode & 0o077)
    return stat.S_ISDIR(found.st_mode) and ours


def _has_locks(filesystem: pafs.FileSystem, path: str) -> bool:
    return isinstance(filesystem, pafs.LocalFileSystem) and not is_network(
        find_filesystem_type(os.path.dirname(path))
    )


def _names(filesystem: pafs.FileSystem, directory: str) -> list[str]:
    try:
        found = filesystem.get_file_info(pafs.FileSelector(directory, allow_not_found=True))
    except OSError as error:
        log.debug("could not list %s: %s", directory, error)
        return []
    return sorted(info.base_name for info in found)


class _Lock:
    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = self._take()

    def _take(self) -> int:
        deadline = time.monotonic() + _WAIT_SECONDS
        parent = os.path.dirname(self._path)
        while True:  # only a sweep can hold this lock, and it releases it at once
            os.makedirs(parent, exist_ok=True)
            descriptor = try_lock(self._path)
            if descriptor is not None:
                return descriptor
            if time.monotonic() > deadline:
                raise TimeoutError(f"the lock {self._path} is held by another process")
            time.sleep(0.005)

    def release(self) -> None:
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        remove_lock(descriptor, self._path)


def _remove_if_unlocked(filesystem: pafs.FileSystem, directory: str) -> bool:
    """Remove a directory whose lock nobody holds, and the lock with it."""
    path = f"{directory}.lock"
    descriptor = try_lock(path)
    if descriptor is None:
        return False  # its owner lives
    gone = False
    try:
        gone = remove_directory(filesystem, directory)
    finally:
        if not gone:
            unlock(descriptor)
    if gone:
        remove_lock(descriptor, path)
    return gone


class _Lease:
    def __init__(self, filesystem: pafs.FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._ended = threading.Event()
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        _write_lease(filesystem, path)
        self._thread = threading.Thread(target=self._keep, name="intarsia-lease", daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            try:
                _write_lease(self._filesystem, self._path)
            except OSError as error:
                log.warning("could not renew the lease %s: %s", self._path, error)

    def stop(self) -> None:
        """Renew it no more. Idempotent."""
        self._ended.set()
        self._thread.join()

    def release(self) -> None:
        if not self._ended.is_set():
            self.stop()
            _remove_file(self._filesystem, self._path)


def _remove_if_expired(filesystem: pafs.FileSystem, directory: str) -> bool:
    """Remove a directory whose lease has run out, and the lease with it."""
    path = f"{directory}.lease"
    try:
        with filesystem.open_input_stream(path) as stream:
            text = stream.read()
    except FileNotFoundError:
        return False
    try:
        until = float(text)
    except ValueError:  # incomplete, by a crash or just being written: begun again, a living owner renews it
        _write_lease(filesystem, path)
        return False
    if time.time() <= until:
        return False
    gone = remove_directory(filesystem, directory)
    if gone:
        _remove_file(filesystem, path)
    return gone


def _write_lease(filesystem: pafs.FileSystem, path: str, seconds: float = LEASE_SECONDS) -> None:
    with filesystem.open_output_stream(path) as stream:
        stream.write(f"{time.time() + seconds:.0f}\n".encode())


def _remove_file(filesystem: pafs.FileSystem, path: str) -> None:
    with suppress(FileNotFoundError):
        filesystem.delete_file(path)
