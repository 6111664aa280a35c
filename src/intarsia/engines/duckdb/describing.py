"""The footers of files that DuckDB wrote, with the columns described as the files that are there do."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from intarsia.common.disk import local_path
from intarsia.common.thrift import LIST, STRUCT, Struct, get, read_struct, read_until, write_struct
from intarsia.core import elements as schema_elements
from intarsia.core.elements import (
    Elements,
    Leaf,
    elements_of,
    elements_of_files,
    leaves_of,
    respelled,
    same_leaves,
    split,
)
from intarsia.core.layout import Layout
from intarsia.engines.arrow import chunks
from intarsia.engines.arrow.chunk_writer import described, not_written
from intarsia.engines.arrow.file_schema import flat_types, is_same_type

__all__ = ["OtherTypes", "describe", "stored_otherwise"]

_PIECE = 16 << 20


class OtherTypes(Exception):
    """DuckDB stored columns as other physical types than the files that are there."""


def describe(
    location: str, filesystem: pafs.FileSystem, schema: pa.Schema, layout: Layout, *, exactly: Collection[str]
) -> None:
    """Describe the columns of a file as those of the same type in the layout's files.

    Columns ``exactly`` so, others with NULL where it is written. Nothing but the footer changes. Raises
    OtherTypes.
    """
    like = elements_of_files(layout.like, int96=not layout.converts_int96)
    if like is None:
        return
    with filesystem.open_input_file(location) as file:
        size = file.size()
        length = int.from_bytes(file.read_at(8, size - 8)[:4], "little")
        raw = file.read_at(length, size - 8 - length)
    head, end = read_until(raw, chunks.FILE_SCHEMA)
    elements = get(head, chunks.FILE_SCHEMA)[1]
    root, columns = split(elements)
    wanted = {name: _wanted(name, ours, like, schema, name in exactly) for name, ours in columns.items()}
    root = {**like.root, schema_elements.CHILDREN: root[schema_elements.CHILDREN]}
    whole = [root, *(element for column in wanted.values() for element in column)]
    if whole == elements:
        return
    leaves = [
        (ours, theirs)
        for name in columns
        for ours, theirs in zip(leaves_of(columns[name]), leaves_of(wanted[name]), strict=True)
    ]
    new = {**head, chunks.FILE_SCHEMA: (LIST, (STRUCT, whole))}
    if all(ours.path == theirs.path and _bounded(ours, theirs) for ours, theirs in leaves):
        footer = write_struct(new)[:-1] + raw[end:]
    else:
        footer = write_struct({**read_struct(raw)[0], **new, **_chunks(raw, leaves)})
    _replace_footer(location, filesystem, size - 8 - length, footer)


def _wanted(
    name: str, ours: tuple[Struct, ...], like: Elements, schema: pa.Schema, exactly: bool
) -> tuple[Struct, ...]:
    if name not in like.columns or not is_same_type(schema.field(name).type, like, name):
        return ours
    theirs = like.columns[name]
    found = theirs if same_leaves(ours, theirs) else None if exactly else respelled(ours, theirs)
    if found is None:
        raise OtherTypes(f"{name!r} is stored in another way")
    return found


def _bounded(ours: Leaf, theirs: Leaf) -> bool:
    return theirs.order is not None and ours.order == theirs.order


def _chunks(raw: bytes, leaves: list[tuple[Leaf, Leaf]]) -> Struct:
    """The row groups, their chunks under other paths."""
    footer, _ = read_struct(raw)
    for group in get(footer, chunks.FILE_GROUPS, (STRUCT, []))[1]:
        for chunk, (ours, theirs) in zip(get(group, chunks.GROUP_CHUNKS)[1], leaves, strict=True):
            described(chunk, theirs, _bounded(ours, theirs))
            if not _bounded(ours, theirs):
                chunk.pop(chunks.CHUNK_BOUNDS, None)
                chunk.pop(chunks.CHUNK_BOUNDS_SIZE, None)
    return {chunks.FILE_GROUPS: footer[chunks.FILE_GROUPS]} if chunks.FILE_GROUPS in footer else {}


def _replace_footer(location: str, filesystem: pafs.FileSystem, place: int, footer: bytes) -> None:
    """Put a footer where the old one begins; what cannot be changed in place is copied."""
    tail = footer + len(footer).to_bytes(4, "little") + chunks.MAGIC
    local = local_path(filesystem, location)
    try:
        if local is not None:
            with open(local, "r+b") as file:
                file.seek(place)
                file.write(tail)
                file.truncate()
            return
        copy = f"{location}.described"
        try:
            with filesystem.open_input_stream(location) as old, filesystem.open_output_stream(copy) as new:
                left = place
                while left:
                    piece = old.read(min(left, _PIECE))
                    new.write(piece)
                    left -= len(piece)
                new.write(tail)
            filesystem.move(copy, location)
        finally:
            with suppress(OSError):
                filesystem.delete_file(copy)
    except OSError as error:
        raise not_written(error, location) from error


def stored_otherwise(schema: pa.Schema, footer: pq.FileMetaData) -> str | None:
    """The first column of a file that DuckDB would store as another physical type; None if there is none."""
    like = elements_of(footer)
    for each in schema if like is not None else ():
        if like is None or each.name not in like.columns or not is_same_type(each.type, like, each.name):
            continue
        for kind, leaf in zip(flat_types(each.type), like.leaves(each.name), strict=True):
            if leaf.physical != _physical(kind, leaf):
                return each.name
    return None


def _physical(kind: pa.DataType, leaf: Leaf) -> tuple[int, int | None]:
    """What DuckDB stores values of a type as."""
    if pa.types.is_decimal(kind):
        if kind.precision > 18:
            return schema_elements.FIXED, 16
        return (schema_elements.INT32 if kind.precision <= 9 else schema_elements.INT64), None
    if pa.types.is_integer(kind):
        return (schema_elements.INT64 if kind.bit_width == 64 else schema_elements.INT32), None
    if pa.types.is_timestamp(kind):
        return schema_elements.INT64, None
    return leaf.physical
