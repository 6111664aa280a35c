"""Opens the files of a snapshot so that no later commit changes what is read of them."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.errors import CommitConflict, NotSupported, StorageError

if TYPE_CHECKING:
    from intarsia.core.files import DataFile, Snapshot

Look = Callable[[str], tuple[Any, ...] | None]
"""The fingerprint of the file at a location as it is now, or None when there is none."""

_USUAL_LIMIT = 1024


def opened_files(snapshot: Snapshot) -> list[pa.NativeFile] | None:
    """The snapshot's files, open: an open file stays what it is when a commit puts another in its place.

    None where that holds by itself (``look`` is None), or cannot be had (not a local file system).

    Raises:
        CommitConflict: a file was replaced or removed since the snapshot was taken.
        NotSupported: there are more files than half of those the process may have open.
    """
    if snapshot.look is None or not isinstance(snapshot.filesystem, pafs.LocalFileSystem):
        return None
    most = open_limit() // 2
    if len(snapshot.files) > most:
        raise NotSupported(
            f"{snapshot.root} has {len(snapshot.files)} files, of which {most} may be open at once.",
            path=snapshot.root,
            hint="use read_parquet, or the dataset of ParquetTable(path).materialise(), which keeps links"
            " instead, or raise the limit of open files (ulimit -n)",
        )
    return [_opened(snapshot, file) for file in snapshot.files]


def open_limit() -> int:
    """How many files this process may have open."""
    try:
        import resource
    except ImportError:  # not a Unix
        return _USUAL_LIMIT
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _opened(snapshot: Snapshot, file: DataFile) -> pa.NativeFile:
    try:
        found = snapshot.filesystem.open_input_file(file.location)
    except FileNotFoundError as error:
        raise _conflict(snapshot, file) from error
    except OSError as error:
        raise StorageError(
            f"Could not open {snapshot.shown(file)}: {error.strerror or error}",
            errno=error.errno or errno.EIO,
            path=snapshot.root,
        ) from error
    # Looked at after opening: while its name still stands for the file of the snapshot, that was opened.
    try:
        check_same(snapshot, file)
    except CommitConflict:
        found.close()
        raise
    return found


def check_same(snapshot: Snapshot, file: DataFile) -> None:
    """Raise CommitConflict where another file has taken the place of one of the snapshot."""
    if snapshot.look is not None and file.fingerprint and snapshot.look(file.location) != file.fingerprint:
        raise _conflict(snapshot, file)


def _conflict(snapshot: Snapshot, file: DataFile) -> CommitConflict:
    return CommitConflict(
        f"{snapshot.shown(file)} was replaced or removed since the snapshot was taken.",
        path=snapshot.root,
        hint="take a snapshot again; read_parquet does so by itself",
    )
