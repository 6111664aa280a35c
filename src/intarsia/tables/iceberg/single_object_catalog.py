"""An Iceberg catalog that is one object in the warehouse itself, for people without a service.

The object, ``catalog.json``, names every table and the metadata file that it is at. A change replaces it only
if it is what was read (``If-Match``; on a local disk a rename under a lock), so that of two commits at once
one is refused. An answer that is refused, late or lost says nothing: the object is read, and remembers its
last writes.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog, MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from intarsia.common.log import get_logger
from intarsia.common.paths import redact_path, to_path_text
from intarsia.common.system import refuse_untried
from intarsia.errors import InputError
from intarsia.storage import open_storage
from intarsia.storage.conditional import Unanswered
from intarsia.tables.iceberg._pyiceberg import (
    load_table_io,
    prepare_catalog,
    stage_new_table,
    stage_update,
    update_namespace,
    write_metadata,
)
from intarsia.tables.iceberg.catalog_object import (
    CatalogContent,
    CatalogObject,
    Namespace,
    TableEntry,
    TableKey,
    open_catalog_object,
)
from intarsia.tables.iceberg.file_io import open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema

__all__ = ["ObjectCatalog", "object_catalog"]

log = get_logger(__name__)

IMPLEMENTATION = "intarsia.tables.iceberg.ObjectCatalog"
"""For PyIceberg's ``py-catalog-impl``."""
_ATTEMPTS = 100
_READS = 4
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0


def object_catalog(
    warehouse: str | os.PathLike[str], *, name: str = "lake", **properties: str
) -> ObjectCatalog:
    """The catalog that is one object in a warehouse: ``catalog.json`` in it, made by the first change.

    Args:
        warehouse: a URL such as ``s3://bucket/lake``, or a local directory.
        name: what the catalog is called, in errors and reports.
        properties: PyIceberg's, for reaching the store: ``{"s3.endpoint": ...}``. Without them credentials
            are found as everywhere: in the environment, in profiles, by the machine's role.

    Raises:
        NotSupported: the store has no conditional requests that are known here.
        InputError: this is no warehouse.
    """
    return ObjectCatalog(name, **{**properties, "warehouse": to_path_text(warehouse, "A warehouse")})


class ObjectCatalog(MetastoreCatalog):
    """A catalog of PyIceberg whose pointer is swapped in the warehouse itself; see :func:`object_catalog`.

    For PyIceberg alone: ``load_catalog("lake", **{"py-catalog-impl": "intarsia.tables.iceberg.ObjectCatalog",
    "warehouse": "s3://bucket/lake"})``, or the same in ``.pyiceberg.yaml``. Every change is one conditional
    request, all or nothing, and safe among any number of processes; changes of all tables take turns.
    """

    def __init__(self, name: str, **properties: str) -> None:
        warehouse = properties.get("warehouse")
        if not warehouse:
            raise InputError(
                "A catalog that is one object needs its warehouse.", hint="warehouse=s3://bucket/lake"
            )
        self._warehouse = warehouse.rstrip("/")
        if "://" not in warehouse:
            directory = Path(warehouse).expanduser().resolve()
            refuse_untried(str(directory))
            self._warehouse = f"file://{directory}"
        fixed = {"py-catalog-impl": IMPLEMENTATION, "warehouse": self._warehouse}
        super().__init__(name, **{**properties, **fixed})
        self._opened: CatalogObject | None = None
        prepare_catalog(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def _object(self) -> CatalogObject:
        if self._opened is None:
            store = open_store(self._load_io(self._warehouse), self._warehouse)
            storage, directory = open_storage(
                store.filesystem_path(self._warehouse), filesystem=store.filesystem
            )
            self._opened = open_catalog_object(storage, directory.rstrip("/"), redact_path(self._warehouse))
        return self._opened

    def _load_io(self, location: str) -> FileIO:
        return load_file_io(self.properties, location)

    # Namespaces

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        name = _to_namespace(namespace)

        def change(content: CatalogContent) -> CatalogContent:
            if _has_namespace(content, name):
                raise NamespaceAlreadyExistsError(f"Namespace {_show(name)} already exists")
            said = {str(key): str(value) for key, value in properties.items()}
            return replace(content, namespaces={**content.namespaces, name: said})

        self._change(change)

    def drop_namespace(self, namespace: str | Identifier) -> None:
        name = _to_namespace(namespace)

        def change(content: CatalogContent) -> CatalogContent:
            _check_namespace(content, name)
            below = [one for one in content.namespaces if one != name and one[: len(name)] == name]
            tables = [one for place, one in content.tables if place == name]
            if below or tables:
                raise NamespaceNotEmptyError(
                    f"Namespace {_show(name)} is not empty: {len(tables)} tables, {len(below)} namespaces."
                )
            rest = {one: said for one, said in content.namespaces.items() if one != name}
            return replace(content, namespaces=rest)

        self._change(change)

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        above = Catalog.identifier_to_tuple(namespace)
        content = self._object.read()
        if above:
            _check_namespace(content, above)
        depth = len(above) + 1
        known = [one for one in content.namespaces if len(one) >= depth and one[: depth - 1] == above]
        return sorted({one[:depth] for one in known})

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        name, content = _to_namespace(namespace), self._object.read()
        _check_namespace(content, name)
        return dict(content.namespaces.get(name, {}))

    def update_namespace_properties(
        self, namespace: str | Identifier, removals: set[str] | None = None, updates: Properties = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        name = _to_namespace(namespace)
        done: list[PropertiesUpdateSummary] = []

        def change(content: CatalogContent) -> CatalogContent:
            _check_namespace(content, name)
            former = dict(content.namespaces.get(name, {}))
            summary, said = update_namespace(self, former, removals, updates)
            done[:] = [summary]
            return replace(content, namespaces={**content.namespaces, name: dict(said)})

        self._change(change)
        return done[0]

    # Tables

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        key = _to_key(identifier)
        _check_absent(self._object.read(), key)  # before a file is written
        metadata, io, path = stage_new_table(
            self,
            key,
            schema,
            location,
            partition_spec=partition_spec,
            sort_order=sort_order,
            properties=properties,
        )
        write_metadata(self, metadata, io, path)
        self._insert(key, path, written=io)
        return self.load_table(identifier)

    def register_table(
        self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False
    ) -> Table:
        key = _to_key(identifier)

        def change(content: CatalogContent) -> CatalogContent:
            if not overwrite:
                _check_absent(content, key)
            _check_namespace(content, key[0])
            former = content.tables.get(key)
            entry = TableEntry(metadata_location, None if former is None else former.metadata_location)
            return replace(content, tables={**content.tables, key: entry})

        self._change(change)
        return self.load_table(identifier)

    def load_table(self, identifier: str | Identifier) -> Table:
        key = _to_key(identifier)
        entry = _find_table(self._object.read(), key)
        io = self._load_io(entry.metadata_location)
        metadata = FromInputFile.table_metadata(io.new_input(entry.metadata_location))
        return Table(
            identifier=(*key[0], key[1]),
            metadata=metadata,
            metadata_location=entry.metadata_location,
            io=load_table_io(self, metadata, entry.metadata_location),
            catalog=self,
        )

    def table_exists(self, identifier: str | Identifier) -> bool:
        return _to_key(identifier) in self._object.read().tables

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        name, content = _to_namespace(namespace), self._object.read()
        _check_namespace(content, name)
        return sorted((*place, one) for place, one in content.tables if place == name)

    def drop_table(self, identifier: str | Identifier) -> None:
        key = _to_key(identifier)

        def change(content: CatalogContent) -> CatalogContent:
            _find_table(content, key)
            return replace(
                content, tables={one: entry for one, entry in content.tables.items() if one != key}
            )

        self._change(change)

    def rename_table(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> Table:
        old, new = _to_key(from_identifier), _to_key(to_identifier)

        def change(content: CatalogContent) -> CatalogContent:
            entry = _find_table(content, old)
            _check_absent(content, new)
            rest = {one: found for one, found in content.tables.items() if one != old}
            return replace(content, tables={**rest, new: entry})

        self._change(change)
        return self.load_table(to_identifier)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit updates to a table, or create it where a transaction has staged it.

        Raises:
            NoSuchTableError: there is no such table.
            CommitFailedException: a requirement is not met, or another process came first; nothing changed.
            CommitStateUnknownException: the store has not said whether it was committed.
        """
        key = _to_key(table.name())
        current: Table | None = None
        with suppress(NoSuchTableError):
            current = self.load_table(table.name())
        staged = stage_update(self, current, table.name(), requirements, updates)
        if current is not None and staged.metadata == current.metadata:
            return _make_response(current)
        write_metadata(self, staged.metadata, staged.io, staged.metadata_location)
        if current is None:
            self._insert(key, staged.metadata_location)
        else:
            self._move(key, current.metadata_location, staged.metadata_location)
        return _make_response(staged)

    def _insert(self, key: TableKey, location: str, written: FileIO | None = None) -> None:
        def change(content: CatalogContent) -> CatalogContent:
            _check_absent(content, key)
            _check_namespace(content, key[0])
            return replace(content, tables={**content.tables, key: TableEntry(location)})

        try:
            self._change(change)
        except (TableAlreadyExistsError, NoSuchNamespaceError):
            if written is not None:
                with suppress(OSError):
                    written.delete(location)
            raise

    def _move(self, key: TableKey, before: str, after: str) -> None:
        """Set a table to its next metadata file, if it is at the one that this was made of."""

        def change(content: CatalogContent) -> CatalogContent:
            if _find_table(content, key).metadata_location != before:
                raise CommitFailedException(
                    f"Table has been updated by another process: {_show((*key[0], key[1]))}"
                )
            return replace(content, tables={**content.tables, key: TableEntry(after, before)})

        self._change(change)

    def _change(self, change: Callable[[CatalogContent], CatalogContent]) -> None:
        """Change the object, again where another writer came first, of whatever table."""
        pause, unread = _FIRST_PAUSE, 0
        for _ in range(_ATTEMPTS):
            try:
                if self._object.try_change(change):
                    return
            except Unanswered as error:
                if error.changed is False:  # nothing was sent: the object could not be read
                    unread += 1
                    if unread > _READS:
                        raise
                    time.sleep(random.uniform(0, _LONGEST_PAUSE))
                    continue
                raise CommitStateUnknownException(
                    f"Whether the catalog {self._object.shown} was changed is not known: {error}"
                ) from error
            time.sleep(random.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise CommitFailedException(
            f"Others have changed the catalog {self._object.shown} each time in {_ATTEMPTS} attempts."
        )

    # Views, which are not kept here

    def list_views(self, namespace: str | Identifier) -> list[Identifier]:
        return []

    def view_exists(self, identifier: str | Identifier) -> bool:
        return False

    def load_view(self, identifier: str | Identifier) -> Any:
        raise NotImplementedError("A catalog that is one object has no views.")

    def drop_view(self, identifier: str | Identifier) -> None:
        raise NotImplementedError("A catalog that is one object has no views.")

    def register_view(self, identifier: str | Identifier, metadata_location: str) -> Any:
        raise NotImplementedError("A catalog that is one object has no views.")


def _make_response(table: Table) -> CommitTableResponse:
    return CommitTableResponse.model_validate(
        {"metadata": table.metadata, "metadata-location": table.metadata_location}
    )


def _to_namespace(identifier: str | Identifier) -> Namespace:
    name = Catalog.identifier_to_tuple(identifier)
    if not name or not all(name):
        raise NoSuchNamespaceError(f"Empty namespace identifier: {identifier!r}")
    return tuple(name)


def _to_key(identifier: str | Identifier) -> TableKey:
    parts = Catalog.identifier_to_tuple(identifier)
    if len(parts) < 2 or not all(parts):
        raise NoSuchTableError(f"Missing namespace or invalid identifier: {_show(parts)}")
    return tuple(parts[:-1]), parts[-1]


def _has_namespace(content: CatalogContent, name: Namespace) -> bool:
    """Whether it was created, or one below it."""
    return any(one[: len(name)] == name for one in content.namespaces)


def _check_namespace(content: CatalogContent, name: Namespace) -> None:
    if not _has_namespace(content, name):
        raise NoSuchNamespaceError(f"Namespace does not exist: {_show(name)}")


def _check_absent(content: CatalogContent, key: TableKey) -> None:
    _check_namespace(content, key[0])
    if key in content.tables:
        raise TableAlreadyExistsError(f"Table {_show((*key[0], key[1]))} already exists")


def _find_table(content: CatalogContent, key: TableKey) -> TableEntry:
    entry = content.tables.get(key)
    if entry is None:
        raise NoSuchTableError(f"Table does not exist: {_show((*key[0], key[1]))}")
    return entry


def _show(parts: Iterable[str]) -> str:
    return ".".join(parts)
