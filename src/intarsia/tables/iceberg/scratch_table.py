"""An Iceberg table as the steps of a dry run leave it: snapshots in memory, new files in a scratch place.

The catalog is not asked again and no file of the table is written or removed: new data, delete and metadata
files lie in the scratch place, and refer to the table's files where they are.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any, cast

import pyarrow.fs as pafs
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from intarsia.errors import StorageError
from intarsia.storage.scratch_place import ScratchPlace
from intarsia.tables.iceberg._pyiceberg import with_next_row_id
from intarsia.tables.iceberg.file_io import open_store
from intarsia.tables.iceberg.properties import DATA_PATH, METADATA_PATH
from intarsia.tables.iceberg.table import IcebergTable

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

__all__ = ["ScratchIcebergTable"]

_REMOVE_OLD = "write.metadata.delete-after-commit.enabled"


class ScratchIcebergTable(IcebergTable):
    """A table whose commits stay in this process; it has the name of the table, and starts as that is now.

    Args:
        base: the table, on its branch and in its mode.
        place: where new files go; its file system reads the table's files, too.
    """

    is_scratch = True

    def __init__(self, base: IcebergTable, place: ScratchPlace) -> None:
        catalog = _ScratchCatalog(base.load(), place)
        super().__init__(catalog.load_table(), branch=base.branch, mode=base.mode)


class _ScratchCatalog:
    """The current metadata of one table, in the part of a catalog's interface that commits use."""

    def __init__(self, table: Table, place: ScratchPlace) -> None:
        self.name = table.catalog.name
        self._identifier = table.name()
        self._io = _ScratchIO(table, place)
        location = self._io.location
        properties = {
            **table.metadata.properties,
            DATA_PATH: f"{location}/data",
            METADATA_PATH: f"{location}/metadata",
            _REMOVE_OLD: "false",
        }
        self._metadata = table.metadata.model_copy(
            update={"location": location, "properties": properties, "metadata_log": []}
        )
        self._commits = 0

    @property
    def _metadata_location(self) -> str:
        """A name that differs after each commit; there is no such file."""
        return f"{self._io.location}/metadata/{self._commits:05d}.metadata.json"

    def load_table(self, _identifier: Any = None) -> Table:
        return Table(
            self._identifier, self._metadata, self._metadata_location, self._io, cast("Catalog", self)
        )

    def commit_table(
        self, _table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """As every catalog of PyIceberg does it, short of writing the metadata file."""
        for requirement in requirements:
            requirement.validate(self._metadata)
        made = update_table_metadata(self._metadata, updates, metadata_location=self._metadata_location)
        self._metadata = with_next_row_id(made)
        self._commits += 1
        said = {"metadata": self._metadata, "metadata-location": self._metadata_location}
        return CommitTableResponse.model_validate(said)


class _ScratchIO(FileIO):
    """The FileIO of a table, which writes and removes files in the scratch place only."""

    def __init__(self, table: Table, place: ScratchPlace) -> None:
        super().__init__(dict(table.io.properties))
        root = table.metadata.location.rstrip("/")
        path = open_store(table.io, root).filesystem_path(root)
        inside = place.directory.startswith(f"{path}/")
        self.location = root + place.directory[len(path) :] if inside else f"file://{place.directory}"
        self._table = table.io
        self._place = place

    def fs_by_scheme(self, _scheme: str, _netloc: str | None = None) -> pafs.FileSystem:
        """The file system that reads the table's files, and those in the place."""
        return self._place.filesystem

    def new_input(self, location: str) -> InputFile:
        return self._open(location) if self._holds(location) else self._table.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        if not self._holds(location):
            raise StorageError("a dry run writes no file of the table", path=location)
        path = self._find_path(location)
        self._place.filesystem.create_dir(posixpath.dirname(path), recursive=True)
        return self._open(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        name = location if isinstance(location, str) else location.location
        if self._holds(name):
            self._place.filesystem.delete_file(self._find_path(name))

    def _open(self, location: str) -> PyArrowFile:
        return PyArrowFile(location=location, path=self._find_path(location), fs=self._place.filesystem)

    def _holds(self, location: str) -> bool:
        return location.startswith(f"{self.location}/")

    def _find_path(self, location: str) -> str:
        return self._place.directory + location[len(self.location) :]
