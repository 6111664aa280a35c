"""Metadata files, read and written whole through a table's FileIO, with errors that name them."""

from __future__ import annotations

from pyiceberg.io import FileIO

from intarsia.errors import DamagedTable, StorageError


def read_bytes(io: FileIO, path: str, what: str) -> bytes:
    """All bytes of a file that the table names.

    Raises:
        DamagedTable: it is not there.
        StorageError: it cannot be read.
    """
    try:
        with io.new_input(path).open(seekable=False) as stream:
            return bytes(stream.read())
    except FileNotFoundError as error:
        raise DamagedTable(
            f"the {what} is named by the table but does not exist",
            path=path,
            hint="another process may have expired its snapshot: load the table again; else restore the file",
        ) from error
    except OSError as error:
        raise StorageError(f"cannot read the {what}: {error}", path=path, errno=error.errno) from error


def write_bytes(io: FileIO, path: str, data: bytes, what: str) -> None:
    """Write a file of a name that nobody else has.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        with io.new_output(path).create(overwrite=True) as stream:
            stream.write(data)
    except OSError as error:
        raise StorageError(f"cannot write the {what}: {error}", path=path, errno=error.errno) from error
