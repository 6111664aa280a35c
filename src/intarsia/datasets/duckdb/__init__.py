"""Parquet datasets with DuckDB, in an instance of its own or beside a connection of the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from intarsia.datasets.io import DatasetIO
from intarsia.datasets.reading import RowReader
from intarsia.engine_choice import ConnectionLike, choose_engine, is_duckdb
from intarsia.errors import InputError
from intarsia.options import IOOptions, select_engine_options

__all__ = ["DuckDBDatasetIO"]


class DuckDBDatasetIO(DatasetIO):
    """Parquet datasets with DuckDB in this process, also where the work is larger than memory.

    The methods, results and errors are those of the other engines. A connection stays the caller's: no
    setting of it is changed, nothing is left in it, and a transaction that is open there stays open.
    Without one, each call has an instance of its own.

    Args:
        connection: the connection to work beside; None for an instance of its own.
        filesystem: the pyarrow or fsspec file system that all paths are on; None for local paths and
            URLs.
        options: for every call, such as ``memory_bytes``, ``threads`` and ``spool_dir`` (of an instance
            of its own), or ``storage_options``; a call's own options win.

    Raises:
        NotSupported: DuckDB is not installed.
        InputError: this is no connection, or options that a connection of the caller's does not take.

    Example:
        >>> import pyarrow as pa
        >>> from intarsia.datasets.duckdb import DuckDBDatasetIO
        >>> io = DuckDBDatasetIO(memory_bytes=1 << 30)
        >>> io.merge(pa.table({"id": [3], "n": ["c"]}), "lake/orders", "upsert", ["id"]).inserted
        1
    """

    engine = "duckdb"
    backend = "duckdb"

    def __init__(
        self, connection: ConnectionLike | None = None, filesystem: Any = None, **options: Unpack[IOOptions]
    ) -> None:
        if connection is not None and not is_duckdb(connection):
            raise InputError(
                f"DuckDBDatasetIO needs a DuckDB connection, not {type(connection).__name__}.",
                hint="pass what duckdb.connect() gives, or none; a file system goes to filesystem=.",
            )
        super().__init__(filesystem, **options)
        self.connection = connection
        if connection is not None:
            self._options["engine"] = connection
        self._make_engine()  # what cannot be used is refused at once

    def _make_engine(self) -> Any:
        return choose_engine(self._options["engine"], select_engine_options(self._options), None).get()

    def _choose_reader(self) -> Callable[[], RowReader]:
        from intarsia.datasets.duckdb.reading import DuckRows  # needs duckdb

        return lambda: DuckRows(self._make_engine().open_session())
