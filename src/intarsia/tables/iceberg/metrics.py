"""Metrics of a data file for its manifest entry: sizes, counts and bounds from its footer.

As Java's ``ParquetMetrics``; ``MetricsConfig`` says what is kept of a column (``write.metadata.metrics.*``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.transforms import BucketTransform, UnknownTransform, VoidTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    StringType,
    StructType,
    UUIDType,
)

from intarsia.tables.iceberg.conversions import to_bytes
from intarsia.tables.iceberg.projection import FileField, list_file_fields
from intarsia.tables.iceberg.schemas import iterate_fields, list_inner_fields, to_arrow_type

_AS_STORED = (BooleanType, FloatType, DoubleType, DecimalType, StringType, BinaryType, FixedType, UUIDType)
"""Types whose statistics are read as values; those of the others are integers."""


def read_metrics(
    footer: pq.FileMetaData,
    schema: Schema,
    config: MetricsConfig,
    nans: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The metrics fields of a ``ContentFile`` for a file that was written in a table's types.

    Args:
        footer: of the file.
        schema: of the table; columns are found by their id.
        config: what the table keeps of each column.
        nans: how many NaN each column of floats has, by the path of its leaf, where they were counted.

    A bound that is not sure is left out. Columns inside lists and maps have a size only.
    """
    kinds = {one.field_id: one.field_type for one in iterate_fields(schema)}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    sizes: dict[int, int] = {}
    found: dict[int, _ColumnMetrics] = {}
    for leaf, one in enumerate(_iterate_leaves(list_file_fields(footer.schema.to_arrow_schema()))):
        kind = kinds.get(one.number) if one.number is not None else None
        mode = None if one.number is None else config.get_mode(one.number)
        if one.number is None or kind is None or mode is None:
            continue
        chunks = [group.column(leaf) for group in groups]
        sizes[one.number] = sum(chunk.total_compressed_size for chunk in chunks)
        counted = None if one.repeated else _read_column_metrics(chunks, one.type, kind, mode)
        if counted is not None:
            number = (nans or {}).get(footer.schema.column(leaf).path)
            found[one.number] = counted.with_nans(number, kind)
    return {
        "column_sizes": sizes,
        "value_counts": {number: one.values for number, one in found.items()},
        "null_value_counts": {number: one.nulls for number, one in found.items()},
        "nan_value_counts": {number: one.nans for number, one in found.items() if one.nans is not None},
        "lower_bounds": {number: one.lower for number, one in found.items() if one.lower is not None},
        "upper_bounds": {number: one.upper for number, one in found.items() if one.upper is not None},
        "split_offsets": tuple(sorted(find_row_group_offset(group) for group in groups if group.num_rows))
        or None,
    }


@dataclass(frozen=True, slots=True)
class _MetricsLeaf:
    number: int | None
    type: pa.DataType
    repeated: bool


def _iterate_leaves(fields: Iterable[FileField], *, repeated: bool = False) -> Iterator[_MetricsLeaf]:
    for one in fields:
        kind = one.type.storage_type if isinstance(one.type, pa.BaseExtensionType) else one.type
        if one.inner:
            yield from _iterate_leaves(one.inner, repeated=repeated or not pa.types.is_struct(kind))
        else:
            yield _MetricsLeaf(one.number, kind, repeated)


@dataclass(frozen=True, slots=True)
class _ColumnMetrics:
    values: int
    nulls: int
    lower: bytes | None = None
    upper: bytes | None = None
    nans: int | None = None

    def with_nans(self, nans: int | None, kind: IcebergType) -> _ColumnMetrics:
        if nans is None or not isinstance(kind, (FloatType, DoubleType)):
            return self
        return _ColumnMetrics(self.values, self.nulls, self.lower, self.upper, nans)


def _read_column_metrics(
    chunks: list[Any], stored: pa.DataType, kind: IcebergType, mode: int
) -> _ColumnMetrics | None:
    """None where not every row group tells how many NULLs it has."""
    values = nulls = 0
    for chunk in chunks:
        stats = chunk.statistics
        if stats is None or not stats.has_null_count:
            return None
        values += chunk.num_values
        nulls += stats.null_count
    bounds = _read_bounds(chunks, kind) if mode > 0 and stored.equals(to_arrow_type(kind)) else None
    if bounds is None:
        return _ColumnMetrics(values, nulls)
    length = mode if isinstance(kind, (StringType, BinaryType)) else 2**31
    lower, upper = truncate_lower_bound(bounds[0], length), truncate_upper_bound(bounds[1], length)
    return _ColumnMetrics(
        values, nulls, to_bytes(kind, lower), None if upper is None else to_bytes(kind, upper)
    )


def _read_bounds(chunks: list[Any], kind: IcebergType) -> tuple[Any, Any] | None:
    lows, highs = [], []
    for chunk in chunks:
        stats = chunk.statistics
        if stats.null_count == chunk.num_values:
            continue
        if not stats.has_min_max:
            return None  # too long to be kept, or NaN among them: what the others say is not all
        if isinstance(kind, _AS_STORED):
            low, high = stats.min, stats.max
        else:
            low, high = stats.min_raw, stats.max_raw
        if isinstance(low, float) and (math.isnan(low) or math.isnan(high)):
            return None
        lows.append(low)
        highs.append(high)
    return (min(lows), max(highs)) if lows else None


def truncate_lower_bound(value: Any, length: int) -> Any:
    """A lower bound of at most so many characters or bytes."""
    return value[:length] if isinstance(value, (str, bytes)) else value


def truncate_upper_bound(value: Any, length: int) -> Any:
    """An upper bound of at most so many characters or bytes; None where there is none that short."""
    if isinstance(value, (str, bytes)) and len(value) > length:
        return _increment_text(value[:length]) if isinstance(value, str) else _increment_bytes(value[:length])
    return value


def _increment_text(text: str) -> str | None:
    """The least text not longer that is greater than all with this prefix (Java's ``UnicodeUtil``)."""
    for place in range(len(text) - 1, -1, -1):
        point = ord(text[place]) + 1
        if point == 0xD800:
            point = 0xE000  # surrogates are no characters
        if point <= 0x10FFFF:
            return text[:place] + chr(point)
    return None


def _increment_bytes(data: bytes) -> bytes | None:
    """The same for bytes; those behind the incremented one are left out (Java's ``BinaryUtil``)."""
    for place in range(len(data) - 1, -1, -1):
        if data[place] < 0xFF:
            return data[:place] + bytes([data[place] + 1])
    return None


def find_row_group_offset(group: Any) -> int:
    """Where a row group begins in its file."""
    first = group.column(0)
    data = int(first.data_page_offset)
    dictionary = first.dictionary_page_offset if first.has_dictionary_page else None
    return min(data, dictionary) if dictionary else data


MetricsMode = int | None
"""None: no metrics; 0: counts only; else counts and bounds of at most that many characters."""
COUNTS: MetricsMode = 0
FULL: MetricsMode = 2**31 - 1
TRUNCATED: MetricsMode = 16
_TRUNCATE = re.compile(r"truncate\((\d+)\)")
_INFERRED = 100


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """How much is kept of each column, by field id."""

    modes: Mapping[int, MetricsMode] = field(default_factory=dict)
    default: MetricsMode = TRUNCATED

    @staticmethod
    def of(properties: Mapping[str, str], schema: Schema, order: SortOrder | None = None) -> MetricsConfig:
        """What ``write.metadata.metrics.*`` says; an invalid mode is ignored, as in Java."""
        limit = _parse_limit(properties.get("write.metadata.metrics.max-inferred-column-defaults"))
        said, chosen = _parse_mode(properties.get("write.metadata.metrics.default"))
        modes: dict[int, MetricsMode] = {}
        default = chosen
        if not said:
            inferred = list(_find_first_leaves(schema.as_struct(), limit))
            modes = dict.fromkeys(inferred, TRUNCATED)
            default = TRUNCATED if len(inferred) < limit else None
        sorted_mode = chosen if said and chosen else TRUNCATED
        modes.update(dict.fromkeys(_find_sorted_columns(order), sorted_mode))
        prefix = "write.metadata.metrics.column."
        numbers = {schema.find_column_name(one.field_id): one.field_id for one in iterate_fields(schema)}
        for key, text in properties.items():
            number = numbers.get(key.removeprefix(prefix)) if key.startswith(prefix) else None
            valid, mode = _parse_mode(text)
            if number is not None and valid:
                modes[number] = mode
        return MetricsConfig(modes, default)

    def get_mode(self, number: int) -> MetricsMode:
        return self.modes.get(number, self.default)


def _parse_mode(text: str | None) -> tuple[bool, MetricsMode]:
    """Whether a mode is valid, and which it is."""
    mode = (text or "").strip().lower()
    if mode == "none":
        return True, None
    if mode in ("counts", "full"):
        return True, COUNTS if mode == "counts" else FULL
    match = _TRUNCATE.fullmatch(mode)
    return (True, int(match[1])) if match and int(match[1]) else (False, TRUNCATED)


def _parse_limit(text: str | None) -> int:
    return int(text) if text is not None and text.strip().isdigit() else _INFERRED


def _find_first_leaves(struct: StructType, limit: int) -> list[int]:
    """Ids of the first primitive fields, outer before inner (Java's ``MetricsConfig.limitFieldIds``)."""
    found: list[int] = []

    def visit(kind: IcebergType) -> None:
        inner = list_inner_fields(kind)
        for one in inner:
            if len(found) < limit and one.field_type.is_primitive:
                found.append(one.field_id)
        for one in inner:
            if len(found) < limit:
                visit(one.field_type)

    visit(struct)
    return found


def _find_sorted_columns(order: SortOrder | None) -> list[int]:
    """Source columns whose order the sort order keeps (``SortOrderUtil.orderPreservingSortedColumns``)."""
    unordered = (BucketTransform, VoidTransform, UnknownTransform)
    fields = () if order is None else order.fields
    return [one.source_id for one in fields if not isinstance(one.transform, unordered)]
