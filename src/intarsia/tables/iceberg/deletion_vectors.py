"""Deletion vectors: positions as roaring bitmaps, in ``deletion-vector-v1`` blobs of Puffin files.

The formats are those of the Iceberg spec ("Deletion Vectors") and of the Puffin spec; Java's are
``BaseDVFileWriter``, ``BitmapPositionDeleteIndex`` and ``org.apache.iceberg.puffin``.
"""

from __future__ import annotations

import array
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from pyroaring import BitMap64

from intarsia.errors import DamagedTable, InputError, StorageError
from intarsia.tables.iceberg.manifests import ContentFile, DataFileContent, ManifestEntry, make_partition_key

DV_TYPE = "deletion-vector-v1"
ROW_POSITION_ID = 2147483645
"""Field id of ``_pos``, which the blob of a vector is about."""
MAX_POSITION = ((2**31 - 2) << 32) | (1 << 31)
"""The last position of Java's ``RoaringPositionBitmap``."""
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
_VECTOR_FRAME_BYTES = 12
"""Length before the vector, its magic, the checksum after it: four bytes each."""


class DeleteFileNamer(Protocol):
    """Gives a new file a name of its own: the path to record, and the location on the file system."""

    def __call__(self, spec_id: int, partition: tuple[Any, ...] | None, suffix: str, /) -> tuple[str, str]:
        """``suffix`` is ``parquet`` or ``puffin``; a Puffin file has no one partition: None."""


def write_vectors(
    positions: Iterable[tuple[ManifestEntry, pa.Int64Array]],
    *,
    place: DeleteFileNamer,
    filesystem: pafs.FileSystem,
    created_by: str = "intarsia",
) -> list[ContentFile]:
    """Write one deletion vector for each data file, all of a spec in one Puffin file.

    One per spec, since readers are known that take a Puffin file for one of the first spec they meet it
    under. The positions are all of the data file's: those of older deletes have to be merged before.

    Raises:
        InputError: a position that cannot be, or a data file comes with two partitions.
        StorageError: the file system refused.
    """
    by_spec: dict[int, list[RowsToDelete]] = defaultdict(list)
    for group in group_by_partition(positions):
        by_spec[group[0].file.spec_id].extend(group)
    written: list[ContentFile] = []
    for spec_id, targets in sorted(by_spec.items()):
        written.extend(_write_spec_vectors(spec_id, targets, place, filesystem, created_by))
    return written


@dataclass(frozen=True, slots=True)
class RowsToDelete:
    """A data file, and the rows of it to delete."""

    file: ContentFile
    bitmap: BitMap64

    @property
    def path(self) -> str:
        return self.file.file_path


def group_by_partition(positions: Iterable[tuple[ManifestEntry, pa.Int64Array]]) -> list[list[RowsToDelete]]:
    """The data files that have rows to delete, by spec and tuple, in the order of their paths."""
    targets: dict[str, RowsToDelete] = {}
    for entry, found in positions:
        path = entry.file.file_path
        bitmap = to_bitmap(found)
        before = targets.get(path)
        if before is not None:
            if make_partition_key(before.file) != make_partition_key(entry.file):
                raise InputError(f"{path} comes with two partitions.", path=path)
            bitmap |= before.bitmap
        if bitmap:
            targets[path] = RowsToDelete(entry.file, bitmap)
    groups: dict[tuple[Any, ...], list[RowsToDelete]] = defaultdict(list)
    for path in sorted(targets):
        groups[make_partition_key(targets[path].file)].append(targets[path])
    return list(groups.values())


def _write_spec_vectors(
    spec_id: int,
    targets: Sequence[RowsToDelete],
    place: DeleteFileNamer,
    filesystem: pafs.FileSystem,
    created_by: str,
) -> Iterator[ContentFile]:
    path, location = place(spec_id, None, "puffin")
    blobs = (make_vector_blob(target.path, target.bitmap) for target in targets)
    size, places = write_puffin(blobs, location, filesystem=filesystem, created_by=created_by)
    for target, found in zip(targets, places, strict=True):
        yield ContentFile(
            content=DataFileContent.POSITION_DELETES,
            file_path=path,
            file_format="PUFFIN",
            spec_id=spec_id,
            partition=target.file.partition,
            record_count=len(target.bitmap),
            file_size_in_bytes=size,
            referenced_data_file=target.path,
            content_offset=found.offset,
            content_size_in_bytes=found.length,
        )


def to_bitmap(positions: pa.Int64Array | pa.ChunkedArray) -> BitMap64:
    """A bitmap of positions in any order, also of repeated ones.

    Raises:
        InputError: a position is NULL, negative, or beyond what a vector can hold.
    """
    if isinstance(positions, pa.ChunkedArray):
        return BitMap64.union(BitMap64(), *map(to_bitmap, positions.chunks))
    if not len(positions):
        return BitMap64()
    if positions.null_count:
        raise InputError(f"{positions.null_count} of {len(positions)} positions are NULL.")
    values = array.array("Q")  # BitMap64 reads it without a Python object for each value
    start = positions.offset * 8
    values.frombytes(memoryview(positions.buffers()[1])[start : start + len(positions) * 8])
    bitmap = BitMap64(values)
    if bitmap.max() > MAX_POSITION:  # also of negative ones, read as unsigned
        bounds = pc.min_max(positions).as_py()
        raise InputError(
            f"Positions from {bounds['min']} to {bounds['max']}: those of a data file are from 0 to"
            f" {MAX_POSITION}."
        )
    return bitmap


def to_positions(bitmap: BitMap64) -> pa.Int64Array:
    """The positions of a bitmap, ascending; no copy beside the one the bitmap gives."""
    values = bitmap.to_array()
    # Unsigned integers read as signed: no position has the sign bit.
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def encode_vector(bitmap: BitMap64) -> bytes:
    """The bytes of a blob: length, magic, the portable 64-bit roaring format, CRC-32."""
    bitmap.run_optimize()
    body = _VECTOR_MAGIC + bitmap.serialize()
    return len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


def decode_vector(data: bytes, *, where: str) -> BitMap64:
    """The bitmap in a blob.

    Raises:
        DamagedTable: frame, checksum or bitmap are not what the format says; names ``where``.
    """
    if len(data) < _VECTOR_FRAME_BYTES or int.from_bytes(data[:4], "big") != len(data) - 8:
        raise _make_damaged_vector_error(where, f"its length does not fit the {len(data)} bytes it has")
    body = data[4:-4]
    if body[:4] != _VECTOR_MAGIC:
        raise _make_damaged_vector_error(where, "its magic bytes are missing")
    if zlib.crc32(body) != int.from_bytes(data[-4:], "big"):
        raise _make_damaged_vector_error(where, "its checksum is another")
    try:
        bitmap = BitMap64.deserialize(body[4:])
    except (ValueError, IndexError) as error:
        raise _make_damaged_vector_error(where, "its bitmap cannot be read") from error
    if bitmap and bitmap.max() > MAX_POSITION:
        raise _make_damaged_vector_error(where, f"it holds the position {bitmap.max()}")
    return bitmap


def make_vector_blob(path: str, bitmap: BitMap64) -> Blob:
    """The blob of one data file's vector.

    Raises:
        InputError: there is no position.
    """
    if not bitmap:
        raise InputError(f"A deletion vector of {path} without any position.", path=path)
    properties = {"referenced-data-file": path, "cardinality": str(len(bitmap))}
    return Blob(DV_TYPE, (ROW_POSITION_ID,), encode_vector(bitmap), properties=properties)


def read_vector(
    vector: ManifestEntry, *, filesystem: pafs.FileSystem, filesystem_path: Callable[[str], str]
) -> BitMap64:
    """The vector of a manifest entry, read by its offset alone.

    Args:
        vector: its entry.
        filesystem: where its bytes are.
        filesystem_path: the place there of a path that was recorded.

    Raises:
        DamagedTable: the entry says too little, or the blob is not what it says.
        StorageError: the file system refused.
    """
    file = vector.file
    if file.content_offset is None or file.content_size_in_bytes is None:
        raise _make_damaged_vector_error(file.file_path, "its manifest entry has no offset and size")
    location = filesystem_path(file.file_path)
    data = read_range(location, file.content_offset, file.content_size_in_bytes, filesystem=filesystem)
    where = f"{file.file_path} (at {file.content_offset})"
    bitmap = decode_vector(data, where=where)
    if len(bitmap) != file.record_count:
        raise _make_damaged_vector_error(
            where, f"it holds {len(bitmap)} positions, its manifest entry says {file.record_count}"
        )
    return bitmap


def _make_damaged_vector_error(where: str, why: str) -> DamagedTable:
    return DamagedTable(
        f"The deletion vector in {where} is damaged: {why}.",
        path=where,
        hint="roll the table back to an earlier snapshot",
    )


PUFFIN_MAGIC = b"PFA1"


@dataclass(frozen=True, slots=True)
class Blob:
    """One blob to be written."""

    type: str
    fields: tuple[int, ...]
    data: bytes = field(repr=False)
    snapshot_id: int = -1
    """-1: inherited from the manifest entry."""
    sequence_number: int = -1
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BlobMetadata:
    """One blob as a footer names it."""

    type: str
    fields: tuple[int, ...]
    offset: int
    length: int
    snapshot_id: int = -1
    sequence_number: int = -1
    properties: Mapping[str, str] = field(default_factory=dict)


def write_puffin(
    blobs: Iterable[Blob], location: str, *, filesystem: pafs.FileSystem, created_by: str
) -> tuple[int, tuple[BlobMetadata, ...]]:
    """Write a file of uncompressed blobs; its size, and where each of them is, in their order.

    Memory: one blob at a time.

    Raises:
        StorageError: the file system refused.
    """
    places: list[BlobMetadata] = []
    try:
        with filesystem.open_output_stream(location) as sink:
            sink.write(PUFFIN_MAGIC)
            for blob in blobs:
                places.append(_locate_blob(blob, sink.tell()))
                sink.write(blob.data)
            payload = _format_footer(places, created_by)
            sink.write(PUFFIN_MAGIC + payload + len(payload).to_bytes(4, "little") + bytes(4) + PUFFIN_MAGIC)
            size: int = sink.tell()
    except OSError as error:
        raise _make_storage_error("write", location, error) from error
    return size, tuple(places)


def read_range(location: str, offset: int, length: int, *, filesystem: pafs.FileSystem) -> bytes:
    """The bytes of one blob, without a look at the footer.

    Raises:
        DamagedTable: the file is shorter.
        StorageError: the file system refused.
    """
    try:
        with filesystem.open_input_file(location) as source:
            found: bytes = source.read_at(length, offset)
    except OSError as error:
        raise _make_storage_error("read", location, error) from error
    if len(found) != length:
        raise DamagedTable(
            f"{location} ends inside the blob of {length} bytes at {offset}: {len(found)} bytes are there.",
            path=location,
        )
    return found


def _locate_blob(blob: Blob, offset: int) -> BlobMetadata:
    return BlobMetadata(
        blob.type,
        blob.fields,
        offset,
        len(blob.data),
        blob.snapshot_id,
        blob.sequence_number,
        properties=blob.properties,
    )


def _format_footer(places: Sequence[BlobMetadata], created_by: str) -> bytes:
    blobs = [
        {
            "type": place.type,
            "fields": list(place.fields),
            "snapshot-id": place.snapshot_id,
            "sequence-number": place.sequence_number,
            "offset": place.offset,
            "length": place.length,
            **({"properties": dict(place.properties)} if place.properties else {}),
        }
        for place in places
    ]
    document = {"blobs": blobs, "properties": {"created-by": created_by}}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _make_storage_error(verb: str, location: str, error: OSError) -> StorageError:
    return StorageError(f"Could not {verb} {location}: {error}", errno=error.errno, path=location)
