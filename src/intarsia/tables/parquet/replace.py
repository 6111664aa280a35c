"""Files written elsewhere set into a dataset: staged beside it, then swapped in by one commit."""

from __future__ import annotations

import os
import posixpath
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from intarsia.common.log import cleanup, get_logger
from intarsia.common.scratch import Mark, mark
from intarsia.core.change import Change, Replacement, StagedFile
from intarsia.errors import InputError, NothingMatched
from intarsia.storage import Storage, open_storage
from intarsia.tables.parquet.control import Control
from intarsia.tables.parquet.footers import read_footers
from intarsia.tables.parquet.table import ParquetTable, ParquetTransaction

log = get_logger(__name__)

Path = str | os.PathLike[str]


class IncrementalFileManager:
    """Stages files beside a dataset and swaps them in. A context manager: leaving it cleans up."""

    def __init__(self, filesystem: Any = None) -> None:
        self._filesystem = filesystem
        self._base: Path | None = None
        self._staged: list[tuple[Storage, str, list[str], Mark]] = []

    def __enter__(self) -> IncrementalFileManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup_staging_files()

    def create_staging_directory(self, base_path: Path) -> str:
        """Make ``.staging_<uuid>`` in the control directory beside the dataset, where no reader looks.

        It stays until it is cleaned up or this process ends; then the next writer sweeps it.
        """
        shown = os.fspath(base_path).rstrip("/")
        storage, root = open_storage(base_path, filesystem=self._filesystem)
        control = Control(storage, root).directory
        name = f".staging_{uuid.uuid4().hex}"
        made = storage.make_directories(control)
        alive = mark(storage.filesystem, f"{control}/{name}")
        made += storage.make_directories(f"{control}/{name}")
        self._base = base_path
        self._staged.append((storage, f"{control}/{name}", made, alive))
        return posixpath.join(posixpath.dirname(shown), posixpath.basename(control), name)

    def atomic_replace_files(
        self, source_files: Sequence[Path], target_files: Sequence[Path], filesystem: Any = None
    ) -> None:
        """Put each source file in the place of its target: all of them or none, also across a crash.

        The targets are files of one dataset: the one that was staged for, else the directory that
        holds them all. A target that does not exist is added. The sources are gone afterwards; after
        an error everything is as it was. Every source is checked to be a whole Parquet file first.

        Raises:
            InputError: the lists differ in length, or a target is outside of the dataset.
            NothingMatched: a source file does not exist.
            StorageError, CommitConflict, DamagedTable: as of any commit.
        """
        if len(source_files) != len(target_files):
            raise InputError(f"{len(source_files)} files cannot replace {len(target_files)}.")
        if not source_files:
            return
        filesystem = filesystem if filesystem is not None else self._filesystem
        opened = [open_storage(path, filesystem=filesystem) for path in source_files]
        targets = [open_storage(path, filesystem=filesystem)[1] for path in target_files]
        table = ParquetTable(self._find_root(targets, filesystem), filesystem=filesystem)
        for (storage, location), shown in zip(opened, source_files, strict=True):
            if storage.stat(location) is None:
                raise NothingMatched(f"{os.fspath(shown)} is not there to replace a file.")
        with table.transaction("replace") as tx:
            tx.commit(_swap(table, tx, [location for _, location in opened], targets))
        cleanup(log, *((location, partial(storage.remove, location)) for storage, location in opened))

    def _find_root(self, targets: Sequence[str], filesystem: Any) -> str:
        if self._base is not None:
            return open_storage(self._base, filesystem=filesystem)[1]
        root = posixpath.commonpath([posixpath.dirname(target) for target in targets])
        while "=" in posixpath.basename(root):
            root = posixpath.dirname(root)
        return root

    def cleanup_staging_files(self) -> None:
        """Remove every staging directory made here; a file that cannot be removed is logged. Idempotent."""
        left = []
        for storage, directory, made, alive in self._staged:
            refusals = storage.remove_tree(directory)
            for refusal in refusals:
                log.warning("could not clean up a staged file: %s", refusal)
            if refusals:
                left.append((storage, directory, made, alive))
            else:
                parents = reversed(made[:-1])
                removals = ((path, partial(storage.remove_directory, path)) for path in parents)
                cleanup(log, (f"the mark of {directory}", alive.release), *removals)
        self._staged = left


def _swap(
    table: ParquetTable, tx: ParquetTransaction, sources: Sequence[str], targets: Sequence[str]
) -> Change:
    storage, staging = table.storage, tx.staging
    known = {f"{table.control.root}/{file.path}": file for file in tx.snapshot.files}
    replaced, added = [], []
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        below = posixpath.relpath(target, table.control.root)
        if below.startswith("../"):
            raise InputError(f"{target} is not a file of the dataset {table.root}.", path=target)
        staged = staging.make_location(f"replace-{number:05d}")
        storage.make_hard_link(source, staged)
        (footer,) = read_footers(storage.filesystem, [staged])
        found = storage.stat(staged)
        new = StagedFile(staged, below, footer.num_rows, found.size if found is not None else 0)
        old = known.get(target)
        if old is None:
            added.append(new)
        else:
            replaced.append(Replacement(old, new))
    return Change("replace", tuple(replaced), tuple(added), exclusive=False)
