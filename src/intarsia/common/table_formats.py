"""Directories of Parquet files that belong to a table format, known by the other names in them."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from intarsia.errors import NotSupported

__all__ = ["LOGS", "METADATA", "refusal", "sign_of", "table_of"]

LOGS: Mapping[str, str] = {"_delta_log": "Delta", ".hoodie": "Hudi"}
"""The directory in which a format keeps its log."""
METADATA = ".metadata.json"
"""How the names of Iceberg's metadata files end; they are in a directory ``metadata``."""
_DUCKLAKE = "ducklake-"

_READERS = {
    "Delta": 'with spark.read.format("delta"), or DeltaTable(path).to_pyarrow_table() of deltalake',
    "Iceberg": "with spark.table(name), or load_table(name).scan().to_arrow() of pyiceberg",
    "Hudi": 'with spark.read.format("hudi")',
    "DuckLake": "in DuckDB, which attaches its catalogue",
}


def sign_of(path: str, *, directory: bool) -> str | None:
    """The table format that a file or directory of this name is a sign of."""
    above, name = posixpath.split(path)
    if directory or posixpath.basename(above) in LOGS:  # an object store may list no directories
        return LOGS.get(name if directory else posixpath.basename(above))
    if name.endswith(METADATA) and posixpath.basename(above) == "metadata":
        return "Iceberg"
    return "DuckLake" if name.startswith(_DUCKLAKE) else None


def table_of(sign: str) -> str:
    """The directory of the table that a sign is found in."""
    above, name = posixpath.split(sign)
    inner = name.endswith(METADATA) or posixpath.basename(above) in LOGS
    return posixpath.dirname(above) if inner else above


def refusal(root: str, sign: str, kind: str, *, part: bool = False) -> NotSupported:
    """What to say of a directory whose files are not all rows, and not only rows, of a table."""
    what = f"a{'n' if kind == 'Iceberg' else ''} {kind} table"
    return NotSupported(
        f"{root} is {'part of ' if part else ''}{what} (it has {sign}): read as a plain dataset it would show"
        " rows that are gone, and changing its files would corrupt it.",
        path=root,
        hint=f"read it {_READERS[kind]}; change it through its own table format.",
    )
