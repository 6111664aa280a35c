"""Avro's binary encoding: a schema is compiled to one function that reads, or writes, a record.

Logical types are not interpreted: a date is its days, a decimal its bytes. Arrays of key and value pairs,
which is how Iceberg writes maps with integer keys, are dicts.

Why not fastavro: it makes one dict of every pair, and has to be given one to write it. Measured with
fastavro 1.13.1 on 100,000 entries in 10 manifests, 10 columns with all metrics, deflate level 6, the
middle of three passes:

=====================================  =====  ========  ======
CPU seconds                            here   fastavro  ratio
=====================================  =====  ========  ======
read into entries                      4.10   6.11      1.5
write new entries                      5.04   9.85      2.0
rewrite entries that were read         3.57   10.01     2.8
=====================================  =====  ========  ======

The limit set for the change was 1.3. Here the numbers of a map are found by one regular expression, and those
and bounds are unpacked only when they are looked at (all numbers: 2.7 s more), and copied as bytes into a
rewritten manifest. Without
the tuple notation, which skips its validation of unions, fastavro took 15 seconds to write.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from intarsia.errors import NotSupported
from intarsia.tables.iceberg.packed_maps import DamagedAvro, PackedBytes, PackedNumbers, read_long

Schema = Any
Reader = Callable[[bytes, int], tuple[Any, int]]
"""Takes the data and an offset; returns the value and the offset after it."""

RECORD_KINDS = ("record", "error")


def make_reader(schema: Schema) -> Reader:
    """How values of a schema are read; raises IndexError or ValueError where the data is damaged.

    Raises:
        NotSupported: the schema has a type that Avro does not define.
    """
    reader: Reader = _compile(schema, {}, _TO_READ)
    return reader


class _Direction(NamedTuple):
    """The functions that make readers, or writers, by kind of schema."""

    primitives: Mapping[str, Any]
    record: Callable[[Sequence[tuple[str, Any]]], Any]
    union: Callable[[Sequence[Any], Sequence[Schema]], Any]
    array: Callable[[Schema, dict[str, Any]], Any]
    map: Callable[[Any], Any]
    fixed: Callable[[int], Any]
    enum: Callable[[Sequence[str]], Any]


def _compile(schema: Schema, names: dict[str, Any], to: _Direction) -> Any:
    """The reader or writer of a schema; ``names`` are those of the named types seen so far."""
    if isinstance(schema, list):
        return to.union([_compile(part, names, to) for part in schema], schema)
    if isinstance(schema, str):
        found = to.primitives.get(schema) or names.get(schema)
        if found is None:
            raise NotSupported(
                f"the Avro type {schema!r}", hint="the file was written for a newer format version"
            )
        return found
    kind = schema["type"]
    if kind in RECORD_KINDS:
        made = to.record([(field["name"], _compile(field["type"], names, to)) for field in schema["fields"]])
    elif kind == "array":
        made = to.array(schema["items"], names)
    elif kind == "map":
        made = to.map(_compile(schema["values"], names, to))
    elif kind == "fixed":
        made = to.fixed(schema["size"])
    elif kind == "enum":
        made = to.enum(schema["symbols"])
    else:
        return _compile(kind, names, to)
    if "name" in schema:
        names[schema["name"]] = made
    return made


def _read_null(data: bytes, at: int) -> tuple[None, int]:
    return None, at


def _read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    return data[at] != 0, at + 1


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise DamagedAvro(f"{size} bytes at byte {at}")
    return data[at:end], end


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    value, at = _read_bytes(data, at)
    return value.decode(), at


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    return _unpack("<f", data, at), at + 4


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    return _unpack("<d", data, at), at + 8


def _unpack(form: str, data: bytes, at: int) -> float:
    try:
        value: float = struct.unpack_from(form, data, at)[0]
    except struct.error as error:
        raise DamagedAvro(str(error)) from error
    return value


_READERS: Mapping[str, Reader] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": read_long,
    "long": read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}


def _make_record_reader(fields: Sequence[tuple[str, Reader]]) -> Reader:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        record = {}
        for name, read_field in fields:
            record[name], at = read_field(data, at)
        return record, at

    return read


def _make_union_reader(options: Sequence[Reader], schema: Sequence[Schema]) -> Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        option, at = read_long(data, at)
        if not 0 <= option < len(options):
            raise DamagedAvro(f"option {option} of {len(options)} at byte {at}")
        return options[option](data, at)

    if len(options) != 2 or schema[0] != "null":
        return read
    read_value = options[1]

    def read_optional(data: bytes, at: int) -> tuple[Any, int]:
        option = data[at]
        if option == 2:
            return read_value(data, at + 1)
        if option:
            raise DamagedAvro(f"an option that does not exist at byte {at}")
        return None, at + 1

    return read_optional


def _make_fixed_reader(size: int) -> Reader:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(data):
            raise DamagedAvro(f"{size} bytes at byte {at}")
        return data[at:end], end

    return read


def _make_enum_reader(symbols: Sequence[str]) -> Reader:
    def read(data: bytes, at: int) -> tuple[str, int]:
        place, at = read_long(data, at)
        if place < 0:
            raise DamagedAvro(f"symbol {place} at byte {at}")
        return symbols[place], at

    return read


def _make_array_reader(items: Schema, names: dict[str, Reader]) -> Reader:
    read_item = _compile(items, names, _TO_READ)  # also of pairs: the name may be used again
    match find_pair_kind(items):
        case "long":
            return _make_pairs_reader(_make_long_pairs_reader())
        case "bytes":
            return _make_pairs_reader(_read_bytes_pairs)

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, at = _read_block_count(data, at)
            if not count:
                return found, at
            for _ in range(count):
                item, at = read_item(data, at)
                found.append(item)

    return read


def _make_map_reader(read_value: Reader) -> Reader:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while True:
            count, at = _read_block_count(data, at)
            if not count:
                return found, at
            for _ in range(count):
                key, at = _read_string(data, at)
                found[key], at = read_value(data, at)

    return read


def find_pair_kind(items: Schema) -> str | None:
    """What the values are if items are pairs of a map with integer keys: ``long``, ``bytes`` or neither."""
    if not isinstance(items, Mapping) or items["type"] not in RECORD_KINDS:
        return None
    fields = items["fields"]
    if [field["name"] for field in fields] != ["key", "value"] or fields[0]["type"] not in ("int", "long"):
        return None
    value = fields[1]["type"]
    return {"int": "long", "long": "long", "bytes": "bytes"}.get(value if isinstance(value, str) else "")


def _read_block_count(data: bytes, at: int) -> tuple[int, int]:
    count, at = read_long(data, at)
    if count < 0:
        _, at = read_long(data, at)  # the bytes of the block, for those who skip it
        return -count, at
    return count, at


_MOST_SHARED = 1024
"""Different maps of a field of which each is kept once, however many files of a manifest have it."""


def _make_pairs_reader(read_pairs: Callable[[bytes, int, int], tuple[Mapping[int, Any], int]]) -> Reader:
    def read(data: bytes, at: int) -> tuple[Mapping[int, Any], int]:
        count, at = _read_block_count(data, at)
        if not count:
            return {}, at
        found, at = read_pairs(data, at, count)
        while data[at]:  # most writers make one block
            count, at = _read_block_count(data, at)
            more, at = read_pairs(data, at, count)
            found = {**found, **more}
        return found, at + 1

    return read


def _make_long_pairs_reader() -> Callable[[bytes, int, int], tuple[PackedNumbers, int]]:
    spans: dict[int, re.Pattern[bytes]] = {}
    shared: dict[bytes, PackedNumbers] = {}

    def read(data: bytes, at: int, count: int) -> tuple[PackedNumbers, int]:
        span = spans.get(count)
        if span is None:
            if count > len(data):
                raise DamagedAvro(f"{count} pairs at byte {at}")
            span = spans[count] = re.compile(rb"(?:[\x80-\xff]{0,9}[\x00-\x7f]){%d}" % (2 * count))
        match = span.match(data, at)
        if match is None:
            raise DamagedAvro(f"{count} pairs at byte {at}")
        pairs = match[0]
        found = shared.get(pairs)
        if found is None:
            found = PackedNumbers(pairs, count)
            if len(shared) < _MOST_SHARED:
                shared[pairs] = found
        return found, match.end()

    return read


def _read_bytes_pairs(data: bytes, at: int, count: int) -> tuple[PackedBytes, int]:
    start = at
    for _ in range(count):
        size = data[at + 1]
        if data[at] < 0x80 and size < 0x80 and not size & 1:  # one byte each, as nearly always
            at += 2 + (size >> 1)
        else:
            _, at = read_long(data, at)
            size, at = read_long(data, at)
            if size < 0:
                raise DamagedAvro(f"{size} bytes at byte {at}")
            at += size
    if at > len(data):
        raise DamagedAvro("a map that goes beyond its block")
    return PackedBytes(data[start:at], count), at


_TO_READ = _Direction(
    _READERS,
    _make_record_reader,
    _make_union_reader,
    _make_array_reader,
    _make_map_reader,
    _make_fixed_reader,
    _make_enum_reader,
)


Writer = Callable[[bytearray, Any], None]
"""Appends a value to what was written so far."""


class _EncodedNumbers(dict[int, bytes]):
    """The bytes of small numbers by the number."""

    def __missing__(self, value: int) -> bytes:
        data = encode_long(value)
        if -0x8000 <= value < 0x8000:
            self[value] = data
        return data


_ENCODED = _EncodedNumbers()


def encode_long(value: int) -> bytes:
    """The bytes of a number."""
    rest = (value << 1) ^ (value >> 63)
    if not 0 <= rest < 1 << 64:
        raise OverflowError(f"{value} is no 64-bit integer")
    out = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def make_writer(schema: Schema) -> Writer:
    """How values of a schema are written; fields that a record does not have are written as None.

    Raises:
        NotSupported: the schema has a type that Avro does not define.
    """
    writer: Writer = _compile(schema, {}, _TO_WRITE)
    return writer


def _write_null(out: bytearray, value: Any) -> None:
    pass


def _write_boolean(out: bytearray, value: bool) -> None:
    out.append(1 if value else 0)


def _write_long(out: bytearray, value: int) -> None:
    out += _ENCODED[value]


def _write_float(out: bytearray, value: float) -> None:
    out += struct.pack("<f", value)


def _write_double(out: bytearray, value: float) -> None:
    out += struct.pack("<d", value)


def _write_bytes(out: bytearray, value: bytes) -> None:
    out += _ENCODED[len(value)]
    out += value


def _write_string(out: bytearray, value: str) -> None:
    _write_bytes(out, value.encode())


_WRITERS: Mapping[str, Writer] = {
    "null": _write_null,
    "boolean": _write_boolean,
    "int": _write_long,
    "long": _write_long,
    "float": _write_float,
    "double": _write_double,
    "bytes": _write_bytes,
    "string": _write_string,
}


def _make_record_writer(fields: Sequence[tuple[str, Writer]]) -> Writer:
    def write(out: bytearray, record: Mapping[str, Any]) -> None:
        get = record.get
        for name, write_field in fields:
            write_field(out, get(name))

    return write


def _make_union_writer(options: Sequence[Writer], schema: Sequence[Schema]) -> Writer:
    if len(options) != 2 or schema[0] != "null":
        raise NotSupported(f"writing the Avro union {schema}")
    write_value = options[1]

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(2)
            write_value(out, value)

    return write


def _make_fixed_writer(size: int) -> Writer:
    def write(out: bytearray, value: bytes) -> None:
        if len(value) != size:
            raise DamagedAvro(f"{len(value)} bytes where {size} belong")
        out += value

    return write


def _make_enum_writer(symbols: Sequence[str]) -> Writer:
    def write(out: bytearray, value: str) -> None:
        out += _ENCODED[symbols.index(value)]

    return write


def _make_array_writer(items: Schema, names: dict[str, Writer]) -> Writer:
    kind = find_pair_kind(items)
    if kind is not None:
        return _make_pairs_writer(_write_long if kind == "long" else _write_bytes)
    write_item = _compile(items, names, _TO_WRITE)

    def write(out: bytearray, values: Sequence[Any]) -> None:
        if values:
            out += _ENCODED[len(values)]
            for value in values:
                write_item(out, value)
        out.append(0)

    return write


def _make_pairs_writer(write_value: Writer) -> Writer:
    def write(out: bytearray, values: Mapping[int, Any]) -> None:
        if isinstance(values, (PackedNumbers, PackedBytes)):
            out += _ENCODED[values.count]
            out += values.data
        elif values:
            out += _ENCODED[len(values)]
            for key, value in values.items():
                out += _ENCODED[key]
                write_value(out, value)
        out.append(0)

    return write


def _make_map_writer(write_value: Writer) -> Writer:
    def write(out: bytearray, values: Mapping[str, Any]) -> None:
        if values:
            out += _ENCODED[len(values)]
            for key, value in values.items():
                _write_string(out, key)
                write_value(out, value)
        out.append(0)

    return write


_TO_WRITE = _Direction(
    _WRITERS,
    _make_record_writer,
    _make_union_writer,
    _make_array_writer,
    _make_map_writer,
    _make_fixed_writer,
    _make_enum_writer,
)
