"""Where a task writes: names that no other attempt at the same work has, removed again when it fails."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.fs as pafs

from intarsia.core.change import BEGUN
from intarsia.core.ports import OutputLocation
from intarsia.core.snapshot import Snapshot
from intarsia.errors import StorageError
from intarsia.kernel.chunks import write_failure


@dataclass(frozen=True, slots=True)
class AttemptOutput:
    """An output location whose staged names no other attempt at the same work has."""

    inner: OutputLocation
    attempt: str

    @staticmethod
    def at(output: OutputLocation) -> AttemptOutput:
        return AttemptOutput(output, f"-{uuid.uuid4().hex}")

    @property
    def txid(self) -> str:
        return self.inner.txid

    @property
    def staging(self) -> Any:
        return replace(self.inner.staging, attempt=self.attempt)

    def new_file_path(self, partition: Any, prefix: str, ordinal: int, *, beside: Any = None) -> str:
        return self.inner.new_file_path(partition, prefix, ordinal, beside=beside)

    def filesystem_path(self, path: str) -> str:
        return self.inner.filesystem_path(path)


class RecordedOutput:
    """An output location that records the paths of its new files."""

    def __init__(self, output: OutputLocation) -> None:
        self._inner = output
        self._begun: list[str] = []

    @property
    def txid(self) -> str:
        return self._inner.txid

    @property
    def staging(self) -> Any:
        return self._inner.staging

    def new_file_path(self, partition: Any, prefix: str, ordinal: int, *, beside: Any = None) -> str:
        if not self._begun:
            self._note()
        else:
            self._check_transaction()
        path = self._inner.new_file_path(partition, prefix, ordinal, beside=beside)
        self._begun.append(path)
        return path

    def filesystem_path(self, path: str) -> str:
        return self._inner.filesystem_path(path)

    def take_back(self) -> None:
        """Remove what was written; the transaction finds by name what cannot be removed here."""
        for path in self._begun:
            with suppress(OSError):
                self.staging.filesystem.delete_file(self.filesystem_path(path))

    def _note(self) -> None:
        """Record the attempt in staging: of one that is killed nothing else is known."""
        note = self._note_path
        try:
            self.staging.filesystem.open_output_stream(note).close()
        except OSError as error:
            raise write_failure(error, note) from error

    def _check_transaction(self) -> None:
        """Begin no other file after the transaction has ended, whose driver would not know of it."""
        staging, note = self.staging, self._note_path
        if not staging.discards and staging.filesystem.get_file_info(note).type == pafs.FileType.NotFound:
            raise StorageError(
                f"Transaction {self.txid} has ended, and {note} with it.", errno=errno.ENOENT, path=note
            )

    @property
    def _note_path(self) -> str:
        staging = self.staging
        return f"{staging.directory}/{BEGUN}{staging.attempt.removeprefix('-')}"


@contextmanager
def open_attempt(output: OutputLocation, snapshot: Snapshot) -> Iterator[OutputLocation]:
    """An output location with names that no other attempt has; runs on an executor.

    Files of a table with a partition spec are written where they stay, and are removed if the attempt fails
    or is killed. Others wait in staging, which goes with the transaction.
    """
    attempt = AttemptOutput.at(output)
    if snapshot.replaces_in_place:
        yield attempt
        return
    noting = RecordedOutput(attempt)
    try:
        yield noting
    except BaseException:
        noting.take_back()
        raise


@dataclass(frozen=True, slots=True)
class MarkedOutput:
    """An output location whose table paths have a mark of their task, so that no two tasks use one path."""

    inner: OutputLocation
    mark: str

    @property
    def txid(self) -> str:
        return self.inner.txid

    @property
    def staging(self) -> Any:
        return self.inner.staging

    def new_file_path(self, partition: Any, prefix: str, ordinal: int, *, beside: Any = None) -> str:
        return self.inner.new_file_path(partition, f"{prefix}-{self.mark}", ordinal, beside=beside)

    def filesystem_path(self, path: str) -> str:
        return self.inner.filesystem_path(path)
