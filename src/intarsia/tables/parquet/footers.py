"""Reading Parquet footers, each once and in parallel where that pays, and the schemas they tell."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from dataclasses import field as make_field
from typing import TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common import thrift
from intarsia.common.int96 import read_arrow_schema
from intarsia.common.partitions import PARTITION_SCHEMA_KEY
from intarsia.common.requests import count_reads
from intarsia.common.types import find_lacking_type
from intarsia.errors import DamagedTable, NotSupported, SchemaMismatch, StorageError
from intarsia.storage.port import RandomAccess, Storage, as_storage_error
from intarsia.tables.parquet.entries import Located

T = TypeVar("T")
_PROBE = 16
_SLOW_SECONDS = 0.0005
_THREADS = 32
_TAIL = 1 << 16
_SIGNATURE = 28
"""Bytes after a footer that is readable although columns are encrypted."""
_CODECS = frozenset(2 * codec for codec in range(8))
"""The codecs of the format, zigzag encoded."""
_SHAPES = 8
_ROW_GROUPS = 4
"""Field of Parquet's FileMetaData."""
_COLUMNS, _COLUMN_METADATA = 1, 3
"""Fields of its RowGroup, and of its ColumnChunk."""
_VALUES_IN_COLUMN_METADATA = (8, 12, 16, 17)
"""Key-value metadata and statistics: these would keep values of rows that were deleted."""


@dataclass(frozen=True, slots=True)
class FooterShape:
    """What the footers of files with one Parquet schema have in common."""

    schema: bytes
    """How the footer begins: its version and the whole schema, names of groups included."""
    needles: tuple[bytes, ...]
    """What precedes the codec of each column chunk."""


@dataclass(frozen=True, slots=True)
class Footer:
    """A footer as read from a file."""

    metadata: pq.FileMetaData
    shape: FooterShape
    raw: bytes = make_field(default=b"", repr=False)
    """Its bytes, with its length and the final magic number."""

    @property
    def num_rows(self) -> int:
        rows: int = self.metadata.num_rows
        return rows

    @property
    def kind(self) -> tuple[object, ...]:
        """What files of one kind have in common: schema, key-value metadata and writer."""
        notes = self.metadata.metadata or {}
        return (self.shape.schema, *sorted(notes.items()), self.metadata.created_by)


class _FooterFile(pq.ParquetFile):
    """A file of which only the footer is wanted."""

    def _build_nested_paths(self) -> dict[str, list[int]]:
        """No index of the columns: it serves reading rows only, and costs a fifth of opening a file."""
        return {}


def read_footers(filesystem: pafs.FileSystem, locations: Sequence[str]) -> list[Footer]:
    """The footer of every file, in order.

    A footer in the page cache takes 50 us of pure decoding, and threads would only fight for the
    interpreter; one that has to come from a disk or a network waits, and waiting runs in parallel.

    Raises:
        DamagedTable: a file is no readable Parquet file; names it.
        FileNotFoundError: a file has gone (also inside a StorageError's place, so that the caller
            can list again).
        StorageError: the store refused.
    """
    return _read_each(lambda location: read_footer(filesystem, location), locations)


def read_listed_footers(storage: Storage, files: Sequence[Located]) -> list[Footer]:
    """The same of files that were listed: on a store, mostly one request for each, of the file's end.

    Raises FileNotFoundError also where a file of a store was replaced since.
    """
    return _read_each(lambda file: read_listed_footer(storage, file), files)


def read_listed_footer(storage: Storage, file: Located) -> Footer:
    """The footer of one file that was listed; raises as :func:`read_listed_footers` does."""
    entry, location = file
    return _read_opened(location, lambda: storage.open_ranges(location, entry.size, entry.identity))


def _read_each(read: Callable[[T], Footer], files: Sequence[T]) -> list[Footer]:
    started = time.perf_counter()
    footers = [read(file) for file in files[:_PROBE]]
    rest = files[_PROBE:]
    if not rest:
        return footers
    if (time.perf_counter() - started) / len(footers) < _SLOW_SECONDS:
        footers += [read(file) for file in rest]
        return footers
    with ThreadPoolExecutor(min(_THREADS, len(rest)), "intarsia-footers") as pool:
        footers += pool.map(read, rest)
    return footers


def read_footer(filesystem: pafs.FileSystem, location: str) -> Footer:
    """The footer of one file; raises as :func:`read_footers` does."""

    def open_file() -> pa.NativeFile:
        count_reads(filesystem)
        return filesystem.open_input_file(location)

    return _read_opened(location, open_file)


def _read_opened(location: str, open_file: Callable[[], AbstractContextManager[RandomAccess]]) -> Footer:
    """The bytes are checked before pyarrow's metadata object is handed out: asked for an encrypted
    column, or for a codec it does not know, that object ends the process instead of raising.
    """
    try:
        with open_file() as file:
            raw = _read_footer_bytes(file)
        return parse_footer(raw)
    except FileNotFoundError:
        raise
    except StorageError:
        raise
    except SchemaMismatch as error:
        said = f"{location} cannot be read: {error.message}."
        raise SchemaMismatch(said, path=location, hint=error.hint) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if getattr(error, "errno", None) is not None:
            raise as_storage_error(error, "read", location) from error
        raise make_damaged_error(location, error) from error


def parse_footer(raw: bytes) -> Footer:
    """A footer from its bytes; raises ArrowException, OSError, UnicodeDecodeError or SchemaMismatch."""
    metadata = _FooterFile(pa.BufferReader(raw)).metadata
    if len(raw) - 8 - metadata.serialized_size == _SIGNATURE:
        raise pa.ArrowInvalid("some of its columns are encrypted")
    _ = metadata.created_by  # which is text, or damaged
    shape = _find_shape(raw, metadata)
    _check_codecs(shape, raw, metadata)
    return Footer(metadata, shape, raw)


def strip_values(raw: bytes) -> bytes:
    """A footer of the same file without what tells of its rows: one row group at most, and no statistics."""
    struct, _ = thrift.read_struct(raw)
    kind, (item_kind, groups) = struct[_ROW_GROUPS]
    for group in groups[:1]:
        for chunk in thrift.get(group, _COLUMNS)[1]:
            described = thrift.get(chunk, _COLUMN_METADATA, {})
            for number in _VALUES_IN_COLUMN_METADATA:
                described.pop(number, None)
    struct[_ROW_GROUPS] = (kind, (item_kind, groups[:1]))
    encoded = thrift.write_struct(struct)
    return encoded + len(encoded).to_bytes(4, "little") + b"PAR1"


def _read_footer_bytes(file: RandomAccess) -> bytes:
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


def _check_codecs(shape: FooterShape, raw: bytes, metadata: pq.FileMetaData) -> None:
    """Find the codec of each column chunk in the footer's bytes, where it follows the column's path."""
    at, find = len(shape.schema), raw.find
    for group in range(metadata.num_row_groups):
        for number, needle in enumerate(shape.needles):
            found = find(needle, at)
            if found < 0:  # such as a name with a dot in it, which looks like a path
                _ = metadata.row_group(group).column(number).path_in_schema  # which is text, or damaged
                continue
            at = found + len(needle)
            if raw[at] not in _CODECS:
                raise pa.ArrowInvalid("it uses a compression codec that is not known")


_last_shapes: list[FooterShape] = []


def _find_shape(raw: bytes, metadata: pq.FileMetaData) -> FooterShape:
    """The shape of a footer; files of a dataset mostly share theirs, so it is made once.

    Compared by bytes: to pyarrow two schemas are equal when their leaves are, whatever the names of the
    groups around them.
    """
    for shape in _last_shapes:
        if raw.startswith(shape.schema):
            return shape
    _refuse_twice(metadata.schema)
    shape = FooterShape(_cut_schema_bytes(raw), _make_needles(metadata.schema))
    _last_shapes[:] = [shape, *_last_shapes[: _SHAPES - 1]]
    return shape


def _refuse_twice(schema: pq.ParquetSchema) -> None:
    """Raise SchemaMismatch where two fields of one struct, or two columns, have one name.

    Paths of leaves only hint at it: the column ``a.b`` and the field b of the column a have one path.
    """
    paths = [schema.column(number).path for number in range(len(schema))]
    twice = sorted(_names_twice(list(schema.to_arrow_schema()), "")) if len(set(paths)) < len(paths) else []
    if twice:
        raise SchemaMismatch(
            f"it has more than one column {', '.join(map(repr, twice))}",
            hint="write the file again with other names, or remove it from the dataset",
        )


def _names_twice(fields: Sequence[pa.Field], above: str) -> set[str]:
    names = [field.name for field in fields]
    found = {f"{above}{name}" for name in names if names.count(name) > 1}
    for field in fields:
        dtype = field.type
        inside = [dtype.field(number) for number in range(dtype.num_fields)]
        found |= _names_twice(inside, f"{above}{field.name}.")
    return found


def _cut_schema_bytes(raw: bytes) -> bytes:
    """The beginning of a footer up to the end of field 2, the schema: a list of structs.

    All of a footer that begins in another way: no other file has the same then, which is always true.
    """
    at = 1
    while raw[at] & 128:  # field 1, the version
        at += 1
    at += 1
    if raw[0] != 0x15 or raw[at] != 0x19:
        return raw
    count, at = raw[at + 1] >> 4, at + 2
    if count == 15:  # too many for the header
        count = shift = 0
        while True:
            count |= (raw[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if not raw[at - 1] & 128:
                break
    try:
        for _ in range(count):
            _, at = thrift.read_struct(raw, at)
    except ValueError:  # a kind of field that only a later format has
        return raw
    return raw[:at]


def _make_needles(schema: pq.ParquetSchema) -> tuple[bytes, ...]:
    """What precedes each column's codec: field 3, a list of strings, then the header of field 4."""
    needles = []
    for number in range(len(schema)):
        parts = [part.encode() for part in schema.column(number).path.split(".")]
        head = bytes([len(parts) << 4 | 8]) if len(parts) < 15 else b"\xf8" + _encode_varint(len(parts))
        strings = b"".join(_encode_varint(len(part)) + part for part in parts)
        needles.append(b"\x19" + head + strings + b"\x15")
    return tuple(needles)


def _encode_varint(number: int) -> bytes:
    """An unsigned number as Thrift's compact protocol writes it."""
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def make_damaged_error(location: str, error: BaseException) -> DamagedTable | NotSupported:
    """The error for a file that is not readable as Parquet, or that PyArrow has no type for."""
    if (lacking := find_lacking_type(location, error)) is not None:
        return lacking
    text = str(error)
    encrypted = "crypt" in text.lower()
    what = "is encrypted, which is not supported" if encrypted else "cannot be read as Parquet"
    return DamagedTable(
        f"{location} {what}: {text}",
        path=location,
        hint="restore the file from where it was copied, or remove it from the dataset",
    )


def collect_schemas(footers: Iterable[Footer]) -> tuple[list[pa.Schema], list[int]]:
    """The distinct Arrow schemas of files, and for each file the number of its own.

    Converting a schema costs far more than comparing the bytes of two, and the files of a dataset
    mostly share one; so each distinct one is converted once. Key-value metadata stays on the schema
    of the first file that had it.
    """
    schemas: list[pa.Schema] = []
    numbers: list[int] = []
    known: dict[tuple[bytes | str | None, ...], int] = {}
    for footer in footers:
        notes = footer.metadata.metadata or {}
        writer = footer.metadata.created_by.split(" ", 1)[0]  # which the unit of INT96 columns depends on
        noted = (notes.get(b"ARROW:schema"), notes.get(PARTITION_SCHEMA_KEY))
        seen = (footer.shape.schema, *noted, writer)
        number = known.setdefault(seen, len(schemas))
        if number == len(schemas):
            schemas.append(read_arrow_schema(footer.metadata))
        numbers.append(number)
    return schemas, numbers


def count_workers() -> int:
    """Threads for work that waits for the disk, such as making staged files durable."""
    return min(8, (os.cpu_count() or 1) * 4)
