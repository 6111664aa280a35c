"""Parquet tables of a Spark catalog as targets: operations run on the directory, and the catalog follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import StructField, StructType

from intarsia.common.log import get_logger
from intarsia.common.names import join_names
from intarsia.common.partitions import parse_hive_partition_path
from intarsia.common.types import find_common_type
from intarsia.core.change import Change, Staging
from intarsia.core.ports import Table
from intarsia.core.snapshot import Snapshot, retype
from intarsia.errors import InputError, IntarsiaError, NotSupported, SchemaMismatch
from intarsia.frames import make_readable_type
from intarsia.request import open_iceberg
from intarsia.spark import catalog
from intarsia.spark.catalog import CatalogName, normalize_location
from intarsia.spark.errors import translate_spark_errors
from intarsia.spark.refresh import run_reporting
from intarsia.spark.session import Session, open_session
from intarsia.tables.parquet import ParquetTable
from intarsia.tables.parquet.listing import list_data_files
from intarsia.tables.parquet.table import ParquetTransaction

__all__ = ["SparkCatalogTable", "open_spark_table"]

log = get_logger(__name__)

_OPAQUE = ("interval", "variant", "collate", "void", "char(", "time(", "geometry", "geography", "udt")
"""Types whose values Parquet does not show as what they are to Spark."""


def open_spark_table(name: str, session: Session | None = None, **options: Any) -> Table:
    """The table of a name in a session's catalog; see :func:`intarsia.spark_table`."""
    session = open_session() if session is None else session
    if not hasattr(session, "createDataFrame"):
        raise InputError(f"session= must be a SparkSession, not {type(session).__name__}.")
    options = {option: value for option, value in options.items() if value is not None}
    resolved = catalog.resolve_name(session, name)
    if resolved.implementation is not None:
        return _open_iceberg(session, resolved, options)
    _refuse_options(options, ("branch", "mode"), f"{resolved} is a Parquet table")
    return SparkCatalogTable(session, resolved, **options)


def _open_iceberg(session: Session, name: CatalogName, options: Mapping[str, Any]) -> Table:
    if name.implementation not in catalog.ICEBERG_CATALOGS:
        raise NotSupported(
            f"The catalog of {name} is a {name.implementation}, whose tables cannot be changed here.",
            path=str(name),
            hint="there is the session's own catalog, with Parquet tables, and Iceberg's SparkCatalog.",
        )
    foreign = [option for option in options if option not in ("branch", "mode")]
    _refuse_options(options, foreign, f"{name} is an Iceberg table")
    settings = catalog.read_catalog_settings(session, name.catalog)
    return open_iceberg(name.identifier, (name.catalog, settings), **options)


def _refuse_options(options: Mapping[str, Any], names: Sequence[str], why: str) -> None:
    given = [f"{name}=" for name in names if name in options]
    if given:
        raise InputError(f"{', '.join(given)} would have no effect: {why}.", hint="leave it out.")


@dataclass(frozen=True, slots=True)
class _DeclaredColumn:
    name: str
    text: str
    """The type as Spark writes it."""
    type: pa.DataType | None
    """None where Parquet does not show it as what it is."""


@dataclass(frozen=True, slots=True)
class _DeclaredSchema:
    """The columns that the catalog declares, by their names in lower case; partition columns last."""

    columns: Mapping[str, _DeclaredColumn]
    partition_columns: tuple[str, ...]

    @staticmethod
    def of(schema: StructType, partition_columns: tuple[str, ...], shown: str) -> _DeclaredSchema:
        """Raises NotSupported for columns that Spark reads otherwise than their files and paths say."""
        columns = {}
        for field in schema.fields:
            _check_column(field, field.name in partition_columns, shown)
            text = field.dataType.simpleString()
            opaque = any(word in text for word in _OPAQUE)
            dtype = None if opaque else to_arrow_type(field.dataType)
            columns[field.name.lower()] = _DeclaredColumn(field.name, text, dtype)
        return _DeclaredSchema(columns, partition_columns)

    def to_arrow(self, shown: str) -> pa.Schema:
        """The schema of a table without files."""
        unclear = [column.name for column in self.columns.values() if column.type is None]
        if unclear:
            kinds = ", ".join(f"{name!r} ({self.columns[name.lower()].text})" for name in unclear)
            raise NotSupported(
                f"{shown} has no files yet, and the types of {kinds} are Spark's alone.",
                path=shown,
                hint="write the first rows with Spark.",
            )
        return pa.schema([pa.field(column.name, column.type) for column in self.columns.values()])


def _check_column(field: StructField, is_partition: bool, shown: str) -> None:
    text = field.dataType.simpleString()
    if any(key in (field.metadata or {}) for key in ("EXISTS_DEFAULT", "CURRENT_DEFAULT")):
        raise NotSupported(
            f"Column {field.name!r} of {shown} has a default, which Spark alone knows where a file lacks it.",
            path=shown,
            hint="write the rows with Spark, or make the table without DEFAULT.",
        )
    if is_partition and (text == "timestamp" or any(word in text for word in _OPAQUE)):
        raise NotSupported(
            f"{shown} is partitioned by {field.name!r}, of type {text}, whose directories mean something else"
            " in each session.",
            path=shown,
            hint="partition by a date, a number or text.",
        )


class SparkCatalogTable(ParquetTable):
    """A Parquet table of a session's own catalog, managed or external.

    Every operation runs on its directory, as on that of any dataset. The catalog declares columns, their
    types and the partition columns, also where there are no files; afterwards it is told of partitions
    that are new or gone, and statistics that no longer hold are dropped.

    Args:
        session: whose catalog it is.
        name: of the table.
        options: as of :class:`~intarsia.tables.parquet.table.ParquetTable`.

    Raises:
        NothingMatched: there is no such table.
        NotSupported: it is a view, of another format, bucketed, or has partitions outside of its directory.
    """

    def __init__(self, session: Session, name: CatalogName, **options: Any) -> None:
        self.session = session
        self._description = catalog.describe_table(session, name)
        # Whatever the session's current database will be.
        self._name = CatalogName(self._description.name[0], self._description.name[1:], None)
        self._declared = self._read_declared()
        self._checked: tuple[str, ...] = ()
        super().__init__(_to_path(self._description.location), **options)
        self._check_partition_locations()

    @property
    def catalog_name(self) -> tuple[str, str]:
        """What identifies it beside its location: the namespace that OpenLineage has for it, and its name."""
        metastore = catalog.find_metastore(self.session)
        place = normalize_location(self._description.location).rpartition("/")[0]
        beside = place if ":" in place else f"file:{place}"
        return beside if metastore is None else f"hive://{metastore}", str(self._description)

    def snapshot(self) -> Snapshot:
        """The current state of the directory, in the columns and types that the catalog declares.

        Raises:
            SchemaMismatch: a column of the files does not fit the type that the catalog declares.
            InputError: the directory is partitioned by other columns.
        """
        self._describe()
        return self.complete_schema(super().snapshot())

    def complete_schema(self, found: Snapshot) -> Snapshot:
        """A state with the columns and types that the catalog declares."""
        return _apply_declared(found, self._declared, str(self._description))

    @contextmanager
    def transaction(self, operation: str) -> Iterator[ParquetTransaction]:
        """Begin a change, as of any dataset."""
        self.check()
        with super().transaction(operation) as transaction:
            yield transaction

    def check(self) -> None:
        """Raise NotSupported where partitions have locations outside of the table's directory."""
        self._describe()
        self._check_partition_locations()

    def check_change(self, snapshot: Snapshot, change: Change, staging: Staging | None = None) -> None:
        """Raise also where the catalog could not declare what the files would hold; writes nothing.

        Raises:
            SchemaMismatch: a type that the catalog cannot take over, or that Spark cannot read.
            InputError: other partition columns.
        """
        super().check_change(snapshot, change, staging)
        self._list_new_columns(snapshot, change)

    def prepare_commit(self, snapshot: Snapshot, change: Change) -> None:
        """Add new columns to the catalog's table; before the commit, since files may lack a column."""
        new = self._list_new_columns(snapshot, change)
        if new:
            catalog.add_columns(self.session, self._description, new)
            log.info("added %s to %s in the catalog of Spark", ", ".join(new), self._description)
            self._describe()

    def recover(self, *, run_id: str | None = None) -> tuple[str, ...]:
        """Finish or undo what a crash left, in the directory and in the catalog."""
        done = super().recover(run_id=run_id)
        return (*done, *self.sync_catalog(changed=bool(done)))

    def sync_catalog(self, *, changed: bool) -> tuple[str, ...]:
        """Tell the catalog what the directory holds. Idempotent; returns a sentence for what was done.

        Registers partitions that are new, drops those that are gone, and drops statistics that no longer
        hold: after a change, or where the size in them is another. A failure is such a sentence as well,
        since the files are committed; the next operation on the table does what is missing.
        """
        advice = f"the next operation on {self._description} does it, or MSCK REPAIR TABLE there."
        note = run_reporting(lambda: self._sync(changed), advice)
        return () if note is None else (note,)

    def _sync(self, changed: bool) -> str | None:
        self._describe()
        session, table = self.session, self._description
        entries = list_data_files(self.storage, self.control.root).entries
        done = []
        if table.registers_partitions:
            before = self._list_registered()
            if before != {self._normalize_partition(entry.path) for entry in entries}:
                catalog.repair_partitions(session, table)
                after = self._list_registered()
                done += _count(len(after - before), "registered") + _count(len(before - after), "dropped")
        size = table.statistics_bytes
        if size is not None and (changed or size != sum(entry.size for entry in entries)):
            catalog.drop_statistics(session, table)
            done.append("its statistics were dropped")
        return f"In the catalog of Spark, of {table}, {' and '.join(done)}." if done else None

    def _list_registered(self) -> set[tuple[str | None, ...]]:
        texts = catalog.list_partitions(self.session, self._description)
        return {self._normalize_partition(f"{text}/") for text in texts}

    def _normalize_partition(self, path: str) -> tuple[str | None, ...]:
        values = {name.lower(): text for name, text in parse_hive_partition_path(path).items()}
        return tuple(values.get(name.lower()) for name in self._description.partition_columns)

    def _describe(self) -> None:
        """Look at the catalog again, which others may have changed."""
        found = catalog.describe_table(self.session, self._name)
        before, self._description = self._description, found
        if normalize_location(before.location) != normalize_location(found.location):
            raise InputError(
                f"{found} has moved from {before.location} to {found.location}.",
                path=str(found),
                hint="open the table again.",
            )
        if (before.columns, before.partition_columns) != (found.columns, found.partition_columns):
            self._declared = self._read_declared()

    def _read_declared(self) -> _DeclaredSchema:
        table = self._description
        with translate_spark_errors():
            schema = self.session.table(table.sql).schema
        return _DeclaredSchema.of(schema, table.partition_columns, str(table))

    def _check_partition_locations(self) -> None:
        table = self._description
        listed = catalog.list_partitions(self.session, table) if table.registers_partitions else ()
        if listed == self._checked:
            return
        root = normalize_location(table.location)
        known = {self._normalize_partition(f"{text}/"): text for text in listed}
        found = set()
        for file in catalog.list_files(self.session, table):
            below = normalize_location(unquote(file)).removeprefix(f"{root}/")
            found.add(self._normalize_partition(below))
            if below.startswith("/") or "://" in below or ":/" in below:
                raise self._make_outside_error(file.rpartition("/")[0])
        for values in known.keys() - found:  # without files, so that only the catalog tells
            spec = dict(zip(table.partition_columns, values, strict=True))
            place = normalize_location(catalog.find_partition_location(self.session, table, spec))
            below = place.removeprefix(f"{root}/")
            if below == place or self._normalize_partition(f"{below}/") != values:
                raise self._make_outside_error(place)
        self._checked = listed

    def _make_outside_error(self, place: str) -> NotSupported:
        return NotSupported(
            f"{self._description} has a partition with a location of its own, {place}, outside of the"
            f" table's directory {self._description.location}.",
            path=str(self._description),
            hint="move its files into the directory, or drop the partition from the catalog.",
        )

    def _list_new_columns(self, snapshot: Snapshot, change: Change) -> dict[str, str]:
        """Columns that the catalog has to declare before a change is committed, with their Spark types."""
        if change.schema is None or not change.schema.names:
            return {}
        shown, declared = str(self._description), self._declared
        asked = tuple(name.lower() for name in change.partition_columns)
        if asked != tuple(name.lower() for name in declared.partition_columns):
            raise InputError(
                f"{shown} is partitioned by {join_names(declared.partition_columns) or 'nothing'}, as the"
                f" catalog says, not by {join_names(change.partition_columns) or 'nothing'}.",
                path=shown,
                hint="leave partition_by out.",
            )
        before = {field.name.lower(): field.type for field in snapshot.schema}
        new = {}
        for field in change.schema:
            known, old = declared.columns.get(field.name.lower()), before.get(field.name.lower())
            if known is not None:
                _check_type(field, known, old, shown)
            elif old is None:
                new[field.name] = _find_spark_type(field, shown)
        if new and change.operation == "overwrite":
            raise SchemaMismatch(
                f"{shown} has no column {join_names(tuple(new))} in the catalog of Spark.",
                path=shown,
                hint="leave it out of the source, or run ALTER TABLE ... ADD COLUMNS first.",
            )
        return new


def _count(number: int, what: str) -> list[str]:
    if not number:
        return []
    return [f"1 partition was {what}" if number == 1 else f"{number} partitions were {what}"]


def _to_path(location: str) -> str:
    """A location of Spark as a path or URL of ours."""
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return location
    if scheme == "file":
        return "/" + rest.lstrip("/")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}:{rest}"


def _apply_declared(found: Snapshot, declared: _DeclaredSchema, shown: str) -> Snapshot:
    """The snapshot with the columns and types that the catalog declares."""
    if not found.files:
        schema = declared.to_arrow(shown)
        model = found.model if schema.equals(found.schema) else None
        partitions = declared.partition_columns
        return replace(found, schema=schema, partition_columns=partitions, exists=True, model=model)
    there = tuple(name.lower() for name in found.partition_columns)
    if there != tuple(name.lower() for name in declared.partition_columns):
        raise InputError(
            f"The directory of {shown} is partitioned by {join_names(found.partition_columns) or 'nothing'},"
            f" and the catalog of Spark says {join_names(declared.partition_columns) or 'nothing'}.",
            path=shown,
            hint="name the directory itself, or make the table of the catalog anew.",
        )
    found = _retype_partitions(found, declared)
    stored = [
        _reconcile(field, declared.columns.get(field.name.lower()), shown) for field in found.file_schema
    ]
    names = {name.lower() for name in found.schema.names}
    lacking = [column for name, column in declared.columns.items() if name not in names]
    stored += [pa.field(column.name, column.type) for column in lacking if column.type is not None]
    path_fields = [found.schema.field(name) for name in found.partition_columns]
    schema = pa.schema([*stored, *path_fields], found.schema.metadata)
    return replace(found, schema=schema, uniform=found.uniform and schema.equals(found.schema))


def _retype_partitions(found: Snapshot, declared: _DeclaredSchema) -> Snapshot:
    types = [
        pa.field(name, known.type)
        for name in found.partition_columns
        if (known := declared.columns[name.lower()]).type is not None
        and known.type != found.schema.field(name).type
    ]
    return retype(found, pa.schema(types)) if types else found


def _reconcile(field: pa.Field, known: _DeclaredColumn | None, shown: str) -> pa.Field:
    """A column of the files in the type that the catalog declares, where that holds every value of it."""
    if known is None or known.type is None or pa.types.is_nested(known.type):
        return field
    if _to_spark_text(field.type) == known.text:
        return field
    common = find_common_type(field.type, known.type)
    if common is not None and common.equals(known.type):
        return field.with_type(known.type)
    raise SchemaMismatch(
        f"Column {field.name!r} of {shown} is {field.type} in its files, and {known.text} in the catalog of"
        " Spark.",
        path=shown,
        hint="make the table of the catalog anew with the types of its files, or name the directory itself.",
    )


def _check_type(field: pa.Field, known: _DeclaredColumn, old: pa.DataType | None, shown: str) -> None:
    """Raise SchemaMismatch where a column would be stored in another type than the catalog declares."""
    if known.type is None or (old is not None and field.type.equals(old)):
        return
    if _to_spark_text(field.type) != known.text or _find_unreadable(field.type) is not None:
        raise SchemaMismatch(
            f"Column {field.name!r} would be {field.type}, and the catalog of Spark declares {known.text} for"
            f" {shown}, which it cannot change.",
            path=shown,
            hint="cast the source to the type that the catalog declares.",
        )


def _find_spark_type(field: pa.Field, shown: str) -> str:
    """The type that Spark reads a new column of a file as; raises SchemaMismatch where it reads none."""
    text, unreadable = _to_spark_text(field.type), _find_unreadable(field.type)
    if text is None or unreadable is not None:
        raise SchemaMismatch(
            f"Column {field.name!r} is {unreadable or field.type}, which Spark cannot read from the files of"
            f" {shown}.",
            path=shown,
            hint="cast it to another type, such as timestamps to microseconds.",
        )
    return text


def _to_spark_text(dtype: pa.DataType) -> str | None:
    """The Spark type of a column of a file, as Spark writes it; None where there is none."""
    try:
        readable = make_readable_type(dtype, pa.int64())
    except IntarsiaError:
        return None
    text: str = from_arrow_type(readable, prefer_timestamp_ntz=True).simpleString()
    return text


def _find_unreadable(dtype: pa.DataType) -> pa.DataType | None:
    """The part of a type whose values Spark cannot read from Parquet as what they are."""
    is_ = pa.types
    if is_.is_nested(dtype):
        parts = (_find_unreadable(dtype.field(number).type) for number in range(dtype.num_fields))
        return next((part for part in parts if part is not None), None)
    nanoseconds = is_.is_timestamp(dtype) and dtype.unit == "ns"
    kinds = (is_.is_time, is_.is_duration, is_.is_float16, is_.is_null, is_.is_decimal256)
    return dtype if nanoseconds or any(kind(dtype) for kind in kinds) else None
