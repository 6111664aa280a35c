"""Files on this machine's own disks."""

from __future__ import annotations

import os
from contextlib import suppress

import pyarrow.fs as pafs

__all__ = ["local_path", "start_writeback"]


def local_path(filesystem: pafs.FileSystem, location: str) -> str | None:
    """The path of a file on this machine's own file system; None for any other."""
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        return local_path(filesystem.base_fs, filesystem.base_path.rstrip("/") + "/" + location)
    return location if isinstance(filesystem, pafs.LocalFileSystem) else None


def start_writeback(filesystem: pafs.FileSystem, location: str) -> None:
    """Have the system begin to write a finished file to disk, without waiting for it.

    A commit has to wait until all its files are there; so it waits while others are still being made.
    """
    path = local_path(filesystem, location)
    if path is None or not hasattr(os, "posix_fadvise"):
        return
    with suppress(OSError):  # it is only advice
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
