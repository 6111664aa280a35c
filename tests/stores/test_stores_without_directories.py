"""Stores that have no directories: what the log and side files mean there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import intarsia as it
from intarsia.errors import SchemaMismatch
from intarsia.tables.parquet import ParquetTable
from intarsia.tables.parquet.journal import Journal

ROWS = pa.table({"id": [1, 2], "v": ["a", "b"], "city": ["New York", "Bonn"]})


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.rm("/bucket", recursive=True)


def test_s29_the_log_alone_remembers_a_dataset_without_rows(memory: Any) -> None:
    it.write(ROWS, "/bucket/lake", partition_by="city", filesystem=memory)
    it.delete("/bucket/lake", "true", filesystem=memory, single_writer=True)
    assert memory.find("/bucket/lake") == []
    snapshot = it.snapshot("/bucket/lake", filesystem=memory)
    assert (snapshot.exists, snapshot.schema, snapshot.partition_columns) == (True, ROWS.schema, ("city",))
    with pytest.raises(SchemaMismatch):
        it.write(pa.table({"id": ["text"]}), "/bucket/lake", filesystem=memory)
    it.write(ROWS, "/bucket/lake", filesystem=memory)
    assert it.snapshot("/bucket/lake", filesystem=memory).rows == 2


def test_s29_a_source_without_rows_makes_a_dataset(memory: Any) -> None:
    it.write(ROWS.slice(0, 0), "/bucket/lake", partition_by="city", filesystem=memory)
    it.write(ROWS, "/bucket/lake", filesystem=memory)
    assert it.snapshot("/bucket/lake", filesystem=memory).partition_columns == ("city",)


def test_s25_a_summary_goes_with_an_append(memory: Any) -> None:
    it.write(ROWS, "/bucket/lake", filesystem=memory)
    memory.pipe("/bucket/lake/_metadata", b"of one file")
    assert any(
        "Removed _metadata" in note for note in it.write(ROWS, "/bucket/lake", filesystem=memory).notes
    )
    assert not memory.exists("/bucket/lake/_metadata")


def test_what_a_run_that_is_gone_has_committed_is_published_without_a_lock(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    it.write(ROWS, "/bucket/lake", filesystem=memory)
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "publish", _end)
        for run in ("gone", "alive"):
            with pytest.raises(KeyboardInterrupt):
                it.write(
                    ROWS,
                    "/bucket/lake",
                    filesystem=memory,
                    app_id=f"of {run}",
                    batch_id=1,
                    properties={"run_id": run},
                )
    table = ParquetTable("/bucket/lake", filesystem=memory)
    files = memory.find("/bucket/lake")
    (sentence,) = table.recover(run_id="gone")
    assert sentence.startswith("Finished the append")
    assert len(memory.find("/bucket/lake")) == len(files) + 1, "the other may still be at work"
    assert table.recover(run_id="gone") == ()
    assert table.snapshot().rows == 6


def _end(*_: Any) -> None:
    raise KeyboardInterrupt
