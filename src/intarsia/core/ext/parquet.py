"""Parquet files as one PyArrow table: the files as listed, whatever a table's log says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from intarsia.common.formats import parse_partition_scalars, translate_file_errors
from intarsia.common.int96 import ParquetInput, read_arrow_schema
from intarsia.common.log import get_logger, operation_log
from intarsia.common.paths import InputFile
from intarsia.common.schema import conform_table, unify_schemas
from intarsia.core.ext.gather import Columns, Filters, Path, Paths, Wanted, find, show_paths, with_constants
from intarsia.errors import InputError

__all__ = ["read_parquet", "read_parquet_file"]

_LOG = get_logger(__name__)


def read_parquet(
    paths: Paths,
    *,
    columns: Columns = None,
    filters: Filters = None,
    include_file_path: bool = False,
    use_threads: bool = True,
    filesystem: Any = None,
    types: pa.Schema | None = None,
) -> pa.Table:
    """Read Parquet files into one table, in the order of the paths.

    Schemas are unified between files; ``name=value`` directories become columns of the type they were
    written with. Filters skip row groups whose statistics rule them out. Memory: the result.

    Args:
        paths: A file, a directory, a glob, or a list of these.
        columns: The columns to return, in this order; all by default. Others are not read.
        filters: A pyarrow.compute expression, or tuples as pyarrow.parquet takes them.
        include_file_path: Add ``file_path``, a string column with the path each row is from.
        use_threads: Read in parallel; the result is the same either way.
        filesystem: The pyarrow or fsspec file system the paths are on.
        types: Types of partition columns, where every value can be read so.

    Raises:
        NothingMatched: there is no such file.
        ColumnNotFound: ``columns`` or ``filters`` name a column that is not there.
        SchemaMismatch: a column's types in two files do not meet.
        DamagedTable, StorageError: a file cannot be read; names it.
    """
    with operation_log(_LOG, "read_parquet", show_paths(paths)):
        wanted = Wanted.of("read_parquet", paths, columns, filters, include_file_path, use_threads)
        return _read(find(paths, "parquet", filesystem=filesystem), wanted, types)


def read_parquet_file(
    path: Path,
    *,
    columns: Columns = None,
    filters: Filters = None,
    include_file_path: bool = False,
    use_threads: bool = True,
    filesystem: Any = None,
) -> pa.Table:
    """Read one Parquet file; see :func:`read_parquet`. Its directories become no columns.

    Raises:
        InputError: the path is a directory, or stands for several files.
    """
    with operation_log(_LOG, "read_parquet_file", show_paths(path)):
        files = find(path, "parquet", filesystem=filesystem)
        if len(files) != 1 or "/" in files[0].below:
            shown = show_paths(path)
            raise InputError(
                f"read_parquet_file: {shown} is not one file.", path=shown, hint="use read_parquet"
            )
        wanted = Wanted.of("read_parquet_file", path, columns, filters, include_file_path, use_threads)
        return _read(files, wanted, None)


@dataclass(frozen=True, slots=True)
class _Fragment:
    """One file and what is known of it before it is read."""

    file: InputFile
    schema: pa.Schema
    constants: Mapping[str, pa.Scalar]


def _read(files: list[InputFile], wanted: Wanted, types: pa.Schema | None) -> pa.Table:
    schemas = wanted.map_each(_read_schema, files)
    partitions = parse_partition_scalars(files, "parquet", types=types, schemas=schemas)
    pieces = [
        _Fragment(file, schema, {name: value for name, value in part.items() if name not in schema.names})
        for file, schema, part in zip(files, schemas, partitions, strict=True)
    ]
    schema = unify_schemas(
        [_with_fields(piece) for piece in pieces], operation=wanted.operation, path=wanted.shown
    )
    wanted.check(schema)
    return pa.concat_tables(wanted.map_each(lambda piece: _read_piece(piece, schema, wanted), pieces))


def _read_schema(file: InputFile) -> pa.Schema:
    with translate_file_errors(file, "a Parquet"):
        return read_arrow_schema(pq.read_metadata(file.location, filesystem=file.filesystem))


def _with_fields(piece: _Fragment) -> pa.Schema:
    extra = [pa.field(name, scalar.type) for name, scalar in piece.constants.items()]
    return pa.schema([*piece.schema, *extra], piece.schema.metadata)


def _read_piece(piece: _Fragment, schema: pa.Schema, wanted: Wanted) -> pa.Table:
    same_types = all(field.type.equals(schema.field(field.name).type) for field in piece.schema)
    with (
        translate_file_errors(piece.file, "a Parquet"),
        ParquetInput(piece.file.location, piece.file.filesystem, shown=piece.file.shown) as opened,
    ):
        if same_types and not opened.int96_columns:
            return _scan(piece, schema, wanted)
        return _convert(piece, schema, wanted, opened)


def _scan(piece: _Fragment, schema: pa.Schema, wanted: Wanted) -> pa.Table:
    """Read with the filter pushed down; the file has the types of the whole."""
    constant = pc.scalar(True)
    for name, value in piece.constants.items():
        field = pc.field(name)
        constant = constant & (field == value if value.is_valid else field.is_null())
    fragment = ds.ParquetFileFormat().make_fragment(
        piece.file.location, piece.file.filesystem, partition_expression=constant
    )
    names = schema.names if wanted.columns is None else list(wanted.columns)
    table = wanted.apply_filter(
        lambda: fragment.to_table(
            schema=schema, columns=names, filter=wanted.filters, use_threads=wanted.use_threads
        )
    )
    selected = pa.schema([schema.field(name) for name in names], schema.metadata)
    return wanted.without_filter().finish(pa.table(table.columns, schema=selected), piece.file)


def _convert(piece: _Fragment, schema: pa.Schema, wanted: Wanted, opened: ParquetInput) -> pa.Table:
    """Read, bring to the types of the whole, then filter."""
    needed = None
    if wanted.columns is not None and wanted.filters is None:
        needed = [name for name in piece.schema.names if name in wanted.columns]
        schema = pa.schema([f for f in schema if f.name in wanted.columns], schema.metadata)
    table = opened.read(needed, use_threads=wanted.use_threads)
    constants = {name: value for name, value in piece.constants.items() if name in schema.names}
    table = with_constants(table, constants)
    table = conform_table(table, schema, operation=wanted.operation, path=piece.file.shown)
    return wanted.finish(table, piece.file)
