"""Maps of a manifest's entries that stay as Avro has written them until they are asked for.

Of most files of a manifest they never are; the codec that reads everything else is in ``avro_codec``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

_VARINT = re.compile(rb"[\x80-\xff]*[\x00-\x7f]")
_MAX_VARINT_BYTES = 10


class DamagedAvro(ValueError):
    """Data that is not what its schema says."""


class PackedNumbers(Mapping[int, int]):
    """A map of integers that is decoded when it is first used; for most files of a manifest it never is."""

    __slots__ = ("_found", "count", "data")

    def __init__(self, data: bytes, count: int) -> None:
        self.data = data
        """The pairs, as Avro writes them one after another."""
        self.count = count
        self._found: dict[int, int] | None = None

    def __getitem__(self, key: int) -> int:
        return self._unpack()[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._unpack())

    def __len__(self) -> int:
        return len(self._unpack())

    def __bool__(self) -> bool:
        return self.count > 0

    def __repr__(self) -> str:
        return repr(self._unpack())

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedNumbers, (self.data, self.count)

    def peek(self, key: int) -> int | None:
        """The number of a key, which leaves the others packed; None where there is none."""
        return (_decode_numbers(self.data) if self._found is None else self._found).get(key)

    def _unpack(self) -> dict[int, int]:
        if self._found is None:
            self._found = dict(_decode_numbers(self.data))
        return self._found


@lru_cache(maxsize=64)
def _decode_numbers(data: bytes) -> Mapping[int, int]:
    """Pairs of a map; remembered, since many files have the same (no NULL anywhere, one number of rows)."""
    numbers = [read_long(one, 0)[0] for one in _VARINT.findall(data)]
    return dict(zip(numbers[::2], numbers[1::2], strict=True))


class PackedBytes(Mapping[int, bytes]):
    """A map of bytes that stays packed: of the bounds of a file mostly one column's are looked at."""

    __slots__ = ("count", "data")

    def __init__(self, data: bytes, count: int) -> None:
        self.data = data
        """The pairs, as Avro writes them one after another."""
        self.count = count

    def __getitem__(self, key: int) -> bytes:
        return self._unpack()[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._unpack())

    def __len__(self) -> int:
        return len(self._unpack())

    def __bool__(self) -> bool:
        return self.count > 0

    def __repr__(self) -> str:
        return repr(self._unpack())

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedBytes, (self.data, self.count)

    def get(self, key: int, default: Any = None) -> Any:
        """The bytes of a key, without unpacking the others."""
        data, at, wanted, found = self.data, 0, key << 1, default
        for _ in range(self.count):
            number, size = data[at], data[at + 1]
            if number < 0x80 and size < 0x80:  # one byte each, as nearly always
                at += 2
            else:
                number, at = read_long(data, at)
                size, at = read_long(data, at)
                number, size = number << 1, size << 1
            end = at + (size >> 1)
            if number == wanted:
                found = data[at:end]
            at = end
        return found

    def _unpack(self) -> dict[int, bytes]:
        found, at = {}, 0
        for _ in range(self.count):
            key, at = read_long(self.data, at)
            size, at = read_long(self.data, at)
            found[key] = self.data[at : at + size]
            at += size
        return found


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """An integer and the offset after it."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value = byte & 0x7F
    shift = 7
    for place in range(at, at + _MAX_VARINT_BYTES - 1):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), place + 1
        shift += 7
    raise DamagedAvro(f"no number at byte {at}")
