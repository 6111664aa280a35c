"""Dictionary columns of narrow indices: wide while rows of many files are together, narrow where written.

A dictionary with 8-bit indices numbers 128 values. Each file may have others, so that together they are
more than the column's type can number; a row group of the result has to keep to its type again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from intarsia.engines.arrow.row_groups import Sink
from intarsia.errors import SchemaMismatch

_WIDE = 32


def widened(schema: pa.Schema) -> pa.Schema:
    """The schema with indices of dictionaries, also of nested ones, wide enough for all files' values."""
    fields = [field.with_type(_changed(field.type, plain=False)) for field in schema]
    return pa.schema(fields, schema.metadata)


def widen(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table in the types of a widened schema."""
    if table.schema.equals(schema):
        return table
    columns = [column.cast(field.type) for column, field in zip(table.columns, schema, strict=True)]
    return pa.table(columns, schema=schema)


def narrowed(table: pa.Table, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows in the types of ``schema``, in as many tables as its dictionaries need.

    Raises:
        SchemaMismatch: one row alone holds more values than its type can number.
    """
    if table.schema.equals(schema):
        yield table
        return
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        narrow = _narrow(column, field.type)
        if narrow is None:
            break
        columns.append(narrow)
    else:
        yield pa.table(columns, schema=schema)
        return
    if table.num_rows < 2:
        raise SchemaMismatch(
            f"A row holds more distinct values than column {field.name!r} of type {field.type} can number.",
            hint="make the column one of plain values, or of wider indices, in every file.",
        )
    half = table.num_rows // 2
    yield from narrowed(table.slice(0, half), schema)
    yield from narrowed(table.slice(half), schema)


class NarrowingSink:
    """Takes rows with wide indices and writes them with the narrow ones of the file's schema."""

    def __init__(self, writer: Sink, schema: pa.Schema) -> None:
        self.schema = writer.schema
        self._writer = writer
        self._stored = schema

    def write(self, table: pa.Table) -> None:
        for part in narrowed(table, self._stored):
            self._writer.write(part)


def _narrow(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    """The column in its own type, or None when it has too many values for it."""
    if column.type == kind:
        return column
    # By way of plain values, since the dictionary at hand has those of other rows as well.
    plain = column.cast(_changed(kind, plain=True)).combine_chunks()
    try:
        return plain.cast(kind)
    except pa.ArrowInvalid:
        return None


def _changed(kind: pa.DataType, *, plain: bool) -> pa.DataType:
    """The type with narrow dictionaries made wide, or plain."""
    is_ = pa.types

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(_changed(field.type, plain=plain))

    if is_.is_dictionary(kind):
        if kind.index_type.bit_width >= _WIDE:
            return kind
        return kind.value_type if plain else pa.dictionary(pa.int32(), kind.value_type, kind.ordered)
    if is_.is_struct(kind):
        return pa.struct([inner(field) for field in kind])
    if is_.is_map(kind):
        return pa.map_(inner(kind.key_field), inner(kind.item_field), keys_sorted=kind.keys_sorted)
    if is_.is_fixed_size_list(kind):
        return pa.list_(inner(kind.value_field), kind.list_size)
    if is_.is_large_list(kind):
        return pa.large_list(inner(kind.value_field))
    if is_.is_list(kind):
        return pa.list_(inner(kind.value_field))
    return kind
