"""UUIDs: which types hold them, and texts of them as their sixteen bytes."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["UUID", "holds_uuids", "is_uuid", "uuid_bytes", "uuids_of_text"]

UUID = pa.uuid()
_BYTES = 16
_SHAPE = r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"
_PAIRS = pa.array([f"{number:02x}" for number in range(256)])


def is_uuid(kind: pa.DataType) -> bool:
    """Whether a type is that of UUIDs."""
    return isinstance(kind, pa.UuidType)


def holds_uuids(kind: pa.DataType) -> bool:
    """Whether a column of the type may hold UUIDs: their own type, or sixteen bytes, as Iceberg has them."""
    return is_uuid(kind) or (pa.types.is_fixed_size_binary(kind) and kind.byte_width == _BYTES)


def uuid_bytes(text: str) -> bytes | None:
    """The bytes of a UUID; None where the text is none."""
    try:
        return uuid.UUID(text.strip()).bytes
    except ValueError:
        return None


def uuids_of_text(texts: Any) -> Any:
    """Texts, an array or a scalar, as the bytes of the UUIDs they name; pa.ArrowInvalid for other texts."""
    if isinstance(texts, pa.Scalar):
        return uuids_of_text(pa.array([texts.as_py()], pa.string()))[0]
    plain = pc.utf8_lower(pc.utf8_trim_whitespace(pc.cast(texts, pa.string())))
    wrong = pc.invert(pc.fill_null(pc.match_substring_regex(plain, _SHAPE), True))
    if pc.any(wrong, min_count=0).as_py():
        raise pa.ArrowInvalid(f"{plain.filter(wrong)[0].as_py()!r} is no UUID")
    if isinstance(plain, pa.ChunkedArray):
        plain = plain.combine_chunks()
    count = len(plain)
    digits = pc.replace_substring(pc.fill_null(plain, "00" * _BYTES), "-", "")
    columns = [
        pc.index_in(pc.utf8_slice_codeunits(digits, 2 * at, 2 * at + 2), value_set=_PAIRS).cast(pa.uint8())
        for at in range(_BYTES)
    ]
    # Byte by byte of all values: brought to all bytes of value by value.
    number = _counted(_BYTES * count)
    places = pc.add(pc.multiply(pc.bit_wise_and(number, _BYTES - 1), count), pc.shift_right(number, 4))
    data = pa.concat_arrays(columns).take(places)
    valid = None if not plain.null_count else plain.is_valid().buffers()[1]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(_BYTES), count, [valid, data.buffers()[1]])


def _counted(count: int) -> pa.Array:
    """The numbers from 0 on."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), 1)
