"""Puffin files as the format has them, also read by PyIceberg."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from delete_samples import LOCAL
from pyiceberg.table.puffin import PuffinFile

from intarsia.errors import DamagedTable, StorageError
from intarsia.tables.iceberg.deletion_vectors import Blob, read_range, write_puffin

BLOBS = [
    Blob("apache-datasketches-theta-v1", (1, 2), b"sketch", 7, 3, {"ndv": "5"}),
    Blob("a-type-of-tomorrow", (), b""),
    Blob("deletion-vector-v1", (2147483645,), b"\x00" * 40, properties={"referenced-data-file": "file:/ä b"}),
]


def test_blobs_are_read_where_they_were_written(tmp_path: Path) -> None:
    location = str(tmp_path / "a.puffin")
    size, places = write_puffin(BLOBS, location, filesystem=LOCAL, created_by="test")
    assert size == (tmp_path / "a.puffin").stat().st_size
    assert [place.type for place in places] == [blob.type for blob in BLOBS]
    for place, blob in zip(places, BLOBS, strict=True):
        assert read_range(location, place.offset, place.length, filesystem=LOCAL) == blob.data


def test_pyiceberg_reads_the_same_blobs(tmp_path: Path) -> None:
    _, places = write_puffin(BLOBS, str(tmp_path / "a.puffin"), filesystem=LOCAL, created_by="test")
    theirs = PuffinFile((tmp_path / "a.puffin").read_bytes())
    assert theirs.footer.properties == {"created-by": "test"}
    assert [theirs.get_blob_payload(blob) for blob in theirs.footer.blobs] == [blob.data for blob in BLOBS]
    assert [(blob.offset, blob.length) for blob in theirs.footer.blobs] == [
        (place.offset, place.length) for place in places
    ]
    assert theirs.footer.blobs[0].snapshot_id == 7
    assert theirs.footer.blobs[2].properties == {"referenced-data-file": "file:/ä b"}


def test_a_blob_beyond_the_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.puffin"
    size, _ = write_puffin(BLOBS, str(path), filesystem=LOCAL, created_by="test")
    with pytest.raises(DamagedTable, match="20 bytes at"):
        read_range(str(path), size - 10, 20, filesystem=LOCAL)


def test_a_missing_file_keeps_its_errno(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        read_range(str(tmp_path / "none.puffin"), 0, 4, filesystem=LOCAL)
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(StorageError):
        write_puffin(BLOBS, str(tmp_path / "no" / "where"), filesystem=LOCAL, created_by="test")
