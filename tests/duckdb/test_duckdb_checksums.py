"""Page checksums are verified before DuckDB writes rows anew, page by page, without decoding."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from tests.bad_input.trial import flip_a_bit

import intarsia as it
from intarsia.engines.duckdb import checksums
from intarsia.engines.duckdb.checksums import verify
from intarsia.errors import DamagedTable, StorageError

N = 20_000
TABLE = pa.table(
    {
        "id": range(N),
        "s": [f"text {n}" for n in range(N)],
        "l": [[n, n + 1] for n in range(N)],
        "r": [{"a": n, "b": str(n)} for n in range(N)],
    }
)
LOCAL = pafs.LocalFileSystem()


def _file(tmp_path, **writer):
    root = tmp_path / "t"
    root.mkdir()
    options = {"write_page_checksum": True, "use_dictionary": ["s"], "row_group_size": 7_000} | writer
    pq.write_table(TABLE, root / "f.parquet", **options)
    return root


@pytest.mark.parametrize(
    "writer",
    [
        {},
        {"data_page_version": "2.0"},
        {"compression": "zstd", "data_page_size": 1 << 10},
        {"compression": "none", "use_dictionary": False},
        {"write_page_index": True, "bloom_filter_options": {"id": {"ndv": N, "fpp": 0.01}}},
        {"write_page_checksum": False},
    ],
    ids=["plain", "v2", "small pages", "large pages", "index", "none"],
)
@pytest.mark.parametrize("window", [1 << 12, 8 << 20])
def test_a_sound_file_passes(tmp_path, monkeypatch, writer, window):
    monkeypatch.setattr(checksums, "_WINDOW", window)
    monkeypatch.setattr(checksums, "_decode", lambda *_: pytest.fail("taken for damaged"))
    (file,) = it.snapshot(_file(tmp_path, **writer)).files
    verify(file, LOCAL)


@pytest.mark.parametrize("column", range(5))
@pytest.mark.parametrize("window", [1 << 12, 8 << 20])
def test_a_flipped_bit_is_found_in_any_column(tmp_path, monkeypatch, column, window):
    monkeypatch.setattr(checksums, "_WINDOW", window)
    root = _file(tmp_path)
    (file,) = it.snapshot(root).files
    flip_a_bit(root / "f.parquet", column=column)
    with pytest.raises(DamagedTable, match=r"Cannot read .*f\.parquet: .*CRC checksum verification failed"):
        verify(file, LOCAL)


def test_only_the_columns_and_row_groups_asked_for_are_looked_at(tmp_path):
    root = _file(tmp_path)
    (file,) = it.snapshot(root).files
    flip_a_bit(root / "f.parquet", column=1)
    verify(file, LOCAL, columns=["id", "l", "r"])
    verify(file, LOCAL, row_groups=[1, 2])
    for columns in (["s"], None):
        with pytest.raises(DamagedTable):
            verify(file, LOCAL, columns=columns, row_groups=[0])


def test_a_file_that_is_gone_is_an_error_of_storage(tmp_path):
    root = _file(tmp_path)
    (file,) = it.snapshot(root).files
    (root / "f.parquet").unlink()
    with pytest.raises(StorageError):
        verify(file, LOCAL)


def test_a_file_that_was_cut_off_is_damaged(tmp_path):
    root = _file(tmp_path)
    (file,) = it.snapshot(root).files
    data = (root / "f.parquet").read_bytes()
    (root / "f.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(DamagedTable):
        verify(file, LOCAL)


def test_nothing_is_decoded_of_what_is_sound_and_nothing_read_without_checksums(tmp_path, monkeypatch):
    root = _file(tmp_path, write_page_checksum=False)
    flip_a_bit(root / "f.parquet", column=0)
    monkeypatch.setattr(checksums, "_decode", lambda *_: pytest.fail("decoded"))
    (file,) = it.snapshot(root).files
    verify(file, LOCAL)  # silent, as documented: nothing tells
