"""Libraries that list a directory and read its files: PyArrow, DuckDB, Polars, knowing nothing of a log.

They reach the store through a file system that gets an object whole, in one request, when the library first
asks for it: by themselves they read an object by several requests, and could meet two versions of it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import duckdb
import fsspec
import polars as pl
import pyarrow.dataset as ds
from stores_bucket import ListingReader


class WholeObjects(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Objects of a bucket for one read: listed when the library lists, and got when it first opens them."""

    protocol = "whole"
    cachable = False

    def __init__(self, client: ListingReader) -> None:
        super().__init__()
        self._client = client
        self._got: dict[str, bytes] = {}
        self.gone: list[str] = []
        """Objects that were listed, and removed before they were got."""

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        prefix = self._strip_protocol(path) + "/"
        names = [key for key in self._client.list_keys(prefix) if "/" not in key.removeprefix(prefix)]
        return [{"name": name, "size": None, "type": "file"} for name in names] if detail else names

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        if not name.endswith(".parquet"):
            return {"name": name, "size": 0, "type": "directory"}
        return {"name": name, "size": len(self._get(name)), "type": "file"}

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(0, UTC)

    def _get(self, name: str) -> bytes:
        if name not in self._got:
            try:
                self._got[name] = self._client.get_object(name)
            except FileNotFoundError:
                self.gone.append(name)
                raise
        return self._got[name]

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        return io.BytesIO(self._get(self._strip_protocol(path)))


def _read_by_pyarrow(store: WholeObjects, below: str) -> list[int]:
    found = ds.dataset(below, filesystem=store, format="parquet").to_table(columns=["id"])
    return list(found["id"].to_pylist())


def _read_by_duckdb(store: WholeObjects, below: str) -> list[int]:
    with duckdb.connect() as connection:
        connection.register_filesystem(store)
        return [n for (n,) in connection.sql(f"select id from 'whole://{below}/*.parquet'").fetchall()]


def _read_by_polars(store: WholeObjects, below: str) -> list[int]:
    files = [store.open(name) for name in store.ls(below, detail=False)]
    return list(pl.read_parquet(files, columns=["id"])["id"])


LIBRARIES: dict[str, Callable[[WholeObjects, str], list[int]]] = {
    "pyarrow": _read_by_pyarrow,
    "duckdb": _read_by_duckdb,
    "polars": _read_by_polars,
}


def read_keys(library: str, client: ListingReader, below: str) -> list[int] | None:
    """The keys of all rows; None where an object that was listed was removed before it was got."""
    store = WholeObjects(client)
    try:
        return LIBRARIES[library](store, below)
    except (OSError, duckdb.Error):
        if not store.gone:
            raise
        return None
