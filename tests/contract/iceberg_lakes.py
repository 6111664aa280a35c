"""Iceberg tables for the contract: made, evolved and read by PyIceberg, checked by an independent decoder."""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.snapshots import MetadataLogEntry
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import BooleanType, DoubleType, FloatType, TimeType
from sqlalchemy import event
from tests.cross.checks import problems
from tests.cross.decoded import decode

import intarsia as it
from intarsia.tables.iceberg.catalog import open_catalog

COW, MOR = "copy-on-write", "merge-on-read"
NAMESPACE = "db"


class Warehouse:
    """A catalog for many tables; a table that was made before is begun again from the same metadata."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        file = directory / "catalog.db"
        catalog = SqlCatalog("local", uri=f"sqlite:///{file}", warehouse=f"file://{directory}")
        event.listen(catalog.engine, "connect", lambda one, _: one.execute("PRAGMA synchronous = OFF"))
        self.catalog = open_catalog(catalog)
        self.catalog.create_namespace(NAMESPACE)
        self._made: dict[Any, str] = {}
        self._numbers = itertools.count()

    def fresh(self) -> str:
        """A name that no table has."""
        return f"{NAMESPACE}.t{next(self._numbers)}"

    def begun(self, name: str, key: Any, make: Callable[[str], None]) -> None:
        """The table by this name as ``make`` makes it; files that are never changed are shared."""
        if key not in self._made:
            first = self.fresh()
            make(first)
            self._made[key] = self.catalog.load_table(first).metadata_location
        self.catalog.register_table(name, self._made[key])

    def upgrade(self, name: str) -> None:
        """To format version 3, as another writer would; PyIceberg's own door stops at version 2."""
        table = self.catalog.load_table(name)
        past = MetadataLogEntry(
            metadata_file=table.metadata_location, timestamp_ms=table.metadata.last_updated_ms
        )
        fields = {**dict(table.metadata), "format_version": 3, "next_row_id": 0}
        fields["metadata_log"] = [*table.metadata.metadata_log, past]
        location = table.metadata_location.replace(".metadata.json", "-up.metadata.json")
        self.catalog._write_metadata(TableMetadataV3.model_construct(**fields), table.io, location)
        with closing(sqlite3.connect(self.directory / "catalog.db")) as connection, connection:
            connection.execute(
                "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?",
                (location, name.rpartition(".")[2]),
            )


@dataclass
class EvolvedTable:
    """A table whose first files lie under a bucket spec or none, and the others under the one asked for."""

    warehouse: Warehouse
    read: Callable[..., list[dict[str, Any]]]
    version: int
    mode: str
    name: str = field(init=False)
    new_columns_by = "update_schema()"

    def __post_init__(self) -> None:
        self.name = self.warehouse.fresh()

    @property
    def target(self) -> Any:
        return it.iceberg(self.name, catalog=self.warehouse.catalog)

    @property
    def table(self) -> Table:
        """As PyIceberg has it now."""
        return self.warehouse.catalog.load_table(self.name)

    @property
    def location(self) -> Path:
        return _local(self.table.location())

    def create(self, table: pa.Table, files: Any, partition_by: Sequence[str], **writer: Any) -> None:
        content = hashlib.sha256()
        with pa.ipc.new_stream(_Sink(content), table.schema) as sink:
            sink.write_table(table)
        key = (content.digest(), str(files), tuple(partition_by), str(writer), self.version, self.mode)
        self.warehouse.begun(
            self.name, key, lambda name: self._make(name, table, files, partition_by, writer)
        )

    def _make(
        self, name: str, table: pa.Table, files: Any, partition_by: Sequence[str], writer: dict[str, Any]
    ) -> None:
        properties = {f"write.{word}.mode": self.mode for word in ("delete", "update", "merge")}
        properties |= {"format-version": "2", "commit.retry.min-wait-ms": "1"}
        if "row_group_size" in writer:
            properties["write.parquet.row-group-limit"] = str(writer["row_group_size"])
        table = table.cast(pa.schema([_storable(column) for column in table.schema]))
        made = self.warehouse.catalog.create_table(name, table.schema, properties=properties)
        pieces = list(_pieces(table, files, partition_by))
        half = (len(pieces) + 1) // 2
        bucketed = None if partition_by else _bucketed(made, table, whole=len(pieces) == 1)
        if bucketed is not None:
            with made.update_spec() as evolution:
                evolution.add_field(bucketed, BucketTransform(1 if len(pieces) == 1 else 2), "bucket")
        _append(made, pieces[:half])
        with made.update_spec() as evolution:
            if bucketed is not None:
                evolution.remove_field("bucket")
            for column in partition_by:
                evolution.add_field(column, IdentityTransform(), column)
        _append(made, pieces[half:])
        if self.version == 3:
            self.warehouse.upgrade(name)

    def intrude(self, table: pa.Table, _: int) -> None:
        """Add rows as a writer does that does not know intarsia; PyIceberg cannot, in version 3."""
        if self.version == 3:
            it.write(table, self.target, engine="arrow")
        else:
            self.table.append(table)

    def own(self) -> pa.Table:
        """The rows as we read them ourselves."""
        return it.read(self.target).read_all()

    def rows(self, _: pa.Schema | None) -> list[dict[str, Any]]:
        return self.read(self.table.scan().to_arrow())

    def check(self) -> None:
        """Hold manifests, files and summary against each other, by a decoder that is not under test."""
        if not self.warehouse.catalog.table_exists(self.name):
            return
        found = decode(_local(self.table.metadata_location))
        ours = found.snapshot is not None and found.summary.get("engine-name") == "intarsia"
        assert not (wrong := problems(found, ours=ours)), "\n".join(wrong)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        before = self._bytes()
        try:
            yield
        finally:
            after = self._bytes()
            assert after == before, sorted(str(name) for name in before.keys() ^ after.keys())

    def _bytes(self) -> dict[Any, Any]:
        """Every file of the table, and which of them is the current metadata."""
        files = {path: path.read_bytes() for path in self.location.rglob("*") if path.is_file()}
        return {"metadata": self.table.metadata_location, **files}


class _Sink:
    """A file that only takes the hash of what is written to it."""

    closed = False

    def __init__(self, content: Any) -> None:
        self._content = content

    def write(self, data: Any) -> int:
        self._content.update(data)
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _pieces(table: pa.Table, files: Any, partition_by: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of each file, partition by partition."""
    parts = [table]
    if partition_by:
        groups: dict[Any, list[int]] = {}
        for place, row in enumerate(table.select(list(partition_by)).to_pylist()):
            groups.setdefault(tuple(row.values()), []).append(place)
        parts = [table.take(pa.array(places)) for places in groups.values()]
    for part in parts:
        counts = list(files) if not isinstance(files, int) else None
        edges = (
            [part.num_rows * at // files for at in range(files + 1)]
            if counts is None
            else [0, *itertools.accumulate(counts)]
        )
        for start, stop in itertools.pairwise(edges):
            yield part.slice(start, stop - start)


def _append(table: Table, pieces: Sequence[pa.Table]) -> None:
    with table.transaction() as transaction:
        for piece in pieces:
            if piece.num_rows:
                transaction.append(piece)


def _storable(column: pa.Field) -> pa.Field:
    """A column in the type that Iceberg has for it; that of PyIceberg's own writer is not always so."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_integer(kind) and kind.bit_width < 32:
        kind = pa.int32()
    elif pa.types.is_time(kind):
        kind = pa.time64("us")
    elif pa.types.is_date(kind):
        kind = pa.date32()
    elif pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", None if kind.tz is None else "UTC")
    return column.with_type(kind)


def _bucketed(made: Table, table: pa.Table, *, whole: bool) -> str | None:
    """A column that a bucket can be made of; one without NULL where a file must not fall apart."""
    for column in made.schema().fields:
        kind = column.field_type
        if whole and table[column.name].null_count:
            continue
        if kind.is_primitive and not isinstance(kind, (BooleanType, FloatType, DoubleType, TimeType)):
            return str(column.name)
    return None


def _local(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))
