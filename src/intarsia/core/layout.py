"""The layout of a Parquet file, read from its footer, so that a rewrite can keep it; no file is opened here.

That is codecs, pages and row groups (:class:`Layout`), and the elements of the schema as the writer spelled
them (:class:`Elements`): physical, logical and converted type, repetition, names of groups and field ids. Two
columns may hold the same values and be spelled in ways that readers take for different types.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from intarsia.common.int96 import (
    correct_metadata,
    find_int96_columns,
    list_leaf_types,
    read_arrow_schema,
)
from intarsia.common.thrift import I32, Struct, get, read_until

__all__ = [
    "DEFAULT_ROW_GROUP_ROWS",
    "Elements",
    "Layout",
    "Leaf",
    "has_same_leaves",
    "list_leaf_columns",
    "list_leaves",
    "read_elements",
    "read_elements_of_files",
    "read_layout",
    "serialize_footer",
    "with_repetition",
]

DEFAULT_ROW_GROUP_ROWS = 1 << 20
_BLOOM_FPP = 0.05
_CODECS = {"UNCOMPRESSED": "none", "LZ4_RAW": "lz4", "UNKNOWN": "snappy", "LZO": "snappy"}
"""Codecs that the writer spells differently, and a substitute for those it cannot write."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file is laid out; columns are named by their leaf's path (``a``, ``p.amt``, ``l.list.element``).

    The defaults are those of a file that replaces none.
    """

    compression: str = "snappy"
    """The codec of most columns, and of columns that are new."""
    compression_of: Mapping[str, str] = field(default_factory=dict)
    """The codec of the columns that have another."""
    compression_level: int | None = None
    """For all columns; None is the codec's own."""
    page_bytes: int | None = None
    page_rows: int | None = None
    dictionary_bytes: int | None = None
    """The most a page, and a dictionary, may grow to; None leaves it to the writer."""
    row_group_rows: int = DEFAULT_ROW_GROUP_ROWS
    row_group_bytes: int | None = None
    """About how large a row group may be as stored, where the table says so."""
    row_bytes: float | None = None
    """About how large a row is as stored, where it is known before any is written."""
    sorting: tuple[tuple[str, bool, bool], ...] = ()
    """Column, descending, NULLs first: the order every row group declares."""
    page_index: bool = False
    bloom_filters: Mapping[str, int] = field(default_factory=dict)
    """Column to the number of distinct values its filter was made for."""
    key_value_metadata: Mapping[bytes, bytes] = field(default_factory=dict)
    plain: frozenset[str] = frozenset()
    """Columns written without a dictionary."""
    byte_stream_split: frozenset[str] = frozenset()
    int96_timestamps: bool = False
    converts_int96: bool = False
    """INT96 columns are not kept, but become timestamps of microseconds in UTC."""
    integer_decimals: bool = False
    utc_times: bool = False
    item_lists: bool = False
    """List elements are called ``item``, as old writers did."""
    like: tuple[pq.FileMetaData, ...] = field(default=(), compare=False, repr=False)
    """Footers of files whose schema elements are kept; a column's are those of the first file that has it."""
    keeps_root: bool = True
    """Whether the name of the schema's root is always kept, or only where elements of columns are."""

    def allows_dictionary(self, column: str) -> bool:
        """Whether a leaf column may have a dictionary: unless the file had the column without one."""
        return column not in self.plain

    def with_compression(self, codec: str) -> Layout:
        """The same layout with one codec for all columns."""
        return replace(self, compression=codec, compression_of={}, compression_level=None)

    def with_row_group_rows(self, rows: int) -> Layout:
        """The same layout with row groups of so many rows, however large they are."""
        return replace(self, row_group_rows=rows, row_group_bytes=None)

    def without_int96(self) -> Layout:
        """The same layout with timestamps in the place of INT96 columns."""
        return replace(self, int96_timestamps=False, converts_int96=True)

    def with_like(self, footers: Iterable[pq.FileMetaData | None], columns: Iterable[str]) -> Layout:
        """The same with the footers of more files, for columns that none so far has."""
        like, missing = list(self.like), set(columns)
        for footer in self.like:
            missing -= _list_top_level(footer)
        for footer in footers if missing else ():
            if footer is not None and missing & (found := _list_top_level(footer)):
                like.append(footer)
                missing -= found
            if not missing:
                break
        return replace(self, like=tuple(like))

    def rename_leaves(self, paths: Mapping[str, str]) -> Layout:
        """The same with the paths of some leaves spelled in another way."""

        def get_new_path(path: str) -> str:
            return paths.get(path, path)

        return replace(
            self,
            compression_of={get_new_path(path): codec for path, codec in self.compression_of.items()},
            sorting=tuple((get_new_path(path), down, nulls) for path, down, nulls in self.sorting),
            bloom_filters={get_new_path(path): count for path, count in self.bloom_filters.items()},
            plain=frozenset(map(get_new_path, self.plain)),
            byte_stream_split=frozenset(map(get_new_path, self.byte_stream_split)),
        )

    def for_new_file(self) -> Layout:
        """The layout of a new file: without sort order, dictionary choices and key-value metadata."""
        return replace(self, sorting=(), key_value_metadata={}, plain=frozenset())

    def make_sort_keys(self, schema: pa.Schema) -> list[tuple[str, str, str]]:
        """The declared order as sort keys, up to the first that is no flat column of ``schema``."""
        keys = []
        for name, descending, nulls_first in self.sorting:
            if name not in schema.names or pa.types.is_nested(schema.field(name).type):
                break
            order = "descending" if descending else "ascending"
            keys.append((name, order, "at_start" if nulls_first else "at_end"))
        return keys

    def make_writer_options(self, schema: pa.Schema, *, dictionary_columns: Sequence[str]) -> dict[str, Any]:
        """Keyword arguments of ``pq.ParquetWriter`` for a file of this schema.

        Args:
            schema: the columns to be written, which may differ from those the layout was read from.
            dictionary_columns: leaf columns that get a dictionary.
        """
        leaves = list_leaf_columns(schema, element="item" if self.item_lists else "element")
        dictionary = [name for name in dictionary_columns if name in leaves]
        split = sorted(self.byte_stream_split.intersection(leaves) - set(dictionary))
        return {
            "version": "2.6",  # has the logical types of every version
            "compression": self._choose_codecs(leaves),
            "use_dictionary": dictionary or False,
            "use_byte_stream_split": split or False,
            "write_page_index": self.page_index,
            "write_page_checksum": True,
            "sorting_columns": self.make_sorting_columns(leaves),
            "bloom_filter_options": self._choose_bloom_filters(schema, leaves) or None,
            "use_deprecated_int96_timestamps": self.int96_timestamps,
            "store_decimal_as_integer": self.integer_decimals,
            "write_time_adjusted_to_utc": self.utc_times,
            "use_compliant_nested_type": not self.item_lists,
            **self._list_limits(),
        }

    def _choose_bloom_filters(self, schema: pa.Schema, leaves: Sequence[str]) -> dict[str, dict[str, float]]:
        """The options of the filters; booleans get none: parquet-mr writes one, PyArrow refuses to."""
        if not self.bloom_filters:
            return {}
        return {
            name: {"ndv": self.bloom_filters[name], "fpp": _BLOOM_FPP}
            for name, dtype in zip(leaves, list_leaf_types(schema), strict=True)
            if name in self.bloom_filters and not pa.types.is_boolean(dtype)
        }

    def _list_limits(self) -> dict[str, int]:
        limits = {
            "compression_level": self.compression_level,
            "data_page_size": self.page_bytes,
            "max_rows_per_page": self.page_rows,
            "dictionary_pagesize_limit": self.dictionary_bytes,
        }
        return {name: limit for name, limit in limits.items() if limit is not None}

    def _choose_codecs(self, leaves: Sequence[str]) -> str | dict[str, str]:
        if not any(name in leaves for name in self.compression_of):
            return self.compression
        return {name: self.compression_of.get(name, self.compression) for name in leaves}

    def make_sorting_columns(self, leaves: Sequence[str]) -> list[pq.SortingColumn] | None:
        """The order that row groups of these leaves declare; None for none."""
        columns = []
        for name, descending, nulls_first in self.sorting:
            if name not in leaves:
                break
            columns.append(pq.SortingColumn(leaves.index(name), descending, nulls_first))
        return columns or None


def read_layout(footer: pq.FileMetaData) -> Layout:
    """The layout of a file."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    metadata = read_key_value_metadata(footer)
    if not groups:
        return Layout(key_value_metadata=metadata, like=(footer,))
    chunks = [groups[0].column(number) for number in range(footer.num_columns)]
    names = [chunk.path_in_schema for chunk in chunks]
    codecs = [_CODECS.get(chunk.compression, chunk.compression.lower()) for chunk in chunks]
    usual = Counter(codecs).most_common(1)[0][0] if codecs else "snappy"
    leaves = [footer.schema.column(number) for number in range(footer.num_columns)]
    return Layout(
        compression=usual,
        compression_of={n: codec for n, codec in zip(names, codecs, strict=True) if codec != usual},
        row_group_rows=max(1, *(group.num_rows for group in groups)),
        sorting=_read_sorting(groups, names),
        page_index=any(chunk.has_offset_index or chunk.has_column_index for chunk in chunks),
        bloom_filters={
            c.path_in_schema: _estimate_distinct(c) for c in chunks if c.bloom_filter_offset is not None
        },
        key_value_metadata=metadata,
        like=(footer,),
        plain=frozenset(c.path_in_schema for c in chunks if not c.has_dictionary_page and c.num_values),
        byte_stream_split=frozenset(c.path_in_schema for c in chunks if "BYTE_STREAM_SPLIT" in c.encodings),
        **_read_type_choices(leaves),
    )


def read_key_value_metadata(footer: pq.FileMetaData) -> Mapping[bytes, bytes]:
    """The key-value metadata of a file, without the Arrow schema."""
    metadata = {key: value for key, value in (footer.metadata or {}).items() if key != b"ARROW:schema"}
    return correct_metadata(metadata) if find_int96_columns(footer.schema) else metadata


def _list_top_level(footer: pq.FileMetaData) -> set[str]:
    schema = footer.schema
    return {schema.column(number).path.split(".", 1)[0] for number in range(len(schema))}


def _read_sorting(groups: Sequence[Any], names: Sequence[str]) -> tuple[tuple[str, bool, bool], ...]:
    """The order that all row groups declare; none where they differ."""
    declared = {
        tuple((c.column_index, c.descending, c.nulls_first) for c in group.sorting_columns)
        for group in groups
    }
    if len(declared) != 1:
        return ()
    return tuple((names[index], descending, nulls) for index, descending, nulls in declared.pop())


def _estimate_distinct(chunk: Any) -> int:
    """The number of distinct values to size a Bloom filter for: the old filter's capacity, at least the rows.

    A split-block filter has a power of two bytes; the writer folds one that turns out too large.
    """
    size = chunk.bloom_filter_length or 1
    bits = 8 * 2 ** int(math.log2(size))
    room = int(-bits / 8 * math.log(1 - _BLOOM_FPP ** (1 / 8)))
    return max(1, room, chunk.num_values)


def _read_type_choices(leaves: Sequence[Any]) -> dict[str, bool]:
    """Choices of physical type that a writer makes for a whole file."""
    logical = [json.loads(leaf.logical_type.to_json()) for leaf in leaves]
    kinds = [(leaf.physical_type, kind.get("Type")) for leaf, kind in zip(leaves, logical, strict=True)]
    timestamps = [physical for physical, kind in kinds if physical == "INT96" or kind == "Timestamp"]
    decimals = [physical for physical, kind in kinds if kind == "Decimal"]
    times = [kind for kind in logical if kind.get("Type") == "Time"]
    paths = [leaf.path for leaf in leaves]
    return {
        "int96_timestamps": bool(timestamps) and set(timestamps) == {"INT96"},
        "integer_decimals": any(physical in ("INT32", "INT64") for physical in decimals),
        "utc_times": bool(times) and all(kind.get("isAdjustedToUTC") for kind in times),
        "item_lists": any(".list.item" in path for path in paths)
        and not any(".list.element" in path for path in paths),
    }


def list_leaf_columns(schema: pa.Schema, *, element: str = "element") -> list[str]:
    """The paths of a schema's leaves in Parquet, depth first; ``element`` names the elements of lists."""
    return [leaf for f in schema for leaf in _list_leaves(f.type, f.name, element)]


def _list_leaves(kind: pa.DataType, path: str, element: str) -> list[str]:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        return [leaf for f in kind for leaf in _list_leaves(f.type, f"{path}.{f.name}", element)]
    if pa.types.is_map(kind):
        key = _list_leaves(kind.key_type, f"{path}.key_value.key", element)
        return [*key, *_list_leaves(kind.item_type, f"{path}.key_value.value", element)]
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):  # Parquet has no unions: writing one raises
        return _list_leaves(kind.value_type, f"{path}.list.{element}", element)
    return [path]


# The elements of the schema; numbers are those of parquet.thrift

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
    """A leaf column of the schema: its path, its element and its levels."""

    path: tuple[str, ...]
    element: Struct
    levels: tuple[int, ...]
    """The repetitions from the root to the leaf that are not REQUIRED; they decide the levels."""

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
        return bool(get(self.element, CONVERTED) == _DECIMAL) or self._get_logical_type() == _LOGICAL_DECIMAL

    @property
    def order(self) -> str | None:
        """How values compare in statistics; None where they have no order."""
        logical, converted = self._get_logical_type(), get(self.element, CONVERTED)
        kind = self.physical[0]
        if converted == _INTERVAL or logical in _SHAPELESS:
            return None
        if kind in (BYTE_ARRAY, FIXED):
            signed = self.is_decimal or logical == _LOGICAL_FLOAT16
            return "signed" if signed else "unsigned"
        if logical == _LOGICAL_INTEGER:
            return "signed" if get(get(self.element, LOGICAL)[logical][1], 2, True) else "unsigned"
        return "unsigned" if converted in _UNSIGNED else "signed"

    def _get_logical_type(self) -> int | None:
        return next(iter(get(self.element, LOGICAL, {})), None)


@dataclass(frozen=True, slots=True)
class Elements:
    """The schema's elements of a file, by top-level column, and the columns as Arrow reads them."""

    root: Struct
    columns: Mapping[str, tuple[Struct, ...]]
    schema: pa.Schema

    def list_leaves(self, column: str) -> list[Leaf]:
        return list_leaves(self.columns[column])


def read_elements(footer: pq.FileMetaData) -> Elements | None:
    """The elements of a file; None where two of its columns share a name."""
    root, columns = _parse_footer(bytes(serialize_footer(footer)))
    if len(columns) != get(root, CHILDREN, 0):
        return None
    return Elements(root, columns, read_arrow_schema(footer))


def read_elements_of_files(footers: Sequence[pq.FileMetaData], *, int96: bool = True) -> Elements | None:
    """The elements of the first file, and of columns that it lacks those of the next that has them.

    Without ``int96``, columns that hold INT96 are left out.
    """
    found: Elements | None = None
    for footer in footers:
        more = read_elements(footer)
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


def serialize_footer(footer: pq.FileMetaData) -> memoryview:
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
        end = _find_end(elements, at)
        columns[get(elements[at], NAME).decode()] = tuple(elements[at:end])
        at = end
    return elements[0], columns


_last_parsed: list[tuple[bytes, tuple[Struct, dict[str, tuple[Struct, ...]]]]] = []


def _parse_footer(raw: bytes) -> tuple[Struct, dict[str, tuple[Struct, ...]]]:
    """The schema elements at the start of a footer, parsed once for files that share them."""
    for known, found in _last_parsed:
        if raw.startswith(known):
            return found
    fields, end = read_until(raw, SCHEMA)
    found = split(get(fields, SCHEMA)[1])
    _last_parsed[:] = [(raw[:end], found), *_last_parsed[:_KNOWN]]
    return found


def list_leaves(elements: Sequence[Struct]) -> list[Leaf]:
    """The leaves of one top-level column, depth first."""
    found = list(_walk(elements, 0, (), ()))
    return [leaf for leaf, _ in found if leaf is not None]


def _walk(
    elements: Sequence[Struct], at: int, path: tuple[str, ...], levels: tuple[int, ...]
) -> Iterator[tuple[Leaf | None, int]]:
    """The leaves below an element, each with the index of the element after it."""
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


def _find_end(elements: Sequence[Struct], at: int) -> int:
    """The index of the first element after this one and its children."""
    children = get(elements[at], CHILDREN, 0)
    at += 1
    for _ in range(children):
        at = _find_end(elements, at)
    return at


def has_same_leaves(some: Sequence[Struct], others: Sequence[Struct]) -> bool:
    """Whether the chunks of a column fit both spellings of its elements: same physical types and levels."""
    ours, theirs = list_leaves(some), list_leaves(others)
    return [(leaf.physical, leaf.levels) for leaf in ours] == [
        (leaf.physical, leaf.levels) for leaf in theirs
    ]


def with_repetition(elements: Sequence[Struct], like: Sequence[Struct]) -> tuple[Struct, ...] | None:
    """The elements ``like`` with the repetition of ``elements``; None where they differ in more than that."""
    if [get(one, CHILDREN, 0) for one in elements] != [get(one, CHILDREN, 0) for one in like]:
        return None
    changed = tuple(
        {**theirs, REPETITION: (I32, get(ours, REPETITION, REQUIRED))}
        for ours, theirs in zip(elements, like, strict=True)
    )
    return changed if has_same_leaves(elements, changed) else None
