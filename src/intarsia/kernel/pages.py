"""Some pages of a column chunk as a small file in memory, so that pages without a wanted row are not decoded.

Where pages are is in the chunk's offset index, or else in the headers of its pages; nothing is decoded here.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.python_values import make_array
from intarsia.common.thrift import BINARY, I32, I64, LIST, STRUCT, Struct, get, read_struct, write_struct
from intarsia.kernel import chunks
from intarsia.kernel.chunks import MAGIC, ChunkSource, NotCopyable, find_chunk_start, is_copyable

RUN_ROWS = 8_192
"""Rows of which one is wanted, for as long as that leaves most of a row group out."""
_FILE_NOTES, _ELEMENT_REPETITION, _REPEATED, _DICTIONARY_PAGE = 5, 3, 2, 7
_OPTIONAL_PARTS = (chunks.META_STATISTICS, 13, chunks.META_BLOOM, chunks.META_BLOOM_SIZE, 16, 17)
"""What a chunk's metadata says of all its values: statistics, encodings, Bloom filter, sizes."""


def is_sparse(rows: pa.Int64Array, count: int) -> bool:
    """Whether ascending ``rows`` of ``count`` are few enough, or close together, to leave pages out."""
    runs = count // RUN_ROWS
    return runs > 1 and pc.count_distinct(pc.divide(rows, RUN_ROWS)).as_py() * 2 <= runs


@dataclass(frozen=True, slots=True)
class ChosenPages:
    """A Parquet file of one column and one row group, and where the wanted rows are in it."""

    data: pa.Buffer
    rows: pa.Int64Array


def choose_pages(
    chunk_source: ChunkSource, group: int, field: pa.Field, rows: pa.Int64Array
) -> ChosenPages | None:
    """The pages of a column that hold some rows, ascending; None where most do, or it is not a flat column.

    Reads these pages only where the chunk has an offset index. Memory: the chunk. Raises NotCopyable.
    """
    try:
        elements = chunk_source.read_columns().get(field.name, [])
        found = chunk_source.read_chunks(group).get(field.name, [])
        flat = len(elements) == 1 and get(elements[0], _ELEMENT_REPETITION) != _REPEATED
        if not flat or len(found) != 1 or not is_copyable(found[0]):
            return None
        count = int(get(chunk_source.read_groups()[group], chunks.GROUP_ROWS))
        pages = _locate_pages(found[0], chunk_source)
        firsts = make_array([first for *_, first in pages], pa.int64())
        page_of = pc.subtract(pc.search_sorted(firsts, rows, side="right").cast(pa.int64()), 1)
        wanted: list[int] = pc.unique(page_of).to_pylist()
        if len(wanted) * 2 > len(pages):
            return None
        ends = [first for *_, first in pages[1:]] + [count]
        kept = [ends[number] - pages[number][2] for number in wanted]
        starts = dict(zip(wanted, _accumulate(kept), strict=True))
        shift = make_array([starts.get(n, 0) - pages[n][2] for n in range(len(pages))], pa.int64())
        parts = [chunk_source.read(size, place) for place, size, _ in (pages[number] for number in wanted)]
        for part, size in zip(parts, kept, strict=True):
            _check_page(part, size)
        data = _make_file(chunk_source, found[0], elements[0], field, parts, pages[0][0], sum(kept))
        return ChosenPages(data, pc.add(rows, shift.take(page_of)))
    except (ValueError, TypeError, AttributeError) as error:  # bytes that are not the struct they should be
        raise NotCopyable(f"{type(error).__name__}: {error}") from error


def _accumulate(counts: Sequence[int]) -> list[int]:
    starts = [0]
    for count in counts[:-1]:
        starts.append(starts[-1] + count)
    return starts


def _locate_pages(chunk: Struct, chunk_source: ChunkSource) -> list[tuple[int, int, int]]:
    """Place, size and first row of each data page of a flat column."""
    if chunks.CHUNK_OFFSETS in chunk:
        size, place = get(chunk, chunks.CHUNK_OFFSETS_SIZE), get(chunk, chunks.CHUNK_OFFSETS)
        index, _ = read_struct(chunk_source.read(size, place))
        pages = [(get(page, 1), get(page, 2), get(page, 3)) for page in get(index, 1)[1]]
        _check_index(pages, get(chunk, chunks.CHUNK_META))
        return pages
    meta = get(chunk, chunks.CHUNK_META)
    start = find_chunk_start(meta)
    raw = chunk_source.read(get(meta, chunks.META_STORED), start)
    found, at, row = [], 0, 0
    while at < len(raw):
        header, body = read_struct(raw, at)
        end = body + get(header, chunks.PAGE_STORED, len(raw))
        if end > len(raw):
            raise NotCopyable("a page that ends beyond its chunk")
        if _DICTIONARY_PAGE not in header:
            found.append((start + at, end - at, row))
        for kind in (chunks.PAGE_DATA, chunks.PAGE_DATA_V2):
            row += get(get(header, kind, {}), 1, 0)
        at = end
    if row != get(meta, chunks.META_VALUES):
        raise NotCopyable(f"{row} values in the pages of a chunk that has {get(meta, chunks.META_VALUES)}")
    return found


def _check_index(pages: Sequence[tuple[int, int, int]], meta: Struct) -> None:
    """Raise NotCopyable where an offset index does not describe the chunk from its first page to its last."""
    end = find_chunk_start(meta) + get(meta, chunks.META_STORED)
    follow = [*(place for place, *_ in pages[1:]), end]
    firsts = [first for *_, first in pages]
    if (
        not pages
        or [place + size for place, size, _ in pages] != follow
        or pages[0][0] != get(meta, chunks.META_DATA)
        or firsts[0] != 0
        or sorted(set(firsts)) != firsts
    ):
        raise NotCopyable("an offset index that is not that of its chunk")


def _check_page(page: Any, rows: int) -> None:
    """Raise NotCopyable where a data page has another number of rows than it should have."""
    header, body = read_struct(page, 0)
    kinds = [get(header, kind) for kind in (chunks.PAGE_DATA, chunks.PAGE_DATA_V2) if kind in header]
    stored = get(header, chunks.PAGE_STORED, -1)
    if [get(kind, 1) for kind in kinds] != [rows] or body + stored != len(page):
        raise NotCopyable(f"a page that is not one of {rows} rows")


def _make_file(
    chunk_source: ChunkSource,
    chunk: Struct,
    element: Struct,
    field: pa.Field,
    pages: Sequence[Any],
    first_page: int,
    rows: int,
) -> pa.Buffer:
    """A file of some data pages of a chunk, and of its dictionary page."""
    meta: Struct = dict(get(chunk, chunks.CHUNK_META))
    start, place = find_chunk_start(meta), len(MAGIC)
    dictionary = chunk_source.read(first_page - start, start) if start < first_page else b""
    stored = len(dictionary) + sum(len(page) for page in pages)
    for number in _OPTIONAL_PARTS:
        meta.pop(number, None)
    meta.pop(chunks.META_DICTIONARY, None)
    if dictionary:
        meta[chunks.META_DICTIONARY] = (I64, place)
    meta[chunks.META_DATA] = (I64, place + len(dictionary))
    meta[chunks.META_VALUES] = (I64, rows)
    meta[chunks.META_STORED] = (I64, stored)
    group: Struct = {
        chunks.GROUP_CHUNKS: (
            LIST,
            (STRUCT, [{chunks.CHUNK_PLACE: (I64, 0), chunks.CHUNK_META: (STRUCT, meta)}]),
        ),
        chunks.GROUP_SIZE: meta[chunks.META_SIZE],
        chunks.GROUP_ROWS: (I64, rows),
    }
    footer = dict(chunk_source.footer)
    root = {**get(footer, chunks.FILE_SCHEMA)[1][0], chunks.ELEMENT_CHILDREN: (I32, 1)}
    footer[chunks.FILE_SCHEMA] = (LIST, (STRUCT, [root, element]))
    footer[chunks.FILE_ROWS] = (I64, rows)
    footer[chunks.FILE_GROUPS] = (LIST, (STRUCT, [group]))
    footer.pop(chunks.FILE_ORDERS, None)
    if _FILE_NOTES in footer:  # the Arrow schema for readers is that of this column
        note = base64.b64encode(pa.schema([field]).serialize().to_pybytes())
        notes: list[Struct] = [{1: (BINARY, b"ARROW:schema"), 2: (BINARY, note)}]
        footer[_FILE_NOTES] = (LIST, (STRUCT, notes))
        if not any(get(each, 1) == b"ARROW:schema" for each in get(chunk_source.footer, _FILE_NOTES)[1]):
            del footer[_FILE_NOTES]
    raw = write_struct(footer)
    return pa.py_buffer(b"".join([MAGIC, dictionary, *pages, raw, len(raw).to_bytes(4, "little"), MAGIC]))
