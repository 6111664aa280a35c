"""What is said when driver and executors do not reach the same storage."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager

from intarsia.errors import StorageError

_HINT = "name spool_dir= on storage that driver and executors share."


def refused(error: OSError, action: str, path: str) -> StorageError:
    """The storage would not take rows that are to wait there."""
    return StorageError(
        f"Could not {action} {path}, where rows of the source wait: {error.strerror or error}",
        errno=error.errno,
        path=path,
        hint=_HINT,
    )


@contextmanager
def telling(action: str, path: str) -> Iterator[None]:
    """What the storage refuses meanwhile is told as :func:`refused`; what was told already stays as it is."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise refused(error, action, path) from error


def unreachable(location: str, message: str) -> StorageError:
    """A place that only one side can see."""
    return StorageError(message, errno=errno.ENOENT, path=posixpath.dirname(location), hint=_HINT)
