"""Before a commit of few files among many only these are looked at again; what matters is still noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.errors import CommitConflict
from intarsia.tables.parquet import table
from intarsia.tables.parquet.journal import Journal
from intarsia.tables.parquet.listing import stat_side_files

FILES = 40


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    root.mkdir()
    for number in range(FILES):
        _write(root / f"f{number:02d}.parquet", number)
    return root


def _write(path: Path, key: int, value: str = "old") -> None:
    pq.write_table(pa.table({"id": [key], "v": [value]}), path)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Let another writer do something once, after everything is staged and before it is checked."""

    def arrange(act: Callable[[], Any]) -> None:
        real = Journal._prepare

        def prepare(self: Journal, record: Any) -> None:
            real(self, record)
            monkeypatch.setattr(Journal, "_prepare", real)
            act()

        monkeypatch.setattr(Journal, "_prepare", prepare)

    return arrange


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each listing of the check was of names only."""
    found: list[bool] = []
    real = table.list_data_files

    def note(*given: Any, names_only: bool = False) -> Any:
        found.append(names_only)
        return real(*given, names_only=names_only)

    monkeypatch.setattr(table, "list_data_files", note)
    return found


def test_no_file_is_looked_at_but_those_that_change(lake: Path, listings: list[bool]) -> None:
    it.merge(pa.table({"id": [7], "v": ["new"]}), lake, on="id", strategy="update")
    it.merge(pa.table({"id": [8, 99], "v": ["new"] * 2}), lake, on="id")
    assert False not in listings


def test_many_files_are_listed_at_once(lake: Path, listings: list[bool]) -> None:
    it.update(lake, {"v": "'new'"})
    assert False in listings


@pytest.mark.parametrize(
    "act",
    [
        lambda lake: _write(lake / "f07.parquet", 7, "theirs"),
        lambda lake: (lake / "f07.parquet").unlink(),
        lambda lake: _write(lake / "f50.parquet", 99, "theirs"),
        lambda lake: (lake / "_metadata").write_bytes(b"described"),
        lambda lake: (lake / ".f07.parquet.crc").write_bytes(b"described"),
    ],
    ids=["replaced", "removed", "appeared", "summary", "checksum"],
)
def test_what_another_writer_does_meanwhile_is_noticed(
    lake: Path, meanwhile: Any, listings: list[bool], act: Callable[[Path], Any]
) -> None:
    source = pa.table({"id": [7, 99], "v": ["new"] * 2})
    meanwhile(lambda: act(lake))
    result = it.merge(source, lake, on="id")
    assert result.attempts == 2
    assert False not in listings
    found = pa.concat_tables([pq.read_table(path) for path in lake.glob("*.parquet")]).to_pydict()
    values = dict(zip(found["id"], found["v"], strict=True))
    assert len(values) == len(found["id"]) == FILES + 1
    assert (values[7], values[99]) == ("new", "new")


def test_a_writer_that_never_rests_is_a_conflict(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Journal._prepare

    def prepare(self: Journal, record: Any) -> None:
        real(self, record)
        _write(lake / "f07.parquet", 7, "theirs")

    monkeypatch.setattr(Journal, "_prepare", prepare)
    with pytest.raises(CommitConflict, match=r"f07\.parquet was changed"):
        it.merge(pa.table({"id": [7], "v": ["new"]}), lake, on="id")
    assert pq.read_table(lake / "f07.parquet")["v"].to_pylist() == ["theirs"]


def test_side_files_are_found_as_a_listing_finds_them(lake: Path) -> None:
    (lake / "p=1").mkdir()
    for name in ("_metadata", "p=1/_common_metadata", "._metadata.crc", "p=1/.x.parquet.crc"):
        (lake / name).write_bytes(b"x")
    (lake / ".other.parquet.crc").write_bytes(b"x")
    storage = it.snapshot(lake).stat.storage
    found = stat_side_files(storage, str(lake), ["p=1/x.parquet"])
    assert sorted(found) == ["._metadata.crc", "_metadata", "p=1/.x.parquet.crc", "p=1/_common_metadata"]
    listed = table.list_data_files(storage, str(lake)).side_files
    assert all(listed[path] == entry for path, entry in found.items())
