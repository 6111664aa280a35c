"""Pipelines whose targets are Iceberg tables: the same steps, the same reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia import pipeline
from intarsia.errors import InputError
from intarsia.pipeline.state.definitions import digest_snapshot
from intarsia.tables.iceberg.catalog import embedded_catalog

pytest.importorskip("pyiceberg")

PIPELINE = """
name = "shop"
engine = "arrow"
reports = "reports"

[sources.orders]
path = "landing/*.csv"
columns = { id = "bigint", region = "varchar", amount = "double" }

[sources.back]
target = "orders"

[targets.orders]
path = "shop.orders"
kind = "iceberg"
catalog = "./warehouse"
options = { mode = "merge-on-read" }

[targets.copy]
path = "copy"

[[steps]]
operation = "merge"
source = "orders"
target = "orders"
on = "id"

[[steps]]
operation = "delete"
target = "orders"
where = "amount < 0"

[[steps]]
operation = "expect"
target = "orders"
unique = "id"
holds = "amount >= 0"

[[steps]]
name = "copied"
operation = "write"
mode = "overwrite"
source = "back"
target = "copy"
"""


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    """A warehouse with a table whose partition spec has changed, and files that land."""
    catalog = embedded_catalog(tmp_path / "warehouse")
    catalog.create_namespace("shop")
    schema = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.float64())])
    table = catalog.create_table("shop.orders", schema)
    table.append(pa.table({"id": [1, 2, 3], "region": ["eu", "us", "eu"], "amount": [1.0, 2.0, 3.0]}))
    with table.update_spec() as update:
        update.add_identity("region")
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.csv").write_text("id,region,amount\n2,us,-1\n3,us,30\n4,eu,4\n")
    (tmp_path / "p.toml").write_text(PIPELINE)
    return catalog


def _rows(catalog: Any) -> list[tuple[Any, ...]]:
    found = catalog.load_table("shop.orders").scan().to_arrow().sort_by("id")
    return list(zip(*found.to_pydict().values(), strict=True))


def test_steps_change_an_iceberg_table_across_its_specs(shop: Any, tmp_path: Path) -> None:
    report = pipeline.run(pipeline.load(tmp_path / "p.toml"), progress=False)
    report.check()
    expected = [(1, "eu", 1.0), (3, "us", 30.0), (4, "eu", 4.0)]
    assert _rows(shop) == expected
    merged, deleted = report.steps[0], report.steps[1]
    assert (merged.result.updated, merged.result.inserted, deleted.result.deleted) == (2, 1, 1)


def test_a_source_may_be_an_iceberg_target_with_position_deletes(
    shop: Any, tmp_path: Path, rows: Any
) -> None:
    pipeline.run(pipeline.load(tmp_path / "p.toml"), progress=False).check()
    assert sorted(row["id"] for row in rows(tmp_path / "copy")) == [1, 3, 4]


def test_a_table_counts_as_changed_by_position_deletes_and_every_file_stays(shop: Any) -> None:
    table = shop.load_table("shop.orders")
    before = it.snapshot(table)
    it.delete(table, "id = 1", mode="merge-on-read")
    after = it.snapshot(table)
    assert [file.path for file in after.files] == [file.path for file in before.files]
    assert digest_snapshot(after) != digest_snapshot(before)


def test_a_table_that_is_not_there_ends_the_run_before_anything_is_written(tmp_path: Path) -> None:
    embedded_catalog(tmp_path / "warehouse").create_namespace("shop")
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.csv").write_text("id,region,amount\n2,us,-1\n")
    (tmp_path / "p.toml").write_text(PIPELINE)
    report = pipeline.run(pipeline.load(tmp_path / "p.toml"), progress=False)
    line = 1 + PIPELINE.splitlines().index("[targets.orders]")
    told = rf"p\.toml, line {line}, \[targets\.orders\]: There is no table shop\.orders"
    with pytest.raises(InputError, match=told):
        report.check()
    assert not (tmp_path / "copy").exists()


def test_tables_of_one_name_in_two_catalogs_have_a_memory_each(shop: Any, tmp_path: Path) -> None:
    other = embedded_catalog(tmp_path / "other")
    other.create_namespace("shop")
    other.create_table(
        "shop.orders", pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.float64())])
    )
    text = PIPELINE[: PIPELINE.index("[[steps]]")]
    step = '[[steps]]\nname = "{0}"\noperation = "merge"\nsource = "orders"\ntarget = "{0}"\non = "id"\n'
    target = '[targets.second]\npath = "shop.orders"\nkind = "iceberg"\ncatalog = "./other"\n'
    (tmp_path / "p.toml").write_text(text + target + step.format("orders") + step.format("second"))
    made = pipeline.load(tmp_path / "p.toml")
    assert [step.status for step in pipeline.run(made, progress=False).check().steps] == ["done", "done"]
    assert [step.status for step in pipeline.run(made, progress=False).check().steps] == ["unchanged"] * 2
    assert len(_rows(other)) == 3


def test_a_table_that_was_rolled_back_is_filled_again_also_without_the_state(
    shop: Any, tmp_path: Path
) -> None:
    first = shop.load_table("shop.orders").current_snapshot().snapshot_id
    pipeline.run_file(tmp_path / "p.toml", progress=False).check()
    rows = _rows(shop)
    shop.load_table("shop.orders").manage_snapshots().set_current_snapshot(first).commit()
    (tmp_path / ".intarsia" / "shop.state.json").unlink()
    pipeline.run_file(tmp_path / "p.toml", progress=False, full_refresh=True).check()
    assert _rows(shop) == rows
