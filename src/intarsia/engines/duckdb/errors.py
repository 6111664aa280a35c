"""DuckDB's errors as ours; of a stream of its rows there is only the text."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from intarsia.common.log import is_refused_access, redact
from intarsia.errors import DamagedTable, InputError, IntarsiaError, NotSupported, StorageError

__all__ = ["translate_errors", "translate_stream_errors"]


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate DuckDB's errors; errors of a registered file system are raised unchanged."""
    try:
        yield
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    except duckdb.Error as error:
        raise _to_own_error(error) from error
    except RuntimeError as error:
        if str(error) != "Query interrupted":  # DuckDB raises it for Ctrl-C
            raise
        raise KeyboardInterrupt from error


_NUMBERS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EIO,
    errno.EMFILE,
    errno.ENOENT,
)
_STATUS = re.compile(r"\bHTTP (\d{3})\b")
_SAID: dict[str, type[duckdb.Error]] = {
    "Out of Memory": duckdb.OutOfMemoryException,
    "Permission": duckdb.PermissionException,
    "IO": duckdb.IOException,
    "HTTP": duckdb.HTTPException,
    "Connection": duckdb.ConnectionException,
    "Invalid Input": duckdb.InvalidInputException,
    "Serialization": duckdb.SerializationException,
}


@contextmanager
def translate_stream_errors() -> Iterator[None]:
    """Translate errors while a result is read: Arrow's stream has only the text of DuckDB's error."""
    with translate_errors():
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            kind = _SAID.get(str(error).partition(" Error: ")[0], duckdb.Error)
            raise kind(str(error)) from error


def _find_errno(said: str) -> int | None:
    """The errno of the system error whose text is in DuckDB's message."""
    return next((number for number in _NUMBERS if os.strerror(number) in said), None)


def _to_own_error(error: duckdb.Error) -> IntarsiaError:
    said = redact(str(error)).split("\n\nLINE ", 1)[0].strip()
    if isinstance(error, duckdb.OutOfMemoryException):
        return StorageError(
            f"DuckDB has not enough memory: {said}",
            errno=_find_errno(said),
            hint="raise memory_bytes, or give it more disk (spool_dir).",
        )
    if isinstance(error, duckdb.PermissionException):
        return NotSupported(
            f"The DuckDB connection may not do this: {said}",
            hint="allow it access to files outside of the database, or pass no connection.",
        )
    status = _STATUS.search(said) if isinstance(error, duckdb.HTTPException) else None
    if status is not None and (status[1] in ("401", "403") or is_refused_access(said)):
        return StorageError(
            f"DuckDB's httpfs is refused: {said}",
            errno=errno.EACCES,
            hint="it has the credentials of filesystem= or storage_options=, as a secret for this operation: "
            "correct them there. Where only httpfs is refused, pass a connection with a secret of your own "
            "for the table's directory (CREATE SECRET), or one without httpfs: then files are read through "
            "filesystem=.",
        )
    if isinstance(error, (duckdb.IOException, duckdb.HTTPException)):
        number = errno.ENOENT if status and status[1] == "404" else _find_errno(said)
        return StorageError(f"DuckDB cannot read or write: {said}", errno=number)
    if isinstance(error, duckdb.ConnectionException):
        return InputError(f"The DuckDB connection cannot be used: {said}", hint="open it, or pass none.")
    damaged = isinstance(error, (duckdb.InvalidInputException, duckdb.SerializationException))
    if damaged or "TProtocolException" in said or "don't know what type" in said:
        return DamagedTable(
            f"DuckDB cannot read a file: {said}",
            hint="the file is damaged, or was replaced while it was read; restore it or run again.",
        )
    return NotSupported(f"DuckDB cannot do this: {said}", hint='use engine="arrow".')
