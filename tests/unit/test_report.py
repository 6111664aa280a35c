"""Results as values."""

from __future__ import annotations

import dataclasses
import json

import pytest

from intarsia.core.report import (
    FileMetadata,
    MergeFileMetadata,
    MergeResult,
    WriteDatasetResult,
    as_json,
    make_file_metadata,
)

FILES = [
    MergeFileMetadata("lake/a.parquet", 5, "rewritten", 100),
    MergeFileMetadata("lake/b.parquet", 2, "inserted", 50),
    MergeFileMetadata("lake/c.parquet", 9, "preserved"),
]
RESULT = MergeResult("upsert", 3, 13, 15, 2, 1, 0, files=FILES, inserted_files=["lake/b.parquet"])


def test_it_reads_like_a_mapping_of_four_counts():
    assert dict(RESULT) == {"inserted": 2, "updated": 1, "deleted": 0, "total": 15}
    assert list(RESULT.keys()) == list(dict(RESULT))
    assert RESULT["total"] == RESULT.total == RESULT.target_count_after
    for unknown in ("files", "source_count", "x"):
        with pytest.raises(KeyError, match=unknown):
            RESULT[unknown]


def test_it_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RESULT.inserted = 5


@pytest.mark.parametrize("kind", ["rewritten_files", "inserted_files", "removed_files"])
def test_it_has_changed_something_when_any_file_came_or_went(kind):
    nothing = MergeResult("upsert", 0, 1, 1, 0, 0, 0, preserved_files=["x"])
    assert not nothing.changed
    assert dataclasses.replace(nothing, **{kind: ["x"]}).changed


def test_a_dry_run_that_would_only_insert_would_change_something():
    assert MergeResult("insert", 1, 0, 1, 1, 0, 0, dry_run=True).changed
    assert not MergeResult("insert", 1, 0, 0, 0, 0, 0, dry_run=True).changed


def test_new_files_are_what_a_write_gives_back():
    assert make_file_metadata(RESULT) == [FileMetadata("lake/b.parquet", 2, 50)]
    assert WriteDatasetResult([], 0, "append").backend == "pyarrow"


def test_it_is_plain_json():
    plain = json.loads(json.dumps(as_json(RESULT)))
    assert plain["files"][0] == {
        "path": "lake/a.parquet", "row_count": 5, "operation": "rewritten", "size_bytes": 100
    }  # fmt: skip
    assert plain["strategy"] == "upsert"
    assert plain["notes"] == []
    assert "plan" not in plain
