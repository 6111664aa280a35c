"""A frozen view of a snapshot for engines that read directories: one hard link per file."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from intarsia.common.log import logger
from intarsia.common.scratch import mark
from intarsia.core.files import DataFile, Snapshot
from intarsia.errors import StorageError
from intarsia.tables.parquet.control import Control

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Farm:
    """``directory`` holds the snapshot's files under their own names; ``snapshot`` points into it.

    Nobody puts another file under a link's name, so its files may be opened at any time.
    """

    directory: str
    snapshot: Snapshot


@contextmanager
def planted(control: Control, snapshot: Snapshot) -> Iterator[Farm | None]:
    """Link a snapshot's files into ``snap/``; removed on leaving.

    Yields None when a file has changed since the snapshot, which then has to be taken again. The
    farm bears a mark, so that recovery can tell the farms of the dead from the living.
    """
    storage = control.storage
    directory = f"{control.farms}/{uuid.uuid4().hex}"
    made = storage.make_directories(control.farms)
    alive = mark(storage.filesystem, directory)
    try:
        files = _links(control, snapshot, directory)
        yield None if files is None else Farm(directory, replace(snapshot, files=files, look=None))
    finally:
        for refusal in storage.remove_tree(directory):
            log.warning("could not remove a snapshot's link: %s", refusal)
        alive.release()
        for parent in reversed(made):
            storage.remove_directory(parent)


def _links(control: Control, snapshot: Snapshot, directory: str) -> tuple[DataFile, ...] | None:
    storage = control.storage
    storage.make_directories(directory)
    files = []
    for parent in sorted({posixpath.dirname(file.path) for file in snapshot.files}):
        storage.make_directories(posixpath.join(directory, parent) if parent else directory)
    for file in snapshot.files:
        link = f"{directory}/{file.path}"
        try:
            storage.twin(file.location, link)
        except StorageError as error:
            if storage.stat(file.location) is None:
                return None
            raise error
        found = storage.stat(link)
        if storage.atomic and (found is None or found.fingerprint != file.fingerprint):
            return None
        files.append(replace(file, location=link))
    return tuple(files)
