"""Footers that executors read: the same plans, and every file that is not as it was listed is found out."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.prune import read_bounds
from intarsia.errors import CommitConflict, DamagedTable
from intarsia.tables.parquet import (
    ParquetTable,
    footer_cache,
    footer_store,
    listing,
    remote_footers,
)

FILES = 7


@pytest.fixture(autouse=True)
def _few_files_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (footer_cache, listing):
        monkeypatch.setattr(module, "MANY_FILES", 2)
    monkeypatch.setattr(footer_store, "REMOTE_FOOTERS", 2)
    for module in (footer_store, remote_footers):
        monkeypatch.setattr(module, "JOB_FILES", 3)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    root.mkdir()
    for number in range(FILES):
        ids = pa.array(range(number * 10, number * 10 + 10), pa.int64())
        columns = {"id": ids, "v": ["old"] * 10} | ({"w": [1] * 10} if number == 4 else {})
        pq.write_table(pa.table(columns), root / f"f{number}.parquet", row_group_size=6)
    return root


class Executors:
    """Runs jobs in this process, through the bytes that would travel."""

    def __init__(self) -> None:
        self.jobs: list[tuple[str, int]] = []
        self.before: Callable[[str], None] = lambda name: None

    def __call__(
        self, work: Callable[[Any, Any], Any], jobs: Sequence[Any], *, shared: Any, weights: Sequence[int]
    ) -> list[Any]:
        assert len(weights) == len(jobs)
        self.before(work.__name__)
        self.jobs += [(work.__name__, len(job)) for job in jobs]
        return [pickle.loads(pickle.dumps(work(*pickle.loads(pickle.dumps((shared, job)))))) for job in jobs]


def _open(root: Path, executors: Executors | None) -> ParquetTable:
    table = ParquetTable(root)
    table.read_footers_with(executors)
    return table


def test_what_executors_read_is_what_the_driver_would(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executors = Executors()
    found = _open(lake, executors).snapshot()
    plain = _open(lake, None).snapshot()
    assert found == plain
    assert found.schema.equals(plain.schema, check_metadata=True)
    assert executors.jobs == [("_count_footers", 3), ("_count_footers", 3), ("_count_footers", 1)]
    for column, dtype in (("id", pa.int64()), ("v", pa.string()), ("w", pa.int64())):
        assert read_bounds(found.files, column, dtype) == read_bounds(plain.files, column, dtype)
    assert [name for name, _ in executors.jobs[3:]] == ["_read_bounds"] * 9
    read: list[str] = []
    real = footer_store.read_listed_footers

    def note(storage: Any, files: Any) -> Any:
        read.extend(place for _, place in files)
        return real(storage, files)

    monkeypatch.setattr(footer_store, "read_listed_footers", note)
    assert found.files[5].footer is not None
    assert found.files[5].footer.row_group(1).num_rows == 4
    assert [os.path.basename(place) for place in read] == ["f5.parquet"]


def test_few_footers_are_read_by_the_driver(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footer_store, "REMOTE_FOOTERS", FILES + 1)
    executors = Executors()
    found = _open(lake, executors).snapshot()
    assert (found.rows, executors.jobs) == (FILES * 10, [])


def test_a_damaged_file_is_named_as_ever(lake: Path) -> None:
    (lake / "f3.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(DamagedTable, match=r"f3\.parquet"):
        _open(lake, Executors()).snapshot()


def test_a_file_that_is_removed_while_executors_read_is_listed_again(lake: Path) -> None:
    executors = Executors()

    def remove(_name: str) -> None:
        (lake / "f3.parquet").unlink(missing_ok=True)

    executors.before = remove
    assert len(_open(lake, executors).snapshot().files) == FILES - 1


def test_a_file_that_is_replaced_before_its_bounds_are_read_is_a_conflict(lake: Path) -> None:
    executors = Executors()
    found = _open(lake, executors).snapshot()
    pq.write_table(pa.table({"id": [500], "v": ["x"]}), lake / "other")
    os.replace(lake / "other", lake / "f3.parquet")
    with pytest.raises(CommitConflict, match=r"f3\.parquet was replaced"):
        read_bounds(found.files, "id", pa.int64())


def test_executors_are_lent_for_one_operation(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executors = Executors()
    lent: list[Any] = []
    real = ParquetTable.read_footers_with
    monkeypatch.setattr(
        ParquetTable, "read_footers_with", lambda self, given: [lent.append(given), real(self, given)][1]
    )
    from intarsia.engines.arrow import ArrowEngine

    class Engine(ArrowEngine):
        distribute = staticmethod(executors)

    table = ParquetTable(lake)
    result = it.merge(pa.table({"id": [15], "v": ["new"]}), table, on="id", engine=Engine(), missing="keep")
    assert result.updated == 1
    assert {name for name, _ in executors.jobs} == {"_count_footers", "_read_bounds"}
    assert lent[-1] is None
    assert executors in lent
