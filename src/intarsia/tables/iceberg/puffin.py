"""Puffin files: blobs behind each other and a footer that names them; what a blob means is not known here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.errors import DamagedTable, NotSupported, StorageError

MAGIC = b"PFA1"
_TAIL = 12
"""Length of the footer's payload, flags, magic: four bytes each."""
_COMPRESSED_FOOTER = 0x01


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
class BlobPlace:
    """One blob as a footer names it."""

    type: str
    fields: tuple[int, ...]
    offset: int
    length: int
    snapshot_id: int = -1
    sequence_number: int = -1
    compression: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


def write_puffin(
    blobs: Iterable[Blob], location: str, *, filesystem: pafs.FileSystem, created_by: str
) -> tuple[int, tuple[BlobPlace, ...]]:
    """Write a file of uncompressed blobs; its size, and where each of them is, in their order.

    Memory: one blob at a time.

    Raises:
        StorageError: the file system refused.
    """
    places: list[BlobPlace] = []
    try:
        with filesystem.open_output_stream(location) as sink:
            sink.write(MAGIC)
            for blob in blobs:
                places.append(_placed(blob, sink.tell()))
                sink.write(blob.data)
            payload = _footer_payload(places, created_by)
            sink.write(MAGIC + payload + len(payload).to_bytes(4, "little") + bytes(4) + MAGIC)
            size: int = sink.tell()
    except OSError as error:
        raise StorageError(
            f"Could not write {location}: {error}", errno=error.errno, path=location
        ) from error
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
        raise _refused("read", location, error) from error
    if len(found) != length:
        raise DamagedTable(
            f"{location} ends inside the blob of {length} bytes at {offset}: {len(found)} bytes are there.",
            path=location,
        )
    return found


def read_footer(location: str, *, filesystem: pafs.FileSystem) -> tuple[BlobPlace, ...]:
    """The blobs that a file's footer names, of whatever type.

    Raises:
        DamagedTable: it is not a Puffin file, or its footer is damaged.
        StorageError: the file system refused.
    """
    try:
        with filesystem.open_input_file(location) as source:
            size = source.size()
            if size < 2 * len(MAGIC) + _TAIL:
                raise _damaged(location, f"it has {size} bytes")
            tail = source.read_at(_TAIL, size - _TAIL)
            length = int.from_bytes(tail[:4], "little", signed=True)
            start = size - _TAIL - length - len(MAGIC)
            if tail[8:] != MAGIC or length < 0 or start < len(MAGIC):
                raise _damaged(location, "it does not end as one")
            head = source.read_at(len(MAGIC), 0)
            payload = source.read_at(len(MAGIC) + length, start)
    except OSError as error:
        raise _refused("read", location, error) from error
    if head != MAGIC or payload[: len(MAGIC)] != MAGIC:
        raise _damaged(location, "its magic bytes are missing")
    return _places(location, payload[len(MAGIC) :], int.from_bytes(tail[4:8], "little"))


def _placed(blob: Blob, offset: int) -> BlobPlace:
    return BlobPlace(
        blob.type,
        blob.fields,
        offset,
        len(blob.data),
        blob.snapshot_id,
        blob.sequence_number,
        properties=blob.properties,
    )


def _footer_payload(places: Sequence[BlobPlace], created_by: str) -> bytes:
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


def _places(location: str, payload: bytes, flags: int) -> tuple[BlobPlace, ...]:
    if flags & ~_COMPRESSED_FOOTER:
        raise NotSupported(
            f"The footer of {location} has flags {flags:#x} that are not known.", path=location
        )
    try:
        if flags & _COMPRESSED_FOOTER:
            payload = pa.CompressedInputStream(pa.BufferReader(payload), "lz4").read()
        document: Any = json.loads(payload)
        return tuple(
            BlobPlace(
                blob["type"],
                tuple(blob["fields"]),
                blob["offset"],
                blob["length"],
                blob["snapshot-id"],
                blob["sequence-number"],
                blob.get("compression-codec"),
                blob.get("properties", {}),
            )
            for blob in document["blobs"]
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(location, "its footer cannot be read") from error


def _refused(verb: str, location: str, error: OSError) -> StorageError:
    return StorageError(f"Could not {verb} {location}: {error}", errno=error.errno, path=location)


def _damaged(location: str, why: str) -> DamagedTable:
    return DamagedTable(f"{location} is not a whole Puffin file: {why}.", path=location)
