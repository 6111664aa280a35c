"""What operating systems do in their own ways: paths, durability, renames, types of file systems, memory.

Linux is what everything is tried on. On Windows a commit to local files is refused (:func:`refuse_untried`):
its branches here are tested with stand-ins, and no process was ever killed there.
"""

from __future__ import annotations

import errno
import importlib
import ntpath
import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from intarsia.errors import NotSupported

__all__ = [
    "BINARY",
    "MACOS",
    "UNTRIED",
    "WINDOWS",
    "find_existing_parent",
    "find_filesystem_type",
    "is_network",
    "is_same_entry",
    "parse_file_url",
    "read_physical_memory",
    "refuse_untried",
    "remove_file",
    "replace_file",
    "sync_descriptor",
    "sync_path",
    "to_slashes",
]

WINDOWS = sys.platform == "win32"
MACOS = sys.platform == "darwin"
UNTRIED = "INTARSIA_UNTRIED_PLATFORM"
"""The variable that allows commits where none of the tests of crashes was ever run."""

BINARY: int = getattr(os, "O_BINARY", 0)  # without it Windows writes "\r\n" for "\n"
_NO_FULL_SYNC = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)
_SHARING = (5, 32, 33)
"""Windows' access denied, sharing violation and lock violation: what an open file answers."""
_SHARING_SECONDS = 5.0
_DRIVE_REMOTE = 4
_MEMORY_STATUS_SIZE = 64
_STATFS_SIZE = 4096
_STATFS_FLAGS, _STATFS_TYPE, _STATFS_TYPE_END = 64, 72, 88
_MNT_LOCAL = 0x1000
_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "ncpfs",
    "afs",
    "9p",
    "network",
    "webdav",
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.gcsfuse",
    "fuse.rclone",
)

T = TypeVar("T")


def refuse_untried(path: str) -> None:
    """Raise NotSupported where commits to local files were never tried, unless the user says otherwise."""
    if not WINDOWS or os.environ.get(UNTRIED) == "1":
        return
    raise NotSupported(
        f"{path} is on a local disk of Windows, where no commit has been tried: it is not known what a crash"
        " or a power cut would leave.",
        path=path,
        hint="use Linux (WSL will do) or an object store; reading and dry runs are fine here."
        f" {UNTRIED}=1 in the environment allows it at your own risk",
    )


# Paths: with "/" between their parts everywhere, as Arrow, DuckDB and Spark have them.


def to_slashes(path: str) -> str:
    r"""A local path with ``/`` between its parts: on Windows ``C:\lake`` becomes ``C:/lake``.

    On other systems a backslash is a letter like any other.
    """
    if not WINDOWS:
        return path
    plain = path.removeprefix("\\\\?\\")
    if plain.upper().startswith("UNC\\") and plain != path:
        plain = f"\\\\{plain[4:]}"
    return plain.replace("\\", "/")


def parse_file_url(url: str) -> str:
    """The local path of a ``file:`` URL: of ``file:///C:/lake`` on Windows ``C:/lake``.

    A host is that of a share on Windows, which alone has such paths, and is ignored elsewhere.
    """
    parts = urlsplit(url)
    path, host = unquote(parts.path), parts.netloc
    if not WINDOWS:
        return path
    if host and ntpath.splitdrive(host)[0] == host:  # file://C:/lake, as many write it
        return f"{host}{path}"
    if host and host.lower() != "localhost":
        return f"//{host}{path}"
    return path[1:] if ntpath.splitdrive(path[1:])[0] else path


def find_existing_parent(path: str) -> str:
    """The path, or the nearest directory above it that exists; on Windows a drive need not exist either."""
    while not os.path.lexists(path):
        above = os.path.dirname(path)
        if above == path:
            break
        path = above
    return path


# Durability and renames.


def sync_descriptor(descriptor: int) -> None:
    """Make what was written to a file durable.

    macOS's fsync leaves it in the cache of the disk; F_FULLFSYNC does not, and some file systems lack it.
    """
    if MACOS:
        fcntl: Any = importlib.import_module("fcntl")
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
    os.fsync(descriptor)


def sync_path(path: str) -> None:
    """Make the bytes of a file, or the names in a directory, durable.

    Windows opens no directory for this, and flushes files only through a descriptor that may write.
    """
    if WINDOWS and os.path.isdir(path):
        return
    descriptor = os.open(path, (os.O_RDWR if WINDOWS else os.O_RDONLY) | BINARY)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def replace_file(source: str, target: str) -> None:
    """Rename over whatever is there, atomically. Windows refuses while either is open, and is asked again."""
    _retry_sharing(lambda: os.replace(source, target))


def remove_file(path: str) -> None:
    """Remove a file, which Windows refuses while it is open."""
    _retry_sharing(lambda: os.unlink(path))


def _retry_sharing(call: Callable[[], T]) -> T:
    deadline, pause = time.monotonic() + _SHARING_SECONDS, 0.01
    while True:
        try:
            return call()
        except OSError as error:
            refused = WINDOWS and getattr(error, "winerror", None) in _SHARING
            if not refused or time.monotonic() >= deadline:
                raise
            time.sleep(pause)
            pause = min(pause * 2, 0.25)


def is_same_entry(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether two results of stat are of one file; False where a file system has no inodes (0)."""
    return one.st_ino != 0 and os.path.samestat(one, other)


# Types of file systems.


def find_filesystem_type(path: str) -> str | None:
    """The type of the file system under ``path`` (``ext4``, ``nfs4``, ``apfs``), or None where it is unknown.

    A network drive of Windows is ``network``, and so is what macOS does not call local.
    """
    try:
        there = find_existing_parent(path)
        if sys.platform.startswith("linux"):
            return _read_mountinfo(os.stat(there).st_dev)
        if MACOS:
            return _decode_statfs(_call_statfs(there))
    except OSError:
        return None
    return _find_drive_type(there) if WINDOWS else None


def is_network(kind: str | None) -> bool:
    """Whether a type of file system is one whose locks cannot be relied on."""
    return kind is not None and kind.startswith(_NETWORK)


def _read_mountinfo(device: int) -> str | None:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        lines = mounts.readlines()
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        words = line.split()
        if len(words) > 2 and words[2] == number and "-" in words:
            return words[words.index("-") + 1]
    return None


def _call_statfs(path: str) -> bytes:
    """macOS's ``struct statfs`` of a path, of the form with 64-bit inodes. Raises OSError."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    # Intel's has the older form under the plain name.
    statfs = getattr(library, "statfs$INODE64", None) or library.statfs
    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    if statfs(os.fsencode(path), buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return buffer.raw


def _decode_statfs(raw: bytes) -> str:
    """The type in a ``struct statfs``, ``network`` where it says nothing better of what is not local."""
    kind = raw[_STATFS_TYPE:_STATFS_TYPE_END].partition(b"\0")[0].decode("ascii", "replace")
    flags = int.from_bytes(raw[_STATFS_FLAGS : _STATFS_FLAGS + 4], sys.byteorder)
    return kind if flags & _MNT_LOCAL or is_network(kind) else f"network ({kind})"


def _find_drive_type(path: str) -> str | None:
    drive = ntpath.splitdrive(path.replace("/", "\\"))[0]
    if drive.startswith("\\\\"):
        return "network"
    ctypes: Any = importlib.import_module("ctypes")
    remote = ctypes.windll.kernel32.GetDriveTypeW(f"{drive}\\") == _DRIVE_REMOTE
    return "network" if remote else None


# Memory.


def read_physical_memory() -> int:
    """Bytes of memory of the machine."""
    if not WINDOWS:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    ctypes: Any = importlib.import_module("ctypes")
    status = ctypes.create_string_buffer(_MEMORY_STATUS_SIZE)  # MEMORYSTATUSEX: its length, load, total, ...
    struct.pack_into("<I", status, 0, _MEMORY_STATUS_SIZE)
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(status):
        raise OSError("Windows does not say how much memory there is")
    (total,) = struct.unpack_from("<Q", status, 8)
    return int(total)
