"""Sets of rows that other rows are looked up in, compared as equality deletes are; no file is opened here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.errors import DamagedTable, NotSupported

_is = pa.types


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of a column's values: the least and the greatest, as Parquet's statistics have them."""

    low: Any
    """An integer or bytes; None where all are NULL."""
    high: Any
    has_null: bool


@dataclass(frozen=True, slots=True)
class KeySet:
    """Rows of some columns.

    A row is looked up as numbers: that of its value among the distinct ones of the column that has most,
    then that of the pair of both numbers among the distinct pairs, and so on for each further column.
    """

    kinds: tuple[pa.DataType, ...]
    """The types that columns are compared in."""
    columns: tuple[pa.ChunkedArray, ...]
    leading: int
    """The column that tells most rows apart, and is looked up first."""
    distinct: pa.Array
    """Its values, once each."""
    codes: Any
    """Which of them each row has."""
    bounds: tuple[Bounds | None, ...]
    """None where values have no order that statistics follow."""

    @staticmethod
    def of(columns: Sequence[pa.ChunkedArray]) -> KeySet:
        """The rows of columns that ``plain`` made, all of one length."""
        exact = tuple(map(_exact, columns))
        distinct = [column.unique() for column in exact]
        leading = max(range(len(exact)), key=lambda n: len(distinct[n]))
        kinds = tuple(column.type for column in columns)
        return KeySet(
            kinds,
            exact,
            leading,
            distinct[leading],
            pc.index_in(exact[leading], distinct[leading]) if len(exact) > 1 else None,
            tuple(_bounds(kind, found) for kind, found in zip(kinds, distinct, strict=True)),
        )

    @property
    def rows(self) -> int:
        return len(self.columns[0])

    @property
    def nbytes(self) -> int:
        codes = 0 if self.codes is None else self.codes.nbytes
        return sum(part.nbytes for part in (*self.columns, self.distinct)) + int(codes)

    def matches(self, columns: Sequence[pa.ChunkedArray]) -> pa.Int64Array:
        """Which rows of columns, in the set's types, are in the set, ascending."""
        first = _exact(columns[self.leading])
        if self.codes is None:
            return pc.indices_nonzero(pc.is_in(first, self.distinct)).cast(pa.int64())
        codes = pc.index_in(first, self.distinct)
        rows = pc.indices_nonzero(codes.is_valid())
        codes = codes.drop_null()
        # On both sides only what is alike so far: to look values up is what takes time.
        alike = pc.indices_nonzero(pc.is_in(self.codes, codes.unique()))
        own_codes = self.codes.take(alike)
        for number, column in enumerate(columns):
            if number == self.leading:
                continue
            own = self.columns[number].take(alike)
            distinct = own.unique()
            own_codes = _together(own_codes, pc.index_in(own, distinct), len(distinct))
            codes = _together(codes, pc.index_in(_exact(column.take(rows)), distinct), len(distinct))
            pairs = own_codes.unique()
            own_codes, codes = pc.index_in(own_codes, pairs), pc.index_in(codes, pairs)
            rows = rows.filter(codes.is_valid())
            codes = codes.drop_null()
        return rows.cast(pa.int64())

    def may_match(self, column: int, statistics: Any, kind: pa.DataType) -> bool:
        """Whether rows with these statistics of a Parquet column, seen as ``kind``, may be in the set."""
        bounds = self.bounds[column]
        kind = kind.value_type if _is.is_dictionary(kind) else kind
        if bounds is None or statistics is None or form(kind) != self.kinds[column]:
            return True
        nulls = not statistics.has_null_count or statistics.null_count > 0
        if bounds.has_null and nulls:
            return True
        only_nulls = statistics.has_null_count and statistics.num_values == 0
        if bounds.low is None or only_nulls:
            return False
        if not statistics.has_min_max or _is.is_unsigned_integer(kind):
            return True
        if _is.is_timestamp(kind) and kind.unit != "us":  # the unit stored may be another
            return True
        low, high = statistics.min_raw, statistics.max_raw
        if type(low) is not type(bounds.low):
            return True
        return bool(low <= bounds.high and bounds.low <= high)


def form(kind: pa.DataType) -> pa.DataType:
    """The type that a column is compared in, the same for all types that Iceberg promotes to each other.

    A date that became a timestamp stays a date here; ``common`` brings the two together.

    Raises:
        NotSupported: lists, maps and structs are not compared.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return form(kind.storage_type)
    if _is.is_dictionary(kind):
        return form(kind.value_type)
    if _is.is_integer(kind):
        return pa.int64()
    if _is.is_floating(kind):
        return pa.float64()
    if _is.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    if _is.is_string(kind) or _is.is_large_string(kind) or _is.is_string_view(kind):
        return pa.large_string()
    if _is.is_binary(kind) or _is.is_large_binary(kind) or _is.is_binary_view(kind):
        return pa.large_binary()
    if _is.is_fixed_size_binary(kind):
        return pa.large_binary()
    if _is.is_date(kind):
        return pa.date32()
    if _is.is_time(kind):
        return pa.time64("us")
    if _is.is_timestamp(kind):
        return pa.timestamp("ns" if kind.unit == "ns" else "us")
    if _is.is_boolean(kind) or _is.is_null(kind):
        return kind
    raise NotSupported(f"Columns of type {kind} cannot be compared for equality deletes.")


def common(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The one type in which columns of several forms are compared, the deletes' before the data's.

    Raises:
        DamagedTable: Iceberg promotes none of them to the other.
    """
    return reduce(_wider, kinds)


def plain(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column in a form that ``common`` gave."""
    if isinstance(column.type, pa.BaseExtensionType):
        stored = [chunk.storage for chunk in column.chunks]
        column = pa.chunked_array(stored, column.type.storage_type)
    if _is.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column if column.type == kind else column.cast(kind, safe=False)


def constant(value: Any, kind: pa.DataType, rows: int) -> pa.ChunkedArray:
    """A column of one value, in a form that ``common`` gave."""
    if value is None:
        return pa.chunked_array([pa.nulls(rows, kind)])
    if hasattr(value, "bytes") and _is.is_large_binary(kind):  # a UUID
        value = value.bytes
    return pa.chunked_array([pa.repeat(pa.scalar(value, kind), rows)])


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other or _is.is_null(other):
        return one
    if _is.is_null(one):
        return other
    if _is.is_timestamp(one) and (_is.is_timestamp(other) or _is.is_date(other)):
        return one
    if _is.is_date(one) and _is.is_timestamp(other):
        return other
    if {one, other} == {pa.large_string(), pa.large_binary()}:
        return pa.large_binary()
    raise DamagedTable(f"A column of equality deletes is {one} in one file and {other} in another.")


def _exact(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats as their bits, by which all NaNs are one value and 0.0 and -0.0 are two, as in Java."""
    if not _is.is_floating(column.type):
        return column
    one = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    return pa.chunked_array([chunk.view(pa.int64()) for chunk in one.chunks], pa.int64())


def _together(codes: Any, others: Any, count: int) -> Any:
    """Two numbers as one; NULL where either is. Both are below 2**31, so that it fits."""
    return pc.add(pc.multiply(codes.cast(pa.int64()), count), others.cast(pa.int64()))


def _bounds(kind: pa.DataType, values: pa.Array) -> Bounds | None:
    has_null = values.null_count > 0
    if _is.is_int64(kind):
        ordered = values
    elif _is.is_date(kind):
        ordered = values.cast(pa.int32())
    elif _is.is_timestamp(kind):
        ordered = values.cast(pa.int64())
    elif _is.is_large_string(kind):
        ordered = values.cast(pa.large_binary())
    else:
        return None
    found = pc.min_max(ordered).as_py()
    return Bounds(found["min"], found["max"], has_null)
