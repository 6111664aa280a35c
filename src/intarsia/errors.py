"""Every error intarsia raises on purpose; nothing here catches anything.

::

    IntarsiaError
      InputError (ValueError)            an argument or the data given is wrong
        KeyColumnError                   missing, NULL, duplicate or unsupported keys
        PartitionMoveError               an existing key would change its partition
        UnsafePath                       a partition value or a file that cannot be a safe path
        ColumnNotFound (ArrowKeyError)   a column that was named is not there
          PartitionColumnNotFound        also NothingMatched: a partition_filter that names no partition
        SchemaMismatch                   also pa.ArrowInvalid and pa.ArrowTypeError
        RestoreError                     a version that cannot be restored; says which can
      NothingMatched (FileNotFoundError) no Parquet file to work on
      StorageError (OSError)             the file system said no; keeps errno
      CommitError (RuntimeError)
        CommitConflict                   another writer came first and touched the same files
        CommitUnknown                    committed but not known to be published; says what to do
      EngineError (RuntimeError)         Spark was stopped, cancelled, lost or out of memory
      NotSupported (NotImplementedError) this engine, table or store cannot; says which can
      DamagedTable (pa.ArrowInvalid)     a file or the journal is damaged; says which

Each carries ``path``, ``hint``, ``txid`` and ``changed``: False when every byte of the target is as
it was, True when the change is in effect, None when it cannot be known. All of them pickle.
"""

from __future__ import annotations

import errno as numbers
import re
from typing import Any

import pyarrow as pa

_NAMES_OPERATION = re.compile(r"[a-z_]+( \([a-z_]+\))?: ")

_NO_ROOM = "free some space and run the operation again"
_NO_PERMISSION = "give this user permission there, or run as one who has it"
_STORAGE_HINTS: dict[int | None, str] = {
    numbers.ENOSPC: _NO_ROOM,
    numbers.EDQUOT: _NO_ROOM,
    numbers.EACCES: _NO_PERMISSION,
    numbers.EPERM: _NO_PERMISSION,
    numbers.EROFS: "the file system is mounted read-only",
    numbers.EIO: "the disk failed: check it before running the operation again",
    numbers.EMFILE: "raise the limit of open files, or pass a smaller threads=",
}


class IntarsiaError(Exception):
    """Base of every error raised on purpose."""

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        hint: str | None = None,
        changed: bool | None = False,
        txid: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.hint = hint
        self.changed = changed
        self.txid = txid

    def __str__(self) -> str:
        parts = [self.message]
        if self.path and self.path not in self.message:
            parts.append(f"[{self.path}]")
        if self.hint:
            parts.append(f"Hint: {self.hint}")
        return " ".join(parts)

    def place(self, operation: str, path: str) -> None:
        """Name the operation and the path, where the error was raised without knowing them."""
        asked = isinstance(self, (InputError, NothingMatched, NotSupported))
        if asked and not _NAMES_OPERATION.match(self.message):
            self.message = f"{operation}: {self.message}"
            self.args = (self.message, *self.args[1:])
        if self.path is None and path:
            self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.__dict__.copy()
        if isinstance(self, OSError):  # a C-level slot, not in __dict__
            state["errno"] = self.errno
        return _revive, (type(self), self.message, state)


def _revive(cls: type[IntarsiaError], message: str, state: dict[str, Any]) -> IntarsiaError:
    error = cls(message)
    for name, value in state.items():
        setattr(error, name, value)
    return error


class InputError(IntarsiaError, ValueError):
    """An argument, or the data given, is wrong. Nothing was changed."""


class KeyColumnError(InputError):
    """Key columns are missing, hold NULLs or duplicates, or have a type that cannot be a key."""


class PartitionMoveError(InputError):
    """An existing key would have to move to another partition."""


class UnsafePath(InputError):
    """A partition value, or a file found, that cannot be turned into a safe path."""


class ColumnNotFound(InputError, pa.ArrowKeyError):
    """A column that was named does not exist."""


class SchemaMismatch(InputError, pa.ArrowInvalid, pa.ArrowTypeError):
    """Source and target cannot be brought to one schema without losing data."""


class RestoreError(InputError):
    """A version that cannot be restored: unknown, not retained, or changed by others since. Nothing was
    changed; ``versions`` are those that can be, newest first."""

    def __init__(self, message: str, *, versions: tuple[int, ...] = (), **context: Any) -> None:
        super().__init__(message, **context)
        self.versions = versions


class NothingMatched(IntarsiaError, FileNotFoundError):
    """There is no Parquet file to work on under the path."""


class PartitionColumnNotFound(ColumnNotFound, NothingMatched):
    """A partition filter names a column by which the table is not partitioned, so no file can match."""


class StorageError(IntarsiaError, OSError):
    """The file system refused; ``errno`` is the one it gave, and the hint follows it unless one is given."""

    def __init__(self, message: str, *, errno: int | None = None, **context: Any) -> None:
        super().__init__(message, **context)
        self.errno = errno
        self.hint = self.hint or _STORAGE_HINTS.get(errno)


class CommitError(IntarsiaError, RuntimeError):
    """The commit did not go through as asked."""


class CommitConflict(CommitError):
    """Another writer changed files that this operation had planned on. Nothing was changed."""


class CommitUnknown(CommitError):
    """The commit was recorded, but publishing it was not finished; the next operation finishes it."""


class EngineError(IntarsiaError, RuntimeError):
    """What runs the operation ended before the work was done: stopped, cancelled, out of memory, unreachable.

    Nothing was changed.
    """


class NotSupported(IntarsiaError, NotImplementedError):
    """This engine, table or store cannot do it; the hint says which can."""


class DamagedTable(IntarsiaError, pa.ArrowInvalid):
    """A data file or the journal is damaged, or they disagree."""
