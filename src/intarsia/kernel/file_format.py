"""The format of one Parquet file: its columns, key-value metadata and layout, and how PyArrow writes them."""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from intarsia.common.int96 import list_leaf_types, make_noted_schema, make_units_note
from intarsia.common.python_values import make_scalar
from intarsia.common.thrift import FALSE, I32, LIST, STRUCT, TRUE, Struct, get
from intarsia.core.keys import arange
from intarsia.core.layout import Elements, Layout, list_leaf_columns, read_elements_of_files, split
from intarsia.errors import NotSupported
from intarsia.kernel import chunks
from intarsia.kernel.chunks import Chunk, ChunkSource
from intarsia.kernel.file_schema import FileSchema, TypeOptions, match_schema, read_schema_without_note
from intarsia.kernel.read import as_encoded
from intarsia.kernel.threads import map_in_order, split_by_weight

SAMPLE_ROWS = 2_048
DICTIONARY_PAYS = 0.25
"""Distinct values among the sampled ones, up to which a dictionary makes a column smaller and faster."""
_DICTIONARY_BYTES = 1 << 19
"""Half of what PyArrow lets a dictionary grow to before it gives it up, because its size is an estimate."""
_KNOWN = 8


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How one file is written: its columns, its key-value metadata, its layout."""

    schema: pa.Schema
    layout: Layout
    noted: bool = False
    """Whether the Arrow schema for readers, such as one without dictionaries, is stored in the metadata."""
    file_schema: FileSchema | None = None
    """How columns are described, where there is a file whose schema is kept."""
    footer: Struct = field(default_factory=dict)
    """The footer of a file without rows; empty where PyArrow writes the right one itself."""

    @staticmethod
    def of(
        schema: pa.Schema,
        layout: Layout,
        *,
        metadata: Mapping[bytes, bytes],
        encoded: Collection[str] = (),
    ) -> FileFormat:
        notes = {**(schema.metadata or {}), **metadata}
        coming = as_encoded(schema, encoded)
        if any(pa.types.is_timestamp(dtype) and dtype.tz is None for dtype in list_leaf_types(schema)):
            layout = replace(layout, int96_timestamps=False)  # INT96 is read as instants, which these are not
        like = read_elements_of_files(layout.like, int96=not layout.converts_int96)
        file_schema = None if like is None else _match_like(coming, layout, like)
        int96 = _find_int96_leaves(schema, layout, file_schema)
        notes |= make_units_note(schema, int96)
        # Readers that find an Arrow schema take the file's metadata from it, and from nowhere else.
        whole = make_noted_schema(schema, int96).with_metadata(notes or None)
        if file_schema is not None and like is not None and not file_schema.own:
            form = FileFormat(coming.with_metadata(notes or None), layout, file_schema=file_schema)
            noted = any(b"ARROW:schema" in (footer.metadata or {}) for footer in layout.like[:1])
            return form._with_footer(whole, like, noted=noted)
        noted = bool(encoded) or any(int96)
        if noted:
            notes[b"ARROW:schema"] = _make_arrow_note(whole)
        return FileFormat(coming.with_metadata(notes or None), layout, noted, file_schema)

    @property
    def described(self) -> bool:
        """Whether the footer is written here, since PyArrow would describe columns differently."""
        return bool(self.footer)

    def refuse_lost(self, path: str) -> None:
        """Raise for columns that cannot be written as the existing file stores them."""
        if self.file_schema is not None and self.file_schema.lost:
            raise make_unkept_error(self.file_schema.lost, path)

    def open_writer(self, sink: Any, sample: pa.Table) -> pq.ParquetWriter:
        """A writer of whole files; ``sample`` are the first rows."""
        writer = self._open(sink, self.schema, sample, store_schema=not self.noted)
        if self.noted:  # without store_schema, PyArrow stores no metadata either
            writer.add_key_value_metadata(dict(self.schema.metadata))
        return writer

    def encode_chunks(self, table: pa.Table, *, threads: int = 1) -> dict[str, list[Chunk]]:
        """Some of the columns as encoded chunks of one row group, several at once. Memory: these chunks."""
        table = with_required_fields(table)
        known = self.file_schema
        if known is None or not self.described:
            encoded = self._encode_columns(table, {None: table.column_names}, threads)
            return {
                name: [Chunk(one, chunk_source) for one in chunk_source.read_chunks(0)[name]]
                for (_, name), chunk_source in encoded.items()
            }
        table = known.as_stored(table)
        names = table.column_names
        wanted: dict[TypeOptions | None, list[str]] = {
            options: [name for name in names if options in known.options[name]]
            for options in dict.fromkeys(each for name in names for each in known.options[name])
        }
        encoded = self._encode_columns(table, wanted, threads)
        found: dict[str, list[Chunk]] = {}
        for name in names:
            leaves = zip(known.options[name], known.list_leaves(name), known.bounded[name], strict=True)
            found[name] = [
                Chunk(
                    encoded[options, name].read_chunks(0)[name][number], encoded[options, name], leaf, bounded
                )
                for number, (options, leaf, bounded) in enumerate(leaves)
            ]
        return found

    def _encode_columns(
        self, table: pa.Table, wanted: Mapping[TypeOptions | None, Sequence[str]], threads: int
    ) -> dict[tuple[TypeOptions | None, str], ChunkSource]:
        """Columns as they are encoded with some options; each is encoded alone, whatever is beside it."""
        parts = [
            (options, part)
            for options, names in wanted.items()
            for part in split_by_weight(names, [table[name].nbytes for name in names], threads)
        ]
        encoded = map_in_order(
            lambda part: self._encode(table.select(part[1]), part[0]), parts, threads=threads
        )
        return {
            (options, name): chunk_source
            for (options, names), chunk_source in zip(parts, encoded, strict=True)
            for name in names
        }

    def make_sorting(self) -> tuple[int, Any] | None:
        """The order that a row group declares, as a Thrift value."""
        assert self.file_schema is not None
        declared = self.layout.make_sorting_columns(list_leaf_columns(self.file_schema.schema)) or ()
        items = [
            {1: (I32, c.column_index), 2: _encode_boolean(c.descending), 3: _encode_boolean(c.nulls_first)}
            for c in declared
        ]
        return (LIST, (STRUCT, items)) if items else None

    def _encode(self, table: pa.Table, options: TypeOptions | None) -> ChunkSource:
        """Some columns as a file of one row group in memory, without metadata."""
        source = self.schema if self.file_schema is None or options is None else self.file_schema.schema
        schema = pa.schema([source.field(name) for name in table.column_names])
        form = self if options is None else replace(self, layout=_with_options(self.layout, options))
        sink = pa.BufferOutputStream()
        with form._open(sink, schema, table, store_schema=False) as writer:
            writer.write_table(table, row_group_size=table.num_rows)
        return ChunkSource.of_buffer(sink.getvalue())

    def _open(
        self, sink: Any, schema: pa.Schema, sample: pa.Table, *, store_schema: bool
    ) -> pq.ParquetWriter:
        dictionaries = choose_dictionary_columns(sample, self.layout)
        options = self.layout.make_writer_options(schema, dictionary_columns=dictionaries)
        return pq.ParquetWriter(
            sink, schema, store_schema=store_schema, write_batch_size=_choose_batch_size(sample), **options
        )

    def _with_footer(self, whole: pa.Schema, like: Elements, *, noted: bool) -> FileFormat:
        """The same format with the footer of a file without rows.

        It has an Arrow schema if the existing file has one, or if columns would be read as other types.
        """
        known = self.file_schema
        assert known is not None
        layout = self.layout.rename_leaves(_map_paths(known, like))
        intervals = [
            _list_own_paths(known, name)[0]
            for name in known.columns
            if known.list_leaves(name)[0].is_interval
        ]
        filters = {path: count for path, count in layout.bloom_filters.items() if path not in intervals}
        layout = replace(layout, item_lists=False, bloom_filters=filters)
        footer = _make_empty_footer(known.schema, layout, {})
        footer[chunks.FILE_SCHEMA] = (LIST, (STRUCT, known.list_elements()))
        notes = dict(self.schema.metadata or {})
        if noted or not _is_seen(whole, footer):
            notes[b"ARROW:schema"] = _make_arrow_note(whole)
        footer = {
            **_make_empty_footer(known.schema, layout, notes),
            chunks.FILE_SCHEMA: footer[chunks.FILE_SCHEMA],
        }
        return replace(self, layout=layout, footer=footer)


def with_required_fields(table: pa.Table) -> pa.Table:
    """The table with some value in the NOT NULL fields of structs that are NULL, which no reader sees.

    PyArrow's writer refuses NULL there, which many of its functions leave.
    """
    for number, each in enumerate(table.schema):
        if _requires(each.type):
            chunks = [_with_required(chunk) for chunk in table.column(number).chunks]
            table = table.set_column(number, each, pa.chunked_array(chunks, each.type))
    return table


def _requires(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_struct(dtype)) and any(not f.nullable or _requires(f.type) for f in dtype.fields)


def _with_required(array: Any) -> Any:
    valid, fields = array.is_valid(), array.type.fields
    children = []
    for number, each in enumerate(fields):
        child = array.field(number)
        if not each.nullable and child.null_count:
            empty = _make_empty_value(each)
            rows = pc.if_else(valid, arange(len(array)), make_scalar(len(array), pa.int64()))
            child = pa.concat_arrays([child, empty]).take(rows)
        children.append(_with_required(child) if _requires(child.type) else child)
    return pa.StructArray.from_arrays(children, fields=fields, mask=pc.invert(valid))


def _make_empty_value(field: pa.Field) -> Any:
    """One value that is not NULL, such as PyArrow has in a NOT NULL field of a struct that is NULL."""
    dtype = field.type
    if isinstance(dtype, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(dtype, _make_empty_value(field.with_type(dtype.storage_type)))
    return pa.array([None], pa.struct([field])).field(0)


def _encode_boolean(value: bool) -> tuple[int, bool]:
    return (TRUE if value else FALSE), value


def _find_int96_leaves(schema: pa.Schema, layout: Layout, file_schema: FileSchema | None) -> list[bool]:
    """For each leaf whether it is written as INT96."""
    dtypes = list_leaf_types(schema)
    flags = [layout.int96_timestamps] * len(dtypes)
    if file_schema is not None:
        flags = [options.int96 for name in schema.names for options in file_schema.options[name]]
    return [flag and pa.types.is_timestamp(dtype) for flag, dtype in zip(flags, dtypes, strict=True)]


def _is_seen(schema: pa.Schema, footer: Struct) -> bool:
    return bool(read_schema_without_note(footer).remove_metadata().equals(schema.remove_metadata()))


def _make_arrow_note(schema: pa.Schema) -> bytes:
    return base64.b64encode(schema.serialize().to_pybytes())


def _with_options(layout: Layout, options: TypeOptions) -> Layout:
    return replace(layout, int96_timestamps=options.int96, integer_decimals=options.integer_decimals)


_last_matched: list[tuple[Elements, pa.Schema, tuple[TypeOptions, bool, bool, bool], FileSchema]] = []


def _match_like(schema: pa.Schema, layout: Layout, like: Elements) -> FileSchema | None:
    """The columns described as in existing files; None where some cannot be written at all.

    Files of a dataset mostly have the same columns, so the last results are kept: finding one takes about a
    millisecond, for every file that is written.
    """
    base = TypeOptions(layout.int96_timestamps, layout.integer_decimals)
    options = (base, layout.utc_times, layout.item_lists, layout.keeps_root)
    for other, columns, chosen, found in _last_matched:
        if (
            chosen == options
            and other.columns is like.columns
            and other.root is like.root
            and other.schema.equals(like.schema, check_metadata=True)
            and columns.equals(schema, check_metadata=True)
        ):
            return found

    def make_template(columns: pa.Schema, options: TypeOptions) -> Any:
        footer = _make_empty_footer(columns.remove_metadata(), _with_options(layout, options), {})
        return split(get(footer, chunks.FILE_SCHEMA)[1])

    try:
        found = match_schema(schema, like, base=base, template=make_template, keeps_root=layout.keeps_root)
    except pa.ArrowNotImplementedError:
        return None  # writing raises it
    _last_matched[:] = [(like, schema, options, found), *_last_matched[:_KNOWN]]
    return found


def _make_empty_footer(schema: pa.Schema, layout: Layout, notes: Mapping[bytes, bytes]) -> Struct:
    sink = pa.BufferOutputStream()
    options = layout.make_writer_options(schema, dictionary_columns=())
    with pq.ParquetWriter(sink, schema.remove_metadata(), store_schema=False, **options) as writer:
        if notes:
            writer.add_key_value_metadata(dict(notes))
    return dict(ChunkSource.of_buffer(sink.getvalue()).footer)


def _list_own_paths(known: FileSchema, name: str) -> list[str]:
    return list_leaf_columns(pa.schema([known.schema.field(name)]))


def _map_paths(known: FileSchema, like: Elements) -> dict[str, str]:
    """The path that PyArrow gives each leaf, by its path in the existing file."""
    paths: dict[str, str] = {}
    for name in known.kept:
        theirs = [".".join(leaf.path) for leaf in like.list_leaves(name)]
        paths.update(zip(theirs, _list_own_paths(known, name), strict=True))
    return paths


def make_unkept_error(columns: Collection[str], path: str) -> NotSupported:
    """The error for columns that cannot be written in the physical type that they are stored in."""
    names = ", ".join(map(repr, sorted(columns)))
    return NotSupported(
        f"{names} cannot be written as the file that is there stores it; readers would see another type.",
        path=path,
        hint="nothing was changed; write the dataset anew with a type that its writer and PyArrow share.",
    )


def _choose_batch_size(sample: pa.Table) -> int:
    """Values that are written between two checks of the page size: many where they are narrow, for speed."""
    rows = max(sample.num_rows, 1)
    widest = max((column.nbytes // rows for column in sample.columns), default=0)
    return min(16_384, max(1_024, (1 << 20) // max(widest, 1)))


def choose_dictionary_columns(sample: pa.Table, layout: Layout) -> list[str]:
    """The leaf columns for which a dictionary pays, judged by the distinct values of a sample.

    Rows in a row tell of values that repeat nearby, rows from everywhere of those that repeat at all: of the
    2,500 days of seven years, 2,048 rows have 1,400, and a dictionary halves the column all the same.
    """
    rows = sample.num_rows
    head = sample.slice(max(0, (rows - SAMPLE_ROWS) // 2), SAMPLE_ROWS)
    chosen: list[str] = []
    for each in sample.schema:
        if pa.types.is_nested(each.type):
            chosen.extend(list_leaf_columns(pa.schema([each])))
        elif (
            pa.types.is_dictionary(each.type)
            or _repeats(head[each.name])
            or _repeats_at_all(sample[each.name])
        ):
            chosen.append(each.name)
    return [path for path in chosen if layout.allows_dictionary(path)]


def _repeats(column: pa.ChunkedArray) -> bool:
    if pa.types.is_boolean(column.type):
        return False
    if len(column) < 1024 or pa.types.is_null(column.type):
        return True
    distinct = _count_distinct(column)
    return distinct is None or distinct <= len(column) * DICTIONARY_PAYS


def _count_distinct(column: pa.ChunkedArray) -> int | None:
    """None where PyArrow does not compare values of the type."""
    dtype = column.type
    if isinstance(dtype, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], dtype.storage_type)
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.binary() if pa.types.is_binary_view(column.type) else pa.string())
    try:
        return int(pc.count_distinct(column).as_py())
    except pa.ArrowNotImplementedError:
        return None


def _repeats_at_all(column: pa.ChunkedArray) -> bool:
    """Whether all distinct values, by an estimate, and their numbers take at most half of the bytes."""
    rows = len(column)
    if rows < 8 * SAMPLE_ROWS or pa.types.is_boolean(column.type):
        return False
    try:
        spread = column.take(pc.divide(pc.multiply(arange(SAMPLE_ROWS), rows), SAMPLE_ROWS))
    except pa.ArrowNotImplementedError:  # views, so far
        return False
    distinct = _count_distinct(spread)
    if distinct is None or distinct > 0.95 * SAMPLE_ROWS:
        return False  # so many that the sample does not tell how many
    values = _estimate_distinct(distinct, SAMPLE_ROWS)
    width = spread.nbytes / SAMPLE_ROWS
    dictionary = values * width
    numbers = rows * values.bit_length() / 8
    return dictionary <= _DICTIONARY_BYTES and dictionary + numbers <= rows * width / 2


def _estimate_distinct(found: int, drawn: int) -> int:
    """How many values there are if ``drawn`` of them, each as likely as another, had ``found`` different."""
    low, high = found, 64 * drawn
    while low < high:
        middle = (low + high) // 2
        if middle * -math.expm1(-drawn / middle) < found:
            low = middle + 1
        else:
            high = middle
    return low
