"""The elements of a Parquet file's schema: how its writer spelled the columns; no file is opened here.

Physical type, logical and converted type, repetition, names of groups and field ids are all in there. Two
columns may hold the same values and be spelled in ways that readers take for different types.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from intarsia.common.int96 import arrow_schema
from intarsia.common.thrift import I32, Struct, get, read_until

__all__ = [
    "Elements",
    "Leaf",
    "elements_of",
    "elements_of_files",
    "footer_of",
    "leaves_of",
    "same_leaves",
    "with_repetition",
]

SCHEMA = 2
TYPE, LENGTH, REPETITION, NAME, CHILDREN, CONVERTED, LOGICAL = 1, 2, 3, 4, 5, 6, 10
INT32, INT64, INT96, BYTE_ARRAY, FIXED = 1, 2, 3, 6, 7
REQUIRED = 0
_KNOWN = 8
_DECIMAL, _INTERVAL = 5, 21
_UNSIGNED = frozenset({11, 12, 13, 14})
"""Converted types of integers without a sign."""
_LOGICAL_DECIMAL, _LOGICAL_INTEGER, _LOGICAL_FLOAT16 = 5, 10, 15
_SHAPELESS = frozenset({17, 18})
"""Geometry and geography, whose values have no order."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of the schema: what its values are stored as, and where it hangs."""

    path: tuple[str, ...]
    element: Struct
    levels: tuple[int, ...]
    """The repetition of all above it and its own, less what is required: readers count levels by it."""

    @property
    def physical(self) -> tuple[int, int | None]:
        """The physical type, and the length of one that is fixed."""
        kind = int(get(self.element, TYPE, -1))
        return kind, get(self.element, LENGTH) if kind == FIXED else None

    @property
    def is_interval(self) -> bool:
        return bool(get(self.element, CONVERTED) == _INTERVAL)

    @property
    def is_decimal(self) -> bool:
        """Whether it holds decimals, whatever they are stored as."""
        return bool(get(self.element, CONVERTED) == _DECIMAL) or self._logical() == _LOGICAL_DECIMAL

    @property
    def order(self) -> str | None:
        """How values compare, for bounds; None where they do not."""
        logical, converted = self._logical(), get(self.element, CONVERTED)
        kind = self.physical[0]
        if converted == _INTERVAL or logical in _SHAPELESS:
            return None
        if kind in (BYTE_ARRAY, FIXED):
            signed = self.is_decimal or logical == _LOGICAL_FLOAT16
            return "signed" if signed else "unsigned"
        if logical == _LOGICAL_INTEGER:
            return "signed" if get(get(self.element, LOGICAL)[logical][1], 2, True) else "unsigned"
        return "unsigned" if converted in _UNSIGNED else "signed"

    def _logical(self) -> int | None:
        return next(iter(get(self.element, LOGICAL, {})), None)


@dataclass(frozen=True, slots=True)
class Elements:
    """The schema's elements of a file, by top-level column, and the columns as Arrow reads them."""

    root: Struct
    columns: Mapping[str, tuple[Struct, ...]]
    schema: pa.Schema

    def leaves(self, column: str) -> list[Leaf]:
        return leaves_of(self.columns[column])


def elements_of(footer: pq.FileMetaData) -> Elements | None:
    """The elements of a file; None where two of its columns share a name."""
    root, columns = _parse_footer(bytes(footer_of(footer)))
    if len(columns) != get(root, CHILDREN, 0):
        return None
    return Elements(root, columns, arrow_schema(footer))


def elements_of_files(footers: Sequence[pq.FileMetaData], *, int96: bool = True) -> Elements | None:
    """The elements of the first file, and of columns that it lacks those of the next that has them.

    Without ``int96``, columns that hold INT96 are left out.
    """
    found: Elements | None = None
    for footer in footers:
        more = elements_of(footer)
        if more is None or found is None:
            found = found or more
            continue
        new = [name for name in more.columns if name not in found.columns]
        columns = {**found.columns, **{name: more.columns[name] for name in new}}
        fields = [*found.schema, *(more.schema.field(name) for name in new)]
        found = Elements(found.root, columns, pa.schema(fields, found.schema.metadata))
    if found is None or int96:
        return found
    kept = {name: each for name, each in found.columns.items() if not _holds_int96(each)}
    return replace(found, columns=kept)


def _holds_int96(elements: Sequence[Struct]) -> bool:
    return any(get(element, TYPE) == INT96 for element in elements)


def footer_of(footer: pq.FileMetaData) -> memoryview:
    """The bytes of a footer, without its length and the magic number."""
    sink = pa.BufferOutputStream()
    footer.write_metadata_file(sink)
    view = memoryview(sink.getvalue()).cast("B")
    (size,) = struct.unpack("<I", view[-8:-4])
    return view[-8 - size : -8]


def split(elements: Sequence[Struct]) -> tuple[Struct, dict[str, tuple[Struct, ...]]]:
    """The root, and the elements of each top-level column."""
    columns: dict[str, tuple[Struct, ...]] = {}
    at = 1
    while at < len(elements):
        end = _end(elements, at)
        columns[get(elements[at], NAME).decode()] = tuple(elements[at:end])
        at = end
    return elements[0], columns


_last_parsed: list[tuple[bytes, tuple[Struct, dict[str, tuple[Struct, ...]]]]] = []


def _parse_footer(raw: bytes) -> tuple[Struct, dict[str, tuple[Struct, ...]]]:
    """The elements that a footer begins with; files of a dataset mostly share theirs, read once."""
    for known, found in _last_parsed:
        if raw.startswith(known):
            return found
    fields, end = read_until(raw, SCHEMA)
    found = split(get(fields, SCHEMA)[1])
    _last_parsed[:] = [(raw[:end], found), *_last_parsed[:_KNOWN]]
    return found


def leaves_of(elements: Sequence[Struct]) -> list[Leaf]:
    """The leaves of one top-level column, depth first."""
    found = list(_walk(elements, 0, (), ()))
    return [leaf for leaf, _ in found if leaf is not None]


def _walk(
    elements: Sequence[Struct], at: int, path: tuple[str, ...], levels: tuple[int, ...]
) -> Iterator[tuple[Leaf | None, int]]:
    """The leaves below an element, each with where the next one stands."""
    element = elements[at]
    path = (*path, get(element, NAME).decode())
    repetition = get(element, REPETITION, REQUIRED)
    levels = levels if repetition == REQUIRED else (*levels, repetition)
    children = get(element, CHILDREN, 0)
    at += 1
    if not children:
        yield Leaf(path, element, levels), at
        return
    for _ in range(children):
        for leaf, at in _walk(elements, at, path, levels):  # noqa: B020 the last is where the next child is
            yield leaf, at


def _end(elements: Sequence[Struct], at: int) -> int:
    """Where the element after this one and all below it stands."""
    children = get(elements[at], CHILDREN, 0)
    at += 1
    for _ in range(children):
        at = _end(elements, at)
    return at


def same_leaves(some: Sequence[Struct], others: Sequence[Struct]) -> bool:
    """Whether chunks of a column that is spelled in one way are chunks of it in the other way, too."""
    ours, theirs = leaves_of(some), leaves_of(others)
    return [(leaf.physical, leaf.levels) for leaf in ours] == [
        (leaf.physical, leaf.levels) for leaf in theirs
    ]


def with_repetition(elements: Sequence[Struct], like: Sequence[Struct]) -> tuple[Struct, ...] | None:
    """Elements ``like`` those of a column with the repetition it is written with; None where more differs."""
    if [get(one, CHILDREN, 0) for one in elements] != [get(one, CHILDREN, 0) for one in like]:
        return None
    changed = tuple(
        {**theirs, REPETITION: (I32, get(ours, REPETITION, REQUIRED))}
        for ours, theirs in zip(elements, like, strict=True)
    )
    return changed if same_leaves(elements, changed) else None
