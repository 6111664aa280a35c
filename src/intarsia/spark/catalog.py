"""Tables of a session's catalog: what Spark says of them, and the statements that keep it up to date.

All of it is SQL and the catalog API, so that Spark Connect works; what the files of a table are is not known
here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.errors import InputError, NothingMatched, NotSupported
from intarsia.spark.errors import list_spark_error_types, translate_spark_errors
from intarsia.spark.session import Session

__all__ = [
    "ICEBERG_CATALOGS",
    "CatalogName",
    "TableDescription",
    "add_columns",
    "describe_table",
    "drop_statistics",
    "find_metastore",
    "find_partition_location",
    "list_files",
    "list_partitions",
    "normalize_location",
    "quote_name",
    "read_catalog_settings",
    "repair_partitions",
    "resolve_name",
    "split_name",
]

ICEBERG_CATALOGS = (
    "org.apache.iceberg.spark.SparkCatalog",
    "org.apache.iceberg.spark.SparkSessionCatalog",
)
"""Iceberg's other catalogs are for its own procedures and have no tables."""
SESSION_CATALOG = "spark_catalog"
_GLOBAL_VIEWS = "global_temp"

_PART = r"`(?:[^`]|``)+`|[^`.\s]+"
_NAME = re.compile(rf"\s*(?:{_PART})(?:\.(?:{_PART}))*\s*")
_MISSING = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "NO_SUCH_CATALOG", "CATALOG_NOT_FOUND")
_CHOOSES_FILES = ("pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter")


@dataclass(frozen=True, slots=True)
class CatalogName:
    """A table's name: the catalog, and the table's name in it, namespaces first."""

    catalog: str
    identifier: tuple[str, ...]
    implementation: str | None
    """The class of the catalog, where it is not the session's own."""

    @property
    def sql(self) -> str:
        """The name in SQL text; views have none with a catalog."""
        is_bare = len(self.identifier) == 1 or self.identifier[0] == _GLOBAL_VIEWS
        return quote_name(self.identifier if is_bare else (self.catalog, *self.identifier))

    def __str__(self) -> str:
        own = self.catalog == SESSION_CATALOG
        return ".".join(self.identifier if own else (self.catalog, *self.identifier))


@dataclass(frozen=True, slots=True)
class TableDescription:
    """What the session's own catalog says of a Parquet table."""

    name: tuple[str, ...]
    """With the catalog and the database."""
    location: str
    partition_columns: tuple[str, ...]
    registers_partitions: bool
    """Whether the catalog knows the partitions; otherwise Spark lists directories."""
    statistics_bytes: int | None
    """The size that ``ANALYZE TABLE`` has recorded, where it has."""
    columns: str
    """The columns as JSON text."""

    @property
    def sql(self) -> str:
        """The name in SQL text."""
        return quote_name(self.name)

    def __str__(self) -> str:
        return ".".join(self.name[1:])


def quote_name(parts: Sequence[str]) -> str:
    """A name of several parts in SQL text."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def normalize_location(path: str) -> str:
    """A location in one of Hadoop's spellings: ``file:///a``, ``file:/a`` and ``/a`` are the same."""
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        return path.rstrip("/")
    if scheme in ("s3", "s3n"):
        scheme = "s3a"
    place = "/" + rest.lstrip("/")
    return (place if scheme == "file" else f"{scheme}:{place}").rstrip("/")


def split_name(name: str) -> tuple[str, ...]:
    """The parts of a name, without quotes. Raises InputError where it is no name of a table."""
    given: Any = name
    if not isinstance(given, str) or not _NAME.fullmatch(given):
        raise InputError(
            f"A table's name in a catalog of Spark is needed, not {name!r}.",
            hint='such as "orders", "lake.orders" or "catalog.lake.orders".',
        )
    return tuple(
        part[1:-1].replace("``", "`") if part.startswith("`") else part for part in re.findall(_PART, given)
    )


def resolve_name(session: Session, name: str) -> CatalogName:
    """The catalog and the identifier of a name, as Spark resolves it.

    Raises:
        InputError: it is no name of a table.
    """
    parts = split_name(name)
    with translate_spark_errors():
        if len(parts) > 1 and (found := _find_implementation(session, parts[0])) is not None:
            return CatalogName(parts[0], parts[1:], found)
        if len(parts) > 2 and parts[0] == SESSION_CATALOG:
            return CatalogName(SESSION_CATALOG, parts[1:], None)
        current = session.catalog.currentCatalog()
        if current == SESSION_CATALOG:
            return CatalogName(SESSION_CATALOG, parts, None)
        database = (session.catalog.currentDatabase(),) if len(parts) == 1 else ()
        return CatalogName(current, (*database, *parts), _find_implementation(session, current))


def _find_implementation(session: Session, catalog: str) -> str | None:
    if catalog == SESSION_CATALOG:
        return None
    found: str | None = session.conf.get(f"spark.sql.catalog.{catalog}", None)
    return found


def read_catalog_settings(session: Session, catalog: str) -> dict[str, str]:
    """The settings of a catalog of the session, without their prefix."""
    prefix = f"spark.sql.catalog.{catalog}."
    with translate_spark_errors():
        every: Mapping[str, str] = session.conf.getAll
    return {key.removeprefix(prefix): value for key, value in every.items() if key.startswith(prefix)}


def find_metastore(session: Session) -> str | None:
    """The address of the Hive metastore that has the session's own catalog; None for another."""
    with translate_spark_errors():
        every: Mapping[str, str] = session.conf.getAll
    if every.get("spark.sql.catalogImplementation") != "hive":
        return None
    names = ("spark.hadoop.hive.metastore.uris", "spark.hive.metastore.uris", "hive.metastore.uris")
    given = next((every[name] for name in names if every.get(name)), "")
    return given.split(",")[0].strip().partition("://")[2].rstrip("/") or None


def describe_table(session: Session, name: CatalogName) -> TableDescription:
    """What the session's own catalog says of a table.

    Raises:
        NothingMatched: there is no such table.
        NotSupported: it is a view, of another format, or of a kind whose files may not be changed.
    """
    with translate_spark_errors():
        kind = _find_kind(session, name)
        if kind not in ("MANAGED", "EXTERNAL"):
            what = {"VIEW": "a view", "TEMPORARY": "a temporary view"}.get(kind, f"of the kind {kind}")
            raise _refuse(name, what, "name the table whose rows are to change.")
        told = _read_description(session, name)
    _check_format(name, told)
    statistics = told.get("statistics") or {}
    return TableDescription(
        (SESSION_CATALOG, *told["namespace"], told["table_name"]),
        told["location"],
        tuple(told.get("partition_columns") or ()),
        told.get("partition_provider") == "Catalog",
        statistics.get("size_in_bytes"),
        json.dumps(told["columns"]),
    )


def _find_kind(session: Session, name: CatalogName) -> str:
    try:
        return str(session.catalog.getTable(name.sql).tableType)
    except list_spark_error_types() as error:
        if not any(sign in str(error) for sign in _MISSING):
            raise
        raise NothingMatched(
            f"There is no table {name} in the catalog of the Spark session.",
            path=str(name),
            hint="check the name and the current database; CREATE TABLE ... USING parquet makes one.",
        ) from error


def _read_description(session: Session, name: CatalogName) -> dict[str, Any]:
    text = session.sql(f"DESCRIBE TABLE EXTENDED {name.sql} AS JSON").collect()[0][0]
    told: dict[str, Any] = json.loads(text)
    return told


def _check_format(name: CatalogName, told: Mapping[str, Any]) -> None:
    provider = str(told.get("provider", "unknown")).lower()
    if provider != "parquet":
        iceberg = 'open it with intarsia.iceberg("db.table", catalog=...).'
        hint = {
            "iceberg": iceberg,
            "hive": "name its directory, where that holds Parquet files, and run MSCK REPAIR TABLE after it.",
        }.get(provider, "tables USING parquet can be changed, and those of Iceberg's catalogs.")
        raise _refuse(name, f"of the format {provider}", hint)
    if told.get("num_buckets"):
        raise _refuse(
            name,
            f"bucketed (into {told['num_buckets']} by {', '.join(told.get('bucket_columns') or ())})",
            "Spark finds the rows of a bucket by the names of files; make a table without buckets of it.",
        )
    options = told.get("storage_properties") or {}
    choosing = [option for option in options if option.lower() in _CHOOSES_FILES]
    if choosing:
        raise _refuse(name, f"a part of its directory ({', '.join(choosing)})", "name the directory itself.")


def _refuse(name: CatalogName, what: str, hint: str) -> NotSupported:
    return NotSupported(f"{name} is {what}, which cannot be changed here.", path=str(name), hint=hint)


def list_partitions(session: Session, table: TableDescription) -> tuple[str, ...]:
    """The partitions that are registered, as ``day=2025-01-01/region=eu``."""
    with translate_spark_errors():
        return tuple(str(row[0]) for row in session.sql(f"SHOW PARTITIONS {table.sql}").collect())


def list_files(session: Session, table: TableDescription) -> tuple[str, ...]:
    """The URLs of the files that Spark reads for a table."""
    with translate_spark_errors():
        session.catalog.refreshTable(table.sql)
        return tuple(session.table(table.sql).inputFiles())


def find_partition_location(session: Session, table: TableDescription, values: Mapping[str, Any]) -> str:
    """Where the catalog says that the files of a partition are."""
    spec = ", ".join(f"{quote_name([name])}={_quote_value(value)}" for name, value in values.items())
    with translate_spark_errors():
        rows = session.sql(f"DESCRIBE TABLE EXTENDED {table.sql} PARTITION ({spec}) AS JSON").collect()
    return str(json.loads(rows[0][0]).get("location", ""))


def _quote_value(value: Any) -> str:
    return "null" if value is None else _quote_text(str(value))


def _quote_text(text: str) -> str:
    """A literal of SQL text."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def repair_partitions(session: Session, table: TableDescription) -> None:
    """Register the directories that the catalog lacks, and drop partitions whose directory is gone.

    Other than ``ALTER TABLE ... DROP PARTITION``, which removes the files of a managed table, this removes
    none, also where a directory comes back meanwhile.
    """
    with translate_spark_errors():
        session.sql(f"MSCK REPAIR TABLE {table.sql} SYNC PARTITIONS").collect()


def drop_statistics(session: Session, table: TableDescription) -> None:
    """Drop what ``ANALYZE TABLE`` recorded of a table and its columns.

    Spark has no statement for it; but one that sets the location, here the one it has, drops them, as each
    of Spark's own writers does.
    """
    with translate_spark_errors():
        session.sql(f"ALTER TABLE {table.sql} SET LOCATION {_quote_text(table.location)}").collect()


def add_columns(session: Session, table: TableDescription, columns: Mapping[str, str]) -> None:
    """Add columns, by name and Spark type."""
    listed = ", ".join(f"{quote_name([name])} {kind}" for name, kind in columns.items())
    with translate_spark_errors():
        session.sql(f"ALTER TABLE {table.sql} ADD COLUMNS ({listed})").collect()
