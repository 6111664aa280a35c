"""A warehouse in a directory and one table in it, changed by the library's own calls, read by PyIceberg."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from tests.contract.iceberg_lakes import Warehouse
from tests.cross.checks import problems
from tests.cross.decoded import State, decode

import intarsia as it

EU_US = pa.table({"id": range(8), "region": ["eu", "us"] * 4, "v": [f"v{n}" for n in range(8)]})


@dataclass
class House:
    """One table of a warehouse of its own."""

    warehouse: Warehouse
    name: str = "db.orders"

    @property
    def catalog(self) -> Any:
        return self.warehouse.catalog

    @property
    def table(self) -> Table:
        return self.catalog.load_table(self.name)

    @property
    def target(self) -> Any:
        return it.iceberg(self.name, catalog=self.catalog)

    def make(
        self,
        schema: pa.Schema | Schema,
        *pieces: pa.Table,
        version: int = 2,
        by: Sequence[tuple[str, Any]] = (),
        mode: str | None = None,
        properties: dict[str, str] | None = None,
        **more: Any,
    ) -> House:
        """The table, with each piece appended by PyIceberg, then upgraded."""
        chosen = {
            "format-version": str(min(version, 2)),
            "commit.retry.min-wait-ms": "1",
            **(properties or {}),
        }
        if mode is not None:
            chosen |= {f"write.{word}.mode": mode for word in ("delete", "update", "merge")}
        self.catalog.create_table(self.name, schema, properties=chosen, **more)
        self.evolve(*by)
        for piece in pieces:
            self.table.append(piece)
        if version == 3:
            self.warehouse.upgrade(self.name)
        return self

    def evolve(self, *fields: tuple[str, Any]) -> None:
        """Partition by more columns from now on."""
        if fields:
            with self.table.update_spec() as evolution:
                for column, transform in fields:
                    evolution.add_field(column, transform, f"{column.replace('.', '_')}_{_word(transform)}")

    def rows(self, *names: str, branch: str | None = None) -> list[Any]:
        """Sorted rows as PyIceberg finds them, and as we do ourselves."""
        scan = self.table.scan() if branch is None else self.table.scan().use_ref(branch)
        found = _sorted(scan.to_arrow(), names)
        assert _sorted(self.read(branch=branch), names) == found
        return found

    def read(self, **options: Any) -> pa.Table:
        return it.read(self.target, **options).read_all()

    def decoded(self) -> State:
        return decode(Path(self.table.metadata_location.removeprefix("file://")))

    def check(self) -> None:
        """Hold manifests, files and summary against each other."""
        assert not (wrong := problems(self.decoded(), ours=True)), "\n".join(wrong)

    def snapshots(self) -> int:
        return len(self.table.metadata.snapshots)

    def bytes(self) -> dict[Path, bytes]:
        """Every file of the warehouse, the catalog's own included."""
        return {path: path.read_bytes() for path in self.warehouse.directory.rglob("*") if path.is_file()}

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        before = self.bytes()
        try:
            yield
        finally:
            after = self.bytes()
            changed = sorted(str(p) for p in before.keys() | after.keys() if before.get(p) != after.get(p))
            assert not changed, changed

    def orphans(self) -> set[str]:
        """Files below the table's data directory that no snapshot knows, and metadata that nothing names."""
        known = set(self._known())
        place = Path(self.table.location().removeprefix("file://"))
        return {path.name for path in place.rglob("*") if path.is_file()} - known

    def _known(self) -> Iterator[str]:
        metadata = self.table.metadata
        yield self.table.metadata_location.rpartition("/")[2]
        yield from (entry.metadata_file.rpartition("/")[2] for entry in metadata.metadata_log)
        for snapshot in metadata.snapshots:
            yield snapshot.manifest_list.rpartition("/")[2]
            for manifest in snapshot.manifests(self.table.io):
                yield manifest.manifest_path.rpartition("/")[2]
                for entry in manifest.fetch_manifest_entry(self.table.io, discard_deleted=False):
                    yield entry.data_file.file_path.rpartition("/")[2]


def _word(transform: Any) -> str:
    return str(transform).replace("[", "_").replace("]", "")


def _sorted(table: pa.Table, names: Sequence[str]) -> list[Any]:
    found = [tuple(row[name] for name in names or table.column_names) for row in table.to_pylist()]
    found.sort(
        key=lambda row: [(value is None, repr(value) if isinstance(value, dict) else value) for value in row]
    )
    return [row[0] for row in found] if len(names) == 1 else found
