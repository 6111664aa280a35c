"""Manifest entries and files for tests of deletes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.tables.iceberg.file_io import DeleteCache, DeleteFileAccess
from intarsia.tables.iceberg.manifests import ContentFile, DataFileContent, ManifestEntry, ManifestEntryStatus

LOCAL = pafs.LocalFileSystem()
_numbers = itertools.count()


def locate(path: str) -> str:
    return path.removeprefix("file://")


def entry(
    path: str = "data.parquet",
    *,
    content: DataFileContent = DataFileContent.DATA,
    sequence: int | None = 1,
    spec: int = 0,
    partition: tuple[Any, ...] = (),
    rows: int = 1,
    file_format: str = "PARQUET",
    **fields: Any,
) -> ManifestEntry:
    file = ContentFile(content, path, file_format, spec, partition, rows, 1, **fields)
    return ManifestEntry(ManifestEntryStatus.ADDED, 1, file, sequence, sequence)


def field(name: str, kind: pa.DataType, number: int, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable, {"PARQUET:field_id": str(number)})


def data_file(
    root: Path, columns: Mapping[tuple[str, int | None], pa.Array], *, row_group_size: int | None = None
) -> pq.ParquetFile:
    """A data file of columns named by name and field id."""
    fields = [
        pa.field(name, array.type) if number is None else field(name, array.type, number)
        for (name, number), array in columns.items()
    ]
    path = root / f"data-{next(_numbers)}.parquet"
    table = pa.table(list(columns.values()), schema=pa.schema(fields))
    pq.write_table(table, path, row_group_size=row_group_size)
    return pq.ParquetFile(path)


def equality_delete(
    root: Path,
    columns: Mapping[tuple[str, int], pa.Array],
    *,
    ids: Sequence[int] | None = None,
    sequence: int = 2,
) -> ManifestEntry:
    fields = [field(name, array.type, number) for (name, number), array in columns.items()]
    path = root / f"equality-{next(_numbers)}.parquet"
    table = pa.table(list(columns.values()), schema=pa.schema(fields))
    pq.write_table(table, path)
    found = tuple(number for _, number in columns) if ids is None else tuple(ids)
    return entry(
        str(path),
        content=DataFileContent.EQUALITY_DELETES,
        sequence=sequence,
        rows=table.num_rows,
        equality_ids=found,
    )


def position_delete(
    root: Path,
    rows: Sequence[tuple[str, int]],
    *,
    row_group_size: int | None = None,
    statistics: bool = True,
    **fields: Any,
) -> ManifestEntry:
    """A position delete file as another writer may make it; rows are written in the order given."""
    schema = pa.schema(
        [
            field("file_path", pa.string(), 2147483546, nullable=False),
            field("pos", pa.int64(), 2147483545, nullable=False),
        ]
    )
    path = root / f"positions-{next(_numbers)}.parquet"
    table = pa.table([[name for name, _ in rows], [at for _, at in rows]], schema=schema)
    pq.write_table(table, path, row_group_size=row_group_size, write_statistics=statistics)
    return entry(str(path), content=DataFileContent.POSITION_DELETES, sequence=2, rows=len(rows), **fields)


def access(limit: int = 1 << 20) -> DeleteFileAccess:
    return DeleteFileAccess(LOCAL, locate, DeleteCache(limit))


class Places:
    """Names files in a directory, and remembers what it was asked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[tuple[int, tuple[Any, ...] | None, str]] = []

    def __call__(self, spec_id: int, partition: tuple[Any, ...] | None, suffix: str, /) -> tuple[str, str]:
        self.asked.append((spec_id, partition, suffix))
        location = str(self.root / f"deletes-{next(_numbers)}.{suffix}")
        return f"file://{location}", location
