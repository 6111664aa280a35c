"""Footers of many files, which executors read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.tables.parquet import footer_cache, footer_store, footers, listing

pytestmark = pytest.mark.spark


def test_executors_read_the_footers_of_many_files(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (footer_cache, listing):
        monkeypatch.setattr(module, "MANY_FILES", 2)
    monkeypatch.setattr(footer_store, "REMOTE_FOOTERS", 2)
    root = tmp_path / "lake"
    root.mkdir()
    for number in range(6):
        ids = pa.array(range(number * 10, number * 10 + 10), pa.int64())
        pq.write_table(pa.table({"id": ids, "v": ["old"] * 10}), root / f"f{number}.parquet")
    read: list[str] = []
    real = footers.read_listed_footer

    def note(storage: Any, file: Any) -> Any:
        read.append(Path(file[1]).name)
        return real(storage, file)

    monkeypatch.setattr(footers, "read_listed_footer", note)
    result = it.merge(pa.table({"id": [15, 999], "v": ["new"] * 2}), root, on="id", engine=spark)
    assert (result.updated, result.inserted, result.total) == (1, 1, 61)
    assert {name for name in read if name.startswith("f")} <= {
        "f0.parquet",
        "f1.parquet",
    }  # what it is like, and what it scans
