"""Where new files of a table go: directories and names, as Iceberg's Java library gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

import mmh3
from pyiceberg.table.metadata import TableMetadata

from intarsia.errors import NotSupported
from intarsia.tables.iceberg.flags import flag

_HASH_BITS = 20
_DIR_DEPTH, _DIR_LENGTH = 3, 4
DATA_PATH = "write.data.path"
_LEGACY_PATHS = ("write.object-storage.path", "write.folder-storage.path")
_PROVIDERS = ("write.location-provider.impl", "write.py-location-provider.impl")


@dataclass(frozen=True, slots=True)
class DataLocations:
    """The URIs of new data files and delete files. A value: it pickles."""

    data: str
    """Below which they go."""
    metadata: str
    hashed: bool = False
    """Whether directories named by a hash spread them, for stores that are slow on a common prefix."""
    partitioned: bool = True
    """Whether directories named by the partition are among them; asked only where they are hashed."""
    context: str | None = None
    """The table's own directories, where hashed files of several tables share one place."""

    @staticmethod
    def of(metadata: TableMetadata) -> DataLocations:
        """What a table's location and properties say.

        Raises:
            NotSupported: a class of its own chooses the places; or a property that Iceberg has given up does.
        """
        properties, root = metadata.properties, metadata.location.rstrip("/")
        refuse_providers(properties)
        data = properties.get(DATA_PATH, f"{root}/data").rstrip("/")
        hashed = flag(properties, "write.object-storage.enabled", False)
        return DataLocations(
            data,
            properties.get("write.metadata.path", f"{root}/metadata").rstrip("/"),
            hashed,
            flag(properties, "write.object-storage.partitioned-paths", True),
            None if data.startswith(root) else "/".join(root.rsplit("/", 2)[-2:]),
        )

    def data_file(self, name: str, partition: Mapping[str, Any]) -> str:
        """The URI of a file; ``partition`` has the values for people, by field, in the spec's order."""
        directories = "/".join(f"{_escaped(field)}={_escaped(text)}" for field, text in partition.items())
        if not self.hashed:
            return "/".join(part for part in (self.data, directories, name) if part)
        if directories and self.partitioned:
            name = f"{directories}/{name}"
        spread = hash_directories(name)
        if self.context is not None:
            return f"{self.data}/{spread}/{self.context}/{name}"
        return f"{self.data}/{spread}{'/' if self.partitioned else '-'}{name}"

    def metadata_file(self, name: str) -> str:
        """The URI of a manifest or manifest list."""
        return f"{self.metadata}/{name}"


def refuse_providers(properties: Mapping[str, str]) -> None:
    """Say that another class, or a property that was given up, is to choose the places.

    Raises:
        NotSupported: naming the property.
    """
    for name in _PROVIDERS:
        if name in properties:
            raise NotSupported(
                f"The table property {name}={properties[name]} chooses the places of files, which only the"
                " library it belongs to can do.",
                hint=f"remove it; {DATA_PATH} and write.object-storage.enabled are followed.",
            )
    for name in _LEGACY_PATHS:
        if name in properties and DATA_PATH not in properties:
            raise NotSupported(
                f"The table property {name} was given up by Iceberg.", hint=f"set {DATA_PATH} instead."
            )


def hash_directories(name: str) -> str:
    """Directories by the hash of a name: ``1001/1001/1001/10011001``."""
    bits = f"{mmh3.hash(name) & ((1 << _HASH_BITS) - 1):0{_HASH_BITS}b}"
    whole = _DIR_DEPTH * _DIR_LENGTH
    return "/".join([*(bits[at : at + _DIR_LENGTH] for at in range(0, whole, _DIR_LENGTH)), bits[whole:]])


def _escaped(text: Any) -> str:
    """As Java's URLEncoder writes it."""
    return quote_plus(str(text), safe="*").replace("~", "%7E")
