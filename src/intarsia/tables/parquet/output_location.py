"""The names and places of the new files of one transaction, as values for other processes."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from intarsia.core.change import Staging
from intarsia.core.partitioner import PartitionDirectories
from intarsia.core.snapshot import DataFile
from intarsia.tables.parquet.record import check_data_path

__all__ = ["ParquetOutputLocation", "Places"]


@dataclass(frozen=True, slots=True)
class Places:
    """The names that one transaction gives to new files."""

    txid: str
    root: str
    partition_columns: tuple[str, ...]
    directories: PartitionDirectories = field(default_factory=PartitionDirectories)
    """Those that are there and are called otherwise than we would call them."""

    def new_file_path(
        self, partition: Mapping[str, Any], prefix: str, ordinal: int, *, beside: DataFile | None = None
    ) -> str:
        """In its partition's directory, or in that of the file ``beside``, unless that one is to go."""
        name = f"{prefix}-{self.txid}-{ordinal:05d}.parquet"
        if beside is None:
            directory = self._choose_directory(partition)
        else:
            directory = posixpath.dirname(beside.path)
            directory = self.directories.aliases.get(directory, directory)
        path = posixpath.join(directory, name)
        check_data_path(path)
        return path

    def filesystem_path(self, path: str) -> str:
        """Where a file of the dataset lies; new ones get there by their commit only."""
        return f"{self.root}/{path}"

    def _choose_directory(self, partition: Mapping[str, Any]) -> str:
        order = [column for column in self.partition_columns if column in partition]
        values = {column: partition[column] for column in dict.fromkeys([*order, *partition])}
        return self.directories.choose_directory(values, path=self.root)


@dataclass(frozen=True, slots=True)
class ParquetOutputLocation:
    """A transaction's names and its staging directory; see :class:`intarsia.core.ports.OutputLocation`."""

    places: Places
    staging: Staging

    @property
    def txid(self) -> str:
        return self.places.txid

    def new_file_path(
        self, partition: Mapping[str, Any], prefix: str, ordinal: int, *, beside: DataFile | None = None
    ) -> str:
        return self.places.new_file_path(partition, prefix, ordinal, beside=beside)

    def filesystem_path(self, path: str) -> str:
        return self.places.filesystem_path(path)
