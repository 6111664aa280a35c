"""Locks that the kernel frees when their holder dies, and where they can be relied on; no waiting in here."""

from __future__ import annotations

import os
import sys

_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "ncpfs",
    "afs",
    "9p",
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.gcsfuse",
    "fuse.rclone",
)


def try_flock(path: str) -> int | None:
    """A descriptor that holds the lock on a file, made where it is missing; None when another has it.

    None also when the file, or its directory, was removed meanwhile: then try again. Raises OSError.
    """
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:  # its holder tidied the directory away just now
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _still_named(descriptor, path):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def unlock(descriptor: int) -> None:
    """Free a lock."""
    import fcntl

    try:
        # A forked child may share the description: unlocking frees it there, closing alone would not.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _still_named(descriptor: int, path: str) -> bool:
    """Whether the locked file is the one under ``path``; a holder may have removed it meanwhile."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def nearest(path: str) -> str:
    """The path, or the nearest directory above it that exists."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def filesystem_type(path: str) -> str | None:
    """The type of the file system under ``path`` (``ext4``, ``nfs4``), or None where it cannot be told."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        device = os.stat(nearest(path)).st_dev
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            lines = mounts.readlines()
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        words = line.split()
        if len(words) > 2 and words[2] == number and "-" in words:
            return words[words.index("-") + 1]
    return None


def is_network(kind: str | None) -> bool:
    """Whether a type of file system is one whose locks cannot be relied on."""
    return kind is not None and kind.startswith(_NETWORK)
