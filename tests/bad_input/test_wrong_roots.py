"""A directory above datasets, or inside one, is no dataset: its files have journals and locks elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.datasets.pyarrow import PyarrowDatasetIO
from intarsia.errors import InputError

ROWS = pa.table({"id": range(6), "region": ["eu", "us"] * 3, "v": ["x"] * 6})

CHANGES: dict[str, Callable[..., Any]] = {
    "write": lambda root, **k: it.write(ROWS, root, **k),
    "overwrite": lambda root, **k: it.write(ROWS, root, mode="overwrite", **k),
    "merge": lambda root, **k: it.merge(ROWS, root, on="id", **k),
    "full_merge": lambda root, **k: it.merge(ROWS, root, on="id", strategy="full_merge", **k),
    "delete": lambda root, **k: it.delete(root, "id = 1", **k),
    "update": lambda root, **k: it.update(root, {"v": "'y'"}, "id = 1", **k),
    "compact": lambda root, **k: it.compact(root, **k),
    "optimize": lambda root, **k: it.optimize(root, by=["id"], **k),
    "deduplicate": lambda root, **k: it.deduplicate(root, on=["id"], **k),
}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Two datasets in one directory, one of them partitioned."""
    it.write(ROWS, tmp_path / "lake" / "orders", partition_by=["region"])
    it.write(ROWS, tmp_path / "lake" / "shop" / "customers")
    return tmp_path / "lake"


@pytest.mark.parametrize("dry_run", [False, True], ids=["run", "dry"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_directory_above_datasets_is_not_changed(
    lake: Path, change: str, dry_run: bool, tree_digest: Any
) -> None:
    before = tree_digest(lake.parent)
    with pytest.raises(InputError, match=r"above 'orders', 'shop/customers'.* name the dataset"):
        CHANGES[change](lake, dry_run=dry_run)
    assert tree_digest(lake.parent) == before


@pytest.mark.parametrize("part", ["region=eu", "region=new"])
@pytest.mark.parametrize("change", ["write", "merge", "delete", "compact"])
def test_a_partition_of_a_dataset_is_not_changed_as_one(
    lake: Path, part: str, change: str, tree_digest: Any
) -> None:
    before = tree_digest(lake.parent)
    with pytest.raises(InputError, match=r"a part of the dataset .*orders, which has"):
        CHANGES[change](lake / "orders" / part)
    assert tree_digest(lake.parent) == before


def test_both_may_be_read(lake: Path) -> None:
    assert it.inspect(lake).rows == 12
    assert it.inspect(lake / "orders" / "region=eu").rows == 3
    assert PyarrowDatasetIO().read_parquet(lake / "orders" / "region=eu").num_rows == 3


def test_a_journal_without_a_dataset_beside_it_is_in_nobodys_way(lake: Path) -> None:
    for file in (lake / "shop" / "customers").iterdir():
        file.unlink()
    (lake / "orders").rename(lake / "sales")
    assert it.delete(lake, "id = 1").deleted == 1


def test_a_directory_that_was_never_a_dataset_of_ours_may_be_changed(
    tmp_path: Path, make_dataset: Any
) -> None:
    root = make_dataset(tmp_path / "plain", ROWS, partition=["region"])
    assert it.delete(root / "region=eu", "id = 0").deleted == 1
