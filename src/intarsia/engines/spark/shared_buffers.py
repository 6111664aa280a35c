"""What every task of a stage needs and what is too large for a closure: buffers in a file that tasks map."""

from __future__ import annotations

import errno
import pickle
import posixpath
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark import cloudpickle

from intarsia.errors import StorageError

INLINE_BYTES = 8 << 20
"""Up to so much Arrow data travels with the tasks themselves."""
_ALIGNMENT = 64


class SharedDirectory(Protocol):
    """A directory that driver and executors share, for the length of a stage."""

    @property
    def filesystem(self) -> pafs.FileSystem: ...

    @property
    def directory(self) -> str: ...


@dataclass(frozen=True, slots=True)
class SharedBuffers:
    """A packed value whose Arrow buffers lie in a file; the pickle itself never leaves the closure."""

    value: bytes
    filesystem: pafs.FileSystem
    location: str
    places: tuple[tuple[int, int], ...]
    """Where each buffer begins, and its length."""

    def load(self) -> Any:
        """The value; on one machine all tasks share the file's pages instead of holding copies."""
        try:
            whole = self._mapped()
        except FileNotFoundError as error:
            told = f"An executor does not see {self.location}, where rows of the source wait."
            raise unreachable_error(self.location, told) from error
        return pickle.loads(self.value, buffers=[whole.slice(*place) for place in self.places])

    def _mapped(self) -> pa.Buffer:
        if isinstance(self.filesystem, pafs.LocalFileSystem):
            with pa.memory_map(self.location) as file:
                return file.read_buffer()
        with self.filesystem.open_input_file(self.location) as file:
            return file.read_buffer()


def share_buffers(value: Any, room: SharedDirectory) -> SharedBuffers:
    """Pack a value, its buffers in a new file of the room."""
    buffers: list[pickle.PickleBuffer] = []
    data: bytes = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)  # type: ignore[no-untyped-call]
    location = f"{room.directory}/{uuid.uuid4().hex}.shared"
    places = []
    try:
        with room.filesystem.open_output_stream(location) as sink:
            for buffer in buffers:
                raw = buffer.raw()
                places.append((sink.tell(), raw.nbytes))
                sink.write(raw)
                sink.write(b"\0" * (-raw.nbytes % _ALIGNMENT))
    except OSError as error:
        raise write_error(error, "write", location) from error
    return SharedBuffers(data, room.filesystem, location, tuple(places))


_HINT = "name spool_dir= on storage that driver and executors share."


def write_error(error: OSError, action: str, path: str) -> StorageError:
    """The storage would not take rows that are to wait there."""
    return StorageError(
        f"Could not {action} {path}, where rows of the source wait: {error.strerror or error}",
        errno=error.errno,
        path=path,
        hint=_HINT,
    )


@contextmanager
def wrap_storage_errors(action: str, path: str) -> Iterator[None]:
    """What the storage refuses meanwhile is told as :func:`refused`; what was told already stays as it is."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise write_error(error, action, path) from error


def unreachable_error(location: str, message: str) -> StorageError:
    """A place that only one side can see."""
    return StorageError(message, errno=errno.ENOENT, path=posixpath.dirname(location), hint=_HINT)
