"""The rows that tests give and expect, as Arrow tables in the types that the pipeline declares."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from intarsia.common.names import suggest_names
from intarsia.common.types import is_nested
from intarsia.errors import InputError, IntarsiaError
from intarsia.pipeline.cases import CaseTable
from intarsia.pipeline.computed import chain_streams
from intarsia.pipeline.inputs import Downloads, list_inputs, read_streams
from intarsia.pipeline.model import Source
from intarsia.pipeline.row_transform import RowTransform, parse_type_name

__all__ = ["TableReader", "parse_columns"]


def parse_columns(columns: Mapping[str, str]) -> dict[str, pa.DataType]:
    """Arrow types of columns by their SQL types. Raises InputError or NotSupported."""
    return {name: parse_type_name(kind) for name, kind in columns.items()}


@dataclass(slots=True)
class TableReader:
    """Reads the rows of tests; CSV text passes through files in a scratch directory."""

    directory: str
    count: int = 0

    def read_given(
        self, table: CaseTable, types: Mapping[str, pa.DataType], *, is_closed: bool = False
    ) -> pa.Table:
        """Given rows, in the types that the pipeline declares; columns that are left out are NULL.

        With ``is_closed`` the table has no other columns than ``types``.

        Raises:
            InputError: a column that is not declared, a value that does not fit, a column without a type.
        """
        typed = {**types, **self._parse(table)}
        rows = self._read(table, typed)
        absent = [name for name in rows.column_names if name not in typed]
        if is_closed and table.file is None and absent:
            raise InputError(
                f"{table.place}: the column {absent[0]!r} is not among those that are declared.",
                hint=suggest_names(absent[:1], sorted(typed)),
            )
        untyped = [one.name for one in rows.schema if pa.types.is_null(one.type)]
        if untyped:
            raise InputError(
                f"{table.place}: the column {untyped[0]!r} has no value, and so no type.",
                hint=f'give it one: columns = {{ {untyped[0]} = "varchar" }}.',
            )
        for name, kind in typed.items():
            if name not in rows.column_names:
                rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
        if not rows.num_columns:
            raise InputError(
                f"{table.place}: without rows its columns are not known.",
                hint='declare them: columns = { id = "bigint" }.',
            )
        return rows

    def read_expected(self, table: CaseTable, schema: pa.Schema) -> pa.Table:
        """Expected rows, in the types of the columns that are there. Raises InputError."""
        typed = {one.name: one.type for one in schema}
        absent = [name for name in table.columns if name not in typed]
        rows = self._read(table, {**typed, **self._parse(table)})
        absent += [name for name in rows.column_names if name not in typed]
        if absent:
            raise InputError(
                f"{table.place}: there is no column {absent[0]!r}.",
                hint=suggest_names(absent[:1], sorted(typed)),
            )
        return self._convert(table, rows, typed)

    def _parse(self, table: CaseTable) -> dict[str, pa.DataType]:
        try:
            return parse_columns(table.columns)
        except IntarsiaError as error:
            raise InputError(f"{table.place}, columns: {error.message}", hint=error.hint) from error

    def _read(self, table: CaseTable, types: Mapping[str, pa.DataType]) -> pa.Table:
        if table.rows is not None:
            return self._convert(table, _make_table(table, types), types)
        path = table.file
        if path is None:
            self.count += 1
            path = os.path.join(self.directory, f"text-{self.count}.csv")
            Path(path).write_text((table.csv or "").lstrip(), encoding="utf-8")
        source, known = Source(path), pa.schema(list(types.items())) if types else None
        try:
            return self._convert(
                table,
                chain_streams(read_streams(source, list_inputs(source, Downloads()), known)).read_all(),
                types,
            )
        except (IntarsiaError, pa.ArrowInvalid) as error:
            told = error.message if isinstance(error, IntarsiaError) else str(error)
            raise InputError(f"{table.place}: {told}", hint=getattr(error, "hint", None)) from error

    def _convert(self, table: CaseTable, rows: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
        """The rows with their columns in these types, where no value changes by it."""
        if not rows.num_columns:
            return rows
        plain = {
            name: kind for name, kind in types.items() if name in rows.column_names and not is_nested(kind)
        }
        shape = RowTransform(types=plain)
        try:
            schema = shape.make_schema(rows.schema)
            return pa.Table.from_batches(shape.transform_batches(rows.schema, rows.to_batches()), schema)
        except IntarsiaError as error:
            raise InputError(f"{table.place}: {error.message}") from error


def _make_table(table: CaseTable, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Rows of TOML as columns in the types that their values have."""
    assert table.rows is not None
    names = list(dict.fromkeys(name for row in table.rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in table.rows]
        try:
            columns[name] = _make_column(values, types.get(name))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise InputError(f"{table.place}, column {name!r}: {error}") from error
    return pa.table(columns)


def _make_column(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    if kind is not None and is_nested(kind):
        return pa.array(values, kind)
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, Decimal}:
        kinds, values = {Decimal}, [None if value is None else Decimal(value) for value in values]
    if len(kinds) > 1:
        raise pa.ArrowInvalid(f"it has values of several types: {', '.join(sorted(map(_name_kind, kinds)))}")
    if kinds == {Decimal} and kind is None:
        values = [None if value is None else float(value) for value in values]
    return pa.array(values)


def _name_kind(kind: type) -> str:
    words = {str: "text", bool: "truth", int: "whole number", Decimal: "number", float: "number"}
    return words.get(kind, kind.__name__)
