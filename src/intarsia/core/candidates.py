"""Which files may hold a key, judged from plain metadata of files; nothing here opens one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from intarsia.common.partitions import parse_partition
from intarsia.common.schema import conform_table, find_common_type
from intarsia.core.keys import to_comparable
from intarsia.core.merge import normalize_keys
from intarsia.core.prune import Bounds, KeyRange, PartitionSet
from intarsia.core.snapshot import DataFile
from intarsia.errors import DamagedTable, KeyColumnError, SchemaMismatch

Columns = str | Sequence[str]
Keys = Any
"""A sequence of values, of tuples for a key of several columns, or an Arrow array or table."""


@dataclass(frozen=True, slots=True)
class ParquetFileMetadata:
    """What the footer and the path of one file tell.

    ``column_stats`` has ``min``, ``max`` and ``null_count`` of each plain column; None where it is not
    known for certain.
    """

    path: str
    row_group_count: int
    total_rows: int
    column_stats: dict[str, dict[str, Any]]
    partition_values: dict[str, Any] | None = None


class PartitionPruner:
    """Tells which files may hold a key by their partition values alone."""

    def identify_candidate_files(
        self,
        file_metadata: Sequence[ParquetFileMetadata],
        key_columns: Columns,
        source_keys: Keys,
        partition_schema: pa.Schema | None = None,
    ) -> list[str]:
        """The paths of the files whose partition a source key belongs to.

        Prunes by the partition columns that are part of the key and whose types ``partition_schema``
        gives; a file whose value of one is not known is a candidate.
        """
        keys = make_key_table(source_keys, key_columns)
        if not keys.num_rows:
            return []
        path_columns = [
            name for name in keys.column_names if partition_schema and name in partition_schema.names
        ]
        try:
            wanted = pa.schema(
                [partition_schema.field(name) for name in path_columns] if partition_schema else []
            )
            source = conform_table(keys.select(path_columns), wanted, operation="prune", path="")
        except SchemaMismatch:  # keys of another type: nothing is known
            return [metadata.path for metadata in file_metadata]
        homes = PartitionSet.of(source, path_columns).find_rows(
            [_with_partition(m, wanted) for m in file_metadata]
        )
        return [m.path for m, home in zip(file_metadata, homes, strict=True) if home is not None]


def _with_partition(metadata: ParquetFileMetadata, schema: pa.Schema) -> DataFile:
    given = metadata.partition_values or {}
    values = {name: value for name, value in given.items() if name in schema.names}
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    try:
        values |= parse_partition(texts, schema)
    except DamagedTable:  # no value of its column: unknown
        values = {}
    return DataFile(metadata.path, metadata.path, 0, metadata.total_rows, values)


class ConservativeMembershipChecker:
    """Tells whether a file may hold a key by its statistics; unknown always means maybe."""

    def file_might_contain_keys(
        self, file_metadata: ParquetFileMetadata, key_columns: Columns, source_keys: Keys
    ) -> bool:
        """False only where the bounds of a key column exclude every source key."""
        keys = make_key_table(source_keys, key_columns)
        if not keys.num_rows:
            return False
        return all(_might_hold(file_metadata, name, keys[name]) for name in keys.column_names)


def _might_hold(metadata: ParquetFileMetadata, name: str, keys: pa.ChunkedArray) -> bool:
    stats = metadata.column_stats.get(name)
    if not stats:
        return True
    try:
        ends = pa.array([stats.get("min"), stats.get("max")])
        dtype = find_common_type(ends.type, keys.type)
        if dtype is None:
            return True
        limits = to_comparable(ends.cast(dtype)).combine_chunks()
        values = KeyRange.of(keys.cast(dtype))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):  # not to be compared
        return True
    bounds = Bounds(
        pa.array([0], pa.int32()),
        pa.array([0], pa.int32()),
        pa.array([metadata.total_rows], pa.int64()),
        limits.slice(0, 1),
        limits.slice(1, 1),
        pa.array([stats.get("null_count")], pa.int64()),
    )
    return bool(values.meets(bounds, null_match=True)[0].as_py())


def make_key_table(source_keys: Keys, key_columns: Columns) -> pa.Table:
    """The keys as a table of the key columns."""
    names = normalize_keys(key_columns)
    if isinstance(source_keys, (pa.Table, pa.RecordBatch)):
        return pa.table({name: source_keys[name] for name in names})
    if isinstance(source_keys, (pa.Array, pa.ChunkedArray)) and len(names) == 1:
        return pa.table({names[0]: source_keys})
    rows = [key if isinstance(key, (tuple, list)) else (key,) for key in source_keys]
    wrong = next((row for row in rows if len(row) != len(names)), None)
    if wrong is not None:
        raise KeyColumnError(
            f"The key {wrong!r} has {len(wrong)} part(s), the key columns are {', '.join(names)}.",
            hint="give a key of several columns as a tuple.",
        )
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    try:
        return pa.table({name: pa.array(values) for name, values in zip(names, columns, strict=True)})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise KeyColumnError(f"The source keys are not of one type: {error}") from error
