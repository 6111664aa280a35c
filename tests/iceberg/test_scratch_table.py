"""An Iceberg table in a dry run: its commits are seen by later steps, and by nobody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFile

import intarsia as it
from intarsia.errors import StorageError
from intarsia.storage.scratch_place import make_scratch_place
from intarsia.tables.iceberg.catalog import embedded_catalog
from intarsia.tables.iceberg.scratch_table import ScratchIcebergTable
from intarsia.tables.iceberg.table import IcebergTable

ROWS = pa.table({"id": [1, 2, 3, 4], "v": [10, 20, 30, 40]})
MORE = pa.table({"id": [2, 5], "v": [21, 50]})
LOCAL = pafs.LocalFileSystem()


def _values(table: Any) -> dict[int, int]:
    found = it.read(table).read_all().sort_by("id").to_pydict()
    return dict(zip(found["id"], found["v"], strict=True))


def _change(table: Any, mode: str) -> None:
    it.merge(MORE, table, on="id", mode=mode, engine="arrow")
    it.delete(table, "id = 1", mode=mode, engine="arrow")
    it.update(table, {"v": "v + 1"}, "id > 2", mode=mode, engine="arrow")


@pytest.mark.parametrize("version", ["2", "3"])
@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_commits_stay_in_the_scratch_place(
    tmp_path: Path, tree_digest: Callable[..., Any], version: str, mode: str
) -> None:
    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("db")
    properties = {
        "format-version": version,
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "1",
    }
    catalog.create_table("db.t", ROWS.schema, properties=properties)
    base = it.iceberg("db.t", catalog=catalog)
    it.write(ROWS.slice(0, 2), base)
    it.write(ROWS.slice(2), base)
    before = tree_digest(tmp_path / "warehouse")
    assert isinstance(base, IcebergTable)
    place = make_scratch_place(*base.workspace[:2], LOCAL, str(tmp_path / "scratch"))
    scratch = ScratchIcebergTable(base, place)
    assert scratch.root == base.root
    _change(scratch, mode)
    assert _values(scratch) == {2: 21, 3: 31, 4: 41, 5: 51}
    assert tree_digest(tmp_path / "warehouse") == before
    assert _values(it.iceberg("db.t", catalog=catalog)) == {1: 10, 2: 20, 3: 30, 4: 40}
    assert any(path.suffix == ".parquet" for path in (tmp_path / "scratch").rglob("*"))
    it.compact(scratch, engine="arrow")
    assert _values(scratch) == {2: 21, 3: 31, 4: 41, 5: 51}
    assert tree_digest(tmp_path / "warehouse") == before


def test_no_file_of_the_table_is_written_or_removed(tmp_path: Path) -> None:
    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", ROWS.schema)
    base = IcebergTable.of(table)
    place = make_scratch_place(*base.workspace[:2], LOCAL, str(tmp_path / "scratch"))
    io = ScratchIcebergTable(base, place).load().io
    with pytest.raises(StorageError, match="a dry run writes no file of the table"):
        io.new_output(f"{table.location()}/metadata/x.avro")
    io.delete(table.metadata_location)
    assert catalog.load_table("db.t").metadata_location == table.metadata_location


class MemoryIO(FileIO):
    """Files in fsspec's store in memory."""

    def fs_by_scheme(self, scheme: str, _netloc: str | None = None) -> pafs.FileSystem:
        fsspec = pytest.importorskip("fsspec")
        return pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("memory")))

    def new_input(self, location: str) -> PyArrowFile:
        path = location.removeprefix("memory://")
        return PyArrowFile(location, path, self.fs_by_scheme("memory"))

    new_output = new_input  # type: ignore[assignment]

    def delete(self, location: Any) -> None:
        self.fs_by_scheme("memory").delete_file(str(location).removeprefix("memory://"))


@pytest.fixture
def memory_store() -> Iterator[Callable[[], dict[str, bytes]]]:
    """The files in memory, by their paths; emptied afterwards."""
    store = pytest.importorskip("fsspec").filesystem("memory")
    yield lambda: {path: store.cat(path) for path in store.find("/lakehouse")}
    store.rm("/lakehouse", recursive=True)


def test_a_table_on_a_store_is_changed_on_this_machine(
    tmp_path: Path, memory_store: Callable[[], dict[str, bytes]]
) -> None:
    catalog = SqlCatalog(
        "store",
        uri=f"sqlite:///{tmp_path / 'catalog.db'}",
        warehouse="memory://lakehouse",
        **{"py-io-impl": f"{__name__}.MemoryIO"},
    )
    catalog.create_namespace("db")
    catalog.create_table("db.t", ROWS.schema)
    base = it.iceberg("db.t", catalog=catalog)
    it.write(ROWS, base)
    before = memory_store()
    assert isinstance(base, IcebergTable)
    place = make_scratch_place(*base.workspace[:2], LOCAL, str(tmp_path / "scratch"))
    scratch = ScratchIcebergTable(base, place)
    _change(scratch, "merge-on-read")
    assert _values(scratch) == {2: 21, 3: 31, 4: 41, 5: 51}
    assert memory_store() == before
    assert any(path.suffix == ".parquet" for path in (tmp_path / "scratch").rglob("*"))
