"""Where a table's files are: the pyarrow file system behind a FileIO, and the path of a URI on it."""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs
from pyiceberg.io import FileIO

from intarsia.errors import NotSupported, StorageError

_URI = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):(?://([^/]*))?(.*)$", re.DOTALL)
_FAMILIES = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfss": "abfs",
    "wasb": "abfs",
    "wasbs": "abfs",
}
"""Schemes that name the same kind of store, by the one it is known under here."""
_PATH_ONLY = ("file", "hdfs", "viewfs")
"""Stores whose paths start after the authority; elsewhere it is the bucket, the path's first part."""


@dataclass(frozen=True, slots=True)
class Store:
    """One pyarrow file system, and the way from a recorded URI to a path on it. A value: it pickles.

    Recorded URIs are taken byte for byte: nothing in them is unquoted, as no other engine does.
    """

    filesystem: pafs.FileSystem
    family: str
    """The kind of store, whatever its scheme was called."""
    host: str = ""
    """The part of a URI that chooses another server, for stores that have one."""

    def locate(self, uri: str) -> str:
        """The path of a URI on this file system.

        Raises:
            NotSupported: it is on another store than the table itself.
        """
        family, authority, path = _split(uri)
        if family != self.family or _host(family, authority) != self.host:
            raise NotSupported(
                f"{uri} is on another store ({family}://{authority}) than the table's own files"
                f" ({self.family}://{self.host}).",
                path=uri,
                hint="a table is read and written on one store: rewrite the files there first.",
            )
        return _path(family, authority, path)

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    def ready(self, location: str) -> None:
        """Make sure that a file can be created at a path: a local disk needs its directory. Idempotent.

        Raises:
            StorageError: the directory cannot be made.
        """
        if not self.is_local:
            return
        parent = posixpath.dirname(location)
        try:
            self.filesystem.create_dir(parent, recursive=True)
        except OSError as error:
            raise StorageError(
                f"Cannot make the directory {parent}: {error}", errno=error.errno, path=parent
            ) from error


def store_of(io: FileIO, location: str) -> Store:
    """The store that a table's location is on, with the credentials its FileIO was given.

    Raises:
        NotSupported: the FileIO has no file system that pyarrow could use.
        StorageError: the file system refuses to be opened.
    """
    family, authority, _ = _split(location)
    host = _host(family, authority)
    if family == "file":
        return Store(pafs.LocalFileSystem(), family, host)
    scheme = location.split(":", 1)[0]
    try:
        return Store(_filesystem(io, scheme, authority), family, host)
    except (ValueError, ImportError) as error:
        raise NotSupported(
            f"The files of {location} cannot be reached: {error}",
            path=location,
            hint="install what the table's FileIO needs for this scheme, or set py-io-impl in the catalog.",
        ) from error
    except OSError as error:
        raise StorageError(f"Cannot open {location}: {error}", errno=error.errno, path=location) from error


def _filesystem(io: FileIO, scheme: str, authority: str) -> pafs.FileSystem:
    """What the FileIO itself works with; both of PyIceberg's kinds have a public door to it."""
    opened: Any = None
    if hasattr(io, "fs_by_scheme"):
        opened = io.fs_by_scheme(scheme, authority or None)
    elif hasattr(io, "get_fs"):
        opened = io.get_fs(scheme, _host(_FAMILIES.get(scheme, scheme), authority) or None)
    if isinstance(opened, pafs.FileSystem):
        return opened
    if opened is None:
        raise ValueError(f"{type(io).__name__} has no file system to give")
    return pafs.PyFileSystem(pafs.FSSpecHandler(opened))


def _split(uri: str) -> tuple[str, str, str]:
    """Family, authority and path; a bare path is a local one."""
    match = _URI.match(uri)
    if match is None:
        return "file", "", os.path.abspath(uri)
    scheme = match[1].lower()
    return _FAMILIES.get(scheme, scheme), match[2] or "", match[3]


def _host(family: str, authority: str) -> str:
    if family == "abfs":  # container@account.host
        return authority.rpartition("@")[2] if "@" in authority else ""
    return authority if family in ("hdfs", "viewfs") else ""


def _path(family: str, authority: str, path: str) -> str:
    if family in _PATH_ONLY:
        return "/" + path.lstrip("/") if path.startswith("//") else path
    bucket = authority.partition("@")[0] if family == "abfs" else authority
    return f"{bucket}{path}"
