"""Reading values in Avro's binary encoding: a schema is compiled to a function.

Logical types are not interpreted: a date is its days, a decimal its bytes. Arrays of pairs of an integer
key and a value, which is how Iceberg writes maps, are dicts.

Libraries make one dict of every pair, or trust a damaged file with their memory. Here the numbers of a map
are found by one regular expression and unpacked only when they are looked at, and damage is an error.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from intarsia.errors import NotSupported

Schema = Any
Reader = Callable[[bytes, int], tuple[Any, int]]
"""Takes the data and a place in it, gives the value and the place after it."""

_VARINT = re.compile(rb"[\x80-\xff]*[\x00-\x7f]")
_LONGEST = 10
RECORD_KINDS = ("record", "error")


class Damaged(ValueError):
    """Data that is not what its schema says."""


class PackedNumbers(Mapping[int, int]):
    """Numbers by number, unpacked when first looked at: most files of a manifest never are."""

    __slots__ = ("_found", "count", "data")

    def __init__(self, data: bytes, count: int) -> None:
        self.data = data
        """The pairs, as Avro writes them one after another."""
        self.count = count
        self._found: dict[int, int] | None = None

    def __getitem__(self, key: int) -> int:
        return self._unpacked()[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._unpacked())

    def __len__(self) -> int:
        return len(self._unpacked())

    def __repr__(self) -> str:
        return repr(self._unpacked())

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedNumbers, (self.data, self.count)

    def _unpacked(self) -> dict[int, int]:
        if self._found is None:
            numbers = [read_long(data, 0)[0] for data in _VARINT.findall(self.data)]
            self._found = dict(zip(numbers[::2], numbers[1::2], strict=True))
        return self._found


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """A number and the place after it."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value = byte & 0x7F
    shift = 7
    for place in range(at, at + _LONGEST - 1):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), place + 1
        shift += 7
    raise Damaged(f"no number at byte {at}")


def reader_of(schema: Schema) -> Reader:
    """How values of a schema are read; raises IndexError or ValueError where the data is damaged.

    Raises:
        NotSupported: the schema has a type that Avro does not define.
    """
    return _reader(schema, {})


def _reader(schema: Schema, names: dict[str, Reader]) -> Reader:
    if isinstance(schema, list):
        return _union_reader([_reader(part, names) for part in schema], schema)
    if isinstance(schema, str):
        found = _READERS.get(schema) or names.get(schema)
        if found is None:
            raise unknown_type(schema)
        return found
    kind = schema["type"]
    if kind in RECORD_KINDS:
        made = _record_reader([(field["name"], _reader(field["type"], names)) for field in schema["fields"]])
    elif kind == "array":
        made = _array_reader(schema["items"], names)
    elif kind == "map":
        made = _map_reader(_reader(schema["values"], names))
    elif kind == "fixed":
        made = _fixed_reader(schema["size"])
    elif kind == "enum":
        made = _enum_reader(schema["symbols"])
    else:
        return _reader(kind, names)
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
        raise Damaged(f"{size} bytes at byte {at}")
    return data[at:end], end


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    value, at = _read_bytes(data, at)
    return value.decode(), at


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    return _struct("<f", data, at), at + 4


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    return _struct("<d", data, at), at + 8


def _struct(form: str, data: bytes, at: int) -> float:
    try:
        value: float = struct.unpack_from(form, data, at)[0]
    except struct.error as error:
        raise Damaged(str(error)) from error
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


def _record_reader(fields: Sequence[tuple[str, Reader]]) -> Reader:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        record = {}
        for name, read_field in fields:
            record[name], at = read_field(data, at)
        return record, at

    return read


def _union_reader(options: Sequence[Reader], schema: Sequence[Schema]) -> Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        option, at = read_long(data, at)
        if not 0 <= option < len(options):
            raise Damaged(f"option {option} of {len(options)} at byte {at}")
        return options[option](data, at)

    if len(options) != 2 or schema[0] != "null":
        return read
    read_value = options[1]

    def read_optional(data: bytes, at: int) -> tuple[Any, int]:
        option = data[at]
        if option == 2:
            return read_value(data, at + 1)
        if option:
            raise Damaged(f"an option that does not exist at byte {at}")
        return None, at + 1

    return read_optional


def _fixed_reader(size: int) -> Reader:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(data):
            raise Damaged(f"{size} bytes at byte {at}")
        return data[at:end], end

    return read


def _enum_reader(symbols: Sequence[str]) -> Reader:
    def read(data: bytes, at: int) -> tuple[str, int]:
        place, at = read_long(data, at)
        if place < 0:
            raise Damaged(f"symbol {place} at byte {at}")
        return symbols[place], at

    return read


def _array_reader(items: Schema, names: dict[str, Reader]) -> Reader:
    match pair_kind(items):
        case "long":
            _reader(items, names)  # its name may be used again
            return _pairs_reader(_long_pairs())
        case "bytes":
            _reader(items, names)
            return _pairs_reader(_read_bytes_pairs)
    read_item = _reader(items, names)

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, at = _block(data, at)
            if not count:
                return found, at
            for _ in range(count):
                item, at = read_item(data, at)
                found.append(item)

    return read


def _map_reader(read_value: Reader) -> Reader:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while True:
            count, at = _block(data, at)
            if not count:
                return found, at
            for _ in range(count):
                key, at = _read_string(data, at)
                found[key], at = read_value(data, at)

    return read


def pair_kind(items: Schema) -> str | None:
    """What the values are if items are pairs of a map with integer keys: ``long``, ``bytes`` or neither."""
    if not isinstance(items, Mapping) or items["type"] not in RECORD_KINDS:
        return None
    fields = items["fields"]
    if [field["name"] for field in fields] != ["key", "value"] or fields[0]["type"] not in ("int", "long"):
        return None
    value = fields[1]["type"]
    return {"int": "long", "long": "long", "bytes": "bytes"}.get(value if isinstance(value, str) else "")


def _block(data: bytes, at: int) -> tuple[int, int]:
    count, at = read_long(data, at)
    if count < 0:
        _, at = read_long(data, at)  # the bytes of the block, for those who skip it
        return -count, at
    return count, at


def _pairs_reader(read_pairs: Callable[[bytes, int, int], tuple[Mapping[int, Any], int]]) -> Reader:
    def read(data: bytes, at: int) -> tuple[Mapping[int, Any], int]:
        count, at = _block(data, at)
        if not count:
            return {}, at
        found, at = read_pairs(data, at, count)
        while data[at]:  # most writers make one block
            count, at = _block(data, at)
            more, at = read_pairs(data, at, count)
            found = {**found, **more}
        return found, at + 1

    return read


def _long_pairs() -> Callable[[bytes, int, int], tuple[PackedNumbers, int]]:
    spans: dict[int, re.Pattern[bytes]] = {}

    def read(data: bytes, at: int, count: int) -> tuple[PackedNumbers, int]:
        span = spans.get(count)
        if span is None:
            if count > len(data):
                raise Damaged(f"{count} pairs at byte {at}")
            span = spans[count] = re.compile(rb"(?:[\x80-\xff]{0,9}[\x00-\x7f]){%d}" % (2 * count))
        match = span.match(data, at)
        if match is None:
            raise Damaged(f"{count} pairs at byte {at}")
        return PackedNumbers(match[0], count), match.end()

    return read


def _read_bytes_pairs(data: bytes, at: int, count: int) -> tuple[dict[int, bytes], int]:
    found = {}
    for _ in range(count):
        key, size = data[at], data[at + 1]
        if key < 0x80 and size < 0x80:  # one byte each, as nearly always
            key, size, at = (key >> 1) ^ -(key & 1), (size >> 1) ^ -(size & 1), at + 2
        else:
            key, at = read_long(data, at)
            size, at = read_long(data, at)
        end = at + size
        if size < 0:
            raise Damaged(f"{size} bytes at byte {at}")
        found[key] = data[at:end]
        at = end
    if at > len(data):
        raise Damaged("a map that goes beyond its block")
    return found, at


def unknown_type(name: str) -> NotSupported:
    return NotSupported(f"the Avro type {name!r}", hint="the file was written for a newer format version")
