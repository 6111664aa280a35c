"""A place for the files of a dry run: written elsewhere, while files of the table can only be read."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from intarsia.storage.scratch_place import ScratchPlace, make_scratch_place

LOCAL = pafs.LocalFileSystem()


@pytest.fixture
def place(tmp_path: Path) -> ScratchPlace:
    """A table on one file system (a subtree, as a store), and a scratch directory on another."""
    (tmp_path / "store" / "lake").mkdir(parents=True)
    (tmp_path / "store" / "lake" / "a.txt").write_text("old")
    (tmp_path / "scratch" / "0123").mkdir(parents=True)
    store = pafs.SubTreeFileSystem(str(tmp_path / "store"), LOCAL)
    return make_scratch_place(store, "lake/.spools", LOCAL, str(tmp_path / "scratch" / "0123"))


def _write(place: ScratchPlace, path: str, text: bytes) -> None:
    with place.filesystem.open_output_stream(path) as stream:
        stream.write(text)


def _read(place: ScratchPlace, path: str) -> bytes:
    with place.filesystem.open_input_file(path) as file:
        return bytes(file.read())


def test_what_is_written_goes_to_the_scratch_directory(place: ScratchPlace, tmp_path: Path) -> None:
    _write(place, f"{place.directory}/data/new.txt", b"new")
    assert (tmp_path / "scratch" / "0123" / "data" / "new.txt").read_bytes() == b"new"
    assert [path.name for path in (tmp_path / "store").rglob("*") if path.is_file()] == ["a.txt"]
    assert _read(place, f"{place.directory}/data/new.txt") == b"new"
    assert _read(place, "lake/a.txt") == b"old"
    assert place.holds(f"{place.directory}/data/new.txt")
    assert not place.holds("lake/a.txt")


def test_files_of_the_table_cannot_be_changed(place: ScratchPlace, tmp_path: Path) -> None:
    filesystem = place.filesystem
    for change in (
        lambda: _write(place, "lake/a.txt", b"new"),
        lambda: filesystem.delete_file("lake/a.txt"),
        lambda: filesystem.delete_dir("lake"),
        lambda: filesystem.create_dir("lake/b"),
        lambda: filesystem.move("lake/a.txt", f"{place.directory}/a.txt"),
        lambda: filesystem.copy_file("lake/a.txt", "lake/b.txt"),
        lambda: filesystem.delete_dir_contents("", accept_root_dir=True),
    ):
        with pytest.raises(PermissionError, match="changes no file of the table"):
            change()
    assert (tmp_path / "store" / "lake" / "a.txt").read_text() == "old"


def test_the_place_is_listed_moved_and_removed_under_its_own_names(place: ScratchPlace) -> None:
    filesystem, inner = place.filesystem, f"{place.directory}/data"
    _write(place, f"{inner}/a.part", b"abc")
    filesystem.move(f"{inner}/a.part", f"{inner}/b/c.txt")
    filesystem.copy_file("lake/a.txt", f"{inner}/d.txt")
    found = filesystem.get_file_info(pafs.FileSelector(inner, recursive=True))
    sizes = {info.path: info.size for info in found if info.is_file}
    assert sizes == {f"{inner}/b/c.txt": 3, f"{inner}/d.txt": 3}
    assert filesystem.get_file_info("lake/a.txt").size == 3
    assert [info.path for info in filesystem.get_file_info(pafs.FileSelector("lake"))] == ["lake/a.txt"]
    filesystem.delete_file(f"{inner}/d.txt")
    filesystem.delete_dir(inner)
    assert filesystem.get_file_info(inner).type == pafs.FileType.NotFound


def test_the_place_travels(place: ScratchPlace) -> None:
    _write(place, f"{place.directory}/new.txt", b"new")
    there = pickle.loads(pickle.dumps(place))
    assert _read(there, f"{place.directory}/new.txt") == b"new"
    assert there.filesystem == place.filesystem


def test_on_the_disks_of_one_machine_there_is_no_detour(tmp_path: Path) -> None:
    place = make_scratch_place(LOCAL, str(tmp_path / "lake"), LOCAL, str(tmp_path / "0123"))
    assert (place.filesystem, place.directory) == (LOCAL, str(tmp_path / "0123"))
