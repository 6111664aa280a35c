"""Puffin files as the format has them, also read by PyIceberg."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pyarrow as pa
import pytest
from delete_samples import LOCAL
from pyiceberg.table.puffin import PuffinFile

from intarsia.errors import DamagedTable, NotSupported, StorageError
from intarsia.tables.iceberg.deletion_vectors import Blob, read_puffin_footer, read_range, write_puffin

BLOBS = [
    Blob("apache-datasketches-theta-v1", (1, 2), b"sketch", 7, 3, {"ndv": "5"}),
    Blob("a-type-of-tomorrow", (), b""),
    Blob("deletion-vector-v1", (2147483645,), b"\x00" * 40, properties={"referenced-data-file": "file:/ä b"}),
]


def test_what_is_written_is_what_the_footer_names(tmp_path: Path) -> None:
    location = str(tmp_path / "a.puffin")
    size, places = write_puffin(BLOBS, location, filesystem=LOCAL, created_by="test")
    assert size == (tmp_path / "a.puffin").stat().st_size
    assert read_puffin_footer(location, filesystem=LOCAL) == places
    assert [place.type for place in places] == [blob.type for blob in BLOBS]
    for place, blob in zip(places, BLOBS, strict=True):
        assert read_range(location, place.offset, place.length, filesystem=LOCAL) == blob.data


def test_pyiceberg_reads_the_same_blobs(tmp_path: Path) -> None:
    write_puffin(BLOBS, str(tmp_path / "a.puffin"), filesystem=LOCAL, created_by="test")
    theirs = PuffinFile((tmp_path / "a.puffin").read_bytes())
    assert theirs.footer.properties == {"created-by": "test"}
    assert [theirs.get_blob_payload(blob) for blob in theirs.footer.blobs] == [blob.data for blob in BLOBS]
    assert theirs.footer.blobs[0].snapshot_id == 7
    assert theirs.footer.blobs[2].properties == {"referenced-data-file": "file:/ä b"}


def test_a_compressed_footer_is_read(tmp_path: Path) -> None:
    places = [{"type": "x", "fields": [], "snapshot-id": 1, "sequence-number": 1, "offset": 4, "length": 0}]
    plain = json.dumps({"blobs": places}).encode()
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(plain)
    payload = sink.getvalue().to_pybytes()
    flags = b"\x01\x00\x00\x00"
    data = b"PFA1PFA1" + payload + len(payload).to_bytes(4, "little") + flags + b"PFA1"
    (tmp_path / "a.puffin").write_bytes(data)
    (place,) = read_puffin_footer(str(tmp_path / "a.puffin"), filesystem=LOCAL)
    assert place.type == "x"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: b"PAR1" + data[4:],
        lambda data: data[:-12] + b"\xff\xff\xff\x7f" + data[-8:],
        lambda data: data[:-12] + b"\xff\xff\xff\xff" + data[-8:],
        lambda data: data.replace(b'"blobs"', b'"globs"'),
        lambda data: data.replace(b'{"blobs"', b'["blobs"'),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "a.puffin"
    write_puffin(BLOBS, str(path), filesystem=LOCAL, created_by="test")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedTable, match=r"a\.puffin"):
        read_puffin_footer(str(path), filesystem=LOCAL)


def test_unknown_flags_are_not_guessed_at(tmp_path: Path) -> None:
    path = tmp_path / "a.puffin"
    write_puffin(BLOBS, str(path), filesystem=LOCAL, created_by="test")
    data = path.read_bytes()
    path.write_bytes(data[:-8] + b"\x02\x00\x00\x00" + data[-4:])
    with pytest.raises(NotSupported, match="0x2"):
        read_puffin_footer(str(path), filesystem=LOCAL)


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
