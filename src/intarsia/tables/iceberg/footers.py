"""Looks into chosen data files of a snapshot: their footers, and how many of their rows are alive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.core.files import DataFile
from intarsia.errors import DamagedTable, NotSupported
from intarsia.tables.iceberg.entries import Entry
from intarsia.tables.parquet.footers import read_footers


@dataclass(frozen=True, slots=True)
class Closer:
    """Gives back files with footers and exact row counts; see :class:`intarsia.core.files.Snapshot`."""

    filesystem: pafs.FileSystem

    def __call__(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Raises NotSupported for files that are not Parquet, DamagedTable for missing or broken ones."""
        for file in files:
            _check_format(file)
        try:
            footers = read_footers(self.filesystem, [file.location for file in files])
        except FileNotFoundError as error:
            raise DamagedTable(
                f"A data file that the table names is not there: {error}",
                path=files[0].path,
                hint="its snapshot may have been expired meanwhile: run the operation again; else restore it",
            ) from error
        return [self._known(file, footer.metadata) for file, footer in zip(files, footers, strict=True)]

    def _known(self, file: DataFile, footer: pq.FileMetaData) -> DataFile:
        recorded = file.tag.file.record_count if isinstance(file.tag, Entry) else footer.num_rows
        if footer.num_rows != recorded:
            raise DamagedTable(
                f"{file.path} has {footer.num_rows} rows, the table's manifests say {recorded}.",
                path=file.path,
            )
        if file.lens is None or not file.lens.has_dead or file.lens.counted:
            return replace(file, footer=footer)
        with self.filesystem.open_input_file(file.location) as source:
            dead = file.lens.dead(pq.ParquetFile(source, metadata=footer), self.filesystem)
        return replace(file, footer=footer, rows=footer.num_rows - (0 if dead is None else len(dead)))


def _check_format(file: DataFile) -> None:
    entry = file.tag
    if isinstance(entry, Entry) and entry.file.file_format.upper() != "PARQUET":
        raise NotSupported(
            f"{file.path} is a file of format {entry.file.file_format}; only Parquet can be read.",
            path=file.path,
            hint="rewrite it as Parquet with the engine that wrote it",
        )
