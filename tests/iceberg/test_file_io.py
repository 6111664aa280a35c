"""URIs and the file systems behind them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from intarsia.errors import NotSupported, StorageError
from intarsia.tables.iceberg.file_io import Store, open_store


def test_all_spellings_of_a_local_path_are_one_place() -> None:
    store = open_store(PyArrowFileIO({}), "file:///a/t")
    for uri in ("file:///a/b c%20#?d", "file:/a/b c%20#?d", "/a/b c%20#?d", "file://localhost/a/b c%20#?d"):
        assert store.filesystem_path(uri) == "/a/b c%20#?d"
    assert store.is_local


def test_a_bare_path_is_made_absolute() -> None:
    store = open_store(PyArrowFileIO({}), "warehouse/t")
    assert store.filesystem_path("warehouse/t") == str(Path("warehouse/t").absolute())


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_a_bucket_is_the_first_part_of_a_path(scheme: str) -> None:
    store = Store(pafs.LocalFileSystem(), "s3")
    assert store.filesystem_path(f"{scheme}://bucket/a/b") == "bucket/a/b"


def test_a_container_stands_before_its_account() -> None:
    store = Store(pafs.LocalFileSystem(), "abfs", "acc.dfs.core.windows.net")
    assert store.filesystem_path("abfss://box@acc.dfs.core.windows.net/a/b") == "box/a/b"
    with pytest.raises(NotSupported, match="another store"):
        store.filesystem_path("abfss://box@other.dfs.core.windows.net/a/b")


def test_a_file_on_another_store_is_refused_by_name() -> None:
    store = open_store(PyArrowFileIO({}), "file:///a")
    with pytest.raises(NotSupported, match=r"s3://bucket/x\.parquet"):
        store.filesystem_path("s3://bucket/x.parquet")


def test_an_s3_store_takes_the_file_ios_own_settings() -> None:
    io = PyArrowFileIO(
        {
            "s3.endpoint": "http://127.0.0.1:1",
            "s3.region": "nowhere",
            "s3.access-key-id": "k",
            "s3.secret-access-key": "s",
        }
    )
    store = open_store(io, "s3a://bucket/t")
    assert isinstance(store.filesystem, pafs.S3FileSystem)
    assert store.filesystem_path("s3://bucket/t/data/x") == "bucket/t/data/x"
    assert not store.is_local
    store.make_parent("bucket/t/data/x")  # nothing to make


def test_an_fsspec_file_io_is_wrapped(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")

    class Memory(FileIO):
        def get_fs(self, scheme: str, hostname: str | None = None) -> object:
            return fsspec.filesystem(scheme)

        def new_input(self, location: str) -> InputFile:
            raise NotImplementedError

        def new_output(self, location: str) -> OutputFile:
            raise NotImplementedError

        def delete(self, location: str | InputFile | OutputFile) -> None:
            raise NotImplementedError

    store = open_store(Memory(), "memory://box/t")
    with store.filesystem.open_output_stream(store.filesystem_path("memory://box/t/x")) as sink:
        sink.write(b"1")
    assert fsspec.filesystem("memory").cat("/box/t/x") == b"1"


def test_a_file_io_without_a_file_system_is_refused() -> None:
    class Bare:
        pass

    with pytest.raises(NotSupported, match="Bare"):
        open_store(Bare(), "s3://bucket/t")  # type: ignore[arg-type]


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(NotSupported, match="odd://x"):
        open_store(PyArrowFileIO({}), "odd://x/y")


def test_a_local_directory_is_made_ready(tmp_path: Path) -> None:
    store = open_store(PyArrowFileIO({}), str(tmp_path))
    for _ in range(2):
        store.make_parent(str(tmp_path / "a" / "b" / "f.parquet"))
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        store.make_parent(str(tmp_path / "file" / "x" / "f.parquet"))


def test_a_store_pickles() -> None:
    store = open_store(PyArrowFileIO({}), "file:///a")
    back = pickle.loads(pickle.dumps(store))
    assert back.filesystem_path("file:/a/b") == "/a/b"
    assert back.is_local
