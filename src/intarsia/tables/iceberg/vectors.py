"""Deletion vectors: positions as a roaring bitmap in the frame of ``deletion-vector-v1``."""

from __future__ import annotations

import array
import zlib
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from pyroaring import BitMap64

from intarsia.errors import DamagedTable, InputError
from intarsia.tables.iceberg.entries import Entry
from intarsia.tables.iceberg.puffin import Blob, read_range

DV_TYPE = "deletion-vector-v1"
ROW_POSITION_ID = 2147483645
"""Field id of ``_pos``, which the blob of a vector is about."""
MAX_POSITION = ((2**31 - 2) << 32) | (1 << 31)
"""The last position that Java's bitmap takes."""
_MAGIC = b"\xd1\xd3\x39\x64"
_FRAME = 12
"""Length before the vector, its magic, the checksum after it: four bytes each."""


def bitmap_of(positions: pa.Int64Array | pa.ChunkedArray) -> BitMap64:
    """A bitmap of positions in any order, also of repeated ones.

    Raises:
        InputError: a position is NULL, negative, or beyond what a vector can hold.
    """
    if isinstance(positions, pa.ChunkedArray):
        return BitMap64.union(BitMap64(), *map(bitmap_of, positions.chunks))
    if not len(positions):
        return BitMap64()
    if positions.null_count:
        raise InputError(f"{positions.null_count} of {len(positions)} positions are NULL.")
    values = array.array("Q")  # the one form that is taken without a Python object for each value
    start = positions.offset * 8
    values.frombytes(memoryview(positions.buffers()[1])[start : start + len(positions) * 8])
    bitmap = BitMap64(values)
    if bitmap.max() > MAX_POSITION:  # so are negative ones, read without their sign
        bounds = pc.min_max(positions).as_py()
        raise InputError(
            f"Positions from {bounds['min']} to {bounds['max']}: those of a data file are from 0 to"
            f" {MAX_POSITION}."
        )
    return bitmap


def positions_of(bitmap: BitMap64) -> pa.Int64Array:
    """The positions of a bitmap, ascending; no copy beside the one the bitmap gives."""
    values = bitmap.to_array()
    # Read as signed: no position reaches the sign's bit.
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def union(parts: Sequence[pa.Int64Array]) -> pa.Int64Array:
    """The positions of several arrays, ascending and once each."""
    bitmap = BitMap64()
    for part in parts:
        bitmap |= bitmap_of(part)
    return positions_of(bitmap)


def encode_vector(bitmap: BitMap64) -> bytes:
    """The bytes of a blob: length, magic, the portable 64-bit roaring format, CRC-32."""
    bitmap.run_optimize()
    body = _MAGIC + bitmap.serialize()
    return len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


def decode_vector(data: bytes, *, where: str) -> BitMap64:
    """The bitmap in a blob.

    Raises:
        DamagedTable: frame, checksum or bitmap are not what the format says; names ``where``.
    """
    if len(data) < _FRAME or int.from_bytes(data[:4], "big") != len(data) - 8:
        raise _damaged(where, f"its length does not fit the {len(data)} bytes it has")
    body = data[4:-4]
    if body[:4] != _MAGIC:
        raise _damaged(where, "its magic bytes are missing")
    if zlib.crc32(body) != int.from_bytes(data[-4:], "big"):
        raise _damaged(where, "its checksum is another")
    try:
        bitmap = BitMap64.deserialize(body[4:])
    except (ValueError, IndexError) as error:
        raise _damaged(where, "its bitmap cannot be read") from error
    if bitmap and bitmap.max() > MAX_POSITION:
        raise _damaged(where, f"it holds the position {bitmap.max()}")
    return bitmap


def vector_blob(path: str, bitmap: BitMap64) -> Blob:
    """The blob of one data file's vector.

    Raises:
        InputError: there is no position.
    """
    if not bitmap:
        raise InputError(f"A deletion vector of {path} without any position.", path=path)
    properties = {"referenced-data-file": path, "cardinality": str(len(bitmap))}
    return Blob(DV_TYPE, (ROW_POSITION_ID,), encode_vector(bitmap), properties=properties)


def read_vector(vector: Entry, *, filesystem: pafs.FileSystem, locate: Callable[[str], str]) -> BitMap64:
    """The vector of a manifest entry, read by its offset alone.

    Args:
        vector: its entry.
        filesystem: where its bytes are.
        locate: the place there of a path that was recorded.

    Raises:
        DamagedTable: the entry says too little, or the blob is not what it says.
        StorageError: the file system refused.
    """
    file = vector.file
    if file.content_offset is None or file.content_size_in_bytes is None:
        raise _damaged(file.file_path, "its manifest entry has no offset and size")
    location = locate(file.file_path)
    data = read_range(location, file.content_offset, file.content_size_in_bytes, filesystem=filesystem)
    where = f"{file.file_path} (at {file.content_offset})"
    bitmap = decode_vector(data, where=where)
    if len(bitmap) != file.record_count:
        raise _damaged(
            where, f"it holds {len(bitmap)} positions, its manifest entry says {file.record_count}"
        )
    return bitmap


def _damaged(where: str, why: str) -> DamagedTable:
    return DamagedTable(
        f"The deletion vector in {where} is damaged: {why}.",
        path=where,
        hint="roll the table back to an earlier snapshot",
    )
