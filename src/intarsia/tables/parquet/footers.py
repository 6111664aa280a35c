"""Reading Parquet footers, each once and in parallel where that pays, and the schemas they tell."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.partitions import PARTITION_SCHEMA_KEY
from intarsia.errors import DamagedTable
from intarsia.storage.port import as_storage_error

_PROBE = 16
_SLOW_SECONDS = 0.0005
_THREADS = 32
_TAIL = 1 << 16
_SIGNATURE = 28
"""Bytes after a footer that is readable although columns are encrypted."""
_CODECS = frozenset(2 * codec for codec in range(8))
"""The codecs of the format, zigzag encoded."""


def read_footers(filesystem: pafs.FileSystem, locations: Sequence[str]) -> list[pq.FileMetaData]:
    """The footer of every file, in order.

    A footer in the page cache takes 50 us of pure decoding, and threads would only fight for the
    interpreter; one that has to come from a disk or a network waits, and waiting runs in parallel.

    Raises:
        DamagedTable: a file is no readable Parquet file; names it.
        FileNotFoundError: a file has gone (also inside a StorageError's place, so that the caller
            can list again).
        StorageError: the store refused.
    """
    started = time.perf_counter()
    footers = [read_footer(filesystem, location) for location in locations[:_PROBE]]
    rest = locations[_PROBE:]
    if not rest:
        return footers
    if (time.perf_counter() - started) / len(footers) < _SLOW_SECONDS:
        footers += [read_footer(filesystem, location) for location in rest]
        return footers
    with ThreadPoolExecutor(min(_THREADS, len(rest)), "intarsia-footers") as pool:
        footers += pool.map(lambda location: read_footer(filesystem, location), rest)
    return footers


def read_footer(filesystem: pafs.FileSystem, location: str) -> pq.FileMetaData:
    """The footer of one file; raises as :func:`read_footers` does.

    The bytes are looked at before pyarrow's metadata object is handed out: asked for an encrypted
    column, or for a codec it does not know, that object ends the process instead of raising.
    """
    try:
        with filesystem.open_input_file(location) as file:
            raw = _footer_bytes(file)
        footer = pq.ParquetFile(pa.BufferReader(raw)).metadata
        if len(raw) - 8 - footer.serialized_size == _SIGNATURE:
            raise pa.ArrowInvalid("some of its columns are encrypted")
        _check_codecs(footer, raw)
        return footer
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise as_storage_error(error, "read", location) from error
        raise damaged(location, error) from error


def _footer_bytes(file: pa.NativeFile) -> bytes:
    """The footer with its length and the final magic number, mostly in one read."""
    size = file.size()
    tail: bytes = file.read_at(min(size, _TAIL), max(0, size - _TAIL))
    if tail[-4:] == b"PARE":
        raise pa.ArrowInvalid("its footer is encrypted")
    if size < 12 or tail[-4:] != b"PAR1":
        raise pa.ArrowInvalid("it does not end as a Parquet file does")
    length = int.from_bytes(tail[-8:-4], "little")
    if length + 12 > size:
        raise pa.ArrowInvalid(f"its footer should have {length} bytes, the file has {size}")
    if length + 8 > len(tail):
        tail = file.read_at(length + 8, size - length - 8)
    return tail[-length - 8 :]


def _check_codecs(footer: pq.FileMetaData, raw: bytes) -> None:
    """Find the codec of each column chunk in the footer's bytes, where it follows the column's path."""
    needles = _needles(footer.schema)
    at = 0
    for _ in range(footer.num_row_groups):
        for needle in needles:
            found = raw.find(needle, at)
            if found < 0:
                continue  # such as a name with a dot in it, which looks like a path
            at = found + len(needle)
            if raw[at] not in _CODECS:
                raise pa.ArrowInvalid("it uses a compression codec that is not known")


_last_needles: list[tuple[pq.ParquetSchema, list[bytes]]] = []


def _needles(schema: pq.ParquetSchema) -> list[bytes]:
    """What precedes each column's codec: field 3, a list of strings, then the header of field 4."""
    for known, needles in _last_needles:
        if known.equals(schema):
            return needles
    needles = []
    for number in range(len(schema)):
        parts = [part.encode() for part in schema.column(number).path.split(".")]
        head = bytes([len(parts) << 4 | 8]) if len(parts) < 15 else b"\xf8" + _varint(len(parts))
        strings = b"".join(_varint(len(part)) + part for part in parts)
        needles.append(b"\x19" + head + strings + b"\x15")
    _last_needles[:] = [(schema, needles), *_last_needles[:3]]
    return needles


def _varint(number: int) -> bytes:
    """An unsigned number as Thrift's compact protocol writes it."""
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def damaged(location: str, error: BaseException) -> DamagedTable:
    """The error for a file that is not readable as Parquet."""
    text = str(error)
    encrypted = "crypt" in text.lower()
    what = "is encrypted, which is not supported" if encrypted else "cannot be read as Parquet"
    return DamagedTable(
        f"{location} {what}: {text}",
        path=location,
        hint="restore the file from where it was copied, or remove it from the dataset",
    )


def file_schemas(footers: Iterable[pq.FileMetaData]) -> tuple[list[pa.Schema], list[int]]:
    """The distinct Arrow schemas of files, and for each file the number of its own.

    Converting a schema costs far more than comparing two footers, and the files of a dataset
    mostly share one; so each distinct footer schema is converted once. Key-value metadata stays
    on the schema of the first file that had it.
    """
    schemas: list[pa.Schema] = []
    numbers: list[int] = []
    known: dict[tuple[bytes | None, ...], list[tuple[pq.ParquetSchema, int]]] = {}
    for footer in footers:
        metadata = footer.metadata or {}
        declared = (metadata.get(b"ARROW:schema"), metadata.get(PARTITION_SCHEMA_KEY))
        candidates = known.setdefault(declared, [])
        number = next((index for schema, index in candidates if schema.equals(footer.schema)), None)
        if number is None:
            number = len(schemas)
            schemas.append(footer.schema.to_arrow_schema())
            candidates.append((footer.schema, number))
        numbers.append(number)
    return schemas, numbers


def worker_count() -> int:
    """Threads for work that waits for the disk, such as making staged files durable."""
    return min(8, (os.cpu_count() or 1) * 4)
