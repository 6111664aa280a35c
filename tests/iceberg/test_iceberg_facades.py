"""What the public calls say of Iceberg tables: names, options that do not go with them, and upkeep."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake import Lake

import intarsia as it
from intarsia.errors import InputError, NotSupported
from intarsia.tables import iceberg


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake.at(tmp_path)
    made.append([1, 2, 3])
    return made


def test_the_package_has_the_names_for_users_and_loads_pyiceberg_with_the_first() -> None:
    code = (
        "import sys\n"
        "from intarsia.tables import iceberg\n"
        "assert set(iceberg.__all__) <= set(dir(iceberg))\n"
        "assert 'pyiceberg' not in sys.modules\n"
        "assert iceberg.remove_orphans and 'pyiceberg' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert all(getattr(iceberg, name).__doc__ for name in iceberg.__all__)


@pytest.mark.parametrize("as_table", [True, False])
def test_upkeep_takes_a_table_of_pyiceberg_or_ours(lake: Lake, as_table: bool) -> None:
    target: Any = lake.table() if as_table else it.iceberg("db.t", catalog=lake.catalog)
    assert iceberg.expire_snapshots(target).snapshots == ()
    assert iceberg.remove_orphans(target).files == ()


def test_an_age_without_a_zone_is_refused_by_both(lake: Lake) -> None:
    for act in (iceberg.expire_snapshots, iceberg.remove_orphans):
        with pytest.raises(InputError, match="time zone"):
            act(lake.table(), older_than=datetime.datetime(2025, 3, 1))


@pytest.mark.parametrize("as_table", [True, False])
@pytest.mark.parametrize(
    "option", [{"control_path": "x"}, {"retain": 1}, {"single_writer": True}, {"storage_options": {"a": "b"}}]
)
def test_options_of_a_path_are_refused(lake: Lake, option: dict[str, Any], as_table: bool) -> None:
    target: Any = lake.table() if as_table else it.iceberg("db.t", catalog=lake.catalog)
    before = lake.table().metadata_location
    with pytest.raises(InputError, match=f"{next(iter(option))}= goes with the path"):
        it.delete(target, "id = 1", **option)
    assert lake.table().metadata_location == before


def test_a_snapshot_gives_no_dataset_since_files_are_not_rows(lake: Lake) -> None:
    it.delete(lake.table(), "id = 2", mode="merge-on-read")
    with pytest.raises(NotSupported, match="not its rows") as caught:
        it.snapshot(lake.table()).dataset()
    assert "intarsia.read" in str(caught.value.hint)
    assert it.read(lake.table(), columns="id").read_all() == pa.table({"id": [1, 3]})


def test_a_warehouse_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no catalog catalog.db in .*/typo"):
        it.iceberg("db.t", catalog=tmp_path / "typo")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a b", "a%20b", "ä+b&c=d"])
def test_the_catalog_is_in_its_warehouse_whatever_the_path(tmp_path: Path, name: str) -> None:
    rows = pa.table({"id": [1, 2]})
    catalog = iceberg.embedded_catalog(tmp_path / name)
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", schema=rows.schema)
    catalog.close()
    orders = it.iceberg("shop.orders", catalog=str(tmp_path / name))
    assert it.merge(rows, orders, on="id").inserted == 2
    assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["catalog.db", "shop"]
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a?b", "a#b"])
def test_a_path_that_is_cut_as_a_url_is_no_warehouse(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot have"):
        iceberg.embedded_catalog(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
