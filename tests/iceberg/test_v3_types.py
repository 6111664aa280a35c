"""Types that format version 3 adds: what PyIceberg cannot load is refused by name, ``unknown`` is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.schema import Schema
from pyiceberg.types import GeometryType, LongType, NestedField, StringType, StructType, UnknownType

import intarsia as it
from intarsia.errors import ColumnNotFound, NotSupported
from intarsia.tables.iceberg import embedded_catalog

ROWS = pa.table({"id": [1, 2, 3, 4], "s": ["a", "b", "c", "d"]})
ENGINES = ("arrow", "duckdb")
MODES = ("copy-on-write", "merge-on-read")
VARIANT_FIELD = {"id": 9, "name": "x", "required": False, "type": "variant"}
Operation = Callable[[Any, dict[str, Any]], Any]

OPERATIONS: dict[str, Operation] = {
    "write": lambda table, how: it.write(ROWS, table, **how),
    "overwrite": lambda table, how: it.write(ROWS, table, mode="overwrite", **how),
    "merge": lambda table, how: it.merge(ROWS.slice(1, 1), table, on="id", **how),
    "delete": lambda table, how: it.delete(table, "id = 1", **how),
    "update": lambda table, how: it.update(table, {"s": "'x'"}, "id = 2", **how),
    "deduplicate": lambda table, how: it.deduplicate(table, on="id", **how),
    "compact": lambda table, how: it.compact(table, **how),
    "optimize": lambda table, how: it.optimize(table, by=["s"], **how),
}
SHOWN = {"overwrite": "write", "merge": "upsert"}
"""What errors call an operation, where that is another word."""


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    made = embedded_catalog(tmp_path)
    made.create_namespace("n")
    yield made
    made.close()


def _create(catalog: Catalog, *fields: NestedField, properties: dict[str, str] | None = None) -> None:
    schema = Schema(NestedField(1, "id", LongType()), *fields, NestedField(3, "s", StringType()))
    catalog.create_table("n.t", schema, properties={"format-version": "3", **(properties or {})})


def _metadata_file(catalog: Catalog) -> Path:
    return Path(catalog.load_table("n.t").metadata_location.removeprefix("file://"))


def _retype(path: Path, kind: Any) -> None:
    """Give the column that was ``unknown`` another type, in the metadata file."""
    said = json.loads(path.read_text())
    for field in said["schemas"][0]["fields"]:
        field["type"] = kind if field["name"] == "c" else field["type"]
    path.write_text(json.dumps(said))


def _on_disk(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.suffix != ".db-journal"}


FOREIGN: list[tuple[Any, str, str]] = [
    ("variant", "c", "variant"),
    ("geometry(OGC:CRS84)", "c", r"geometry\(OGC:CRS84\)"),  # as Java writes them
    ("geography(OGC:CRS84, spherical)", "c", "geography"),
    ("blob", "c", "blob"),
    ({"type": "struct", "fields": [VARIANT_FIELD]}, "c.x", "variant"),
    ({"type": "list", "element-id": 9, "element-required": False, "element": "variant"}, r"c\.elem", "var"),
    (
        {
            "type": "map",
            "key-id": 9,
            "key": "string",
            "value-id": 10,
            "value-required": False,
            "value": "variant",
        },
        r"c\.value",
        "variant",
    ),
    ({"type": "vector", "length": 3}, "c", "vector"),
]


@pytest.mark.parametrize(("kind", "column", "shown"), FOREIGN, ids=lambda value: str(value)[:30])
def test_a_type_that_pyiceberg_cannot_load_is_refused_by_column_and_type(
    catalog: Catalog, tmp_path: Path, kind: Any, column: str, shown: str
) -> None:
    _create(catalog, NestedField(2, "c", UnknownType()))
    kept = it.iceberg("n.t", catalog=catalog)
    _retype(_metadata_file(catalog), kind)
    before = _on_disk(tmp_path)
    wanted = rf"Column '{column}.* of n\.t has the type {shown}"
    with pytest.raises(NotSupported, match=wanted):
        it.iceberg("n.t", catalog=catalog)
    for operation in OPERATIONS.values():
        for dry_run in (False, True):
            with pytest.raises(NotSupported, match=wanted):
                operation(kept, {"dry_run": dry_run})
    for look in (it.read, it.inspect, it.snapshot):
        with pytest.raises(NotSupported, match=wanted):
            look(kept)
    assert _on_disk(tmp_path) == before


def test_a_type_in_the_answer_of_a_rest_catalog_is_refused_by_name(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    _create(catalog, NestedField(2, "c", UnknownType()))
    path = _metadata_file(catalog)
    _retype(path, "variant")
    answer = json.dumps(
        {"metadata-location": str(path), "metadata": json.loads(path.read_text()), "config": {}}
    )
    # What RestCatalog.load_table does with the answer of its server.
    monkeypatch.setattr(catalog, "load_table", lambda _: TableResponse.model_validate_json(answer))
    with pytest.raises(NotSupported, match=r"Column 'c' of n\.t has the type variant"):
        it.iceberg("n.t", catalog=catalog)


def test_a_column_of_an_older_schema_is_named_too(catalog: Catalog) -> None:
    _create(catalog, NestedField(2, "c", UnknownType()))
    with catalog.load_table("n.t").update_schema() as change:
        change.delete_column("c")
    _retype(_metadata_file(catalog), "variant")
    with pytest.raises(NotSupported, match=r"Column 'c' .* variant"):
        it.iceberg("n.t", catalog=catalog)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_geometry_that_pyiceberg_can_load_is_refused_by_column_and_type(
    catalog: Catalog, tmp_path: Path, engine: str
) -> None:
    _create(catalog, NestedField(2, "c", GeometryType("EPSG:4326")))
    table = it.iceberg("n.t", catalog=catalog)
    before = _on_disk(tmp_path)
    for operation in (
        *OPERATIONS.values(),
        lambda table, _: it.read(table),
        lambda table, _: it.inspect(table),
    ):
        with pytest.raises(NotSupported, match=r"'c' has the type geometry.*n\.t"):
            operation(table, {"engine": engine})
    assert _on_disk(tmp_path) == before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("engine", ENGINES)
def test_rows_of_a_table_with_an_unknown_column_are_changed(
    catalog: Catalog, tmp_path: Path, engine: str, mode: str
) -> None:
    _create(catalog, NestedField(2, "c", UnknownType()))
    table = it.iceberg("n.t", catalog=catalog, mode=mode)
    how: dict[str, Any] = {"engine": engine}
    for operation in OPERATIONS.values():
        assert operation(table, {**how, "dry_run": True}).dry_run
        operation(table, how)
    it.write(pa.table({"id": [9, 9], "s": ["y", "z"]}), table, **how)
    it.merge(pa.table({"id": [2, 8], "s": ["B", "H"]}), table, on="id", **how)
    it.deduplicate(table, on="id", **how)
    it.delete(table, "id = 3", **how)
    it.compact(table, **how)
    wanted = [(2, "B"), (4, "d"), (8, "H"), (9, "z")]
    for found in (it.read(table).read_all(), catalog.load_table("n.t").scan().to_arrow()):
        assert found.schema.field("c").type == pa.null()
        assert sorted((row["id"], row["s"]) for row in found.to_pylist()) == wanted
    for path in tmp_path.rglob("*.parquet"):
        assert "c" not in pq.read_schema(path).names


@pytest.mark.parametrize("dry_run", [False, True])
def test_values_of_an_unknown_column_are_refused(catalog: Catalog, dry_run: bool) -> None:
    _create(catalog, NestedField(2, "c", UnknownType()))
    table = it.iceberg("n.t", catalog=catalog)
    for values in (pa.nulls(4), pa.array([1, 2, 3, 4])):
        with pytest.raises(NotSupported, match=r"'c' .* no type.*n\.t"):
            it.write(ROWS.append_column("c", values), table, dry_run=dry_run)
    with pytest.raises(ColumnNotFound, match="'c'"):
        it.update(table, {"c": "1"}, "id = 3", dry_run=dry_run)


@pytest.mark.parametrize("dry_run", [False, True])
def test_an_unknown_field_inside_a_column_is_refused_by_name(catalog: Catalog, dry_run: bool) -> None:
    _create(catalog, NestedField(2, "c", StructType(NestedField(4, "x", UnknownType()))))
    table = it.iceberg("n.t", catalog=catalog)
    assert it.read(table).read_all().num_rows == 0
    for name, operation in OPERATIONS.items():
        with pytest.raises(
            NotSupported, match=rf"^{SHOWN.get(name, name)}: 'c\.x' is of the type unknown.*n\.t"
        ):
            operation(table, {"dry_run": dry_run})


def test_a_property_that_cannot_be_followed_is_refused_by_dry_runs_too(catalog: Catalog) -> None:
    _create(catalog, properties={"write.format.default": "orc"})
    table = it.iceberg("n.t", catalog=catalog)
    for dry_run in (False, True):
        for operation in OPERATIONS.values():
            with pytest.raises(NotSupported, match=r"write\.format\.default"):
                operation(table, {"dry_run": dry_run})
