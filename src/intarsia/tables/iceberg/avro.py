"""Avro container files: header, blocks and compression codecs; records are handed to ``avro_codec``."""

from __future__ import annotations

import bz2
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from intarsia.errors import DamagedTable, InputError, IntarsiaError, NotSupported
from intarsia.tables.iceberg.avro_codec import encode_long, make_reader, make_writer
from intarsia.tables.iceberg.packed_maps import DamagedAvro, read_long

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_BLOCK_BYTES = 64_000  # Avro's DataFileConstants.DEFAULT_SYNC_INTERVAL

_METADATA = {"type": "map", "values": "bytes"}
_read_metadata = make_reader(_METADATA)
_write_metadata = make_writer(_METADATA)
# What reading damaged data raises.
_DAMAGE_ERRORS = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    zlib.error,
    lzma.LZMAError,
    OSError,
    EOFError,
)

# Codec names of Iceberg's properties, and of Avro.
_CODECS = {
    "gzip": "deflate",
    "deflate": "deflate",
    "zstd": "zstandard",
    "zstandard": "zstandard",
    "snappy": "snappy",
    "uncompressed": "null",
    "null": "null",
    "none": "null",
}


@dataclass(frozen=True, slots=True)
class AvroFile:
    """An Avro file that was read; its records are decoded when they are asked for."""

    path: str
    schema: Mapping[str, Any]
    """Of the writer, with every attribute as it was written."""
    metadata: Mapping[str, bytes]
    blocks: tuple[tuple[int, bytes], ...]
    """How many records, and their bytes."""

    def read_records(self, schema: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Every record, one after another.

        Args:
            schema: the writer's, with other names.
        """
        with report_damage(self.path):
            read = make_reader(schema or self.schema)
            for count, data in self.blocks:
                at = 0
                for _ in range(count):
                    record, at = read(data, at)
                    yield record
                if at != len(data):
                    raise DamagedAvro(f"{len(data) - at} bytes too many in a block")

    def get_text(self, key: str) -> str | None:
        """An entry of the header."""
        value = self.metadata.get(key)
        return None if value is None else value.decode()


def parse_avro(data: bytes, path: str) -> AvroFile:
    """Parse the header and blocks of an Avro file.

    Raises:
        DamagedTable: it is no Avro file, or is cut short.
        NotSupported: its codec is not known.
    """
    if data[:4] != _MAGIC:
        raise DamagedTable(
            f"not an Avro file, it starts with {data[:4]!r}",
            path=path,
            hint="restore the file, or roll the table back to a snapshot without it",
        )
    with report_damage(path):
        metadata, at = _read_metadata(data, len(_MAGIC))
        schema = json.loads(metadata["avro.schema"])
        sync = data[at : at + _SYNC_BYTES]
        codec = metadata.get("avro.codec", b"null").decode()
        blocks = tuple(_iterate_blocks(data, at + _SYNC_BYTES, sync, _find_codec(_DECODERS, codec, path)))
    return AvroFile(path, schema, metadata, blocks)


@contextmanager
def report_damage(path: str) -> Iterator[None]:
    """Turn the errors that damaged data raises into DamagedTable.

    Raises:
        DamagedTable: the file is not what it says it is.
    """
    try:
        yield
    except IntarsiaError:
        raise
    except _DAMAGE_ERRORS as error:
        raise DamagedTable(
            f"damaged Avro file: {type(error).__name__}: {error}",
            path=path,
            hint="restore the file, or roll the table back to a snapshot without it",
        ) from error


class AvroFileWriter:
    """Collects records of one Avro file in memory, in compressed blocks."""

    def __init__(self, schema: Mapping[str, Any], metadata: Mapping[str, str], codec: str) -> None:
        name = to_avro_codec(codec)
        self._compress = _find_codec(_ENCODERS, name, None)
        self._write = make_writer(schema)
        self._sync = os.urandom(_SYNC_BYTES)
        self._out = bytearray()
        self._block = bytearray()
        self._count = 0
        header = {key: value.encode() for key, value in metadata.items()}
        header |= {"avro.schema": json.dumps(schema).encode(), "avro.codec": name.encode()}
        self._out += _MAGIC
        _write_metadata(self._out, header)
        self._out += self._sync

    @property
    def size(self) -> int:
        """Bytes so far, the open block uncompressed."""
        return len(self._out) + len(self._block)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record."""
        self._write(self._block, record)
        self._count += 1
        if len(self._block) >= _BLOCK_BYTES:
            self._flush()

    def finish(self) -> bytes:
        """The whole file."""
        self._flush()
        return bytes(self._out)

    def _flush(self) -> None:
        if not self._count:
            return
        data = self._compress(bytes(self._block))
        self._out += encode_long(self._count) + encode_long(len(data)) + data + self._sync
        self._block.clear()
        self._count = 0


def to_avro_codec(name: str) -> str:
    """Avro's name of a codec that a table property names.

    Raises:
        InputError: no such codec.
    """
    codec = _CODECS.get(name.lower())
    if codec is None:
        raise InputError(
            f"write.manifest.compression-codec is {name!r}", hint=f"set it to one of {', '.join(_CODECS)}"
        )
    return codec


def _iterate_blocks(
    data: bytes, at: int, sync: bytes, decompress: Callable[[bytes], bytes]
) -> Iterator[tuple[int, bytes]]:
    while at < len(data):
        count, at = read_long(data, at)
        size, at = read_long(data, at)
        end = at + size
        if size < 0 or count < 0 or data[end : end + _SYNC_BYTES] != sync:
            raise DamagedAvro(f"the block at byte {at} is cut short")
        yield count, decompress(data[at:end])
        at = end + _SYNC_BYTES


def _find_codec(
    known: Mapping[str, Callable[[bytes], bytes]], name: str, path: str | None
) -> Callable[[bytes], bytes]:
    if name not in known:
        raise NotSupported(f"Avro codec {name!r}", path=path, hint=f"known are {', '.join(sorted(known))}")
    return known[name]


def _inflate(data: bytes) -> bytes:
    return zlib.decompress(data, -zlib.MAX_WBITS)


def _deflate(data: bytes) -> bytes:
    press = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return press.compress(data) + press.flush()


def _decompress_snappy(data: bytes) -> bytes:
    # Four bytes of CRC-32 follow the data; its size stands before it.
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    plain_data = bytes(pa.decompress(data[:-4], decompressed_size=size, codec="snappy"))
    if zlib.crc32(plain_data) != int.from_bytes(data[-4:], "big"):
        raise DamagedAvro("the checksum of a block is wrong")
    return plain_data


def _compress_snappy(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="snappy")) + zlib.crc32(data).to_bytes(4, "big")


def _decompress_zstd(data: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return bytes(stream.read())


def _compress_zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd"))


_DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _inflate,
    "snappy": _decompress_snappy,
    "zstandard": _decompress_zstd,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
}
_ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _deflate,
    "snappy": _compress_snappy,
    "zstandard": _compress_zstd,
}
