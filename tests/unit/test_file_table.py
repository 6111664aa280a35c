"""Many files as columns: they say the same as objects would, and only those that matter become objects."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.core.change import Hits, Matches, make_transaction_id
from intarsia.core.file_table import FileTable, FileTuple, find_unknown
from intarsia.core.partitioner import PartitionDirectories
from intarsia.core.plan import FilePlan, SparsePlans
from intarsia.errors import DamagedTable, UnsafePath
from intarsia.storage import FileEntry, PosixStorage
from intarsia.tables.parquet import ParquetTable, footer_cache, list_data_files, listing
from intarsia.tables.parquet.entries import EntryTable, sort_entries

Switch = Callable[[bool], None]
FILES = 12


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> Switch:
    """Whether the few files of a test count as many."""

    def switch(are_many: bool) -> None:
        for module in (footer_cache, listing):
            monkeypatch.setattr(module, "MANY_FILES", 2 if are_many else 1000)

    switch(True)
    return switch


def _write(path: Path, first: int, *, rows: int = 10) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": pa.array(range(first, first + rows), pa.int64()), "v": ["old"] * rows})
    pq.write_table(table, path, row_group_size=5)


@pytest.fixture(params=["flat", "partitioned"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    for number in range(FILES):
        directory = "" if request.param == "flat" else f"day=2025-01-{number % 3 + 1:02d}/"
        _write(root / f"{directory}f{number:02d}.parquet", number * 10)
    return root


def _source(root: Path, *ids: int) -> pa.Table:
    table = pa.table({"id": pa.array(ids, pa.int64()), "v": ["new"] * len(ids)})
    if not (root / "f00.parquet").exists():
        table = table.append_column("day", pa.array(["2025-01-02"] * len(ids)))
    return table


def test_a_table_of_files_is_as_the_tuple_of_them(lake: Path, many: Switch) -> None:
    found = ParquetTable(lake).snapshot()
    many(False)
    plain = ParquetTable(lake).snapshot()
    files, expected = found.files, plain.files
    assert isinstance(files, FileTable)
    assert isinstance(expected, tuple)
    assert files == expected
    assert expected == files
    assert found == plain
    assert list(files) == list(expected)
    assert (len(files), files[3], files[-1], files[2:5]) == (FILES, expected[3], expected[-1], expected[2:5])
    assert files[::5] == expected[::5]
    assert (found.rows, found.size, found.footer_bytes) == (plain.rows, plain.size, plain.footer_bytes)
    assert files != expected[:-1]
    assert pickle.loads(pickle.dumps(files)) == expected
    with pytest.raises(IndexError):
        files[FILES]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "insert"},
        {"strategy": "update"},
        {"strategy": "full_merge"},
    ],
    ids=lambda options: options.get("strategy", "upsert"),
)
def test_plans_and_results_of_many_files_say_what_those_of_few_say(
    lake: Path, many: Switch, options: dict[str, Any]
) -> None:
    source = _source(lake, 14, 44, 999)

    def dry_run() -> tuple[Any, ...]:
        result = it.merge(source, lake, on="id", engine="arrow", dry_run=True, **options)
        assert result.plan is not None
        plans = tuple(result.plan.files)
        return str(result.plan), plans, result.files, result.preserved_files, dict(result), result.notes

    found = dry_run()
    many(False)
    assert found == dry_run()


def test_only_files_that_may_hold_a_key_become_objects(
    tmp_path: Path, many: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(FILES):
        _write(tmp_path / "lake" / f"f{number:02d}.parquet", number * 10)
    source = pa.table({"id": [14, 57], "v": ["new"] * 2})
    made: set[int] = set()
    real = EntryTable.make_range

    def note(self: EntryTable, start: int, stop: int) -> list[FileEntry]:
        made.update(range(start, stop))
        return real(self, start, stop)

    it.merge(source, tmp_path / "lake", on="id", engine="arrow")
    time.sleep(0.02)
    monkeypatch.setattr(footer_cache, "_YOUNG_NS", 0)
    it.merge(source, tmp_path / "lake", on="id", engine="arrow")
    monkeypatch.setattr(EntryTable, "make_range", note)
    result = it.merge(source, tmp_path / "lake", on="id", engine="arrow", dry_run=True)
    assert result.updated == 2
    assert made <= {0, 1, 5}  # the first is the one that others are like


def test_a_hit_in_a_file_that_was_just_kept_is_resolved(lake: Path, many: Switch) -> None:
    found = ParquetTable(lake).snapshot()
    assert isinstance(found.files, FileTable)
    plans = SparsePlans(found.files, ["kept"] * len(found.files.directories), {})
    matches = Matches(actions=(), hits={found.files[4].path: Hits(pa.array([1]))}, dropped=frozenset())
    seen: list[str] = []

    def resolve(plan: FilePlan) -> FilePlan:
        seen.append(plan.file.path)
        return plan

    assert list(plans.resolve(matches, resolve).changed) == [4]
    assert seen == [found.files[4].path]


def test_directories_names_and_unknown_paths_of_many_files_are_those_of_few(
    tmp_path: Path, many: Switch
) -> None:
    root = tmp_path / "lake"
    for number, day in enumerate(["1", "01", "2", "2", "x%3Dy"]):
        _write(root / f"day={day}" / f"f{number}.parquet", number * 10)
    newest = "f-7fffffffffffff00aaaaaaaaaaaaaaaa-00000.parquet"
    _write(root / "day=2" / newest, 100)
    files = ParquetTable(root).snapshot().files
    assert isinstance(files, FileTable)
    plain = FileTuple(files)
    assert PartitionDirectories.of(files) == PartitionDirectories.of(plain)
    assert make_transaction_id(files)[:16] == make_transaction_id(plain)[:16] == "7fffffffffffff01"
    wanted = ["a", plain[0].path, "b"]
    assert find_unknown(wanted, files) == find_unknown(wanted, plain) == ["a", "b"]
    assert find_unknown(pa.array(wanted), plain) == ["a", "b"]


def test_a_listing_of_many_files_is_that_of_few(lake: Path, many: Switch) -> None:
    _write(lake / "sub" / "x.parquet", 0)
    _write(lake / "sub" / "tmp_x.parquet", 0)  # as DuckDB replaces a file
    _write(lake / "sub" / "tmp_y.parquet", 0)
    _write(lake / "sub" / "\u00e4\U0001f600.parquet", 0)
    _write(lake / "sub" / "\uffee.parquet", 0)
    found = list_data_files(PosixStorage(), str(lake))
    many(False)
    plain = list_data_files(PosixStorage(), str(lake))
    assert isinstance(found.entries, EntryTable)
    assert tuple(found.entries) == plain.entries
    assert found.entries[1:3] == plain.entries[1:3]
    assert found.notes == plain.notes
    assert [entry.changed_ns for entry in found.entries] == [entry.changed_ns for entry in plain.entries]
    assert "sub/tmp_y.parquet" in [entry.path for entry in found.entries]
    assert "sub/tmp_x.parquet" not in [entry.path for entry in found.entries]


@pytest.mark.parametrize("are_many", [True, False])
def test_an_empty_or_undecodable_file_among_many_is_refused(lake: Path, many: Switch, are_many: bool) -> None:
    many(are_many)
    (lake / "e.parquet").touch()
    with pytest.raises(DamagedTable, match=r"e\.parquet is empty"):
        list_data_files(PosixStorage(), str(lake))
    with open(os.fsencode(lake) + b"/\xff.parquet", "wb") as file:
        file.write(b"x")
    with pytest.raises(UnsafePath, match="no UTF-8"):
        list_data_files(PosixStorage(), str(lake))


def test_a_path_that_a_store_lists_twice_counts_once() -> None:
    entries = [FileEntry("b", "file", 1), FileEntry("a", "file", 2), FileEntry("b", "file", 3)]
    found = sort_entries(EntryTable.of(entries).table)
    assert [(entry.path, entry.size) for entry in found] == [("a", 2), ("b", 3)]


@pytest.mark.parametrize("identity", [None, "tag", 7, 2**63 + 5])
def test_an_entry_comes_back_as_it_was(identity: int | str | None) -> None:
    entry = FileEntry("a", "file", 1, 2, identity, 3)
    (found,) = EntryTable.of([entry])
    assert (found, found.changed_ns) == (entry, 3)
