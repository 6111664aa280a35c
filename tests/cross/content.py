"""What data files and delete files hold, by field id; kept, since files never change."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tests.cross.lake import local

PATH_ID, POS_ID, ROW_ID, LAST_UPDATED_ID = 2147483546, 2147483545, 2147483540, 2147483539
_VECTOR_MAGIC = bytes.fromhex("d1d33964")


@dataclass(frozen=True)
class Content:
    """A Parquet file: its size, row count, and the columns outside lists and maps, by field id."""

    size: int
    rows: int
    columns: Mapping[int, list[Any]]


@lru_cache(maxsize=20_000)
def read(path: str) -> Content:
    place = local(path)
    with pq.ParquetFile(place) as file:
        table = file.read()
    return Content(place.stat().st_size, table.num_rows, dict(_leaves(table)))


def _leaves(table: pa.Table) -> Iterator[tuple[int, list[Any]]]:
    for field, column in zip(table.schema, table.columns, strict=True):
        yield from _below(field, column.combine_chunks())


def _below(field: pa.Field, array: Any) -> Iterator[tuple[int, list[Any]]]:
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], field.type)
    if pa.types.is_struct(field.type):
        for place, inner in enumerate(field.type):
            yield from _below(inner, pc.struct_field(array, place))  # null where the struct is
    elif not pa.types.is_nested(field.type):
        number = (field.metadata or {}).get(b"PARQUET:field_id")
        if number is not None:
            yield int(number), array.to_pylist()


@lru_cache(maxsize=20_000)
def vector(path: str, offset: int, size: int) -> tuple[frozenset[int], str]:
    """The positions of a deletion vector, and what is wrong with its frame."""
    blob = local(path).read_bytes()[offset : offset + size]
    length = struct.unpack(">I", blob[:4])[0]
    inside = blob[4 : 4 + length]
    wrong = ""
    if length != size - 8:
        wrong = f"its length says {length}, its entry {size}"
    elif inside[:4] != _VECTOR_MAGIC:
        wrong = "no magic bytes"
    elif struct.unpack(">I", blob[-4:])[0] != zlib.crc32(inside):
        wrong = "the checksum differs"
    return frozenset(BitMap64.deserialize(inside[4:])) if not wrong else frozenset(), wrong


@lru_cache(maxsize=20_000)
def puffin_footer(path: str) -> tuple[Mapping[str, Any], str]:
    """The footer of a Puffin file, and what is wrong with it."""
    data = local(path).read_bytes()
    if data[:4] != b"PFA1" or data[-4:] != b"PFA1":
        return {}, "no magic bytes"
    length = struct.unpack("<i", data[-12:-8])[0]
    start = len(data) - 12 - length
    if data[start - 4 : start] != b"PFA1":
        return {}, "no magic bytes before the footer"
    if data[-8] & 1:
        return {}, "the footer is compressed"
    return json.loads(data[start:-12]), ""


def positions(path: str) -> tuple[list[tuple[str, int]], list[int]]:
    """The pairs of a position delete file, in its order, and the field ids it has."""
    found = read(path).columns
    pairs = list(zip(found.get(PATH_ID, ()), found.get(POS_ID, ()), strict=True))
    return pairs, sorted(found)


def single_value(kind: Any, data: bytes) -> Any:
    """A bound, by the type the table has now: an older and narrower one is told by its length."""
    match kind:
        case "boolean":
            return data != b"\0"
        case (
            "int" | "long" | "date" | "time" | "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns"
        ):
            return int.from_bytes(data, "little", signed=True)
        case "float" | "double":
            return struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
        case "string":
            return data.decode()
        case str() if kind.startswith("decimal"):
            scale = int(kind.rstrip(")").split(",")[1])
            return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale)
        case _:
            return data


def field_types(schemas: list[Mapping[str, Any]]) -> dict[int, Any]:
    """The newest type of every field that any of the schemas has."""
    found: dict[int, Any] = {}

    def walk(kind: Any, number: int | None) -> None:
        if number is not None:
            found[number] = kind if isinstance(kind, str) else kind["type"]
        match kind:
            case {"type": "struct", "fields": fields}:
                for one in fields:
                    walk(one["type"], one["id"])
            case {"type": "list"}:
                walk(kind["element"], kind["element-id"])
            case {"type": "map"}:
                walk(kind["key"], kind["key-id"])
                walk(kind["value"], kind["value-id"])

    for schema in sorted(schemas, key=lambda one: one["schema-id"]):
        walk(schema, None)
    return found
