"""CSV files as one PyArrow table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from intarsia.common.formats import read_csv_file
from intarsia.common.log import get_logger, operation_log
from intarsia.core.ext.gather import Columns, Filters, Paths, Wanted, check_options, read_text, show_paths

__all__ = ["read_csv"]

_LOG = get_logger(__name__)
_OPTIONS = ("read_options", "parse_options", "convert_options")


def read_csv(
    paths: Paths,
    *,
    columns: Columns = None,
    filters: Filters = None,
    include_file_path: bool = False,
    use_threads: bool = True,
    filesystem: Any = None,
    types: pa.Schema | None = None,
    **options: Any,
) -> pa.Table:
    """Read CSV files with a header into one table, in the order of the paths.

    Types are inferred from all rows of a file and unified between files. An empty field is NULL, a quoted
    empty one an empty string. ``name=value`` directories become columns. Memory: all files at once.

    Args:
        paths: A file, a directory, a glob, or a list of these; also compressed (``.csv.gz``).
        columns: The columns to return, in this order; all by default.
        filters: A pyarrow.compute expression, or tuples as pyarrow.parquet takes them.
        include_file_path: Add ``file_path``, a string column with the path each row is from.
        use_threads: Read in parallel; the result is the same either way.
        filesystem: The pyarrow or fsspec file system the paths are on.
        types: Types of columns, used in files where every text can be read so.
        **options: ``read_options``, ``parse_options`` and ``convert_options`` of pyarrow.csv.

    Raises:
        NothingMatched: there is no such file.
        ColumnNotFound: ``columns`` or ``filters`` name a column that is not there.
        SchemaMismatch: a column's types in two files do not meet.
        DamagedTable, StorageError: a file cannot be read; names it.
    """
    with operation_log(_LOG, "read_csv", show_paths(paths)):
        given = check_options(options, _OPTIONS, operation="read_csv")
        wanted = Wanted.of("read_csv", paths, columns, filters, include_file_path, use_threads)
        return read_text(
            paths,
            "csv",
            lambda file, known: read_csv_file(file, types=known, use_threads=use_threads, options=given),
            wanted,
            filesystem=filesystem,
            types=types,
        )
