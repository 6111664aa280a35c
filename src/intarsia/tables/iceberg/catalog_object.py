"""The one object that a catalog is: its content, and how it is read and swapped; no table is opened here."""

from __future__ import annotations

import errno
import hashlib
import json
import posixpath
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from intarsia.errors import DamagedTable, NotSupported, StorageError
from intarsia.storage import ObjectStorage, PosixStorage, Storage, Trial
from intarsia.storage.conditional import Unanswered, replace_object

__all__ = ["CatalogContent", "CatalogObject", "Namespace", "TableEntry", "TableKey", "open_catalog_object"]

FILE = "catalog.json"
_FORMAT = "intarsia-catalog"
_VERSION = 1
_WRITES = 128
"""How many of the last writes an object remembers, by which a writer finds that its own was carried out."""
_LOCK_SECONDS = 60.0

Namespace = tuple[str, ...]
TableKey = tuple[Namespace, str]


@dataclass(frozen=True, slots=True)
class TableEntry:
    """Where the metadata of a table is."""

    metadata_location: str
    previous_metadata_location: str | None = None


@dataclass(frozen=True, slots=True)
class CatalogContent:
    """Namespaces and tables, as one value."""

    namespaces: Mapping[Namespace, Mapping[str, str]] = field(default_factory=dict)
    tables: Mapping[TableKey, TableEntry] = field(default_factory=dict)
    store: tuple[str, str] | None = None
    """Endpoint and bucket of a store whose conditional requests were found to hold."""
    writes: tuple[str, ...] = ()
    """The ids of the last writes, newest first."""

    def with_write(self, write: str) -> CatalogContent:
        return replace(self, writes=(write, *self.writes[: _WRITES - 1]))

    def to_json(self) -> bytes:
        plain = {
            "format": _FORMAT,
            "version": _VERSION,
            "namespaces": [
                {"name": list(name), "properties": dict(said)}
                for name, said in sorted(self.namespaces.items())
            ],
            "tables": [
                {
                    "namespace": list(namespace),
                    "name": name,
                    "metadata_location": entry.metadata_location,
                    "previous_metadata_location": entry.previous_metadata_location,
                }
                for (namespace, name), entry in sorted(self.tables.items())
            ],
            "store": None if self.store is None else list(self.store),
            "writes": list(self.writes),
        }
        return json.dumps(plain, indent=1).encode() + b"\n"

    @staticmethod
    def from_json(data: bytes, where: str) -> CatalogContent:
        """Read back.

        Raises:
            NotSupported: it was written by a later version.
            DamagedTable: it is no catalog.
        """
        try:
            raw = json.loads(data)
            if raw["format"] != _FORMAT:
                raise ValueError(f"format {raw['format']!r}")
            if raw["version"] != _VERSION:
                raise NotSupported(
                    f"The catalog {where} has version {raw['version']}; {_VERSION} is the newest known.",
                    path=where,
                    hint="use the version of intarsia that the others use.",
                )
            store = raw.get("store")
            return CatalogContent(
                {_parse_name(one["name"]): _parse_texts(one["properties"]) for one in raw["namespaces"]},
                {
                    (_parse_name(one["namespace"]), _parse_text(one["name"])): TableEntry(
                        _parse_text(one["metadata_location"]), one.get("previous_metadata_location")
                    )
                    for one in raw["tables"]
                },
                None if store is None else (_parse_text(store[0]), _parse_text(store[1])),
                tuple(_parse_text(one) for one in raw["writes"]),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise DamagedTable(
                f"{where} is no catalog, or is damaged ({type(error).__name__}: {error}).",
                path=where,
                hint="restore it from a backup or an earlier version of the object; the tables are not lost.",
            ) from error


def _parse_text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError(f"{raw!r} is no text")
    return raw


def _parse_name(raw: Any) -> Namespace:
    return tuple(_parse_text(part) for part in raw)


def _parse_texts(raw: Mapping[str, Any]) -> dict[str, str]:
    return {_parse_text(key): _parse_text(value) for key, value in raw.items()}


class _Place(Protocol):
    """Where the object is. A tag tells one state of it from every other; None is that there is none."""

    def read(self) -> tuple[bytes | None, str | None]: ...

    def swap(self, data: bytes, tag: str | None, is_done: Callable[[bytes], bool]) -> bool:
        """Put new bytes in the place of those with a tag; False where these are gone, and for good.

        ``is_done`` tells from the bytes that are there whether ours have been, as after a lost answer.
        """


@dataclass(frozen=True, slots=True)
class _StoredObject:
    """An object of a store with conditional requests."""

    storage: ObjectStorage
    path: str

    def read(self) -> tuple[bytes | None, str | None]:
        found = self.storage.client.head(self.path)
        if found is None:
            return None, None
        try:
            # Never older than the tag, and where it is newer, the swap is refused.
            return self.storage.client.get(self.path), found.tag
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return None, None

    def swap(self, data: bytes, tag: str | None, is_done: Callable[[bytes], bool]) -> bool:
        return replace_object(self.storage.client, self.path, data, tag, is_done)


@dataclass(frozen=True, slots=True)
class _LocalFile:
    """A file of a local disk, replaced by a rename under a lock."""

    storage: PosixStorage
    path: str

    def read(self) -> tuple[bytes | None, str | None]:
        try:
            data = self.storage.read(self.path)
        except StorageError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            return None, None
        return data, hashlib.sha256(data).hexdigest()

    def swap(self, data: bytes, tag: str | None, is_done: Callable[[bytes], bool]) -> bool:
        directory, name = posixpath.split(self.path)
        self.storage.make_directories(directory)
        with self.storage.lock(f"{directory}/.{name}.lock", _LOCK_SECONDS):
            if self.read()[1] != tag:
                return False
            draft = f"{directory}/.{name}.part"
            self.storage.write(draft, data)
            self.storage.move(draft, self.path)
            try:
                self.storage.sync(directory)
            except StorageError as error:
                raise Unanswered(
                    f"{self.path} was replaced, and is not known to be durable: {error}",
                    path=self.path,
                    changed=None,
                ) from error
        return True


@dataclass(frozen=True, slots=True)
class CatalogObject:
    """A catalog's object: read as a value, and changed by a function of that value."""

    place: _Place
    shown: str
    trial_directory: str | None = None
    """Below which a store is tried before the first change; None where that is not needed."""

    def read(self) -> CatalogContent:
        """What it holds now; empty where there is none yet."""
        return self._parse(self.place.read()[0])

    def try_change(self, change: Callable[[CatalogContent], CatalogContent]) -> bool:
        """Change the content once; False where another writer has changed it meanwhile.

        ``change`` may raise, and then nothing is written; what it returns unchanged is not written either.

        Raises:
            Unanswered: whether it was changed could not be found out.
            NotSupported: the conditional requests of the store do not hold.
        """
        data, tag = self.place.read()
        before = self._parse(data)
        after = change(before)
        if after == before and data is not None:
            return True
        write = uuid.uuid4().hex
        new = replace(after, store=self._try_store(before)).with_write(write)
        return self.place.swap(new.to_json(), tag, lambda found: write in self._parse(found).writes)

    def _parse(self, data: bytes | None) -> CatalogContent:
        return CatalogContent() if data is None else CatalogContent.from_json(data, self.shown)

    def _try_store(self, known: CatalogContent) -> tuple[str, str] | None:
        """The store, if its conditions hold; found out once, and noted in the object."""
        if self.trial_directory is None or not isinstance(self.place, _StoredObject):
            return None
        noted = None if known.store is None else Trial(*known.store)
        found = self.place.storage.try_conditions(self.trial_directory, noted)
        if found.failure is not None:
            raise NotSupported(
                f"No catalog can be kept in {self.shown}: its conditional requests cannot be relied on:"
                f" {found.failure}.",
                path=self.shown,
                hint="use a catalog with a service of its own, or another store.",
            )
        return found.endpoint, found.bucket


def open_catalog_object(storage: Storage, directory: str, shown: str) -> CatalogObject:
    """The catalog of a warehouse directory; it need not exist.

    Raises:
        NotSupported: the store is neither a local disk nor one with conditional requests.
    """
    path = f"{directory}/{FILE}"
    if isinstance(storage, PosixStorage):
        return CatalogObject(_LocalFile(storage, path), shown)
    if isinstance(storage, ObjectStorage):
        trial = f"{directory}/.catalog.intarsia/{uuid.uuid4().hex}"
        return CatalogObject(_StoredObject(storage, path), shown, trial)
    raise NotSupported(
        f"No catalog can be kept in {shown}: there are no conditional requests to this store.",
        path=shown,
        hint="S3 needs botocore (pip install 'intarsia[s3]'), and credentials without a role to assume.",
    )
