"""Sources that go to every task through a file: the same results, nothing left behind, and typed errors."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

import intarsia as it
from intarsia.engines.spark import staging
from intarsia.engines.spark.tasks import share_buffers
from intarsia.errors import StorageError

N = 3000
TARGET = pa.table({"id": range(N), "s": [f"s{n}" for n in range(N)], "v": [n / 3 for n in range(N)]})
SOURCE = pa.table(
    {
        "id": range(N - 500, N + 500),
        "s": [f"new {n}" for n in range(1000)],
        "v": [float(n) for n in range(1000)],
    }
)


@dataclass(frozen=True)
class Place:
    filesystem: pafs.FileSystem
    directory: str


@pytest.fixture
def mapped(monkeypatch):
    """Every source takes the way through a file; says how often it did."""
    seen = []

    def watched(value, room):
        seen.append(room.directory)
        return share_buffers(value, room)

    monkeypatch.setattr(staging, "INLINE_BYTES", 0)
    monkeypatch.setattr(staging, "DRIVER_INSERT_ROWS", 0)
    monkeypatch.setattr("intarsia.engines.spark.tasks.share_buffers", watched)
    return seen


def test_a_value_comes_back_from_its_file_with_every_array_it_holds(tmp_path):
    table = pa.table(
        {"a": [1, None, 3], "s": ["x", "", None], "d": pa.array(["u", "v", "u"]).dictionary_encode()}
    )
    value = {
        "table": table.slice(1),
        "array": pa.array([1.5, None]),
        "text": "t",
        "none": pa.array([], pa.int8()),
    }
    found = share_buffers(value, Place(pafs.LocalFileSystem(), str(tmp_path)))
    assert len(found.value) < 4096
    for copy in (found, pickle.loads(pickle.dumps(found))):
        opened = copy.load()
        assert opened["table"].equals(table.slice(1))
        assert opened["array"].equals(value["array"])
        assert (opened["text"], len(opened["none"])) == ("t", 0)


def test_storage_without_files_to_map_is_read(tmp_path):
    place = Place(pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "deep")
    place.filesystem.create_dir("deep")
    assert share_buffers(pa.array([1, 2]), place).load().to_pylist() == [1, 2]


def test_a_file_that_a_task_does_not_see_is_a_storage_error(tmp_path):
    found = share_buffers(pa.array([1]), Place(pafs.LocalFileSystem(), str(tmp_path)))
    os.remove(found.location)
    with pytest.raises(StorageError, match="does not see"):
        found.load()
    with pytest.raises(StorageError, match="Could not write"):
        share_buffers(pa.array([1]), Place(pafs.LocalFileSystem(), str(tmp_path / "nowhere")))


@pytest.mark.spark
@pytest.mark.parametrize("strategy", ["upsert", "full_merge"])
def test_a_merge_gives_what_it_gives_in_process_and_leaves_nothing(
    spark, tmp_path, make_dataset, rows, leftovers, mapped, strategy
):
    expected = make_dataset(tmp_path / "expected", TARGET, files=3)
    target = make_dataset(tmp_path / "target", TARGET, files=3)
    one = it.merge(SOURCE, expected, on="id", strategy=strategy)
    two = it.merge(spark.createDataFrame(SOURCE), target, on="id", strategy=strategy, engine=spark)
    assert dict(one) == dict(two)
    assert rows(target) == rows(expected)
    assert len(mapped) == 2  # probing and rewriting, then new rows
    assert leftovers(target) == []


@pytest.mark.spark
def test_a_dry_run_maps_its_source_elsewhere_and_leaves_nothing(
    spark, tmp_path, make_dataset, unchanged, mapped
):
    target = make_dataset(tmp_path / "target", TARGET, files=3)
    with unchanged(tmp_path):
        plan = it.merge(SOURCE, target, on="id", engine=spark, dry_run=True)
    assert plan.updated == 500
    assert len(mapped) == 2  # as the run: probing and measuring, then new rows
    assert not any(map(os.path.exists, mapped))
