"""Files on local disks: where they are, and how they get there."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pafs
import pytest

from intarsia.common.paths import get_local_path, start_writeback

pytestmark = pytest.mark.on_disk  # inodes are used again there, and times are those of a disk

LOCAL = pafs.LocalFileSystem()


def test_only_a_local_file_has_a_path(tmp_path: Path) -> None:
    assert get_local_path(LOCAL, "/a/b") == "/a/b"
    assert get_local_path(pafs.SubTreeFileSystem("/a/", LOCAL), "b") == "/a/b"
    memory = pafs.PyFileSystem(pafs.FSSpecHandler(pytest.importorskip("fsspec").filesystem("memory")))
    assert get_local_path(memory, "/a/b") is None


def test_to_hasten_a_file_changes_nothing_and_never_fails(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x" * 100_000)
    start_writeback(LOCAL, str(file))
    assert file.read_bytes() == b"x" * 100_000
    start_writeback(LOCAL, str(tmp_path / "not there"))
