"""Files of a snapshot that DuckDB reads by itself in a query of the caller's, exactly as the kernel would."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa

from intarsia.common.paths import get_local_path
from intarsia.core.snapshot import DataFile
from intarsia.engines.duckdb.checksums import verify_each
from intarsia.engines.duckdb.scan import Scan
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.sql import find_sql_type, quote
from intarsia.engines.duckdb.support import explain_unreadable
from intarsia.kernel.read import SnapshotScan

__all__ = ["select_files", "split_files"]


def split_files(scan: SnapshotScan) -> tuple[list[DataFile], list[DataFile]]:
    """The files that DuckDB reads exactly, with their footers, and the others.

    These are local files that nobody replaces: of an Iceberg table, or hard links.
    """
    snapshot = scan.snapshot
    files = list(snapshot.files)
    if scan.where is not None or snapshot.stat is not None:
        return [], files
    if get_local_path(snapshot.filesystem, "/") is None or not all(map(_is_plain, scan.schema)):
        return [], files
    known = files if snapshot.footer_loader is None else snapshot.footer_loader(files)
    own, others = [], []
    for file, with_footer in zip(files, known, strict=True):
        exact = explain_unreadable(with_footer, scan.columns, snapshot.schema) is None
        own += [with_footer] if exact else []
        others += [] if exact else [file]
    return own, others


def _is_plain(field: pa.Field) -> bool:
    """Whether a column of files and one of Arrow have the same type in DuckDB."""
    return not pa.types.is_nested(field.type) and find_sql_type(field.type) is not None


def select_files(session: Session, scan: SnapshotScan, files: Sequence[DataFile]) -> str:
    """SQL for the columns of a scan, of files that :func:`split_files` gave.

    Row groups are left out by their bounds only where these are known to be right.

    Raises:
        DamagedTable: a page is not as it was written.
    """
    snapshot = scan.snapshot.with_files(files)
    verify_each(
        [(file, None) for file in files], snapshot.filesystem, columns=scan.columns, threads=session.threads
    )
    made = Scan.of(session, snapshot, files, scan.schema, columns=scan.columns, tag=f"_{uuid.uuid4().hex}")
    columns = ", ".join(_select_column(field) for field in scan.schema)
    return f"SELECT {columns} FROM ({made.make_sql(scan.columns, keys=True)})"


def _select_column(field: pa.Field) -> str:
    name = quote(field.name)
    if pa.types.is_timestamp(field.type) and field.type.unit in ("s", "ms") and field.type.tz is None:
        return f"CAST({name} AS {find_sql_type(field.type)}) AS {name}"  # read in microseconds
    return name
