"""What no commit can do to a dataset, whoever else writes: asked by every commit, and by dry runs.

Only the change and the state it was planned on are checked; no races, and no permissions, which a dry run
does not need. Commits alone ask the file system whether it tells new directories apart.
"""

from __future__ import annotations

import posixpath
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.core.change import Change, StagedFile
from intarsia.core.layout import read_elements
from intarsia.core.snapshot import Snapshot
from intarsia.errors import DamagedTable, InputError, NotSupported, UnsafePath
from intarsia.tables.parquet.control import Control
from intarsia.tables.parquet.footers import read_footers
from intarsia.tables.parquet.record import check_data_path, decides_metadata

__all__ = [
    "check_batch",
    "check_change",
    "check_directory_names",
    "check_written",
    "is_recorded",
    "read_written",
]


def is_recorded(change: Change, snapshot: Snapshot) -> bool:
    """Whether a commit of the change says anything: of files, of a batch, or of a dataset without files."""
    says_batch = "app_id" in change.properties and snapshot.exists
    return says_batch or not change.empty or decides_metadata(change, snapshot)


def check_change(change: Change, snapshot: Snapshot, *, root: str, store_error: str | None) -> None:
    """Refuse a change before any of its files is opened.

    ``store_error`` says why the store can only append, None where it can do more.

    Raises:
        InputError: half an idempotency key, or files that are named twice or not safely.
        NotSupported: the store can only append.
    """
    check_batch(change.properties)
    if not is_recorded(change, snapshot):
        return
    if store_error is not None and (change.replaced or change.removed):
        raise NotSupported(
            f"No file of {root} can be replaced or removed safely on this store. {store_error}",
            path=root,
            hint="pass single_writer=True if nothing else writes to the dataset meanwhile",
        )
    paths = [*(file.path for file in change.written), *(file.path for file in change.removed)]
    for path in paths:
        check_data_path(path)
    if len(set(paths)) != len(paths):
        raise InputError("A change names one file twice.", path=root)
    for item in change.replaced:
        if item.new.path != item.old.path:
            raise InputError(f"{item.new.path} cannot replace {item.old.path}: the names differ.")


def check_batch(properties: Mapping[str, str]) -> None:
    """Refuse half an idempotency key."""
    batch = properties.get("batch_id")
    if ("app_id" in properties) != (batch is not None) or not (batch is None or batch.isdecimal()):
        raise InputError(f"app_id and a whole number batch_id go together, not {dict(properties)}.")


def read_written(filesystem: pafs.FileSystem, files: Sequence[StagedFile]) -> list[pq.FileMetaData]:
    """The footer of every new file, opened again: one whose writer failed half way looks whole.

    Of files that were only measured it is what their writer returned. Raises as :func:`read_footers` does.
    """
    kept = [file.location for file in files if file.footer is None]
    read = iter(read_footers(filesystem, kept))
    return [next(read).metadata if file.footer is None else file.footer for file in files]


def check_written(change: Change, footers: Sequence[pq.FileMetaData]) -> None:
    """Refuse files that are not what they were said to be; the footers are those of ``change.written``.

    Raises:
        DamagedTable: a file has other rows, or columns otherwise than the file it replaces.
    """
    old = {item.new.path: item.old.footer for item in change.replaced}
    for file, footer in zip(change.written, footers, strict=True):
        before = old.get(file.path)
        if before is not None:
            _check_columns(file, before, footer)
        if footer.num_rows != file.rows:
            raise DamagedTable(
                f"The file staged for {file.path} has {footer.num_rows} rows instead of {file.rows}.",
                path=file.location or file.path,
            )


def _check_columns(file: StagedFile, before: pq.FileMetaData, footer: pq.FileMetaData) -> None:
    """A file that replaces another has its columns as that one has them, element by element."""
    kept, after = read_elements(before), read_elements(footer)
    if kept is None or after is None:
        return
    other = [
        name
        for name, elements in kept.columns.items()
        if name not in file.retyped and after.columns.get(name) != elements
    ]
    if other:
        names = ", ".join(map(repr, other))
        raise DamagedTable(
            f"The file staged for {file.path} stores {names} otherwise than the file that is there.",
            path=file.location or file.path,
            hint="nothing was changed; please report this with the file's schema.",
        )


def check_directory_names(control: Control, added: Iterable[str]) -> None:
    """Refuse directories of new files whose names the file system takes for others that are there.

    Most disks of macOS and Windows take ``city=Bonn`` and ``city=BONN`` for one directory, and macOS also two
    ways to write an umlaut: rows of one partition would then be read as those of the other.

    Raises:
        UnsafePath: two names differ in nothing that the file system heeds.
    """
    directories = {above for path in added for above in _list_directories(path)}
    if not directories or not _folds_names(control):
        return
    found: dict[str, str] = {}
    for parent in {posixpath.dirname(directory) for directory in directories}:
        for name in control.storage.names(posixpath.join(control.root, parent)):
            path = posixpath.join(parent, name)
            found[_fold(path)] = path
    for directory in sorted(directories):
        other = found.setdefault(_fold(directory), directory)
        if other != directory:
            raise UnsafePath(
                f"The file system of {control.root} takes the directories {directory} and {other} for one.",
                path=control.root,
                hint="give the values one spelling, or keep the dataset on a file system that heeds case",
            )


def _list_directories(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _folds_names(control: Control) -> bool:
    """Whether the log's directory, which a writer has made, is found under another spelling as well."""
    parent, name = posixpath.split(control.log)
    return control.storage.atomic and control.storage.stat(f"{parent}/{name.upper()}") is not None


def _fold(path: str) -> str:
    return unicodedata.normalize("NFD", path).casefold()
