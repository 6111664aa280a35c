"""Footers of many files, whose row groups are read when they are asked for; a table keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow.parquet as pq

from intarsia.core.file_table import FileStore

if TYPE_CHECKING:
    from intarsia.core.snapshot import DataFile


class FooterStore(FileStore, Protocol):
    """The footers of the files of a snapshot, by number; what all files have in common is kept once."""

    @property
    def rows(self) -> Sequence[int]: ...

    @property
    def row_groups(self) -> Sequence[int]: ...

    def get_model(self, number: int) -> pq.FileMetaData:
        """A footer with the schema, the key-value metadata and the writer of a file's, of other rows."""

    def load(self, numbers: Sequence[int]) -> list[pq.FileMetaData]:
        """The footers themselves; raises CommitConflict where a file has changed since it was listed."""

    def load_one(self, number: int) -> pq.FileMetaData:
        """The footer itself, of one of many that may be asked for in turn."""


class LazyFooter:
    """Stands for a ``FileMetaData``. What a plan asks of most files is known without reading any.

    Pickled, it becomes the footer itself: another process has no store.
    """

    __slots__ = ("number", "store")

    def __init__(self, store: FooterStore, number: int) -> None:
        self.store = store
        self.number = number

    @property
    def num_rows(self) -> int:
        return self.store.rows[self.number]

    @property
    def num_row_groups(self) -> int:
        return self.store.row_groups[self.number]

    @property
    def serialized_size(self) -> int:
        return self.store.sizes[self.number]

    @property
    def schema(self) -> pq.ParquetSchema:
        return self.store.get_model(self.number).schema

    @property
    def metadata(self) -> dict[bytes, bytes] | None:
        notes: dict[bytes, bytes] | None = self.store.get_model(self.number).metadata
        return notes

    @property
    def created_by(self) -> str:
        writer: str = self.store.get_model(self.number).created_by
        return writer

    @property
    def num_columns(self) -> int:
        count: int = self.store.get_model(self.number).num_columns
        return count

    def load(self) -> pq.FileMetaData:
        """The footer itself."""
        return self.store.load_one(self.number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.load(), name)

    def __reduce__(self) -> Any:
        return _get_itself, (self.load(),)


def _get_itself(footer: pq.FileMetaData) -> pq.FileMetaData:
    return footer


def get_footer(file: DataFile) -> pq.FileMetaData | None:
    """The footer of a file as pyarrow's own object, for where nothing may stand for it."""
    footer = file.footer
    return footer.load() if isinstance(footer, LazyFooter) else footer


def find_store(files: Sequence[DataFile]) -> FooterStore | None:
    """The store that has the footers of all of these files; None where each has its own."""
    if not files or type(files[0].footer) is not LazyFooter:
        return None
    store = files[0].footer.store
    alike = all(type(file.footer) is LazyFooter and file.footer.store is store for file in files)
    return store if alike else None


def load_footers(files: Sequence[DataFile]) -> None:
    """Read the footers of files that are about to be scanned, in parallel where that pays."""
    store = find_store(files)
    if store is not None:
        store.load([file.footer.number for file in files if file.footer is not None])
