"""The port of a store: the operations that a table needs, and their errors; no store is in here."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.common.log import is_store_error, redact
from intarsia.common.requests import Requests
from intarsia.errors import IntarsiaError, StorageError

Kind = Literal["file", "directory", "symlink", "other"]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One name found in a store. ``path`` is relative to what was listed, ``/`` between parts."""

    path: str
    kind: Kind
    size: int = 0
    mtime_ns: int = 0
    identity: int | str | None = None
    """The inode, or the store's entity tag; None where the store has neither."""
    changed_ns: int | None = field(default=None, compare=False)
    """When the inode changed last (ctime), which no writer can set back; 0 where ``identity`` is an entity
    tag, which other bytes do not have; None where neither is known."""

    @property
    def fingerprint(self) -> tuple[int, int, int | str | None]:
        """Changes whenever the bytes do, as far as the store can tell."""
        return (self.size, self.mtime_ns, self.identity)


class RandomAccess(Protocol):
    """An open file, as far as reading some of its bytes goes."""

    def size(self) -> int: ...

    def read_at(self, size: int, start: int, /) -> bytes: ...


class Storage(Protocol):
    """A store of files. Paths are the store's own, absolute and normalised.

    Every method raises StorageError (with ``errno`` where there is one) when the store refuses.
    What ``atomic`` promises: :meth:`claim` has one winner, :meth:`publish` shows a reader the old
    file or the new one and never neither, and :meth:`lock` excludes every other process.
    """

    @property
    def filesystem(self) -> pafs.FileSystem:
        """For reading and writing data; pickles."""

    @property
    def atomic(self) -> bool: ...

    @property
    def conditional(self) -> bool:
        """Whether a claim has one winner and a file is replaced only if it is the planned one, without any
        lock; see :class:`intarsia.storage.objects.ObjectStorage`."""

    @property
    def requests(self) -> Requests | None:
        """What was sent to the store so far; None where nothing is counted, such as on a disk."""

    def walk(
        self, root: str, descend: Callable[[str], bool], *, names_only: bool = False
    ) -> Iterator[FileEntry]:
        """Everything below ``root``; a directory is entered when ``descend(its name)``.

        With ``names_only`` sizes, times and identities may be left out, where that is less work.
        """

    def names(self, directory: str) -> list[str]:
        """The names in a directory; empty when there is none."""

    def stat(self, path: str) -> FileEntry | None:
        """The entry itself (a symlink is not followed), or None."""

    def read(self, path: str) -> bytes: ...

    def open_ranges(
        self, path: str, size: int, tag: int | str | None = None
    ) -> AbstractContextManager[RandomAccess]:
        """A file of known size, of which some bytes are wanted; with as few requests as the store needs.

        Raises FileNotFoundError where it is gone; on a store, also where its entity tag is not ``tag``.
        """

    def write(self, path: str, data: bytes) -> None:
        """Write a small file; on return its bytes are durable (its name is not yet)."""

    def claim(self, source: str, target: str) -> bool:
        """Give ``source`` the name ``target`` unless it is taken; False when it is."""

    def make_hard_link(self, source: str, target: str) -> None:
        """A second name for the same bytes, or a copy where the store has no such thing."""

    def publish(self, source: str, spare: str, target: str) -> None:
        """Put the bytes of ``source`` under ``target``; ``source`` keeps its name.

        ``spare`` is a hard link to ``source`` that may be consumed, and is made again when it is gone.
        """

    def move(self, source: str, target: str) -> None:
        """Rename within the control directory, over whatever is there."""

    def is_same(self, one: str, other: str) -> bool:
        """Whether two existing files hold the same bytes, by identity or by reading."""

    def remove(self, path: str) -> bool:
        """Remove a file; False when it was gone already."""

    def remove_directory(self, path: str) -> bool:
        """Remove a directory if it is empty; False when it is not, or is gone."""

    def remove_tree(self, path: str) -> list[StorageError]:
        """Remove a directory and all in it, going on after a refusal; returns the refusals."""

    def make_directories(self, path: str) -> list[str]:
        """Create a directory and its parents; returns those that were new, outermost first."""

    def sync(self, path: str) -> None:
        """Make the bytes of a file, or the names in a directory, durable."""

    def copy_mode(self, model: str, path: str) -> None:
        """Give ``path`` the owner and permissions of ``model``, as far as the process may."""

    def check_writable(self, directory: str) -> None:
        """Refuse when no file could be put into ``directory``, or it could not be created."""

    def can_move(self, one: str, other: str) -> bool:
        """Whether files can move between two places (which may not exist yet)."""

    def lock(self, path: str, timeout: float) -> AbstractContextManager[None]:
        """Hold an exclusive lock; raises CommitConflict after ``timeout`` seconds."""


@dataclass(frozen=True, slots=True)
class StatFile:
    """Tells the fingerprint of the file at a path as of now, None when it is gone; pickles."""

    storage: Storage

    def __call__(self, path: str) -> tuple[int, int, int | str | None] | None:
        entry = self.storage.stat(path)
        return None if entry is None else entry.fingerprint


@contextmanager
def translate_storage_errors(action: str, path: str, *, hint: str | None = None) -> Iterator[None]:
    """Turn an OSError in the block into a StorageError with its errno, the path and the action."""
    try:
        yield
    except IntarsiaError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise as_storage_error(error, action, path, hint=hint) from error
    except Exception as error:  # clients of stores have exceptions of their own
        if not is_store_error(error):
            raise
        raise as_storage_error(error, action, path, hint=hint) from error


def as_storage_error(
    error: BaseException, action: str, path: str, *, hint: str | None = None
) -> StorageError:
    """A StorageError with the errno and the text of ``error``."""
    number = getattr(error, "errno", None)
    if number is None and isinstance(error, FileNotFoundError):
        number = errno.ENOENT
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    message = redact(f"Could not {action} {path}: {reason}")
    if hint is None and number == errno.ENOTDIR:
        hint = "move away what has the name of this directory, or of one above it, and is none."
    return StorageError(message, errno=number, path=redact(path), hint=hint)
