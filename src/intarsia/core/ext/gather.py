"""What the readers of all formats share: finding files, reading them in order, combining their tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.common.formats import SUFFIXES, Format, parse_partition_scalars, unify_text_types
from intarsia.common.log import redact
from intarsia.common.names import check_columns
from intarsia.common.paths import InputFile, find_input_files
from intarsia.common.schema import conform_table, unify_schemas
from intarsia.errors import ColumnNotFound, InputError

FILE_PATH = "file_path"

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]
Columns = str | Sequence[str] | None
Filters = Any
"""A pyarrow.compute expression, or tuples as ``pyarrow.parquet`` takes them."""

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns, rows and file paths that are asked for, for every format."""

    operation: str
    columns: tuple[str, ...] | None
    filters: pc.Expression | None
    include_file_path: bool
    use_threads: bool
    shown: str

    @staticmethod
    def of(
        operation: str,
        paths: Paths,
        columns: Columns,
        filters: Filters,
        include_file_path: bool,
        use_threads: bool,
    ) -> Wanted:
        return Wanted(
            operation,
            (columns,) if isinstance(columns, str) else None if columns is None else tuple(columns),
            _make_expression(filters, operation),
            include_file_path,
            use_threads,
            show_paths(paths),
        )

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that are not there, and a file_path that is there already."""
        check_columns(self.columns or (), schema.names, operation=self.operation, path=self.shown)
        if self.include_file_path and FILE_PATH in schema.names:
            raise InputError(
                f"{self.operation}: {self.shown} has a column {FILE_PATH!r} of its own.",
                path=self.shown,
                hint="read it without include_file_path, or rename the column",
            )

    def finish(self, table: pa.Table, file: InputFile) -> pa.Table:
        """The rows and columns asked for, with the path of the file where that is asked for."""
        if self.filters is not None:
            table = self.apply_filter(lambda: table.filter(self.filters))
        if self.columns is not None:
            table = table.select(list(self.columns))
        if self.include_file_path:
            path = pa.repeat(pa.scalar(file.shown, pa.string()), table.num_rows)
            table = table.append_column(pa.field(FILE_PATH, pa.string()), path)
        return table

    def without_filter(self) -> Wanted:
        """The same, for rows that were filtered already."""
        return replace(self, filters=None)

    def apply_filter(self, filtered: Callable[[], pa.Table]) -> pa.Table:
        """Apply a filter; a column of it that is not there is named as such."""
        try:
            return filtered()
        except pa.ArrowInvalid as error:
            if "No match for FieldRef" not in str(error):
                raise
            raise ColumnNotFound(
                f"{self.operation}: the filter names a column that is not in {self.shown}: {self.filters}",
                path=self.shown,
            ) from error

    def map_each(self, work: Callable[[_T], _R], things: Sequence[_T]) -> list[_R]:
        """Do the same for each thing, in parallel where threads are wanted; results in order."""
        if not self.use_threads or len(things) == 1:
            return [work(thing) for thing in things]
        with ThreadPoolExecutor(min(len(things), pa.io_thread_count())) as pool:
            return list(pool.map(work, things))


def _make_expression(filters: Filters, operation: str) -> pc.Expression | None:
    if filters is None or isinstance(filters, pc.Expression):
        return filters
    try:
        return pq.filters_to_expression(filters)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{operation}: filters={filters!r} is not understood: {error}",
            hint="pass a pyarrow.compute expression, or [(column, operator, value), ...]",
        ) from error


def check_options(options: Mapping[str, Any], known: Sequence[str], *, operation: str) -> dict[str, Any]:
    """The options that are set; one that is not known is refused."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(
            f"{operation} has no option {', '.join(map(repr, unknown))}.", hint=f"it has {', '.join(known)}"
        )
    return {name: value for name, value in options.items() if value is not None}


def show_paths(paths: Paths) -> str:
    names = [redact(os.fspath(path)) for path in list_paths(paths)]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def list_paths(paths: Paths) -> list[Path]:
    found = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not found:
        raise InputError("No path was given to read from.")
    return found


def find(paths: Paths, kind: Format, *, filesystem: Any) -> list[InputFile]:
    """The files of one format that the paths stand for; those of a path sorted, paths as given."""
    return [
        file
        for path in list_paths(paths)
        for file in find_input_files(path, filesystem=filesystem, suffixes=SUFFIXES[kind])
    ]


def with_constants(table: pa.Table, constants: Mapping[str, pa.Scalar]) -> pa.Table:
    for name, scalar in constants.items():
        if name not in table.column_names:
            table = table.append_column(pa.field(name, scalar.type), pa.repeat(scalar, table.num_rows))
    return table


def _differs(schema: pa.Schema, types: pa.Schema) -> bool:
    known = set(types.names)
    return any(field.name in known and field.type != types.field(field.name).type for field in schema)


def read_text(
    paths: Paths,
    kind: Format,
    read: Callable[[InputFile, pa.Schema | None], pa.Table],
    wanted: Wanted,
    *,
    filesystem: Any,
    types: pa.Schema | None,
) -> pa.Table:
    """Read whole files, bring them to one schema, then filter and select."""
    files = find(paths, kind, filesystem=filesystem)
    tables = wanted.map_each(lambda file: read(file, types), files)
    agreed = unify_text_types([table.schema for table in tables], types)
    if agreed is not None and agreed != types:
        tables = [
            read(file, agreed) if _differs(table.schema, agreed) else table
            for file, table in zip(files, tables, strict=True)
        ]
    partitions = parse_partition_scalars(files, kind, types=types)
    tables = [with_constants(table, part) for table, part in zip(tables, partitions, strict=True)]
    schema = unify_schemas([t.schema for t in tables], operation=wanted.operation, path=wanted.shown)
    wanted.check(schema)
    conformed = (conform_table(t, schema, operation=wanted.operation, path=wanted.shown) for t in tables)
    return pa.concat_tables(
        [wanted.finish(table, file) for table, file in zip(conformed, files, strict=True)]
    )
