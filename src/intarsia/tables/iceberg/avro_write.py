"""Writing values in Avro's binary encoding: a schema is compiled to a function, as for reading."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from intarsia.errors import NotSupported
from intarsia.tables.iceberg.avro_read import (
    RECORD_KINDS,
    Damaged,
    PackedNumbers,
    Schema,
    pair_kind,
    unknown_type,
)

Writer = Callable[[bytearray, Any], None]
"""Takes what was written so far, and a value."""


class _Encoded(dict[int, bytes]):
    """The bytes of small numbers by the number."""

    def __missing__(self, value: int) -> bytes:
        data = encode_long(value)
        if -0x8000 <= value < 0x8000:
            self[value] = data
        return data


_ENCODED = _Encoded()


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


def writer_of(schema: Schema) -> Writer:
    """How values of a schema are written; fields that a record does not have are written as None.

    Raises:
        NotSupported: the schema has a type that Avro does not define.
    """
    return _writer(schema, {})


def _writer(schema: Schema, names: dict[str, Writer]) -> Writer:
    if isinstance(schema, list):
        return _union_writer([_writer(part, names) for part in schema], schema)
    if isinstance(schema, str):
        found = _WRITERS.get(schema) or names.get(schema)
        if found is None:
            raise unknown_type(schema)
        return found
    kind = schema["type"]
    if kind in RECORD_KINDS:
        made = _record_writer([(field["name"], _writer(field["type"], names)) for field in schema["fields"]])
    elif kind == "array":
        made = _array_writer(schema["items"], names)
    elif kind == "map":
        made = _map_writer(_writer(schema["values"], names))
    elif kind == "fixed":
        made = _fixed_writer(schema["size"])
    elif kind == "enum":
        made = _enum_writer(schema["symbols"])
    else:
        return _writer(kind, names)
    if "name" in schema:
        names[schema["name"]] = made
    return made


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


def _record_writer(fields: Sequence[tuple[str, Writer]]) -> Writer:
    def write(out: bytearray, record: Mapping[str, Any]) -> None:
        get = record.get
        for name, write_field in fields:
            write_field(out, get(name))

    return write


def _union_writer(options: Sequence[Writer], schema: Sequence[Schema]) -> Writer:
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


def _fixed_writer(size: int) -> Writer:
    def write(out: bytearray, value: bytes) -> None:
        if len(value) != size:
            raise Damaged(f"{len(value)} bytes where {size} belong")
        out += value

    return write


def _enum_writer(symbols: Sequence[str]) -> Writer:
    def write(out: bytearray, value: str) -> None:
        out += _ENCODED[symbols.index(value)]

    return write


def _array_writer(items: Schema, names: dict[str, Writer]) -> Writer:
    kind = pair_kind(items)
    if kind is not None:
        return _pairs_writer(_write_long if kind == "long" else _write_bytes)
    write_item = _writer(items, names)

    def write(out: bytearray, values: Sequence[Any]) -> None:
        if values:
            out += _ENCODED[len(values)]
            for value in values:
                write_item(out, value)
        out.append(0)

    return write


def _pairs_writer(write_value: Writer) -> Writer:
    def write(out: bytearray, values: Mapping[int, Any]) -> None:
        if isinstance(values, PackedNumbers):
            out += _ENCODED[values.count]
            out += values.data
        elif values:
            out += _ENCODED[len(values)]
            for key, value in values.items():
                out += _ENCODED[key]
                write_value(out, value)
        out.append(0)

    return write


def _map_writer(write_value: Writer) -> Writer:
    def write(out: bytearray, values: Mapping[str, Any]) -> None:
        if values:
            out += _ENCODED[len(values)]
            for key, value in values.items():
                _write_string(out, key)
                write_value(out, value)
        out.append(0)

    return write
