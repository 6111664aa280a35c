"""Deletion vectors: the format's bytes, positions of any size, damage."""

from __future__ import annotations

import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from delete_samples import LOCAL, Places, entry, locate
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap, BitMap64

from intarsia.errors import DamagedTable, InputError
from intarsia.tables.iceberg.deletion_vectors import (
    MAX_POSITION,
    decode_vector,
    encode_vector,
    read_vector,
    to_bitmap,
    to_positions,
    write_vectors,
)
from intarsia.tables.iceberg.manifests import DataFileContent, ManifestEntry, ManifestEntryStatus

positions = st.lists(
    st.one_of(
        st.integers(0, 200),
        st.integers(0, 1 << 20),
        st.integers((1 << 32) - 3, (1 << 32) + 3),
        st.integers(0, 1 << 35),
    ),
    max_size=60,
)


def ints(values: list[int]) -> pa.Int64Array:
    return pa.array(values, pa.int64())


@given(positions)
def test_a_vector_holds_exactly_its_positions(values: list[int]) -> None:
    data = encode_vector(to_bitmap(ints(values)))
    assert to_positions(decode_vector(data, where="x")).to_pylist() == sorted(set(values))


@given(st.lists(st.integers(0, 99), max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_slices_and_chunks_are_read_where_they_are(values: list[int], start: int, length: int) -> None:
    part = ints(values).slice(min(start, len(values)), length)
    assert list(to_bitmap(part)) == sorted(set(part.to_pylist()))
    assert list(to_bitmap(pa.chunked_array([part, ints(values)]))) == sorted(set(values))


def test_the_bytes_are_those_of_the_format() -> None:
    """Length and checksum big-endian, count and keys little-endian, one 32-bit bitmap for each key."""
    data = encode_vector(to_bitmap(ints([1, 5, (7 << 32) + 2])))
    low, high = BitMap([1, 5]).serialize(), BitMap([2]).serialize()
    vector = (2).to_bytes(8, "little") + (0).to_bytes(4, "little") + low + (7).to_bytes(4, "little") + high
    body = bytes.fromhex("d1d33964") + vector
    assert data == len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


def test_empty_bitmaps_for_keys_in_between_are_read_as_java_writes_them() -> None:
    empty, one = BitMap().serialize(), BitMap([4]).serialize()
    vector = (2).to_bytes(8, "little") + (0).to_bytes(4, "little") + empty + (1).to_bytes(4, "little") + one
    body = bytes.fromhex("d1d33964") + vector
    data = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    assert to_positions(decode_vector(data, where="x")).to_pylist() == [(1 << 32) + 4]


def test_runs_make_a_vector_small() -> None:
    both = BitMap64(range(0, 1_000_000, 2)) | BitMap64(range(1, 1_000_000, 2))
    assert len(encode_vector(both)) < 500


@pytest.mark.parametrize("bad", [[-1], [MAX_POSITION + 1], [None], [3, None]])
def test_positions_that_cannot_be_are_refused(bad: list[int]) -> None:
    with pytest.raises(InputError, match="ositions"):
        to_bitmap(ints(bad))


def test_the_last_position_fits() -> None:
    data = encode_vector(to_bitmap(ints([MAX_POSITION])))
    assert to_positions(decode_vector(data, where="x")).to_pylist() == [MAX_POSITION]


@given(st.data())
def test_no_changed_byte_goes_unnoticed(data: st.DataObject) -> None:
    whole = encode_vector(to_bitmap(ints([1, 2, 3, 70_000])))
    at = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(1, 255))
    damaged = whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :]
    with pytest.raises(DamagedTable, match="here"):
        decode_vector(damaged, where="here")


@pytest.mark.parametrize("vector", [b"", b"\xff" * 40, (1).to_bytes(8, "little")])
def test_a_bitmap_that_cannot_be_read_is_damage_though_its_checksum_fits(vector: bytes) -> None:
    body = bytes.fromhex("d1d33964") + vector
    data = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    with pytest.raises(DamagedTable, match="here"):
        decode_vector(data, where="here")


def test_one_puffin_file_for_each_spec_and_one_vector_for_each_file(tmp_path: Path) -> None:
    places = Places(tmp_path)
    targets = [
        (entry("file:/t/b", partition=(2,)), ints([5, 1, 5])),
        (entry("file:/t/a", partition=(1,)), ints([1 << 33])),
        (entry("file:/t/c", spec=1, partition=("x", 1)), ints([0])),
        (entry("file:/t/b", partition=(2,)), ints([7])),
        (entry("file:/t/none"), ints([])),
    ]
    files = write_vectors(targets, place=places, filesystem=LOCAL)
    assert places.asked == [(0, None, "puffin"), (1, None, "puffin")]
    assert [(f.referenced_data_file, f.spec_id, f.partition, f.record_count) for f in files] == [
        ("file:/t/a", 0, (1,), 1),
        ("file:/t/b", 0, (2,), 3),
        ("file:/t/c", 1, ("x", 1), 1),
    ]
    assert all(f.is_vector and f.lower_bounds is None and f.value_counts is None for f in files)
    assert files[0].file_path == files[1].file_path != files[2].file_path
    found = [
        read_vector(
            ManifestEntry(ManifestEntryStatus.ADDED, 1, file, 2, 2), filesystem=LOCAL, filesystem_path=locate
        )
        for file in files
    ]
    assert [list(one) for one in found] == [[1 << 33], [1, 5, 7], [0]]
    theirs = PuffinFile(Path(locate(files[0].file_path)).read_bytes())
    assert files[0].file_size_in_bytes == len(Path(locate(files[0].file_path)).read_bytes())
    vectors = {dv.referenced_data_file: dv for dv in deletion_vectors_from_puffin_file(theirs)}
    assert vectors["file:/t/b"].to_vector().to_pylist() == [1, 5, 7]
    assert [(b.offset, b.length) for b in theirs.footer.blobs] == [
        (f.content_offset, f.content_size_in_bytes) for f in files[:2]
    ]
    blob = theirs.footer.blobs[1]
    assert (blob.type, blob.fields, blob.snapshot_id, blob.sequence_number) == (
        "deletion-vector-v1",
        [2147483645],
        -1,
        -1,
    )
    assert blob.properties == {"referenced-data-file": "file:/t/b", "cardinality": "3"}


@given(st.lists(positions.filter(bool), min_size=1, max_size=4))
def test_pyiceberg_finds_the_same_positions(
    tmp_path_factory: pytest.TempPathFactory, many: list[list[int]]
) -> None:
    root = tmp_path_factory.mktemp("vectors")
    targets = [(entry(f"file:/t/{n}"), ints(values)) for n, values in enumerate(many)]
    files = write_vectors(targets, place=Places(root), filesystem=LOCAL)
    theirs = deletion_vectors_from_puffin_file(PuffinFile(Path(locate(files[0].file_path)).read_bytes()))

    def read(bitmaps: list[BitMap]) -> list[int]:  # their to_vector fails on a first bitmap that is empty
        return [(key << 32) + low for key, bitmap in enumerate(bitmaps) for low in bitmap]

    assert {dv.referenced_data_file: read(dv._bitmaps) for dv in theirs} == {
        f"file:/t/{n}": sorted(set(values)) for n, values in enumerate(many)
    }


def test_an_entry_that_does_not_fit_its_vector_is_damage(tmp_path: Path) -> None:
    (file,) = write_vectors([(entry("a"), ints([1, 2]))], place=Places(tmp_path), filesystem=LOCAL)

    def read(**other: int | None) -> None:
        fields = {
            "content_offset": file.content_offset,
            "content_size_in_bytes": file.content_size_in_bytes,
            "rows": file.record_count,
            **other,
        }
        vector = entry(
            file.file_path,
            content=DataFileContent.POSITION_DELETES,
            file_format="PUFFIN",
            **fields,  # type: ignore[arg-type]
        )
        read_vector(vector, filesystem=LOCAL, filesystem_path=locate)

    read()
    with pytest.raises(DamagedTable, match="2 positions, its manifest entry says 3"):
        read(rows=3)
    with pytest.raises(DamagedTable, match="no offset"):
        read(content_offset=None)
    with pytest.raises(DamagedTable, match="length"):
        read(content_offset=5)
    with pytest.raises(DamagedTable, match="ends inside"):
        read(content_size_in_bytes=10_000)


def test_a_data_file_in_two_partitions_is_refused(tmp_path: Path) -> None:
    targets = [(entry("a", partition=(1,)), ints([1])), (entry("a", partition=(2,)), ints([2]))]
    with pytest.raises(InputError, match="two partitions"):
        write_vectors(targets, place=Places(tmp_path), filesystem=LOCAL)
    assert not list(tmp_path.iterdir())
