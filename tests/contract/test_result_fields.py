"""Results: the same fields for every operation, in the form the caller gave the path."""

from __future__ import annotations

import json
import os
import pickle

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.core.report import as_json

TABLE = pa.table({"id": range(10), "v": range(10)})
SOURCE = pa.table({"id": [0, 99], "v": [5, 5]})


def test_it_answers_like_a_dict_of_the_four_counts(lake):
    result = lake.create(TABLE).merge(SOURCE, on="id")
    assert dict(result) == {"inserted": 1, "updated": 1, "deleted": 0, "total": 11}
    assert result["inserted"] == 1
    with pytest.raises(KeyError):
        result["files"]


def test_every_file_is_told_with_what_happened_to_it(parquet_lake):
    parquet_lake.create(TABLE, files=2)
    result = parquet_lake.merge(SOURCE, on="id")
    told = {os.path.basename(f.path): (f.operation, f.row_count) for f in result.files}
    assert told["part-00000.parquet"] == ("rewritten", 5)
    assert told["part-00001.parquet"] == ("preserved", 5)
    assert [count for name, (kind, count) in told.items() if kind == "inserted"] == [1]
    for entry in result.files:
        assert entry.size_bytes == os.path.getsize(entry.path)
    assert result.rewritten_files == [str(parquet_lake.root / "part-00000.parquet")]
    assert result.preserved_files == [str(parquet_lake.root / "part-00001.parquet")]
    assert len(result.inserted_files) == 1
    assert result.removed_files == []


def test_counts_of_files_after_a_delete_are_those_of_the_new_files(parquet_lake):
    parquet_lake.create(TABLE)
    result = parquet_lake.delete("id < 4")
    assert [(f.operation, f.row_count) for f in result.files] == [("rewritten", 6)]


@pytest.mark.parametrize("form", [str, lambda path: path, os.path.relpath, lambda path: f"{path}/"])
def test_paths_have_the_form_that_the_caller_gave(parquet_lake, form):
    parquet_lake.create(TABLE)
    target = form(parquet_lake.root)
    result = it.merge(SOURCE, target, on="id")
    base = os.fspath(target).rstrip("/")
    assert all(entry.path.startswith(f"{base}/") for entry in result.files)
    assert result.path.rstrip("/") == base


def test_versions_count_commits_and_txids_are_in_the_names_of_new_files(parquet_lake):
    parquet_lake.create(TABLE)
    first = parquet_lake.merge(SOURCE, on="id")
    second = parquet_lake.update({"v": "v + 1"})
    assert second.version == first.version + 1 == parquet_lake.snapshot().version
    assert first.txid in first.inserted_files[0]
    assert first.txid != second.txid


def test_an_operation_that_changes_nothing_commits_nothing(parquet_lake):
    parquet_lake.create(TABLE)
    version = parquet_lake.merge(SOURCE, on="id").version
    result = parquet_lake.delete("id = -1")
    assert (result.changed, result.txid, parquet_lake.snapshot().version) == (False, None, version)


@pytest.mark.parametrize(
    ("run", "operation", "strategy"),
    [
        (lambda lake: lake.merge(SOURCE, on="id", strategy="update"), "merge", "update"),
        (lambda lake: lake.merge(SOURCE, on="id", clauses=[it.when_matched().delete()]), "merge", "merge"),
        (lambda lake: lake.delete("id = 1"), "delete", "delete"),
        (lambda lake: lake.update({"v": "1"}), "update", "update"),
        (lambda lake: lake.write(SOURCE), "append", "append"),
        (lambda lake: lake.write(SOURCE, mode="overwrite"), "overwrite", "overwrite"),
        (lambda lake: lake.compact(), "compact", "compact"),
        (lambda lake: lake.optimize(by="v"), "optimize", "optimize"),
        (lambda lake: lake.deduplicate(on="id"), "deduplicate", "deduplicate"),
    ],
)
def test_a_result_says_what_was_done(lake, run, operation, strategy):
    result = run(lake.create(TABLE, files=2))
    assert (result.operation, result.strategy, result.engine) == (operation, strategy, lake.engine)
    assert result.total == len(lake.rows())
    assert result.seconds > 0
    assert result.attempts == 1
    assert str(result)
    assert "<" in result._repr_html_()


def test_a_result_is_json_and_pickles(lake):
    result = lake.create(TABLE).merge(SOURCE, on="id")
    assert json.loads(json.dumps(as_json(result)))["inserted"] == 1
    copy = pickle.loads(pickle.dumps(result.files))
    assert copy == result.files
