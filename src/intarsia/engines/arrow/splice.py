"""A file written from the column chunks of another and from new ones: what does not change is not encoded.

Chunks are taken over as bytes, their pages with checksums; only the places in the footer and in the
indexes are new. The reader sees the same file as if all of it had been written by us.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from intarsia.common.disk import hasten
from intarsia.common.thrift import BINARY, I16, I32, I64, LIST, STRUCT, Struct, get, write_struct
from intarsia.core.change import StagedFile
from intarsia.core.layout import Layout
from intarsia.engines.arrow import chunks
from intarsia.engines.arrow.chunks import Donor, Moved, Unspliceable, movable, moved
from intarsia.engines.arrow.reading import FileReader, as_encoded
from intarsia.engines.arrow.writing import Form, not_written, unwritable

CHUNK_BYTES = 16 << 10
"""Chunks smaller than this on average are encoded sooner than taken over."""
MOST_CHUNK_BYTES = 256 << 20
"""A chunk is held in memory while it moves."""
_ALIKE = (1, 2, 3, 4, 5, 9)
"""Of a schema element: physical type, its length, repetition, name, children, field id."""


class Splice:
    """Writes one staged file, row group by row group of the file that it replaces.

    Memory: the encoded chunks of one row group. Nothing of it counts until a commit names it.
    """

    def __init__(
        self,
        location: str,
        *,
        filesystem: pafs.FileSystem,
        form: Form,
        donor: Donor,
        footer: Struct,
        alike: frozenset[str],
    ) -> None:
        self.schema = form.schema
        self.alike = alike
        """Columns whose chunks can be taken over."""
        self._location = location
        self._filesystem = filesystem
        self._form = form
        self._donor = donor
        self._footer = footer
        self._groups: list[Struct] = []
        self._taken: set[str] = set()
        self._joined: dict[str, list[Struct]] = {}
        self._indexed: list[Moved] = []
        self._rows = 0
        self._place = 0
        self._sink: Any = None

    @staticmethod
    def of(
        reader: FileReader,
        location: str,
        schema: pa.Schema,
        *,
        filesystem: pafs.FileSystem,
        layout: Layout,
        metadata: Mapping[bytes, bytes],
        encoded: Collection[str],
        writer: bytes | None = None,
    ) -> Splice | None:
        """A splice of the file being read, or None where nothing would be won or it cannot be done.

        ``writer`` is whom the file is said to be written by; PyArrow if None.
        """
        if not _worth_it(reader) or any(_narrow(field.type) for field in schema):
            return None
        donor = reader.donor()
        if not donor.trusted:
            return None
        form = Form.of(schema, layout, metadata=metadata, encoded=encoded)
        sink = pa.BufferOutputStream()
        try:
            form.writer(sink, form.schema.empty_table()).close()
        except pa.ArrowNotImplementedError:
            return None  # the usual way tells it
        template = Donor.of_buffer(sink.getvalue())
        alike = _alike(reader, as_encoded(schema, encoded), donor, template)
        if not alike:
            return None
        footer = _with_elements_of(donor, template, alike)
        if writer is not None:
            footer[chunks.FILE_WRITER] = (BINARY, writer)
        return Splice(location, filesystem=filesystem, form=form, donor=donor, footer=footer, alike=alike)

    def add(self, group: int, table: pa.Table) -> None:
        """A row group of the file with some columns new, the others as they are.

        ``table`` holds the new columns: at least those that are not alike; all of them where the
        number of rows or their order has changed.
        """
        if not table.num_columns:
            self._add(group, None)
        elif table.num_rows:
            sink = pa.BufferOutputStream()
            try:
                self._form.encode(sink, table)
            except pa.ArrowNotImplementedError as error:
                raise unwritable(error, self._location) from error
            self._add(group, Donor.of_buffer(sink.getvalue()))

    def join(self, group: int, part: Donor) -> None:
        """The same with the new columns from a file of one row group, which another writer made.

        The file is then described as that writer does, and named as one of its. Raises Unspliceable.
        """
        for name, elements in part.columns().items():
            if not same_form(self._joined.setdefault(name, elements), elements):
                raise Unspliceable(f"{name!r} was written in two ways")
        self._footer = {**self._footer, chunks.FILE_WRITER: part.footer[chunks.FILE_WRITER]}
        self._add(group, part)

    def _add(self, group: int, part: Donor | None) -> None:
        """A row group with the columns of a file that has no other, and the rest as they are."""
        taken = self._donor.chunks(group)
        fresh = {} if part is None else part.chunks(0)
        rows = int(get(self._donor.groups()[group] if part is None else part.groups()[0], chunks.GROUP_ROWS))
        self._taken.update(name for name in self.schema.names if name not in fresh)
        start, written = self._place or len(chunks.MAGIC), []
        for name in self.schema.names:
            donor = self._donor if part is None or name not in fresh else part
            for chunk in fresh[name] if name in fresh else taken[name]:
                written.append(self._take(chunk, donor))
        self._rows += rows
        self._groups.append(self._group(group, rows, start, written))

    def close(self, path: str, partition: Mapping[str, Any]) -> StagedFile:
        """Finish the file and say what it is. Raises Unspliceable where chunks were joined that differ."""
        described = self._described()
        self._write(b"")
        for item in self._indexed:
            if item.bloom is not None:
                get(item.chunk, chunks.CHUNK_META)[chunks.META_BLOOM] = (I64, self._place)
                self._write(item.bloom)
        # There are readers that look for the pages of all columns if one has an index of them.
        indexed = self._indexed
        if self._joined and any(item.offsets is None for item in indexed):
            indexed = []
        for item in indexed:
            self._index(item, item.bounds, chunks.CHUNK_BOUNDS, chunks.CHUNK_BOUNDS_SIZE)
        for item in indexed:
            self._index(item, item.offsets, chunks.CHUNK_OFFSETS, chunks.CHUNK_OFFSETS_SIZE)
        footer = write_struct(
            {
                **described,
                chunks.FILE_ROWS: (I64, self._rows),
                chunks.FILE_GROUPS: (LIST, (STRUCT, self._groups)),
            }
        )
        self._write(footer + len(footer).to_bytes(4, "little") + chunks.MAGIC)
        try:
            self._sink.close()
        except OSError as error:
            raise not_written(error, self._location) from error
        hasten(self._filesystem, self._location)
        return StagedFile(self._location, path, self._rows, self._place, dict(partition))

    def abandon(self) -> None:
        """Let go of the handle after an error; the staged bytes are swept with the transaction."""
        if self._sink is not None and not self._sink.closed:
            with suppress(OSError):  # the disk may be full, which has been said
                self._sink.close()

    def _described(self) -> Struct:
        """The footer, with columns that were joined as their writer describes them."""
        if not self._joined:
            return self._footer
        own = replace(self._donor, footer=self._footer).columns()
        for name in self._taken.intersection(self._joined):
            if not same_form(own[name], self._joined[name]):
                raise Unspliceable(f"{name!r} is stored in two ways")
        # Where a column is partly as it was, it is described as it was.
        elements = {n: e if n in self._taken else self._joined.get(n, e) for n, e in own.items()}
        return _with_elements(self._footer, elements)

    def _take(self, chunk: Struct, donor: Donor) -> Struct:
        self._write(b"")
        item = moved(chunk, donor, self._place)
        for part in item.pages:
            self._write(part)
        self._indexed.append(replace(item, pages=()))  # which are written, and not to be held
        return item.chunk

    def _group(self, group: int, rows: int, start: int, written: list[Struct]) -> Struct:
        metas = [get(chunk, chunks.CHUNK_META) for chunk in written]
        made: Struct = {
            chunks.GROUP_CHUNKS: (LIST, (STRUCT, written)),
            chunks.GROUP_SIZE: (I64, sum(get(meta, chunks.META_SIZE) for meta in metas)),
            chunks.GROUP_ROWS: (I64, rows),
            chunks.GROUP_PLACE: (I64, start),
            chunks.GROUP_STORED: (I64, sum(get(meta, chunks.META_STORED) for meta in metas)),
        }
        declared = self._donor.groups()[group].get(chunks.GROUP_SORTING)
        if declared is not None and self._form.layout.sorting:
            made[chunks.GROUP_SORTING] = declared
        if len(self._groups) < 1 << 15:
            made[chunks.GROUP_NUMBER] = (I16, len(self._groups))
        return made

    def _index(self, item: Moved, data: bytes | None, place: int, size: int) -> None:
        if data is not None:
            item.chunk[place], item.chunk[size] = (I64, self._place), (I32, len(data))
            self._write(data)

    def _write(self, data: bytes | memoryview) -> None:
        try:
            if self._sink is None:
                self._sink = self._filesystem.open_output_stream(self._location)
                self._sink.write(chunks.MAGIC)
                self._place = len(chunks.MAGIC)
            if data:
                self._sink.write(data)
                self._place += len(data)
        except OSError as error:
            raise not_written(error, self._location) from error


def _worth_it(reader: FileReader) -> bool:
    footer = reader.footer
    sizes = [
        footer.row_group(group).column(number).total_compressed_size
        for group in range(footer.num_row_groups)
        for number in range(footer.num_columns)
    ]
    return bool(sizes) and sum(sizes) >= CHUNK_BYTES * len(sizes) and max(sizes) <= MOST_CHUNK_BYTES


def _narrow(kind: pa.DataType) -> bool:
    """A dictionary that may outgrow its indices, so that a row group must be cut in two."""
    return pa.types.is_dictionary(kind) and kind.index_type.bit_width < 32


def _alike(reader: FileReader, schema: pa.Schema, donor: Donor, template: Donor) -> frozenset[str]:
    """Columns that are stored as we would store them, in every row group."""
    theirs, ours = donor.columns(), template.columns()
    found = {
        field.name
        for field in schema
        if field.name in theirs
        and field.name in ours
        and field.name not in reader.file.partition  # to be compared with what the path says
        and field.type == reader.physical.field(field.name).type
        and same_form(theirs[field.name], ours[field.name])
    }
    for group in range(len(donor.groups())):
        for name, stored in donor.chunks(group).items():
            if not all(movable(chunk) for chunk in stored):
                found.discard(name)
    return frozenset(found)


def same_form(some: Sequence[Struct], others: Sequence[Struct]) -> bool:
    """Whether chunks of columns that are described in these ways can be one column's."""
    return [_form_of(element) for element in some] == [_form_of(element) for element in others]


def _form_of(element: Struct) -> list[Any]:
    return [get(element, number) for number in _ALIKE]


def _with_elements_of(donor: Donor, template: Donor, alike: Collection[str]) -> Struct:
    """The footer of a file of ours in which some columns are described as in the file they come from."""
    theirs, ours = donor.columns(), template.columns()
    elements = {name: theirs[name] if name in alike else ours[name] for name in ours}
    return _with_elements(template.footer, elements)


def _with_elements(footer: Struct, columns: Mapping[str, list[Struct]]) -> Struct:
    """The footer with its columns described in these ways."""
    elements = [get(footer, chunks.FILE_SCHEMA)[1][0]]
    for described in columns.values():
        elements += described
    return {**footer, chunks.FILE_SCHEMA: (LIST, (STRUCT, elements))}
