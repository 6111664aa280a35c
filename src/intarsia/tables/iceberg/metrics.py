"""What a manifest says of a data file's columns, from its footer: sizes, counts and bounds, as Java does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    StringType,
    UUIDType,
)

from intarsia.tables.iceberg.properties import WriteProperties
from intarsia.tables.iceberg.reshape import Held, held_fields
from intarsia.tables.iceberg.schemas import arrow_type, fields_of
from intarsia.tables.iceberg.singles import encode

_AS_STORED = (BooleanType, FloatType, DoubleType, DecimalType, StringType, BinaryType, FixedType, UUIDType)
"""Types whose statistics are read as values; those of the others are integers."""


def metrics_of(
    footer: pq.FileMetaData,
    schema: Schema,
    properties: WriteProperties,
    nans: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The metrics fields of a ``ContentFile`` for a file that was written in a table's types.

    Args:
        footer: of the file.
        schema: of the table; columns are found by their id.
        properties: of the table; they say how much is kept.
        nans: how many NaN each column of floats has, by the path of its leaf, where they were counted.

    A bound that is not sure is left out. Columns inside lists and maps have a size only.
    """
    kinds = {one.field_id: one.field_type for one in fields_of(schema)}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    sizes: dict[int, int] = {}
    found: dict[int, _Counted] = {}
    for leaf, one in enumerate(_leaves(held_fields(footer.schema.to_arrow_schema()))):
        kind = kinds.get(one.number) if one.number is not None else None
        mode = None if one.number is None else properties.metrics.mode(one.number)
        if one.number is None or kind is None or mode is None:
            continue
        chunks = [group.column(leaf) for group in groups]
        sizes[one.number] = sum(chunk.total_compressed_size for chunk in chunks)
        counted = None if one.repeated else _counted(chunks, one.type, kind, mode)
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
        "split_offsets": tuple(sorted(_start(group) for group in groups if group.num_rows)) or None,
    }


@dataclass(frozen=True, slots=True)
class _Leaf:
    number: int | None
    type: pa.DataType
    repeated: bool


def _leaves(fields: Iterable[Held], *, repeated: bool = False) -> Iterator[_Leaf]:
    for one in fields:
        kind = one.type.storage_type if isinstance(one.type, pa.BaseExtensionType) else one.type
        if one.inner:
            yield from _leaves(one.inner, repeated=repeated or not pa.types.is_struct(kind))
        else:
            yield _Leaf(one.number, kind, repeated)


@dataclass(frozen=True, slots=True)
class _Counted:
    values: int
    nulls: int
    lower: bytes | None = None
    upper: bytes | None = None
    nans: int | None = None

    def with_nans(self, nans: int | None, kind: IcebergType) -> _Counted:
        if nans is None or not isinstance(kind, (FloatType, DoubleType)):
            return self
        return _Counted(self.values, self.nulls, self.lower, self.upper, nans)


def _counted(chunks: list[Any], stored: pa.DataType, kind: IcebergType, mode: int) -> _Counted | None:
    """None where not every row group tells how many NULLs it has."""
    values = nulls = 0
    for chunk in chunks:
        stats = chunk.statistics
        if stats is None or not stats.has_null_count:
            return None
        values += chunk.num_values
        nulls += stats.null_count
    bounds = _bounds(chunks, kind) if mode > 0 and stored.equals(arrow_type(kind)) else None
    if bounds is None:
        return _Counted(values, nulls)
    length = mode if isinstance(kind, (StringType, BinaryType)) else 2**31
    lower, upper = cut_lower(bounds[0], length), cut_upper(bounds[1], length)
    return _Counted(values, nulls, encode(kind, lower), None if upper is None else encode(kind, upper))


def _bounds(chunks: list[Any], kind: IcebergType) -> tuple[Any, Any] | None:
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


def cut_lower(value: Any, length: int) -> Any:
    """A lower bound of at most so many characters or bytes."""
    return value[:length] if isinstance(value, (str, bytes)) else value


def cut_upper(value: Any, length: int) -> Any:
    """An upper bound of at most so many characters or bytes; None where there is none that short."""
    if isinstance(value, (str, bytes)) and len(value) > length:
        return _next_text(value[:length]) if isinstance(value, str) else _next_bytes(value[:length])
    return value


def _next_text(text: str) -> str | None:
    """The least text that is not longer and comes after all that begin with this one."""
    for place in range(len(text) - 1, -1, -1):
        point = ord(text[place]) + 1
        if point == 0xD800:
            point = 0xE000  # surrogates are no characters
        if point <= 0x10FFFF:
            return text[:place] + chr(point)
    return None


def _next_bytes(data: bytes) -> bytes | None:
    """The same of bytes; as in Java, those behind the one that was raised stay away."""
    for place in range(len(data) - 1, -1, -1):
        if data[place] < 0xFF:
            return data[:place] + bytes([data[place] + 1])
    return None


def _start(group: Any) -> int:
    """Where a row group begins in its file."""
    first = group.column(0)
    data = int(first.data_page_offset)
    dictionary = first.dictionary_page_offset if first.has_dictionary_page else None
    return min(data, dictionary) if dictionary else data
