"""A table's files: its pyarrow file system, metadata files, open delete files, and paths of new files."""

from __future__ import annotations

import os
import posixpath
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import mmh3
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from intarsia.core.change import Staging
from intarsia.core.snapshot import DataFile
from intarsia.errors import DamagedTable, NotSupported, StorageError
from intarsia.tables.iceberg.properties import (
    DATA_PATH,
    METADATA_PATH,
    property_as_bool,
    refuse_location_providers,
)
from intarsia.tables.iceberg.specs import format_partition_path

if TYPE_CHECKING:
    from intarsia.tables.iceberg.manifests import ContentFile

_URI = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):(?://([^/]*))?(.*)$", re.DOTALL)
_FAMILIES = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfss": "abfs",
    "wasb": "abfs",
    "wasbs": "abfs",
}
"""Schemes of the same kind of store, with the one that is used here."""
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

    def filesystem_path(self, uri: str) -> str:
        """The path of a URI on this file system.

        Raises:
            NotSupported: it is on another store than the table itself.
        """
        family, authority, path = _split_uri(uri)
        if family != self.family or _find_store_host(family, authority) != self.host:
            raise NotSupported(
                f"{uri} is on another store ({family}://{authority}) than the table's own files"
                f" ({self.family}://{self.host}).",
                path=uri,
                hint="a table is read and written on one store: rewrite the files there first.",
            )
        return _make_store_path(family, authority, path)

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    def make_parent(self, location: str) -> None:
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


def open_store(io: FileIO, location: str) -> Store:
    """The store that a table's location is on, with the credentials its FileIO was given.

    Raises:
        NotSupported: the FileIO has no file system that pyarrow could use.
        StorageError: the file system refuses to be opened.
    """
    family, authority, _ = _split_uri(location)
    host = _find_store_host(family, authority)
    if family == "file":
        return Store(pafs.LocalFileSystem(), family, host)
    scheme = location.split(":", 1)[0]
    try:
        return Store(_open_filesystem(io, scheme, authority), family, host)
    except (ValueError, ImportError) as error:
        raise NotSupported(
            f"The files of {location} cannot be reached: {error}",
            path=location,
            hint="install what the table's FileIO needs for this scheme, or set py-io-impl in the catalog.",
        ) from error
    except OSError as error:
        raise StorageError(f"Cannot open {location}: {error}", errno=error.errno, path=location) from error


def _open_filesystem(io: FileIO, scheme: str, authority: str) -> pafs.FileSystem:
    """The file system of a FileIO; both kinds that PyIceberg has give it by a public method."""
    opened: Any = None
    if hasattr(io, "fs_by_scheme"):
        opened = io.fs_by_scheme(scheme, authority or None)
    elif hasattr(io, "get_fs"):
        opened = io.get_fs(scheme, _find_store_host(_FAMILIES.get(scheme, scheme), authority) or None)
    if isinstance(opened, pafs.FileSystem):
        return opened
    if opened is None:
        raise ValueError(f"{type(io).__name__} has no file system to give")
    return pafs.PyFileSystem(pafs.FSSpecHandler(opened))


def _split_uri(uri: str) -> tuple[str, str, str]:
    """Family, authority and path; a bare path is a local one."""
    match = _URI.match(uri)
    if match is None:
        return "file", "", os.path.abspath(uri)
    scheme = match[1].lower()
    return _FAMILIES.get(scheme, scheme), match[2] or "", match[3]


def _find_store_host(family: str, authority: str) -> str:
    if family == "abfs":  # container@account.host
        return authority.rpartition("@")[2] if "@" in authority else ""
    return authority if family in ("hdfs", "viewfs") else ""


def _make_store_path(family: str, authority: str, path: str) -> str:
    if family in _PATH_ONLY:
        return "/" + path.lstrip("/") if path.startswith("//") else path
    bucket = authority.partition("@")[0] if family == "abfs" else authority
    return f"{bucket}{path}"


def read_bytes(io: FileIO, path: str, what: str) -> bytes:
    """All bytes of a file that the table names.

    Raises:
        DamagedTable: it is not there.
        StorageError: it cannot be read.
    """
    try:
        with io.new_input(path).open(seekable=False) as stream:
            return bytes(stream.read())
    except FileNotFoundError as error:
        raise DamagedTable(
            f"the {what} is named by the table but does not exist",
            path=path,
            hint="another process may have expired its snapshot: load the table again; else restore the file",
        ) from error
    except OSError as error:
        raise StorageError(f"cannot read the {what}: {error}", path=path, errno=error.errno) from error


def write_bytes(io: FileIO, path: str, data: bytes, what: str) -> None:
    """Write a file of a name that nobody else has.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        with io.new_output(path).create(overwrite=True) as stream:
            stream.write(data)
    except OSError as error:
        raise StorageError(f"cannot write the {what}: {error}", path=path, errno=error.errno) from error


_HASH_BITS = 20
_DIR_DEPTH, _DIR_LENGTH = 3, 4


@dataclass(frozen=True, slots=True)
class LocationProvider:
    """The URIs of new data and delete files, as by Java's ``LocationProviders``. A value: it pickles."""

    data: str
    """The root of data files."""
    metadata: str
    hashed: bool = False
    """Whether paths begin with directories named by a hash, for stores that are slow on a common prefix."""
    partitioned: bool = True
    """Whether directories named by the partition are among them; asked only where they are hashed."""
    context: str | None = None
    """The table's own directories, where hashed files of several tables share one place."""

    @staticmethod
    def of(metadata: TableMetadata) -> LocationProvider:
        """The locations by a table's location and properties.

        Raises:
            NotSupported: a class of its own chooses the places, or a deprecated property that Java refuses.
        """
        properties, root = metadata.properties, metadata.location.rstrip("/")
        refuse_location_providers(properties)
        data = properties.get(DATA_PATH, f"{root}/data").rstrip("/")
        hashed = property_as_bool(properties, "write.object-storage.enabled", False)
        return LocationProvider(
            data,
            properties.get(METADATA_PATH, f"{root}/metadata").rstrip("/"),
            hashed,
            property_as_bool(properties, "write.object-storage.partitioned-paths", True),
            None if data.startswith(root) else "/".join(root.rsplit("/", 2)[-2:]),
        )

    def make_data_location(self, name: str, partition: Mapping[str, Any]) -> str:
        """The URI of a file; ``partition`` has the values for people, by field, in the spec's order."""
        directories = format_partition_path(partition)
        if not self.hashed:
            return "/".join(part for part in (self.data, directories, name) if part)
        if directories and self.partitioned:
            name = f"{directories}/{name}"
        hash_prefix = make_hash_directories(name)
        if self.context is not None:
            return f"{self.data}/{hash_prefix}/{self.context}/{name}"
        return f"{self.data}/{hash_prefix}{'/' if self.partitioned else '-'}{name}"

    def make_metadata_location(self, name: str) -> str:
        """The URI of a manifest or manifest list."""
        return f"{self.metadata}/{name}"


def make_hash_directories(name: str) -> str:
    """Directories by the hash of a name: ``1001/1001/1001/10011001``."""
    bits = f"{mmh3.hash(name) & ((1 << _HASH_BITS) - 1):0{_HASH_BITS}b}"
    whole = _DIR_DEPTH * _DIR_LENGTH
    return "/".join([*(bits[at : at + _DIR_LENGTH] for at in range(0, whole, _DIR_LENGTH)), bits[whole:]])


@dataclass(frozen=True, slots=True)
class IcebergOutputLocation:
    """The names that one transaction gives to new files; see :class:`intarsia.core.ports.OutputLocation`."""

    txid: str
    store: Store
    locations: LocationProvider
    staging: Staging

    def new_file_path(
        self, partition: Mapping[str, Any], prefix: str, ordinal: int, *, beside: DataFile | None = None
    ) -> str:
        """The final URI of a new data file; the values are those of its partition key.

        Its directory exists afterwards. ``beside`` says nothing here: a file lies where its partition does.
        """
        uri = self.locations.make_data_location(f"{prefix}-{self.txid}-{ordinal:05d}.parquet", partition)
        self.store.make_parent(self.store.filesystem_path(uri))
        return uri

    def filesystem_path(self, path: str) -> str:
        """Where to write a file that was given a place, on the staging file system."""
        return self.store.filesystem_path(path)


T = TypeVar("T")

DEFAULT_CACHE_BYTES = 128 << 20


class DeleteCache:
    """Keeps what was decoded last; several threads may use it, each thing is decoded once.

    Delete files never change, so that a path stands for its content. What is larger than the limit is
    handed out and not kept. Pickles as an empty cache of the same limit.
    """

    def __init__(self, limit: int = DEFAULT_CACHE_BYTES) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._gates: dict[Hashable, threading.Lock] = {}
        self._bytes = 0

    def get(self, key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
        """What is kept under a key, else what ``load`` gives, with its size in bytes."""
        with self._lock:
            if key in self._kept:
                return self._find(key)
            gate = self._gates.setdefault(key, threading.Lock())
        with gate:
            with self._lock:
                if key in self._kept:  # by another thread
                    return self._find(key)
            try:
                value, size = load()
                with self._lock:
                    self._keep(key, value, size)
            finally:
                with self._lock:
                    self._gates.pop(key, None)
        return value

    @property
    def size(self) -> int:
        """Bytes kept."""
        return self._bytes

    def _find(self, key: Hashable) -> Any:
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def _keep(self, key: Hashable, value: Any, size: int) -> None:
        if size > self.limit or key in self._kept:
            return
        self._kept[key] = (value, size)
        self._bytes += size
        while self._bytes > self.limit:
            _, (_, gone) = self._kept.popitem(last=False)
            self._bytes -= gone

    def __reduce__(self) -> tuple[type[DeleteCache], tuple[int]]:
        return DeleteCache, (self.limit,)


@dataclass(frozen=True, slots=True)
class DeleteFileAccess:
    """The file system of recorded paths, and the cache of what was decoded."""

    filesystem: pafs.FileSystem
    filesystem_path: Callable[[str], str]
    """The location on the file system of a path that was recorded."""
    cache: DeleteCache


def open_delete_file(file: ContentFile, access: DeleteFileAccess) -> pq.ParquetFile:
    """A delete file, open; the paths of position deletes come as dictionaries.

    Raises:
        NotSupported: it is not Parquet.
        DamagedTable: it cannot be read as Parquet.
        StorageError: the file system refused.
    """
    if file.file_format.upper() != "PARQUET":
        raise NotSupported(
            f"Delete file {file.file_path} is {file.file_format}: only Parquet delete files are read.",
            path=file.file_path,
            hint="rewrite the table's delete files with Iceberg's rewrite_position_delete_files or"
            " rewrite_data_files, with write.delete.format.default=parquet",
        )
    try:
        source = access.filesystem.open_input_file(access.filesystem_path(file.file_path))
        footer = pq.read_metadata(source)
        encoded = ["file_path"] if "file_path" in footer.schema.names else []
        return pq.ParquetFile(source, metadata=footer, read_dictionary=encoded)
    except pa.ArrowInvalid as error:
        raise DamagedTable(
            f"Delete file {file.file_path} cannot be read: {error}", path=file.file_path
        ) from error
    except OSError as error:
        raise StorageError(
            f"Could not open delete file {file.file_path}: {error}", errno=error.errno, path=file.file_path
        ) from error
