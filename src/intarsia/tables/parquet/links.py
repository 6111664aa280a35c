"""Hard links to the files of a dataset, for readers that open files by themselves, and how long they last."""

from __future__ import annotations

import atexit
import errno
import os
import posixpath
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from intarsia.common.log import get_logger
from intarsia.common.scratch import mark
from intarsia.core.ports import Table
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.errors import CommitConflict, IntarsiaError, StorageError
from intarsia.storage import ObjectStorage
from intarsia.tables.parquet.control import Control
from intarsia.tables.parquet.footer_store import move_footers

if TYPE_CHECKING:
    from intarsia.tables.parquet.table import ParquetTable

__all__ = ["LINKED_STATES", "HardLinkSnapshot", "LinkedStates", "SnapshotLinks", "link_files"]

log = get_logger(__name__)

MOST_STATES = 16
"""Maximum number of states of one dataset that are linked at a time for lazy readers."""


@dataclass(frozen=True, slots=True)
class HardLinkSnapshot:
    """``directory`` holds the snapshot's files under their own names; ``snapshot`` points into it.

    Nobody puts another file under a link's name, so its files may be opened at any time.
    """

    directory: str
    snapshot: Snapshot


@contextmanager
def link_files(control: Control, snapshot: Snapshot) -> Iterator[HardLinkSnapshot | None]:
    """Link a snapshot's files into ``snap/``; removed on leaving.

    Yields None when a file has changed since the snapshot, which then has to be taken again. The
    directory has a mark, so that recovery can tell those of crashed processes from those in use.
    """
    storage = control.storage
    directory = f"{control.snapshots}/{uuid.uuid4().hex}"
    made = storage.make_directories(control.snapshots)
    alive = mark(storage.filesystem, directory)
    try:
        files = _link_files(control, snapshot, directory)
        linked = None if files is None else replace(snapshot.with_files(files), stat=None)
        yield None if linked is None else HardLinkSnapshot(directory, linked)
    finally:
        for refusal in storage.remove_tree(directory):
            log.warning("could not remove a snapshot's link: %s", refusal)
        alive.release()
        for parent in reversed(made):
            storage.remove_directory(parent)


def _link_files(control: Control, snapshot: Snapshot, directory: str) -> tuple[DataFile, ...] | None:
    storage = control.storage
    storage.make_directories(directory)
    files = []
    for parent in sorted({posixpath.dirname(file.path) for file in snapshot.files}):
        storage.make_directories(posixpath.join(directory, parent) if parent else directory)
    for file in snapshot.files:
        link = f"{directory}/{file.path}"
        try:
            storage.make_hard_link(file.location, link)
        except StorageError as error:
            if error.errno == errno.ENOENT or storage.stat(file.location) is None:
                return None
            raise error
        found = storage.stat(link)
        if storage.atomic and (found is None or found.fingerprint != file.fingerprint):
            return None
        if isinstance(storage, ObjectStorage):  # a copy has another tag
            now = storage.stat(file.location)
            if now is None or now.fingerprint != file.fingerprint:
                return None
        files.append(replace(file, location=link))
    return move_footers(files)


def _find_linkable(table: Table) -> ParquetTable | None:
    """The dataset, where links to its files can be made.

    Nothing is made beside a dataset that others alone have written.
    """
    if not hasattr(table, "materialise"):
        return None
    dataset = cast("ParquetTable", table)
    return dataset if dataset.storage.atomic and dataset.control.exists() else None


@dataclass(slots=True)
class SnapshotLinks:
    """Links to the files of datasets that a step reads, which last until :meth:`close`.

    A commit that replaces a file leaves its link as it was. Those of a killed process are removed by the
    dataset's next recovery.
    """

    stack: ExitStack = field(default_factory=ExitStack)
    writes: bool = True
    """Whether links may be made; a dry run makes none."""

    def take_snapshot(self, table: Table) -> Snapshot:
        """The current state of a table, of files that nobody replaces where links can be made.

        Elsewhere (a store without links, a directory that cannot be written) it is the state as it is, and
        whoever reads a file checks that it is still the same.
        """
        dataset = _find_linkable(table) if self.writes else None
        if dataset is None:
            return table.snapshot()
        try:
            return self.stack.enter_context(dataset.materialise()).snapshot
        except CommitConflict:
            raise
        except (IntarsiaError, OSError) as error:
            log.info("no links to the files of %s are made: %s", dataset.root, error)
            return table.snapshot()

    def close(self) -> None:
        """Remove the links. Idempotent."""
        self.stack.close()


@dataclass(frozen=True, slots=True)
class _LinkedState:
    """A state of a dataset, and its links."""

    files: Sequence[DataFile]
    schema: pa.Schema
    linked: HardLinkSnapshot
    stack: ExitStack

    def is_of(self, snapshot: Snapshot) -> bool:
        return self.files == snapshot.files and self.schema.equals(snapshot.schema)

    def has_file_beyond(self, now: Snapshot) -> bool:
        """Whether a file of it was replaced or removed since, so that its link alone keeps its bytes."""
        current = {(file.path, file.fingerprint) for file in now.files}
        return any((file.path, file.fingerprint) not in current for file in self.files)


@dataclass(slots=True)
class LinkedStates:
    """Links to the states of datasets that lazy readers of this process, such as DataFrames, may still read.

    Nobody can say when the last of these is gone. So they last until the process ends, but of the states of
    a dataset before the last two only those that keep no replaced file, and :data:`MOST_STATES` in all.
    """

    states: dict[tuple[str, str], list[_LinkedState]] = field(default_factory=dict)
    """By dataset, the oldest first."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    process: int = field(default_factory=os.getpid)

    def link(self, table: Table, snapshot: Snapshot) -> Snapshot | None:
        """A snapshot, of links where they can be made; None where it is no longer the current state."""
        dataset = _find_linkable(table)
        if dataset is None or not snapshot.files or os.getpid() != self.process:
            return snapshot
        storage, key = dataset.storage, (dataset.control.directory, dataset.control.root)
        with self.lock:
            known = self.states.setdefault(key, [])
            known[:] = [one for one in known if storage.stat(one.linked.directory) is not None]
            found = next((one for one in known if one.is_of(snapshot)), None)
            if found is None:
                stack = ExitStack()
                try:
                    linked = stack.enter_context(link_files(dataset.control, snapshot))
                except (IntarsiaError, OSError) as error:
                    log.info("no links to the files of %s are made: %s", dataset.root, error)
                    return snapshot
                if linked is None:
                    stack.close()
                    return None
                found = _LinkedState(snapshot.files, snapshot.schema, linked, stack)
            known[:] = [one for one in known if one is not found]
            self._expire(known, snapshot)
            known.append(found)
            return replace(snapshot, files=found.linked.snapshot.files, stat=None)

    def _expire(self, known: list[_LinkedState], now: Snapshot) -> None:
        kept = [one for one in known[:-1] if not one.has_file_beyond(now)][-(MOST_STATES - 2) :]
        for one in known[:-1]:
            if not any(one is other for other in kept):
                one.stack.close()
        known[:] = [*kept, *known[-1:]]

    def close(self) -> None:
        """Remove all links, in the process that made them. Idempotent."""
        if os.getpid() != self.process:
            return
        with self.lock:
            while self.states:
                for one in self.states.popitem()[1]:
                    one.stack.close()


LINKED_STATES = LinkedStates()
"""Those of this process."""
atexit.register(LINKED_STATES.close)
