"""What DuckDB gives back as Arrow, in the very types it was asked for."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["restored"]


def restored(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the types that its columns have in ``schema``; DuckDB has one for several of Arrow's."""
    fields = [schema.field(each) for each in table.column_names]
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(table.columns, fields, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema([f.with_nullable(True) for f in fields]))
