"""S25 on files of Iceberg's Java writer: every type stays as it is described, and is read as before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.layout import read_elements
from tests.cross.java_types import FIRST_ID, UUID, java_rows, make_table
from tests.cross.lake import Lake, local
from tests.cross.readers import polars_rows, pyiceberg_rows
from tests.cross.sample_rows import Row, ordered

KEYS = ["u", "d9", "d20", "d38", "tm", "fx", "tz"]
MODES = ("copy-on-write", "merge-on-read")
Operation = Callable[[Any, pa.Table, Mapping[str, Any]], Any]


def _engine(how: Mapping[str, Any]) -> dict[str, Any]:
    return {"engine": how["engine"]}


def _some(rows: pa.Table, *numbers: int) -> pa.Table:
    return rows.filter(pc.is_in(rows["id"], pa.array([FIRST_ID + number for number in numbers])))


def _deduplicate(table: Any, rows: pa.Table, how: Mapping[str, Any]) -> None:
    it.write(_some(rows, 1, 2, 8), table, **_engine(how))
    it.deduplicate(table, on=["id", *KEYS], **how)


ROW_LEVEL: dict[str, tuple[Operation, set[int]]] = {
    "delete": (lambda table, rows, how: it.delete(table, "i in (1, 8)", **how), {1, 8}),
    "delete by UUID": (lambda table, rows, how: it.delete(table, f"u = '{UUID}'", **how), {3}),
    "update": (lambda table, rows, how: it.update(table, {"s": "s"}, "i in (1, 8)", **how), set()),
    "upsert": (lambda table, rows, how: it.merge(_some(rows, 3, 4, 8), table, on="id", **how), set()),
    "merge": (
        lambda table, rows, how: it.merge(
            _some(rows, 3, 8), table, on=KEYS, strategy="update", null_keys="match", **how
        ),
        set(),
    ),
    "deduplicate": (_deduplicate, set()),
}
WHOLE: dict[str, Operation] = {
    "compact": lambda table, rows, how: it.compact(table, **_engine(how)),
    "optimize": lambda table, rows, how: it.optimize(table, by=["u", "d20"], **_engine(how)),
    "overwrite": lambda table, rows, how: it.write(
        rows.filter(pc.less(rows["id"], FIRST_ID + 6)),
        table,
        mode="overwrite",
        where=f"id < {FIRST_ID + 6}",
        **_engine(how),
    ),
}


def _described(lake: Lake, table: str) -> list[Any]:
    """The elements of every data file, less the columns of row lineage that a file may have."""
    found = []
    for task in lake.catalog.load_table(table).scan().plan_files():
        elements = read_elements(pq.read_metadata(local(task.file.file_path)))
        assert elements is not None
        root = {key: value for key, value in elements.root.items() if key != 5}
        found.append([root, *(item for item in elements.columns.items() if not item[0].startswith("_"))])
    return found


def _without(rows: list[Row], numbers: set[int]) -> list[Row]:
    return ordered([row for row in rows if row["id"] - FIRST_ID not in numbers])


@pytest.fixture(scope="module", params=[2, 3], ids=["v2", "v3"])
def java_table(lake: Lake, request: pytest.FixtureRequest) -> str:
    return make_table(lake, request.param)


@pytest.mark.parametrize("engine", ["arrow", "duckdb", "spark"])
def test_s25_types_of_java_stay_what_they_are(lake: Lake, java_table: str, engine: str) -> None:
    [before, *_] = _described(lake, java_table)
    read = [pyiceberg_rows(lake, java_table), polars_rows(lake, java_table)]
    of_java = java_rows(lake, java_table)
    rows = it.read(it.iceberg(java_table, catalog=lake.catalog)).read_all()
    chosen = lake.spark if engine == "spark" else engine
    cases = [
        (name, each, mode) for name, each in ROW_LEVEL.items() for mode in ("copy-on-write", "merge-on-read")
    ]
    cases += [(name, (operation, set()), "copy-on-write") for name, operation in WHOLE.items()]
    for name, (operation, gone), mode in cases:
        table = lake.clone(java_table, "java_types")
        operation(it.iceberg(table, catalog=lake.catalog), rows, {"engine": chosen, "mode": mode})
        assert all(found == before for found in _described(lake, table)), (name, mode)
        after = [pyiceberg_rows(lake, table), polars_rows(lake, table)]
        for some, others in zip(after, read, strict=True):
            assert ordered(some) == _without(others, gone), (name, mode)
        wanted = {number: row for number, row in of_java.items() if number - FIRST_ID not in gone}
        assert java_rows(lake, table) == wanted, (name, mode)


@pytest.mark.parametrize("engine", ["arrow", "duckdb", "spark"])
def test_s25_files_of_java_are_a_parquet_dataset(
    lake: Lake, java_table: str, tmp_path: Path, engine: str
) -> None:
    root = tmp_path / "lake"
    root.mkdir()
    for number, task in enumerate(lake.catalog.load_table(java_table).scan().plan_files()):
        (root / f"{number}.parquet").write_bytes(local(task.file.file_path).read_bytes())

    def described() -> list[Any]:
        found = [read_elements(pq.read_metadata(path)) for path in root.glob("*.parquet")]
        return [[one.root, *one.columns.items()] for one in found if one is not None]

    [before, *_] = described()
    rows = pq.read_table(root).to_pylist()
    chosen = lake.spark if engine == "spark" else engine
    it.delete(root, "i = 1", engine=chosen)
    it.update(root, {"s": "s"}, "i = 8", engine=chosen)
    source = it.snapshot(root).dataset().to_table()
    it.merge(_some(source, 3, 8), root, on="id", engine=chosen)
    it.write(_some(source, 2, 8), root, engine=chosen)
    it.deduplicate(root, on=["id"], engine=chosen)
    assert all(found == before for found in described())
    it.compact(root, engine=chosen)
    it.optimize(root, by=["u", "d20"], engine=chosen)
    assert all(found == before for found in described())
    wanted = sorted((row for row in rows if row["i"] != 1), key=lambda row: row["id"])
    assert sorted(pq.read_table(root).to_pylist(), key=lambda row: row["id"]) == wanted
