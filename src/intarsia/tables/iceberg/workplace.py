"""Where new files of an Iceberg table are written and what they are called, as values that can travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from intarsia.core.change import Staging
from intarsia.core.files import DataFile
from intarsia.tables.iceberg.file_system import Store
from intarsia.tables.iceberg.locations import DataLocations


@dataclass(frozen=True, slots=True)
class IcebergWorkplace:
    """The names that one transaction gives to new files; see :class:`intarsia.core.ports.Workplace`."""

    txid: str
    store: Store
    locations: DataLocations
    staging: Staging

    def place(
        self, partition: Mapping[str, Any], prefix: str, ordinal: int, *, beside: DataFile | None = None
    ) -> str:
        """The final URI of a new data file; the values are those of its :class:`~intarsia.core.spread.Part`.

        Its directory exists afterwards. ``beside`` says nothing here: a file lies where its partition does.
        """
        uri = self.locations.data_file(f"{prefix}-{self.txid}-{ordinal:05d}.parquet", partition)
        self.store.ready(self.store.locate(uri))
        return uri

    def locate(self, path: str) -> str:
        """Where to write a file that was given a place, on the staging file system."""
        return self.store.locate(path)
