"""Catalogs and tables by name; the embedded catalog is one SQLite file in its warehouse."""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from intarsia.common.paths import to_path_text
from intarsia.common.system import refuse_untried
from intarsia.errors import InputError, IntarsiaError, NotSupported, StorageError
from intarsia.tables.iceberg._pyiceberg import METADATA_ERRORS, find_unsupported_column, prepare_catalog

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

CATALOG_FILE = "catalog.db"
CATALOG_NAME = "local"


def embedded_catalog(directory: str | os.PathLike[str], *, name: str = CATALOG_NAME) -> Catalog:
    """The catalog of a warehouse directory: ``catalog.db`` in it, made when it is not there yet.

    Spark shares it as a catalog of ``type=jdbc`` with the same name, ``jdbc.schema-version=V1``,
    ``uri=jdbc:sqlite:<directory>/catalog.db`` and ``warehouse=file://<directory>``.
    """
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError as error:
        raise NotSupported(
            "The embedded catalog needs SQLAlchemy.", hint="pip install 'intarsia[iceberg]'"
        ) from error
    from sqlalchemy.exc import SQLAlchemyError

    shown = to_path_text(directory, "A warehouse directory")
    try:
        warehouse = Path(directory).expanduser().resolve()
        _check_location(warehouse)
        refuse_untried(str(warehouse))
        warehouse.mkdir(parents=True, exist_ok=True)
        catalog = SqlCatalog(
            name,
            uri=_make_sqlite_url(warehouse / CATALOG_FILE),
            warehouse=f"file://{warehouse}",
            schema_version="v1",
        )
        _close_when_unused(catalog)
        return prepare_catalog(catalog)
    except OSError as error:
        raise StorageError(
            f"Cannot make a warehouse in {shown}: {error.strerror or error}",
            errno=error.errno,
            path=shown,
        ) from error
    except SQLAlchemyError as error:
        reason = getattr(error, "orig", None) or error
        raise StorageError(
            f"Cannot open the catalog {CATALOG_FILE} in {shown}: {reason}",
            path=shown,
            hint="it has to be a SQLite file that can be read and written.",
        ) from error


def list_stored_tables(warehouse: Path) -> list[tuple[str, tuple[str, ...]]]:
    """The tables in ``catalog.db`` of a directory, each with the name of its catalog; nothing is written.

    Empty where there is no such file, or it is a database of something else.

    Raises:
        StorageError: it cannot be read as a SQLite file.
    """
    path = warehouse / CATALOG_FILE
    if not path.is_file():
        return []
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(iceberg_tables)")}
            if not columns:
                return []
            which = "WHERE coalesce(iceberg_type, 'TABLE') = 'TABLE'" if "iceberg_type" in columns else ""
            named = "SELECT catalog_name, table_namespace, table_name FROM iceberg_tables"
            found = connection.execute(f"{named} {which} ORDER BY 1, 2, 3")
            return [(catalog, (*namespace.split("."), name)) for catalog, namespace, name in found]
    except sqlite3.Error as error:
        raise StorageError(f"Cannot read the catalog {path}: {error}", path=str(path)) from error


def open_to_read(warehouse: Path, name: str = CATALOG_NAME) -> Catalog:
    """The catalog of a warehouse directory, by a connection that cannot write; nothing is made.

    Raises:
        InputError, StorageError: there is no such catalog, or it cannot be read.
    """
    if all(name != known for known, _ in list_stored_tables(warehouse)):
        raise InputError(f"There is no catalog {name!r} in {warehouse}.", path=str(warehouse))
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.engine import URL

    database = f"file:{quote(str(warehouse / CATALOG_FILE))}"
    url = URL.create("sqlite", database=database, query={"mode": "ro", "uri": "true"})
    catalog = SqlCatalog(
        name, uri=url.render_as_string(), warehouse=f"file://{warehouse}", init_catalog_tables="false"
    )
    _close_when_unused(catalog)
    return catalog


def _close_when_unused(catalog: Catalog) -> None:
    """Give back the connections of a catalog that was opened here, once nobody has it any more.

    Its pool leaves them to the garbage collector, of which Python 3.13 warns.
    """
    engine = getattr(catalog, "engine", None)  # a SqlCatalog has one, others connect for each request
    if engine is not None:
        weakref.finalize(catalog, engine.dispose).atexit = False


def open_catalog(catalog: Any) -> Catalog:
    """A catalog object as it is, a warehouse, or the name of a configured catalog.

    A string names a configured catalog unless it looks like a path or a URL; the catalog of a URL is one
    object, that of a directory a SQLite file. A name and settings are those of a
    catalog of Spark.

    Raises:
        InputError: no catalog of that name is configured, or the argument is none of these.
        StorageError: the catalog cannot be reached.
    """
    from pyiceberg.catalog import Catalog, load_catalog

    if isinstance(catalog, Catalog):
        return prepare_catalog(catalog)
    if _is_object_catalog(catalog):
        from intarsia.tables.iceberg.single_object_catalog import object_catalog

        return object_catalog(catalog)
    if _is_directory(catalog):
        return embedded_catalog(catalog)
    if isinstance(catalog, tuple):
        return _open_spark_catalog(*catalog)
    if not isinstance(catalog, str):
        raise InputError(
            f"catalog= must be a catalog of PyIceberg, the name of one or a warehouse directory, "
            f"not {type(catalog).__name__}."
        )
    try:
        opened = load_catalog(catalog)
        _close_when_unused(opened)
        return prepare_catalog(opened)
    except ValueError as error:
        raise InputError(
            f"There is no usable catalog {catalog!r}: {error}",
            hint="configure it in .pyiceberg.yaml or by PYICEBERG_CATALOG__... variables, pass the catalog "
            "object, or a warehouse directory for an embedded one",
        ) from error
    except Exception as error:  # whatever the client of a catalog raises
        raise StorageError(
            f"Cannot open the catalog {catalog!r}: {type(error).__name__}: {error}",
            errno=getattr(error, "errno", None),
            path=catalog,
        ) from error


_SPARK_ONLY = ("type", "catalog-impl", "io-impl", "default-namespace", "cache-enabled", "cache.")
_JAVA_KINDS = {"RESTCatalog": "rest", "JdbcCatalog": "jdbc", "HadoopCatalog": "hadoop", "HiveCatalog": "hive"}
_SQLITE = "jdbc:sqlite:"


def _check_location(warehouse: Path) -> None:
    """Refuse a path that is cut as a URL: the locations of Iceberg's files are URLs without escapes."""
    for mark in "?#":
        if mark in str(warehouse):
            raise InputError(
                f"The path of a warehouse cannot have {mark!r} in it: Iceberg's locations are URLs.",
                path=str(warehouse),
                hint="choose another directory.",
            )


def _make_sqlite_url(path: str | Path) -> str:
    """SQLAlchemy's URL of a file, in which ``%``, ``?`` and ``#`` of its path are escaped."""
    from sqlalchemy.engine import URL

    return URL.create("sqlite", database=str(path)).render_as_string()


def _open_spark_catalog(name: str, settings: Mapping[str, str]) -> Catalog:
    """The catalog that a Spark session knows by this name, from its settings there."""
    from pyiceberg.catalog import load_catalog

    implementation = settings.get("catalog-impl", "").rpartition(".")[2]
    kind = settings.get("type") or _JAVA_KINDS.get(implementation, implementation or "hive")
    uri = settings.get("uri", "")
    properties = {key: value for key, value in settings.items() if not key.startswith(_SPARK_ONLY)}
    if kind == "jdbc" and uri.startswith(_SQLITE):
        path = uri.removeprefix(_SQLITE).removeprefix("file:").partition("?")[0]
        if not os.path.exists(path):  # which opening it would make
            raise InputError(f"There is no SQLite file {path} of the catalog {name!r}.", path=path)
        properties = {key: value for key, value in properties.items() if not key.startswith("jdbc.")}
        version = settings.get("jdbc.schema-version", "V0").lower()
        properties |= {"type": "sql", "uri": _make_sqlite_url(path), "schema_version": version}
    elif kind == "rest":
        properties |= {"type": "rest"}
    else:
        raise NotSupported(
            f"The catalog {name!r} of Spark is of type {kind}{' with ' + uri if uri else ''}, which cannot be"
            " opened here from its settings in the session.",
            hint='open the table with intarsia.iceberg("db.table", catalog=...), and a catalog of PyIceberg.',
        )
    try:
        opened = load_catalog(name, **properties)
        _close_when_unused(opened)
        return prepare_catalog(opened)
    except Exception as error:  # whatever the client of a catalog raises
        raise StorageError(
            f"Cannot open the catalog {name!r} by its settings in the Spark session:"
            f" {type(error).__name__}: {error}",
            errno=getattr(error, "errno", None),
            path=name,
        ) from error


@dataclass(frozen=True, slots=True)
class TableReference:
    """A table by its name and how its catalog is opened: a value for another process.

    It has what the catalog was configured with, credentials among it. In the process that made it the table's
    own catalog is used.
    """

    identifier: tuple[str, ...]
    catalog: str
    properties: Mapping[str, str] = field(repr=False)
    opened: Table | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def of(table: Table) -> TableReference:
        catalog = table.catalog
        return TableReference(tuple(table.name()), catalog.name, dict(catalog.properties), table)

    def __reduce__(self) -> tuple[Any, ...]:
        return TableReference, (self.identifier, self.catalog, dict(self.properties))

    def open(self) -> Table:
        """The table. Raises as :func:`open_table` does."""
        from pyiceberg.catalog import load_catalog

        if self.opened is not None:
            return self.opened
        try:
            catalog = load_catalog(self.catalog, **self.properties)
        except Exception as error:  # whatever the client of a catalog raises
            raise StorageError(
                f"Cannot open the catalog {self.catalog!r} in another process by its settings:"
                f" {type(error).__name__}: {error}",
                errno=getattr(error, "errno", None),
                path=self.catalog,
            ) from error
        return open_table(self.identifier, catalog)


def _is_directory(catalog: Any) -> bool:
    return isinstance(catalog, os.PathLike) or (isinstance(catalog, str) and os.sep in catalog)


def _is_object_catalog(catalog: Any) -> bool:
    """Whether a warehouse is on a store, or is a directory whose catalog is one file, ``catalog.json``."""
    if isinstance(catalog, str) and "://" in catalog and not catalog.startswith("file:"):
        return True
    if not _is_directory(catalog):
        return False
    directory = Path(to_path_text(catalog, "catalog=")).expanduser()
    return (directory / "catalog.json").exists() and not (directory / CATALOG_FILE).exists()


def open_table(target: Any, catalog: Any = None) -> Table:
    """A table of PyIceberg, or the one that an identifier names in a catalog.

    Raises:
        InputError: there is no such table or catalog, or the target is neither.
        NotSupported: the table is of a kind that cannot be committed to.
    """
    from pyiceberg.table import StaticTable, Table

    if isinstance(target, StaticTable):
        raise NotSupported(
            "A StaticTable has no catalog to commit to.", path=target.metadata_location, hint="load it by one"
        )
    if isinstance(target, Table):
        if catalog is not None:
            raise InputError("catalog= goes with the name of a table, not with a table.")
        prepare_catalog(target.catalog)
        return target
    if not isinstance(target, (str, tuple)):
        raise InputError(f"A table or its name is needed, not {type(target).__name__}.")
    if catalog is None:
        raise InputError(
            f"The table {format_identifier(target)} is named without a catalog.", hint="pass catalog= as well"
        )
    if (
        _is_directory(catalog)
        and not _is_object_catalog(catalog)
        and not (Path(to_path_text(catalog, "catalog=")).expanduser() / CATALOG_FILE).exists()
    ):
        # A typo must not make a warehouse.
        raise InputError(
            f"There is no catalog {CATALOG_FILE} in {os.fspath(catalog)}, "
            f"so no table {format_identifier(target)}.",
            path=os.fspath(catalog),
            hint="check the path; embedded_catalog(directory) makes a catalog.",
        )
    return load_table(open_catalog(catalog), target)


def list_tables(catalog: Any) -> Iterator[tuple[str, ...]]:
    """The identifiers of all tables of a catalog, namespace by namespace, in order.

    Args:
        catalog: as of :func:`open_catalog`.

    Raises:
        StorageError: the catalog cannot be listed.
    """
    opened = open_catalog(catalog)
    try:
        waiting = sorted(opened.list_namespaces(), reverse=True)
        while waiting:
            namespace = waiting.pop()
            yield from sorted(opened.list_tables(namespace))
            below = [one for one in opened.list_namespaces(namespace) if len(one) > len(namespace)]
            waiting += sorted(below, reverse=True)
    except IntarsiaError:
        raise
    except Exception as error:  # whatever the client of a catalog raises
        raise StorageError(
            f"Cannot list catalog {opened.name!r}: {type(error).__name__}: {error}",
            errno=getattr(error, "errno", None),
            path=opened.name,
        ) from error


def load_table(catalog: Catalog, identifier: str | tuple[str, ...]) -> Table:
    """A table as its catalog has it now.

    Raises:
        InputError: there is no such table.
        NotSupported: its metadata is of a kind that PyIceberg does not know, such as a newer version, or a
            column has a type that it does not know; that is named.
        StorageError: the catalog, or the metadata file it names, cannot be reached.
    """
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    name = format_identifier(identifier)
    try:
        return catalog.load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise InputError(f"There is no table {name} in catalog {catalog.name!r}.", path=name) from error
    except Exception as error:  # whatever the client of a catalog raises
        if (refusal := _explain_refusal(name, error)) is not None:
            raise refusal from error
        raise StorageError(
            f"Cannot load {name} from catalog {catalog.name!r}: {type(error).__name__}: {error}",
            errno=getattr(error, "errno", None),
            path=name,
        ) from error


def _explain_refusal(name: str, error: Exception) -> NotSupported | None:
    """The refusal of a table whose metadata the catalog has, but PyIceberg cannot load; None for others."""
    if (found := find_unsupported_column(error)) is not None:
        column, kind = found
        return NotSupported(
            f"Column {column!r} of {name} has the type {kind}, which is not supported.",
            path=name,
            hint="leave the column out of the table, or use an engine that knows the type.",
        )
    if not isinstance(error, METADATA_ERRORS):
        return None
    return NotSupported(
        f"The metadata of {name} is not understood: {error}",
        path=name,
        hint="it may be of a newer format version",
    )


def format_identifier(identifier: str | tuple[str, ...]) -> str:
    """The name of a table as people write it."""
    return identifier if isinstance(identifier, str) else ".".join(identifier)
