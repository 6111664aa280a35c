"""Iceberg tables of many files: columns say what objects would, and bounds are decoded once."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake import Lake

import intarsia as it
from intarsia.core.file_table import FileTable
from intarsia.core.prune import read_bounds
from intarsia.core.snapshot import Snapshot
from intarsia.errors import NotSupported
from intarsia.tables.iceberg import IcebergTable, table
from intarsia.tables.iceberg.manifests import ContentFile
from intarsia.tables.iceberg.scan import IcebergScanTask
from intarsia.tables.iceberg.snapshot_producer import FileChange

FILES = 6


def _data_file(lake: Lake, number: int) -> ContentFile:
    """Ids from 10 times its number on, with bounds."""
    ids = list(range(number * 10, number * 10 + 5))
    low, high = ({1: struct.pack("<q", value)} for value in (ids[0], ids[-1]))
    file = lake.data_file(ids, "eu" if number % 2 else "us")
    return replace(file, lower_bounds=low, upper_bounds=high, null_value_counts={1: 0})


@pytest.fixture(params=[2, 3])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    made = Lake.at(tmp_path, version=request.param)
    made.commit(FileChange(added_data=[_data_file(made, number) for number in range(3)]))
    made.commit(FileChange(added_data=[_data_file(made, number) for number in range(3, FILES)]))
    third = next(entry for entry in made.entries() if entry.file.file_path.endswith("f4.parquet"))
    made.commit(FileChange(added_deletes=made.write_deletes((third, [1]))))
    return made


def _take_snapshot(lake: Lake, monkeypatch: pytest.MonkeyPatch, *, many: bool) -> Snapshot:
    monkeypatch.setattr(table, "MANY_FILES", 2 if many else 1000)
    return IcebergTable(lake.table()).snapshot()


def test_files_bounds_and_footers_as_columns_say_what_objects_say(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _take_snapshot(lake, monkeypatch, many=True)
    plain = _take_snapshot(lake, monkeypatch, many=False)
    assert isinstance(found.files, FileTable)
    assert isinstance(plain.files, tuple)
    for one, other in (
        (found, plain),
        (found.with_footers(found.files[1:3]), plain.with_footers(plain.files[1:3])),
        (found.with_footers(found.files), plain.with_footers(plain.files)),
    ):
        assert list(one.files) == list(other.files)
        assert (one.rows, one.size, one.footer_bytes) == (other.rows, other.size, other.footer_bytes)
        assert (one.model_footer is None) == (other.model_footer is None)
        assert [file.footer is None for file in one.files] == [file.footer is None for file in other.files]
        for column, dtype in (("id", pa.int64()), ("region", pa.string())):
            assert read_bounds(one.files, column, dtype) == read_bounds(other.files, column, dtype)
        backwards = list(reversed(other.files))
        assert one.sort_files(backwards) == other.sort_files(backwards)


def test_a_merge_into_many_files_does_what_one_into_few_does(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = 31
    source = pa.table({"id": [23, deleted, 999], "region": ["us", "eu", "eu"]})
    seen = []
    for count in (2, 1000):
        monkeypatch.setattr(table, "MANY_FILES", count)
        result = it.merge(source, lake.table(), on="id", engine="arrow", dry_run=True)
        assert result.plan is not None
        seen.append((str(result.plan), tuple(result.plan.files), result.files, dict(result)))
    assert seen[0] == seen[1]
    monkeypatch.setattr(table, "MANY_FILES", 2)
    result = it.merge(source, lake.table(), on="id", engine="arrow")
    assert (result.updated, result.inserted) == (1, 2)  # a delete has left no row of one
    assert lake.table().scan().to_arrow().num_rows == FILES * 5 - 1 + 2


def test_a_second_merge_by_the_same_key_decodes_no_bounds(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MANY_FILES", 2)
    asked: list[str] = []
    real = IcebergScanTask.get_bounds

    def note(self: IcebergScanTask, column: str) -> Any:
        asked.append(self.entry.file.file_path)
        return real(self, column)

    target = IcebergTable(lake.table())
    source = pa.table({"id": [23], "region": ["us"]})
    it.merge(source, target, on="id", engine="arrow", dry_run=True)
    monkeypatch.setattr(IcebergScanTask, "get_bounds", note)
    it.merge(source, target, on="id", engine="arrow", dry_run=True)
    assert asked == []


def test_a_file_on_another_store_is_refused_also_among_many(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = replace(_data_file(lake, 9), file_path="s3://elsewhere/x.parquet")
    lake.commit(FileChange(added_data=[foreign]))
    for many in (True, False):
        with pytest.raises(NotSupported, match="is on another store"):
            _take_snapshot(lake, monkeypatch, many=many)
