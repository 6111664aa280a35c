"""Thrift's compact protocol, as Parquet uses it: bytes to structs and back, without knowing their meaning.

A struct is a dict from field number to ``(kind, value)``; a list is ``(kind of its items, items)``.
What was read is written back with every field it had, also those of a later format.
"""

from __future__ import annotations

from typing import Any

TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

_LONGEST_VARINT = 70
Struct = dict[int, tuple[int, Any]]


def get(struct: Struct, field: int, default: Any = None) -> Any:
    """The value of a field, which may be absent."""
    found = struct.get(field)
    return default if found is None else found[1]


def read_struct(data: bytes | memoryview, at: int = 0) -> tuple[Struct, int]:
    """The struct that begins at ``at``, and where it ends; ValueError where there is none."""
    try:
        return _read_struct(data, at)
    except IndexError:
        raise ValueError("the data ends within a struct") from None
    except RecursionError:
        raise ValueError("structs within structs without end") from None


def read_until(data: bytes | memoryview, field: int) -> tuple[Struct, int]:
    """The fields of a struct up to one of them, and where that ends; ValueError where there is none."""
    try:
        return _read_struct(data, 0, until=field)
    except IndexError:
        raise ValueError("the data ends within a struct") from None


def write_struct(struct: Struct) -> bytes:
    """The struct as bytes."""
    out = bytearray()
    _write_struct(struct, out)
    return bytes(out)


def _read_struct(data: bytes | memoryview, at: int, until: int | None = None) -> tuple[Struct, int]:
    fields: Struct = {}
    number = 0
    while until is None or number < until:
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _read_integer(data, at)
        if kind <= FALSE:  # the kind is the value
            fields[number] = (kind, kind == TRUE)
        else:
            value, at = _read_value(data, at, kind)
            fields[number] = (kind, value)
    return fields, at


def _read_value(data: bytes | memoryview, at: int, kind: int) -> tuple[Any, int]:
    if I16 <= kind <= I64:
        return _read_integer(data, at)
    if kind == BINARY:
        size, at = _read_varint(data, at)
        return _read_bytes(data, at, size)
    if kind == STRUCT:
        return _read_struct(data, at)
    if kind in (LIST, SET):
        head = data[at]
        size, at = (head >> 4, at + 1) if head >> 4 < 15 else _read_varint(data, at + 1)
        items = []
        for _ in range(size):
            item, at = _read_value(data, at, head & 15)
            items.append(item)
        return (head & 15, items), at
    if kind in (TRUE, FALSE, I8):  # of a list: one byte each
        return data[at], at + 1
    if kind == DOUBLE:
        return _read_bytes(data, at, 8)
    raise ValueError(f"a value of unknown kind {kind}")


def _read_bytes(data: bytes | memoryview, at: int, size: int) -> tuple[bytes, int]:
    value = bytes(data[at : at + size])
    if len(value) < size:
        raise ValueError("the data ends within a value")
    return value, at + size


def _read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    byte = data[at]
    value, shift = byte & 127, 7
    while byte > 127:
        at += 1
        byte = data[at]
        value |= (byte & 127) << shift
        shift += 7
        if shift > _LONGEST_VARINT:
            raise ValueError("an integer without end")
    return value, at + 1


def _read_integer(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _write_struct(struct: Struct, out: bytearray) -> None:
    last = 0
    for number in sorted(struct):
        kind, value = struct[number]
        if 0 < number - last < 16:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            _write_integer(number, out)
        last = number
        if kind > FALSE:
            _write_value(kind, value, out)
    out.append(0)


def _write_value(kind: int, value: Any, out: bytearray) -> None:
    if I16 <= kind <= I64:
        _write_integer(value, out)
    elif kind == BINARY:
        _write_varint(len(value), out)
        out += value
    elif kind == STRUCT:
        _write_struct(value, out)
    elif kind in (LIST, SET):
        items, inner = value[1], value[0]
        if len(items) < 15:
            out.append(len(items) << 4 | inner)
        else:
            out.append(15 << 4 | inner)
            _write_varint(len(items), out)
        for item in items:
            _write_value(inner, item, out)
    elif kind == DOUBLE:
        out += value
    else:
        out.append(value)


def _write_varint(value: int, out: bytearray) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _write_integer(value: int, out: bytearray) -> None:
    _write_varint(value << 1 if value >= 0 else ~(value << 1), out)
