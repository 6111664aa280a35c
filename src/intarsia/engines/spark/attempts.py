"""Attempts at work that writes files where they stay: one that fails takes back what it has begun."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from intarsia.core.change import BEGUN
from intarsia.core.files import Snapshot
from intarsia.core.ports import Workplace
from intarsia.engines.arrow.chunk_writer import not_written
from intarsia.engines.spark.crew import Attempt


class Noting:
    """A workplace that remembers which files it has given a place."""

    def __init__(self, workplace: Workplace) -> None:
        self._place_of = workplace
        self._begun: list[str] = []

    @property
    def txid(self) -> str:
        return self._place_of.txid

    @property
    def staging(self) -> Any:
        return self._place_of.staging

    def place(self, partition: Any, prefix: str, ordinal: int, *, beside: Any = None) -> str:
        if not self._begun:
            self._note()
        path = self._place_of.place(partition, prefix, ordinal, beside=beside)
        self._begun.append(path)
        return path

    def locate(self, path: str) -> str:
        return self._place_of.locate(path)

    def take_back(self) -> None:
        """Remove what was written; the transaction finds by name what cannot be removed here."""
        for path in self._begun:
            with suppress(OSError):
                self.staging.filesystem.delete_file(self.locate(path))

    def _note(self) -> None:
        """Say in staging that there is this attempt: of one that is killed nothing else may be heard."""
        staging = self.staging
        note = f"{staging.directory}/{BEGUN}{staging.attempt.removeprefix('-')}"
        try:
            staging.filesystem.open_output_stream(note).close()
        except OSError as error:
            raise not_written(error, note) from error


@contextmanager
def attempt_at(workplace: Workplace, snapshot: Snapshot) -> Iterator[Workplace]:
    """A workplace of names that no other attempt can have; runs on an executor.

    Files of a table that deals rows out by itself are written where they stay, and go if the attempt fails
    or is killed. Others wait in staging, which goes with the transaction.
    """
    attempt = Attempt.at(workplace)
    if snapshot.spread is None:
        yield attempt
        return
    noting = Noting(attempt)
    try:
        yield noting
    except BaseException:
        noting.take_back()
        raise
