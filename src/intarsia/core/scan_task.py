"""How files of a table format are read: columns found by id, deleted rows; the port, not the reader."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

ROW_ID = "_row_id"
"""The identity of a row where the table keeps one; never a column of the dataset's schema."""
LAST_UPDATED = "_last_updated_sequence_number"
LINEAGE = (ROW_ID, LAST_UPDATED)
FIELD_ID = b"PARQUET:field_id"
_LINEAGE_IDS = ((ROW_ID, b"2147483540"), (LAST_UPDATED, b"2147483539"))


def with_lineage(schema: pa.Schema) -> pa.Schema:
    """A table's columns and, after them, those that tell rows apart."""
    fields = [pa.field(name, pa.int64(), metadata={FIELD_ID: number}) for name, number in _LINEAGE_IDS]
    return pa.schema([*schema, *fields], schema.metadata)


class ColumnProjection(Protocol):
    """One file's columns seen as the table's."""

    @property
    def stored(self) -> frozenset[str]:
        """The table's columns that the file itself holds, at least in part."""

    def physical_columns(self, columns: list[str]) -> list[str]:
        """The file's own columns to be read for some of the table's."""

    def project(self, table: pa.Table, columns: list[str], *, start: int) -> pa.Table:
        """What was read as columns of the table; ``start`` is the position of the first row.

        Columns the file lacks are their default, or NULL. With lineage columns asked for, those too.
        """


class FileScanTask(Protocol):
    """What a table knows of one file beyond its bytes. A value: it pickles, and works in another process."""

    def project_columns(self, physical: pa.Schema, wanted: pa.Schema) -> ColumnProjection:
        """How columns of ``physical`` (with field ids, where the file has them) become ``wanted`` ones."""

    def find_leaf(self, footer: pq.FileMetaData, column: str) -> int | None:
        """Where a flat top-level column's chunk is in a footer; None where it has no chunk of its own."""

    def bounds(self, column: str) -> tuple[Any, Any, int | None]:
        """Lower bound, upper bound and NULLs of a top-level column over the whole file; None is unknown.

        NULLs are counted over all ``records``. Temporal values are integers in the unit of the dataset's
        type.
        """

    def constant_of(self, column: str) -> tuple[Any] | None:
        """The one value that a top-level column has in every row, as its partition says; None is unknown.

        In the form of ``bounds``; the value may be NULL.
        """

    def read_deleted(self, parquet: pq.ParquetFile, filesystem: pafs.FileSystem) -> pa.Int64Array | None:
        """The positions of rows that were deleted, ascending; None for none."""

    @property
    def has_deletes(self) -> bool:
        """Whether any delete may apply to the file."""

    @property
    def record_count(self) -> int:
        """The rows the file holds, deleted ones included."""

    @property
    def has_exact_count(self) -> bool:
        """Whether the file's ``rows`` are known to be exact without reading its deletes."""
