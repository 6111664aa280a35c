"""The catalog that is one object, on a local disk: by PyIceberg alone, by two processes, and damaged."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate

import intarsia as it
from intarsia.errors import DamagedTable, InputError, NotSupported
from intarsia.storage import PosixStorage
from intarsia.tables.iceberg import ObjectCatalog, object_catalog
from intarsia.tables.iceberg.catalog import TableReference

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": ["a", "b", "c"]})
SETTINGS = {"py-catalog-impl": "intarsia.tables.iceberg.ObjectCatalog"}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    found = load_catalog("lake", **SETTINGS, warehouse=str(tmp_path / "lake"))
    found.create_namespace("shop", {"owner": "ann"})
    return found


def open_again(tmp_path: Path) -> Catalog:
    return object_catalog(tmp_path / "lake")


def read(catalog: Catalog, name: str = "shop.orders") -> list[int]:
    return sorted(catalog.load_table(name).scan().to_arrow()["id"].to_pylist())


def test_pyiceberg_alone_writes_and_reads_through_it(catalog: Catalog, tmp_path: Path) -> None:
    assert isinstance(catalog, ObjectCatalog)
    table = catalog.create_table("shop.orders", schema=ROWS.schema)
    table.append(ROWS)
    table.delete("id = 1")
    table.upsert(ROWS.slice(2), join_cols=["id"])
    with table.update_schema() as schema:
        schema.add_column("more", schema._schema.find_field("id").field_type)
    assert read(open_again(tmp_path)) == [2, 3]
    assert open_again(tmp_path).load_table("shop.orders").schema().column_names == ["id", "v", "more"]
    with catalog.create_table_transaction("shop.made", schema=ROWS.schema) as transaction:
        transaction.append(ROWS)
    assert read(open_again(tmp_path), "shop.made") == [1, 2, 3]
    assert open_again(tmp_path).list_tables("shop") == [("shop", "made"), ("shop", "orders")]


def test_tables_are_renamed_registered_dropped_and_purged(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.create_table("shop.orders", schema=ROWS.schema)
    table.append(ROWS)
    catalog.create_namespace(("old", "2024"))
    assert catalog.rename_table("shop.orders", "old.2024.orders").name() == ("old", "2024", "orders")
    assert read(catalog, "old.2024.orders") == [1, 2, 3]
    assert not catalog.table_exists("shop.orders")
    location = catalog.load_table("old.2024.orders").metadata_location
    catalog.drop_table("old.2024.orders")
    assert catalog.list_tables("old.2024") == []
    catalog.register_table("shop.orders", location)
    assert read(open_again(tmp_path)) == [1, 2, 3]
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_table("shop.orders", location)
    catalog.register_table("shop.orders", location, overwrite=True)
    catalog.purge_table("shop.orders")
    assert not [file for file in (tmp_path / "lake").rglob("*") if file.suffix in (".parquet", ".avro")]


def test_namespaces_have_properties_and_others_below_them(catalog: Catalog) -> None:
    catalog.create_namespace(("shop", "eu"))
    catalog.create_namespace("a")
    assert catalog.list_namespaces() == [("a",), ("shop",)]
    assert catalog.list_namespaces("shop") == [("shop", "eu")]
    summary = catalog.update_namespace_properties("shop", {"owner", "x"}, {"team": "b"})
    assert (summary.removed, summary.updated, summary.missing) == (["owner"], ["team"], ["x"])
    assert catalog.load_namespace_properties("shop") == {"team": "b"}
    catalog.create_table("shop.eu.t", schema=ROWS.schema).append(ROWS)
    assert read(catalog, "shop.eu.t") == [1, 2, 3]
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("shop.eu")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("shop")
    catalog.drop_namespace("a")
    assert catalog.namespace_exists("shop")
    assert not catalog.namespace_exists("a")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda c: c.create_namespace("shop"), NamespaceAlreadyExistsError),
        (lambda c: c.drop_namespace("none"), NoSuchNamespaceError),
        (lambda c: c.list_tables("none"), NoSuchNamespaceError),
        (lambda c: c.list_namespaces("none"), NoSuchNamespaceError),
        (lambda c: c.load_namespace_properties("none"), NoSuchNamespaceError),
        (lambda c: c.update_namespace_properties("none", set(), {"a": "b"}), NoSuchNamespaceError),
        (lambda c: c.create_table("none.t", schema=ROWS.schema), NoSuchNamespaceError),
        (lambda c: c.create_table("shop.t", schema=ROWS.schema), TableAlreadyExistsError),
        (lambda c: c.load_table("shop.none"), NoSuchTableError),
        (lambda c: c.load_table("t"), NoSuchTableError),
        (lambda c: c.drop_table("shop.none"), NoSuchTableError),
        (lambda c: c.rename_table("shop.none", "shop.x"), NoSuchTableError),
        (lambda c: c.rename_table("shop.t", "none.x"), NoSuchNamespaceError),
        (lambda c: c.rename_table("shop.t", "shop.t2"), TableAlreadyExistsError),
        (lambda c: c.create_namespace(""), NoSuchNamespaceError),
    ],
)
def test_what_cannot_be_is_refused_as_pyiceberg_refuses_it(
    call: Callable[[Catalog], Any], error: type[Exception], catalog: Catalog, tmp_path: Path
) -> None:
    for name in ("shop.t", "shop.t2"):
        catalog.create_table(name, schema=ROWS.schema)
    before = (tmp_path / "lake" / "catalog.json").read_bytes()
    files = sorted((tmp_path / "lake").rglob("*"))
    with pytest.raises(error):
        call(catalog)
    assert (tmp_path / "lake" / "catalog.json").read_bytes() == before
    assert sorted((tmp_path / "lake").rglob("*")) == files


def test_a_commit_on_a_state_that_others_have_changed_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.create_table("shop.orders", schema=ROWS.schema)
    stale = open_again(tmp_path).load_table("shop.orders")
    table.append(ROWS)
    wanted = AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": None})
    with pytest.raises(CommitFailedException):
        stale.catalog.commit_table(stale, (wanted,), (SetPropertiesUpdate(updates={"a": "b"}),))
    assert read(catalog) == [1, 2, 3]
    assert "a" not in catalog.load_table("shop.orders").properties


def test_a_write_that_meets_another_in_between_loses_nothing(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process changes the object between the reading and the swap of this one."""
    table = catalog.create_table("shop.orders", schema=ROWS.schema)
    other = open_again(tmp_path)
    waiting = [lambda: other.create_namespace("meanwhile"), lambda: other.drop_namespace("meanwhile")]
    honest, inside = PosixStorage.lock, [0]

    def lock(self: PosixStorage, path: str, timeout: float) -> Any:
        if len(waiting) > inside[0]:
            inside[0] = len(waiting)  # nobody meets them
            waiting.pop(0)()
            inside[0] = 0
        return honest(self, path, timeout)

    monkeypatch.setattr(PosixStorage, "lock", lock)
    table.append(ROWS)
    assert not waiting
    assert read(catalog) == [1, 2, 3]


WRITER = """
import sys, pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
warehouse, name, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
settings = {"py-catalog-impl": "intarsia.tables.iceberg.ObjectCatalog", "warehouse": warehouse}
catalog = load_catalog("lake", **settings)
for number in range(first, first + count):
    while True:
        try:
            catalog.load_table(name).append(pa.table({"id": pa.array([number], pa.int64()), "v": ["x"]}))
            break
        except CommitFailedException:
            print("again")
"""


@pytest.mark.parametrize("names", [("shop.orders", "shop.orders"), ("shop.orders", "shop.others")])
def test_two_processes_at_once_lose_no_update(
    names: tuple[str, str], catalog: Catalog, tmp_path: Path
) -> None:
    for name in set(names):
        catalog.create_table(name, schema=ROWS.schema)
    count = 4
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "lake"), name, str(100 * place), str(count)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        for place, name in enumerate(names)
    ]
    said = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    found = sorted(number for name in set(names) for number in read(catalog, name))
    assert found == [*range(count), *range(100, 100 + count)]
    if names[0] != names[1]:
        assert [out for out, _ in said] == [b"", b""], "commits of other tables are no conflict"


def test_intarsia_changes_its_tables_by_their_names(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_table("shop.orders", schema=ROWS.schema, properties={"format-version": "3"})
    target = it.iceberg("shop.orders", catalog=tmp_path / "lake")
    it.merge(ROWS, target, on="id")
    it.delete(target, "id = 2", mode="merge-on-read")
    assert it.read(target).read_all().num_rows == 2
    it.restore(target, 1)
    assert read(catalog) == [1, 2, 3]
    moved = pickle.loads(pickle.dumps(TableReference.of(catalog.load_table("shop.orders"))))
    assert moved.open().scan().to_arrow().num_rows == 3
    assert pickle.loads(pickle.dumps(catalog)).list_tables("shop") == [("shop", "orders")]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", DamagedTable),
        (b"{}", DamagedTable),
        (b'{"format": "other"}', DamagedTable),
        (b'{"format": "intarsia-catalog", "version": 2}', NotSupported),
        (
            b'{"format": "intarsia-catalog", "version": 1, "namespaces": [{"name": [1]}], "tables": [],'
            b' "writes": []}',
            DamagedTable,
        ),
    ],
)
def test_an_object_that_is_no_catalog_is_not_written_over(
    data: bytes, error: type[Exception], catalog: Catalog, tmp_path: Path
) -> None:
    file = tmp_path / "lake" / "catalog.json"
    file.write_bytes(data)
    for call in (lambda: catalog.list_namespaces(), lambda: catalog.create_namespace("x")):
        with pytest.raises(error):
            call()
    assert file.read_bytes() == data


def test_no_secret_of_the_settings_is_in_the_object(tmp_path: Path) -> None:
    catalog = object_catalog(tmp_path / "lake", **{"s3.secret-access-key": "hunter2", "token": "hunter2"})
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", schema=ROWS.schema)
    table.append(ROWS)
    for file in (tmp_path / "lake").rglob("*"):
        assert not file.is_file() or b"hunter2" not in file.read_bytes()
    assert json.loads((tmp_path / "lake" / "catalog.json").read_text())["store"] is None


def test_a_warehouse_is_needed_and_must_be_on_a_store_that_is_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs its warehouse"):
        ObjectCatalog("lake")
    with pytest.raises(NotSupported):
        object_catalog(
            "memory://lake", **{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
        ).list_namespaces()
