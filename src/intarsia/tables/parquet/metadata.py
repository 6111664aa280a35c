"""What the log keeps of a dataset that has no file: its schema, its partition columns, how files are written.

As long as there are files, they tell all of that, and the log says nothing. The record of the commit after
which there is none carries it instead, as Delta's ``metaData`` action does; the last record alone counts.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from intarsia.common import thrift
from intarsia.core.change import Change
from intarsia.core.snapshot import Snapshot
from intarsia.errors import DamagedTable

_MAGIC = b"PAR1"
_ROW_GROUPS = 4
"""Field of Parquet's FileMetaData."""
_COLUMNS, _COLUMN_METADATA = 1, 3
"""Fields of its RowGroup, and of its ColumnChunk."""
_VALUES_IN_COLUMN_METADATA = (8, 12, 16, 17)
"""Key-value metadata and statistics: these would keep values of rows that were deleted."""


@dataclass(frozen=True, slots=True)
class DatasetMetadata:
    """Schema and partition columns of a dataset without files, as text that can stand in JSON."""

    schema: str
    partition_columns: tuple[str, ...] = ()
    footer: str | None = None
    """Of a file that there was, with one row group and without statistics: new files are written like it."""

    @classmethod
    def of(
        cls, schema: pa.Schema, partition_columns: tuple[str, ...], footer: pq.FileMetaData | None = None
    ) -> DatasetMetadata:
        encoded = None if footer is None else base64.b64encode(_without_rows(footer)).decode()
        return cls(base64.b64encode(schema.serialize().to_pybytes()).decode(), partition_columns, encoded)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> DatasetMetadata:
        """Read back; ValueError, TypeError or KeyError where it is not what we would write."""
        columns = tuple(raw["partition_columns"])
        found = cls(raw["schema"], columns, raw.get("footer"))
        missing = [name for name in columns if name not in found.arrow_schema().names]
        if missing:
            raise ValueError(f"partition columns {missing} are not in the schema")
        found.file_metadata()
        return found

    def arrow_schema(self) -> pa.Schema:
        try:
            return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(self.schema, validate=True)))
        except (binascii.Error, pa.ArrowException, OSError) as error:
            raise ValueError(f"its schema cannot be read: {error}") from error

    def file_metadata(self) -> pq.FileMetaData | None:
        if self.footer is None:
            return None
        try:
            raw = base64.b64decode(self.footer, validate=True)
            return pq.read_metadata(pa.BufferReader(raw))
        except (binascii.Error, pa.ArrowException, OSError) as error:
            raise ValueError(f"its footer cannot be read: {error}") from error


def partitions_last(schema: pa.Schema, partition_columns: tuple[str, ...]) -> pa.Schema:
    """The schema in the order that a dataset with files has: partition columns last."""
    stored = [field for field in schema if field.name not in partition_columns]
    return pa.schema([*stored, *(schema.field(name) for name in partition_columns)], schema.metadata)


def decides_metadata(change: Change, before: Snapshot) -> bool:
    """Whether a change makes a dataset without files, or gives one another schema or partitions."""
    if change.schema is None or not change.schema.names or _has_files_after(change, before):
        return False
    schema = partitions_last(change.schema, change.partition_columns)
    same = schema.equals(before.schema, check_metadata=True)
    return not (same and change.partition_columns == before.partition_columns)


def metadata_after(change: Change, before: Snapshot) -> DatasetMetadata | None:
    """What the log has to keep after a change: all that files would tell, where none is left."""
    if _has_files_after(change, before):
        return None
    schema, columns = before.schema, before.partition_columns
    if change.schema is not None:
        columns = change.partition_columns
        schema = partitions_last(change.schema, columns)
    if not schema.names:
        return None
    same = schema.equals(before.schema) and columns == before.partition_columns
    return DatasetMetadata.of(schema, columns, before.model_footer if same else None)


def _has_files_after(change: Change, before: Snapshot) -> bool:
    removed = {file.path for file in change.removed}
    return bool(change.added) or any(file.path not in removed for file in before.files)


def metadata_of(raw: Mapping[str, Any] | None, where: str) -> DatasetMetadata | None:
    """The metadata in a record of the log, if it has any; raises DamagedTable."""
    if raw is None:
        return None
    try:
        return DatasetMetadata.from_json(raw)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedTable(
            f"The journal record {where} is damaged ({error}): the schema of an empty dataset is lost.",
            path=where,
            hint="restore it from a backup, or remove it to let the next write decide the schema",
        ) from error


def _without_rows(footer: pq.FileMetaData) -> bytes:
    """A Parquet file without data that has this footer, less what tells of rows."""
    sink = pa.BufferOutputStream()
    footer.write_metadata_file(sink)
    raw = sink.getvalue().to_pybytes()
    struct, _ = thrift.read_struct(raw, len(_MAGIC))
    kind, (item_kind, groups) = struct[_ROW_GROUPS]
    for group in groups[:1]:
        for chunk in thrift.get(group, _COLUMNS)[1]:
            described = thrift.get(chunk, _COLUMN_METADATA, {})
            for field in _VALUES_IN_COLUMN_METADATA:
                described.pop(field, None)
    struct[_ROW_GROUPS] = (kind, (item_kind, groups[:1]))
    encoded = thrift.write_struct(struct)
    return _MAGIC + encoded + len(encoded).to_bytes(4, "little") + _MAGIC
